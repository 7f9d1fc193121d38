//! Products that leave silu(gate) · up, as the activations of the next product.

use overtone_core::tensor::FloatType;
use overtone_cuda::arguments::{ProductArguments, RowPlacement};
use overtone_cuda::layout::{Address, MatrixShape, MatrixShapes, PAIR, TILE_COLUMNS};
use overtone_cuda::product::product_launch;

use crate::host::fixtures::FLOAT_TYPES;
use crate::host::fixtures::random::Random;
use crate::host::fragments::unpacked_activations;
use crate::host::{Host, Memory, subnormal_roundoff, unit_roundoff};
use crate::product::{
    COLUMNS, activation_memory, activations, exact, pack, random_rows, sum_bound, true_spec,
};

pub const fn gated(channels: usize, inputs: usize) -> MatrixShape {
    MatrixShape { outputs: channels, inputs, splits: 1, gated: true }
}

/// Pairs of the next product's activations.
pub fn output_pairs(matrix: MatrixShape) -> usize {
    matrix.outputs.div_ceil(PAIR)
}

pub fn packed(float_type: FloatType, matrix: MatrixShape, gates: &[Vec<f32>], ups: &[Vec<f32>]) -> Memory {
    let packed = Memory::zeroed(matrix.bytes(float_type));
    pack(float_type, matrix, &packed, gates, RowPlacement::Gate, 0);
    pack(float_type, matrix, &packed, ups, RowPlacement::Up, 0);
    packed
}

/// Activations [columns][channels] of a gated product, as they are stored: (value, rest); the rest is 0 except in float16.
pub fn run(
    float_type: FloatType,
    matrix: MatrixShape,
    columns: usize,
    arguments: ProductArguments,
) -> [Vec<Vec<f32>>; 2] {
    let pairs = output_pairs(matrix);
    let outputs = [(); 2].map(|()| activation_memory(float_type, columns, pairs));
    let in_two_parts = float_type == FloatType::Float16;
    let arguments = ProductArguments {
        output: outputs[0].address(),
        output_low: if in_two_parts { outputs[1].address() } else { 0 },
        output_pairs: pairs as u32,
        columns: columns as u32,
        ..arguments
    };
    Host::NATURAL.go(&[product_launch(&true_spec(), float_type, matrix, arguments)]);
    outputs.map(|memory| {
        let elements = columns.next_multiple_of(TILE_COLUMNS) * pairs * PAIR;
        let all = unpacked_activations(float_type, &memory.read_floats(float_type, elements), pairs);
        let written = all.iter().take(columns).map(|column| column[..matrix.outputs].to_vec());
        let written: Vec<Vec<f32>> = written.collect();
        let nobodys = |column: usize, channel: usize| column >= columns || channel >= matrix.outputs;
        for (column, values) in all.iter().enumerate() {
            for (channel, value) in values.iter().enumerate() {
                let untouched = !nobodys(column, channel) || value.is_nan();
                assert!(untouched, "{float_type} {matrix:?}: column {column}, channel {channel} is nobody's");
            }
        }
        written
    })
}

/// silu(gate) · up of exact sums, and the most that a result may be off before it is rounded to its type.
fn expected(gate: f64, gate_error: f64, up: f64, up_error: f64) -> (f64, f64) {
    let silu = gate / (1.0 + (-gate).exp());
    let value = silu * up;
    // |silu'| is below 1.1; e^x, the sum, the quotient and the product are rounded, of which e^x counts twice.
    let of_sums = 1.1 * gate_error * (up.abs() + up_error) + silu.abs() * up_error;
    (value, of_sums + 6.0 * unit_roundoff(FloatType::Float32) * value.abs() + 1e-30)
}

