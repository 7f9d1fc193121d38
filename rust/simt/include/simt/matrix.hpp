// The twin of mma.sync.aligned.m16n8k16.row.col.f32 for 16-bit floating-point operands.
//
// Products are exact in float32 and are added with fma in the order of k, beginning with the accumulator. Tensor cores
// add in an order and with a rounding that is not documented: tests compare results within a bound, not bit for bit.
#pragma once

#include "warp.hpp"

namespace simt {

// A lane's operands, widened: a[0..2) of row lane/4, a[2..4) of row lane/4 + 8, both at k = 2 (lane % 4) + {0, 1}; a[4..8)
// the same at k + 8; b of column lane/4 at the same k; c of those two rows at columns 2 (lane % 4) + {0, 1}.
struct alignas(64) MatrixOperands {
    float a[8];
    float b[4];
    float c[4];
};

struct alignas(16) MatrixProducts {
    float d[4];
};

void matrix_multiply_of_warp(const MatrixOperands* inputs, MatrixProducts* outputs);

// `value` makes a float of an operand's 16 bits; the low half of a register is the lower k.
template <class Value>
void matrix_multiply(float (&products)[4], const uint32_t (&a)[4], uint32_t b_low, uint32_t b_high, Value value) {
    MatrixOperands operands;
    for (int word = 0; word < 4; ++word) {
        operands.a[2 * word] = value(static_cast<uint16_t>(a[word]));
        operands.a[2 * word + 1] = value(static_cast<uint16_t>(a[word] >> 16));
        operands.c[word] = products[word];
    }
    operands.b[0] = value(static_cast<uint16_t>(b_low));
    operands.b[1] = value(static_cast<uint16_t>(b_low >> 16));
    operands.b[2] = value(static_cast<uint16_t>(b_high));
    operands.b[3] = value(static_cast<uint16_t>(b_high >> 16));
    const MatrixProducts result = warp_compute<MatrixProducts>(
        all_lanes, operands,
        [](unsigned, const MatrixOperands* inputs, MatrixProducts* outputs) {
            matrix_multiply_of_warp(inputs, outputs);
        },
        Collective::matrix_multiply);
    for (int word = 0; word < 4; ++word) products[word] = result.d[word];
}

}  // namespace simt
