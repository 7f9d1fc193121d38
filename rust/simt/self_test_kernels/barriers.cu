// Barriers of block and grid, used as they should be.

#define SHARED(type, name) type* const name = reinterpret_cast<type*>(simt::shared_memory())

struct ValuesArguments {
    uint64_t input;
    uint64_t output;
    uint32_t count;
    uint32_t parameter;
};

// One line of work per thread: what launches without barriers cost.
KERNEL(simt_test_increment, ValuesArguments, 1024, 1) {
    float* const values = reinterpret_cast<float*>(args.output);
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < args.count) values[i] += 1.0f;
}

// Each block reverses its part of the input through shared memory.
KERNEL(simt_test_reverse, ValuesArguments, 1024, 1) {
    SHARED(uint32_t, values);
    const uint32_t* const input = reinterpret_cast<const uint32_t*>(args.input) + blockIdx.x * blockDim.x;
    uint32_t* const output = reinterpret_cast<uint32_t*>(args.output) + blockIdx.x * blockDim.x;
    values[threadIdx.x] = input[threadIdx.x];
    __syncthreads();
    output[threadIdx.x] = values[blockDim.x - 1 - threadIdx.x];
}

// The sum of all inputs, to every thread of the grid, round after round.
KERNEL(simt_test_grid_sum, ValuesArguments, 1024, 1) {
    SHARED(uint32_t, partial);
    const uint32_t* const input = reinterpret_cast<const uint32_t*>(args.input);
    uint32_t* const sums = reinterpret_cast<uint32_t*>(args.output);
    uint32_t* const totals = sums + gridDim.x;
    for (uint32_t round = 0; round < args.parameter; ++round) {
        partial[threadIdx.x] = input[blockIdx.x * blockDim.x + threadIdx.x] + round;
        __syncthreads();
        for (uint32_t half = blockDim.x / 2; half > 0; half /= 2) {
            if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
            __syncthreads();
        }
        if (threadIdx.x == 0) sums[blockIdx.x] = partial[0];
        simt::grid_barrier();
        uint32_t total = 0;
        for (uint32_t block = 0; block < gridDim.x; ++block) total += sums[block];
        totals[blockIdx.x * blockDim.x + threadIdx.x] = total;
        simt::grid_barrier();
    }
}

// Producer warps hand values to consumer warps of the same block: barrier 1 says full, barrier 2 says empty.
KERNEL(simt_test_producers, ValuesArguments, 128, 1) {
    SHARED(uint32_t, slots);
    const uint32_t* const input = reinterpret_cast<const uint32_t*>(args.input);
    uint32_t* const output = reinterpret_cast<uint32_t*>(args.output);
    const uint32_t half = blockDim.x / 2, place = threadIdx.x % half;
    for (uint32_t round = 0; round < args.parameter; ++round) {
        if (threadIdx.x < half) {
            if (round > 0) simt::block_barrier(2, blockDim.x);
            slots[place] = input[place] * (round + 1);
            simt::block_barrier_arrive(1, blockDim.x);
        } else {
            simt::block_barrier(1, blockDim.x);
            output[place] += slots[half - 1 - place];
            if (round + 1 < args.parameter) simt::block_barrier_arrive(2, blockDim.x);
        }
    }
}

// Half of each block leaves; the rest goes on through barriers of the whole block, which carry predicates.
KERNEL(simt_test_early_exit, ValuesArguments, 1024, 1) {
    int32_t* const output = reinterpret_cast<int32_t*>(args.output) + blockIdx.x * 4;
    if (threadIdx.x % 64 >= 32) return;
    __syncthreads();
    const int count = __syncthreads_count(threadIdx.x % 2 == 0);
    const int any = __syncthreads_or(threadIdx.x == 64);
    const int all = __syncthreads_and(threadIdx.x % 64 < 32);
    const int not_all = __syncthreads_and(threadIdx.x != 64);
    if (threadIdx.x == 0) {
        output[0] = count;
        output[1] = any;
        output[2] = all;
        output[3] = not_all;
    }
}

// Block 0 waits for a flag that the last block sets: all blocks are resident.
KERNEL(simt_test_flag, ValuesArguments, 1024, 1) {
    volatile uint32_t* const flag = reinterpret_cast<volatile uint32_t*>(args.output);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        while (flag[0] == 0) __nanosleep(100);
        flag[1] = flag[0] + 1;
    }
    if (blockIdx.x == gridDim.x - 1 && threadIdx.x == blockDim.x - 1) flag[0] = 41;
    __syncthreads();
}

// A wait that ends by itself when its time is over, and says so.
KERNEL(simt_test_bounded_wait, ValuesArguments, 1024, 1) {
    volatile uint32_t* const words = reinterpret_cast<volatile uint32_t*>(args.output);
    const uint64_t begin = simt::nanoseconds();
    while (words[0] == 0) {
        if (simt::nanoseconds() - begin > 2'000'000'000) {
            words[1] = 1;
            return;
        }
        simt::yield();
    }
}
