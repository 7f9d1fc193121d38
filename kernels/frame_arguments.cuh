// What a frame reads and writes outside the predictor, and what its rows are doing: mirrored by rust/cuda/src/frame.rs.
//
// A `FrameBlock` stays on the device between frames: kernels of a captured graph find there what differs from frame to
// frame. A `RowState` is made anew by every frame.

#pragma once

#include "float_types.cuh"

namespace overtone {

/// A tensor of at most three dimensions; strides in elements. No address: absent.
struct TensorReference {
    uint64_t address;
    int64_t strides[3];
    uint32_t type; // ElementType
    uint32_t extent; // of the first dimension
};

/// How a row draws, when the host says so. Read where the frame's own references to device arrays are absent.
struct RowParameters {
    float temperature;
    uint32_t top_k;
    float top_p;
    uint32_t inactive; // not 0: the row is left out
    uint64_t seed;
    uint64_t frame_index;
    int64_t code_zero;
};

/// One frame's tensors. Nothing changes it while the frame runs.
struct alignas(16) FrameHeader {
    uint32_t batch; // rows that the tensors below have
    uint32_t advance_frame_index; // by one after each launch
    TensorReference talker_last_hidden; // [batch, Ht] float
    TensorReference code_zero; // [batch] int32 or int64
    TensorReference active; // [batch] bool, uint8, int32 or int64
    TensorReference frame_index; // [1] (stride 0) or [batch] int64
    TensorReference temperature; // [batch] float32
    TensorReference top_k; // [batch] int32 or int64
    TensorReference top_p; // [batch] float32
    TensorReference seed; // [batch] int64
    TensorReference codes; // [batch, C] int32 or int64; of a ring [slots, batch, C]: strides of slot, row, code
    TensorReference ring_slot; // [1] int64: frames put into the ring so far; absent without a ring
    TensorReference codec_sum; // [batch, Ht] float
    TensorReference codec_hiddens; // [batch, C, Ht] in the codec tables' type
    TensorReference status; // [batch] int32
    TensorReference logits; // [batch, R, V] float32
    TensorReference code_zero_table; // E0 [V0, Ht]
    TensorReference code_zero_projected; // P(E0) [V0, H]; E0 itself without a projection
    uint64_t reserved;
};

/// A frame: its tensors, and the parameters of each row of the batch.
struct FrameBlock {
    FrameHeader header;
    RowParameters rows[1];
};

/// One row of a frame under way.
struct RowState {
    float temperature;
    uint32_t top_k;
    float top_p;
    int32_t status;
    uint64_t seed;
    uint64_t frame_index;
    uint64_t codes; // address of the row's codes
    uint32_t active;
    uint32_t parameters_out_of_range; // no draw can be made with them
};

/// What frames counted since the predictor was loaded.
struct FrameCounters {
    unsigned long long frames;
    unsigned long long rows; // that took part
    unsigned long long failed_rows;
    unsigned long long launches; // of the frame block at hand: what the host's frame indices have advanced by
};

DEVICE const void* data_of(const TensorReference& tensor) {
    return reinterpret_cast<const void*>(static_cast<uintptr_t>(tensor.address));
}
DEVICE void* mutable_data_of(const TensorReference& tensor) {
    return reinterpret_cast<void*>(static_cast<uintptr_t>(tensor.address));
}

/// Stores the code of a codebook (0: the talker's) among the row's codes, whose address a `RowState` holds.
DEVICE void store_code(const FrameHeader& frame, uint64_t codes, uint32_t codebook, int64_t code) {
    const int64_t place = codebook * frame.codes.strides[2];
    if (frame.codes.type == ELEMENT_INT64) reinterpret_cast<int64_t*>(codes)[place] = code;
    else reinterpret_cast<int32_t*>(codes)[place] = static_cast<int32_t>(code);
}

} // namespace overtone
