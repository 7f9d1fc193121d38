//! Which frames go in rounds: the executor's own judgement, what it is told, and what the rounds count.

use overtone_core::rounds::{self, DraftTree, OffSwitch, Speculation};

use super::CudaExecutor;
use crate::rounds::arguments::RoundCounters;

/// Codes per round at which a frame of one row in rounds takes as long as step by step: what a round costs in steps, in bfloat16
/// on an H200 (docs/speculation.md). Rows of a round are columns of the same products, and each codebook ahead brings heads
/// and draws. Drafts that were `fitted` are drawn after the code that they look at.
fn break_even(tree: &DraftTree, fitted: bool) -> f64 {
    let drawn_twice = if fitted { 0.13 } else { 0.0 };
    1.28 + 0.018 * tree.rows() as f64 + 0.055 * (tree.depth() - 1) as f64 + drawn_twice
}

/// Rows of a frame up to which rounds can pay: the rows of a verify pass come to every stream of the batch, and a frame is done
/// when its slowest stream is.
pub const MOST_PAYING_ROWS: usize = 1;

/// How often counters that change while they are read are read again.
const READS: usize = 16;

/// Launches between two looks at the counters.
const LAUNCHES: u32 = 32;

/// Whether frames go in rounds, and what the rounds counted when it was last looked.
#[derive(Debug)]
pub(super) struct RoundsWatch {
    is_on: bool,
    /// `None` where no rounds are launched.
    switch: Option<OffSwitch>,
    /// Rows of a frame up to which it may go in rounds.
    pub(super) most_rows: usize,
    launches: u32,
    seen: rounds::RoundCounters,
}

impl RoundsWatch {
    pub(super) fn new(speculation: Option<&Speculation>, fitted: bool, off_below: Option<f64>) -> Self {
        let off_below_of =
            |speculation: &Speculation| off_below.unwrap_or(break_even(&speculation.tree, fitted));
        Self {
            is_on: speculation.is_some(),
            switch: speculation.map(|speculation| OffSwitch::new(off_below_of(speculation))),
            most_rows: if off_below.is_some() { usize::MAX } else { MOST_PAYING_ROWS },
            launches: 0,
            seen: rounds::RoundCounters::default(),
        }
    }
}

impl CudaExecutor {
    /// What rounds counted for each row of the batch, as far as it has come back; nothing without speculation. Does not wait.
    pub fn round_counters(&self) -> Vec<rounds::RoundCounters> {
        let rows = if self.speculation.is_some() { self.max_batch } else { 0 };
        let counters = self.round_counters.as_ptr().cast::<RoundCounters>();
        // SAFETY: the memory holds as many counters, and the device writes whole words.
        let read = |row| unsafe { counters.add(row).read_volatile() };
        // The device may write one at this moment: what is read twice alike is of one time.
        let settled = |row| {
            let mut counted = read(row);
            for _ in 0..READS {
                let again = read(row);
                if again == counted {
                    break;
                }
                counted = again;
            }
            counted.into()
        };
        (0..rows).map(settled).collect()
    }

    /// Lets frames go in rounds from the next one on, or step by step; the codes are the same. Without speculation they always
    /// go step by step.
    pub const fn set_in_rounds(&mut self, in_rounds: bool) {
        self.rounds_watch.is_on = in_rounds && self.speculation.is_some();
    }

    /// Whether frames go in rounds.
    pub const fn is_in_rounds(&self) -> bool {
        self.rounds_watch.is_on
    }

    /// What has ended rounds, once it has.
    pub fn off_switch(&self) -> Option<&OffSwitch> {
        self.rounds_watch.switch.as_ref().filter(|switch| !switch.is_on())
    }

    /// Whether the next frame of `batch` rows goes in rounds.
    pub(super) fn next_in_rounds(&mut self, batch: usize) -> bool {
        if !self.rounds_watch.is_on || batch > self.rounds_watch.most_rows {
            return false;
        }
        self.rounds_watch.launches += 1;
        if self.rounds_watch.launches.is_multiple_of(LAUNCHES) {
            self.look();
        }
        self.rounds_watch.is_on
    }

    fn look(&mut self) {
        let mut total = rounds::RoundCounters::default();
        for counted in self.round_counters() {
            total += counted;
        }
        let watch = &mut self.rounds_watch;
        if let Some(switch) = &mut watch.switch {
            switch.add(total.since(watch.seen));
            watch.is_on &= switch.is_on();
        }
        watch.seen = total;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_break_even_is_what_was_measured() {
        let measured = [
            (DraftTree::siblings(1), false, 1.32),
            (DraftTree::siblings(3), false, 1.39),
            (DraftTree::siblings(7), false, 1.43),
            (DraftTree::siblings(7), true, 1.57),
            (DraftTree::chain(3), false, 1.52),
            (DraftTree::chain(3), true, 1.67),
            (DraftTree::chain(7), false, 1.73),
        ];
        for (tree, fitted, measured) in measured {
            let found = break_even(&tree, fitted);
            assert!((found - measured).abs() < 0.09, "{tree:?}, fitted {fitted}: {found} {measured}");
        }
    }

    #[test]
    fn rounds_are_for_one_row_unless_somebody_says_when_they_end() {
        let speculation = Speculation { tree: DraftTree::siblings(7), least_probability: None };
        assert_eq!(RoundsWatch::new(Some(&speculation), false, None).most_rows, 1);
        assert_eq!(RoundsWatch::new(Some(&speculation), false, Some(0.0)).most_rows, usize::MAX);
        assert!(!RoundsWatch::new(None, false, Some(0.0)).is_on);
    }
}
