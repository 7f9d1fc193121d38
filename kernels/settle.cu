// The end of a round: what is accepted of what its rows drew, what follows from it, and the rows of the next round.
//
// A draft is accepted iff it equals what the row before it draws, by the arithmetic and with the noise of every draw: what is
// committed is what the step-by-step loop would have drawn, from the same logits. Only committed draws may fail a row. One
// that fails commits code 0, as it does there, and a draft of 0 behind it is accepted.

#include "commit.cuh"
#include "rounds.cuh"

namespace overtone {

struct SettleArguments {
    uint64_t frame; // FrameBlock; its header alone is read
    uint64_t rows; // RowState [slots]
    uint64_t counters; // FrameCounters
    uint64_t rounds; // RoundState [slots]
    uint64_t proposals; // RowProposals [slots, rows of the tree]
    uint64_t loop; // RoundLoop
    uint64_t round_counters; // RoundCounters [rows of the batch]
    uint64_t host_counters; // a copy of them in pinned host memory; 0: none
    uint64_t codebooks; // CodebookAddresses [R]
    uint64_t logits; // [slots, heads, rows of the tree, V] float32
    uint64_t codec_sum; // [slots, Ht] float32
    uint64_t residual; // [rows of the tree * slots, H] float32; row r of stream b at r * slots + b
    uint64_t conditional; // handle of the loop over rounds; 0: the host counts them
    uint32_t codebook_size; // V
    uint32_t codebook_count; // R
    uint32_t talker_hidden_size;
    uint32_t hidden_size;
    uint32_t prefill; // not 0: the pass was the prefill, which is no round
    uint32_t reserved;
    RoundHeads heads;
    DraftTree tree;
};

/// What a round commits of one stream.
struct Settled {
    uint32_t count;
    int32_t status;
    uint32_t rows[MOST_VERIFY_ROWS]; // that draw
    uint32_t codes[MOST_VERIFY_ROWS]; // that they draw
};

/// What the block's threads share.
struct alignas(16) SettleShared {
    FrameHeader frame;
    RowState row;
    RoundState round;
    RowProposals proposals[MOST_VERIFY_ROWS];
    CodebookAddresses codebooks[2 * MOST_VERIFY_ROWS]; // from the first that may be committed on
    Settled settled;
};
static_assert(sizeof(SettleShared) == 3632, "as rust/cuda/src/rounds.rs has it");

/// Copies words with the whole block; they are complete after the next barrier.
template <typename From> DEVICE void copy_words(const From* from, void* to, uint32_t bytes) {
    for (uint32_t word = threadIdx.x; word < bytes / 4; word += SAMPLING_THREADS)
        static_cast<uint32_t*>(to)[word] = reinterpret_cast<const uint32_t*>(from)[word];
}

/// By one thread: the rows along which drafts agree, and their draws.
DEVICE void walk(const DraftTree& tree, const RoundState& round, int32_t status, Settled& settled) {
    uint32_t count = 0;
    for (int row = 0, next = 0; next >= 0; row = next) {
        const int32_t drawn = round.drawn[row];
        const int32_t code = drawn == FAILED_DRAW ? 0 : drawn;
        if (drawn == FAILED_DRAW && status == 0) status = static_cast<int32_t>(round.committed + count + 1);
        settled.rows[count] = row;
        settled.codes[count++] = static_cast<uint32_t>(code);
        next = -1;
        for (int child = row + 1; child < tree.rows; ++child)
            if (tree.parents[child] == row && round.drafts[child] == code) next = child;
    }
    settled.count = count;
    settled.status = status;
}

/// The draft of a row of the next round: what the row accepted last proposed. Like all that it hangs under, it has to be there.
DEVICE int32_t next_draft(const DraftTree& tree, const SettleShared& shared, int row) {
    const Settled& settled = shared.settled;
    if (row == 0) return static_cast<int32_t>(settled.codes[settled.count - 1]);
    const RowProposals& proposals = shared.proposals[settled.rows[settled.count - 1]];
    const int32_t own = proposals.codes[tree.depths[row] - 1][tree.ranks[row]];
    bool there = own != NO_DRAFT;
    for (int above = tree.parents[row]; above != 0; above = tree.parents[above])
        there &= proposals.codes[tree.depths[above] - 1][tree.ranks[above]] != NO_DRAFT;
    return there ? own : NO_DRAFT;
}

/// By one thread: the stream goes on behind what was committed.
DEVICE void advance(const DraftTree& tree, const Settled& settled, bool prefill, RoundState& round) {
    if (!prefill) {
        uint32_t drafted = 0;
        for (int row = 1; row < tree.rows; ++row) drafted += round.drafts[row] != NO_DRAFT;
        round.rounds += 1;
        round.drafted += drafted;
        round.accepted += settled.count - 1;
    }
    uint64_t used = round.used;
    for (uint32_t place = 0; place < settled.count; ++place) {
        const uint8_t slot = round.row_slots[settled.rows[place]];
        round.slots[round.committed + 1 + place] = slot;
        used |= 1ull << slot;
    }
    round.used = used;
    round.committed += settled.count;
    give_out_slots(round, tree.rows);
}

/// By one thread, when the stream is done.
DEVICE void count_rounds(const SettleArguments& arguments, uint32_t stream, const RoundState& round) {
    RoundCounters& counters = reinterpret_cast<RoundCounters*>(arguments.round_counters)[stream];
    counters.frames += 1;
    counters.rounds += round.rounds;
    counters.codes += arguments.codebook_count - 1;
    counters.drafted += round.drafted;
    counters.accepted += round.accepted;
    if (arguments.host_counters != 0) reinterpret_cast<RoundCounters*>(arguments.host_counters)[stream] = counters;
}

/// By one thread of each block: the last of them decides whether there is another round. There are never more passes than
/// codebooks, whatever the memory holds.
DEVICE void end_round(const SettleArguments& arguments, bool unfinished) {
    RoundLoop& loop = *reinterpret_cast<RoundLoop*>(arguments.loop);
    uint32_t left = unfinished;
    if (gridDim.x > 1) {
        const uint32_t before = atomicAdd(&loop.settled, 1u + (left << 16));
        if ((before & 0xffffu) + 1 != gridDim.x) return;
        left += before >> 16;
        loop.settled = 0;
    }
    loop.unfinished = left;
    loop.passes += 1;
    loop.goes_on = left != 0 && loop.passes < arguments.codebook_count;
    repeat_loop(arguments.conditional, loop.goes_on);
}

/// What the next round's rows feed, in the residual stream: a warp a row, four elements a lane at a time.
DEVICE void embed_rows(const SettleArguments& arguments, uint32_t stream, const SettleShared& shared) {
    static_assert(SAMPLING_WARPS >= MOST_VERIFY_ROWS, "a warp a row");
    const uint32_t row = threadIdx.x / WARP, hidden_size = arguments.hidden_size;
    const int32_t code = row < arguments.tree.rows ? next_draft(arguments.tree, shared, row) : NO_DRAFT;
    if (code == NO_DRAFT) return;
    const CodebookAddresses& from = shared.codebooks[shared.settled.count - 1 + arguments.tree.depths[row]];
    const void* const table = reinterpret_cast<const void*>(from.projected);
    const uint32_t type = from.projected_type;
    float* const residual =
        reinterpret_cast<float*>(arguments.residual) + static_cast<int64_t>(row * gridDim.x + stream) * hidden_size;
    // Pieces of a lane that are on their way together: no load moves before a store, so all come first.
    constexpr int AT_ONCE = 8, PIECE = 4;
    for (uint32_t first = threadIdx.x % WARP * PIECE; first < hidden_size; first += AT_ONCE * WARP * PIECE) {
        float4 pieces[AT_ONCE];
#pragma unroll
        for (int number = 0; number < AT_ONCE; ++number) {
            const uint32_t index = first + number * WARP * PIECE;
            if (index < hidden_size)
                pieces[number] = load_four(table, static_cast<int64_t>(code) * hidden_size + index, type);
        }
#pragma unroll
        for (int number = 0; number < AT_ONCE; ++number) {
            const uint32_t index = first + number * WARP * PIECE;
            if (index < hidden_size) *reinterpret_cast<float4*>(residual + index) = pieces[number];
        }
    }
}

/// Commits what a stream's round drew; true where more is to come.
DEVICE bool settle_stream(const SettleArguments& arguments, uint32_t stream) {
    SHARED(SettleShared, shared);
    const FrameHeader& frame = shared->frame;
    RoundState& round = shared->round;
    Settled& settled = shared->settled;
    RowState& row_state = reinterpret_cast<RowState*>(arguments.rows)[stream];
    RoundState& round_in_memory = reinterpret_cast<RoundState*>(arguments.rounds)[stream];
    FrameCounters& counters = *reinterpret_cast<FrameCounters*>(arguments.counters);
    const DraftTree& tree = arguments.tree;
    const uint32_t codebooks = arguments.codebook_count, first = round_in_memory.committed + 1;
    const bool done = first > codebooks, prefill = arguments.prefill != 0;
    copy_header(arguments.frame, shared->frame);
    copy_words(&row_state, &shared->row, sizeof(RowState));
    copy_words(&round_in_memory, &round, sizeof(RoundState));
    copy_words(reinterpret_cast<const RowProposals*>(arguments.proposals) + stream * tree.rows, shared->proposals,
               tree.rows * sizeof(RowProposals));
    const uint32_t left = done ? 0 : codebooks - first + 1, reach = 2 * tree.depth + 1;
    copy_words(reinterpret_cast<const CodebookAddresses*>(arguments.codebooks) + first - 1, shared->codebooks,
               (left < reach ? left : reach) * sizeof(CodebookAddresses));
    __syncthreads();
    if (stream >= frame.batch) return false;
    if (prefill && stream == 0 && threadIdx.x == 0) finish_frame(frame, counters);
    if (done) {
        if (prefill && threadIdx.x == 0) finish_row(frame, counters, stream, false, 0);
        return false;
    }
    if (threadIdx.x == 0) walk(tree, round, shared->row.status, settled);
    __syncthreads();

    const uint32_t count = settled.count, width = arguments.talker_hidden_size;
    const bool ends = first + count > codebooks;
    if (!ends) embed_rows(arguments, stream, *shared);
    float* const codec_sum = reinterpret_cast<float*>(arguments.codec_sum) + static_cast<int64_t>(stream) * width;
    const auto table = [&](uint32_t codebook) {
        const CodebookAddresses& from = shared->codebooks[codebook - first];
        return EmbeddingTable{reinterpret_cast<const void*>(from.table), from.table_type};
    };
    take_in(frame, {stream, first, count, codebooks, settled.codes}, codec_sum, width, table,
            [](uint32_t, uint32_t, float) {});
    for (uint32_t place = 0; place < count; ++place) {
        const int64_t row = (stream * arguments.heads.count() + place) * tree.rows + settled.rows[place];
        keep_logits(frame, stream, first + place,
                    reinterpret_cast<const float*>(arguments.logits) + row * arguments.codebook_size,
                    arguments.codebook_size);
    }
    if (threadIdx.x < count) store_code(frame, shared->row.codes, first + threadIdx.x, settled.codes[threadIdx.x]);

    if (threadIdx.x == 0) {
        row_state.status = settled.status;
        advance(tree, settled, prefill, round);
        if (ends) {
            finish_row(frame, counters, stream, true, settled.status);
            count_rounds(arguments, stream, round);
        }
    }
    __syncthreads();
    if (threadIdx.x < tree.rows) round.drafts[threadIdx.x] = next_draft(tree, *shared, threadIdx.x);
    __syncthreads();
    copy_words(&round, &round_in_memory, sizeof(RoundState));
    return !ends;
}

/// Prefetches a word of every 2 MiB of the tables that may be wanted: which rows is not known yet, but the translation of an
/// address takes longer than reading it.
DEVICE void visit_pages(const SettleArguments& arguments, uint32_t stream) {
    constexpr uint32_t PAGE_SHIFT = 21, THREADS_A_TABLE = 16;
    const RoundState& round = reinterpret_cast<const RoundState*>(arguments.rounds)[stream];
    const uint32_t place = threadIdx.x / THREADS_A_TABLE, entry = round.committed + place;
    if (place > arguments.tree.depth || entry >= arguments.codebook_count) return;
    const CodebookAddresses& from = reinterpret_cast<const CodebookAddresses*>(arguments.codebooks)[entry];
    const uint64_t size = from.table_type == ELEMENT_FLOAT32 ? 4 : 2;
    const uint64_t bytes = size * arguments.codebook_size * arguments.talker_hidden_size;
    const uint64_t offset = static_cast<uint64_t>(threadIdx.x % THREADS_A_TABLE) << PAGE_SHIFT;
    if (offset < bytes) prefetch(reinterpret_cast<const char*>(from.table) + offset);
}

DEVICE void settle(const SettleArguments& arguments) {
    visit_pages(arguments, blockIdx.x);
    wait_for_earlier_kernels();
    const bool unfinished = settle_stream(arguments, blockIdx.x);
    if (threadIdx.x == 0) end_round(arguments, unfinished);
}

} // namespace overtone

using overtone::SettleArguments;

KERNEL(settle, SettleArguments, 256, 2) { overtone::settle(args); }
