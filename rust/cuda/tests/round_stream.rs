//! The round stream on a GPU, with the toy engine of the example. Where there is none, each test says so and returns.

#![allow(clippy::unwrap_used)] // helpers of tests

#[path = "../examples/toy_engine/mod.rs"]
mod toy_engine;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use overtone_cuda::driver::{Capture, Context, DeviceMemory, Driver, Entered, OwnedStream};
use overtone_cuda::graphs::StreamMachine;
use overtone_cuda::kernels::Registry;
use overtone_cuda::kv_lengths::{KvLengthTable, KvLengths, LayerLengths, LengthsError};
use overtone_cuda::machine::Machine;
use overtone_cuda::round_stream::{DrainedRow, RowStart, StreamBufs, StreamError, StreamShape, rollback};
use toy_engine::{CODE_COUNT, ToyEngine, next};

/// A context for the one test that runs.
fn context() -> Option<(MutexGuard<'static, ()>, Arc<Context>)> {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    match Driver::get() {
        Ok(driver) => Some((alone, Context::retain(driver, driver.device(0).unwrap()).unwrap())),
        Err(error) => {
            eprintln!("not run: {error}");
            None
        }
    }
}

/// A toy engine with three layers, the second without a KV cache.
struct Run<'a> {
    entered: &'a Entered<'a>,
    stream: &'a OwnedStream,
    registry: Registry,
    bufs: StreamBufs,
    layers: [Arc<LayerLengths>; 2],
    _table: KvLengthTable,
    engine: ToyEngine,
    /// The code that each row committed last.
    last: Vec<u32>,
}

impl<'a> Run<'a> {
    /// The third row ends after two codes, the sixth after five, and so on; the others do not end.
    fn new(
        entered: &'a Entered<'a>,
        stream: &'a OwnedStream,
        batch: usize,
        drafts: usize,
        rounds: usize,
    ) -> Self {
        let registry = Registry::load(entered).unwrap();
        let shape = StreamShape::new(batch, drafts, rounds, CODE_COUNT).unwrap();
        let mut bufs = StreamBufs::allocate(entered, stream, shape).unwrap();
        let layers = [(); 2].map(|()| LayerLengths::allocate(entered, stream, batch).unwrap());
        let [first, third] = layers.clone();
        let lengths = KvLengths::new(batch, vec![Some(first), None, Some(third)]).unwrap();
        let table = lengths.kv_len_ptr_table(entered, stream, Some(bufs.position())).unwrap();
        assert_eq!((table.table().rows(), table.table().batch()), (4, batch));
        let engine = ToyEngine::new(entered, &bufs, &table).unwrap();
        let codes: Vec<u32> = (0..batch as u32).map(|row| row * 37 % CODE_COUNT as u32).collect();
        for (row, code) in codes.iter().enumerate() {
            let left = (row % 3 == 2).then_some(row);
            engine.start_row(entered, stream, &mut bufs, row, *code, left).unwrap();
        }
        let last = codes.into_iter().map(next).collect();
        Self { entered, stream, registry, bufs, layers, _table: table, engine, last }
    }

    fn burst(&self) {
        let mut machine =
            StreamMachine { entered: self.entered, stream: self.stream, registry: &self.registry };
        // SAFETY: this value lives until the stream was waited for.
        unsafe { self.engine.burst(&mut machine) }.unwrap();
    }

    fn ints(&self, address: u64) -> Vec<i32> {
        self.stream.synchronize(self.entered).unwrap();
        read(self.entered, address, self.last.len())
    }

