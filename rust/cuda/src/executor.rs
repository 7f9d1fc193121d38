//! [`CudaExecutor`]: a predictor's weights, workspace and graphs on one device.
//!
//! A frame is given to a stream and never waited for. What a frame's tensors are, and who keeps them alive, is the caller's.

use std::mem::offset_of;
use std::sync::Arc;

use bytemuck::Zeroable;
use overtone_core::checkpoint::Checkpoint;
use overtone_core::checkpoint::drafts::Drafts;
use overtone_core::rounds::Speculation;
use overtone_core::spec::ModelSpec;
use overtone_core::tensor::FloatType;

use crate::arguments::{UPLOAD_WORDS, UploadArguments};
use crate::driver::{
    BorrowedStream, Context, DeviceMemory, Driver, DriverError, Entered, Event, LaunchShape, OwnedStream,
    PinnedMemory, Unavailable, copy_device_to_host, launch, nvtx,
};
use crate::frame::{FrameBlock, FrameCounters, block_bytes};
use crate::graphs::{FrameGraphs, StreamMachine};
use crate::kernels::{self, Kernel, Registry};
use crate::layout::{Address, TableAddresses, WeightAddresses};
use crate::load::{self, Progress, Source, staging_bytes, weight_addresses};
use crate::machine::Machine;
use crate::plan::slots_for;
use crate::rounds::check_slots;
use crate::support::{Unsupported, check_architecture, check_shared_memory};
pub use code_zero::CodeZeroTable;
use code_zero::loaded_code_zero_table;
pub use in_rounds::MOST_PAYING_ROWS;
use in_rounds::RoundsWatch;
pub use planner::context_bytes;
use planner::{Places, Planner, persistent_bytes, round_counters_bytes};

mod code_zero;
mod in_rounds;
mod planner;
mod ragged_step;

/// How a [`CudaExecutor`] is made.
#[derive(Clone, Copy, Debug)]
pub struct CudaOptions {
    /// The device's ordinal.
    pub device: usize,
    /// The working type.
    pub float_type: FloatType,
    /// Largest number of rows of one frame.
    pub max_batch: usize,
    /// What rounds draft and verify; `None` for frames that go step by step.
    pub speculation: Option<Speculation>,
    /// Codes per round below which rounds end for good, whatever the batch; `None` for the executor's own judgement.
    pub off_below: Option<f64>,
}

/// What goes wrong when an executor is made or used.
#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    /// CUDA cannot run here.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// The driver refused, or the device failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The kernels could not be loaded.
    #[error("the kernels could not be loaded")]
    Kernels(#[from] kernels::LoadError),
    /// The weights could not be loaded.
    #[error(transparent)]
    Load(#[from] load::LoadError<DriverError>),
    /// The architecture asks for what the kernels or the device do not have.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
}

/// The memory that a frame works in.
#[derive(Debug)]
enum Arena {
    Own(DeviceMemory),
    /// A talker's; whoever lent it keeps it.
    Lent(Address),
}

impl Arena {
    const fn address(&self) -> Address {
        match self {
            Self::Own(memory) => memory.address(),
            Self::Lent(address) => *address,
        }
    }
}

/// What the device has been given, and by whom.
#[derive(Debug, Default)]
struct Queue {
    /// The frame block that the device holds, and how often it was launched; `None` when somebody else may have written it.
    block: Option<(FrameBlock, u64)>,
    /// The last frame's stream, and what marks its end.
    last: Option<(u64, Arc<Event>)>,
    /// Whether a frame was recorded into a caller's graph, whose launches nobody announces.
    recorded: bool,
    bytes: Vec<u8>,
}

/// How a frame was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It runs.
    Launched,
    /// It was recorded into the capture that its stream is under.
    Recorded,
}

/// A predictor on one device. Frames run one after another, in the order they were launched, whatever their streams.
#[derive(Debug)]
pub struct CudaExecutor {
    spec: ModelSpec,
    float_type: FloatType,
    max_batch: usize,
    speculation: Option<Speculation>,
    rounds_watch: RoundsWatch,
    weights: WeightAddresses,
    weights_memory: Arc<DeviceMemory>,
    /// The frame block and, behind it, the counters: what outlives a frame.
    persistent: DeviceMemory,
    counters_copy: PinnedMemory,
    /// What rounds counted, written by the device at the end of each stream.
    round_counters: PinnedMemory,
    code_zero_table: Option<CodeZeroTable>,
    arena: Arena,
    /// Arenas of our own that callers' graphs work in.
    recorded_arenas: Vec<DeviceMemory>,
    graphs: FrameGraphs,
    registry: Registry,
    stream: OwnedStream,
    queue: Queue,
    context: Arc<Context>,
}

