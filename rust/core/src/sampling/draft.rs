//! [`Sampler::propose`]: the best draws of a row of draft logits, under the noise that the code's own draw will meet.
//!
//! A proposal is a guess: nothing depends on it but how soon a frame is done, so a row without a draw just proposes nothing.

use super::draw::{DrawFailure, Sampler};
use super::filter::{Entry, mass, mass_threshold};
use super::gumbel::Noise;
use super::params::SamplingParams;

/// How far below the largest x an entry may be and still be proposed, where the row's draws are filtered at all.
pub const DRAFT_REACH: f32 = 4.0;

/// Entries whose noise is made together.
const LANES: usize = 8;

impl Sampler {
    /// Fills `proposals` with the best draws for `codebook` from the row `logits`, best first: entries by (score descending,
    /// index ascending), where the score is x + noise with x = logits / temperature, or the logit itself for a greedy row. Where
    /// the row's draws are filtered, by top_k or top_p, only entries within [`DRAFT_REACH`] of the largest x are proposed:
    /// which of them the filters would leave is not asked, since they will see other logits.
    ///
    /// `None` stands for an entry that is less probable than `least_probability` before any filter, and for one that is not
    /// there: a row that cannot be drawn has none.
    pub fn propose(
        &mut self,
        logits: &[f32],
        params: &SamplingParams,
        frame_index: u64,
        codebook: u32,
        least_probability: Option<f32>,
        proposals: &mut [Option<u32>],
    ) {
        let draft = Draft { logits, params, frame_index, codebook, least_probability };
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: both features the function is compiled for have just been found.
            return unsafe { self.propose_with_avx2_and_fma(draft, proposals) };
        }
        self.propose_anywhere(draft, proposals);
    }

    /// [`propose_anywhere`](Self::propose_anywhere), compiled for the fused multiply-adds its arithmetic is made of.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma")]
    fn propose_with_avx2_and_fma(&mut self, draft: Draft<'_>, proposals: &mut [Option<u32>]) {
        self.propose_anywhere(draft, proposals);
    }

    #[inline(always)]
    fn propose_anywhere(&mut self, draft: Draft<'_>, proposals: &mut [Option<u32>]) {
        proposals.fill(None);
        let Ok(largest) = self.rank_proposals(draft, proposals.len()) else { return };
        let threshold = draft.least_probability.map_or(0, |least| {
            let total = (0..draft.logits.len() as u32).map(|index| mass(draft.x(index), largest)).sum();
            mass_threshold(least, total)
        });
        for (proposal, entry) in proposals.iter_mut().zip(&self.proposals) {
            let index = entry.index();
            *proposal = (threshold == 0 || mass(draft.x(index), largest) >= threshold).then_some(index);
        }
    }

    /// Leaves the best entries in `proposals`; the largest x is the result.
    #[inline(always)]
    fn rank_proposals(&mut self, draft: Draft<'_>, count: usize) -> Result<f32, DrawFailure> {
        let Draft { logits, params, frame_index, codebook, .. } = draft;
        self.proposals.clear();
        let largest = self.largest_x(logits, params)?;
        if params.is_greedy() {
            let finite = logits.iter().zip(0..).filter(|(logit, _)| **logit > f32::NEG_INFINITY);
            self.proposals.extend(finite.map(|(logit, index)| Entry::new(*logit, index)));
        } else {
            let filtered = params.top_k() != 0 || params.top_p() < 1.0;
            let reached = if filtered { largest - DRAFT_REACH } else { f32::MIN };
            let within = self.quotients.iter().zip(0..).filter(|(x, _)| **x >= reached);
            self.proposals.extend(within.map(|(x, index)| Entry::new(*x, index)));
            let noise = Noise::new(params.seed(), frame_index, codebook);
            for chunk in self.proposals.chunks_mut(LANES) {
                let lanes: [_; LANES] = std::array::from_fn(|lane| chunk[lane.min(chunk.len() - 1)]);
                for (entry, noise) in chunk.iter_mut().zip(noise.at(lanes.map(Entry::index))) {
                    *entry = Entry::new(entry.x() + noise, entry.index());
                }
            }
        }
        if count < self.proposals.len() {
            self.proposals.select_nth_unstable(count);
            self.proposals.truncate(count);
        }
        self.proposals.sort_unstable();
        Ok(largest)
    }
}

