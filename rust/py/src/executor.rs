//! `CpuExecutor`: the core's CPU executor, its arena and a talker's bound tensors, shared by its prepared frames.
//!
//! What Python calls on it, the CUDA executor has too ([`crate::cuda`]): `overtone.CodePredictor` asks neither which one it
//! is.
//!
//! The engine and the arena stand behind one lock that is taken without the GIL: threads that share a predictor take
//! turns, and no other Python thread waits for them. What never changes after loading is beside the lock, and what
//! may be asked while a frame runs has locks of its own, held for a moment.

use overtone_core::checkpoint::{Checkpoint, InMemoryTensor, predictor_keys};
use overtone_core::cpu::weights::OwnedTable;
use overtone_core::cpu::{CpuExecutor as Engine, WeightType};
use overtone_core::frame::Table;
use overtone_core::rounds::RoundCounters;
use overtone_core::spec::ModelSpec;
use overtone_core::tensor::FloatType;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::arena::Arena;
use crate::dlpack::expect::{Expect, expect_float, expect_shape};
use crate::dlpack::import::ImportedTensor;
use crate::enter::{enter, enter_interruptible};
use crate::errors::{ErrorClass, Raised};
use crate::frame::arguments::{FrameArguments, GivenSampling};
use crate::frame::outputs::{OutputKind, Outputs, ReusedOutputs};
use crate::ragged::{GivenBatch, GivenIo};
use crate::spec::PyModelSpec;
use crate::speculation::{GivenSpeculation, SpecCounters, spec_counters};
use crate::tensor::Tensor;
use loading::{Request, contiguous_copy, import_weight};
use prepared::PreparedFrame;
use ragged::RaggedPlan;

pub mod loading;
pub mod prepared;
pub mod ragged;

/// Codes, `codec_sum`, `codec_hiddens`, status and logits of a frame.
type HostOutputs = (Py<Tensor>, Py<Tensor>, Py<Tensor>, Py<Tensor>, Option<Py<Tensor>>);

impl From<Outputs> for HostOutputs {
    fn from(outputs: Outputs) -> Self {
        (outputs.codes, outputs.codec_sum, outputs.codec_hiddens, outputs.status, outputs.logits)
    }
}

/// The CPU executor behind `overtone.CodePredictor`.
#[pyclass(frozen, module = "overtone._core")]
#[derive(Debug)]
pub struct CpuExecutor(Arc<Shared>);

/// A loaded executor, and what prepared frames need of it.
#[derive(Debug)]
pub struct Shared {
    /// The architecture.
    pub spec: ModelSpec,
    /// Storage type of the codec tables, and so of `codec_hiddens`.
    pub table_type: FloatType,
    /// Largest number of rows of one frame.
    pub max_batch: usize,
    /// `E[0]` … `E[R−1]`.
    pub tables: Vec<Arc<OwnedTable>>,
    /// E0 of the checkpoint.
    loaded_code_zero_table: Option<CodeZeroTable>,
    /// E0 in use: the checkpoint's, or the one that the talker bound.
    code_zero_table: Mutex<Option<CodeZeroTable>>,
    /// A talker's `codec_hiddens`.
    codec_hiddens: Mutex<Option<Arc<ImportedTensor>>>,
    /// Outputs of the frames that reuse theirs.
    reused: ReusedOutputs<()>,
    stats: Mutex<Stats>,
    weight_type: WeightType,
    threads: usize,
    instructions: &'static str,
    frame_bytes: u64,
    /// Blocks of the arena.
    workspace_blocks: usize,
    /// What rounds counted, for each row slot of the batch; empty without speculation.
    spec_counters: Mutex<Vec<RoundCounters>>,
    /// Whether the next frame runs in rounds.
    speculating: AtomicBool,
    /// The process that made it: its threads live in no other.
    process: u32,
    state: Mutex<State>,
}

