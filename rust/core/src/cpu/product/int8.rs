//! int8 weights: exact integer sums over activations of sixteen bits.
//!
//! An activation row enters as integers x ≈ step · n with |n| ≤ 32767, step = max |x| / 32767: with one step for the
//! row its rounding is finer than bfloat16's for every value within a factor of 128 of the largest. Sums of up to
//! 2 · [`SUM_PAIRS`] products are exact in 32 bits; they are added up in float32, in order, and multiplied by the
//! row's step and then by the output row's scale. Widening the weights to float32 instead would cost twice the
//! instructions and leave a frame bound by them, not by memory.

use super::{ActivationRows, Finish, TASK_PANELS, half_of};
use crate::cpu::lanes::{HALF, InstructionSet, IntegerLanes, Kernel, LANES, Lane16, Lanes};
use crate::cpu::panels::Int8Pair;
use crate::cpu::team::Team;

/// Largest integer of an activation.
const LARGEST: f32 = 32767.0;

/// Feature pairs whose products, each at most 127 · 32767, cannot overflow 32 bits together.
const SUM_PAIRS: usize = 256;

/// Feature pairs that make a cache line of weights, and are taken together.
const LINE_PAIRS: usize = 2;

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
        team: &mut Team,
        instructions: InstructionSet,
        inputs: ActivationRows<'_>,
        features: usize,
        to: &'a mut [Lane16],
    ) -> Self {
        let per_row = integer_blocks(features);
        let to = &mut to[..inputs.rows * per_row];
        team.for_each(to.chunks_exact_mut(per_row).enumerate(), |(row, to)| {
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
    team: &mut Team,
    instructions: InstructionSet,
    pairs: &[Int8Pair],
    scales: &[Lane16],
    inputs: IntegerRows<'_>,
    outputs: &mut [Lane16],
    finish: Finish,
) {
    let outputs = outputs.chunks_mut(TASK_PANELS * inputs.rows);
    let pairs = pairs.chunks(TASK_PANELS * inputs.pairs);
    team.for_each(outputs.zip(pairs).zip(scales.chunks(TASK_PANELS)), |((outputs, pairs), scales)| {
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
        let mut totals = [[[0.0; LANES]; ROWS]; PANELS];
        for first in (0..count).step_by(SUM_PAIRS) {
            let end = count.min(first + SUM_PAIRS);
            let panels = panels.map(|panel| &panel[first..end]);
            let inputs = rows.map(|(pairs, _)| &pairs[first..end]);
            let sums = exact_sums::<L, PANELS, ROWS>(panels, inputs);
            for (totals, sums) in totals.iter_mut().zip(sums) {
                for (total, sums) in totals.iter_mut().zip(sums) {
                    for (half, sum) in sums.into_iter().enumerate() {
                        let mut integers = [0; HALF];
                        sum.store(&mut integers);
                        for (total, integer) in half_of(total, half).iter_mut().zip(integers) {
                            *total += integer as f32;
                        }
                    }
                }
            }
        }
        for (index, totals) in totals.into_iter().enumerate() {
            let scales = &self.scales[panel + index];
            for (offset, total) in totals.into_iter().enumerate() {
                let step = rows[offset].1;
                let output = &mut self.outputs[(panel + index) * self.inputs.rows + row + offset];
                for ((output, total), scale) in output.iter_mut().zip(total).zip(scales) {
                    *output = total * step * scale;
                }
            }
        }
    }
}

/// Sums over at most [`SUM_PAIRS`] feature pairs: [panel][row][half].
#[inline(always)]
fn exact_sums<L: Lanes, const PANELS: usize, const ROWS: usize>(
    panels: [&[Int8Pair]; PANELS],
    inputs: [&[[i16; 2]]; ROWS],
) -> [[[L::Integers; 2]; ROWS]; PANELS] {
    let mut sums = [[[L::Integers::zero(); 2]; ROWS]; PANELS];
    let panel_lines = panels.map(|pairs| pairs.as_chunks::<LINE_PAIRS>());
    let input_lines = inputs.map(|pairs| pairs.as_chunks::<LINE_PAIRS>());
    for line in 0..panel_lines[0].0.len() {
        let pairs: [&[Int8Pair; LINE_PAIRS]; PANELS] =
            std::array::from_fn(|panel| &panel_lines[panel].0[line]);
        let inputs: [&[[i16; 2]; LINE_PAIRS]; ROWS] = std::array::from_fn(|row| &input_lines[row].0[line]);
        for pair in 0..LINE_PAIRS {
            accumulate::<L, PANELS, ROWS>(
                &mut sums,
                pairs.map(|pairs| &pairs[pair]),
                inputs.map(|pairs| pairs[pair]),
            );
        }
    }
    for pair in 0..panel_lines[0].1.len() {
        let weights = std::array::from_fn(|panel| &panel_lines[panel].1[pair]);
        let inputs = std::array::from_fn(|row| input_lines[row].1[pair]);
        accumulate::<L, PANELS, ROWS>(&mut sums, weights, inputs);
    }
    sums
}

/// One feature pair of a tile.
#[inline(always)]
fn accumulate<L: Lanes, const PANELS: usize, const ROWS: usize>(
    sums: &mut [[[L::Integers; 2]; ROWS]; PANELS],
    weights: [&Int8Pair; PANELS],
    inputs: [[i16; 2]; ROWS],
) {
    for (sums, weights) in sums.iter_mut().zip(weights) {
        let halves: [L::Integers; 2] = weights.0.each_ref().map(L::Integers::widen_pairs);
        for (sums, input) in sums.iter_mut().zip(inputs) {
            for (sum, weights) in sums.iter_mut().zip(halves) {
                *sum = sum.multiply_add_pairs(weights, input);
            }
        }
    }
}
