//! Passes of the body: the decoder's layers over token rows of any streams, and heads over what comes out.
//!
//! A row's result does not depend on which rows share its pass. Which rows those are, and what becomes of their logits, is
//! left to the frame.

use super::attention::{AttentionLayer, AttentionRow, RotaryTable};
use super::lanes::{InstructionSet, Kernel, LANES, Lane16, Lanes};
use super::layer_math::rms_norm;
use super::panels::PanelMatrix;
use super::product::{ActivationRows, Finish, product};
use super::team::Team;
use super::weights::Weights;
use super::workspace::Workspace;
use crate::spec::ModelSpec;
use std::ops::Range;

/// The token rows of a pass, those of a stream one after another, streams in order.
pub(super) trait TokenRows: Sync {
    /// Rows in all.
    fn count(&self) -> usize;

    /// The rows of a stream; none when it takes no part.
    fn of_stream(&self, stream: usize) -> Range<usize>;

    /// Where a row stands. It attends to the positions before its own as well.
    fn position(&self, row: usize) -> usize;

    /// The KV slot of its stream in which a row finds `position`.
    fn slot(&self, row: usize, position: usize) -> usize;
}

/// Weights, threads and buffers of one frame.
pub(super) struct Body<'a> {
    pub(super) spec: &'a ModelSpec,
    pub(super) weights: &'a Weights,
    pub(super) rotary: &'a RotaryTable,
    pub(super) instructions: InstructionSet,
    pub(super) team: &'a mut Team,
    pub(super) workspace: Workspace<'a>,
}

