//! A round stream's buffers on the host, and what each piece makes of a row.

use overtone_cuda::kv_lengths::LengthAddresses;
use overtone_cuda::layout::Address;
use overtone_cuda::round_stream::{
    Drafts, DrainedRow, NO_CODE, NO_LIMIT, RoundPlan, RowStart, Seeds, StreamError, StreamLayout, StreamShape,
};
use overtone_simt::Schedule;

use crate::host::{Host, Memory};

/// Orders in which threads run.
pub const SCHEDULES: [Schedule; 3] = [Schedule::Natural, Schedule::Seeded(1), Schedule::Seeded(77)];

/// What `kernels/round_stream.cuh` calls so.
pub const OVERFLOW: u32 = 1;
pub const FAILED: u32 = 2;

/// One row's part of every buffer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    pub position: i32,
    pub round_start: i32,
    pub pending: i32,
    pub last_prediction: i32,
    pub codes_left: i32,
    pub break_marks: [i32; 2],
    pub accept_counters: [i32; 2],
    pub verify_codes: Vec<i32>,
    pub counters: [i32; 4],
    pub flags: i32,
    pub ring: Vec<i32>,
}

/// A stream's buffers, poisoned before the first round and between the buffers.
pub struct Buffers {
    pub layout: StreamLayout,
    memory: Memory,
    position: Memory,
}

/// What lies between the buffers, and in them before the first round.
const POISON: u8 = 0xff;

impl Buffers {
    /// As on a device before the first round: all rows idle, all rings empty.
    pub fn new(shape: StreamShape) -> Self {
        let bytes = StreamLayout::new(shape, 0, 0).bytes();
        let memory = Memory::filled(bytes as u64, POISON);
        let position = Memory::of(&vec![0_i32; shape.batch()]);
        let layout = StreamLayout::new(shape, memory.address(), position.address());
        let mut buffers = Self { layout, memory, position };
        buffers.arm();
        buffers
    }

    fn bytes_of(&mut self, (address, bytes): (Address, usize)) -> &mut [u8] {
        let offset = (address - self.memory.address()) as usize;
        &mut self.memory.bytes_mut()[offset..offset + bytes]
    }

    pub fn arm(&mut self) {
        self.bytes_of(self.layout.armed()).fill(0);
    }

    /// The one read of a burst.
    pub fn drain(&mut self) -> Result<Vec<DrainedRow>, StreamError> {
        let bytes = self.bytes_of(self.layout.read_back()).to_vec();
        self.arm();
        self.layout.drained(&bytes)
    }

    pub fn start(&mut self, row: usize, start: &RowStart) {
        for (address, word) in self.layout.start_row(row, start).unwrap() {
            *self.word(address) = word.to_ne_bytes();
        }
    }

    fn word(&mut self, address: Address) -> &mut [u8; 4] {
        let at = |memory: &Memory| address.checked_sub(memory.address()).map(|offset| offset as usize);
        let (batch, bytes) = (self.layout.shape().batch(), self.layout.bytes());
        match (at(&self.position).filter(|at| *at < 4 * batch), at(&self.memory).filter(|at| *at < bytes)) {
            (Some(at), None) => (&mut self.position.bytes_mut()[at..at + 4]).try_into().unwrap(),
            (None, Some(at)) => (&mut self.memory.bytes_mut()[at..at + 4]).try_into().unwrap(),
            found => panic!("{address:#x} is nobody's: {found:?}"),
        }
    }

    fn words(&mut self, array: Address, width: usize, row: usize) -> Vec<i32> {
        let place = |word: usize| array + 4 * (row * width + word) as u64;
        (0..width).map(|word| i32::from_ne_bytes(*self.word(place(word)))).collect()
    }