/// What frames change.
#[derive(Debug)]
pub struct State {
    /// The core's executor.
    pub engine: Engine,
    /// What a frame works in.
    pub arena: Arena,
}

/// Counters since loading.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    /// Frames run.
    pub frames: u64,
    /// Rows of all frames, inactive ones not counted.
    pub rows: u64,
    /// Rows whose status was not 0.
    pub failed_rows: u64,
    /// Time spent in frames.
    pub busy: Duration,
}

/// The talker's codec table E0.
#[derive(Clone, Debug)]
pub enum CodeZeroTable {
    /// The checkpoint's.
    Loaded(Arc<OwnedTable>),
    /// A talker's own tensor: contiguous, [V0, Ht], of the float type given.
    Lent(Arc<ImportedTensor>, FloatType),
}

impl CodeZeroTable {
    /// The tensor, when it is a talker's.
    fn lent(&self) -> Option<&ImportedTensor> {
        match self {
            Self::Loaded(_) => None,
            Self::Lent(tensor, _) => Some(tensor),
        }
    }

    /// The table, for the length of a frame.
    pub fn view(&self) -> Table<'_> {
        match self {
            Self::Loaded(table) => table.view(),
            Self::Lent(tensor, float_type) => Table {
                float_type: *float_type,
                rows: tensor.view().shape()[0],
                width: tensor.view().shape()[1],
                // SAFETY: the tensor owns its memory through `self`; that nobody writes it while a frame runs is what
                // lending a weight table to `bind` means, and its documentation says.
                bytes: unsafe { tensor.view().as_bytes() }.unwrap_or_default(),
            },
        }
    }
}

impl Shared {
    /// The engine and what belongs to it, for one frame. Call it without the GIL: another frame may be running.
    ///
    /// # Errors
    /// A `DeviceError` in a process forked after loading, where the engine's threads are missing.
    pub fn enter(&self) -> Result<MutexGuard<'_, State>, Raised> {
        let here = std::process::id();
        if here != self.process {
            return Err(Raised::new(
                ErrorClass::Device,
                format!(
                    "this predictor was made in process {} and this is process {here}: load another after forking",
                    self.process
                ),
            ));
        }
        Ok(lock(&self.state))
    }

    /// The talker's codec table that a frame prepared now reads.
    pub fn code_zero_table(&self) -> Option<CodeZeroTable> {
        lock(&self.code_zero_table).clone()
    }

    /// Zeros for a frame to write.
    fn new_outputs(&self, py: Python<'_>, kind: OutputKind) -> PyResult<Outputs> {
        let layout = kind.layout(&self.spec, self.table_type);
        Outputs::new(py, &layout, |_, element, shape| Ok(Tensor::zeroed(element, shape)?))
    }

    /// Counts one frame.
    pub fn count(&self, rows: usize, failed_rows: usize, busy: Duration) {
        let mut stats = lock(&self.stats);
        stats.frames += 1;
        stats.rows += rows as u64;
        stats.failed_rows += failed_rows as u64;
        stats.busy += busy;
    }

    /// Counts the rounds of the frame that `engine` has just run for these rows.
    pub fn count_rounds(&self, rows: &[usize], engine: &Engine) {
        let mut counters = lock(&self.spec_counters);
        for (&row, counted) in rows.iter().zip(engine.round_counters()) {
            counters[row] += *counted;
        }
        self.speculating.store(engine.speculating(), Ordering::Relaxed);
    }
}

