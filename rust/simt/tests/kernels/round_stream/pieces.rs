//! Cases of each piece, and the pieces on whatever memory holds.

use overtone_cuda::round_stream::{NO_CODE, NO_LIMIT, RowStart, StreamError, StreamShape};

use super::rows::{Buffers, FAILED, Inputs, OVERFLOW, Piece, Row, run};
use crate::host::fixtures::random::Random;

/// One row with k = 3, rings of two rounds, codes below 100.
fn shape() -> StreamShape {
    StreamShape::new(1, 3, 2, 100).unwrap()
}

/// A row at position 5 with code 7 pending.
fn standing() -> Row {
    Row { position: 5, pending: 7, last_prediction: 7, ..Row::new(&shape()) }
}

fn assembled(row: Row, drafts: [i32; 3], probabilities: Option<([f32; 3], f32)>) -> Row {
    let probabilities = probabilities.map(|(all, p_min)| (all.to_vec(), p_min));
    let inputs = Inputs { drafts: drafts.to_vec(), probabilities, ..Inputs::none(&shape()) };
    run(Piece::AssembleVerify, shape(), &[row], &inputs).remove(0)
}

#[test]
fn the_verify_pass_feeds_the_pending_code_and_the_drafts() {
    let row = assembled(standing(), [11, 12, 13], None);
    assert_eq!((row.verify_codes, row.break_marks), (vec![7, 11, 12, 13], [3, 1]));
    assert_eq!((row.position, row.round_start), (5, 5));
}

#[test]
fn without_a_pending_code_the_drafts_come_first() {
    let row = assembled(Row { pending: NO_CODE, ..standing() }, [11, 12, 13], None);
    assert_eq!((row.verify_codes, row.break_marks), (vec![11, 12, 13, NO_CODE], [3, 0]));
}

#[test]
fn drafts_end_with_the_first_that_is_no_code() {
    for no_code in [NO_CODE, i32::MIN, 100, i32::MAX] {
        let row = assembled(standing(), [11, no_code, 13], None);
        assert_eq!((row.verify_codes, row.break_marks), (vec![7, 11, NO_CODE, NO_CODE], [1, 1]));
    }
}

#[test]
fn drafts_end_with_the_first_below_p_min() {
    for (probabilities, used) in [
        ([0.5, 0.5, 0.5], 3),
        ([0.9, 0.49, 0.9], 1),
        ([0.49, 0.9, 0.9], 0),
        ([f32::NAN, 0.9, 0.9], 0),
        ([0.9, 0.9, f32::NAN], 2),
        ([0.9, f32::NEG_INFINITY, 0.9], 1),
    ] {
        let row = assembled(standing(), [11, 12, 13], Some((probabilities, 0.5)));
        assert_eq!(row.break_marks, [used, 1], "{probabilities:?}");
    }
}

#[test]
fn a_row_drafts_no_further_than_its_end() {
    for (left, marks) in [(1, [0, 1]), (2, [1, 1]), (4, [3, 1]), (5, [3, 1]), (NO_LIMIT, [3, 1])] {
        let row = assembled(Row { codes_left: left, ..standing() }, [11, 12, 13], None);
        assert_eq!(row.break_marks, marks, "{left} left");
    }
}

#[test]
fn rows_that_are_finished_or_have_nothing_to_go_on_from_take_no_part() {
    let none = Row { pending: NO_CODE, last_prediction: NO_CODE, ..standing() };
    for row in [
        Row { codes_left: 0, ..standing() },
        Row { codes_left: i32::MIN, ..standing() },
        Row { position: -1, ..standing() },
        none.clone(),
        Row { pending: 100, last_prediction: i32::MIN, ..none },
    ] {
        let row = assembled(row, [11, 12, 13], None);
        assert_eq!((&row.verify_codes, row.break_marks), (&vec![NO_CODE; 4], [0, -1]));
        let mut inputs = Inputs::none(&shape());
        inputs.drawn.fill(50);
        let after = run(Piece::Accept, shape(), std::slice::from_ref(&row), &inputs).remove(0);
        assert_eq!(after, Row { accept_counters: [0, 0], ..row });
        assert_eq!(run(Piece::RingCommit, shape(), std::slice::from_ref(&after), &inputs), [after]);
    }
}

/// A row that has fed the pending code 7 and the drafts 11, 12, 13, and drew these codes.
fn accepted(row: Row, drawn: [i32; 4]) -> Row {
    let inputs = Inputs { drawn: drawn.to_vec(), ..Inputs::none(&shape()) };
    run(Piece::Accept, shape(), &[row], &inputs).remove(0)
}

