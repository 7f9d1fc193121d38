//! Random values from integers and a few IEEE multiplications and additions: the same on every machine.
//!
//! A value is the sum of four uniform 16-bit numbers, centred and scaled: close to a normal variable (its tails end at
//! 3.5 deviations), and free of logarithms and cosines, which differ between systems.

use rayon::prelude::*;

use crate::sampling::philox::philox4x32_10;

/// The last part of the counter: keeps these draws apart from those of sampling, where it is a frame's upper half.
const DOMAIN: u32 = 0x7379_6e74;
/// Number of the hidden rows among a seed's streams; weights count up from 0.
pub(super) const HIDDEN_ROWS: u32 = u32::MAX;
/// Number of the codes among a seed's streams.
pub(super) const CODES: u32 = u32::MAX - 1;

/// Bytes that one task makes: small enough to share a tensor among threads.
const TASK_BYTES: usize = 1 << 16;

/// Which random numbers: those of one tensor under one seed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    pub seed: u64,
    pub tensor: u32,
}

/// What the numbers become.
#[derive(Clone, Copy, Debug)]
pub(super) struct Distribution {
    pub mean: f32,
    pub deviation: f32,
}

impl Stream {
    /// Four uniform words; `index` counts up to 2⁶⁴.
    fn words(self, index: u64) -> [u32; 4] {
        let counter = [index as u32, (index >> 32) as u32, self.tensor, DOMAIN];
        philox4x32_10(counter, [self.seed as u32, (self.seed >> 32) as u32])
    }

    /// Two values of mean 0 and deviation 1.
    fn pair(self, index: u64) -> [f32; 2] {
        /// 1 / √(4 · (2³² − 1) / 12): the reciprocal deviation of the sum of four uniform 16-bit numbers.
        const RECIPROCAL: f32 = 2.642_899_8e-5;
        let [a, b, c, d] = self.words(index);
        let centred = |one: u32, other: u32| {
            let sum = (one & 0xffff) + (one >> 16) + (other & 0xffff) + (other >> 16);
            (sum as i32 - 2 * 0xffff) as f32 * RECIPROCAL
        };
        [centred(a, b), centred(c, d)]
    }
}

/// Fills bfloat16 elements, on all threads.
pub(super) fn fill_bfloat16(bytes: &mut [u8], stream: Stream, distribution: Distribution) {
    let Distribution { mean, deviation } = distribution;
    bytes.par_chunks_mut(TASK_BYTES).enumerate().for_each(|(task, bytes)| {
        let first = (task * TASK_BYTES / 4) as u64;
        for (offset, pair) in bytes.chunks_mut(4).enumerate() {
            let values = stream
                .pair(first + offset as u64)
                .map(|value| half::bf16::from_f32(deviation * value + mean).to_le_bytes());
            // The last pair of a tensor with an odd number of elements is half used.
            pair.copy_from_slice(&values.as_flattened()[..pair.len()]);
        }
    });
}

/// Fills rows of `width` elements, each with a root mean square of one. `first` is the number of the first row.
pub(super) fn fill_rows_of_unit_size(values: &mut [f32], width: usize, first: usize, stream: Stream) {
    let pairs_in_a_row = width.div_ceil(2);
    values.par_chunks_mut(width).enumerate().for_each(|(row, values)| {
        let first = ((first + row) * pairs_in_a_row) as u64;
        for (offset, pair) in values.chunks_mut(2).enumerate() {
            pair.copy_from_slice(&stream.pair(first + offset as u64)[..pair.len()]);
        }
        let mean_square = values.iter().map(|value| value * value).sum::<f32>() / width as f32;
        let scale = if mean_square > 0.0 { 1.0 / mean_square.sqrt() } else { 0.0 };
        values.iter_mut().for_each(|value| *value *= scale);
    });
}

/// The code of a row: below `size`, near enough uniform.
pub(super) fn code(row: usize, size: usize, stream: Stream) -> i32 {
    let word = u64::from(stream.words(row as u64)[0]);
    ((word * size as u64) >> 32) as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_the_mean_and_deviation_they_are_given() {
        let distribution = Distribution { mean: 1.0, deviation: 0.25 };
        let mut bytes = vec![0; 2 * 100_001];
        fill_bfloat16(&mut bytes, Stream { seed: 3, tensor: 1 }, distribution);
        let values: Vec<f64> = bytes
            .as_chunks::<2>()
            .0
            .iter()
            .map(|bytes| f64::from(half::bf16::from_le_bytes(*bytes).to_f32()))
            .collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / values.len() as f64;
        // Five standard errors of 100,001 values.
        assert!((mean - 1.0).abs() < 0.004, "{mean}");
        assert!((variance.sqrt() - 0.25).abs() < 0.003, "{}", variance.sqrt());
    }

    #[test]
    fn a_tensor_of_many_tasks_is_one_sequence() {
        let stream = Stream { seed: 5, tensor: 2 };
        let mut bytes = vec![0; 3 * TASK_BYTES + 4];
        fill_bfloat16(&mut bytes, stream, Distribution { mean: 0.0, deviation: 1.0 });
        for (index, pair) in bytes.as_chunks::<4>().0.iter().enumerate() {
            let expected = stream.pair(index as u64).map(|value| half::bf16::from_f32(value).to_le_bytes());
            assert_eq!(pair, expected.as_flattened(), "pair {index}");
        }
    }

    #[test]
    fn seeds_tensors_and_places_draw_different_numbers() {
        let mut seen = std::collections::HashSet::new();
        for tensor in 0..3 {
            for seed in [0, 1, 1 << 32] {
                for index in 0..200 {
                    assert!(seen.insert(Stream { seed, tensor }.words(index)));
                }
            }
        }
    }

    #[test]
    fn rows_have_unit_size_and_codes_stay_in_range() {
        let mut values = vec![0.0; 7 * 33];
        fill_rows_of_unit_size(&mut values, 33, 0, Stream { seed: 9, tensor: HIDDEN_ROWS });
        for row in values.chunks(33) {
            let mean_square = row.iter().map(|value| value * value).sum::<f32>() / 33.0;
            assert!((mean_square - 1.0).abs() < 1e-5);
        }
        let stream = Stream { seed: 9, tensor: CODES };
        let codes: Vec<i32> = (0..10_000).map(|row| code(row, 96, stream)).collect();
        assert_eq!(codes.iter().max(), Some(&95));
        assert_eq!(codes.iter().min(), Some(&0));
    }
}
