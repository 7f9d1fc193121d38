//! `ln`, `exp` and the noise against float64, and their bits against the ones every release must repeat.

use crate::sampling::gumbel::{ENTRIES_PER_BLOCK, Noise, noise_of_word, uniform};
use crate::sampling::math::{exp, ln};

/// An order-dependent digest of a sequence of float32 bits.
#[derive(Default)]
struct Digest(u64);

impl Digest {
    fn add(&mut self, value: f32) {
        self.0 = (self.0 ^ u64::from(value.to_bits())).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
    }
}

/// |`found` − `expected`| in units of the last place of a float32 near `expected`.
fn error_in_ulps(found: f32, expected: f64) -> f64 {
    let exponent = (expected.abs().log2().floor() as i32).clamp(-126, 127);
    (f64::from(found) - expected).abs() / 2f64.powi(exponent - 23)
}

#[test]
fn noise_of_every_u_is_within_a_millionth_and_repeats_its_bits() {
    let mut digest = Digest::default();
    let mut worst = 0.0f64;
    for significand in 0..1u32 << 23 {
        let u = (f64::from(significand) + 0.5) / f64::from(1u32 << 23);
        let expected = -(-u.ln()).ln();
        let noise = noise_of_word(significand << 9);
        worst = worst.max((f64::from(noise) - expected).abs() / expected.abs().max(1.0));
        digest.add(noise);
    }
    assert!(worst <= 1e-6, "worst error {worst:e}");
    assert_eq!(digest.0, NOISE_DIGEST, "{:#x}", digest.0);
}

#[test]
fn uniform_is_exact_and_never_0_or_1() {
    assert_eq!(uniform(0), 2f32.powi(-24));
    assert_eq!(uniform(u32::MAX), 1.0 - 2f32.powi(-24));
    assert_eq!(uniform(0x1ff), uniform(0), "the low nine bits take no part");
    for word in (0..=u32::MAX).step_by(65_521) {
        assert_eq!(f64::from(uniform(word)), (f64::from(word >> 9) + 0.5) / 8_388_608.0);
    }
}

#[test]
fn ln_keeps_its_relative_error_next_to_1_and_over_all_normal_numbers() {
    let near_1 = (0x3f7f_0000..=0x3f81_0000).chain(0x3f2a_aa00..0x3f2a_ab00).chain(0x3faa_aa00..0x3faa_ab00);
    let everywhere = (0x0080_0000..0x7f80_0000).step_by(2_003);
    for x in near_1.chain(everywhere).map(f32::from_bits) {
        let expected = f64::from(x).ln();
        let error = (f64::from(ln(x)) - expected).abs();
        assert!(error <= expected.abs() * 2f64.powi(-23), "ln({x:e}) = {:e}, not {expected:e}", ln(x));
    }
    assert_eq!(ln(1.0), 0.0);
}

#[test]
fn exp_is_accurate_from_subnormal_results_to_the_largest_and_repeats_its_bits() {
    let mut digest = Digest::default();
    let mut worst = 0.0f64;
    for bits in (0..=u32::MAX).step_by(4_099) {
        let x = f32::from_bits(bits);
        let expected = f64::from(x).exp();
        if x.is_nan() {
            assert!(exp(x).is_nan(), "exp(NaN)");
            continue;
        }
        digest.add(exp(x));
        if expected < f64::from(f32::MAX) {
            worst = worst.max(error_in_ulps(exp(x), expected));
        } else {
            assert_eq!(exp(x), f32::INFINITY, "exp({x})");
        }
    }
    assert!(worst <= 1.01, "worst error {worst} ulp");
    assert_eq!(digest.0, EXP_DIGEST, "{:#x}", digest.0);
}

#[test]
fn exp_underflows_to_0_overflows_to_infinity_and_passes_nan() {
    assert_eq!(exp(0.0), 1.0);
    assert_eq!(exp(-0.0), 1.0);
    for (x, expected) in [
        (f32::NEG_INFINITY, 0.0),
        (f32::MIN, 0.0),
        (-104.0, 0.0),
        (-103.9, f32::from_bits(1)),
        (88.73, f32::INFINITY),
        (f32::MAX, f32::INFINITY),
        (f32::INFINITY, f32::INFINITY),
    ] {
        assert_eq!(exp(x), expected, "exp({x})");
    }
    assert!(exp(88.72).is_finite());
    assert!(exp(f32::NAN).is_nan() && exp(-f32::NAN).is_nan());
}

#[test]
fn noise_in_blocks_is_the_noise_of_each_entry() {
    for (seed, frame_index, codebook) in [(0, 0, 1), (u64::MAX, 1 << 40, 15), (1 << 32, 5, 31)] {
        let noise = Noise::new(seed, frame_index, codebook);
        let blocks = noise.blocks::<5>(7);
        for (value, entry) in blocks.as_flattened().iter().zip(7 * ENTRIES_PER_BLOCK as u32..) {
            assert_eq!(*value, noise.at([entry])[0], "entry {entry}");
        }
    }
}

/// Digest of the noise for every u, ascending.
const NOISE_DIGEST: u64 = 0xa20a_dc6d_5797_77e1;
/// Digest of exp over every 4099th float32 that is not NaN, by ascending bits.
const EXP_DIGEST: u64 = 0x488b_232c_82c6_58c2;
