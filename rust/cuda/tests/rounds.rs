//! Frames in rounds on a GPU. Where there is none, each test says so and returns.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod device;
mod fixtures;

use std::ops::ControlFlow;

use device::{Frame, context, default_stream, load, load_with, predict};
use fixtures::FLOAT_TYPES;
use fixtures::golden::{GOLDENS, Golden, SETS};
use fixtures::model::{DEEP, LONG, Model, ODD, ODD_PROJECTED, TRUE_LAYER};
use fixtures::rows::{Predicted, Row};
use overtone_core::rounds::{DraftShape, DraftTree, Speculation};
use overtone_core::spec::ModelSpec;
use overtone_core::tensor::FloatType;
use overtone_cuda::driver::{DeviceMemory, OwnedStream};
use overtone_cuda::executor::Taken;
use overtone_cuda::frame::FrameCounters;
use overtone_cuda::graphs::StreamMachine;
use overtone_cuda::kernels::{Kernel, Registry};
use overtone_cuda::layout::{RoundExtent, WorkspaceAddresses};
use overtone_cuda::load::{Source, staging_bytes, weight_addresses};
use overtone_cuda::machine::Machine;
use overtone_cuda::plan::FramePlan;
use overtone_cuda::rounds::RoundPlan;
use overtone_cuda::rounds::arguments::RoundCounters;

fn same(found: &[Predicted], expected: &[Predicted]) -> bool {
    found.iter().zip(expected).all(|(found, expected)| found.same(expected))
}

