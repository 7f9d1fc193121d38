//! Frequencies of many draws against the exact distribution, and draws that differ in one counter against
//! independence.
//!
//! Seeds are fixed, so each test always gives the same statistic; the bounds are those of a fair test.

use super::{params, synthetic_logits};
use crate::sampling::{Sampler, SamplingParams};

const DRAWS: usize = 40_000;
/// Standard deviations of a fair statistic beyond which a distribution is refused.
const REFUSED_BEYOND: f64 = 4.0;

/// The exact distribution over V, in float64: softmax(logits / temperature), filtered.
fn exact_distribution(logits: &[f32], params: &SamplingParams) -> Vec<f64> {
    let x: Vec<f64> =
        logits.iter().map(|logit| f64::from(*logit) / f64::from(params.temperature())).collect();
    let mut order: Vec<usize> = (0..x.len()).collect();
    order.sort_by(|&a, &b| x[b].total_cmp(&x[a]).then(a.cmp(&b)));
    if params.top_k() > 0 {
        order.truncate(params.top_k() as usize);
    }
    let weight = |v: usize| (x[v] - x[order[0]]).exp();
    let total: f64 = order.iter().map(|&v| weight(v)).sum();
    let mut before = 0.0;
    let mut kept = Vec::new();
    for &v in &order {
        if before < f64::from(params.top_p()) * total {
            kept.push(v);
        }
        before += weight(v);
    }
    let kept_total: f64 = kept.iter().map(|&v| weight(v)).sum();
    let mut distribution = vec![0.0; x.len()];
    for v in kept {
        distribution[v] = weight(v) / kept_total;
    }
    distribution
}

/// The chi-square statistic of `counts` under `distribution` in standard deviations above its mean
/// (Wilson–Hilferty). Rare cells are pooled; a count where the distribution has none is infinitely
/// surprising.
fn surprise(counts: &[usize], distribution: &[f64]) -> f64 {
    let draws: usize = counts.iter().sum();
    let (mut statistic, mut cells) = (0.0, 0.0);
    let (mut rare_count, mut rare_expected) = (0.0, 0.0);
    for (&count, &probability) in counts.iter().zip(distribution) {
        let expected = probability * draws as f64;
        if probability == 0.0 && count > 0 {
            return f64::INFINITY;
        }
        if expected < 10.0 {
            rare_count += count as f64;
            rare_expected += expected;
        } else {
            statistic += (count as f64 - expected).powi(2) / expected;
            cells += 1.0;
        }
    }
    if rare_expected > 0.0 {
        statistic += (rare_count - rare_expected).powi(2) / rare_expected.max(1.0);
        cells += 1.0;
    }
    let freedom: f64 = cells - 1.0;
    let spread = 2.0 / (9.0 * freedom);
    ((statistic / freedom).cbrt() - (1.0 - spread)) / spread.sqrt()
}

#[test]
fn sampled_frequencies_match_the_exact_filtered_distribution_and_no_other() {
    let logits = synthetic_logits(64, 1.2, 3);
    let mut sampler = Sampler::new(64);
    for (temperature, top_k, top_p) in
        [(1.0, 0, 1.0), (0.9, 50, 1.0), (1.0, 50, 0.8), (0.7, 12, 0.9), (1.5, 0, 0.95), (2.0, 7, 1.0)]
    {
        let params = params(temperature, top_k, top_p, 0x0123_4567_89ab_cdef);
        let mut counts = [0; 64];
        for draw in 0..DRAWS as u64 {
            // Frames and codebooks both advance, as they do in speech.
            let (frame_index, codebook) = (draw / 15, (draw % 15) as u32 + 1);
            counts[sampler.draw(&logits, &params, frame_index, codebook).unwrap() as usize] += 1;
        }
        let fair = surprise(&counts, &exact_distribution(&logits, &params));
        assert!(fair.abs() < REFUSED_BEYOND, "{params:?}: {fair} standard deviations");
        let hotter = SamplingParams::new(temperature * 1.1, top_k, top_p, 0).unwrap();
        let unfair = surprise(&counts, &exact_distribution(&logits, &hotter));
        assert!(unfair > REFUSED_BEYOND, "{params:?}: a temperature 10 % off passes, at {unfair}");
    }
}

#[test]
fn draws_that_differ_in_seed_frame_or_codebook_alone_are_independent() {
    const CODES: usize = 8;
    let logits = [0.0; CODES];
    let mut sampler = Sampler::new(CODES);
    let mut code = |seed: u64, frame_index: u64, codebook: u32| {
        sampler.draw(&logits, &params(1.0, 0, 1.0, seed), frame_index, codebook).unwrap() as usize
    };
    let uniform = [1.0 / (CODES * CODES) as f64; CODES * CODES];
    for (name, seed_step, frame_step, codebook_step) in [
        ("seed", 1, 0, 0),
        ("seed, high half", 1 << 32, 0, 0),
        ("frame", 0, 1, 0),
        ("frame, high half", 0, 1 << 32, 0),
        ("codebook", 0, 0, 1),
    ] {
        let mut counts = [0; CODES * CODES];
        for draw in 0..DRAWS as u64 {
            let (seed, frame_index, codebook) = (draw % 5, 2 * draw, (draw % 7) as u32 + 1);
            let first = code(seed, frame_index, codebook);
            let second = code(seed + seed_step, frame_index + frame_step, codebook + codebook_step);
            counts[first * CODES + second] += 1;
        }
        let fair = surprise(&counts, &uniform);
        assert!(fair.abs() < REFUSED_BEYOND, "{name}: {fair} standard deviations");
    }
}
