// One draw from a row of logits, by one block: that of rust/core/src/sampling/draw.rs.

#pragma once

#include "frame_arguments.cuh"
#include "kept_set.cuh"
#include "noise.cuh"

namespace overtone {

/// Order of scores, the largest first in the sense of max, the lowest index among equals; `code_of_key` tells the index.
DEVICE uint64_t key_of(float score, uint32_t index) {
    return static_cast<uint64_t>(~rank_of(score)) << 32 | (0xffffffffu - index);
}
DEVICE uint32_t code_of_key(uint64_t key) { return 0xffffffffu - static_cast<uint32_t>(key); }

/// Key of a row that cannot be drawn; above all others.
CONSTANT uint64_t FAILED = ~0ull;

/// What becomes of a greedy row's ranks: its draw needs none.
enum class GreedyRanks { Skip, Keep };

/// Looks at all logits, `logit_at(index)`: the key of the largest, or `FAILED`. Ranks of logits / temperature go to `ranks`;
/// those of a greedy row's logits where they are asked for.
template <typename Logit>
DEVICE uint64_t look(Logit logit_at, uint32_t entries, float temperature, GreedyRanks greedy, uint32_t* ranks,
                     BlockReduction& block) {
    constexpr int AT_ONCE = ENTRIES_AT_ONCE;
    uint64_t largest = 0;
    for (uint32_t first = threadIdx.x; first < entries; first += AT_ONCE * SAMPLING_THREADS) {
        float values[AT_ONCE];
#pragma unroll
        for (int number = 0; number < AT_ONCE; ++number) {
            const uint32_t index = first + number * SAMPLING_THREADS;
            values[number] = index < entries ? logit_at(index) : -INFINITY;
        }
#pragma unroll
        for (int number = 0; number < AT_ONCE; ++number) {
            const uint32_t index = first + number * SAMPLING_THREADS;
            if (index >= entries) break;
            const float logit = values[number];
            bool fails = !(logit < INFINITY); // NaN or +infinity
            if (temperature != 0.0f) {
                const float quotient = logit / temperature;
                fails |= logit > -INFINITY && !(quotient < INFINITY && quotient > -INFINITY);
                ranks[index] = rank_of(quotient);
            } else if (greedy == GreedyRanks::Keep) {
                ranks[index] = rank_of(logit);
            }
            const uint64_t key = fails ? FAILED : key_of(logit, index);
            largest = key > largest ? key : largest;
        }
    }
    largest = block.max(largest);
    const bool nothing_finite = static_cast<uint32_t>(largest >> 32) == ~RANK_OF_NOTHING;
    return nothing_finite ? FAILED : largest;
}

/// The largest x of a row that `look` found `largest` in. Division by a positive number keeps the order, so the largest logit
/// has the largest quotient.
DEVICE float largest_x_of(uint64_t largest, float temperature) {
    const float logit = x_of_rank(~static_cast<uint32_t>(largest >> 32));
    return temperature == 0.0f ? logit : logit / temperature;
}

/// The drawn code, or -1 for a row that has none.
DEVICE int64_t draw(const float* logits, uint32_t entries, const RowState& state, uint32_t codebook, uint32_t* ranks,
                    SamplingShared& shared, BlockReduction& block) {
    const auto logit_at = [&](uint32_t index) { return logits[index]; };
    const uint64_t largest = look(logit_at, entries, state.temperature, GreedyRanks::Skip, ranks, block);
    if (largest == FAILED || state.parameters_out_of_range) return -1;
    if (state.temperature == 0.0f) return code_of_key(largest);

    const float largest_x = largest_x_of(largest, state.temperature);
    const RankedRow row = {ranks, entries, largest_x, shared, block};
    const NoiseCounter noise = {state.seed, state.frame_index, codebook};
    const uint32_t top_k = state.top_k >= entries ? 0 : state.top_k;
    if (top_k != 0 && top_k <= MOST_CANDIDATES) {
        row.find_generous_border(top_k);
        const uint32_t count = row.gather_candidates();
        if (count <= MOST_CANDIDATES) {
            const RankedRow::Duty duty(count);
            uint64_t key = 0;
            if (row.keeps_candidate(duty, count, top_k, state.top_p)) {
                const uint64_t candidate = shared.candidates[duty.candidate];
                const uint32_t index = static_cast<uint32_t>(candidate);
                key = key_of(x_of_rank(static_cast<uint32_t>(candidate >> 32)) + gumbel_noise(noise, index), index);
            }
            return code_of_key(block.max(key));
        }
    }
    const bool all = top_k == 0 && state.top_p == 1.0f;
    const LastKept last = all ? LastKept{RANK_OF_NOTHING - 1, 0xffffffffu} : row.bisected(top_k, state.top_p);
    uint64_t best = 0;
    for (uint32_t index = threadIdx.x; index < entries; index += SAMPLING_THREADS) {
        if (!last.keeps(ranks[index], index)) continue;
        const uint64_t key = key_of(x_of_rank(ranks[index]) + gumbel_noise(noise, index), index);
        best = key > best ? key : best;
    }
    return code_of_key(block.max(best));
}

} // namespace overtone
