// What follows from drawn codes: their embedding rows are handed out (`codec_hiddens`) and added to `codec_sum`, and the row
// and the frame end.

#pragma once

#include "frame_arguments.cuh"
#include "kept_set.cuh"

namespace overtone {

/// Address of element [row, second, 0] of a tensor.
DEVICE int64_t row_offset(const TensorReference& tensor, uint32_t row, uint32_t second) {
    return row * tensor.strides[0] + second * tensor.strides[1];
}

/// An embedding table [V, Ht].
struct EmbeddingTable {
    const void* rows;
    uint32_t type;
};

/// Codes of one row, of successive codebooks.
struct CommittedCodes {
    uint32_t row;
    uint32_t first; // codebook
    uint32_t count;
    uint32_t codebooks; // R
    const uint32_t* codes;
};

/// Takes codes in, element by element with the whole block: adds their embedding rows, `table(codebook)`, to the row's
/// `codec_sum` in order, hands them out, and after the last codebook hands out the sum. `also(codebook, index, value)` may do
/// more.
template <typename Table, typename Also>
DEVICE void take_in(const FrameHeader& frame, const CommittedCodes& committed, float* codec_sum, uint32_t width,
                    Table table, Also also) {
    // Elements of a thread that are on their way together: no load moves before a store, so all come first.
    constexpr int AT_ONCE = 4;
    const TensorReference &hiddens = frame.codec_hiddens, &out = frame.codec_sum;
    const bool ends = committed.first + committed.count > committed.codebooks;
    for (uint32_t first = threadIdx.x; first < width; first += AT_ONCE * SAMPLING_THREADS) {
        const auto for_each = [&](auto work) {
#pragma unroll
            for (int number = 0; number < AT_ONCE; ++number) {
                const uint32_t index = first + number * SAMPLING_THREADS;
                if (index < width) work(number, index);
            }
        };
        float sums[AT_ONCE], values[AT_ONCE];
        for_each([&](int number, uint32_t index) { sums[number] = codec_sum[index]; });
        for (uint32_t place = 0; place < committed.count; ++place) {
            const uint32_t codebook = committed.first + place;
            const EmbeddingTable from = table(codebook);
            const int64_t row = static_cast<int64_t>(committed.codes[place]) * width;
            for_each(
                [&](int number, uint32_t index) { values[number] = load_float(from.rows, row + index, from.type); });
            for_each([&](int number, uint32_t index) {
                sums[number] += values[number];
                also(codebook, index, values[number]);
                // The value came from this type: nothing is rounded.
                if (codebook < committed.codebooks)
                    store_float(mutable_data_of(hiddens),
                                row_offset(hiddens, committed.row, codebook) + index * hiddens.strides[2], hiddens.type,
                                values[number]);
            });
        }
        for_each([&](int number, uint32_t index) {
            if (ends)
                store_float(mutable_data_of(out), committed.row * out.strides[0] + index * out.strides[1], out.type,
                            sums[number]);
            else codec_sum[index] = sums[number];
        });
    }
}

/// Keeps a codebook's logits, if anybody asked for them.
DEVICE void keep_logits(const FrameHeader& frame, uint32_t row, uint32_t codebook, const float* logits,
                        uint32_t entries) {
    const TensorReference& kept = frame.logits;
    if (kept.address == 0) return;
    float* const to = static_cast<float*>(mutable_data_of(kept)) + row_offset(kept, row, codebook - 1);
    for (uint32_t index = threadIdx.x; index < entries; index += SAMPLING_THREADS)
        to[index * kept.strides[2]] = logits[index];
}

/// By one thread, after a row's last draw, or for a row that is left out: its status, and its own frame index.
DEVICE void finish_row(const FrameHeader& frame, FrameCounters& counters, uint32_t row, bool active, int32_t status) {
    if (active) atomicAdd(&counters.rows, 1ull);
    if (active && status != 0) atomicAdd(&counters.failed_rows, 1ull);
    static_cast<int32_t*>(mutable_data_of(frame.status))[row * frame.status.strides[0]] = active ? status : 0;
    const TensorReference& indices = frame.frame_index;
    if (frame.advance_frame_index && indices.address != 0 && indices.strides[0] != 0)
        static_cast<uint64_t*>(mutable_data_of(indices))[row * indices.strides[0]] += active;
}

/// By one thread, once a frame, after the rows have read what it changes: what counts frames.
DEVICE void finish_frame(const FrameHeader& frame, FrameCounters& counters) {
    atomicAdd(&counters.frames, 1ull);
    counters.launches += 1;
    const TensorReference& indices = frame.frame_index;
    if (frame.advance_frame_index && indices.address != 0 && indices.strides[0] == 0)
        *static_cast<uint64_t*>(mutable_data_of(indices)) += 1;
    if (frame.ring_slot.address != 0) *static_cast<int64_t*>(mutable_data_of(frame.ring_slot)) += 1;
}

/// The frame's header, copied to shared memory by the whole block; complete after the next barrier.
DEVICE void copy_header(uint64_t frame, FrameHeader& to) {
    static_assert(sizeof(FrameHeader) % 16 == 0 && sizeof(FrameHeader) / 16 <= SAMPLING_THREADS, "one piece a thread");
    if (threadIdx.x < sizeof(FrameHeader) / 16)
        reinterpret_cast<uint4*>(&to)[threadIdx.x] = reinterpret_cast<const uint4*>(frame)[threadIdx.x];
}

} // namespace overtone
