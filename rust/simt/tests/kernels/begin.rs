//! The start of a frame: what rows draw with, who takes part, and the two rows of the prefill.

use overtone_core::tensor::FloatType;
use overtone_cuda::arguments::{BeginArguments, ElementType, PaddedActivations};
use overtone_cuda::frame::{FrameBlock, FrameCounters, FrameHeader, RowParameters};
use overtone_cuda::kernels::Kernel;
use overtone_cuda::layout::{PAIR, TILE_COLUMNS};
use overtone_cuda::plan::Launch;

use crate::host::fixtures::FLOAT_TYPES;
use crate::host::fixtures::random::Random;
use crate::host::fragments::unpacked_activations;
use crate::host::{Host, Memory, rounded};
use crate::product::activation_memory;
use crate::row_state::{RowState, tensor};

/// Ht, H, V0, C.
const WIDTH: usize = 37;
const HIDDEN: usize = 20;
const ROWS_OF_TABLE: usize = 11;
const CODES: usize = 4;
/// Width of the hidden rows on their way to the projection, in pairs.
const PAIRS: usize = 2;

/// A frame about to begin.
struct Beginning {
    float_type: FloatType,
    projected: bool,
    slots: usize,
    block: FrameBlock,
    hidden: Vec<f32>,
    table: Vec<f32>,
    behind_projection: Vec<f32>,
    _inputs: [Memory; 3],
    /// Launches of the frame block before this one.
    launches: u64,
    codes: Memory,
    states: Memory,
    residual: Memory,
    activations: Memory,
    codec_sum: Memory,
    padded: Vec<PaddedActivations>,
}

impl Beginning {
    fn new(float_type: FloatType, batch: usize, slots: usize, projected: bool) -> Self {
        let mut random = Random::new(5);
        let table_width = if projected { HIDDEN } else { WIDTH };
        let hidden = random.normals(batch * WIDTH, 1.0);
        let table = random.normals(ROWS_OF_TABLE * WIDTH, 1.0);
        let behind_projection =
            if projected { random.normals(ROWS_OF_TABLE * HIDDEN, 1.0) } else { table.clone() };
        let inputs = [&hidden, &table, &behind_projection].map(|values| Memory::of(values));
        let codes = Memory::filled((batch * CODES * 4) as u64, 0x7f);
        let float = ElementType::Float32;
        let header = FrameHeader {
            batch: batch as u32,
            talker_last_hidden: tensor(&inputs[0], float, &[WIDTH as i64, 1], batch),
            codes: tensor(&codes, ElementType::Int32, &[0, CODES as i64, 1], 1),
            code_zero_table: tensor(&inputs[1], float, &[WIDTH as i64, 1], ROWS_OF_TABLE),
            code_zero_projected: tensor(&inputs[2], float, &[table_width as i64, 1], ROWS_OF_TABLE),
            ..FrameHeader::default()
        };
        let row = |row: usize| RowParameters {
            temperature: 0.5 + row as f32,
            top_k: 7 + row as u32,
            top_p: 0.5 + 0.1 * row as f32,
            inactive: 0,
            seed: (1 << 63) + row as u64,
            frame_index: (5 << 32) + row as u64,
            code_zero: (3 * row % ROWS_OF_TABLE) as i64,
        };
        Self {
            float_type,
            projected,
            slots,
            block: FrameBlock { header, rows: (0..batch).map(row).collect() },
            hidden,
            table,
            behind_projection,
            _inputs: inputs,
            launches: 0,
            codes,
            states: Memory::filled((slots * size_of::<RowState>()) as u64, 0xff),
            residual: Memory::of_nan(2 * slots * table_width),
            activations: activation_memory(float_type, slots, PAIRS),
            codec_sum: Memory::of_nan(slots * WIDTH),
            padded: Vec::new(),
        }
    }

    fn batch(&self) -> usize {
        self.block.rows.len()
    }

    fn hidden_size(&self) -> usize {
        if self.projected { HIDDEN } else { WIDTH }
    }

