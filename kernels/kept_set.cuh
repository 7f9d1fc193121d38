// top_k and top_p: which entries of a row of logits may be drawn, the same ones as rust/core/src/sampling/filter.rs keeps.
//
// Entries are ordered by (x descending, index ascending); what is kept is a prefix of that order, so it is described by its
// last entry. Mass is a 64-bit fixed-point number, exact in any order of summation.
//
// Two ways lead to the same prefix. The short one gathers the few entries that can be among the top_k and lets each of them
// count what is before it. The general one bisects: over the order of x, then over the index of equals.

#pragma once

#include "math.cuh"
#include "reduce.cuh"

namespace overtone {

CONSTANT int SAMPLING_THREADS = 256;
CONSTANT int SAMPLING_WARPS = SAMPLING_THREADS / 32;
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
    const uint64_t low_product = significand * (total & 0xffffffffu), high = significand * (total >> 32) + (low_product >> 32);
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
struct SamplingShared {
    uint64_t parts[2][SAMPLING_WARPS]; // of sums over the block; turns alternate
    uint64_t candidates[MOST_CANDIDATES]; // rank << 32 | index
    uint64_t masses[MOST_CANDIDATES];
    uint32_t best[SAMPLING_THREADS]; // the smallest rank of each thread's entries
    uint32_t candidate_count;
    uint32_t border;
};

/// Sums over the block: every thread gets the sum.
struct BlockSum {
    uint64_t (&parts)[2][SAMPLING_WARPS];
    int turn;

    DEVICE uint64_t operator()(uint64_t value) {
        value = warp_sum(value);
        if (threadIdx.x % 32 == 0) parts[turn][threadIdx.x / 32] = value;
        __syncthreads();
        uint64_t total = 0;
#pragma unroll
        for (int warp = 0; warp < SAMPLING_WARPS; ++warp) total += parts[turn][warp];
        turn ^= 1;
        return total;
    }
};

/// A row whose entries' ranks lie in shared memory.
struct RankedRow {
    const uint32_t* ranks; // [entries]
    uint32_t entries;
    uint32_t finite; // entries above -infinity, of which there is at least one
    float largest; // x
    SamplingShared& shared;
    BlockSum& block_sum;

    /// Sum of `value(rank, index)` over all entries.
    template <typename Value> DEVICE uint64_t sum(Value value) const {
        uint64_t total = 0;
        for (uint32_t index = threadIdx.x; index < entries; index += SAMPLING_THREADS) total += value(ranks[index], index);
        return block_sum(total);
    }

    /// The smallest number below `limit` at which `reached` holds; it holds there and everywhere above.
    template <typename Reached> static DEVICE uint32_t bisect(uint32_t limit, Reached reached) {
        uint32_t low = 0, high = limit - 1;
        while (low < high) {
            const uint32_t middle = low + (high - low) / 2;
            if (reached(middle)) high = middle;
            else low = middle + 1;
        }
        return low;
    }

    /// The general way.
    DEVICE LastKept bisected(uint32_t top_k, float top_p) const {
        uint32_t border = RANK_OF_NOTHING - 1;
        if (top_k != 0 && top_k < finite)
            border = bisect(RANK_OF_NOTHING, [&](uint32_t rank) {
                return sum([&](uint32_t other, uint32_t) { return static_cast<uint64_t>(other <= rank); }) >= top_k;
            });
        if (!(top_p < 1.0f)) return {border, 0xffffffffu};
        const auto mass_up_to = [&](uint32_t rank, uint32_t index) {
            const LastKept last = {rank, index};
            return sum([&](uint32_t other, uint32_t at) {
                return last.keeps(other, at) ? mass_of_rank(other, largest) : 0;
            });
        };
        const uint64_t threshold = mass_threshold(top_p, mass_up_to(border, 0xffffffffu));
        const uint32_t rank =
            bisect(border + 1, [&](uint32_t rank) { return mass_up_to(rank, 0xffffffffu) >= threshold; });
        return {rank, bisect(entries, [&](uint32_t index) { return mass_up_to(rank, index) >= threshold; })};
    }

