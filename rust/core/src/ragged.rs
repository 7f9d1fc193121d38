//! A step of a batch whose rows bring different numbers of query tokens, laid out token by token: what an attention engine
//! has to be told of it, and the checks before that.
//!
//! [`RaggedConfig::publish`] is the definition; the kernel `ragged_step` computes the same on a device. Where the numbers come
//! from and where they go is the executors' matter.
//!
//! *Token order.* Row b of the step has the tokens `query_offsets[b] .. query_offsets[b] + query_lengths[b]`. In a
//! [`Packed`](TokenLayout::Packed) layout rows follow one another, and padding comes last; in a
//! [`Padded`](TokenLayout::Padded) one every row takes `query_width` places, its padding behind its tokens.
//!
//! *A row fails alone.* One that cannot be published says so in `status`, and is published as if it brought no tokens. A row
//! that brings none takes no part: nothing else that it says is looked at.

/// The most rows of a step.
pub const MOST_ROWS: usize = 256;

/// State index of padding: it belongs to nobody.
pub const NO_STATE: i64 = -1;

/// What a step is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Phase {
    /// A prompt, whole or, where the configuration lets it, a chunk of it: up to `query_width` tokens a row.
    Prefill = 0,
    /// One token a row.
    Decode = 1,
    /// A pending token and its drafts: up to `query_width` tokens a row.
    Verify = 2,
}

impl Phase {
    /// Their names, each at the place of its number.
    pub const NAMES: [&str; 3] = ["prefill", "decode", "verify"];

    /// The phase of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Prefill, Self::Decode, Self::Verify].into_iter().find(|phase| phase.name() == name)
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

/// Where the tokens of a row lie among those of the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenLayout {
    /// Row b begins at b · `query_width`.
    Padded,
    /// Row b begins where row b − 1 ends.
    Packed,
}

impl TokenLayout {
    /// The layout of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "padded" => Some(Self::Padded),
            "packed" => Some(Self::Packed),
            _ => None,
        }
    }
}

/// What all steps of an engine have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RaggedConfig {
    /// The most rows of a step, 1 to [`MOST_ROWS`].
    pub max_batch: usize,
    /// The most tokens of a row.
    pub max_query_width: usize,
    /// Positions of a KV state: past and query together take no more.
    pub max_positions: usize,
    /// KV states that there are.
    pub max_states: usize,
    /// Where tokens lie.
    pub layout: TokenLayout,
    /// Whether a prefill may go on where an earlier one ended.
    pub chunked_prefill: bool,
    /// Position of padding.
    pub padding_position: i32,
}

/// A size of a [`RaggedConfig`] that is out of range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}: found {found}, expected 1 to {most}")]
pub struct SizeError {
    /// Which.
    pub name: &'static str,
    /// What it is.
    pub found: usize,
    /// The most that it can be.
    pub most: usize,
}

/// Why a row was published as one without tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum RowFault {
    /// Its query length is negative, or more than `query_width`.
    QueryLength = 1,
    /// There is no such state.
    StateIndex = 2,
    /// Its past length is negative, or past and query together are more than `max_positions`.
    PastLength = 3,
    /// A prefill of a state that has a past already, where chunks are not allowed.
    PastOfPrefill = 4,
    /// A row before it has the same state.
    SharedState = 5,
}

/// What a row says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GivenRow {
    /// Tokens that it brings.
    pub query_length: i64,
    /// Its KV state.
    pub state_index: i64,
    /// Tokens that the state holds already.
    pub past_length: i64,
}

/// A step as engines read it. `rows` is `max_batch`; entries of rows beyond those given are of rows without tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RaggedStep {
    /// Where each row begins, and last the tokens of the step (in a padded layout its places), [rows + 1].
    pub query_offsets: Vec<i32>,
    /// `[rows]`.
    pub query_lengths: Vec<i32>,
    /// `[rows]`.
    pub past_lengths: Vec<i32>,
    /// Past and query together, `[rows]`.
    pub total_lengths: Vec<i32>,
    /// Place of each row's last token; −1 for a row without, `[rows]`.
    pub last_tokens: Vec<i32>,
    /// 0, or a [`RowFault`], `[rows]`.
    pub status: Vec<i32>,
    /// Position of each place, [given rows · `query_width`].
    pub positions: Vec<i64>,
    /// KV state of each place, likewise; [`NO_STATE`] for padding.
    pub state_indices: Vec<i64>,
}

