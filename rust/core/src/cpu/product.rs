//! Matrix × rows: the pass that reads a packed matrix once and serves every row of the batch.

use super::lanes::{InstructionSet, Kernel, LANES, Lane8, Lane16, Lanes};
use super::layer_math::swiglu;
use super::panels::{FloatPair, Pairs, PanelMatrix};
use super::team::Team;
use std::ops::Range;

pub(super) mod int8;

/// Panels of one task: with one row, as many independent sums as hide an addition's latency.
const TASK_PANELS: usize = 4;

/// Activation rows, sixteen features at a time: features 16·block … of a row lie at
/// `blocks[block · block_stride + row · row_stride]`.
#[derive(Clone, Copy)]
pub(super) struct ActivationRows<'a> {
    blocks: &'a [Lane16],
    block_stride: usize,
    row_stride: usize,
    rows: usize,
}

impl<'a> ActivationRows<'a> {
    /// Rows one after another, each padded to whole blocks.
    pub(super) fn row_major(blocks: &'a [Lane16], rows: usize) -> Self {
        Self { blocks, block_stride: 1, row_stride: blocks.len() / rows, rows }
    }

    /// The outputs of a product, of which every `step`-th panel counts.
    pub(super) fn panel_major(blocks: &'a [Lane16], rows: usize, step: usize) -> Self {
        Self { blocks, block_stride: rows * step, row_stride: 1, rows }
    }

    #[inline(always)]
    fn block(&self, block: usize, row: usize) -> &'a Lane16 {
        &self.blocks[block * self.block_stride + row * self.row_stride]
    }
}

/// What is done to a task's outputs while they are in the nearest cache.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Finish {
    /// Nothing.
    Keep,
    /// Panels alternate between gate and up: silu(gate) · up replaces the gate's.
    SwiGlu,
}

impl Finish {
    #[inline(always)]
    fn apply(self, outputs: &mut [Lane16], rows: usize) {
        if self == Self::SwiGlu {
            for pair in outputs.chunks_exact_mut(2 * rows) {
                let (gates, ups) = pair.split_at_mut(rows);
                for (gate, up) in gates.iter_mut().zip(ups) {
                    swiglu(gate, up);
                }
            }
        }
    }
}

/// `outputs[panel · rows + row]` ← the sixteen outputs of `panel` for `row`; one task per few panels. `integers` is
/// where an int8 matrix puts its inputs as integers, [`int8::integer_blocks`] for each row.
pub(super) fn product(
    team: &mut Team,
    instructions: InstructionSet,
    matrix: &PanelMatrix,
    inputs: ActivationRows<'_>,
    integers: &mut [Lane16],
    outputs: &mut [Lane16],
    finish: Finish,
) {
    let features = matrix.inputs();
    match &matrix.pairs {
        Pairs::Float32(pairs) => float_tasks(team, instructions, features, pairs, inputs, outputs, finish),
        Pairs::BFloat16(pairs) => float_tasks(team, instructions, features, pairs, inputs, outputs, finish),
        Pairs::Int8 { pairs, scales } => {
            let inputs = int8::IntegerRows::quantise(team, instructions, inputs, features, integers);
            int8::tasks(team, instructions, pairs, scales, inputs, outputs, finish);
        }
    }
}

fn float_tasks<P: FloatPair>(
    team: &mut Team,
    instructions: InstructionSet,
    features: usize,
    pairs: &[P],
    inputs: ActivationRows<'_>,
    outputs: &mut [Lane16],
    finish: Finish,
) {
    let outputs = outputs.chunks_mut(TASK_PANELS * inputs.rows);
    let pairs = pairs.chunks(TASK_PANELS * features.div_ceil(2));
    team.for_each(outputs.zip(pairs), |(outputs, pairs)| {
        instructions.run(FloatTask { features, pairs, inputs, outputs, finish });
    });
}

/// A few panels against all rows.
struct FloatTask<'a, P> {
    features: usize,
    pairs: &'a [P],
    inputs: ActivationRows<'a>,
    outputs: &'a mut [Lane16],
    finish: Finish,
}

impl<P: FloatPair> Kernel for FloatTask<'_, P> {
    type Output = ();

    /// Tiles of weights × rows that keep about eight sums in registers. With several rows the features are taken in
    /// blocks, so that a block's weights and activations stay in the nearest cache from tile to tile; the sums go on
    /// where the block before left them, so blocks change nothing in their order.
    #[inline(always)]
    fn run<L: Lanes>(mut self) {
        let rows = self.inputs.rows;
        let block = if rows == 1 { self.features } else { BLOCK_FEATURES };
        self.outputs.fill([0.0; LANES]);
        for first in (0..self.features).step_by(block) {
            let features = first..self.features.min(first + block);
            let mut row = 0;
            while row < rows {
                row += match rows - row {
                    4.. => self.panels::<L, 2, 4>(features.clone(), row),
                    3 => self.panels::<L, 2, 3>(features.clone(), row),
                    2 => self.panels::<L, 4, 2>(features.clone(), row),
                    _ => self.panels::<L, 8, 1>(features.clone(), row),
                };
            }
        }
        self.finish.apply(self.outputs, rows);
    }
}

