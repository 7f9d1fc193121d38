//! `CudaRaggedPlan`: steps of a talker's engine on a CUDA device, each laid out by one small kernel.

use std::sync::Arc;

use overtone_cuda::frame::TensorReference;
use overtone_cuda::ragged_step::{
    PastLengths, PublishedAddresses, QueryLengths, RaggedStepLaunch, States, Step,
};
use pyo3::prelude::*;

use super::block::{baked, device_type, reference};
use super::completion::{Completion, PyCompletion};
use super::retired::Owner;
use super::shared::Shared;
use crate::dlpack::import::ImportedTensor;
use crate::frame::awaited_streams;
use crate::frame::site::Site;
use crate::ragged::step::{GivenStep, Lengths, StepArguments};
use crate::ragged::{GivenBatch, GivenIo, RaggedTensors};
use crate::streams::StreamHandle;

/// Where steps are published: tensors that were imported and checked.
#[pyclass(frozen, module = "overtone._core")]
#[derive(Debug)]
pub struct CudaRaggedPlan {
    shared: Arc<Shared>,
    tensors: Arc<RaggedTensors>,
}

#[pymethods]
impl CudaRaggedPlan {
    /// Gives a step to a stream.
    #[pyo3(signature = (query_lengths, past_lengths, batch_size, query_width, phase, stream = None))]
    #[allow(clippy::too_many_arguments, reason = "they are the arguments of one Python call")]
    fn prepare(
        &self,
        py: Python<'_>,
        query_lengths: &Bound<'_, PyAny>,
        past_lengths: Option<&Bound<'_, PyAny>>,
        batch_size: i64,
        query_width: i64,
        phase: &Bound<'_, PyAny>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PyCompletion> {
        let given = GivenStep { query_lengths, past_lengths, batch_size, query_width, phase };
        self.launch(py, &given, self.shared.stream(py, stream)?)
    }
}

impl CudaRaggedPlan {
    /// Imports and checks the tensors, for use on `stream`.
    ///
    /// # Errors
    /// An `InputError` that names one, or the device's.
    pub fn new(
        shared: Arc<Shared>,
        batch: &GivenBatch<'_>,
        io: &GivenIo<'_>,
        config: &Bound<'_, PyAny>,
        stream: StreamHandle,
    ) -> PyResult<Self> {
        let entered = shared.enter()?;
        let borrowed = shared.borrowed(stream);
        shared.check_stream(&entered, &borrowed)?;
        let site = Site::Cuda { index: shared.index(), stream };
        let tensors = Arc::new(RaggedTensors::new(site, batch, io, config)?);
        // A graph cannot wait for what is done outside of it: whoever launches it does.
        if !shared.is_capturing(&entered, &borrowed)? {
            let awaited = awaited_streams(tensors.written().chain(tensors.read()));
            shared.await_streams(&entered, &awaited, &borrowed)?;
        }
        drop(entered);
        Ok(Self { shared, tensors })
    }

    fn launch(
        &self,
        py: Python<'_>,
        given: &GivenStep<'_, '_>,
        stream: StreamHandle,
    ) -> PyResult<PyCompletion> {
        let (shared, tensors) = (&self.shared, &*self.tensors);
        let entered = shared.enter()?;
        shared.release_completed(&entered);
        let borrowed = shared.borrowed(stream);
        shared.check_stream(&entered, &borrowed)?;
        let site = Site::Cuda { index: shared.index(), stream };
        let step = StepArguments::new(site, tensors, given)?;
        if shared.is_capturing(&entered, &borrowed)? {
            if let Some(argument) = step.given_by_host() {
                return Err(baked(argument).into());
            }
        } else {
            shared.await_streams(&entered, &awaited_streams(step.tensors()), &borrowed)?;
        }
        let work =
            RaggedStepLaunch::new(&tensors.config, &published(tensors), &states(tensors), &as_given(&step));
        let owner = Arc::new((Arc::clone(&self.tensors), step)) as Owner;
        let completion = Arc::new(Completion::new(&shared.context));
        // SAFETY: the tensors were checked to be as large as the configuration says, and those of the step to have a length a
        // row; `owner` keeps them.
        match unsafe { shared.launch_ragged_step(py, &entered, &work, &borrowed, owner) }? {
            Some(mark) => completion.launched(mark),
            None => completion.recorded(),
        }
        Ok(PyCompletion(completion))
    }
}

fn published(tensors: &RaggedTensors) -> PublishedAddresses {
    let at = |tensor: &ImportedTensor| tensor.view().data() as u64;
    let typed = |tensor: &ImportedTensor| (at(tensor), device_type(tensor.view().element()));
    PublishedAddresses {
        query_offsets: at(&tensors.query_offsets),
        query_lengths: at(&tensors.query_lengths),
        past_lengths: at(&tensors.past_lengths),
        total_lengths: at(&tensors.total_lengths),
        last_tokens: at(&tensors.last_tokens),
        status: at(&tensors.status),
        positions: typed(&tensors.positions),
        state_indices: typed(&tensors.state_indices),
        phase: at(&tensors.phase),
        faults: at(&tensors.faults),
    }
}

fn states(tensors: &RaggedTensors) -> States {
    let optional = |tensor: &Option<ImportedTensor>| {
        tensor.as_ref().map_or(TensorReference::default(), |tensor| reference(tensor.view()))
    };
    States {
        indices: optional(&tensors.given_states),
        kv_lengths: optional(&tensors.kv_lengths),
        advance: tensors.advance,
    }
}

fn as_given(step: &StepArguments) -> Step<'_> {
    Step {
        query_lengths: match &step.query_lengths {
            Lengths::Given(lengths) => QueryLengths::Given(lengths),
            Lengths::Tensor(tensor) => QueryLengths::OnDevice(reference(tensor.view())),
        },
        past_lengths: match &step.past_lengths {
            None => PastLengths::OfStates,
            Some(Lengths::Given(lengths)) => PastLengths::Given(lengths),
            Some(Lengths::Tensor(tensor)) => PastLengths::OnDevice(reference(tensor.view())),
        },
        batch: step.batch,
        query_width: step.query_width,
        phase: step.phase,
    }
}
