//! `CpuExecutor`: the core's CPU executor, its arena and a talker's bound tensors, shared by its prepared frames.
//!
//! The engine and the arena stand behind one lock that is taken without the GIL: threads that share a predictor take
//! turns. What never changes after loading is beside the lock.

use overtone_core::checkpoint::{Checkpoint, InMemoryTensor};
use overtone_core::cpu::executor::CpuOptions;
use overtone_core::cpu::weights::{OwnedTable, exact_weight_type, weight_bytes};
use overtone_core::cpu::workspace::workspace_blocks;
use overtone_core::cpu::{CpuExecutor as Engine, WeightType};
use overtone_core::frame::Table;
use overtone_core::sampling::SamplingParams;
use overtone_core::spec::ModelSpec;
use overtone_core::tensor::FloatType;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::arena::Arena;
use crate::dlpack::expect::{Expect, expect_float, expect_shape};
use crate::dlpack::import::ImportedTensor;
use crate::enter::{SignalCheck, enter, enter_interruptible};
use crate::errors::{ErrorClass, Raised};
use crate::frame::{FrameArguments, PreparedFrame};
use crate::spec::PyModelSpec;
use crate::tensor::Tensor;

/// More rows than any talker batches; a typing error above it.
const MAX_BATCH: usize = 4096;

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
    /// E[0] … E[R−1].
    pub tables: Vec<Arc<OwnedTable>>,
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
    /// E0, of the checkpoint or of the talker.
    pub code_zero_table: Option<CodeZeroTable>,
    /// Counters since loading.
    pub stats: Stats,
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
    pub busy: std::time::Duration,
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
    /// The engine and what belongs to it, for one frame. A panic in an earlier frame left nothing that this one reads.
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
        Ok(self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
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
        let mut imported = Vec::with_capacity(tensors.len());
        for (name, object) in tensors {
            let name: String = name.extract()?;
            let tensor = ImportedTensor::new(name.clone(), &object)?;
            // The talker's other tensors may be of any type.
            if let Some(float_type) = tensor.view().element().float_type() {
                imported.push((name, tensor, float_type));
            }
        }
        enter_interruptible(py, progress, |check| {
            let copies: Vec<Option<Vec<u8>>> =
                imported.iter().map(|(_, tensor, _)| contiguous_copy(tensor)).collect();
            let lent = imported.iter().zip(&copies).map(|((name, tensor, float_type), copy)| {
                // SAFETY: `imported` owns the memory until loading is over; that the caller does not write its own
                // state dict meanwhile is what handing it over means.
                let borrowed = || unsafe { tensor.view().as_bytes() };
                let bytes = copy.as_deref().or_else(borrowed).unwrap_or_default();
                let shape = tensor.view().shape().to_vec();
                (name.clone(), InMemoryTensor { float_type: *float_type, shape, bytes })
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
    fn dtype(&self) -> Result<&'static str, Raised> {
        Ok(self.0.enter()?.engine.weight_type().name())
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
    fn threads(&self) -> Result<usize, Raised> {
        Ok(self.0.enter()?.engine.threads())
    }

    #[getter]
    fn instructions(&self) -> Result<&'static str, Raised> {
        Ok(self.0.enter()?.engine.instructions().name())
    }

    #[getter]
    fn frame_bytes(&self) -> Result<u64, Raised> {
        Ok(self.0.enter()?.engine.frame_bytes())
    }

    #[getter]
    fn required_context_memory(&self) -> usize {
        Arena::required_bytes(workspace_blocks(&self.0.spec, self.0.max_batch))
    }

    fn set_context_memory(&self, memory: Option<&Bound<'_, PyAny>>) -> PyResult<bool> {
        let blocks = workspace_blocks(&self.0.spec, self.0.max_batch);
        let arena = match memory {
            None => Some(Arena::own(blocks)?),
            Some(memory) => Arena::lent(ImportedTensor::new("memory", memory)?, blocks)?,
        };
        let fits = arena.is_some();
        if let Some(arena) = arena {
            self.0.enter()?.arena = arena;
        }
        Ok(fits)
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
                expect_shape(&tensor, &[Expect::AtLeast(1), width]).map_err(binding)?;
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
        if let Some(table) = table {
            self.0.enter()?.code_zero_table = Some(table);
        }
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
        let stats = self.0.enter()?.stats;
        let counters = PyDict::new(py);
        counters.set_item("frames", stats.frames)?;
        counters.set_item("rows", stats.rows)?;
        counters.set_item("failed_rows", stats.failed_rows)?;
        counters.set_item("busy_seconds", stats.busy.as_secs_f64())?;
        Ok(counters)
    }
}

/// A row-major copy of a strided tensor; `None` when it is contiguous already.
fn contiguous_copy(tensor: &ImportedTensor) -> Option<Vec<u8>> {
    if tensor.view().is_contiguous() {
        return None;
    }
    let mut bytes = vec![0; tensor.view().size_in_bytes()];
    tensor.view().read_bytes(&mut bytes).ok().map(|()| bytes)
}

/// How an executor is asked for, checked.
struct Request {
    weight_type: Option<WeightType>,
    max_batch: usize,
    threads: Option<usize>,
}

impl Request {
    fn new(dtype: Option<&str>, max_batch: i64, threads: Option<i64>) -> Result<Self, Raised> {
        let weight_type = dtype.map(parse_weight_type).transpose()?;
        let max_batch = checked_batch(max_batch)?;
        // What does not fit is refused with the pool's own message.
        let threads = threads.map(|threads| usize::try_from(threads).unwrap_or(0));
        Ok(Self { weight_type, max_batch, threads })
    }

    fn load(&self, checkpoint: &Checkpoint<'_>, check: &mut SignalCheck) -> Result<CpuExecutor, Raised> {
        let weight_type = self.weight_type.unwrap_or_else(|| exact_weight_type(checkpoint));
        let options = CpuOptions { weight_type, threads: self.threads, max_batch: self.max_batch };
        let engine = Engine::load(checkpoint, options, &mut |done, total| check.poll(done, total))?;
        let spec = engine.spec().clone();
        let tables: Vec<_> =
            (0..spec.residual_codebooks).filter_map(|layer| engine.codec_table(layer).cloned()).collect();
        let table_type = tables.first().map_or(FloatType::Float32, |table| table.view().float_type);
        let state = State {
            arena: Arena::own(engine.workspace_blocks())?,
            code_zero_table: engine.code_zero_table().cloned().map(CodeZeroTable::Loaded),
            engine,
            stats: Stats::default(),
        };
        Ok(CpuExecutor(Arc::new(Shared {
            spec,
            table_type,
            max_batch: self.max_batch,
            tables,
            process: std::process::id(),
            state: Mutex::new(state),
        })))
    }
}

fn checked_batch(max_batch: i64) -> Result<usize, Raised> {
    usize::try_from(max_batch).ok().filter(|batch| (1..=MAX_BATCH).contains(batch)).ok_or_else(|| {
        Raised::input(format!("max_batch: found {max_batch}, expected 1 to {MAX_BATCH}"))
            .key("max_batch")
            .found(max_batch.to_string())
            .expected(format!("1 to {MAX_BATCH}"))
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
        Raised::new(class, format!("dtype {name}: {what}; expected one of {expected}"))
            .key("dtype")
            .found(name)
            .expected(expected)
    })
}

/// Raise an `InputError` for a sampling parameter out of range.
#[pyfunction]
pub fn check_sampling(temperature: f64, top_k: i64, top_p: f64, seed: &Bound<'_, PyAny>) -> PyResult<()> {
    let seed: u64 = seed.extract().map_err(|_| {
        Raised::input(format!("seed is {seed}: expected a whole number from 0 to 2^64 - 1")).key("seed")
    })?;
    SamplingParams::from_numbers(temperature, top_k, top_p, seed).map_err(Raised::from)?;
    Ok(())
}

/// Bytes of (weights, context) on the CPU.
#[pyfunction]
pub fn estimate_memory(spec: &PyModelSpec, dtype: &str, max_batch: i64) -> PyResult<(u64, usize)> {
    let weight_type = parse_weight_type(dtype)?;
    let max_batch = checked_batch(max_batch)?;
    let table_type =
        if weight_type == WeightType::Float32 { FloatType::Float32 } else { FloatType::BFloat16 };
    let context = Arena::required_bytes(workspace_blocks(&spec.0, max_batch));
    Ok((weight_bytes(&spec.0, weight_type, table_type), context))
}
