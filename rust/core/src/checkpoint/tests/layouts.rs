//! Every layout that is accepted: spellings, nestings, shards, artifacts with a checkpoint beside them, memory.

use super::*;

fn respelled(tensors: &Tensors, respell: impl Fn(&str) -> String) -> Tensors {
    tensors.iter().map(|(key, tensor)| (respell(key), tensor.clone())).collect()
}

/// Tensors with a prefix, with or without `model.`.
fn spelled(tensors: &Tensors, prefix: &str, model: bool) -> Tensors {
    respelled(tensors, |key| {
        let inside = key.strip_prefix("model.").filter(|_| !model).unwrap_or(key);
        format!("{prefix}{inside}")
    })
}

/// The part of a golden that the predictor owns, spelled as a lone predictor.
fn predictor_of_golden(name: &str, prefix: &str) -> Tensors {
    let all = tensor_file::read(&golden(name).join("model.safetensors")).unwrap();
    all.into_iter().filter_map(|(key, tensor)| Some((key.strip_prefix(prefix)?.to_owned(), tensor))).collect()
}

#[test]
fn every_prefix_with_and_without_model_loads() {
    let tensors = small_tensors();
    for prefix in ["talker.code_predictor.", "code_predictor.", ""] {
        for model in [true, false] {
            let directory = directory(&small_config(), &spelled(&tensors, prefix, model));
            let checkpoint = Checkpoint::open(directory.path()).unwrap();
            assert_eq!(*checkpoint.spec(), small_spec(), "{prefix:?} {model}");
            assert_holds(&checkpoint, &tensors);
        }
    }
}

#[test]
fn a_spelling_holds_for_the_whole_checkpoint() {
    let mut tensors = small_tensors();
    let norm = tensors.remove("model.norm.weight").unwrap();
    tensors.insert("norm.weight".to_owned(), norm);
    let directory = directory(&small_config(), &tensors);
    let error = refused(directory.path());
    assert!(matches!(&error, CheckpointError::MissingTensor { tensor, .. } if tensor == "model.norm.weight"));
}

#[test]
fn every_nesting_of_the_configuration_loads() {
    let tensors = small_tensors();
    let talker = |width: usize| json!({ "hidden_size": width, "code_predictor_config": small_config() });
    let omni = json!({ "hidden_size": 99, "text_config": { "hidden_size": 6 }, "code_predictor_config": small_config() });
    for config in [
        small_config(),
        talker(6),
        json!({ "talker_config": talker(6), "hidden_size": 77 }),
        json!({ "talker_config": omni }),
        json!({ "talker_config": { "code_predictor_config": small_config() } }),
    ] {
        let directory = directory(&config, &tensors);
        assert_eq!(*Checkpoint::open(directory.path()).unwrap().spec(), small_spec(), "{config}");
    }
}

#[test]
fn a_talkers_table_comes_along() {
    let table = FileTensor::from_f32(vec![9, 6], &[0.5; 54]);
    for (prefix, key) in [
        ("talker.code_predictor.", "talker.model.codec_embedding.weight"),
        ("code_predictor.", "talker.model.codec_embedding.weight"),
        ("code_predictor.", "model.codec_embedding.weight"),
        ("", "talker.model.codec_embedding.weight"),
    ] {
        let mut tensors = spelled(&small_tensors(), prefix, true);
        tensors.insert(key.to_owned(), table.clone());
        let directory = directory(&small_config(), &tensors);
        let checkpoint = Checkpoint::open(directory.path()).unwrap();
        assert_eq!(checkpoint.spec().code_zero_size, Some(9));
        let sum = checkpoint
            .read(WeightName::CodeZeroTable, |view| (0..54).map(|index| view.get(index)).sum::<f32>());
        assert_eq!(sum.unwrap(), 27.0);
    }
}

#[test]
fn model_safetensors_comes_before_an_index_and_an_index_before_other_files() {
    let tensors = small_tensors();
    let directory = directory(&small_config(), &tensors);
    let path = |name: &str| directory.path().join(name);
    fs::write(path("model.safetensors.index.json"), "not even JSON").unwrap();
    assert_holds(&Checkpoint::open(directory.path()).unwrap(), &tensors);

    fs::rename(path("model.safetensors"), path("weights.safetensors")).unwrap();
    fs::write(path("other.safetensors"), "not a tensor file").unwrap();
    let map: BTreeMap<&String, &str> = tensors.keys().map(|key| (key, "weights.safetensors")).collect();
    fs::write(path("model.safetensors.index.json"), json!({ "weight_map": map }).to_string()).unwrap();
    assert_holds(&Checkpoint::open(directory.path()).unwrap(), &tensors);

    fs::remove_file(path("model.safetensors.index.json")).unwrap();
    fs::remove_file(path("other.safetensors")).unwrap();
    fs::write(path("._weights.safetensors"), "a file system's own notes").unwrap();
    assert_holds(&Checkpoint::open(directory.path()).unwrap(), &tensors);
}