/// A lock whose holder panicked guards nothing half-changed that a frame reads.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[pymethods]
impl CpuExecutor {
    #[staticmethod]
    #[pyo3(signature = (artifact_dir, checkpoint_dir, code_zero_table, dtype, max_batch, threads, speculation, progress))]
    #[allow(clippy::too_many_arguments, reason = "they are the keyword arguments of one Python call")]
    fn load(
        py: Python<'_>,
        artifact_dir: PathBuf,
        checkpoint_dir: Option<PathBuf>,
        code_zero_table: Option<PathBuf>,
        dtype: Option<&str>,
        max_batch: i64,
        threads: Option<i64>,
        speculation: Option<GivenSpeculation>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let request = Request::new(dtype, max_batch, threads, speculation)?;
        enter_interruptible(py, progress, |check| {
            let mut checkpoint = Checkpoint::open_with(&artifact_dir, checkpoint_dir.as_deref())?;
            if let Some(file) = code_zero_table {
                checkpoint = checkpoint.with_code_zero_table(&file)?;
            }
            let directories: Vec<_> = [Some(artifact_dir), checkpoint_dir].into_iter().flatten().collect();
            request.load(&checkpoint, &directories, check)
        })
    }

    #[staticmethod]
    #[pyo3(signature = (config, tensors, dtype, max_batch, threads, speculation, progress))]
    #[allow(clippy::too_many_arguments, reason = "they are the keyword arguments of one Python call")]
    fn from_tensors(
        py: Python<'_>,
        config: &str,
        tensors: &Bound<'_, PyDict>,
        dtype: Option<&str>,
        max_batch: i64,
        threads: Option<i64>,
        speculation: Option<GivenSpeculation>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let request = Request::new(dtype, max_batch, threads, speculation)?;
        let objects: BTreeMap<String, Bound<'_, PyAny>> =
            tensors.iter().map(|(name, object)| Ok((name.extract()?, object))).collect::<PyResult<_>>()?;
        let mut imported = Vec::new();
        // The talker's other tensors may be anything, anywhere.
        for name in predictor_keys(objects.keys().map(String::as_str)) {
            let (tensor, float_type) = import_weight(name, &objects[name])?;
            imported.push((name, tensor, float_type));
        }
        enter_interruptible(py, progress, |check| {
            let copies: Vec<Option<Vec<u8>>> =
                imported.iter().map(|(_, tensor, _)| contiguous_copy(tensor)).collect::<Result<_, _>>()?;
            let lent = imported.iter().zip(&copies).map(|((name, tensor, float_type), copy)| {
                // SAFETY: `imported` owns the memory until loading is over; that the caller does not write its own
                // state dict meanwhile is what handing it over means.
                let borrowed = || unsafe { tensor.view().as_bytes() };
                let bytes = copy.as_deref().or_else(borrowed).unwrap_or_default();
                let shape = tensor.view().shape().to_vec();
                ((*name).to_owned(), InMemoryTensor { float_type: *float_type, shape, bytes })
            });
            let checkpoint = Checkpoint::from_tensors(config, lent.collect::<BTreeMap<_, _>>())?;
            request.load(&checkpoint, &[], check)
        })
    }

    #[getter]
    fn spec(&self) -> PyModelSpec {
        PyModelSpec(self.0.spec.clone())
    }

