//! [`SamplingParams`]: how a stream draws its codes, checked when given, so that a draw has nothing left to
//! refuse.
//!
//! The frame index is no part of them: it changes with every frame, they need not.

use crate::spec::Family;

/// A sampling parameter out of its range.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum SamplingError {
    /// Negative, NaN, or infinite once rounded to float32.
    #[error("temperature is {found}: expected a finite float32, 0 (greedy) or above")]
    Temperature {
        /// The value given.
        found: f64,
    },
    /// Negative.
    #[error("top_k is {found}: expected 0 (off) or above")]
    TopK {
        /// The value given.
        found: i64,
    },
    /// NaN, or outside (0, 1] once rounded to float32.
    #[error("top_p is {found}: expected a float32 above 0 and at most 1 (off)")]
    TopP {
        /// The value given.
        found: f64,
    },
}

/// Temperature, filters and seed of one stream; always in range.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplingParams {
    temperature: f32,
    top_k: u32,
    top_p: f32,
    seed: u64,
}

impl SamplingParams {
    /// Checked parameters: `temperature` ≥ 0 and finite (0, of either sign, is greedy), `top_k` entries kept
    /// (0 is off), `top_p` in (0, 1] the mass kept (1 is off).
    ///
    /// # Errors
    /// Names the parameter that is out of range.
    pub fn new(temperature: f32, top_k: u32, top_p: f32, seed: u64) -> Result<Self, SamplingError> {
        Self::from_numbers(f64::from(temperature), i64::from(top_k), f64::from(top_p), seed)
    }

    /// [`new`](Self::new) for numbers as Python and JSON hold them. They are rounded to float32 first and
    /// checked then: a `top_p` that rounds to 0 is refused, a temperature that rounds to 0 is greedy. A
    /// `top_k` beyond 32 bits is beyond every codebook and keeps all of it.
    ///
    /// # Errors
    /// Names the parameter that is out of range.
    pub fn from_numbers(temperature: f64, top_k: i64, top_p: f64, seed: u64) -> Result<Self, SamplingError> {
        let rounded_temperature = temperature as f32;
        let rounded_top_p = top_p as f32;
        if !(0.0..f32::INFINITY).contains(&rounded_temperature) {
            return Err(SamplingError::Temperature { found: temperature });
        }
        if top_k < 0 {
            return Err(SamplingError::TopK { found: top_k });
        }
        if !(rounded_top_p > 0.0 && rounded_top_p <= 1.0) {
            return Err(SamplingError::TopP { found: top_p });
        }
        Ok(Self {
            // −0.0 + 0.0 is 0.0: no executor meets a negative zero.
            temperature: rounded_temperature + 0.0,
            top_k: u32::try_from(top_k).unwrap_or(u32::MAX),
            top_p: rounded_top_p,
            seed,
        })
    }

    /// The largest logit, always.
    pub const fn greedy() -> Self {
        Self { temperature: 0.0, top_k: 0, top_p: 1.0, seed: 0 }
    }

    /// What the family's own generation config asks for: 0.9 / 50 / 1.0 for Qwen3-TTS, 1.0 / 50 / 0.8 for
    /// Qwen3-Omni.
    pub const fn for_family(family: Family, seed: u64) -> Self {
        match family {
            Family::Qwen3Tts => Self { temperature: 0.9, top_k: 50, top_p: 1.0, seed },
            Family::Qwen3Omni => Self { temperature: 1.0, top_k: 50, top_p: 0.8, seed },
        }
    }

    /// What logits are divided by; 0 is greedy, and then nothing else applies.
    pub const fn temperature(&self) -> f32 {
        self.temperature
    }

    /// How many of the largest entries stay, ties aside; 0 keeps all.
    pub const fn top_k(&self) -> u32 {
        self.top_k
    }

    /// Mass of the entries that stay; 1 keeps all.
    pub const fn top_p(&self) -> f32 {
        self.top_p
    }

    /// Key of the noise.
    pub const fn seed(&self) -> u64 {
        self.seed
    }

    /// Whether the largest logit is drawn, without noise.
    pub const fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }
}
