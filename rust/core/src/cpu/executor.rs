//! The frame on the CPU: prefill, then one step per codebook, each a pass of the body, a head and a draw per row.

use super::attention::{AttentionLayer, AttentionRow, RotaryTable};
use super::lanes::{InstructionSet, Kernel, LANES, Lane16, Lanes};
use super::layer_math::rms_norm;
use super::panels::WeightType;
use super::product::{ActivationRows, Finish, product};
use super::team::Team;
use super::threads::{ThreadsError, start_team};
use super::weights::{LoadError, OwnedTable, Weights};
use super::workspace::{PREFILL_ROWS, Workspace, stream_cache, workspace_blocks};
use crate::checkpoint::Checkpoint;
use crate::frame::{FrameInputs, FrameOutputs, STATUS_CODE_ZERO_OUT_OF_RANGE, STATUS_GOOD, Table};
use crate::sampling::Sampler;
use crate::spec::ModelSpec;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// How a [`CpuExecutor`] is made.
#[derive(Clone, Copy, Debug)]
pub struct CpuOptions {
    /// Type of the packed weights.
    pub weight_type: WeightType,
    /// Threads of the executor's own team; `None` for `OVERTONE_NUM_THREADS`, else every core.
    pub threads: Option<usize>,
    /// Largest number of streams of one frame.
    pub max_batch: usize,
}

/// Why an executor could not be made.
#[derive(Debug, thiserror::Error)]
pub enum CpuError {
    /// The checkpoint could not be read.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The threads could not be had.
    #[error(transparent)]
    Threads(#[from] ThreadsError),
}

/// Predicts frames on the CPU. Follows `Qwen3OmniMoeTalkerCodePredictorModelForConditionalGeneration` (transformers)
/// and `Qwen3TTSTalkerCodePredictorModelForConditionalGeneration` (qwen-tts).
#[derive(Debug)]
pub struct CpuExecutor {
    spec: ModelSpec,
    weight_type: WeightType,
    weights: Weights,
    rotary: RotaryTable,
    instructions: InstructionSet,
    team: Team,
    /// One for each stream of a frame.
    samplers: Vec<Sampler>,
}

/// The shape of one pass of the body.
#[derive(Clone, Copy)]
struct Pass {
    streams: usize,
    /// Token rows of each stream, at consecutive positions.
    rows_per_stream: usize,
    /// Position of each stream's first row.
    position: usize,
}

impl Pass {
    const fn rows(self) -> usize {
        self.streams * self.rows_per_stream
    }
}

impl CpuExecutor {
    /// Reads and packs a checkpoint's weights.
    ///
    /// # Errors
    /// [`CpuError`]: a tensor that cannot be read or is not finite, `progress` that breaks, threads that cannot start.
    pub fn load(
        checkpoint: &Checkpoint<'_>,
        options: CpuOptions,
        progress: &mut (dyn FnMut(u64, u64) -> std::ops::ControlFlow<()> + Send),
    ) -> Result<Self, CpuError> {
        let spec = checkpoint.spec().clone();
        let mut team = start_team(options.threads)?;
        let weights = Weights::load(checkpoint, &mut team, options.weight_type, progress)?;
        Ok(Self {
            weight_type: options.weight_type,
            weights,
            rotary: RotaryTable::new(&spec),
            instructions: InstructionSet::detect(),
            team,
            samplers: (0..options.max_batch).map(|_| Sampler::new(spec.codebook_size)).collect(),
            spec,
        })
    }

    /// The same executor with other instructions.
    #[must_use]
    pub fn with_instructions(mut self, instructions: InstructionSet) -> Self {
        self.instructions = instructions;
        self
    }

    /// The architecture.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// Type of the packed weights.
    pub fn weight_type(&self) -> WeightType {
        self.weight_type
    }

    /// The instructions in use.
    pub fn instructions(&self) -> InstructionSet {
        self.instructions
    }

    /// Threads of the team.
    pub fn threads(&self) -> usize {
        self.team.threads()
    }

    /// Largest number of streams of one frame.
    pub fn max_batch(&self) -> usize {
        self.samplers.len()
    }

    /// Blocks of sixteen floats that [`run_frame`](Self::run_frame) needs as its arena at `max_batch`.
    pub fn workspace_blocks(&self) -> usize {
        workspace_blocks(&self.spec, self.max_batch())
    }

