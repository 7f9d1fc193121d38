//! A frame in speculative rounds: drafts, one verify pass over them, and what of it is committed.
//!
//! Streams advance at their own pace and leave when they have all codes. A verify row goes through the same passes as the
//! row of a step does, in a batch of others, so what is committed is what the plain loop gives, bit for bit.

use super::body::TokenRows;
use super::drafts::DraftWeights;
use super::lanes::LANES;
use super::steps::{FrameRun, add_row, widen};
use super::workspace::PREFILL_ROWS;
use crate::rounds::{MOST_SLOTS, MOST_VERIFY_ROWS, NO_DRAFT, RoundCounters, SlotMap, Speculation};
use std::ops::Range;

/// Where the streams of a frame stand, and the rows of the round under way.
#[derive(Debug)]
pub(super) struct Rounds {
    speculation: Speculation,
    /// What drafts the next code; the plain next head without.
    drafts: Option<DraftWeights>,
    streams: Vec<StreamRounds>,
    rows: Vec<VerifyRow>,
    /// What the frame counted, for each stream.
    counters: Vec<RoundCounters>,
}

/// One stream between two rounds.
#[derive(Debug)]
struct StreamRounds {
    /// m: residual codes drawn so far. The last of them is pending.
    committed: usize,
    /// The kept hidden row that the pending code was drawn from.
    seed: usize,
    slots: SlotMap,
    /// Codes that the rows of the tree feed: the pending one, and the drafts.
    codes: [i32; MOST_VERIFY_ROWS],
    /// Its rows in the verify pass.
    rows: Range<usize>,
}

impl StreamRounds {
    /// A row of the tree, when it takes part in the verify pass.
    const fn takes_part(&self, tree_row: usize) -> bool {
        self.codes[tree_row] != NO_DRAFT
    }
}

/// A row of the tree that takes part in the verify pass.
#[derive(Debug)]
struct VerifyRow {
    stream: usize,
    tree_row: usize,
    /// The code it feeds.
    code: usize,
    /// Where it stands. Its logits draw the code of the same number.
    position: usize,
    /// The slot it stores its key and value in.
    slot: u8,
    /// Slots of the positions that it attends to.
    slots: [u8; MOST_SLOTS],
}

impl Rounds {
    /// Room for frames of `max_batch` streams.
    pub(super) fn new(speculation: Speculation, max_batch: usize) -> Self {
        Self {
            streams: Vec::with_capacity(max_batch),
            rows: Vec::with_capacity(max_batch * speculation.tree.rows()),
            counters: Vec::with_capacity(max_batch),
            speculation,
            drafts: None,
        }
    }

    /// Drafts the next code with these from now on.
    pub(super) fn use_drafts(&mut self, drafts: DraftWeights) {
        self.drafts = Some(drafts);
    }

    pub(super) const fn verify_rows(&self) -> usize {
        self.speculation.tree.rows()
    }

    /// What the frame before counted, for each of its streams.
    pub(super) fn counters(&self) -> &[RoundCounters] {
        &self.counters
    }

    /// Forgets the frame before.
    pub(super) fn clear(&mut self) {
        self.counters.clear();
    }

    /// `streams` streams with one code each.
    fn start(&mut self, streams: usize) {
        self.streams.clear();
        self.streams.extend((0..streams).map(|stream| StreamRounds {
            committed: 1,
            seed: stream,
            slots: SlotMap::new(PREFILL_ROWS),
            codes: [NO_DRAFT; MOST_VERIFY_ROWS],
            rows: 0..0,
        }));
        self.counters.clear();
        self.counters.resize(streams, RoundCounters { frames: 1, ..RoundCounters::default() });
    }

    /// Lays out the rows that take part.
    fn lay_out(&mut self) {
        let tree = self.speculation.tree;
        self.rows.clear();
        for (index, stream) in self.streams.iter_mut().enumerate() {
            let first = self.rows.len();
            stream.rows = first..first;
            // A stream with all of its codes may have no slot left.
            if !stream.takes_part(0) {
                continue;
            }
            let free = stream.slots.free();
            for tree_row in (0..tree.rows()).filter(|&row| stream.takes_part(row)) {
                let mut slots = *stream.slots.slots();
                for (position, row) in (stream.committed + 1..).zip(tree.path(tree_row)) {
                    slots[position] = free[row];
                }
                self.rows.push(VerifyRow {
                    stream: index,
                    tree_row,
                    code: stream.codes[tree_row] as usize,
                    position: stream.committed + 1 + tree.depth_of(tree_row),
                    slot: free[tree_row],
                    slots,
                });
            }
            stream.rows = first..self.rows.len();
        }
    }
}

impl TokenRows for Rounds {
    fn count(&self) -> usize {
        self.rows.len()
    }

    fn of_stream(&self, stream: usize) -> Range<usize> {
        self.streams[stream].rows.clone()
    }

    fn position(&self, row: usize) -> usize {
        self.rows[row].position
    }

    fn slot(&self, row: usize, position: usize) -> usize {
        self.rows[row].slots[position].into()
    }
}

impl FrameRun<'_, '_> {
    /// Runs the whole frame in rounds.
    pub(super) fn run_rounds(&mut self, rounds: &mut Rounds) {
        self.prefill();
        rounds.start(self.streams());
        let residual_codebooks = self.body.spec.residual_codebooks;
        while rounds.streams.iter().any(|stream| stream.committed < residual_codebooks) {
            self.draft(rounds);
            rounds.lay_out();
            self.verify(rounds);
            self.accept(rounds);
        }
    }

