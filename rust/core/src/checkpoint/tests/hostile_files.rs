//! Directories that are broken, or made to do harm: each is refused for its one cause, before any weight is read where
//! that is possible.

use std::borrow::Cow;

use half::f16;
use proptest::prelude::*;

use super::*;
use crate::checkpoint::tensor_file::ElementType;

/// Opens the small checkpoint after a change to its tensors.
fn refused_tensors(change: impl FnOnce(&mut Tensors)) -> CheckpointError {
    let mut tensors = small_tensors();
    change(&mut tensors);
    refused(directory(&small_config(), &tensors).path())
}

/// A directory with the index `text` and the small tensors in `a.safetensors`.
fn indexed(text: &str) -> TempDir {
    let directory = directory(&small_config(), &small_tensors());
    let path = |name: &str| directory.path().join(name);
    fs::rename(path("model.safetensors"), path("a.safetensors")).unwrap();
    fs::write(path("model.safetensors.index.json"), text).unwrap();
    directory
}

fn index_with(key: &str, shard: Value) -> String {
    let mut map: BTreeMap<String, Value> =
        small_tensors().into_keys().map(|key| (key, "a.safetensors".into())).collect();
    map.insert(key.to_owned(), shard);
    json!({ "weight_map": map }).to_string()
}

macro_rules! assert_cause {
    ($error:expr, $pattern:pat $(if $guard:expr)?) => {
        let error = $error;
        assert!(matches!(&error, $pattern $(if $guard)?), "{error:?}");
    };
}

#[test]
fn a_path_that_is_no_directory_is_refused() {
    let directory = directory(&small_config(), &small_tensors());
    assert_cause!(refused(&directory.path().join("nowhere")), CheckpointError::DirectoryNotFound { .. });
    assert_cause!(refused(&directory.path().join("config.json")), CheckpointError::NotADirectory { .. });
    assert_cause!(refused(&directory.path().join("config.json/deeper")), CheckpointError::Read { .. });
}

#[test]
fn a_directory_without_a_configuration_or_weights_is_refused() {
    let directory = directory(&small_config(), &small_tensors());
    fs::remove_file(directory.path().join("model.safetensors")).unwrap();
    assert_cause!(refused(directory.path()), CheckpointError::NoWeights { .. });
    fs::remove_file(directory.path().join("config.json")).unwrap();
    assert_cause!(refused(directory.path()), CheckpointError::NoConfig { .. });
}

#[test]
fn several_files_without_an_index_are_refused_by_name() {
    let directory = directory(&small_config(), &small_tensors());
    let path = |name: &str| directory.path().join(name);
    fs::rename(path("model.safetensors"), path("b.safetensors")).unwrap();
    fs::copy(path("b.safetensors"), path("a.safetensors")).unwrap();
    let error = refused(directory.path());
    assert_cause!(&error, CheckpointError::AmbiguousWeights { files, .. } if files == &["a.safetensors", "b.safetensors"]);
    assert!(error.to_string().contains("a.safetensors, b.safetensors"));
}

#[test]
fn a_directory_in_place_of_a_file_is_refused() {
    for name in ["config.json", "model.safetensors"] {
        let directory = directory(&small_config(), &small_tensors());
        fs::remove_file(directory.path().join(name)).unwrap();
        fs::create_dir(directory.path().join(name)).unwrap();
        assert_cause!(refused(directory.path()), CheckpointError::NotAFile { .. });
    }
}

#[cfg(unix)]
#[test]
fn a_device_is_refused_before_it_is_opened_and_a_dangling_link_by_name() {
    for name in ["config.json", "model.safetensors"] {
        let directory = directory(&small_config(), &small_tensors());
        let path = directory.path().join(name);
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
        assert_cause!(refused(directory.path()), CheckpointError::NotAFile { .. });
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/nowhere/at/all", &path).unwrap();
        assert_cause!(refused(directory.path()), CheckpointError::FileNotFound { file } if *file == path);
    }
}

#[test]
fn an_endless_configuration_is_not_read_to_its_end() {
    let directory = directory(&small_config(), &small_tensors());
    let file = fs::File::create(directory.path().join("config.json")).unwrap();
    file.set_len(1 << 40).unwrap();
    assert_cause!(refused(directory.path()), CheckpointError::FileTooLarge { .. });
}

#[test]
fn damaged_headers_are_refused_with_the_files_name() {
    let whole = {
        let directory = directory(&small_config(), &small_tensors());
        fs::read(directory.path().join("model.safetensors")).unwrap()
    };
    let longer = [whole.as_slice(), &[0]].concat();
    let huge_header = [u64::MAX.to_le_bytes().as_slice(), &whole[8..]].concat();
    let mut not_utf8 = whole.clone();
    not_utf8[12] = 0xff;
    let mut not_json = whole.clone();
    not_json[8] = b'[';
    let cut = &whole[..whole.len() - 1];
    for bytes in
        [&[][..], &whole[..7], &whole[..8], &whole[..100], cut, &longer, &huge_header, &not_utf8, &not_json]
    {
        let directory = directory(&small_config(), &small_tensors());
        fs::write(directory.path().join("model.safetensors"), bytes).unwrap();
        assert_cause!(refused(directory.path()), CheckpointError::Header { .. });
    }
}

