//! Corners of a draw: ties, signs of zero, infinities, refused parameters and rows that fail.

use proptest::prelude::*;

use super::{params, synthetic_logits};
use crate::sampling::gumbel::Noise;
use crate::sampling::{DrawFailure, Sampler, SamplingError, SamplingParams};
use crate::spec::Family;

const INFINITY: f32 = f32::INFINITY;

fn draw(logits: &[f32], params: &SamplingParams) -> Result<u32, DrawFailure> {
    Sampler::new(logits.len()).draw(logits, params, 3, 1)
}

#[test]
fn greedy_takes_the_lowest_index_among_equals_and_negative_zero_is_zero() {
    for greedy in [SamplingParams::greedy(), params(-0.0, 1, 0.1, 9)] {
        assert!(greedy.is_greedy());
        assert_eq!(draw(&[1.0, 3.0, 3.0, 2.0], &greedy), Ok(1));
        assert_eq!(draw(&[-1.0, -0.0, 0.0], &greedy), Ok(1));
        assert_eq!(draw(&[-INFINITY, -5.0, -INFINITY], &greedy), Ok(1));
        // The maximum of the lanes lies in the unaligned rest, and in the lanes.
        let mut logits = [0.0; 21];
        logits[20] = 1.0;
        assert_eq!(draw(&logits, &greedy), Ok(20));
        logits[13] = 1.0;
        assert_eq!(draw(&logits, &greedy), Ok(13));
    }
}

#[test]
fn noise_is_added_literally_so_logits_beyond_its_reach_tie() {
    // float32 numbers near 1e9 are 64 apart: no noise reaches the next one.
    for (top_k, top_p) in [(0, 1.0), (3, 1.0), (0, 0.7), (40, 0.9)] {
        let drawn: Vec<_> = (0..40).map(|seed| draw(&[1e9; 50], &params(1.0, top_k, top_p, seed))).collect();
        assert_eq!(drawn, [Ok(0); 40], "top_k {top_k}, top_p {top_p}");
    }
}

#[test]
fn the_lowest_index_wins_ties_in_whatever_order_the_filters_leave_the_kept() {
    let mut sampler = Sampler::new(500);
    for row in 0..50 {
        // A few levels 64 apart near 1e9, many entries on each: the noise reaches no other level.
        let logits: Vec<f32> =
            synthetic_logits(500, 1.0, row).iter().map(|value| 1e9 + 64.0 * value.round().min(3.0)).collect();
        let largest = logits.iter().copied().fold(-INFINITY, f32::max);
        let expected = logits.iter().position(|logit| *logit == largest).map(|index| index as u32);
        for (top_k, top_p) in [(0, 1.0), (3, 1.0), (100, 1.0), (400, 1.0), (100, 0.9)] {
            let drawn = sampler.draw(&logits, &params(1.0, top_k, top_p, row), 3, 1);
            assert_eq!(drawn.ok(), expected, "row {row}, top_k {top_k}, top_p {top_p}");
        }
    }
}

#[test]
fn nan_and_positive_infinity_fail_anywhere_in_the_row() {
    for params in [SamplingParams::greedy(), params(1.0, 2, 0.5, 1), params(1.0, 0, 1.0, 1)] {
        for index in [0, 7, 18] {
            let mut logits = synthetic_logits(19, 1.0, 0);
            logits[index] = INFINITY;
            assert_eq!(draw(&logits, &params), Err(DrawFailure::NotANumber { index, found: INFINITY }));
            logits[index] = f32::NAN;
            let failure = draw(&logits, &params).unwrap_err();
            assert!(
                matches!(failure, DrawFailure::NotANumber { index: found, .. } if found == index),
                "{failure}"
            );
            assert_eq!(
                failure.to_string(),
                format!("logits[{index}] is NaN: expected a number below +infinity")
            );
        }
    }
}

#[test]
fn a_row_with_nothing_finite_fails() {
    for params in [SamplingParams::greedy(), params(1.0, 2, 0.5, 1), params(1.0, 0, 1.0, 1)] {
        assert_eq!(draw(&[-INFINITY; 9], &params), Err(DrawFailure::NothingFinite { entries: 9 }));
        assert_eq!(draw(&[], &params), Err(DrawFailure::NothingFinite { entries: 0 }));
    }
}

