// Atomics from many threads at once, on global and on shared memory.

struct AtomicArguments {
    uint64_t words;   // [8] uint32
    uint64_t floats;  // [1] float
    uint64_t wides;   // [2] uint64
    uint64_t taken;   // [threads] uint32: each ticket once
};

KERNEL(simt_test_atomics, AtomicArguments, 1024, 1) {
    uint32_t* const words = reinterpret_cast<uint32_t*>(args.words);
    unsigned long long* const wides = reinterpret_cast<unsigned long long*>(args.wides);
    uint32_t* const shared = static_cast<uint32_t*>(simt::shared_memory());
    const uint32_t thread = blockIdx.x * blockDim.x + threadIdx.x;
    if (threadIdx.x == 0) shared[0] = 0;
    __syncthreads();
    atomicAdd(shared, 1);
    const uint32_t ticket = atomicAdd(&words[0], 1);
    reinterpret_cast<uint32_t*>(args.taken)[ticket] += 1;
    atomicMax(&words[1], thread);
    atomicMin(&words[2], thread + 5);
    atomicOr(&words[3], 1u << (thread % 32));
    atomicAnd(&words[4], ~(1u << (thread % 32)));
    atomicXor(&words[5], thread);
    atomicInc(&words[6], 9);
    atomicAdd(reinterpret_cast<float*>(args.floats), 0.5f);
    atomicAdd(&wides[0], 1ull << 33);
    // A counter behind a lock: nothing else keeps the additions apart.
    while (atomicCAS(&wides[1], 0ull, 1ull) != 0) __nanosleep(20);
    const uint32_t before = words[7];
    __threadfence();
    words[7] = before + 1;
    atomicExch(&wides[1], 0ull);
    __syncthreads();
    if (threadIdx.x == 0) assert(shared[0] == blockDim.x);
}
