//! Frames on a GPU. Where there is none, each test says so and returns.

mod device;
mod fixtures;

use std::sync::LazyLock;

use device::{Frame, context, default_stream, load, predict, table_type};
use fixtures::FLOAT_TYPES;
use fixtures::golden::{GOLDENS, Golden, SETS};
use fixtures::model::{DEEP, Model, ODD, ODD_PROJECTED, TRUE_LAYER};
use fixtures::rows::{Predicted, Row};
use overtone_core::spec::ModelSpec;
use overtone_core::tensor::FloatType;
use overtone_cuda::driver::{Capture, DeviceMemory, OwnedStream};
use overtone_cuda::executor::{CudaExecutor, Taken};

#[test]
fn goldens_are_predicted_in_float32() {
    let Some(_device) = context() else { return };
    for name in GOLDENS {
        let golden = Golden::new(name);
        let (frames, streams) = golden.shape();
        let mut executor = load(&golden.open(), FloatType::Float32, streams);
        let table_type = table_type(&executor);
        for set in SETS {
            for frame in 0..frames {
                for (stream, row) in predict(&mut executor, &golden.rows(set, frame)).iter().enumerate() {
                    golden.check(set, frame, stream, table_type, row);
                }
            }
        }
    }
}

/// Exact sizes, sizes with spare slots, and the largest.
const BATCHES: [usize; 9] = [1, 2, 3, 5, 8, 9, 16, 18, 33];

fn alone(executor: &mut CudaExecutor, rows: &[Row]) -> Vec<Predicted> {
    rows.iter().map(|row| predict(executor, std::slice::from_ref(row)).remove(0)).collect()
}

fn same(found: &[Predicted], expected: &[Predicted]) -> bool {
    found.iter().zip(expected).all(|(found, expected)| found.same(expected))
}

fn check_invariance(spec: &ModelSpec, float_type: FloatType) {
    let count = BATCHES[BATCHES.len() - 1];
    let model = Model::random(spec, FloatType::BFloat16);
    let mut executor = load(&model.open(), float_type, count);
    let rows = Row::random_rows(spec, count);
    let alone = alone(&mut executor, &rows);
    assert!(alone.iter().all(|row| row.status == 0 && row.logits.iter().all(|logit| logit.is_finite())));
    for (turn, batch) in BATCHES.into_iter().enumerate() {
        // Each batch begins with another row.
        let place = |row: usize| (5 * turn + row) % count;
        let batch_rows: Vec<Row> = (0..batch).map(|row| rows[place(row)].clone()).collect();
        for (row, predicted) in predict(&mut executor, &batch_rows).iter().enumerate() {
            let same = predicted.same(&alone[place(row)]);
            assert!(same, "{float_type} {spec:?}: row {row} of {batch} differs from itself alone");
        }
    }
}

#[test]
fn a_stream_alone_is_that_stream_in_any_slot_of_any_batch() {
    let Some(_device) = context() else { return };
    for float_type in FLOAT_TYPES {
        for spec in [ODD, ODD_PROJECTED, DEEP, TRUE_LAYER] {
            check_invariance(&spec, float_type);
        }
    }
}

static MODEL: LazyLock<Model> = LazyLock::new(|| Model::random(&ODD, FloatType::Float32));

fn executor(float_type: FloatType, max_batch: usize) -> CudaExecutor {
    load(&MODEL.open(), float_type, max_batch)
}

#[test]
fn a_row_that_fails_fails_alone_and_the_next_frame_is_sound() {
    let Some(_device) = context() else { return };
    for float_type in FLOAT_TYPES {
        let mut executor = executor(float_type, 3);
        let rows = Row::random_rows(&ODD, 3);
        let good = predict(&mut executor, &rows);
        for poison in [f32::NAN, f32::INFINITY] {
            let mut poisoned = rows.clone();
            poisoned[1].hidden[5] = poison;
            let found = predict(&mut executor, &poisoned);
            assert_eq!((found[1].status, &found[1].codes[1..]), (1, &[0; 3][..]));
            assert!(found[0].same(&good[0]) && found[2].same(&good[2]), "{float_type} {poison}: neighbours");
            assert!(same(&predict(&mut executor, &rows), &good), "{float_type} {poison}: the next frame");
        }
        let mut outside = rows.clone();
        outside[2].code_zero = -1;
        let found = predict(&mut executor, &outside);
        assert_eq!((found[2].status, found[2].codes[0]), (-1, 0));
        assert!(same(&found[..2], &good[..2]));
    }
}

