//! `CudaExecutor`: frames on a CUDA device.
//!
//! | room | what it holds |
//! |---|---|
//! | [`loading`] | how an executor is asked for and made; memory estimated |
//! | [`shared`] | a loaded executor, its locks, and the one way to give it a frame |
//! | [`predicted`] | a frame in one call, into outputs that the caller owns |
//! | [`prepared`] | a frame prepared to be launched many times |
//! | [`ragged`] | steps of a talker's engine, laid out |
//! | [`block`] | tensors and parameters as kernels find them |
//! | [`output_pool`], [`events`], [`retired`] | memory, events and owners that outlive a call: reused, so that nothing is made per frame |
//! | [`completion`] | whether a frame has completed, and who waits for it |
//! | [`report`] | what this machine has |
//!
//! What Python calls on it, the CPU executor has too ([`crate::executor`]).

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use overtone_core::checkpoint::{Checkpoint, InMemoryTensor, predictor_keys};
use overtone_core::spec::ModelSpec;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::causes::cuda_error;
use crate::dlpack::expect::{Expect, Place, expect_device, expect_float, expect_shape};
use crate::dlpack::import::ImportedTensor;
use crate::dlpack::view::StridedView;
use crate::enter::{enter, enter_interruptible};
use crate::errors::{ErrorClass, Raised};
use crate::executor::{check_codec_hiddens, lock, no_such_layer};
use crate::frame::arguments::{FrameArguments, GivenSampling};
use crate::ragged::{GivenBatch, GivenIo};
use crate::spec::PyModelSpec;
use crate::speculation::{GivenSpeculation, SpecCounters, spec_counters};
use crate::streams::StreamHandle;
use crate::tensor::Tensor;
use block::TalkerTable;
use loading::{ARENA_ALIGNMENT, Request};
use predicted::{DeviceOutputs, predict};
use prepared::CudaPreparedFrame;
use ragged::CudaRaggedPlan;
use retired::Owner;
use shared::Shared;

pub mod block;
pub mod completion;
pub mod events;
pub mod loading;
pub mod output_pool;
pub mod predicted;
pub mod prepared;
pub mod ragged;
pub mod report;
pub mod retired;
pub mod shared;

/// The CUDA executor behind `overtone.CodePredictor`.
#[pyclass(frozen, module = "overtone._core")]
#[derive(Debug)]
pub struct CudaExecutor(Arc<Shared>);

#[pymethods]
impl CudaExecutor {
    #[staticmethod]
    #[pyo3(signature = (artifact_dir, checkpoint_dir, code_zero_table, dtype, max_batch, device, speculation, progress))]
    #[allow(clippy::too_many_arguments, reason = "they are the keyword arguments of one Python call")]
    fn load(
        py: Python<'_>,
        artifact_dir: PathBuf,
        checkpoint_dir: Option<PathBuf>,
        code_zero_table: Option<PathBuf>,
        dtype: Option<&str>,
        max_batch: i64,
        device: usize,
        speculation: Option<GivenSpeculation>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let request = Request::new(dtype, max_batch, device, speculation)?;
        enter_interruptible(py, progress, |check| {
            let mut checkpoint = Checkpoint::open_with(&artifact_dir, checkpoint_dir.as_deref())?;
            if let Some(file) = code_zero_table {
                checkpoint = checkpoint.with_code_zero_table(&file)?;
            }
            let directories: Vec<_> = [Some(artifact_dir), checkpoint_dir].into_iter().flatten().collect();
            Ok::<_, Raised>(Self(Arc::new(request.load(&checkpoint, &directories, check)?)))
        })
    }

    #[staticmethod]
    #[pyo3(signature = (config, tensors, dtype, max_batch, device, speculation, progress))]
    #[allow(clippy::too_many_arguments, reason = "they are the keyword arguments of one Python call")]
    fn from_tensors(
        py: Python<'_>,
        config: &str,
        tensors: &Bound<'_, PyDict>,
        dtype: Option<&str>,
        max_batch: i64,
        device: usize,
        speculation: Option<GivenSpeculation>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let request = Request::new(dtype, max_batch, device, speculation)?;
        let objects: BTreeMap<String, Bound<'_, PyAny>> =
            tensors.iter().map(|(name, object)| Ok((name.extract()?, object))).collect::<PyResult<_>>()?;
        let mut imported = Vec::new();
        for name in predictor_keys(objects.keys().map(String::as_str)) {
            let tensor =
                ImportedTensor::on_stream(name.to_owned(), &objects[name], Some(StreamHandle::LEGACY))?;
            let float_type =
                expect_float(&tensor).map_err(|raised| raised.with_class(ErrorClass::Checkpoint))?;
            imported.push((name, Tensor::from_imported(&tensor)?, float_type));
        }
        enter_interruptible(py, progress, |check| {
            let contiguous: Vec<Tensor> = imported
                .iter()
                .map(|(_, tensor, _)| tensor.to_contiguous_host())
                .collect::<Result<_, _>>()?;
            let lent = imported.iter().zip(&contiguous).map(|((name, _, float_type), tensor)| {
                // SAFETY: `contiguous` owns the memory until loading is over; that the caller does not write its own
                // state dict meanwhile is what handing it over means.
                let bytes = unsafe { tensor.view().as_bytes() }.unwrap_or_default();
                let shape = tensor.view().shape().to_vec();
                ((*name).to_owned(), InMemoryTensor { float_type: *float_type, shape, bytes })
            });
            let checkpoint = Checkpoint::from_tensors(config, lent.collect::<BTreeMap<_, _>>())?;
            Ok::<_, Raised>(Self(Arc::new(request.load(&checkpoint, &[], check)?)))
        })
    }

