//! A loaded CUDA executor, and the one way to give it a frame.
//!
//! Frames are launched with the GIL held: it takes microseconds. Whoever finds the executor busy, with its memory being set
//! or a table being bound, waits without the GIL. Nothing of Python's is made or let go of under a lock, because that may
//! run Python code.

use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use overtone_core::spec::ModelSpec;
use overtone_core::tensor::FloatType;
use overtone_cuda::driver::{BorrowedStream, Context, DriverError, Entered};
use overtone_cuda::executor::{CudaExecutor as Engine, Taken};
use overtone_cuda::frame::FrameBlock;
use overtone_cuda::ragged_step::RaggedStepLaunch;
use pyo3::prelude::*;

use super::block::SharedTable;
use super::completion::Completion;
use super::events::{Events, Mark};
use super::output_pool::{OutputBlock, OutputPool};
use super::retired::{Owner, Retired};
use crate::causes::cuda_error;
use crate::dlpack::device::Device;
use crate::dlpack::import::ImportedTensor;
use crate::errors::Raised;
use crate::executor::lock;
use crate::frame::outputs::ReusedOutputs;
use crate::frame::refuse_overlap;
use crate::speculation::log_switched_off;
use crate::streams::{StreamHandle, stream_argument};

/// A loaded executor, and what its frames need besides.
#[derive(Debug)]
pub struct Shared {
    /// The architecture.
    pub spec: ModelSpec,
    /// The working type.
    pub float_type: FloatType,
    /// Storage type of the codec tables, and so of `codec_hiddens`.
    pub table_type: FloatType,
    /// Largest number of rows of one frame.
    pub max_batch: usize,
    /// Bytes of weights that a frame reads.
    pub frame_bytes: u64,
    /// Bytes of the arena that frames work in.
    pub context_bytes: usize,
    /// The context that everything lives in.
    pub context: Arc<Context>,
    /// Where outputs of frames live.
    pub pool: Arc<OutputPool>,
    /// Outputs of the frames that reuse theirs.
    pub reused: ReusedOutputs<Reusable>,
    /// E0 of the checkpoint.
    pub loaded_code_zero_table: Option<SharedTable>,
    /// What a talker lent.
    pub binding: Mutex<Binding>,
    events: Arc<Events>,
    state: Mutex<State>,
    retired: Mutex<Retired>,
}

/// What belongs to outputs that frames reuse.
#[derive(Clone, Debug)]
pub struct Reusable {
    /// Of the newest of those frames.
    pub completion: Arc<Completion>,
    /// Their memory.
    pub block: Arc<OutputBlock>,
}

/// A talker's tensors.
#[derive(Clone, Debug, Default)]
pub struct Binding {
    /// E0 in use: the checkpoint's, or the one that the talker bound.
    pub code_zero_table: Option<SharedTable>,
    /// [rows, C, Ht].
    pub codec_hiddens: Option<Arc<ImportedTensor>>,
}

/// What frames change.
#[derive(Debug)]
pub struct State {
    /// The executor.
    pub engine: Engine,
    /// A talker's arena, when frames work in one.
    pub lent: Option<Arc<ImportedTensor>>,
    /// How often the arena was set.
    pub arena_version: u64,
    /// Whether it was said that speculation is off.
    told_off: bool,
    /// The end of the frame launched last.
    last: Option<Arc<Mark>>,
    /// Owners of the memory that recorded frames use, for as long as graphs may be launched.
    recorded: Vec<Owner>,
}

impl State {
    /// Refuses an arena that shares memory with a frame's tensors.
    ///
    /// # Errors
    /// An `InputError` that names both.
    pub fn refuse_overlap<'a>(
        &self,
        tensors: impl Iterator<Item = &'a ImportedTensor>,
    ) -> Result<(), Raised> {
        self.lent.as_ref().map_or(Ok(()), |memory| refuse_overlap(memory, tensors))
    }
}

impl Shared {
    /// A loaded executor without a talker's tensors.
    pub fn new(
        engine: Engine,
        float_type: FloatType,
        max_batch: usize,
        frame_bytes: u64,
        context_bytes: usize,
        code_zero_table: Option<SharedTable>,
    ) -> Self {
        let table_type = engine.codec_table(0).map_or(float_type, |(table, _)| table.float_type);
        Self {
            spec: engine.spec().clone(),
            float_type,
            table_type,
            max_batch,
            frame_bytes,
            context_bytes,
            context: Arc::clone(engine.context()),
            pool: Arc::default(),
            reused: ReusedOutputs::default(),
            binding: Mutex::new(Binding { code_zero_table: code_zero_table.clone(), codec_hiddens: None }),
            loaded_code_zero_table: code_zero_table,
            events: Arc::default(),
            state: Mutex::new(State {
                engine,
                lent: None,
                arena_version: 0,
                told_off: false,
                last: None,
                recorded: Vec::new(),
            }),
            retired: Mutex::default(),
        }
    }

