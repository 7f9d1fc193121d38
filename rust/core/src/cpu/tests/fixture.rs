//! Golden models, models of random weights, and what they are run on.

use crate::checkpoint::tensor_file::{self, FileTensor};
use crate::checkpoint::{Checkpoint, InMemoryTensor};
use crate::cpu::executor::CpuOptions;
use crate::cpu::lanes::Lane16;
use crate::cpu::{CpuExecutor, WeightType};
use crate::frame::{FrameInputs, FrameOutputs, RowSampling};
use crate::rounds::Speculation;
use crate::sampling::SamplingParams;
use crate::sampling::gumbel::Noise;
use crate::spec::ModelSpec;
use crate::spec::weights::WeightName;
use crate::tensor::FloatType;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::PathBuf;

pub const GOLDENS: [&str; 3] = ["omni-tiny", "tts-tiny-projected", "standalone"];

/// A golden directory: inputs, parameters and expected outputs.
pub struct Golden {
    pub directory: PathBuf,
    pub frames: BTreeMap<String, FileTensor<'static>>,
    pub expected: BTreeMap<String, FileTensor<'static>>,
    params: serde_json::Value,
}

impl Golden {
    pub fn new(name: &str) -> Self {
        let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/data").join(name);
        let read = |file: &str| tensor_file::read(&directory.join(file)).unwrap();
        let params = std::fs::read_to_string(directory.join("params.json")).unwrap();
        Self {
            frames: read("frames.safetensors"),
            expected: read("expected.safetensors"),
            params: serde_json::from_str(&params).unwrap(),
            directory,
        }
    }

    pub fn open(&self) -> Checkpoint<'static> {
        let checkpoint = Checkpoint::open(&self.directory).unwrap();
        let table = self.directory.join("code_zero_table.safetensors");
        if table.exists() { checkpoint.with_code_zero_table(&table).unwrap() } else { checkpoint }
    }

    pub fn params(&self, set: &str) -> Vec<SamplingParams> {
        let rows = self.params["sets"][set].as_array().unwrap();
        rows.iter()
            .map(|row| {
                SamplingParams::from_numbers(
                    row["temperature"].as_f64().unwrap(),
                    row["top_k"].as_i64().unwrap(),
                    row["top_p"].as_f64().unwrap(),
                    row["seed"].as_u64().unwrap(),
                )
                .unwrap()
            })
            .collect()
    }

    /// [T, B].
    pub fn shape(&self) -> (usize, usize) {
        let shape = &self.frames["code_zero"].shape;
        (shape[0], shape[1])
    }

    /// Hidden rows and codes of frame `t`.
    pub fn inputs(&self, t: usize) -> (Vec<f32>, Vec<i64>) {
        let (_, batch) = self.shape();
        let hidden = self.frames["talker_last_hidden"].to_f32().unwrap();
        let width = hidden.len() / self.frames["code_zero"].to_i64().unwrap().len();
        let code_zero = self.frames["code_zero"].to_i64().unwrap();
        (
            hidden[t * batch * width..(t + 1) * batch * width].to_vec(),
            code_zero[t * batch..(t + 1) * batch].to_vec(),
        )
    }
}

pub fn load(
    checkpoint: &Checkpoint<'_>,
    weight_type: WeightType,
    threads: usize,
    max_batch: usize,
) -> CpuExecutor {
    speculating(checkpoint, weight_type, threads, max_batch, None)
}

/// An executor that speculates, and goes on however little it gains.
pub fn speculating(
    checkpoint: &Checkpoint<'_>,
    weight_type: WeightType,
    threads: usize,
    max_batch: usize,
    speculation: Option<Speculation>,
) -> CpuExecutor {
    let options =
        CpuOptions { weight_type, threads: Some(threads), max_batch, speculation, off_below: Some(0.0) };
    CpuExecutor::load(checkpoint, options, &mut |_, _| ControlFlow::Continue(())).unwrap()
}

/// Everything one frame gives.
#[derive(Clone, Debug, PartialEq)]
pub struct Predicted {
    pub codes: Vec<i32>,
    pub codec_sum: Vec<f32>,
    pub status: Vec<i32>,
    pub logits: Vec<f32>,
    pub hidden_rows: Vec<f32>,
}

impl Predicted {
    /// What stream `row` of `rows` got.
    pub fn row(&self, row: usize, rows: usize) -> Self {
        fn part<T: Clone>(all: &[T], row: usize, rows: usize) -> Vec<T> {
            all.chunks_exact(all.len() / rows).nth(row).unwrap().to_vec()
        }
        Self {
            codes: part(&self.codes, row, rows),
            codec_sum: part(&self.codec_sum, row, rows),
            status: part(&self.status, row, rows),
            logits: part(&self.logits, row, rows),
            hidden_rows: part(&self.hidden_rows, row, rows),
        }
    }
}

