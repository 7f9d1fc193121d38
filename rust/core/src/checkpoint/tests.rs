//! What a checkpoint promises: goldens load, every spelling and layout loads, and nothing hostile does harm.

mod corruption;
mod drafts;
mod goldens;
mod hostile_configs;
mod hostile_files;
mod layouts;
mod written_files;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::tensor_file::{self, FileTensor};
use super::*;
use crate::spec::{Family, PositionEncoding};

type Tensors = BTreeMap<String, FileTensor<'static>>;

/// A directory of the golden data.
fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data").join(name)
}

/// The smallest predictor with everything in it: R 2, V 5, Ht 6, H 4, L 1, Nq 2, Nkv 1, D 2, I 3, projected.
fn small_spec() -> ModelSpec {
    ModelSpec {
        family: Family::Qwen3Omni,
        residual_codebooks: 2,
        codebook_size: 5,
        code_zero_size: None,
        hidden_size: 4,
        talker_hidden_size: 6,
        layers: 1,
        query_heads: 2,
        key_value_heads: 1,
        head_size: 2,
        mlp_width: 3,
        rms_norm_epsilon: 1e-6,
        position_encoding: PositionEncoding::Rope { theta: 5e5 },
        projected: true,
    }
}

/// The flat configuration of [`small_spec`].
fn small_config() -> Value {
    json!({
        "model_type": "qwen3_omni_moe_talker_code_predictor",
        "num_code_groups": 3,
        "vocab_size": 5,
        "hidden_size": 4,
        "intermediate_size": 3,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 2,
        "rms_norm_eps": 1e-6,
        "rope_theta": 500_000,
        "hidden_act": "silu",
    })
}

/// A key as the published classes spell it for a lone predictor.
fn key(name: WeightName) -> String {
    let model = if name.is_inside_model() { "model." } else { "" };
    format!("{model}{name}")
}

/// The tensors of [`small_spec`] in float32, every element different from every other.
fn small_tensors() -> Tensors {
    let spec = small_spec();
    let mut next = 0.0;
    let mut tensor = |name| {
        let shape = spec.weight_shape(name);
        let values: Vec<f32> = (0..spec.weight_elements(name)).map(|index| next + index as f32).collect();
        next += values.len() as f32;
        (key(name), FileTensor::from_f32(shape, &values))
    };
    spec.weights().map(&mut tensor).collect()
}

/// A directory with a configuration and `model.safetensors`.
fn directory(config: &Value, tensors: &Tensors) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("config.json"), config.to_string()).unwrap();
    tensor_file::write(&directory.path().join("model.safetensors"), tensors).unwrap();
    directory
}

/// The error of opening a directory that must not open. Its message names the file it is about.
fn refused(directory: &Path) -> CheckpointError {
    let error = Checkpoint::open(directory).expect_err("must be refused");
    if let Some(file) = error.file() {
        assert!(error.to_string().contains(&file.display().to_string()), "{error}");
    }
    if let Some(tensor) = error.tensor() {
        assert!(error.to_string().contains(tensor), "{error}");
    }
    error
}

/// All that a checkpoint holds, as bytes.
fn contents(checkpoint: &Checkpoint<'_>) -> BTreeMap<WeightName, Result<Vec<u8>, CheckpointError>> {
    let names: Vec<_> = checkpoint.spec().weights().chain([WeightName::CodeZeroTable]).collect();
    let held = names.into_iter().filter(|name| checkpoint.has(*name));
    held.map(|name| (name, checkpoint.read(name, |tensor| tensor.bytes.to_vec()))).collect()
}

/// Asserts that a checkpoint holds exactly these tensors of a lone predictor, bit for bit.
fn assert_holds(checkpoint: &Checkpoint<'_>, tensors: &Tensors) {
    let contents = contents(checkpoint);
    assert_eq!(contents.len(), tensors.len());
    for (name, bytes) in contents {
        assert_eq!(bytes.unwrap(), *tensors[&key(name)].bytes, "{name}");
    }
}