    /// `E[layer]` [V, Ht], which embeds `code_{layer + 1}`; `None` when there is no such layer.
    pub fn codec_table(&self, layer: usize) -> Option<&Arc<OwnedTable>> {
        self.weights.tables.get(layer)
    }

    /// The talker's table E0 [V0, Ht], when the checkpoint has it.
    pub fn code_zero_table(&self) -> Option<&Arc<OwnedTable>> {
        self.weights.code_zero_table.as_ref()
    }

    /// Predicts one frame of every stream in `inputs`.
    ///
    /// A row that cannot be drawn fails alone: its code is 0, `status` names the codebook, and it goes on.
    ///
    /// # Panics
    /// When a slice's length does not fit the others, there are more streams than `max_batch`, or the arena is
    /// smaller than [`workspace_blocks`](Self::workspace_blocks).
    pub fn run_frame(
        &mut self,
        arena: &mut [Lane16],
        inputs: &FrameInputs<'_>,
        outputs: &mut FrameOutputs<'_>,
    ) {
        let streams = inputs.code_zero.len();
        let width = self.spec.talker_hidden_size;
        assert!(streams <= self.max_batch(), "{streams} streams exceed max_batch");
        assert_eq!(inputs.talker_last_hidden.len(), streams * width, "talker_last_hidden");
        assert_eq!(inputs.sampling.len(), streams, "sampling");
        assert_eq!(inputs.code_zero_table.width, width, "code_zero_table");
        assert_eq!(outputs.codes.len(), streams * self.spec.codes_per_frame(), "codes");
        assert_eq!(outputs.codec_sum.len(), streams * width, "codec_sum");
        assert_eq!(outputs.status.len(), streams, "status");
        if streams == 0 {
            return;
        }
        let Self { spec, weights, rotary, instructions, team, samplers, .. } = self;
        let mut frame = FrameRun {
            spec,
            weights,
            rotary,
            instructions: *instructions,
            team,
            workspace: Workspace::carve(arena, spec, streams),
        };
        frame.run(inputs, outputs, samplers);
    }

    /// Bytes of weights that one frame streams from memory, whatever its batch: the body R times and every head
    /// once. Embedding rows, a few kilobytes, are left out.
    pub fn frame_bytes(&self) -> u64 {
        self.weights.in_frame_order().map(|matrix| matrix.bytes() as u64).sum()
    }

    /// Reads the bytes of [`frame_bytes`](Self::frame_bytes) on all threads and does nothing else: the floor that a
    /// frame's time is measured against. Returns their exclusive or.
    pub fn read_frame_bytes(&mut self) -> u32 {
        let Self { weights, instructions, team, .. } = self;
        let total = AtomicU32::new(0);
        let parts = weights.in_frame_order().flat_map(|matrix| matrix.words().chunks(READ_WORDS));
        team.for_each(parts, |words| {
            total.fetch_xor(instructions.run(ExclusiveOr(words)), Ordering::Relaxed);
        });
        total.into_inner()
    }
}

/// Words that a thread reads at a time when it only reads.
const READ_WORDS: usize = 64 * 1024;

/// The exclusive or of all words: each is loaded once and cannot be skipped. Four parts are read side by side, as a
/// product reads its panels, since one stream alone does not fill the memory's bandwidth.
struct ExclusiveOr<'a>(&'a [u32]);

impl Kernel for ExclusiveOr<'_> {
    type Output = u32;

    #[inline(always)]
    fn run<L: Lanes>(self) -> u32 {
        let (blocks, rest) = self.0.as_chunks::<LANES>();
        let part = blocks.len() / 4;
        let (parts, left) = blocks.split_at(4 * part);
        let mut lanes = [0; LANES];
        for index in 0..part {
            for block in
                [&parts[index], &parts[part + index], &parts[2 * part + index], &parts[3 * part + index]]
            {
                for (lane, word) in lanes.iter_mut().zip(block) {
                    *lane ^= word;
                }
            }
        }
        let left = left.as_flattened();
        lanes.iter().chain(left).chain(rest).fold(0, |a, b| a ^ b)
    }
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

