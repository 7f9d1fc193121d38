//! How a CUDA executor is asked for, and made: device and types chosen, memory estimated.

use std::path::PathBuf;
use std::sync::Arc;

use overtone_core::checkpoint::Checkpoint;
use overtone_core::rounds::{DraftShape, MOST_VERIFY_ROWS, Speculation};
use overtone_core::spec::ModelSpec;
use overtone_core::spec::weights::WeightName;
use overtone_core::tensor::FloatType;
use overtone_cuda::executor::{CudaExecutor as Engine, CudaOptions, MOST_PAYING_ROWS, context_bytes};
use overtone_cuda::layout::{MatrixShapes, RoundExtent, WeightAddresses};
use pyo3::prelude::*;

use super::block::TalkerTable;
use super::shared::Shared;
use crate::enter::SignalCheck;
use crate::errors::{ErrorClass, Raised};
use crate::executor::loading::{MAX_BATCH, within};
use crate::spec::PyModelSpec;
use crate::speculation::GivenSpeculation;

/// By how much a lent arena may be moved to where frames can work in it.
pub const ARENA_ALIGNMENT: usize = 256;

/// How an executor is asked for, checked.
#[derive(Clone, Debug)]
pub struct Request {
    float_type: Option<FloatType>,
    max_batch: usize,
    device: usize,
    speculation: Option<GivenSpeculation>,
}

impl Request {
    /// Checks the arguments.
    ///
    /// # Errors
    /// An `InputError` for one out of range, an `UnsupportedError` for a type that this executor does not have.
    pub fn new(
        dtype: Option<&str>,
        max_batch: i64,
        device: usize,
        speculation: Option<GivenSpeculation>,
    ) -> Result<Self, Raised> {
        let float_type = dtype.map(parse_float_type).transpose()?;
        Ok(Self { float_type, max_batch: within("max_batch", max_batch, MAX_BATCH)?, device, speculation })
    }

    /// Loads the checkpoint onto the device; `directories` are those that it was read from, where fitted drafts may lie.
    ///
    /// # Errors
    /// The checkpoint's, the device's, or an `UnsupportedError` for what the kernels do not run.
    pub fn load(
        self,
        checkpoint: &Checkpoint<'_>,
        directories: &[PathBuf],
        check: &mut SignalCheck,
    ) -> Result<Shared, Raised> {
        let float_type = self.float_type.unwrap_or_else(|| stored_type(checkpoint));
        let given = self.speculation.filter(|given| given.speculation.suits(checkpoint.spec()));
        // They save rounds, and make each of them dearer by more: docs/fitted-drafts.md.
        let by_default = false;
        let open = |given: &GivenSpeculation| given.drafts.open(checkpoint, directories, by_default);
        let drafts = given.as_ref().map_or(Ok(None), open)?;
        let options = CudaOptions {
            device: self.device,
            float_type,
            max_batch: self.max_batch,
            speculation: given.as_ref().map(|given| given.speculation),
            off_below: given.and_then(|given| given.off_below),
        };
        let mut progress = |done, total| check.poll(done, total);
        let engine = Engine::load(checkpoint, drafts.as_ref(), options, &mut progress)?;
        let spec = engine.spec().clone();
        let loaded = engine.code_zero_table().cloned();
        let table = loaded.map(|table| Arc::new(TalkerTable { table, lent: None }));
        let frame_bytes = frame_bytes(&spec, float_type);
        let context = engine.required_context_bytes() as usize + ARENA_ALIGNMENT;
        Ok(Shared::new(engine, float_type, self.max_batch, frame_bytes, context, table))
    }
}

/// The type that all matrices are stored in; float32 when they differ.
fn stored_type(checkpoint: &Checkpoint<'_>) -> FloatType {
    let spec = checkpoint.spec();
    let is_matrix = |name: &WeightName| {
        !matches!(name, WeightName::CodecEmbedding(_)) && spec.weight_shape(*name).len() == 2
    };
    let mut types = spec.weights().filter(is_matrix).filter_map(|name| checkpoint.float_type(name));
    let first = types.next().unwrap_or(FloatType::Float32);
    if types.all(|other| other == first) { first } else { FloatType::Float32 }
}

fn parse_float_type(name: &str) -> Result<FloatType, Raised> {
    const TYPES: [FloatType; 3] = [FloatType::Float32, FloatType::BFloat16, FloatType::Float16];
    let known = TYPES.into_iter().find(|float_type| float_type.name() == name);
    known.ok_or_else(|| {
        let expected = TYPES.map(FloatType::name).join(", ");
        let (class, what) = match name {
            "int8" | "fp8" => (ErrorClass::Unsupported, "the cuda executor does not have it"),
            _ => (ErrorClass::Input, "no such type"),
        };
        Raised::new(class, format!("dtype {name:?}: {what}; expected one of {expected}"))
            .key("dtype")
            .found(name)
            .expected(expected)
    })
}

/// Bytes of weights that a frame reads, whatever its batch: R passes over the layers and the projection, one over each head.
fn frame_bytes(spec: &ModelSpec, float_type: FloatType) -> u64 {
    let shapes = MatrixShapes::new(spec);
    let layer = [shapes.query_key_value, shapes.output, shapes.gate_up, shapes.down];
    let layers = spec.layers as u64 * layer.map(|matrix| matrix.bytes(float_type)).iter().sum::<u64>();
    // Rows of the tables pass through the projection when they are loaded: a frame projects its hidden rows alone.
    let projection = if spec.projected { shapes.projection.bytes(float_type) } else { 0 };
    spec.residual_codebooks as u64 * (layers + shapes.head.bytes(float_type)) + projection
}

/// Bytes of (weights, context) on a CUDA device; tables are taken to be stored in the working type.
///
/// # Errors
/// As for [`Request::new`].
#[pyfunction]
pub fn estimate_cuda_memory(
    spec: &PyModelSpec,
    dtype: &str,
    max_batch: i64,
    verify_rows: i64,
) -> PyResult<(u64, usize)> {
    let float_type = parse_float_type(dtype)?;
    let max_batch = within("max_batch", max_batch, MAX_BATCH)?;
    let verify_rows = within("spec_verify_size", verify_rows, MOST_VERIFY_ROWS)?;
    let spec = &spec.0;
    let tables = vec![float_type; spec.residual_codebooks];
    let code_zero = spec.code_zero_size.map(|_| float_type);
    let weights = WeightAddresses::new(spec, float_type, &tables, code_zero, None, 0).bytes;
    // Of shapes with so many rows, a chain takes the most.
    let speculation = Speculation::new(DraftShape::Chain, verify_rows, None);
    let speculation = speculation.filter(|speculation| speculation.suits(spec));
    let rounds = speculation
        .map(|speculation| RoundExtent::new(&speculation.tree, false, MOST_PAYING_ROWS.min(max_batch)));
    let context = context_bytes(spec, float_type, max_batch, rounds);
    Ok((weights, context as usize + ARENA_ALIGNMENT))
}
