//! How an executor is asked for, and made: arguments checked, tensors in memory taken, memory estimated.

use overtone_core::checkpoint::Checkpoint;
use overtone_core::cpu::executor::CpuOptions;
use overtone_core::cpu::threads::MAX_THREADS;
use overtone_core::cpu::weights::{exact_weight_type, weight_bytes};
use overtone_core::cpu::workspace::WorkspaceExtent;
use overtone_core::cpu::{CpuExecutor as Engine, WeightType};
use overtone_core::rounds::{MOST_VERIFY_ROWS, RoundCounters};
use overtone_core::tensor::FloatType;
use pyo3::prelude::*;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use super::{CodeZeroTable, CpuExecutor, Shared, State};
use crate::arena::Arena;
use crate::dlpack::expect::expect_float;
use crate::dlpack::import::ImportedTensor;
use crate::enter::SignalCheck;
use crate::errors::{ErrorClass, Raised};
use crate::frame::outputs::ReusedOutputs;
use crate::spec::PyModelSpec;
use crate::speculation::GivenSpeculation;

/// More rows than any talker batches; a typing error above it.
pub const MAX_BATCH: usize = 4096;

/// A tensor of a state dict, of a type that weights may have.
pub(super) fn import_weight(name: &str, object: &Bound<'_, PyAny>) -> PyResult<(ImportedTensor, FloatType)> {
    let tensor = ImportedTensor::new(name.to_owned(), object)?;
    let float_type = expect_float(&tensor).map_err(|raised| raised.with_class(ErrorClass::Checkpoint))?;
    Ok((tensor, float_type))
}

/// A row-major copy of a strided tensor; `None` when it is contiguous already.
pub(super) fn contiguous_copy(tensor: &ImportedTensor) -> Result<Option<Vec<u8>>, Raised> {
    if tensor.view().is_contiguous() {
        return Ok(None);
    }
    let size = tensor.view().size_in_bytes();
    let mut bytes = Vec::new();
    // A broadcast tensor may be of any size.
    bytes.try_reserve_exact(size).map_err(|error| {
        Raised::from_error(ErrorClass::OutOfMemory, &error)
            .context(format!("{}: {size} bytes", tensor.name()))
    })?;
    bytes.resize(size, 0);
    tensor.view().read_bytes(&mut bytes).map_err(|error| tensor.inaccessible(&error))?;
    Ok(Some(bytes))
}

/// How an executor is asked for, checked.
pub(super) struct Request {
    weight_type: Option<WeightType>,
    max_batch: usize,
    threads: Option<usize>,
    speculation: Option<GivenSpeculation>,
}

impl Request {
    pub(super) fn new(
        dtype: Option<&str>,
        max_batch: i64,
        threads: Option<i64>,
        speculation: Option<GivenSpeculation>,
    ) -> Result<Self, Raised> {
        let weight_type = dtype.map(parse_weight_type).transpose()?;
        let max_batch = within("max_batch", max_batch, MAX_BATCH)?;
        let threads = threads.map(|threads| within("threads", threads, MAX_THREADS)).transpose()?;
        Ok(Self { weight_type, max_batch, threads, speculation })
    }

    /// `directories` are those that the checkpoint was read from; fitted drafts may lie there.
    pub(super) fn load(
        &self,
        checkpoint: &Checkpoint<'_>,
        directories: &[PathBuf],
        check: &mut SignalCheck,
    ) -> Result<CpuExecutor, Raised> {
        let weight_type = self.weight_type.unwrap_or_else(|| exact_weight_type(checkpoint));
        let options = CpuOptions {
            weight_type,
            threads: self.threads,
            max_batch: self.max_batch,
            speculation: self.speculation.as_ref().map(|given| given.speculation),
            off_below: self.speculation.as_ref().and_then(|given| given.off_below),
        };
        let given = self.speculation.as_ref();
        let drafts = given.map_or(Ok(None), |given| given.drafts.open(checkpoint, directories, true))?;
        let mut engine = Engine::load(checkpoint, options, &mut |done, total| check.poll(done, total))?;
        if let Some(drafts) = drafts {
            engine.use_drafts(&drafts)?;
        }
        let spec = engine.spec().clone();
        let tables: Vec<_> =
            (0..spec.residual_codebooks).filter_map(|layer| engine.codec_table(layer).cloned()).collect();
        let table_type = tables.first().map_or(FloatType::Float32, |table| table.view().float_type);
        let loaded_code_zero_table = engine.code_zero_table().cloned().map(CodeZeroTable::Loaded);
        let row_slots = if engine.speculating() { self.max_batch } else { 0 };
        let workspace_blocks = engine.workspace_blocks();
        Ok(CpuExecutor(Arc::new(Shared {
            spec,
            table_type,
            max_batch: self.max_batch,
            tables,
            code_zero_table: Mutex::new(loaded_code_zero_table.clone()),
            loaded_code_zero_table,
            codec_hiddens: Mutex::default(),
            reused: ReusedOutputs::default(),
            stats: Mutex::default(),
            weight_type,
            threads: engine.threads(),
            instructions: engine.instructions().name(),
            frame_bytes: engine.frame_bytes(),
            workspace_blocks,
            spec_counters: Mutex::new(vec![RoundCounters::default(); row_slots]),
            speculating: AtomicBool::new(engine.speculating()),
            process: std::process::id(),
            state: Mutex::new(State { arena: Arena::own(workspace_blocks)?, engine }),
        })))
    }
}

/// The argument `key`, from 1 to `most`.
///
/// # Errors
/// An `InputError` for another number.
pub fn within(key: &'static str, found: i64, most: usize) -> Result<usize, Raised> {
    usize::try_from(found).ok().filter(|number| (1..=most).contains(number)).ok_or_else(|| {
        let expected = format!("1 to {most}");
        Raised::input(format!("{key}: found {found}, expected {expected}"))
            .key(key)
            .found(found.to_string())
            .expected(expected)
    })
}

fn parse_weight_type(name: &str) -> Result<WeightType, Raised> {
    const TYPES: [WeightType; 3] = [WeightType::Float32, WeightType::BFloat16, WeightType::Int8];
    let known = TYPES.into_iter().find(|weight_type| weight_type.name() == name);
    known.ok_or_else(|| {
        let expected = TYPES.map(WeightType::name).join(", ");
        let (class, what) = match name {
            "float16" | "fp8" => (ErrorClass::Unsupported, "the cpu executor does not have it"),
            _ => (ErrorClass::Input, "no such type"),
        };
        Raised::new(class, format!("dtype {name:?}: {what}; expected one of {expected}"))
            .key("dtype")
            .found(name)
            .expected(expected)
    })
}

/// Bytes of (weights, context) on the CPU, with verify passes of `verify_rows` rows; 1 without speculation.
#[pyfunction]
pub fn estimate_memory(
    spec: &PyModelSpec,
    dtype: &str,
    max_batch: i64,
    verify_rows: i64,
) -> PyResult<(u64, usize)> {
    let weight_type = parse_weight_type(dtype)?;
    let streams = within("max_batch", max_batch, MAX_BATCH)?;
    let verify_rows = within("spec_verify_size", verify_rows, MOST_VERIFY_ROWS)?;
    let table_type =
        if weight_type == WeightType::Float32 { FloatType::Float32 } else { FloatType::BFloat16 };
    let context = Arena::required_bytes(WorkspaceExtent { streams, verify_rows }.blocks(&spec.0));
    Ok((weight_bytes(&spec.0, weight_type, table_type), context))
}
