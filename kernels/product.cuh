// The product of a weight matrix and the columns of a batch, and what is done with it.
//
//     sums[output, column] = sum over inputs of weight[output, input] * activation[input, column]
//
// A block owns TILES tiles of 16 outputs; its eight warps share the inputs and add up their parts at the end, always in the
// same order. Where a matrix has too few outputs to fill a card, its inputs are split between blocks too, and each part is
// stored by itself for the next kernel to add. All of this depends on the matrix alone: a column's result is the same in
// every batch, on every card.
//
// The weights are on their way to registers before the block waits for the kernel before it, whose end they hide.

#pragma once

#include "attention.cuh"
#include "norm.cuh"

namespace overtone {

/// Threads of a block; eight warps.
CONSTANT int PRODUCT_THREADS = 256;
CONSTANT int PRODUCT_WARPS = PRODUCT_THREADS / WARP;
static_assert(PRODUCT_THREADS == NORM_THREADS,
              "a block that normalises its own activations does so as the norm kernel");
/// Distance between the columns of a tile of sums in shared memory; 16 and some, so that a warp's stores meet no bank twice.
CONSTANT int SUMS_STRIDE = TILE_ROWS + 4;
CONSTANT int TILE_SUMS = TILE_COLUMNS * SUMS_STRIDE;

struct ProductArguments {
    uint64_t weights; // packed: [row_tiles][splits * pairs] pieces
    uint64_t activations; // T, splits * pairs wide; 0: made by the norm or the attention below
    uint64_t activations_low; // what rounding to T cost the activations, in the same layout; 0: nothing is added
    NormArguments norm;
    AttentionArguments attention; // where each warp attends for itself
    uint64_t output; // [splits][output_columns][outputs] float32, or activations of the next product
    uint64_t output_low; // as `activations_low`, for the next product
    uint64_t bias; // [outputs] float32, added to the sums; 0: none
    uint32_t outputs;
    uint32_t row_tiles;
    uint32_t pairs; // of one split
    uint32_t splits;
    uint32_t columns;
    uint32_t output_columns;
    uint32_t output_pairs; // width of the next product's activations
    uint32_t reserved;
};

/// Size of the heads for which warps attend by themselves.
CONSTANT int ATTENDED_HEAD_SIZE = 128;

/// Where the activations come from.
enum class Source {
    /// Normalised by each block itself, into shared memory.
    Norm,
    /// Left in memory by the kernel before.
    Memory,
    /// The same, in two parts whose sum is wanted.
    MemoryHighAndLow,
    /// Attended values of one stream: the inputs of each warp are one head of 128, for which it attends itself.
    Attention,
};

/// What becomes of the sums.
enum class Sink {
    /// float32, with the bias.
    Sums,
    /// Tiles hold eight gates and their eight ups: silu(gate) * up, as the next product's activations.
    Gated,
    /// The same in two parts, value and rest.
    GatedHighAndLow,
};

/// How many columns a kernel is made for.
enum class Columns {
    /// One tile: what a lane needs of the activations fits its registers.
    Few,
    /// As many tiles at once as there are registers for their sums; activations pass through shared memory.
    Many,
};

/// g / (1 + e^-g).
DEVICE float silu(float gate) { return gate / (1.0f + exponential(-gate)); }

template <typename T, int TILES, int PRELOADED, Source SOURCE, Sink SINK,
          Columns COLUMNS = Columns::Few> struct Product {
    using Tile = Fragments<T>;
    static constexpr bool FROM_MEMORY = SOURCE == Source::Memory || SOURCE == Source::MemoryHighAndLow;
    static constexpr int COLUMN_TILES = COLUMNS == Columns::Many ? Tile::COLUMN_TILES : 1;
    /// Whether activations pass through shared memory on their way from the memory.
    static constexpr bool STAGED = COLUMNS == Columns::Many && Tile::IN_PIECES;

    const ProductArguments& arguments;
    const int warp, lane;
    const int first_pair, end_pair; // of this warp, counted within the split
    uint4 weights[TILES][PRELOADED][Tile::WEIGHT_PIECES];

    DEVICE explicit Product(const ProductArguments& args)
        : arguments(args), warp(threadIdx.x / WARP), lane(threadIdx.x % WARP),
          first_pair(min(warp * pairs_per_warp(args), static_cast<int>(args.pairs))),
          end_pair(min(first_pair + pairs_per_warp(args), static_cast<int>(args.pairs))) {}

    static DEVICE int pairs_per_warp(const ProductArguments& args) {
        return (args.pairs + PRODUCT_WARPS - 1) / PRODUCT_WARPS;
    }
    static DEVICE int min(int left, int right) { return left < right ? left : right; }
    DEVICE int total_pairs() const { return arguments.splits * arguments.pairs; }
    DEVICE int row_tile(int tile) const { return blockIdx.x * TILES + tile; }

    DEVICE void load_weights(int from_pair) {
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
            const int64_t matrix_pair =
                static_cast<int64_t>(row_tile(tile)) * total_pairs() + blockIdx.y * arguments.pairs;
            const char* const pieces =
                reinterpret_cast<const char*>(arguments.weights) + matrix_pair * Tile::WEIGHT_BYTES;
#pragma unroll
            for (int index = 0; index < PRELOADED; ++index) {
                const int pair = from_pair + index;
                const bool inside = pair < end_pair && row_tile(tile) < static_cast<int>(arguments.row_tiles);
#pragma unroll
                for (int piece = 0; piece < Tile::WEIGHT_PIECES; ++piece) {
                    const int64_t place = (static_cast<int64_t>(pair) * Tile::WEIGHT_PIECES + piece) * WARP + lane;
                    weights[tile][index][piece] = inside ? load_streaming(pieces + place * 16) : make_uint4(0, 0, 0, 0);
                }
            }
        }
    }