fn verified() -> Row {
    Row { verify_codes: vec![7, 11, 12, 13], break_marks: [3, 1], codes_left: 10, ..standing() }
}

#[test]
fn the_longest_run_of_drafts_that_equal_the_draws_is_taken_and_one_code_more() {
    for (drawn, accepted_drafts, bonus) in [
        ([11, 12, 13, 14], 3, 14),
        ([11, 12, 99, 14], 2, 99),
        ([11, 99, 13, 14], 1, 99),
        ([99, 12, 13, 14], 0, 99),
        // What follows a draft that was not taken is not looked at.
        ([99, i32::MIN, 100, NO_CODE], 0, 99),
    ] {
        let row = accepted(verified(), drawn);
        assert_eq!(row.accept_counters, [accepted_drafts, accepted_drafts + 1], "{drawn:?}");
        assert_eq!((row.pending, row.last_prediction), (bonus, bonus));
        assert_eq!(row.codes_left, 10 - accepted_drafts - 1);
        assert_eq!(row.counters, [1, accepted_drafts + 1, 3, accepted_drafts]);
        assert_eq!(row.flags, 0);
    }
}

#[test]
fn without_a_pending_code_the_last_prediction_decides_on_the_first_draft() {
    let row =
        Row { pending: NO_CODE, verify_codes: vec![11, 12, 13, NO_CODE], break_marks: [3, 0], ..verified() };
    for (last_prediction, drawn, accepted_drafts, bonus) in [
        (11, [12, 13, 14, NO_CODE], 3, 14),
        (11, [12, 99, 14, NO_CODE], 2, 99),
        (11, [99, 13, 14, NO_CODE], 1, 99),
        (10, [12, 13, 14, NO_CODE], 0, 10),
    ] {
        let row = accepted(Row { last_prediction, ..row.clone() }, drawn);
        assert_eq!((row.accept_counters, row.pending), ([accepted_drafts, accepted_drafts + 1], bonus));
    }
}

#[test]
fn a_draw_that_fails_ends_the_row_after_the_drafts_before_it() {
    for failed in [NO_CODE, i32::MIN, 100] {
        let row = accepted(verified(), [11, failed, 13, 14]);
        assert_eq!((row.accept_counters, row.codes_left), ([1, 1], 9));
        assert_eq!((row.pending, row.last_prediction, row.flags), (NO_CODE, NO_CODE, FAILED as i32));
        let row = run(Piece::RingCommit, shape(), &[row], &Inputs::none(&shape())).remove(0);
        assert_eq!(row.ring[..2], [1, 11]);
        assert_eq!(assembled(row, [1, 2, 3], None).break_marks, [0, -1]);
    }
}

#[test]
fn a_row_without_an_end_is_never_counted_down() {
    assert_eq!(accepted(Row { codes_left: NO_LIMIT, ..verified() }, [99; 4]).codes_left, NO_LIMIT);
    assert_eq!(accepted(Row { codes_left: NO_LIMIT - 1, ..verified() }, [99; 4]).codes_left, NO_LIMIT - 2);
}

#[test]
fn one_draft_a_round_is_taken_or_not() {
    let shape = StreamShape::new(1, 1, 1, 10).unwrap();
    for (drawn, taken) in [(vec![4, 5], 1), (vec![3, 5], 0)] {
        let row = Row { pending: 2, ..Row::new(&shape) };
        let inputs = Inputs { drafts: vec![4], drawn: drawn.clone(), probabilities: None };
        let row = run(Piece::AssembleVerify, shape, &[row], &inputs);
        let row = run(Piece::Accept, shape, &row, &inputs);
        let row = run(Piece::RingCommit, shape, &row, &inputs).remove(0);
        let codes = if taken == 1 { vec![2, 4, 5] } else { vec![1, 3, 0] };
        assert_eq!((row.accept_counters, row.ring), ([taken, taken + 1], codes));
    }
}

/// A row that commits the drafts 11, 12, 13 and the code 14 onto a ring that holds `count` codes.
fn committing(count: i32) -> Row {
    let ring = (0..9).map(|word| if word == 0 { count } else { 60 + word }).collect();
    Row { accept_counters: [3, 4], pending: 14, ring, ..verified() }
}

