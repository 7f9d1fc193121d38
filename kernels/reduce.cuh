// Sums and maxima over a warp or a block, in an order that never changes.

#pragma once

#include "float_types.cuh"

namespace overtone {

CONSTANT uint32_t ALL_LANES = 0xffffffffu;

/// Every lane gets the sum of all.
DEVICE float warp_sum(float value) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(ALL_LANES, value, distance);
    return value;
}

DEVICE uint64_t warp_max(uint64_t value) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
        const uint64_t other = __shfl_xor_sync(ALL_LANES, value, distance);
        value = other > value ? other : value;
    }
    return value;
}

DEVICE uint64_t warp_sum(uint64_t value) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(ALL_LANES, value, distance);
    return value;
}

/// Eight numbers added as a tree.
DEVICE float sum_of_eight(const float* values, int stride) {
    return ((values[0] + values[stride]) + (values[2 * stride] + values[3 * stride])) +
           ((values[4 * stride] + values[5 * stride]) + (values[6 * stride] + values[7 * stride]));
}

} // namespace overtone
