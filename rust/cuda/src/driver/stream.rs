//! Streams: our own, and those that callers lend.

use std::ops::Deref;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUresult, CUstream, CUstreamCaptureStatus};

use super::capture_mode::RelaxedCaptureMode;
use super::context::{Context, Entered, release};
use super::error::{DriverError, check};
use super::event::Event;

/// A stream that somebody else owns, or the default stream: it is never destroyed from here.
#[derive(Debug)]
pub struct BorrowedStream {
    context: Arc<Context>,
    handle: CUstream,
}

// SAFETY: a stream may be used by every thread; the driver locks what must be locked.
unsafe impl Send for BorrowedStream {}
// SAFETY: as above.
unsafe impl Sync for BorrowedStream {}

impl BorrowedStream {
    /// A stream by its handle, as `torch.cuda.Stream.cuda_stream` gives it: 0 or 1 is the legacy default stream, 2 the
    /// thread's own default stream.
    ///
    /// # Safety
    /// A handle above 2 is that of a live stream of this context, and stays so while this value is used.
    pub unsafe fn from_handle(context: &Arc<Context>, handle: u64) -> Self {
        Self { context: Arc::clone(context), handle: handle as usize as CUstream }
    }

    /// The context it is used in.
    pub const fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// The handle as callers know it.
    pub fn address(&self) -> u64 {
        self.handle as u64
    }

    /// Whether the stream was made in the context that it is used in. A default stream is in every context.
    pub fn is_of_its_context(&self, _: &Entered<'_>) -> Result<bool, DriverError> {
        if self.address() <= 2 {
            return Ok(true);
        }
        let mut context = std::ptr::null_mut();
        // SAFETY: the stream lives; the call writes one handle.
        let status = unsafe { sys::cuStreamGetCtx(self.handle, &raw mut context) };
        check(status, "ask which context a stream is of")?;
        Ok(context == self.context.handle())
    }

    /// Whether work given to the stream is recorded into a graph rather than run.
    pub fn is_capturing(&self, _: &Entered<'_>) -> Result<bool, DriverError> {
        let mut state = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: a context is current and the stream lives; the call writes one value.
        let status = unsafe { sys::cuStreamIsCapturing(self.handle, &raw mut state) };
        check(status, "ask whether a stream is captured")?;
        Ok(state != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }

    /// Lets what is given to the stream from now on wait for what the event was recorded after.
    pub fn wait_for(&self, _: &Entered<'_>, event: &Event) -> Result<(), DriverError> {
        // SAFETY: a context is current; stream and event live.
        let status = unsafe { sys::cuStreamWaitEvent(self.handle, event.handle(), 0) };
        check(status, "let a stream wait for an event")
    }

    /// Whether everything given to the stream has completed.
    pub fn is_idle(&self, _: &Entered<'_>) -> Result<bool, DriverError> {
        let _mode = RelaxedCaptureMode::enter();
        // SAFETY: a context is current and the stream lives.
        match unsafe { sys::cuStreamQuery(self.handle) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            status => check(status, "ask whether a stream is idle").map(|()| true),
        }
    }

    /// Waits until everything given to the stream has completed.
    pub fn synchronize(&self, _: &Entered<'_>) -> Result<(), DriverError> {
        let _mode = RelaxedCaptureMode::enter();
        // SAFETY: a context is current and the stream lives.
        check(unsafe { sys::cuStreamSynchronize(self.handle) }, "wait for a stream")
    }

    pub(super) const fn handle(&self) -> CUstream {
        self.handle
    }
}

/// A stream of our own. It does not wait for the legacy default stream, nor that for it.
#[derive(Debug)]
pub struct OwnedStream(BorrowedStream);

impl OwnedStream {
    /// Makes a stream.
    pub fn create(entered: &Entered<'_>) -> Result<Self, DriverError> {
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        let _mode = RelaxedCaptureMode::enter();
        let mut handle = std::ptr::null_mut();
        // SAFETY: a context is current; the call writes one handle.
        check(unsafe { sys::cuStreamCreate(&raw mut handle, flags) }, "make a stream")?;
        Ok(Self(BorrowedStream { context: Arc::clone(entered.context()), handle }))
    }
}

impl Deref for OwnedStream {
    type Target = BorrowedStream;

    fn deref(&self) -> &BorrowedStream {
        &self.0
    }
}

impl Drop for OwnedStream {
    fn drop(&mut self) {
        let handle = self.0.handle;
        // SAFETY: `create` made it, and this is its only owner. Work that is queued still completes.
        release(&self.0.context, "destroy a stream", || unsafe { sys::cuStreamDestroy_v2(handle) });
    }
}
