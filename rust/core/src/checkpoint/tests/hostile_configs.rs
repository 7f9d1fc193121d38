//! A configuration that does not describe a predictor that runs here is refused as such, with its file.

use super::*;

#[test]
fn a_configuration_error_keeps_its_class_and_names_its_file() {
    for text in ["", "{", "[1]", "{\"a\": NaN}", "\u{feff}{}", &"[".repeat(100_000)] {
        let directory = directory(&small_config(), &small_tensors());
        let path = directory.path().join("config.json");
        fs::write(&path, text).unwrap();
        let error = refused(directory.path());
        assert!(matches!(error, CheckpointError::Config(_)), "{error}");
        assert_eq!(error.file(), Some(path.as_path()));
    }
}

#[test]
fn sizes_that_do_not_fit_the_tensors_are_refused() {
    for key in [
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "head_dim",
        "num_attention_heads",
    ] {
        let mut config = small_config();
        config[key] = (config[key].as_u64().unwrap() * 2).into();
        let error = refused(directory(&config, &small_tensors()).path());
        assert!(
            matches!(error, CheckpointError::Shape { .. } | CheckpointError::MissingTensor { .. }),
            "{key}: {error}"
        );
    }
}

#[test]
fn the_largest_sizes_a_configuration_may_give_are_refused_at_once() {
    let mut config = small_config();
    for (key, value) in [
        ("num_code_groups", 1 << 10),
        ("vocab_size", 1 << 22),
        ("hidden_size", 1 << 20),
        ("intermediate_size", 1 << 20),
        ("num_hidden_layers", 1 << 10),
        ("num_attention_heads", 1 << 10),
        ("num_key_value_heads", 1 << 10),
        ("head_dim", 1 << 12),
    ] {
        config[key] = value.into();
    }
    let error = refused(directory(&config, &small_tensors()).path());
    assert!(
        matches!(error, CheckpointError::Shape { .. } | CheckpointError::MissingTensor { .. }),
        "{error}"
    );
}

#[test]
fn defaults_of_the_published_classes_fill_in() {
    let mut config = small_config();
    config.as_object_mut().unwrap().remove("rope_theta");
    config.as_object_mut().unwrap().remove("num_code_groups");
    let directory = directory(&config, &small_tensors());
    // 31 residual codebooks: the small checkpoint has two.
    assert_eq!(refused(directory.path()).tensor(), Some("model.codec_embedding.2.weight"));
    config["num_code_groups"] = 3.into();
    fs::write(directory.path().join("config.json"), config.to_string()).unwrap();
    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    assert_eq!(checkpoint.spec().position_encoding, PositionEncoding::Rope { theta: 1e4 });
}
