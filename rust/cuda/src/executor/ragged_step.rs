//! The layout of a talker's step, given to a stream. It touches nothing of a frame's.

use super::{CudaError, CudaExecutor, Taken};
use crate::driver::{BorrowedStream, Event, launch};
use crate::ragged_step::RaggedStepLaunch;

impl CudaExecutor {
    /// Gives the launch to a stream. On one under capture it is recorded instead. `done` marks its end, unless it was
    /// recorded.
    ///
    /// # Errors
    /// The driver's; nothing is published then.
    ///
    /// # Safety
    /// The addresses in the launch are of as much memory as its configuration and step say, until it has completed, or for
    /// as long as the recorded graph is launched. The stream is of this executor's context.
    pub unsafe fn launch_ragged_step(
        &self,
        work: &RaggedStepLaunch,
        stream: &BorrowedStream,
        done: &Event,
    ) -> Result<Taken, CudaError> {
        let entered = self.context.enter()?;
        let is_recorded = stream.is_capturing(&entered)?;
        let function = self.registry.function(RaggedStepLaunch::KERNEL);
        // SAFETY: the caller's condition.
        unsafe { launch(&entered, stream, function, &RaggedStepLaunch::SHAPE, work.arguments()) }?;
        if is_recorded {
            return Ok(Taken::Recorded);
        }
        done.record(&entered, stream)?;
        Ok(Taken::Launched)
    }
}
