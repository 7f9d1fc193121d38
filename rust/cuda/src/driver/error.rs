//! What the driver answers when a call fails, in words.

use std::borrow::Cow;
use std::ffi::{CStr, c_char};

use cudarc::driver::sys::{self, CUresult};

/// A call of the driver that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DriverError {
    /// The driver refused, or an earlier piece of work on the device failed.
    #[error("could not {action}: {name} ({code}): {description}")]
    Failed {
        /// What was being done.
        action: Cow<'static, str>,
        /// The driver's name for the error, such as `CUDA_ERROR_INVALID_VALUE`.
        name: String,
        /// The driver's sentence about it.
        description: String,
        /// The driver's number for it.
        code: u32,
    },
    /// Neither the device nor, for pinned memory, the host has as much left.
    #[error("could not allocate {requested} bytes of {kind}; {free} of the device's {total} bytes are free")]
    OutOfMemory {
        /// Bytes asked for.
        requested: usize,
        /// "device memory" or "pinned host memory".
        kind: &'static str,
        /// Bytes of device memory that are free.
        free: usize,
        /// Bytes of device memory there are.
        total: usize,
    },
    /// CUDA does not survive a fork.
    #[error(
        "CUDA was initialized in process {initialized_in}, and this is process {process}, forked from it: \
         start workers with the method \"spawn\" or \"forkserver\""
    )]
    Forked {
        /// The process that initialized CUDA.
        initialized_in: u32,
        /// The process that calls now.
        process: u32,
    },
    /// A launch whose arguments are not what the kernel was compiled to take.
    #[error("kernel {kernel} takes {expected} bytes of arguments, and {found} were given")]
    ArgumentSize {
        /// The kernel.
        kernel: String,
        /// Bytes its one argument has.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// A copy that would leave its memory.
    #[error("{bytes} bytes from offset {offset} are not within the {length} bytes there are")]
    OutOfBounds {
        /// First byte.
        offset: usize,
        /// How many.
        bytes: usize,
        /// Bytes of the memory.
        length: usize,
    },
}

/// The result of a call, with the action named when it failed.
pub(crate) fn check(status: CUresult, action: &'static str) -> Result<(), DriverError> {
    check_with(status, || action.into())
}

/// As [`check`], for an action whose name takes work to write.
pub(crate) fn check_with(
    status: CUresult,
    action: impl FnOnce() -> Cow<'static, str>,
) -> Result<(), DriverError> {
    if status == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let (name, description) = words(status);
    Err(DriverError::Failed { action: action(), name, description, code: status as u32 })
}

/// The driver's name of an error and its sentence about it.
pub(crate) fn words(status: CUresult) -> (String, String) {
    let text = |read: unsafe fn(CUresult, *mut *const c_char) -> CUresult| {
        let mut text = std::ptr::null();
        // SAFETY: both functions write one pointer, and an error exists only where the driver's library is loaded.
        let status = unsafe { read(status, &raw mut text) };
        if status != CUresult::CUDA_SUCCESS || text.is_null() {
            return String::from("unknown");
        }
        // SAFETY: a pointer that the driver gave is to a static, NUL-terminated string.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    };
    (text(sys::cuGetErrorName), text(sys::cuGetErrorString))
}

/// Reports a failure where it cannot be returned: in a destructor.
pub(crate) fn report(result: Result<(), DriverError>) {
    if let Err(error) = result {
        tracing::warn!(%error, "while releasing CUDA resources");
    }
}