#[test]
fn a_ring_takes_codes_until_it_is_exactly_full() {
    let none = Inputs::none(&shape());
    let row = run(Piece::RingCommit, shape(), &[committing(0)], &none).remove(0);
    assert_eq!((row.ring, row.flags), (vec![4, 11, 12, 13, 14, 65, 66, 67, 68], 0));
    let row = run(Piece::RingCommit, shape(), &[committing(4)], &none).remove(0);
    assert_eq!((row.ring, row.flags), (vec![8, 61, 62, 63, 64, 11, 12, 13, 14], 0));
}

#[test]
fn one_code_too_many_sets_the_flag_for_good_and_is_written_nowhere() {
    let none = Inputs::none(&shape());
    let row = run(Piece::RingCommit, shape(), &[committing(5)], &none).remove(0);
    assert_eq!((&row.ring, row.flags), (&vec![8, 61, 62, 63, 64, 65, 11, 12, 13], OVERFLOW as i32));
    let later = Row { accept_counters: [0, 0], ..row };
    assert_eq!(run(Piece::RingCommit, shape(), &[later], &none).remove(0).flags, OVERFLOW as i32);
}

#[test]
fn a_count_that_no_ring_can_have_sets_the_flag_and_nothing_is_written() {
    for count in [-1, i32::MIN, 9, i32::MAX] {
        let before = committing(count);
        let row =
            run(Piece::RingCommit, shape(), std::slice::from_ref(&before), &Inputs::none(&shape())).remove(0);
        assert_eq!(row, Row { flags: OVERFLOW as i32, ..before });
    }
}

#[test]
fn overflow_is_an_error_that_names_the_row_and_the_ring_is_armed_again() {
    let shape = StreamShape::new(3, 3, 2, 100).unwrap();
    for (ring_count, flags, found) in [(8, OVERFLOW, 8), (9, 0, 9), (-1, 0, -1), (i32::MAX, 0, i32::MAX)] {
        let mut buffers = Buffers::new(shape);
        let mut ring = vec![5; 9];
        ring[0] = ring_count;
        buffers.set_row(1, &Row { flags: flags as i32, ring, ..Row::new(&shape) });
        let error = buffers.drain().unwrap_err();
        assert_eq!(error, StreamError::RingOverflow { row: 1, found, capacity: 8 });
        assert!(error.to_string().contains("row 1"), "{error}");
        assert!(buffers.drain().unwrap().iter().all(|row| row.codes.is_empty()));
    }
}

#[test]
fn the_rounds_of_the_documentation_go_as_it_says() {
    let shape = StreamShape::new(1, 3, 3, 100).unwrap();
    let mut row = Row { position: 10, pending: 7, ..Row::new(&shape) };
    for (drafts, verify_codes, drawn, ring, position, pending) in [
        ([4, 9, 1], [7, 4, 9, 1], [4, 9, 2, 50], vec![4, 9, 2], 13, 2),
        ([6, 5, 8], [2, 6, 5, 8], [6, 5, 3, 50], vec![4, 9, 2, 6, 5, 3], 16, 3),
        ([0, 0, 0], [3, 0, 0, 0], [1, 50, 50, 50], vec![4, 9, 2, 6, 5, 3, 1], 17, 1),
    ] {
        let inputs = Inputs { drafts: drafts.to_vec(), probabilities: None, drawn: drawn.to_vec() };
        for piece in [Piece::AssembleVerify, Piece::Accept, Piece::RingCommit] {
            row = run(piece, shape, &[row], &inputs).remove(0);
        }
        row.position = row.rolled_back(&shape, row.position);
        assert_eq!(
            (&row.verify_codes[..], row.position, row.pending),
            (&verify_codes[..], position, pending)
        );
        assert_eq!((row.ring[0] as usize, &row.ring[1..=ring.len()]), (ring.len(), &ring[..]));
    }
}

/// Numbers that code goes wrong at, and small ones.
fn nasty(random: &mut Random) -> i32 {
    let small = random.below(12) as i32 - 2;
    random.one_of(&[
        small,
        small,
        small,
        -1,
        i32::MIN,
        i32::MAX,
        i32::MAX - 1,
        0x7fc0_0000,
        random_word(small),
    ])
}

fn random_word(small: i32) -> i32 {
    small.wrapping_mul(0x9e37_79b9_u32.cast_signed())
}

