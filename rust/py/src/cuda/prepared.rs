//! `CudaPreparedFrame`: a frame whose tensors were imported and checked once. A launch looks at none of them again, except
//! for parameters that the host holds.

use std::sync::{Arc, Mutex, TryLockError};

use overtone_cuda::frame::FrameBlock;
use pyo3::prelude::*;

use super::block::{
    OutputReferences, Recordable, SharedTable, advance_host_index, check_advance, frame_block,
    read_host_values,
};
use super::completion::Completion;
use super::output_pool::OutputBlock;
use super::predicted::{DeviceOutputs, reusable_outputs, with_completion};
use super::retired::Owner;
use super::shared::{Reusable, Shared, State};
use crate::dlpack::import::ImportedTensor;
use crate::executor::lock;
use crate::frame::arguments::FrameArguments;
use crate::frame::outputs::{OutputKind, Outputs};
use crate::frame::site::Site;
use crate::frame::{FrameInputs, FrameTargets, awaited_streams, no_code_zero_table, refuse_overlaps};
use crate::streams::StreamHandle;
use crate::tensor::producer::Producer;

/// What a frame reads and writes.
#[derive(Debug)]
struct Held {
    inputs: FrameInputs,
    targets: FrameTargets,
    table: SharedTable,
    _block: Arc<OutputBlock>,
}

impl Held {
    fn tensors(&self) -> impl Iterator<Item = &ImportedTensor> {
        self.inputs.tensors().chain(self.targets.tensors()).chain(&self.table.lent)
    }
}

/// What launches change.
#[derive(Debug)]
struct Launches {
    block: FrameBlock,
    /// A stream known to be of the executor's device.
    checked_stream: StreamHandle,
    /// The arena known to be apart from the frame's tensors.
    checked_arena: Option<u64>,
}

/// A frame whose tensors were imported and checked.
#[pyclass(frozen, module = "overtone._core")]
#[derive(Debug)]
pub struct CudaPreparedFrame {
    shared: Arc<Shared>,
    held: Arc<Held>,
    recordable: Recordable,
    reads_host: bool,
    completion: Arc<Completion>,
    outputs: Outputs,
    launches: Mutex<Launches>,
}

#[pymethods]
impl CudaPreparedFrame {
    /// Gives the frame to a stream.
    #[pyo3(signature = (stream = None))]
    fn launch(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        self.launch_on(py, self.shared.stream(py, stream)?)
    }

    /// Codes, `codec_sum`, `codec_hiddens`, status, logits and completion.
    fn outputs(&self, py: Python<'_>) -> DeviceOutputs {
        with_completion(self.outputs.share(py), Arc::clone(&self.completion))
    }
}

impl CudaPreparedFrame {
    /// Imports and checks everything a frame touches, for use on `stream`.
    ///
    /// # Errors
    /// An `InputError` that names the argument; a `BindingError` when there is no talker's codec table.
    pub fn new(
        py: Python<'_>,
        shared: Arc<Shared>,
        arguments: &FrameArguments<'_>,
        stream: StreamHandle,
    ) -> PyResult<Self> {
        let entered = shared.enter()?;
        shared.release_completed(&entered);
        let binding = lock(&shared.binding).clone();
        let table = binding.code_zero_table.ok_or_else(no_code_zero_table)?;
        let site = Site::Cuda { index: shared.index(), stream };
        let inputs = FrameInputs::new(site, &shared.spec, shared.max_batch, arguments)?;
        check_advance(&inputs)?;
        let kind =
            OutputKind { batch: inputs.batch, hidden_type: inputs.hidden_type, logits: arguments.logits };
        let reused = shared.reused.get(kind, || reusable_outputs(py, &shared, &entered, kind))?;
        let (made, Reusable { completion, block }) = &*reused;
        let (batch, spec) = (inputs.batch, &shared.spec);
        let targets = FrameTargets::new(py, site, spec, arguments, batch, made, binding.codec_hiddens)?;
        refuse_overlaps(&inputs, &targets, table.lent.as_ref())?;
        let borrowed = shared.borrowed(stream);
        shared.check_stream(&entered, &borrowed)?;
        // A graph cannot wait for what is done outside of it: whoever launches it does.
        if !shared.is_capturing(&entered, &borrowed)? {
            let awaited = awaited_streams(inputs.tensors().chain(targets.tensors()));
            shared.await_streams(&entered, &awaited, &borrowed)?;
        }

        let producer = Arc::clone(completion) as Arc<dyn Producer>;
        let outputs = made.share(py).of_targets(py, &targets, Some(&producer))?;
        let block_of_frame = frame_block(&inputs, &OutputReferences::of_targets(&targets), &table);
        let held = Held { inputs, targets, table, _block: Arc::clone(block) };
        drop(entered);
        Ok(Self {
            recordable: Recordable::new(&held.inputs),
            reads_host: reads_host(&held.inputs),
            completion: Arc::clone(completion),
            held: Arc::new(held),
            outputs,
            launches: Mutex::new(Launches {
                block: block_of_frame,
                checked_stream: stream,
                checked_arena: None,
            }),
            shared,
        })
    }

    /// Gives the frame to a stream.
    ///
    /// # Errors
    /// An `InputError` for a host value out of range, a `CaptureError`, or the device's.
    pub fn launch_on(&self, py: Python<'_>, stream: StreamHandle) -> PyResult<()> {
        let shared = &self.shared;
        let entered = shared.enter()?;
        let borrowed = shared.borrowed(stream);
        let mut launches = match self.launches.try_lock() {
            Ok(launches) => launches,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Another thread launches this very frame, and may be waiting for the executor without the GIL.
            Err(TryLockError::WouldBlock) => {
                py.detach(|| drop(lock(&self.launches)));
                return self.launch_on(py, stream);
            }
        };
        if launches.checked_stream != stream {
            shared.check_stream(&entered, &borrowed)?;
            launches.checked_stream = stream;
        }
        if !self.recordable.is_recordable() && shared.is_capturing(&entered, &borrowed)? {
            self.recordable.check()?;
        }
        if self.reads_host {
            read_host_values(&self.held.inputs, &mut launches.block.rows)?;
        }
        let Launches { block, checked_arena, .. } = &mut *launches;
        let check = |state: &State| {
            if *checked_arena != Some(state.arena_version) {
                state.refuse_overlap(self.held.tensors())?;
                *checked_arena = Some(state.arena_version);
            }
            Ok(())
        };
        let owner = || Arc::clone(&self.held) as Owner;
        // SAFETY: `held` owns all tensors of the block. It is kept by this value and, when that goes, until the last launch has
        // completed; for ever when the frame is recorded.
        let mark = unsafe { shared.launch(py, &entered, block, &borrowed, owner, check) }?;
        advance_host_index(&self.held.inputs, &mut launches.block.rows)?;
        match mark {
            Some(mark) => self.completion.launched(mark),
            None => self.completion.recorded(),
        }
        Ok(())
    }
}

impl Drop for CudaPreparedFrame {
    fn drop(&mut self) {
        if let Some(mark) = self.completion.mark() {
            self.shared.retire(mark, Arc::clone(&self.held) as Owner);
        }
    }
}

/// Whether the host has values to read before each launch.
fn reads_host(inputs: &FrameInputs) -> bool {
    inputs.tensors().any(|tensor| tensor.device().is_host())
}
