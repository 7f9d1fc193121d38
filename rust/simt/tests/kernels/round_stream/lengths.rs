//! Rollback through tables of lengths, and the seeds of the next drafts.

use overtone_core::tensor::FloatType;
use overtone_cuda::kv_lengths::LengthAddresses;
use overtone_cuda::round_stream::{Drafts, RoundPlan, Seeds, StreamError, StreamShape, rollback};

use super::pieces::hostile_row;
use super::rows::{Buffers, Row, SCHEDULES};
use crate::host::fixtures::FLOAT_TYPES;
use crate::host::fixtures::random::Random;
use crate::host::{Host, Memory};

/// Lengths of four layers and 300 rows, the third layer without, and rows of all kinds.
struct Case {
    shape: StreamShape,
    rows: Vec<Row>,
    layers: [Memory; 4],
}

const BATCH: usize = 300;

impl Case {
    fn new() -> Self {
        let shape = StreamShape::new(BATCH, 3, 1, 100).unwrap();
        let mut random = Random::new(11);
        let rows = (0..BATCH as i32).map(|row| match row % 6 {
            5 => hostile_row(&mut random, &shape),
            4 => Row { position: row, round_start: row, ..Row::new(&shape) },
            base_and_accepted => Row {
                position: 1000 + row,
                round_start: 10 * row,
                break_marks: [3, base_and_accepted % 2],
                accept_counters: [base_and_accepted, base_and_accepted + 1],
                ..Row::new(&shape)
            },
        });
        let rows = rows.collect();
        Self { shape, rows, layers: std::array::from_fn(|layer| Memory::of(&Self::lengths(layer))) }
    }

    /// What a layer holds before.
    fn lengths(layer: usize) -> Vec<i32> {
        (0..BATCH as i32).map(|row| 5 * row + layer as i32).collect()
    }

    /// Addresses of the layers; the third keeps no keys and values.
    fn addresses(&self) -> [u64; 4] {
        [0, 1, 2, 3].map(|layer| if layer == 2 { 0 } else { self.layers[layer].address() })
    }

    fn buffers(&self) -> Buffers {
        let mut buffers = Buffers::new(self.shape);
        for (row, contents) in self.rows.iter().enumerate() {
            buffers.set_row(row, contents);
        }
        buffers
    }

    /// Checks which layers, by number, were rolled back; the others are as they were.
    fn check(&self, rolled_back: &[usize]) {
        for layer in 0..4 {
            let mut expected = Self::lengths(layer);
            if rolled_back.contains(&layer) {
                let rows = expected.iter_mut().zip(&self.rows);
                rows.for_each(|(length, row)| *length = row.rolled_back(&self.shape, *length));
            }
            assert_eq!(self.layers[layer].read::<i32>(BATCH), expected, "layer {layer}");
        }
    }
}

#[test]
fn every_length_that_is_there_and_the_position_counter_roll_back_to_what_stays() {
    for schedule in SCHEDULES {
        let case = Case::new();
        let mut buffers = case.buffers();
        let addresses = LengthAddresses::new(BATCH, &case.addresses(), Some(buffers.layout.position));
        let table = Memory::of(addresses.words());
        let launch = rollback(&buffers.layout, &addresses.at(table.address())).unwrap();
        Host { schedule }.go(&[launch]);
        case.check(&[0, 1, 3]);
        let expected = case.rows.iter().map(|row| {
            let position = row.rolled_back(&case.shape, row.position);
            Row { position, ..row.clone() }
        });
        assert_eq!(buffers.rows(), expected.collect::<Vec<_>>());
        buffers.check_padding();
    }
}

#[test]
fn a_row_rolls_back_to_its_start_and_what_it_kept() {
    let shape = StreamShape::new(1, 3, 1, 100).unwrap();
    let row = Row { round_start: 8, break_marks: [3, 1], accept_counters: [2, 3], ..Row::new(&shape) };
    assert_eq!(row.rolled_back(&shape, 12), 8 + 1 + 2);
    assert_eq!(Row { break_marks: [3, 0], ..row.clone() }.rolled_back(&shape, 12), 8 + 2);
    assert_eq!(Row { break_marks: [0, -1], ..row.clone() }.rolled_back(&shape, 12), 8);
    assert_eq!(Row { round_start: -1, ..row }.rolled_back(&shape, 12), 12);
}

