//! The kernels' arguments, field by field as `kernels/` declares them.

use bytemuck::{Pod, Zeroable};
use overtone_core::tensor::FloatType;

use crate::layout::Address;

/// Element types of tensors, numbered as `ElementType` in `kernels/float_types.cuh`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ElementType {
    /// float32.
    Float32 = 0,
    /// float16.
    Float16 = 1,
    /// bfloat16.
    BFloat16 = 2,
    /// int32.
    Int32 = 3,
    /// int64.
    Int64 = 4,
    /// uint8 and bool.
    UInt8 = 5,
    /// uint64.
    UInt64 = 6,
}

impl From<FloatType> for ElementType {
    fn from(float_type: FloatType) -> Self {
        match float_type {
            FloatType::Float32 => Self::Float32,
            FloatType::Float16 => Self::Float16,
            FloatType::BFloat16 => Self::BFloat16,
        }
    }
}

/// `NormArguments` of `kernels/norm.cuh`.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct NormArguments {
    /// [columns, width] float32.
    pub residual: Address,
    /// [`partial_count`, `partial_columns`, width] float32.
    pub partials: Address,
    /// Where the sum is kept; 0: nowhere.
    pub residual_out: Address,
    /// `[width]` float32.
    pub weight: Address,
    /// Partial sums to add.
    pub partial_count: u32,
    /// Columns of each of them.
    pub partial_columns: u32,
    /// First column to normalise.
    pub first_column: u32,
    /// H.
    pub width: u32,
    /// Added to the mean square.
    pub epsilon: f32,
    /// Zero.
    pub reserved: u32,
}

/// `NormRowsArguments` of `kernels/norm.cu`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct NormRowsArguments {
    /// The norm.
    pub norm: NormArguments,
    /// Activations, `pairs` wide.
    pub normed: Address,
    /// Width in pairs of steps.
    pub pairs: u32,
    /// Streams of a round whose rows the columns are, and which have a tile each; 0 where columns stay where they are.
    pub streams: u32,
}

/// `ProductArguments` of `kernels/product.cuh`.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct ProductArguments {
    /// Packed weights.
    pub weights: Address,
    /// Activations; 0 where the block makes them by `norm`.
    pub activations: Address,
    /// The rest of activations in two parts, or 0.
    pub activations_low: Address,
    /// The norm, where the block makes its activations.
    pub norm: NormArguments,
    /// Attention, where each warp makes its activations.
    pub attention: AttentionArguments,
    /// Sums [splits, `output_columns`, outputs] float32, or the next product's activations.
    pub output: Address,
    /// The rest of activations in two parts, or 0.
    pub output_low: Address,
    /// `[outputs]` float32, or 0.
    pub bias: Address,
    /// Outputs; of a gated product its channels.
    pub outputs: u32,
    /// Tiles of 16 outputs.
    pub row_tiles: u32,
    /// Pairs of steps of one split.
    pub pairs: u32,
    /// Parts of the inputs.
    pub splits: u32,
    /// Columns.
    pub columns: u32,
    /// Columns between two splits of the output.
    pub output_columns: u32,
    /// Width of the next product's activations, in pairs.
    pub output_pairs: u32,
    /// Zero.
    pub reserved: u32,
}

/// `AttentionArguments` of `kernels/attention.cuh`.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct AttentionArguments {
    /// q, k, v of every column, [columns, (Nq + 2 Nkv) · D] float32.
    pub projected: Address,
    /// `[D]` float32.
    pub query_norm: Address,
    /// `[D]` float32.
    pub key_norm: Address,
    /// [positions, D / 2] of (cosine, sine).
    pub rotary: Address,
    /// The layer's keys [streams, Nkv, `cache_slots`, D].
    pub keys: Address,
    /// The layer's values, likewise.
    pub values: Address,
    /// Activations, `pairs` wide.
    pub attended: Address,
    /// Nq.
    pub query_heads: u32,
    /// Nkv.
    pub key_value_heads: u32,
    /// D.
    pub head_size: u32,
    /// Positions that a row can have.
    pub positions: u32,
    /// Slots of a head in the caches.
    pub cache_slots: u32,
    /// Position of the first row.
    pub first_position: u32,
    /// Rows of each stream.
    pub rows: u32,
    /// Streams.
    pub streams: u32,
    /// Width of the attended activations, in pairs.
    pub pairs: u32,
    /// Added to the mean square.
    pub epsilon: f32,
    /// 1 / √D.
    pub scale: f32,
    /// Zero.
    pub reserved: u32,
}

