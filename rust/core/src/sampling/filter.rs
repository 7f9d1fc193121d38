//! top_k and top_p: which entries of a row may be drawn.
//!
//! With the entries ordered by (x descending, index ascending) the kept ones are a prefix, so they are
//! selected rather than sorted: nothing is ordered for top_k, and for top_p no more than the mass reaches.
//! Mass is a 64-bit fixed-point number, exact in any order of summation, so every executor keeps the same
//! entries whatever its order. The quotients x, and the argmax over what is kept, are left to
//! [`draw`](super::draw).

use super::math::exp;
use super::params::SamplingParams;

/// One unit of mass, the weight of the largest entry: 2⁴⁰.
const UNIT_MASS: f32 = 1_099_511_627_776.0;
/// Longest row whose mass fits 64 bits with room to spare.
pub const MAX_ENTRIES: usize = 1 << 23;
/// Entries weighed together.
const LANES: usize = 16;
/// Entries first ordered for top_p; enough for most rows of a codec.
const FIRST_ORDERED: usize = 32;
/// How much the ordered prefix grows while the mass lasts.
const ORDERED_GROWTH: usize = 4;

/// A finite x and its index in one word whose ascending order is (x descending, index ascending).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry(u64);

impl Entry {
    /// An entry of a row; −0.0 ranks as 0.
    #[inline(always)]
    pub fn new(x: f32, index: u32) -> Self {
        let bits = (x + 0.0).to_bits();
        // All bits of a negative number turn, of a positive one only the sign: ascending. Inverted:
        // descending.
        let ascending = bits ^ ((bits as i32 >> 31) as u32 | 0x8000_0000);
        Self(u64::from(!ascending) << 32 | u64::from(index))
    }

    /// The quotient.
    #[inline(always)]
    pub fn x(self) -> f32 {
        let ascending = !self.rank();
        let turned = !(ascending as i32 >> 31) as u32 | 0x8000_0000;
        f32::from_bits(ascending ^ turned)
    }

    /// Position in the row.
    #[inline(always)]
    pub fn index(self) -> u32 {
        self.0 as u32
    }

    /// Equal for equal x, smaller for larger x.
    #[inline(always)]
    fn rank(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// The kept entries of the row filtered last; its memory is reused from row to row.
#[derive(Clone, Debug)]
pub struct KeptSet {
    entries: Vec<Entry>,
}

impl KeptSet {
    /// Room for rows of up to `codebook_size` entries; a longer row grows it.
    pub fn new(codebook_size: usize) -> Self {
        Self { entries: Vec::with_capacity(codebook_size) }
    }

    /// Kept entries, in no particular order.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Keeps what top_k, then top_p leave of the row `quotients` of at most [`MAX_ENTRIES`], none of which is
    /// NaN or +∞; −∞ is never kept. `largest` is the largest of them, and finite.
    #[inline(always)]
    pub fn select(&mut self, quotients: &[f32], largest: f32, params: &SamplingParams) {
        self.entries.clear();
        self.entries.extend(quotients.iter().zip(0..).map(|(x, index)| Entry::new(*x, index)));
        let finite = quotients.iter().filter(|x| **x > f32::NEG_INFINITY).count();
        if finite < quotients.len() {
            self.entries.retain(|entry| entry.x() > f32::NEG_INFINITY);
        }
        self.keep_top_k(params.top_k() as usize);
        if params.top_p() < 1.0 {
            self.keep_top_p(params.top_p(), largest);
        }
    }

    /// Keeps x ≥ the k-th largest; ties with it stay.
    #[inline(always)]
    fn keep_top_k(&mut self, top_k: usize) {
        if top_k == 0 || top_k >= self.entries.len() {
            return;
        }
        let (_, border, below) = self.entries.select_nth_unstable(top_k - 1);
        let border = border.rank();
        let mut ties = 0;
        for position in 0..below.len() {
            if below[position].rank() == border {
                below.swap(position, ties);
                ties += 1;
            }
        }
        self.entries.truncate(top_k + ties);
    }

    /// Keeps an entry iff the mass strictly before it is below `top_p` of the whole.
    #[inline(always)]
    fn keep_top_p(&mut self, top_p: f32, largest: f32) {
        let threshold = mass_threshold(top_p, self.total_mass(largest));
        let mut mass_before = 0;
        let mut ordered = 0;
        while ordered < self.entries.len() {
            let end = (ordered * ORDERED_GROWTH).max(FIRST_ORDERED).min(self.entries.len());
            if end < self.entries.len() {
                self.entries[ordered..].select_nth_unstable(end - ordered - 1);
            }
            self.entries[ordered..end].sort_unstable();
            for position in ordered..end {
                if mass_before >= threshold {
                    self.entries.truncate(position);
                    return;
                }
                mass_before += mass(self.entries[position].x(), largest);
            }
            ordered = end;
        }
    }

    /// Mass of all entries kept so far.
    #[inline(always)]
    fn total_mass(&self, largest: f32) -> u64 {
        let (chunks, rest) = self.entries.as_chunks::<LANES>();
        let mut total = 0;
        for chunk in chunks {
            let mut weights = [0.0; LANES];
            for (weight, entry) in weights.iter_mut().zip(chunk) {
                *weight = exp(entry.x() - largest);
            }
            for weight in weights {
                total += mass_of_weight(weight);
            }
        }
        for entry in rest {
            total += mass(entry.x(), largest);
        }
        total
    }
}

/// A weight of at most 1 in units of 2⁻⁴⁰, truncated.
#[inline(always)]
fn mass_of_weight(weight: f32) -> u64 {
    (weight * UNIT_MASS) as u64
}

/// Mass of an entry, e^(x − largest).
#[inline(always)]
pub(super) fn mass(x: f32, largest: f32) -> u64 {
    mass_of_weight(exp(x - largest))
}

/// ⌈top_p · total⌉, exactly: an integer mass is below it iff it is below top_p · total.
pub(super) fn mass_threshold(top_p: f32, total: u64) -> u64 {
    // top_p = significand · 2^−shift; a subnormal has the exponent of the smallest normal number and no
    // hidden bit.
    let bits = top_p.to_bits();
    let (biased, fraction) = (bits >> 23, bits & 0x007f_ffff);
    let significand = if biased == 0 { fraction } else { fraction | 0x0080_0000 };
    let shift = 150 - biased.max(1);
    let product = u128::from(significand) * u128::from(total);
    // The product has at most 88 bits: beyond that shift any mass at all rounds up to one unit.
    if shift >= 88 { u64::from(product > 0) } else { product.div_ceil(1 << shift) as u64 }
}