/// A row of draft logits, and how it is drawn from.
#[derive(Clone, Copy)]
struct Draft<'a> {
    logits: &'a [f32],
    params: &'a SamplingParams,
    frame_index: u64,
    codebook: u32,
    least_probability: Option<f32>,
}

impl Draft<'_> {
    /// logits / temperature; the logit of a greedy row.
    #[inline(always)]
    fn x(&self, index: u32) -> f32 {
        let logit = self.logits[index as usize];
        if self.params.is_greedy() { logit } else { logit / self.params.temperature() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn propose(logits: &[f32], params: SamplingParams, count: usize, least: Option<f32>) -> Vec<Option<u32>> {
        let mut proposals = vec![None; count];
        Sampler::new(logits.len()).propose(logits, &params, 3, 5, least, &mut proposals);
        proposals
    }

    fn wavy(entries: usize) -> Vec<f32> {
        (0..entries).map(|index| ((index * 37 % 101) as f32).sin() * 4.0).collect()
    }

    #[test]
    fn a_greedy_row_proposes_its_largest_entries_lowest_index_first() {
        let logits = [1.0, 3.0, f32::NEG_INFINITY, 3.0, 2.0];
        assert_eq!(propose(&logits, SamplingParams::greedy(), 3, None), [Some(1), Some(3), Some(4)]);
        assert_eq!(propose(&logits, SamplingParams::greedy(), 5, None)[3..], [Some(0), None]);
    }

    #[test]
    fn the_best_proposal_is_the_draw_itself() {
        let logits = wavy(200);
        for seed in 0..50 {
            let params = SamplingParams::new(0.8, 0, 1.0, seed).unwrap();
            let drawn = Sampler::new(200).draw(&logits, &params, 3, 5).unwrap();
            assert_eq!(propose(&logits, params, 1, None), [Some(drawn)]);
        }
    }

    #[test]
    fn a_filtered_row_proposes_what_is_within_reach() {
        let logits = [0.0, -DRAFT_REACH, -DRAFT_REACH - 0.01, -1.0];
        for (top_k, top_p) in [(3, 1.0), (0, 0.9)] {
            let params = SamplingParams::new(1.0, top_k, top_p, 7).unwrap();
            let mut proposed = propose(&logits, params, 4, None);
            proposed.sort_unstable();
            assert_eq!(proposed, [None, Some(0), Some(1), Some(3)]);
        }
        assert!(!propose(&logits, SamplingParams::new(1.0, 0, 1.0, 7).unwrap(), 4, None).contains(&None));
    }

    #[test]
    fn proposals_are_what_is_drawn_when_the_better_ones_are_gone() {
        let logits = wavy(200);
        for seed in 0..20 {
            let params = SamplingParams::new(1.1, 0, 1.0, seed).unwrap();
            let mut left = logits.clone();
            for proposal in propose(&logits, params, 7, None) {
                let drawn = Sampler::new(200).draw(&left, &params, 3, 5).unwrap();
                assert_eq!(proposal, Some(drawn));
                left[drawn as usize] = f32::NEG_INFINITY;
            }
        }
    }

    #[test]
    fn an_improbable_entry_is_not_proposed() {
        let logits = [0.0, 4.0, 2.0];
        // e^2 / (1 + e^2 + e^4) is 0.117.
        assert_eq!(propose(&logits, SamplingParams::greedy(), 3, Some(0.11)), [Some(1), Some(2), None]);
        assert_eq!(propose(&logits, SamplingParams::greedy(), 3, Some(0.12)), [Some(1), None, None]);
    }

    #[test]
    fn a_row_that_cannot_be_drawn_proposes_nothing() {
        for bad in [f32::NAN, f32::INFINITY] {
            assert_eq!(propose(&[0.0, bad, 1.0], SamplingParams::greedy(), 2, Some(0.5)), [None; 2]);
        }
        assert_eq!(propose(&[f32::NEG_INFINITY; 3], SamplingParams::greedy(), 2, None), [None; 2]);
        let cold = SamplingParams::new(1e-38, 0, 1.0, 0).unwrap();
        assert_eq!(propose(&[3.0, 300.0], cold, 2, None), [None; 2]);
    }
}