#[test]
fn shards_without_a_tensor_of_ours_are_not_opened() {
    let tensors = small_tensors();
    let directory = directory(&small_config(), &tensors);
    let path = |name: &str| directory.path().join(name);
    fs::rename(path("model.safetensors"), path("a.safetensors")).unwrap();
    let mut map: BTreeMap<&str, &str> = tensors.keys().map(|key| (key.as_str(), "a.safetensors")).collect();
    map.insert("thinker.model.norm.weight", "not-downloaded.safetensors");
    fs::write(path("model.safetensors.index.json"), json!({ "weight_map": map }).to_string()).unwrap();
    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    assert_eq!(checkpoint.sources(), [path("config.json"), path("a.safetensors")]);
}

#[cfg(unix)]
#[test]
fn linked_files_load_as_a_download_cache_leaves_them() {
    let store = directory(&small_config(), &small_tensors());
    let snapshot = tempfile::tempdir().unwrap();
    for name in ["config.json", "model.safetensors"] {
        std::os::unix::fs::symlink(store.path().join(name), snapshot.path().join(name)).unwrap();
    }
    assert_holds(&Checkpoint::open(snapshot.path()).unwrap(), &small_tensors());
}

/// The artifacts that an export leaves: tables, heads and projection in files of their own, and a configuration
/// without the keys that the other runtime has no use for.
fn artifacts(tensors: &Tensors, config: &Value) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let mut files: BTreeMap<&str, Tensors> = BTreeMap::new();
    for (key, tensor) in tensors {
        let index = |key: &str, prefix: &str| {
            key.strip_prefix(prefix).and_then(|rest| rest.strip_suffix(".weight")).map(str::to_owned)
        };
        let (file, name) = if let Some(index) = index(key, "model.codec_embedding.") {
            ("codec_embeddings.safetensors", format!("embedding_{index}"))
        } else if let Some(index) = index(key, "lm_head.") {
            ("lm_heads.safetensors", format!("lm_head_{index}.weight"))
        } else if let Some(name) = key.strip_prefix("small_to_mtp_projection.") {
            ("small_to_mtp_projection.safetensors", name.to_owned())
        } else {
            continue;
        };
        files.entry(file).or_default().insert(name, tensor.clone());
    }
    for (file, tensors) in files {
        tensor_file::write(&directory.path().join(file), &tensors).unwrap();
    }
    let mut config = config.clone();
    let object = config.as_object_mut().unwrap();
    object.remove("rms_norm_eps");
    object.remove("hidden_act");
    object.insert("model".to_owned(), object["model_type"].clone());
    object.insert("model_type".to_owned(), "llm".into());
    object.insert("partial_rotary_factor".to_owned(), 1.0.into());
    object.insert("rope_scaling".to_owned(), json!({ "type": "default", "rope_type": "default" }));
    fs::write(directory.path().join("config.json"), config.to_string()).unwrap();
    directory
}

#[test]
fn artifacts_take_their_body_from_the_checkpoint() {
    let full: Value =
        serde_json::from_slice(&fs::read(golden("omni-tiny").join("config.json")).unwrap()).unwrap();
    let config = full["talker_config"]["code_predictor_config"].clone();
    let tensors = predictor_of_golden("omni-tiny", "talker.code_predictor.");
    let artifacts = artifacts(&tensors, &config);
    let checkpoint = Checkpoint::open_with(artifacts.path(), Some(&golden("omni-tiny"))).unwrap();
    let original = Checkpoint::open(&golden("omni-tiny")).unwrap();
    assert_eq!(checkpoint.spec(), original.spec());
    for (name, bytes) in contents(&original) {
        assert_eq!(contents(&checkpoint)[&name].as_ref().unwrap(), bytes.as_ref().unwrap(), "{name}");
    }
    let sources = checkpoint.sources();
    assert!(sources.contains(&artifacts.path().join("codec_embeddings.safetensors")));
    assert!(sources.contains(&artifacts.path().join("lm_heads.safetensors")));
    assert!(sources.contains(&golden("omni-tiny").join("model.safetensors")));

    let alone = Checkpoint::open(artifacts.path()).expect_err("artifacts have no body");
    assert!(matches!(alone, CheckpointError::MissingBody { .. }), "{alone}");
    let twice =
        Checkpoint::open_with(artifacts.path(), Some(artifacts.path())).expect_err("nor have two of them");
    assert!(matches!(twice, CheckpointError::MissingBody { .. }), "{twice}");
}

#[test]
fn artifacts_come_first_where_both_have_a_tensor() {
    let mut changed = small_tensors();
    for key in ["model.codec_embedding.0.weight", "model.codec_embedding.1.weight"] {
        changed.insert(key.to_owned(), FileTensor::from_f32(vec![5, 6], &[-7.0; 30]));
    }
    let artifacts = artifacts(&changed, &small_config());
    let checkpoint = directory(&small_config(), &small_tensors());
    let checkpoint = Checkpoint::open_with(artifacts.path(), Some(checkpoint.path())).unwrap();
    assert_holds(&checkpoint, &changed);
}

