//! Attention of one stream over its own KV slots: normalise, rotate, store, attend.
//!
//! A frame starts empty and never has more than R + 1 positions, so a stream's keys and values of one layer stay in the
//! nearest cache. Which slot a position has is the caller's to say; the order of every sum is that of the positions.

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
    /// KV slots of a stream.
    pub(super) slots: usize,
}

/// One token row of one stream.
pub(super) struct AttentionRow<'a, S> {
    pub(super) layer: AttentionLayer<'a>,
    /// Where the row stands: positions before it are attended to as well.
    pub(super) position: usize,
    /// The slot of each position up to the row's own, whose key and value it stores.
    pub(super) slot_of: S,
    /// The row's queries, keys and values as projected, [Nq · D + 2 · Nkv · D]; left normalised and rotated.
    pub(super) projected: &'a mut [f32],
    /// The stream's keys of this layer, [Nkv, slots, D].
    pub(super) keys: &'a mut [f32],
    /// The stream's values of this layer, [Nkv, slots, D].
    pub(super) values: &'a mut [f32],
    /// One weight per position.
    pub(super) weights: &'a mut [f32],
    /// The attended values, [Nq · D].
    pub(super) attended: &'a mut [f32],
}

impl<S: Fn(usize) -> usize> Kernel for AttentionRow<'_, S> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let AttentionRow { layer, position, slot_of, projected, keys, values, weights, attended } = self;
        let spec = layer.spec;
        let size = spec.head_size;
        let stream_head = layer.slots * size;
        let (queries, new) = projected.split_at_mut(spec.query_width());
        let (new_keys, new_values) = new.split_at_mut(spec.key_value_width());
        for head in 0..spec.key_value_heads {
            let key = &mut new_keys[head * size..(head + 1) * size];
            rms_norm(key, layer.key_norm, spec.rms_norm_epsilon);
            layer.rotary.rotate(key, position);
            let slot = head * stream_head + slot_of(position) * size;
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
            let first = head / queries_per_key * stream_head;
            let slot = |position| first + slot_of(position) * size;
            let weights = &mut weights[..=position];
            for (position, weight) in weights.iter_mut().enumerate() {
                *weight = dot(query, &keys[slot(position)..][..size]) * scale;
            }
            softmax(weights);
            attended.fill(0.0);
            for (position, weight) in weights.iter().enumerate() {
                let value = &values[slot(position)..][..size];
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
