//! Where everything lies on the device: sizes and offsets, a pure function of the architecture, the working type and the
//! batch. Nothing here allocates; [`crate::plan`] turns the addresses into launches.

use bytemuck::{Pod, Zeroable};
use overtone_core::checkpoint::drafts::drafted_behind;
use overtone_core::rounds::DraftTree;
use overtone_core::spec::ModelSpec;
use overtone_core::tensor::FloatType;

use crate::arguments::ElementType;
use crate::rounds::arguments::{CodebookAddresses, RoundHeads, RoundLoop, RoundState, RowProposals};

/// A device address; 0 stands for nothing.
pub type Address = u64;

/// Outputs of a tile.
pub const TILE_ROWS: usize = 16;
/// Columns of a tile.
pub const TILE_COLUMNS: usize = 8;
/// Inputs of a pair of steps.
pub const PAIR: usize = 32;
/// Parts that the inputs are split into where a product is added to the residual stream: it has few outputs, which alone
/// would not keep a card busy. The order of the sums follows from it, so it is one for all cards and batches.
pub const RESIDUAL_SPLITS: usize = 2;
/// Token rows that one stream brings into the prefill.
pub const PREFILL_ROWS: usize = 2;
/// Every block of memory starts at a multiple of this many bytes.
const ALIGNMENT: u64 = 256;

/// A weight matrix as a product reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixShape {
    /// Outputs; of a gated product its channels, each with a gate and an up.
    pub outputs: usize,
    /// Inputs.
    pub inputs: usize,
    /// Parts of the inputs.
    pub splits: usize,
    /// Whether its tiles are eight gates and their eight ups.
    pub gated: bool,
}

impl MatrixShape {
    /// Tiles of 16 outputs.
    pub const fn row_tiles(self) -> usize {
        self.outputs.div_ceil(if self.gated { TILE_ROWS / 2 } else { TILE_ROWS })
    }

    /// Pairs of steps of one split.
    pub const fn pairs(self) -> usize {
        self.inputs.div_ceil(PAIR).div_ceil(self.splits)
    }

    /// Pairs of steps of all splits: the width of the activations it is multiplied with.
    pub const fn total_pairs(self) -> usize {
        self.pairs() * self.splits
    }

    /// Bytes when packed as `float_type`.
    pub const fn bytes(self, float_type: FloatType) -> u64 {
        (self.row_tiles() * TILE_ROWS * self.total_pairs() * PAIR * float_type.size()) as u64
    }
}

/// The matrices of an architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixShapes {
    /// q, k and v, stacked.
    pub query_key_value: MatrixShape,
    /// o.
    pub output: MatrixShape,
    /// gate and up.
    pub gate_up: MatrixShape,
    /// down.
    pub down: MatrixShape,
    /// A head.
    pub head: MatrixShape,
    /// `small_to_mtp_projection`.
    pub projection: MatrixShape,
}

impl MatrixShapes {
    /// The matrices of `spec`.
    pub const fn new(spec: &ModelSpec) -> Self {
        const fn plain(outputs: usize, inputs: usize, splits: usize) -> MatrixShape {
            MatrixShape { outputs, inputs, splits, gated: false }
        }
        let hidden = spec.hidden_size;
        Self {
            query_key_value: plain(spec.query_width() + 2 * spec.key_value_width(), hidden, 1),
            output: plain(hidden, spec.query_width(), RESIDUAL_SPLITS),
            gate_up: MatrixShape { outputs: spec.mlp_width, inputs: hidden, splits: 1, gated: true },
            down: plain(hidden, spec.mlp_width, RESIDUAL_SPLITS),
            head: plain(spec.codebook_size, hidden, 1),
            projection: plain(hidden, spec.talker_hidden_size, 1),
        }
    }
}

/// Hands out addresses from `base` on, one block after another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Carver {
    base: Address,
    used: u64,
}

impl Carver {
    pub(crate) const fn new(base: Address) -> Self {
        Self { base, used: 0 }
    }