#[test]
fn overlapping_and_overflowing_tensors_are_refused() {
    for header in [
        r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#,
        r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#,
        r#"{"a":{"dtype":"F32","shape":[4611686018427387904,2],"data_offsets":[0,4]}}"#,
        r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}"#,
        r#"{"a":{"dtype":"F31","shape":[1],"data_offsets":[0,4]}}"#,
    ] {
        let directory = directory(&small_config(), &small_tensors());
        let bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &[0; 4]].concat();
        fs::write(directory.path().join("model.safetensors"), bytes).unwrap();
        assert_cause!(refused(directory.path()), CheckpointError::Header { .. });
    }
}

#[test]
fn a_broken_index_is_refused() {
    assert_cause!(refused(indexed("{").path()), CheckpointError::IndexJson { .. });
    for text in ["[]", "{}", r#"{"weight_map": ["a.safetensors"]}"#] {
        assert_cause!(refused(indexed(text).path()), CheckpointError::IndexWithoutMap { .. });
    }
    let deep = "[".repeat(100_000);
    assert_cause!(refused(indexed(&deep).path()), CheckpointError::IndexJson { .. });
}

#[test]
fn shard_names_that_could_leave_the_directory_are_refused() {
    for shard in [
        "../a.safetensors",
        "/etc/passwd",
        "sub/a.safetensors",
        "..",
        ".",
        "",
        "c:\\a",
        "a\\b",
        "./a.safetensors",
        "a\0b",
    ] {
        // Refused even where no tensor of ours is in it.
        for key in ["model.norm.weight", "thinker.norm.weight"] {
            let error = refused(indexed(&index_with(key, shard.into())).path());
            assert_cause!(&error, CheckpointError::ShardName { .. });
            assert_eq!(error.tensor(), Some(key));
        }
    }
    assert_cause!(
        refused(indexed(&index_with("model.norm.weight", 7.into())).path()),
        CheckpointError::ShardName { .. }
    );
}

#[test]
fn a_shard_that_is_missing_or_lacks_its_tensor_is_refused() {
    let directory = indexed(&index_with("model.norm.weight", "b.safetensors".into()));
    let shard = directory.path().join("b.safetensors");
    assert_cause!(refused(directory.path()), CheckpointError::FileNotFound { file } if *file == shard);
    tensor_file::write(&shard, &Tensors::from([("x".to_owned(), FileTensor::from_i32(vec![1], &[1]))]))
        .unwrap();
    let error = refused(directory.path());
    assert_cause!(&error, CheckpointError::NotInShard { .. });
    assert_eq!((error.file(), error.tensor()), (Some(shard.as_path()), Some("model.norm.weight")));
}

#[test]
fn every_tensor_must_be_there() {
    for name in small_spec()
        .weights()
        .filter(|name| !matches!(name, WeightName::ProjectionWeight | WeightName::ProjectionBias))
    {
        let error = refused_tensors(|tensors| drop(tensors.remove(&key(name))));
        assert_cause!(&error, CheckpointError::MissingTensor { .. });
        assert_eq!(error.tensor(), Some(key(name).as_str()));
        let expected = match name {
            // Ht is not known without the first table and without a talker.
            WeightName::CodecEmbedding(0) => "[5, 1 to 1048576]".to_owned(),
            _ => format!("{:?}", small_spec().weight_shape(name)),
        };
        assert_eq!(error.expected(), Some(expected));
    }
}

#[test]
fn every_tensor_must_have_its_shape() {
    for name in small_spec().weights() {
        let error = refused_tensors(|tensors| {
            let tensor = tensors.get_mut(&key(name)).unwrap();
            tensor.shape.insert(0, 1);
        });
        assert_cause!(&error, CheckpointError::Shape { .. });
        assert_eq!(error.tensor(), Some(key(name).as_str()));
    }
    // Transposed: as many elements, and another matrix.
    let error = refused_tensors(|tensors| tensors.get_mut("lm_head.0.weight").unwrap().shape.reverse());
    assert_eq!((error.found().as_deref(), error.expected().as_deref()), (Some("[4, 5]"), Some("[5, 4]")));
    // Empty.
    let error = refused_tensors(|tensors| {
        for index in 0..2 {
            let table = FileTensor::from_f32(vec![5, 0], &[]);
            tensors.insert(format!("model.codec_embedding.{index}.weight"), table);
        }
    });
    assert_cause!(error, CheckpointError::Shape { .. });
}

