//! A frame as a list of launches: which kernels, in which order, with which addresses. Pure: nothing here touches a device.
//! The CUDA executor records the list into a graph, the tests of `overtone-simt` run it on the host.
//!
//! Columns are token rows: in the prefill row p of stream b is column p · slots + b, afterwards there is one per stream.

use bytemuck::{NoUninit, bytes_of};
use overtone_core::rounds::DraftTree;
use overtone_core::spec::ModelSpec;
use overtone_core::tensor::FloatType;

use crate::arguments::{
    AttentionArguments, BeginArguments, ElementType, NormArguments, NormRowsArguments, PaddedActivations,
    ProductArguments, SampleArguments,
};
use crate::frame::FrameHeader;
use crate::kernels::Kernel;
use crate::layout::{
    Address, LayerAddresses, MatrixShape, MatrixShapes, PAIR, PREFILL_ROWS, RESIDUAL_SPLITS, RoundAddresses,
    RowState, TILE_COLUMNS, WeightAddresses, WorkspaceAddresses,
};
use crate::product::{attends_in_place, attention_shared_bytes, norm_shared_bytes, product_launch};
use crate::rounds::arguments::{TreeArgument, TreeAttentionArguments};

/// Columns up to which every block of a product normalises the residual stream itself: for more, a kernel of its own costs
/// less. The arithmetic is the same.
const COLUMNS_NORMALISED_IN_PLACE: usize = 1;
/// Threads of every block, except those of attention.
const THREADS: u32 = 256;
/// Threads of a warp.
const WARP: usize = 32;
/// Bytes of `SamplingShared` of `kernels/kept_set.cuh`.
pub(crate) const SAMPLING_SHARED_BYTES: usize = 5264;
/// Bytes of the largest arguments that a frame's kernels take.
const MOST_ARGUMENT_BYTES: usize = 264;

/// The bytes of a kernel's one argument.
#[derive(Clone, Copy, Debug)]
pub struct Arguments {
    bytes: [u8; MOST_ARGUMENT_BYTES],
    length: usize,
}

impl Arguments {
    fn new<T: NoUninit>(arguments: &T) -> Self {
        const { assert!(size_of::<T>() <= MOST_ARGUMENT_BYTES) };
        let mut bytes = [0; MOST_ARGUMENT_BYTES];
        bytes[..size_of::<T>()].copy_from_slice(bytes_of(arguments));
        Self { bytes, length: size_of::<T>() }
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// One launch of one kernel.
#[derive(Clone, Copy, Debug)]
pub struct Launch {
    /// Which kernel.
    pub kernel: Kernel,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: u32,
    /// Bytes of shared memory of a block.
    pub shared_bytes: u32,
    /// Whether it may start while the launch before it ends: the kernel waits by itself.
    pub programmatic: bool,
    /// Its argument.
    pub arguments: Arguments,
}

impl Launch {
    /// A launch that starts when everything before it has ended.
    pub fn new<T: NoUninit>(kernel: Kernel, grid: [usize; 2], arguments: &T) -> Self {
        Self {
            kernel,
            grid: [grid[0] as u32, grid[1] as u32, 1],
            block: THREADS,
            shared_bytes: 0,
            programmatic: false,
            arguments: Arguments::new(arguments),
        }
    }

    /// As often, in the third direction of the grid.
    #[must_use]
    pub const fn repeated(mut self, times: usize) -> Self {
        self.grid[2] = times as u32;
        self
    }

    /// With shared memory.
    #[must_use]
    pub fn shared(mut self, bytes: usize) -> Self {
        self.shared_bytes = bytes as u32;
        self
    }
}

/// What a frame's launches are made from.
#[derive(Clone, Copy, Debug)]
pub struct FramePlan<'a> {
    /// The architecture.
    pub spec: &'a ModelSpec,
    /// The working type.
    pub float_type: FloatType,
    /// Where the weights are.
    pub weights: &'a WeightAddresses,
    /// Where the workspace is, laid out for `slots` rows or more.
    pub workspace: WorkspaceAddresses,
    /// The frame's block (`FrameBlock` of `kernels/frame_arguments.cuh`).
    pub frame: Address,
    /// The predictor's counters ([`FrameCounters`](crate::frame::FrameCounters)).
    pub counters: Address,
    /// Rows to make the launches for.
    pub slots: usize,
    /// Shared memory that a block may have on the card.
    pub shared_bytes_per_block: usize,
}

/// One pass of the body.
#[derive(Clone, Copy)]
pub(crate) struct Pass {
    pub(crate) columns: usize,
    pub(crate) rows: PassRows,
}

/// The rows of each stream in a pass.
#[derive(Clone, Copy)]
pub(crate) enum PassRows {
    /// At consecutive positions, the same for all streams.
    Consecutive { count: usize, first_position: usize },
    /// Those of a round.
    Tree { states: Address, tree: TreeArgument, count: usize },
}

/// What a norm adds to the residual stream, and where it keeps the sum.
#[derive(Clone, Copy)]
pub(crate) struct Residual {
    from: Address,
    partial_count: usize,
    to: Address,
}

impl FramePlan<'_> {
    /// All launches of a frame that goes step by step, in order.
    pub fn launches(&self) -> Vec<Launch> {
        let mut launches = self.start(None);
        for codebook in 1..=self.spec.residual_codebooks {
            let pass = if codebook == 1 { self.prefill() } else { self.step(codebook) };
            self.body(pass, &mut launches);
            // The row that a stream ends with has its logits computed.
            let norm =
                NormArguments { first_column: (pass.columns - self.slots) as u32, ..self.final_norm(pass) };
            let head = ProductArguments {
                weights: self.weights.heads[codebook - 1],
                output: self.workspace.logits,
                ..ProductArguments::default()
            };
            self.normalised(self.shapes().head, norm, self.slots, head, &mut launches);
            launches.push(self.sample(codebook));
        }
        after_one_another(&mut launches);
        launches
    }

