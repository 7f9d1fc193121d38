//! Writes checkpoints of true architectures with random weights, and frames to go with them: for benchmarks, and for
//! trying things out where no released checkpoint is at hand. Nothing is trained; the codes mean nothing.
//!
//! A directory written here looks like a released one: `config.json` nested as the family nests it, one
//! `model.safetensors` in bfloat16 with the keys of the whole model (the predictor and the talker's codec table; no
//! other part of the talker), and `frames.safetensors`. Equal arguments give equal bytes, on every machine.

mod config_json;
mod values;

use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::str::FromStr;

pub(crate) use config_json::config_json;

use super::CheckpointError;
use super::keys::Naming;
use super::pending_file::{Existing, PendingFile, write_error};
use super::tensor_file::{self, ElementType};
use crate::spec::weights::WeightName;
use crate::spec::{Family, ModelSpec, PositionEncoding};
use crate::tensor::FloatType;
use values::{Distribution, Stream};

/// An architecture that synthetic checkpoints are written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Architecture {
    /// Qwen3-TTS with 0.6 billion parameters: Ht 1024, no projection.
    Qwen3Tts06B,
    /// Qwen3-TTS with 1.7 billion parameters: Ht 2048, projected to 1024.
    Qwen3Tts17B,
    /// Qwen3-Omni with 30 billion parameters: Ht 1024, no projection.
    Qwen3Omni30B,
    /// A Qwen3-TTS in every respect but size: for tests that must be quick.
    Tiny,
}

impl Architecture {
    /// All of them, smallest last.
    pub const ALL: [Self; 4] = [Self::Qwen3Tts06B, Self::Qwen3Tts17B, Self::Qwen3Omni30B, Self::Tiny];
    /// Their names, in the order of [`Architecture::ALL`].
    pub const NAMES: [&str; 4] = ["qwen3-tts-0.6b", "qwen3-tts-1.7b", "qwen3-omni-30b", "tiny"];

    /// The name users type.
    pub const fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }

    /// Its sizes, with those of the talker's codec table.
    pub const fn spec(self) -> ModelSpec {
        let full_size = ModelSpec {
            family: Family::Qwen3Tts,
            residual_codebooks: 15,
            codebook_size: 2048,
            code_zero_size: Some(3072),
            hidden_size: 1024,
            talker_hidden_size: 1024,
            layers: 5,
            query_heads: 16,
            key_value_heads: 8,
            head_size: 128,
            mlp_width: 3072,
            rms_norm_epsilon: 1e-6,
            position_encoding: PositionEncoding::Rope { theta: 1e6 },
            projected: false,
        };
        match self {
            Self::Qwen3Tts06B => full_size,
            Self::Qwen3Tts17B => ModelSpec { talker_hidden_size: 2048, projected: true, ..full_size },
            Self::Qwen3Omni30B => ModelSpec { family: Family::Qwen3Omni, ..full_size },
            Self::Tiny => ModelSpec {
                codebook_size: 64,
                code_zero_size: Some(96),
                hidden_size: 64,
                talker_hidden_size: 64,
                layers: 2,
                query_heads: 4,
                key_value_heads: 2,
                head_size: 32,
                mlp_width: 160,
                ..full_size
            },
        }
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// The name is none of [`Architecture::NAMES`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown architecture {found:?}, expected one of {}", Architecture::NAMES.join(", "))]
pub struct UnknownArchitecture {
    /// The name that was given.
    pub found: String,
}

impl FromStr for Architecture {
    type Err = UnknownArchitecture;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL.into_iter().find(|architecture| architecture.name() == name);
        known.ok_or_else(|| UnknownArchitecture { found: name.to_owned() })
    }
}

/// Writes a checkpoint and `frames` frames of `batch` streams into `directory`, which is created if need be.
///
/// `frames.safetensors` holds `talker_last_hidden` [T, B, Ht] float32, rows of unit root mean square, and `code_zero`
/// [T, B] int32. `progress` is told the bytes made so far and the bytes in all, and may stop
/// the work.
///
/// # Errors
/// There is a checkpoint already, no frame or stream is asked for, `progress` says stop, or the operating system
/// refuses. In every case the directory is left as it was.
pub fn write_synthetic(
    directory: &Path,
    architecture: Architecture,
    seed: u64,
    frames: usize,
    batch: usize,
    progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<(), CheckpointError> {
    let spec = architecture.spec();
    let rows = frames.checked_mul(batch).filter(|rows| *rows > 0);
    let bytes = rows.and_then(|rows| rows.checked_mul((spec.talker_hidden_size + 1) * size_of::<f32>()));
    let Some(frame_bytes) = bytes.filter(|bytes| *bytes <= isize::MAX as usize) else {
        return Err(CheckpointError::FrameCount { frames, batch });
    };
    refuse_existing(directory)?;
    let created = create_directory(directory)?;
    let total = spec.parameters() + spec.weight_elements(WeightName::CodeZeroTable);
    let total = (total * WEIGHT_TYPE.size() + frame_bytes) as u64;
    let work = Work { directory, spec: &spec, seed, done: 0, total, progress };
    let written = write_files(work, frames, batch);
    if written.is_err() && created {
        // Removes an empty directory only, and the error to report is the first one.
        let _ = fs::remove_dir(directory);
    }
    written
}

/// Type of all weights.
const WEIGHT_TYPE: FloatType = FloatType::BFloat16;

fn write_files(mut work: Work<'_>, frames: usize, batch: usize) -> Result<(), CheckpointError> {
    let weights = work.pending_weights()?;
    let frames = work.pending_frames(frames, batch)?;
    let mut config = PendingFile::create(&work.directory.join("config.json"))?;
    config.append(format!("{:#}\n", config_json(work.spec)).as_bytes())?;
    work.advance(0)?;

    // The configuration comes last: a directory without one is no checkpoint yet.
    let mut published: Vec<PathBuf> = Vec::new();
    for file in [weights, frames, config] {
        match file.publish(Existing::Refuse) {
            Ok(path) => published.push(path),
            Err(error) => {
                for path in published {
                    // The error to report is the first one.
                    let _ = fs::remove_file(path);
                }
                return Err(error);
            }
        }
    }
    Ok(())
}

/// What is being written, and how far it is.
struct Work<'a> {
    directory: &'a Path,
    spec: &'a ModelSpec,
    seed: u64,
    /// Bytes made so far.
    done: u64,
    /// Bytes of all tensors.
    total: u64,
    progress: &'a mut dyn FnMut(u64, u64) -> ControlFlow<()>,
}

