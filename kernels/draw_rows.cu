// The draws of a round's rows: the code that each row draws, and what it would draft behind it.
//
// A proposal is a guess: nothing depends on it but how soon the frame is done, so a row that cannot be drawn from just proposes
// nothing.

#include "draw.cuh"
#include "rounds.cuh"

namespace overtone {

struct DrawRowsArguments {
    uint64_t rows; // RowState [slots]
    uint64_t rounds; // RoundState [slots]
    uint64_t proposals; // RowProposals [slots, rows of the tree]
    uint64_t codebooks; // CodebookAddresses [R]
    uint64_t logits; // [slots, heads, rows of the tree, V] float32
    uint32_t codebook_size; // V
    uint32_t codebook_count; // R
    float least_probability; // of a proposal, before any filter; 0: any
    uint32_t reserved;
    uint8_t widths[MOST_VERIFY_ROWS]; // proposals one codebook ahead, two, ...
    RoundHeads heads;
    DraftTree tree;
};

/// How far below the largest x an entry may be and still be proposed, where the row's draws are filtered at all
/// (rust/core/src/sampling/draft.rs).
CONSTANT float DRAFT_REACH = 4.0f;

/// A row of draft logits and the best draws from it, under the noise that the code's own draw will meet: `Sampler::propose` of
/// rust/core/src/sampling/draft.rs.
template <typename Logit> struct Draft {
    Logit logit_at;
    const RowState& state;
    NoiseCounter noise;
    RankedRow row;
    uint32_t* ranks; // those of the row, on their way to become the scores'
    uint32_t width;
    int32_t* proposals; // [width]

    /// The x of an entry; a greedy row's is its logit.
    DEVICE float x_at(uint32_t index) const {
        const float logit = logit_at(index);
        return state.temperature == 0.0f ? logit : logit / state.temperature;
    }

    /// Rank of the score of an entry that may be proposed.
    DEVICE uint32_t score_rank(uint32_t rank, uint32_t index) const {
        return state.temperature == 0.0f ? rank : rank_of(x_of_rank(rank) + gumbel_noise(noise, index));
    }

    /// The mass that an entry needs to be proposed.
    DEVICE uint64_t least_mass(float least_probability) const {
        if (!(least_probability > 0.0f)) return 0;
        const auto mass = [&](uint32_t rank, uint32_t) {
            return rank < RANK_OF_NOTHING ? mass_of_rank(rank, row.largest) : 0;
        };
        return mass_threshold(least_probability, row.sum(mass));
    }

    /// The largest rank that may be proposed.
    DEVICE uint32_t border() const {
        const bool filtered = state.temperature != 0.0f && (state.top_k != 0 || state.top_p < 1.0f);
        const uint32_t reached = rank_of(row.largest - DRAFT_REACH);
        return filtered && reached < RANK_OF_NOTHING ? reached : RANK_OF_NOTHING - 1;
    }

    /// The best, then the best that is worse, and so on.
    DEVICE void run(float least_probability) const {
        const uint64_t least = least_mass(least_probability);
        const uint32_t last = border();
        for (uint32_t index = threadIdx.x; index < row.entries; index += SAMPLING_THREADS)
            ranks[index] = ranks[index] <= last ? score_rank(ranks[index], index) : RANK_OF_NOTHING;
        uint64_t before = FAILED;
        for (uint32_t place = 0; place < width; ++place) {
            uint64_t best = 0;
            for (uint32_t index = threadIdx.x; index < row.entries; index += SAMPLING_THREADS) {
                const uint64_t key = static_cast<uint64_t>(~ranks[index]) << 32 | (0xffffffffu - index);
                if (ranks[index] < RANK_OF_NOTHING && key < before && key > best) best = key;
            }
            before = row.block.max(best);
            if (before == 0) return;
            const uint32_t code = code_of_key(before);
            const bool probable = least == 0 || mass_of_rank(rank_of(x_at(code)), row.largest) >= least;
            if (threadIdx.x == 0 && probable) proposals[place] = static_cast<int32_t>(code);
        }
    }
};

/// Proposals for the codebook `ahead` of the one that a row draws. `drawn` is the row's own code, which a fitted draft one
/// codebook ahead looks at.
DEVICE void propose(const DrawRowsArguments& arguments, const RowState& state, const float* logits, uint32_t codebook,
                    uint32_t ahead, int64_t drawn, uint32_t* ranks, SamplingShared& shared, BlockReduction& block,
                    int32_t* proposals) {
    const uint32_t entries = arguments.codebook_size;
    const CodebookAddresses& from = reinterpret_cast<const CodebookAddresses*>(arguments.codebooks)[codebook - 1];
    const bool fitted = arguments.heads.are_fitted(ahead);
    const void* const added = reinterpret_cast<const void*>(from.draft_table);
    const uint32_t added_type = from.draft_table_type;
    const int64_t added_row = drawn * entries;
    const auto logit_at = [&](uint32_t index) {
        return fitted ? logits[index] + load_float(added, added_row + index, added_type) : logits[index];
    };
    const uint64_t largest = look(logit_at, entries, state.temperature, GreedyRanks::Keep, ranks, block);
    if (largest == FAILED || state.parameters_out_of_range) return;
    const RankedRow row = {ranks, entries, largest_x_of(largest, state.temperature), shared, block};
    const NoiseCounter noise = {state.seed, state.frame_index, codebook};
    const uint32_t width = arguments.widths[ahead - 1];
    const Draft<decltype(logit_at)> draft = {logit_at, state, noise, row, ranks, width, proposals};
    draft.run(arguments.least_probability);
}

/// Block (stream, row, ahead): the row's draw for 0, else its proposals for the codebook so far ahead of that.
DEVICE void draw_rows(const DrawRowsArguments& arguments) {
    SHARED(unsigned char, memory);
    SamplingShared& shared = *reinterpret_cast<SamplingShared*>(memory);
    uint32_t* const ranks = reinterpret_cast<uint32_t*>(memory + sizeof(SamplingShared));
    const DraftTree& tree = arguments.tree;
    const uint32_t stream = blockIdx.x, row = blockIdx.y, ahead = blockIdx.z, entries = arguments.codebook_size;
    // The first kernel of the frame and the round before wrote these, and have ended.
    const RowState state = reinterpret_cast<const RowState*>(arguments.rows)[stream];
    RoundState& round = reinterpret_cast<RoundState*>(arguments.rounds)[stream];
    const uint32_t codebook = round.committed + tree.depths[row] + 1;
    const bool takes_part = codebook <= arguments.codebook_count && round.drafts[row] != NO_DRAFT;
    const int64_t head_elements = static_cast<int64_t>(tree.rows) * entries;
    const float* const stream_logits = reinterpret_cast<const float*>(arguments.logits) +
                                       stream * arguments.heads.count() * head_elements + row * entries;
    const float* const logits = stream_logits + arguments.heads.of(tree.depths[row], 0) * head_elements;
    wait_for_earlier_kernels();
    let_next_kernel_start();
    if (!takes_part) return;
    BlockReduction block = {shared.parts, 0};
    if (ahead == 0) {
        const int64_t drawn = draw(logits, entries, state, codebook, ranks, shared, block);
        if (threadIdx.x == 0) round.drawn[row] = drawn < 0 ? FAILED_DRAW : static_cast<int32_t>(drawn);
        return;
    }
    int32_t* const proposals =
        reinterpret_cast<RowProposals*>(arguments.proposals)[stream * tree.rows + row].codes[ahead - 1];
    if (threadIdx.x < MOST_VERIFY_ROWS) proposals[threadIdx.x] = NO_DRAFT;
    // No row follows the last codebook: it is drafted for nobody.
    const uint32_t drafted = codebook + ahead;
    if (drafted >= arguments.codebook_count) return;
    int64_t drawn = 0;
    if (arguments.heads.are_fitted(ahead)) {
        drawn = draw(logits, entries, state, codebook, ranks, shared, block);
        if (drawn < 0) drawn = 0;
    }
    __syncthreads();
    const float* const draft_logits = stream_logits + arguments.heads.of(tree.depths[row], ahead) * head_elements;
    propose(arguments, state, draft_logits, drafted, ahead, drawn, ranks, shared, block, proposals);
}

} // namespace overtone

using overtone::DrawRowsArguments;

KERNEL(draw_rows, DrawRowsArguments, 256, 2) { overtone::draw_rows(args); }
