//! Memory that tensors own: zeroed, aligned for vector loads, never resized, freed with its last owner.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use crate::errors::{ErrorClass, Raised};

/// Alignment in bytes: a cache line, and what XLA asks of memory it takes without a copy.
const ALIGNMENT: usize = 64;

/// An allocation. It is only read and written through views, by the rule of [`crate::dlpack`] on shared memory.
#[derive(Debug)]
pub struct Buffer {
    data: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the allocation belongs to the value alone, and no method touches its contents.
unsafe impl Send for Buffer {}
// SAFETY: as for `Send`.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// `bytes` zeros; at least one byte, so that the address is real.
    ///
    /// # Errors
    /// An `OutOfMemoryError` when there is no such memory.
    pub fn zeroed(bytes: usize) -> Result<Self, Raised> {
        let refused =
            || Raised::new(ErrorClass::OutOfMemory, format!("no host memory for a tensor of {bytes} bytes"));
        let layout = Layout::from_size_align(bytes.max(1), ALIGNMENT).map_err(|_| refused())?;
        // SAFETY: the layout has a size of at least 1.
        let data = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(refused)?;
        Ok(Self { data, layout })
    }

    /// Start of the memory.
    pub const fn data(&self) -> *mut u8 {
        self.data.as_ptr()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with this layout, and freed nowhere else.
        unsafe { dealloc(self.data.as_ptr(), self.layout) }
    }
}
