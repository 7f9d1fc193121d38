// Bytes that travel as a kernel's arguments: how a frame's parameters reach the device without a copy from host memory,
// in stream order, also inside a capture.

#include "ptx.cuh"

namespace overtone {

/// Bytes of one launch; with the fields before it just below the 4 KiB that every driver takes.
CONSTANT uint32_t UPLOAD_WORDS = 1000;

struct UploadArguments {
    uint64_t target;
    uint64_t launches; // uint64 that becomes 0: launches of the frame block
    uint32_t word_count;
    uint32_t reserved;
    uint32_t words[UPLOAD_WORDS];
};

DEVICE void upload(const UploadArguments& arguments) {
    wait_for_earlier_kernels();
    uint32_t* const target = reinterpret_cast<uint32_t*>(arguments.target);
    for (uint32_t index = threadIdx.x; index < arguments.word_count; index += blockDim.x)
        target[index] = arguments.words[index];
    if (threadIdx.x == 0) *reinterpret_cast<uint64_t*>(arguments.launches) = 0;
}

} // namespace overtone

using overtone::UploadArguments;

KERNEL(upload, UploadArguments, 256, 2) { overtone::upload(args); }