    /// Reads a burst, and checks that its codes are those of the plain loop and its lengths those of its codes.
    fn drain(&mut self) -> Vec<DrainedRow> {
        let before = self.last.clone();
        let drained = self.bufs.drain_ring(self.entered, self.stream).unwrap();
        for (row, drained) in drained.iter().enumerate() {
            for code in &drained.codes {
                self.last[row] = next(self.last[row]);
                assert_eq!(*code, self.last[row], "row {row} after {}", before[row]);
            }
            let counters = drained.counters;
            assert_eq!(counters.codes, drained.codes.len() as u64);
            assert_eq!(counters.codes, counters.accepted + counters.rounds, "row {row}");
            assert!(!drained.failed && counters.accepted <= counters.drafted);
        }
        drained
    }
}

/// int32 at an address, once nothing writes there.
fn read(entered: &Entered<'_>, address: u64, count: usize) -> Vec<i32> {
    let mut values = vec![0_i32; count];
    let bytes = bytemuck::cast_slice_mut::<i32, u8>(&mut values);
    let stream = OwnedStream::create(entered).unwrap();
    // SAFETY: the caller's address is of as many int32; pageable memory has been written when the stream was waited
    // for.
    unsafe {
        overtone_cuda::driver::copy_device_to_host(entered, &stream, bytes.as_mut_ptr(), address, bytes.len())
    }
    .unwrap();
    stream.synchronize(entered).unwrap();
    values
}

#[test]
fn bursts_issued_blind_commit_the_codes_of_the_plain_loop() {
    let Some((_alone, context)) = context() else { return };
    let entered = context.enter().unwrap();
    let stream = OwnedStream::create(&entered).unwrap();
    for (batch, drafts, rounds) in [(1, 1, 1), (1, 4, 8), (5, 7, 3), (40, 31, 4), (700, 3, 5)] {
        let mut run = Run::new(&entered, &stream, batch, drafts, rounds);
        let mut committed = vec![0; batch];
        for _ in 0..4 {
            run.burst();
            for (row, drained) in run.drain().iter().enumerate() {
                committed[row] += drained.codes.len() as i32;
                match row % 3 {
                    2 => assert_eq!(drained.codes_left, Some(row - committed[row] as usize)),
                    _ => assert!(drained.codes_left.is_none() && drained.counters.rounds == rounds as u64),
                }
            }
            for address in [run.bufs.layout().position, run.layers[0].address(), run.layers[1].address()] {
                assert_eq!(
                    run.ints(address),
                    committed,
                    "what is fed is the code pending at the start and all but the last"
                );
            }
        }
        assert!(
            drafts == 1 || committed.iter().any(|codes| *codes > 4 * rounds as i32),
            "drafts are accepted"
        );
    }
}

#[test]
fn a_burst_recorded_into_a_graph_is_the_same_burst() {
    let Some((_alone, context)) = context() else { return };
    let entered = context.enter().unwrap();
    let stream = OwnedStream::create(&entered).unwrap();
    let (mut plain, mut replayed) =
        (Run::new(&entered, &stream, 9, 5, 6), Run::new(&entered, &stream, 9, 5, 6));
    let capture = Capture::begin(&entered, &stream).unwrap();
    let mut machine =
        StreamMachine { entered: &entered, stream: capture.stream(), registry: &replayed.registry };
    // SAFETY: `replayed` lives until the last launch of the graph has completed.
    unsafe { replayed.engine.burst(&mut machine) }.unwrap();
    let graph = capture.finish().unwrap();
    assert_eq!(graph.nodes().unwrap(), 6 * 7, "nothing but kernels");
    let graph = graph.instantiate(&entered).unwrap();
    for _ in 0..3 {
        plain.burst();
        let expected = plain.drain();
        // SAFETY: as above.
        unsafe { graph.launch(&entered, &stream) }.unwrap();
        assert_eq!(replayed.drain(), expected);
    }
}

