//! `ln` and `exp` in float32 as fixed sequences of IEEE additions, multiplications, fused multiply-adds and
//! integer bit operations, so that a GPU repeats them bit for bit.
//!
//! No call into a C library takes part: those differ between platforms in the last bit, and one bit is a
//! different code. A device that repeats the sequences must neither contract `a * b + c` where it is written
//! as two operations, nor flush subnormals to zero. Both functions are free of branches, so loops over them
//! vectorise wherever the caller is compiled for a fused multiply-add; elsewhere `mul_add` gives the same
//! bits, slowly.
//!
//! The polynomials are minimax fits of the relative error of the whole function, computed in 40 digits and
//! rounded to float32. Which logarithms are taken of what is left to [`gumbel`](super::gumbel) and
//! [`filter`](super::filter).

/// The float32 nearest to ln 2.
const LN_2: f32 = f32::from_bits(0x3f31_7218);
/// ln 2 − [`LN_2`], rounded to float32.
const LN_2_REST: f32 = f32::from_bits(0xb102_e308);
/// The float32 nearest to 1 / ln 2.
const LOG2_E: f32 = f32::from_bits(0x3fb8_aa3b);

/// Bits of 2/3, rounded up: the smallest significand left by the reduction of [`ln`].
const TWO_THIRDS_BITS: u32 = 0x3f2a_aaab;
/// Sign and exponent of a float32.
const SIGN_AND_EXPONENT: u32 = 0xff80_0000;
/// Bits of a float32's fraction.
const FRACTION_BITS: u32 = 23;
/// (ln(1 + f) − f) / f² over |f| ≤ 1/3, lowest power first; relative error of ln(1 + f) at most 4.5e-9.
const LN_POLYNOMIAL: [f32; 9] = [
    f32::from_bits(0xbf00_0000),
    f32::from_bits(0x3eaa_aa81),
    f32::from_bits(0xbe7f_ff42),
    f32::from_bits(0x3e4c_e8f9),
    f32::from_bits(0xbe2a_d3aa),
    f32::from_bits(0x3e0f_5f34),
    f32::from_bits(0xbdf9_2eec),
    f32::from_bits(0x3e0f_68a1),
    f32::from_bits(0xbe04_98f3),
];

/// 1.5 · 2²³: a sum with it leaves the nearest integer in the low bits of the fraction.
const ROUND_TO_INTEGER: f32 = 12_582_912.0;
/// Below it, exp rounds to zero: −105 < −150 ln 2.
const EXP_LOWEST: f32 = -105.0;
/// Above it, exp rounds to infinity: 89 > 128 ln 2.
const EXP_HIGHEST: f32 = 89.0;
/// (eʳ − 1 − r) / r² over |r| ≤ ln 2 / 2, lowest power first; relative error of eʳ at most 3.1e-9.
const EXP_POLYNOMIAL: [f32; 5] = [
    f32::from_bits(0x3eff_fffe),
    f32::from_bits(0x3e2a_aa49),
    f32::from_bits(0x3d2a_ac79),
    f32::from_bits(0x3c09_1d10),
    f32::from_bits(0x3ab5_11e8),
];

/// Horner's rule from the highest power down, one fused multiply-add per coefficient.
#[inline(always)]
fn polynomial<const N: usize>(coefficients: &[f32; N], at: f32) -> f32 {
    let mut value = coefficients[N - 1];
    for power in (0..N - 1).rev() {
        value = value.mul_add(at, coefficients[power]);
    }
    value
}

/// The natural logarithm of a positive, normal, finite float32; the value for any other argument means
/// nothing.
///
/// The relative error is below 2⁻²³ everywhere, next to 1 too, where the result goes to zero: the noise of u
/// = 1 − 2⁻²⁴ needs −ln u = 5.96e-8 to all its digits.
///
/// Sequence, with x = 2ᵉ · (1 + f), 2/3 ≤ 1 + f < 4/3, read off the bits:
/// 1. d = (bits(x) − bits(2/3)) with the fraction cleared; f = float(bits(x) − d) − 1, exact; e = d ≫ 23
///    (arithmetic), as float
/// 2. q = Horner of 9 coefficients in f, highest first, by fma
/// 3. r = fma(f · f, q, f)
/// 4. fma(e, ln 2, r)
#[inline(always)]
pub fn ln(x: f32) -> f32 {
    let bits = x.to_bits();
    let exponent_bits = bits.wrapping_sub(TWO_THIRDS_BITS) & SIGN_AND_EXPONENT;
    let exponent = ((exponent_bits as i32) >> FRACTION_BITS) as f32;
    let fraction = f32::from_bits(bits.wrapping_sub(exponent_bits)) - 1.0;
    let curvature = polynomial(&LN_POLYNOMIAL, fraction);
    let of_significand = (fraction * fraction).mul_add(curvature, fraction);
    exponent.mul_add(LN_2, of_significand)
}

/// 2 to an integer power within −126 … 127.
#[inline(always)]
fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits((exponent.wrapping_add(127) as u32) << FRACTION_BITS)
}

/// eˣ over all of float32, within 1.01 ulp, subnormal results included: 0 below −103.98, +∞ above 88.73, NaN
/// for NaN.
///
/// Sequence:
/// 1. x ← −105 if x < −105; x ← 89 if x > 89 (comparisons, so that NaN passes)
/// 2. t = fma(x, log₂ e, 1.5 · 2²³); k = t − 1.5 · 2²³ as float, n = bits(t) − bits(1.5 · 2²³) the same as an
///    integer
/// 3. r = fma(k, −(ln 2 − its float32), fma(k, −its float32, x))
/// 4. q = Horner of 5 coefficients in r, highest first, by fma
/// 5. p = 1 + fma(r · r, q, r)
/// 6. p · 2^(n ≫ 1) · 2^(n − (n ≫ 1)), from left to right: the first product is exact, the second rounds once
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    let x = if x < EXP_LOWEST { EXP_LOWEST } else { x };
    let x = if x > EXP_HIGHEST { EXP_HIGHEST } else { x };
    let shifted = x.mul_add(LOG2_E, ROUND_TO_INTEGER);
    let whole = shifted - ROUND_TO_INTEGER;
    let exponent = shifted.to_bits().wrapping_sub(ROUND_TO_INTEGER.to_bits()) as i32;
    let rest = whole.mul_add(-LN_2_REST, whole.mul_add(-LN_2, x));
    let curvature = polynomial(&EXP_POLYNOMIAL, rest);
    let significand = 1.0 + (rest * rest).mul_add(curvature, rest);
    let half = exponent >> 1;
    significand * power_of_two(half) * power_of_two(exponent.wrapping_sub(half))
}
