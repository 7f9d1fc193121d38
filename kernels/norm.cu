// The norm by itself, one block a row: for batches whose rows are too many for every block of a product to normalise.

#include "norm.cuh"

namespace overtone {

struct NormRowsArguments {
    NormArguments norm;
    uint64_t normed; // activations of T, `pairs` pairs wide
    uint32_t pairs;
    uint32_t streams; // not 0: columns are rows of rounds, and go to where the heads look for them
};

/// Column of a row's activations: its own, or of a round's row r of stream b column r of the stream's own tile.
DEVICE uint32_t column_of(const NormRowsArguments& arguments, uint32_t column) {
    if (arguments.streams == 0) return column;
    return column % arguments.streams * TILE_COLUMNS + column / arguments.streams;
}

template <typename T> DEVICE void norm_rows(const NormRowsArguments& arguments) {
    SHARED(float, scratch);
    const NormWeight weight(arguments.norm);
    let_next_kernel_start();
    wait_for_earlier_kernels();
    T* const normed = reinterpret_cast<T*>(arguments.normed);
    const uint32_t column = column_of(arguments, blockIdx.x);
    norm_row(arguments.norm, weight, blockIdx.x, arguments.norm.residual_out != 0, scratch,
             [&](uint32_t input, float value, float next) {
                 store_activations<T>(normed, arguments.pairs, column, input, value, next);
             });
}

} // namespace overtone

using overtone::NormRowsArguments;

KERNEL(norm_rows_f32, NormRowsArguments, 256, 4) { overtone::norm_rows<float>(args); }
KERNEL(norm_rows_f16, NormRowsArguments, 256, 4) { overtone::norm_rows<overtone::Float16>(args); }
KERNEL(norm_rows_bf16, NormRowsArguments, 256, 4) { overtone::norm_rows<overtone::BFloat16>(args); }