#[test]
fn every_tensor_must_be_of_a_floating_point_type() {
    for name in small_spec().weights() {
        let error = refused_tensors(|tensors| {
            let tensor = tensors.get_mut(&key(name)).unwrap();
            tensor.element_type = ElementType::Int32;
        });
        assert_cause!(&error, CheckpointError::Type { found, .. } if found == "I32");
        assert_eq!(error.tensor(), Some(key(name).as_str()));
    }
}

#[test]
fn codec_tables_must_be_of_one_type() {
    let error = refused_tensors(|tensors| {
        let bytes = Cow::Owned([f16::ONE; 30].iter().flat_map(|value| value.to_le_bytes()).collect());
        let table =
            FileTensor { element_type: ElementType::Float(FloatType::Float16), shape: vec![5, 6], bytes };
        tensors.insert("model.codec_embedding.1.weight".to_owned(), table);
    });
    assert_cause!(&error, CheckpointError::TableTypes { found: "float16", expected: "float32", .. });
}

#[test]
fn other_weights_may_differ_in_type() {
    let mut tensors = small_tensors();
    let bytes = Cow::Owned([f16::ONE; 4].iter().flat_map(|value| value.to_le_bytes()).collect());
    let norm = FileTensor { element_type: ElementType::Float(FloatType::Float16), shape: vec![4], bytes };
    tensors.insert("model.norm.weight".to_owned(), norm);
    let directory = directory(&small_config(), &tensors);
    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    assert_eq!(checkpoint.float_type(WeightName::FinalNorm), Some(FloatType::Float16));
}

#[test]
fn tensors_beyond_the_configuration_are_refused() {
    for (key, like, config_key, value) in [
        ("model.codec_embedding.2.weight", "model.codec_embedding.0.weight", "num_code_groups", 3),
        ("lm_head.2.weight", "lm_head.0.weight", "num_code_groups", 3),
        ("model.layers.1.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight", "num_hidden_layers", 1),
    ] {
        let error = refused_tensors(|tensors| {
            let extra = tensors[like].clone();
            tensors.insert(key.to_owned(), extra);
        });
        assert_cause!(&error, CheckpointError::ExcessTensor { key, value: found, .. } if *key == config_key && *found == value);
        assert_eq!(error.tensor(), Some(key));
    }
}

#[test]
fn layers_with_biases_are_refused() {
    let bias = FileTensor::from_f32(vec![4], &[0.0; 4]);
    let error = refused_tensors(|tensors| {
        drop(tensors.insert("model.layers.0.self_attn.q_proj.bias".to_owned(), bias))
    });
    assert_cause!(error, CheckpointError::LayerBias { .. });
}

#[test]
fn half_a_projection_is_refused() {
    for (half, missing) in [("bias", "weight"), ("weight", "bias")] {
        let error =
            refused_tensors(|tensors| drop(tensors.remove(&format!("small_to_mtp_projection.{missing}"))));
        assert_cause!(&error, CheckpointError::HalfProjection { .. });
        assert_eq!(error.tensor(), Some(format!("small_to_mtp_projection.{half}").as_str()));
        assert_eq!(error.expected(), Some(format!("small_to_mtp_projection.{missing}")));
    }
}

#[test]
fn tables_of_another_width_need_a_projection() {
    let error = refused_tensors(|tensors| tensors.retain(|key, _| !key.starts_with("small_to_mtp")));
    assert_cause!(error, CheckpointError::ProjectionNeeded { talker_hidden_size: 6, hidden_size: 4, .. });
}

#[test]
fn tables_must_be_as_wide_as_the_configurations_talker() {
    let config = json!({ "talker_config": { "hidden_size": 7, "code_predictor_config": small_config() } });
    let error = refused(directory(&config, &small_tensors()).path());
    assert_cause!(&error, CheckpointError::Shape { expected, .. } if expected == "[5, 7]");
}

#[test]
fn weights_of_another_model_are_no_body() {
    let error = refused_tensors(|tensors| {
        *tensors = Tensors::from([("encoder.weight".to_owned(), FileTensor::from_f32(vec![1], &[1.0]))]);
    });
    assert_cause!(error, CheckpointError::MissingBody { .. });
}

#[test]
fn a_talkers_table_of_another_width_is_refused() {
    for shape in [vec![9, 4], vec![54], vec![0, 6]] {
        let elements: usize = shape.iter().product();
        let table = FileTensor::from_f32(shape, &vec![0.0; elements]);
        let error = refused_tensors(|tensors| {
            drop(tensors.insert("talker.model.codec_embedding.weight".to_owned(), table))
        });
        assert_cause!(&error, CheckpointError::Shape { expected, .. } if expected == "[at least 1, 6]");
    }
}

