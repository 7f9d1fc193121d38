//! The tensors an architecture is made of: their names, their shapes and how much they weigh.
//!
//! How a checkpoint spells these names is the checkpoint room's business; here is what there is to spell.

use std::fmt;

use super::ModelSpec;

/// One tensor of a code predictor, or the talker's codec table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WeightName {
    /// `E[i]` [V, Ht], i = 0 … R−1.
    CodecEmbedding(usize),
    /// `Head[i]` [V, H], i = 0 … R−1.
    Head(usize),
    /// The norm before the heads, `[H]`.
    FinalNorm,
    /// The norm before a layer's attention, `[H]`.
    InputNorm(usize),
    /// The norm before a layer's MLP, `[H]`.
    PostAttentionNorm(usize),
    /// Query projection of a layer, [Nq·D, H].
    Query(usize),
    /// Key projection of a layer, [Nkv·D, H].
    Key(usize),
    /// Value projection of a layer, [Nkv·D, H].
    Value(usize),
    /// Output projection of a layer's attention, [H, Nq·D].
    Output(usize),
    /// Per-head norm of a layer's queries, `[D]`.
    QueryNorm(usize),
    /// Per-head norm of a layer's keys, `[D]`.
    KeyNorm(usize),
    /// Gate projection of a layer's MLP, [I, H].
    Gate(usize),
    /// Up projection of a layer's MLP, [I, H].
    Up(usize),
    /// Down projection of a layer's MLP, [H, I].
    Down(usize),
    /// Weight of `small_to_mtp_projection`, [H, Ht].
    ProjectionWeight,
    /// Bias of `small_to_mtp_projection`, `[H]`.
    ProjectionBias,
    /// E0 [V0, Ht]: the talker's codec table.
    CodeZeroTable,
}

impl WeightName {
    /// The tensors of one layer, in the order a frame meets them.
    pub const LAYER: [fn(usize) -> Self; 11] = [
        Self::InputNorm,
        Self::Query,
        Self::Key,
        Self::Value,
        Self::QueryNorm,
        Self::KeyNorm,
        Self::Output,
        Self::PostAttentionNorm,
        Self::Gate,
        Self::Up,
        Self::Down,
    ];

    /// The layer it belongs to.
    pub const fn layer(self) -> Option<usize> {
        match self {
            Self::InputNorm(layer)
            | Self::PostAttentionNorm(layer)
            | Self::Query(layer)
            | Self::Key(layer)
            | Self::Value(layer)
            | Self::Output(layer)
            | Self::QueryNorm(layer)
            | Self::KeyNorm(layer)
            | Self::Gate(layer)
            | Self::Up(layer)
            | Self::Down(layer) => Some(layer),
            Self::CodecEmbedding(_)
            | Self::Head(_)
            | Self::FinalNorm
            | Self::ProjectionWeight
            | Self::ProjectionBias
            | Self::CodeZeroTable => None,
        }
    }

    /// Whether it belongs to the decoder: a layer or the final norm, and no table, head or projection.
    pub const fn is_body(self) -> bool {
        self.layer().is_some() || matches!(self, Self::FinalNorm)
    }

    /// Whether the published classes keep it in their inner `model`, so that its key may begin with `model.`.
    pub const fn is_inside_model(self) -> bool {
        self.is_body() || matches!(self, Self::CodecEmbedding(_))
    }
}

/// The key as the published classes spell it, without what stands in front of it (the talker's table: in full).
impl fmt::Display for WeightName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (layer, rest) = match *self {
            Self::CodecEmbedding(index) => return write!(formatter, "codec_embedding.{index}.weight"),
            Self::Head(index) => return write!(formatter, "lm_head.{index}.weight"),
            Self::FinalNorm => return formatter.write_str("norm.weight"),
            Self::ProjectionWeight => return formatter.write_str("small_to_mtp_projection.weight"),
            Self::ProjectionBias => return formatter.write_str("small_to_mtp_projection.bias"),
            Self::CodeZeroTable => return formatter.write_str("talker.model.codec_embedding.weight"),
            Self::InputNorm(layer) => (layer, "input_layernorm"),
            Self::PostAttentionNorm(layer) => (layer, "post_attention_layernorm"),
            Self::Query(layer) => (layer, "self_attn.q_proj"),
            Self::Key(layer) => (layer, "self_attn.k_proj"),
            Self::Value(layer) => (layer, "self_attn.v_proj"),
            Self::Output(layer) => (layer, "self_attn.o_proj"),
            Self::QueryNorm(layer) => (layer, "self_attn.q_norm"),
            Self::KeyNorm(layer) => (layer, "self_attn.k_norm"),
            Self::Gate(layer) => (layer, "mlp.gate_proj"),
            Self::Up(layer) => (layer, "mlp.up_proj"),
            Self::Down(layer) => (layer, "mlp.down_proj"),
        };
        write!(formatter, "layers.{layer}.{rest}.weight")
    }
}

impl ModelSpec {
    /// The shape of a tensor in this architecture; the talker's table has 0 rows while no table is known.
    pub fn weight_shape(&self, name: WeightName) -> Vec<usize> {
        let hidden = self.hidden_size;
        match name {
            WeightName::CodecEmbedding(_) => vec![self.codebook_size, self.talker_hidden_size],
            WeightName::Head(_) => vec![self.codebook_size, hidden],
            WeightName::CodeZeroTable => vec![self.code_zero_size.unwrap_or(0), self.talker_hidden_size],
            WeightName::FinalNorm
            | WeightName::InputNorm(_)
            | WeightName::PostAttentionNorm(_)
            | WeightName::ProjectionBias => vec![hidden],
            WeightName::QueryNorm(_) | WeightName::KeyNorm(_) => vec![self.head_size],
            WeightName::Query(_) => vec![self.query_width(), hidden],
            WeightName::Key(_) | WeightName::Value(_) => vec![self.key_value_width(), hidden],
            WeightName::Output(_) => vec![hidden, self.query_width()],
            WeightName::Gate(_) | WeightName::Up(_) => vec![self.mlp_width, hidden],
            WeightName::Down(_) => vec![hidden, self.mlp_width],
            WeightName::ProjectionWeight => vec![hidden, self.talker_hidden_size],
        }
    }

    /// Elements of a tensor in this architecture.
    pub fn weight_elements(&self, name: WeightName) -> usize {
        self.weight_shape(name).iter().product()
    }

    /// Every tensor the predictor needs: tables, heads, layers, final norm, and the projection when there is one.
    /// The talker's table is not among them.
    pub fn weights(&self) -> impl Iterator<Item = WeightName> {
        let (codebooks, projected) = (self.residual_codebooks, self.projected);
        let projection = [WeightName::ProjectionWeight, WeightName::ProjectionBias];
        (0..codebooks)
            .map(WeightName::CodecEmbedding)
            .chain((0..codebooks).map(WeightName::Head))
            .chain(self.body_weights())
            .chain(projection.into_iter().filter(move |_| projected))
    }

    /// The tensors of the decoder: every layer and the final norm.
    pub fn body_weights(&self) -> impl Iterator<Item = WeightName> {
        (0..self.layers)
            .flat_map(|layer| WeightName::LAYER.iter().map(move |name| name(layer)))
            .chain([WeightName::FinalNorm])
    }

    /// Parameters of the whole predictor; the talker's table is not counted.
    pub fn parameters(&self) -> usize {
        self.weights().map(|name| self.weight_elements(name)).sum()
    }

    /// Parameters of the decoder: what every step of a frame reads, one head aside.
    pub fn body_parameters(&self) -> usize {
        self.body_weights().map(|name| self.weight_elements(name)).sum()
    }
}
