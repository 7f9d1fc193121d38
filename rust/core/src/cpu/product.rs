//! Matrix × rows: the pass that reads a packed matrix once and serves every row of the batch.

use super::lanes::{InstructionSet, Kernel, LANES, Lane16, Lanes};
use super::layer_math::swiglu;
use super::panels::{FeaturePair, Pairs, PanelMatrix};
use rayon::prelude::*;

/// Panels of one task: with one row, as many independent sums as hide an addition's latency.
const TASK_PANELS: usize = 4;

/// From so many rows on, a block of weights is widened once into the nearest cache and then serves all rows.
const ROWS_WORTH_WIDENING: usize = 3;

/// Features of such a block: 8 KiB of float32.
const WIDENED_FEATURES: usize = 128;

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

/// `outputs[panel · rows + row]` ← the sixteen outputs of `panel` for `row`; one task per few panels.
pub(super) fn product(
    instructions: InstructionSet,
    matrix: &PanelMatrix,
    inputs: ActivationRows<'_>,
    outputs: &mut [Lane16],
    finish: Finish,
) {
    let features = matrix.inputs();
    match &matrix.pairs {
        Pairs::Float32(pairs) => tasks(instructions, features, pairs, None, inputs, outputs, finish),
        Pairs::BFloat16(pairs) => tasks(instructions, features, pairs, None, inputs, outputs, finish),
        Pairs::Int8 { pairs, scales } => {
            tasks(instructions, features, pairs, Some(scales), inputs, outputs, finish);
        }
    }
}

fn tasks<P: FeaturePair>(
    instructions: InstructionSet,
    features: usize,
    pairs: &[P],
    scales: Option<&[Lane16]>,
    inputs: ActivationRows<'_>,
    outputs: &mut [Lane16],
    finish: Finish,
) {
    outputs
        .par_chunks_mut(TASK_PANELS * inputs.rows)
        .zip(pairs.par_chunks(TASK_PANELS * features.div_ceil(2)))
        .enumerate()
        .for_each(|(task, (outputs, pairs))| {
            let scales = scales.map(|scales| &scales[task * TASK_PANELS..]);
            instructions.run(PanelTask { features, pairs, scales, inputs, outputs, finish });
        });
}

/// A few panels against all rows.
struct PanelTask<'a, P> {
    features: usize,
    pairs: &'a [P],
    scales: Option<&'a [Lane16]>,
    inputs: ActivationRows<'a>,
    outputs: &'a mut [Lane16],
    finish: Finish,
}

impl<P: FeaturePair> Kernel for PanelTask<'_, P> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Self { features, pairs, scales, inputs, outputs, finish } = self;
        let panel_pairs = features.div_ceil(2);
        if inputs.rows >= ROWS_WORTH_WIDENING {
            let panels = pairs.chunks_exact(panel_pairs).zip(outputs.chunks_exact_mut(inputs.rows));
            for (pairs, outputs) in panels {
                widened_panel::<L, P>(features, pairs, inputs, outputs);
            }
        } else if pairs.len() == TASK_PANELS * panel_pairs {
            for row in 0..inputs.rows {
                let panels =
                    std::array::from_fn(|panel| &pairs[panel * panel_pairs..(panel + 1) * panel_pairs]);
                let sums = panel_sums::<L, P, TASK_PANELS>(features, panels, inputs, row);
                for (panel, sum) in sums.into_iter().enumerate() {
                    sum.store(&mut outputs[panel * inputs.rows + row]);
                }
            }
        } else {
            for (panel, pairs) in pairs.chunks_exact(panel_pairs).enumerate() {
                for row in 0..inputs.rows {
                    let [sum] = panel_sums::<L, P, 1>(features, [pairs], inputs, row);
                    sum.store(&mut outputs[panel * inputs.rows + row]);
                }
            }
        }
        if let Some(scales) = scales {
            for (outputs, scales) in outputs.chunks_exact_mut(inputs.rows).zip(scales) {
                for output in outputs {
                    for (value, scale) in output.iter_mut().zip(scales) {
                        *value *= scale;
                    }
                }
            }
        }
        if finish == Finish::SwiGlu {
            for pair in outputs.chunks_exact_mut(2 * inputs.rows) {
                let (gates, ups) = pair.split_at_mut(inputs.rows);
                for (gate, up) in gates.iter_mut().zip(ups) {
                    swiglu(gate, up);
                }
            }
        }
    }
}