/// A row of whatever memory holds.
pub fn hostile_row(random: &mut Random, shape: &StreamShape) -> Row {
    let mut some = |count: usize| -> Vec<i32> { (0..count).map(|_| nasty(random)).collect() };
    let fixed = some(12);
    Row {
        position: fixed[0],
        round_start: fixed[1],
        pending: fixed[2],
        last_prediction: fixed[3],
        codes_left: fixed[4],
        break_marks: [fixed[5], fixed[6]],
        accept_counters: [fixed[7], fixed[8]],
        flags: fixed[9],
        counters: [fixed[10], fixed[11], -1, i32::MAX],
        verify_codes: some(shape.verify_rows()),
        ring: some(shape.ring_capacity() + 1),
    }
}

#[test]
fn whatever_memory_holds_a_row_writes_its_own_parts_alone() {
    let mut random = Random::new(3);
    for case in 0..40 {
        // More rows than a block has threads, now and then.
        let batch = if case % 20 == 0 { 300 } else { 1 + random.below(6) };
        let shape =
            StreamShape::new(batch, 1 + random.below(9), 1 + random.below(3), 1 + random.below(9)).unwrap();
        let rows: Vec<Row> = (0..batch).map(|_| hostile_row(&mut random, &shape)).collect();
        let mut some = |count: usize| -> Vec<i32> { (0..count).map(|_| nasty(&mut random)).collect() };
        let drafts = some(batch * shape.drafts());
        let probabilities: Vec<f32> = some(batch * shape.drafts())
            .into_iter()
            .map(|word| f32::from_bits(word.cast_unsigned()))
            .collect();
        let inputs = Inputs {
            drafts,
            probabilities: (case % 2 == 0).then_some((probabilities, 1e-30)),
            drawn: some(batch * shape.verify_rows()),
        };
        for piece in [Piece::AssembleVerify, Piece::Accept, Piece::RingCommit] {
            run(piece, shape, &rows, &inputs);
        }
    }
}

#[test]
fn a_row_begins_where_it_is_told_and_nothing_else_changes() {
    let shape = StreamShape::new(3, 2, 2, 50).unwrap();
    let mut buffers = Buffers::new(shape);
    let before = buffers.rows();
    let start = RowStart { position: 9, pending: Some(49), last_prediction: Some(0), codes_left: Some(12) };
    buffers.start(1, &start);
    let row = buffers.row(1);
    assert_eq!((row.position, row.round_start, row.pending, row.last_prediction), (9, 9, 49, 0));
    assert_eq!((row.codes_left, row.break_marks, row.accept_counters), (12, [0, -1], [0, 0]));
    assert_eq!([buffers.row(0), buffers.row(2)], [before[0].clone(), before[2].clone()]);
    buffers.start(1, &RowStart::default());
    let row = buffers.row(1);
    assert_eq!((row.pending, row.last_prediction, row.codes_left), (NO_CODE, NO_CODE, NO_LIMIT));
}

#[test]
fn a_start_or_a_shape_that_cannot_be_is_refused_with_what_was_found() {
    let shape = StreamShape::new(2, 2, 2, 50).unwrap();
    let layout = Buffers::new(shape).layout;
    let refused = |row: usize, start: RowStart| layout.start_row(row, &start).unwrap_err().to_string();
    assert_eq!(refused(2, RowStart::default()), "row 2 of a round stream of 2 rows");
    let start = RowStart { pending: Some(50), ..RowStart::default() };
    assert_eq!(refused(1, start), "pending of row 1 is 50, expected a code less than 50");
    let start = RowStart { last_prediction: Some(u32::MAX), ..RowStart::default() };
    assert!(refused(0, start).starts_with("last_prediction of row 0 is 4294967295"));
    let start = RowStart { position: 1 << 31, ..RowStart::default() };
    assert!(refused(0, start).starts_with("position of row 0 is 2147483648"));
    for (sizes, what) in [
        ([0, 1, 1, 1], "0 rows of the batch"),
        ([1, 0, 1, 1], "0 drafts, expected 1 to 31"),
        ([1, 32, 1, 1], "32 drafts, expected 1 to 31"),
        ([1, 1, 0, 1], "0 rounds"),
        ([1, 1, 1 << 30, 1], "1073741824 rounds, expected 1 to 1073741823"),
        ([1 << 31, 1, 1, 1], "2147483648 rows of the batch"),
        ([i32::MAX as usize, 1, 1, 1], "1 rounds, expected 1 to 0"),
        ([1, 1, 1, 0], "0 codes"),
    ] {
        let [batch, drafts, rounds, codes] = sizes;
        let error = StreamShape::new(batch, drafts, rounds, codes).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    }
}
