//! A frame's launches, given to a stream one by one or recorded into one graph per batch size.

use crate::driver::{
    BorrowedStream, Capture, DriverError, Entered, ExecutableGraph, LaunchShape, OwnedStream,
    copy_host_to_device, launch,
};
use crate::kernels::Registry;
use crate::layout::Address;
use crate::machine::Machine;
use crate::plan::{FramePlan, Launch, slot_sizes, slots_for};

/// A stream that launches are given to.
#[derive(Debug)]
pub struct StreamMachine<'a> {
    /// Proof that the stream's context is current.
    pub entered: &'a Entered<'a>,
    /// The stream.
    pub stream: &'a BorrowedStream,
    /// The kernels.
    pub registry: &'a Registry,
}

impl Machine for StreamMachine<'_> {
    type Error = DriverError;

    unsafe fn write(&mut self, target: Address, bytes: &[u8]) -> Result<(), DriverError> {
        // SAFETY: the caller speaks for the target; a source in pageable memory has been read when the call returns.
        unsafe { copy_host_to_device(self.entered, self.stream, target, bytes.as_ptr(), bytes.len()) }
    }

    unsafe fn run(&mut self, work: &Launch) -> Result<(), DriverError> {
        let shape = LaunchShape {
            grid: work.grid,
            block: work.block,
            shared_bytes: work.shared_bytes,
            programmatic: work.programmatic,
        };
        let function = self.registry.function(work.kernel);
        // SAFETY: the caller speaks for the addresses in the arguments.
        unsafe { launch(self.entered, self.stream, function, &shape, work.arguments.as_bytes()) }
    }
}

/// An executable graph for every size that a frame's launches are made for.
#[derive(Debug)]
pub struct FrameGraphs {
    max_batch: usize,
    /// By ascending size.
    sizes: Vec<(usize, ExecutableGraph)>,
}

impl FrameGraphs {
    /// Records all sizes up to `max_batch` on `stream`, which nothing else uses meanwhile.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// The addresses in the plans stay valid for as long as the graphs are launched.
    pub unsafe fn capture<'a>(
        entered: &Entered<'_>,
        stream: &OwnedStream,
        registry: &Registry,
        max_batch: usize,
        plan: impl Fn(usize) -> FramePlan<'a>,
    ) -> Result<Self, DriverError> {
        let mut sizes = Vec::new();
        for slots in slot_sizes(max_batch) {
            let capture = Capture::begin(entered, stream)?;
            let mut machine = StreamMachine { entered, stream: capture.stream(), registry };
            for work in plan(slots).launches() {
                // SAFETY: the caller's condition.
                unsafe { machine.run(&work) }?;
            }
            let graph = capture.finish()?.instantiate(entered)?;
            graph.upload(entered, stream)?;
            sizes.push((slots, graph));
        }
        stream.synchronize(entered)?;
        Ok(Self { max_batch, sizes })
    }

    /// The graph for a frame of `batch` rows.
    pub fn for_batch(&self, batch: usize) -> &ExecutableGraph {
        let slots = slots_for(batch, self.max_batch);
        let place = self.sizes.partition_point(|(size, _)| *size < slots);
        &self.sizes[place].1
    }
}