impl Body<'_> {
    /// Fills the residual stream with P(row) of every row that `write` gives.
    pub(super) fn embed(&mut self, rows: usize, write: impl Fn(usize, &mut [f32])) {
        let hidden_blocks = self.spec.hidden_size.div_ceil(LANES);
        let residual = &mut self.workspace.residual[..rows * hidden_blocks];
        let width = self.spec.talker_hidden_size;
        let Some(projection) = &self.weights.projection else {
            for (row, to) in residual.chunks_exact_mut(hidden_blocks).enumerate() {
                write(row, &mut to.as_flattened_mut()[..width]);
            }
            return;
        };
        let blocks = width.div_ceil(LANES);
        let embedded = &mut self.workspace.embedded[..rows * blocks];
        for (row, to) in embedded.chunks_exact_mut(blocks).enumerate() {
            write(row, &mut to.as_flattened_mut()[..width]);
        }
        let outputs = &mut self.workspace.outputs[..rows * hidden_blocks];
        let inputs = ActivationRows::row_major(embedded, rows);
        product(
            self.team,
            self.instructions,
            &projection.weight,
            inputs,
            self.workspace.integers,
            outputs,
            Finish::Keep,
        );
        for (row, to) in residual.chunks_exact_mut(hidden_blocks).enumerate() {
            let to = &mut to.as_flattened_mut()[..self.spec.hidden_size];
            gather_row(outputs, rows, row, to);
            for (value, bias) in to.iter_mut().zip(&projection.bias) {
                *value += bias;
            }
        }
    }

    /// All layers and the final norm over the rows in the residual stream. The hidden rows named in `kept` are kept for
    /// heads, in that order.
    pub(super) fn run(&mut self, token_rows: &impl TokenRows, kept: impl Iterator<Item = usize>) {
        let rows = token_rows.count();
        let hidden_panels = self.spec.hidden_size.div_ceil(LANES);
        let weights = self.weights;
        for (index, layer) in weights.layers.iter().enumerate() {
            self.norm(rows, &layer.input_norm, index > 0);
            let inputs = ActivationRows::row_major(&self.workspace.normed[..rows * hidden_panels], rows);
            let panels = (self.spec.query_width() + 2 * self.spec.key_value_width()).div_ceil(LANES);
            let outputs = &mut self.workspace.outputs[..rows * panels];
            product(
                self.team,
                self.instructions,
                &layer.query_key_value,
                inputs,
                self.workspace.integers,
                outputs,
                Finish::Keep,
            );
            self.attend(token_rows, index);

            let query_blocks = self.spec.query_width().div_ceil(LANES);
            let inputs = ActivationRows::row_major(&self.workspace.attended[..rows * query_blocks], rows);
            let outputs = &mut self.workspace.outputs[..rows * hidden_panels];
            product(
                self.team,
                self.instructions,
                &layer.output,
                inputs,
                self.workspace.integers,
                outputs,
                Finish::Keep,
            );
            self.norm(rows, &layer.post_attention_norm, true);

            let inputs = ActivationRows::row_major(&self.workspace.normed[..rows * hidden_panels], rows);
            let gate_up = &mut self.workspace.gate_up[..rows * 2 * self.spec.mlp_width.div_ceil(LANES)];
            product(
                self.team,
                self.instructions,
                &layer.gate_up,
                inputs,
                self.workspace.integers,
                gate_up,
                Finish::SwiGlu,
            );
            let inputs = ActivationRows::panel_major(gate_up, rows, 2);
            let outputs = &mut self.workspace.outputs[..rows * hidden_panels];
            product(
                self.team,
                self.instructions,
                &layer.down,
                inputs,
                self.workspace.integers,
                outputs,
                Finish::Keep,
            );
        }
        self.norm(rows, &weights.final_norm, true);
        let hidden = self.workspace.hidden.chunks_exact_mut(hidden_panels);
        for (hidden, row) in hidden.zip(kept) {
            hidden.copy_from_slice(&self.workspace.normed[row * hidden_panels..(row + 1) * hidden_panels]);
        }
    }

    /// Adds the last linear layer's outputs to the residual stream, if `add`, and normalises every row.
    fn norm(&mut self, rows: usize, weight: &[f32], add: bool) {
        let Self { spec, workspace, instructions, team, .. } = self;
        let blocks = spec.hidden_size.div_ceil(LANES);
        let outputs = &*workspace.outputs;
        let residual = workspace.residual[..rows * blocks].chunks_exact_mut(blocks);
        let normed = workspace.normed.chunks_exact_mut(blocks);
        team.for_each(residual.zip(normed).enumerate(), |(row, (residual, normed))| {
            instructions.run(NormRow {
                residual: &mut residual.as_flattened_mut()[..spec.hidden_size],
                normed: &mut normed.as_flattened_mut()[..spec.hidden_size],
                add: add.then_some((outputs, rows, row)),
                weight,
                epsilon: spec.rms_norm_epsilon,
            });
        });
    }

    /// Attention of every stream, streams in parallel; a stream's rows in order, since each may see those before it.
    fn attend(&mut self, rows: &impl TokenRows, layer: usize) {
        let Self { spec, weights, rotary, workspace, instructions, team } = self;
        let projected_width = spec.query_width() + 2 * spec.key_value_width();
        let projected_blocks = projected_width.div_ceil(LANES);
        let query_blocks = spec.query_width().div_ceil(LANES);
        let score_blocks = spec.positions().div_ceil(LANES);
        let cache = workspace.extent.stream_cache(spec);
        let caches = layer * workspace.extent.streams * cache..(layer + 1) * workspace.extent.streams * cache;
        let layer = AttentionLayer {
            spec,
            query_norm: &weights.layers[layer].query_norm,
            key_norm: &weights.layers[layer].key_norm,
            rotary,
            slots: workspace.extent.slots(spec),
        };
        let outputs = &*workspace.outputs;
        let count = rows.count();
        let mut projected = &mut workspace.projected[..count * projected_blocks];
        let mut attended = &mut workspace.attended[..count * query_blocks];
        let streams = workspace.keys[caches.clone()]
            .chunks_exact_mut(cache)
            .zip(workspace.values[caches].chunks_exact_mut(cache))
            .zip(workspace.scores.chunks_exact_mut(score_blocks))
            .enumerate()
            .map(|(stream, ((keys, values), scores))| {
                let own = rows.of_stream(stream);
                let projected = split_off(&mut projected, own.len() * projected_blocks);
                let attended = split_off(&mut attended, own.len() * query_blocks);
                (own, keys, values, scores, projected, attended)
            });
        team.for_each(streams, |(own, keys, values, scores, projected, attended)| {
            let buffers =
                projected.chunks_exact_mut(projected_blocks).zip(attended.chunks_exact_mut(query_blocks));
            for (row, (projected, attended)) in own.zip(buffers) {
                let projected = &mut projected.as_flattened_mut()[..projected_width];
                gather_row(outputs, count, row, projected);
                instructions.run(AttentionRow {
                    layer,
                    position: rows.position(row),
                    slot_of: |position| rows.slot(row, position),
                    projected,
                    keys: keys.as_flattened_mut(),
                    values: values.as_flattened_mut(),
                    weights: scores.as_flattened_mut(),
                    attended: &mut attended.as_flattened_mut()[..spec.query_width()],
                });
            }
        });
    }

    /// Logits of `head` for some of the hidden rows that were kept: those of row r stand at r.
    pub(super) fn head(&mut self, head: &PanelMatrix, rows: impl Iterator<Item = usize> + Clone) {
        let Self { spec, workspace, instructions, team, .. } = self;
        let blocks = spec.hidden_size.div_ceil(LANES);
        let mut count = 0;
        for (to, row) in workspace.normed.chunks_exact_mut(blocks).zip(rows.clone()) {
            to.copy_from_slice(&workspace.hidden[row * blocks..(row + 1) * blocks]);
            count += 1;
        }
        if count == 0 {
            return;
        }
        let panels = spec.codebook_size.div_ceil(LANES);
        let inputs = ActivationRows::row_major(&workspace.normed[..count * blocks], count);
        let outputs = &mut workspace.outputs[..count * panels];
        product(team, *instructions, head, inputs, workspace.integers, outputs, Finish::Keep);
        for (index, row) in rows.enumerate() {
            let logits = &mut workspace.logits[row * panels..(row + 1) * panels];
            gather_row(outputs, count, index, &mut logits.as_flattened_mut()[..spec.codebook_size]);
        }
    }
}

/// Takes the first `length` blocks away.
fn split_off<'a>(blocks: &mut &'a mut [Lane16], length: usize) -> &'a mut [Lane16] {
    let (first, rest) = std::mem::take(blocks).split_at_mut(length);
    *blocks = rest;
    first
}

/// A row of the residual stream takes in a linear layer's outputs, and its normalised copy is made.
struct NormRow<'a> {
    residual: &'a mut [f32],
    normed: &'a mut [f32],
    /// Outputs `[panels][rows]` to add first, and this row's number.
    add: Option<(&'a [Lane16], usize, usize)>,
    weight: &'a [f32],
    epsilon: f32,
}

impl Kernel for NormRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        if let Some((outputs, rows, row)) = self.add {
            for (values, output) in self.residual.chunks_mut(LANES).zip(outputs[row..].iter().step_by(rows)) {
                for (value, output) in values.iter_mut().zip(output) {
                    *value += output;
                }
            }
        }
        self.normed.copy_from_slice(self.residual);
        rms_norm(self.normed, self.weight, self.epsilon);
    }
}

/// Copies one row out of `[panels][rows]`.
#[inline]
fn gather_row(outputs: &[Lane16], rows: usize, row: usize, to: &mut [f32]) {
    for (to, from) in to.chunks_mut(LANES).zip(outputs[row..].iter().step_by(rows)) {
        to.copy_from_slice(&from[..to.len()]);
    }
}