impl CudaExecutor {
    /// Loads a checkpoint onto a device, with fitted drafts if there are some, and records the graphs.
    ///
    /// # Errors
    /// [`CudaError`].
    pub fn load(
        checkpoint: &Checkpoint<'_>,
        drafts: Option<&Drafts>,
        options: CudaOptions,
        progress: &mut Progress<'_>,
    ) -> Result<Self, CudaError> {
        let _range = nvtx::range(c"overtone load");
        let spec = checkpoint.spec().clone();
        let CudaOptions { device, float_type, max_batch, speculation, off_below } = options;
        check_architecture(&spec)?;
        if let Some(speculation) = &speculation {
            check_slots(spec.positions(), speculation)?;
        }
        let driver = Driver::get()?;
        let device = driver.device(device)?;
        let context = Context::retain(driver, device)?;
        let entered = context.enter()?;
        let source = Source { checkpoint, drafts: drafts.filter(|_| speculation.is_some()) };
        let fitted = source.drafts.is_some();
        let rounds_watch = RoundsWatch::new(speculation.as_ref(), fitted, off_below);
        let unplaced_weights = weight_addresses(source, float_type, 0);
        let shared_bytes_per_block = device.properties().shared_memory_per_block_bytes;
        let unplaced = Planner {
            spec: &spec,
            float_type,
            weights: &unplaced_weights,
            max_batch,
            speculation: speculation.as_ref(),
            most_round_rows: rounds_watch.most_rows,
            shared_bytes_per_block,
        };
        let shared = unplaced.most_shared_bytes();
        check_shared_memory(shared, shared_bytes_per_block)?;

        let registry = Registry::load(&entered)?;
        for kernel in Kernel::ALL {
            registry.allow_shared_bytes(&entered, *kernel, shared)?;
            registry.function(*kernel).prefer_shared_memory(&entered)?;
        }
        let stream = OwnedStream::create(&entered)?;
        let weights_memory = DeviceMemory::zeroed(&entered, &stream, unplaced_weights.bytes as usize)?;
        let weights = weight_addresses(source, float_type, weights_memory.address());
        {
            let staging =
                DeviceMemory::zeroed(&entered, &stream, staging_bytes(source, float_type) as usize)?;
            let mut machine = StreamMachine { entered: &entered, stream: &stream, registry: &registry };
            // SAFETY: the weights' memory was just made for them and zeroed, and so was the staging memory.
            unsafe { load::load(&mut machine, source, float_type, &weights, staging.address(), progress) }?;
            stream.synchronize(&entered)?;
        }
        let persistent = DeviceMemory::zeroed(&entered, &stream, persistent_bytes(max_batch) as usize)?;
        let context_bytes = context_bytes(&spec, float_type, max_batch, unplaced.round_extent());
        let arena = DeviceMemory::zeroed(&entered, &stream, context_bytes as usize)?;
        let round_counters = PinnedMemory::allocate(&entered, round_counters_bytes(max_batch))?;
        let counters_copy = PinnedMemory::allocate(&entered, size_of::<FrameCounters>())?;
        let code_zero_table = weights.code_zero_table.map(|table| loaded_code_zero_table(&table, &spec));
        let planner = Planner { weights: &weights, ..unplaced };
        let places = Places {
            arena: arena.address(),
            persistent: persistent.address(),
            host_counters: round_counters.address(),
        };
        // SAFETY: the graphs are dropped with the weights and the persistent memory, and made anew before the arena goes.
        let graphs = unsafe { planner.capture(&entered, &stream, &registry, places) }?;
        drop(entered);
        Ok(Self {
            spec,
            float_type,
            max_batch,
            speculation,
            rounds_watch,
            weights,
            weights_memory: Arc::new(weights_memory),
            persistent,
            counters_copy,
            round_counters,
            code_zero_table,
            arena: Arena::Own(arena),
            recorded_arenas: Vec::new(),
            graphs,
            registry,
            stream,
            queue: Queue::default(),
            context,
        })
    }

    /// The architecture.
    pub const fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// The context that everything lives in.
    pub const fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// `E[layer]` [V, Ht] and what owns its memory; `None` when there is no such layer.
    pub fn codec_table(&self, layer: usize) -> Option<(TableAddresses, Arc<DeviceMemory>)> {
        let table = self.weights.tables.get(layer)?;
        Some((*table, Arc::clone(&self.weights_memory)))
    }

