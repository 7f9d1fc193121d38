//! Matrix × rows: the pass that reads a packed matrix once and serves every row of the batch.

use super::lanes::{InstructionSet, Kernel, LANES, Lane8, Lane16, Lanes};
use super::layer_math::swiglu;
use super::panels::{FloatPair, Pairs, PanelMatrix};
use super::team::Team;

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

    /// Tiles of weights × rows that keep about eight sums in registers.
    #[inline(always)]
    fn run<L: Lanes>(mut self) {
        let rows = self.inputs.rows;
        let panels = self.outputs.len() / rows;
        let mut row = 0;
        while row < rows {
            row += match rows - row {
                4.. => self.whole_panels::<L, 2, 4>(panels, row),
                3 => self.whole_panels::<L, 2, 3>(panels, row),
                2 => self.whole_panels::<L, 4, 2>(panels, row),
                _ => self.whole_panels::<L, 8, 1>(panels, row),
            };
        }
        self.finish.apply(self.outputs, rows);
    }
}

impl<P: FloatPair> FloatTask<'_, P> {
    /// Tiles of HALVES / 2 panels; those left over one by one.
    #[inline(always)]
    fn whole_panels<L: Lanes, const HALVES: usize, const ROWS: usize>(
        &mut self,
        panels: usize,
        row: usize,
    ) -> usize {
        let mut panel = 0;
        while panel + HALVES / 2 <= panels {
            self.tile::<L, HALVES, ROWS>(panel, row);
            panel += HALVES / 2;
        }
        while panel < panels {
            self.tile::<L, 2, ROWS>(panel, row);
            panel += 1;
        }
        ROWS
    }

    /// HALVES half panels, from `panel` on, against rows `row … row + ROWS`.
    #[inline(always)]
    fn tile<L: Lanes, const HALVES: usize, const ROWS: usize>(&mut self, panel: usize, row: usize) {
        let panel_pairs = self.features.div_ceil(2);
        let panels: [&[P]; HALVES] = std::array::from_fn(|half| {
            let first = (panel + half / 2) * panel_pairs;
            &self.pairs[first..first + panel_pairs]
        });
        let whole = self.features / LANES;
        let blocks: [&[[P; LANES / 2]]; HALVES] = panels.map(|panel| &panel.as_chunks().0[..whole]);
        let inputs = |block: usize| -> [&Lane16; ROWS] {
            std::array::from_fn(|offset| self.inputs.block(block, row + offset))
        };
        let mut sums = [[L::zero(); ROWS]; HALVES];
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
        for feature in whole * LANES..self.features {
            let pairs = panels.map(|panel| &panel[feature / 2]);
            accumulate::<L, P, HALVES, ROWS>(&mut sums, pairs, feature % 2, inputs(whole), feature % LANES);
        }
        for (half, sums) in sums.into_iter().enumerate() {
            let panel = panel + half / 2;
            for (offset, sum) in sums.into_iter().enumerate() {
                let output = &mut self.outputs[panel * self.inputs.rows + row + offset];
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