#[test]
fn rows_left_out_write_nothing() {
    let Some(_device) = context() else { return };
    let mut executor = executor(FloatType::BFloat16, 4);
    let mut rows = Row::random_rows(&ODD, 4);
    let good = predict(&mut executor, &rows);
    let untouched = Frame::new(&executor, &rows).read();
    for row in [0, 2] {
        rows[row].active = false;
    }
    let found = predict(&mut executor, &rows);
    assert!(found[1].same(&good[1]) && found[3].same(&good[3]));
    for row in [0, 2] {
        // A status of an earlier frame would be taken for this one's.
        assert!(found[row].same(&Predicted { status: 0, ..untouched[row].clone() }), "row {row} is written");
    }
}

#[test]
fn counters_count_frames_rows_and_failures() {
    let Some(_device) = context() else { return };
    let mut executor = executor(FloatType::BFloat16, 3);
    let mut rows = Row::random_rows(&ODD, 3);
    let counted = |executor: &mut CudaExecutor| {
        let counters = executor.counters().unwrap();
        (counters.frames, counters.rows, counters.failed_rows)
    };
    assert_eq!(counted(&mut executor), (0, 0, 0), "recording a graph runs nothing");
    predict(&mut executor, &rows);
    predict(&mut executor, &rows[..1]);
    assert_eq!(counted(&mut executor), (2, 4, 0));
    rows[0].code_zero = -1;
    rows[2].active = false;
    predict(&mut executor, &rows);
    assert_eq!(counted(&mut executor), (3, 6, 1));
}

#[test]
fn a_lent_arena_may_hold_anything_between_frames() {
    let Some((_alone, context)) = context() else { return };
    let entered = context.enter().unwrap();
    for float_type in FLOAT_TYPES {
        let mut executor = executor(float_type, 9);
        let rows = Row::random_rows(&ODD, 9);
        let good = alone(&mut executor, &rows);
        let bytes = executor.required_context_bytes() as usize;
        let mut arena = DeviceMemory::allocate(&entered, bytes).unwrap();
        // SAFETY: the arena is as large as it has to be, and the executor works elsewhere before it is released.
        unsafe { executor.set_context_memory(Some(arena.address())) }.unwrap();
        assert_eq!(executor.held_bytes().1, 0, "our own arena is released");
        let stream = default_stream(&context);
        for (scribble, batch) in [(0xff, 9), (0x7f, 1), (0xff, 4), (0x00, 9), (0xff, 2)] {
            arena.fill(&entered, &stream, 0, bytes, scribble).unwrap();
            let found = predict(&mut executor, &rows[..batch]);
            assert!(same(&found, &good), "{float_type}, {batch} rows in {scribble:#x}");
        }
        // SAFETY: no address is lent.
        unsafe { executor.set_context_memory(None) }.unwrap();
        arena.fill(&entered, &stream, 0, bytes, 0xff).unwrap();
        assert!(same(&predict(&mut executor, &rows), &good));
        let mut scribbled = vec![0; bytes];
        arena.read(&entered, 0, &mut scribbled).unwrap();
        assert!(scribbled.iter().all(|byte| *byte == 0xff), "a lent arena that was given back is left alone");
    }
}