impl RaggedConfig {
    /// Checks the sizes.
    ///
    /// # Errors
    /// [`SizeError`] for the first that is out of range; every place has a number that fits int32.
    pub fn check(&self) -> Result<(), SizeError> {
        const MOST: usize = i32::MAX as usize;
        let most_width = MOST / self.max_batch.max(1);
        for (name, found, most) in [
            ("max_batch", self.max_batch, MOST_ROWS),
            ("max_query_width", self.max_query_width, most_width),
            ("max_positions", self.max_positions, MOST),
            ("max_states", self.max_states, MOST),
        ] {
            if !(1..=most).contains(&found) {
                return Err(SizeError { name, found, most });
            }
        }
        Ok(())
    }

    /// What is wrong with a row by itself, when it brings tokens.
    pub fn fault(&self, row: &GivenRow, query_width: usize, phase: Phase) -> Option<RowFault> {
        let is_within = |value: i64, most: usize| usize::try_from(value).is_ok_and(|value| value <= most);
        if !is_within(row.query_length, query_width) {
            Some(RowFault::QueryLength)
        } else if row.query_length == 0 {
            None
        } else if !is_within(row.state_index, self.max_states - 1) {
            Some(RowFault::StateIndex)
        } else if !is_within(row.past_length, self.max_positions)
            || row.past_length + row.query_length > self.max_positions as i64
        {
            Some(RowFault::PastLength)
        } else if phase == Phase::Prefill && !self.chunked_prefill && row.past_length != 0 {
            Some(RowFault::PastOfPrefill)
        } else {
            None
        }
    }

    /// What is wrong with each row, states of two rows included: of those the first keeps it.
    pub fn faults(&self, rows: &[GivenRow], query_width: usize, phase: Phase) -> Vec<Option<RowFault>> {
        let own: Vec<_> = rows.iter().map(|row| self.fault(row, query_width, phase)).collect();
        let takes_part = |row: usize| own[row].is_none() && rows[row].query_length > 0;
        let shared = |row: usize| {
            let same = |other: usize| takes_part(other) && rows[other].state_index == rows[row].state_index;
            (takes_part(row) && (0..row).any(same)).then_some(RowFault::SharedState)
        };
        (0..rows.len()).map(|row| own[row].or_else(|| shared(row))).collect()
    }