    /// Begins; the rows' states.
    fn go(&self) -> Vec<RowState> {
        let mut bytes = Vec::new();
        self.block.write_to(&mut bytes);
        let frame = Memory::of(&bytes);
        let counters = Memory::of(&[FrameCounters { launches: self.launches, ..FrameCounters::default() }]);
        let mut padded = [PaddedActivations::default(); 5];
        padded[..self.padded.len()].copy_from_slice(&self.padded);
        let arguments = BeginArguments {
            frame: frame.address(),
            rows: self.states.address(),
            counters: counters.address(),
            residual: self.residual.address(),
            hidden: if self.projected { self.activations.address() } else { 0 },
            codec_sum: self.codec_sum.address(),
            slots: self.slots as u32,
            hidden_size: self.hidden_size() as u32,
            talker_hidden_size: WIDTH as u32,
            pairs: if self.projected { PAIRS as u32 } else { 0 },
            rounds: 0,
            round_loop: 0,
            codebook_count: 7,
            reserved: 0,
            padded,
        };
        Host::NATURAL.go(&[Launch::new(Kernel::Begin(self.float_type), [self.slots, 1], &arguments)]);
        self.states.read(self.slots)
    }

    /// Rows of the residual stream, [2 · slots][H].
    fn residual(&self) -> Vec<Vec<f32>> {
        let width = self.hidden_size();
        self.residual.read::<f32>(2 * self.slots * width).chunks(width).map(<[f32]>::to_vec).collect()
    }

    /// Hidden rows on their way to the projection.
    fn activations(&self) -> Vec<Vec<f32>> {
        let elements = self.slots.next_multiple_of(TILE_COLUMNS) * PAIRS * PAIR;
        unpacked_activations(self.float_type, &self.activations.read_floats(self.float_type, elements), PAIRS)
    }

    fn code_zeros(&self) -> Vec<i32> {
        self.codes.read::<i32>(self.batch() * CODES).chunks(CODES).map(|row| row[0]).collect()
    }
}

fn is_nan(values: &[f32]) -> bool {
    values.iter().all(|value| value.is_nan())
}

#[test]
fn the_prefills_rows_and_the_sum_begin_with_the_talkers() {
    for float_type in FLOAT_TYPES {
        for projected in [false, true] {
            let beginning = Beginning::new(float_type, 3, 5, projected);
            let states = beginning.go();
            let (residual, activations) = (beginning.residual(), beginning.activations());
            let codec_sum = beginning.codec_sum.read::<f32>(5 * WIDTH);
            assert_eq!(beginning.code_zeros(), [0, 3, 6]);
            for row in 0..5 {
                let (second, sum) = (&residual[5 + row], &codec_sum[row * WIDTH..][..WIDTH]);
                assert_eq!(states[row].active, u32::from(row < 3));
                if row >= 3 {
                    assert!(is_nan(&residual[row]) && is_nan(second) && is_nan(sum), "row {row} is nobody's");
                    assert!(is_nan(&activations[row]));
                    continue;
                }
                let code = 3 * row;
                assert_eq!(sum, &beginning.table[code * WIDTH..][..WIDTH]);
                let width = beginning.hidden_size();
                assert_eq!(second, &beginning.behind_projection[code * width..][..width]);
                let hidden = &beginning.hidden[row * WIDTH..][..WIDTH];
                if projected {
                    let rounded: Vec<f32> = hidden.iter().map(|value| rounded(float_type, *value)).collect();
                    assert_eq!(activations[row][..WIDTH], rounded);
                    assert!(activations[row][WIDTH..].iter().all(|value| *value == 0.0));
                    assert!(is_nan(&residual[row]), "the projection is still to come");
                } else {
                    assert_eq!(residual[row], hidden);
                }
            }
        }
    }
}

