//! All that a frame writes before its outputs, carved from one arena that the predictor or the talker owns.
//!
//! Nothing in it outlives a frame: every value is written before it is read, so a talker may use the arena between
//! frames. Row-major buffers pad each row to whole blocks of sixteen floats; the padding is never read.

use super::lanes::{LANES, Lane16};
use super::product::int8::integer_blocks;
use crate::spec::ModelSpec;

/// Token rows that one stream brings into the widest pass: the prefill's two.
pub(super) const PREFILL_ROWS: usize = 2;

/// How much a frame works on at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkspaceExtent {
    /// Streams of the frame.
    pub streams: usize,
    /// Rows of one stream in a verify pass; 1 without speculation.
    pub verify_rows: usize,
}

impl WorkspaceExtent {
    /// KV slots of one stream: its positions, and room for the drafts that are not accepted.
    pub(super) fn slots(self, spec: &ModelSpec) -> usize {
        spec.positions() + self.verify_rows - 1
    }

    /// Blocks of one stream's keys (or values) of one layer.
    pub(super) fn stream_cache(self, spec: &ModelSpec) -> usize {
        (self.slots(spec) * spec.key_value_width()).div_ceil(LANES)
    }

    /// Blocks of sixteen floats that such a frame needs.
    pub fn blocks(self, spec: &ModelSpec) -> usize {
        self.buffers(spec).iter().sum()
    }

    /// Blocks of each buffer, in the order of the fields of [`Workspace`].
    fn buffers(self, spec: &ModelSpec) -> [usize; 13] {
        let Self { streams, verify_rows } = self;
        let rows = streams * PREFILL_ROWS.max(verify_rows);
        let blocks = |width: usize| width.div_ceil(LANES);
        let projected = blocks(spec.query_width() + 2 * spec.key_value_width());
        let panels = projected.max(blocks(spec.hidden_size)).max(blocks(spec.codebook_size));
        let cache = spec.layers * streams * self.stream_cache(spec);
        [
            if spec.projected { rows * blocks(spec.talker_hidden_size) } else { 0 },
            rows * blocks(spec.hidden_size),
            rows * blocks(spec.hidden_size),
            rows * integer_blocks(spec.hidden_size.max(spec.query_width())),
            rows * panels,
            rows * 2 * blocks(spec.mlp_width),
            rows * projected,
            streams * blocks(spec.positions()),
            rows * blocks(spec.query_width()),
            streams * verify_rows * blocks(spec.hidden_size),
            streams * verify_rows * blocks(spec.codebook_size),
            cache,
            cache,
        ]
    }
}

/// The buffers of one frame.
pub(super) struct Workspace<'a> {
    pub(super) extent: WorkspaceExtent,
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
    /// Attention weights, [streams, positions].
    pub(super) scores: &'a mut [Lane16],
    /// Attended values, [rows, Nq · D].
    pub(super) attended: &'a mut [Lane16],
    /// Final-norm hidden rows that heads read, [streams · verify rows, H].
    pub(super) hidden: &'a mut [Lane16],
    /// Logits of those rows, [streams · verify rows, V].
    pub(super) logits: &'a mut [Lane16],
    /// Keys, [layers, streams, Nkv, slots, D].
    pub(super) keys: &'a mut [Lane16],
    /// Values, likewise.
    pub(super) values: &'a mut [Lane16],
}

impl<'a> Workspace<'a> {
    /// Carves the buffers from the front of `arena`.
    ///
    /// # Panics
    /// When the arena holds fewer blocks than [`WorkspaceExtent::blocks`].
    pub(super) fn carve(arena: &'a mut [Lane16], spec: &ModelSpec, extent: WorkspaceExtent) -> Self {
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
            hidden,
            logits,
            keys,
            values,
        ] = extent.buffers(spec).map(|blocks| {
            let (buffer, tail) = std::mem::take(&mut rest).split_at_mut(blocks);
            rest = tail;
            buffer
        });
        Self {
            extent,
            embedded,
            residual,
            normed,
            integers,
            outputs,
            gate_up,
            projected,
            scores,
            attended,
            hidden,
            logits,
            keys,
            values,
        }
    }
}
