//! Frames in rounds on the kernels: whatever is drafted, a row gets bit for bit what it gets step by step.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod host;

use std::ops::ControlFlow;
use std::sync::Arc;

use host::fixtures::FLOAT_TYPES;
use host::fixtures::golden::{GOLDENS, Golden, SETS};
use host::fixtures::model::{DEEP, LONG, Model, ODD, ODD_PROJECTED, TRUE_LAYER};
use host::fixtures::rows::{Predicted, Row};
use host::predictor::{Frame, Predictor};
use overtone_core::checkpoint::Checkpoint;
use overtone_core::checkpoint::drafts::{self, DraftName, Drafts, FitRecord};
use overtone_core::checkpoint::tensor_file::FileTensor;
use overtone_core::cpu::executor::CpuOptions;
use overtone_core::cpu::{CpuExecutor, WeightType};
use overtone_core::frame::{FrameInputs, FrameOutputs, RowSampling};
use overtone_core::rounds::{DraftShape, DraftTree, RoundCounters, Speculation};
use overtone_core::spec::ModelSpec;
use overtone_core::tensor::FloatType;
use overtone_simt::Schedule;

const SHAPES: [DraftShape; 2] = [DraftShape::Chain, DraftShape::Siblings];

fn same(found: &[Predicted], expected: &[Predicted]) -> bool {
    found.len() == expected.len() && found.iter().zip(expected).all(|(found, expected)| found.same(expected))
}

fn speculation(tree: DraftTree) -> Option<Speculation> {
    Some(Speculation { tree, least_probability: None })
}

/// Every window of a shape, or a few of them.
fn check(spec: &ModelSpec, float_type: FloatType, windows: &[usize], batches: &[(usize, usize)]) {
    let model = Model::random(spec, FloatType::BFloat16);
    let mut predictor = Predictor::load(&model.open(), float_type);
    for &(batch, slots) in batches {
        let rows = Row::random_rows(spec, batch);
        predictor.speculation = None;
        let expected = predictor.predict(&rows, slots);
        for shape in SHAPES {
            for &window in windows {
                predictor.speculation = Speculation::new(shape, window, None);
                let found = predictor.predict(&rows, slots);
                assert!(same(&found, &expected), "{float_type} {shape:?} {window}, {batch} rows in {slots}");
                for counted in &predictor.counted[..batch] {
                    let left = spec.residual_codebooks as u64 - 1;
                    assert_eq!((counted.frames, counted.codes), (1, left));
                    assert_eq!(
                        counted.rounds + counted.accepted,
                        left,
                        "a round draws one code and those accepted"
                    );
                    assert!(counted.drafted >= counted.accepted);
                }
                let right = predictor.counted.iter().any(|counted| counted.accepted > 0);
                assert!(*spec != LONG || right, "{shape:?} {window}: no draft was right");
            }
        }
    }
}

const BATCHES: [(usize, usize); 4] = [(1, 1), (2, 2), (3, 5), (9, 9)];

#[test]
fn rounds_change_nothing_in_float32() {
    check(&ODD, FloatType::Float32, &[2, 5], &BATCHES);
    check(&LONG, FloatType::Float32, &[3, 8], &BATCHES[..3]);
}

#[test]
fn rounds_change_nothing_in_bfloat16() {
    check(&ODD, FloatType::BFloat16, &[2, 5], &BATCHES);
    check(&LONG, FloatType::BFloat16, &[3, 8], &BATCHES[..3]);
}

#[test]
fn rounds_change_nothing_in_float16() {
    check(&ODD, FloatType::Float16, &[2, 5], &BATCHES);
    check(&LONG, FloatType::Float16, &[3, 8], &BATCHES[..3]);
}

#[test]
fn rounds_change_nothing_behind_a_projection_and_in_wide_layers() {
    for float_type in FLOAT_TYPES {
        check(&ODD_PROJECTED, float_type, &[4], &[(2, 3)]);
        check(&DEEP, float_type, &[4], &[(2, 2)]);
    }
}

#[test]
fn rounds_change_nothing_at_the_true_size_of_a_layer() {
    for float_type in [FloatType::Float32, FloatType::BFloat16] {
        check(&TRUE_LAYER, float_type, &[8], &[(1, 1)]);
    }
}

