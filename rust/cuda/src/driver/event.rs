//! Events: marks between pieces of a stream's work.

use std::sync::Arc;

use cudarc::driver::sys::{self, CUevent, CUevent_flags, CUresult};

use super::capture_mode::RelaxedCaptureMode;
use super::context::{Context, Entered, release};
use super::error::{DriverError, check};
use super::stream::BorrowedStream;

/// An event of our own, destroyed when dropped.
#[derive(Debug)]
pub struct Event {
    context: Arc<Context>,
    handle: CUevent,
}

// SAFETY: an event may be used by every thread; the driver locks what must be locked.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// An event for order alone: the cheapest kind.
    pub fn create(entered: &Entered<'_>) -> Result<Self, DriverError> {
        Self::with_flags(entered, CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    /// An event that notes the time, for measuring.
    pub fn create_timed(entered: &Entered<'_>) -> Result<Self, DriverError> {
        Self::with_flags(entered, CUevent_flags::CU_EVENT_DEFAULT)
    }

    fn with_flags(entered: &Entered<'_>, flags: CUevent_flags) -> Result<Self, DriverError> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: a context is current; the call writes one handle.
        check(unsafe { sys::cuEventCreate(&raw mut handle, flags as u32) }, "make an event")?;
        Ok(Self { context: Arc::clone(entered.context()), handle })
    }

    /// Marks what the stream was given so far.
    pub fn record(&self, _: &Entered<'_>, stream: &BorrowedStream) -> Result<(), DriverError> {
        // SAFETY: a context is current; event and stream live.
        check(unsafe { sys::cuEventRecord(self.handle, stream.handle()) }, "record an event")
    }

    /// Whether what it marks has completed. An event that marks nothing has.
    pub fn is_complete(&self, _: &Entered<'_>) -> Result<bool, DriverError> {
        let _mode = RelaxedCaptureMode::enter();
        // SAFETY: a context is current and the event lives.
        match unsafe { sys::cuEventQuery(self.handle) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            status => check(status, "ask whether an event has come").map(|()| true),
        }
    }

    /// Waits until what it marks has completed.
    pub fn synchronize(&self, _: &Entered<'_>) -> Result<(), DriverError> {
        let _mode = RelaxedCaptureMode::enter();
        // SAFETY: a context is current and the event lives.
        check(unsafe { sys::cuEventSynchronize(self.handle) }, "wait for an event")
    }

    /// Milliseconds from `earlier` to this event. Both are timed, and have completed.
    pub fn milliseconds_since(&self, _: &Entered<'_>, earlier: &Self) -> Result<f32, DriverError> {
        let mut milliseconds = 0.0;
        // SAFETY: a context is current and both events live; the call writes one number.
        let status =
            unsafe { sys::cuEventElapsedTime_v2(&raw mut milliseconds, earlier.handle, self.handle) };
        check(status, "measure the time between two events")?;
        Ok(milliseconds)
    }

    pub(super) const fn handle(&self) -> CUevent {
        self.handle
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let handle = self.handle;
        // SAFETY: `with_flags` made it, and this is its only owner. The driver keeps it for what still waits for it.
        release(&self.context, "destroy an event", || unsafe { sys::cuEventDestroy_v2(handle) });
    }
}
