//! The memory a frame works in: our own, or a talker's.

use overtone_core::cpu::lanes::Lane16;

use crate::dlpack::import::ImportedTensor;
use crate::errors::{ErrorClass, Raised};

/// Alignment of the blocks in bytes: a cache line.
const ALIGNMENT: usize = 64;

/// Blocks of sixteen floats for a frame to write.
#[derive(Debug)]
pub enum Arena {
    /// Our own.
    Own(Vec<Lane16>),
    /// A talker's, with the number of blocks that frames use of it.
    Lent(ImportedTensor, usize),
}

impl Arena {
    /// Bytes that a lent arena of `blocks` must have, whatever its alignment.
    pub const fn required_bytes(blocks: usize) -> usize {
        blocks * size_of::<Lane16>() + ALIGNMENT
    }

    /// An arena of our own.
    ///
    /// # Errors
    /// An `OutOfMemoryError` when there is no such memory.
    pub fn own(blocks: usize) -> Result<Self, Raised> {
        let mut arena = Vec::new();
        arena
            .try_reserve_exact(blocks)
            .map_err(|error| Raised::from_error(ErrorClass::OutOfMemory, &error))?;
        arena.resize(blocks, Lane16::default());
        Ok(Self::Own(arena))
    }

    /// A talker's arena, or `None` when it is too small.
    ///
    /// # Errors
    /// An `InputError` when it is read-only or not contiguous.
    pub fn lent(memory: ImportedTensor, blocks: usize) -> Result<Option<Self>, Raised> {
        memory.writer()?;
        if !memory.view().is_contiguous() {
            return Err(memory.refused("a strided tensor", "a contiguous one"));
        }
        let fits = memory.view().size_in_bytes() >= Self::required_bytes(blocks);
        Ok(fits.then_some(Self::Lent(memory, blocks)))
    }

    /// A talker's memory, when frames work in it.
    pub const fn lent_memory(&self) -> Option<&ImportedTensor> {
        match self {
            Self::Own(_) => None,
            Self::Lent(memory, _) => Some(memory),
        }
    }

    /// The blocks, for the length of a frame.
    pub fn blocks(&mut self) -> &mut [Lane16] {
        match self {
            Self::Own(arena) => arena,
            Self::Lent(memory, blocks) => {
                let data = memory.view().data();
                let start = data.wrapping_add(data.align_offset(ALIGNMENT));
                // SAFETY: `lent` checked that the memory is writable, contiguous and holds the blocks after
                // alignment, and `memory` keeps it alive. Any bits are valid floats. That nobody else touches it
                // while a frame runs is what lending it to `set_context_memory` means.
                unsafe { std::slice::from_raw_parts_mut(start.cast::<Lane16>(), *blocks) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absurd_arena_is_refused_not_fatal() {
        assert!(Arena::own(usize::MAX / 128).is_err());
    }
}
