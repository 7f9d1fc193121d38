// What a kernel must not do, each with the error that the launch ends with.

enum FaultyCase : uint32_t {
    FAULTY_NOTHING,
    FAULTY_SHARED_READ_BEYOND,
    FAULTY_SHARED_WRITE_SLACK,
    FAULTY_GLOBAL_READ,
    FAULTY_TRAP,
    FAULTY_ASSERTION,
    FAULTY_DIVISION,
    FAULTY_STACK,
    FAULTY_HALF_AT_BARRIER,
    FAULTY_LANE_LEFT,
    FAULTY_LANE_LEFT_BEFORE,
    FAULTY_OTHER_COLLECTIVE,
    FAULTY_OWN_LANE_UNNAMED,
    FAULTY_LANE_UNNAMED,
    FAULTY_BARRIER_COUNTS,
    FAULTY_BARRIER_PARTIAL_WARP,
    FAULTY_BARRIER_UNKNOWN,
    FAULTY_GRID_BARRIER_BLOCK_LEFT,
    FAULTY_ENDLESS_POLL,
    FAULTY_COPY_UNALIGNED,
    FAULTY_PARTIAL_BARRIER_SHORT,
};

struct FaultyArguments {
    uint64_t address;
    uint32_t which;
    int32_t number;
};

namespace faulty {

__attribute__((noinline)) int descend(int depth) {
    volatile char frame[1024];
    frame[depth % 1024] = char(depth);
    __syncwarp();
    return depth == 0 ? frame[0] : descend(depth - 1) + frame[depth % 1024];
}

}  // namespace faulty

KERNEL(simt_test_faulty, FaultyArguments, 128, 1) {
    volatile int* const shared = static_cast<int*>(simt::shared_memory());
    volatile int* const global = reinterpret_cast<int*>(args.address);
    const unsigned thread = threadIdx.x;
    switch (args.which) {
    case FAULTY_SHARED_READ_BEYOND:
        if (thread == 33 && blockIdx.x == 1) global[0] = shared[args.number];
        break;
    case FAULTY_SHARED_WRITE_SLACK:
        if (thread == 1) shared[args.number] = 7;
        break;
    case FAULTY_GLOBAL_READ:
        if (thread == 2) global[0] = global[args.number];
        break;
    case FAULTY_TRAP:
        if (thread == 3) __trap();
        break;
    case FAULTY_ASSERTION: assert(thread < 64); break;
    case FAULTY_DIVISION: global[0] = 5 / args.number; break;
    case FAULTY_STACK: global[0] = faulty::descend(args.number); break;
    case FAULTY_HALF_AT_BARRIER:
        if (thread % 32 < 16) __syncthreads();
        else __syncwarp();
        break;
    case FAULTY_LANE_LEFT:
        if (thread == 40) {
            __nanosleep(1);
            return;
        }
        __shfl_xor_sync(0xffffffffu, thread, 1);
        break;
    case FAULTY_LANE_LEFT_BEFORE:
        if (thread == 0) return;
        __nanosleep(1);
        __ballot_sync(0xffffffffu, 1);
        break;
    case FAULTY_OTHER_COLLECTIVE:
        if (thread == 0) __syncwarp();
        else __ballot_sync(0xffffffffu, 1);
        break;
    case FAULTY_OWN_LANE_UNNAMED: __syncwarp(1); break;
    case FAULTY_LANE_UNNAMED:
        if (thread % 32 < 4) __shfl_sync(0xfu, thread, 9);
        break;
    case FAULTY_BARRIER_COUNTS: simt::block_barrier(3, thread < 32 ? 64 : 128); break;
    case FAULTY_BARRIER_PARTIAL_WARP: simt::block_barrier(3, 40); break;
    case FAULTY_BARRIER_UNKNOWN: simt::block_barrier(16); break;
    case FAULTY_GRID_BARRIER_BLOCK_LEFT:
        if (blockIdx.x == 1) return;
        simt::grid_barrier();
        break;
    case FAULTY_ENDLESS_POLL:
        if (thread == 5)
            while (global[0] != 12345) __nanosleep(10);
        __syncthreads();
        break;
    case FAULTY_COPY_UNALIGNED: simt::copy_async(const_cast<int*>(shared) + 1, const_cast<int*>(global), 16); break;
    case FAULTY_PARTIAL_BARRIER_SHORT:
        if (thread < 32) simt::block_barrier(1, 64);
        break;
    }
}
