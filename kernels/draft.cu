// The drafts of a round: the best draws from draft logits, and the rows that feed them.

#include "draw.cuh"
#include "rounds.cuh"

namespace overtone {

struct DraftArguments {
    uint64_t rows; // RowState [slots]
    uint64_t rounds; // RoundState [slots]
    uint64_t codebooks; // CodebookAddresses [R]
    uint64_t logits; // [slots, depth of the tree, V] float32
    uint32_t codebook_size; // V
    uint32_t codebook_count; // R
    float least_probability; // before any filter; 0: any
    uint32_t reserved;
    uint8_t widths[MOST_VERIFY_ROWS]; // proposals at depth 1, 2, ...
};

/// Entries that a draft of more than one proposal draws from at least, where top_k is on (rust/core/src/rounds.rs).
CONSTANT uint32_t WIDE_DRAFT_TOP_K = 128;

DEVICE uint32_t draft_top_k(uint32_t top_k, uint32_t proposals) {
    return top_k == 0 || proposals <= 1 || top_k >= WIDE_DRAFT_TOP_K ? top_k : WIDE_DRAFT_TOP_K;
}

/// A row of draft logits and the best draws from it, under the noise that the code's own draw will meet: `Sampler::propose` of
/// rust/core/src/sampling/draft.rs.
template <typename Logit> struct Draft {
    Logit logit_at;
    const RowState& state;
    NoiseCounter noise;
    RankedRow row;
    uint32_t width;
    int32_t* proposals; // [width]

    /// The x of an entry; a greedy row's is its logit.
    DEVICE float x_at(uint32_t index) const {
        const float logit = logit_at(index);
        return state.temperature == 0.0f ? logit : logit / state.temperature;
    }

    DEVICE uint64_t scored(uint32_t rank, uint32_t index) const {
        const float x = x_of_rank(rank);
        return key_of(state.temperature == 0.0f ? x : x + gumbel_noise(noise, index), index);
    }

    /// The mass that an entry needs to be proposed.
    DEVICE uint64_t least_mass(float least_probability) const {
        if (!(least_probability > 0.0f)) return 0;
        const uint64_t total =
            row.sum([&](uint32_t rank, uint32_t) { return rank < RANK_OF_NOTHING ? mass_of_rank(rank, row.largest) : 0; });
        return mass_threshold(least_probability, total);
    }

    DEVICE void propose(uint32_t place, uint64_t key, uint64_t least) const {
        const uint32_t code = code_of_key(key);
        const bool probable = least == 0 || mass_of_rank(rank_of(x_at(code)), row.largest) >= least;
        proposals[place] = probable ? static_cast<int32_t>(code) : NO_DRAFT;
    }

    /// Few entries can be among the top_k: each counts those that are better. False where they are too many.
    DEVICE bool rank_candidates(uint32_t top_k, uint64_t least) const {
        row.find_generous_border(top_k);
        const uint32_t count = row.gather_candidates();
        if (count > MOST_CANDIDATES) return false;
        SamplingShared& shared = row.shared;
        const RankedRow::Duty duty(count);
        uint64_t key = 0;
        if (row.keeps_candidate(duty, count, top_k, 1.0f)) {
            const uint64_t candidate = shared.candidates[duty.candidate];
            key = scored(static_cast<uint32_t>(candidate >> 32), static_cast<uint32_t>(candidate));
        }
        if (duty.candidate < count && duty.share == 0) shared.masses[duty.candidate] = key;
        __syncthreads();
        uint32_t better = 0;
#pragma unroll 8
        for (uint32_t other = duty.share; other < count; other += duty.sharers) better += shared.masses[other] > key;
        better = duty.sum(better);
        if (key != 0 && duty.share == 0 && better < width) propose(better, key, least);
        return true;
    }

    /// Any number of entries: the best, then the best that is worse, and so on.
    DEVICE void rank_all(uint32_t* ranks, uint32_t top_k, uint64_t least) const {
        const LastKept last =
            top_k == 0 ? LastKept{RANK_OF_NOTHING - 1, 0xffffffffu} : row.bisected(top_k, 1.0f);
        for (uint32_t index = threadIdx.x; index < row.entries; index += SAMPLING_THREADS) {
            const bool kept = last.keeps(ranks[index], index);
            ranks[index] = kept ? ~static_cast<uint32_t>(scored(ranks[index], index) >> 32) : RANK_OF_NOTHING;
        }
        uint64_t before = FAILED;
        for (uint32_t place = 0; place < width; ++place) {
            uint64_t best = 0;
            for (uint32_t index = threadIdx.x; index < row.entries; index += SAMPLING_THREADS) {
                if (ranks[index] >= RANK_OF_NOTHING) continue;
                const uint64_t key = key_of(x_of_rank(ranks[index]), index);
                if (key < before && key > best) best = key;
            }
            before = row.block.max(best);
            if (before == 0) return;
            if (threadIdx.x == 0) propose(place, before, least);
        }
    }

    DEVICE void run(uint32_t* ranks, float least_probability) const {
        const uint64_t least = least_mass(least_probability);
        const uint32_t asked = draft_top_k(state.top_k, width);
        const uint32_t top_k = state.temperature == 0.0f || asked >= row.entries ? 0 : asked;
        if (top_k != 0 && top_k <= MOST_CANDIDATES && rank_candidates(top_k, least)) return;
        rank_all(ranks, top_k, least);
    }
};

/// Block (stream, depth - 1): the proposals for the codebook that is `depth` ahead. What cannot be drawn proposes nothing.
DEVICE void draft(const DraftArguments& arguments) {
    SHARED(unsigned char, memory);
    SamplingShared& shared = *reinterpret_cast<SamplingShared*>(memory);
    uint32_t* const ranks = reinterpret_cast<uint32_t*>(memory + sizeof(SamplingShared));
    const uint32_t stream = blockIdx.x, depth = blockIdx.y + 1, entries = arguments.codebook_size;
    wait_for_earlier_kernels();
    // Not before: what comes after may read what the last round left without waiting for it.
    let_next_kernel_start();
    RoundState& round = reinterpret_cast<RoundState*>(arguments.rounds)[stream];
    if (round.is_done(arguments.codebook_count)) return;
    int32_t* const proposals = round.proposals[depth - 1];
    if (threadIdx.x < MOST_VERIFY_ROWS) proposals[threadIdx.x] = NO_DRAFT;
    __syncthreads();
    const uint32_t committed = round.committed;
    if (committed + depth >= arguments.codebook_count) return;

    const RowState& state = reinterpret_cast<const RowState*>(arguments.rows)[stream];
    const float* const logits = reinterpret_cast<const float*>(arguments.logits) +
                                static_cast<int64_t>(stream * gridDim.y + depth - 1) * entries;
    const CodebookAddresses& codebook = reinterpret_cast<const CodebookAddresses*>(arguments.codebooks)[committed];
    const bool fitted = depth == 1 && codebook.draft_head != 0;
    const void* const added = reinterpret_cast<const void*>(codebook.draft_table);
    const uint32_t added_type = codebook.draft_table_type;
    const int64_t added_row = static_cast<int64_t>(round.drafts[0]) * entries;
    const auto logit_at = [&](uint32_t index) {
        return fitted ? logits[index] + load_float(added, added_row + index, added_type) : logits[index];
    };
    BlockReduction block = {shared.parts, 0};
    const uint64_t largest = look(logit_at, entries, state.temperature, GreedyRanks::Keep, ranks, block);
    if (largest == FAILED || state.parameters_out_of_range) return;
    const RankedRow row = {ranks, entries, largest_x_of(largest, state.temperature), shared, block};
    const NoiseCounter noise = {state.seed, state.frame_index, committed + depth};
    const Draft<decltype(logit_at)> made = {logit_at, state, noise, row, arguments.widths[depth - 1], proposals};
    made.run(ranks, arguments.least_probability);
}

struct EmbedRowsArguments {
    uint64_t rounds; // RoundState [slots]
    uint64_t codebooks; // CodebookAddresses [R]
    uint64_t residual; // [rows of the tree * slots, H] float32; row r of stream b at r * slots + b
    uint32_t codebook_count; // R
    uint32_t hidden_size;
    DraftTree tree;
};

/// Block (stream, row): the row's code, and its embedding in the residual stream. Row 0 feeds the pending code, which is among
/// the drafts already; another takes part if its draft and all that it hangs under are there.
DEVICE void embed_rows(const EmbedRowsArguments& arguments) {
    const uint32_t stream = blockIdx.x, row = blockIdx.y;
    const DraftTree& tree = arguments.tree;
    wait_for_earlier_kernels();
    // Not before: what comes after may read what the last round left without waiting for it.
    let_next_kernel_start();
    RoundState& round = reinterpret_cast<RoundState*>(arguments.rounds)[stream];
    if (round.is_done(arguments.codebook_count)) return;
    int32_t code = row == 0 ? round.drafts[0] : 0;
    for (int on_path = row; on_path != 0 && code != NO_DRAFT; on_path = tree.parents[on_path]) {
        const int32_t proposed = round.proposals[tree.depths[on_path] - 1][tree.ranks[on_path]];
        if (proposed == NO_DRAFT || on_path == static_cast<int>(row)) code = proposed;
    }
    if (row != 0 && threadIdx.x == 0) round.drafts[row] = code;
    if (code == NO_DRAFT) return;
    const uint32_t hidden_size = arguments.hidden_size, codebook = round.committed + tree.depths[row];
    const CodebookAddresses& from = reinterpret_cast<const CodebookAddresses*>(arguments.codebooks)[codebook - 1];
    const void* const table = reinterpret_cast<const void*>(from.projected);
    float* const residual = reinterpret_cast<float*>(arguments.residual) +
                            static_cast<int64_t>(row * gridDim.x + stream) * hidden_size;
    for (uint32_t index = threadIdx.x; index < hidden_size; index += blockDim.x)
        residual[index] = load_float(table, static_cast<int64_t>(code) * hidden_size + index, from.projected_type);
}

} // namespace overtone

using overtone::DraftArguments;
using overtone::EmbedRowsArguments;

KERNEL(draft, DraftArguments, 256, 2) { overtone::draft(args); }
KERNEL(embed_rows, EmbedRowsArguments, 256, 2) { overtone::embed_rows(args); }
