//! [`Completion`]: whether a frame has completed, for Python, for the consumers of its tensors, and for their readers.

use std::sync::{Arc, Mutex};

use overtone_cuda::driver::{BorrowedStream, Context};
use pyo3::prelude::*;

use super::events::Mark;
use crate::causes::cuda_error;
use crate::enter::enter;
use crate::errors::{ErrorClass, Raised};
use crate::executor::lock;
use crate::streams::StreamHandle;
use crate::tensor::producer::Producer;

/// What the latest frame into some outputs is doing.
#[derive(Clone, Debug, Default)]
enum Latest {
    /// There was none.
    #[default]
    None,
    /// It was launched; the mark is its end.
    Launched(Arc<Mark>),
    /// It was recorded into a caller's graph, whose launches nobody announces.
    Recorded,
}

/// The work that fills one frame's outputs, or the newest of the frames that reuse them.
#[derive(Debug)]
pub struct Completion {
    context: Arc<Context>,
    latest: Mutex<Latest>,
}

impl Completion {
    /// Of outputs that no frame has been given yet.
    pub fn new(context: &Arc<Context>) -> Self {
        Self { context: Arc::clone(context), latest: Mutex::default() }
    }

    /// A frame into the outputs was launched.
    pub fn launched(&self, mark: Arc<Mark>) {
        let replaced = std::mem::replace(&mut *lock(&self.latest), Latest::Launched(mark));
        drop(replaced);
    }

    /// A frame into the outputs was recorded.
    pub fn recorded(&self) {
        *lock(&self.latest) = Latest::Recorded;
    }

    /// The end of the latest frame; `None` when there was none, or it was recorded.
    pub fn mark(&self) -> Option<Arc<Mark>> {
        match &*lock(&self.latest) {
            Latest::Launched(mark) => Some(Arc::clone(mark)),
            Latest::None | Latest::Recorded => None,
        }
    }

    /// The mark to ask, for a caller that means this very frame.
    fn launched_mark(&self) -> Result<Option<Arc<Mark>>, Raised> {
        match &*lock(&self.latest) {
            Latest::None => Ok(None),
            Latest::Launched(mark) => Ok(Some(Arc::clone(mark))),
            Latest::Recorded => Err(Raised::new(
                ErrorClass::Capture,
                "the frame was recorded into a graph, and overtone does not see when that is launched: wait for the \
                 stream that it is launched on",
            )),
        }
    }

    fn is_complete(&self) -> Result<bool, Raised> {
        let Some(mark) = self.launched_mark()? else { return Ok(true) };
        let ask = || mark.event().is_complete(&self.context.enter()?);
        ask().map_err(|error| cuda_error(&error))
    }

    fn wait_for_frame(&self) -> Result<(), Raised> {
        let Some(mark) = self.launched_mark()? else { return Ok(()) };
        let wait = || mark.event().synchronize(&self.context.enter()?);
        wait().map_err(|error| cuda_error(&error))
    }
}

impl Producer for Completion {
    /// A recorded frame's graph is launched by whoever reads its outputs, and so is in order with the consumer.
    fn order_before(&self, stream: StreamHandle) -> Result<(), Raised> {
        let Some(mark) = self.mark() else { return Ok(()) };
        let order = || {
            let entered = self.context.enter()?;
            // SAFETY: a consumer's stream lives while its call does.
            let stream = unsafe { BorrowedStream::from_handle(&self.context, stream.handle()) };
            if !stream.is_capturing(&entered)? {
                return stream.wait_for(&entered, mark.event()).map(|()| true);
            }
            // A graph cannot wait for what was done outside of it.
            mark.event().is_complete(&entered)
        };
        match order().map_err(|error| cuda_error(&error))? {
            true => Ok(()),
            false => Err(Raised::new(
                ErrorClass::Capture,
                "the stream is under capture, and the frame was launched outside of it: wait for the frame first",
            )),
        }
    }

    /// Outputs of a recorded frame are read after everything that the device was given: whatever launched the graph last is
    /// among it.
    fn wait(&self) -> Result<(), Raised> {
        if matches!(*lock(&self.latest), Latest::Recorded) {
            let wait = || self.context.enter()?.synchronize();
            return wait().map_err(|error| cuda_error(&error));
        }
        self.wait_for_frame()
    }
}

/// What `overtone.Frame` asks.
#[pyclass(frozen, module = "overtone._core", name = "Completion")]
#[derive(Debug)]
pub struct PyCompletion(pub Arc<Completion>);

#[pymethods]
impl PyCompletion {
    fn ready(&self) -> PyResult<bool> {
        Ok(self.0.is_complete()?)
    }

    fn wait(&self, py: Python<'_>) -> PyResult<()> {
        enter(py, || self.0.wait_for_frame())
    }
}