    /// Adds this warp's share of the products of a chunk of columns. `staging` is the warp's own shared memory.
    DEVICE void accumulate(const T* activations, const T* low, int columns, uint4* staging,
                           float (&sums)[TILES][COLUMN_TILES][Tile::SUMS], bool loaded) {
#pragma unroll 1
        for (int from_pair = first_pair; from_pair < end_pair; from_pair += PRELOADED) {
            if (!(loaded && from_pair == first_pair)) load_weights(from_pair);
            constexpr int PARTS = SOURCE == Source::MemoryHighAndLow ? 2 : 1;
#pragma unroll 1
            for (int part = 0; part < PARTS; ++part)
                add_pairs(part == 0 ? activations : low, columns, from_pair, staging, sums);
        }
    }

    /// Where a pair of steps of a tile of columns lies.
    DEVICE const T* pair_of(const T* activations, int column_tile, int pair) const {
        // A warp that attends has its own pairs alone.
        if constexpr (SOURCE == Source::Attention) return activations + (pair - first_pair) * PAIR * TILE_COLUMNS;
        const int64_t tile = column_tile * activation_tile_elements(total_pairs());
        return activations + tile + static_cast<int64_t>(blockIdx.y * arguments.pairs + pair) * PAIR * TILE_COLUMNS;
    }

    /// Adds the products of the weights at hand.
    DEVICE void add_pairs(const T* activations, int columns, int from_pair, uint4* staging,
                          float (&sums)[TILES][COLUMN_TILES][Tile::SUMS]) {
        if constexpr (STAGED) {
            // A lane copies what it will need itself, all of it before it waits.
#pragma unroll
            for (int index = 0; index < PRELOADED; ++index) {
#pragma unroll
                for (int tile = 0; tile < COLUMN_TILES; ++tile) {
                    const bool needed = from_pair + index < end_pair && tile * TILE_COLUMNS + lane / 4 < columns;
                    if (!needed) continue;
                    const T* const pair = pair_of(activations, tile, from_pair + index);
                    copy_to_shared(staging + (tile * PRELOADED + index) * WARP + lane,
                                   reinterpret_cast<const uint4*>(pair) + lane);
                }
            }
            wait_for_copies();
        }
        if constexpr (COLUMN_TILES == 1 && !FROM_MEMORY) {
#pragma unroll
            for (int index = 0; index < PRELOADED; ++index) {
                if (from_pair + index >= end_pair) break;
                multiply(Tile::load_activations(pair_of(activations, 0, from_pair + index), lane, columns), index, 0,
                         columns, sums);
            }
        } else if constexpr (COLUMN_TILES == 1) {
            // All are asked for before the first is used: each takes long.
            typename Tile::Activations operands[PRELOADED];
#pragma unroll
            for (int index = 0; index < PRELOADED; ++index)
                operands[index] = Tile::load_activations(pair_of(activations, 0, from_pair + index), lane,
                                                         from_pair + index < end_pair ? columns : 0);
#pragma unroll
            for (int index = 0; index < PRELOADED; ++index) {
                if (from_pair + index < end_pair) multiply(operands[index], index, 0, columns, sums);
            }
        } else {
#pragma unroll
            for (int index = 0; index < PRELOADED; ++index) {
                if (from_pair + index >= end_pair) break;
#pragma unroll
                for (int column_tile = 0; column_tile < COLUMN_TILES; ++column_tile) {
                    const int left = columns - column_tile * TILE_COLUMNS;
                    if (left <= 0) break;
                    const uint4* const pieces = staging + (column_tile * PRELOADED + index) * WARP;
                    multiply(Tile::load_activations(pieces, lane, left), index, column_tile, left, sums);
                }
            }
        }
    }

