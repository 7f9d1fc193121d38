//! The buffers of a round stream: where each lies, what is in it, and what the one read of a burst brings back. Pure:
//! the device ([`super::StreamBufs`]) and the tests' host use the very same addresses.

use std::ops::Range;

use overtone_core::rounds::RoundCounters;

use super::StreamError;
use super::arguments::RoundStreamArguments;
use crate::layout::{Address, Carver};

/// Nothing is pending or predicted, a draw failed, or an entry of the verify pass is not used.
pub const NO_CODE: i32 = -1;

/// [`StreamLayout::codes_left`] of a row without an end.
pub const NO_LIMIT: i32 = i32::MAX;

/// The most drafts of a round.
pub const MOST_DRAFTS: usize = 31;

/// A break mark: the row takes no part in the round.
const BASE_IDLE: i32 = -1;
/// `StreamFlag` of `kernels/round_stream.cuh`.
const OVERFLOW: u32 = 1;
const FAILED: u32 = 2;
/// Rounds, codes, drafted, accepted.
const COUNTERS: usize = 4;
const WORD: usize = size_of::<i32>();

/// What the sizes of a round stream follow from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamShape {
    batch: usize,
    drafts: usize,
    rounds: usize,
    code_count: usize,
}

impl StreamShape {
    /// `batch` rows, `drafts` (k) drafts in a round, `rounds` (m) rounds in a burst, codes below `code_count`.
    ///
    /// # Errors
    /// A number of 0, more than [`MOST_DRAFTS`] drafts, more codes than int32 has, or rings of more than 2³¹ words.
    pub fn new(batch: usize, drafts: usize, rounds: usize, code_count: usize) -> Result<Self, StreamError> {
        let within = |what: &'static str, found: usize, most: usize| match (1..=most).contains(&found) {
            true => Ok(()),
            false => Err(StreamError::Shape { what, found, most }),
        };
        let most_words = i32::MAX as usize;
        within("rows of the batch", batch, most_words)?;
        within("drafts", drafts, MOST_DRAFTS)?;
        within("codes", code_count, most_words)?;
        within("rounds", rounds, (most_words / batch - 1) / (drafts + 1))?;
        Ok(Self { batch, drafts, rounds, code_count })
    }

    /// B.
    pub const fn batch(&self) -> usize {
        self.batch
    }

    /// k.
    pub const fn drafts(&self) -> usize {
        self.drafts
    }

    /// m: rounds of a burst.
    pub const fn rounds(&self) -> usize {
        self.rounds
    }

    /// Codes are less than this.
    pub const fn code_count(&self) -> usize {
        self.code_count
    }

    /// k + 1: entries of a row in a verify pass, and the most codes that a round commits.
    pub const fn verify_rows(&self) -> usize {
        self.drafts + 1
    }

    /// m · (k + 1): codes that a ring has room for.
    pub const fn ring_capacity(&self) -> usize {
        self.rounds * self.verify_rows()
    }

    const fn ring_words(&self) -> usize {
        self.ring_capacity() + 1
    }
}

/// Where the buffers of a round stream lie. They hold int32 where nothing else is said, one part for each row.
///
/// An engine reads `verify_codes` and `round_start`. It writes none of them, except `codes_left` of a row that it ends
/// early: 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamLayout {
    shape: StreamShape,
    /// `[B]`: positions that the row has fed. The next code is fed there. Written by rollback, as the last row of a
    /// table of lengths: between rounds every KV length of a row equals it.
    pub position: Address,
    /// `[B]`: `position` when the round began, the anchor of rollback. Entry e of the verify pass is fed at round start
    /// + e. Negative before the first round.
    pub round_start: Address,
    /// `[B]`: the code that was committed and has not been fed yet, [`NO_CODE`] for none.
    pub pending: Address,
    /// `[B]`: the code drawn behind the last position that was kept, [`NO_CODE`] for none. When nothing is pending it
    /// decides on the first draft, and is itself committed. After a round it equals `pending`.
    pub last_prediction: Address,
    /// `[B]`: codes that the row may still commit; counted down, except from [`NO_LIMIT`]. A row with none left is
    /// finished. To stay within a KV cache of C positions, it is at most C − `position`.
    pub codes_left: Address,
    /// [B, 2]: drafts used in the round, and its base: 1 when a code was pending, 0 when none was, −1 for a row that
    /// takes no part. The entries of the verify pass that count are the first base + drafts used.
    pub break_marks: Address,
    /// [B, 2]: drafts accepted in the round, and codes that it commits: one more, unless the draw behind them failed.
    pub accept_counters: Address,
    /// [B, k + 1]: what the verify pass feeds: the pending code, if there is one, then the drafts used, then
    /// [`NO_CODE`] for entries that take no part.
    pub verify_codes: Address,
    /// [B, 4] uint32, since the ring was armed: rounds, codes committed, drafts used, drafts accepted.
    pub counters: Address,
    /// `[B]` uint32, sticky until the ring is armed: 1 when codes were committed that it had no room for, 2 when a draw
    /// to be committed gave no code.
    pub flags: Address,
    /// [B, m · (k + 1) + 1]: how many codes were committed since the ring was armed, then those codes in order. The
    /// code that was pending at the start is not among them: it was committed before.
    pub ring: Address,
    state: (Address, usize),
    read_back: (Address, usize),
    armed: (Address, usize),
}