    pub(crate) const fn take(&mut self, bytes: u64) -> Address {
        let address = self.base + self.used;
        self.used += bytes.next_multiple_of(ALIGNMENT);
        address
    }

    pub(crate) const fn used(&self) -> u64 {
        self.used
    }
}

/// One decoder layer's weights. Norms are float32.
#[derive(Clone, Copy, Debug)]
pub struct LayerAddresses {
    /// `[H]`.
    pub input_norm: Address,
    /// q, k, v.
    pub query_key_value: Address,
    /// `[D]`.
    pub query_norm: Address,
    /// `[D]`.
    pub key_norm: Address,
    /// o.
    pub output: Address,
    /// `[H]`.
    pub post_attention_norm: Address,
    /// gate and up.
    pub gate_up: Address,
    /// down.
    pub down: Address,
}

/// A codebook's embedding table.
#[derive(Clone, Copy, Debug)]
pub struct TableAddresses {
    /// [rows, Ht], as stored.
    pub raw: Address,
    /// Type of `raw`.
    pub float_type: FloatType,
    /// [rows, H] behind the projection, in the working type; `raw` without one.
    pub projected: Address,
    /// Type of `projected`.
    pub projected_type: FloatType,
}

/// Fitted drafts: of each, the one for a pending `code_j` is entry j − 1, j = 1 … R − 2.
#[derive(Clone, Debug)]
pub struct DraftAddresses {
    /// D\[j\], packed.
    pub heads: Vec<Address>,
    /// T\[j\] [V, V], as stored.
    pub tables: Vec<Address>,
    /// Type of the tables.
    pub float_type: FloatType,
}

/// Every weight of a predictor.
#[derive(Clone, Debug)]
pub struct WeightAddresses {
    /// Decoder layers.
    pub layers: Vec<LayerAddresses>,
    /// `[H]`.
    pub final_norm: Address,
    /// `Head[i]`.
    pub heads: Vec<Address>,
    /// `E[i]`.
    pub tables: Vec<TableAddresses>,
    /// E0, when the checkpoint has it.
    pub code_zero_table: Option<TableAddresses>,
    /// Weight and bias of the projection.
    pub projection: Option<(Address, Address)>,
    /// [positions, D / 2] of (cosine, sine), float32.
    pub rotary: Address,
    /// Fitted drafts, where there are some.
    pub drafts: Option<DraftAddresses>,
    /// [`CodebookAddresses`] of every codebook, for kernels that find out by themselves which one they work for.
    pub codebooks: Address,
    /// Bytes of all of them.
    pub bytes: u64,
}

