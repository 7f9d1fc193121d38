//! int8 weights: exact integer sums over activations of sixteen bits.
//!
//! An activation row enters as integers x ≈ step · n with |n| ≤ 32767, step = max |x| / 32767: with one step for the
//! row its rounding is finer than bfloat16's for every value within a factor of 128 of the largest. Sums of up to
//! [`BLOCK_FEATURES`] products are exact in 32 bits; they are added up in float32, in order, and multiplied by the
//! row's step and then by the output row's scale. Widening the weights to float32 instead would cost twice the
//! instructions and leave a frame bound by them, not by memory.

use super::{ActivationRows, Finish, TASK_PANELS, half_of};
use crate::cpu::lanes::{HALF, InstructionSet, IntegerLanes, Kernel, LANES, Lane16, Lanes};
use crate::cpu::panels::Int8Pair;
use rayon::prelude::*;

/// Largest integer of an activation.
const LARGEST: f32 = 32767.0;

/// Features whose products, each at most 127 · 32767, cannot overflow 32 bits together.
const BLOCK_FEATURES: usize = 512;

/// Blocks of sixteen words that one row of `features` takes as integers: its pairs, and its step.
pub(in crate::cpu) const fn integer_blocks(features: usize) -> usize {
    features.div_ceil(2).div_ceil(LANES) + 1
}

/// Activation rows as integers, two features to a word.
#[derive(Clone, Copy)]
pub(super) struct IntegerRows<'a> {
    blocks: &'a [Lane16],
    rows: usize,
    pairs: usize,
}

impl<'a> IntegerRows<'a> {
    /// Rounds `features` features of every row into `to`.
    pub(super) fn quantise(
        instructions: InstructionSet,
        inputs: ActivationRows<'_>,
        features: usize,
        to: &'a mut [Lane16],
    ) -> Self {
        let per_row = integer_blocks(features);
        let to = &mut to[..inputs.rows * per_row];
        to.par_chunks_exact_mut(per_row).enumerate().for_each(|(row, to)| {
            instructions.run(QuantiseRow { inputs, row, features, to });
        });
        Self { blocks: to, rows: inputs.rows, pairs: features.div_ceil(2) }
    }

    #[inline(always)]
    fn row(&self, row: usize) -> (&'a [[i16; 2]], f32) {
        let per_row = self.blocks.len() / self.rows;
        let blocks = &self.blocks[row * per_row..(row + 1) * per_row];
        let step = blocks[per_row - 1][0];
        (&bytemuck::cast_slice::<f32, [i16; 2]>(blocks.as_flattened())[..self.pairs], step)
    }
}

struct QuantiseRow<'a> {
    inputs: ActivationRows<'a>,
    row: usize,
    features: usize,
    to: &'a mut [Lane16],
}

impl Kernel for QuantiseRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Self { inputs, row, features, to } = self;
        let mut largest = 0.0_f32;
        let mut all_finite = true;
        for feature in 0..features {
            let value = inputs.block(feature / LANES, row)[feature % LANES].abs();
            all_finite &= value < f32::INFINITY;
            largest = largest.max(value);
        }
        let last = to.len() - 1;
        // A row that is not finite fails as it does in float32: through NaN, and alone.
        to[last][0] = if all_finite { largest / LARGEST } else { f32::NAN };
        let inverse = if largest > 0.0 && all_finite { LARGEST / largest } else { 0.0 };
        let pairs: &mut [[i16; 2]] = bytemuck::cast_slice_mut(to.as_flattened_mut());
        for (index, pair) in pairs[..features.div_ceil(2)].iter_mut().enumerate() {
            for (side, integer) in pair.iter_mut().enumerate() {
                let feature = 2 * index + side;
                let value = if feature < features {
                    inputs.block(feature / LANES, row)[feature % LANES]
                } else {
                    0.0
                };
                *integer = (value * inverse).round_ties_even() as i32 as i16;
            }
        }
    }
}

/// All panels against all rows; one task per few panels.
pub(super) fn tasks(
    instructions: InstructionSet,
    pairs: &[Int8Pair],
    scales: &[Lane16],
    inputs: IntegerRows<'_>,
    outputs: &mut [Lane16],
    finish: Finish,
) {
    outputs
        .par_chunks_mut(TASK_PANELS * inputs.rows)
        .zip(pairs.par_chunks(TASK_PANELS * inputs.pairs))
        .zip(scales.par_chunks(TASK_PANELS))
        .for_each(|((outputs, pairs), scales)| {
            instructions.run(IntegerTask { pairs, scales, inputs, outputs, finish });
        });
}

struct IntegerTask<'a> {
    pairs: &'a [Int8Pair],
    scales: &'a [Lane16],
    inputs: IntegerRows<'a>,
    outputs: &'a mut [Lane16],
    finish: Finish,
}

impl Kernel for IntegerTask<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(mut self) {
        let rows = self.inputs.rows;
        let panels = self.scales.len();
        let mut row = 0;
        while row < rows {
            if rows - row >= 4 {
                for panel in 0..panels {
                    self.tile::<L, 1, 4>(panel, row);
                }
                row += 4;
            } else if panels == TASK_PANELS {
                self.tile::<L, TASK_PANELS, 1>(0, row);
                row += 1;
            } else {
                for panel in 0..panels {
                    self.tile::<L, 1, 1>(panel, row);
                }
                row += 1;
            }
        }
        self.finish.apply(self.outputs, rows);
    }
}

impl IntegerTask<'_> {
    /// PANELS panels from `panel` on against rows `row … row + ROWS`.
    #[inline(always)]
    fn tile<L: Lanes, const PANELS: usize, const ROWS: usize>(&mut self, panel: usize, row: usize) {
        let count = self.inputs.pairs;
        let panels: [&[Int8Pair]; PANELS] = std::array::from_fn(|index| {
            let first = (panel + index) * count;
            &self.pairs[first..first + count]
        });
        let rows: [(&[[i16; 2]], f32); ROWS] = std::array::from_fn(|offset| self.inputs.row(row + offset));
        for index in 0..PANELS {
            for offset in 0..ROWS {
                self.outputs[(panel + index) * self.inputs.rows + row + offset] = [0.0; LANES];
            }
        }
        for first in (0..count).step_by(BLOCK_FEATURES / 2) {
            let block = first..count.min(first + BLOCK_FEATURES / 2);
            let mut sums = [[[L::Integers::zero(); 2]; ROWS]; PANELS];
            for pair in block {
                for index in 0..PANELS {
                    let weights = &panels[index][pair].0;
                    for offset in 0..ROWS {
                        let x = rows[offset].0[pair];
                        let [lower, upper] = &mut sums[index][offset];
                        *lower = lower.multiply_add_pairs(&weights[0], x);
                        *upper = upper.multiply_add_pairs(&weights[1], x);
                    }
                }
            }
            for index in 0..PANELS {
                for offset in 0..ROWS {
                    let output = &mut self.outputs[(panel + index) * self.inputs.rows + row + offset];
                    for half in 0..2 {
                        let mut integers = [0; HALF];
                        sums[index][offset][half].store(&mut integers);
                        for (total, integer) in half_of(output, half).iter_mut().zip(integers) {
                            *total += integer as f32;
                        }
                    }
                }
            }
        }
        for index in 0..PANELS {
            let scales = &self.scales[panel + index];
            for (offset, (_, step)) in rows.iter().enumerate() {
                let output = &mut self.outputs[(panel + index) * self.inputs.rows + row + offset];
                for (total, scale) in output.iter_mut().zip(scales) {
                    *total = *total * step * scale;
                }
            }
        }
    }
}
