//! Reads the predictor's part of a `config.json` into a [`ModelSpec`].
//!
//! A [`Config`] is what one file says, checked key by key; keys it lacks stay open, because artifacts exported for
//! another runtime leave out what the original checkpoint beside them still says ([`Config::supplied_by`]).
//! [`Config::complete`] then demands all of it. What only the tensors can tell (Ht of a lone predictor, the
//! projection, V0) the checkpoint room fills in. Why a file is refused is told by [`ConfigError`].

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::config_error::describe;
pub use super::config_error::{ConfigError, ConfigProblem};
use super::{Family, ModelSpec, PositionEncoding};

/// `rope_theta` where no file names it: the default of the published configuration classes.
pub const DEFAULT_ROPE_THETA: f32 = 1e4;
/// `num_code_groups` where no file names it: the default of the published configuration classes.
pub const DEFAULT_CODE_GROUPS: usize = 32;

/// A size the file must give, and the values that are sane. The bounds lie far above any real predictor; they keep
/// every product of sizes (layers · widths · bytes) far below 2⁶³.
struct Size {
    key: &'static str,
    range: RangeInclusive<usize>,
}

const fn size(key: &'static str, least: usize, most: usize) -> Size {
    Size { key, range: least..=most }
}

const SIZES: [Size; 8] = [
    size("num_code_groups", 2, 1 << 10),
    size("vocab_size", 1, 1 << 22),
    size("hidden_size", 1, WIDEST),
    size("intermediate_size", 1, WIDEST),
    size("num_hidden_layers", 1, 1 << 10),
    size("num_attention_heads", 1, 1 << 10),
    size("num_key_value_heads", 1, 1 << 10),
    size("head_dim", 2, 1 << 12),
];
const CODE_GROUPS: usize = 0;
const VOCABULARY: usize = 1;
const HIDDEN: usize = 2;
const INTERMEDIATE: usize = 3;
const LAYERS: usize = 4;
const QUERY_HEADS: usize = 5;
const KEY_VALUE_HEADS: usize = 6;
const HEAD: usize = 7;

/// The largest width of a row, in elements, that is believed: of H, Ht and I.
pub const WIDEST: usize = 1 << 20;

/// What one `config.json` says about the predictor.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    file: Option<PathBuf>,
    /// Where the predictor's object stands: empty, or a path of keys that ends in a dot.
    place: &'static str,
    family: Option<Family>,
    sizes: [Option<usize>; SIZES.len()],
    silu: Option<()>,
    rms_norm_epsilon: Option<f32>,
    rope_theta: Option<f32>,
    /// The attention window in positions, where the file restricts any layer to one.
    window: Option<usize>,
    talker_hidden_size: Option<usize>,
}

impl Config {
    /// Reads the text of a `config.json`. The predictor's object is `talker_config.code_predictor_config`,
    /// `code_predictor_config` or the whole; `file` is only for messages.
    ///
    /// # Errors
    /// Invalid JSON, a key of the wrong type or out of range, a setting this predictor does not have (an activation
    /// other than silu, attention biases, scaled rotary embeddings, a window shorter than a frame), an unknown family.
    pub fn from_json(text: &[u8], file: Option<&Path>) -> Result<Self, ConfigError> {
        let place = |problem| ConfigError::new(file, problem);
        let root = serde_json::from_slice(text).map_err(ConfigProblem::Json).map_err(place)?;
        Self::from_value(&root, file).map_err(place)
    }

    fn from_value(root: &Value, file: Option<&Path>) -> Result<Self, ConfigProblem> {
        let root = Object::root(root)?;
        let talker = root.object("talker_config")?;
        let (predictor, place) = if let Some(talker) = &talker {
            let key = "talker_config.code_predictor_config";
            let nested = talker.object("code_predictor_config")?;
            (
                nested.ok_or(ConfigProblem::Missing { key: key.into() })?,
                "talker_config.code_predictor_config.",
            )
        } else if let Some(nested) = root.object("code_predictor_config")? {
            (nested, "code_predictor_config.")
        } else {
            (root.clone(), "")
        };

        let mut sizes = [None; SIZES.len()];
        for (slot, size) in sizes.iter_mut().zip(&SIZES) {
            *slot = predictor.size(size.key, size.range.clone())?;
        }
        predictor.refuse_unsupported()?;
        let talker = talker.as_ref().or_else(|| (!place.is_empty()).then_some(&root));
        Ok(Self {
            file: file.map(Path::to_owned),
            place,
            family: family(&root, talker, &predictor)?,
            sizes,
            silu: predictor.activation()?,
            rms_norm_epsilon: predictor.epsilon()?,
            rope_theta: predictor.rope_theta()?,
            window: predictor.window()?,
            talker_hidden_size: talker.map_or(Ok(None), talker_hidden_size)?,
        })
    }