/// One row's sums over all features, for several panels at once.
#[inline(always)]
fn panel_sums<L: Lanes, P: FeaturePair, const PANELS: usize>(
    features: usize,
    panels: [&[P]; PANELS],
    inputs: ActivationRows<'_>,
    row: usize,
) -> [L; PANELS] {
    let mut sums = [L::zero(); PANELS];
    let whole = features / LANES;
    for block in 0..whole {
        let input = inputs.block(block, row);
        let first = block * LANES / 2;
        let panels: [&[P]; PANELS] = std::array::from_fn(|panel| &panels[panel][first..first + LANES / 2]);
        for pair in 0..LANES / 2 {
            let weights: [[L; 2]; PANELS] = std::array::from_fn(|panel| panels[panel][pair].widen());
            for (sum, weight) in sums.iter_mut().zip(weights) {
                *sum = sum.fused_multiply_add(weight[0], input[2 * pair]);
                *sum = sum.fused_multiply_add(weight[1], input[2 * pair + 1]);
            }
        }
    }
    for feature in whole * LANES..features {
        let input = inputs.block(whole, row)[feature % LANES];
        for (sum, panel) in sums.iter_mut().zip(panels) {
            *sum = sum.fused_multiply_add(panel[feature / 2].widen()[feature % 2], input);
        }
    }
    sums
}

/// One panel against all rows, a block of features at a time.
#[inline(always)]
fn widened_panel<L: Lanes, P: FeaturePair>(
    features: usize,
    pairs: &[P],
    inputs: ActivationRows<'_>,
    outputs: &mut [Lane16],
) {
    let mut widened = [[0.0; LANES]; WIDENED_FEATURES];
    outputs.fill([0.0; LANES]);
    for first in (0..features).step_by(WIDENED_FEATURES) {
        let count = WIDENED_FEATURES.min(features - first);
        let (widened_pairs, _) = widened.as_chunks_mut::<2>();
        for (widened, pair) in widened_pairs.iter_mut().zip(&pairs[first / 2..(first + count).div_ceil(2)]) {
            let [even, odd] = pair.widen::<L>();
            even.store(&mut widened[0]);
            odd.store(&mut widened[1]);
        }
        let weights = &widened[..count];
        let mut row = 0;
        while row < outputs.len() {
            let tile = &mut outputs[row..];
            row += match tile.len() {
                4.. => row_tile::<L, 4>(weights, inputs, first, row, tile),
                3 => row_tile::<L, 3>(weights, inputs, first, row, tile),
                2 => row_tile::<L, 2>(weights, inputs, first, row, tile),
                _ => row_tile::<L, 1>(weights, inputs, first, row, tile),
            };
        }
    }
}

/// Adds `weights`' features, the first of which is `first`, to the sums of rows `row … row + ROWS`; returns ROWS.
#[inline(always)]
fn row_tile<L: Lanes, const ROWS: usize>(
    weights: &[Lane16],
    inputs: ActivationRows<'_>,
    first: usize,
    row: usize,
    outputs: &mut [Lane16],
) -> usize {
    let mut sums: [L; ROWS] = std::array::from_fn(|offset| L::load(&outputs[offset]));
    let (blocks, rest) = weights.as_chunks::<LANES>();
    let input_block = |block: usize| -> [&Lane16; ROWS] {
        std::array::from_fn(|offset| inputs.block(first / LANES + block, row + offset))
    };
    for (block, weights) in blocks.iter().enumerate() {
        let inputs = input_block(block);
        for (feature, weight) in weights.iter().enumerate() {
            let weight = L::load(weight);
            for (sum, input) in sums.iter_mut().zip(inputs) {
                *sum = sum.fused_multiply_add(weight, input[feature]);
            }
        }
    }
    if !rest.is_empty() {
        let inputs = input_block(blocks.len());
        for (feature, weight) in rest.iter().enumerate() {
            let weight = L::load(weight);
            for (sum, input) in sums.iter_mut().zip(inputs) {
                *sum = sum.fused_multiply_add(weight, input[feature]);
            }
        }
    }
    for (sum, output) in sums.into_iter().zip(outputs) {
        sum.store(output);
    }
    ROWS
}
