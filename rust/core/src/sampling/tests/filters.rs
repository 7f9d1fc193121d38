//! The kept set against a plain sort and plain integer comparisons.

use proptest::prelude::*;

use super::corners::tied_logits;
use super::{params, synthetic_logits};
use crate::sampling::filter::{Entry, KeptSet, mass, mass_threshold};
use crate::sampling::gumbel::Noise;
use crate::sampling::{Sampler, SamplingParams};

/// The kept indices, by the definition: sort everything, then walk.
fn kept_by_definition(quotients: &[f32], params: &SamplingParams) -> Vec<u32> {
    let mut order: Vec<u32> =
        (0..quotients.len() as u32).filter(|&v| quotients[v as usize].is_finite()).collect();
    let x = |v: u32| quotients[v as usize];
    order.sort_by(|&a, &b| x(b).partial_cmp(&x(a)).unwrap().then(a.cmp(&b)));
    let largest = x(order[0]);
    let top_k = params.top_k() as usize;
    if top_k > 0 && top_k < order.len() {
        let border = x(order[top_k - 1]);
        order.retain(|&v| x(v) >= border);
    }
    if params.top_p() < 1.0 {
        let total: u128 = order.iter().map(|&v| u128::from(mass(x(v), largest))).sum();
        // top_p = parts / 2^48, exactly, for every top_p these tests use.
        let parts = (f64::from(params.top_p()) * 2f64.powi(48)) as u128;
        assert_eq!(parts as f64, f64::from(params.top_p()) * 2f64.powi(48));
        let mut before = 0u128;
        order.retain(|&v| {
            let stays = before << 48 < parts * total;
            before += u128::from(mass(x(v), largest));
            stays
        });
    }
    order
}

fn kept(kept_set: &mut KeptSet, quotients: &[f32], params: &SamplingParams) -> Vec<u32> {
    let largest = quotients.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    kept_set.select(quotients, largest, params);
    let mut entries = kept_set.entries().to_vec();
    entries.sort_unstable();
    entries.iter().map(|entry| entry.index()).collect()
}

#[test]
fn long_rows_keep_what_the_definition_keeps() {
    let mut kept_set = KeptSet::new(2048);
    for (row, scale) in [(1, 0.02), (2, 0.5), (3, 1.0), (4, 3.0)] {
        let quotients = synthetic_logits(2048, scale, row);
        for top_k in [0, 1, 5, 50, 1000, 2047, 2048, 5000] {
            for top_p in [0.01, 0.5, 0.8, 0.95, 0.999, 1.0 - 2f32.powi(-24), 1.0] {
                let params = params(1.0, top_k, top_p, 0);
                let expected = kept_by_definition(&quotients, &params);
                assert_eq!(kept(&mut kept_set, &quotients, &params), expected, "{params:?}, scale {scale}");
            }
        }
    }
}

#[test]
fn a_boundary_entry_stays_whole_and_an_entry_exactly_at_the_border_goes() {
    let mut kept_set = KeptSet::new(4);
    let quarters = [0.0; 4];
    for (top_p, expected) in
        [(0.25, 1), (0.25 + f32::EPSILON, 2), (0.5, 2), (0.75, 3), (0.75 + f32::EPSILON, 4)]
    {
        let found = kept(&mut kept_set, &quarters, &params(1.0, 0, top_p, 0));
        assert_eq!(found, (0..expected).collect::<Vec<_>>(), "top_p {top_p}");
    }
}

#[test]
fn entries_rank_by_x_descending_then_index_ascending_and_give_both_back() {
    let ordered = [
        (f32::MAX, 9),
        (2.0, 3),
        (2.0, 4),
        (1e-45, 0),
        (-0.0, 1),
        (0.0, 2),
        (-1e-45, 0),
        (-2.0, 0),
        (f32::MIN, 0),
    ];
    for pair in ordered.windows(2) {
        assert!(Entry::new(pair[0].0, pair[0].1) < Entry::new(pair[1].0, pair[1].1), "{pair:?}");
    }
    for (x, index) in ordered {
        let entry = Entry::new(x, index);
        assert_eq!((entry.x(), entry.index()), (x, index));
    }
}

#[test]
fn a_top_p_below_every_mass_keeps_the_first_entry_alone() {
    for top_p in [f32::from_bits(1), f32::MIN_POSITIVE, 2f32.powi(-64), 2f32.powi(-63)] {
        assert_eq!(mass_threshold(top_p, 1), 1, "{top_p:e}");
        assert_eq!(mass_threshold(top_p, 1 << 63), 1, "{top_p:e}");
        assert_eq!(mass_threshold(top_p, 0), 0, "{top_p:e}");
    }
    assert_eq!(mass_threshold(2f32.powi(-63), (1 << 63) + 1), 2);
}

proptest! {
    #[test]
    fn the_threshold_is_the_least_mass_not_below_top_p_of_the_total(
        top_p in prop_oneof![0.0f32..1.0, (0i32..40).prop_map(|halvings| 2f32.powi(-halvings))],
        total in 0u64..1 << 63,
    ) {
        // top_p = parts / 2^63, exactly.
        prop_assume!(top_p >= 2f32.powi(-40));
        let parts = (f64::from(top_p) * 2f64.powi(63)) as u128;
        let threshold = u128::from(mass_threshold(top_p, total));
        let product = parts * u128::from(total);
        prop_assert!(threshold << 63 >= product);
        prop_assert!(threshold == 0 || (threshold - 1) << 63 < product);
    }

    #[test]
    fn rows_full_of_ties_keep_what_the_definition_keeps(
        logits in tied_logits(), top_k in 0u32..60, top_p in 1u32..=64,
    ) {
        let params = params(1.0, top_k, top_p as f32 / 64.0, 0);
        let expected = kept_by_definition(&logits, &params);
        prop_assert_eq!(kept(&mut KeptSet::new(200), &logits, &params), expected);
    }

    #[test]
    fn a_drawn_code_is_the_noisiest_of_the_kept(
        logits in tied_logits(), top_k in 0u32..60, top_p in 1u32..=64, seed: u64,
    ) {
        let params = params(1.0, top_k, top_p as f32 / 64.0, seed);
        let noise = Noise::new(seed, 11, 2);
        let mut expected = None;
        let mut members = kept_by_definition(&logits, &params);
        members.sort_unstable();
        for &entry in &members {
            let sum = logits[entry as usize] + noise.at([entry])[0];
            if expected.is_none_or(|(best, _)| sum > best) {
                expected = Some((sum, entry));
            }
        }
        let mut sampler = Sampler::new(200);
        let drawn = sampler.draw(&logits, &params, 11, 2).unwrap();
        prop_assert_eq!(Some(drawn), expected.map(|(_, entry)| entry));
        // Where even the k-th largest is −∞ and top_p is off, nothing is removed.
        let finite = logits.iter().filter(|logit| logit.is_finite()).count();
        let top_k = match params.top_k() as usize {
            0 => logits.len(),
            top_k => top_k.min(logits.len()),
        };
        let nothing_removed = params.top_p() == 1.0 && finite < top_k;
        prop_assert_eq!(sampler.kept(), if nothing_removed { logits.len() } else { members.len() });
    }
}
