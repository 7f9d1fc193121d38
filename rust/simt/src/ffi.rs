//! Mirrors `runtime/interface.hpp`.

use std::ffi::{c_char, c_void};

#[repr(C)]
pub(crate) struct Kernel {
    pub name: *const c_char,
    pub call: Option<unsafe extern "C" fn(*const c_void)>,
    pub arguments_bytes: usize,
    pub arguments_alignment: usize,
    pub maximum_threads: u32,
}

// SAFETY: the generated table is constant data.
unsafe impl Sync for Kernel {}

#[repr(C)]
pub(crate) struct Request {
    pub kernel: *const Kernel,
    pub arguments: *const c_void,
    pub shared_bytes: u64,
    pub seed: u64,
    pub grid: [u32; 3],
    pub block: u32,
    pub seeded: u32,
}

pub(crate) mod outcome {
    pub const DONE: i32 = 0;
    pub const DEADLOCK: i32 = 1;
    pub const SHARED_OVERRUN: i32 = 3;
    pub const MEMORY_FAULT: i32 = 4;
    pub const STACK_OVERFLOW: i32 = 5;
    pub const TRAP: i32 = 6;
    pub const NO_MEMORY: i32 = 7;
}

#[repr(C)]
pub(crate) struct Report {
    pub outcome: i32,
    pub text: [u8; 8192],
}

unsafe extern "C" {
    pub(crate) fn simt_kernel_files(visit: extern "C" fn(*mut c_void, *const Kernel), visitor: *mut c_void);
    pub(crate) fn simt_launch(request: *const Request, report: *mut Report);
    pub(crate) fn simt_guarded_allocate(bytes: usize) -> *mut u8;
    pub(crate) fn simt_guarded_free(base: *mut u8, bytes: usize);
}