    /// The file it was read from.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Ht, where the file describes the talker too.
    pub const fn talker_hidden_size(&self) -> Option<usize> {
        self.talker_hidden_size
    }

    /// Takes from `other` what this file leaves open.
    ///
    /// # Errors
    /// The two name different values for the same thing.
    pub fn supplied_by(mut self, other: &Self) -> Result<Self, ConfigError> {
        let (mine, theirs) = (self.clone(), other);
        let place = |key: &str| format!("{}{key}", mine.place);
        for (index, size) in SIZES.iter().enumerate() {
            self.sizes[index] = agree(&mine, theirs, &place(size.key), |config| config.sizes[index])?;
        }
        self.family = agree(&mine, theirs, "model_type", |config| config.family)?;
        self.silu = self.silu.or(theirs.silu);
        self.rms_norm_epsilon =
            agree(&mine, theirs, &place("rms_norm_eps"), |config| config.rms_norm_epsilon)?;
        self.rope_theta = agree(&mine, theirs, &place("rope_theta"), |config| config.rope_theta)?;
        self.window = [self.window, theirs.window].into_iter().flatten().min();
        self.talker_hidden_size =
            agree(&mine, theirs, "talker_config.hidden_size", |config| config.talker_hidden_size)?;
        Ok(self)
    }

    /// The architecture as far as a configuration can tell it: not projected, and with no talker's table. Ht is the
    /// talker's width where the file names one, else H. `rope_theta` and `num_code_groups` fall back to the class
    /// defaults (1e4 and 32), and a file that names no family at all counts as Qwen3-TTS.
    ///
    /// # Errors
    /// A missing key; query heads that the key-value heads do not divide; an odd `head_dim`; a window shorter than a
    /// frame's positions.
    pub fn complete(&self) -> Result<ModelSpec, ConfigError> {
        self.complete_spec().map_err(|problem| ConfigError::new(self.file(), problem))
    }

    fn complete_spec(&self) -> Result<ModelSpec, ConfigProblem> {
        let key = |key: &str| format!("{}{key}", self.place);
        let missing = |name: &str| ConfigProblem::Missing { key: key(name) };
        let size = |index: usize| self.sizes[index].ok_or_else(|| missing(SIZES[index].key));

        let code_groups = self.sizes[CODE_GROUPS].unwrap_or(DEFAULT_CODE_GROUPS);
        let (query_heads, key_value_heads) = (size(QUERY_HEADS)?, size(KEY_VALUE_HEADS)?);
        if query_heads % key_value_heads != 0 {
            return Err(ConfigProblem::HeadsNotDivisible {
                key: key(SIZES[KEY_VALUE_HEADS].key),
                query_heads,
                key_value_heads,
            });
        }
        let head_size = size(HEAD)?;
        if head_size % 2 != 0 {
            return Err(ConfigProblem::OddHeadSize { key: key(SIZES[HEAD].key), head_size });
        }
        if let Some(window) = self.window.filter(|window| *window < code_groups) {
            return Err(ConfigProblem::WindowTooShort {
                key: key("sliding_window"),
                window,
                positions: code_groups,
            });
        }
        let hidden_size = size(HIDDEN)?;
        self.silu.ok_or_else(|| missing("hidden_act"))?;
        Ok(ModelSpec {
            family: self.family.unwrap_or(Family::Qwen3Tts),
            residual_codebooks: code_groups - 1,
            codebook_size: size(VOCABULARY)?,
            code_zero_size: None,
            hidden_size,
            talker_hidden_size: self.talker_hidden_size.unwrap_or(hidden_size),
            layers: size(LAYERS)?,
            query_heads,
            key_value_heads,
            head_size,
            mlp_width: size(INTERMEDIATE)?,
            rms_norm_epsilon: self.rms_norm_epsilon.ok_or_else(|| missing("rms_norm_eps"))?,
            position_encoding: PositionEncoding::Rope {
                theta: self.rope_theta.unwrap_or(DEFAULT_ROPE_THETA),
            },
            projected: false,
        })
    }
}

