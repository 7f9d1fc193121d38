// What happens once, when a checkpoint is loaded: tensors as they are stored become what a frame reads.

#include "fragments.cuh"

namespace overtone {

// ---------------------------------------------------------------------------------------------------------------------
// Weights of a product

/// Which outputs of a packed matrix the rows of a tensor are.
enum RowPlacement : uint32_t {
    /// One after another, from `first_output`.
    PLACEMENT_STACKED = 0,
    /// The first eight rows of every tile.
    PLACEMENT_GATE = 1,
    /// The last eight rows of every tile.
    PLACEMENT_UP = 2,
};

struct PackArguments {
    uint64_t source; // [rows, inputs] row-major
    uint64_t packed; // of T: [row tiles][pairs] pieces, zeros where no weight goes
    uint32_t source_type;
    uint32_t rows;
    uint32_t inputs;
    uint32_t pairs;
    uint32_t first_output;
    uint32_t placement;
};

template <typename T> DEVICE void pack(const PackArguments& arguments) {
    const int64_t elements = static_cast<int64_t>(arguments.rows) * arguments.inputs;
    T* const packed = reinterpret_cast<T*>(arguments.packed);
    for (int64_t element = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; element < elements;
         element += static_cast<int64_t>(gridDim.x) * blockDim.x) {
        const int row = static_cast<int>(element / arguments.inputs),
                  input = static_cast<int>(element % arguments.inputs);
        int tile, tile_row;
        if (arguments.placement == PLACEMENT_STACKED) {
            tile = (arguments.first_output + row) / TILE_ROWS;
            tile_row = (arguments.first_output + row) % TILE_ROWS;
        } else {
            tile = row / (TILE_ROWS / 2);
            tile_row = row % (TILE_ROWS / 2) + (arguments.placement == PLACEMENT_UP ? TILE_ROWS / 2 : 0);
        }
        const int64_t piece = static_cast<int64_t>(tile) * arguments.pairs + input / PAIR;
        const float weight =
            load_float(reinterpret_cast<const void*>(arguments.source), element, arguments.source_type);
        packed[piece * TILE_ROWS * PAIR + Fragments<T>::weight_index(tile_row, input % PAIR)] = from_float<T>(weight);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Tables that pass through the projection

struct TableRowsArguments {
    uint64_t table; // [rows, width]
    uint64_t activations; // of T, `pairs` wide: a column for each row
    uint32_t table_type;
    uint32_t first_row;
    uint32_t rows;
    uint32_t width;
    uint32_t pairs;
    uint32_t reserved;
};

/// Rows of a table as the columns of a product, one block a row.
template <typename T> DEVICE void table_rows(const TableRowsArguments& arguments) {
    const uint32_t width = arguments.width;
    const void* const table = reinterpret_cast<const void*>(arguments.table);
    const int64_t row = (static_cast<int64_t>(arguments.first_row) + blockIdx.x) * width;
    const auto element = [&](uint32_t index) {
        return index < width ? load_float(table, row + index, arguments.table_type) : 0.0f;
    };
    T* const activations = reinterpret_cast<T*>(arguments.activations);
    for (uint32_t index = 2 * threadIdx.x; index < arguments.pairs * PAIR; index += 2 * blockDim.x)
        store_activations<T>(activations, arguments.pairs, blockIdx.x, index, element(index), element(index + 1));
}

// ---------------------------------------------------------------------------------------------------------------------
// Conversion

struct ConvertArguments {
    uint64_t source;
    uint64_t target;
    uint64_t elements;
    uint32_t source_type;
    uint32_t target_type;
};

DEVICE void convert(const ConvertArguments& arguments) {
    const int64_t elements = static_cast<int64_t>(arguments.elements);
    for (int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; index < elements;
         index += static_cast<int64_t>(gridDim.x) * blockDim.x) {
        const float value = load_float(reinterpret_cast<const void*>(arguments.source), index, arguments.source_type);
        store_float(reinterpret_cast<void*>(arguments.target), index, arguments.target_type, value);
    }
}

} // namespace overtone

using overtone::BFloat16;
using overtone::ConvertArguments;
using overtone::Float16;
using overtone::PackArguments;
using overtone::TableRowsArguments;

KERNEL(pack_f32, PackArguments, 256, 2) { overtone::pack<float>(args); }
KERNEL(pack_f16, PackArguments, 256, 2) { overtone::pack<Float16>(args); }
KERNEL(pack_bf16, PackArguments, 256, 2) { overtone::pack<BFloat16>(args); }
KERNEL(table_rows_f32, TableRowsArguments, 256, 2) { overtone::table_rows<float>(args); }
KERNEL(table_rows_f16, TableRowsArguments, 256, 2) { overtone::table_rows<Float16>(args); }
KERNEL(table_rows_bf16, TableRowsArguments, 256, 2) { overtone::table_rows<BFloat16>(args); }
KERNEL(convert, ConvertArguments, 256, 2) { overtone::convert(args); }
