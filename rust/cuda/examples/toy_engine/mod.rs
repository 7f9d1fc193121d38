//! A toy engine for the round stream: its next code is a function of the last one, and its drafts are right three times
//! in four. It stands for a model, with kernels of its own ([`toy_engine.ptx`](toy_engine.ptx)) that the driver
//! compiles.

use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
use overtone_cuda::driver::{
    BorrowedStream, DeviceMemory, DriverError, Entered, Function, LaunchShape, Module, copy_host_to_device,
    launch,
};
use overtone_cuda::graphs::StreamMachine;
use overtone_cuda::kv_lengths::KvLengthTable;
use overtone_cuda::round_stream::{Drafts, Phase, RoundPlan, RowStart, Seeds, StreamBufs, StreamError};

/// Codes of the engine: 0 to 1023.
pub const CODE_COUNT: usize = 1024;

/// A draft is wrong where these bits of it are all set.
const WRONG: u32 = 3;

const THREADS: u32 = 256;
const PTX: &str = concat!(include_str!("toy_engine.ptx"), "\0");

/// The code after `code`: every code comes once before any comes again.
pub const fn next(code: u32) -> u32 {
    (5 * code + 3) % CODE_COUNT as u32
}

/// The struct that both kernels take.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct ToyArguments {
    verify_codes: u64,
    drafts: u64,
    drawn: u64,
    hidden: u64,
    seeds: u64,
    table: u64,
    batch: u32,
    drafts_of_row: u32,
    layers: u32,
    wrong: u32,
}

/// The engine on a device, made for one stream and its lengths.
#[derive(Debug)]
pub struct ToyEngine {
    draft: Function,
    verify: Function,
    /// Drafts [B, k] int32, drawn [B, k + 1] int32, hidden [B, k + 1] float32, seeds `[B]` float32.
    memory: DeviceMemory,
    arguments: ToyArguments,
    plan: RoundPlan,
}

impl ToyEngine {
    /// An engine whose rounds run on `bufs`, with its layers' lengths and the position counter in `lengths`.
    ///
    /// # Errors
    /// Those of the plan, or the driver's.
    pub fn new(
        entered: &Entered<'_>,
        bufs: &StreamBufs,
        lengths: &KvLengthTable,
    ) -> Result<Self, StreamError> {
        // SAFETY: the image is PTX that ends with a NUL.
        let module: Arc<Module> = unsafe { Module::load(entered, "the toy engine", PTX.as_bytes()) }?;
        let function = |name| -> Result<Function, DriverError> {
            Ok(module.function(entered, name)?.expect("the PTX holds both kernels"))
        };
        let (layout, table) = (bufs.layout(), lengths.table());
        let (batch, drafts, entries) =
            (layout.shape().batch(), layout.shape().drafts(), layout.shape().verify_rows());
        let memory = DeviceMemory::allocate(entered, 4 * batch * (drafts + 2 * entries + 1))?;
        let at = |words: usize| memory.address() + 4 * (batch * words) as u64;
        let arguments = ToyArguments {
            verify_codes: layout.verify_codes,
            drafts: at(0),
            drawn: at(drafts),
            hidden: at(drafts + entries),
            seeds: at(drafts + 2 * entries),
            table: table.address(),
            batch: batch as u32,
            drafts_of_row: drafts as u32,
            // The position counter, last in the table, is not the engine's.
            layers: table.rows() as u32 - 1,
            wrong: WRONG,
        };
        let plan = RoundPlan::new(
            *layout,
            Drafts { codes: arguments.drafts, probabilities: None },
            arguments.drawn,
            table,
            Some(Seeds { hidden: arguments.hidden, seeds: arguments.seeds, row_bytes: 4 }),
        )?;
        Ok(Self { draft: function("toy_draft")?, verify: function("toy_verify")?, memory, arguments, plan })
    }

    /// Lets a row begin behind `code`, as a prefill would: its hidden row seeds the first drafts, and the code after it
    /// is pending.
    ///
    /// # Errors
    /// A row or a code out of range, or the driver's.
    pub fn start_row(
        &self,
        entered: &Entered<'_>,
        stream: &BorrowedStream,
        bufs: &mut StreamBufs,
        row: usize,
        code: u32,
        codes_left: Option<usize>,
    ) -> Result<(), StreamError> {
        let start = RowStart { pending: Some(next(code)), codes_left, ..RowStart::default() };
        bufs.start_row(entered, stream, row, &start)?;
        let seed = (code as f32).to_ne_bytes();
        let address = self.arguments.seeds + 4 * row as u64;
        assert!(address < self.memory.address() + self.memory.bytes() as u64);
        // SAFETY: the row's seed is in this value's memory; pageable bytes have been read when the call returns.
        Ok(unsafe { copy_host_to_device(entered, stream, address, seed.as_ptr(), seed.len()) }?)
    }

    /// Queues a burst on the machine's stream, or records it there.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// The stream's buffers, the table and this engine live until the burst, or the last launch of the graph that it is
    /// recorded into, has completed.
    pub unsafe fn burst(&self, machine: &mut StreamMachine<'_>) -> Result<(), DriverError> {
        let shape = LaunchShape {
            grid: [self.arguments.batch.div_ceil(THREADS), 1, 1],
            block: THREADS,
            shared_bytes: 0,
            programmatic: false,
        };
        let engine = |machine: &mut StreamMachine<'_>, phase: Phase| {
            let function = match phase {
                Phase::Draft => &self.draft,
                Phase::Verify => &self.verify,
            };
            let arguments = bytemuck::bytes_of(&self.arguments);
            // SAFETY: the caller keeps what the addresses are of.
            unsafe { launch(machine.entered, machine.stream, function, &shape, arguments) }
        };
        // SAFETY: the caller's condition.
        unsafe { self.plan.burst(machine, engine) }
    }
}