/// Activations wider than their inputs: `PaddedActivations` of `kernels/begin.cu`.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct PaddedActivations {
    /// The activations; 0 for none.
    pub activations: Address,
    /// Inputs.
    pub inputs: u32,
    /// Width in pairs of steps.
    pub pairs: u32,
    /// Columns for each slot.
    pub columns: u32,
    /// Zero.
    pub reserved: u32,
}

/// `BeginArguments` of `kernels/begin.cu`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct BeginArguments {
    /// The frame's block.
    pub frame: Address,
    /// Row states, `[slots]`.
    pub rows: Address,
    /// The predictor's counters.
    pub counters: Address,
    /// [2 · slots, H] float32.
    pub residual: Address,
    /// Activations on their way to the projection; 0 without one.
    pub hidden: Address,
    /// [slots, Ht] float32.
    pub codec_sum: Address,
    /// Round states, `[slots]`; 0 where the frame goes step by step.
    pub rounds: Address,
    /// The loop over rounds.
    pub round_loop: Address,
    /// Rows that the launch is made for.
    pub slots: u32,
    /// H.
    pub hidden_size: u32,
    /// Ht.
    pub talker_hidden_size: u32,
    /// Width of `hidden` in pairs.
    pub pairs: u32,
    /// R.
    pub codebook_count: u32,
    /// Zero.
    pub reserved: u32,
    /// Activations whose padding is to be zero.
    pub padded: [PaddedActivations; 5],
}

/// `SampleArguments` of `kernels/sample.cu`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct SampleArguments {
    /// The frame's block.
    pub frame: Address,
    /// Row states, `[slots]`.
    pub rows: Address,
    /// The predictor's counters.
    pub counters: Address,
    /// [slots, V] float32.
    pub logits: Address,
    /// The codebook's table [V, Ht].
    pub table: Address,
    /// The same behind the projection, [V, H].
    pub projected: Address,
    /// [slots, H] float32.
    pub residual: Address,
    /// [slots, Ht] float32.
    pub codec_sum: Address,
    /// Type of `table`.
    pub table_type: u32,
    /// Type of `projected`.
    pub projected_type: u32,
    /// j = 1 … R.
    pub codebook: u32,
    /// R.
    pub codebooks: u32,
    /// V.
    pub codebook_size: u32,
    /// H.
    pub hidden_size: u32,
    /// Ht.
    pub talker_hidden_size: u32,
    /// Zero.
    pub reserved: u32,
}

/// Which outputs of a packed matrix the rows of a tensor are: `RowPlacement` of `kernels/load.cu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum RowPlacement {
    /// One after another.
    Stacked = 0,
    /// The first eight rows of every tile.
    Gate = 1,
    /// The last eight rows of every tile.
    Up = 2,
}

/// `PackArguments` of `kernels/load.cu`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct PackArguments {
    /// [rows, inputs] row-major.
    pub source: Address,
    /// The packed matrix.
    pub packed: Address,
    /// Type of the source.
    pub source_type: u32,
    /// Rows of the source.
    pub rows: u32,
    /// Columns of the source.
    pub inputs: u32,
    /// Width of the packed matrix in pairs, all splits together.
    pub pairs: u32,
    /// First output that the rows are, where they are stacked.
    pub first_output: u32,
    /// [`RowPlacement`].
    pub placement: u32,
}

/// `TableRowsArguments` of `kernels/load.cu`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct TableRowsArguments {
    /// [rows, width].
    pub table: Address,
    /// Activations, `pairs` wide.
    pub activations: Address,
    /// Type of the table.
    pub table_type: u32,
    /// First row taken.
    pub first_row: u32,
    /// Rows taken.
    pub rows: u32,
    /// Width of the table.
    pub width: u32,
    /// Width of the activations in pairs.
    pub pairs: u32,
    /// Zero.
    pub reserved: u32,
}

/// `ConvertArguments` of `kernels/load.cu`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct ConvertArguments {
    /// What is converted.
    pub source: Address,
    /// Where it goes.
    pub target: Address,
    /// How many numbers.
    pub elements: u64,
    /// Type of the source.
    pub source_type: u32,
    /// Type of the target.
    pub target_type: u32,
}

/// Words of one [`UploadArguments`].
pub const UPLOAD_WORDS: usize = 1000;

/// `UploadArguments` of `kernels/upload.cu`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct UploadArguments {
    /// Where the words go.
    pub target: Address,
    /// A uint64 that becomes 0: launches of the frame block.
    pub launches: Address,
    /// How many there are.
    pub word_count: u32,
    /// Zero.
    pub reserved: u32,
    /// The words.
    pub words: [u32; UPLOAD_WORDS],
}
