//! Device memory for the outputs of frames: one block a frame, back in the pool when its last tensor is gone, so that in the
//! steady state nothing is allocated.
//!
//! As in torch's allocator, memory that comes back is taken again at once by a frame on the same stream, which is in order
//! with whatever that stream still does with it. A frame on another stream first waits for the frame that wrote it last;
//! a consumer that works on further streams keeps its tensors until they are done.

use std::sync::{Arc, Mutex};

use overtone_cuda::driver::{DeviceMemory, DriverError, Entered};

use super::events::Mark;
use crate::device_memory::zeroed;
use crate::dlpack::element::ElementType;
use crate::executor::lock;
use crate::streams::StreamHandle;

/// Every tensor starts at a multiple of this many bytes.
const ALIGNMENT: usize = 256;
/// The smallest block.
const SMALLEST_BLOCK: usize = 1 << 14;

/// The stream and the end of the frame that wrote a block last.
#[derive(Clone, Debug)]
pub struct LastUse {
    /// The stream.
    pub stream: StreamHandle,
    /// The frame's end.
    pub mark: Arc<Mark>,
}

/// A block that no frame uses, and its last use.
type FreeBlock = (DeviceMemory, Option<LastUse>);

/// Blocks that no frame uses; `None` when the executor is gone.
#[derive(Debug)]
pub struct OutputPool(Mutex<Option<Vec<FreeBlock>>>);

impl Default for OutputPool {
    fn default() -> Self {
        Self(Mutex::new(Some(Vec::new())))
    }
}

impl OutputPool {
    /// A block of at least `bytes`, all zero when it is new, and the use that a frame on another stream has to wait for.
    ///
    /// # Errors
    /// The driver's.
    pub fn take(
        self: &Arc<Self>,
        entered: &Entered<'_>,
        bytes: usize,
        stream: StreamHandle,
    ) -> Result<(OutputBlock, Option<LastUse>), DriverError> {
        let size = block_bytes(bytes);
        let found = lock(&self.0).as_mut().and_then(|free| {
            let fits = |(memory, _): &FreeBlock| memory.bytes() == size;
            let on_stream = |last: &Option<LastUse>| last.as_ref().is_none_or(|last| last.stream == stream);
            let here = free.iter().rposition(|block| fits(block) && on_stream(&block.1));
            let place = here.or_else(|| free.iter().position(fits));
            place.map(|place| free.swap_remove(place))
        });
        let Some((memory, last)) = found else { return Ok((self.make(entered, bytes)?, None)) };
        let awaited = last.clone().filter(|last| last.stream != stream);
        Ok((OutputBlock { memory: Some(memory), last: Mutex::new(last), pool: Arc::clone(self) }, awaited))
    }

    /// A new block of at least `bytes`, all zero, which nobody has used: a frame that is recorded cannot wait for others.
    ///
    /// # Errors
    /// The driver's.
    pub fn make(self: &Arc<Self>, entered: &Entered<'_>, bytes: usize) -> Result<OutputBlock, DriverError> {
        let memory = zeroed(entered, block_bytes(bytes))?;
        Ok(OutputBlock { memory: Some(memory), last: Mutex::default(), pool: Arc::clone(self) })
    }

    /// Lets go of every block, and of those that come back from now on.
    pub fn close(&self) {
        let blocks = lock(&self.0).take();
        drop(blocks);
    }
}

/// The memory of one frame's outputs. It returns to the pool when it is dropped, on any thread.
#[derive(Debug)]
pub struct OutputBlock {
    /// `None` only while it is dropped.
    memory: Option<DeviceMemory>,
    last: Mutex<Option<LastUse>>,
    pool: Arc<OutputPool>,
}

impl OutputBlock {
    /// Where it begins.
    pub fn address(&self) -> u64 {
        self.memory.as_ref().map_or(0, DeviceMemory::address)
    }

    /// The memory, for a frame that has not been launched yet.
    pub const fn memory(&mut self) -> Option<&mut DeviceMemory> {
        self.memory.as_mut()
    }

    /// A frame writes it.
    pub fn used(&self, stream: StreamHandle, mark: Arc<Mark>) {
        *lock(&self.last) = Some(LastUse { stream, mark });
    }
}

impl Drop for OutputBlock {
    fn drop(&mut self) {
        let last = lock(&self.last).take();
        let (memory, mut pool) = (self.memory.take(), lock(&self.pool.0));
        match (memory, pool.as_mut()) {
            (Some(memory), Some(free)) => free.push((memory, last)),
            // Releasing memory waits for the device: not under the lock.
            (memory, _) => {
                drop(pool);
                drop(memory);
            }
        }
    }
}

/// Frames of many sizes share blocks of few.
fn block_bytes(bytes: usize) -> usize {
    bytes.next_power_of_two().max(SMALLEST_BLOCK)
}

/// Offsets of tensors that follow one another in a block, and the bytes of all.
pub fn offsets(layout: &[(ElementType, Vec<usize>)]) -> (Vec<usize>, usize) {
    let mut end = 0;
    let offsets = layout.iter().map(|(element, shape)| {
        let start = end;
        end += (element.size() * shape.iter().product::<usize>()).next_multiple_of(ALIGNMENT);
        start
    });
    (offsets.collect(), end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_of_a_block_are_aligned_and_apart() {
        let layout = [
            (ElementType::Int32, vec![3, 16]),
            (ElementType::BFloat16, vec![3, 1000]),
            (ElementType::Float32, vec![1]),
        ];
        let (places, bytes) = offsets(&layout);
        assert_eq!(places, [0, 256, 256 + 6144]);
        assert_eq!(bytes, 256 + 6144 + 256);
        assert_eq!((block_bytes(1), block_bytes(20_000), block_bytes(1 << 20)), (1 << 14, 1 << 15, 1 << 20));
    }
}