    /// What a row holds.
    pub fn row(&mut self, row: usize) -> Row {
        let StreamLayout { position, round_start, pending, last_prediction, codes_left, .. } = self.layout;
        let StreamLayout { break_marks, accept_counters, verify_codes, counters, flags, ring, .. } =
            self.layout;
        let (entries, ring_words) =
            (self.layout.shape().verify_rows(), self.layout.shape().ring_capacity() + 1);
        Row {
            position: self.words(position, 1, row)[0],
            round_start: self.words(round_start, 1, row)[0],
            pending: self.words(pending, 1, row)[0],
            last_prediction: self.words(last_prediction, 1, row)[0],
            codes_left: self.words(codes_left, 1, row)[0],
            break_marks: self.words(break_marks, 2, row).try_into().unwrap(),
            accept_counters: self.words(accept_counters, 2, row).try_into().unwrap(),
            verify_codes: self.words(verify_codes, entries, row),
            counters: self.words(counters, 4, row).try_into().unwrap(),
            flags: self.words(flags, 1, row)[0],
            ring: self.words(ring, ring_words, row),
        }
    }

    pub fn rows(&mut self) -> Vec<Row> {
        (0..self.layout.shape().batch()).map(|row| self.row(row)).collect()
    }

    /// Gives a row other contents.
    pub fn set_row(&mut self, row: usize, contents: &Row) {
        let layout = self.layout;
        let mut set = |array: Address, words: &[i32]| {
            for (place, word) in words.iter().enumerate() {
                *self.word(array + 4 * (row * words.len() + place) as u64) = word.to_ne_bytes();
            }
        };
        set(layout.position, &[contents.position]);
        set(layout.round_start, &[contents.round_start]);
        set(layout.pending, &[contents.pending]);
        set(layout.last_prediction, &[contents.last_prediction]);
        set(layout.codes_left, &[contents.codes_left]);
        set(layout.break_marks, &contents.break_marks);
        set(layout.accept_counters, &contents.accept_counters);
        set(layout.verify_codes, &contents.verify_codes);
        set(layout.counters, &contents.counters);
        set(layout.flags, &[contents.flags]);
        set(layout.ring, &contents.ring);
    }

    /// Checks that what lies between the buffers is as it was.
    pub fn check_padding(&mut self) {
        let (shape, layout) = (*self.layout.shape(), self.layout);
        let state_bytes = layout.state().1;
        let base = self.memory.address();
        let used = [
            (layout.round_start, 1),
            (layout.pending, 1),
            (layout.last_prediction, 1),
            (layout.break_marks, 2),
            (layout.accept_counters, 2),
            (layout.verify_codes, shape.verify_rows()),
            (layout.codes_left, 1),
            (layout.counters, 4),
            (layout.flags, 1),
            (layout.ring, shape.ring_capacity() + 1),
        ];
        let mut expected = vec![true; layout.bytes()];
        for (address, width) in used {
            let offset = (address - base) as usize;
            expected[offset..offset + 4 * width * shape.batch()].fill(false);
        }
        for (place, byte) in self.memory.bytes_mut().iter().take(layout.bytes()).enumerate() {
            let padding = if place < state_bytes { POISON } else { 0 };
            assert!(!expected[place] || *byte == padding, "byte {place} is nobody's");
        }
    }
}

/// What an engine brings to a stream.
#[derive(Clone, Default)]
pub struct Inputs {
    /// [B, k].
    pub drafts: Vec<i32>,
    /// [B, k], and p_min.
    pub probabilities: Option<(Vec<f32>, f32)>,
    /// [B, k + 1].
    pub drawn: Vec<i32>,
}

impl Inputs {
    /// All no codes.
    pub fn none(shape: &StreamShape) -> Self {
        let (drafts, drawn) = (shape.batch() * shape.drafts(), shape.batch() * shape.verify_rows());
        Self { drafts: vec![NO_CODE; drafts], probabilities: None, drawn: vec![NO_CODE; drawn] }
    }
}

/// The memory of an engine, and the plan of its rounds.
pub struct Engine {
    pub drafts: Memory,
    pub probabilities: Memory,
    pub drawn: Memory,
    pub lengths: Vec<Memory>,
    pub hidden: Memory,
    pub seeds: Memory,
    _table: Memory,
    pub plan: RoundPlan,
}