    #[getter]
    fn dtype(&self) -> &'static str {
        self.0.weight_type.name()
    }

    #[getter]
    fn table_dtype(&self) -> &'static str {
        self.0.table_type.name()
    }

    #[getter]
    fn max_batch(&self) -> usize {
        self.0.max_batch
    }

    /// Where frames run.
    #[getter]
    const fn device(&self) -> &'static str {
        "cpu"
    }

    /// The device in words, for people; `None` where Python knows more of it.
    #[getter]
    const fn device_name(&self) -> Option<&'static str> {
        None
    }

    #[getter]
    fn threads(&self) -> usize {
        self.0.threads
    }

    #[getter]
    fn instructions(&self) -> &'static str {
        self.0.instructions
    }

    #[getter]
    fn frame_bytes(&self) -> u64 {
        self.0.frame_bytes
    }

    #[getter]
    fn required_context_memory(&self) -> usize {
        Arena::required_bytes(self.0.workspace_blocks)
    }

    fn set_context_memory(&self, py: Python<'_>, memory: Option<&Bound<'_, PyAny>>) -> PyResult<bool> {
        let blocks = self.0.workspace_blocks;
        let arena = match memory {
            None => Some(Arena::own(blocks)?),
            Some(memory) => Arena::lent(ImportedTensor::new("memory", memory)?, blocks)?,
        };
        let Some(arena) = arena else { return Ok(false) };
        let replaced = enter(py, || Ok::<_, Raised>(std::mem::replace(&mut self.0.enter()?.arena, arena)))?;
        // Outside the lock: letting go of a talker's memory may run Python code, which may come back here.
        drop(replaced);
        Ok(true)
    }

    fn codec_embed_table(&self, layer: i64) -> Result<Tensor, Raised> {
        let table = usize::try_from(layer).ok().and_then(|layer| self.0.tables.get(layer));
        let table = table.ok_or_else(|| no_such_layer(layer, &self.0.spec))?;
        let view = table.view();
        Tensor::borrowed(Arc::clone(table), view.float_type, &[view.rows, view.width], |table| {
            table.view().bytes
        })
    }

    fn bind(
        &self,
        max_batch_size: usize,
        code_zero_embed_table: Option<&Bound<'_, PyAny>>,
        codec_hiddens: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let binding = |raised: Raised| raised.with_class(ErrorClass::Binding);
        let spec = &self.0.spec;
        let width = Expect::Is(spec.talker_hidden_size);
        let table = match code_zero_embed_table {
            None => None,
            Some(object) => {
                let tensor = ImportedTensor::new("code_zero_embed_table", object)?;
                let rows = Expect::AtLeast(spec.code_zero_size.unwrap_or(1));
                expect_shape(&tensor, &[rows, width]).map_err(binding)?;
                let float_type = expect_float(&tensor).map_err(binding)?;
                if !tensor.view().is_contiguous() {
                    return Err(binding(tensor.refused("a strided tensor", "a contiguous one")).into());
                }
                Some(CodeZeroTable::Lent(Arc::new(tensor), float_type))
            }
        };
        let hiddens = match codec_hiddens {
            None => None,
            Some(object) => {
                let tensor = ImportedTensor::new("codec_hiddens", object)?;
                check_codec_hiddens(&tensor, spec, max_batch_size, self.0.table_type)?;
                Some(Arc::new(tensor))
            }
        };
        let table = table.or_else(|| self.0.loaded_code_zero_table.clone());
        let replaced_table = std::mem::replace(&mut *lock(&self.0.code_zero_table), table);
        let replaced_hiddens = std::mem::replace(&mut *lock(&self.0.codec_hiddens), hiddens);
        // Outside the locks, as in `set_context_memory`.
        drop((replaced_table, replaced_hiddens));
        Ok(())
    }

    #[pyo3(signature = (talker_last_hidden, code_zero, sampling, frame_idx, active, logits, stream))]
    #[allow(clippy::too_many_arguments, reason = "they are the arguments of one Python call")]
    fn predict_frame<'py>(
        &self,
        py: Python<'py>,
        talker_last_hidden: Bound<'py, PyAny>,
        code_zero: Bound<'py, PyAny>,
        sampling: GivenSampling<'py>,
        frame_idx: Bound<'py, PyAny>,
        active: Option<Bound<'py, PyAny>>,
        logits: bool,
        stream: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<HostOutputs> {
        let _ = stream;
        let arguments =
            FrameArguments::of_call(talker_last_hidden, code_zero, sampling, frame_idx, active, logits);
        let prepared = PreparedFrame::new(py, Arc::clone(&self.0), &arguments)?;
        prepared.run(py)?;
        Ok(prepared.into_outputs())
    }

    /// Codes, status, and the final-norm hidden row that each residual codebook's head reads, [B, R, H] float32.
    #[pyo3(signature = (talker_last_hidden, code_zero, sampling, frame_idx))]
    fn predict_hidden_rows<'py>(
        &self,
        py: Python<'py>,
        talker_last_hidden: Bound<'py, PyAny>,
        code_zero: Bound<'py, PyAny>,
        sampling: GivenSampling<'py>,
        frame_idx: Bound<'py, PyAny>,
    ) -> PyResult<(Py<Tensor>, Py<Tensor>, Tensor)> {
        let arguments =
            FrameArguments::of_call(talker_last_hidden, code_zero, sampling, frame_idx, None, false);
        let prepared = PreparedFrame::new(py, Arc::clone(&self.0), &arguments)?;
        let hidden_rows = prepared.run_with_hidden_rows(py)?;
        let (codes, _, _, status, _) = prepared.into_outputs();
        Ok((codes, status, hidden_rows))
    }

    #[pyo3(signature = (arguments, stream = None))]
    fn prepare_frame(
        &self,
        py: Python<'_>,
        arguments: FrameArguments<'_>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PreparedFrame> {
        let _ = stream;
        PreparedFrame::new(py, Arc::clone(&self.0), &arguments)
    }

    #[pyo3(signature = (batch, io, config, stream = None))]
    fn bind_ragged_steps(
        &self,
        batch: GivenBatch<'_>,
        io: GivenIo<'_>,
        config: &Bound<'_, PyAny>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<RaggedPlan> {
        let _ = stream;
        RaggedPlan::new(&batch, &io, config)
    }

    /// Whatever frames were given is done when a call returns.
    #[pyo3(signature = (stream = None))]
    fn synchronize(&self, stream: Option<&Bound<'_, PyAny>>) {
        let _ = stream;
    }

    /// There is nothing to capture.
    const fn capture_graphs(&self) {}

    fn read_frame_bytes(&self, py: Python<'_>) -> PyResult<u32> {
        enter(py, || Ok::<_, Raised>(self.0.enter()?.engine.read_frame_bytes()))
    }

    /// Frames, rounds, codes, drafts verified and drafts accepted of each row slot; empty without speculation.
    fn spec_counters(&self) -> Vec<SpecCounters> {
        spec_counters(&lock(&self.0.spec_counters))
    }

    /// Whether the next frame is predicted in speculative rounds.
    #[getter]
    fn speculating(&self) -> bool {
        self.0.speculating.load(Ordering::Relaxed)
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = *lock(&self.0.stats);
        let counters = PyDict::new(py);
        counters.set_item("frames", stats.frames)?;
        counters.set_item("rows", stats.rows)?;
        counters.set_item("failed_rows", stats.failed_rows)?;
        counters.set_item("busy_seconds", stats.busy.as_secs_f64())?;
        Ok(counters)
    }
}

/// An `InputError` for a layer that has no embedding table.
pub fn no_such_layer(layer: i64, spec: &ModelSpec) -> Raised {
    let expected = format!("0 to {}", spec.residual_codebooks - 1);
    Raised::input(format!("layer: found {layer}, expected {expected}"))
        .key("layer")
        .found(layer.to_string())
        .expected(expected)
}

/// Checks a talker's `codec_hiddens`: [`max_batch_size`, C, Ht] in the codec tables' type, writable.
///
/// # Errors
/// A `BindingError` that names it.
pub fn check_codec_hiddens(
    tensor: &ImportedTensor,
    spec: &ModelSpec,
    max_batch_size: usize,
    table_type: FloatType,
) -> Result<(), Raised> {
    let binding = |raised: Raised| raised.with_class(ErrorClass::Binding);
    let shape = [max_batch_size, spec.codes_per_frame(), spec.talker_hidden_size].map(Expect::Is);
    expect_shape(tensor, &shape).map_err(binding)?;
    let found = expect_float(tensor).map_err(binding)?;
    if found != table_type {
        let expected = format!("{table_type}, the codec tables' type");
        return Err(binding(tensor.refused(found.name(), &expected)));
    }
    tensor.expect_writable().map_err(binding)
}
