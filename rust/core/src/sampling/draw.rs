//! [`Sampler`]: from one row of logits to one code, or to the reason why there is none.
//!
//! What a failed draw means for its row and its frame is left to the executor.

use super::filter::{Entry, KeptSet, MAX_ENTRIES};
use super::gumbel::{ENTRIES_PER_BLOCK, Noise};
use super::params::SamplingParams;

/// Entries handled together where a loop is to vectorise.
const LANES: usize = 8;
/// Entries whose noise is made together.
const BLOCK_LANES: usize = LANES * ENTRIES_PER_BLOCK;

/// Why a row of logits has no code.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum DrawFailure {
    /// An entry is NaN or +∞.
    #[error("logits[{index}] is {found}: expected a number below +infinity")]
    NotANumber {
        /// Position in the row, of the first such entry.
        index: usize,
        /// NaN or +∞.
        found: f32,
    },
    /// Every entry is −∞, or there is none.
    #[error("none of the {entries} logits is finite: expected at least one")]
    NothingFinite {
        /// Length of the row.
        entries: usize,
    },
    /// A finite entry is infinite once divided by the temperature.
    #[error("logits[{index}] / temperature is {logit} / {temperature}: expected a quotient within float32")]
    QuotientOverflows {
        /// Position in the row, of the first such entry.
        index: usize,
        /// The entry.
        logit: f32,
        /// The temperature.
        temperature: f32,
    },
    /// The row is longer than the mass of top_p allows for.
    #[error("the row has {entries} logits: expected at most {MAX_ENTRIES}")]
    TooManyEntries {
        /// Length of the row.
        entries: usize,
    },
}

/// Draws codes; owns the memory a draw needs, so that draws allocate nothing.
#[derive(Clone, Debug)]
pub struct Sampler {
    /// logits / temperature of the row at hand, `[V]`.
    pub(super) quotients: Vec<f32>,
    /// What the filters left of it.
    pub(super) kept_set: KeptSet,
    /// The best of it, for drafts.
    pub(super) proposals: Vec<Entry>,
    /// Entries that survived the filters in the last draw.
    kept: usize,
}

/// The best entry so far: largest score, lowest index among equals.
#[derive(Clone, Copy)]
struct Best {
    score: f32,
    index: u32,
}

impl Best {
    /// Below every entry with a score above −∞.
    const NONE: Self = Self { score: f32::NEG_INFINITY, index: u32::MAX };

    #[inline(always)]
    fn consider(&mut self, score: f32, index: u32) {
        if score > self.score || (score == self.score && index < self.index) {
            *self = Self { score, index };
        }
    }
}

impl Sampler {
    /// A sampler for rows of `codebook_size` entries; a longer row grows its memory once.
    pub fn new(codebook_size: usize) -> Self {
        Self {
            quotients: Vec::with_capacity(codebook_size),
            kept_set: KeptSet::new(codebook_size),
            proposals: Vec::with_capacity(codebook_size),
            kept: 0,
        }
    }

    /// Entries that survived top_k and top_p in the last draw: all for a greedy one, none for a failed one.
    /// −∞ survives where neither filter removes anything at its rank (top_p off, and fewer than top_k finite
    /// entries or top_k off), and is counted then, though it is never drawn.
    pub fn kept(&self) -> usize {
        self.kept
    }

