//! Device memory and pinned host memory, and copies between them.
//!
//! Addresses go to kernels as plain integers; what lies where is the layout's business. Nothing here runs while frames do.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUresult};

use super::capture_mode::RelaxedCaptureMode;
use super::context::{Context, Entered, release};
use super::error::{DriverError, check};
use super::stream::BorrowedStream;

/// Device memory of our own, aligned to 256 bytes at least; released when dropped, on any thread.
#[derive(Debug)]
pub struct DeviceMemory {
    context: Arc<Context>,
    address: u64,
    bytes: usize,
}

impl DeviceMemory {
    /// Allocates; what it holds is undefined. No bytes need no memory, and have the address 0.
    pub fn allocate(entered: &Entered<'_>, bytes: usize) -> Result<Self, DriverError> {
        let mut address = 0;
        if bytes > 0 {
            let _mode = RelaxedCaptureMode::enter();
            // SAFETY: a context is current; the call writes one address.
            let status = unsafe { sys::cuMemAlloc_v2(&raw mut address, bytes) };
            check_allocation(status, entered, bytes, "device memory")?;
        }
        Ok(Self { context: Arc::clone(entered.context()), address, bytes })
    }

    /// Allocates memory of zeros, which are there when the call returns: it waits for the stream.
    pub fn zeroed(entered: &Entered<'_>, stream: &BorrowedStream, bytes: usize) -> Result<Self, DriverError> {
        let mut memory = Self::allocate(entered, bytes)?;
        memory.fill(entered, stream, 0, bytes, 0)?;
        stream.synchronize(entered)?;
        Ok(memory)
    }

    /// Where it begins.
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// How large it is.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// The context it belongs to.
    pub const fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Copies bytes of ordinary host memory to `offset`, and returns when they have been read.
    pub fn write(&mut self, _: &Entered<'_>, offset: usize, source: &[u8]) -> Result<(), DriverError> {
        let destination = self.at(offset, source.len())?;
        if source.is_empty() {
            return Ok(());
        }
        let _mode = RelaxedCaptureMode::enter();
        // SAFETY: a context is current; the range is within this memory, which nothing else borrows; the slice is readable.
        let status = unsafe { sys::cuMemcpyHtoD_v2(destination, source.as_ptr().cast(), source.len()) };
        check(status, "copy to the device")
    }

    /// Copies bytes from `offset` to ordinary host memory, after what the legacy default stream was given; waits for it.
    pub fn read(&self, _: &Entered<'_>, offset: usize, destination: &mut [u8]) -> Result<(), DriverError> {
        let source = self.at(offset, destination.len())?;
        if destination.is_empty() {
            return Ok(());
        }
        let _mode = RelaxedCaptureMode::enter();
        // SAFETY: a context is current; the range is within this memory; the slice is writable.
        let status =
            unsafe { sys::cuMemcpyDtoH_v2(destination.as_mut_ptr().cast(), source, destination.len()) };
        check(status, "copy from the device")
    }

    /// Sets `bytes` bytes from `offset` to one value, in the order of the stream.
    pub fn fill(
        &mut self,
        _: &Entered<'_>,
        stream: &BorrowedStream,
        offset: usize,
        bytes: usize,
        value: u8,
    ) -> Result<(), DriverError> {
        let destination = self.at(offset, bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: a context is current; the range is within this memory; the stream lives.
        check(
            unsafe { sys::cuMemsetD8Async(destination, value, bytes, stream.handle()) },
            "fill device memory",
        )
    }

    /// The address of `offset`, if `bytes` bytes from there are within.
    fn at(&self, offset: usize, bytes: usize) -> Result<u64, DriverError> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(self.address + offset as u64),
            _ => Err(DriverError::OutOfBounds { offset, bytes, length: self.bytes }),
        }
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if self.address != 0 {
            // SAFETY: `allocate` made it, and this is its only owner. The driver waits for work that is queued on it.
            release(&self.context, "release device memory", || unsafe { sys::cuMemFree_v2(self.address) });
        }
    }
}

