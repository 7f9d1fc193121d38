// Gumbel noise counted by (seed, frame, codebook, entry) and by nothing else: the arithmetic of
// rust/core/src/sampling/{philox,gumbel}.rs, bit for bit.

#pragma once

#include "math.cuh"

namespace overtone {

/// The generator's key and counter, without the entry.
struct NoiseCounter {
    uint64_t seed;
    uint64_t frame_index;
    uint32_t codebook;
};

/// Word `entry & 3` of Philox4x32-10 (Salmon et al., SC 2011) for counter (entry >> 2, codebook, frame).
DEVICE uint32_t philox_word(const NoiseCounter& noise, uint32_t entry) {
    uint32_t c0 = entry >> 2, c1 = noise.codebook;
    uint32_t c2 = static_cast<uint32_t>(noise.frame_index), c3 = static_cast<uint32_t>(noise.frame_index >> 32);
    uint32_t key_0 = static_cast<uint32_t>(noise.seed), key_1 = static_cast<uint32_t>(noise.seed >> 32);
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        const uint64_t product_0 = static_cast<uint64_t>(0xd2511f53u) * c0;
        const uint64_t product_1 = static_cast<uint64_t>(0xcd9e8d57u) * c2;
        c0 = static_cast<uint32_t>(product_1 >> 32) ^ c1 ^ key_0;
        c1 = static_cast<uint32_t>(product_1);
        c2 = static_cast<uint32_t>(product_0 >> 32) ^ c3 ^ key_1;
        c3 = static_cast<uint32_t>(product_0);
        key_0 += 0x9e3779b9u;
        key_1 += 0xbb67ae85u;
    }
    const uint32_t low = entry & 1 ? c1 : c0, high = entry & 1 ? c3 : c2;
    return entry & 2 ? high : low;
}

/// -ln(-ln u) with u = ((word >> 9) + 0.5) / 2^23.
DEVICE float noise_of_word(uint32_t word) {
    const float uniform = (static_cast<float>(static_cast<int32_t>(word >> 9)) + 0.5f) * (1.0f / 8388608.0f);
    return -natural_logarithm(-natural_logarithm(uniform));
}

DEVICE float gumbel_noise(const NoiseCounter& noise, uint32_t entry) {
    return noise_of_word(philox_word(noise, entry));
}

} // namespace overtone
