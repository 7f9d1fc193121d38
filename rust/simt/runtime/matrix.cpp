// The product of one m16n8k16 tile, from the operands that 32 lanes hold.
#include "launch.hpp"

#include <immintrin.h>

namespace simt {

void matrix_multiply_of_warp(const MatrixOperands* inputs, MatrixProducts* outputs) {
    constexpr int rows = 16, columns = 8, depth = 16;
    float a[rows][depth];
    alignas(32) float b[depth][columns], c[rows][columns];
    for (int lane = 0; lane < int(lanes_of_warp); ++lane) {
        const MatrixOperands& from = inputs[lane];
        const int group = lane / 4, pair = 2 * (lane % 4);
        for (int half = 0; half < 2; ++half)
            for (int i = 0; i < 2; ++i) {
                a[group][pair + 8 * half + i] = from.a[4 * half + i];
                a[group + 8][pair + 8 * half + i] = from.a[4 * half + 2 + i];
                b[pair + 8 * half + i][group] = from.b[2 * half + i];
                c[group + 8 * half][pair + i] = from.c[2 * half + i];
            }
    }
    // Eight rows at a time stay in registers.
    for (int first = 0; first < rows; first += 8) {
        __m256 sums[8];
#pragma GCC unroll 8
        for (int row = 0; row < 8; ++row) sums[row] = _mm256_load_ps(c[first + row]);
        for (int k = 0; k < depth; ++k) {
            const __m256 of_k = _mm256_load_ps(b[k]);
#pragma GCC unroll 8
            for (int row = 0; row < 8; ++row)
                sums[row] = _mm256_fmadd_ps(_mm256_set1_ps(a[first + row][k]), of_k, sums[row]);
        }
#pragma GCC unroll 8
        for (int row = 0; row < 8; ++row) _mm256_store_ps(c[first + row], sums[row]);
    }
    for (int lane = 0; lane < int(lanes_of_warp); ++lane) {
        const int group = lane / 4, pair = 2 * (lane % 4);
        outputs[lane] = {{c[group][pair], c[group][pair + 1], c[group + 8][pair], c[group + 8][pair + 1]}};
    }
}

}  // namespace simt
