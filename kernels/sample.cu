// One draw a row, and all that follows from it: one block a row.
//
// The draw is that of rust/core/src/sampling/draw.rs: a failing row gets code 0, records the codebook in its status and goes
// on. Then the code is stored, its embedding row is handed out (`codec_hiddens`), added to `codec_sum`, and becomes the
// residual stream of the next step.

#include "frame_arguments.cuh"
#include "kept_set.cuh"
#include "noise.cuh"

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

/// Order of scores, the largest first in the sense of max, the lowest index among equals; `code_of_key` tells the index.
DEVICE uint64_t key_of(float score, uint32_t index) {
    return static_cast<uint64_t>(~rank_of(score)) << 32 | (0xffffffffu - index);
}
DEVICE uint32_t code_of_key(uint64_t key) { return 0xffffffffu - static_cast<uint32_t>(key); }

/// Key of a row that cannot be drawn; above all others.
CONSTANT uint64_t FAILED = ~0ull;

/// Looks at all logits: the key of the largest, or `FAILED`. Ranks of logits / temperature go to `ranks` unless the row is
/// greedy.
DEVICE uint64_t look(const float* logits, uint32_t entries, float temperature, uint32_t* ranks, BlockReduction& block) {
    constexpr int AT_ONCE = ENTRIES_AT_ONCE;
    uint64_t largest = 0;
    for (uint32_t first = threadIdx.x; first < entries; first += AT_ONCE * SAMPLING_THREADS) {
        float values[AT_ONCE];
#pragma unroll
        for (int number = 0; number < AT_ONCE; ++number) {
            const uint32_t index = first + number * SAMPLING_THREADS;
            values[number] = index < entries ? logits[index] : -INFINITY;
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
            }
            const uint64_t key = fails ? FAILED : key_of(logit, index);
            largest = key > largest ? key : largest;
        }
    }
    largest = block.max(largest);
    const bool nothing_finite = static_cast<uint32_t>(largest >> 32) == ~RANK_OF_NOTHING;
    return nothing_finite ? FAILED : largest;
}

