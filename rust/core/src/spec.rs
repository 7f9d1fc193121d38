//! [`ModelSpec`]: the architecture of a code predictor, and all that relatives differ in.

pub mod config;
mod config_error;
pub mod weights;

/// The talker a checkpoint belongs to; it decides the default sampling parameters and which config keys name Ht.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// Qwen3-TTS (`Qwen3TTSTalkerCodePredictorModelForConditionalGeneration`).
    Qwen3Tts,
    /// Qwen3-Omni (`Qwen3OmniMoeTalkerCodePredictorModelForConditionalGeneration`).
    Qwen3Omni,
}

/// How a position enters the attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PositionEncoding {
    /// Rotary embedding over the whole head, first half paired with second half (neox, "rotate half").
    Rope {
        /// Base of the angle: position · theta^(−2i / head_size).
        theta: f32,
    },
}

/// The architecture: every extent of the body, its tables and its heads.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// Which talker it belongs to.
    pub family: Family,
    /// R: residual codebooks, `num_code_groups` − 1.
    pub residual_codebooks: usize,
    /// V: entries of one residual codebook.
    pub codebook_size: usize,
    /// V0: rows of the talker's codec table; `None` until a talker's table is known.
    pub code_zero_size: Option<usize>,
    /// H: width of the residual stream.
    pub hidden_size: usize,
    /// Ht: the talker's width, and that of every embedding table.
    pub talker_hidden_size: usize,
    /// L: decoder layers.
    pub layers: usize,
    /// Nq: query heads.
    pub query_heads: usize,
    /// Nkv: key and value heads; divides Nq.
    pub key_value_heads: usize,
    /// D: width of one head.
    pub head_size: usize,
    /// I: width of the MLP.
    pub mlp_width: usize,
    /// Added to the mean square inside every RMSNorm.
    pub rms_norm_epsilon: f32,
    /// How a position enters the attention.
    pub position_encoding: PositionEncoding,
    /// Whether `small_to_mtp_projection` maps Ht to H; without it Ht = H.
    pub projected: bool,
}

impl ModelSpec {
    /// C: codes of one frame, `code_0` first.
    pub const fn codes_per_frame(&self) -> usize {
        self.residual_codebooks + 1
    }

    /// Width of the query rows, Nq · D.
    pub const fn query_width(&self) -> usize {
        self.query_heads * self.head_size
    }

    /// Width of the key rows and of the value rows, Nkv · D.
    pub const fn key_value_width(&self) -> usize {
        self.key_value_heads * self.head_size
    }

    /// KV slots of one frame: positions 0 … R.
    pub const fn positions(&self) -> usize {
        self.residual_codebooks + 1
    }
}
