//! Intrinsics on one thread's values.

use bytemuck::{Pod, Zeroable};
use overtone_simt::{GuardedBuffer, Schedule};

use crate::{buffer, run};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct ScalarArguments {
    integers: u64,
    floats: u64,
    outputs: u64,
    count: u32,
    reserved: u32,
}

fn byte_perm(low: u32, high: u32, selector: u32) -> u32 {
    let bytes = (u64::from(high) << 32 | u64::from(low)).to_le_bytes();
    let pick = |i: u32| {
        let nibble = selector >> (4 * i) & 15;
        let byte = bytes[nibble as usize & 7];
        if nibble & 8 == 0 { byte } else { ((byte as i8) >> 7) as u8 }
    };
    u32::from_le_bytes([pick(0), pick(1), pick(2), pick(3)])
}

fn expected([a, b, c]: [u32; 3], [x, y, z]: [f32; 3]) -> [u32; 24] {
    let pair = u64::from(b) << 32 | u64::from(a);
    let wide = |high: u32, low: u32| u128::from(u64::from(high) << 32 | u64::from(low));
    [
        a.leading_zeros(),
        a.count_ones(),
        if a == 0 { 0 } else { a.trailing_zeros() + 1 },
        a.reverse_bits(),
        ((u64::from(a) * u64::from(b)) >> 32) as u32,
        ((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32,
        (pair << (c & 31) >> 32) as u32,
        (pair >> (c & 31)) as u32,
        byte_perm(a, b, c),
        a.min(b),
        (a as i32).max(b as i32) as u32,
        x.mul_add(y, z).to_bits(),
        (x * y + z).to_bits(),
        (x / y).to_bits(),
        x.sqrt().to_bits(),
        (1.0 / x).to_bits(),
        x as i32 as u32,
        x.round_ties_even() as i32 as u32,
        x as u32,
        (a as f32).to_bits(),
        x.min(y).to_bits(),
        x.max(y).to_bits(),
        ((wide(a, b) * wide(b, c)) >> 64) as u32,
        u64::from(a).leading_zeros(),
    ]
}

#[test]
fn intrinsics_round_once_and_keep_cudas_corners() {
    let mut state = 1_u32;
    let mut word = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state ^ state >> 15
    };
    let mut integers = vec![[0, 0, 0], [1, u32::MAX, 31], [u32::MAX, u32::MAX, 0x7654], [1 << 31, 1, 0xfedc]];
    let mut floats = vec![[0.0, 1.0, 2.0], [3e9, 3.0, 0.1], [-3e9, f32::INFINITY, 1.0], [2.5, 1e-40, 1e-45]];
    for _ in 0..2000 {
        integers.push([word(), word(), word()]);
        let mut float = || (word() as f32 / 65536.0 - 32768.0) * 10_f32.powi((word() % 13) as i32 - 6);
        floats.push([float(), float(), float()]);
    }
    let count = integers.len();
    let integers = GuardedBuffer::from_slice(&integers);
    let floats = GuardedBuffer::from_slice(&floats);
    let outputs = buffer(24 * count);
    let arguments = ScalarArguments {
        integers: integers.address(),
        floats: floats.address(),
        outputs: outputs.address(),
        count: count as u32,
        reserved: 0,
    };
    run("simt_test_scalars", (count as u32).div_ceil(128), 128, 0, arguments, Schedule::Natural).unwrap();
    for (i, found) in outputs.as_slice().chunks(24).enumerate() {
        let expected = expected(integers.as_slice()[i], floats.as_slice()[i]);
        for (which, (found, expected)) in found.iter().zip(expected).enumerate() {
            let both_nan = f32::from_bits(*found).is_nan() && f32::from_bits(expected).is_nan();
            assert!(
                *found == expected || (both_nan && (11..=15).contains(&which)),
                "output {which} of {:?} {:?}: {found:#x}, expected {expected:#x}",
                integers.as_slice()[i],
                floats.as_slice()[i]
            );
        }
    }
}