    DEVICE void multiply(const typename Tile::Activations& operand, int index, int column_tile, int columns,
                         float (&sums)[TILES][COLUMN_TILES][Tile::SUMS]) const {
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile)
            Tile::multiply(sums[tile][column_tile], weights[tile][index], operand, columns);
    }

    /// Leaves the warp's sums where all can read them: [warps][tiles][column tiles][columns][rows].
    DEVICE void share(float* shared, const float (&sums)[TILES][COLUMN_TILES][Tile::SUMS], int columns) const {
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
#pragma unroll
            for (int column_tile = 0; column_tile < COLUMN_TILES; ++column_tile) {
                if (column_tile * TILE_COLUMNS >= columns) break;
                const float4 own = Tile::finished(sums[tile][column_tile], lane, columns - column_tile * TILE_COLUMNS);
                const int column = 2 * (lane % 4), row = lane / 4;
                float* const place = shared + ((warp * TILES + tile) * COLUMN_TILES + column_tile) * TILE_SUMS +
                                     column * SUMS_STRIDE + row;
                if (column_tile * TILE_COLUMNS + column >= columns) continue;
                place[0] = own.x;
                place[SUMS_STRIDE] = own.y;
                place[8] = own.z;
                place[SUMS_STRIDE + 8] = own.w;
            }
        }
    }

    /// The sum over all warps.
    static DEVICE float total(const float* shared, int tile, int column, int row) {
        const float* const parts = shared + (tile * COLUMN_TILES + column / TILE_COLUMNS) * TILE_SUMS +
                                   column % TILE_COLUMNS * SUMS_STRIDE + row;
        return sum_of_eight(parts, TILES * COLUMN_TILES * TILE_SUMS);
    }

    DEVICE void store_sums(const float* shared, int first_column, int columns) const {
        float* const output = reinterpret_cast<float*>(arguments.output);
        const float* const bias = reinterpret_cast<const float*>(arguments.bias);
#pragma unroll 1
        for (int index = threadIdx.x; index < columns * TILES * TILE_ROWS; index += PRODUCT_THREADS) {
            const int row = index % TILE_ROWS, tile = index / TILE_ROWS % TILES, column = index / (TILE_ROWS * TILES);
            const uint32_t number = row_tile(tile) * TILE_ROWS + row;
            if (number >= arguments.outputs) continue;
            float sum = total(shared, tile, column, row);
            if (bias != nullptr) sum += bias[number];
            const int64_t output_column =
                static_cast<int64_t>(blockIdx.y) * arguments.output_columns + first_column + column;
            output[output_column * arguments.outputs + number] = sum;
        }
    }

    DEVICE void store_gated(const float* shared, int first_column, int columns) const {
        constexpr int CHANNELS = TILE_ROWS / 2;
        T* const output = reinterpret_cast<T*>(arguments.output);
        T* const low = reinterpret_cast<T*>(arguments.output_low);
#pragma unroll 1
        for (int index = threadIdx.x; index < columns * TILES * CHANNELS / 2; index += PRODUCT_THREADS) {
            const int channel = index % (CHANNELS / 2) * 2, tile = index / (CHANNELS / 2) % TILES;
            const int column = index / (CHANNELS / 2 * TILES);
            const uint32_t number = row_tile(tile) * CHANNELS + channel;
            if (number >= arguments.outputs) continue;
            float value[2];
#pragma unroll
            for (int next = 0; next < 2; ++next) {
                const float gate = total(shared, tile, column, channel + next);
                value[next] = silu(gate) * total(shared, tile, column, channel + next + CHANNELS);
            }
            const int pairs = arguments.output_pairs;
            store_activations<T>(output, pairs, first_column + column, number, value[0], value[1]);
            if constexpr (SINK == Sink::GatedHighAndLow) {
                const float rest_0 = value[0] - to_float(from_float<T>(value[0]));
                const float rest_1 = value[1] - to_float(from_float<T>(value[1]));
                store_activations<T>(low, pairs, first_column + column, number, rest_0, rest_1);
            }
        }
    }

    /// Activations of at most one tile of columns, in shared memory.
    DEVICE const T* normalise(unsigned char* memory) const {
        T* const normed = reinterpret_cast<T*>(memory);
        const int pairs = total_pairs();
        float* const scratch = reinterpret_cast<float*>(normed + activation_tile_elements(pairs));
        const NormArguments& norm = arguments.norm;
        // Inputs beyond the width meet weights that are zero, and must be numbers.
        for (int input = norm.width / 2 * 2 + threadIdx.x * 2; input < pairs * PAIR; input += PRODUCT_THREADS * 2)
            for (uint32_t column = 0; column < arguments.columns; ++column)
                store_activations<T>(normed, pairs, column, input, 0.0f, 0.0f);
        const NormWeight weight(norm);
        wait_for_earlier_kernels();
        const bool keep = norm.residual_out != 0 && blockIdx.x == 0;
        for (uint32_t column = 0; column < arguments.columns; ++column)
            norm_row(norm, weight, column, keep, scratch, [&](uint32_t input, float value, float next) {
                store_activations<T>(normed, pairs, column, input, value, next);
            });
        __syncthreads();
        return normed;
    }

    /// The attended values of this warp's head, in its own part of shared memory.
    DEVICE const T* attend(unsigned char* memory) const {
        const AttentionArguments& attention = arguments.attention;
        const int warp_pairs = pairs_per_warp(arguments), query_head = blockIdx.y * arguments.pairs / warp_pairs + warp;
        unsigned char* const own = memory + warp * attention_bytes();
        T* const attended = reinterpret_cast<T*>(own);
        Attention<T, ATTENDED_HEAD_SIZE> head(attention, query_head, 0,
                                              own + activation_tile_elements(warp_pairs) * sizeof(T));
        head.read_ahead();
        wait_for_earlier_kernels();
        const bool in_cache = blockIdx.x == 0 && head.keeps_cache();
        for (int row = 0; row < static_cast<int>(attention.rows); ++row)
            head.attend(row, in_cache, [&](int element, float value, float next) {
                store_activations<T>(attended, warp_pairs, row, element, value, next);
            });
        return attended;
    }

    /// Bytes of shared memory of a warp that attends (mirrored in rust/cuda/src/product.rs).
    DEVICE int attention_bytes() const {
        return activation_tile_elements(pairs_per_warp(arguments)) * static_cast<int>(sizeof(T)) +
               Attention<T>::shared_bytes(arguments.attention);
    }

    DEVICE void run() {
        SHARED(unsigned char, memory);
        load_weights(first_pair);
        let_next_kernel_start();
        const T* activations;
        float* shared;
        if constexpr (SOURCE == Source::Norm) {
            activations = normalise(memory);
            const int before =
                activation_tile_elements(total_pairs()) * sizeof(T) + norm_scratch(arguments.norm.width) * 4;
            shared = reinterpret_cast<float*>(memory + before);
        } else if constexpr (SOURCE == Source::Attention) {
            activations = attend(memory);
            shared = reinterpret_cast<float*>(memory + PRODUCT_WARPS * attention_bytes());
        } else {
            wait_for_earlier_kernels();
            activations = reinterpret_cast<const T*>(arguments.activations);
            shared = reinterpret_cast<float*>(memory);
        }
        // Staging and sums take turns in the same memory. A warp's share of the staging is as large as the tiles that are
        // there.
        const int staged_tiles = min((arguments.columns + TILE_COLUMNS - 1) / TILE_COLUMNS, COLUMN_TILES);
        uint4* const staging = reinterpret_cast<uint4*>(shared) + warp * staged_tiles * PRELOADED * WARP;
        const T* low = reinterpret_cast<const T*>(arguments.activations_low);
        constexpr int CHUNK = COLUMN_TILES * TILE_COLUMNS;
        const int64_t chunk_elements = COLUMN_TILES * activation_tile_elements(total_pairs());
        const bool all_loaded = end_pair - first_pair <= PRELOADED;
#pragma unroll 1
        for (int first_column = 0; first_column < static_cast<int>(arguments.columns); first_column += CHUNK) {
            const int columns = min(arguments.columns - first_column, CHUNK);
            float sums[TILES][COLUMN_TILES][Tile::SUMS] = {};
            if (STAGED && first_column > 0) __syncthreads();
            accumulate(activations, low, columns, staging, sums, first_column == 0 || all_loaded);
            if (STAGED || first_column > 0) __syncthreads();
            share(shared, sums, columns);
            __syncthreads();
            if constexpr (SINK == Sink::Sums) store_sums(shared, first_column, columns);
            else store_gated(shared, first_column, columns);
            activations += chunk_elements;
            low += chunk_elements;
        }
    }
};

} // namespace overtone
