//! A step's layout, as the core defines it, whatever lengths and indices hold.

use overtone_core::ragged::{GivenRow, MOST_ROWS, Phase, RaggedConfig, RaggedStep, RowFault, TokenLayout};
use overtone_cuda::arguments::ElementType;
use overtone_cuda::frame::TensorReference;
use overtone_cuda::ragged_step::{
    PastLengths, PublishedAddresses, QueryLengths, RaggedStepLaunch, States, Step,
};
use overtone_simt::{Schedule, kernel, launch};

use crate::host::Memory;
use crate::host::fixtures::random::Random;

const SCHEDULES: [Schedule; 4] =
    [Schedule::Natural, Schedule::Seeded(1), Schedule::Seeded(2), Schedule::Seeded(3)];
/// What nobody has written.
const UNTOUCHED: i64 = 0x7f7f_7f7f_7f7f_7f7f;
const PHASES: [Phase; 3] = [Phase::Prefill, Phase::Decode, Phase::Verify];

fn config(layout: TokenLayout, max_batch: usize, max_query_width: usize) -> RaggedConfig {
    RaggedConfig {
        max_batch,
        max_query_width,
        max_positions: 20,
        max_states: 2 * max_batch,
        layout,
        chunked_prefill: false,
        padding_position: -7,
    }
}

/// Where the lengths of a step come from.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Source {
    Host,
    Device(ElementType),
    States,
}

/// Integers in memory, every second element.
struct Vector {
    memory: Memory,
    reference: TensorReference,
}

impl Vector {
    fn new(element: ElementType, values: &[i64]) -> Self {
        let spread: Vec<i64> = values.iter().flat_map(|&value| [value, -99]).collect();
        let memory = match element {
            ElementType::Int32 => Memory::of(&spread.iter().map(|&value| value as i32).collect::<Vec<_>>()),
            _ => Memory::of(&spread),
        };
        let reference = TensorReference::new(memory.address(), element, &[2], values.len());
        Self { memory, reference }
    }
}

/// Memory that steps of a configuration are published in.
struct Published {
    config: RaggedConfig,
    token_type: ElementType,
    vectors: [Memory; 6],
    positions: Memory,
    state_indices: Memory,
    phase: Memory,
    faults: Memory,
}

impl Published {
    fn new(config: RaggedConfig, token_type: ElementType) -> Self {
        let int32s = |count: usize| Memory::filled(4 * count as u64, 0x7f);
        let rows = config.max_batch;
        let tokens = || Memory::filled((8 * rows * config.max_query_width) as u64, 0x7f);
        Self {
            vectors: [rows + 1, rows, rows, rows, rows, rows].map(int32s),
            positions: tokens(),
            state_indices: tokens(),
            phase: int32s(1),
            faults: Memory::of(&[0_i32]),
            config,
            token_type,
        }
    }

    fn go(&self, states: &States, step: &Step<'_>, schedule: Schedule) {
        let at = |index: usize| self.vectors[index].address();
        let published = PublishedAddresses {
            query_offsets: at(0),
            query_lengths: at(1),
            past_lengths: at(2),
            total_lengths: at(3),
            last_tokens: at(4),
            status: at(5),
            positions: (self.positions.address(), self.token_type),
            state_indices: (self.state_indices.address(), self.token_type),
            phase: self.phase.address(),
            faults: self.faults.address(),
        };
        let work = RaggedStepLaunch::new(&self.config, &published, states, step);
        let function = kernel(RaggedStepLaunch::KERNEL.symbol()).unwrap();
        let shape = RaggedStepLaunch::SHAPE;
        // SAFETY: the addresses are of memory made for the launch.
        unsafe {
            let shared = shape.shared_bytes as usize;
            launch(function, shape.grid, shape.block, shared, work.arguments(), schedule)
        }
        .unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(self.phase.read::<i32>(1), [step.phase as i32]);
    }