/// Host memory that the device reads and writes while it works: not write-combined, so reading it back is quick. It is
/// released when dropped, on any thread.
#[derive(Debug)]
pub struct PinnedMemory {
    context: Arc<Context>,
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it owns plain bytes, and gives them out only through `unsafe` functions or by `&mut`.
unsafe impl Send for PinnedMemory {}
// SAFETY: as above.
unsafe impl Sync for PinnedMemory {}

impl PinnedMemory {
    /// Allocates memory of zeros. No bytes need no memory.
    pub fn allocate(entered: &Entered<'_>, bytes: usize) -> Result<Self, DriverError> {
        let mut start = std::ptr::null_mut::<c_void>();
        if bytes > 0 {
            let _mode = RelaxedCaptureMode::enter();
            // SAFETY: a context is current; the call writes one address. Flags 0: neither mapped twice nor write-combined.
            let status = unsafe { sys::cuMemHostAlloc(&raw mut start, bytes, 0) };
            check_allocation(status, entered, bytes, "pinned host memory")?;
            // SAFETY: the driver gave `bytes` writable bytes, which nothing else has seen.
            unsafe { start.cast::<u8>().write_bytes(0, bytes) };
        }
        let start = NonNull::new(start.cast()).unwrap_or(NonNull::dangling());
        Ok(Self { context: Arc::clone(entered.context()), start, bytes })
    }

    /// Where it begins, for the host; under unified addressing, for the device too.
    pub const fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// The address for the device.
    pub fn address(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    /// How large it is.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// What it holds.
    ///
    /// # Safety
    /// Nothing writes to it while the slice lives: what the device was given to write has completed.
    pub const unsafe fn as_slice(&self) -> &[u8] {
        // SAFETY: `bytes` bytes were allocated and set; the caller promises that nothing writes.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }

    /// What it holds, to be changed.
    ///
    /// # Safety
    /// The device neither reads nor writes it while the slice lives.
    pub const unsafe fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: `bytes` bytes were allocated and set, and `self` is borrowed alone; the caller speaks for the device.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        if self.bytes != 0 {
            let start = self.start.as_ptr().cast();
            // SAFETY: `allocate` made it, and this is its only owner. The driver waits for work that is queued on it.
            release(&self.context, "release pinned memory", || unsafe { sys::cuMemFreeHost(start) });
        }
    }
}

/// Queues a copy from the host to the device.
///
/// # Safety
/// Both ranges are valid for `bytes` bytes until the copy has completed, and nothing writes to the source before.
/// A source that is not pinned makes the call wait, and is refused in a capture.
pub unsafe fn copy_host_to_device(
    _: &Entered<'_>,
    stream: &BorrowedStream,
    destination: u64,
    source: *const u8,
    bytes: usize,
) -> Result<(), DriverError> {
    // SAFETY: a context is current, and the caller keeps the ranges valid.
    let status = unsafe { sys::cuMemcpyHtoDAsync_v2(destination, source.cast(), bytes, stream.handle()) };
    check(status, "queue a copy to the device")
}

/// Queues a copy from the device to the host.
///
/// # Safety
/// Both ranges are valid for `bytes` bytes until the copy has completed, and nothing else touches the destination before.
/// A destination that is not pinned makes the call wait, and is refused in a capture.
pub unsafe fn copy_device_to_host(
    _: &Entered<'_>,
    stream: &BorrowedStream,
    destination: *mut u8,
    source: u64,
    bytes: usize,
) -> Result<(), DriverError> {
    // SAFETY: a context is current, and the caller keeps the ranges valid.
    let status = unsafe { sys::cuMemcpyDtoHAsync_v2(destination.cast(), source, bytes, stream.handle()) };
    check(status, "queue a copy from the device")
}

/// Queues a copy within the device.
///
/// # Safety
/// Both ranges are valid for `bytes` bytes until the copy has completed, and do not overlap.
pub unsafe fn copy_within_device(
    _: &Entered<'_>,
    stream: &BorrowedStream,
    destination: u64,
    source: u64,
    bytes: usize,
) -> Result<(), DriverError> {
    // SAFETY: a context is current, and the caller keeps the ranges valid.
    let status = unsafe { sys::cuMemcpyDtoDAsync_v2(destination, source, bytes, stream.handle()) };
    check(status, "queue a copy within the device")
}

/// As [`check`]; memory that ran out is an error of its own, with how much was asked for and how much there is.
fn check_allocation(
    status: CUresult,
    entered: &Entered<'_>,
    requested: usize,
    kind: &'static str,
) -> Result<(), DriverError> {
    if status != CUresult::CUDA_ERROR_OUT_OF_MEMORY {
        return check(status, "allocate memory");
    }
    let memory = entered.memory()?;
    Err(DriverError::OutOfMemory { requested, kind, free: memory.free, total: memory.total })
}
