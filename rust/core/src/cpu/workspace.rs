//! All that a frame writes before its outputs, carved from one arena that the predictor or the talker owns.
//!
//! Nothing in it outlives a frame: every value is written before it is read, so a talker may use the arena between
//! frames. Row-major buffers pad each row to whole blocks of sixteen floats; the padding is never read.

use super::lanes::{LANES, Lane16};
use super::product::int8::integer_blocks;
use crate::spec::ModelSpec;

/// Token rows that one stream brings into the widest pass: the prefill's two.
pub(super) const PREFILL_ROWS: usize = 2;

/// The buffers of one frame of `streams` streams.
pub(super) struct Workspace<'a> {
    /// Embedding rows before the projection, [rows, Ht]; empty when there is none.
    pub(super) embedded: &'a mut [Lane16],
    /// The residual stream, [rows, H].
    pub(super) residual: &'a mut [Lane16],
    /// Its normalised copy, [rows, H].
    pub(super) normed: &'a mut [Lane16],
    /// A linear layer's inputs as integers, for int8 weights.
    pub(super) integers: &'a mut [Lane16],
    /// Outputs of a linear layer or of a head, `[panels][rows]`.
    pub(super) outputs: &'a mut [Lane16],
    /// Outputs of the gate and up projections, panels alternating, `[2 I / 16][rows]`.
    pub(super) gate_up: &'a mut [Lane16],
    /// Queries, keys and values, [rows, (Nq + 2 Nkv) D].
    pub(super) projected: &'a mut [Lane16],
    /// Attention weights, [rows, positions].
    pub(super) scores: &'a mut [Lane16],
    /// Attended values, [rows, Nq · D].
    pub(super) attended: &'a mut [Lane16],
    /// Logits, [streams, V].
    pub(super) logits: &'a mut [Lane16],
    /// Keys, [layers, streams, Nkv, positions, D].
    pub(super) keys: &'a mut [Lane16],
    /// Values, likewise.
    pub(super) values: &'a mut [Lane16],
}

/// Blocks of each buffer, in the order of the fields above.
fn extents(spec: &ModelSpec, streams: usize) -> [usize; 12] {
    let rows = streams * PREFILL_ROWS;
    let blocks = |width: usize| width.div_ceil(LANES);
    let projected = blocks(spec.query_width() + 2 * spec.key_value_width());
    let panels = projected.max(blocks(spec.hidden_size)).max(blocks(spec.codebook_size));
    let cache = spec.layers * streams * stream_cache(spec);
    [
        if spec.projected { rows * blocks(spec.talker_hidden_size) } else { 0 },
        rows * blocks(spec.hidden_size),
        rows * blocks(spec.hidden_size),
        rows * integer_blocks(spec.hidden_size.max(spec.query_width())),
        rows * panels,
        rows * 2 * blocks(spec.mlp_width),
        rows * projected,
        rows * blocks(spec.positions()),
        rows * blocks(spec.query_width()),
        streams * blocks(spec.codebook_size),
        cache,
        cache,
    ]
}

/// Blocks of one stream's keys (or values) of one layer.
pub(super) fn stream_cache(spec: &ModelSpec) -> usize {
    (spec.positions() * spec.key_value_width()).div_ceil(LANES)
}

/// Blocks of sixteen floats that a frame of `streams` streams needs.
pub fn workspace_blocks(spec: &ModelSpec, streams: usize) -> usize {
    extents(spec, streams).iter().sum()
}

impl<'a> Workspace<'a> {
    /// Carves the buffers for `streams` streams from the front of `arena`.
    ///
    /// # Panics
    /// When the arena holds fewer than [`workspace_blocks`].
    pub(super) fn carve(arena: &'a mut [Lane16], spec: &ModelSpec, streams: usize) -> Self {
        let mut rest = arena;
        let [
            embedded,
            residual,
            normed,
            integers,
            outputs,
            gate_up,
            projected,
            scores,
            attended,
            logits,
            keys,
            values,
        ] = extents(spec, streams).map(|extent| {
            let (buffer, tail) = std::mem::take(&mut rest).split_at_mut(extent);
            rest = tail;
            buffer
        });
        Self {
            embedded,
            residual,
            normed,
            integers,
            outputs,
            gate_up,
            projected,
            scores,
            attended,
            logits,
            keys,
            values,
        }
    }
}