    /// What was published; places of the step only, and those beyond it untouched.
    fn read(&self, places: usize) -> RaggedStep {
        let rows = self.config.max_batch;
        let vector = |index: usize| self.vectors[index].read::<i32>(if index == 0 { rows + 1 } else { rows });
        let tokens = |memory: &Memory| -> Vec<i64> {
            let capacity = rows * self.config.max_query_width;
            let (all, untouched) = match self.token_type {
                ElementType::Int32 => {
                    let all = memory.read::<i32>(2 * capacity).into_iter().map(i64::from).collect();
                    (all, UNTOUCHED & 0xffff_ffff)
                }
                _ => (memory.read::<i64>(capacity), UNTOUCHED),
            };
            let all: Vec<i64> = all;
            assert!(all[places..].iter().all(|&value| value == untouched));
            all[..places].to_vec()
        };
        RaggedStep {
            query_offsets: vector(0),
            query_lengths: vector(1),
            past_lengths: vector(2),
            total_lengths: vector(3),
            last_tokens: vector(4),
            status: vector(5),
            positions: tokens(&self.positions),
            state_indices: tokens(&self.state_indices),
        }
    }
}

/// Publishes a step under every schedule, and compares all of it with the core's.
fn check(config: RaggedConfig, given: &[GivenRow], width: usize, phase: Phase, source: Source) {
    let expected = config.publish(given, width, phase);
    let token_type = match source {
        Source::Device(element) => element,
        _ => ElementType::Int32,
    };
    let column = |of: fn(&GivenRow) -> i64| given.iter().map(of).collect::<Vec<_>>();
    let (queries, pasts) = (column(|row| row.query_length), column(|row| row.past_length));
    let indices = Vector::new(token_type, &column(|row| row.state_index));
    // Each state as long as the first row that has it says, in memory that ends with the last.
    let mut lengths = vec![-1_i64; config.max_states];
    for row in given.iter().rev() {
        if let Some(length) = usize::try_from(row.state_index).ok().and_then(|index| lengths.get_mut(index)) {
            *length = i64::from(row.past_length as i32);
        }
    }
    let narrow = |values: &[i64]| values.iter().map(|&value| value as i32).collect::<Vec<_>>();
    for schedule in SCHEDULES {
        for advance in [false, true] {
            let published = Published::new(config, token_type);
            let (query_tensor, past_tensor) =
                (Vector::new(token_type, &queries), Vector::new(token_type, &pasts));
            let kv_lengths = Vector::new(ElementType::Int32, &lengths);
            let (host_queries, host_pasts) = (narrow(&queries), narrow(&pasts));
            let (query_lengths, past_lengths) = match source {
                Source::Host => (QueryLengths::Given(&host_queries), PastLengths::Given(&host_pasts)),
                Source::Device(_) => (
                    QueryLengths::OnDevice(query_tensor.reference),
                    PastLengths::OnDevice(past_tensor.reference),
                ),
                Source::States => (QueryLengths::OnDevice(query_tensor.reference), PastLengths::OfStates),
            };
            let states = States { indices: indices.reference, kv_lengths: kv_lengths.reference, advance };
            let step = Step { query_lengths, past_lengths, batch: given.len(), query_width: width, phase };
            published.go(&states, &step, schedule);
            let context = format!("{schedule:?}, {phase:?}, {source:?}, advance {advance}: {given:?}");
            assert_eq!(published.read(given.len() * width), expected, "{context}");
            let bits = expected
                .status
                .iter()
                .filter(|&&status| status != 0)
                .fold(0, |bits, &status| bits | 1 << status);
            assert_eq!(published.faults.read::<i32>(1), [bits], "{context}");

            let mut advanced = lengths.clone();
            for (row, given) in given.iter().enumerate().filter(|_| advance) {
                if expected.query_lengths[row] > 0 {
                    advanced[given.state_index as usize] = i64::from(expected.total_lengths[row]);
                }
            }
            let found: Vec<i64> = kv_lengths
                .memory
                .read::<i32>(2 * config.max_states)
                .chunks(2)
                .map(|pair| {
                    assert_eq!(pair[1], -99);
                    i64::from(pair[0])
                })
                .collect();
            assert_eq!(found, advanced, "{context}");
        }
    }
}