    /// The device's ordinal.
    pub fn index(&self) -> i32 {
        self.context.device().ordinal() as i32
    }

    /// The device.
    pub fn device(&self) -> Device {
        Device::cuda(self.index())
    }

    /// The stream that a call's argument means.
    ///
    /// # Errors
    /// An `InputError` for something else.
    pub fn stream(&self, py: Python<'_>, argument: Option<&Bound<'_, PyAny>>) -> PyResult<StreamHandle> {
        stream_argument(py, argument, self.index())
    }

    /// The stream, to give work to.
    pub fn borrowed(&self, stream: StreamHandle) -> BorrowedStream {
        // SAFETY: a stream that a caller names lives as long as its call, and no value made here outlives the call.
        unsafe { BorrowedStream::from_handle(&self.context, stream.handle()) }
    }

    /// Makes the context current until the guard is dropped.
    ///
    /// # Errors
    /// A `DeviceError` in a process forked after CUDA was initialized.
    pub fn enter(&self) -> Result<Entered<'_>, Raised> {
        self.context.enter().map_err(|error| cuda_error(&error))
    }

    /// Checks that a stream is of this executor's device.
    ///
    /// # Errors
    /// An `InputError` for another device's.
    pub fn check_stream(&self, entered: &Entered<'_>, stream: &BorrowedStream) -> Result<(), Raised> {
        if stream.is_of_its_context(entered).map_err(|error| cuda_error(&error))? {
            return Ok(());
        }
        let expected = format!("a stream of cuda:{}", self.index());
        Err(Raised::input(format!("stream: found one of another device, expected {expected}"))
            .key("stream")
            .found("a stream of another device")
            .expected(expected))
    }

    /// Makes `stream` wait for what `awaited` were given so far.
    ///
    /// # Errors
    /// A `DeviceError` when the driver refuses.
    pub fn await_streams(
        &self,
        entered: &Entered<'_>,
        awaited: &[StreamHandle],
        stream: &BorrowedStream,
    ) -> Result<(), Raised> {
        let wait = |handle: &StreamHandle| {
            let mark = self.events.take(entered)?;
            mark.event().record(entered, &self.borrowed(*handle))?;
            stream.wait_for(entered, mark.event())
        };
        awaited.iter().try_for_each(wait).map_err(|error| cuda_error(&error))
    }

    /// A block for outputs, which a frame on the stream may write. The stream is not under capture.
    ///
    /// # Errors
    /// An `OutOfMemoryError` or a `DeviceError`.
    pub fn take_block(
        &self,
        entered: &Entered<'_>,
        bytes: usize,
        stream: StreamHandle,
    ) -> Result<OutputBlock, Raised> {
        let take = || {
            let (block, awaited) = self.pool.take(entered, bytes, stream)?;
            if let Some(last) = awaited {
                self.borrowed(stream).wait_for(entered, last.mark.event())?;
            }
            Ok(block)
        };
        take().map_err(|error: DriverError| cuda_error(&error))
    }

    /// A block that nobody has used.
    ///
    /// # Errors
    /// An `OutOfMemoryError` or a `DeviceError`.
    pub fn make_block(&self, entered: &Entered<'_>, bytes: usize) -> Result<OutputBlock, Raised> {
        self.pool.make(entered, bytes).map_err(|error| cuda_error(&error))
    }

    /// Runs `work` on the executor. When it is busy, waits without the GIL.
    pub fn with_state<T: Send>(&self, py: Python<'_>, work: impl FnOnce(&mut State) -> T + Send) -> T {
        match self.state.try_lock() {
            Ok(mut state) => work(&mut state),
            Err(TryLockError::Poisoned(poisoned)) => work(&mut poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {
                py.detach(|| work(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner)))
            }
        }
    }

    /// Runs `work` on the executor, in a thread that does not hold the GIL.
    pub fn with_state_here<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut lock(&self.state))
    }

    /// Waits until everything that the stream was given has completed. Called without the GIL.
    ///
    /// # Errors
    /// A `DeviceError` when the driver refuses.
    pub fn wait_for_stream(&self, stream: StreamHandle) -> Result<(), Raised> {
        let entered = self.enter()?;
        self.borrowed(stream).synchronize(&entered).map_err(|error| cuda_error(&error))
    }

    /// Whether the stream is under capture.
    ///
    /// # Errors
    /// A `DeviceError` when the driver refuses.
    pub fn is_capturing(&self, entered: &Entered<'_>, stream: &BorrowedStream) -> Result<bool, Raised> {
        stream.is_capturing(entered).map_err(|error| cuda_error(&error))
    }

    /// Gives a frame to a stream. `Some` is its end; `None` when it was recorded, and `owner` is kept for ever.
    ///
    /// # Errors
    /// Those of `check`, a `DeviceError` when the driver refuses; nothing has happened then.
    ///
    /// # Safety
    /// The tensors in `frame` stay where they are until it has completed.
    pub unsafe fn launch(
        &self,
        py: Python<'_>,
        entered: &Entered<'_>,
        frame: &FrameBlock,
        stream: &BorrowedStream,
        owner: impl FnOnce() -> Owner + Send,
        check: impl FnOnce(&State) -> Result<(), Raised> + Send,
    ) -> Result<Option<Arc<Mark>>, Raised> {
        let mark = self.events.take(entered).map_err(|error| cuda_error(&error))?;
        let (taken, switched_off, _replaced) = self.with_state(py, |state| {
            check(state)?;
            // SAFETY: the caller's condition; the stream was checked to be of the executor's context.
            let taken = unsafe { state.engine.launch(frame, stream, mark.event()) }?;
            let switched_off = state.engine.off_switch().filter(|_| !state.told_off).cloned();
            state.told_off |= switched_off.is_some();
            match taken {
                Taken::Launched => Ok((taken, switched_off, state.last.replace(Arc::clone(&mark)))),
                Taken::Recorded => {
                    state.recorded.push(owner());
                    Ok::<_, Raised>((taken, switched_off, None))
                }
            }
        })?;
        if let Some(switch) = switched_off {
            log_switched_off(py, &switch);
        }
        Ok((taken == Taken::Launched).then_some(mark))
    }

    /// Gives the layout of a step to a stream. `Some` is its end; `None` when it was recorded, and `owner` is kept for ever.
    ///
    /// # Errors
    /// A `DeviceError` when the driver refuses; nothing has happened then.
    ///
    /// # Safety
    /// What the launch reads and writes stays where it is until it has completed.
    pub unsafe fn launch_ragged_step(
        &self,
        py: Python<'_>,
        entered: &Entered<'_>,
        work: &RaggedStepLaunch,
        stream: &BorrowedStream,
        owner: Owner,
    ) -> Result<Option<Arc<Mark>>, Raised> {
        let mark = self.events.take(entered).map_err(|error| cuda_error(&error))?;
        let taken = self.with_state(py, |state| {
            // SAFETY: the caller's condition; the stream was checked to be of the executor's context.
            let taken = unsafe { state.engine.launch_ragged_step(work, stream, mark.event()) }?;
            if taken == Taken::Recorded {
                state.recorded.push(Arc::clone(&owner));
            }
            Ok::<_, Raised>(taken)
        })?;
        if taken == Taken::Recorded {
            return Ok(None);
        }
        self.retire(Arc::clone(&mark), owner);
        Ok(Some(mark))
    }

    /// Keeps `owner` until the frame that `mark` ends has completed.
    pub fn retire(&self, mark: Arc<Mark>, owner: Owner) {
        lock(&self.retired).push(mark, owner);
    }

    /// Keeps `owner` until the frames launched so far have completed.
    pub fn retire_after_last(&self, py: Python<'_>, owner: Owner) {
        match self.with_state(py, |state| state.last.clone()) {
            Some(mark) => self.retire(mark, owner),
            None => drop(owner),
        }
    }

    /// Lets go of what completed frames used.
    pub fn release_completed(&self, entered: &Entered<'_>) {
        let completed = lock(&self.retired).completed(entered);
        drop(completed);
    }

    /// The end of the frame launched last.
    pub fn last(&self, py: Python<'_>) -> Option<Arc<Mark>> {
        self.with_state(py, |state| state.last.clone())
    }

    /// E0, for frames prepared now.
    pub fn code_zero_table(&self) -> Option<SharedTable> {
        lock(&self.binding).code_zero_table.clone()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.pool.close();
    }
}