    /// A rank that at least `top_k` entries do not exceed: so many threads have an entry that good.
    DEVICE void find_generous_border(uint32_t top_k) const {
        uint32_t own = 0xffffffffu;
        for (uint32_t index = threadIdx.x; index < entries; index += SAMPLING_THREADS)
            own = ranks[index] < own ? ranks[index] : own;
        shared.best[threadIdx.x] = own;
        if (threadIdx.x == 0) {
            shared.candidate_count = 0;
            shared.border = RANK_OF_NOTHING - 1;
        }
        __syncthreads();
        uint32_t before = 0, up_to = 0;
        const uint4* const best = reinterpret_cast<const uint4*>(shared.best);
#pragma unroll 8
        for (int index = 0; index < SAMPLING_THREADS / 4; ++index) {
            const uint4 others = best[index];
            before += (others.x < own) + (others.y < own) + (others.z < own) + (others.w < own);
            up_to += (others.x <= own) + (others.y <= own) + (others.z <= own) + (others.w <= own);
        }
        // Threads with equal entries write the same.
        if (before < top_k && top_k <= up_to && own < RANK_OF_NOTHING) shared.border = own;
        __syncthreads();
    }

    /// Gathers the entries up to the border; their number may exceed what there is room for.
    DEVICE uint32_t gather_candidates() const {
        const uint32_t border = shared.border;
        for (uint32_t index = threadIdx.x; index < entries; index += SAMPLING_THREADS) {
            if (ranks[index] > border) continue;
            const uint32_t place = atomicAdd(&shared.candidate_count, 1u);
            if (place < MOST_CANDIDATES) shared.candidates[place] = static_cast<uint64_t>(ranks[index]) << 32 | index;
        }
        __syncthreads();
        return shared.candidate_count;
    }

    /// The short way, among `count` candidates; -1 ranks nothing before a thread without one.
    DEVICE LastKept counted(uint32_t count, uint32_t top_k, float top_p) const {
        const bool mine = threadIdx.x < count;
        const uint64_t own = mine ? shared.candidates[threadIdx.x] : ~0ull;
        const uint32_t own_rank = static_cast<uint32_t>(own >> 32);
        uint32_t larger = 0;
        for (uint32_t other = 0; other < count; ++other)
            larger += static_cast<uint32_t>(shared.candidates[other] >> 32) < own_rank;
        const bool in_top_k = mine && larger < top_k;
        shared.masses[threadIdx.x] = in_top_k && top_p < 1.0f ? mass_of_rank(own_rank, largest) : 0;
        if (threadIdx.x == 0) shared.border = 0;
        const uint64_t total = block_sum(shared.masses[threadIdx.x]); // a barrier: the masses are there
        bool kept = in_top_k;
        if (top_p < 1.0f) {
            const uint64_t threshold = mass_threshold(top_p, total);
            uint64_t before = 0;
            for (uint32_t other = 0; other < count; ++other)
                before += shared.candidates[other] < own ? shared.masses[other] : 0;
            kept = in_top_k && before < threshold;
        }
        // The last of the kept is the one that all other kept ones are before.
        const uint64_t last = block_max(kept ? own : 0);
        return {static_cast<uint32_t>(last >> 32), static_cast<uint32_t>(last)};
    }

    DEVICE uint64_t block_max(uint64_t value) const {
        value = warp_max(value);
        __syncthreads();
        if (threadIdx.x % 32 == 0) shared.parts[0][threadIdx.x / 32] = value;
        __syncthreads();
        uint64_t largest_part = 0;
#pragma unroll
        for (int warp = 0; warp < SAMPLING_WARPS; ++warp)
            largest_part = shared.parts[0][warp] > largest_part ? shared.parts[0][warp] : largest_part;
        return largest_part;
    }

    /// The last entry that top_k, then top_p leave.
    DEVICE LastKept last_kept(uint32_t top_k, float top_p) const {
        const bool few = top_k != 0 && top_k < finite && top_k <= MOST_CANDIDATES;
        if (few) {
            find_generous_border(top_k);
            const uint32_t count = gather_candidates();
            if (count <= MOST_CANDIDATES) return counted(count, top_k, top_p);
        }
        return bisected(top_k, top_p);
    }
};

} // namespace overtone