/// One frame under way.
struct FrameRun<'a> {
    spec: &'a ModelSpec,
    weights: &'a Weights,
    rotary: &'a RotaryTable,
    instructions: InstructionSet,
    team: &'a mut Team,
    workspace: Workspace<'a>,
}

impl FrameRun<'_> {
    fn run(&mut self, inputs: &FrameInputs<'_>, outputs: &mut FrameOutputs<'_>, samplers: &mut [Sampler]) {
        let streams = inputs.code_zero.len();
        let codes_per_frame = self.spec.codes_per_frame();
        let width = self.spec.talker_hidden_size;
        self.start(inputs, outputs);
        for codebook in 1..=self.spec.residual_codebooks {
            let pass = if codebook == 1 {
                Pass { streams, rows_per_stream: PREFILL_ROWS, position: 0 }
            } else {
                let table = self.weights.tables[codebook - 2].view();
                let codes = &*outputs.codes;
                self.embed(streams, |stream, row| {
                    widen(table, codes[stream * codes_per_frame + codebook - 1] as usize, row);
                });
                Pass { streams, rows_per_stream: 1, position: codebook }
            };
            self.body(pass);
            self.head(pass, codebook - 1);
            self.draw(codebook, inputs, outputs, samplers);
            let table = self.weights.tables[codebook - 1].view();
            for (stream, sum) in outputs.codec_sum.chunks_exact_mut(width).enumerate() {
                add_row(table, outputs.codes[stream * codes_per_frame + codebook] as usize, sum);
            }
        }
    }

    /// Checks `code_0`, starts the sums, and embeds the prefill's two rows of every stream.
    fn start(&mut self, inputs: &FrameInputs<'_>, outputs: &mut FrameOutputs<'_>) {
        let width = self.spec.talker_hidden_size;
        let table = inputs.code_zero_table;
        for (stream, &code) in inputs.code_zero.iter().enumerate() {
            let in_range = usize::try_from(code).is_ok_and(|code| code < table.rows);
            outputs.status[stream] = if in_range { STATUS_GOOD } else { STATUS_CODE_ZERO_OUT_OF_RANGE };
            outputs.codes[stream * self.spec.codes_per_frame()] = if in_range { code as i32 } else { 0 };
        }
        let code_zero = |stream: usize| outputs.codes[stream * self.spec.codes_per_frame()] as usize;
        for (stream, sum) in outputs.codec_sum.chunks_exact_mut(width).enumerate() {
            widen(table, code_zero(stream), sum);
        }
        self.embed(inputs.code_zero.len() * PREFILL_ROWS, |row, to| {
            let stream = row / PREFILL_ROWS;
            if row % PREFILL_ROWS == 0 {
                to.copy_from_slice(&inputs.talker_last_hidden[stream * width..(stream + 1) * width]);
            } else {
                widen(table, code_zero(stream), to);
            }
        });
    }

    /// Fills the residual stream with P(row) of every row that `write` gives.
    fn embed(&mut self, rows: usize, write: impl Fn(usize, &mut [f32])) {
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

    /// All layers over the rows in the residual stream. The last layer's MLP output is left to be added.
    fn body(&mut self, pass: Pass) {
        let rows = pass.rows();
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
            self.attend(pass, index);

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

    /// Attention of every stream, streams in parallel; a stream's rows in order, since each sees those before it.
    fn attend(&mut self, pass: Pass, layer: usize) {
        let Self { spec, weights, rotary, workspace, instructions, team } = self;
        let projected_width = spec.query_width() + 2 * spec.key_value_width();
        let projected_blocks = projected_width.div_ceil(LANES);
        let query_blocks = spec.query_width().div_ceil(LANES);
        let score_blocks = spec.positions().div_ceil(LANES);
        let cache = stream_cache(spec);
        let slots = layer * pass.streams * cache..(layer + 1) * pass.streams * cache;
        let layer = AttentionLayer {
            spec,
            query_norm: &weights.layers[layer].query_norm,
            key_norm: &weights.layers[layer].key_norm,
            rotary,
        };
        let outputs = &*workspace.outputs;
        let per_stream = pass.rows_per_stream;
        let streams = workspace.keys[slots.clone()]
            .chunks_exact_mut(cache)
            .zip(workspace.values[slots].chunks_exact_mut(cache))
            .zip(workspace.projected.chunks_exact_mut(projected_blocks * per_stream))
            .zip(workspace.attended.chunks_exact_mut(query_blocks * per_stream))
            .zip(workspace.scores.chunks_exact_mut(score_blocks))
            .enumerate();
        team.for_each(streams, |(stream, ((((keys, values), projected), attended), scores))| {
            let rows =
                projected.chunks_exact_mut(projected_blocks).zip(attended.chunks_exact_mut(query_blocks));
            for (offset, (projected, attended)) in rows.enumerate() {
                let projected = &mut projected.as_flattened_mut()[..projected_width];
                gather_row(outputs, pass.rows(), stream * per_stream + offset, projected);
                instructions.run(AttentionRow {
                    layer,
                    position: pass.position + offset,
                    projected,
                    keys: keys.as_flattened_mut(),
                    values: values.as_flattened_mut(),
                    weights: scores.as_flattened_mut(),
                    attended: &mut attended.as_flattened_mut()[..spec.query_width()],
                });
            }
        });
    }

    /// Final norm and `Head[head]` on each stream's last row; logits row by row.
    fn head(&mut self, pass: Pass, head: usize) {
        let weights = self.weights;
        self.norm(pass.rows(), &weights.final_norm, true);
        let Self { spec, workspace, instructions, team, .. } = self;
        let blocks = spec.hidden_size.div_ceil(LANES);
        for stream in 0..pass.streams {
            let last = (stream + 1) * pass.rows_per_stream - 1;
            workspace.normed.copy_within(last * blocks..(last + 1) * blocks, stream * blocks);
        }
        let streams = pass.streams;
        let panels = spec.codebook_size.div_ceil(LANES);
        let inputs = ActivationRows::row_major(&workspace.normed[..streams * blocks], streams);
        let outputs = &mut workspace.outputs[..streams * panels];
        product(team, *instructions, &weights.heads[head], inputs, workspace.integers, outputs, Finish::Keep);
        for (stream, logits) in workspace.logits.chunks_exact_mut(panels).enumerate() {
            gather_row(outputs, streams, stream, &mut logits.as_flattened_mut()[..spec.codebook_size]);
        }
    }

    /// Draws `code_codebook` of every stream from its logits.
    fn draw(
        &mut self,
        codebook: usize,
        inputs: &FrameInputs<'_>,
        outputs: &mut FrameOutputs<'_>,
        samplers: &mut [Sampler],
    ) {
        let size = self.spec.codebook_size;
        let all_logits = &*self.workspace.logits;
        let rows = outputs
            .codes
            .chunks_exact_mut(self.spec.codes_per_frame())
            .zip(outputs.status.iter_mut())
            .zip(samplers)
            .zip(all_logits.chunks_exact(size.div_ceil(LANES)))
            .zip(inputs.sampling);
        self.team.for_each(rows, |((((codes, status), sampler), logits), sampling)| {
            let logits = &logits.as_flattened()[..size];
            match sampler.draw(logits, &sampling.params, sampling.frame_index, codebook as u32) {
                Ok(code) => codes[codebook] = code as i32,
                Err(_) => {
                    codes[codebook] = 0;
                    if *status == STATUS_GOOD {
                        *status = codebook as i32;
                    }
                }
            }
        });
        if let Some(kept) = outputs.logits.as_deref_mut() {
            let rows = kept.chunks_exact_mut(self.spec.residual_codebooks * size);
            for (to, from) in rows.zip(all_logits.chunks_exact(size.div_ceil(LANES))) {
                to[(codebook - 1) * size..codebook * size].copy_from_slice(&from.as_flattened()[..size]);
            }
        }
    }
}

/// Entry `row` of a table, widened.
fn widen(table: Table<'_>, row: usize, to: &mut [f32]) {
    let bytes = table.row(row);
    for (index, to) in to.iter_mut().enumerate() {
        *to = table.float_type.widen(bytes, index);
    }
}

/// Adds entry `row` of a table in float32.
fn add_row(table: Table<'_>, row: usize, to: &mut [f32]) {
    let bytes = table.row(row);
    for (index, to) in to.iter_mut().enumerate() {
        *to += table.float_type.widen(bytes, index);
    }
}
