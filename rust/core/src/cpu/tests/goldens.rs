//! Goldens: float64 arithmetic on the stored weights, rounded once.

use super::fixture::{GOLDENS, Golden, load, predict};
use crate::cpu::weights::exact_weight_type;
use crate::cpu::{InstructionSet, WeightType};
use crate::tensor::FloatType;

const SETS: [&str; 4] = ["greedy", "sampled_a", "sampled_b", "mixed"];

/// All sets of one golden with the exact weight type: every code equal, `codec_sum` bit for bit, logits within 1e-4
/// of the largest.
fn check(name: &str, instructions: InstructionSet) {
    let golden = Golden::new(name);
    let checkpoint = golden.open();
    let mut executor = load(&checkpoint, exact_weight_type(&checkpoint), 2, golden.shape().1)
        .with_instructions(instructions);
    let (frames, batch) = golden.shape();
    for set in SETS {
        let params = golden.params(set);
        let codes = golden.expected[&format!("{set}.codes")].to_i64().unwrap();
        let sums = golden.expected[&format!("{set}.codec_sum")].to_f32().unwrap();
        for t in 0..frames {
            let (hidden, code_zero) = golden.inputs(t);
            let predicted = predict(&mut executor, &hidden, &code_zero, &params, t as u64);
            let found: Vec<i64> = predicted.codes.iter().map(|&code| code.into()).collect();
            let per_frame = found.len();
            assert_eq!(found, codes[t * per_frame..(t + 1) * per_frame], "{name} {set} frame {t}");
            assert_eq!(
                predicted.codec_sum,
                sums[t * hidden.len()..(t + 1) * hidden.len()],
                "{name} {set} frame {t}"
            );
            assert_eq!(predicted.status, vec![0; batch]);
            if set == "greedy" {
                let expected = golden.expected["greedy.logits"].to_f32().unwrap();
                let count = predicted.logits.len();
                let expected = &expected[t * count..(t + 1) * count];
                let largest = expected.iter().fold(0.0_f32, |largest, logit| largest.max(logit.abs()));
                for (found, expected) in predicted.logits.iter().zip(expected) {
                    assert!((found - expected).abs() < 1e-5 * largest, "{found} is not {expected}");
                }
            }
        }
    }
}

#[test]
fn every_golden_code_is_predicted() {
    for name in GOLDENS {
        check(name, InstructionSet::detect());
    }
}

#[test]
fn every_golden_code_is_predicted_by_the_scalar_reference() {
    for name in GOLDENS {
        check(name, InstructionSet::Scalar);
    }
}

/// The weight type that needs no rounding is the one chosen.
#[test]
fn the_exact_weight_type_follows_the_storage() {
    let types = GOLDENS.map(|name| exact_weight_type(&Golden::new(name).open()));
    assert_eq!(types, [WeightType::Float32, WeightType::BFloat16, WeightType::Float32]);
}

/// Feeding the expected codes back is not possible from outside, so rows are compared up to their first difference,
/// where the reference must have been undecided.
#[test]
fn narrower_weights_differ_only_where_the_margin_is_small() {
    for (name, weight_type, largest_margin) in [
        ("omni-tiny", WeightType::BFloat16, 0.25),
        ("standalone", WeightType::BFloat16, 0.25),
        ("omni-tiny", WeightType::Int8, 0.6),
        ("tts-tiny-projected", WeightType::Int8, 0.6),
    ] {
        let golden = Golden::new(name);
        let (frames, batch) = golden.shape();
        let mut executor = load(&golden.open(), weight_type, 1, batch);
        let codes = golden.expected["greedy.codes"].to_i64().unwrap();
        let margins = golden.expected["greedy.margin"].to_f32().unwrap();
        let per_row = executor.spec().codes_per_frame();
        for t in 0..frames {
            let (hidden, code_zero) = golden.inputs(t);
            let predicted = predict(&mut executor, &hidden, &code_zero, &golden.params("greedy"), t as u64);
            for row in 0..batch {
                let at = t * batch + row;
                let found = &predicted.codes[row * per_row..(row + 1) * per_row];
                let expected = &codes[at * per_row..(at + 1) * per_row];
                let Some(first) = (1..per_row).find(|&j| i64::from(found[j]) != expected[j]) else {
                    continue;
                };
                let margin = margins[at * (per_row - 1) + first - 1];
                assert!(margin < largest_margin, "{name} {weight_type:?}: code_{first} differs at {margin}");
            }
        }
    }
}

#[test]
fn embedding_tables_are_kept_as_stored() {
    let golden = Golden::new("tts-tiny-projected");
    let executor = load(&golden.open(), WeightType::Int8, 1, 1);
    let table = executor.codec_table(0).unwrap().view();
    assert_eq!((table.float_type, table.rows, table.width), (FloatType::BFloat16, 80, 96));
    assert!(executor.codec_table(7).is_none());
}
