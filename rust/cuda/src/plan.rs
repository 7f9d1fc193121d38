//! A frame as a list of launches: which kernels, in which order, with which addresses. Pure: nothing here touches a device.
//! The CUDA executor records the list into a graph, the tests of `overtone-simt` run it on the host.
//!
//! Columns are token rows: in the prefill row p of stream b is column p · slots + b, afterwards there is one per stream.

use bytemuck::{NoUninit, bytes_of};
use overtone_core::spec::ModelSpec;
use overtone_core::tensor::FloatType;

use crate::arguments::{
    AttentionArguments, BeginArguments, ElementType, NormArguments, NormRowsArguments, PaddedActivations,
    ProductArguments, SampleArguments,
};
use crate::frame::FrameHeader;
use crate::kernels::Kernel;
use crate::layout::{
    Address, LayerAddresses, MatrixShape, MatrixShapes, PAIR, PREFILL_ROWS, RESIDUAL_SPLITS, RowState,
    WeightAddresses, WorkspaceAddresses,
};
use crate::product::{attends_in_place, attention_shared_bytes, norm_shared_bytes, product_launch};

/// Columns up to which every block of a product normalises the residual stream itself: for more, a kernel of its own costs
/// less. The arithmetic is the same.
const COLUMNS_NORMALISED_IN_PLACE: usize = 1;
/// Threads of every block, except those of attention.
const THREADS: u32 = 256;
/// Threads of a warp.
const WARP: usize = 32;
/// Bytes of `SamplingShared` of `kernels/kept_set.cuh`.
const SAMPLING_SHARED_BYTES: usize = 5264;
/// Bytes of the largest arguments that a frame's kernels take.
const MOST_ARGUMENT_BYTES: usize = 256;

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
struct Pass {
    /// j = 1 … R: the codebook that the pass leads to.
    codebook: usize,
    rows_per_stream: usize,
    first_position: usize,
    columns: usize,
}

/// What a norm adds to the residual stream, and where it keeps the sum.
#[derive(Clone, Copy)]
struct Residual {
    from: Address,
    partial_count: usize,
    to: Address,
}

impl FramePlan<'_> {
    /// All launches of a frame, in order.
    pub fn launches(&self) -> Vec<Launch> {
        let mut launches = vec![self.begin()];
        launches.extend(self.project_hidden());
        for codebook in 1..=self.spec.residual_codebooks {
            let (rows_per_stream, first_position) =
                if codebook == 1 { (PREFILL_ROWS, 0) } else { (1, codebook) };
            let columns = rows_per_stream * self.slots;
            self.step(Pass { codebook, rows_per_stream, first_position, columns }, &mut launches);
        }
        for launch in launches.iter_mut().skip(1) {
            launch.programmatic = true;
        }
        launches
    }

    /// The most shared memory that any block of a frame of up to `max_batch` rows takes, in bytes.
    pub fn most_shared_bytes(&self, max_batch: usize) -> u32 {
        let sizes = slot_sizes(max_batch).flat_map(|slots| FramePlan { slots, ..*self }.launches());
        sizes.map(|launch| launch.shared_bytes).max().unwrap_or(0)
    }

    fn shapes(&self) -> MatrixShapes {
        MatrixShapes::new(self.spec)
    }

    fn begin(&self) -> Launch {
        let (shapes, workspace) = (self.shapes(), &self.workspace);
        let padded = |activations: Address, matrix: MatrixShape| {
            let pairs = matrix.total_pairs();
            let wider = activations != 0 && matrix.inputs < pairs * PAIR;
            let (inputs, pairs) = (matrix.inputs as u32, pairs as u32);
            if wider {
                PaddedActivations { activations, inputs, pairs }
            } else {
                PaddedActivations::default()
            }
        };
        let projected = self.spec.projected;
        let arguments = BeginArguments {
            frame: self.frame,
            rows: workspace.rows,
            counters: self.counters,
            residual: workspace.residual,
            hidden: if projected { workspace.hidden } else { 0 },
            codec_sum: workspace.codec_sum,
            slots: self.slots as u32,
            hidden_size: self.spec.hidden_size as u32,
            talker_hidden_size: self.spec.talker_hidden_size as u32,
            pairs: if projected { shapes.projection.total_pairs() as u32 } else { 0 },
            padded: [
                padded(workspace.normed, shapes.query_key_value),
                padded(workspace.attended, shapes.output),
                padded(workspace.gated, shapes.down),
                padded(self.gated_low(), shapes.down),
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

    fn step(&self, pass: Pass, launches: &mut Vec<Launch>) {
        for (index, layer) in self.weights.layers.iter().enumerate() {
            self.layer(pass, index, layer, launches);
        }
        // The row that a stream ends with has its logits computed.
        let norm = NormArguments {
            first_column: (pass.columns - self.slots) as u32,
            ..self.norm(
                pass,
                self.weights.final_norm,
                Residual { from: self.workspace.attended_residual, ..self.taken_in(0) },
            )
        };
        let head = ProductArguments {
            weights: self.weights.heads[pass.codebook - 1],
            output: self.workspace.logits,
            ..ProductArguments::default()
        };
        self.normalised(self.shapes().head, norm, self.slots, head, launches);
        launches.push(self.sample(pass.codebook));
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
        let attention = self.attention_arguments(pass, index, layer);
        let mut output = self.residual_product(pass, layer.output, workspace.attended);
        if self.slots == 1 && attends_in_place(spec, self.float_type, self.shared_bytes_per_block) {
            (output.activations, output.attention) = (0, attention);
        } else {
            launches.push(self.attention(&attention));
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
            let arguments = NormRowsArguments {
                norm,
                normed: self.workspace.normed,
                pairs: matrix.total_pairs() as u32,
                reserved: 0,
            };
            launches.push(
                Launch::new(Kernel::NormRows(self.float_type), [columns, 1], &arguments)
                    .shared(norm_shared_bytes(self.spec)),
            );
        }
        launches.push(self.product(matrix, product));
    }

    fn product(&self, matrix: MatrixShape, arguments: ProductArguments) -> Launch {
        product_launch(self.spec, self.float_type, matrix, arguments)
    }

    fn attention_arguments(&self, pass: Pass, index: usize, layer: &LayerAddresses) -> AttentionArguments {
        let (spec, workspace) = (self.spec, &self.workspace);
        let cache = self.slots * spec.key_value_width() * spec.positions() * self.float_type.size() * index;
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
            first_position: pass.first_position as u32,
            rows: pass.rows_per_stream as u32,
            streams: self.slots as u32,
            pairs: self.shapes().output.total_pairs() as u32,
            epsilon: spec.rms_norm_epsilon,
            scale: 1.0 / (spec.head_size as f32).sqrt(),
        }
    }

    /// Attention by itself: a block a key head and stream, a warp a query.
    fn attention(&self, arguments: &AttentionArguments) -> Launch {
        let spec = self.spec;
        let queries = spec.query_heads / spec.key_value_heads;
        Launch {
            block: (queries * WARP) as u32,
            ..Launch::new(Kernel::Attention(self.float_type), [spec.key_value_heads, self.slots], arguments)
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
