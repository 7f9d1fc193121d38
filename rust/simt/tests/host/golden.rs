//! The golden models: inputs, parameters and expected outputs; see tests/data/README.md.

use std::collections::BTreeMap;
use std::path::PathBuf;

use overtone_core::checkpoint::Checkpoint;
use overtone_core::checkpoint::tensor_file::{self, FileTensor};
use overtone_core::sampling::SamplingParams;

pub const GOLDENS: [&str; 3] = ["omni-tiny", "tts-tiny-projected", "standalone"];

pub struct Golden {
    directory: PathBuf,
    frames: BTreeMap<String, FileTensor<'static>>,
    expected: BTreeMap<String, FileTensor<'static>>,
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

    /// The rows' parameters in a named set.
    pub fn params(&self, set: &str) -> Vec<SamplingParams> {
        let rows = self.params["sets"][set].as_array().unwrap();
        let number = |row: &serde_json::Value, key: &str| row[key].as_f64().unwrap();
        rows.iter()
            .map(|row| {
                SamplingParams::from_numbers(
                    number(row, "temperature"),
                    row["top_k"].as_i64().unwrap(),
                    number(row, "top_p"),
                    row["seed"].as_u64().unwrap(),
                )
                .unwrap()
            })
            .collect()
    }

    /// (frames, streams).
    pub fn shape(&self) -> (usize, usize) {
        let shape = &self.frames["code_zero"].shape;
        (shape[0], shape[1])
    }

    /// Hidden row and code of a stream in a frame.
    pub fn input(&self, frame: usize, stream: usize) -> (Vec<f32>, i64) {
        let (frames, streams) = self.shape();
        let hidden = self.frames["talker_last_hidden"].to_f32().unwrap();
        let code_zero = self.frames["code_zero"].to_i64().unwrap();
        let (row, width) = (frame * streams + stream, hidden.len() / (frames * streams));
        (hidden[row * width..(row + 1) * width].to_vec(), code_zero[row])
    }

    /// A stream's share of an expected tensor in a frame, as float32.
    pub fn expected(&self, name: &str, frame: usize, stream: usize) -> Vec<f32> {
        let (frames, streams) = self.shape();
        let tensor = &self.expected[name];
        let values = tensor.to_f32().unwrap_or_else(|| tensor.to_i64().unwrap().iter().map(|&v| v as f32).collect());
        let (row, width) = (frame * streams + stream, values.len() / (frames * streams));
        values[row * width..(row + 1) * width].to_vec()
    }
}
