//! What the kernels of rounds take and keep, field by field as `kernels/` declares it.

use bytemuck::{Pod, Zeroable};
use overtone_core::rounds::{DraftTree, MOST_SLOTS, MOST_VERIFY_ROWS};

use crate::arguments::AttentionArguments;
use crate::layout::Address;

/// `DraftTree` of `kernels/rounds.cuh`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct TreeArgument {
    parents: [u8; MOST_VERIFY_ROWS],
    ranks: [u8; MOST_VERIFY_ROWS],
    depths: [u8; MOST_VERIFY_ROWS],
    rows: u8,
    depth: u8,
    reserved: [u8; 6],
}

impl From<&DraftTree> for TreeArgument {
    fn from(tree: &DraftTree) -> Self {
        let rows = tree.rows();
        let of_row = |value: &dyn Fn(usize) -> usize| {
            std::array::from_fn(|row| if row < rows { value(row) as u8 } else { 0 })
        };
        Self {
            parents: of_row(&|row| tree.parent(row)),
            ranks: of_row(&|row| tree.rank(row)),
            depths: of_row(&|row| tree.depth_of(row)),
            rows: rows as u8,
            depth: tree.depth() as u8,
            reserved: [0; 6],
        }
    }
}

/// `RoundHeads` of `kernels/rounds.cuh`.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct RoundHeads {
    shared: u32,
    fitted: u32,
}

impl RoundHeads {
    /// The heads of rounds that verify `tree`, whose drafts one codebook ahead have heads of their own if they were `fitted`.
    pub const fn new(tree: &DraftTree, fitted: bool) -> Self {
        let depth = tree.depth() as u32;
        // Row 0 draws from the first, the deepest row from head `depth`; drafts further ahead take the rest.
        match (fitted, depth) {
            (false, _) => Self { shared: 2 * depth + 1, fitted: 0 },
            (true, 1) => Self { shared: 2, fitted: 2 },
            (true, _) => Self { shared: 2 * depth + 1, fitted: depth + 1 },
        }
    }

    /// How many there are.
    pub const fn count(self) -> usize {
        (self.shared + self.fitted) as usize
    }
}

/// `CodebookAddresses` of `kernels/rounds.cuh`.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct CodebookAddresses {
    /// Packed `Head[i]`.
    pub head: Address,
    /// `E[i]` [V, Ht].
    pub table: Address,
    /// P of it, [V, H]; `table` without a projection.
    pub projected: Address,
    /// Packed head of fitted drafts.
    pub draft_head: Address,
    /// [V, V]: what a pending code adds to the logits of fitted drafts.
    pub draft_table: Address,
    /// Type of `table`.
    pub table_type: u32,
    /// Type of `projected`.
    pub projected_type: u32,
    /// Type of `draft_table`.
    pub draft_table_type: u32,
    /// Zero.
    pub reserved: u32,
}

/// `RoundState` of `kernels/rounds.cuh`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C, align(16))]
pub struct RoundState {
    used: u64,
    /// m: codes drawn so far.
    pub committed: u32,
    rounds: u32,
    drafted: u32,
    accepted: u32,
    drafts: [i32; MOST_VERIFY_ROWS],
    drawn: [i32; MOST_VERIFY_ROWS],
    slots: [u8; MOST_SLOTS],
    row_slots: [u8; MOST_VERIFY_ROWS],
}

/// `RowProposals` of `kernels/rounds.cuh`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct RowProposals {
    codes: [[i32; MOST_VERIFY_ROWS]; MOST_VERIFY_ROWS - 1],
}

/// `RoundLoop` of `kernels/rounds.cuh`.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct RoundLoop {
    settled: u32,
    /// Streams that were not done after the last pass.
    pub unfinished: u32,
    passes: u32,
    /// Whether there is another round.
    pub goes_on: u32,
}

/// `RoundCounters` of `kernels/rounds.cuh`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct RoundCounters {
    frames: u64,
    rounds: u64,
    codes: u64,
    drafted: u64,
    accepted: u64,
}

