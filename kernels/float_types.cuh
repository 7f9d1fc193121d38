// The working types, and values of a type known only when the kernel runs.

#pragma once

#include "ptx.cuh"

namespace overtone {

struct Float16 {
    uint16_t bits;
};
struct BFloat16 {
    uint16_t bits;
};

DEVICE float to_float(float value) { return value; }
DEVICE float to_float(Float16 value) { return float_of_float16(value.bits); }
DEVICE float to_float(BFloat16 value) { return float_of(static_cast<uint32_t>(value.bits) << 16); }

/// The nearest value of type T, ties to even.
template <typename T> DEVICE T from_float(float value);
template <> DEVICE float from_float<float>(float value) { return value; }
template <> DEVICE Float16 from_float<Float16>(float value) { return {float16_bits(value)}; }
template <> DEVICE BFloat16 from_float<BFloat16>(float value) { return {bfloat16_bits(value)}; }

/// Element types of tensors, numbered as the host numbers them.
enum ElementType : uint32_t {
    ELEMENT_FLOAT32 = 0,
    ELEMENT_FLOAT16 = 1,
    ELEMENT_BFLOAT16 = 2,
    ELEMENT_INT32 = 3,
    ELEMENT_INT64 = 4,
    ELEMENT_UINT8 = 5,
    ELEMENT_UINT64 = 6,
};

/// Element `index` of an array of floats of some type.
DEVICE float load_float(const void* array, int64_t index, uint32_t type) {
    switch (type) {
    case ELEMENT_FLOAT32: return static_cast<const float*>(array)[index];
    case ELEMENT_FLOAT16: return to_float(static_cast<const Float16*>(array)[index]);
    default: return to_float(static_cast<const BFloat16*>(array)[index]);
    }
}

/// Elements `index` to `index` + 3 of an array of floats of some type; `index` is a multiple of four, the array aligned to them.
DEVICE float4 load_four(const void* array, int64_t index, uint32_t type) {
    if (type == ELEMENT_FLOAT32) return static_cast<const float4*>(array)[index / 4];
    const uint2 words = static_cast<const uint2*>(array)[index / 4];
    if (type == ELEMENT_FLOAT16)
        return make_float4(float_of_float16(static_cast<uint16_t>(words.x)), float_of_float16(words.x >> 16),
                           float_of_float16(static_cast<uint16_t>(words.y)), float_of_float16(words.y >> 16));
    return make_float4(float_of(words.x << 16), float_of(words.x & 0xffff0000u), float_of(words.y << 16),
                       float_of(words.y & 0xffff0000u));
}

/// Stores a float in an array of some floating-point type, rounded once.
DEVICE void store_float(void* array, int64_t index, uint32_t type, float value) {
    switch (type) {
    case ELEMENT_FLOAT32: static_cast<float*>(array)[index] = value; break;
    case ELEMENT_FLOAT16: static_cast<Float16*>(array)[index] = from_float<Float16>(value); break;
    default: static_cast<BFloat16*>(array)[index] = from_float<BFloat16>(value); break;
    }
}

/// Element `index` of an array of integers of some type; bool counts as 0 and 1, and of an unsigned word the bits count.
DEVICE int64_t load_integer(const void* array, int64_t index, uint32_t type) {
    switch (type) {
    case ELEMENT_INT32: return static_cast<const int32_t*>(array)[index];
    case ELEMENT_INT64:
    case ELEMENT_UINT64: return static_cast<const int64_t*>(array)[index];
    default: return static_cast<const uint8_t*>(array)[index];
    }
}

} // namespace overtone