impl Work<'_> {
    fn advance(&mut self, bytes: usize) -> Result<(), CheckpointError> {
        self.done += bytes as u64;
        match (self.progress)(self.done, self.total) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => {
                Err(CheckpointError::Interrupted { directory: self.directory.to_owned() })
            }
        }
    }

    const fn stream(&self, tensor: u32) -> Stream {
        Stream { seed: self.seed, tensor }
    }

    /// `model.safetensors`, made and written tensor by tensor: only one is in memory.
    fn pending_weights(&mut self) -> Result<PendingFile, CheckpointError> {
        let spec = self.spec;
        let destination = self.directory.join("model.safetensors");
        let names: Vec<WeightName> = spec.weights().chain([WeightName::CodeZeroTable]).collect();
        let element_type = ElementType::Float(WEIGHT_TYPE);
        let layout =
            names.iter().map(|name| (Naming::WHOLE_MODEL.key(*name), element_type, spec.weight_shape(*name)));
        let mut file = PendingFile::create(&destination)?;
        file.append(&tensor_file::header(&destination, tensor_file::FORMAT, layout)?)?;
        self.advance(0)?;
        let mut bytes = Vec::new();
        for (index, name) in names.into_iter().enumerate() {
            bytes.resize(spec.weight_elements(name) * WEIGHT_TYPE.size(), 0);
            values::fill_bfloat16(&mut bytes, self.stream(index as u32), distribution(spec, name));
            file.append(&bytes)?;
            self.advance(bytes.len())?;
        }
        Ok(file)
    }

    /// `frames.safetensors`, made and written some rows at a time.
    fn pending_frames(&mut self, frames: usize, batch: usize) -> Result<PendingFile, CheckpointError> {
        /// Rows that are made together.
        const ROWS: usize = 256;
        let width = self.spec.talker_hidden_size;
        let codes = self.spec.code_zero_size.unwrap_or(0);
        let destination = self.directory.join("frames.safetensors");
        let hidden_type = ElementType::Float(FloatType::Float32);
        let layout = [
            ("talker_last_hidden".to_owned(), hidden_type, vec![frames, batch, width]),
            ("code_zero".to_owned(), ElementType::Int32, vec![frames, batch]),
        ];
        let mut file = PendingFile::create(&destination)?;
        file.append(&tensor_file::header(&destination, tensor_file::FORMAT, layout)?)?;
        let rows = frames * batch;
        for first in (0..rows).step_by(ROWS) {
            let mut hidden = vec![0.0; ROWS.min(rows - first) * width];
            values::fill_rows_of_unit_size(&mut hidden, width, first, self.stream(values::HIDDEN_ROWS));
            let bytes: Vec<u8> = hidden.into_iter().flat_map(f32::to_le_bytes).collect();
            file.append(&bytes)?;
            self.advance(bytes.len())?;
        }
        for first in (0..rows).step_by(ROWS) {
            let rows = first..rows.min(first + ROWS);
            let bytes: Vec<u8> = rows
                .flat_map(|row| values::code(row, codes, self.stream(values::CODES)).to_le_bytes())
                .collect();
            file.append(&bytes)?;
            self.advance(bytes.len())?;
        }
        Ok(file)
    }
}

/// Weights that keep every row of activations near unit size: linear layers and heads shrink with the root of their
/// inputs, tables have rows like a talker's hidden state, norms scale by about one.
fn distribution(spec: &ModelSpec, name: WeightName) -> Distribution {
    use WeightName as Name;
    let (mean, deviation) = match name {
        Name::CodecEmbedding(_) | Name::CodeZeroTable => (0.0, 1.0),
        Name::FinalNorm
        | Name::InputNorm(_)
        | Name::PostAttentionNorm(_)
        | Name::QueryNorm(_)
        | Name::KeyNorm(_) => (1.0, 0.1),
        Name::ProjectionBias => (0.0, 0.02),
        _ => (0.0, 1.0 / (spec.weight_shape(name)[1] as f32).sqrt()),
    };
    Distribution { mean, deviation }
}

/// Refuses a directory with a configuration or any weights in it.
fn refuse_existing(directory: &Path) -> Result<(), CheckpointError> {
    let entries = match fs::read_dir(directory) {
        Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(|cause| write_error(directory, cause))?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(|cause| write_error(directory, cause))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name == "config.json"
            || name.ends_with(".safetensors")
            || name.ends_with(".safetensors.index.json")
        {
            found.push(path);
        }
    }
    match found.into_iter().min() {
        None => Ok(()),
        Some(file) => Err(CheckpointError::AlreadyExists { file }),
    }
}

/// Creates a directory and what leads to it; tells whether the directory is new.
fn create_directory(directory: &Path) -> Result<bool, CheckpointError> {
    let new = !directory.exists();
    fs::create_dir_all(directory).map_err(|cause| write_error(directory, cause))?;
    Ok(new)
}
