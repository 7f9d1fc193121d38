//! A frame's launches, given to a stream one by one or recorded into graphs for each batch size.

use crate::driver::{
    BorrowedStream, Capture, DriverError, Entered, ExecutableGraph, Graph, GraphLoop, LaunchShape,
    OwnedStream, copy_host_to_device, launch,
};
use crate::kernels::Registry;
use crate::layout::Address;
use crate::machine::Machine;
use crate::plan::{FramePlan, Launch, slot_sizes, slots_for};
use crate::rounds::RoundPlan;

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

/// The executable graphs of frames of one size.
#[derive(Debug)]
struct SizeGraphs {
    slots: usize,
    steps: ExecutableGraph,
    rounds: Option<ExecutableGraph>,
}

/// Executable graphs for every size that a frame's launches are made for.
#[derive(Debug)]
pub struct FrameGraphs {
    max_batch: usize,
    /// By ascending size.
    sizes: Vec<SizeGraphs>,
}

impl FrameGraphs {
    /// Records all sizes up to `max_batch` on `stream`, which nothing else uses meanwhile: frames that go step by step, and
    /// those that go in rounds where there are some. A plan of rounds gets the handle of its loop here.
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
        rounds: impl Fn(usize) -> Option<RoundPlan<'a>>,
    ) -> Result<Self, DriverError> {
        let run = |launches: &[Launch], stream: &BorrowedStream| {
            let mut machine = StreamMachine { entered, stream, registry };
            // SAFETY: the caller's condition.
            launches.iter().try_for_each(|work| unsafe { machine.run(work) })
        };
        let finish = |graph: Graph| {
            let graph = graph.instantiate(entered)?;
            graph.upload(entered, stream)?;
            Ok(graph)
        };
        let size = |slots: usize| {
            let capture = Capture::begin(entered, stream)?;
            run(&plan(slots).launches(), capture.stream())?;
            let steps = finish(capture.finish()?)?;
            let rounds = match rounds(slots) {
                None => None,
                Some(plan) => {
                    let graph = GraphLoop::create(entered, stream)?;
                    let launches = RoundPlan { conditional: graph.handle(), ..plan }.launches();
                    let before = |stream: &BorrowedStream| run(&launches.before, stream);
                    let graph = graph.record(before, |stream| run(&launches.round, stream))?;
                    Some(finish(graph)?)
                }
            };
            Ok::<_, DriverError>(SizeGraphs { slots, steps, rounds })
        };
        let sizes = slot_sizes(max_batch).map(size).collect::<Result<_, _>>()?;
        stream.synchronize(entered)?;
        Ok(Self { max_batch, sizes })
    }

    /// The graph for a frame of `batch` rows that goes step by step, or in rounds if it is to and can.
    pub fn for_batch(&self, batch: usize, in_rounds: bool) -> &ExecutableGraph {
        let slots = slots_for(batch, self.max_batch);
        let place = self.sizes.partition_point(|size| size.slots < slots);
        let size = &self.sizes[place];
        size.rounds.as_ref().filter(|_| in_rounds).unwrap_or(&size.steps)
    }
}
