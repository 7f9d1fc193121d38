//! Attention of one stream over its own KV slots: normalise, rotate, store, attend.
//!
//! Positions are the slots: a frame starts empty and never has more than R + 1 of them, so a stream's keys and
//! values of one layer stay in the nearest cache.

use super::lanes::{Kernel, Lanes};
use super::layer_math::{dot, rms_norm, rotate};
use crate::sampling::math::exp;
use crate::spec::{ModelSpec, PositionEncoding};

/// Cosines and sines of every position, [positions, D / 2] each.
#[derive(Debug)]
pub(super) struct RotaryTable {
    cosines: Vec<f32>,
    sines: Vec<f32>,
    half: usize,
}

impl RotaryTable {
    /// Angles are computed in float64 and their cosines and sines rounded once.
    pub(super) fn new(spec: &ModelSpec) -> Self {
        let PositionEncoding::Rope { theta } = spec.position_encoding;
        let half = spec.head_size / 2;
        let angles = (0..spec.positions()).flat_map(|position| {
            (0..half).map(move |index| {
                position as f64 * f64::from(theta).powf(-2.0 * index as f64 / (2 * half) as f64)
            })
        });
        let (cosines, sines) = angles.map(|angle| (angle.cos() as f32, angle.sin() as f32)).unzip();
        Self { cosines, sines, half }
    }

    #[inline(always)]
    fn rotate(&self, head: &mut [f32], position: usize) {
        let range = position * self.half..(position + 1) * self.half;
        rotate(head, &self.cosines[range.clone()], &self.sines[range]);
    }
}

/// What one layer's attention reads besides its rows.
#[derive(Clone, Copy)]
pub(super) struct AttentionLayer<'a> {
    pub(super) spec: &'a ModelSpec,
    pub(super) query_norm: &'a [f32],
    pub(super) key_norm: &'a [f32],
    pub(super) rotary: &'a RotaryTable,
}

/// One token row of one stream.
pub(super) struct AttentionRow<'a> {
    pub(super) layer: AttentionLayer<'a>,
    /// Where the row stands: slots below are attended to as well.
    pub(super) position: usize,
    /// The row's queries, keys and values as projected, [Nq · D + 2 · Nkv · D]; left normalised and rotated.
    pub(super) projected: &'a mut [f32],
    /// The stream's keys of this layer, [Nkv, positions, D].
    pub(super) keys: &'a mut [f32],
    /// The stream's values of this layer, [Nkv, positions, D].
    pub(super) values: &'a mut [f32],
    /// One weight per position.
    pub(super) weights: &'a mut [f32],
    /// The attended values, [Nq · D].
    pub(super) attended: &'a mut [f32],
}

impl Kernel for AttentionRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let AttentionRow { layer, position, projected, keys, values, weights, attended } = self;
        let spec = layer.spec;
        let size = spec.head_size;
        let stream_head = spec.positions() * size;
        let (queries, new) = projected.split_at_mut(spec.query_width());
        let (new_keys, new_values) = new.split_at_mut(spec.key_value_width());
        for head in 0..spec.key_value_heads {
            let key = &mut new_keys[head * size..(head + 1) * size];
            rms_norm(key, layer.key_norm, spec.rms_norm_epsilon);
            layer.rotary.rotate(key, position);
            let slot = head * stream_head + position * size;
            keys[slot..slot + size].copy_from_slice(key);
            values[slot..slot + size].copy_from_slice(&new_values[head * size..(head + 1) * size]);
        }
        let queries_per_key = spec.query_heads / spec.key_value_heads;
        let scale = 1.0 / (size as f32).sqrt();
        for (head, (query, attended)) in
            queries.chunks_exact_mut(size).zip(attended.chunks_exact_mut(size)).enumerate()
        {
            rms_norm(query, layer.query_norm, spec.rms_norm_epsilon);
            layer.rotary.rotate(query, position);
            let slots = head / queries_per_key * stream_head..;
            let keys = keys[slots.clone()].chunks_exact(size).take(position + 1);
            let values = values[slots].chunks_exact(size).take(position + 1);
            let weights = &mut weights[..=position];
            for (weight, key) in weights.iter_mut().zip(keys) {
                *weight = dot(query, key) * scale;
            }
            softmax(weights);
            attended.fill(0.0);
            for (weight, value) in weights.iter().zip(values) {
                for (attended, value) in attended.iter_mut().zip(value) {
                    *attended = weight.mul_add(*value, *attended);
                }
            }
        }
    }
}

/// Scores become weights that sum to one; a row holding NaN or infinities becomes NaN, and nothing worse.
#[inline(always)]
fn softmax(scores: &mut [f32]) {
    let largest = scores.iter().fold(f32::NEG_INFINITY, |largest, score| largest.max(*score));
    let mut total = 0.0;
    for score in scores.iter_mut() {
        *score = exp(*score - largest);
        total += *score;
    }
    for score in scores {
        *score /= total;
    }
}