impl WeightAddresses {
    /// Lays out the weights of `spec` from `base` on. `table_types` are the storage types of `E[0]` …; the talker's table is
    /// stored as `code_zero_type` and fitted drafts as `draft_type`, if at all.
    pub fn new(
        spec: &ModelSpec,
        float_type: FloatType,
        table_types: &[FloatType],
        code_zero_type: Option<FloatType>,
        draft_type: Option<FloatType>,
        base: Address,
    ) -> Self {
        let mut carver = Carver::new(base);
        let shapes = MatrixShapes::new(spec);
        let vector = |elements: usize| (elements * size_of::<f32>()) as u64;
        let layers = (0..spec.layers).map(|_| LayerAddresses {
            input_norm: carver.take(vector(spec.hidden_size)),
            query_key_value: carver.take(shapes.query_key_value.bytes(float_type)),
            query_norm: carver.take(vector(spec.head_size)),
            key_norm: carver.take(vector(spec.head_size)),
            output: carver.take(shapes.output.bytes(float_type)),
            post_attention_norm: carver.take(vector(spec.hidden_size)),
            gate_up: carver.take(shapes.gate_up.bytes(float_type)),
            down: carver.take(shapes.down.bytes(float_type)),
        });
        let layers = layers.collect();
        let final_norm = carver.take(vector(spec.hidden_size));
        let heads =
            (0..spec.residual_codebooks).map(|_| carver.take(shapes.head.bytes(float_type))).collect();
        let mut table = |rows: usize, stored: FloatType| {
            let raw = carver.take((rows * spec.talker_hidden_size * stored.size()) as u64);
            let (projected, projected_type) = match spec.projected {
                true => (carver.take((rows * spec.hidden_size * float_type.size()) as u64), float_type),
                false => (raw, stored),
            };
            TableAddresses { raw, float_type: stored, projected, projected_type }
        };
        let tables = table_types.iter().map(|stored| table(spec.codebook_size, *stored)).collect();
        let code_zero_table = code_zero_type.map(|stored| table(spec.code_zero_size.unwrap_or(0), stored));
        let projection = spec.projected.then(|| {
            (carver.take(shapes.projection.bytes(float_type)), carver.take(vector(spec.hidden_size)))
        });
        let rotary = carver.take(vector(spec.positions() * spec.head_size));
        let drafts = draft_type.map(|stored| {
            let pending = drafted_behind(spec);
            let table = (spec.codebook_size * spec.codebook_size * stored.size()) as u64;
            DraftAddresses {
                heads: pending.clone().map(|_| carver.take(shapes.head.bytes(float_type))).collect(),
                tables: pending.map(|_| carver.take(table)).collect(),
                float_type: stored,
            }
        });
        let codebooks = carver.take((spec.residual_codebooks * size_of::<CodebookAddresses>()) as u64);
        let bytes = carver.used();
        Self {
            layers,
            final_norm,
            heads,
            tables,
            code_zero_table,
            projection,
            rotary,
            drafts,
            codebooks,
            bytes,
        }
    }

    /// What is to be at `codebooks`.
    pub fn codebook_addresses(&self) -> Vec<CodebookAddresses> {
        let entries = self.heads.iter().zip(&self.tables).map(|(head, table)| CodebookAddresses {
            head: *head,
            table: table.raw,
            projected: table.projected,
            table_type: ElementType::from(table.float_type) as u32,
            projected_type: ElementType::from(table.projected_type) as u32,
            ..CodebookAddresses::default()
        });
        let mut entries: Vec<_> = entries.collect();
        if let Some(drafts) = &self.drafts {
            let fitted = drafts.heads.iter().zip(&drafts.tables);
            // Entry 0 belongs to code_1, which nothing drafts.
            for (entry, (head, table)) in entries.iter_mut().skip(1).zip(fitted) {
                (entry.draft_head, entry.draft_table) = (*head, *table);
                entry.draft_table_type = ElementType::from(drafts.float_type) as u32;
            }
        }
        entries
    }
}

/// `RowState` of `kernels/frame_arguments.cuh`.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct RowState {
    temperature: f32,
    top_k: u32,
    top_p: f32,
    status: i32,
    seed: u64,
    frame_index: u64,
    codes: Address,
    active: u32,
    parameters_out_of_range: u32,
}

/// All that a frame writes before its outputs. Nothing in it outlives a frame: a talker may use it in between.
#[derive(Clone, Copy, Debug)]
pub struct WorkspaceAddresses {
    /// [`RowState`] of every row.
    pub rows: Address,
    /// The residual stream at the start of a layer, [columns, H] float32.
    pub residual: Address,
    /// The residual stream after attention, [columns, H] float32.
    pub attended_residual: Address,
    /// q, k, v as projected, [columns, (Nq + 2 Nkv) · D] float32.
    pub query_key_value: Address,
    /// What is to be added to the residual stream, [splits, columns, H] float32.
    pub partials: Address,
    /// The normalised residual stream, activations.
    pub normed: Address,
    /// The attended values, activations.
    pub attended: Address,
    /// silu(gate) · up, activations.
    pub gated: Address,
    /// What rounding cost `gated`; float16 only.
    pub gated_low: Address,
    /// Hidden rows on their way to the projection, activations.
    pub hidden: Address,
    /// Keys [layers, slots, Nkv, `cache_slots`, D].
    pub keys: Address,
    /// Values, likewise.
    pub values: Address,
    /// Slots of a head in the caches: its positions, and with rounds a few more.
    pub cache_slots: usize,
    /// [slots, V] float32; with rounds [slots, heads, rows, V].
    pub logits: Address,
    /// [slots, Ht] float32.
    pub codec_sum: Address,
    /// What rounds need besides.
    pub rounds: Option<RoundAddresses>,
    /// Bytes of all of them.
    pub bytes: u64,
}

