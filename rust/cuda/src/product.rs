//! How a product is launched: which kernel, how many blocks, how much shared memory. It depends on the matrix and on where the
//! activations come from, never on the card: so do the order of the sums, and every bit of the result.

use overtone_core::spec::ModelSpec;
use overtone_core::tensor::FloatType;

use crate::arguments::ProductArguments;
use crate::kernels::Kernel;
use crate::layout::{MatrixShape, MatrixShapes, PAIR, TILE_COLUMNS};
use crate::plan::Launch;

/// Warps of a block, which share the inputs of a product.
const WARPS: usize = 8;
/// Pairs of steps that a warp holds at once (`FEW_PAIRS` and `MANY_PAIRS` of `kernels/product.cu`).
const FEW_PAIRS: usize = 4;
const MANY_PAIRS: usize = 6;
/// Tiles of columns that a block handles at once when its activations come from memory, in a 16-bit type.
const COLUMN_TILES: usize = 4;
/// Sums of a tile in shared memory (`TILE_SUMS` of `kernels/product.cuh`).
const TILE_SUMS: usize = TILE_COLUMNS * 20;
/// By how many elements a slot is longer in shared memory (`SLOT_PADDING` of `kernels/attention.cuh`).
const SLOT_PADDING: usize = 16;
/// Size of the heads for which warps of o attend (`ATTENDED_HEAD_SIZE` of `kernels/product.cuh`).
const ATTENDED_HEAD_SIZE: usize = 128;
/// A little more than half of the 228 KiB of a multiprocessor of compute capability 9.0.
const SPREADING_BYTES: usize = 116 * 1024;

/// Where a product finds its activations.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    /// In memory.
    Memory,
    /// In memory, in two parts.
    MemoryHighAndLow,
    /// Each block normalises the residual stream.
    Norm,
    /// Each warp attends.
    Attention,
}

impl Source {
    const fn of(arguments: &ProductArguments) -> Self {
        match arguments {
            ProductArguments { activations: 0, attention, .. } if attention.projected != 0 => Self::Attention,
            ProductArguments { activations: 0, .. } => Self::Norm,
            ProductArguments { activations_low: 0, .. } => Self::Memory,
            _ => Self::MemoryHighAndLow,
        }
    }
}

/// The kernel of a product, and the tiles of outputs that a block of it owns.
const fn kernel(matrix: MatrixShape, source: Source, few: bool, float_type: FloatType) -> (Kernel, usize) {
    // In float16 the deep kernels are those that read activations in two parts.
    let deep = match source {
        Source::MemoryHighAndLow => true,
        _ => is_deep(matrix) && !matrix.gated && !matches!(float_type, FloatType::Float16),
    };
    match source {
        Source::Norm if matrix.gated => (Kernel::ProductGatedNorm(float_type), 3),
        Source::Norm if is_wide(matrix) => (Kernel::ProductWideNorm(float_type), 2),
        Source::Norm => (Kernel::ProductNarrowNorm(float_type), 1),
        Source::Attention => (Kernel::ProductAttended(float_type), 1),
        _ if deep && few => (Kernel::ProductDeepFew(float_type), 1),
        _ if deep => (Kernel::ProductDeepMany(float_type), 1),
        _ if matrix.gated && few => (Kernel::ProductGatedFew(float_type), 2),
        _ if matrix.gated => (Kernel::ProductGatedMany(float_type), 2),
        _ if is_wide(matrix) && few => (Kernel::ProductWideFew(float_type), 2),
        _ if is_wide(matrix) => (Kernel::ProductWideMany(float_type), 2),
        _ if few => (Kernel::ProductNarrowFew(float_type), 1),
        _ => (Kernel::ProductNarrowMany(float_type), 1),
    }
}

