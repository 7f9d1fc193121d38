//! How checkpoints spell the names of their tensors: the published classes with their prefixes, and the artifacts of
//! TensorRT Edge-LLM.

use crate::spec::weights::WeightName;

/// What may stand in front of a predictor's keys: as part of the whole model, of a talker, or on its own. Tried in
/// this order, because the talker around a predictor has layers of the same names further out.
const PREFIXES: [&str; 3] = ["talker.code_predictor.", "code_predictor.", ""];

/// The key of a talker's codec table in a whole model, and in the file of a talker on its own.
const TALKER_TABLES: [&str; 2] = ["talker.model.codec_embedding.weight", "model.codec_embedding.weight"];

/// File of an artifact directory that holds the tables `E[i]`.
pub(super) const ARTIFACT_TABLES: &str = "codec_embeddings.safetensors";
/// File of an artifact directory that holds the heads.
pub(super) const ARTIFACT_HEADS: &str = "lm_heads.safetensors";
/// File of an artifact directory that holds the projection.
pub(super) const ARTIFACT_PROJECTION: &str = "small_to_mtp_projection.safetensors";
/// The files of an artifact directory.
pub(super) const ARTIFACTS: [&str; 3] = [ARTIFACT_TABLES, ARTIFACT_HEADS, ARTIFACT_PROJECTION];

/// The spelling of one checkpoint, the same for all of its tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Naming {
    prefix: &'static str,
    /// `model.`, or nothing.
    model: &'static str,
}

impl Default for Naming {
    fn default() -> Self {
        Self { prefix: "", model: "model." }
    }
}

impl Naming {
    /// The keys of a whole model.
    pub const WHOLE_MODEL: Self = Self { prefix: PREFIXES[0], model: "model." };

    /// The spelling under which `keys` hold a predictor: the outermost prefix with any of its tensors, and `model.`
    /// where any key has it. The default where there is no tensor of a predictor at all.
    pub fn detect<'k>(keys: impl Iterator<Item = &'k str> + Clone) -> Self {
        for prefix in PREFIXES {
            let mut naming = None;
            for key in keys.clone().filter_map(|key| key.strip_prefix(prefix)) {
                if key.strip_prefix("model.").and_then(inside_model).is_some() {
                    return Self { prefix, model: "model." };
                }
                if inside_model(key).is_some() {
                    naming = Some(Self { prefix, model: "" });
                } else if outside_model(key).is_some() {
                    naming = naming.or(Some(Self { prefix, model: "model." }));
                }
            }
            if let Some(naming) = naming {
                return naming;
            }
        }
        Self::default()
    }

    /// The key of a tensor in this spelling.
    pub fn key(self, name: WeightName) -> String {
        match name {
            WeightName::CodeZeroTable => name.to_string(),
            _ if name.is_inside_model() => format!("{}{}{name}", self.prefix, self.model),
            _ => format!("{}{name}", self.prefix),
        }
    }

    /// The tensor of a key in this spelling.
    pub fn parse(self, key: &str) -> Option<WeightName> {
        if key == TALKER_TABLES[0] || self.prefix == PREFIXES[1] && key == TALKER_TABLES[1] {
            return Some(WeightName::CodeZeroTable);
        }
        let key = key.strip_prefix(self.prefix)?;
        outside_model(key).or_else(|| key.strip_prefix(self.model).and_then(inside_model))
    }

    /// Whether a key names the bias of a linear layer inside the decoder.
    pub fn is_layer_bias(self, key: &str) -> bool {
        let weight = key.strip_suffix("_proj.bias").map(|stem| format!("{stem}_proj.weight"));
        weight.and_then(|weight| self.parse(&weight)).is_some_and(WeightName::is_body)
    }
}

/// The tensor of a key in a file of an artifact directory.
pub(super) fn parse_artifact(file: &str, key: &str) -> Option<WeightName> {
    match (file, key) {
        (ARTIFACT_TABLES, _) => {
            key.strip_prefix("embedding_").and_then(index).map(WeightName::CodecEmbedding)
        }
        (ARTIFACT_HEADS, _) => {
            key.strip_prefix("lm_head_")?.strip_suffix(".weight").and_then(index).map(WeightName::Head)
        }
        (ARTIFACT_PROJECTION, "weight") => Some(WeightName::ProjectionWeight),
        (ARTIFACT_PROJECTION, "bias") => Some(WeightName::ProjectionBias),
        _ => None,
    }
}

