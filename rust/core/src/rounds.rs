//! Speculative rounds along the codebook axis: what is drafted, what is accepted, and which KV slots stay.
//!
//! A stream that has drawn m codes holds `code_m`, which is *pending*: it has not been fed back yet. A round
//!
//! 1. *drafts*: the hidden row that made `code_m` also goes through `Head[m]`, `Head[m + 1]` …, and the best draws there are
//!    proposals for `code_{m + 1}`, `code_{m + 2}` …;
//! 2. *verifies*: one pass over the pending code and the drafts, each row at its own position and through its own head;
//! 3. *accepts*: along a path of drafts that equal what the row before them draws. One more code than that is drawn.
//!
//! Every draw, drafted or final, uses the noise of its own codebook ([`crate::sampling`]), so an accepted draft is the very
//! code that the step-by-step loop would have drawn, from the very same logits: the output does not change.
//!
//! Which drafts hang where is a [`DraftTree`]; a chain and siblings are two of them. Rows of a round that are not accepted
//! leave their keys and values behind in slots that the next rounds use again: [`SlotMap`].
//!
//! Whether rounds pay is seen in what they count ([`RoundCounters`]); an [`OffSwitch`] looks.

mod off_switch;

use crate::spec::ModelSpec;
use std::fmt;

pub use off_switch::OffSwitch;

/// The most rows of one stream in a verify pass.
pub const MOST_VERIFY_ROWS: usize = 8;

/// The most KV slots that a [`SlotMap`] can name.
pub const MOST_SLOTS: usize = 64;

/// A draft that is not there: its row takes no part in the round.
pub const NO_DRAFT: i32 = -1;

/// Which drafts a round verifies, and what hangs under what.
///
/// Row 0 is the pending code. Rows are ordered by depth, so those of one depth, which share a verify head, are neighbours;
/// a parent comes before its children.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct DraftTree {
    rows: usize,
    parents: [u8; MOST_VERIFY_ROWS],
    ranks: [u8; MOST_VERIFY_ROWS],
    /// `first[d] .. first[d + 1]` are the rows of depth d.
    first: [u8; MOST_VERIFY_ROWS + 1],
    depth: usize,
}

impl fmt::Debug for DraftTree {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_list()
            .entries((1..self.rows).map(|row| (self.parents[row], self.ranks[row])))
            .finish()
    }
}

impl DraftTree {
    /// A tree of (parent, rank) for rows 1, 2, …: the row is the draft of that rank, 0 for the best, among the proposals
    /// for its own codebook.
    ///
    /// # Panics
    /// When there are more than [`MOST_VERIFY_ROWS`] rows or a rank is no less than that, a row is not ordered by depth, or
    /// two children of a row have one rank.
    pub fn new(drafts: &[(usize, usize)]) -> Self {
        let rows = drafts.len() + 1;
        assert!(rows <= MOST_VERIFY_ROWS, "{rows} rows, expected at most {MOST_VERIFY_ROWS}");
        let (mut parents, mut ranks) = ([0; MOST_VERIFY_ROWS], [0; MOST_VERIFY_ROWS]);
        let mut depths = [0; MOST_VERIFY_ROWS];
        for (row, &(parent, rank)) in (1..).zip(drafts) {
            assert!(parent < row, "row {row} comes before its parent {parent}");
            assert!(rank < MOST_VERIFY_ROWS, "row {row} has rank {rank}");
            depths[row] = depths[parent] + 1;
            assert!(depths[row] >= depths[row - 1], "row {row} is less deep than the row before it");
            assert!(
                !drafts[..row - 1].contains(&(parent, rank)),
                "two drafts under row {parent} have rank {rank}"
            );
            (parents[row], ranks[row]) = (parent as u8, rank as u8);
        }
        let depths = &depths[..rows];
        let mut first = [rows as u8; MOST_VERIFY_ROWS + 1];
        let deepest = depths[rows - 1];
        for (depth, first) in first.iter_mut().enumerate().take(deepest + 1) {
            *first = depths.partition_point(|&other| other < depth) as u8;
        }
        Self { rows, parents, ranks, first, depth: deepest }
    }

    /// One draft after another: the best draw of each of the next `drafts` codebooks.
    pub fn chain(drafts: usize) -> Self {
        Self::new(&(0..drafts).map(|parent| (parent, 0)).collect::<Vec<_>>())
    }

    /// The best `drafts` draws for the next code alone, at one position.
    pub fn siblings(drafts: usize) -> Self {
        Self::new(&(0..drafts).map(|rank| (0, rank)).collect::<Vec<_>>())
    }

    /// Rows of a verify pass: the pending code and the drafts.
    pub const fn rows(&self) -> usize {
        self.rows
    }

    /// How many codebooks ahead the deepest draft is; a round draws up to one code more.
    pub const fn depth(&self) -> usize {
        self.depth
    }