#[test]
fn a_table_over_a_range_touches_no_other_layer() {
    for (range, rolled_back) in
        [(0..2, vec![0, 1]), (1..3, vec![1]), (3..4, vec![3]), (2..3, vec![]), (2..2, vec![])]
    {
        let case = Case::new();
        let mut buffers = case.buffers();
        let addresses = LengthAddresses::new(BATCH, &case.addresses()[range], None);
        let table = Memory::of(addresses.words());
        let launch = rollback(&buffers.layout, &addresses.at(table.address())).unwrap();
        Host::NATURAL.go(&[launch]);
        case.check(&rolled_back);
        assert_eq!(buffers.rows(), case.rows, "the position counter is not in the table");
    }
}

#[test]
fn a_plan_takes_only_a_table_that_fits_its_stream() {
    let shape = StreamShape::new(2, 3, 1, 100).unwrap();
    let layout = Buffers::new(shape).layout;
    let drafts = Drafts { codes: 0x100, probabilities: None };
    let table =
        |batch: usize, position: Option<u64>| LengthAddresses::new(batch, &[0x200], position).at(0x300);
    let plan = |drafts, lengths, seeds| RoundPlan::new(layout, drafts, 0x400, lengths, seeds).map(|_| ());
    let good = table(2, Some(layout.position));
    assert_eq!(plan(drafts, good, None), Ok(()));
    let other_batch = table(3, Some(layout.position));
    assert_eq!(plan(drafts, other_batch, None), Err(StreamError::TableBatch { found: 3, expected: 2 }));
    assert_eq!(
        rollback(&layout, &other_batch).map(|_| ()),
        Err(StreamError::TableBatch { found: 3, expected: 2 })
    );
    for position in [None, Some(0x500)] {
        assert_eq!(plan(drafts, table(2, position), None), Err(StreamError::PositionNotInTable));
    }
    let probabilities = Drafts { probabilities: Some((0x600, f32::NAN)), ..drafts };
    assert_eq!(plan(probabilities, good, None), Err(StreamError::LeastProbability));
    let odd = Seeds { hidden: 0x700, seeds: 0x800, row_bytes: 3 };
    assert_eq!(plan(drafts, good, Some(odd)), Err(StreamError::RowBytes { found: 3 }));
}

/// Hands on the seeds of rows of all kinds, of one type and width, and checks every byte.
fn check_seeds(float_type: FloatType, width: usize, schedule: overtone_simt::Schedule) {
    let shape = StreamShape::new(9, 3, 1, 100).unwrap();
    let mut random = Random::new(width as u64);
    let mut rows: Vec<Row> = (0..5)
        .map(|row| Row {
            break_marks: [3, i32::from(row > 0)],
            accept_counters: [row.max(1) - 1, 9],
            ..Row::new(&shape)
        })
        .collect();
    rows.push(Row::new(&shape));
    rows.extend((0..3).map(|_| hostile_row(&mut random, &shape)));
    let mut buffers = Buffers::new(shape);
    for (row, contents) in rows.iter().enumerate() {
        buffers.set_row(row, contents);
    }
    let values = random.normals(9 * 4 * width, 1.0);
    let hidden = Memory::of_floats(float_type, &values);
    let values = hidden.read_floats(float_type, values.len());
    let seeds = Memory::of_floats(float_type, &vec![-3.0; 9 * width]);
    let addresses = LengthAddresses::new(9, &[], Some(buffers.layout.position));
    let plan = RoundPlan::new(
        buffers.layout,
        Drafts { codes: 0, probabilities: None },
        0,
        addresses.at(0),
        Some(Seeds {
            hidden: hidden.address(),
            seeds: seeds.address(),
            row_bytes: width * float_type.size(),
        }),
    );
    Host { schedule }.go(&plan.unwrap().after_verify()[3..]);
    let found = seeds.read_floats(float_type, 9 * width);
    for (number, row) in rows.iter().enumerate() {
        let place = |entry: usize| (4 * number + entry) * width;
        let expected = row.seed_entry(&shape).map(|entry| &values[place(entry)..][..width]);
        let found = &found[number * width..][..width];
        assert!(found == expected.unwrap_or(&vec![-3.0; width]), "{float_type}, {width} wide: row {number}");
    }
    let entries: Vec<_> = rows[..6].iter().map(|row| row.seed_entry(&shape)).collect();
    assert_eq!(entries, [None, Some(0), Some(1), Some(2), Some(3), None]);
    assert_eq!(buffers.rows(), rows);
    buffers.check_padding();
}

#[test]
fn the_hidden_row_behind_the_last_code_seeds_the_next_drafts() {
    for float_type in FLOAT_TYPES {
        for (width, schedule) in
            [1, 3, 8, 100, 1024].into_iter().flat_map(|width| SCHEDULES.map(|s| (width, s)))
        {
            check_seeds(float_type, width, schedule);
        }
    }
}