fn check(float_type: FloatType, matrix: MatrixShape, column_counts: &[usize]) {
    let mut random = Random::new(matrix.outputs as u64 * 31 + matrix.inputs as u64);
    let most = column_counts.iter().copied().max().unwrap();
    // Gates of several units, so that both ends of silu are met.
    let deviation = 4.0 / (matrix.inputs as f32).sqrt();
    let mut weights = || random_rows(&mut random, float_type, matrix.outputs, matrix.inputs, deviation);
    let (gates, ups) = (weights(), weights());
    let rows = random_rows(&mut random, float_type, most, matrix.inputs, 1.0);
    let packed = packed(float_type, matrix, &gates, &ups);
    let run_columns = |columns: usize| {
        let activations = activations(float_type, matrix, &rows[..columns]);
        let arguments = ProductArguments {
            weights: packed.address(),
            activations: activations.address(),
            ..ProductArguments::default()
        };
        run(float_type, matrix, columns, arguments)
    };
    let [values, rests] = run_columns(most);
    let mut value_alone_misses = 0;
    for (column, row) in rows.iter().enumerate() {
        for channel in 0..matrix.outputs {
            let [gate, up] = [&gates[channel], &ups[channel]].map(|weights| exact(weights, row));
            let [gate_error, up_error] = [gate, up].map(|exact| sum_bound(matrix) * exact.size);
            let (expected, error) = expected(gate.sum, gate_error, up.sum, up_error);
            let value = f64::from(values[column][channel]);
            let place = || format!("{float_type} {matrix:?}, column {column}, channel {channel}");
            let rounding =
                unit_roundoff(float_type) * (expected.abs() + error) + subnormal_roundoff(float_type);
            assert!((value - expected).abs() <= error + rounding, "{}: {value}, not {expected}", place());
            if float_type == FloatType::Float16 {
                // What the rest leaves: 2⁻¹¹ of 2⁻¹¹ of the value, or half a unit of the smallest numbers.
                let bound = error + 2f64.powi(-22) * (expected.abs() + error) + 2f64.powi(-25);
                let both = value + f64::from(rests[column][channel]);
                assert!((both - expected).abs() <= bound, "{}: in two parts {both}, not {expected}", place());
                value_alone_misses += usize::from((value - expected).abs() > bound);
            }
        }
    }
    if float_type == FloatType::Float16 {
        assert!(value_alone_misses > 0, "{matrix:?}: the second part is lost in the bound");
    }
    for &columns in column_counts {
        let [few, few_rests] = run_columns(columns);
        assert!(few == values[..columns], "{float_type} {matrix:?}: {columns} columns differ from {most}");
        let in_two_parts = float_type == FloatType::Float16;
        assert!(!in_two_parts || few_rests == rests[..columns], "{matrix:?}: rests of {columns} columns");
    }
}

#[test]
fn a_gated_product_of_any_size_is_silu_times_up_and_float16_keeps_it_in_two_parts() {
    for float_type in FLOAT_TYPES {
        for matrix in [gated(2, 8), gated(6, 33), gated(50, 96), gated(26, 1100)] {
            check(float_type, matrix, &COLUMNS);
        }
    }
}

#[test]
fn gate_and_up_of_true_size_in_float32() {
    check(FloatType::Float32, MatrixShapes::new(&true_spec()).gate_up, &[3, 9]);
}

#[test]
fn gate_and_up_of_true_size_in_bfloat16() {
    check(FloatType::BFloat16, MatrixShapes::new(&true_spec()).gate_up, &[3, 17]);
}

#[test]
fn gate_and_up_of_true_size_in_float16() {
    check(FloatType::Float16, MatrixShapes::new(&true_spec()).gate_up, &[3, 17]);
}

#[test]
fn a_gate_far_below_zero_leaves_nothing_and_one_far_above_leaves_all() {
    for float_type in FLOAT_TYPES {
        let matrix = gated(2, 2);
        let packed = packed(float_type, matrix, &[vec![-1.0, 0.0], vec![1.0, 0.0]], &vec![vec![0.0, 1.0]; 2]);
        let activations = activations(float_type, matrix, &[vec![2000.0, 3.0]]);
        let address: Address = activations.address();
        let arguments = ProductArguments {
            weights: packed.address(),
            activations: address,
            ..ProductArguments::default()
        };
        let [values, _] = run(float_type, matrix, 1, arguments);
        assert_eq!(values, [[0.0, 6000.0].map(|value| crate::host::rounded(float_type, value))]);
    }
}
