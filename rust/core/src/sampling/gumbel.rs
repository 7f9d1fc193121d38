//! Gumbel noise g_v = −ln(−ln u_v), counted by (seed, frame, codebook, entry v) and by nothing else.
//!
//! Adding it to logits and taking the argmax draws from their softmax. Which entries take part is left to
//! [`filter`](super::filter), the argmax to [`draw`](super::draw).
//!
//! Loops over arrays are written out, not given to closures: only code that is inlined for certain is
//! compiled for the vector unit its caller has chosen.

use super::math::ln;
use super::philox::philox4x32_10;

/// Entries that share one call of the generator.
pub const ENTRIES_PER_BLOCK: usize = 4;
/// 2⁻²³, the spacing of the values of u.
const SPACING: f32 = 1.0 / 8_388_608.0;

/// The uniform number of a generator word, ((word ≫ 9) + 0.5) · 2⁻²³: exact, from 2⁻²⁴ to 1 − 2⁻²⁴.
#[inline(always)]
pub fn uniform(word: u32) -> f32 {
    // The 23 bits are converted as a signed number, which every vector unit can.
    ((word >> 9) as i32 as f32 + 0.5) * SPACING
}

/// The noise of a generator word, from −2.82 to 16.64.
#[inline(always)]
pub fn noise_of_word(word: u32) -> f32 {
    -ln(-ln(uniform(word)))
}

/// The noise of all entries of one codebook in one frame.
#[derive(Clone, Copy, Debug)]
pub struct Noise {
    key: [u32; 2],
    codebook: u32,
    frame: [u32; 2],
}

impl Noise {
    /// The noise of `codebook` (j = 1 … R) in frame `frame_index` under `seed`.
    #[inline(always)]
    pub fn new(seed: u64, frame_index: u64, codebook: u32) -> Self {
        Self { key: low_and_high(seed), codebook, frame: low_and_high(frame_index) }
    }

    /// The generator's words for entries 4 · `block` … 4 · `block` + 3.
    #[inline(always)]
    fn words(&self, block: u32) -> [u32; ENTRIES_PER_BLOCK] {
        philox4x32_10([block, self.codebook, self.frame[0], self.frame[1]], self.key)
    }

    /// Noise of `BLOCKS` runs of four successive entries, the first of them entry 4 · `first_block`.
    #[inline(always)]
    pub fn blocks<const BLOCKS: usize>(&self, first_block: u32) -> [[f32; ENTRIES_PER_BLOCK]; BLOCKS] {
        let mut words = [[0; ENTRIES_PER_BLOCK]; BLOCKS];
        for (block, offset) in words.iter_mut().zip(0..) {
            *block = self.words(first_block.wrapping_add(offset));
        }
        let mut noise = [[0.0; ENTRIES_PER_BLOCK]; BLOCKS];
        for (value, word) in noise.as_flattened_mut().iter_mut().zip(words.as_flattened()) {
            *value = noise_of_word(*word);
        }
        noise
    }

    /// Noise of `N` entries in any order.
    #[inline(always)]
    pub fn at<const N: usize>(&self, entries: [u32; N]) -> [f32; N] {
        let mut words = [0; N];
        for (word, entry) in words.iter_mut().zip(entries) {
            *word = self.words(entry >> 2)[(entry & 3) as usize];
        }
        let mut noise = [0.0; N];
        for (value, word) in noise.iter_mut().zip(words) {
            *value = noise_of_word(word);
        }
        noise
    }
}

/// The two halves of a 64-bit number, low half first.
#[inline(always)]
fn low_and_high(number: u64) -> [u32; 2] {
    [number as u32, (number >> 32) as u32]
}
