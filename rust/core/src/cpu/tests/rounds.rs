//! Speculation changes nothing: every window and shape gives the bits of the plain loop.

use super::fixture::{GOLDENS, Golden, Predicted, load, predict, speculating};
use crate::checkpoint::synthetic::config_json;
use crate::checkpoint::{Checkpoint, InMemoryTensor};
use crate::cpu::{CpuExecutor, InstructionSet, WeightType};
use crate::rounds::{DraftShape, DraftTree, RoundCounters, Speculation};
use crate::sampling::SamplingParams;
use crate::spec::{Family, ModelSpec, PositionEncoding};
use crate::tensor::FloatType;
use proptest::prelude::*;
use std::collections::BTreeMap;

const TYPES: [WeightType; 3] = [WeightType::Float32, WeightType::BFloat16, WeightType::Int8];

fn window(shape: DraftShape, verify_rows: usize) -> Speculation {
    Speculation::new(shape, verify_rows, None).unwrap()
}

/// Every window of both shapes, and a tree that is neither.
fn speculations() -> Vec<Speculation> {
    let shapes = [DraftShape::Chain, DraftShape::Siblings];
    let windows = shapes.into_iter().flat_map(|shape| (2..=8).map(move |rows| window(shape, rows)));
    let tree = DraftTree::new(&[(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (3, 0), (5, 0)]);
    windows.chain([Speculation { tree, least_probability: None }]).collect()
}

/// What all streams of the last frame counted together.
fn totals(executor: &CpuExecutor) -> RoundCounters {
    let mut totals = RoundCounters::default();
    executor.round_counters().iter().for_each(|counters| totals += *counters);
    totals
}

/// Bits, so that NaN equals NaN.
fn bits(predicted: &Predicted) -> (Vec<i32>, Vec<i32>, [Vec<u32>; 3]) {
    let floats = [&predicted.codec_sum, &predicted.logits, &predicted.hidden_rows];
    let floats = floats.map(|values| values.iter().map(|value| value.to_bits()).collect());
    (predicted.codes.clone(), predicted.status.clone(), floats)
}

#[test]
fn every_window_and_shape_gives_the_goldens_bits() {
    for name in GOLDENS {
        let golden = Golden::new(name);
        let (frames, batch) = golden.shape();
        for weight_type in TYPES {
            let mut plain = load(&golden.open(), weight_type, 2, batch);
            assert!(!plain.speculating() && plain.round_counters().is_empty());
            for speculation in speculations() {
                let mut rounds = speculating(&golden.open(), weight_type, 2, batch, Some(speculation));
                for set in ["greedy", "mixed", "sampled_a"] {
                    let params = golden.params(set);
                    for t in 0..frames.min(2) {
                        let (hidden, code_zero) = golden.inputs(t);
                        let expected = predict(&mut plain, &hidden, &code_zero, &params, t as u64);
                        let found = predict(&mut rounds, &hidden, &code_zero, &params, t as u64);
                        assert!(found == expected, "{name} {weight_type:?} {speculation:?} {set} frame {t}");
                        check_counters(&rounds, speculation);
                    }
                }
            }
        }
    }
}

/// What is counted must add up.
fn check_counters(executor: &CpuExecutor, speculation: Speculation) {
    let drawn_in_rounds = executor.spec().residual_codebooks as u64 - 1;
    for counters in executor.round_counters() {
        assert_eq!((counters.frames, counters.codes), (1, drawn_in_rounds));
        assert_eq!(counters.codes, counters.rounds + counters.accepted, "{counters:?}");
        assert!(counters.drafted <= counters.rounds * (speculation.tree.rows() as u64 - 1));
        assert!(counters.accepted <= counters.rounds * speculation.tree.depth() as u64);
    }
}
