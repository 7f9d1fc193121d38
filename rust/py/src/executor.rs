//! `CpuExecutor`: the core's CPU executor, its arena and a talker's bound tensors, shared by its prepared frames.
//!
//! The engine and the arena stand behind one lock that is taken without the GIL: threads that share a predictor take
//! turns, and no other Python thread waits for them. What never changes after loading is beside the lock, and what
//! may be asked while a frame runs has locks of its own, held for a moment.

use overtone_core::checkpoint::{Checkpoint, InMemoryTensor, predictor_keys};
use overtone_core::cpu::weights::OwnedTable;
use overtone_core::cpu::workspace::workspace_blocks;
use overtone_core::cpu::{CpuExecutor as Engine, WeightType};
use overtone_core::frame::Table;
use overtone_core::spec::ModelSpec;
use overtone_core::tensor::FloatType;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::arena::Arena;
use crate::dlpack::expect::{Expect, expect_float, expect_shape};
use crate::dlpack::import::ImportedTensor;
use crate::enter::{enter, enter_interruptible};
use crate::errors::{ErrorClass, Raised};
use crate::frame::PreparedFrame;
use crate::frame::arguments::FrameArguments;
use crate::spec::PyModelSpec;
use crate::tensor::Tensor;
use loading::{Request, contiguous_copy, import_weight};

pub mod loading;

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
    stats: Mutex<Stats>,
    weight_type: WeightType,
    threads: usize,
    instructions: &'static str,
    frame_bytes: u64,
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

    /// Counts one frame.
    pub fn count(&self, rows: usize, failed_rows: usize, busy: Duration) {
        let mut stats = lock(&self.stats);
        stats.frames += 1;
        stats.rows += rows as u64;
        stats.failed_rows += failed_rows as u64;
        stats.busy += busy;
    }
}

/// A lock whose holder panicked guards nothing half-changed that a frame reads.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[pymethods]
impl CpuExecutor {
    #[staticmethod]
    #[pyo3(signature = (artifact_dir, checkpoint_dir, code_zero_table, dtype, max_batch, threads, progress))]
    #[allow(clippy::too_many_arguments, reason = "they are the keyword arguments of one Python call")]
    fn load(
        py: Python<'_>,
        artifact_dir: PathBuf,
        checkpoint_dir: Option<PathBuf>,
        code_zero_table: Option<PathBuf>,
        dtype: Option<&str>,
        max_batch: i64,
        threads: Option<i64>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let request = Request::new(dtype, max_batch, threads)?;
        enter_interruptible(py, progress, |check| {
            let mut checkpoint = Checkpoint::open_with(&artifact_dir, checkpoint_dir.as_deref())?;
            if let Some(file) = code_zero_table {
                checkpoint = checkpoint.with_code_zero_table(&file)?;
            }
            request.load(&checkpoint, check)
        })
    }

    #[staticmethod]
    #[pyo3(signature = (config, tensors, dtype, max_batch, threads, progress))]
    fn from_tensors(
        py: Python<'_>,
        config: &str,
        tensors: &Bound<'_, PyDict>,
        dtype: Option<&str>,
        max_batch: i64,
        threads: Option<i64>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let request = Request::new(dtype, max_batch, threads)?;
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
            request.load(&checkpoint, check)
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
        Arena::required_bytes(workspace_blocks(&self.0.spec, self.0.max_batch))
    }

    fn set_context_memory(&self, py: Python<'_>, memory: Option<&Bound<'_, PyAny>>) -> PyResult<bool> {
        let blocks = workspace_blocks(&self.0.spec, self.0.max_batch);
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
        let table =
            usize::try_from(layer).ok().and_then(|layer| self.0.tables.get(layer)).ok_or_else(|| {
                let expected = format!("0 to {}", self.0.spec.residual_codebooks - 1);
                Raised::input(format!("layer: found {layer}, expected {expected}"))
                    .key("layer")
                    .found(layer.to_string())
                    .expected(expected)
            })?;
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
        if let Some(object) = codec_hiddens {
            let tensor = ImportedTensor::new("codec_hiddens", object)?;
            let shape = [Expect::Is(max_batch_size), Expect::Is(spec.codes_per_frame()), width];
            expect_shape(&tensor, &shape).map_err(binding)?;
            let found = expect_float(&tensor).map_err(binding)?;
            if found != self.0.table_type {
                let expected = format!("{}, the codec tables' type", self.0.table_type);
                return Err(binding(tensor.refused(found.name(), &expected)).into());
            }
            tensor.writer().map_err(binding)?;
        }
        let table = table.or_else(|| self.0.loaded_code_zero_table.clone());
        let replaced = std::mem::replace(&mut *lock(&self.0.code_zero_table), table);
        // Outside the lock, as in `set_context_memory`.
        drop(replaced);
        Ok(())
    }

    /// Rows and type of a batch of hidden rows.
    fn describe_hidden(&self, talker_last_hidden: &Bound<'_, PyAny>) -> PyResult<(usize, &'static str)> {
        let tensor = ImportedTensor::new("talker_last_hidden", talker_last_hidden)?;
        expect_shape(&tensor, &[Expect::Any("B"), Expect::Is(self.0.spec.talker_hidden_size)])?;
        Ok((tensor.view().shape()[0], expect_float(&tensor)?.name()))
    }

    fn prepare_frame(&self, arguments: FrameArguments<'_>) -> PyResult<PreparedFrame> {
        PreparedFrame::new(Arc::clone(&self.0), &arguments)
    }

    fn read_frame_bytes(&self, py: Python<'_>) -> PyResult<u32> {
        enter(py, || Ok::<_, Raised>(self.0.enter()?.engine.read_frame_bytes()))
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
