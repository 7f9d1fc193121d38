//! The `config.json` of a synthetic checkpoint, nested as the family nests it and with the keys that its
//! configuration classes know. The talker's own layers are described as the released models have them, though no such
//! layer is written.

use serde_json::{Value, json};

use crate::spec::{Family, ModelSpec, PositionEncoding};

/// The configuration of a whole model around this predictor.
pub(crate) fn config_json(spec: &ModelSpec) -> Value {
    match spec.family {
        Family::Qwen3Tts => qwen3_tts(spec),
        Family::Qwen3Omni => qwen3_omni(spec),
    }
}

fn qwen3_tts(spec: &ModelSpec) -> Value {
    json!({
        "architectures": ["Qwen3TTSForConditionalGeneration"],
        "model_type": "qwen3_tts",
        "dtype": "bfloat16",
        "tokenizer_type": "qwen3_tts_tokenizer_12hz",
        "tts_model_type": "base",
        "speaker_encoder_config": { "enc_dim": spec.talker_hidden_size, "sample_rate": 24000 },
        "talker_config": {
            "model_type": "qwen3_tts_talker",
            "hidden_size": spec.talker_hidden_size,
            "vocab_size": spec.code_zero_size,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "intermediate_size": 3 * spec.talker_hidden_size,
            "text_hidden_size": 2048,
            "num_code_groups": spec.codes_per_frame(),
            "rms_norm_eps": 1e-6,
            "hidden_act": "silu",
            "rope_theta": 1_000_000,
            "rope_scaling": mrope(),
            "code_predictor_config": predictor(spec, "qwen3_tts_talker_code_predictor"),
        },
    })
}

fn qwen3_omni(spec: &ModelSpec) -> Value {
    json!({
        "architectures": ["Qwen3OmniMoeForConditionalGeneration"],
        "model_type": "qwen3_omni_moe",
        "dtype": "bfloat16",
        "enable_audio_output": true,
        "talker_config": {
            "model_type": "qwen3_omni_moe_talker",
            "num_code_groups": spec.codes_per_frame(),
            "thinker_hidden_size": 2048,
            "text_config": {
                "model_type": "qwen3_omni_moe_talker_text",
                "hidden_size": spec.talker_hidden_size,
                "vocab_size": spec.code_zero_size,
                "num_hidden_layers": 20,
                "num_attention_heads": 16,
                "num_key_value_heads": 2,
                "head_dim": 128,
                "intermediate_size": 2048,
                "rms_norm_eps": 1e-6,
                "hidden_act": "silu",
                "rope_theta": 1_000_000,
                "rope_scaling": mrope(),
            },
            "code_predictor_config": predictor(spec, "qwen3_omni_moe_talker_code_predictor"),
        },
    })
}

fn mrope() -> Value {
    json!({ "interleaved": true, "mrope_section": [24, 20, 20], "rope_type": "default", "type": "default" })
}

fn predictor(spec: &ModelSpec, model_type: &str) -> Value {
    let PositionEncoding::Rope { theta } = spec.position_encoding;
    json!({
        "model_type": model_type,
        "attention_bias": false,
        "attention_dropout": 0,
        "head_dim": spec.head_size,
        "hidden_act": "silu",
        "hidden_size": spec.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": spec.mlp_width,
        "layer_types": vec!["full_attention"; spec.layers],
        "max_position_embeddings": 65536,
        "max_window_layers": 28,
        "num_attention_heads": spec.query_heads,
        "num_code_groups": spec.codes_per_frame(),
        "num_hidden_layers": spec.layers,
        "num_key_value_heads": spec.key_value_heads,
        "rms_norm_eps": shortest(spec.rms_norm_epsilon),
        "rope_scaling": null,
        "rope_theta": shortest(theta),
        "sliding_window": null,
        "tie_word_embeddings": false,
        "use_cache": true,
        "use_sliding_window": false,
        "vocab_size": spec.codebook_size,
    })
}

/// The shortest decimal that means this number in float32, as a JSON number: 1e-6, and not the 9.99999997e-7 that its
/// widened value would print as.
fn shortest(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}