#[test]
fn a_file_with_no_matrix_or_several_is_no_code_zero_table() {
    let directory = directory(&small_config(), &small_tensors());
    let file = directory.path().join("table.safetensors");
    let open = |tensors: &[(&str, FileTensor<'static>)]| {
        let tensors = tensors.iter().map(|(key, tensor)| ((*key).to_owned(), tensor.clone())).collect();
        tensor_file::write(&file, &tensors).unwrap();
        Checkpoint::open(directory.path()).unwrap().with_code_zero_table(&file)
    };
    let table = |width: usize| FileTensor::from_f32(vec![3, width], &vec![1.0; 3 * width]);
    let vector = FileTensor::from_f32(vec![6], &[0.0; 6]);

    let good = open(&[("any name", table(6)), ("a vector beside it", vector.clone())]).unwrap();
    assert_eq!(good.spec().code_zero_size, Some(3));
    let none = open(&[("a vector", vector)]).expect_err("must be refused");
    assert_cause!(none, CheckpointError::CodeZeroTableFile { found, .. } if found.is_empty());
    let two = open(&[("a", table(6)), ("b", table(6))]).expect_err("must be refused");
    assert_cause!(two, CheckpointError::CodeZeroTableFile { found, .. } if found == &["a", "b"]);
    assert_cause!(open(&[("a", table(4))]).expect_err("must be refused"), CheckpointError::Shape { .. });
    let integers = FileTensor::from_i32(vec![3, 6], &[0; 18]);
    assert_cause!(open(&[("a", integers)]).expect_err("must be refused"), CheckpointError::Type { .. });
    let missing =
        Checkpoint::open(directory.path()).unwrap().with_code_zero_table(&directory.path().join("nowhere"));
    assert_cause!(missing.expect_err("must be refused"), CheckpointError::FileNotFound { .. });
}

#[test]
fn a_tensor_that_is_not_there_cannot_be_read() {
    let directory = directory(&small_config(), &small_tensors());
    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    let error = checkpoint.read(WeightName::CodeZeroTable, |_| ()).expect_err("no talker here");
    assert_cause!(error, CheckpointError::MissingTensor { .. });
}

#[test]
fn a_file_that_shrinks_or_grows_after_opening_is_an_error_and_no_crash() {
    for change in [-4, 4] {
        let directory = directory(&small_config(), &small_tensors());
        let path = directory.path().join("model.safetensors");
        let checkpoint = Checkpoint::open(directory.path()).unwrap();
        let file = fs::File::options().write(true).open(&path).unwrap();
        let length = file.metadata().unwrap().len();
        file.set_len(length.checked_add_signed(change).unwrap()).unwrap();
        let error = checkpoint.read(WeightName::FinalNorm, |_| ()).expect_err("the file has changed");
        assert_cause!(&error, CheckpointError::FileChanged { expected, .. } if *expected == length);
        file.set_len(0).unwrap();
        let error = checkpoint.read(WeightName::FinalNorm, |_| ()).expect_err("the file is empty");
        assert_cause!(error, CheckpointError::FileChanged { found: 0, .. });
    }
}

#[test]
fn a_file_replaced_after_opening_is_still_the_old_one() {
    let directory = directory(&small_config(), &small_tensors());
    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    let mut other = small_tensors();
    other.insert("model.norm.weight".to_owned(), FileTensor::from_f32(vec![4], &[9.0; 4]));
    tensor_file::write(&directory.path().join("model.safetensors"), &other).unwrap();
    assert_holds(&checkpoint, &small_tensors());
}

proptest! {
    #[test]
    fn a_value_that_is_not_finite_is_found_and_named(
        which in 0_usize..28,
        place in 0_usize..1000,
        value in prop::sample::select(vec![f32::NAN, f32::INFINITY, f32::NEG_INFINITY]),
    ) {
        let names: Vec<_> = small_spec().weights().collect();
        let name = names[which % names.len()];
        let mut tensors = small_tensors();
        let tensor = tensors.get_mut(&key(name)).unwrap();
        let index = place % (tensor.bytes.len() / 4);
        FloatType::Float32.narrow(value, tensor.bytes.to_mut(), index);
        let shape = tensor.shape.clone();
        let directory = directory(&small_config(), &tensors);
        let checkpoint = Checkpoint::open(directory.path()).unwrap();
        for other in names {
            let result = checkpoint.read(other, |_| ());
            if other != name {
                prop_assert!(result.is_ok());
                continue;
            }
            let error = result.expect_err("not finite");
            let flat = |position: &[usize]| position.iter().zip(&shape).fold(0, |flat, (at, extent)| flat * extent + at);
            prop_assert!(matches!(&error, CheckpointError::NotFinite { position, .. } if flat(position) == index), "{error}");
            let tensor = key(name);
            prop_assert_eq!(error.tensor(), Some(tensor.as_str()));
        }
    }
}