    #[getter]
    fn spec(&self) -> PyModelSpec {
        PyModelSpec(self.0.spec.clone())
    }

    #[getter]
    fn dtype(&self) -> &'static str {
        self.0.float_type.name()
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
    fn device(&self) -> String {
        self.0.device().to_string()
    }

    /// The device in words, for people.
    #[getter]
    fn device_name(&self) -> String {
        self.0.context.device().properties().name.clone()
    }

    /// No threads of ours run frames.
    #[getter]
    const fn threads(&self) -> usize {
        0
    }

    /// The device's generation, as `sm_90`.
    #[getter]
    fn instructions(&self) -> String {
        let capability = self.0.context.device().properties().compute_capability;
        format!("sm_{}{}", capability.major, capability.minor)
    }

    #[getter]
    fn frame_bytes(&self) -> u64 {
        self.0.frame_bytes
    }

    #[getter]
    fn required_context_memory(&self) -> usize {
        self.0.context_bytes
    }

    #[pyo3(signature = (memory))]
    fn set_context_memory(&self, py: Python<'_>, memory: Option<&Bound<'_, PyAny>>) -> PyResult<bool> {
        let stream = self.0.stream(py, None)?;
        let lent = match memory {
            None => None,
            Some(object) => {
                let tensor = ImportedTensor::on_stream("memory", object, Some(stream))?;
                expect_device(&tensor, Place::Cuda(self.0.index()))?;
                tensor.expect_writable()?;
                if !tensor.view().is_contiguous() {
                    return Err(tensor.refused("a strided tensor", "a contiguous one").into());
                }
                if tensor.view().size_in_bytes() < self.0.context_bytes {
                    return Ok(false);
                }
                Some(Arc::new(tensor))
            }
        };
        let start = lent.as_ref().map(|tensor| tensor.view().data().addr().next_multiple_of(ARENA_ALIGNMENT));
        let replaced = enter(py, || {
            // What the memory's owner still has under way comes before the frames that will work in it.
            self.0.wait_for_stream(stream)?;
            self.0.with_state_here(|state| {
                // SAFETY: the tensor has the bytes that are required behind its first aligned address; the state keeps it until
                // the arena is set again, which waits for the last frame, or until the executor is gone.
                unsafe { state.engine.set_context_memory(start.map(|start| start as u64)) }?;
                state.arena_version += 1;
                Ok::<_, Raised>(std::mem::replace(&mut state.lent, lent))
            })
        })?;
        // Outside the lock: letting go of a talker's memory may run Python code, which may come back here.
        drop(replaced);
        Ok(true)
    }

    fn codec_embed_table(&self, py: Python<'_>, layer: i64) -> PyResult<Tensor> {
        let spec = &self.0.spec;
        let found = usize::try_from(layer)
            .ok()
            .and_then(|layer| self.0.with_state(py, |state| state.engine.codec_table(layer)));
        let (table, memory) = found.ok_or_else(|| no_such_layer(layer, spec))?;
        let data = std::ptr::without_provenance_mut(table.raw as usize);
        let shape = [spec.codebook_size as i64, spec.talker_hidden_size as i64];
        // SAFETY: the weights hold the table, and stay beside the view; nobody writes them.
        let view =
            unsafe { StridedView::on_device(self.0.device(), data, table.float_type.into(), &shape, None) };
        let view = view.map_err(|error| Raised::input(error.to_string()))?;
        Ok(Tensor::over_read_only(view, memory as Owner))
    }