/// Runs one frame in an arena full of NaN, with logits and hidden rows.
pub fn predict(
    executor: &mut CpuExecutor,
    hidden: &[f32],
    code_zero: &[i64],
    params: &[SamplingParams],
    frame_index: u64,
) -> Predicted {
    let streams = code_zero.len();
    let spec = executor.spec().clone();
    let table = executor.code_zero_table().unwrap().clone();
    let mut arena: Vec<Lane16> = vec![[f32::NAN; 16]; executor.workspace_blocks()];
    let mut predicted = Predicted {
        codes: vec![-7; streams * spec.codes_per_frame()],
        codec_sum: vec![f32::NAN; streams * spec.talker_hidden_size],
        status: vec![-7; streams],
        logits: vec![f32::NAN; streams * spec.residual_codebooks * spec.codebook_size],
        hidden_rows: vec![f32::NAN; streams * spec.residual_codebooks * spec.hidden_size],
    };
    let sampling: Vec<_> = params.iter().map(|&params| RowSampling { params, frame_index }).collect();
    executor.run_frame(
        &mut arena,
        &FrameInputs {
            talker_last_hidden: hidden,
            code_zero,
            sampling: &sampling,
            code_zero_table: table.view(),
        },
        &mut FrameOutputs {
            codes: &mut predicted.codes,
            codec_sum: &mut predicted.codec_sum,
            status: &mut predicted.status,
            logits: Some(&mut predicted.logits),
            hidden_rows: Some(&mut predicted.hidden_rows),
        },
    );
    predicted
}

/// A checkpoint of random weights in memory.
pub struct RandomModel {
    pub spec: ModelSpec,
    tensors: BTreeMap<String, (Vec<usize>, Vec<u8>)>,
}

impl RandomModel {
    /// Weights that keep activations near unit size, each times `scale` of its name.
    pub fn new(spec: ModelSpec, seed: u64, scale: impl Fn(WeightName) -> f32) -> Self {
        let names = spec.weights().chain([WeightName::CodeZeroTable]);
        let tensors = names.zip(0..).map(|(name, index)| {
            let shape = spec.weight_shape(name);
            let noise = Noise::new(seed, index, 0);
            let (mean, deviation) = match name {
                _ if shape.len() == 1 => (1.0, 0.1),
                WeightName::CodecEmbedding(_) | WeightName::CodeZeroTable => (0.0, 1.0),
                _ => (0.0, 1.0 / (shape[1] as f32).sqrt()),
            };
            let value =
                |entry: usize| scale(name) * (mean + deviation * (noise.at([entry as u32])[0] - 0.577));
            let bytes = (0..shape.iter().product()).flat_map(|entry| value(entry).to_le_bytes()).collect();
            let model = if name.is_inside_model() { "model." } else { "" };
            let key = match name {
                WeightName::CodeZeroTable => "talker.model.codec_embedding.weight".to_owned(),
                _ => format!("{model}{name}"),
            };
            (key, (shape, bytes))
        });
        Self { tensors: tensors.collect(), spec }
    }

    pub fn open(&self) -> Checkpoint<'_> {
        let spec = &self.spec;
        let config = serde_json::json!({
            "model_type": "qwen3_omni_moe_talker_code_predictor",
            "num_code_groups": spec.codes_per_frame(),
            "vocab_size": spec.codebook_size,
            "hidden_size": spec.hidden_size,
            "intermediate_size": spec.mlp_width,
            "num_hidden_layers": spec.layers,
            "num_attention_heads": spec.query_heads,
            "num_key_value_heads": spec.key_value_heads,
            "head_dim": spec.head_size,
            "rms_norm_eps": 1e-6,
            "rope_theta": 500_000,
            "hidden_act": "silu",
        });
        let tensors = self.tensors.iter().map(|(key, (shape, bytes))| {
            let shape = shape.clone();
            (key.clone(), InMemoryTensor { float_type: FloatType::Float32, shape, bytes })
        });
        Checkpoint::from_tensors(&config.to_string(), tensors.collect()).unwrap()
    }

    /// Values of a matrix.
    pub fn matrix(&self, key: &str) -> Vec<f32> {
        self.tensors[key]
            .1
            .chunks_exact(4)
            .map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()))
            .collect()
    }

    /// Hidden rows and codes of `streams` streams.
    pub fn inputs(&self, streams: usize, seed: u64) -> (Vec<f32>, Vec<i64>) {
        let noise = Noise::new(seed, 0, 1);
        let hidden = (0..(streams * self.spec.talker_hidden_size) as u32).map(|entry| noise.at([entry])[0]);
        let rows = self.spec.code_zero_size.unwrap() as i64;
        (hidden.collect(), (0..streams as i64).map(|stream| (seed as i64 % 7 + 3 * stream) % rows).collect())
    }
}
