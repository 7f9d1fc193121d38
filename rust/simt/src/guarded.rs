//! Memory that catches a kernel reading or writing past its end.

use std::marker::PhantomData;

use bytemuck::Pod;

use crate::ffi;

/// `len` values that stand for a device buffer: the last one ends at an inaccessible page, as does the page before the
/// first. A kernel that touches memory behind them ends its launch with [`LaunchError::Fault`](crate::LaunchError::Fault).
///
/// The start is aligned to 16 bytes, as vector loads need. When the values don't fill a multiple of 16 bytes, up to 15
/// bytes lie between their end and the page.
pub struct GuardedBuffer<T> {
    base: *mut u8,
    len: usize,
    values: PhantomData<T>,
}

// SAFETY: the buffer owns its memory, as a Vec<T> does.
unsafe impl<T: Send> Send for GuardedBuffer<T> {}

const ALIGNMENT: usize = 16;

impl<T: Pod> GuardedBuffer<T> {
    /// `len` values of zero.
    ///
    /// # Panics
    /// When the host has no memory for them, as a vector does.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        const { assert!(align_of::<T>() <= ALIGNMENT) };
        let bytes = len.saturating_mul(size_of::<T>());
        // SAFETY: the function takes any size, and returns null when there is no memory.
        let base = unsafe { ffi::simt_guarded_allocate(bytes) };
        assert!(!base.is_null(), "no memory for a buffer of {bytes} bytes");
        Self { base, len, values: PhantomData }
    }

    /// A copy of `values`.
    ///
    /// # Panics
    /// As [`zeroed`](Self::zeroed).
    #[must_use]
    pub fn from_slice(values: &[T]) -> Self {
        let mut buffer = Self::zeroed(values.len());
        buffer.as_mut_slice().copy_from_slice(values);
        buffer
    }

    /// `len` values whose bytes are all `byte`: 0xFF is NaN in every float type.
    ///
    /// # Panics
    /// As [`zeroed`](Self::zeroed).
    #[must_use]
    pub fn filled_with_byte(len: usize, byte: u8) -> Self {
        let mut buffer = Self::zeroed(len);
        bytemuck::cast_slice_mut::<T, u8>(buffer.as_mut_slice()).fill(byte);
        buffer
    }

    /// The address to put into a kernel's arguments, for reading and writing.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.base.expose_provenance() as u64
    }

    /// The values. Not while a launch writes them.
    #[must_use]
    pub fn as_slice(&self) -> &[T] {
        // SAFETY: `base` points to `len` values of a type that any bytes are a value of, aligned for it.
        unsafe { std::slice::from_raw_parts(self.base.cast(), self.len) }
    }

    /// The values, to change.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        // SAFETY: as in `as_slice`, and `self` is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.base.cast(), self.len) }
    }
}

impl<T: Pod> Clone for GuardedBuffer<T> {
    fn clone(&self) -> Self {
        Self::from_slice(self.as_slice())
    }
}

impl<T> Drop for GuardedBuffer<T> {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with this size.
        unsafe { ffi::simt_guarded_free(self.base, self.len * size_of::<T>()) };
    }
}
