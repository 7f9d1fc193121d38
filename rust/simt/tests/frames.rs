//! Whole frames on the kernels: what a row gets does not depend on its neighbours, on the order of threads, or on what the
//! workspace held.

mod host;

use std::sync::LazyLock;

use host::fixtures::FLOAT_TYPES;
use host::fixtures::model::{DEEP, Model, ODD, ODD_PROJECTED, TRUE_LAYER};
use host::fixtures::rows::{Predicted, Row};
use host::predictor::{Frame, Predictor};
use overtone_core::spec::ModelSpec;
use overtone_core::tensor::FloatType;
use overtone_simt::Schedule;

/// Runs rows alone, then in batches of (rows, slots), each batch beginning with another row.
fn check_invariance(spec: &ModelSpec, float_type: FloatType, batches: &[(usize, usize)]) {
    let model = Model::random(spec, FloatType::BFloat16);
    let mut predictor = Predictor::load(&model.open(), float_type);
    let count = batches.iter().map(|(rows, _)| *rows).max().unwrap_or(1);
    let rows = Row::random_rows(spec, count);
    let alone: Vec<Predicted> =
        rows.iter().map(|row| predictor.predict(std::slice::from_ref(row), 1).remove(0)).collect();
    assert!(alone.iter().all(|row| row.status == 0 && row.logits.iter().all(|logit| logit.is_finite())));
    for (turn, (batch, slots)) in batches.iter().enumerate() {
        let place = |row: usize| (5 * turn + row) % count;
        let batch_rows: Vec<Row> = (0..*batch).map(|row| rows[place(row)].clone()).collect();
        for (row, predicted) in predictor.predict(&batch_rows, *slots).iter().enumerate() {
            let alone = &alone[place(row)];
            assert!(
                predicted.same(alone),
                "{float_type}: row {row} of {batch} in {slots} slots differs from itself alone"
            );
        }
    }
}

/// Around every border: one slot, spare slots, a tile of columns, the prefill's tiles, more columns than a block takes at once.
const BATCHES: [(usize, usize); 8] = [(1, 2), (2, 2), (3, 5), (4, 4), (5, 8), (8, 9), (9, 16), (33, 40)];

#[test]
fn a_stream_alone_is_that_stream_in_any_slot_in_float32() {
    check_invariance(&ODD, FloatType::Float32, &BATCHES);
}

#[test]
fn a_stream_alone_is_that_stream_in_any_slot_in_bfloat16() {
    check_invariance(&ODD, FloatType::BFloat16, &BATCHES);
}

#[test]
fn a_stream_alone_is_that_stream_in_any_slot_in_float16() {
    check_invariance(&ODD, FloatType::Float16, &BATCHES);
}

#[test]
fn a_projected_stream_alone_is_that_stream_in_any_slot() {
    check_invariance(&ODD_PROJECTED, FloatType::Float32, &[(2, 2), (9, 9)]);
    check_invariance(&ODD_PROJECTED, FloatType::BFloat16, &[(2, 2), (9, 9)]);
    check_invariance(&ODD_PROJECTED, FloatType::Float16, &[(2, 2), (9, 9)]);
}

#[test]
fn a_stream_wider_than_a_blocks_share_is_the_same_in_any_slot() {
    for float_type in FLOAT_TYPES {
        check_invariance(&DEEP, float_type, &[(1, 2), (2, 9)]);
    }
}

/// One slot attends inside o and normalises inside every product, two do not; nine fill two tiles.
const TRUE_BATCHES: [(usize, usize); 3] = [(1, 2), (2, 2), (2, 9)];

#[test]
fn a_stream_of_true_size_is_the_same_with_attention_inside_o_and_by_itself_in_float32() {
    check_invariance(&TRUE_LAYER, FloatType::Float32, &TRUE_BATCHES[..2]);
}

#[test]
fn a_stream_of_true_size_is_the_same_with_attention_inside_o_and_by_itself_in_bfloat16() {
    check_invariance(&TRUE_LAYER, FloatType::BFloat16, &TRUE_BATCHES);
}

#[test]
fn a_stream_of_true_size_is_the_same_with_attention_inside_o_and_by_itself_in_float16() {
    check_invariance(&TRUE_LAYER, FloatType::Float16, &TRUE_BATCHES);
}

static MODEL: LazyLock<Model> = LazyLock::new(|| Model::random(&ODD, FloatType::Float32));

fn predictor(float_type: FloatType) -> Predictor {
    Predictor::load(&MODEL.open(), float_type)
}