/// Features of a block, a multiple of [`LANES`]: 8 KiB of a bfloat16 panel, 1 KiB of each activation row.
const BLOCK_FEATURES: usize = 256;

impl<P: FloatPair> FloatTask<'_, P> {
    /// All panels against ROWS rows, in tiles of HALVES / 2 panels, those left over one by one; returns ROWS.
    #[inline(always)]
    fn panels<L: Lanes, const HALVES: usize, const ROWS: usize>(
        &mut self,
        features: Range<usize>,
        row: usize,
    ) -> usize {
        let panels = self.outputs.len() / self.inputs.rows;
        let mut panel = 0;
        while panel + HALVES / 2 <= panels {
            self.tile::<L, HALVES, ROWS>(features.clone(), panel, row);
            panel += HALVES / 2;
        }
        while panel < panels {
            self.tile::<L, 2, ROWS>(features.clone(), panel, row);
            panel += 1;
        }
        ROWS
    }

    /// Adds `features` to the sums of HALVES half panels, from `panel` on, and rows `row … row + ROWS`.
    #[inline(always)]
    fn tile<L: Lanes, const HALVES: usize, const ROWS: usize>(
        &mut self,
        features: Range<usize>,
        panel: usize,
        row: usize,
    ) {
        let panel_pairs = self.features.div_ceil(2);
        let pairs: [&[P]; HALVES] = std::array::from_fn(|half| {
            let first = (panel + half / 2) * panel_pairs;
            &self.pairs[first + features.start / 2..first + features.end.div_ceil(2)]
        });
        let first_block = features.start / LANES;
        let inputs = |block: usize| -> [&Lane16; ROWS] {
            std::array::from_fn(|offset| self.inputs.block(first_block + block, row + offset))
        };
        let mut sums: [[L; ROWS]; HALVES] = std::array::from_fn(|half| {
            std::array::from_fn(|offset| {
                let output = &self.outputs[(panel + half / 2) * self.inputs.rows + row + offset];
                L::load(&output.as_chunks().0[half % 2])
            })
        });
        let whole = features.len() / LANES;
        let blocks: [&[[P; LANES / 2]]; HALVES] = pairs.map(|pairs| &pairs.as_chunks().0[..whole]);
        #[allow(
            clippy::needless_range_loop,
            reason = "the block's number indexes every panel and the inputs"
        )]
        for block in 0..whole {
            let inputs = inputs(block);
            let pairs: [&[P; LANES / 2]; HALVES] = std::array::from_fn(|half| &blocks[half][block]);
            for pair in 0..LANES / 2 {
                let pairs = pairs.map(|pairs| &pairs[pair]);
                accumulate::<L, P, HALVES, ROWS>(&mut sums, pairs, 0, inputs, 2 * pair);
                accumulate::<L, P, HALVES, ROWS>(&mut sums, pairs, 1, inputs, 2 * pair + 1);
            }
        }
        for feature in whole * LANES..features.len() {
            let pairs = pairs.map(|pairs| &pairs[feature / 2]);
            accumulate::<L, P, HALVES, ROWS>(&mut sums, pairs, feature % 2, inputs(whole), feature % LANES);
        }
        for (half, sums) in sums.into_iter().enumerate() {
            for (offset, sum) in sums.into_iter().enumerate() {
                let output = &mut self.outputs[(panel + half / 2) * self.inputs.rows + row + offset];
                sum.store(half_of(output, half % 2));
            }
        }
    }
}

/// One feature of a tile: the innermost step of the executor.
#[inline(always)]
fn accumulate<L: Lanes, P: FloatPair, const HALVES: usize, const ROWS: usize>(
    sums: &mut [[L; ROWS]; HALVES],
    pairs: [&P; HALVES],
    feature: usize,
    inputs: [&Lane16; ROWS],
    input: usize,
) {
    for half in 0..HALVES {
        let weight: L = pairs[half].widen(feature, half % 2);
        for row in 0..ROWS {
            sums[half][row] = sums[half][row].fused_multiply_add(weight, inputs[row][input]);
        }
    }
}

/// The lower (0) or upper (1) half of a panel's outputs.
#[inline(always)]
fn half_of(output: &mut Lane16, half: usize) -> &mut Lane8 {
    &mut output.as_chunks_mut().0[half]
}