impl StreamLayout {
    /// Lays the buffers out from `base` on, for [`bytes`](Self::bytes) bytes; `position` lies elsewhere, with the
    /// lengths.
    ///
    /// Before the first round every byte of [`state`](Self::state) is 0xff, which makes all rows idle, and those of
    /// [`armed`](Self::armed) are 0.
    pub const fn new(shape: StreamShape, base: Address, position: Address) -> Self {
        const fn words(count: usize) -> u64 {
            (count * WORD) as u64
        }
        let batch = shape.batch;
        let mut carver = Carver::new(base);
        let round_start = carver.take(words(batch));
        let pending = carver.take(words(batch));
        let last_prediction = carver.take(words(batch));
        let break_marks = carver.take(words(2 * batch));
        let accept_counters = carver.take(words(2 * batch));
        let verify_codes = carver.take(words(batch * shape.verify_rows()));
        let codes_left = carver.take(words(batch));
        let state_bytes = carver.used() as usize;
        let counters = carver.take(words(COUNTERS * batch));
        let flags = carver.take(words(batch));
        let ring = carver.take(words(batch * shape.ring_words()));
        let end = base + carver.used();
        Self {
            shape,
            position,
            round_start,
            pending,
            last_prediction,
            codes_left,
            break_marks,
            accept_counters,
            verify_codes,
            counters,
            flags,
            ring,
            state: (base, state_bytes),
            read_back: (codes_left, (end - codes_left) as usize),
            armed: (counters, (end - counters) as usize),
        }
    }

    /// What the sizes follow from.
    pub const fn shape(&self) -> &StreamShape {
        &self.shape
    }

    /// Bytes of all buffers but the position counter.
    pub const fn bytes(&self) -> usize {
        self.state.1 + self.armed.1
    }

    /// Address and bytes of what is 0xff before the first round.
    pub const fn state(&self) -> (Address, usize) {
        self.state
    }

    /// Address and bytes of what is 0 before the first round, and is set to 0 after a burst was read.
    pub const fn armed(&self) -> (Address, usize) {
        self.armed
    }

    /// Address and bytes of the one read of a burst: what [`drained`](Self::drained) takes.
    pub const fn read_back(&self) -> (Address, usize) {
        self.read_back
    }

    pub(super) const fn arguments(&self) -> RoundStreamArguments {
        RoundStreamArguments {
            position: self.position,
            round_start: self.round_start,
            pending: self.pending,
            last_prediction: self.last_prediction,
            codes_left: self.codes_left,
            break_marks: self.break_marks,
            accept_counters: self.accept_counters,
            verify_codes: self.verify_codes,
            counters: self.counters,
            flags: self.flags,
            ring: self.ring,
            batch: self.shape.batch as u32,
            drafts: self.shape.drafts as u32,
            ring_capacity: self.shape.ring_capacity() as u32,
            code_count: self.shape.code_count as u32,
        }
    }

