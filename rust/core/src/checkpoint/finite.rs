//! Finds values that are NaN or infinite, at the speed of memory.

use crate::tensor::FloatType;

/// Elements looked at before a verdict: enough for the compiler to use whole vector registers, few enough to stay in
/// the nearest cache for the second look.
const BLOCK: usize = 4096;

/// Flat index of the first element that is NaN or infinite: its exponent bits are all ones.
pub(super) fn first_not_finite(float_type: FloatType, bytes: &[u8]) -> Option<usize> {
    match float_type {
        FloatType::Float32 => first(bytes, |word| not_finite_32(u32::from_le_bytes(word))),
        FloatType::Float16 => first(bytes, |word| not_finite_16::<0x7c00>(u16::from_le_bytes(word))),
        FloatType::BFloat16 => first(bytes, |word| not_finite_16::<0x7f80>(u16::from_le_bytes(word))),
    }
}

/// Index in each dimension of the element with a flat index.
pub(super) fn position(index: usize, shape: &[usize]) -> Vec<usize> {
    let mut rest = index;
    let mut position: Vec<usize> =
        shape.iter().rev().map(|&extent| (rest % extent, rest /= extent).0).collect();
    position.reverse();
    position
}

const fn not_finite_32(bits: u32) -> bool {
    bits & 0x7f80_0000 == 0x7f80_0000
}

const fn not_finite_16<const EXPONENT: u16>(bits: u16) -> bool {
    bits & EXPONENT == EXPONENT
}

#[inline]
fn first<const SIZE: usize>(bytes: &[u8], is_bad: impl Fn([u8; SIZE]) -> bool) -> Option<usize> {
    let (elements, _) = bytes.as_chunks::<SIZE>();
    for (block, words) in elements.chunks(BLOCK).enumerate() {
        // No early exit inside a block, so that it vectorises.
        if words.iter().fold(false, |bad, word| bad | is_bad(*word)) {
            return words.iter().position(|word| is_bad(*word)).map(|index| block * BLOCK + index);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_value_that_is_not_finite_is_found_in_any_block() {
        for float_type in [FloatType::Float32, FloatType::Float16, FloatType::BFloat16] {
            for at in [0, 1, BLOCK - 1, BLOCK, 3 * BLOCK + 17] {
                for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    let mut bytes = vec![0; (3 * BLOCK + 40) * float_type.size()];
                    float_type.narrow(value, &mut bytes, at);
                    float_type.narrow(value, &mut bytes, at + 9);
                    assert_eq!(first_not_finite(float_type, &bytes), Some(at));
                }
            }
        }
    }

    #[test]
    fn the_largest_finite_values_pass() {
        for (float_type, largest) in [
            (FloatType::Float32, f32::MAX),
            (FloatType::Float16, 65504.0),
            (FloatType::BFloat16, f32::from_bits(0x7f7f_0000)),
        ] {
            let mut bytes = vec![0; 3 * float_type.size()];
            float_type.narrow(largest, &mut bytes, 0);
            float_type.narrow(-largest, &mut bytes, 2);
            assert_eq!(first_not_finite(float_type, &bytes), None);
        }
    }

    #[test]
    fn a_flat_index_becomes_one_per_dimension() {
        assert_eq!(position(23, &[2, 3, 4]), [1, 2, 3]);
        assert_eq!(position(5, &[9]), [5]);
    }
}