    fn bind(
        &self,
        py: Python<'_>,
        max_batch_size: usize,
        code_zero_embed_table: Option<&Bound<'_, PyAny>>,
        codec_hiddens: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let shared = &self.0;
        let place = Place::Cuda(shared.index());
        let stream = shared.stream(py, None)?;
        let hiddens = match codec_hiddens {
            None => None,
            Some(object) => {
                let tensor = ImportedTensor::on_stream("codec_hiddens", object, Some(stream))?;
                expect_device(&tensor, place)?;
                check_codec_hiddens(&tensor, &shared.spec, max_batch_size, shared.table_type)?;
                Some(Arc::new(tensor))
            }
        };
        let table = match code_zero_embed_table {
            None => shared.loaded_code_zero_table.clone(),
            Some(object) => {
                let tensor = ImportedTensor::on_stream("code_zero_embed_table", object, Some(stream))?;
                expect_device(&tensor, place)?;
                Some(Arc::new(enter(py, || lend_table(shared, tensor, stream))?))
            }
        };
        let binding = shared::Binding { code_zero_table: table, codec_hiddens: hiddens };
        let replaced = std::mem::replace(&mut *lock(&shared.binding), binding);
        // Frames under way still read it.
        shared.retire_after_last(py, Arc::new(replaced));
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
    ) -> PyResult<DeviceOutputs> {
        let arguments =
            FrameArguments::of_call(talker_last_hidden, code_zero, sampling, frame_idx, active, logits);
        predict(py, &self.0, &arguments, self.0.stream(py, stream)?)
    }

    #[pyo3(signature = (arguments, stream = None))]
    fn prepare_frame(
        &self,
        py: Python<'_>,
        arguments: FrameArguments<'_>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<CudaPreparedFrame> {
        let stream = self.0.stream(py, stream)?;
        CudaPreparedFrame::new(py, Arc::clone(&self.0), &arguments, stream)
    }

    #[pyo3(signature = (batch, io, config, stream = None))]
    fn bind_ragged_steps(
        &self,
        py: Python<'_>,
        batch: GivenBatch<'_>,
        io: GivenIo<'_>,
        config: &Bound<'_, PyAny>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<CudaRaggedPlan> {
        let stream = self.0.stream(py, stream)?;
        CudaRaggedPlan::new(Arc::clone(&self.0), &batch, &io, config, stream)
    }

    /// Waits for what the stream was given so far, and for the frame launched last.
    #[pyo3(signature = (stream = None))]
    fn synchronize(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let stream = self.0.stream(py, stream)?;
        let last = self.0.last(py);
        enter(py, || {
            self.0.wait_for_stream(stream)?;
            let Some(last) = last else { return Ok::<_, Raised>(()) };
            last.event().synchronize(&self.0.enter()?).map_err(|error| cuda_error(&error))
        })
    }

    /// Records the graphs again.
    fn capture_graphs(&self, py: Python<'_>) -> PyResult<()> {
        enter(py, || self.0.with_state_here(|state| state.engine.capture_graphs()))
    }

    fn read_frame_bytes(&self) -> PyResult<u32> {
        let what = "the cuda executor has no reading of weights without a frame";
        Err(Raised::new(ErrorClass::Unsupported, what).into())
    }

    /// Frames, rounds, codes, drafts verified and drafts accepted of each row slot; empty without speculation.
    fn spec_counters(&self, py: Python<'_>) -> Vec<SpecCounters> {
        spec_counters(&self.0.with_state(py, |state| state.engine.round_counters()))
    }

    /// Whether frames are predicted in speculative rounds where they can pay.
    #[getter]
    fn speculating(&self, py: Python<'_>) -> bool {
        self.0.with_state(py, |state| state.engine.is_in_rounds())
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counted = enter(py, || self.0.with_state_here(|state| state.engine.counters()))?;
        let counters = PyDict::new(py);
        counters.set_item("frames", counted.frames)?;
        counters.set_item("rows", counted.rows)?;
        counters.set_item("failed_rows", counted.failed_rows)?;
        Ok(counters)
    }
}

/// Checks a talker's table, and makes it usable. What the stream still does to it comes first.
fn lend_table(shared: &Shared, tensor: ImportedTensor, stream: StreamHandle) -> Result<TalkerTable, Raised> {
    let binding = |raised: Raised| raised.with_class(ErrorClass::Binding);
    let spec: &ModelSpec = &shared.spec;
    let rows = Expect::AtLeast(spec.code_zero_size.unwrap_or(1));
    expect_shape(&tensor, &[rows, Expect::Is(spec.talker_hidden_size)]).map_err(binding)?;
    let float_type = expect_float(&tensor).map_err(binding)?;
    if !tensor.view().is_contiguous() {
        return Err(binding(tensor.refused("a strided tensor", "a contiguous one")));
    }
    shared.wait_for_stream(stream)?;
    if let Some(awaited) = tensor.awaited_stream() {
        shared.wait_for_stream(awaited)?;
    }
    let (address, rows) = (tensor.view().data() as u64, tensor.view().shape()[0]);
    // SAFETY: the tensor is kept beside the table, in the binding and in every frame that was prepared with it, and let go of
    // after the last frame launched until then.
    let table = shared
        .with_state_here(|state| unsafe { state.engine.lend_code_zero_table(address, float_type, rows) })?;
    Ok(TalkerTable { table, lent: Some(tensor) })
}
