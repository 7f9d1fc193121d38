//! ln, exp, noise and conversions: the kernels' own, bit for bit those of overtone-core and of `half`.

use bytemuck::{Pod, Zeroable};
use overtone_core::sampling::gumbel::noise_of_word;
use overtone_core::sampling::math::{exp, ln};
use overtone_core::sampling::philox::philox4x32_10;
use overtone_core::tensor::FloatType;
use overtone_simt::{GuardedBuffer, Schedule, kernel, launch};

use crate::host::fixtures::random::Random;

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Arguments {
    input: u64,
    output: u64,
    count: u32,
    function: u32,
}

/// Functions of `self_test_kernels/arithmetic.cu`.
const NOISE: u32 = 0;
const LN: u32 = 1;
const EXP: u32 = 2;
const TO_FLOAT16: u32 = 3;
const TO_BFLOAT16: u32 = 4;
const FROM_FLOAT16: u32 = 5;

fn run<T: Pod>(name: &str, input: &[T], function: u32) -> Vec<u32> {
    let buffer = GuardedBuffer::from_slice(input);
    let output = GuardedBuffer::<u32>::filled_with_byte(input.len(), 0xff);
    let arguments =
        Arguments { input: buffer.address(), output: output.address(), count: input.len() as u32, function };
    let function = kernel(name).unwrap();
    let arguments = bytemuck::bytes_of(&arguments);
    // SAFETY: the kernel stays within the two buffers, whose lengths it is given.
    unsafe { launch(function, [8, 1, 1], 256, 0, arguments, Schedule::Natural) }.unwrap();
    output.as_slice().to_vec()
}

/// Compares a function over inputs of 32 bits; `expected` gives bits.
fn check(function: u32, inputs: &[u32], expected: impl Fn(u32) -> u32) {
    for (input, found) in inputs.iter().zip(run("simt_test_arithmetic", inputs, function)) {
        let expected = expected(*input);
        assert_eq!(found, expected, "function {function} of {input:#x}: {found:#x}, not {expected:#x}");
    }
}

/// Every 4099th float32, those about one, and the ends of the ranges.
fn spread() -> Vec<u32> {
    let ends =
        [0.0_f32, -0.0, 1.0, -105.0, 89.0, 88.72, -103.97, 65504.0, 65519.996, 65520.0, 6.0e-8, 2.9e-8];
    let ends = ends.into_iter().flat_map(|end| [end, -end]).flat_map(|end| {
        let bits = end.to_bits();
        [bits.wrapping_sub(1), bits, bits.wrapping_add(1)]
    });
    ends.chain(0x3f7f_ff00..0x3f80_0100).chain((0..u32::MAX).step_by(4099)).collect()
}

#[test]
fn noise_of_every_u_is_overtone_cores_bit_for_bit() {
    let significands: Vec<u32> = (0..1 << 23).collect();
    check(NOISE, &significands, |significand| noise_of_word(significand << 9).to_bits());
}

#[test]
fn ln_and_exp_are_overtone_cores_bit_for_bit() {
    let normal = |bits: &u32| f32::from_bits(*bits).is_normal() && f32::from_bits(*bits) > 0.0;
    let positive: Vec<u32> = spread().into_iter().filter(normal).collect();
    check(LN, &positive, |bits| ln(f32::from_bits(bits)).to_bits());
    let numbers: Vec<u32> = spread().into_iter().filter(|bits| !f32::from_bits(*bits).is_nan()).collect();
    check(EXP, &numbers, |bits| exp(f32::from_bits(bits)).to_bits());
    for found in run("simt_test_arithmetic", &[f32::NAN.to_bits(), (-f32::NAN).to_bits()], EXP) {
        assert!(f32::from_bits(found).is_nan());
    }
}

#[test]
fn words_are_those_of_philox() {
    let mut random = Random::new(1);
    let mut inputs: Vec<[u32; 6]> = (0..20_000).map(|_| [(); 6].map(|()| random.word() as u32)).collect();
    inputs.extend([[0; 6], [u32::MAX; 6]]);
    for (input, found) in inputs.iter().zip(run("simt_test_philox", &inputs, 0)) {
        let [seed_low, seed_high, frame_low, frame_high, codebook, entry] = *input;
        let words = philox4x32_10([entry >> 2, codebook, frame_low, frame_high], [seed_low, seed_high]);
        assert_eq!(found, words[(entry & 3) as usize], "{input:?}");
    }
}

#[test]
fn numbers_are_rounded_to_sixteen_bits_as_half_rounds_them() {
    for (function, float_type) in [(TO_FLOAT16, FloatType::Float16), (TO_BFLOAT16, FloatType::BFloat16)] {
        let narrow = |bits: u32| {
            let mut bytes = [0; 4];
            float_type.narrow(f32::from_bits(bits), &mut bytes, 0);
            u32::from_le_bytes(bytes)
        };
        // Half way between two neighbours, and just beside it, at every exponent.
        let halves = (0..=u32::MAX >> 13).step_by(7).flat_map(|upper| {
            let tie = upper << 13 | if float_type == FloatType::Float16 { 0x1000 } else { 0x8000 };
            [tie - 1, tie, tie + 1]
        });
        let numbers: Vec<u32> =
            spread().into_iter().chain(halves).filter(|bits| !f32::from_bits(*bits).is_nan()).collect();
        check(function, &numbers, narrow);
        for found in run("simt_test_arithmetic", &[f32::NAN.to_bits(), 0x7f80_0001, 0xffff_ffff], function) {
            assert!(float_type.widen(&found.to_le_bytes(), 0).is_nan(), "{float_type}: {found:#x}");
        }
    }
}

#[test]
fn every_float16_is_widened_exactly() {
    let all: Vec<u32> = (0..=0xffff).collect();
    let nan = |bits: &u32| FloatType::Float16.widen(&bits.to_le_bytes(), 0).is_nan();
    let (nans, numbers): (Vec<u32>, Vec<u32>) = all.into_iter().partition(nan);
    check(FROM_FLOAT16, &numbers, |bits| FloatType::Float16.widen(&bits.to_le_bytes(), 0).to_bits());
    for found in run("simt_test_arithmetic", &nans, FROM_FLOAT16) {
        assert!(f32::from_bits(found).is_nan());
    }
}