    /// Feeds every stream's pending code, and proposes what may follow it.
    fn draft(&mut self, rounds: &mut Rounds) {
        let residual_codebooks = self.body.spec.residual_codebooks;
        for (index, stream) in rounds.streams.iter_mut().enumerate() {
            stream.codes = [NO_DRAFT; MOST_VERIFY_ROWS];
            if stream.committed < residual_codebooks {
                stream.codes[0] = self.outputs.codes[index * (residual_codebooks + 1) + stream.committed];
            }
        }
        // The last code is never fed back.
        for codebook in 2..residual_codebooks {
            self.propose(rounds, codebook);
        }
    }

    /// Proposals for `code_codebook` of the streams that draft so far.
    fn propose(&mut self, rounds: &mut Rounds, codebook: usize) {
        let Speculation { tree, least_probability } = rounds.speculation;
        // Depth of the drafts, where something takes part that they hang under.
        let depth_of = |stream: &StreamRounds| {
            let depth =
                codebook.checked_sub(stream.committed).filter(|depth| (1..=tree.depth()).contains(depth))?;
            tree.rows_of_depth(depth - 1).any(|row| stream.takes_part(row)).then_some(depth)
        };
        let size = self.body.spec.codebook_size;
        let blocks = size.div_ceil(LANES);
        let fitted = rounds.drafts.as_ref().map(|drafts| drafts.of(codebook));
        // Fitted drafts know the pending code, and so the next one alone.
        let is_fitted = |stream: &&StreamRounds| fitted.is_some() && depth_of(stream) == Some(1);
        if let Some((head, table)) = fitted {
            self.body.head(head, rounds.streams.iter().filter(is_fitted).map(|stream| stream.seed));
            for stream in rounds.streams.iter().filter(is_fitted) {
                let logits =
                    &mut self.body.workspace.logits[stream.seed * blocks..(stream.seed + 1) * blocks];
                add_row(table, stream.codes[0] as usize, &mut logits.as_flattened_mut()[..size]);
            }
        }
        let plain = rounds.streams.iter().filter(|stream| depth_of(stream).is_some() && !is_fitted(stream));
        self.body.head(&self.body.weights.heads[codebook - 1], plain.map(|stream| stream.seed));
        let logits = &*self.body.workspace.logits;
        let drafting = rounds.streams.iter_mut().zip(self.samplers.iter_mut()).zip(self.inputs.sampling);
        let drafting = drafting
            .filter_map(|((stream, sampler), sampling)| Some((depth_of(stream)?, stream, sampler, sampling)));
        self.body.team.for_each(drafting, |(depth, stream, sampler, sampling)| {
            let logits = &logits[stream.seed * blocks..(stream.seed + 1) * blocks].as_flattened()[..size];
            let mut proposals = [None; MOST_VERIFY_ROWS];
            let proposals = &mut proposals[..tree.width(depth)];
            let (params, frame) = (&sampling.params, sampling.frame_index);
            sampler.propose(logits, params, frame, codebook as u32, least_probability, proposals);
            for row in tree.rows_of_depth(depth) {
                if stream.takes_part(tree.parent(row)) {
                    stream.codes[row] = proposals[tree.rank(row)].map_or(NO_DRAFT, |code| code as i32);
                }
            }
        });
    }

    /// One pass over the rows that take part, each through its own head, and a draw from each.
    fn verify(&mut self, rounds: &Rounds) {
        let weights = self.body.weights;
        let rows = &rounds.rows;
        self.body.embed(rows.len(), |row, to| {
            let row = &rows[row];
            widen(weights.tables[row.position - 2].view(), row.code, to);
        });
        self.body.run(rounds, 0..rows.len());
        for (head, position) in weights.heads.iter().zip(1..) {
            let reads_head = |&row: &usize| rows[row].position == position;
            self.body.head(head, (0..rows.len()).filter(reads_head));
        }
        self.draw(rows.iter().map(|row| (row.stream, row.position)));
    }

    /// Commits what was drawn along the accepted path of every stream.
    fn accept(&mut self, rounds: &mut Rounds) {
        let tree = rounds.speculation.tree;
        for (index, (stream, counters)) in rounds.streams.iter_mut().zip(&mut rounds.counters).enumerate() {
            if stream.rows.is_empty() {
                continue;
            }
            let rows = &rounds.rows[stream.rows.clone()];
            let mut drawn = [NO_DRAFT; MOST_VERIFY_ROWS];
            let mut pass_rows = [0; MOST_VERIFY_ROWS];
            for (pass_row, row) in stream.rows.clone().zip(rows) {
                // A draw that fails goes on with code 0.
                drawn[row.tree_row] = self.drawn[pass_row].unwrap_or(0) as i32;
                pass_rows[row.tree_row] = pass_row;
            }
            counters.rounds += 1;
            counters.drafted += rows.len() as u64 - 1;
            for tree_row in tree.accept(&stream.codes, &drawn) {
                stream.committed += 1;
                stream.seed = pass_rows[tree_row];
                stream.slots.keep(stream.committed, rounds.rows[stream.seed].slot);
                self.commit(index, stream.committed, stream.seed);
                counters.codes += 1;
                counters.accepted += u64::from(tree_row != 0);
            }
        }
    }
}
