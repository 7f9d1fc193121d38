//! The kernels that run when a checkpoint is loaded: packing, gathering, converting.

use overtone_core::tensor::FloatType;
use overtone_cuda::arguments::{
    ConvertArguments, ElementType, PackArguments, RowPlacement, TableRowsArguments,
};
use overtone_cuda::kernels::Kernel;
use overtone_cuda::layout::{MatrixShape, PAIR, TILE_COLUMNS, TILE_ROWS};
use overtone_cuda::plan::Launch;

use crate::gated::gated;
use crate::host::fixtures::FLOAT_TYPES;
use crate::host::fixtures::random::Random;
use crate::host::fragments::{unpacked_activations, unpacked_weights};
use crate::host::{Host, Memory, rounded};
use crate::product::{activation_memory, plain};

fn stored(float_type: FloatType, rows: usize, width: usize, seed: u64) -> (Vec<f32>, Memory) {
    let values = Random::new(seed).normals(rows * width, 1.0);
    let memory = Memory::of_floats(float_type, &values);
    (memory.read_floats(float_type, rows * width), memory)
}

/// Packs tensors of `rows` rows each and gives the matrix back as the instructions read it.
fn pack(
    types: [FloatType; 2],
    matrix: MatrixShape,
    tensors: &[(&Memory, usize, RowPlacement, usize)],
) -> Vec<Vec<f32>> {
    let [float_type, source_type] = types;
    let packed = Memory::zeroed(matrix.bytes(float_type));
    for (source, rows, placement, first_output) in tensors {
        let arguments = PackArguments {
            source: source.address(),
            packed: packed.address(),
            source_type: ElementType::from(source_type) as u32,
            rows: *rows as u32,
            inputs: matrix.inputs as u32,
            pairs: matrix.total_pairs() as u32,
            first_output: *first_output as u32,
            placement: *placement as u32,
        };
        Host::NATURAL.go(&[Launch::new(Kernel::Pack(float_type), [2, 1], &arguments)]);
    }
    let elements = matrix.bytes(float_type) as usize / float_type.size();
    let rows = unpacked_weights(float_type, &packed.read_floats(float_type, elements), matrix.total_pairs());
    assert_eq!(rows.len(), matrix.row_tiles() * TILE_ROWS);
    rows
}

/// Checks one output, zeros beyond its inputs included.
fn check(found: &[f32], expected: &[f32], float_type: FloatType, place: &str) {
    let expected = expected.iter().map(|value| rounded(float_type, *value)).chain(std::iter::repeat(0.0));
    for (input, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_eq!(found.to_bits(), expected.to_bits(), "{float_type} {place}, input {input}");
    }
}

#[test]
fn stacked_tensors_come_back_from_their_packed_matrix_bit_for_bit() {
    for source_type in FLOAT_TYPES {
        for float_type in FLOAT_TYPES {
            for (inputs, splits) in [(1, 1), (33, 1), (100, 2), (320, 2)] {
                // Three tensors whose borders lie inside tiles.
                let sizes = [19, 6, 12];
                let tensors = sizes.map(|rows| stored(source_type, rows, inputs, rows as u64));
                let stacked: Vec<_> = (0..3)
                    .map(|index| {
                        let first = sizes[..index].iter().sum();
                        (&tensors[index].1, sizes[index], RowPlacement::Stacked, first)
                    })
                    .collect();
                let rows = pack([float_type, source_type], plain(37, inputs, splits), &stacked);
                let expected: Vec<f32> =
                    tensors.iter().flat_map(|(values, _)| values.iter().copied()).collect();
                let mut expected = expected.chunks(inputs);
                for (output, found) in rows.iter().enumerate() {
                    check(found, expected.next().unwrap_or(&[]), float_type, &format!("output {output}"));
                }
            }
        }
    }
}

#[test]
fn gates_and_ups_come_back_from_the_halves_of_their_tiles() {
    for float_type in FLOAT_TYPES {
        let (channels, inputs) = (26, 70);
        let (gates, gates_memory) = stored(FloatType::BFloat16, channels, inputs, 1);
        let (ups, ups_memory) = stored(FloatType::BFloat16, channels, inputs, 2);
        let tensors =
            [(&gates_memory, channels, RowPlacement::Gate, 0), (&ups_memory, channels, RowPlacement::Up, 0)];
        let rows = pack([float_type, FloatType::BFloat16], gated(channels, inputs), &tensors);
        for (row, found) in rows.iter().enumerate() {
            let (half, channel) = (row % 16 / 8, row / 16 * 8 + row % 8);
            let of_half = [&gates, &ups][half];
            let expected = of_half.chunks(inputs).nth(channel).unwrap_or(&[]);
            check(found, expected, float_type, &format!("channel {channel}, half {half}"));
        }
    }
}

#[test]
fn rows_of_a_table_become_columns_with_zeros_beyond_their_width() {
    for table_type in FLOAT_TYPES {
        for float_type in FLOAT_TYPES {
            for (width, pairs, rows) in [(1, 1, 1), (45, 3, 9), (64, 2, 17)] {
                let first_row = 4;
                let (values, table) = stored(table_type, first_row + rows, width, 5);
                let activations = activation_memory(float_type, rows, pairs);
                let arguments = TableRowsArguments {
                    table: table.address(),
                    activations: activations.address(),
                    table_type: ElementType::from(table_type) as u32,
                    first_row: first_row as u32,
                    rows: rows as u32,
                    width: width as u32,
                    pairs: pairs as u32,
                    reserved: 0,
                };
                let launch = Launch::new(Kernel::TableRows(float_type), [rows, 1], &arguments);
                Host::NATURAL.go(&[launch]);
                let elements = rows.next_multiple_of(TILE_COLUMNS) * pairs * PAIR;
                let read = activations.read_floats(float_type, elements);
                for (column, found) in unpacked_activations(float_type, &read, pairs).iter().enumerate() {
                    if column >= rows {
                        assert!(found.iter().all(|value| value.is_nan()), "column {column} is nobody's");
                        continue;
                    }
                    let expected = &values[(first_row + column) * width..][..width];
                    check(found, expected, float_type, &format!("column {column}"));
                }
            }
        }
    }
}

#[test]
fn a_tensor_is_converted_with_one_rounding() {
    for source_type in FLOAT_TYPES {
        for target_type in FLOAT_TYPES {
            let count = 1001;
            let (values, source) = stored(source_type, 1, count, 9);
            let target = Memory::filled((count * target_type.size()) as u64, 0xff);
            let arguments = ConvertArguments {
                source: source.address(),
                target: target.address(),
                elements: count as u64,
                source_type: ElementType::from(source_type) as u32,
                target_type: ElementType::from(target_type) as u32,
            };
            Host::NATURAL.go(&[Launch::new(Kernel::Convert, [2, 1], &arguments)]);
            check(&target.read_floats(target_type, count), &values, target_type, "converted");
        }
    }
}