fn row(query_length: i64, state_index: i64, past_length: i64) -> GivenRow {
    GivenRow { query_length, state_index, past_length }
}

const LAYOUTS: [TokenLayout; 2] = [TokenLayout::Padded, TokenLayout::Packed];

#[test]
fn random_steps_are_published_as_the_core_does() {
    let mut random = Random::new(11);
    let mut below = |limit: usize| random.below(limit) as i64;
    for layout in LAYOUTS {
        for batch in [1, 2, 7, 33, MOST_ROWS] {
            for phase in PHASES {
                let width = if phase == Phase::Decode { 1 } else { 1 + below(6) as usize };
                let config = config(layout, batch, 6);
                // States in another order than rows.
                let given: Vec<_> = (0..batch)
                    .map(|index| {
                        let past = if phase == Phase::Prefill { 0 } else { below(14) };
                        row(below(width + 1), (2 * batch - 1 - index) as i64, past)
                    })
                    .collect();
                for source in [Source::Host, Source::Device(ElementType::Int64), Source::States] {
                    check(config, &given, width, phase, source);
                }
            }
        }
    }
}

#[test]
fn hostile_lengths_and_indices_make_rows_empty_and_are_told() {
    for layout in LAYOUTS {
        let config = config(layout, 16, 4);
        let hostile = [i64::from(i32::MIN), -1, 5, i64::from(i32::MAX)];
        let mut given = vec![row(4, 31, 16), row(4, 30, 17), row(1, 29, 20), row(0, -5, -5)];
        given.extend(hostile.map(|query| row(query, 1, 1)));
        given.extend([i64::from(i32::MIN), -1, 32, i64::from(i32::MAX)].map(|state| row(2, state, 1)));
        given.extend([i64::from(i32::MIN), -1, 19].map(|past| row(2, 8 + past.rem_euclid(5), past)));
        given.push(row(3, 31, 2));
        for source in [Source::Device(ElementType::Int32), Source::Device(ElementType::Int64)] {
            check(config, &given, 4, Phase::Verify, source);
        }
        let status = config.publish(&given, 4, Phase::Verify).status;
        assert_eq!(status, [0, 3, 3, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 5]);
    }
}

#[test]
fn random_hostile_steps_are_published_as_the_core_does() {
    let mut random = Random::new(12);
    let mut within = |least: i64, most: i64| least + random.below((most - least + 1) as usize) as i64;
    for layout in LAYOUTS {
        for round in 0..20 {
            let (batch, width) = (within(1, 40) as usize, within(1, 5) as usize);
            let config = RaggedConfig { chunked_prefill: round % 2 == 0, ..config(layout, batch, 5) };
            let rows = within(1, batch as i64) as usize;
            // About as often good as not, and half of the states there twice.
            let given: Vec<_> = (0..rows)
                .map(|_| row(within(-1, width as i64 + 1), within(-1, 2 * batch as i64), within(-1, 21)))
                .collect();
            let phase = PHASES[round % 3];
            let width = if phase == Phase::Decode { 1 } else { width };
            for element in [ElementType::Int32, ElementType::Int64] {
                check(config, &given, width, phase, Source::Device(element));
            }
        }
    }
}

#[test]
fn sixty_four_bits_are_not_taken_for_thirty_two() {
    let config = config(TokenLayout::Packed, 4, 4);
    let wrapping = 1_i64 << 32;
    let given = [
        row(wrapping + 1, 0, 0),
        row(1, wrapping, 0),
        row(1, 2, wrapping),
        row(i64::MIN, i64::MIN, i64::MIN),
    ];
    check(config, &given, 4, Phase::Verify, Source::Device(ElementType::Int64));
    assert_eq!(config.publish(&given, 4, Phase::Verify).status, [1, 2, 3, 1]);
}

