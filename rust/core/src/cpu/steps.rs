//! A frame under way, and its plain loop: prefill, then one step per codebook, each a pass of the body, a head and a draw
//! per row.

use super::body::{Body, TokenRows};
use super::lanes::LANES;
use super::workspace::PREFILL_ROWS;
use crate::frame::{FrameInputs, FrameOutputs, STATUS_CODE_ZERO_OUT_OF_RANGE, STATUS_GOOD, Table};
use crate::sampling::Sampler;
use std::ops::Range;

/// A code drawn from a row of logits, `None` where the draw failed.
pub(super) type Drawn = Option<u32>;

/// One frame under way.
pub(super) struct FrameRun<'a, 'b> {
    pub(super) body: Body<'a>,
    /// One for each row of logits.
    pub(super) samplers: &'a mut [Sampler],
    /// What was drawn from each row of logits.
    pub(super) drawn: &'a mut [Drawn],
    pub(super) inputs: &'a FrameInputs<'a>,
    pub(super) outputs: &'a mut FrameOutputs<'b>,
}

/// The same number of rows of every stream, at consecutive positions.
struct StepRows {
    streams: usize,
    per_stream: usize,
    /// Position of each stream's first row.
    position: usize,
}

impl TokenRows for StepRows {
    fn count(&self) -> usize {
        self.streams * self.per_stream
    }

    fn of_stream(&self, stream: usize) -> Range<usize> {
        stream * self.per_stream..(stream + 1) * self.per_stream
    }

    fn position(&self, row: usize) -> usize {
        self.position + row % self.per_stream
    }

    fn slot(&self, _row: usize, position: usize) -> usize {
        position
    }
}

impl FrameRun<'_, '_> {
    /// Runs the whole frame step by step.
    pub(super) fn run_steps(&mut self) {
        self.prefill();
        let weights = self.body.weights;
        let streams = self.streams();
        for codebook in 2..=self.body.spec.residual_codebooks {
            let table = weights.tables[codebook - 2].view();
            let (codes, per_frame) = (&*self.outputs.codes, self.body.spec.codes_per_frame());
            self.body.embed(streams, |stream, row| {
                widen(table, codes[stream * per_frame + codebook - 1] as usize, row);
            });
            self.body.run(&StepRows { streams, per_stream: 1, position: codebook }, 0..streams);
            self.predict(codebook);
        }
    }

    pub(super) fn streams(&self) -> usize {
        self.inputs.code_zero.len()
    }

    /// Checks `code_0`, starts the sums, and draws `code_1` of every stream. Stream s keeps its hidden row at s.
    pub(super) fn prefill(&mut self) {
        let spec = self.body.spec;
        let (inputs, outputs) = (self.inputs, &mut *self.outputs);
        let (width, per_frame) = (spec.talker_hidden_size, spec.codes_per_frame());
        let table = inputs.code_zero_table;
        for (stream, &code) in inputs.code_zero.iter().enumerate() {
            let in_range = usize::try_from(code).is_ok_and(|code| code < table.rows);
            outputs.status[stream] = if in_range { STATUS_GOOD } else { STATUS_CODE_ZERO_OUT_OF_RANGE };
            outputs.codes[stream * per_frame] = if in_range { code as i32 } else { 0 };
        }
        let code_zero = |stream: usize| outputs.codes[stream * per_frame] as usize;
        for (stream, sum) in outputs.codec_sum.chunks_exact_mut(width).enumerate() {
            widen(table, code_zero(stream), sum);
        }
        let streams = inputs.code_zero.len();
        self.body.embed(streams * PREFILL_ROWS, |row, to| {
            let stream = row / PREFILL_ROWS;
            if row % PREFILL_ROWS == 0 {
                to.copy_from_slice(&inputs.talker_last_hidden[stream * width..(stream + 1) * width]);
            } else {
                widen(table, code_zero(stream), to);
            }
        });
        let rows = StepRows { streams, per_stream: PREFILL_ROWS, position: 0 };
        self.body.run(&rows, (0..streams).map(|stream| (stream + 1) * PREFILL_ROWS - 1));
        self.predict(1);
    }

    /// Draws `code_codebook` of every stream from its hidden row.
    fn predict(&mut self, codebook: usize) {
        let streams = self.streams();
        self.body.head(&self.body.weights.heads[codebook - 1], 0..streams);
        self.draw((0..streams).map(|stream| (stream, codebook)));
        for stream in 0..streams {
            self.commit(stream, codebook, stream);
        }
    }

    /// Draws from the first rows of logits, each for a (stream, codebook).
    pub(super) fn draw(&mut self, draws: impl Iterator<Item = (usize, usize)> + Send) {
        let size = self.body.spec.codebook_size;
        let sampling = self.inputs.sampling;
        let rows = self
            .drawn
            .iter_mut()
            .zip(self.samplers.iter_mut())
            .zip(self.body.workspace.logits.chunks_exact(size.div_ceil(LANES)))
            .zip(draws);
        self.body.team.for_each(rows, |(((drawn, sampler), logits), (stream, codebook))| {
            let logits = &logits.as_flattened()[..size];
            let sampling = &sampling[stream];
            *drawn = sampler.draw(logits, &sampling.params, sampling.frame_index, codebook as u32).ok();
        });
    }

    /// Writes everything that row `row` of the hidden rows, the logits and the draws gives `code_codebook` of a stream.
    pub(super) fn commit(&mut self, stream: usize, codebook: usize, row: usize) {
        let spec = self.body.spec;
        let outputs = &mut *self.outputs;
        if self.drawn[row].is_none() && outputs.status[stream] == STATUS_GOOD {
            outputs.status[stream] = codebook as i32;
        }
        let code = self.drawn[row].unwrap_or(0) as usize;
        outputs.codes[stream * spec.codes_per_frame() + codebook] = code as i32;
        let width = spec.talker_hidden_size;
        let sum = &mut outputs.codec_sum[stream * width..(stream + 1) * width];
        add_row(self.body.weights.tables[codebook - 1].view(), code, sum);
        let workspace = &self.body.workspace;
        let kept = [
            (outputs.logits.as_deref_mut(), &*workspace.logits, spec.codebook_size),
            (outputs.hidden_rows.as_deref_mut(), &*workspace.hidden, spec.hidden_size),
        ];
        for (to, from, width) in kept {
            let Some(to) = to else { continue };
            let at = (stream * spec.residual_codebooks + codebook - 1) * width;
            let blocks = width.div_ceil(LANES);
            let from = &from[row * blocks..(row + 1) * blocks];
            to[at..at + width].copy_from_slice(&from.as_flattened()[..width]);
        }
    }
}

/// Entry `row` of a table, widened.
pub(super) fn widen(table: Table<'_>, row: usize, to: &mut [f32]) {
    let bytes = table.row(row);
    for (index, to) in to.iter_mut().enumerate() {
        *to = table.float_type.widen(bytes, index);
    }
}

/// Adds entry `row` of a table in float32.
pub(super) fn add_row(table: Table<'_>, row: usize, to: &mut [f32]) {
    let bytes = table.row(row);
    for (index, to) in to.iter_mut().enumerate() {
        *to += table.float_type.widen(bytes, index);
    }
}
