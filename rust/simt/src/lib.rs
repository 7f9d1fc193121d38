//! The CUDA kernels as host code: the very same `kernels/*.cu`, compiled by the C++ compiler under `include/simt.hpp`, one
//! fiber per CUDA thread, the whole grid resident. Development only: this is how `cargo test` runs the kernels without a GPU.
//!
//! Here are the table of kernels and [`mod@launch`]. What kernels compute is checked by the tests in `tests/`; what memory
//! ordering between blocks they rely on can't be seen here, since everything in a launch runs on the calling OS thread.
//!
//! Each launch poisons every block's shared memory with 0xFF bytes (NaN), ends it at an inaccessible page, and reports as a
//! [`LaunchError`] what would hang or be undefined on the device: deadlocks, misused collectives, faults.

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!(
    "overtone-simt runs on x86-64 Linux only: its context switch is written for that calling convention"
);

mod error;
mod ffi;
mod guarded;
mod kernel;
mod launch;

pub use error::LaunchError;
pub use guarded::GuardedBuffer;
pub use kernel::{KernelFunction, kernel, kernels};
pub use launch::{MAX_SHARED_BYTES, MAX_THREADS, Schedule, launch};
