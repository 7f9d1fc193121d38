//! [`CpuExecutor`]: a checkpoint's weights, the threads, and frames.

use super::attention::RotaryTable;
use super::body::Body;
use super::drafts::DraftWeights;
use super::lanes::{InstructionSet, Kernel, LANES, Lane16, Lanes};
use super::panels::WeightType;
use super::rounds::Rounds;
use super::steps::{Drawn, FrameRun};
use super::team::Team;
use super::threads::{ThreadsError, start_team};
use super::weights::{LoadError, OwnedTable, Weights};
use super::workspace::{Workspace, WorkspaceExtent};
use crate::checkpoint::Checkpoint;
use crate::checkpoint::drafts::Drafts;
use crate::frame::{FrameInputs, FrameOutputs};
use crate::rounds::{OffSwitch, RoundCounters, Speculation};
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
    /// Speculation, where frames are to be predicted in rounds; `None` for the plain loop.
    pub speculation: Option<Speculation>,
    /// Codes per round below which speculation is switched off; `None` for [`break_even`].
    pub off_below: Option<f64>,
}

/// Codes that a round of `verify_rows` rows has to draw to take no longer than as many steps of the plain loop, at batch 1.
pub const fn break_even(verify_rows: usize) -> f64 {
    1.0 + EXTRA_ROW * (verify_rows - 1) as f64
}

/// What one more row adds to a pass of one row, as a part of it.
const EXTRA_ROW: f64 = 0.35;

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
    max_batch: usize,
    /// One for each row of logits.
    samplers: Vec<Sampler>,
    drawn: Vec<Drawn>,
    speculation: Option<(Rounds, OffSwitch)>,
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
        let speculation = options.speculation.filter(|speculation| speculation.suits(&spec));
        let verify_rows = speculation.map_or(1, |speculation| speculation.tree.rows());
        let off_below = options.off_below.unwrap_or(break_even(verify_rows));
        let rows = options.max_batch * verify_rows;
        Ok(Self {
            weight_type: options.weight_type,
            weights,
            rotary: RotaryTable::new(&spec),
            instructions: InstructionSet::detect(),
            team,
            max_batch: options.max_batch,
            samplers: (0..rows).map(|_| Sampler::new(spec.codebook_size)).collect(),
            drawn: vec![None; rows],
            speculation: speculation
                .map(|speculation| (Rounds::new(speculation, options.max_batch), OffSwitch::new(off_below))),
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
        self.max_batch
    }

    /// Whether the next frame is predicted in speculative rounds. It is not when nothing was asked for, when this
    /// architecture does not suit it, and from when on it did not pay.
    pub fn speculating(&self) -> bool {
        self.speculation.as_ref().is_some_and(|(_, switch)| switch.is_on())
    }

    /// Drafts the next code with fitted drafts from now on; nothing happens without speculation.
    ///
    /// # Errors
    /// A value is not finite, or the file has changed; there is no memory.
    pub fn use_drafts(&mut self, drafts: &Drafts) -> Result<(), CpuError> {
        if let Some((rounds, _)) = &mut self.speculation {
            rounds.use_drafts(DraftWeights::load(drafts, &self.spec, &mut self.team, self.weight_type)?);
        }
        Ok(())
    }

    /// What switches speculation off; `None` where there is none.
    pub fn off_switch(&self) -> Option<&OffSwitch> {
        self.speculation.as_ref().map(|(_, switch)| switch)
    }

    /// What the rounds of the last frame counted, for each stream in its inputs; empty when it ran step by step.
    pub fn round_counters(&self) -> &[RoundCounters] {
        self.speculation.as_ref().map_or(&[], |(rounds, _)| rounds.counters())
    }

    /// Blocks of sixteen floats that [`run_frame`](Self::run_frame) needs as its arena at `max_batch`.
    pub fn workspace_blocks(&self) -> usize {
        self.workspace_extent(self.max_batch).blocks(&self.spec)
    }

    fn workspace_extent(&self, streams: usize) -> WorkspaceExtent {
        let verify_rows = self.speculation.as_ref().map_or(1, |(rounds, _)| rounds.verify_rows());
        WorkspaceExtent { streams, verify_rows }
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
        let extent = self.workspace_extent(streams);
        let Self { spec, weights, rotary, instructions, team, samplers, drawn, speculation, .. } = self;
        if let Some((rounds, _)) = speculation {
            rounds.clear();
        }
        if streams == 0 {
            return;
        }
        let body = Body {
            spec,
            weights,
            rotary,
            instructions: *instructions,
            team,
            workspace: Workspace::carve(arena, spec, extent),
        };
        let mut frame = FrameRun { body, samplers, drawn, inputs, outputs };
        match speculation {
            Some((rounds, switch)) if switch.is_on() => {
                frame.run_rounds(rounds);
                rounds.counters().iter().for_each(|counters| switch.add(*counters));
            }
            _ => frame.run_steps(),
        }
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
