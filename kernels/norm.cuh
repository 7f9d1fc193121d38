// The residual stream takes in what a linear layer added, and its normalised copy is made.
//
//     x <- x + sum of partials;   normed = x / sqrt(mean(x^2) + epsilon) * weight
//
// in float32. `Qwen3RMSNorm` of transformers rounds x / sqrt(...) before it multiplies, and x after every sum; here the
// only rounding is that of the activations that the next product reads.

#pragma once

#include "fragments.cuh"
#include "reduce.cuh"

namespace overtone {

/// Threads that share a row: the order of its sum depends on their number, so it is one for all kernels.
CONSTANT int NORM_THREADS = 256;

struct NormArguments {
    uint64_t residual; // [columns, width] float32
    uint64_t partials; // [partial_count, partial_columns, width] float32, added in order
    uint64_t residual_out; // [columns, width] float32, apart from `residual`; 0: not kept
    uint64_t weight; // [width] float32
    uint32_t partial_count;
    uint32_t partial_columns;
    uint32_t first_column; // of the columns normalised; what is stored counts from 0
    uint32_t width; // a multiple of 4
    float epsilon;
    uint32_t reserved;
};

/// Elements of shared memory that a row needs: its values, and two sets of the warps' sums.
DEVICE int norm_scratch(uint32_t width) { return static_cast<int>((width + 3) / 4 * 4) + 2 * (NORM_THREADS / WARP); }

/// A thread's part of the norm's weight, read before anything that the norm has to wait for.
struct NormWeight {
    float4 first;

    DEVICE explicit NormWeight(const NormArguments& arguments) : first(make_float4(0.0f, 0.0f, 0.0f, 0.0f)) {
        if (threadIdx.x * 4 < arguments.width) first = at(arguments, threadIdx.x * 4);
    }

    static DEVICE float4 at(const NormArguments& arguments, uint32_t input) {
        return *reinterpret_cast<const float4*>(reinterpret_cast<const float*>(arguments.weight) + input);
    }
};

/// Normalises row `first_column + turn` with all threads of the block, and gives values to `store(input, value, next)`,
/// two at a time. The warps' sums alternate between two places, so that one barrier a row is enough.
template <typename Store>
DEVICE void norm_row(const NormArguments& arguments, const NormWeight& weight, uint32_t turn, bool keep, float* scratch,
                     Store store) {
    const int thread = threadIdx.x, warp = thread / WARP, lane = thread % WARP;
    const uint32_t width = arguments.width;
    const int64_t row = static_cast<int64_t>(arguments.first_column + turn) * width;
    float* const values = scratch;
    float* const warp_sums = scratch + (width + 3) / 4 * 4 + turn % 2 * (NORM_THREADS / WARP);
    const float* const residual = reinterpret_cast<const float*>(arguments.residual) + row;
    const float* const partials = reinterpret_cast<const float*>(arguments.partials) + row;
    float* const kept = reinterpret_cast<float*>(arguments.residual_out) + row;
    const int64_t partial_stride = static_cast<int64_t>(arguments.partial_columns) * width;

    float squares = 0.0f;
#pragma unroll 1
    for (uint32_t input = thread * 4; input < width; input += NORM_THREADS * 4) {
        float4 value = *reinterpret_cast<const float4*>(residual + input);
#pragma unroll 2
        for (uint32_t index = 0; index < arguments.partial_count; ++index) {
            const float4 partial = *reinterpret_cast<const float4*>(partials + index * partial_stride + input);
            value.x += partial.x;
            value.y += partial.y;
            value.z += partial.z;
            value.w += partial.w;
        }
        if (keep) *reinterpret_cast<float4*>(kept + input) = value;
        *reinterpret_cast<float4*>(values + input) = value;
        squares =
            fmaf(value.w, value.w, fmaf(value.z, value.z, fmaf(value.y, value.y, fmaf(value.x, value.x, squares))));
    }
    squares = warp_sum(squares);
    if (lane == 0) warp_sums[warp] = squares;
    __syncthreads();
    const float mean_square = sum_of_eight(warp_sums, 1) / static_cast<float>(width);
    const float scale = reciprocal_square_root(mean_square + arguments.epsilon);
#pragma unroll 1
    for (uint32_t input = thread * 4; input < width; input += NORM_THREADS * 4) {
        const float4 value = *reinterpret_cast<const float4*>(values + input);
        const float4 factor = input < NORM_THREADS * 4 ? weight.first : NormWeight::at(arguments, input);
        store(input, value.x * scale * factor.x, value.y * scale * factor.y);
        store(input + 2, value.z * scale * factor.z, value.w * scale * factor.w);
    }
}

} // namespace overtone
