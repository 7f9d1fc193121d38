// Tiles of weights and of activations, as the lanes of a warp hold them.
//
// A product [outputs] x [columns] is made of tiles of 16 outputs by 8 columns; a column is a row of the batch. Along the
// inputs it advances in pairs of 16-wide steps. Weights are packed at load time so that a lane finds its share of a tile in
// 16-byte pieces, 512 bytes to a warp; activations are laid out in the same way by whoever writes them.
//
// Sixteen-bit types multiply on tensor cores. float32 multiplies by fused multiply-adds: lane/4 and lane/4 + 8 are its rows,
// 4 (lane%4) + {0 ... 3} its inputs of each step, for all columns; its four lanes are added at the end.

#pragma once

#include "float_types.cuh"

namespace overtone {

CONSTANT int WARP = 32;
/// Outputs of a tile.
CONSTANT int TILE_ROWS = 16;
/// Columns of a tile.
CONSTANT int TILE_COLUMNS = 8;
/// Inputs of a pair of steps.
CONSTANT int PAIR = 32;

template <typename T> struct Fragments;

/// bfloat16 and float16.
template <typename T> struct TensorCoreFragments {
    /// 16-byte pieces of a lane for a pair of steps.
    static constexpr int WEIGHT_PIECES = 2;
    /// Tiles of columns whose sums fit the registers beside the weights.
    static constexpr int COLUMN_TILES = 4;
    /// Sums of a lane for one tile.
    static constexpr int SUMS = 4;
    /// Bytes of a pair of steps of a tile of weights.
    static constexpr int WEIGHT_BYTES = TILE_ROWS * PAIR * 2;

    /// Position of a weight within its tile's pair of steps: `row` of the tile, `input` of the pair.
    static DEVICE int weight_index(int row, int input) {
        const int step = input / 16, in_step = input % 16;
        const int lane = row % 8 * 4 + in_step % 8 / 2, word = row / 8 + in_step / 8 * 2;
        return ((step * WARP + lane) * 4 + word) * 2 + in_step % 2;
    }

    /// Position of an activation among those of its tile of columns.
    static DEVICE int64_t activation_index(int column, int input) {
        const int in_pair = input % PAIR, in_step = in_pair % 16;
        const int lane = column % TILE_COLUMNS * 4 + in_step % 8 / 2, word = in_pair / 16 * 2 + in_step / 8;
        return ((static_cast<int64_t>(input / PAIR) * WARP + lane) * 4 + word) * 2 + in_step % 2;
    }

    /// Whether a lane finds its activations in one 16-byte piece, which can be copied to shared memory ahead of its use.
    static constexpr bool IN_PIECES = true;

    /// What a lane needs of a pair of steps of one tile of columns.
    struct Activations {
        uint4 words;
    };
    /// `pieces` are those of the pair: one for each lane.
    static DEVICE Activations load_activations(const void* pieces, int lane, int columns) {
        if (lane / 4 >= columns) return {make_uint4(0, 0, 0, 0)};
        return {static_cast<const uint4*>(pieces)[lane]};
    }

    static DEVICE void multiply_step(float (&sums)[SUMS], const WeightFragment& weights, uint32_t low, uint32_t high);

    /// Adds the products of a pair of steps.
    static DEVICE void multiply(float (&sums)[SUMS], const uint4 (&weights)[WEIGHT_PIECES],
                                const Activations& activations, int) {
        const uint4 words = activations.words;
        multiply_step(sums, {{weights[0].x, weights[0].y, weights[0].z, weights[0].w}}, words.x, words.y);
        multiply_step(sums, {{weights[1].x, weights[1].y, weights[1].z, weights[1].w}}, words.z, words.w);
    }

    /// The lane's sums for rows lane/4 (0, 1) and lane/4 + 8 (2, 3), columns 2 (lane%4) + {0, 1}.
    static DEVICE float4 finished(const float (&sums)[SUMS], int, int) {
        return make_float4(sums[0], sums[1], sums[2], sums[3]);
    }
};

template <> DEVICE void TensorCoreFragments<BFloat16>::multiply_step(float (&sums)[SUMS], const WeightFragment& weights,
                                                                     uint32_t low, uint32_t high) {
    multiply_bfloat16(sums, weights, low, high);
}
template <> DEVICE void TensorCoreFragments<Float16>::multiply_step(float (&sums)[SUMS], const WeightFragment& weights,
                                                                    uint32_t low, uint32_t high) {
    multiply_float16(sums, weights, low, high);
}

template <> struct Fragments<BFloat16> : TensorCoreFragments<BFloat16> {};
template <> struct Fragments<Float16> : TensorCoreFragments<Float16> {};

template <> struct Fragments<float> {
    static constexpr int WEIGHT_PIECES = 4;
    static constexpr int COLUMN_TILES = 1;
    static constexpr int SUMS = 2 * TILE_COLUMNS;
    static constexpr int WEIGHT_BYTES = TILE_ROWS * PAIR * 4;

    static DEVICE int weight_index(int row, int input) {
        const int step = input / 16, in_step = input % 16;
        return (((step * 2 + row / 8) * WARP) + row % 8 * 4 + in_step / 4) * 4 + in_step % 4;
    }

    static DEVICE int64_t activation_index(int column, int input) {
        return (static_cast<int64_t>(input / 4) * TILE_COLUMNS + column % TILE_COLUMNS) * 4 + input % 4;
    }

    static constexpr bool IN_PIECES = false;

    struct Activations {
        /// The lane's inputs of the pair, [2 steps][4 lanes][columns][4 inputs].
        const float4* inputs;
    };
    static DEVICE Activations load_activations(const void* pair, int lane, int) {
        return {static_cast<const float4*>(pair) + lane % 4 * TILE_COLUMNS};
    }

    static DEVICE void multiply(float (&sums)[SUMS], const uint4 (&weights)[WEIGHT_PIECES],
                                const Activations& activations, int columns) {
#pragma unroll
        for (int step = 0; step < 2; ++step) {
#pragma unroll
            for (int column = 0; column < TILE_COLUMNS; ++column) {
                if (column >= columns) break;
                const float4 input = activations.inputs[step * 4 * TILE_COLUMNS + column];
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const uint4 weight = weights[step * 2 + half];
                    float sum = sums[half * TILE_COLUMNS + column];
                    sum = fmaf(float_of(weight.x), input.x, sum);
                    sum = fmaf(float_of(weight.y), input.y, sum);
                    sum = fmaf(float_of(weight.z), input.z, sum);
                    sums[half * TILE_COLUMNS + column] = fmaf(float_of(weight.w), input.w, sum);
                }
            }
        }
    }