impl From<RoundCounters> for overtone_core::rounds::RoundCounters {
    fn from(counted: RoundCounters) -> Self {
        let RoundCounters { frames, rounds, codes, drafted, accepted } = counted;
        Self { frames, rounds, codes, drafted, accepted }
    }
}

/// `TreeAttentionArguments` of `kernels/attention.cu`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct TreeAttentionArguments {
    /// Attention.
    pub attention: AttentionArguments,
    /// Round states, `[streams]`.
    pub rounds: Address,
    /// The rows.
    pub tree: TreeArgument,
}

/// `HeadsArguments` of `kernels/heads.cu`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct HeadsArguments {
    /// Round states, `[streams]`.
    pub rounds: Address,
    /// [`CodebookAddresses`], `[R]`.
    pub codebooks: Address,
    /// Activations: a tile of columns for each stream.
    pub activations: Address,
    /// [streams, heads, rows, V] float32.
    pub output: Address,
    /// R.
    pub codebook_count: u32,
    /// V.
    pub outputs: u32,
    /// Tiles of 16 outputs.
    pub row_tiles: u32,
    /// Width of the activations in pairs.
    pub pairs: u32,
    /// Rows of a round.
    pub rows: u32,
    /// Rows of each stream that are there.
    pub columns: u32,
    /// The heads.
    pub heads: RoundHeads,
}

/// `DrawRowsArguments` of `kernels/draw_rows.cu`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct DrawRowsArguments {
    /// Row states, `[slots]`.
    pub rows: Address,
    /// Round states, `[slots]`.
    pub rounds: Address,
    /// [`RowProposals`], [slots, rows].
    pub proposals: Address,
    /// [`CodebookAddresses`], `[R]`.
    pub codebooks: Address,
    /// [slots, heads, rows, V] float32.
    pub logits: Address,
    /// V.
    pub codebook_size: u32,
    /// R.
    pub codebook_count: u32,
    /// Of a proposal, before any filter; 0 for any.
    pub least_probability: f32,
    /// Zero.
    pub reserved: u32,
    /// Proposals one codebook ahead, two, ….
    pub widths: [u8; MOST_VERIFY_ROWS],
    /// The heads.
    pub heads: RoundHeads,
    /// The rows.
    pub tree: TreeArgument,
}

/// `SettleArguments` of `kernels/settle.cu`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct SettleArguments {
    /// The frame's block.
    pub frame: Address,
    /// Row states, `[slots]`.
    pub rows: Address,
    /// The predictor's counters.
    pub counters: Address,
    /// Round states, `[slots]`.
    pub rounds: Address,
    /// [`RowProposals`], [slots, rows].
    pub proposals: Address,
    /// The loop over rounds.
    pub round_loop: Address,
    /// [`RoundCounters`] of every row of the batch.
    pub round_counters: Address,
    /// A copy of them that the host can read; 0 for none.
    pub host_counters: Address,
    /// [`CodebookAddresses`], `[R]`.
    pub codebooks: Address,
    /// [slots, heads, rows, V] float32.
    pub logits: Address,
    /// [slots, Ht] float32.
    pub codec_sum: Address,
    /// [rows · slots, H] float32.
    pub residual: Address,
    /// Handle of the graph's loop; 0 for none.
    pub conditional: u64,
    /// V.
    pub codebook_size: u32,
    /// R.
    pub codebook_count: u32,
    /// Ht.
    pub talker_hidden_size: u32,
    /// H.
    pub hidden_size: u32,
    /// Whether the pass was the prefill.
    pub prefill: u32,
    /// Zero.
    pub reserved: u32,
    /// The heads.
    pub heads: RoundHeads,
    /// The rows.
    pub tree: TreeArgument,
}

const _: () = assert!(
    size_of::<TreeArgument>() == 32
        && size_of::<CodebookAddresses>() == 56
        && size_of::<RoundState>() == 160
        && size_of::<RoundLoop>() == 16
);