#[test]
fn a_finite_logit_that_overflows_when_divided_fails_of_either_sign() {
    for logit in [1e30, -1e30] {
        let failure = DrawFailure::QuotientOverflows { index: 1, logit, temperature: 1e-20 };
        assert_eq!(draw(&[0.0, logit, -INFINITY], &params(1e-20, 0, 1.0, 1)), Err(failure));
        assert_eq!(draw(&[0.0, logit, -INFINITY], &params(1e-20, 1, 0.5, 1)), Err(failure));
    }
    assert_eq!(draw(&[1e30, 0.0], &SamplingParams::greedy()), Ok(0), "greedy divides nothing");
}

#[test]
fn a_failed_row_leaves_the_next_draw_untouched() {
    let logits = synthetic_logits(300, 2.0, 1);
    let mut sampler = Sampler::new(300);
    for params in
        [SamplingParams::greedy(), params(0.9, 50, 1.0, 5), params(1.0, 50, 0.8, 5), params(1.0, 0, 1.0, 5)]
    {
        for bad in [[f32::NAN; 300], [-INFINITY; 300], [INFINITY; 300]] {
            assert!(sampler.draw(&bad, &params, 0, 1).is_err());
            assert_eq!(sampler.kept(), 0);
            assert_eq!(sampler.draw(&logits, &params, 3, 1), draw(&logits, &params));
        }
    }
}

#[test]
fn differences_beyond_float32_keep_the_largest_entry() {
    let logits = [f32::MIN, f32::MAX, f32::MIN];
    for (top_k, top_p) in [(0, 1.0), (2, 1.0), (0, 0.9)] {
        assert_eq!(draw(&logits, &params(1.0, top_k, top_p, 1)), Ok(1));
    }
}

#[test]
fn parameters_out_of_range_are_refused_when_given() {
    for temperature in [-1.0, f64::NAN, f64::INFINITY, -f64::INFINITY, 1e39, -1e-30] {
        let refused = SamplingParams::from_numbers(temperature, 0, 1.0, 0);
        assert!(matches!(refused, Err(SamplingError::Temperature { .. })), "{temperature}");
    }
    for top_k in [-1, i64::MIN] {
        assert_eq!(
            SamplingParams::from_numbers(1.0, top_k, 1.0, 0),
            Err(SamplingError::TopK { found: top_k })
        );
    }
    for top_p in [0.0, -0.0, -0.5, 1.0001, f64::NAN, f64::INFINITY, 1e-46] {
        let refused = SamplingParams::from_numbers(1.0, 0, top_p, 0);
        assert!(matches!(refused, Err(SamplingError::TopP { .. })), "{top_p}");
    }
    assert_eq!(
        SamplingParams::from_numbers(1.0, 0, 1.5, 0).unwrap_err().to_string(),
        "top_p is 1.5: expected a float32 above 0 and at most 1 (off)"
    );
}

#[test]
fn parameters_are_rounded_to_float32_before_they_are_checked() {
    let rounded = SamplingParams::from_numbers(0.9, 1 << 40, 1.0 + 1e-9, 7).unwrap();
    assert_eq!(rounded, params(0.9, u32::MAX, 1.0, 7));
    for zero in [1e-50, -1e-50, -0.0] {
        let greedy = SamplingParams::from_numbers(zero, 0, 1.0, 0).unwrap();
        assert_eq!(greedy.temperature().to_bits(), 0, "{zero}");
    }
    assert_eq!(SamplingParams::from_numbers(1.0, 0, 1e-45, 0).unwrap().top_p(), f32::from_bits(1));
}

#[test]
fn families_have_their_own_defaults() {
    assert_eq!(SamplingParams::for_family(Family::Qwen3Tts, 7), params(0.9, 50, 1.0, 7));
    assert_eq!(SamplingParams::for_family(Family::Qwen3Omni, 7), params(1.0, 50, 0.8, 7));
}

#[test]
fn draws_depend_on_both_halves_of_seed_and_frame_and_on_the_codebook() {
    let logits = [0.0; 256];
    let codes = |seed: u64, frame: u64, codebook: u32| -> Vec<u32> {
        let params = params(1.0, 0, 1.0, seed);
        let mut sampler = Sampler::new(256);
        (0..8).map(|later| sampler.draw(&logits, &params, frame + later, codebook).unwrap()).collect()
    };
    let counters =
        [(1, 0, 1), (2, 0, 1), (1 | 1 << 32, 0, 1), (1, 100, 1), (1, 1 << 32, 1), (1, 0, 2), (1 << 63, 0, 1)];
    for (position, &(seed, frame, codebook)) in counters.iter().enumerate() {
        assert_eq!(codes(seed, frame, codebook), codes(seed, frame, codebook));
        for &(other_seed, other_frame, other_codebook) in &counters[..position] {
            assert_ne!(codes(seed, frame, codebook), codes(other_seed, other_frame, other_codebook));
        }
    }
}