    /// E0 of the checkpoint, when it has one.
    pub const fn code_zero_table(&self) -> Option<&CodeZeroTable> {
        self.code_zero_table.as_ref()
    }

    /// Bytes of device memory that are held: (weights and tables, workspace of our own, all else).
    pub fn held_bytes(&self) -> (u64, u64, u64) {
        let arena = match &self.arena {
            Arena::Own(memory) => memory.bytes() as u64,
            Arena::Lent(_) => 0,
        };
        (self.weights.bytes, arena, self.persistent.bytes() as u64)
    }

    /// Bytes of the arena that a frame works in.
    pub fn required_context_bytes(&self) -> u64 {
        context_bytes(&self.spec, self.float_type, self.max_batch, self.planner().round_extent())
    }

    /// Works at `address` from the next frame on, or in memory of our own; the graphs are recorded anew. Frames that callers
    /// have recorded go on where they were.
    ///
    /// # Errors
    /// The driver's; the arena in use stays.
    ///
    /// # Safety
    /// [`required_context_bytes`](Self::required_context_bytes) from the address on are this executor's during frames, until
    /// the arena is set again or the executor is dropped and its last frame has completed.
    pub unsafe fn set_context_memory(&mut self, address: Option<Address>) -> Result<(), CudaError> {
        let entered = self.context.enter()?;
        if let Some((_, last)) = &self.queue.last {
            last.synchronize(&entered)?;
        }
        let arena = match address {
            Some(address) => Arena::Lent(address),
            None => Arena::Own(DeviceMemory::zeroed(
                &entered,
                &self.stream,
                self.required_context_bytes() as usize,
            )?),
        };
        // SAFETY: as in `load`; a lent arena is the caller's word.
        let graphs = unsafe { self.capture(&entered, arena.address()) }?;
        self.graphs = graphs;
        let replaced = std::mem::replace(&mut self.arena, arena);
        if let Arena::Own(memory) = replaced
            && self.queue.recorded
        {
            self.recorded_arenas.push(memory);
        }
        Ok(())
    }

    /// Records the graphs again.
    ///
    /// # Errors
    /// The driver's; the graphs in use stay.
    pub fn capture_graphs(&mut self) -> Result<(), CudaError> {
        let entered = self.context.enter()?;
        // SAFETY: as in `load`.
        self.graphs = unsafe { self.capture(&entered, self.arena.address()) }?;
        Ok(())
    }

    /// Gives a frame to a stream: one graph launch, after a small kernel that brings the frame block if the device holds
    /// another. On a stream under capture, all of the frame's kernels are recorded instead. `done` marks its end, unless it
    /// was recorded.
    ///
    /// # Errors
    /// The driver's; the frame is lost then, and the next is sound.
    ///
    /// # Panics
    /// When the frame has no rows, or more than `max_batch`.
    ///
    /// # Safety
    /// The tensors in `frame` stay where they are until it has completed, or for as long as the recorded graph is launched.
    /// The stream is of this executor's context.
    pub unsafe fn launch(
        &mut self,
        frame: &FrameBlock,
        stream: &BorrowedStream,
        done: &Arc<Event>,
    ) -> Result<Taken, CudaError> {
        let batch = frame.rows.len();
        assert!((1..=self.max_batch).contains(&batch), "{batch} rows, expected 1 to {}", self.max_batch);
        let context = Arc::clone(&self.context);
        let entered = context.enter()?;
        if stream.is_capturing(&entered)? {
            // SAFETY: the caller's condition.
            unsafe { self.record(&entered, frame, stream) }?;
            return Ok(Taken::Recorded);
        }
        let _range = nvtx::range(c"overtone frame");
        let in_rounds = self.next_in_rounds(batch);
        let changed = self.queue.last.as_ref().filter(|(last, _)| *last != stream.address());
        if let Some((_, last)) = changed {
            stream.wait_for(&entered, last)?;
        }
        let held = self.queue.block.take().filter(|(held, launches)| frame.follows(held, *launches));
        let (held, launches) = match held {
            Some(held) => held,
            None => {
                self.upload(&entered, stream, frame)?;
                (frame.clone(), 0)
            }
        };
        // SAFETY: the graph's own addresses live as long as it; those in the frame block are the caller's word.
        unsafe { self.graphs.for_batch(batch, in_rounds).launch(&entered, stream) }?;
        if !self.queue.recorded {
            self.queue.block = Some((held, launches + 1));
        }
        done.record(&entered, stream)?;
        self.queue.last = Some((stream.address(), Arc::clone(done)));
        Ok(Taken::Launched)
    }

