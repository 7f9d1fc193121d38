//! Frames in rounds on the kernels: whatever is drafted, a row gets bit for bit what it gets step by step.

mod host;

use host::fixtures::FLOAT_TYPES;
use host::fixtures::model::{DEEP, LONG, Model, ODD, ODD_PROJECTED, TRUE_LAYER};
use host::fixtures::rows::{Predicted, Row};
use host::predictor::Predictor;
use overtone_core::rounds::{DraftShape, DraftTree, Speculation};
use overtone_core::spec::ModelSpec;
use overtone_core::tensor::FloatType;

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