/// Logits on a grid coarse enough for ties, with −∞ and both zeros among them.
pub(super) fn tied_logits() -> impl Strategy<Value = Vec<f32>> {
    let logit = prop_oneof![
        8 => (-40i32..40).prop_map(|steps| steps as f32 / 8.0),
        1 => Just(-INFINITY),
        1 => Just(-0.0f32),
    ];
    prop::collection::vec(logit, 1..200)
        .prop_filter("something finite", |logits| logits.iter().any(|logit| logit.is_finite()))
}

proptest! {
    #[test]
    fn top_k_of_1_and_a_tiny_top_p_draw_a_largest_logit(
        logits in tied_logits(), temperature in 0.05f32..4.0, seed: u64,
    ) {
        let largest = logits.iter().copied().fold(-INFINITY, f32::max);
        let greedy = draw(&logits, &SamplingParams::greedy()).unwrap();
        prop_assert_eq!(Some(greedy as usize), logits.iter().position(|logit| *logit == largest));
        let top_1 = draw(&logits, &params(temperature, 1, 1.0, seed)).unwrap();
        prop_assert_eq!(logits[top_1 as usize], largest);
        for top_p in [1e-30, f32::from_bits(1)] {
            prop_assert_eq!(draw(&logits, &params(temperature, 0, top_p, seed)).unwrap(), greedy);
        }
    }

    #[test]
    fn entries_of_negative_infinity_change_no_draw(
        logits in tied_logits(), padding in 1usize..40, top_k in 0u32..20, top_p in 0.1f32..1.0, seed: u64,
    ) {
        for top_p in [top_p, 1.0] {
            let params = params(0.7, top_k, top_p, seed);
            let mut padded = logits.clone();
            padded.resize(logits.len() + padding, -INFINITY);
            prop_assert_eq!(draw(&padded, &params), draw(&logits, &params));
        }
    }

    #[test]
    fn an_exact_shift_keeps_as_many_entries_and_draws_the_argmax_of_the_literal_sums(
        steps in prop::collection::vec(-512i32..512, 1..100),
        shift in -64i32..64,
        top_k in 0u32..20,
        seed: u64,
    ) {
        let logits: Vec<f32> = steps.iter().map(|steps| *steps as f32 / 64.0).collect();
        let shifted: Vec<f32> = logits.iter().map(|logit| logit + shift as f32).collect();
        let mut sampler = Sampler::new(100);
        let mut kept = |logits: &[f32]| {
            sampler.draw(logits, &params(1.0, top_k, 0.9, seed), 3, 1).unwrap();
            sampler.kept()
        };
        prop_assert_eq!(kept(&logits), kept(&shifted));

        let noise = Noise::new(seed, 3, 1);
        let sums: Vec<f32> = (0..).zip(&shifted).map(|(entry, x)| x + noise.at([entry])[0]).collect();
        let best = sums.iter().copied().fold(-INFINITY, f32::max);
        let code = draw(&shifted, &params(1.0, 0, 1.0, seed)).unwrap();
        prop_assert_eq!(Some(code as usize), sums.iter().position(|sum| *sum == best));
    }

    #[test]
    fn machines_with_and_without_the_vector_unit_draw_the_same(
        logits in prop::collection::vec(-12f32..12.0, 1..300),
        top_k in 0u32..100,
        top_p in 0.1f32..1.0,
        seed: u64,
    ) {
        let mut sampler = Sampler::new(300);
        for (top_k, top_p) in [(top_k, top_p), (0, top_p), (top_k, 1.0), (0, 1.0)] {
            let params = params(0.8, top_k, top_p, seed);
            let anywhere = (sampler.draw_anywhere(&logits, &params, 3, 1), sampler.kept());
            prop_assert_eq!((sampler.draw(&logits, &params, 3, 1), sampler.kept()), anywhere);
        }
    }
}
