// ln and exp as the fixed sequences of `overtone-core` (rust/core/src/sampling/math.rs, which explains them), bit for bit.
//
// The file must be compiled without contraction (-fmad=false, -ffp-contract=off) and with subnormals: what is written as
// two operations rounds twice, what is written as fmaf rounds once.

#pragma once

#include "ptx.cuh"

namespace overtone {

CONSTANT uint32_t LN_COEFFICIENTS[9] = {0xbf000000u, 0x3eaaaa81u, 0xbe7fff42u, 0x3e4ce8f9u, 0xbe2ad3aau,
                                        0x3e0f5f34u, 0xbdf92eecu, 0x3e0f68a1u, 0xbe0498f3u};
CONSTANT uint32_t EXP_COEFFICIENTS[5] = {0x3efffffeu, 0x3e2aaa49u, 0x3d2aac79u, 0x3c091d10u, 0x3ab511e8u};
CONSTANT uint32_t TWO_THIRDS_BITS = 0x3f2aaaabu;
CONSTANT uint32_t LN_2_BITS = 0x3f317218u;
CONSTANT uint32_t LN_2_REST_BITS = 0xb102e308u;
CONSTANT uint32_t LOG2_E_BITS = 0x3fb8aa3bu;
CONSTANT float ROUND_TO_INTEGER = 12582912.0f;

/// Horner's rule from the highest power down.
template <int N> DEVICE float polynomial(const uint32_t (&coefficients)[N], float at) {
    float value = float_of(coefficients[N - 1]);
#pragma unroll
    for (int power = N - 2; power >= 0; --power) value = fmaf(value, at, float_of(coefficients[power]));
    return value;
}

/// The natural logarithm of a positive, normal, finite number.
DEVICE float natural_logarithm(float x) {
    const uint32_t bits = bits_of(x);
    const uint32_t exponent_bits = (bits - TWO_THIRDS_BITS) & 0xff800000u;
    const float exponent = static_cast<float>(static_cast<int32_t>(exponent_bits) >> 23);
    const float fraction = float_of(bits - exponent_bits) - 1.0f;
    const float curvature = polynomial(LN_COEFFICIENTS, fraction);
    const float of_significand = fmaf(fraction * fraction, curvature, fraction);
    return fmaf(exponent, float_of(LN_2_BITS), of_significand);
}

/// 2 to an integer power within -126 ... 127.
DEVICE float power_of_two(int32_t exponent) { return float_of(static_cast<uint32_t>(exponent + 127) << 23); }

/// e to the x, over all of float32.
DEVICE float exponential(float x) {
    x = x < -105.0f ? -105.0f : x;
    x = x > 89.0f ? 89.0f : x;
    const float shifted = fmaf(x, float_of(LOG2_E_BITS), ROUND_TO_INTEGER);
    const float whole = shifted - ROUND_TO_INTEGER;
    const int32_t exponent = static_cast<int32_t>(bits_of(shifted) - bits_of(ROUND_TO_INTEGER));
    const float rest = fmaf(whole, -float_of(LN_2_REST_BITS), fmaf(whole, -float_of(LN_2_BITS), x));
    const float curvature = polynomial(EXP_COEFFICIENTS, rest);
    const float significand = 1.0f + fmaf(rest * rest, curvature, rest);
    const int32_t half = exponent >> 1;
    return significand * power_of_two(half) * power_of_two(exponent - half);
}

} // namespace overtone
