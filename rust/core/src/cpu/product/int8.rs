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

/// Feature pairs that make a cache line of weights.
const LINE_PAIRS: usize = 2;

/// Bytes between what is read and what is fetched. Widening fills the window in which a processor finds its next loads
/// by itself; a task's panels lie one after another, so the next panel is fetched in time as well.
const PREFETCH_BYTES: usize = 4096;

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
        let block = |index: usize| {
            let block = inputs.block(index, row);
            &block[..LANES.min(features - index * LANES)]
        };
        let blocks = features.div_ceil(LANES);
        let mut largest = [0.0_f32; LANES];
        let mut sum = [0.0_f32; LANES];
        for index in 0..blocks {
            for ((largest, sum), value) in largest.iter_mut().zip(&mut sum).zip(block(index)) {
                *largest = largest.max(value.abs());
                // Zero, unless the value is infinite or NaN.
                *sum += value * 0.0;
            }
        }
        let largest = largest.into_iter().fold(0.0, f32::max);
        let all_finite = sum.into_iter().fold(0.0, |sum, value| sum + value) == 0.0;
        let last = to.len() - 1;
        // A row that is not finite fails as it does in float32: through NaN, and alone.
        to[last][0] = if all_finite { largest / LARGEST } else { f32::NAN };
        let inverse = if largest > 0.0 && all_finite { LARGEST / largest } else { 0.0 };
        let integers: &mut [i16] = bytemuck::cast_slice_mut(to.as_flattened_mut());
        let (integers, _) = integers.as_chunks_mut::<LANES>();
        for (index, integers) in integers.iter_mut().enumerate().take(blocks) {
            integers.fill(0);
            for (integer, value) in integers.iter_mut().zip(block(index)) {
                // At most LARGEST: the cast through 32 bits loses nothing and is a single conversion.
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
        for panel in 0..self.scales.len() {
            let mut row = 0;
            while row + 2 <= rows {
                self.tile::<L, 2>(panel, row);
                row += 2;
            }
            if row < rows {
                self.tile::<L, 1>(panel, row);
            }
        }
        self.finish.apply(self.outputs, rows);
    }
}

impl IntegerTask<'_> {
    /// One panel against rows `row … row + ROWS`.
    #[inline(always)]
    fn tile<L: Lanes, const ROWS: usize>(&mut self, panel: usize, row: usize) {
        let count = self.inputs.pairs;
        let pairs = &self.pairs[panel * count..(panel + 1) * count];
        let rows: [(&[[i16; 2]], f32); ROWS] = std::array::from_fn(|offset| self.inputs.row(row + offset));
        let mut totals = [[0.0; LANES]; ROWS];
        for first in (0..count).step_by(SUM_PAIRS) {
            let end = count.min(first + SUM_PAIRS);
            let sums = exact_sums::<L, ROWS>(&pairs[first..end], rows.map(|(pairs, _)| &pairs[first..end]));
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
        for (offset, (total, (_, step))) in totals.into_iter().zip(rows).enumerate() {
            let output = &mut self.outputs[panel * self.inputs.rows + row + offset];
            for ((output, total), scale) in output.iter_mut().zip(total).zip(&self.scales[panel]) {
                *output = total * step * scale;
            }
        }
    }
}

/// Sums of one panel over at most [`SUM_PAIRS`] feature pairs: [row][half].
#[inline(always)]
fn exact_sums<L: Lanes, const ROWS: usize>(
    pairs: &[Int8Pair],
    inputs: [&[[i16; 2]]; ROWS],
) -> [[L::Integers; 2]; ROWS] {
    let mut sums = [[L::Integers::zero(); 2]; ROWS];
    let (lines, rest) = pairs.as_chunks::<LINE_PAIRS>();
    let input_lines = inputs.map(|pairs| pairs.as_chunks::<LINE_PAIRS>());
    for (index, line) in lines.iter().enumerate() {
        L::Integers::prefetch(line.as_ptr().cast::<u8>().wrapping_add(PREFETCH_BYTES));
        let inputs: [&[[i16; 2]; LINE_PAIRS]; ROWS] = std::array::from_fn(|row| &input_lines[row].0[index]);
        for (pair, weights) in line.iter().enumerate() {
            accumulate::<L, ROWS>(&mut sums, weights, inputs.map(|pairs| pairs[pair]));
        }
    }
    for (pair, weights) in rest.iter().enumerate() {
        accumulate::<L, ROWS>(&mut sums, weights, std::array::from_fn(|row| input_lines[row].1[pair]));
    }
    sums
}

/// One feature pair of a panel against ROWS rows.
#[inline(always)]
fn accumulate<L: Lanes, const ROWS: usize>(
    sums: &mut [[L::Integers; 2]; ROWS],
    weights: &Int8Pair,
    inputs: [[i16; 2]; ROWS],
) {
    let halves: [L::Integers; 2] = weights.0.each_ref().map(L::Integers::widen_pairs);
    for (sums, input) in sums.iter_mut().zip(inputs) {
        for (sum, weights) in sums.iter_mut().zip(halves) {
            *sum = sum.multiply_add_pairs(weights, input);
        }
    }
}
