// top_k and top_p: which entries of a row of logits may be drawn, the same ones as rust/core/src/sampling/filter.rs keeps.
//
// Entries are ordered by (x descending, index ascending); what is kept is a prefix of that order. Mass is a 64-bit
// fixed-point number, exact in any order of summation.
//
// Two ways lead to the same prefix. The short one gathers the few entries that can be among the top_k and lets each of them
// count what is before it. The general one finds the last entry kept by bisection: over the order of x, then over the index
// of equals.

#pragma once

#include "math.cuh"
#include "reduce.cuh"

namespace overtone {

CONSTANT int SAMPLING_THREADS = 256;
CONSTANT int SAMPLING_WARPS = SAMPLING_THREADS / 32;
/// Entries that a thread looks at together: reading one by one would take long.
CONSTANT int ENTRIES_AT_ONCE = 8;
/// Entries of the short way, one a thread.
CONSTANT int MOST_CANDIDATES = SAMPLING_THREADS;

/// Order of x: smaller for larger x, equal for equal x; -0.0 ranks as 0.
DEVICE uint32_t rank_of(float x) {
    const uint32_t bits = bits_of(x + 0.0f);
    return ~(bits ^ (static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000u));
}

/// The x of a rank.
DEVICE float x_of_rank(uint32_t rank) {
    const uint32_t ascending = ~rank;
    const uint32_t turned = ~static_cast<uint32_t>(static_cast<int32_t>(ascending) >> 31) | 0x80000000u;
    return float_of(ascending ^ turned);
}

/// Rank of -infinity, which is never drawn.
CONSTANT uint32_t RANK_OF_NOTHING = 0xff800000u;

/// Mass of an entry: e^(x - largest) in units of 2^-40, truncated.
DEVICE uint64_t mass_of_rank(uint32_t rank, float largest) {
    return static_cast<uint64_t>(exponential(x_of_rank(rank) - largest) * 1099511627776.0f);
}

/// The smallest mass that is not below top_p of `total`: top_p * total, rounded up, exactly.
DEVICE uint64_t mass_threshold(float top_p, uint64_t total) {
    const uint32_t bits = bits_of(top_p), biased = bits >> 23, fraction = bits & 0x007fffffu;
    const uint64_t significand = biased == 0 ? fraction : fraction | 0x00800000u;
    const uint32_t shift = 150 - (biased == 0 ? 1 : biased);
    // significand * total, of at most 88 bits, as high * 2^32 + low.
    const uint64_t low_product = significand * (total & 0xffffffffu),
                   high = significand * (total >> 32) + (low_product >> 32);
    const uint32_t low = static_cast<uint32_t>(low_product);
    if (shift >= 88) return (high | low) != 0;
    if (shift >= 32) return (high >> (shift - 32)) + ((high & ((1ull << (shift - 32)) - 1)) != 0 || low != 0);
    const uint64_t product = high << (32 - shift) | low >> shift;
    return product + ((low & ((1u << shift) - 1)) != 0);
}

/// The last entry kept; all before it are kept too.
struct LastKept {
    uint32_t rank;
    uint32_t index;

    DEVICE bool keeps(uint32_t other_rank, uint32_t other_index) const {
        return other_rank < rank || (other_rank == rank && other_index <= index);
    }
};

/// What the block's threads share about a row.
struct alignas(16) SamplingShared {
    uint64_t parts[2][SAMPLING_WARPS]; // of reductions over the block; turns alternate
    uint64_t masses[MOST_CANDIDATES];
    uint64_t candidates[MOST_CANDIDATES]; // rank << 32 | index
    uint32_t best[SAMPLING_THREADS]; // the smallest rank of each group of threads
    uint32_t candidate_count;
    uint32_t border;
};

/// Reductions over the block, one barrier each: every thread gets the result.
struct BlockReduction {
    uint64_t (&parts)[2][SAMPLING_WARPS];
    int turn;

    template <typename Combine> DEVICE uint64_t combined(uint64_t of_warp, Combine combine) {
        if (threadIdx.x % 32 == 0) parts[turn][threadIdx.x / 32] = of_warp;
        __syncthreads();
        uint64_t result = parts[turn][0];
#pragma unroll
        for (int warp = 1; warp < SAMPLING_WARPS; ++warp) result = combine(result, parts[turn][warp]);
        turn ^= 1;
        return result;
    }

    DEVICE uint64_t sum(uint64_t value) {
        return combined(warp_sum(value), [](uint64_t left, uint64_t right) { return left + right; });
    }