/// The drawn code, or -1 for a row that has none.
DEVICE int64_t draw(const float* logits, uint32_t entries, const RowState& state, uint32_t codebook, uint32_t* ranks,
                    SamplingShared& shared) {
    BlockReduction block = {shared.parts, 0};
    const uint64_t largest = look(logits, entries, state.temperature, ranks, block);
    if (largest == FAILED || state.parameters_out_of_range) return -1;
    if (state.temperature == 0.0f) return code_of_key(largest);

    // Division by a positive number keeps the order, so the largest logit has the largest quotient.
    const float largest_x = x_of_rank(~static_cast<uint32_t>(largest >> 32)) / state.temperature;
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

/// Address of element [row, second, 0] of a tensor.
DEVICE int64_t row_offset(const TensorReference& tensor, uint32_t row, uint32_t second) {
    return row * tensor.strides[0] + second * tensor.strides[1];
}

/// Hands out the embedding row of the code.
DEVICE void embed(const SampleArguments& arguments, const FrameHeader& frame, uint32_t row, uint32_t code) {
    const uint32_t width = arguments.talker_hidden_size;
    const bool last = arguments.codebook == arguments.codebooks;
    const void* const table = reinterpret_cast<const void*>(arguments.table);
    float* const codec_sum = reinterpret_cast<float*>(arguments.codec_sum) + static_cast<int64_t>(row) * width;
    const TensorReference& hiddens = frame.codec_hiddens;
    const int64_t hiddens_row = row_offset(hiddens, row, arguments.codebook);
    const bool projected = arguments.projected != arguments.table;
    const uint32_t hidden_size = arguments.hidden_size;
    float* const residual = reinterpret_cast<float*>(arguments.residual) + static_cast<int64_t>(row) * hidden_size;
#pragma unroll 4
    for (uint32_t index = threadIdx.x; index < width; index += SAMPLING_THREADS) {
        const float value = load_float(table, static_cast<int64_t>(code) * width + index, arguments.table_type);
        const float sum = codec_sum[index] + value;
        if (last) {
            const TensorReference& out = frame.codec_sum;
            store_float(mutable_data_of(out), row * out.strides[0] + index * out.strides[1], out.type, sum);
        } else {
            if (!projected) residual[index] = value;
            codec_sum[index] = sum;
            // The value came from this type: nothing is rounded.
            store_float(mutable_data_of(hiddens), hiddens_row + index * hiddens.strides[2], hiddens.type, value);
        }
    }
    if (last || !projected) return;
    const void* const behind_projection = reinterpret_cast<const void*>(arguments.projected);
    for (uint32_t index = threadIdx.x; index < hidden_size; index += SAMPLING_THREADS)
        residual[index] =
            load_float(behind_projection, static_cast<int64_t>(code) * hidden_size + index, arguments.projected_type);
}

/// After the last draw: the row's status, and what counts frames.
DEVICE void finish(const FrameHeader& frame, FrameCounters& counters, uint32_t row, const RowState& state,
                   int32_t status) {
    if (row == 0) {
        atomicAdd(&counters.frames, 1ull);
        counters.launches += 1;
    }
    if (state.active) atomicAdd(&counters.rows, 1ull);
    if (state.active && status != 0) atomicAdd(&counters.failed_rows, 1ull);
    static_cast<int32_t*>(mutable_data_of(frame.status))[row * frame.status.strides[0]] = state.active ? status : 0;
    const TensorReference& indices = frame.frame_index;
    if (frame.advance_frame_index && indices.address != 0 && (indices.strides[0] != 0 || row == 0))
        static_cast<uint64_t*>(mutable_data_of(indices))[row * indices.strides[0]] +=
            indices.strides[0] == 0 ? 1 : state.active;
    if (row == 0 && frame.ring_slot.address != 0) *static_cast<int64_t*>(mutable_data_of(frame.ring_slot)) += 1;
}

/// Prefetches a word of every 2 MiB of the table: which row will be wanted is not known yet, but the translation of its
/// address takes longer than reading it, and is the same for the whole page.
DEVICE void visit_pages(const SampleArguments& arguments) {
    constexpr uint64_t PAGE = 2 << 20;
    const uint64_t size = arguments.table_type == ELEMENT_FLOAT32 ? 4 : 2;
    const uint64_t offset = threadIdx.x * PAGE, bytes = size * arguments.codebook_size * arguments.talker_hidden_size;
    if (offset < bytes) prefetch(reinterpret_cast<const char*>(arguments.table) + offset);
}

/// The frame's header, copied to shared memory by the whole block; complete after the next barrier.
DEVICE void copy_header(uint64_t frame, FrameHeader& to) {
    static_assert(sizeof(FrameHeader) % 16 == 0 && sizeof(FrameHeader) / 16 <= SAMPLING_THREADS, "one piece a thread");
    if (threadIdx.x < sizeof(FrameHeader) / 16)
        reinterpret_cast<uint4*>(&to)[threadIdx.x] = reinterpret_cast<const uint4*>(frame)[threadIdx.x];
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
        const int64_t drawn = draw(logits, entries, state, arguments.codebook, ranks, shared);
        if (drawn < 0 && status == 0) status = static_cast<int32_t>(arguments.codebook);
        const uint32_t code = drawn < 0 ? 0 : static_cast<uint32_t>(drawn);
        embed(arguments, frame, row, code);
        const TensorReference& kept = frame.logits;
        if (kept.address != 0) {
            float* const to =
                static_cast<float*>(mutable_data_of(kept)) + row_offset(kept, row, arguments.codebook - 1);
            for (uint32_t index = threadIdx.x; index < entries; index += SAMPLING_THREADS)
                to[index * kept.strides[2]] = logits[index];
        }
        if (threadIdx.x == 0) {
            store_code(frame, state.codes, arguments.codebook, code);
            shared_state.status = status;
        }
    }
    const bool last = arguments.codebook == arguments.codebooks;
    if (last && threadIdx.x == 0)
        finish(frame, *reinterpret_cast<FrameCounters*>(arguments.counters), row, state, status);
}

} // namespace overtone

using overtone::SampleArguments;

KERNEL(sample, SampleArguments, 256, 2) { overtone::sample(args); }