#[test]
fn a_tree_of_chains_and_siblings_changes_nothing() {
    let model = Model::random(&LONG, FloatType::BFloat16);
    let mut predictor = Predictor::load(&model.open(), FloatType::BFloat16);
    let rows = Row::random_rows(&LONG, 3);
    let expected = predictor.predict(&rows, 3);
    for drafts in [
        &[(0, 0), (0, 1), (1, 0), (1, 1), (3, 0)][..],
        &[(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (4, 0)][..],
    ] {
        predictor.speculation = speculation(DraftTree::new(drafts));
        assert!(same(&predictor.predict(&rows, 3), &expected), "{drafts:?}");
    }
}

#[test]
fn drafts_that_are_improbable_are_not_verified() {
    let model = Model::random(&LONG, FloatType::BFloat16);
    let mut predictor = Predictor::load(&model.open(), FloatType::Float32);
    let rows = Row::random_rows(&LONG, 2);
    let expected = predictor.predict(&rows, 2);
    let mut drafted = Vec::new();
    for least_probability in [None, Some(0.05), Some(0.999)] {
        for tree in [DraftTree::chain(3), DraftTree::siblings(5)] {
            predictor.speculation = Some(Speculation { tree, least_probability });
            assert!(same(&predictor.predict(&rows, 2), &expected), "{least_probability:?} {tree:?}");
            drafted.push(predictor.counted.iter().map(|row| row.drafted).sum::<u64>());
        }
    }
    assert!(drafted[0] > drafted[2] && drafted[1] > drafted[3], "{drafted:?}");
    assert_eq!(drafted[4..], [0, 0]);
}

#[test]
fn rows_that_fail_or_are_left_out_leave_their_neighbours_alone() {
    let model = Model::random(&LONG, FloatType::BFloat16);
    for float_type in FLOAT_TYPES {
        let mut predictor = Predictor::load(&model.open(), float_type);
        let mut rows = Row::random_rows(&LONG, 4);
        rows[1].hidden[5] = f32::NAN;
        rows[2].active = false;
        rows[3].code_zero = -1;
        let expected = predictor.predict(&rows, 5);
        assert_eq!((expected[1].status, expected[3].status), (1, -1));
        for shape in SHAPES {
            predictor.speculation = Speculation::new(shape, 4, None);
            assert!(same(&predictor.predict(&rows, 5), &expected), "{float_type} {shape:?}");
            let took_part: Vec<u64> = predictor.counted.iter().map(|counted| counted.frames).collect();
            assert_eq!(took_part, [1, 1, 0, 1, 0]);
        }
    }
}

#[test]
fn the_order_of_threads_changes_no_round() {
    let model = Model::random(&LONG, FloatType::BFloat16);
    let mut predictor = Predictor::load(&model.open(), FloatType::BFloat16);
    let rows = Row::random_rows(&LONG, 2);
    let expected = predictor.predict(&rows, 2);
    for shape in SHAPES {
        predictor.speculation = Speculation::new(shape, 5, Some(0.01));
        predictor.host.schedule = Schedule::Natural;
        predictor.predict(&rows, 2);
        let counted = predictor.counted.clone();
        for seed in [0, 1, u64::MAX] {
            predictor.host.schedule = Schedule::Seeded(seed);
            assert!(same(&predictor.predict(&rows, 2), &expected), "{shape:?}, seed {seed}");
            assert_eq!(predictor.counted, counted, "{shape:?}, seed {seed}");
        }
    }
}

#[test]
fn a_frame_in_what_other_rounds_left_is_the_same_frame() {
    let model = Model::random(&LONG, FloatType::BFloat16);
    let mut predictor = Predictor::load(&model.open(), FloatType::BFloat16);
    let rows = Row::random_rows(&LONG, 3);
    let expected = predictor.predict(&rows, 3);
    predictor.speculation = Speculation::new(DraftShape::Siblings, 6, None);
    let workspace = predictor.workspace(3);
    for batch in [3, 1, 2, 3] {
        let frame = Frame::new(&predictor, &rows[..batch]);
        predictor.run(&frame, batch, &workspace);
        assert!(same(&frame.read(), &expected[..batch]), "{batch} rows");
    }
}

/// A golden's frames in float32, and the CPU executor's: what they predict is the reference's, and both count the same rounds.
fn check_golden(name: &str, set: &str, speculation: Speculation, drafts: bool) {
    let golden = Golden::new(name);
    let checkpoint = golden.open();
    let (_, streams) = golden.shape();
    let directory = tempfile::tempdir().unwrap();
    let drafts = drafts.then(|| {
        let file = directory.path().join(drafts::FILE_NAME);
        let tensor = |name: DraftName| {
            let shape = name.shape(checkpoint.spec());
            let values: Vec<f32> =
                (0..shape[0] * shape[1]).map(|index| ((index * 7919 % 1009) as f32).sin()).collect();
            (name.to_string(), FileTensor::from_f32(shape.to_vec(), &values))
        };
        let tensors = DraftName::all(checkpoint.spec()).map(tensor).collect();
        let record = FitRecord { frames: 0, ridge: 1.0 };
        drafts::write(&file, &checkpoint, FloatType::Float32, record, &tensors).unwrap();
        Drafts::open(&file, &checkpoint).unwrap()
    });
    let mut predictor = Predictor::load_with(&checkpoint, drafts.as_ref(), FloatType::Float32);
    predictor.speculation = Some(speculation);
    let rows = golden.rows(set, 0);
    for (stream, predicted) in predictor.predict(&rows, streams).iter().enumerate() {
        golden.check(set, 0, stream, predictor.table_type(), predicted);
    }
    let reference = count_on_cpu(&checkpoint, speculation, drafts.as_ref(), &rows);
    assert_eq!(predictor.counted[..streams], reference, "{name} {set} {speculation:?}");
}

/// What the CPU executor's rounds count for a frame of rows.
fn count_on_cpu(
    checkpoint: &Checkpoint<'_>,
    speculation: Speculation,
    drafts: Option<&Drafts>,
    rows: &[Row],
) -> Vec<RoundCounters> {
    let options = CpuOptions {
        weight_type: WeightType::Float32,
        threads: Some(1),
        max_batch: rows.len(),
        speculation: Some(speculation),
        off_below: Some(0.0),
    };
    let mut executor = CpuExecutor::load(checkpoint, options, &mut |_, _| ControlFlow::Continue(())).unwrap();
    if let Some(drafts) = drafts {
        executor.use_drafts(drafts).unwrap();
    }
    let spec = checkpoint.spec();
    let hidden: Vec<f32> = rows.iter().flat_map(|row| row.hidden.iter().copied()).collect();
    let code_zero: Vec<i64> = rows.iter().map(|row| row.code_zero).collect();
    let sampling: Vec<RowSampling> =
        rows.iter().map(|row| RowSampling { params: row.params, frame_index: row.frame_index }).collect();
    let table = Arc::clone(executor.code_zero_table().unwrap());
    let mut codes = vec![0; rows.len() * spec.codes_per_frame()];
    let mut codec_sum = vec![0.0; rows.len() * spec.talker_hidden_size];
    let mut status = vec![0; rows.len()];
    let mut arena = vec![[0.0; 16]; executor.workspace_blocks()];
    let inputs = FrameInputs {
        talker_last_hidden: &hidden,
        code_zero: &code_zero,
        sampling: &sampling,
        code_zero_table: table.view(),
    };
    let mut outputs = FrameOutputs {
        codes: &mut codes,
        codec_sum: &mut codec_sum,
        status: &mut status,
        logits: None,
        hidden_rows: None,
    };
    executor.run_frame(&mut arena, &inputs, &mut outputs);
    executor.round_counters().to_vec()
}

#[test]
fn goldens_are_predicted_in_the_rounds_that_the_cpu_executor_counts() {
    for set in SETS {
        for (shape, window) in [(DraftShape::Chain, 4), (DraftShape::Siblings, 8)] {
            for name in &GOLDENS[..2] {
                check_golden(name, set, Speculation::new(shape, window, None).unwrap(), false);
            }
        }
    }
}

#[test]
fn fitted_drafts_change_the_rounds_as_on_the_cpu_and_nothing_else() {
    let tree = DraftTree::new(&[(0, 0), (0, 1), (1, 0), (3, 0)]);
    let deep = Speculation { tree, least_probability: Some(0.001) };
    for speculation in [Speculation::new(DraftShape::Siblings, 8, None).unwrap(), deep] {
        for set in SETS {
            check_golden(GOLDENS[0], set, speculation, true);
        }
    }
}

#[test]
fn architectures_at_the_edges_have_rounds_or_none() {
    // No codebook to draft, one, fewer codes than siblings, and as many positions as there are slots for.
    for (residual_codebooks, codebook_size) in [(1, 13), (2, 3), (3, 1), (9, 3), (56, 5)] {
        let spec = ModelSpec { residual_codebooks, codebook_size, layers: 1, ..ODD };
        let model = Model::random(&spec, FloatType::BFloat16);
        let mut predictor = Predictor::load(&model.open(), FloatType::Float32);
        let rows = Row::random_rows(&spec, 2);
        let expected = predictor.predict(&rows, 3);
        for (shape, window) in [(DraftShape::Chain, 2), (DraftShape::Chain, 8), (DraftShape::Siblings, 8)] {
            predictor.speculation = Speculation::new(shape, window, None);
            let what = format!("R {residual_codebooks}, V {codebook_size}, {shape:?} {window}");
            assert!(same(&predictor.predict(&rows, 3), &expected), "{what}");
            let left = residual_codebooks as u64 - 1;
            assert!(predictor.counted[..2].iter().all(|row| row.rounds + row.accepted == left), "{what}");
        }
    }
}