#[test]
fn either_directory_may_lack_its_configuration_or_its_weights() {
    let full = directory(&small_config(), &small_tensors());
    let empty = tempfile::tempdir().unwrap();
    for pair in [[full.path(), empty.path()], [empty.path(), full.path()]] {
        let checkpoint = Checkpoint::open_with(pair[0], Some(pair[1])).unwrap();
        assert_holds(&checkpoint, &small_tensors());
    }
}

#[test]
fn two_configurations_must_agree() {
    let checkpoint = directory(&small_config(), &small_tensors());
    for (key, value) in [
        ("num_code_groups", json!(4)),
        ("rope_theta", json!(1e6)),
        ("head_dim", json!(4)),
        ("model", json!("qwen3_tts_code_predictor")),
    ] {
        let artifacts = artifacts(&small_tensors(), &small_config());
        let path = artifacts.path().join("config.json");
        let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        config[key] = value;
        fs::write(&path, config.to_string()).unwrap();
        let error =
            Checkpoint::open_with(artifacts.path(), Some(checkpoint.path())).expect_err("must disagree");
        let CheckpointError::Config(error) = error else { panic!("{error}") };
        assert_eq!(error.file(), Some(path.as_path()));
        assert!(error.to_string().contains(&checkpoint.path().display().to_string()), "{error}");
        assert_eq!(error.key(), Some(if key == "model" { "model_type" } else { key }));
    }
}

#[test]
fn tensors_in_memory_load_in_any_spelling() {
    let stored = small_tensors();
    for (prefix, model) in [("talker.code_predictor.", true), ("code_predictor.", false), ("", true)] {
        let spelled = spelled(&stored, prefix, model);
        let tensors = spelled.iter().map(|(key, tensor)| (key.clone(), in_memory(tensor))).collect();
        let checkpoint = Checkpoint::from_tensors(&small_config().to_string(), tensors).unwrap();
        assert_eq!(*checkpoint.spec(), small_spec());
        assert_holds(&checkpoint, &stored);
        assert_eq!(checkpoint.sources(), Vec::<PathBuf>::new());
    }
}

#[test]
fn tensors_in_memory_are_checked_like_files() {
    let stored = small_tensors();
    let open = |change: &dyn Fn(&mut BTreeMap<String, InMemoryTensor<'_>>)| {
        let mut tensors = stored.iter().map(|(key, tensor)| (key.clone(), in_memory(tensor))).collect();
        change(&mut tensors);
        Checkpoint::from_tensors(&small_config().to_string(), tensors).expect_err("must be refused")
    };
    let short = open(&|tensors| tensors.get_mut("model.norm.weight").unwrap().bytes = &[0; 15]);
    assert!(matches!(short, CheckpointError::ByteCount { found: 15, expected: 16, .. }), "{short}");
    let huge = open(&|tensors| tensors.get_mut("model.norm.weight").unwrap().shape = vec![usize::MAX, 2]);
    assert!(matches!(huge, CheckpointError::ByteCount { .. }), "{huge}");
    let missing = open(&|tensors| drop(tensors.remove("lm_head.1.weight")));
    assert_eq!(missing.tensor(), Some("lm_head.1.weight"));
    assert_eq!(missing.file(), None);
    let shape = open(&|tensors| tensors.get_mut("model.norm.weight").unwrap().shape = vec![2, 2]);
    assert!(matches!(shape, CheckpointError::Shape { .. }), "{shape}");
}

fn in_memory<'a>(tensor: &'a FileTensor<'_>) -> InMemoryTensor<'a> {
    InMemoryTensor {
        float_type: tensor.element_type.float_type().unwrap(),
        shape: tensor.shape.clone(),
        bytes: &tensor.bytes,
    }
}

#[test]
fn a_checkpoint_is_shared_between_threads() {
    let directory = directory(&small_config(), &small_tensors());
    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..50).for_each(|_| assert_holds(&checkpoint, &small_tensors())));
        }
    });
}

#[cfg(target_os = "linux")]
#[test]
fn pages_go_back_to_the_system_when_a_tensor_has_been_read() {
    let mut config = small_config();
    config["vocab_size"] = (1 << 16).into();
    let mut tensors = small_tensors();
    for (key, tensor) in &mut tensors {
        if key.starts_with("lm_head") || key.contains("codec_embedding") {
            let width = tensor.shape[1];
            *tensor = FileTensor::from_f32(vec![1 << 16, width], &vec![1.0; width << 16]);
        }
    }
    let directory = directory(&config, &tensors);
    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    assert_holds(&checkpoint, &tensors);

    let maps = fs::read_to_string("/proc/self/smaps").unwrap();
    let path = directory.path().join("model.safetensors").display().to_string();
    let mapping = maps.split_once(&path).expect("still mapped").1;
    let resident = mapping.lines().find_map(|line| line.strip_prefix("Rss:")).unwrap();
    let resident: usize = resident.trim().trim_end_matches(" kB").parse().unwrap();
    // Of 5 MB, what may stay are the header and the few pages that the system maps around each it is asked for.
    assert!(resident <= 512, "{resident} kB");
}
