// What kernels find in shared memory, and copies that land when they are waited for.

struct MemoryArguments {
    uint64_t input;   // [blocks][threads][4] uint32
    uint64_t output;  // [blocks][threads][4] uint32
    uint32_t wait;
    uint32_t reserved;
};

// Copies shared memory out before anything is written to it.
KERNEL(simt_test_poison, MemoryArguments, 1024, 1) {
    const uint32_t* const shared = static_cast<const uint32_t*>(simt::shared_memory());
    uint32_t* const output = reinterpret_cast<uint32_t*>(args.output);
    const unsigned words = unsigned(simt::shared_bytes() / 4);
    for (unsigned i = threadIdx.x; i < words; i += blockDim.x) output[blockIdx.x * words + i] = shared[i];
    assert(reinterpret_cast<uintptr_t>(shared) % 128 == 0);
    __syncthreads();
    for (unsigned i = threadIdx.x; i < words; i += blockDim.x) static_cast<uint32_t*>(simt::shared_memory())[i] = i;
}

// Two groups of copies; `wait` says whether the second is waited for.
KERNEL(simt_test_copies, MemoryArguments, 256, 1) {
    uint4* const shared = static_cast<uint4*>(simt::shared_memory());
    const unsigned thread = threadIdx.x, both = 2 * (blockIdx.x * blockDim.x + thread);
    const uint4* const input = reinterpret_cast<const uint4*>(args.input) + both;
    uint4* const output = reinterpret_cast<uint4*>(args.output) + both;
    simt::copy_async(&shared[2 * thread], &input[0], 16);
    simt::copy_async_commit();
    simt::copy_async(&shared[2 * thread + 1], &input[1], 16, 8);
    simt::copy_async_commit();
    if (args.wait) simt::copy_async_wait_all();
    else simt::copy_async_wait(1);
    output[0] = shared[2 * thread];
    output[1] = shared[2 * thread + 1];
}
