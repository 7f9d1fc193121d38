//! Why a `config.json` was refused.

use std::fmt;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// A configuration that cannot be used: the file, where there is one, and the one cause. The message is whole: it
/// includes what the JSON parser said.
#[derive(Debug)]
pub struct ConfigError {
    file: Option<PathBuf>,
    problem: ConfigProblem,
}

/// What is wrong with a configuration. A `key` is spelled with the keys that lead to it, joined by dots.
#[derive(Debug, thiserror::Error)]
pub enum ConfigProblem {
    /// The text is not JSON.
    #[error("not valid JSON: {0}")]
    Json(serde_json::Error),
    /// The outermost value is not an object.
    #[error("is {found}, expected an object")]
    RootNotAnObject {
        /// The value.
        found: String,
    },
    /// No file gives a key that has no default.
    #[error("`{key}` is missing")]
    Missing {
        /// The key.
        key: String,
    },
    /// A value of another JSON type.
    #[error("`{key}` is {found}, expected {expected}")]
    WrongType {
        /// The key.
        key: String,
        /// The value.
        found: String,
        /// The type it must have.
        expected: &'static str,
    },
    /// A number no predictor can have.
    #[error("`{key}` is {found}, expected {expected}")]
    OutOfRange {
        /// The key.
        key: String,
        /// The value.
        found: String,
        /// The numbers that are allowed.
        expected: String,
    },
    /// A setting under which a frame would be computed in another way.
    #[error("`{key}` is {found}, but only {expected} is supported")]
    Unsupported {
        /// The key.
        key: String,
        /// The value.
        found: String,
        /// The value that is supported.
        expected: &'static str,
    },
    /// The names the file gives itself belong to neither Qwen3-TTS nor Qwen3-Omni.
    #[error("the model calls itself {found}, expected a name of Qwen3-TTS or Qwen3-Omni")]
    UnknownFamily {
        /// The names found in `model_type`, `model` and `architectures`.
        found: String,
    },
    /// `rope_theta` stands in two places with two values.
    #[error("`{key}` is {found}, but `rope_parameters.rope_theta` beside it is {nested}")]
    TwoThetas {
        /// The outer key.
        key: String,
        /// Its value.
        found: f32,
        /// The value inside `rope_parameters`.
        nested: f32,
    },
    /// The key-value heads do not divide the query heads.
    #[error("`{key}` is {key_value_heads}, expected a divisor of num_attention_heads {query_heads}")]
    HeadsNotDivisible {
        /// The key of the key-value heads.
        key: String,
        /// Query heads.
        query_heads: usize,
        /// Key-value heads.
        key_value_heads: usize,
    },
    /// Rotary embedding pairs the halves of a head.
    #[error("`{key}` is {head_size}, expected an even number")]
    OddHeadSize {
        /// The key.
        key: String,
        /// Its value.
        head_size: usize,
    },
    /// Some layer attends to fewer positions than a frame has.
    #[error("`{key}` is {window}, expected no window or at least the {positions} positions of a frame")]
    WindowTooShort {
        /// The key.
        key: String,
        /// The window, in positions.
        window: usize,
        /// Positions of one frame.
        positions: usize,
    },
    /// Two directories that shall make one checkpoint describe different predictors.
    #[error("`{key}` is {found}, but {} says {expected}", name_of(other.as_deref()))]
    Disagrees {
        /// The key.
        key: String,
        /// The value in this file.
        found: String,
        /// The other file.
        other: Option<PathBuf>,
        /// The value in the other file.
        expected: String,
    },
}

impl ConfigError {
    pub(super) fn new(file: Option<&Path>, problem: ConfigProblem) -> Self {
        Self { file: file.map(Path::to_owned), problem }
    }

    /// The file that was read; `None` for a configuration handed over in memory.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// The cause.
    pub const fn problem(&self) -> &ConfigProblem {
        &self.problem
    }

    /// The key at fault, with the keys that lead to it.
    pub fn key(&self) -> Option<&str> {
        use ConfigProblem as P;
        match &self.problem {
            P::Json(_) | P::RootNotAnObject { .. } => None,
            P::UnknownFamily { .. } => Some("model_type"),
            P::Missing { key }
            | P::WrongType { key, .. }
            | P::OutOfRange { key, .. }
            | P::Unsupported { key, .. }
            | P::TwoThetas { key, .. }
            | P::HeadsNotDivisible { key, .. }
            | P::OddHeadSize { key, .. }
            | P::WindowTooShort { key, .. }
            | P::Disagrees { key, .. } => Some(key),
        }
    }

    /// What stands there, in words.
    pub fn found(&self) -> Option<String> {
        use ConfigProblem as P;
        match &self.problem {
            P::Json(_) | P::Missing { .. } => None,
            P::RootNotAnObject { found }
            | P::WrongType { found, .. }
            | P::OutOfRange { found, .. }
            | P::Unsupported { found, .. }
            | P::UnknownFamily { found }
            | P::Disagrees { found, .. } => Some(found.clone()),
            P::TwoThetas { found, .. } => Some(found.to_string()),
            P::HeadsNotDivisible { key_value_heads, .. } => Some(key_value_heads.to_string()),
            P::OddHeadSize { head_size, .. } => Some(head_size.to_string()),
            P::WindowTooShort { window, .. } => Some(window.to_string()),
        }
    }

    /// What should stand there, in words.
    pub fn expected(&self) -> Option<String> {
        use ConfigProblem as P;
        match &self.problem {
            P::Json(_) => Some("JSON".to_owned()),
            P::Missing { .. } => None,
            P::RootNotAnObject { .. } => Some("an object".to_owned()),
            P::WrongType { expected, .. } | P::Unsupported { expected, .. } => Some((*expected).to_owned()),
            P::OutOfRange { expected, .. } | P::Disagrees { expected, .. } => Some(expected.clone()),
            P::UnknownFamily { .. } => Some("a name of Qwen3-TTS or Qwen3-Omni".to_owned()),
            P::TwoThetas { nested, .. } => Some(nested.to_string()),
            P::HeadsNotDivisible { query_heads, .. } => Some(format!("a divisor of {query_heads}")),
            P::OddHeadSize { .. } => Some("an even number".to_owned()),
            P::WindowTooShort { positions, .. } => Some(format!("at least {positions}")),
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", name_of(self.file()), self.problem)
    }
}

impl std::error::Error for ConfigError {}

fn name_of(file: Option<&Path>) -> String {
    file.map_or_else(|| "the configuration".to_owned(), |file| file.display().to_string())
}

/// A JSON value in a few words: scalars as they stand (long strings cut), the rest by its type.
pub(super) fn describe(value: &Value) -> String {
    const LONGEST: usize = 60;
    match value {
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        Value::String(text) if text.chars().count() > LONGEST => {
            format!("\"{}…\"", text.chars().take(LONGEST).collect::<String>())
        }
        scalar => scalar.to_string(),
    }
}
