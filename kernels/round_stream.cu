// The kernels of the round stream; what each does to a row is said in round_stream.cuh, piece by piece. Every kernel
// waits for all earlier ones before it reads, and only then lets the next one start.

#include "round_stream.cuh"

namespace overtone {

struct AssembleVerifyArguments {
    RoundStream stream;
    uint64_t drafts; // int32 [B, k]
    uint64_t probabilities; // float32 [B, k]: of the drafts; 0: none is asked for
    float p_min; // the least of them
    uint32_t reserved;
};

struct AcceptArguments {
    RoundStream stream;
    uint64_t drawn; // int32 [B, k + 1]
};

struct RingCommitArguments {
    RoundStream stream;
};

struct RollbackArguments {
    RoundStream stream;
    uint64_t table; // uint64 [table_rows]: addresses of lengths, int32 [B] each; 0: a layer without
    uint32_t table_rows;
    uint32_t reserved;
};

struct SeedGatherArguments {
    RoundStream stream;
    uint64_t hidden; // [B, k + 1] rows of `row_bytes` each: those of the verify pass
    uint64_t seeds; // [B] such rows
    uint64_t row_bytes; // a multiple of 2
};

DEVICE void begin_round_kernel() {
    wait_for_earlier_kernels();
    let_next_kernel_start();
}

/// The row of this thread, one a thread; it may lie beyond the batch.
DEVICE uint32_t row_of_thread() { return blockIdx.x * blockDim.x + threadIdx.x; }

DEVICE void assemble_verify(const AssembleVerifyArguments& arguments) {
    begin_round_kernel();
    const uint32_t row = row_of_thread();
    if (row >= arguments.stream.batch) return;
    const int32_t* const drafts = reinterpret_cast<const int32_t*>(arguments.drafts);
    const float* const probabilities = reinterpret_cast<const float*>(arguments.probabilities);
    assemble_verify(arguments.stream, drafts, probabilities, arguments.p_min, row);
}

DEVICE void accept(const AcceptArguments& arguments) {
    begin_round_kernel();
    const uint32_t row = row_of_thread();
    if (row >= arguments.stream.batch) return;
    accept(arguments.stream, reinterpret_cast<const int32_t*>(arguments.drawn), row);
}

DEVICE void ring_commit(const RingCommitArguments& arguments) {
    begin_round_kernel();
    const uint32_t row = row_of_thread();
    if (row < arguments.stream.batch) ring_commit(arguments.stream, row);
}

/// One thread a length: blocks in x are rows of the batch, in y rows of the table.
DEVICE void rollback(const RollbackArguments& arguments) {
    begin_round_kernel();
    const uint32_t row = row_of_thread();
    if (row >= arguments.stream.batch || blockIdx.y >= arguments.table_rows) return;
    const uint64_t lengths = reinterpret_cast<const uint64_t*>(arguments.table)[blockIdx.y];
    if (lengths != 0) rollback(arguments.stream, reinterpret_cast<int32_t*>(lengths), row);
}

template <typename T> DEVICE void copy_row(const unsigned char* from, unsigned char* to, uint64_t bytes) {
    for (uint64_t index = threadIdx.x; index < bytes / sizeof(T); index += blockDim.x)
        reinterpret_cast<T*>(to)[index] = reinterpret_cast<const T*>(from)[index];
}

/// One block a row. Bytes are copied as they are, of whatever type: sixteen at a time where everything is so aligned.
DEVICE void seed_gather(const SeedGatherArguments& arguments) {
    begin_round_kernel();
    const uint32_t row = blockIdx.x;
    if (row >= arguments.stream.batch) return;
    const int32_t entry = seed_entry(arguments.stream, row);
    if (entry < 0) return;
    const uint64_t bytes = arguments.row_bytes,
                   source = static_cast<uint64_t>(row) * (arguments.stream.drafts + 1) + static_cast<uint64_t>(entry);
    const unsigned char* const from = reinterpret_cast<const unsigned char*>(arguments.hidden) + source * bytes;
    unsigned char* const to = reinterpret_cast<unsigned char*>(arguments.seeds) + row * bytes;
    if (((arguments.hidden | arguments.seeds | bytes) & (sizeof(uint4) - 1)) == 0) copy_row<uint4>(from, to, bytes);
    else copy_row<uint16_t>(from, to, bytes);
}

} // namespace overtone

using overtone::AcceptArguments;
using overtone::AssembleVerifyArguments;
using overtone::RingCommitArguments;
using overtone::RollbackArguments;
using overtone::SeedGatherArguments;

KERNEL(assemble_verify, AssembleVerifyArguments, 256, 2) { overtone::assemble_verify(args); }
KERNEL(accept, AcceptArguments, 256, 2) { overtone::accept(args); }
KERNEL(ring_commit, RingCommitArguments, 256, 2) { overtone::ring_commit(args); }
KERNEL(rollback, RollbackArguments, 256, 2) { overtone::rollback(args); }
KERNEL(seed_gather, SeedGatherArguments, 256, 2) { overtone::seed_gather(args); }