    DEVICE uint64_t max(uint64_t value) {
        return combined(warp_max(value), [](uint64_t left, uint64_t right) { return left > right ? left : right; });
    }
};

/// A row whose entries' ranks lie in shared memory; at least one is above -infinity.
struct RankedRow {
    const uint32_t* ranks; // [entries]
    uint32_t entries;
    float largest; // x
    SamplingShared& shared;
    BlockReduction& block;

    /// Sum of `value(rank, index)` over all entries.
    template <typename Value> DEVICE uint64_t sum(Value value) const {
        uint64_t total = 0;
        for (uint32_t index = threadIdx.x; index < entries; index += SAMPLING_THREADS)
            total += value(ranks[index], index);
        return block.sum(total);
    }

    /// Gives this thread's entries to `look(ranks, first index)`, `ENTRIES_AT_ONCE` at a time and a block's width apart;
    /// beyond the row are ranks of -infinity.
    template <typename Look> DEVICE void for_own_entries(Look look) const {
        // All threads of a warp go round equally often: `look` may talk to the others.
        for (uint32_t base = 0; base < entries; base += ENTRIES_AT_ONCE * SAMPLING_THREADS) {
            const uint32_t first = base + threadIdx.x;
            uint32_t own[ENTRIES_AT_ONCE];
#pragma unroll
            for (int number = 0; number < ENTRIES_AT_ONCE; ++number) {
                const uint32_t index = first + number * SAMPLING_THREADS;
                own[number] = index < entries ? ranks[index] : RANK_OF_NOTHING;
            }
            look(own, first);
        }
    }

    // -----------------------------------------------------------------------------------------------------------------
    // The general way

    /// The smallest number at which `reached` holds, and above which it holds everywhere; `limit` - 1 if there is none below.
    template <typename Reached> static DEVICE uint32_t bisect(uint32_t limit, Reached reached) {
        uint32_t low = 0, high = limit - 1;
        while (low < high) {
            const uint32_t middle = low + (high - low) / 2;
            if (reached(middle)) high = middle;
            else low = middle + 1;
        }
        return low;
    }

    /// The last entry that top_k, then top_p leave.
    DEVICE LastKept bisected(uint32_t top_k, float top_p) const {
        uint32_t border = RANK_OF_NOTHING - 1;
        if (top_k != 0)
            border = bisect(RANK_OF_NOTHING, [&](uint32_t rank) {
                return sum([&](uint32_t other, uint32_t) { return static_cast<uint64_t>(other <= rank); }) >= top_k;
            });
        if (!(top_p < 1.0f)) return {border, 0xffffffffu};
        const auto mass_up_to = [&](uint32_t rank, uint32_t index) {
            const LastKept last = {rank, index};
            return sum(
                [&](uint32_t other, uint32_t at) { return last.keeps(other, at) ? mass_of_rank(other, largest) : 0; });
        };
        const uint64_t threshold = mass_threshold(top_p, mass_up_to(border, 0xffffffffu));
        const uint32_t rank =
            bisect(border + 1, [&](uint32_t rank) { return mass_up_to(rank, 0xffffffffu) >= threshold; });
        return {rank, bisect(entries, [&](uint32_t index) { return mass_up_to(rank, index) >= threshold; })};
    }

    // -----------------------------------------------------------------------------------------------------------------
    // The short way

    /// Finds a rank that at least `top_k` entries do not exceed, since so many groups of threads have an entry that good.
    /// Fewer and larger groups make a border nearly as tight, for less work.
    DEVICE void find_generous_border(uint32_t top_k) const {
        const bool few_groups = top_k <= SAMPLING_THREADS / 4 - 8;
        const uint32_t groups = few_groups ? SAMPLING_THREADS / 4 : SAMPLING_THREADS;
        uint32_t own = 0xffffffffu;
        for_own_entries([&](const uint32_t (&some)[ENTRIES_AT_ONCE], uint32_t) {
#pragma unroll
            for (int number = 0; number < ENTRIES_AT_ONCE; ++number) own = some[number] < own ? some[number] : own;
        });
        if (few_groups) {
#pragma unroll
            for (int distance = 1; distance < 4; distance *= 2) {
                const uint32_t other = __shfl_xor_sync(ALL_LANES, own, distance);
                own = other < own ? other : own;
            }
            if (threadIdx.x % 4 == 0) shared.best[threadIdx.x / 4] = own;
        } else {
            shared.best[threadIdx.x] = own;
        }
        if (threadIdx.x == 0) {
            shared.candidate_count = 0;
            shared.border = RANK_OF_NOTHING - 1;
        }
        __syncthreads();
        if (threadIdx.x < groups) {
            own = shared.best[threadIdx.x];
            const uint2 counts = count_ranks(shared.best, groups, own);
            // Groups with equal entries write the same.
            if (counts.x < top_k && top_k <= counts.y && own < RANK_OF_NOTHING) shared.border = own;
        }
        __syncthreads();
    }

