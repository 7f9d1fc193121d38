//! Speculation changes nothing: every window and shape gives the bits of the plain loop.

use super::fixture::{GOLDENS, Golden, Predicted, RandomModel, load, predict, speculating};
use crate::cpu::executor::CpuOptions;
use crate::cpu::{CpuExecutor, InstructionSet, WeightType};
use crate::rounds::{DraftShape, DraftTree, OffSwitch, RoundCounters, Speculation};
use crate::sampling::SamplingParams;
use crate::spec::weights::WeightName;
use crate::spec::{Family, ModelSpec, PositionEncoding};
use proptest::prelude::*;
use std::ops::ControlFlow;

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
            // The working type and the window meet in the kernels alone: float32 takes all windows, the others a few.
            let every = if weight_type == WeightType::Float32 { 1 } else { 5 };
            for speculation in speculations().into_iter().step_by(every) {
                let mut rounds = speculating(&golden.open(), weight_type, 1, batch, Some(speculation));
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

/// A predictor whose drafts are often right, since its codebooks are so small.
fn small_spec(residual_codebooks: usize, codebook_size: usize) -> ModelSpec {
    ModelSpec {
        family: Family::Qwen3Omni,
        residual_codebooks,
        codebook_size,
        code_zero_size: Some(11),
        hidden_size: 24,
        talker_hidden_size: 24,
        layers: 2,
        query_heads: 4,
        key_value_heads: 2,
        head_size: 8,
        mlp_width: 40,
        rms_norm_epsilon: 1e-6,
        position_encoding: PositionEncoding::Rope { theta: 5e5 },
        projected: false,
    }
}

fn small(residual_codebooks: usize, codebook_size: usize) -> RandomModel {
    RandomModel::new(small_spec(residual_codebooks, codebook_size), 5, |_| 1.0)
}

/// Greedy, sampled and filtered rows in turn, each with a seed of its own.
fn mixed(streams: usize, seed: u64) -> Vec<SamplingParams> {
    let row = |stream: u64| match stream % 4 {
        0 => SamplingParams::greedy(),
        1 => SamplingParams::new(0.9, 0, 1.0, seed ^ stream).unwrap(),
        2 => SamplingParams::new(1.3, 3, 1.0, seed ^ stream).unwrap(),
        _ => SamplingParams::new(0.8, 0, 0.7, seed ^ stream).unwrap(),
    };
    (0..streams as u64).map(row).collect()
}

#[test]
fn streams_advance_at_their_own_pace() {
    let model = small(14, 10);
    let streams = 9;
    let (hidden, code_zero) = model.inputs(streams, 3);
    let params = mixed(streams, 1);
    let mut differing_paces = 0;
    for weight_type in TYPES {
        let mut plain = load(&model.open(), weight_type, 1, streams);
        let expected = predict(&mut plain, &hidden, &code_zero, &params, 4);
        for speculation in speculations() {
            let mut rounds = speculating(&model.open(), weight_type, 2, streams, Some(speculation));
            let batch = predict(&mut rounds, &hidden, &code_zero, &params, 4);
            assert!(batch == expected, "{weight_type:?} {speculation:?}");
            check_counters(&rounds, speculation);
            let counted = rounds.round_counters().to_vec();
            differing_paces += usize::from(counted.iter().any(|stream| stream.rounds != counted[0].rounds));
            assert!(totals(&rounds).accepted > 0);
            // Its neighbours change neither a stream's codes nor its rounds.
            let width = model.spec.talker_hidden_size;
            for stream in [0, 4, 8] {
                let hidden = &hidden[stream * width..(stream + 1) * width];
                let (code, params) = (&code_zero[stream..=stream], &params[stream..=stream]);
                let alone = predict(&mut rounds, hidden, code, params, 4);
                assert!(alone == batch.row(stream, streams), "{weight_type:?} {speculation:?} {stream}");
                assert_eq!(rounds.round_counters(), &counted[stream..=stream]);
            }
        }
    }
    assert!(differing_paces > 20, "{differing_paces} of 45");
}

#[test]
fn the_instructions_change_nothing_in_rounds() {
    let model = small(9, 20);
    let (hidden, code_zero) = model.inputs(3, 8);
    for weight_type in TYPES {
        let expected =
            predict(&mut load(&model.open(), weight_type, 1, 3), &hidden, &code_zero, &mixed(3, 2), 0);
        for shape in [DraftShape::Chain, DraftShape::Siblings] {
            let rounds = speculating(&model.open(), weight_type, 2, 3, Some(window(shape, 5)));
            let mut rounds = rounds.with_instructions(InstructionSet::Scalar);
            assert!(predict(&mut rounds, &hidden, &code_zero, &mixed(3, 2), 0) == expected);
        }
    }
}

#[test]
fn a_draft_that_is_certain_enough_never_comes() {
    let model = small(12, 50);
    let (hidden, code_zero) = model.inputs(4, 2);
    let params = mixed(4, 7);
    let expected =
        predict(&mut load(&model.open(), WeightType::Float32, 1, 4), &hidden, &code_zero, &params, 0);
    for speculation in speculations() {
        let speculation = Speculation { least_probability: Some(0.999), ..speculation };
        let mut rounds = speculating(&model.open(), WeightType::Float32, 1, 4, Some(speculation));
        assert!(predict(&mut rounds, &hidden, &code_zero, &params, 0) == expected);
        let alone = RoundCounters { frames: 4, rounds: 4 * 11, codes: 4 * 11, drafted: 0, accepted: 0 };
        assert_eq!(totals(&rounds), alone, "{speculation:?}");
    }
}

#[test]
fn a_row_that_is_not_finite_fails_alone_as_it_does_step_by_step() {
    let model = small(10, 4);
    let (hidden, code_zero) = model.inputs(3, 6);
    let width = model.spec.talker_hidden_size;
    let mut plain = load(&model.open(), WeightType::Float32, 1, 3);
    for poison in [f32::NAN, f32::INFINITY, f32::MAX] {
        let mut poisoned = hidden.clone();
        poisoned[width + 2] = poison;
        for code in [code_zero[1], -1] {
            let code_zero = [code_zero[0], code, code_zero[2]];
            let expected = predict(&mut plain, &poisoned, &code_zero, &mixed(3, 9), 2);
            for speculation in speculations() {
                let mut rounds = speculating(&model.open(), WeightType::Float32, 2, 3, Some(speculation));
                let found = predict(&mut rounds, &poisoned, &code_zero, &mixed(3, 9), 2);
                assert_eq!(bits(&found), bits(&expected), "{poison} {code} {speculation:?}");
                // The next frame is sound.
                let expected = predict(&mut plain, &hidden, &[1, 2, 3], &mixed(3, 9), 2);
                assert!(predict(&mut rounds, &hidden, &[1, 2, 3], &mixed(3, 9), 2) == expected);
            }
        }
    }
}

#[test]
fn a_draft_of_code_zero_may_be_accepted_where_the_draw_fails() {
    // What embeds code_3 overflows in the projection: code_4 and all after it cannot be drawn.
    let spec = ModelSpec { projected: true, ..small_spec(10, 2) };
    let model = RandomModel::new(spec, 12, |name| match name {
        WeightName::CodecEmbedding(2) => 2e37,
        WeightName::ProjectionWeight => 100.0,
        _ => 1.0,
    });
    let streams = 8;
    let (hidden, code_zero) = model.inputs(streams, 6);
    let mut plain = load(&model.open(), WeightType::Float32, 1, streams);
    let expected = predict(&mut plain, &hidden, &code_zero, &mixed(streams, 3), 1);
    assert_eq!(expected.status, vec![4; streams]);
    let per_frame = model.spec.codes_per_frame();
    let mut accepted_under_failures = 0;
    for speculation in speculations() {
        let mut rounds = speculating(&model.open(), WeightType::Float32, 2, streams, Some(speculation));
        let found = predict(&mut rounds, &hidden, &code_zero, &mixed(streams, 3), 1);
        assert_eq!(bits(&found), bits(&expected), "{speculation:?}");
        assert!(found.codes.chunks_exact(per_frame).all(|codes| codes[4..].iter().all(|&code| code == 0)));
        // Before its first failing draw a stream accepts two drafts at most, of codes 2 and 3.
        let accepted = rounds.round_counters().iter().map(|stream| stream.accepted.saturating_sub(2));
        accepted_under_failures += accepted.sum::<u64>();
    }
    assert!(accepted_under_failures > 0);
}

#[test]
fn a_frame_of_few_codebooks_drafts_what_is_left() {
    for residual_codebooks in 1..=4 {
        let model = small(residual_codebooks, 3);
        let (hidden, code_zero) = model.inputs(6, 6);
        let params = mixed(6, 4);
        let mut plain = load(&model.open(), WeightType::Float32, 1, 6);
        let expected = predict(&mut plain, &hidden, &code_zero, &params, 0);
        for speculation in speculations() {
            let mut rounds = speculating(&model.open(), WeightType::Float32, 1, 6, Some(speculation));
            assert!(predict(&mut rounds, &hidden, &code_zero, &params, 0) == expected);
            check_counters(&rounds, speculation);
            // code_R is drawn from what its parent feeds, and is no draft.
            let drafts = totals(&rounds).drafted;
            assert_eq!(drafts > 0, residual_codebooks > 2, "{residual_codebooks} {speculation:?}: {drafts}");
        }
    }
}

#[test]
fn more_positions_than_there_are_slots_leave_the_plain_loop() {
    for (residual_codebooks, suits) in [(56, true), (57, false), (70, false)] {
        let model = small(residual_codebooks, 3);
        let (hidden, code_zero) = model.inputs(2, 6);
        let mut plain = load(&model.open(), WeightType::Float32, 1, 2);
        let expected = predict(&mut plain, &hidden, &code_zero, &mixed(2, 4), 0);
        for shape in [DraftShape::Chain, DraftShape::Siblings] {
            let mut rounds = speculating(&model.open(), WeightType::Float32, 1, 2, Some(window(shape, 8)));
            assert_eq!(rounds.speculating(), suits);
            assert!(predict(&mut rounds, &hidden, &code_zero, &mixed(2, 4), 0) == expected);
            assert_eq!(rounds.round_counters().is_empty(), !suits);
        }
    }
}

#[test]
fn rounds_that_draw_too_few_codes_end_for_good() {
    let model = small(15, 60);
    let (hidden, code_zero) = model.inputs(4, 6);
    let params = mixed(4, 4);
    let mut plain = load(&model.open(), WeightType::Float32, 1, 4);
    let options = CpuOptions {
        weight_type: WeightType::Float32,
        threads: Some(1),
        max_batch: 4,
        speculation: Some(window(DraftShape::Chain, 2)),
        off_below: Some(2.0),
    };
    let checkpoint = model.open();
    let mut rounds = CpuExecutor::load(&checkpoint, options, &mut |_, _| ControlFlow::Continue(())).unwrap();
    let mut counted = 0;
    for frame in 0..40 {
        let speculates = counted < OffSwitch::ROUNDS;
        assert_eq!(rounds.speculating(), speculates, "{counted} rounds");
        let expected = predict(&mut plain, &hidden, &code_zero, &params, frame);
        assert!(predict(&mut rounds, &hidden, &code_zero, &params, frame) == expected);
        assert_eq!(rounds.round_counters().is_empty(), !speculates);
        counted += totals(&rounds).rounds;
    }
    let found = rounds.off_switch().unwrap().found().unwrap();
    assert!((1.0..2.0).contains(&found), "{found}");
}

/// Every head's logits are its products with the hidden row that is said to be read, in the documented order.
#[test]
fn hidden_rows_are_what_the_heads_read() {
    let model = small(6, 7);
    let (hidden, code_zero) = model.inputs(3, 1);
    let speculations = [None, Some(window(DraftShape::Chain, 3)), Some(window(DraftShape::Siblings, 8))];
    for speculation in speculations {
        let mut executor = speculating(&model.open(), WeightType::Float32, 2, 3, speculation);
        let predicted = predict(&mut executor, &hidden, &code_zero, &mixed(3, 8), 0);
        let rows = predicted.hidden_rows.chunks_exact(model.spec.hidden_size);
        for (index, (row, logits)) in rows.zip(predicted.logits.chunks_exact(7)).enumerate() {
            let head = model.matrix(&format!("lm_head.{}.weight", index % 6));
            for (weights, logit) in head.chunks_exact(row.len()).zip(logits) {
                let sum = weights.iter().zip(row).fold(0.0_f32, |sum, (weight, x)| weight.mul_add(*x, sum));
                assert_eq!(sum, *logit, "row {index}");
            }
        }
    }
}

prop_compose! {
    /// Any small architecture, padded or not, with or without a projection.
    fn any_spec()(
        residual_codebooks in 1_usize..12,
        codebook_size in 1_usize..20,
        hidden_size in 1_usize..40,
        talker_hidden_size in prop::option::of(1_usize..40),
        layers in 1_usize..3,
        key_value_heads in 1_usize..3,
        queries_per_key in 1_usize..3,
        half_head in 1_usize..6,
        mlp_width in 1_usize..40,
    ) -> ModelSpec {
        ModelSpec {
            hidden_size,
            talker_hidden_size: talker_hidden_size.unwrap_or(hidden_size),
            layers,
            query_heads: key_value_heads * queries_per_key,
            key_value_heads,
            head_size: 2 * half_head,
            mlp_width,
            projected: talker_hidden_size.is_some(),
            ..small_spec(residual_codebooks, codebook_size)
        }
    }
}

/// Any tree: each draft hangs under one of the rows that the next depth may hang under.
fn any_tree() -> impl Strategy<Value = DraftTree> {
    prop::collection::vec((0_usize..8, 0_usize..3), 1..8).prop_map(|choices| {
        let mut depths = vec![0_usize];
        let mut drafts: Vec<(usize, usize)> = Vec::new();
        for (parent, rank) in choices {
            let parent = parent % depths.len();
            let depth = depths[parent] + 1;
            if depth >= depths[depths.len() - 1] && !drafts.contains(&(parent, rank)) {
                drafts.push((parent, rank));
                depths.push(depth);
            }
        }
        DraftTree::new(&drafts)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_architecture_tree_and_seed_gives_the_plain_loops_bits(
        spec in any_spec(),
        tree in any_tree(),
        least_probability in prop_oneof![Just(None), (0.01_f32..1.0).prop_map(Some)],
        kind in 0_usize..3,
        streams in 1_usize..6,
        threads in 1_usize..3,
        seed in any::<u64>(),
    ) {
        let model = RandomModel::new(spec, seed, |_| 1.0);
        let speculation = Speculation { tree, least_probability };
        let mut plain = load(&model.open(), TYPES[kind], 1, streams);
        let mut rounds = speculating(&model.open(), TYPES[kind], threads, streams, Some(speculation));
        for frame in 0..3 {
            let (hidden, code_zero) = model.inputs(streams, seed ^ frame);
            let params = mixed(streams, seed);
            let expected = predict(&mut plain, &hidden, &code_zero, &params, frame);
            let found = predict(&mut rounds, &hidden, &code_zero, &params, frame);
            prop_assert_eq!(bits(&found), bits(&expected));
            check_counters(&rounds, speculation);
        }
    }
}
