//! A frame in speculative rounds as two lists of launches: what comes before the first round, and one round, which is repeated
//! until every stream is done. [`overtone_core::rounds`] says what a round is, `kernels/rounds.cuh` how the kernels share it.
//!
//! The arithmetic of every row is that of the step-by-step frame: the same kernels, with more columns. Columns are token rows:
//! row r of stream b is column r · slots + b.

pub mod arguments;

use overtone_core::rounds::{MOST_SLOTS, Speculation};

use crate::arguments::{NormArguments, NormRowsArguments};
use crate::kernels::Kernel;
use crate::layout::{Address, RoundAddresses};
use crate::plan::{
    FramePlan, Launch, Pass, PassRows, SAMPLING_SHARED_BYTES, after_one_another, most_shared_bytes,
    slot_sizes,
};
use crate::product::heads_shared_bytes;
use crate::support::Unsupported;
use arguments::{DrawRowsArguments, HeadsArguments, RoundHeads, SettleArguments, TreeArgument};

/// Bytes of `SettleShared` of `kernels/settle.cu`.
const SETTLE_SHARED_BYTES: usize = 3632;

/// What the launches of a frame in rounds are made from.
#[derive(Clone, Copy, Debug)]
pub struct RoundPlan<'a> {
    /// The frame; its workspace is laid out for rounds.
    pub frame: FramePlan<'a>,
    /// What is drafted.
    pub speculation: &'a Speculation,
    /// Where the workspace has what rounds need.
    pub addresses: RoundAddresses,
    /// [`RoundCounters`](arguments::RoundCounters) of every row of the batch.
    pub counters: Address,
    /// A copy of them that the host can read; 0 for none.
    pub host_counters: Address,
    /// Handle of the graph's loop over rounds; 0 where the host launches as many rounds as there may be.
    pub conditional: u64,
}

/// The launches of a frame in rounds.
#[derive(Clone, Debug)]
pub struct RoundLaunches {
    /// Up to `code_1`.
    pub before: Vec<Launch>,
    /// One round.
    pub round: Vec<Launch>,
}

/// What a pass leads to: which rows draw.
#[derive(Clone, Copy)]
struct Verified {
    /// First column whose logits are computed.
    first_column: usize,
    /// Rows of each stream that draw.
    rows: usize,
    prefill: bool,
}

