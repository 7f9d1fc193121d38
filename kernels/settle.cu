// The end of a round: what its rows draw, and what follows from it.
//
// A draft is accepted iff it equals what the row before it draws, by the arithmetic and with the noise of every draw: what is
// committed is what the step-by-step loop would have drawn, from the same logits. Only committed draws may fail a row. One
// that fails commits code 0, as it does there, and a draft of 0 behind it is accepted.

#include "commit.cuh"
#include "draw.cuh"
#include "rounds.cuh"

namespace overtone {

struct DrawRowsArguments {
    uint64_t rows; // RowState [slots]
    uint64_t rounds; // RoundState [slots]
    uint64_t logits; // [slots, rows of the tree, V] float32
    uint32_t codebook_size; // V
    uint32_t codebook_count; // R
    DraftTree tree;
};

/// Block (stream, row): the draw of one row.
DEVICE void draw_rows(const DrawRowsArguments& arguments) {
    SHARED(unsigned char, memory);
    SamplingShared& shared = *reinterpret_cast<SamplingShared*>(memory);
    uint32_t* const ranks = reinterpret_cast<uint32_t*>(memory + sizeof(SamplingShared));
    const uint32_t stream = blockIdx.x, row = blockIdx.y, entries = arguments.codebook_size;
    wait_for_earlier_kernels();
    let_next_kernel_start();
    RoundState& round = reinterpret_cast<RoundState*>(arguments.rounds)[stream];
    if (round.is_done(arguments.codebook_count) || round.drafts[row] == NO_DRAFT) return;
    const RowState& state = reinterpret_cast<const RowState*>(arguments.rows)[stream];
    const float* const logits = reinterpret_cast<const float*>(arguments.logits) +
                                static_cast<int64_t>(stream * arguments.tree.rows + row) * entries;
    const uint32_t codebook = round.committed + arguments.tree.depths[row] + 1;
    const int64_t drawn = draw(logits, entries, state, codebook, ranks, shared);
    if (threadIdx.x == 0) round.drawn[row] = drawn < 0 ? FAILED_DRAW : static_cast<int32_t>(drawn);
}

struct SettleArguments {
    uint64_t frame; // FrameBlock; its header alone is read
    uint64_t rows; // RowState [slots]
    uint64_t counters; // FrameCounters
    uint64_t rounds; // RoundState [slots]
    uint64_t loop; // RoundLoop
    uint64_t round_counters; // RoundCounters [rows of the batch]
    uint64_t host_counters; // a copy of them in pinned host memory; 0: none
    uint64_t codebooks; // CodebookAddresses [R]
    uint64_t logits; // [slots, rows of the tree, V] float32
    uint64_t codec_sum; // [slots, Ht] float32
    uint64_t normed; // activations of T: a tile of columns for each stream and depth
    uint64_t seeds; // activations of T: a tile for each stream, whose first column is what the next drafts are made from
    uint64_t conditional; // handle of the loop over rounds; 0: the host counts them
    uint32_t codebook_size; // V
    uint32_t codebook_count; // R
    uint32_t talker_hidden_size;
    uint32_t pairs; // width of the activations
    uint32_t prefill; // not 0: the pass was the prefill, which is no round
    uint32_t reserved;
    DraftTree tree;
};

/// A stream's state, copied by the whole block; complete after the next barrier.
DEVICE void copy_state(const RoundState& from, RoundState& to) {
    constexpr uint32_t PIECES = sizeof(RoundState) / sizeof(uint4);
    static_assert(sizeof(RoundState) % sizeof(uint4) == 0 && PIECES <= SAMPLING_THREADS, "one piece a thread");
    if (threadIdx.x < PIECES)
        reinterpret_cast<uint4*>(&to)[threadIdx.x] = reinterpret_cast<const uint4*>(&from)[threadIdx.x];
}

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
    RoundState round;
    Settled settled;
};

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

/// By one thread: the stream goes on behind what was committed.
DEVICE void advance(const DraftTree& tree, const Settled& settled, bool prefill, RoundState& round) {
    if (!prefill) {
        round.rounds += 1;
        for (int row = 1; row < tree.rows; ++row) round.drafted += round.drafts[row] != NO_DRAFT;
        round.accepted += settled.count - 1;
    }
    for (uint32_t place = 0; place < settled.count; ++place) {
        const uint8_t slot = round.row_slots[settled.rows[place]];
        round.slots[round.committed + 1 + place] = slot;
        round.used |= 1ull << slot;
    }
    round.committed += settled.count;
    round.drafts[0] = static_cast<int32_t>(settled.codes[settled.count - 1]);
    give_out_slots(round);
}

/// By one thread, when the stream is done.
DEVICE void count_rounds(const SettleArguments& arguments, uint32_t stream, const RoundState& round) {
    RoundCounters& counters = reinterpret_cast<RoundCounters*>(arguments.round_counters)[stream];
    counters.frames += 1;
    counters.rounds += round.rounds;
    counters.codes += arguments.codebook_count - 1;
    counters.drafted += round.drafted;
    counters.accepted += round.accepted;
    if (arguments.host_counters != 0)
        reinterpret_cast<RoundCounters*>(arguments.host_counters)[stream] = counters;
}

