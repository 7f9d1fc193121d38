//! Same inputs, same bits: alone or in a batch, on any number of threads, after any failure.

use super::fixture::{GOLDENS, Golden, load, predict};
use crate::cpu::{InstructionSet, WeightType};
use proptest::prelude::*;

const TYPES: [WeightType; 3] = [WeightType::Float32, WeightType::BFloat16, WeightType::Int8];

/// Rows of all frames of a golden, as one large batch.
fn all_rows(golden: &Golden) -> (Vec<f32>, Vec<i64>) {
    let (frames, _) = golden.shape();
    let parts: Vec<_> = (0..frames).map(|t| golden.inputs(t)).collect();
    (
        parts.iter().flat_map(|(hidden, _)| hidden.clone()).collect(),
        parts.into_iter().flat_map(|(_, code_zero)| code_zero).collect(),
    )
}

#[test]
fn a_stream_alone_equals_the_same_stream_in_any_slot_of_any_batch() {
    for name in GOLDENS {
        let golden = Golden::new(name);
        let (hidden, code_zero) = all_rows(&golden);
        let rows = code_zero.len();
        let width = hidden.len() / rows;
        let params: Vec<_> = golden.params("mixed").into_iter().cycle().take(rows).collect();
        for weight_type in TYPES {
            let mut executor = load(&golden.open(), weight_type, 2, rows);
            let batch = predict(&mut executor, &hidden, &code_zero, &params, 5);
            for row in 0..rows {
                let hidden = &hidden[row * width..(row + 1) * width];
                let alone = predict(&mut executor, hidden, &code_zero[row..=row], &params[row..=row], 5);
                assert!(alone == batch.row(row, rows), "{name} {weight_type:?} row {row}");
            }
            for size in 2..rows.min(8) {
                let first = rows - size;
                let some = predict(
                    &mut executor,
                    &hidden[first * width..],
                    &code_zero[first..],
                    &params[first..],
                    5,
                );
                assert!(some.row(size - 1, size) == batch.row(rows - 1, rows), "{name} batch {size}");
            }
        }
    }
}

#[test]
fn the_number_of_threads_changes_nothing() {
    let golden = Golden::new("standalone");
    let (hidden, code_zero) = golden.inputs(0);
    let params = golden.params("mixed");
    for weight_type in TYPES {
        let one = predict(&mut load(&golden.open(), weight_type, 1, 3), &hidden, &code_zero, &params, 1);
        for threads in [2, 3, 7] {
            let many =
                predict(&mut load(&golden.open(), weight_type, threads, 3), &hidden, &code_zero, &params, 1);
            assert!(one == many, "{weight_type:?} {threads} threads");
        }
    }
}

#[test]
fn the_instructions_change_nothing() {
    for name in GOLDENS {
        let golden = Golden::new(name);
        let (hidden, code_zero) = all_rows(&golden);
        let params: Vec<_> = golden.params("mixed").into_iter().cycle().take(code_zero.len()).collect();
        for weight_type in TYPES {
            let mut executor = load(&golden.open(), weight_type, 2, code_zero.len());
            let detected = predict(&mut executor, &hidden, &code_zero, &params, 3);
            let mut executor = executor.with_instructions(InstructionSet::Scalar);
            let scalar = predict(&mut executor, &hidden, &code_zero, &params, 3);
            assert!(detected == scalar, "{name} {weight_type:?}");
        }
    }
}

#[test]
fn a_failing_row_fails_alone_and_the_next_frame_is_sound() {
    let golden = Golden::new("omni-tiny");
    let (hidden, code_zero) = golden.inputs(0);
    let params = golden.params("mixed");
    let mut executor = load(&golden.open(), WeightType::Float32, 2, 3);
    let sound = predict(&mut executor, &hidden, &code_zero, &params, 0);
    let width = hidden.len() / 3;
    for poison in [f32::NAN, f32::INFINITY, f32::MAX] {
        let mut poisoned = hidden.clone();
        poisoned[width] = poison;
        let failed = predict(&mut executor, &poisoned, &code_zero, &params, 0);
        assert_eq!(failed.status[0], 0);
        assert!(failed.row(0, 3) == sound.row(0, 3), "{poison}");
        assert!(failed.row(2, 3) == sound.row(2, 3), "{poison}");
        assert!(failed.codec_sum.iter().all(|value| value.is_finite()), "{poison}");
        if poison.is_nan() {
            assert_eq!(failed.status, [0, 1, 0]);
            assert_eq!(failed.row(1, 3).codes[1..], [0; 7]);
        }
        assert!(predict(&mut executor, &hidden, &code_zero, &params, 0) == sound, "after {poison}");
    }
}

#[test]
fn a_code_zero_outside_the_table_fails_its_row_alone() {
    let golden = Golden::new("omni-tiny");
    let (hidden, code_zero) = golden.inputs(0);
    let params = golden.params("greedy");
    let mut executor = load(&golden.open(), WeightType::Float32, 1, 3);
    let sound = predict(&mut executor, &hidden, &code_zero, &params, 0);
    for wrong in [-1, 128, i64::MIN, i64::MAX] {
        let found = predict(&mut executor, &hidden, &[code_zero[0], wrong, code_zero[2]], &params, 0);
        assert_eq!(found.status, [0, -1, 0], "{wrong}");
        assert!(found.row(0, 3) == sound.row(0, 3));
        assert!(found.row(2, 3) == sound.row(2, 3));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever the hidden rows hold, codes and status stay in range and equal hidden rows give equal codes.
    #[test]
    fn any_hidden_row_gives_codes_in_range(bits in prop::collection::vec(any::<u32>(), 64), code in 0_i64..128) {
        let golden = Golden::new("omni-tiny");
        let mut executor = load(&golden.open(), WeightType::Float32, 1, 2);
        let row: Vec<f32> = bits.into_iter().map(f32::from_bits).collect();
        let hidden = [row.clone(), row].concat();
        let params = [golden.params("sampled_b")[0]; 2];
        let found = predict(&mut executor, &hidden, &[code, code], &params, 9);
        prop_assert!(found.codes.iter().all(|&code| (0..128).contains(&code)));
        prop_assert!(found.status.iter().all(|&status| (0..=7).contains(&status)));
        prop_assert_eq!(&found.row(0, 2).codes, &found.row(1, 2).codes);
        prop_assert!(found.codec_sum.iter().all(|value| value.is_finite()));
    }
}
