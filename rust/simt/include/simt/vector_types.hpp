// CUDA's built-in vector types with CUDA's sizes and alignments, and their make_ functions.
#pragma once

#define SIMT_VECTOR_TYPES(scalar, name)                                                                                \
    struct alignas(2 * sizeof(scalar)) name##2 { scalar x, y; };                                                       \
    struct name##3 { scalar x, y, z; };                                                                                \
    struct alignas(4 * sizeof(scalar) < 16 ? 4 * sizeof(scalar) : 16) name##4 { scalar x, y, z, w; };                  \
    constexpr name##2 make_##name##2(scalar x, scalar y) { return {x, y}; }                                            \
    constexpr name##3 make_##name##3(scalar x, scalar y, scalar z) { return {x, y, z}; }                               \
    constexpr name##4 make_##name##4(scalar x, scalar y, scalar z, scalar w) { return {x, y, z, w}; }

SIMT_VECTOR_TYPES(signed char, char)
SIMT_VECTOR_TYPES(unsigned char, uchar)
SIMT_VECTOR_TYPES(short, short)
SIMT_VECTOR_TYPES(unsigned short, ushort)
SIMT_VECTOR_TYPES(int, int)
SIMT_VECTOR_TYPES(unsigned int, uint)
SIMT_VECTOR_TYPES(long long, longlong)
SIMT_VECTOR_TYPES(unsigned long long, ulonglong)
SIMT_VECTOR_TYPES(float, float)
SIMT_VECTOR_TYPES(double, double)

#undef SIMT_VECTOR_TYPES

static_assert(sizeof(float2) == 8 && alignof(float2) == 8 && sizeof(float4) == 16 && alignof(float4) == 16);
static_assert(sizeof(uint3) == 12 && alignof(uint3) == 4 && sizeof(ushort4) == 8 && alignof(ushort4) == 8);

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
