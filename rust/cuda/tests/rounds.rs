//! Frames in rounds on a GPU. Where there is none, each test says so and returns.

mod device;
mod fixtures;

use device::{Frame, context, default_stream, load, load_with, predict};
use fixtures::FLOAT_TYPES;
use fixtures::golden::{GOLDENS, Golden, SETS};
use fixtures::model::{DEEP, LONG, Model, ODD, ODD_PROJECTED, TRUE_LAYER};
use fixtures::rows::{Predicted, Row};
use overtone_core::rounds::{DraftShape, DraftTree, Speculation};
use overtone_core::spec::ModelSpec;
use overtone_core::tensor::FloatType;
use overtone_cuda::executor::Taken;

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