/// How large rounds are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundExtent {
    /// Rows of a frame up to which it may go in rounds.
    pub slots: usize,
    /// Rows of each stream in a verify pass.
    pub rows: usize,
    /// Heads that those go through.
    pub heads: usize,
}

impl RoundExtent {
    /// Rounds that verify `tree` in frames of up to `slots` rows; their drafts may be `fitted`.
    pub const fn new(tree: &DraftTree, fitted: bool, slots: usize) -> Self {
        Self { slots, rows: tree.rows(), heads: RoundHeads::new(tree, fitted).count() }
    }
}

/// What rounds need in the workspace.
#[derive(Clone, Copy, Debug)]
pub struct RoundAddresses {
    /// [`RoundState`] of every row of the batch.
    pub states: Address,
    /// [`RoundLoop`].
    pub round_loop: Address,
    /// What the heads read: activations, a tile of columns for each stream.
    pub normed: Address,
    /// [`RowProposals`], [slots, rows].
    pub proposals: Address,
}

impl WorkspaceAddresses {
    /// Lays out the workspace of frames of up to `slots` rows from `base` on, and of their rounds.
    pub fn new(
        spec: &ModelSpec,
        float_type: FloatType,
        slots: usize,
        rounds: Option<RoundExtent>,
        base: Address,
    ) -> Self {
        let mut carver = Carver::new(base);
        let shapes = MatrixShapes::new(spec);
        let extent = rounds.unwrap_or(RoundExtent { slots: 0, rows: 1, heads: 1 });
        let round_columns = extent.rows * extent.slots;
        let columns = (PREFILL_ROWS * slots).max(round_columns);
        let cache_slots = spec.positions() + extent.rows - 1;
        let floats = |rows: usize, width: usize| (rows * width * size_of::<f32>()) as u64;
        let activations = |matrix: MatrixShape, columns: usize| {
            let width = matrix.total_pairs() * PAIR;
            (columns.next_multiple_of(TILE_COLUMNS) * width * float_type.size()) as u64
        };
        let cache = (spec.layers * slots * spec.key_value_width() * cache_slots * float_type.size()) as u64;
        let low = if float_type == FloatType::Float16 { activations(shapes.down, columns) } else { 0 };
        let hidden = if spec.projected { activations(shapes.projection, slots) } else { 0 };
        Self {
            rows: carver.take((slots * size_of::<RowState>()) as u64),
            residual: carver.take(floats(columns, spec.hidden_size)),
            attended_residual: carver.take(floats(columns, spec.hidden_size)),
            query_key_value: carver.take(floats(columns, shapes.query_key_value.outputs)),
            partials: carver.take(floats(RESIDUAL_SPLITS * columns, spec.hidden_size)),
            normed: carver.take(activations(shapes.query_key_value, columns)),
            attended: carver.take(activations(shapes.output, columns)),
            gated: carver.take(activations(shapes.down, columns)),
            gated_low: carver.take(low),
            hidden: carver.take(hidden),
            keys: carver.take(cache),
            values: carver.take(cache),
            cache_slots,
            logits: carver.take(floats(slots.max(extent.heads * round_columns), spec.codebook_size)),
            codec_sum: carver.take(floats(slots, spec.talker_hidden_size)),
            rounds: rounds.map(|_| RoundAddresses {
                states: carver.take((extent.slots * size_of::<RoundState>()) as u64),
                round_loop: carver.take(size_of::<RoundLoop>() as u64),
                normed: carver.take(activations(shapes.head, extent.slots * TILE_COLUMNS)),
                proposals: carver.take((round_columns * size_of::<RowProposals>()) as u64),
            }),
            bytes: carver.used(),
        }
    }
}
