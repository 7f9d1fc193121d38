// Everything that is not plain C++: inline PTX, and beside each piece the host twin that the tests run.
//
// No other file of this folder holds assembly or asks which compiler is at work. On a device that lacks an instruction
// (programmatic dependent launch before compute capability 9.0) the piece does nothing, and the kernel is launched so
// that nothing is needed.

#pragma once

#include <cstdint>

#ifdef __CUDACC__

#include <cuda_device_runtime_api.h>

/// Begins the definition of a kernel: its one argument is a struct that the host mirrors field by field.
#define KERNEL(name, Arguments, max_threads, min_blocks)                                                               \
    extern "C" __global__ void __launch_bounds__(max_threads, min_blocks) name(const __grid_constant__ Arguments args)

/// Shared memory of the launch, as an array of `type`; its size is the launch's.
#define SHARED(type, name)                                                                                             \
    extern __shared__ __align__(16) unsigned char shared_memory_of_launch[];                                           \
    type* const name = reinterpret_cast<type*>(shared_memory_of_launch)

#define DEVICE __device__ __forceinline__
#define CONSTANT __device__ constexpr

#else

#define SHARED(type, name) type* const name = reinterpret_cast<type*>(simt::shared_memory())
#define DEVICE inline
#define CONSTANT constexpr

#endif

namespace overtone {

// ---------------------------------------------------------------------------------------------------------------------
// Order between kernels

/// Waits until every kernel launched before this one has ended and its writes are seen.
DEVICE void wait_for_earlier_kernels() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Lets the next kernel start beside this one. It reads nothing of ours until it has waited.
DEVICE void let_next_kernel_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Says whether the graph's loop of this handle goes round once more; 0 is no loop.
DEVICE void repeat_loop(uint64_t handle, bool more) {
#ifdef __CUDA_ARCH__
    if (handle != 0) cudaGraphSetConditional(handle, more);
#else
    (void)handle, (void)more;
#endif
}

// ---------------------------------------------------------------------------------------------------------------------
// Memory

/// Sixteen bytes that are read once: weights pass by the L1 cache. The order of volatile pieces is the order of the
/// code, which is the point: weights are on their way before the kernel waits for its inputs.
DEVICE uint4 load_streaming(const void* address) {
#ifdef __CUDA_ARCH__
    uint4 value;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(address));
    return value;
#else
    return *static_cast<const uint4*>(address);
#endif
}

/// Brings a line of memory closer.
DEVICE void prefetch(const void* address) {
#ifdef __CUDA_ARCH__
    asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
#endif
}

/// Begins to copy sixteen bytes to shared memory; the caller sees them after `wait_for_copies`.
DEVICE void copy_to_shared(void* shared, const void* address) {
#ifdef __CUDA_ARCH__
    const uint32_t target = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(target), "l"(address) : "memory");
#elif !defined(__CUDACC__)
    simt::copy_async(shared, address, 16);
#endif
}

/// Waits for all copies that this thread began.
DEVICE void wait_for_copies() {
#ifdef __CUDA_ARCH__
    asm volatile("cp.async.wait_all;" ::: "memory");
#elif !defined(__CUDACC__)
    simt::copy_async_wait_all();
#endif
}

// ---------------------------------------------------------------------------------------------------------------------
// Sixteen-bit floating point

DEVICE uint32_t bits_of(float value) {
#ifdef __CUDA_ARCH__
    return __float_as_uint(value);
#else
    uint32_t bits;
    __builtin_memcpy(&bits, &value, sizeof bits);
    return bits;
#endif
}

DEVICE float float_of(uint32_t bits) {
#ifdef __CUDA_ARCH__
    return __uint_as_float(bits);
#else
    float value;
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
#endif
}