fn agree<T: Copy + PartialEq + std::fmt::Debug>(
    mine: &Config,
    theirs: &Config,
    key: &str,
    value: impl Fn(&Config) -> Option<T>,
) -> Result<Option<T>, ConfigError> {
    match (value(mine), value(theirs)) {
        (Some(found), Some(expected)) if found != expected => {
            let problem = ConfigProblem::Disagrees {
                key: key.to_owned(),
                found: format!("{found:?}"),
                other: theirs.file.clone(),
                expected: format!("{expected:?}"),
            };
            Err(ConfigError::new(mine.file(), problem))
        }
        (mine, theirs) => Ok(mine.or(theirs)),
    }
}

/// The family by the names the file gives itself, the predictor's own first. Runtimes that export artifacts put their
/// own word into `model_type` and the family into `model`, so one name that tells is enough.
fn family(
    root: &Object<'_>,
    talker: Option<&Object<'_>>,
    predictor: &Object<'_>,
) -> Result<Option<Family>, ConfigProblem> {
    let mut names = Vec::new();
    for object in [Some(predictor), talker, Some(root)].into_iter().flatten() {
        names.extend(object.text("model_type")?);
        names.extend(object.text("model")?);
        names.extend(object.texts("architectures")?);
    }
    let known = names.iter().find_map(|name| {
        let name = name.to_ascii_lowercase();
        let family = if name.contains("tts") { Some(Family::Qwen3Tts) } else { None };
        family.or_else(|| name.contains("omni").then_some(Family::Qwen3Omni))
    });
    if known.is_none() && !names.is_empty() {
        names.dedup();
        return Err(ConfigProblem::UnknownFamily { found: names.join(", ") });
    }
    Ok(known)
}

/// Ht: the talker's own width, which Qwen3-Omni keeps in the talker's `text_config`.
fn talker_hidden_size(talker: &Object<'_>) -> Result<Option<usize>, ConfigProblem> {
    match talker.object("text_config")? {
        Some(text) => text.size("hidden_size", 1..=WIDEST),
        None => talker.size("hidden_size", 1..=WIDEST),
    }
}

/// A JSON object and the path of keys that leads to it, for messages. A key that is `null` counts as absent.
#[derive(Clone)]
struct Object<'a> {
    path: String,
    members: &'a Map<String, Value>,
}

impl<'a> Object<'a> {
    fn root(value: &'a Value) -> Result<Self, ConfigProblem> {
        match value {
            Value::Object(members) => Ok(Self { path: String::new(), members }),
            other => Err(ConfigProblem::RootNotAnObject { found: describe(other) }),
        }
    }

    fn key(&self, key: &str) -> String {
        format!("{}{key}", self.path)
    }

