//! What a tensor in device memory, or in pinned memory that a device writes, waits for.

use std::fmt;

use crate::errors::Raised;
use crate::streams::StreamHandle;

/// The work that fills a tensor's memory.
pub trait Producer: fmt::Debug + Send + Sync {
    /// Makes what `stream` is given from now on wait for the work. The host does not wait. The stream lives while the
    /// call does.
    ///
    /// # Errors
    /// When the driver refuses, in a capture that the work is not part of for example.
    fn order_before(&self, stream: StreamHandle) -> Result<(), Raised>;

    /// Waits on the host until the work is done. Called without the GIL.
    ///
    /// # Errors
    /// When the driver refuses, or the work failed.
    fn wait(&self) -> Result<(), Raised>;
}