    static DEVICE float4 finished(const float (&sums)[SUMS], int lane, int columns) {
        float own[4] = {0, 0, 0, 0};
#pragma unroll
        for (int index = 0; index < SUMS; ++index) {
            if (index % TILE_COLUMNS >= columns) continue;
            float sum = sums[index];
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            const int half = index / TILE_COLUMNS, column = index % TILE_COLUMNS;
            if (column / 2 == lane % 4) own[half * 2 + column % 2] = sum;
        }
        return make_float4(own[0], own[1], own[2], own[3]);
    }
};

/// Elements of activations of one tile of columns, `pairs` pairs of steps wide.
DEVICE int64_t activation_tile_elements(int pairs) { return static_cast<int64_t>(pairs) * PAIR * TILE_COLUMNS; }

/// Two neighbours in memory.
template <typename T> struct alignas(2 * sizeof(T)) Neighbours {
    T first, second;
};

/// Stores the activations of `input`, which is even, and of the next one, rounded to T, where products look for them.
template <typename T>
DEVICE void store_activations(T* activations, int pairs, int column, int input, float value, float next) {
    T* const tile = activations + column / TILE_COLUMNS * activation_tile_elements(pairs);
    T* const place = tile + Fragments<T>::activation_index(column, input);
    *reinterpret_cast<Neighbours<T>*>(place) = {from_float<T>(value), from_float<T>(next)};
}

} // namespace overtone
