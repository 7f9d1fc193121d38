//! Memory for packed weights: zeroed, page-aligned, in huge pages where it is large.
//!
//! A frame walks through all weights; with pages of 4 KiB the walk through the page tables, not the memory, sets the
//! pace (by a quarter on a virtual machine).

use bytemuck::Pod;
use memmap2::MmapMut;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

/// Bytes of a huge page, and the least for which one is asked.
const HUGE_PAGE: usize = 2 << 20;

/// A slice of its own memory.
#[derive(Debug)]
pub(super) struct Pages<T> {
    map: MmapMut,
    /// Byte at which the elements start: a multiple of a huge page for large slices.
    start: usize,
    bytes: usize,
    element: PhantomData<T>,
}

impl<T: Pod> Pages<T> {
    /// `count` zeros.
    ///
    /// # Errors
    /// The operating system has no such memory.
    pub(super) fn zeroed(count: usize) -> std::io::Result<Self> {
        let too_large = || std::io::Error::from(std::io::ErrorKind::OutOfMemory);
        let bytes = count.checked_mul(size_of::<T>()).ok_or_else(too_large)?;
        let slack = if bytes < HUGE_PAGE { 0 } else { HUGE_PAGE };
        // An empty mapping is not allowed.
        let map = MmapMut::map_anon(bytes.checked_add(slack).ok_or_else(too_large)?.max(1))?;
        let mut start = 0;
        if slack > 0 {
            start = map.as_ptr().align_offset(HUGE_PAGE);
            // A wish: without huge pages a frame is slower and nothing else.
            #[cfg(target_os = "linux")]
            let _ = map.advise(memmap2::Advice::HugePage);
        }
        Ok(Self { map, start, bytes, element: PhantomData })
    }
}

impl<T: Pod> Deref for Pages<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        bytemuck::cast_slice(&self.map[self.start..self.start + self.bytes])
    }
}

impl<T: Pod> DerefMut for Pages<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(&mut self.map[self.start..self.start + self.bytes])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_count_is_zeroed_and_writable_to_its_end() {
        for count in [0, 1, 1000, HUGE_PAGE / 4, HUGE_PAGE / 4 + 1, HUGE_PAGE] {
            let mut pages: Pages<u32> = Pages::zeroed(count).unwrap();
            assert_eq!(pages.len(), count);
            assert!(pages.iter().all(|&word| word == 0));
            pages.fill(7);
            assert!(pages.iter().all(|&word| word == 7));
        }
    }

    #[test]
    fn an_absurd_count_is_refused_not_fatal() {
        assert!(Pages::<u32>::zeroed(usize::MAX).is_err());
        assert!(Pages::<u32>::zeroed(usize::MAX / 8).is_err());
    }
}