    /// The start of a frame; `rounds` is for one that goes in rounds: where they are, and what they verify.
    pub(crate) fn start(&self, rounds: Option<(&RoundAddresses, &DraftTree)>) -> Vec<Launch> {
        [self.begin(rounds)].into_iter().chain(self.project_hidden()).collect()
    }

    /// The two rows before `code_1`.
    pub(crate) const fn prefill(&self) -> Pass {
        Pass {
            columns: PREFILL_ROWS * self.slots,
            rows: PassRows::Consecutive { count: PREFILL_ROWS, first_position: 0 },
        }
    }

    /// The one row before `code_codebook`.
    const fn step(&self, codebook: usize) -> Pass {
        Pass { columns: self.slots, rows: PassRows::Consecutive { count: 1, first_position: codebook } }
    }

    /// The most shared memory that any block of a frame of up to `max_batch` rows takes, in bytes.
    pub fn most_shared_bytes(&self, max_batch: usize) -> u32 {
        let sizes = slot_sizes(max_batch).flat_map(|slots| FramePlan { slots, ..*self }.launches());
        most_shared_bytes(sizes)
    }

    pub(crate) fn shapes(&self) -> MatrixShapes {
        MatrixShapes::new(self.spec)
    }

    fn begin(&self, rounds: Option<(&RoundAddresses, &DraftTree)>) -> Launch {
        let (shapes, workspace) = (self.shapes(), &self.workspace);
        let padded = |activations: Address, matrix: MatrixShape, columns: usize| {
            let pairs = matrix.total_pairs();
            if activations == 0 || matrix.inputs == pairs * PAIR {
                return PaddedActivations::default();
            }
            let (inputs, pairs, columns) = (matrix.inputs as u32, pairs as u32, columns as u32);
            PaddedActivations { activations, inputs, pairs, columns, reserved: 0 }
        };
        let columns = rounds.map_or(PREFILL_ROWS, |(_, tree)| tree.rows().max(PREFILL_ROWS));
        let address = |of: fn(&RoundAddresses) -> Address| rounds.map_or(0, |(rounds, _)| of(rounds));
        let projected = self.spec.projected;
        let arguments = BeginArguments {
            frame: self.frame,
            rows: workspace.rows,
            counters: self.counters,
            residual: workspace.residual,
            hidden: if projected { workspace.hidden } else { 0 },
            codec_sum: workspace.codec_sum,
            rounds: address(|rounds| rounds.states),
            round_loop: address(|rounds| rounds.round_loop),
            slots: self.slots as u32,
            hidden_size: self.spec.hidden_size as u32,
            talker_hidden_size: self.spec.talker_hidden_size as u32,
            pairs: if projected { shapes.projection.total_pairs() as u32 } else { 0 },
            codebook_count: self.spec.residual_codebooks as u32,
            reserved: 0,
            padded: [
                padded(workspace.normed, shapes.query_key_value, columns),
                padded(workspace.attended, shapes.output, columns),
                padded(workspace.gated, shapes.down, columns),
                padded(self.gated_low(), shapes.down, columns),
                padded(address(|rounds| rounds.normed), shapes.head, TILE_COLUMNS),
            ],
        };
        Launch::new(Kernel::Begin(self.float_type), [self.slots, 1], &arguments)
    }