/// A name that stands inside `model`, without the `model.`.
fn inside_model(key: &str) -> Option<WeightName> {
    if key == "norm.weight" {
        return Some(WeightName::FinalNorm);
    }
    if let Some(rest) = key.strip_prefix("codec_embedding.") {
        return rest.strip_suffix(".weight").and_then(index).map(WeightName::CodecEmbedding);
    }
    let (layer, rest) = key.strip_prefix("layers.")?.split_once('.')?;
    let layer = index(layer)?;
    let name = match rest.strip_suffix(".weight")? {
        "input_layernorm" => WeightName::InputNorm,
        "post_attention_layernorm" => WeightName::PostAttentionNorm,
        "self_attn.q_proj" => WeightName::Query,
        "self_attn.k_proj" => WeightName::Key,
        "self_attn.v_proj" => WeightName::Value,
        "self_attn.o_proj" => WeightName::Output,
        "self_attn.q_norm" => WeightName::QueryNorm,
        "self_attn.k_norm" => WeightName::KeyNorm,
        "mlp.gate_proj" => WeightName::Gate,
        "mlp.up_proj" => WeightName::Up,
        "mlp.down_proj" => WeightName::Down,
        _ => return None,
    };
    Some(name(layer))
}

/// A name that stands beside `model`.
fn outside_model(key: &str) -> Option<WeightName> {
    match key {
        "small_to_mtp_projection.weight" => Some(WeightName::ProjectionWeight),
        "small_to_mtp_projection.bias" => Some(WeightName::ProjectionBias),
        _ => key.strip_prefix("lm_head.")?.strip_suffix(".weight").and_then(index).map(WeightName::Head),
    }
}

/// A number as the published classes print it: digits only, and no leading zero.
fn index(digits: &str) -> Option<usize> {
    let canonical = digits == "0" || !digits.starts_with('0');
    (canonical && digits.bytes().all(|byte| byte.is_ascii_digit())).then(|| digits.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every_name() -> Vec<WeightName> {
        let layer = |index| WeightName::LAYER.map(|name| name(index));
        let mut names = vec![
            WeightName::CodecEmbedding(0),
            WeightName::CodecEmbedding(14),
            WeightName::Head(0),
            WeightName::Head(30),
            WeightName::FinalNorm,
            WeightName::ProjectionWeight,
            WeightName::ProjectionBias,
            WeightName::CodeZeroTable,
        ];
        names.extend(layer(0));
        names.extend(layer(11));
        names
    }

    #[test]
    fn every_spelling_is_read_back_as_it_is_written() {
        for prefix in PREFIXES {
            for model in ["model.", ""] {
                let naming = Naming { prefix, model };
                let keys: Vec<String> = every_name().into_iter().map(|name| naming.key(name)).collect();
                assert_eq!(Naming::detect(keys.iter().map(String::as_str)), naming);
                for (key, name) in keys.iter().zip(every_name()) {
                    assert_eq!(naming.parse(key), Some(name), "{key}");
                }
            }
        }
    }

    #[test]
    fn a_talkers_own_layers_do_not_pass_for_a_predictors() {
        let keys =
            ["model.layers.0.mlp.up_proj.weight", "model.norm.weight", "code_predictor.model.norm.weight"];
        let naming = Naming::detect(keys.into_iter());
        assert_eq!(naming, Naming { prefix: "code_predictor.", model: "model." });
        assert_eq!(naming.parse("model.norm.weight"), None);
        assert_eq!(naming.parse("model.codec_embedding.weight"), Some(WeightName::CodeZeroTable));
    }

    #[test]
    fn numbers_in_other_spellings_are_no_indices() {
        for key in [
            "lm_head.01.weight",
            "lm_head.+1.weight",
            "lm_head..weight",
            "lm_head.99999999999999999999.weight",
        ] {
            assert_eq!(Naming::default().parse(key), None, "{key}");
        }
    }

    #[test]
    fn artifacts_are_read_by_file_and_key() {
        assert_eq!(parse_artifact(ARTIFACT_TABLES, "embedding_12"), Some(WeightName::CodecEmbedding(12)));
        assert_eq!(parse_artifact(ARTIFACT_HEADS, "lm_head_3.weight"), Some(WeightName::Head(3)));
        assert_eq!(parse_artifact(ARTIFACT_PROJECTION, "bias"), Some(WeightName::ProjectionBias));
        assert_eq!(parse_artifact(ARTIFACT_TABLES, "weight"), None);
        assert_eq!(parse_artifact(ARTIFACT_HEADS, "embedding_0"), None);
    }
}
