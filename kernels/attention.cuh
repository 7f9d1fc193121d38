// Attention of one query head of one stream over its own KV slots, by one warp: normalise, rotate, store, attend.
//
//     q, k <- rope(rmsnorm(q)), rope(rmsnorm(k));   out = softmax(q k / sqrt(D)) v
//
// Positions are the slots: a frame starts empty and has at most R + 1 of them, so all keys and values of a head fit shared
// memory and are read once. Keys and values are rounded to T, as the reference's cache holds them; the rest is float32.
// Slots at and beyond the row's own position are not looked at. The queries of a key head each keep a copy of its slots: what
// is read twice costs less than warps that wait for each other.
//
// The slots that earlier steps filled are read before the kernel waits for the one before it: between them lies a kernel
// that lets the next start only after it has waited (sample.cu), so they are complete.

#pragma once

#include "fragments.cuh"
#include "math.cuh"
#include "reduce.cuh"

namespace overtone {

struct AttentionArguments {
    uint64_t projected; // [rows * streams, (Nq + 2 Nkv) * D] float32: q, k, v; row r of stream b at r * streams + b
    uint64_t query_norm; // [D] float32
    uint64_t key_norm; // [D] float32
    uint64_t rotary; // [positions][D / 2] float2: cosine, sine
    uint64_t keys; // this layer's [streams][Nkv][cache_slots][D] of T
    uint64_t values; // likewise
    uint64_t attended; // activations of T, `pairs` wide, inputs Nq * D
    uint32_t query_heads;
    uint32_t key_value_heads;
    uint32_t head_size; // a multiple of 8, at most 128
    uint32_t positions; // that a row can have
    uint32_t cache_slots; // of a head; with rounds, more than positions
    uint32_t first_position; // of the first row
    uint32_t rows; // of each stream, at consecutive positions
    uint32_t streams;
    uint32_t pairs;
    float epsilon;
    float scale; // 1 / sqrt(D)
    uint32_t reserved;
};

/// Elements by which a slot is longer in shared memory: slots then start in different banks.
CONSTANT int SLOT_PADDING = 16;
/// The largest head.
CONSTANT int MOST_HEAD_SIZE = 128;
/// Elements of a head that a lane holds: lane, lane + 32, ...
CONSTANT int LANE_VALUES = MOST_HEAD_SIZE / WARP;

/// Slots that a warp scores at once, two lanes a slot.
CONSTANT int SLOT_GROUP = WARP / 2;
/// The most slots.
CONSTANT int MOST_SLOTS = 4 * SLOT_GROUP;
/// Elements that a lane handles at a time: sixteen bytes of a 16-bit type.
CONSTANT int PIECE = 8;

/// A lane's elements of one head.
struct HeadValues {
    float of[LANE_VALUES];
};

/// Sixteen bytes of a cache.
template <typename T> union CachePiece {
    static constexpr int VALUES = 16 / sizeof(T);
    uint4 words;
    T values[VALUES];
};

/// Attention of one head; `SIZE` is D where it is known beforehand, or 0.
template <typename T, int SIZE = 0> struct Attention {
    const AttentionArguments& arguments;
    const int lane, size, stride, query_head, key_head, stream;
    // The warp's shared memory.
    T* const keys; // [positions][D + SLOT_PADDING]
    T* const values; // [positions][D + SLOT_PADDING]
    float* const query; // [D]
    float* const key; // [D]
    float* const weights; // [positions]
    // What heads are multiplied with, read ahead of them.
    HeadValues query_norm, key_norm;
    float2 turns[LANE_VALUES]; // cosine and sine
    const float inverse_size;

    /// Bytes of a warp's shared memory (mirrored in rust/cuda/src/product.rs).
    static DEVICE int shared_bytes(const AttentionArguments& arguments) {
        const int slots = 2 * arguments.positions * (arguments.head_size + SLOT_PADDING);
        return slots * static_cast<int>(sizeof(T)) + (2 * arguments.head_size + (arguments.positions + 3) / 4 * 4) * 4;
    }

    DEVICE Attention(const AttentionArguments& args, int of_query, int of_stream, unsigned char* memory)
        : arguments(args), lane(threadIdx.x % WARP), size(SIZE > 0 ? SIZE : args.head_size),
          stride(size + SLOT_PADDING), query_head(of_query),
          key_head(of_query / (args.query_heads / args.key_value_heads)), stream(of_stream),
          keys(reinterpret_cast<T*>(memory)), values(keys + args.positions * stride),
          query(reinterpret_cast<float*>(values + args.positions * stride)), key(query + size), weights(key + size),
          inverse_size(1.0f / static_cast<float>(size)) {}

    /// Whether this warp, of those that share a key head, keeps the cache.
    DEVICE bool keeps_cache() const { return query_head % (arguments.query_heads / arguments.key_value_heads) == 0; }

    /// A slot of the key head in a cache.
    DEVICE T* slot(uint64_t cache, int number) const {
        const int64_t head = static_cast<int64_t>(stream) * arguments.key_value_heads + key_head;
        return reinterpret_cast<T*>(cache) + (head * arguments.cache_slots + number) * size;
    }

    /// Reads what is there before the kernel before this one has ended: constants, and the first `filled` positions, which
    /// earlier steps left in the slots that `slot_of` tells.
    template <typename SlotOf> DEVICE void read_ahead(int filled, SlotOf slot_of) {
        using Piece = CachePiece<T>;
        const int pieces = size / Piece::VALUES;
        for (int number = lane; number < filled * pieces; number += WARP) {
            const int position = number / pieces, first = number % pieces * Piece::VALUES;
            copy_to_shared(keys + position * stride + first, slot(arguments.keys, slot_of(position)) + first);
            copy_to_shared(values + position * stride + first, slot(arguments.values, slot_of(position)) + first);
        }
        load_norm(arguments.query_norm, query_norm);
        load_norm(arguments.key_norm, key_norm);
        load_turns(filled);
    }

    /// The same where positions are slots.
    DEVICE void read_ahead() {
        read_ahead(arguments.first_position, [](int position) { return position; });
    }

    DEVICE void load_norm(uint64_t weight, HeadValues& norm) const {
#pragma unroll
        for (int index = 0; index < LANE_VALUES; ++index) {
            const int element = lane + index * WARP;
            if (element < size) norm.of[index] = reinterpret_cast<const float*>(weight)[element];
        }
    }

    DEVICE void load_turns(int position) {
        const int half = size / 2;
        const float2* const rotary = reinterpret_cast<const float2*>(arguments.rotary) + position * half;
#pragma unroll
        for (int index = 0; index < LANE_VALUES; ++index) {
            const int element = lane + index * WARP;
            if (element < size) turns[index] = rotary[element < half ? element : element - half];
        }
    }

    DEVICE HeadValues load_head(const float* head) const {
        HeadValues loaded;
#pragma unroll
        for (int index = 0; index < LANE_VALUES; ++index) {
            const int element = lane + index * WARP;
            loaded.of[index] = element < size ? head[element] : 0.0f;
        }
        return loaded;
    }

    /// Normalises the query and the key, and rotates them: the first half of a head is paired with its second half.
    DEVICE void prepare(HeadValues& of_query, HeadValues& of_key) const {
        float query_squares = 0.0f, key_squares = 0.0f;
#pragma unroll
        for (int index = 0; index < LANE_VALUES; ++index) {
            query_squares = fmaf(of_query.of[index], of_query.of[index], query_squares);
            key_squares = fmaf(of_key.of[index], of_key.of[index], key_squares);
        }
#pragma unroll
        for (int distance = WARP / 2; distance > 0; distance /= 2) {
            query_squares += __shfl_xor_sync(ALL_LANES, query_squares, distance);
            key_squares += __shfl_xor_sync(ALL_LANES, key_squares, distance);
        }
        const float query_scale = reciprocal_square_root(fmaf(query_squares, inverse_size, arguments.epsilon));
        const float key_scale = reciprocal_square_root(fmaf(key_squares, inverse_size, arguments.epsilon));
#pragma unroll
        for (int index = 0; index < LANE_VALUES; ++index) {
            of_query.of[index] = of_query.of[index] * query_scale * query_norm.of[index];
            of_key.of[index] = of_key.of[index] * key_scale * key_norm.of[index];
        }
        exchange(of_query, query);
        exchange(of_key, key);
        __syncwarp();
        rotate(of_query, query);
        rotate(of_key, key);
        __syncwarp();
    }

    /// Leaves a head in shared memory, for other lanes to see.
    DEVICE void exchange(const HeadValues& head, float* shared) const {
#pragma unroll
        for (int index = 0; index < LANE_VALUES; ++index) {
            const int element = lane + index * WARP;
            if (element < size) shared[element] = head.of[index];
        }
    }

    DEVICE void rotate(HeadValues& head, const float* shared) const {
        const int half = size / 2;
#pragma unroll
        for (int index = 0; index < LANE_VALUES; ++index) {
            const int element = lane + index * WARP;
            if (element >= size) break;
            const float partner = element < half ? -shared[element + half] : shared[element - half];
            head.of[index] = head.of[index] * turns[index].x + partner * turns[index].y;
        }
    }

    /// Keeps a head as position `position`, and in slot `to_slot` of the cache if that is not negative.
    DEVICE void store(const HeadValues& head, uint64_t cache, T* slots, int position, int to_slot) const {
#pragma unroll
        for (int index = 0; index < LANE_VALUES; ++index) {
            const int element = lane + index * WARP;
            if (element >= size) break;
            const T rounded = from_float<T>(head.of[index]);
            slots[position * stride + element] = rounded;
            if (to_slot >= 0) slot(cache, to_slot)[element] = rounded;
        }
    }

    /// Takes in one row: its key and value become those of `position`, its query is left in shared memory.
    DEVICE void take_in(int row, int position, int to_slot) {
        const int width = (arguments.query_heads + 2 * arguments.key_value_heads) * size;
        const float* const projected = reinterpret_cast<const float*>(arguments.projected) +
                                       (static_cast<int64_t>(row) * arguments.streams + stream) * width;
        HeadValues of_query = load_head(projected + query_head * size);
        HeadValues of_key = load_head(projected + (arguments.query_heads + key_head) * size);
        const HeadValues value =
            load_head(projected + (arguments.query_heads + arguments.key_value_heads + key_head) * size);
        prepare(of_query, of_key);
        exchange(of_query, query);
        store(of_key, arguments.keys, keys, position, to_slot);
        store(value, arguments.values, values, position, to_slot);
        __syncwarp();
    }

    /// The lane's score of one slot against the query; two lanes share it.
    DEVICE float score(int slot) const {
        const int pieces = size / PIECE;
        float4 sums = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 2
        for (int step = 0; step < MOST_HEAD_SIZE / PIECE / 2; ++step) {
            const int piece = 2 * step + lane % 2;
            if (piece >= pieces) break;
            const float4* const own = reinterpret_cast<const float4*>(query + piece * PIECE);
            float of_key[PIECE];
            load_piece(keys + slot * stride + piece * PIECE, of_key);
#pragma unroll
            for (int quarter = 0; quarter < PIECE / 4; ++quarter) {
                sums.x = fmaf(own[quarter].x, of_key[4 * quarter], sums.x);
                sums.y = fmaf(own[quarter].y, of_key[4 * quarter + 1], sums.y);
                sums.z = fmaf(own[quarter].z, of_key[4 * quarter + 2], sums.z);
                sums.w = fmaf(own[quarter].w, of_key[4 * quarter + 3], sums.w);
            }
        }
        const float half = (sums.x + sums.y) + (sums.z + sums.w);
        return half * arguments.scale;
    }

    /// Scores the query against all slots up to `position`: e^(score - largest) is left in `weights`, and their sum returned.
    DEVICE float weigh(int position) const {
        float scores[MOST_SLOTS / SLOT_GROUP];
        float largest = -INFINITY;
#pragma unroll
        for (int group = 0; group < MOST_SLOTS / SLOT_GROUP; ++group) {
            if (group * SLOT_GROUP > position) break;
            const int slot = group * SLOT_GROUP + lane / 2;
            float own = slot <= position ? score(slot) : 0.0f;
            own += __shfl_xor_sync(ALL_LANES, own, 1);
            scores[group] = slot <= position ? own : -INFINITY;
            largest = scores[group] > largest ? scores[group] : largest;
        }
#pragma unroll
        for (int distance = 2; distance < WARP; distance *= 2) {
            const float other = __shfl_xor_sync(ALL_LANES, largest, distance);
            largest = other > largest ? other : largest;
        }
        float total = 0.0f;
#pragma unroll
        for (int group = 0; group < MOST_SLOTS / SLOT_GROUP; ++group) {
            if (group * SLOT_GROUP > position) break;
            const int slot = group * SLOT_GROUP + lane / 2;
            const float weight = exponential(scores[group] - largest);
            if (slot <= position && lane % 2 == 0) weights[slot] = weight;
            total += slot <= position ? weight : 0.0f;
        }
        __syncwarp();
#pragma unroll
        for (int distance = 2; distance < WARP; distance *= 2) total += __shfl_xor_sync(ALL_LANES, total, distance);
        return total;
    }

    /// Eight elements of a slot.
    static DEVICE void load_piece(const T* slot, float (&piece)[PIECE]) {
        using Piece = CachePiece<T>;
#pragma unroll
        for (int first = 0; first < PIECE; first += Piece::VALUES) {
            Piece loaded;
            loaded.words = *reinterpret_cast<const uint4*>(slot + first);
#pragma unroll
            for (int index = 0; index < Piece::VALUES; ++index) piece[first + index] = to_float(loaded.values[index]);
        }
    }

    /// Gives the attended values of one row to `store(element, value, next)`, two at a time. Called after `read_ahead` and
    /// the wait, row after row.
    template <typename Store> DEVICE void attend(int row, bool in_cache, Store store) {
        const int position = arguments.first_position + row;
        if (row > 0) load_turns(position);
        else wait_for_copies();
        take_in(row, position, in_cache ? position : -1);
        attend_from(position, store);
    }

    /// The same for the row that was taken in last, at `position`.
    template <typename Store> DEVICE void attend_from(int position, Store store) {
        const float total = weigh(position);
        // Half of the lanes add up the even slots, half the odd ones; a lane has one piece of the head.
        const int piece = lane % SLOT_GROUP, odd = lane / SLOT_GROUP;
        float sums[PIECE] = {};
        if (piece * PIECE < size) {
#pragma unroll 4
            for (int slot = odd; slot <= position; slot += 2) {
                float value[PIECE];
                load_piece(values + slot * stride + piece * PIECE, value);
                const float weight = weights[slot];
#pragma unroll
                for (int index = 0; index < PIECE; ++index) sums[index] = fmaf(weight, value[index], sums[index]);
            }
        }
        const float inverse = 1.0f / total;
#pragma unroll
        for (int index = 0; index < PIECE; ++index)
            sums[index] = (sums[index] + __shfl_xor_sync(ALL_LANES, sums[index], SLOT_GROUP)) * inverse;
        if (piece * PIECE < size) {
#pragma unroll
            for (int pair = 0; pair < PIECE / 4; ++pair) {
                // Each half of the lanes stores half of the piece.
                const float value = odd ? sums[2 * pair + PIECE / 2] : sums[2 * pair];
                const float next = odd ? sums[2 * pair + 1 + PIECE / 2] : sums[2 * pair + 1];
                store(piece * PIECE + odd * PIECE / 2 + 2 * pair, value, next);
            }
        }
        __syncwarp();
    }
};

static_assert(MOST_HEAD_SIZE == PIECE * SLOT_GROUP, "half of a warp's lanes hold a head in pieces");

} // namespace overtone
