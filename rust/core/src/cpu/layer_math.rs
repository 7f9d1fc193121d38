//! What stands between the linear layers: RMSNorm, rotary embedding, SwiGLU, and the dot product of attention.
//!
//! All functions are `#[inline(always)]`, so that inside a kernel they use its instructions; sums run over sixteen
//! interleaved chains that are then added pairwise, whatever the instructions.

use super::lanes::{LANES, Lane16};
use crate::sampling::math::exp;

/// Adds the sixteen chains pairwise: 8 + 8, 4 + 4, 2 + 2, 1 + 1.
#[inline(always)]
fn add_pairwise(mut chains: Lane16) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            chains[lane] += chains[lane + half];
        }
        half /= 2;
    }
    chains[0]
}

/// Σ a_i · b_i over equally long rows.
#[inline(always)]
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut chains = [0.0; LANES];
    let (a_blocks, a_rest) = a.as_chunks::<LANES>();
    let (b_blocks, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a_blocks.iter().zip(b_blocks) {
        for lane in 0..LANES {
            chains[lane] = a[lane].mul_add(b[lane], chains[lane]);
        }
    }
    for (chain, (a, b)) in chains.iter_mut().zip(a_rest.iter().zip(b_rest)) {
        *chain = a.mul_add(*b, *chain);
    }
    add_pairwise(chains)
}

/// x ← x / √(mean(x²) + ε) · weight.
#[inline(always)]
pub(super) fn rms_norm(row: &mut [f32], weight: &[f32], epsilon: f32) {
    let mean_square = dot(row, row) / row.len() as f32;
    let scale = 1.0 / (mean_square + epsilon).sqrt();
    for (value, weight) in row.iter_mut().zip(weight) {
        *value = *value * scale * weight;
    }
}

/// Rotates one head: its first half is paired with its second half.
#[inline(always)]
pub(super) fn rotate(head: &mut [f32], cosines: &[f32], sines: &[f32]) {
    let (first, second) = head.split_at_mut(cosines.len());
    for (((first, second), cosine), sine) in first.iter_mut().zip(second).zip(cosines).zip(sines) {
        let (a, b) = (*first, *second);
        *first = a * cosine - b * sine;
        *second = b * cosine + a * sine;
    }
}

/// gate ← silu(gate) · up, with silu(g) = g / (1 + e^−g).
#[inline(always)]
pub(super) fn swiglu(gates: &mut Lane16, ups: &Lane16) {
    for (gate, up) in gates.iter_mut().zip(ups) {
        *gate = *gate / (1.0 + exp(-*gate)) * up;
    }
}