/// A product of `matrix` in a working type; what `arguments` says of the matrix's extents is filled in here.
pub fn product_launch(
    spec: &ModelSpec,
    float_type: FloatType,
    matrix: MatrixShape,
    arguments: ProductArguments,
) -> Launch {
    let source = Source::of(&arguments);
    let few = arguments.columns as usize <= TILE_COLUMNS;
    let (kernel, tiles) = kernel(matrix, source, few, float_type);
    let arguments = ProductArguments {
        outputs: matrix.outputs as u32,
        row_tiles: matrix.row_tiles() as u32,
        pairs: matrix.pairs() as u32,
        splits: matrix.splits as u32,
        output_columns: arguments.columns,
        ..arguments
    };
    let pair_bytes = PAIR * TILE_COLUMNS * float_type.size();
    let sums = |column_tiles: usize| WARPS * tiles * column_tiles * TILE_SUMS * size_of::<f32>();
    let shared = match source {
        Source::Norm => matrix.total_pairs() * pair_bytes + norm_shared_bytes(spec) + sums(1),
        Source::Attention => attended_product_bytes(spec, float_type),
        _ if few || float_type == FloatType::Float32 => sums(1),
        // Activations on their way, then sums.
        _ => {
            let pairs = if matches!(kernel, Kernel::ProductDeepMany(_)) { MANY_PAIRS } else { FEW_PAIRS };
            let staged_tiles = (arguments.columns as usize).div_ceil(TILE_COLUMNS).min(COLUMN_TILES);
            sums(COLUMN_TILES).max(WARPS * staged_tiles * pairs * pair_bytes)
        }
    };
    let grid = [matrix.row_tiles().div_ceil(tiles), matrix.splits];
    Launch::new(kernel, grid, &arguments).shared(shared)
}

/// Shared memory of a block of `kernels/heads.cu`.
pub const fn heads_shared_bytes() -> usize {
    WARPS * TILE_SUMS * size_of::<f32>()
}

/// Shared memory of a block that normalises rows.
pub const fn norm_shared_bytes(spec: &ModelSpec) -> usize {
    (spec.hidden_size.next_multiple_of(4) + 2 * WARPS) * size_of::<f32>()
}

/// Shared memory of a warp that attends.
pub const fn attention_shared_bytes(spec: &ModelSpec, float_type: FloatType) -> usize {
    let slots = 2 * spec.positions() * (spec.head_size + SLOT_PADDING) * float_type.size();
    slots + (2 * spec.head_size + spec.positions().next_multiple_of(4)) * size_of::<f32>()
}

/// Whether the blocks of o can attend for one stream by themselves: when each warp's inputs are one whole head of the size
/// that the kernel is made for, and the card has the shared memory. Where they cannot, a kernel of its own attends, with the
/// same arithmetic.
pub const fn attends_in_place(
    spec: &ModelSpec,
    float_type: FloatType,
    shared_bytes_per_block: usize,
) -> bool {
    let matrix = MatrixShapes::new(spec).output;
    let warp_inputs = matrix.pairs().div_ceil(WARPS) * PAIR;
    let whole = warp_inputs == ATTENDED_HEAD_SIZE && matrix.inputs == matrix.splits * WARPS * warp_inputs;
    let shared = attended_product_bytes(spec, float_type);
    whole && spec.head_size == ATTENDED_HEAD_SIZE && shared <= shared_bytes_per_block
}

/// Shared memory of a block of o that attends: more than half of what a multiprocessor of compute capability 9.0 has, so that
/// the blocks spread over all of them and leave room on each for a block of the next kernel.
const fn attended_product_bytes(spec: &ModelSpec, float_type: FloatType) -> usize {
    let attended =
        MatrixShapes::new(spec).output.pairs().div_ceil(WARPS) * PAIR * TILE_COLUMNS * float_type.size();
    let sums = WARPS * TILE_SUMS * size_of::<f32>();
    let needed = WARPS * (attended + attention_shared_bytes(spec, float_type)) + sums;
    if needed > SPREADING_BYTES { needed } else { SPREADING_BYTES }
}

/// Whether two tiles a block still make blocks enough for a card, as of q, k and v.
const fn is_wide(matrix: MatrixShape) -> bool {
    matrix.row_tiles() >= 256
}

/// Whether a warp's share of the inputs is more than a narrow product holds at once.
const fn is_deep(matrix: MatrixShape) -> bool {
    matrix.pairs() > FEW_PAIRS * WARPS
}
