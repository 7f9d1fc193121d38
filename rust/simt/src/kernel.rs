//! The table of kernels that the build found.

use std::ffi::{CStr, c_void};
use std::sync::OnceLock;

use crate::ffi;

/// A kernel compiled for the host.
#[derive(Clone, Copy)]
pub struct KernelFunction(pub(crate) &'static ffi::Kernel);

impl KernelFunction {
    /// The kernel's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        // SAFETY: an entry's name is a string literal of the generated C++; the end of a table is never wrapped.
        let name = unsafe { CStr::from_ptr(self.0.name) };
        name.to_str().unwrap_or_default()
    }

    /// The size of its argument structure, in bytes.
    #[must_use]
    pub fn arguments_bytes(self) -> usize {
        self.0.arguments_bytes
    }

    /// The largest block it may be launched with, in threads.
    #[must_use]
    pub fn maximum_threads(self) -> u32 {
        self.0.maximum_threads
    }
}

impl std::fmt::Debug for KernelFunction {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("KernelFunction").field(&self.name()).finish()
    }
}

/// All kernels, in the order of their files.
pub fn kernels() -> &'static [KernelFunction] {
    static KERNELS: OnceLock<Vec<KernelFunction>> = OnceLock::new();
    KERNELS.get_or_init(|| {
        let mut found: Vec<KernelFunction> = Vec::new();
        // SAFETY: `visit` gets back the pointer given here, which outlives the call.
        unsafe { ffi::simt_kernel_files(visit, (&raw mut found).cast()) };
        found
    })
}

extern "C" fn visit(visitor: *mut c_void, table: *const ffi::Kernel) {
    // SAFETY: `kernels` passes its vector as visitor; a table is constant data that ends with an entry without name.
    unsafe {
        let found = &mut *visitor.cast::<Vec<KernelFunction>>();
        let mut entry = table;
        while !(*entry).name.is_null() {
            found.push(KernelFunction(&*entry));
            entry = entry.add(1);
        }
    }
}

/// The kernel of that name.
#[must_use]
pub fn kernel(name: &str) -> Option<KernelFunction> {
    kernels().iter().copied().find(|kernel| kernel.name() == name)
}
