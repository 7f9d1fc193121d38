// Attention of one stream over its own KV slots, one block a key head: normalise, rotate, store, attend.
//
//     q, k <- rope(rmsnorm(q)), rope(rmsnorm(k));   out = softmax(q k / sqrt(D)) v
//
// Positions are the slots: a frame starts empty and has at most R + 1 of them, so all keys and values of a head fit shared
// memory and are read once. Keys and values are rounded to T, as the reference's cache holds them; the rest is float32.
// Slots at and beyond the row's own position are not looked at.
//
// The slots that earlier steps filled are read before the kernel waits for the one before it: between them lies a kernel
// that lets the next start only after it has waited (sampling.cu), so they are complete.

#include "fragments.cuh"
#include "math.cuh"
#include "reduce.cuh"

namespace overtone {

struct AttentionArguments {
    uint64_t projected; // [rows * streams, (Nq + 2 Nkv) * D] float32: q, k, v; row r of stream b at r * streams + b
    uint64_t query_norm; // [D] float32
    uint64_t key_norm; // [D] float32
    uint64_t rotary; // [positions][D / 2] float2: cosine, sine
    uint64_t keys; // this layer's [streams][Nkv][positions][D] of T
    uint64_t values; // likewise
    uint64_t attended; // activations of T, `pairs` wide, inputs Nq * D
    uint32_t query_heads;
    uint32_t key_value_heads;
    uint32_t head_size; // a multiple of 8, at most 128
    uint32_t positions; // slots of a head
    uint32_t first_position; // of the first row
    uint32_t rows; // of each stream, at consecutive positions
    uint32_t streams;
    uint32_t pairs;
    float epsilon;
    float scale; // 1 / sqrt(D)
};

/// Elements by which a key or value row is longer in shared memory: rows then start in different banks.
CONSTANT int ROW_PADDING = 8;
/// The largest head.
CONSTANT int MOST_HEAD_SIZE = 128;
/// Elements of a head that a lane holds: lane, lane + 32, ...
CONSTANT int LANE_VALUES = MOST_HEAD_SIZE / WARP;

/// One block's shared memory, carved: sizes are mirrored in rust/cuda/src/plan.rs.
struct AttentionShared {
    float* keys; // [positions][D + ROW_PADDING]
    float* values; // [positions][D + ROW_PADDING]
    float* vectors; // [queries per key + 1][D], a row's own queries and key, normalised
    float* weights; // [queries per key][positions]
};

DEVICE AttentionShared carve(float* memory, const AttentionArguments& arguments) {
    const int queries = arguments.query_heads / arguments.key_value_heads;
    const int slots = arguments.positions * (arguments.head_size + ROW_PADDING);
    float* const vectors = memory + 2 * slots;
    return {memory, memory + slots, vectors, vectors + (queries + 1) * arguments.head_size};
}

/// Sixteen bytes of a cache.
template <typename T> union CachePiece {
    static constexpr int VALUES = 16 / sizeof(T);
    uint4 words;
    T values[VALUES];
};

template <typename T> struct Attention {
    const AttentionArguments& arguments;
    AttentionShared shared;
    const int warp, lane, size, stride, queries, key_head, stream;
    // What the warp's head is multiplied with, read ahead of the head.
    float norm[LANE_VALUES];
    float2 turns[LANE_VALUES]; // cosine and sine

    DEVICE Attention(const AttentionArguments& args, float* memory)
        : arguments(args), shared(carve(memory, args)), warp(threadIdx.x / WARP), lane(threadIdx.x % WARP),
          size(args.head_size), stride(args.head_size + ROW_PADDING), queries(args.query_heads / args.key_value_heads),
          key_head(blockIdx.x), stream(blockIdx.y) {}

    /// Slot `position` of this head in a cache.
    DEVICE T* slot(uint64_t cache, int position) const {
        const int64_t head = static_cast<int64_t>(stream) * arguments.key_value_heads + key_head;
        return reinterpret_cast<T*>(cache) + (head * arguments.positions + position) * size;
    }

    /// Reads what earlier steps left: a warp a slot, half of its lanes for the key and half for the value.
    DEVICE void load_earlier() const {
        using Piece = CachePiece<T>;
        const int pieces = size / Piece::VALUES, warps = blockDim.x / WARP;
#pragma unroll 4
        for (int position = warp; position < static_cast<int>(arguments.first_position); position += warps) {
            for (int number = lane; number < 2 * pieces; number += WARP) {
                const bool is_key = number < pieces;
                const int first = (is_key ? number : number - pieces) * Piece::VALUES;
                Piece piece;
                piece.words = *reinterpret_cast<const uint4*>(slot(is_key ? arguments.keys : arguments.values, position) + first);
                float* const to = (is_key ? shared.keys : shared.values) + position * stride + first;
#pragma unroll
                for (int index = 0; index < Piece::VALUES; ++index) to[index] = to_float(piece.values[index]);
            }
        }
    }

    /// Reads the constants of a row's heads.
    DEVICE void load_constants(int row) {
        if (warp > queries) return;
        const uint64_t weights = warp < queries ? arguments.query_norm : arguments.key_norm;
        const int half = size / 2, position = arguments.first_position + row;
        const float2* const rotary = reinterpret_cast<const float2*>(arguments.rotary) + position * half;
#pragma unroll
        for (int index = 0; index < LANE_VALUES; ++index) {
            const int element = lane + index * WARP;
            if (element >= size) break;
            norm[index] = reinterpret_cast<const float*>(weights)[element];
            turns[index] = rotary[element < half ? element : element - half];
        }
    }

    /// Normalises and rotates a head: from memory into shared memory. The first half is paired with the second half.
    DEVICE void prepare_head(const float* head, float* to) const {
        float values[LANE_VALUES];
        float squares = 0.0f;
#pragma unroll
        for (int index = 0; index < LANE_VALUES; ++index) {
            const int element = lane + index * WARP;
            values[index] = element < size ? head[element] : 0.0f;
        }
#pragma unroll
        for (int index = 0; index < LANE_VALUES; ++index) squares = fmaf(values[index], values[index], squares);
        squares = warp_sum(squares);
        const float scale = 1.0f / sqrtf(squares / static_cast<float>(size) + arguments.epsilon);
#pragma unroll
        for (int index = 0; index < LANE_VALUES; ++index) {
            const int element = lane + index * WARP;
            if (element >= size) break;
            values[index] = values[index] * scale * norm[index];
            to[element] = values[index];
        }
        __syncwarp();
        const int half = size / 2;
        float rotated[LANE_VALUES];
#pragma unroll
        for (int index = 0; index < LANE_VALUES; ++index) {
            const int element = lane + index * WARP;
            if (element >= size) break;
            const float partner = element < half ? -to[element + half] : to[element - half];
            rotated[index] = values[index] * turns[index].x + partner * turns[index].y;
        }
        __syncwarp();
#pragma unroll
        for (int index = 0; index < LANE_VALUES; ++index) {
            const int element = lane + index * WARP;
            if (element < size) to[element] = rotated[index];
        }
        __syncwarp();
    }

    /// Takes in one row: each query and the key by a warp of its own, the value by another.
    DEVICE void take_in(int row) const {
        const int position = arguments.first_position + row, width = (arguments.query_heads + 2 * arguments.key_value_heads) * size;
        const float* const projected =
            reinterpret_cast<const float*>(arguments.projected) + (static_cast<int64_t>(row) * arguments.streams + stream) * width;
        const float* const keys = projected + arguments.query_heads * size;
        const float* const values = keys + arguments.key_value_heads * size;
        if (warp < queries) {
            prepare_head(projected + (key_head * queries + warp) * size, shared.vectors + warp * size);
        } else if (warp == queries) {
            float* const key = shared.vectors + queries * size;
            prepare_head(keys + key_head * size, key);
            store(key, arguments.keys, shared.keys, position);
        } else {
            store(values + key_head * size, arguments.values, shared.values, position);
        }
    }

    DEVICE void store(const float* from, uint64_t cache, float* slots, int position) const {
        for (int index = lane; index < size; index += WARP) {
            const T rounded = from_float<T>(from[index]);
            slot(cache, position)[index] = rounded;
            slots[position * stride + index] = to_float(rounded);
        }
    }

    /// Scores of one query against all slots up to `position`, made into weights that sum to one. Two lanes share a slot.
    DEVICE void weigh(const float* query, float* weights, int position) const {
        const int half = lane % 2, quarters = size / 8;
        float largest = -INFINITY;
        for (int first_slot = 0; first_slot <= position; first_slot += WARP / 2) {
            const int slot = first_slot + lane / 2;
            const float4* const key = reinterpret_cast<const float4*>(shared.keys + slot * stride) + half;
            const float4* const own = reinterpret_cast<const float4*>(query) + half;
            float4 sums = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (slot <= position) {
#pragma unroll 4
                for (int index = 0; index < quarters; ++index) {
                    const float4 left = own[2 * index], right = key[2 * index];
                    sums.x = fmaf(left.x, right.x, sums.x);
                    sums.y = fmaf(left.y, right.y, sums.y);
                    sums.z = fmaf(left.z, right.z, sums.z);
                    sums.w = fmaf(left.w, right.w, sums.w);
                }
            }
            float score = (sums.x + sums.y) + (sums.z + sums.w);
            score = (score + __shfl_xor_sync(ALL_LANES, score, 1)) * arguments.scale;
            if (slot > position) continue;
            if (half == 0) weights[slot] = score;
            largest = score > largest ? score : largest;
        }
        largest = warp_max(largest);
        __syncwarp();
        float total = 0.0f;
        for (int slot = lane; slot <= position; slot += WARP) {
            weights[slot] = exponential(weights[slot] - largest);
            total += weights[slot];
        }
        total = warp_sum(total);
        for (int slot = lane; slot <= position; slot += WARP) weights[slot] = weights[slot] / total;
        __syncwarp();
    }

    DEVICE void attend(int row) const {
        const int position = arguments.first_position + row, column = row * arguments.streams + stream;
        float* const weights = shared.weights + warp * arguments.positions;
        weigh(shared.vectors + warp * size, weights, position);
        const int first_input = (key_head * queries + warp) * size;
        T* const attended = reinterpret_cast<T*>(arguments.attended);
        for (int index = 4 * lane; index < size; index += 4 * WARP) {
            float4 sums = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 4
            for (int slot = 0; slot <= position; ++slot) {
                const float4 value = *reinterpret_cast<const float4*>(shared.values + slot * stride + index);
                const float weight = weights[slot];
                sums.x = fmaf(weight, value.x, sums.x);
                sums.y = fmaf(weight, value.y, sums.y);
                sums.z = fmaf(weight, value.z, sums.z);
                sums.w = fmaf(weight, value.w, sums.w);
            }
            store_activations<T>(attended, arguments.pairs, column, first_input + index, sums.x, sums.y);
            store_activations<T>(attended, arguments.pairs, column, first_input + index + 2, sums.z, sums.w);
        }
    }

    DEVICE void run() {
        load_constants(0);
        load_earlier();
        let_next_kernel_start();
        wait_for_earlier_kernels();
        for (int row = 0; row < static_cast<int>(arguments.rows); ++row) {
            if (row > 0) load_constants(row);
            take_in(row);
            __syncthreads();
            if (warp < queries) attend(row);
            __syncthreads();
        }
    }
};

template <typename T> DEVICE void attention(const AttentionArguments& arguments) {
    SHARED(float, memory);
    Attention<T>(arguments, memory).run();
}

} // namespace overtone

using overtone::AttentionArguments;

KERNEL(attention_f32, AttentionArguments, 512, 1) { overtone::attention<float>(args); }
KERNEL(attention_f16, AttentionArguments, 512, 1) { overtone::attention<overtone::Float16>(args); }
KERNEL(attention_bf16, AttentionArguments, 512, 1) { overtone::attention<overtone::BFloat16>(args); }