    /// The code of `codebook` (j = 1 … R) in frame `frame_index`, drawn from the row `logits` of V entries.
    ///
    /// Temperature 0 takes the largest logit. Otherwise the argmax over the kept entries of logits /
    /// temperature + noise. The lowest index wins ties, and −0.0 equals 0.
    ///
    /// # Errors
    /// [`DrawFailure`], when the row has no code; the sampler stays usable.
    pub fn draw(
        &mut self,
        logits: &[f32],
        params: &SamplingParams,
        frame_index: u64,
        codebook: u32,
    ) -> Result<u32, DrawFailure> {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: both features the function is compiled for have just been found.
            return unsafe { self.draw_with_avx2_and_fma(logits, params, frame_index, codebook) };
        }
        self.draw_anywhere(logits, params, frame_index, codebook)
    }

    /// [`draw_anywhere`](Self::draw_anywhere), compiled for the fused multiply-adds its arithmetic is made
    /// of; the code is the same.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma")]
    fn draw_with_avx2_and_fma(
        &mut self,
        logits: &[f32],
        params: &SamplingParams,
        frame_index: u64,
        codebook: u32,
    ) -> Result<u32, DrawFailure> {
        self.draw_anywhere(logits, params, frame_index, codebook)
    }

    /// The draw, for any machine.
    #[inline(always)]
    pub(super) fn draw_anywhere(
        &mut self,
        logits: &[f32],
        params: &SamplingParams,
        frame_index: u64,
        codebook: u32,
    ) -> Result<u32, DrawFailure> {
        self.kept = 0;
        let largest_x = self.largest_x(logits, params)?;
        if params.is_greedy() {
            self.kept = logits.len();
            return Ok(first_equal(logits, largest_x));
        }

        let noise = Noise::new(params.seed(), frame_index, codebook);
        let top_k_off = params.top_k() == 0 || params.top_k() as usize >= logits.len();
        if top_k_off && params.top_p() == 1.0 {
            self.kept = logits.len();
            return Ok(noisiest_of_all(&self.quotients, noise));
        }
        self.kept_set.select(&self.quotients, largest_x, params);
        let entries = self.kept_set.entries();
        let top_k_kept_all = top_k_off || entries.len() < params.top_k() as usize;
        self.kept = if top_k_kept_all && params.top_p() == 1.0 { logits.len() } else { entries.len() };
        Ok(noisiest_of_kept(&self.kept_set, noise))
    }

    /// Checks the row, and fills `quotients` with logits / temperature unless it is greedy; the result is the largest x.
    #[inline(always)]
    pub(super) fn largest_x(&mut self, logits: &[f32], params: &SamplingParams) -> Result<f32, DrawFailure> {
        if logits.len() > MAX_ENTRIES {
            return Err(DrawFailure::TooManyEntries { entries: logits.len() });
        }
        check_numbers(logits)?;
        let largest = largest(logits);
        if largest == f32::NEG_INFINITY {
            return Err(DrawFailure::NothingFinite { entries: logits.len() });
        }
        if params.is_greedy() {
            return Ok(largest);
        }
        self.divide(logits, params.temperature())?;
        // Division by a positive number keeps the order, so the largest logit has the largest quotient.
        Ok(largest / params.temperature())
    }

    /// Fills `quotients` with `logits` / `temperature`.
    #[inline(always)]
    fn divide(&mut self, logits: &[f32], temperature: f32) -> Result<(), DrawFailure> {
        self.quotients.clear();
        self.quotients.extend(logits.iter().map(|logit| logit / temperature));
        let overflows = |(logit, x): (&f32, &f32)| logit.is_finite() && x.is_infinite();
        let pairs = || logits.iter().zip(&self.quotients);
        if pairs().fold(false, |any, pair| any | overflows(pair))
            && let Some(index) = pairs().position(overflows)
        {
            return Err(DrawFailure::QuotientOverflows { index, logit: logits[index], temperature });
        }
        Ok(())
    }
}

/// Refuses NaN and +∞.
#[inline(always)]
fn check_numbers(logits: &[f32]) -> Result<(), DrawFailure> {
    let refused = |logit: &f32| logit.is_nan() || *logit == f32::INFINITY;
    if logits.iter().fold(false, |any, logit| any | refused(logit))
        && let Some(index) = logits.iter().position(refused)
    {
        return Err(DrawFailure::NotANumber { index, found: logits[index] });
    }
    Ok(())
}

/// The largest of `values`, none of which is NaN; −∞ for none.
#[inline(always)]
fn largest(values: &[f32]) -> f32 {
    let larger = |left: f32, right: f32| if left > right { left } else { right };
    let (chunks, rest) = values.as_chunks::<LANES>();
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for chunk in chunks {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane = larger(*lane, *value);
        }
    }
    lanes.iter().chain(rest).copied().fold(f32::NEG_INFINITY, larger)
}

/// Lowest index of an entry equal to `value`, which is one of `values`.
#[inline(always)]
fn first_equal(values: &[f32], value: f32) -> u32 {
    values.iter().zip(0..).find(|(candidate, _)| **candidate == value).map_or(0, |(_, index)| index)
}

/// Argmax of x + noise over a whole row with at least one finite entry.
#[inline(always)]
fn noisiest_of_all(quotients: &[f32], noise: Noise) -> u32 {
    let mut best = Best::NONE;
    let blocks_at = (0u32..).step_by(LANES);
    for (chunk, first_block) in quotients.chunks(BLOCK_LANES).zip(blocks_at) {
        let noise = noise.blocks::<LANES>(first_block);
        let first_index = first_block * ENTRIES_PER_BLOCK as u32;
        for ((x, noise), index) in chunk.iter().zip(noise.as_flattened()).zip(first_index..) {
            if *x > f32::NEG_INFINITY {
                best.consider(x + noise, index);
            }
        }
    }
    best.index
}

/// Argmax of x + noise over the kept entries, of which there is at least one.
#[inline(always)]
fn noisiest_of_kept(kept_set: &KeptSet, noise: Noise) -> u32 {
    let mut best = Best::NONE;
    for chunk in kept_set.entries().chunks(LANES) {
        // A short last chunk repeats its first entry, which changes no argmax.
        let lanes: [_; LANES] = std::array::from_fn(|lane| *chunk.get(lane).unwrap_or(&chunk[0]));
        for (entry, noise) in lanes.iter().zip(noise.at(lanes.map(|entry| entry.index()))) {
            best.consider(entry.x() + noise, entry.index());
        }
    }
    best.index
}