/// By one thread of each block: the last of them decides whether there is another round.
DEVICE void end_round(RoundLoop& loop, uint64_t conditional, bool unfinished) {
    const uint32_t before = atomicAdd(&loop.settled, 1u + (static_cast<uint32_t>(unfinished) << 16));
    if ((before & 0xffffu) + 1 != gridDim.x) return;
    const uint32_t left = (before >> 16) + unfinished;
    loop.settled = 0;
    loop.unfinished = left;
    repeat_loop(conditional, left != 0);
}

/// Commits what a stream's round drew; true where more is to come.
template <typename T> DEVICE bool settle_stream(const SettleArguments& arguments, uint32_t stream) {
    SHARED(SettleShared, shared);
    const FrameHeader& frame = shared->frame;
    RoundState& round = shared->round;
    Settled& settled = shared->settled;
    RoundState& round_in_memory = reinterpret_cast<RoundState*>(arguments.rounds)[stream];
    RowState& row_state = reinterpret_cast<RowState*>(arguments.rows)[stream];
    FrameCounters& counters = *reinterpret_cast<FrameCounters*>(arguments.counters);
    const DraftTree& tree = arguments.tree;
    const bool prefill = arguments.prefill != 0;
    copy_header(arguments.frame, shared->frame);
    copy_state(round_in_memory, round);
    __syncthreads();
    const bool done = round.is_done(arguments.codebook_count);
    if (!done && threadIdx.x == 0) walk(tree, round, row_state.status, settled);
    __syncthreads();
    if (stream >= frame.batch) return false;
    if (prefill && stream == 0 && threadIdx.x == 0) finish_frame(frame, counters);
    if (done) {
        if (prefill && threadIdx.x == 0) finish_row(frame, counters, stream, false, 0);
        return false;
    }

    const uint32_t first = round.committed + 1, count = settled.count, entries = arguments.codebook_size;
    const uint32_t width = arguments.talker_hidden_size, codebooks = arguments.codebook_count;
    const CodebookAddresses* const all = reinterpret_cast<const CodebookAddresses*>(arguments.codebooks);
    float* const codec_sum = reinterpret_cast<float*>(arguments.codec_sum) + static_cast<int64_t>(stream) * width;
    const auto table = [&](uint32_t codebook) {
        const CodebookAddresses& from = all[codebook - 1];
        return EmbeddingTable{reinterpret_cast<const void*>(from.table), from.table_type};
    };
    take_in(frame, {stream, first, count, codebooks, settled.codes}, codec_sum, width, table,
            [](uint32_t, uint32_t, float) {});
    const float* const logits =
        reinterpret_cast<const float*>(arguments.logits) + static_cast<int64_t>(stream) * tree.rows * entries;
    for (uint32_t place = 0; place < count; ++place)
        keep_logits(frame, stream, first + place, logits + static_cast<int64_t>(settled.rows[place]) * entries,
                    entries);
    if (threadIdx.x < count) store_code(frame, row_state.codes, first + threadIdx.x, settled.codes[threadIdx.x]);

    const uint32_t last = settled.rows[count - 1], depth = tree.depths[last];
    const int64_t tile = activation_tile_elements(arguments.pairs);
    const T* const normed =
        reinterpret_cast<const T*>(arguments.normed) + (static_cast<int64_t>(stream) * (tree.depth + 1) + depth) * tile;
    T* const seed = reinterpret_cast<T*>(arguments.seeds) + stream * tile;
    for (uint32_t index = threadIdx.x; index < arguments.pairs * PAIR; index += blockDim.x)
        seed[Fragments<T>::activation_index(0, index)] =
            normed[Fragments<T>::activation_index(last - tree.first[depth], index)];

    __syncthreads();
    const bool ends = first + count > codebooks;
    if (threadIdx.x == 0) {
        row_state.status = settled.status;
        advance(tree, settled, prefill, round);
        if (ends) {
            finish_row(frame, counters, stream, true, settled.status);
            count_rounds(arguments, stream, round);
        }
    }
    __syncthreads();
    copy_state(round, round_in_memory);
    return !ends;
}

template <typename T> DEVICE void settle(const SettleArguments& arguments) {
    wait_for_earlier_kernels();
    const bool unfinished = settle_stream<T>(arguments, blockIdx.x);
    if (threadIdx.x == 0)
        end_round(*reinterpret_cast<RoundLoop*>(arguments.loop), arguments.conditional, unfinished);
}

} // namespace overtone

using overtone::DrawRowsArguments;
using overtone::SettleArguments;

KERNEL(draw_rows, DrawRowsArguments, 256, 2) { overtone::draw_rows(args); }
KERNEL(settle_f32, SettleArguments, 256, 2) { overtone::settle<float>(args); }
KERNEL(settle_f16, SettleArguments, 256, 2) { overtone::settle<overtone::Float16>(args); }
KERNEL(settle_bf16, SettleArguments, 256, 2) { overtone::settle<overtone::BFloat16>(args); }
