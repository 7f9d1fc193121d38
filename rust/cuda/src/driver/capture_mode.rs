//! Keeps our calls from breaking a capture that is not ours.
//!
//! torch captures in global mode: while it does, an allocation, a release or a query on *any* thread that has not asked
//! otherwise is refused and spoils the capture. Such calls of ours touch no stream under capture, so they ask otherwise.

use cudarc::driver::sys::{self, CUresult, CUstreamCaptureMode};

/// While it lives, calls of this thread neither break a capture nor are refused for one.
pub(super) struct RelaxedCaptureMode {
    previous: Option<CUstreamCaptureMode>,
}

impl RelaxedCaptureMode {
    pub(super) fn enter() -> Self {
        Self { previous: exchange(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED) }
    }
}

impl Drop for RelaxedCaptureMode {
    fn drop(&mut self) {
        if let Some(previous) = self.previous {
            exchange(previous);
        }
    }
}

/// Sets the thread's mode and returns the one before; `None` when the driver refused, and nothing has changed.
fn exchange(mut mode: CUstreamCaptureMode) -> Option<CUstreamCaptureMode> {
    // SAFETY: only the owners of this boundary's objects come here, so the driver is initialized; the call reads and writes
    // one mode.
    let status = unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut mode) };
    (status == CUresult::CUDA_SUCCESS).then_some(mode)
}