#[test]
fn hidden_rows_and_tables_of_any_type_and_stride_are_read() {
    for stored in FLOAT_TYPES {
        let mut beginning = Beginning::new(FloatType::Float32, 3, 3, false);
        // Rows apart, and every second element of them.
        let values = Random::new(8).normals(3 * 80, 1.0);
        let strided = Memory::of_floats(stored, &values);
        let tables = Memory::of_floats(stored, &beginning.table);
        beginning.block.header.talker_last_hidden = tensor(&strided, stored.into(), &[80, 2], 3);
        let table = tensor(&tables, stored.into(), &[WIDTH as i64, 1], ROWS_OF_TABLE);
        beginning.block.header.code_zero_table = table;
        beginning.block.header.code_zero_projected = table;
        beginning.go();
        let residual = beginning.residual();
        for row in 0..3 {
            let expected: Vec<f32> =
                (0..WIDTH).map(|index| rounded(stored, values[row * 80 + 2 * index])).collect();
            assert_eq!(residual[row], expected);
            let of_table = &beginning.table[3 * row * WIDTH..][..WIDTH];
            let expected: Vec<f32> = of_table.iter().map(|value| rounded(stored, *value)).collect();
            assert_eq!(residual[3 + row], expected);
        }
    }
}

/// Integers in memory, as one type or another.
fn integers(element: ElementType, values: &[i64]) -> Memory {
    match element {
        ElementType::Int32 => Memory::of(&values.iter().map(|value| *value as i32).collect::<Vec<_>>()),
        ElementType::UInt8 => Memory::of(&values.iter().map(|value| *value as u8).collect::<Vec<_>>()),
        _ => Memory::of(values),
    }
}

#[test]
fn device_arrays_say_the_same_as_the_hosts_parameters() {
    let given = Beginning::new(FloatType::Float32, 3, 3, false);
    let expected = given.go();
    for element in [ElementType::Int32, ElementType::Int64] {
        // Every second element of the arrays.
        let rows = given.block.rows.clone();
        let spread = |value: &dyn Fn(&RowParameters) -> i64| -> Vec<i64> {
            rows.iter().flat_map(|row| [value(row), -99]).collect()
        };
        let floats = |value: &dyn Fn(&RowParameters) -> f32| -> Memory {
            Memory::of(&rows.iter().flat_map(|row| [value(row), f32::NAN]).collect::<Vec<_>>())
        };
        let (temperature, top_p) = (floats(&|row| row.temperature), floats(&|row| row.top_p));
        let top_k = integers(element, &spread(&|row| i64::from(row.top_k)));
        let code_zero = integers(element, &spread(&|row| row.code_zero));
        // A seed is 64 bits, whatever their sign is called.
        let seed = Memory::of(&spread(&|row| row.seed as i64));
        let seed_type = if element == ElementType::Int64 { ElementType::UInt64 } else { ElementType::Int64 };
        let frame_index = Memory::of(&spread(&|row| row.frame_index as i64));
        let mut beginning = Beginning::new(FloatType::Float32, 3, 3, false);
        let header = &mut beginning.block.header;
        header.temperature = tensor(&temperature, ElementType::Float32, &[2], 3);
        header.top_p = tensor(&top_p, ElementType::Float32, &[2], 3);
        header.top_k = tensor(&top_k, element, &[2], 3);
        header.seed = tensor(&seed, seed_type, &[2], 3);
        header.code_zero = tensor(&code_zero, element, &[2], 3);
        header.frame_index = tensor(&frame_index, ElementType::Int64, &[2], 3);
        // The host's parameters are not looked at.
        for row in &mut beginning.block.rows {
            *row = RowParameters { temperature: -1.0, top_p: 9.0, code_zero: -5, ..RowParameters::default() };
        }
        let states = beginning.go();
        for (row, (found, expected)) in states.iter().zip(&expected).enumerate() {
            let codes = beginning.codes.address() + (row * CODES * 4) as u64;
            assert_eq!(*found, RowState { codes, ..*expected });
        }
        assert_eq!(beginning.code_zeros(), given.code_zeros());
        assert_eq!(beginning.residual(), given.residual());
    }
}

#[test]
fn one_frame_index_serves_all_rows() {
    let mut beginning = Beginning::new(FloatType::Float32, 3, 3, false);
    let index = Memory::of(&[1_i64 << 40]);
    beginning.block.header.frame_index = tensor(&index, ElementType::Int64, &[0], 1);
    assert!(beginning.go().iter().all(|state| state.frame_index == 1 << 40));
    assert_eq!(index.read::<i64>(1), [1 << 40], "a frame advances it at its end");
}

