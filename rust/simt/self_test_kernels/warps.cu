// Warp collectives, with whole and partial masks; each thread writes what it got.

struct WarpArguments {
    uint64_t output;  // [threads][24] uint32
};

KERNEL(simt_test_collectives, WarpArguments, 256, 1) {
    const uint32_t thread = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % 32;
    uint32_t* const out = reinterpret_cast<uint32_t*>(args.output) + thread * 24;
    const uint32_t value = thread * 7 + 3;
    out[0] = __shfl_sync(0xffffffffu, value, 5);
    out[1] = __shfl_sync(0xffffffffu, value, lane + 1, 8);
    out[2] = __shfl_xor_sync(0xffffffffu, value, 16);
    out[3] = __shfl_xor_sync(0xffffffffu, value, 9, 8);
    out[4] = __shfl_up_sync(0xffffffffu, value, 3);
    out[5] = __shfl_down_sync(0xffffffffu, value, 3);
    out[6] = __shfl_down_sync(0xffffffffu, value, 2, 4);
    out[7] = __ballot_sync(0xffffffffu, value % 3 == 0);
    out[8] = __any_sync(0xffffffffu, lane == 31);
    out[9] = __all_sync(0xffffffffu, lane != 31);
    out[10] = __reduce_add_sync(0xffffffffu, value);
    out[11] = uint32_t(__reduce_min_sync(0xffffffffu, int(lane) - 20));
    out[12] = uint32_t(__reduce_max_sync(0xffffffffu, int(lane) - 40));
    out[13] = __reduce_or_sync(0xffffffffu, 1u << (lane / 2));
    out[14] = __match_any_sync(0xffffffffu, lane % 4);
    const double wide = __shfl_xor_sync(0xffffffffu, double(lane) + 0.5, 1);
    out[15] = uint32_t(wide * 2.0);
    // Odd lanes are in another branch, with a mask of their own, and take part more often.
    if (lane % 2 == 1) {
        uint32_t sum = value;
        for (int distance = 2; distance < 32; distance *= 2) sum += __shfl_xor_sync(0xaaaaaaaau, sum, distance);
        out[16] = sum;
        out[17] = __ballot_sync(0xaaaaaaaau, lane > 16);
    } else {
        out[16] = __reduce_add_sync(0x55555555u, value);
        out[17] = __ballot_sync(0x55555555u, lane > 16);
    }
    __syncwarp();
    // Sixteen pairs at once, each with its own mask.
    out[18] = __shfl_xor_sync(3u << (lane & ~1u), value, 1);
    struct Deposit {
        uint64_t words[8];
    };
    Deposit deposit;
    for (uint32_t word = 0; word < 8; ++word) deposit.words[word] = uint64_t(value) << 32 | word;
    {
        const auto all = simt::warp_exchange(0xffffffffu, deposit);
        // A collective within an exchange: what was left stays readable.
        __syncwarp();
        uint64_t sum = 0;
        for (uint32_t other = 0; other < 32; ++other) sum += all[other].words[other % 8];
        out[19] = uint32_t(sum >> 32);
        out[20] = uint32_t(sum);
    }
    out[21] = simt::warp_compute<uint32_t>(0xffffffffu, value, [](unsigned, const uint32_t* inputs, uint32_t* outputs) {
        for (int i = 0; i < 32; ++i) outputs[i] = inputs[31 - i] - inputs[0];
    });
}

struct MatrixArguments {
    uint64_t a;  // [16][16] bfloat16
    uint64_t b;  // [16][8] bfloat16
    uint64_t c;  // [16][8] float, in and out
    uint64_t rounds;
};

// One m16n8k16 product, the fragments read as PTX lays them out.
KERNEL(simt_test_matrix, MatrixArguments, 32, 1) {
    const uint16_t* const a = reinterpret_cast<const uint16_t*>(args.a);
    const uint16_t* const b = reinterpret_cast<const uint16_t*>(args.b);
    float* const c = reinterpret_cast<float*>(args.c);
    const unsigned group = threadIdx.x / 4, pair = threadIdx.x % 4 * 2;
    const auto two = [](uint16_t low, uint16_t high) { return uint32_t(high) << 16 | low; };
    const auto of_a = [&](unsigned row, unsigned k) { return two(a[row * 16 + k], a[row * 16 + k + 1]); };
    const auto of_b = [&](unsigned k) { return two(b[k * 8 + group], b[(k + 1) * 8 + group]); };
    const uint32_t fragment[4] = {of_a(group, pair), of_a(group + 8, pair), of_a(group, pair + 8),
                                  of_a(group + 8, pair + 8)};
    float products[4] = {c[group * 8 + pair], c[group * 8 + pair + 1], c[(group + 8) * 8 + pair],
                         c[(group + 8) * 8 + pair + 1]};
    for (uint64_t round = 0; round < args.rounds; ++round)
        simt::matrix_multiply(products, fragment, of_b(pair), of_b(pair + 8),
                              [](uint16_t bits) { return __uint_as_float(uint32_t(bits) << 16); });
    c[group * 8 + pair] = products[0];
    c[group * 8 + pair + 1] = products[1];
    c[(group + 8) * 8 + pair] = products[2];
    c[(group + 8) * 8 + pair + 1] = products[3];
}
