//! Fitted drafts: the weights that a fit needs, the codes that draft logits propose, and the file of drafts.

use overtone_core::checkpoint::drafts::{self, DraftName, Drafts, FitRecord};
use overtone_core::checkpoint::tensor_file::{ElementType as FileElement, FileTensor};
use overtone_core::checkpoint::{Checkpoint, CheckpointError};
use overtone_core::rounds::NO_DRAFT;
use overtone_core::sampling::{Sampler, SamplingParams};
use overtone_core::spec::weights::WeightName;
use overtone_core::tensor::FloatType;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::path::PathBuf;

use crate::dlpack::expect::{Expect, expect_float, expect_shape};
use crate::dlpack::import::ImportedTensor;
use crate::enter::enter;
use crate::errors::Raised;
use crate::files::{copied_tensors, owned_tensor};
use crate::tensor::Tensor;

/// The weights that drafts are fitted with, each in its storage type: the heads, the tables `E[i]`, and weight and bias
/// of the projection, none where there is none.
#[pyfunction]
#[pyo3(signature = (artifact_dir, checkpoint_dir=None))]
pub fn read_fit_weights(
    py: Python<'_>,
    artifact_dir: PathBuf,
    checkpoint_dir: Option<PathBuf>,
) -> PyResult<(Vec<Tensor>, Vec<Tensor>, Vec<Tensor>)> {
    let groups = enter(py, || {
        let checkpoint = Checkpoint::open_with(&artifact_dir, checkpoint_dir.as_deref())?;
        let spec = checkpoint.spec();
        let codebooks = 0..spec.residual_codebooks;
        let projection = [WeightName::ProjectionWeight, WeightName::ProjectionBias];
        let groups: [Vec<WeightName>; 3] = [
            codebooks.clone().map(WeightName::Head).collect(),
            codebooks.map(WeightName::CodecEmbedding).collect(),
            projection.into_iter().filter(|_| spec.projected).collect(),
        ];
        let copied = |names: Vec<WeightName>| -> Result<Vec<_>, CheckpointError> {
            names.into_iter().map(|name| copied_weight(&checkpoint, name)).collect()
        };
        let [heads, tables, projection] = groups.map(copied);
        Ok::<_, Raised>([heads?, tables?, projection?])
    })?;
    let [heads, tables, projection] = groups
        .map(|group| group.into_iter().map(owned_tensor).collect::<Result<Vec<_>, _>>().map_err(PyErr::from));
    Ok((heads?, tables?, projection?))
}

fn copied_weight(
    checkpoint: &Checkpoint<'_>,
    name: WeightName,
) -> Result<FileTensor<'static>, CheckpointError> {
    checkpoint.read(name, |tensor| FileTensor {
        element_type: FileElement::Float(tensor.float_type),
        shape: tensor.shape.to_vec(),
        bytes: tensor.bytes.to_vec().into(),
    })
}

/// Write a file of drafts for a checkpoint, which appears whole or not at all.
///
/// `tensors` are `draft_head.{j}.weight` and `draft_table.{j}`, j = 1 … R−1; they are rounded to `dtype`, without one to
/// the type of the checkpoint's first head.
#[pyfunction]
#[pyo3(signature = (file, artifact_dir, checkpoint_dir, tensors, dtype, frames, ridge))]
#[allow(clippy::too_many_arguments, reason = "they are the arguments of one Python call")]
pub fn write_drafts(
    py: Python<'_>,
    file: PathBuf,
    artifact_dir: PathBuf,
    checkpoint_dir: Option<PathBuf>,
    tensors: &Bound<'_, PyDict>,
    dtype: Option<&str>,
    frames: u64,
    ridge: f64,
) -> PyResult<()> {
    let float_type = dtype.map(parse_float_type).transpose()?;
    let tensors = copied_tensors(tensors)?;
    enter(py, || {
        let checkpoint = Checkpoint::open_with(&artifact_dir, checkpoint_dir.as_deref())?;
        let head_type = checkpoint.float_type(WeightName::Head(0)).unwrap_or(FloatType::Float32);
        let float_type = float_type.unwrap_or(head_type);
        drafts::write(&file, &checkpoint, float_type, FitRecord { frames, ridge }, &tensors)
    })
}

fn parse_float_type(name: &str) -> Result<FloatType, Raised> {
    const TYPES: [FloatType; 3] = [FloatType::Float32, FloatType::BFloat16, FloatType::Float16];
    TYPES.into_iter().find(|float_type| float_type.name() == name).ok_or_else(|| {
        let expected = TYPES.map(FloatType::name).join(", ");
        Raised::input(format!("dtype: found {name:?}, expected one of {expected}"))
            .key("dtype")
            .found(name)
            .expected(expected)
    })
}

/// Check a file of drafts against a checkpoint, every value included: the tensors' type, the frames and the ridge of
/// the fit.
#[pyfunction]
#[pyo3(signature = (file, artifact_dir, checkpoint_dir=None))]
pub fn check_drafts(
    py: Python<'_>,
    file: PathBuf,
    artifact_dir: PathBuf,
    checkpoint_dir: Option<PathBuf>,
) -> PyResult<(&'static str, u64, f64)> {
    enter(py, || {
        let checkpoint = Checkpoint::open_with(&artifact_dir, checkpoint_dir.as_deref())?;
        let drafts = Drafts::open(&file, &checkpoint)?;
        DraftName::all(checkpoint.spec()).try_for_each(|name| drafts.read(name, |_| ()))?;
        let FitRecord { frames, ridge } = drafts.record();
        Ok::<_, Raised>((drafts.float_type().name(), frames, ridge))
    })
}

/// The best draws for `codebook` from each row of draft logits [N, V], best first: [N, count] int32, −1 where there is
/// none.
///
/// Row n is drawn with `sampling[n]` = (temperature, `top_k`, `top_p`, seed), in frame `frame_idx[n]`.
#[pyfunction]
pub fn propose_drafts(
    py: Python<'_>,
    logits: &Bound<'_, PyAny>,
    sampling: Vec<(f64, i64, f64, u64)>,
    frame_idx: Vec<u64>,
    codebook: u32,
    count: usize,
) -> PyResult<Tensor> {
    let logits = ImportedTensor::new("logits", logits)?;
    expect_shape(&logits, &[Expect::Is(sampling.len()), Expect::AtLeast(1)])?;
    expect_float(&logits)?;
    if frame_idx.len() != sampling.len() {
        let found = frame_idx.len();
        return Err(Raised::input(format!("frame_idx: {found} entries, expected {}", sampling.len())).into());
    }
    let proposed = enter(py, || {
        let entries = logits.view().shape()[1];
        let (mut sampler, mut row) = (Sampler::new(entries), vec![0.0; entries]);
        let (mut proposals, mut codes) = (vec![None; count], Vec::new());
        for (index, (&(temperature, top_k, top_p, seed), &frame)) in
            sampling.iter().zip(&frame_idx).enumerate()
        {
            let params = SamplingParams::from_numbers(temperature, top_k, top_p, seed)?;
            logits.read_row_f32(&[index], &mut row)?;
            sampler.propose(&row, &params, frame, codebook, None, &mut proposals);
            codes.extend(proposals.iter().map(|code| code.map_or(NO_DRAFT, |code| code as i32)));
        }
        Ok::<_, Raised>(FileTensor::from_i32(vec![sampling.len(), count], &codes))
    })?;
    Ok(owned_tensor(proposed)?)
}