    /// Frames counted on the device so far; does not wait for those under way.
    ///
    /// # Errors
    /// The driver's.
    pub fn counters(&mut self) -> Result<FrameCounters, CudaError> {
        let entered = self.context.enter()?;
        let bytes = size_of::<FrameCounters>();
        let from = counters_address(&self.persistent, self.max_batch);
        // SAFETY: the counters lie in the persistent memory, the copy has room for them, and both outlive the wait below.
        unsafe { copy_device_to_host(&entered, &self.stream, self.counters_copy.as_ptr(), from, bytes) }?;
        self.stream.synchronize(&entered)?;
        // SAFETY: the only copy into this memory has just completed.
        Ok(bytemuck::pod_read_unaligned(unsafe { self.counters_copy.as_slice() }))
    }

    fn planner(&self) -> Planner<'_> {
        Planner {
            spec: &self.spec,
            float_type: self.float_type,
            weights: &self.weights,
            max_batch: self.max_batch,
            speculation: self.speculation.as_ref(),
            most_round_rows: self.rounds_watch.most_rows,
            shared_bytes_per_block: self.context.device().properties().shared_memory_per_block_bytes,
        }
    }

    /// Records the graphs of frames that work in the arena.
    ///
    /// # Safety
    /// As for [`Planner::capture`].
    unsafe fn capture(&self, entered: &Entered<'_>, arena: Address) -> Result<FrameGraphs, DriverError> {
        // SAFETY: the caller's condition.
        unsafe { self.planner().capture(entered, &self.stream, &self.registry, self.places(arena)) }
    }

    fn places(&self, arena: Address) -> Places {
        Places { arena, persistent: self.persistent.address(), host_counters: self.round_counters.address() }
    }

    /// # Safety
    /// As for [`launch`](Self::launch).
    unsafe fn record(
        &mut self,
        entered: &Entered<'_>,
        frame: &FrameBlock,
        stream: &BorrowedStream,
    ) -> Result<(), CudaError> {
        self.upload(entered, stream, frame)?;
        let slots = slots_for(frame.rows.len(), self.max_batch);
        let plan = self.planner().plan(self.places(self.arena.address()), slots);
        let mut machine = StreamMachine { entered, stream, registry: &self.registry };
        for work in plan.launches() {
            // SAFETY: the executor's own addresses live as long as it; the rest is the caller's word.
            unsafe { machine.run(&work) }?;
        }
        self.queue.block = None;
        self.queue.recorded = true;
        Ok(())
    }

    /// Brings the frame block, and begins to count its launches.
    fn upload(
        &mut self,
        entered: &Entered<'_>,
        stream: &BorrowedStream,
        frame: &FrameBlock,
    ) -> Result<(), DriverError> {
        let bytes = &mut self.queue.bytes;
        frame.write_to(bytes);
        let launches =
            counters_address(&self.persistent, self.max_batch) + offset_of!(FrameCounters, launches) as u64;
        let mut target = self.persistent.address();
        for part in bytes.chunks(UPLOAD_WORDS * size_of::<u32>()) {
            let mut arguments = UploadArguments::zeroed();
            arguments.target = target;
            arguments.launches = launches;
            arguments.word_count = (part.len() / size_of::<u32>()) as u32;
            bytemuck::cast_slice_mut(&mut arguments.words)[..part.len()].copy_from_slice(part);
            let shape = LaunchShape { grid: [1, 1, 1], block: 256, shared_bytes: 0, programmatic: false };
            let function = self.registry.function(Kernel::Upload);
            // SAFETY: the target lies in the persistent memory, which is made for the block of the largest batch.
            unsafe { launch(entered, stream, function, &shape, bytemuck::bytes_of(&arguments)) }?;
            target += part.len() as u64;
        }
        Ok(())
    }
}

impl Drop for CudaExecutor {
    fn drop(&mut self) {
        // Memory goes back to the driver, which waits for the device; graphs may go while they run.
        if let (Ok(entered), Some((_, last))) = (self.context.enter(), self.queue.last.take()) {
            drop(last.synchronize(&entered));
        }
    }
}

const fn counters_address(persistent: &DeviceMemory, max_batch: usize) -> Address {
    persistent.address() + block_bytes(max_batch) as u64
}
