//! The round stream: speculative rounds of any engine, issued blind in bursts and read once. The source of its rules is
//! the project's design (its round stream); the kernels' exact semantics stand in `kernels/round_stream.cuh`.
//!
//! A round drafts up to k codes, verifies them in one pass, and commits those that equal what the verified logits draw,
//! and one code more. All that a round decides lies on the device: how many drafts were taken, where the row stands,
//! how long its KV caches are. So m rounds are queued without a word to the host, and one read brings back what they
//! committed. Every row goes at its own pace, and never past its end.
//!
//! | room | what it holds |
//! |---|---|
//! | [`StreamLayout`], [`StreamShape`] | every buffer: what it means and where it lies |
//! | [`RoundPlan`] | the launches of a round, and [`burst`](RoundPlan::burst)s of them |
//! | [`StreamBufs`] | the buffers on a device, and the one read |
//! | [`arguments`] | what the kernels take |
//!
//! What stays with the engine: how it drafts, its verify pass, its draws, its KV caches (their lengths are rolled back
//! through a table of [`crate::kv_lengths`]), and when a row is started or has said enough.
//!
//! `examples/round_stream.rs` drives a toy engine; `docs/round-stream.md` walks through a round.

pub mod arguments;
mod layout;
mod rounds;

use std::sync::Arc;

pub use layout::{DrainedRow, MOST_DRAFTS, NO_CODE, NO_LIMIT, RowStart, StreamLayout, StreamShape};
pub use rounds::{Drafts, Phase, RoundPlan, Seeds, rollback};

use crate::driver::{
    BorrowedStream, DeviceMemory, DriverError, Entered, PinnedMemory, copy_device_to_host,
    copy_host_to_device,
};
use crate::kv_lengths::{LayerLengths, LengthsError};

/// A round stream that cannot be, or a burst that went wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// A size out of range.
    #[error("a round stream of {found} {what}, expected 1 to {most}")]
    Shape {
        /// What it counts.
        what: &'static str,
        /// How many.
        found: usize,
        /// The most that there can be, beside the other sizes.
        most: usize,
    },
    /// A row beyond the batch.
    #[error("row {row} of a round stream of {batch} rows")]
    Row {
        /// The row.
        row: usize,
        /// B.
        batch: usize,
    },
    /// A code out of range.
    #[error("{what} of row {row} is {found}, expected a code less than {code_count}")]
    Code {
        /// The row.
        row: usize,
        /// Which code.
        what: &'static str,
        /// Its value.
        found: u32,
        /// Codes there are.
        code_count: usize,
    },
    /// A number that int32 does not hold.
    #[error("{what} of row {row} is {found}, expected at most {}", i32::MAX)]
    Number {
        /// The row.
        row: usize,
        /// Which number.
        what: &'static str,
        /// Its value.
        found: usize,
    },
    /// A table of lengths for another batch.
    #[error("a table of KV lengths for {found} rows, expected {expected}, as the round stream has")]
    TableBatch {
        /// Rows of its lengths.
        found: usize,
        /// Rows of the stream.
        expected: usize,
    },
    /// A table whose rollback would leave the rows where they are.
    #[error("the table of KV lengths does not hold the round stream's position counter")]
    PositionNotInTable,
    /// A p_min that nothing can be compared with.
    #[error("p_min is NaN, expected a number")]
    LeastProbability,
    /// Hidden rows of no floating-point type.
    #[error("hidden rows of {found} bytes, expected a multiple of 2")]
    RowBytes {
        /// Bytes of a row.
        found: usize,
    },
    /// More was committed than the ring has room for: more rounds than a burst has ran between two reads.
    #[error("the ring of row {row} overflowed: it says {found} codes, and has room for {capacity}")]
    RingOverflow {
        /// The first such row.
        row: usize,
        /// The count in its slot 0.
        found: i32,
        /// Codes that a ring has room for.
        capacity: usize,
    },
    /// The position counter could not be made.
    #[error(transparent)]
    Lengths(#[from] LengthsError),
    /// The driver refused.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

/// The buffers of a round stream on a device, and the pinned memory that a burst is read into.
///
/// Everything is ordered by the stream given, which is one and the same from call to call, or ordered by the caller.
#[derive(Debug)]
pub struct StreamBufs {
    layout: StreamLayout,
    memory: DeviceMemory,
    position: Arc<LayerLengths>,
    read_back: PinnedMemory,
}

impl StreamBufs {
    /// Allocates the buffers. All rows are idle, all rings empty.
    ///
    /// # Errors
    /// Memory that ran out, or the driver's.
    pub fn allocate(
        entered: &Entered<'_>,
        stream: &BorrowedStream,
        shape: StreamShape,
    ) -> Result<Self, StreamError> {
        let position = LayerLengths::allocate(entered, stream, shape.batch())?;
        let memory = DeviceMemory::allocate(entered, StreamLayout::new(shape, 0, 0).bytes())?;
        let layout = StreamLayout::new(shape, memory.address(), position.address());
        let read_back = PinnedMemory::allocate(entered, layout.read_back().1)?;
        let mut bufs = Self { layout, memory, position, read_back };
        bufs.memory.fill(entered, stream, 0, layout.state().1, 0xff)?;
        bufs.arm(entered, stream)?;
        Ok(bufs)
    }

    /// Where everything lies, for the plan and for the engine.
    pub const fn layout(&self) -> &StreamLayout {
        &self.layout
    }

    /// The position counter, for the table of lengths.
    pub const fn position(&self) -> &Arc<LayerLengths> {
        &self.position
    }

    /// Lets a row begin, between bursts. Its KV lengths are the caller's to set: `start.position` each.
    ///
    /// # Errors
    /// A row, code or position out of range, or the driver's.
    pub fn start_row(
        &mut self,
        entered: &Entered<'_>,
        stream: &BorrowedStream,
        row: usize,
        start: &RowStart,
    ) -> Result<(), StreamError> {
        for (address, word) in self.layout.start_row(row, start)? {
            let bytes = word.to_ne_bytes();
            // SAFETY: the layout's addresses are of this value's memory; pageable bytes have been read when the call
            // returns.
            unsafe { copy_host_to_device(entered, stream, address, bytes.as_ptr(), bytes.len()) }?;
        }
        Ok(())
    }

    /// The one read of a burst: waits for the stream, returns what each row committed since the last read, and arms the
    /// rings again.
    ///
    /// # Errors
    /// [`StreamError::RingOverflow`] with the first row that it happened to; what all rows committed is lost, the rings
    /// are armed, and rows stand where the rounds left them. Or the driver's.
    pub fn drain_ring(
        &mut self,
        entered: &Entered<'_>,
        stream: &BorrowedStream,
    ) -> Result<Vec<DrainedRow>, StreamError> {
        let (address, bytes) = self.layout.read_back();
        // SAFETY: both ranges are this value's, and the stream is waited for before either is used again.
        unsafe { copy_device_to_host(entered, stream, self.read_back.as_ptr(), address, bytes) }?;
        let armed = self.arm(entered, stream);
        stream.synchronize(entered)?;
        armed?;
        // SAFETY: the copy has completed, and nothing else writes there.
        self.layout.drained(unsafe { self.read_back.as_slice() })
    }

    /// Empties the rings, and sets flags and counters to 0.
    fn arm(&mut self, entered: &Entered<'_>, stream: &BorrowedStream) -> Result<(), DriverError> {
        let (address, bytes) = self.layout.armed();
        let offset = (address - self.memory.address()) as usize;
        self.memory.fill(entered, stream, offset, bytes, 0)
    }
}