    /// P of the hidden rows, into the residual stream.
    fn project_hidden(&self) -> Option<Launch> {
        let (weights, bias) = self.weights.projection?;
        Some(self.product(
            self.shapes().projection,
            ProductArguments {
                weights,
                bias,
                activations: self.workspace.hidden,
                output: self.workspace.residual,
                columns: self.slots as u32,
                ..ProductArguments::default()
            },
        ))
    }

    /// All layers over the columns of a pass.
    pub(crate) fn body(&self, pass: Pass, launches: &mut Vec<Launch>) {
        for (index, layer) in self.weights.layers.iter().enumerate() {
            self.layer(pass, index, layer, launches);
        }
    }

    /// The norm behind the last layer, over all columns.
    pub(crate) fn final_norm(&self, pass: Pass) -> NormArguments {
        let residual = Residual { from: self.workspace.attended_residual, ..self.taken_in(0) };
        self.norm(pass, self.weights.final_norm, residual)
    }

    fn layer(&self, pass: Pass, index: usize, layer: &LayerAddresses, launches: &mut Vec<Launch>) {
        let (spec, shapes, workspace) = (self.spec, self.shapes(), &self.workspace);
        // The first layer finds its input complete; the others add what the layer before left.
        let residual = match index {
            0 => Residual { from: workspace.residual, partial_count: 0, to: 0 },
            _ => Residual { from: workspace.attended_residual, ..self.taken_in(workspace.residual) },
        };
        let query_key_value = ProductArguments {
            weights: layer.query_key_value,
            output: workspace.query_key_value,
            ..ProductArguments::default()
        };
        let norm = self.norm(pass, layer.input_norm, residual);
        self.normalised(shapes.query_key_value, norm, pass.columns, query_key_value, launches);
        let attention = self.attention_arguments(index, layer);
        let mut output = self.residual_product(pass, layer.output, workspace.attended);
        match pass.rows {
            PassRows::Tree { states, tree, count } => {
                let arguments = TreeAttentionArguments { attention, rounds: states, tree };
                launches
                    .push(self.attention(Kernel::AttentionTree(self.float_type), &arguments).repeated(count));
            }
            PassRows::Consecutive { count, first_position } => {
                let (rows, first_position) = (count as u32, first_position as u32);
                let attention = AttentionArguments { rows, first_position, ..attention };
                if self.slots == 1 && attends_in_place(spec, self.float_type, self.shared_bytes_per_block) {
                    (output.activations, output.attention) = (0, attention);
                } else {
                    launches.push(self.attention(Kernel::Attention(self.float_type), &attention));
                }
            }
        }
        launches.push(self.product(shapes.output, output));
        let gate_up = ProductArguments {
            weights: layer.gate_up,
            output: workspace.gated,
            output_low: self.gated_low(),
            output_pairs: shapes.down.total_pairs() as u32,
            ..ProductArguments::default()
        };
        let residual = Residual { from: workspace.residual, ..self.taken_in(workspace.attended_residual) };
        let norm = self.norm(pass, layer.post_attention_norm, residual);
        self.normalised(shapes.gate_up, norm, pass.columns, gate_up, launches);
        let activations_low = self.gated_low();
        let down =
            ProductArguments { activations_low, ..self.residual_product(pass, layer.down, workspace.gated) };
        launches.push(self.product(shapes.down, down));
    }

    /// A product whose splits are added to the residual stream later.
    fn residual_product(&self, pass: Pass, weights: Address, activations: Address) -> ProductArguments {
        ProductArguments {
            weights,
            activations,
            output: self.workspace.partials,
            columns: pass.columns as u32,
            ..ProductArguments::default()
        }
    }

    /// The partial sums that the last product to the residual stream left.
    fn taken_in(&self, to: Address) -> Residual {
        Residual { from: 0, partial_count: RESIDUAL_SPLITS, to }
    }

    /// float16 holds silu(gate) · up in two parts.
    fn gated_low(&self) -> Address {
        if self.float_type == FloatType::Float16 { self.workspace.gated_low } else { 0 }
    }

    fn norm(&self, pass: Pass, weight: Address, residual: Residual) -> NormArguments {
        NormArguments {
            residual: residual.from,
            partials: self.workspace.partials,
            residual_out: residual.to,
            weight,
            partial_count: residual.partial_count as u32,
            partial_columns: pass.columns as u32,
            width: self.spec.hidden_size as u32,
            epsilon: self.spec.rms_norm_epsilon,
            ..NormArguments::default()
        }
    }