    /// The words that make a row begin: address and value. The row's part of the ring is left as it is, with what an
    /// earlier stream in this row committed since the last read; so read first.
    ///
    /// # Errors
    /// A row that there is not, a code or a position that cannot be.
    pub fn start_row(&self, row: usize, start: &RowStart) -> Result<[(Address, i32); 9], StreamError> {
        let batch = self.shape.batch;
        if row >= batch {
            return Err(StreamError::Row { row, batch });
        }
        let code = |what: &'static str, code: Option<u32>| match code {
            None => Ok(NO_CODE),
            Some(code) if (code as usize) < self.shape.code_count => Ok(code.cast_signed()),
            Some(found) => Err(StreamError::Code { row, what, found, code_count: self.shape.code_count }),
        };
        let number = |what: &'static str, found: usize| {
            i32::try_from(found).map_err(|_| StreamError::Number { row, what, found })
        };
        let position = number("position", start.position)?;
        let left = start.codes_left.map_or(Ok(NO_LIMIT), |left| number("codes_left", left))?;
        let place = |array: Address, width: usize, word: usize| array + ((row * width + word) * WORD) as u64;
        Ok([
            (place(self.position, 1, 0), position),
            (place(self.round_start, 1, 0), position),
            (place(self.pending, 1, 0), code("pending", start.pending)?),
            (place(self.last_prediction, 1, 0), code("last_prediction", start.last_prediction)?),
            (place(self.codes_left, 1, 0), left),
            (place(self.break_marks, 2, 0), 0),
            (place(self.break_marks, 2, 1), BASE_IDLE),
            (place(self.accept_counters, 2, 0), 0),
            (place(self.accept_counters, 2, 1), 0),
        ])
    }

    /// What the bytes of [`read_back`](Self::read_back) say, row by row.
    ///
    /// # Errors
    /// [`StreamError::RingOverflow`] with the first row whose ring overflowed, or holds a count that no ring can have.
    pub fn drained(&self, bytes: &[u8]) -> Result<Vec<DrainedRow>, StreamError> {
        let word = |array: Address, index: usize| {
            let place = (array - self.read_back.0) as usize + index * WORD;
            let mut word = [0; WORD];
            word.copy_from_slice(&bytes[place..place + WORD]);
            i32::from_ne_bytes(word)
        };
        let row = |row: usize| {
            let (flags, ring) = (word(self.flags, row).cast_unsigned(), row * self.shape.ring_words());
            let (found, capacity) = (word(self.ring, ring), self.shape.ring_capacity());
            let count = usize::try_from(found).ok().filter(|count| *count <= capacity);
            let (Some(count), 0) = (count, flags & OVERFLOW) else {
                return Err(StreamError::RingOverflow { row, found, capacity });
            };
            let codes: Range<usize> = ring + 1..ring + 1 + count;
            let left = word(self.codes_left, row);
            let counter =
                |place: usize| u64::from(word(self.counters, row * COUNTERS + place).cast_unsigned());
            Ok(DrainedRow {
                codes: codes.map(|place| word(self.ring, place).cast_unsigned()).collect(),
                codes_left: (left != NO_LIMIT).then(|| left.max(0).unsigned_abs() as usize),
                failed: flags & FAILED != 0,
                counters: RoundCounters {
                    frames: 0,
                    rounds: counter(0),
                    codes: counter(1),
                    drafted: counter(2),
                    accepted: counter(3),
                },
            })
        };
        (0..self.shape.batch).map(row).collect()
    }
}

/// Where a row stands before its first round. The default has nothing to go on from: the row takes no part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowStart {
    /// Positions that were fed: the length of every KV cache of the row.
    pub position: usize,
    /// The code that was committed and not fed yet.
    pub pending: Option<u32>,
    /// The code drawn behind the last position, not committed yet; only looked at when nothing is pending.
    pub last_prediction: Option<u32>,
    /// Codes that the row may commit; `None`: as many as it likes.
    pub codes_left: Option<usize>,
}

/// What one row brought back from a burst.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DrainedRow {
    /// The codes committed since the last read, in order.
    pub codes: Vec<u32>,
    /// Codes that the row may still commit: 0 for one that is finished, or was never started; `None`: as many as it
    /// likes.
    pub codes_left: Option<usize>,
    /// A draw that was to be committed gave no code. The row ends with the codes before it.
    pub failed: bool,
    /// What the rounds since the last read counted; `frames` is 0, since a stream knows of none.
    pub counters: RoundCounters,
}