#[test]
fn memory_does_not_grow_over_a_thousand_frames() {
    let Some((_alone, context)) = context() else { return };
    let mut executor = executor(FloatType::BFloat16, 5);
    let mut rows = Row::random_rows(&ODD, 5);
    let mut frames: Vec<Frame> = (1..=5).map(|batch| Frame::new(&executor, &rows[..batch])).collect();
    let stream = default_stream(&context);
    let free = || context.enter().unwrap().memory().unwrap().free;
    for frame in &frames {
        frame.launch(&mut executor, &stream);
    }
    context.enter().unwrap().synchronize().unwrap();
    let before = free();
    for turn in 0..1000_u64 {
        let frame = &mut frames[turn as usize % 5];
        frame.block.rows.iter_mut().for_each(|row| row.frame_index = turn);
        frame.launch(&mut executor, &stream);
    }
    context.enter().unwrap().synchronize().unwrap();
    assert_eq!(free(), before);
    assert_eq!(executor.counters().unwrap().frames, 1005);
    rows.iter_mut().for_each(|row| row.frame_index = 999);
    let found = frames[4].read();
    assert!(same(&found, &predict(&mut executor, &rows)), "the last frame is like any other");
}

#[test]
fn frames_on_two_streams_run_one_after_another() {
    let Some((_alone, context)) = context() else { return };
    let entered = context.enter().unwrap();
    let mut executor = executor(FloatType::Float32, 3);
    let rows = Row::random_rows(&ODD, 3);
    let good = alone(&mut executor, &rows);
    let streams = [OwnedStream::create(&entered).unwrap(), OwnedStream::create(&entered).unwrap()];
    let frames: Vec<Frame> = (0..60).map(|turn| Frame::new(&executor, &rows[turn % 3..=turn % 3])).collect();
    for (turn, frame) in frames.iter().enumerate() {
        frame.launch(&mut executor, &streams[turn % 2]);
    }
    for (turn, frame) in frames.iter().enumerate() {
        assert!(same(&frame.read(), &good[turn % 3..]), "frame {turn}");
    }
}

#[test]
fn a_frame_index_that_advances_by_itself_draws_as_one_that_is_given() {
    let Some((_alone, context)) = context() else { return };
    let mut executor = executor(FloatType::Float32, 3);
    let stream = default_stream(&context);
    let mut rows = Row::random_rows(&ODD, 3);
    let mut advancing = Frame::new(&executor, &rows);
    advancing.block.header.advance_frame_index = 1;
    for turn in 0..4 {
        advancing.launch(&mut executor, &stream);
        let found = advancing.read();
        advancing.block.rows.iter_mut().for_each(|row| row.frame_index += 1);
        // A frame in between has another block brought to the device.
        if turn % 2 == 1 {
            assert!(same(&found, &predict(&mut executor, &rows)), "turn {turn}");
        }
        rows.iter_mut().for_each(|row| row.frame_index += 1);
    }
}

#[test]
fn a_recorded_frame_is_replayed_with_its_index_advanced() {
    let Some((_alone, context)) = context() else { return };
    let entered = context.enter().unwrap();
    let stream = OwnedStream::create(&entered).unwrap();
    let mut executor = executor(FloatType::BFloat16, 3);
    let mut rows = Row::random_rows(&ODD, 3);
    rows.iter_mut().for_each(|row| row.frame_index = 7);
    let mut index = DeviceMemory::allocate(&entered, 8).unwrap();
    index.write(&entered, 0, &7_i64.to_le_bytes()).unwrap();
    let mut frame = Frame::new(&executor, &rows);
    let int64 = overtone_cuda::arguments::ElementType::Int64;
    frame.block.header.frame_index =
        overtone_cuda::frame::TensorReference::new(index.address(), int64, &[0], 1);
    frame.block.header.advance_frame_index = 1;
    let capture = Capture::begin(&entered, &stream).unwrap();
    assert_eq!(frame.launch(&mut executor, capture.stream()), Taken::Recorded);
    let graph = capture.finish().unwrap().instantiate(&entered).unwrap();
    for _ in 0..3 {
        // SAFETY: the frame, its index and the executor live until the launch has been waited for.
        unsafe { graph.launch(&entered, &stream) }.unwrap();
        let found = frame.read();
        assert!(same(&found, &predict(&mut executor, &rows)), "frame {}", rows[0].frame_index);
        rows.iter_mut().for_each(|row| row.frame_index += 1);
    }
    let mut advanced = [0; 8];
    index.read(&entered, 0, &mut advanced).unwrap();
    assert_eq!(i64::from_le_bytes(advanced), 10);
}