    fn get(&self, key: &str) -> Option<&'a Value> {
        self.members.get(key).filter(|value| !value.is_null())
    }

    fn wrong_type(&self, key: &str, found: &Value, expected: &'static str) -> ConfigProblem {
        ConfigProblem::WrongType { key: self.key(key), found: describe(found), expected }
    }

    fn unsupported(&self, key: &str, found: &Value, expected: &'static str) -> ConfigProblem {
        ConfigProblem::Unsupported { key: self.key(key), found: describe(found), expected }
    }

    fn object(&self, key: &str) -> Result<Option<Self>, ConfigProblem> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(members)) => Ok(Some(Self { path: self.key(key) + ".", members })),
            Some(other) => Err(self.wrong_type(key, other, "an object")),
        }
    }

    fn text(&self, key: &str) -> Result<Option<&'a str>, ConfigProblem> {
        let as_text =
            |value: &'a Value| value.as_str().ok_or_else(|| self.wrong_type(key, value, "a string"));
        self.get(key).map(as_text).transpose()
    }

    fn texts(&self, key: &str) -> Result<Vec<&'a str>, ConfigProblem> {
        let Some(value) = self.get(key) else { return Ok(Vec::new()) };
        let texts = value.as_array().and_then(|items| items.iter().map(Value::as_str).collect());
        texts.ok_or_else(|| self.wrong_type(key, value, "a list of strings"))
    }

    fn flag(&self, key: &str) -> Result<bool, ConfigProblem> {
        let Some(value) = self.get(key) else { return Ok(false) };
        value.as_bool().ok_or_else(|| self.wrong_type(key, value, "true or false"))
    }

    fn size(&self, key: &str, range: RangeInclusive<usize>) -> Result<Option<usize>, ConfigProblem> {
        let Some(value) = self.get(key) else { return Ok(None) };
        if !value.is_u64() && !value.is_i64() {
            return Err(self.wrong_type(key, value, "an integer"));
        }
        let size =
            value.as_u64().and_then(|size| usize::try_from(size).ok()).filter(|size| range.contains(size));
        let out_of_range = || ConfigProblem::OutOfRange {
            key: self.key(key),
            found: value.to_string(),
            expected: format!("{} to {}", range.start(), range.end()),
        };
        size.map(Some).ok_or_else(out_of_range)
    }

    /// A number in float32 that is above 0 and at most `most`.
    fn positive(&self, key: &str, most: f32) -> Result<Option<f32>, ConfigProblem> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let number = value.as_f64().ok_or_else(|| self.wrong_type(key, value, "a number"))? as f32;
        if !(number > 0.0 && number <= most) {
            return Err(ConfigProblem::OutOfRange {
                key: self.key(key),
                found: value.to_string(),
                expected: format!("above 0 and at most {most:e} in float32"),
            });
        }
        Ok(Some(number))
    }

    fn activation(&self) -> Result<Option<()>, ConfigProblem> {
        match self.text("hidden_act")? {
            None => Ok(None),
            Some("silu") => Ok(Some(())),
            Some(other) => Err(self.unsupported("hidden_act", &other.into(), "silu")),
        }
    }

    fn epsilon(&self) -> Result<Option<f32>, ConfigProblem> {
        self.positive("rms_norm_eps", 1.0)
    }

    /// `rope_theta`, which newer files keep in `rope_parameters`.
    fn rope_theta(&self) -> Result<Option<f32>, ConfigProblem> {
        const LARGEST: f32 = 1e30;
        let plain = self.positive("rope_theta", LARGEST)?;
        let nested = match self.object("rope_parameters")? {
            Some(parameters) => parameters.positive("rope_theta", LARGEST)?,
            None => None,
        };
        match (plain, nested) {
            (Some(plain), Some(nested)) if plain != nested => {
                Err(ConfigProblem::TwoThetas { key: self.key("rope_theta"), found: plain, nested })
            }
            (plain, nested) => Ok(plain.or(nested)),
        }
    }

    fn refuse_unsupported(&self) -> Result<(), ConfigProblem> {
        if self.flag("attention_bias")? {
            return Err(self.unsupported("attention_bias", &true.into(), "false"));
        }
        self.refuse_partial_rotation()?;
        for key in ["rope_scaling", "rope_parameters"] {
            let Some(rope) = self.object(key)? else { continue };
            rope.refuse_partial_rotation()?;
            for kind in ["rope_type", "type"] {
                match rope.text(kind)? {
                    None | Some("default") => {}
                    Some(other) => return Err(rope.unsupported(kind, &other.into(), "default")),
                }
            }
        }
        Ok(())
    }

    fn refuse_partial_rotation(&self) -> Result<(), ConfigProblem> {
        let key = "partial_rotary_factor";
        match self.get(key) {
            Some(value) if value.as_f64() != Some(1.0) => Err(self.unsupported(key, value, "1")),
            _ => Ok(()),
        }
    }

    /// The attention window, where one is in use.
    fn window(&self) -> Result<Option<usize>, ConfigProblem> {
        let mut windowed = self.flag("use_sliding_window")?;
        for layer_type in self.texts("layer_types")? {
            match layer_type {
                "full_attention" => {}
                "sliding_attention" => windowed = true,
                other => {
                    return Err(self.unsupported("layer_types", &other.into(), "full_attention"));
                }
            }
        }
        if !windowed {
            return Ok(None);
        }
        self.size("sliding_window", 1..=usize::MAX)
    }
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