#[test]
fn the_hosts_frame_index_advances_by_the_launches_so_far_when_it_is_to() {
    for (advance, expected) in [(0, 9), (1, 14)] {
        let mut beginning = Beginning::new(FloatType::Float32, 2, 2, false);
        beginning.launches = 5;
        beginning.block.header.advance_frame_index = advance;
        beginning.block.rows.iter_mut().for_each(|row| row.frame_index = 9);
        assert!(beginning.go().iter().all(|state| state.frame_index == expected));
        // An index on the device has been advanced there.
        let index = Memory::of(&[20_i64]);
        beginning.block.header.frame_index = tensor(&index, ElementType::Int64, &[0], 1);
        assert!(beginning.go().iter().all(|state| state.frame_index == 20));
    }
}

#[test]
fn a_negative_frame_index_fails_the_rows_that_sample() {
    let mut beginning = Beginning::new(FloatType::Float32, 3, 3, false);
    let indices = Memory::of(&[-1_i64, -1, 0]);
    beginning.block.header.frame_index = tensor(&indices, ElementType::Int64, &[1], 3);
    beginning.block.rows[1].temperature = 0.0;
    let out_of_range = |beginning: &Beginning| -> Vec<u32> {
        beginning.go().iter().map(|state| state.parameters_out_of_range).collect()
    };
    assert_eq!(out_of_range(&beginning), [1, 0, 0]);
    // Of an unsigned index all 64 bits count.
    beginning.block.header.frame_index = tensor(&indices, ElementType::UInt64, &[1], 3);
    assert_eq!(out_of_range(&beginning), [0, 0, 0]);
}

#[test]
fn device_parameters_out_of_range_fail_their_row_alone() {
    let (good, mut expected) = ((0.9_f32, 50_i64, 0.8_f32), Vec::new());
    let mut rows = Vec::new();
    for temperature in [-1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        rows.extend([(temperature, good.1, good.2), good]);
        expected.extend([1, 0]);
    }
    for top_k in [-1, i64::MIN] {
        rows.extend([(good.0, top_k, good.2), good]);
        expected.extend([1, 0]);
    }
    for top_p in [0.0, -0.5, 1.001, f32::NAN] {
        rows.extend([(good.0, good.1, top_p), good]);
        expected.extend([1, 0]);
    }
    rows.extend([(0.0, 0, 1.0), (-0.0, i64::MAX, 1e-45)]);
    expected.extend([0, 0]);
    let count = rows.len();
    let temperature = Memory::of(&rows.iter().map(|row| row.0).collect::<Vec<_>>());
    let top_k = Memory::of(&rows.iter().map(|row| row.1).collect::<Vec<_>>());
    let top_p = Memory::of(&rows.iter().map(|row| row.2).collect::<Vec<_>>());
    let seed = Memory::of(&vec![3_i64; count]);
    let mut beginning = Beginning::new(FloatType::Float32, count, count, false);
    let header = &mut beginning.block.header;
    header.temperature = tensor(&temperature, ElementType::Float32, &[1], count);
    header.top_k = tensor(&top_k, ElementType::Int64, &[1], count);
    header.top_p = tensor(&top_p, ElementType::Float32, &[1], count);
    header.seed = tensor(&seed, ElementType::Int64, &[1], count);
    let states = beginning.go();
    let found: Vec<u32> = states.iter().map(|state| state.parameters_out_of_range).collect();
    assert_eq!(found, expected);
    assert_eq!(states[count - 1].top_k, u32::MAX, "more than 32 bits is more than every codebook");
    assert!(states.iter().all(|state| state.status == 0), "they fail when they draw");
}

#[test]
fn rows_left_out_by_host_or_device_write_nothing() {
    for element in [ElementType::UInt8, ElementType::Int32, ElementType::Int64] {
        let mut beginning = Beginning::new(FloatType::Float32, 4, 4, false);
        let mask = integers(element, &[1, 0, 200, 1]);
        beginning.block.header.active = tensor(&mask, element, &[1], 4);
        beginning.block.rows[3].inactive = 1;
        let states = beginning.go();
        assert_eq!(states.iter().map(|state| state.active).collect::<Vec<_>>(), [1, 0, 1, 0]);
        let (residual, codec_sum) = (beginning.residual(), beginning.codec_sum.read::<f32>(4 * WIDTH));
        for row in [1, 3] {
            assert!(is_nan(&residual[row]) && is_nan(&residual[4 + row]));
            assert!(is_nan(&codec_sum[row * WIDTH..][..WIDTH]));
        }
        assert_eq!(beginning.code_zeros(), [0, 0x7f7f_7f7f, 6, 0x7f7f_7f7f]);
    }
}

