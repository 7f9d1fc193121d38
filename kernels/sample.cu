// One draw a row, and all that follows from it: one block a row.
//
// The draw is that of rust/core/src/sampling/draw.rs: a failing row gets code 0, records the codebook in its status and goes
// on. Then the code is stored, its embedding row is handed out (`codec_hiddens`), added to `codec_sum`, and becomes the
// residual stream of the next step.

#include "commit.cuh"
#include "draw.cuh"

namespace overtone {

struct SampleArguments {
    uint64_t frame; // FrameBlock; its header alone is read
    uint64_t rows; // RowState [slots]
    uint64_t counters; // FrameCounters
    uint64_t logits; // [slots, V] float32
    uint64_t table; // E[codebook - 1] [V, Ht]
    uint64_t projected; // P of it, [V, H]; the same without a projection
    uint64_t residual; // [slots, H] float32
    uint64_t codec_sum; // [slots, Ht] float32
    uint32_t table_type;
    uint32_t projected_type;
    uint32_t codebook; // 1 ... R
    uint32_t codebooks; // R
    uint32_t codebook_size; // V
    uint32_t hidden_size;
    uint32_t talker_hidden_size;
    uint32_t reserved;
};

/// Hands out the embedding row of the code, and makes it the residual stream of the next step.
DEVICE void embed(const SampleArguments& arguments, const FrameHeader& frame, uint32_t row, uint32_t code) {
    const uint32_t width = arguments.talker_hidden_size, hidden_size = arguments.hidden_size;
    float* const codec_sum = reinterpret_cast<float*>(arguments.codec_sum) + static_cast<int64_t>(row) * width;
    float* const residual = reinterpret_cast<float*>(arguments.residual) + static_cast<int64_t>(row) * hidden_size;
    const bool last = arguments.codebook == arguments.codebooks;
    const bool projected = arguments.projected != arguments.table;
    const EmbeddingTable table = {reinterpret_cast<const void*>(arguments.table), arguments.table_type};
    take_in(
        frame, {row, arguments.codebook, 1, arguments.codebooks, &code}, codec_sum, width,
        [&](uint32_t) { return table; },
        [&](uint32_t, uint32_t index, float value) {
            if (!projected && !last) residual[index] = value;
        });
    if (last || !projected) return;
    const void* const behind_projection = reinterpret_cast<const void*>(arguments.projected);
    for (uint32_t index = threadIdx.x; index < hidden_size; index += SAMPLING_THREADS)
        residual[index] =
            load_float(behind_projection, static_cast<int64_t>(code) * hidden_size + index, arguments.projected_type);
}

/// Prefetches a word of every 2 MiB of the table: which row will be wanted is not known yet, but the translation of its
/// address takes longer than reading it, and is the same for the whole page.
DEVICE void visit_pages(const SampleArguments& arguments) {
    constexpr uint64_t PAGE = 2 << 20;
    const uint64_t size = arguments.table_type == ELEMENT_FLOAT32 ? 4 : 2;
    const uint64_t offset = threadIdx.x * PAGE, bytes = size * arguments.codebook_size * arguments.talker_hidden_size;
    if (offset < bytes) prefetch(reinterpret_cast<const char*>(arguments.table) + offset);
}

DEVICE void sample(const SampleArguments& arguments) {
    SHARED(unsigned char, memory);
    SamplingShared& shared = *reinterpret_cast<SamplingShared*>(memory);
    FrameHeader& frame = *reinterpret_cast<FrameHeader*>(memory + sizeof(SamplingShared));
    uint32_t* const ranks = reinterpret_cast<uint32_t*>(memory + sizeof(SamplingShared) + sizeof(FrameHeader));
    const uint32_t row = blockIdx.x, entries = arguments.codebook_size;
    RowState& shared_state = reinterpret_cast<RowState*>(arguments.rows)[row];
    // The frame's first kernel, which wrote this, has ended before any other began (begin.cu). The status is still to come.
    const RowState state = shared_state;
    copy_header(arguments.frame, frame);
    visit_pages(arguments);
    wait_for_earlier_kernels();
    // Not before: what comes after may read what was finished before this kernel without waiting for it (attention.cuh).
    let_next_kernel_start();

    __syncthreads();
    if (row >= frame.batch) return;
    int32_t status = shared_state.status;
    if (state.active) {
        const float* const logits =
            reinterpret_cast<const float*>(arguments.logits) + static_cast<int64_t>(row) * entries;
        BlockReduction block = {shared.parts, 0};
        const int64_t drawn = draw(logits, entries, state, arguments.codebook, ranks, shared, block);
        if (drawn < 0 && status == 0) status = static_cast<int32_t>(arguments.codebook);
        const uint32_t code = drawn < 0 ? 0 : static_cast<uint32_t>(drawn);
        embed(arguments, frame, row, code);
        keep_logits(frame, row, arguments.codebook, logits, entries);
        if (threadIdx.x == 0) {
            store_code(frame, state.codes, arguments.codebook, code);
            shared_state.status = status;
        }
    }
    if (arguments.codebook == arguments.codebooks && threadIdx.x == 0) {
        FrameCounters& counters = *reinterpret_cast<FrameCounters*>(arguments.counters);
        if (row == 0) finish_frame(frame, counters);
        finish_row(frame, counters, row, state.active, status);
    }
}

} // namespace overtone

using overtone::SampleArguments;

KERNEL(sample, SampleArguments, 256, 2) { overtone::sample(args); }