impl Engine {
    /// Inputs, poisoned hidden rows of one float32, and lengths of `layers` layers, all 0, with a layer that has none
    /// before each.
    pub fn new(buffers: &Buffers, inputs: &Inputs, layers: usize) -> Self {
        let shape = buffers.layout.shape();
        let batch = shape.batch();
        let (drafts, drawn) = (Memory::of(&inputs.drafts), Memory::of(&inputs.drawn));
        let (probabilities, p_min) = inputs.probabilities.clone().unzip();
        let probabilities = Memory::of(&probabilities.unwrap_or_default());
        let (hidden, seeds) = (Memory::of_nan(batch * shape.verify_rows()), Memory::of_nan(batch));
        let lengths: Vec<Memory> = (0..layers).map(|_| Memory::of(&vec![0_i32; batch])).collect();
        let addresses: Vec<_> = lengths.iter().flat_map(|memory| [0, memory.address()]).collect();
        let addresses = LengthAddresses::new(batch, &addresses, Some(buffers.layout.position));
        let table = Memory::of(addresses.words());
        let plan = RoundPlan::new(
            buffers.layout,
            Drafts {
                codes: drafts.address(),
                probabilities: p_min.map(|p_min| (probabilities.address(), p_min)),
            },
            drawn.address(),
            addresses.at(table.address()),
            Some(Seeds { hidden: hidden.address(), seeds: seeds.address(), row_bytes: 4 }),
        );
        Self { drafts, probabilities, drawn, lengths, hidden, seeds, _table: table, plan: plan.unwrap() }
    }
}

/// Puts values at the start of memory.
pub fn put<T: bytemuck::NoUninit>(memory: &mut Memory, values: &[T]) {
    memory.bytes_mut()[..size_of_val(values)].copy_from_slice(bytemuck::cast_slice(values));
}

/// A piece that changes rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    AssembleVerify,
    Accept,
    RingCommit,
}

/// Runs a piece in every schedule, and checks what it makes of the rows, to the last byte.
pub fn run(piece: Piece, shape: StreamShape, rows: &[Row], inputs: &Inputs) -> Vec<Row> {
    let mut expected = rows.to_vec();
    for (number, row) in expected.iter_mut().enumerate() {
        let drafts = number * shape.drafts()..(number + 1) * shape.drafts();
        let probabilities = inputs.probabilities.as_ref().map(|(all, p_min)| (&all[drafts.clone()], *p_min));
        let drawn = &inputs.drawn[number * shape.verify_rows()..][..shape.verify_rows()];
        match piece {
            Piece::AssembleVerify => row.assemble_verify(&shape, &inputs.drafts[drafts], probabilities),
            Piece::Accept => row.accept(&shape, drawn),
            Piece::RingCommit => row.ring_commit(&shape),
        }
    }
    for schedule in SCHEDULES {
        let mut buffers = Buffers::new(shape);
        for (row, contents) in rows.iter().enumerate() {
            buffers.set_row(row, contents);
        }
        let engine = Engine::new(&buffers, inputs, 0);
        let launch = match piece {
            Piece::AssembleVerify => engine.plan.assemble_verify(),
            Piece::Accept => engine.plan.after_verify()[0],
            Piece::RingCommit => engine.plan.after_verify()[1],
        };
        Host { schedule }.go(&[launch]);
        for (row, expected) in expected.iter().enumerate() {
            assert_eq!(
                buffers.row(row),
                *expected,
                "{piece:?} of row {row} in {schedule:?}, before: {:?}",
                rows[row]
            );
        }
        buffers.check_padding();
        assert_eq!(engine.drafts.read::<i32>(inputs.drafts.len()), inputs.drafts);
        assert_eq!(engine.drawn.read::<i32>(inputs.drawn.len()), inputs.drawn);
    }
    expected
}

/// The pieces in plain Rust.
impl Row {
    /// Idle, with an empty ring.
    pub fn new(shape: &StreamShape) -> Self {
        Self {
            round_start: -1,
            pending: NO_CODE,
            last_prediction: NO_CODE,
            codes_left: NO_LIMIT,
            break_marks: [0, -1],
            verify_codes: vec![NO_CODE; shape.verify_rows()],
            ring: vec![0; shape.ring_capacity() + 1],
            ..Self::default()
        }
    }

