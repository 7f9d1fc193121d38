// Kernels whose result depends on the order of threads, as the tests that look for such kernels must see.

struct RaceArguments {
    uint64_t output;  // [blocks] or [1] uint32
    uint32_t barrier;
    uint32_t reserved;
};

// Without the barrier a thread may read its neighbour's slot before the neighbour has written it.
KERNEL(simt_test_neighbours, RaceArguments, 1024, 1) {
    uint32_t* const shared = static_cast<uint32_t*>(simt::shared_memory());
    uint32_t* const output = reinterpret_cast<uint32_t*>(args.output);
    shared[threadIdx.x] = threadIdx.x * 3;
    if (args.barrier) __syncthreads();
    const uint32_t read = shared[(threadIdx.x + 1) % blockDim.x];
    output[blockIdx.x * blockDim.x + threadIdx.x] = read;
}

// A sum of floats in the order of arrival.
KERNEL(simt_test_unordered_sum, RaceArguments, 1024, 1) {
    float* const output = reinterpret_cast<float*>(args.output);
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(output, 1.0f / float(i + 1));
}

// A counter that is read and written with a fence between: updates are lost when threads give way there.
KERNEL(simt_test_lost_updates, RaceArguments, 1024, 1) {
    uint32_t* const counter = reinterpret_cast<uint32_t*>(args.output);
    const uint32_t before = *counter;
    __threadfence();
    *counter = before + 1;
}
