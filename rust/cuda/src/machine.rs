//! Where launches run: a CUDA device, or the host under the tests' SIMT runtime. Loading and frames are written against
//! this, so that both run the very same launches.

use crate::layout::Address;
use crate::plan::Launch;

/// Memory with addresses, and something that runs kernels on it, in order.
pub trait Machine {
    /// What goes wrong with it.
    type Error;

    /// Copies bytes to an address.
    ///
    /// # Errors
    /// The machine's own.
    ///
    /// # Safety
    /// The addresses from `target` on are the caller's, for as many bytes.
    unsafe fn write(&mut self, target: Address, bytes: &[u8]) -> Result<(), Self::Error>;

    /// Runs a kernel after everything before it.
    ///
    /// # Errors
    /// The machine's own.
    ///
    /// # Safety
    /// The addresses in the launch's arguments are the caller's, for as much as the kernel reads and writes.
    unsafe fn run(&mut self, launch: &Launch) -> Result<(), Self::Error>;
}