    /// The row that `row` hangs under; 0 for row 0.
    pub const fn parent(&self, row: usize) -> usize {
        self.parents[row] as usize
    }

    /// Which of the proposals for its codebook a row is.
    pub const fn rank(&self, row: usize) -> usize {
        self.ranks[row] as usize
    }

    /// The rows of one depth.
    pub const fn rows_of_depth(&self, depth: usize) -> std::ops::Range<usize> {
        self.first[depth] as usize..self.first[depth + 1] as usize
    }

    /// How many codebooks ahead of the pending code a row is.
    pub fn depth_of(&self, row: usize) -> usize {
        (0..=self.depth).rfind(|&depth| self.first[depth] as usize <= row).unwrap_or(0)
    }

    /// How many proposals a depth needs.
    pub fn width(&self, depth: usize) -> usize {
        self.rows_of_depth(depth).map(|row| self.rank(row) + 1).max().unwrap_or(0)
    }

    /// The most proposals that any depth needs.
    pub fn most_width(&self) -> usize {
        (1..=self.depth).map(|depth| self.width(depth)).max().unwrap_or(0)
    }

    /// A row and those it hangs under, from row 0 on.
    pub fn path(&self, row: usize) -> impl Iterator<Item = usize> + use<> {
        let mut path = [row; MOST_VERIFY_ROWS];
        let depth = self.depth_of(row);
        for place in (0..depth).rev() {
            path[place] = self.parent(path[place + 1]);
        }
        path.into_iter().take(depth + 1)
    }

    /// The rows that were accepted, from row 0 on, and the codes that they draw: `drafts[row]` is the code that a row feeds
    /// ([`NO_DRAFT`] where it takes no part), `drawn[row]` the one that its logits draw.
    pub fn accept(&self, drafts: &[i32], drawn: &[i32]) -> impl Iterator<Item = usize> + use<> {
        let mut accepted = [0; MOST_VERIFY_ROWS];
        let mut length = 1;
        let mut last = 0;
        while let Some(next) =
            (last + 1..self.rows).find(|&row| self.parent(row) == last && drafts[row] == drawn[last])
        {
            accepted[length] = next;
            length += 1;
            last = next;
        }
        accepted.into_iter().take(length)
    }
}

/// Which shape drafts take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftShape {
    /// [`DraftTree::chain`].
    Chain,
    /// [`DraftTree::siblings`].
    Siblings,
}

/// How a predictor speculates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speculation {
    /// What a round verifies.
    pub tree: DraftTree,
    /// A draft whose probability, before any filter, is below this is not proposed, nor is what hangs under it.
    pub least_probability: Option<f32>,
}

impl Speculation {
    /// Drafts of a shape that make `verify_rows` rows with the pending code. `None` where nothing is drafted: fewer than two
    /// rows. A window wider than the frame or than [`MOST_VERIFY_ROWS`] cannot be honoured and is `None`, too.
    pub fn new(shape: DraftShape, verify_rows: usize, least_probability: Option<f32>) -> Option<Self> {
        if !(2..=MOST_VERIFY_ROWS).contains(&verify_rows) {
            return None;
        }
        let tree = match shape {
            DraftShape::Chain => DraftTree::chain(verify_rows - 1),
            DraftShape::Siblings => DraftTree::siblings(verify_rows - 1),
        };
        Some(Self { tree, least_probability })
    }

    /// Whether frames of an architecture can be predicted so: their positions and the rows of a round have to fit into
    /// [`MOST_SLOTS`].
    pub const fn suits(&self, spec: &ModelSpec) -> bool {
        spec.positions() + MOST_VERIFY_ROWS - 1 <= MOST_SLOTS
    }
}

/// Which slot of a stream's KV cache holds which position, so that nothing is moved: the slots of drafts that were not
/// accepted are given out again.
#[derive(Clone, Copy, Debug)]
pub struct SlotMap {
    /// Slot of each position.
    slots: [u8; MOST_SLOTS],
    /// Bit s: slot s holds a position's key and value.
    used: u64,
}

impl SlotMap {
    /// The first `positions` positions in their own slots.
    pub fn new(positions: usize) -> Self {
        Self { slots: std::array::from_fn(|slot| slot as u8), used: (1 << positions) - 1 }
    }

    /// Slots of the positions.
    pub const fn slots(&self) -> &[u8; MOST_SLOTS] {
        &self.slots
    }

    /// Slots for the rows of a round: the lowest free ones.
    pub fn free(&self) -> [u8; MOST_VERIFY_ROWS] {
        let mut used = self.used;
        std::array::from_fn(|_| {
            let slot = used.trailing_ones();
            used |= 1 << slot;
            slot as u8
        })
    }