    pub fn assemble_verify(
        &mut self,
        shape: &StreamShape,
        drafts: &[i32],
        probabilities: Option<(&[f32], f32)>,
    ) {
        let code = |value: i32| (0..shape.code_count() as i32).contains(&value);
        let goes_on = code(self.pending) || code(self.last_prediction);
        let takes_part = goes_on && self.codes_left > 0 && self.position >= 0;
        let most = drafts.len().min(self.codes_left.max(1) as usize - 1);
        let probable = |draft: usize| probabilities.is_none_or(|(found, p_min)| found[draft] >= p_min);
        let used = (0..most).take_while(|&draft| code(drafts[draft]) && probable(draft)).count();
        let pending = Some(self.pending).filter(|&pending| code(pending));
        let entries: Vec<i32> = pending.into_iter().chain(drafts[..used].iter().copied()).collect();
        self.verify_codes.fill(NO_CODE);
        self.break_marks = [0, -1];
        if takes_part {
            self.verify_codes[..entries.len()].copy_from_slice(&entries);
            self.break_marks = [used as i32, i32::from(pending.is_some())];
        }
        self.round_start = self.position;
    }

    pub fn accept(&mut self, shape: &StreamShape, drawn: &[i32]) {
        let code = |value: i32| (0..shape.code_count() as i32).contains(&value);
        let [used, base] = self.break_marks;
        self.accept_counters = [0, 0];
        if !(0..=1).contains(&base) {
            return;
        }
        let used = used.clamp(0, shape.drafts() as i32);
        let entry = |number: usize| self.verify_codes[base as usize + number];
        // What stands before each draft, and behind the last.
        let before = if base == 1 { drawn[0] } else { self.last_prediction };
        let draws: Vec<i32> = [before].into_iter().chain(drawn[base as usize..].iter().copied()).collect();
        let accepted = (0..used as usize)
            .take_while(|&draft| code(draws[draft]) && entry(draft) == draws[draft])
            .count();
        let bonus = draws[accepted];
        let codes = accepted as i32 + i32::from(code(bonus));
        self.accept_counters = [accepted as i32, codes];
        self.pending = if code(bonus) { bonus } else { NO_CODE };
        self.last_prediction = self.pending;
        if self.codes_left != NO_LIMIT {
            self.codes_left = self.codes_left.saturating_sub(codes).max(0);
        }
        if !code(bonus) {
            self.flags |= FAILED as i32;
        }
        for (counter, more) in self.counters.iter_mut().zip([1, codes, used, accepted as i32]) {
            *counter = counter.wrapping_add(more);
        }
    }

    /// Whether the row takes part, its base, drafts accepted and codes, brought into range.
    fn outcome(&self, shape: &StreamShape) -> Option<(i32, i32, i32)> {
        let [accepted, codes] = self.accept_counters;
        let accepted = accepted.clamp(0, shape.drafts() as i32);
        (0..=1)
            .contains(&self.break_marks[1])
            .then(|| (self.break_marks[1], accepted, codes.clamp(0, accepted + 1)))
    }

    pub fn ring_commit(&mut self, shape: &StreamShape) {
        let Some((base, accepted, codes)) = self.outcome(shape) else { return };
        let capacity = shape.ring_capacity() as i32;
        if !(0..=capacity).contains(&self.ring[0]) {
            self.flags |= OVERFLOW as i32;
            return;
        }
        for index in 0..codes {
            if self.ring[0] == capacity {
                self.flags |= OVERFLOW as i32;
                return;
            }
            self.ring[0] += 1;
            let place = self.ring[0] as usize;
            self.ring[place] =
                if index < accepted { self.verify_codes[(base + index) as usize] } else { self.pending };
        }
    }

    /// The length that rollback leaves.
    pub fn rolled_back(&self, shape: &StreamShape, length: i32) -> i32 {
        if self.round_start < 0 {
            return length;
        }
        let (base, accepted, _) = self.outcome(shape).unwrap_or_default();
        self.round_start.saturating_add(base + accepted)
    }

    /// The entry of the verify pass that seeds the next drafts.
    pub fn seed_entry(&self, shape: &StreamShape) -> Option<usize> {
        let (base, accepted, _) = self.outcome(shape)?;
        usize::try_from(base + accepted - 1).ok()
    }
}