#[test]
fn the_order_of_threads_changes_nothing() {
    for float_type in FLOAT_TYPES {
        let mut predictor = predictor(float_type);
        let rows = Row::random_rows(&ODD, 3);
        for (batch, slots) in [(1, 1), (3, 4)] {
            predictor.host.schedule = Schedule::Natural;
            let natural = predictor.predict(&rows[..batch], slots);
            for seed in [0, 1, 2, 3, u64::MAX] {
                predictor.host.schedule = Schedule::Seeded(seed);
                let seeded = predictor.predict(&rows[..batch], slots);
                let equal = natural.iter().zip(&seeded).all(|(natural, seeded)| natural.same(seeded));
                assert!(equal, "{float_type}, {batch} rows, seed {seed}");
            }
        }
    }
}

#[test]
fn a_row_that_is_not_finite_fails_alone_and_the_next_frame_is_sound() {
    for float_type in FLOAT_TYPES {
        let mut predictor = predictor(float_type);
        let rows = Row::random_rows(&ODD, 3);
        let good = predictor.predict(&rows, 3);
        for (poison, slots) in [(f32::NAN, 3), (f32::INFINITY, 4), (f32::NEG_INFINITY, 3)] {
            let mut poisoned = rows.clone();
            poisoned[1].hidden[5] = poison;
            let workspace = predictor.workspace(slots);
            let frame = Frame::new(&predictor, &poisoned);
            let counted = predictor.run(&frame, slots, &workspace);
            assert_eq!((counted.rows, counted.failed_rows), (3, 1));
            let found = frame.read();
            assert_eq!((found[1].status, &found[1].codes[1..]), (1, &[0; 3][..]), "{float_type} {poison}");
            assert!(
                found[1].codec_sum.iter().all(|value| value.is_finite()),
                "its end is unusable and finite"
            );
            assert!(found[0].same(&good[0]) && found[2].same(&good[2]), "{float_type} {poison}: neighbours");
            // In what the failed frame left.
            let next = Frame::new(&predictor, &rows);
            predictor.run(&next, slots, &workspace);
            assert!(next.read().iter().zip(&good).all(|(found, good)| found.same(good)));
        }
    }
}

#[test]
fn a_code_outside_the_talkers_table_fails_its_row_alone() {
    let mut predictor = predictor(FloatType::BFloat16);
    let mut rows = Row::random_rows(&ODD, 3);
    let good = predictor.predict(&rows, 3);
    for code in [-1, ODD.code_zero_size.unwrap() as i64] {
        rows[0].code_zero = code;
        let found = predictor.predict(&rows, 3);
        assert_eq!((found[0].status, found[0].codes[0]), (-1, 0));
        assert!(found[0].codes.iter().all(|code| (0..ODD.codebook_size as i32).contains(code)));
        assert!(found[0].codec_sum.iter().all(|value| value.is_finite()));
        assert!(found[1].same(&good[1]) && found[2].same(&good[2]));
    }
}

#[test]
fn rows_left_out_write_nothing_and_their_neighbours_do_not_see_them() {
    for float_type in FLOAT_TYPES {
        let mut predictor = predictor(float_type);
        let mut rows = Row::random_rows(&ODD, 4);
        let good = predictor.predict(&rows, 4);
        let untouched = Frame::new(&predictor, &rows).read();
        for left_out in [vec![0], vec![1, 2], vec![3], vec![0, 1, 2, 3]] {
            for (row, asked) in rows.iter_mut().enumerate() {
                asked.active = !left_out.contains(&row);
            }
            let found = predictor.predict(&rows, 6);
            for (row, found) in found.iter().enumerate() {
                if left_out.contains(&row) {
                    // A status of an earlier frame would be taken for this one's.
                    assert!(
                        found.same(&Predicted { status: 0, ..untouched[row].clone() }),
                        "row {row} is written"
                    );
                } else {
                    assert!(found.same(&good[row]), "row {row} beside {left_out:?}");
                }
            }
        }
    }
}

#[test]
fn a_frame_in_what_another_batch_left_is_the_same_frame() {
    for float_type in FLOAT_TYPES {
        let mut predictor = predictor(float_type);
        let rows = Row::random_rows(&ODD, 9);
        let good: Vec<Predicted> =
            rows.iter().map(|row| predictor.predict(std::slice::from_ref(row), 1).remove(0)).collect();
        let workspace = predictor.workspace(9);
        for batch in [9, 1, 4, 9, 2] {
            let frame = Frame::new(&predictor, &rows[..batch]);
            predictor.run(&frame, batch, &workspace);
            assert!(frame.read().iter().zip(&good).all(|(found, good)| found.same(good)), "{batch} rows");
        }
    }
}