impl RoundPlan<'_> {
    /// All launches, in order.
    pub fn launches(&self) -> RoundLaunches {
        let (frame, tree) = (&self.frame, &self.speculation.tree);
        let mut before = frame.start(Some((&self.addresses, tree)));
        let pass = frame.prefill();
        frame.body(pass, &mut before);
        let first_column = pass.columns - frame.slots;
        self.verify(pass, Verified { first_column, rows: 1, prefill: true }, &mut before);

        let mut round = Vec::new();
        let (states, rows) = (self.addresses.states, tree.rows());
        let pass = Pass {
            columns: rows * frame.slots,
            rows: PassRows::Tree { states, tree: self.tree(), count: rows },
        };
        frame.body(pass, &mut round);
        self.verify(pass, Verified { first_column: 0, rows, prefill: false }, &mut round);
        after_one_another(&mut before);
        after_one_another(&mut round);
        RoundLaunches { before, round }
    }

    /// The most shared memory that any block of a frame of up to `max_batch` rows takes, in bytes.
    pub fn most_shared_bytes(&self, max_batch: usize) -> u32 {
        let sizes = slot_sizes(max_batch).flat_map(|slots| {
            let launches = RoundPlan { frame: FramePlan { slots, ..self.frame }, ..*self }.launches();
            launches.before.into_iter().chain(launches.round)
        });
        most_shared_bytes(sizes)
    }

    fn tree(&self) -> TreeArgument {
        TreeArgument::from(&self.speculation.tree)
    }

    fn round_heads(&self) -> RoundHeads {
        RoundHeads::new(&self.speculation.tree, self.frame.weights.drafts.is_some())
    }

    fn codebook_count(&self) -> u32 {
        self.frame.spec.residual_codebooks as u32
    }

    fn codebook_size(&self) -> u32 {
        self.frame.spec.codebook_size as u32
    }

    /// From the last layer to what is committed.
    fn verify(&self, pass: Pass, verified: Verified, launches: &mut Vec<Launch>) {
        let frame = &self.frame;
        let head = frame.shapes().head;
        let norm = NormArguments { first_column: verified.first_column as u32, ..frame.final_norm(pass) };
        launches.push(frame.norm_rows(
            pass.columns - verified.first_column,
            NormRowsArguments {
                norm,
                normed: self.addresses.normed,
                pairs: head.total_pairs() as u32,
                streams: frame.slots as u32,
            },
        ));
        launches.push(self.heads(verified));
        launches.push(self.draw_rows(verified.rows));
        launches.push(self.settle(verified.prefill));
    }

    /// The heads that rows draw from, and those that they draft from.
    fn heads(&self, verified: Verified) -> Launch {
        let head = self.frame.shapes().head;
        let arguments = HeadsArguments {
            rounds: self.addresses.states,
            codebooks: self.frame.weights.codebooks,
            activations: self.addresses.normed,
            output: self.frame.workspace.logits,
            codebook_count: self.codebook_count(),
            outputs: head.outputs as u32,
            row_tiles: head.row_tiles() as u32,
            pairs: head.total_pairs() as u32,
            rows: self.speculation.tree.rows() as u32,
            columns: verified.rows as u32,
            heads: self.round_heads(),
        };
        Launch::new(Kernel::Heads(self.frame.float_type), [head.row_tiles(), 1], &arguments)
            .repeated(self.round_heads().count() * self.frame.slots)
            .shared(heads_shared_bytes())
    }

    fn draw_rows(&self, rows: usize) -> Launch {
        let tree = &self.speculation.tree;
        let width = |ahead: usize| if ahead <= tree.depth() { tree.width(ahead) as u8 } else { 0 };
        let arguments = DrawRowsArguments {
            rows: self.frame.workspace.rows,
            rounds: self.addresses.states,
            proposals: self.addresses.proposals,
            codebooks: self.frame.weights.codebooks,
            logits: self.frame.workspace.logits,
            codebook_size: self.codebook_size(),
            codebook_count: self.codebook_count(),
            least_probability: self.speculation.least_probability.unwrap_or(0.0),
            reserved: 0,
            widths: std::array::from_fn(|place| width(place + 1)),
            heads: self.round_heads(),
            tree: self.tree(),
        };
        Launch::new(Kernel::DrawRows, [self.frame.slots, rows], &arguments)
            .repeated(tree.depth() + 1)
            .shared(SAMPLING_SHARED_BYTES + self.frame.spec.codebook_size * size_of::<u32>())
    }

    fn settle(&self, prefill: bool) -> Launch {
        let (frame, workspace) = (&self.frame, &self.frame.workspace);
        let arguments = SettleArguments {
            frame: frame.frame,
            rows: workspace.rows,
            counters: frame.counters,
            rounds: self.addresses.states,
            proposals: self.addresses.proposals,
            round_loop: self.addresses.round_loop,
            round_counters: self.counters,
            host_counters: self.host_counters,
            codebooks: frame.weights.codebooks,
            logits: workspace.logits,
            codec_sum: workspace.codec_sum,
            residual: workspace.residual,
            conditional: self.conditional,
            codebook_size: self.codebook_size(),
            codebook_count: self.codebook_count(),
            talker_hidden_size: frame.spec.talker_hidden_size as u32,
            hidden_size: frame.spec.hidden_size as u32,
            prefill: u32::from(prefill),
            reserved: 0,
            heads: self.round_heads(),
            tree: self.tree(),
        };
        Launch::new(Kernel::Settle, [frame.slots, 1], &arguments).shared(SETTLE_SHARED_BYTES)
    }
}

/// Checks that the caches of `positions` positions have names for the slots that rounds need.
///
/// # Errors
/// [`Unsupported`] when they have not.
pub fn check_slots(positions: usize, speculation: &Speculation) -> Result<(), Unsupported> {
    let found = positions + speculation.tree.rows() - 1;
    if found <= MOST_SLOTS {
        return Ok(());
    }
    let what = "num_code_groups and the window together";
    Err(Unsupported { what, found, expected: format!("at most {MOST_SLOTS}") })
}