    /// A product of the normalised residual stream.
    fn normalised(
        &self,
        matrix: MatrixShape,
        norm: NormArguments,
        columns: usize,
        product: ProductArguments,
        launches: &mut Vec<Launch>,
    ) {
        let mut product = ProductArguments { columns: columns as u32, ..product };
        if columns <= COLUMNS_NORMALISED_IN_PLACE {
            product.norm = norm;
        } else {
            product.activations = self.workspace.normed;
            launches.push(self.norm_rows(
                columns,
                NormRowsArguments {
                    norm,
                    normed: self.workspace.normed,
                    pairs: matrix.total_pairs() as u32,
                    streams: 0,
                },
            ));
        }
        launches.push(self.product(matrix, product));
    }

    /// The norm as a kernel of its own.
    pub(crate) fn norm_rows(&self, columns: usize, arguments: NormRowsArguments) -> Launch {
        Launch::new(Kernel::NormRows(self.float_type), [columns, 1], &arguments)
            .shared(norm_shared_bytes(self.spec))
    }

    fn product(&self, matrix: MatrixShape, arguments: ProductArguments) -> Launch {
        product_launch(self.spec, self.float_type, matrix, arguments)
    }

    /// What attention of a layer is told, but for the rows of the pass.
    fn attention_arguments(&self, index: usize, layer: &LayerAddresses) -> AttentionArguments {
        let (spec, workspace) = (self.spec, &self.workspace);
        let slot_bytes = spec.key_value_width() * self.float_type.size();
        let cache = index * self.slots * workspace.cache_slots * slot_bytes;
        AttentionArguments {
            projected: workspace.query_key_value,
            query_norm: layer.query_norm,
            key_norm: layer.key_norm,
            rotary: self.weights.rotary,
            keys: workspace.keys + cache as u64,
            values: workspace.values + cache as u64,
            attended: workspace.attended,
            query_heads: spec.query_heads as u32,
            key_value_heads: spec.key_value_heads as u32,
            head_size: spec.head_size as u32,
            positions: spec.positions() as u32,
            cache_slots: workspace.cache_slots as u32,
            streams: self.slots as u32,
            pairs: self.shapes().output.total_pairs() as u32,
            epsilon: spec.rms_norm_epsilon,
            scale: 1.0 / (spec.head_size as f32).sqrt(),
            ..AttentionArguments::default()
        }
    }

    /// Attention by itself: a block a key head and stream, a warp a query.
    fn attention<T: NoUninit>(&self, kernel: Kernel, arguments: &T) -> Launch {
        let spec = self.spec;
        let queries = spec.query_heads / spec.key_value_heads;
        Launch {
            block: (queries * WARP) as u32,
            ..Launch::new(kernel, [spec.key_value_heads, self.slots], arguments)
                .shared(queries * attention_shared_bytes(spec, self.float_type))
        }
    }

    fn sample(&self, codebook: usize) -> Launch {
        let (spec, workspace) = (self.spec, &self.workspace);
        let table = self.weights.tables[codebook - 1];
        let arguments = SampleArguments {
            frame: self.frame,
            rows: workspace.rows,
            counters: self.counters,
            logits: workspace.logits,
            table: table.raw,
            projected: table.projected,
            residual: workspace.residual,
            codec_sum: workspace.codec_sum,
            table_type: ElementType::from(table.float_type) as u32,
            projected_type: ElementType::from(table.projected_type) as u32,
            codebook: codebook as u32,
            codebooks: spec.residual_codebooks as u32,
            codebook_size: spec.codebook_size as u32,
            hidden_size: spec.hidden_size as u32,
            talker_hidden_size: spec.talker_hidden_size as u32,
            reserved: 0,
        };
        Launch::new(Kernel::Sample, [self.slots, 1], &arguments)
            .shared(SAMPLING_SHARED_BYTES + size_of::<FrameHeader>() + spec.codebook_size * size_of::<u32>())
    }
}

/// Lets every launch but the first start while the one before it ends.
pub(crate) fn after_one_another(launches: &mut [Launch]) {
    for launch in launches.iter_mut().skip(1) {
        launch.programmatic = true;
    }
}

/// The most shared memory that a block of some launches takes, in bytes.
pub(crate) fn most_shared_bytes(launches: impl Iterator<Item = Launch>) -> u32 {
    launches.map(|launch| launch.shared_bytes).max().unwrap_or(0)
}

/// Rows that a graph is made for when a frame has `batch`: exactly so many up to sixteen, then the next multiple of eight,
/// and never more than `max_batch`.
pub fn slots_for(batch: usize, max_batch: usize) -> usize {
    if batch <= 16 { batch } else { batch.next_multiple_of(8).min(max_batch) }
}

/// Every size that [`slots_for`] gives.
pub fn slot_sizes(max_batch: usize) -> impl Iterator<Item = usize> {
    (1..=max_batch).filter(move |&batch| slots_for(batch, max_batch) == batch)
}

const _: () = assert!(size_of::<RowState>() == 48);