    /// Gives position `position` the slot `slot`.
    pub const fn keep(&mut self, position: usize, slot: u8) {
        self.slots[position] = slot;
        self.used |= 1 << slot;
    }
}

/// What rounds of one stream counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoundCounters {
    /// Frames in which the stream took part.
    pub frames: u64,
    /// Verify passes.
    pub rounds: u64,
    /// Codes that those drew.
    pub codes: u64,
    /// Drafts verified.
    pub drafted: u64,
    /// Drafts accepted.
    pub accepted: u64,
}

impl RoundCounters {
    /// What was counted after `before`.
    #[must_use]
    pub const fn since(self, before: Self) -> Self {
        Self {
            frames: self.frames - before.frames,
            rounds: self.rounds - before.rounds,
            codes: self.codes - before.codes,
            drafted: self.drafted - before.drafted,
            accepted: self.accepted - before.accepted,
        }
    }
}

impl std::ops::AddAssign for RoundCounters {
    fn add_assign(&mut self, other: Self) {
        self.frames += other.frames;
        self.rounds += other.rounds;
        self.codes += other.codes;
        self.drafted += other.drafted;
        self.accepted += other.accepted;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_hangs_row_under_row() {
        let tree = DraftTree::chain(3);
        assert_eq!((tree.rows(), tree.depth()), (4, 3));
        for row in 0..4 {
            assert_eq!(tree.depth_of(row), row);
            assert_eq!(tree.path(row).collect::<Vec<_>>(), (0..=row).collect::<Vec<_>>());
            assert_eq!(tree.rows_of_depth(row), row..row + 1);
        }
        assert_eq!(tree.most_width(), 1);
    }

    #[test]
    fn siblings_share_a_depth() {
        let tree = DraftTree::siblings(7);
        assert_eq!((tree.rows(), tree.depth(), tree.width(1)), (8, 1, 7));
        assert_eq!(tree.rows_of_depth(1), 1..8);
        for row in 1..8 {
            assert_eq!((tree.depth_of(row), tree.rank(row)), (1, row - 1));
            assert_eq!(tree.path(row).collect::<Vec<_>>(), [0, row]);
        }
    }

    #[test]
    fn a_tree_of_both_is_ordered_by_depth() {
        let tree = DraftTree::new(&[(0, 0), (0, 1), (1, 0), (1, 1), (3, 0)]);
        assert_eq!((tree.rows(), tree.depth()), (6, 3));
        assert_eq!((tree.rows_of_depth(1), tree.rows_of_depth(2), tree.rows_of_depth(3)), (1..3, 3..5, 5..6));
        assert_eq!(tree.path(5).collect::<Vec<_>>(), [0, 1, 3, 5]);
        assert_eq!((tree.width(1), tree.width(2), tree.width(3)), (2, 2, 1));
    }

    fn accepted(tree: &DraftTree, drafts: &[i32], drawn: &[i32]) -> Vec<usize> {
        tree.accept(drafts, drawn).collect()
    }

    #[test]
    fn a_chain_is_accepted_up_to_the_first_draft_that_differs() {
        let tree = DraftTree::chain(3);
        assert_eq!(accepted(&tree, &[9, 1, 2, 3], &[1, 2, 3, 4]), [0, 1, 2, 3]);
        assert_eq!(accepted(&tree, &[9, 1, 2, 3], &[1, 5, 3, 4]), [0, 1]);
        assert_eq!(accepted(&tree, &[9, 1, 2, 3], &[7, 2, 3, 4]), [0]);
        // A draft that is not there is not accepted, nor is what hangs under it.
        assert_eq!(accepted(&tree, &[9, 1, NO_DRAFT, 3], &[1, 2, 3, 4]), [0, 1]);
    }

    #[test]
    fn of_siblings_the_one_that_was_drawn_is_accepted() {
        let tree = DraftTree::siblings(3);
        assert_eq!(accepted(&tree, &[9, 1, 2, 3], &[3, 3, 3, 5]), [0, 3]);
        assert_eq!(accepted(&tree, &[9, 1, 2, 3], &[4, 3, 3, 5]), [0]);
    }

    #[test]
    fn slots_that_were_not_kept_are_given_out_again() {
        let mut map = SlotMap::new(2);
        assert_eq!(map.free()[..4], [2, 3, 4, 5]);
        map.keep(2, 2);
        map.keep(3, 5);
        assert_eq!(map.slots()[..4], [0, 1, 2, 5]);
        assert_eq!(map.free()[..3], [3, 4, 6]);
    }

    #[test]
    fn a_window_that_cannot_be_honoured_is_none() {
        for rows in [0, 1, 9] {
            assert_eq!(Speculation::new(DraftShape::Chain, rows, None), None);
        }
        assert_eq!(Speculation::new(DraftShape::Siblings, 8, None).unwrap().tree, DraftTree::siblings(7));
    }
}