#[test]
fn a_ring_that_was_not_read_overflows_by_name_and_rows_go_on() {
    let Some((_alone, context)) = context() else { return };
    let entered = context.enter().unwrap();
    let stream = OwnedStream::create(&entered).unwrap();
    let mut run = Run::new(&entered, &stream, 2, 1, 2);
    // Two rounds of one draft fill four places at most, and five bursts commit ten codes at least.
    (0..5).for_each(|_| run.burst());
    let overflow = StreamError::RingOverflow { row: 0, found: 4, capacity: 4 };
    assert_eq!(run.bufs.drain_ring(&entered, &stream), Err(overflow));
    run.last = run.ints(run.bufs.layout().pending).into_iter().map(i32::cast_unsigned).collect();
    run.burst();
    assert!(!run.drain()[1].codes.is_empty());
}

#[test]
fn a_row_starts_anew_while_its_neighbours_go_on() {
    let Some((_alone, context)) = context() else { return };
    let entered = context.enter().unwrap();
    let stream = OwnedStream::create(&entered).unwrap();
    let mut run = Run::new(&entered, &stream, 4, 3, 4);
    run.burst();
    run.drain();
    run.engine.start_row(&entered, &stream, &mut run.bufs, 0, 600, Some(5)).unwrap();
    run.last[0] = next(600);
    run.burst();
    let drained = run.drain();
    assert_eq!((drained[0].codes.len(), drained[0].codes_left), (5, Some(0)));
    run.bufs.start_row(&entered, &stream, 1, &RowStart::default()).unwrap();
    run.burst();
    let drained = run.drain();
    assert!(drained[1].codes.is_empty() && drained[3].counters.rounds == 4);
}

#[test]
fn a_table_over_a_range_leaves_other_layers_alone_and_holds_its_own() {
    let Some((_alone, context)) = context() else { return };
    let entered = context.enter().unwrap();
    let stream = OwnedStream::create(&entered).unwrap();
    let registry = Registry::load(&entered).unwrap();
    let shape = StreamShape::new(2, 3, 1, CODE_COUNT).unwrap();
    let mut bufs = StreamBufs::allocate(&entered, &stream, shape).unwrap();
    for row in 0..2 {
        let start = RowStart { position: 5 + row, pending: Some(1), ..RowStart::default() };
        bufs.start_row(&entered, &stream, row, &start).unwrap();
    }
    // Lengths of a cache that somebody lends.
    let lent = Arc::new(DeviceMemory::allocate(&entered, 8).unwrap());
    let address = lent.address();
    // SAFETY: the memory holds two int32 and is of this context.
    let lent = unsafe { LayerLengths::lend(&context, address, 2, lent) }.unwrap();
    let weak = Arc::downgrade(&lent);
    let own = LayerLengths::allocate(&entered, &stream, 2).unwrap();
    let lengths = KvLengths::new(2, vec![Some(Arc::clone(&own)), None, Some(lent)]).unwrap();
    let table = lengths.kv_len_ptr_table_range(&entered, &stream, 1..3, None).unwrap();
    assert_eq!((table.table().rows(), table.table().position()), (2, None));
    let refused = lengths.kv_len_ptr_table_range(&entered, &stream, 1..4, None);
    assert_eq!(refused.map(|_| ()), Err(LengthsError::Range { range: 1..4, layers: 3 }));
    let other = LayerLengths::allocate(&entered, &stream, 3).unwrap();
    let refused = lengths.kv_len_ptr_table(&entered, &stream, Some(&other));
    assert_eq!(refused.map(|_| ()), Err(LengthsError::Batch { layer: 3, found: 3, expected: 2 }));
    drop(lengths);
    assert!(weak.upgrade().is_some(), "the table holds what it points at");
    let mut machine = StreamMachine { entered: &entered, stream: &stream, registry: &registry };
    // SAFETY: buffers, table and lengths live until the stream was waited for.
    unsafe { machine.run(&rollback(bufs.layout(), &table.table()).unwrap()) }.unwrap();
    stream.synchronize(&entered).unwrap();
    assert_eq!(read(&entered, address, 2), [5, 6]);
    assert_eq!(read(&entered, own.address(), 2), [0, 0]);
    drop(table);
    assert!(weak.upgrade().is_none());
}
