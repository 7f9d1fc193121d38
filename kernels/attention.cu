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
    uint32_t head_size; // a multiple of 8
    uint32_t positions; // slots of a head
    uint32_t first_position; // of the first row
    uint32_t rows; // of each stream, at consecutive positions
    uint32_t streams;
    uint32_t pairs;
    float epsilon;
    float scale; // 1 / sqrt(D)
};

/// Elements by which a key or value row is longer in shared memory: rows then start in different banks.
CONSTANT int ROW_PADDING = 4;

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

/// Normalises a head with one warp: from memory into shared memory.
DEVICE void normalise_head(const float* head, const float* norm, float* to, const AttentionArguments& arguments) {
    const int lane = threadIdx.x % WARP, size = arguments.head_size;
    float squares = 0.0f;
    for (int index = lane; index < size; index += WARP) squares = fmaf(head[index], head[index], squares);
    squares = warp_sum(squares);
    const float scale = 1.0f / sqrtf(squares / static_cast<float>(size) + arguments.epsilon);
    for (int index = lane; index < size; index += WARP) to[index] = head[index] * scale * norm[index];
    __syncwarp();
}

/// Rotates a head in shared memory with one warp: its first half is paired with its second half.
DEVICE void rotate_head(float* head, int position, const AttentionArguments& arguments) {
    const int lane = threadIdx.x % WARP, half = arguments.head_size / 2;
    const float2* const rotary = reinterpret_cast<const float2*>(arguments.rotary) + position * half;
    for (int index = lane; index < half; index += WARP) {
        const float2 turn = rotary[index];
        const float first = head[index], second = head[index + half];
        head[index] = first * turn.x - second * turn.y;
        head[index + half] = second * turn.x + first * turn.y;
    }
    __syncwarp();
}

template <typename T> struct Attention {
    const AttentionArguments& arguments;
    AttentionShared shared;
    const int warp, lane, size, stride, queries, key_head, stream;

    DEVICE Attention(const AttentionArguments& args, float* memory)
        : arguments(args), shared(carve(memory, args)), warp(threadIdx.x / WARP), lane(threadIdx.x % WARP),
          size(args.head_size), stride(args.head_size + ROW_PADDING), queries(args.query_heads / args.key_value_heads),
          key_head(blockIdx.x), stream(blockIdx.y) {}

    /// Slot `position` of this head in a cache.
    DEVICE T* slot(uint64_t cache, int position) const {
        const int64_t head = static_cast<int64_t>(stream) * arguments.key_value_heads + key_head;
        return reinterpret_cast<T*>(cache) + (head * arguments.positions + position) * size;
    }

    /// Reads what earlier steps left.
    DEVICE void load_earlier() const {
        const int elements = arguments.first_position * size;
        for (int index = threadIdx.x; index < elements; index += blockDim.x) {
            const int place = index / size * stride + index % size;
            shared.keys[place] = to_float(slot(arguments.keys, 0)[index]);
            shared.values[place] = to_float(slot(arguments.values, 0)[index]);
        }
    }

    /// Takes in one row: each query and the key by a warp of its own, the value by another.
    DEVICE void take_in(int row) const {
        const int position = arguments.first_position + row, width = (arguments.query_heads + 2 * arguments.key_value_heads) * size;
        const float* const projected =
            reinterpret_cast<const float*>(arguments.projected) + (static_cast<int64_t>(row) * arguments.streams + stream) * width;
        const float* const keys = projected + arguments.query_heads * size;
        const float* const values = keys + arguments.key_value_heads * size;
        if (warp < queries) {
            float* const query = shared.vectors + warp * size;
            normalise_head(projected + (key_head * queries + warp) * size,
                           reinterpret_cast<const float*>(arguments.query_norm), query, arguments);
            rotate_head(query, position, arguments);
        } else if (warp == queries) {
            float* const key = shared.vectors + queries * size;
            normalise_head(keys + key_head * size, reinterpret_cast<const float*>(arguments.key_norm), key, arguments);
            rotate_head(key, position, arguments);
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
            const float4* const key = reinterpret_cast<const float4*>(shared.keys + slot * stride) + half * quarters;
            const float4* const own = reinterpret_cast<const float4*>(query) + half * quarters;
            float4 sums = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (slot <= position) {
                for (int index = 0; index < quarters; ++index) {
                    sums.x = fmaf(own[index].x, key[index].x, sums.x);
                    sums.y = fmaf(own[index].y, key[index].y, sums.y);
                    sums.z = fmaf(own[index].z, key[index].z, sums.z);
                    sums.w = fmaf(own[index].w, key[index].w, sums.w);
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
        for (int index = 2 * lane; index < size; index += 2 * WARP) {
            float first = 0.0f, second = 0.0f;
            for (int slot = 0; slot <= position; ++slot) {
                const float* const value = shared.values + slot * stride + index;
                first = fmaf(weights[slot], value[0], first);
                second = fmaf(weights[slot], value[1], second);
            }
            store_activations<T>(reinterpret_cast<T*>(arguments.attended), arguments.pairs, column, first_input + index,
                                 first, second);
        }
    }

    DEVICE void run() const {
        load_earlier();
        let_next_kernel_start();
        wait_for_earlier_kernels();
        for (int row = 0; row < static_cast<int>(arguments.rows); ++row) {
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