/// Bits of the nearest bfloat16, ties to even.
DEVICE uint16_t bfloat16_bits(float value) {
#ifdef __CUDA_ARCH__
    uint16_t bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
#else
    const uint32_t bits = bits_of(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff; // NaN, as the instruction gives it
    return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
#endif
}

/// Bits of the nearest float16, ties to even; beyond its range infinity.
DEVICE uint16_t float16_bits(float value) {
#ifdef __CUDA_ARCH__
    uint16_t bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
#else
    const uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return 0x7fff;
    if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u); // 65520 and above round to infinity
    if (magnitude < 0x38800000u) { // below 2^-14: subnormal, in units of 2^-24; the sum rounds it
        const float units = float_of(magnitude) * 16777216.0f + 12582912.0f;
        return static_cast<uint16_t>(sign | (bits_of(units) - 0x4b400000u));
    }
    const uint32_t rebased = magnitude - (112u << 23);
    return static_cast<uint16_t>(sign | ((rebased + 0xfffu + (rebased >> 13 & 1)) >> 13));
#endif
}

DEVICE float float_of_float16(uint16_t bits) {
#ifdef __CUDA_ARCH__
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
#else
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16, exponent = bits >> 10 & 31,
                   fraction = bits & 1023;
    if (exponent == 31) return float_of(sign | 0x7f800000u | fraction << 13);
    if (exponent == 0) return float_of(sign | bits_of(static_cast<float>(fraction) * 5.9604644775390625e-8f));
    return float_of(sign | (exponent + 112) << 23 | fraction << 13);
#endif
}

/// 1 / sqrt(x), within two units of the last place.
DEVICE float reciprocal_square_root(float x) {
#ifdef __CUDA_ARCH__
    float root;
    asm("rsqrt.approx.f32 %0, %1;" : "=f"(root) : "f"(x));
    return root;
#else
    return 1.0f / sqrtf(x);
#endif
}

// ---------------------------------------------------------------------------------------------------------------------
// Tensor cores

/// What one lane holds of a 16 x 16 tile of weights, [output rows][inputs]: rows lane/4 and lane/4 + 8, and of each the
/// inputs 2 (lane%4) + {0, 1} and 8 more, as PTX gives them for mma.m16n8k16.
struct WeightFragment {
    uint32_t words[4];
};

/// Adds weights [16][16] times activations [16][8] to a lane's share of the products [16][8]: rows lane/4 and lane/4 + 8,
/// columns 2 (lane%4) + {0, 1}. Every column is computed by itself, so a row of the batch does not know its neighbours.
#define OVERTONE_MATRIX_MULTIPLY(name, type, host_value)                                                               \
    DEVICE void name(float (&products)[4], const WeightFragment& weights, uint32_t activations_low,                    \
                     uint32_t activations_high) {                                                                      \
        OVERTONE_MATRIX_MULTIPLY_BODY(type, host_value)                                                                \
    }

#ifdef __CUDA_ARCH__
#define OVERTONE_MATRIX_MULTIPLY_BODY(type, host_value)                                                                \
    asm("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "   \
        "{%0, %1, %2, %3};"                                                                                            \
        : "+f"(products[0]), "+f"(products[1]), "+f"(products[2]), "+f"(products[3])                                   \
        : "r"(weights.words[0]), "r"(weights.words[1]), "r"(weights.words[2]), "r"(weights.words[3]),                  \
          "r"(activations_low), "r"(activations_high));
#elif defined(__CUDACC__)
#define OVERTONE_MATRIX_MULTIPLY_BODY(type, host_value)
#else
#define OVERTONE_MATRIX_MULTIPLY_BODY(type, host_value)                                                                \
    simt::matrix_multiply(products, weights.words, activations_low, activations_high, host_value);
#endif

#ifndef __CUDACC__
DEVICE float float_of_bfloat16(uint16_t bits) { return float_of(static_cast<uint32_t>(bits) << 16); }
#endif

OVERTONE_MATRIX_MULTIPLY(multiply_bfloat16, "bf16", float_of_bfloat16)
OVERTONE_MATRIX_MULTIPLY(multiply_float16, "f16", float_of_float16)

} // namespace overtone