#[test]
fn a_prefill_in_chunks_goes_on_where_it_is_allowed_to() {
    for chunked_prefill in [false, true] {
        let config = RaggedConfig { chunked_prefill, ..config(TokenLayout::Packed, 3, 4) };
        let given = [row(4, 0, 0), row(2, 1, 8), row(0, 2, 8)];
        for source in [Source::Device(ElementType::Int32), Source::States] {
            check(config, &given, 4, Phase::Prefill, source);
        }
        let expected = if chunked_prefill { 0 } else { RowFault::PastOfPrefill as i32 };
        assert_eq!(config.publish(&given, 4, Phase::Prefill).status, [0, expected, 0]);
    }
}

#[test]
fn of_rows_with_one_state_the_first_keeps_it() {
    let config = config(TokenLayout::Packed, 200, 2);
    let given: Vec<_> = (0..200).map(|index| row(2, index % 70, index % 70 / 4)).collect();
    for source in [Source::Device(ElementType::Int32), Source::States] {
        check(config, &given, 2, Phase::Verify, source);
    }
    let status = config.publish(&given, 2, Phase::Verify).status;
    assert_eq!(status.iter().filter(|&&status| status == RowFault::SharedState as i32).count(), 130);
}

#[test]
fn rows_without_indices_have_states_of_their_own() {
    for layout in LAYOUTS {
        let config = config(layout, 9, 3);
        let given: Vec<_> = (0..6).map(|index| row(index % 4, index, 2 * index)).collect();
        let published = Published::new(config, ElementType::Int64);
        let (queries, pasts) = ([0, 1, 2, 3, 0, 1], [0, 2, 4, 6, 8, 10]);
        let step = Step {
            query_lengths: QueryLengths::Given(&queries),
            past_lengths: PastLengths::Given(&pasts),
            batch: 6,
            query_width: 3,
            phase: Phase::Verify,
        };
        published.go(&States::default(), &step, Schedule::Natural);
        assert_eq!(published.read(18), config.publish(&given, 3, Phase::Verify));
    }
}

#[test]
fn the_fault_word_stays_until_it_is_cleared() {
    let config = config(TokenLayout::Packed, 2, 3);
    let published = Published::new(config, ElementType::Int32);
    let step = |lengths: &Vector| Step {
        query_lengths: QueryLengths::OnDevice(lengths.reference),
        past_lengths: PastLengths::Given(&[0, 0]),
        batch: 2,
        query_width: 3,
        phase: Phase::Verify,
    };
    for (lengths, status) in [([1, 4], [0, 1]), ([1, 3], [0, 0])] {
        let lengths = Vector::new(ElementType::Int32, &lengths);
        published.go(&States::default(), &step(&lengths), Schedule::Natural);
        assert_eq!(published.read(6).status, status);
        assert_eq!(published.faults.read::<i32>(1), [1 << RowFault::QueryLength as i32]);
    }
}

#[test]
fn steps_replay_from_the_lengths_that_they_advance() {
    let config = config(TokenLayout::Packed, 2, 3);
    let published = Published::new(config, ElementType::Int32);
    let kv_lengths = Memory::of(&[0_i32, 15]);
    let states = States {
        kv_lengths: TensorReference::new(kv_lengths.address(), ElementType::Int32, &[1], 2),
        advance: true,
        ..States::default()
    };
    let step = Step {
        query_lengths: QueryLengths::Given(&[3, 2]),
        past_lengths: PastLengths::OfStates,
        batch: 2,
        query_width: 3,
        phase: Phase::Verify,
    };
    for (pasts, status) in [([0, 15], [0, 0]), ([3, 17], [0, 0]), ([6, 0], [0, 3])] {
        published.go(&states, &step, Schedule::Natural);
        let found = published.read(6);
        assert_eq!((found.past_lengths, found.status), (pasts.to_vec(), status.to_vec()));
    }
    assert_eq!(kv_lengths.read::<i32>(2), [9, 19]);
}