    /// Lays out a step of up to `max_batch` rows, each padded to `query_width`, 1 to `max_query_width`; 1 for
    /// [`Phase::Decode`].
    pub fn publish(&self, given: &[GivenRow], query_width: usize, phase: Phase) -> RaggedStep {
        let rows = self.max_batch;
        let zeros = || vec![0; rows];
        let mut step = RaggedStep {
            query_offsets: vec![0; rows + 1],
            query_lengths: zeros(),
            past_lengths: zeros(),
            total_lengths: zeros(),
            last_tokens: vec![-1; rows],
            status: zeros(),
            positions: vec![i64::from(self.padding_position); given.len() * query_width],
            state_indices: vec![NO_STATE; given.len() * query_width],
        };
        let faults = self.faults(given, query_width, phase);
        let mut offset = 0;
        for (row, (given, fault)) in given.iter().zip(faults).enumerate() {
            let takes_part = fault.is_none() && given.query_length > 0;
            let (query, past) = if takes_part { (given.query_length, given.past_length) } else { (0, 0) };
            step.status[row] = fault.map_or(0, |fault| fault as i32);
            step.query_lengths[row] = query as i32;
            step.past_lengths[row] = past as i32;
            step.total_lengths[row] = (past + query) as i32;
            if takes_part {
                step.last_tokens[row] = offset + query as i32 - 1;
            }
            for token in 0..query {
                let place = offset as usize + token as usize;
                step.positions[place] = past + token;
                step.state_indices[place] = given.state_index;
            }
            offset += match self.layout {
                TokenLayout::Padded => query_width as i32,
                TokenLayout::Packed => query as i32,
            };
            step.query_offsets[row + 1] = offset;
        }
        step.query_offsets[given.len() + 1..].fill(offset);
        step
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(layout: TokenLayout) -> RaggedConfig {
        RaggedConfig {
            max_batch: 5,
            max_query_width: 4,
            max_positions: 10,
            max_states: 8,
            layout,
            chunked_prefill: false,
            padding_position: 7,
        }
    }

    fn rows(given: &[[i64; 3]]) -> Vec<GivenRow> {
        given
            .iter()
            .map(|&[query_length, state_index, past_length]| GivenRow {
                query_length,
                state_index,
                past_length,
            })
            .collect()
    }

    #[test]
    fn packed_rows_follow_one_another_and_padding_comes_last() {
        let step = config(TokenLayout::Packed).publish(
            &rows(&[[2, 5, 3], [0, -9, -9], [3, 0, 6]]),
            3,
            Phase::Verify,
        );
        assert_eq!(step.query_offsets, [0, 2, 2, 5, 5, 5]);
        assert_eq!(step.query_lengths, [2, 0, 3, 0, 0]);
        assert_eq!(step.past_lengths, [3, 0, 6, 0, 0]);
        assert_eq!(step.total_lengths, [5, 0, 9, 0, 0]);
        assert_eq!(step.last_tokens, [1, -1, 4, -1, -1]);
        assert_eq!(step.positions, [3, 4, 6, 7, 8, 7, 7, 7, 7]);
        assert_eq!(step.state_indices, [5, 5, 0, 0, 0, -1, -1, -1, -1]);
        assert_eq!(step.status, [0; 5]);
    }

    #[test]
    fn padded_rows_begin_a_width_apart() {
        let step = config(TokenLayout::Padded).publish(
            &rows(&[[2, 5, 3], [0, -9, -9], [3, 0, 6]]),
            3,
            Phase::Verify,
        );
        assert_eq!(step.query_offsets, [0, 3, 6, 9, 9, 9]);
        assert_eq!(step.last_tokens, [1, -1, 8, -1, -1]);
        assert_eq!(step.positions, [3, 4, 7, 7, 7, 7, 6, 7, 8]);
        assert_eq!(step.state_indices, [5, 5, -1, -1, -1, -1, 0, 0, 0]);
    }

    #[test]
    fn a_row_may_fill_its_state_exactly_and_no_more() {
        let config = config(TokenLayout::Packed);
        let fault = |row: [i64; 3]| config.fault(&rows(&[row])[0], 4, Phase::Verify);
        assert_eq!(fault([4, 7, 6]), None);
        assert_eq!(fault([4, 7, 7]), Some(RowFault::PastLength));
        assert_eq!(fault([1, 7, 10]), Some(RowFault::PastLength));
        assert_eq!(fault([1, 7, i64::MAX]), Some(RowFault::PastLength));
        assert_eq!(fault([1, 7, -1]), Some(RowFault::PastLength));
        assert_eq!(fault([5, 7, 0]), Some(RowFault::QueryLength));
        assert_eq!(fault([-1, 7, 0]), Some(RowFault::QueryLength));
        assert_eq!(fault([1, 8, 0]), Some(RowFault::StateIndex));
        assert_eq!(fault([1, -1, 0]), Some(RowFault::StateIndex));
    }

    #[test]
    fn a_prefill_begins_a_state_unless_chunks_are_allowed() {
        let mut config = config(TokenLayout::Packed);
        let row = rows(&[[2, 0, 1]])[0];
        assert_eq!(config.fault(&row, 4, Phase::Prefill), Some(RowFault::PastOfPrefill));
        config.chunked_prefill = true;
        assert_eq!(config.fault(&row, 4, Phase::Prefill), None);
    }

    #[test]
    fn of_two_rows_with_one_state_the_first_keeps_it_and_a_faulty_one_claims_none() {
        let config = config(TokenLayout::Packed);
        let given = rows(&[[9, 1, 0], [0, 1, 0], [1, 1, 0], [2, 1, 0], [1, 2, 0]]);
        let step = config.publish(&given, 4, Phase::Verify);
        assert_eq!(step.status, [1, 0, 0, 5, 0]);
        assert_eq!(step.query_lengths, [0, 0, 1, 0, 1]);
        assert_eq!(step.query_offsets, [0, 0, 0, 1, 1, 2]);
    }

    #[test]
    fn sizes_out_of_range_are_named() {
        let good = config(TokenLayout::Padded);
        assert_eq!(good.check(), Ok(()));
        let refused = |config: RaggedConfig| config.check().unwrap_err().to_string();
        assert_eq!(refused(RaggedConfig { max_batch: 0, ..good }), "max_batch: found 0, expected 1 to 256");
        assert_eq!(
            refused(RaggedConfig { max_batch: 257, ..good }),
            "max_batch: found 257, expected 1 to 256"
        );
        let wide = RaggedConfig { max_query_width: 1 << 30, ..good };
        assert_eq!(refused(wide), "max_query_width: found 1073741824, expected 1 to 429496729");
        assert_eq!(
            refused(RaggedConfig { max_states: 0, ..good }),
            "max_states: found 0, expected 1 to 2147483647"
        );
    }

    #[test]
    fn names_lead_to_what_they_name() {
        for (number, name) in Phase::NAMES.into_iter().enumerate() {
            assert_eq!(
                Phase::from_name(name).map(|phase| (phase as usize, phase.name())),
                Some((number, name))
            );
        }
        assert_eq!(Phase::from_name("Prefill"), None);
        assert_eq!(TokenLayout::from_name("ragged"), None);
    }
}