/// Chains and siblings of several windows, and a tree of both.
fn speculations() -> Vec<Speculation> {
    let shapes = [DraftShape::Chain, DraftShape::Siblings].into_iter();
    let windows = shapes.flat_map(|shape| [2, 3, 5, 8].map(|window| Speculation::new(shape, window, None)));
    let tree = DraftTree::new(&[(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (4, 0)]);
    windows.flatten().chain([Speculation { tree, least_probability: Some(0.01) }]).collect()
}

#[test]
fn goldens_are_predicted_in_rounds() {
    let Some(_device) = context() else { return };
    for name in GOLDENS {
        let golden = Golden::new(name);
        let (frames, streams) = golden.shape();
        for speculation in speculations() {
            let mut executor = load_with(&golden.open(), FloatType::Float32, streams, Some(speculation));
            let table_type = device::table_type(&executor);
            for set in SETS {
                for frame in 0..frames {
                    let rows = golden.rows(set, frame);
                    for (stream, row) in predict(&mut executor, &rows).iter().enumerate() {
                        golden.check(set, frame, stream, table_type, row);
                    }
                }
            }
        }
    }
}

fn check(spec: &ModelSpec, float_type: FloatType) {
    const BATCHES: [usize; 6] = [1, 2, 5, 9, 18, 33];
    let model = Model::random(spec, FloatType::BFloat16);
    let rows = Row::random_rows(spec, 33);
    let mut plain = load(&model.open(), float_type, 33);
    let expected: Vec<_> = BATCHES.iter().map(|batch| predict(&mut plain, &rows[..*batch])).collect();
    drop(plain);
    for speculation in speculations() {
        let mut executor = load_with(&model.open(), float_type, 33, Some(speculation));
        for (batch, expected) in BATCHES.iter().zip(&expected) {
            let found = predict(&mut executor, &rows[..*batch]);
            assert!(same(&found, expected), "{float_type} {spec:?} {speculation:?}: batch {batch}");
        }
        let counted = executor.round_counters();
        assert_eq!(counted[0].frames, BATCHES.len() as u64);
        assert_eq!(counted[32].frames, 1);
        for row in &counted {
            assert_eq!(row.codes, row.frames * (spec.residual_codebooks as u64 - 1));
            assert_eq!(row.rounds + row.accepted, row.codes);
        }
        assert!(
            *spec != LONG || counted.iter().any(|row| row.accepted > 0),
            "{speculation:?}: no draft was right"
        );
    }
}

#[test]
fn rounds_change_nothing_in_any_batch() {
    let Some(_device) = context() else { return };
    for float_type in FLOAT_TYPES {
        for spec in [ODD, LONG, ODD_PROJECTED, DEEP, TRUE_LAYER] {
            check(&spec, float_type);
        }
    }
}

#[test]
fn a_row_that_fails_in_rounds_fails_alone_and_rows_left_out_write_nothing() {
    let Some(_device) = context() else { return };
    let model = Model::random(&LONG, FloatType::Float32);
    let rows = Row::random_rows(&LONG, 4);
    for speculation in speculations() {
        let mut executor = load_with(&model.open(), FloatType::BFloat16, 4, Some(speculation));
        let good = predict(&mut executor, &rows);
        let untouched = Frame::new(&executor, &rows).read();
        let mut asked = rows.clone();
        asked[1].hidden[5] = f32::NAN;
        asked[2].active = false;
        let found = predict(&mut executor, &asked);
        assert_eq!((found[1].status, &found[1].codes[1..]), (1, &[0; 15][..]));
        assert!(found[2].same(&Predicted { status: 0, ..untouched[2].clone() }), "a row left out is written");
        assert!(found[0].same(&good[0]) && found[3].same(&good[3]), "neighbours");
        asked.iter_mut().for_each(|row| row.active = false);
        predict(&mut executor, &asked);
        assert!(same(&predict(&mut executor, &rows), &good), "the next frame");
    }
}

#[test]
fn rounds_can_be_switched_off_and_on() {
    let Some(_device) = context() else { return };
    let model = Model::random(&LONG, FloatType::Float32);
    let rows = Row::random_rows(&LONG, 3);
    let mut executor =
        load_with(&model.open(), FloatType::BFloat16, 3, Speculation::new(DraftShape::Siblings, 8, None));
    let stream = default_stream(executor.context());
    let frame = Frame::new(&executor, &rows);
    let read = |executor: &mut _| {
        assert_eq!(frame.launch(executor, &stream), Taken::Launched);
        frame.read()
    };
    let expected = read(&mut executor);
    for in_rounds in [false, true, false] {
        executor.set_in_rounds(in_rounds);
        assert_eq!(executor.is_in_rounds(), in_rounds);
        assert!(same(&read(&mut executor), &expected));
    }
    assert_eq!(executor.round_counters()[0].frames, 2);
}

/// Loads a model without an executor, and gives a frame's launches to a stream: as many rounds as a frame can have.
fn launched_one_by_one(
    model: &Model,
    float_type: FloatType,
    rows: &[Row],
    speculation: &Speculation,
) -> Vec<Predicted> {
    let checkpoint = model.open();
    // Its tables and tensors; the launches below have weights of their own.
    let executor = load(&checkpoint, float_type, rows.len());
    let frame = Frame::new(&executor, rows);
    let context = std::sync::Arc::clone(executor.context());
    let entered = context.enter().unwrap();
    let registry = Registry::load(&entered).unwrap();
    let stream = OwnedStream::create(&entered).unwrap();
    let zeroed = |bytes: u64| DeviceMemory::zeroed(&entered, &stream, bytes as usize).unwrap();
    let mut machine = StreamMachine { entered: &entered, stream: &stream, registry: &registry };
    let source = Source { checkpoint: &checkpoint, drafts: None };
    let weights_memory = zeroed(weight_addresses(source, float_type, 0).bytes);
    let weights = weight_addresses(source, float_type, weights_memory.address());
    let staging = zeroed(staging_bytes(source, float_type));
    let mut progress = |_, _| ControlFlow::Continue(());
    // SAFETY: both memories are as large as they have to be, and zeroed.
    unsafe {
        overtone_cuda::load::load(
            &mut machine,
            source,
            float_type,
            &weights,
            staging.address(),
            &mut progress,
        )
    }
    .unwrap();
    let spec = checkpoint.spec();
    let rounds = Some(RoundExtent::new(&speculation.tree, false, rows.len()));
    let layout = |base| WorkspaceAddresses::new(spec, float_type, rows.len(), rounds, base);
    let workspace_memory = zeroed(layout(0).bytes);
    let workspace = layout(workspace_memory.address());
    let mut block = Vec::new();
    frame.block.write_to(&mut block);
    let mut block_memory = zeroed(block.len() as u64);
    block_memory.write(&entered, 0, &block).unwrap();
    let counters = zeroed(size_of::<FrameCounters>() as u64);
    let round_counters = zeroed((rows.len() * size_of::<RoundCounters>()) as u64);
    let plan = FramePlan {
        spec,
        float_type,
        weights: &weights,
        workspace,
        frame: block_memory.address(),
        counters: counters.address(),
        slots: rows.len(),
        shared_bytes_per_block: context.device().properties().shared_memory_per_block_bytes,
    };
    let plan = RoundPlan {
        frame: plan,
        speculation,
        addresses: workspace.rounds.unwrap(),
        counters: round_counters.address(),
        host_counters: 0,
        conditional: 0,
    };
    for kernel in Kernel::ALL {
        registry.allow_shared_bytes(&entered, *kernel, plan.most_shared_bytes(rows.len())).unwrap();
    }
    let launches = plan.launches();
    let rounds = std::iter::repeat_n(&launches.round, spec.residual_codebooks - 1).flatten();
    for work in launches.before.iter().chain(rounds) {
        // SAFETY: the addresses in the plan are of memory that lives until the stream has completed, below.
        unsafe { machine.run(work) }.unwrap();
    }
    stream.synchronize(&entered).unwrap();
    frame.read()
}

#[test]
fn rounds_that_the_host_launches_one_by_one_are_the_same_frame() {
    let Some(_device) = context() else { return };
    let model = Model::random(&LONG, FloatType::BFloat16);
    let rows = Row::random_rows(&LONG, 3);
    for float_type in FLOAT_TYPES {
        let expected = predict(&mut load(&model.open(), float_type, 3), &rows);
        for speculation in speculations().into_iter().step_by(4) {
            let found = launched_one_by_one(&model, float_type, &rows, &speculation);
            assert!(same(&found, &expected), "{float_type} {speculation:?}");
        }
    }
}