    /// Of `count` ranks, a multiple of four: how many are below `rank`, and how many do not exceed it.
    static DEVICE uint2 count_ranks(const uint32_t* values, uint32_t count, uint32_t rank) {
        uint2 counts = make_uint2(0, 0);
#pragma unroll 4
        for (uint32_t index = 0; index < count / 4; ++index) {
            const uint4 others = reinterpret_cast<const uint4*>(values)[index];
            counts.x += (others.x < rank) + (others.y < rank) + (others.z < rank) + (others.w < rank);
            counts.y += (others.x <= rank) + (others.y <= rank) + (others.z <= rank) + (others.w <= rank);
        }
        return counts;
    }

    /// Gathers the entries up to the border, in no order; their number may exceed what there is room for.
    DEVICE uint32_t gather_candidates() const {
        const uint32_t border = shared.border;
        for_own_entries([&](const uint32_t (&some)[ENTRIES_AT_ONCE], uint32_t first) {
            uint32_t found = 0;
#pragma unroll
            for (int number = 0; number < ENTRIES_AT_ONCE; ++number) found += some[number] <= border;
            uint32_t place = claim_places(found);
#pragma unroll
            for (int number = 0; number < ENTRIES_AT_ONCE; ++number) {
                if (some[number] > border) continue;
                if (place < MOST_CANDIDATES)
                    shared.candidates[place] =
                        static_cast<uint64_t>(some[number]) << 32 | (first + number * SAMPLING_THREADS);
                ++place;
            }
        });
        __syncthreads();
        return shared.candidate_count;
    }

    /// The first of `wanted` places among the candidates, for each thread of a warp; all of it must call.
    DEVICE uint32_t claim_places(uint32_t wanted) const {
        const uint32_t lane = threadIdx.x % 32;
        uint32_t up_to = wanted;
#pragma unroll
        for (uint32_t distance = 1; distance < 32; distance *= 2) {
            const uint32_t before = __shfl_up_sync(ALL_LANES, up_to, distance);
            up_to += lane >= distance ? before : 0;
        }
        uint32_t first = 0;
        if (lane == 31 && up_to != 0) first = atomicAdd(&shared.candidate_count, up_to);
        return __shfl_sync(ALL_LANES, first, 31) + up_to - wanted;
    }

    /// The candidate that this thread works for, and its share of the others: several neighbours work for one where there are
    /// threads enough.
    struct Duty {
        uint32_t candidate, share, sharers;

        DEVICE explicit Duty(uint32_t count)
            : sharers(count <= SAMPLING_THREADS / 4   ? 4
                      : count <= SAMPLING_THREADS / 2 ? 2
                                                      : 1) {
            candidate = threadIdx.x / sharers;
            share = threadIdx.x % sharers;
        }

        /// The sum over the sharers, for each of them.
        template <typename Number> DEVICE Number sum(Number value) const {
            if (sharers > 1) value += __shfl_xor_sync(ALL_LANES, value, 1);
            if (sharers > 2) value += __shfl_xor_sync(ALL_LANES, value, 2);
            return value;
        }
    };

    /// Whether the candidate of this thread's duty, of `count`, is kept. Several threads may have the same.
    DEVICE bool keeps_candidate(const Duty& duty, uint32_t count, uint32_t top_k, float top_p) const {
        const bool mine = duty.candidate < count;
        const uint64_t own = mine ? shared.candidates[duty.candidate] : ~0ull;
        const uint32_t rank = static_cast<uint32_t>(own >> 32);
        uint32_t larger = 0;
#pragma unroll 8
        for (uint32_t other = duty.share; other < count; other += duty.sharers)
            larger += static_cast<uint32_t>(shared.candidates[other] >> 32) < rank;
        larger = duty.sum(larger);
        const bool in_top_k = mine && larger < top_k;
        if (!(top_p < 1.0f)) return in_top_k;
        const uint64_t mass = in_top_k && duty.share == 0 ? mass_of_rank(rank, largest) : 0;
        if (mine && duty.share == 0) shared.masses[duty.candidate] = mass;
        const uint64_t threshold = mass_threshold(top_p, block.sum(mass)); // a barrier: all masses are there
        uint64_t before = 0;
#pragma unroll 8
        for (uint32_t other = duty.share; other < count; other += duty.sharers)
            before += shared.candidates[other] < own ? shared.masses[other] : 0;
        before = duty.sum(before);
        return in_top_k && before < threshold;
    }
};

} // namespace overtone