#[test]
fn a_code_outside_the_talkers_table_fails_its_row_and_goes_on_as_0() {
    let outside = [-1, ROWS_OF_TABLE as i64, i64::MAX, i64::MIN, 1 << 32];
    for code in outside {
        let mut beginning = Beginning::new(FloatType::Float32, 3, 3, false);
        beginning.block.rows[1].code_zero = code;
        let states = beginning.go();
        assert_eq!(states.iter().map(|state| state.status).collect::<Vec<_>>(), [0, -1, 0], "code_0 {code}");
        assert_eq!(beginning.code_zeros(), [0, 0, 6]);
        assert_eq!(beginning.residual()[3 + 1], beginning.table[..WIDTH]);
    }
    let mut beginning = Beginning::new(FloatType::Float32, 3, 3, false);
    let codes = Memory::of(&[0_i32, -1, 10]);
    beginning.block.header.code_zero = tensor(&codes, ElementType::Int32, &[1], 3);
    let states = beginning.go();
    assert_eq!(states.iter().map(|state| state.status).collect::<Vec<_>>(), [0, -1, 0]);
}

#[test]
fn codes_go_to_strided_tensors_and_to_the_rings_next_slot() {
    // Two slots of [rows, codes] int64, codes two apart.
    for (count, slot) in [(0_i64, 0), (1, 1), (7, 1), (1 << 40, 0)] {
        let mut beginning = Beginning::new(FloatType::Float32, 3, 3, false);
        let ring = Memory::filled(2 * 3 * 8 * 8, 0x7f);
        let ring_slot = Memory::of(&[count]);
        beginning.block.header.codes = tensor(&ring, ElementType::Int64, &[24, 8, 2], 2);
        beginning.block.header.ring_slot = tensor(&ring_slot, ElementType::Int64, &[0], 1);
        let states = beginning.go();
        let mut expected = vec![0x7f7f_7f7f_7f7f_7f7f_i64; 48];
        for row in 0..3 {
            expected[slot * 24 + row * 8] = 3 * row as i64;
            assert_eq!(states[row].codes, ring.address() + 8 * (slot * 24 + row * 8) as u64);
        }
        assert_eq!(ring.read::<i64>(48), expected);
        assert_eq!(ring_slot.read::<i64>(1), [count], "a frame moves it at its end");
    }
}

#[test]
fn padding_becomes_zero_in_all_columns_of_every_slot_and_nothing_else_does() {
    for float_type in FLOAT_TYPES {
        let (slots, inputs, pairs) = (5, 41, 3);
        let mut beginning = Beginning::new(float_type, 2, slots, false);
        let buffers = [2, 7].map(|of_slot| (of_slot, activation_memory(float_type, of_slot * slots, pairs)));
        for (of_slot, buffer) in &buffers {
            let padded = PaddedActivations {
                activations: buffer.address(),
                inputs: inputs as u32,
                pairs: pairs as u32,
                columns: *of_slot as u32,
                reserved: 0,
            };
            beginning.padded.push(padded);
        }
        beginning.go();
        for (of_slot, buffer) in &buffers {
            let elements = (of_slot * slots).next_multiple_of(TILE_COLUMNS) * pairs * PAIR;
            let columns = unpacked_activations(float_type, &buffer.read_floats(float_type, elements), pairs);
            for (column, values) in columns.iter().enumerate() {
                assert!(is_nan(&values[..inputs]));
                let padding = &values[inputs..];
                let zero = padding.iter().all(|value| value.to_bits() == 0);
                assert!(if column < of_slot * slots { zero } else { is_nan(padding) }, "column {column}");
            }
        }
    }
}
