//! Products that leave sums: wide, narrow and deep, for few columns and for many.

use overtone_core::checkpoint::synthetic::Architecture;
use overtone_core::spec::ModelSpec;
use overtone_core::tensor::FloatType;
use overtone_cuda::arguments::{
    ElementType, PackArguments, ProductArguments, RowPlacement, TableRowsArguments,
};
use overtone_cuda::kernels::Kernel;
use overtone_cuda::layout::{Address, MatrixShape, MatrixShapes, PAIR, TILE_COLUMNS};
use overtone_cuda::plan::Launch;
use overtone_cuda::product::product_launch;

use crate::host::fixtures::FLOAT_TYPES;
use crate::host::fixtures::random::Random;
use crate::host::{Host, Memory, rounded, unit_roundoff};

/// One, fewer than a tile of columns, a whole tile, one more, and more than a block handles at once.
pub const COLUMNS: [usize; 5] = [1, 3, 8, 9, 33];
/// Warps of a block, which share the inputs.
const WARPS: usize = 8;

pub const fn plain(outputs: usize, inputs: usize, splits: usize) -> MatrixShape {
    MatrixShape { outputs, inputs, splits, gated: false }
}

/// The architecture whose products are of true size.
pub fn true_spec() -> ModelSpec {
    Architecture::Qwen3Tts06B.spec()
}

/// Random numbers, as a type holds them, [rows][width].
pub fn random_rows(
    random: &mut Random,
    float_type: FloatType,
    rows: usize,
    width: usize,
    deviation: f32,
) -> Vec<Vec<f32>> {
    let row = |random: &mut Random| {
        random.normals(width, deviation).iter().map(|v| rounded(float_type, *v)).collect()
    };
    (0..rows).map(|_| row(random)).collect()
}

/// Puts rows of weights into a packed matrix.
pub fn pack(
    float_type: FloatType,
    matrix: MatrixShape,
    packed: &Memory,
    rows: &[Vec<f32>],
    placement: RowPlacement,
    first_output: usize,
) {
    let source = Memory::of_floats(FloatType::Float32, &rows.concat());
    let arguments = PackArguments {
        source: source.address(),
        packed: packed.address(),
        source_type: ElementType::Float32 as u32,
        rows: rows.len() as u32,
        inputs: matrix.inputs as u32,
        pairs: matrix.total_pairs() as u32,
        first_output: first_output as u32,
        placement: placement as u32,
    };
    Host::NATURAL.go(&[Launch::new(Kernel::Pack(float_type), [3, 1], &arguments)]);
}

/// A matrix whose outputs are `weights`.
pub fn packed(float_type: FloatType, matrix: MatrixShape, weights: &[Vec<f32>]) -> Memory {
    let memory = Memory::zeroed(matrix.bytes(float_type));
    pack(float_type, matrix, &memory, weights, RowPlacement::Stacked, 0);
    memory
}

/// Memory for activations, full of NaN.
pub fn activation_memory(float_type: FloatType, columns: usize, pairs: usize) -> Memory {
    let elements = columns.next_multiple_of(TILE_COLUMNS) * pairs * PAIR;
    Memory::filled((elements * float_type.size()) as u64, 0xff)
}

/// Rows as the columns of a product; columns beyond them are NaN.
pub fn activations(float_type: FloatType, matrix: MatrixShape, rows: &[Vec<f32>]) -> Memory {
    let table = Memory::of(&rows.concat());
    let memory = activation_memory(float_type, rows.len(), matrix.total_pairs());
    let arguments = TableRowsArguments {
        table: table.address(),
        activations: memory.address(),
        table_type: ElementType::Float32 as u32,
        first_row: 0,
        rows: rows.len() as u32,
        width: matrix.inputs as u32,
        pairs: matrix.total_pairs() as u32,
        reserved: 0,
    };
    Host::NATURAL.go(&[Launch::new(Kernel::TableRows(float_type), [rows.len(), 1], &arguments)]);
    memory
}

/// Sums of a product [splits][columns][outputs], and the kernel that made them.
pub fn sums(
    spec: &ModelSpec,
    float_type: FloatType,
    matrix: MatrixShape,
    columns: usize,
    arguments: ProductArguments,
) -> (Vec<f32>, Kernel) {
    let count = matrix.splits * columns * matrix.outputs;
    let output = Memory::of_nan(count);
    let arguments = ProductArguments { output: output.address(), columns: columns as u32, ..arguments };
    let launch = product_launch(spec, float_type, matrix, arguments);
    Host::NATURAL.go(&[launch]);
    (output.read(count), launch.kernel)
}

/// A sum, and the sum of the sizes of its terms.
#[derive(Clone, Copy)]
pub struct Exact {
    pub sum: f64,
    pub size: f64,
}

/// Σ weight · activation in float64, which is exact here beside float32.
pub fn exact(weights: &[f32], activations: &[f32]) -> Exact {
    let mut exact = Exact { sum: 0.0, size: 0.0 };
    for (weight, activation) in weights.iter().zip(activations) {
        let product = f64::from(*weight) * f64::from(*activation);
        exact.sum += product;
        exact.size += product.abs();
    }
    exact
}

/// The most that roundings can add up to, per size of the terms: products are exact (fused, or of so few digits that
/// float32 holds them), a term is rounded into at most all sums of its warp, then three times over the warps, and by the bias.
pub fn sum_bound(matrix: MatrixShape) -> f64 {
    let roundings = matrix.pairs().div_ceil(WARPS) * PAIR + 3 + 1;
    roundings as f64 * 1.01 * unit_roundoff(FloatType::Float32)
}

/// The inputs that a split sums over.
fn inputs_of_split(matrix: MatrixShape, split: usize) -> std::ops::Range<usize> {
    let width = matrix.pairs() * PAIR;
    (split * width).min(matrix.inputs)..((split + 1) * width).min(matrix.inputs)
}

/// Holds a product at several numbers of columns against float64, and each column against the same column among others.
fn check(float_type: FloatType, matrix: MatrixShape, column_counts: &[usize]) {
    let mut random = Random::new(matrix.outputs as u64 * 7919 + matrix.inputs as u64);
    let most = column_counts.iter().copied().max().unwrap();
    let weights = random_rows(&mut random, float_type, matrix.outputs, matrix.inputs, 1.0);
    let rows = random_rows(&mut random, float_type, most, matrix.inputs, 1.0);
    let bias =
        if matrix.splits == 1 { random.normals(matrix.outputs, 1.0) } else { vec![0.0; matrix.outputs] };
    let bias_memory = Memory::of(&bias);
    let bias_address = if matrix.splits == 1 { bias_memory.address() } else { 0 };
    let packed = packed(float_type, matrix, &weights);
    let run = |columns: usize| {
        let activations = activations(float_type, matrix, &rows[..columns]);
        let arguments = ProductArguments {
            weights: packed.address(),
            activations: activations.address(),
            bias: bias_address,
            ..ProductArguments::default()
        };
        sums(&true_spec(), float_type, matrix, columns, arguments)
    };
    let (all, kernel) = run(most);
    for split in 0..matrix.splits {
        let inputs = inputs_of_split(matrix, split);
        for (column, row) in rows.iter().enumerate() {
            for (output, weights) in weights.iter().enumerate() {
                let exact = exact(&weights[inputs.clone()], &row[inputs.clone()]);
                let expected = exact.sum + f64::from(bias[output]);
                let found = f64::from(all[(split * most + column) * matrix.outputs + output]);
                let bound = sum_bound(matrix) * (exact.size + f64::from(bias[output].abs()));
                assert!(
                    (found - expected).abs() <= bound,
                    "{kernel:?} {matrix:?}, split {split}, column {column}, output {output}: {found}, not {expected}"
                );
            }
        }
    }
    for &columns in column_counts {
        let (few, kernel) = run(columns);
        let (few, all) = (few.chunks(columns * matrix.outputs), all.chunks(most * matrix.outputs));
        for (few, all) in few.zip(all) {
            assert!(few == &all[..few.len()], "{kernel:?} {matrix:?}: {columns} columns differ from {most}");
        }
    }
}

#[test]
fn a_product_of_any_size_is_that_of_float64_and_a_column_does_not_know_its_neighbours() {
    for float_type in FLOAT_TYPES {
        for matrix in [
            plain(1, 1, 1),
            plain(5, 33, 1),
            plain(17, 100, 2),
            plain(16, 32, 2), // the second split has no inputs
            plain(40, 257, 1),
            plain(20, 1100, 1), // deep, the last warp short
            plain(20, 3000, 2), // deep, in splits
            plain(4100, 40, 1), // wide, the last block short
        ] {
            check(float_type, matrix, &COLUMNS);
        }
    }
}

fn check_true_sizes(float_type: FloatType) {
    let shapes = MatrixShapes::new(&true_spec());
    let projected = MatrixShapes::new(&Architecture::Qwen3Tts17B.spec());
    for matrix in [shapes.output, shapes.head, shapes.query_key_value, shapes.down, projected.projection] {
        check(float_type, matrix, &[3, 17]);
    }
}

#[test]
fn products_of_true_size_are_those_of_float64_in_float32() {
    check_true_sizes(FloatType::Float32);
}

#[test]
fn products_of_true_size_are_those_of_float64_in_bfloat16() {
    check_true_sizes(FloatType::BFloat16);
}

#[test]
fn products_of_true_size_are_those_of_float64_in_float16() {
    check_true_sizes(FloatType::Float16);
}

/// Values, and what float16 leaves of them.
fn high_and_low(rows: &[Vec<f32>]) -> [Vec<Vec<f32>>; 2] {
    let part =
        |of: fn(f32) -> f32| rows.iter().map(|row| row.iter().map(|value| of(*value)).collect()).collect();
    let high = |value| rounded(FloatType::Float16, value);
    let low = |value: f32| rounded(FloatType::Float16, value - rounded(FloatType::Float16, value));
    [part(high), part(low)]
}

/// Holds a float16 product of activations in two parts against float64 on the activations before they were parted.
fn check_in_two_parts(matrix: MatrixShape, column_counts: &[usize]) {
    let float_type = FloatType::Float16;
    let mut random = Random::new(matrix.inputs as u64);
    let most = column_counts.iter().copied().max().unwrap();
    let weights = random_rows(&mut random, float_type, matrix.outputs, matrix.inputs, 0.1);
    // As large as silu(gate) · up becomes.
    let rows = random_rows(&mut random, FloatType::Float32, most, matrix.inputs, 20.0);
    let parts = high_and_low(&rows);
    let packed = packed(float_type, matrix, &weights);
    let mut high_alone_misses = 0;
    let mut first = Vec::new();
    for &columns in column_counts {
        let [high, low] =
            [&parts[0], &parts[1]].map(|rows| activations(float_type, matrix, &rows[..columns]));
        let run = |activations_low: Address| {
            let arguments = ProductArguments {
                weights: packed.address(),
                activations: high.address(),
                activations_low,
                ..ProductArguments::default()
            };
            sums(&true_spec(), float_type, matrix, columns, arguments)
        };
        let ((found, kernel), (high_alone, _)) = (run(low.address()), run(0));
        assert!(matches!(kernel, Kernel::ProductDeepFew(_) | Kernel::ProductDeepMany(_)), "{kernel:?}");
        for (place, (found, high_alone)) in found.iter().zip(&high_alone).enumerate() {
            let (split, column) = (place / matrix.outputs / columns, place / matrix.outputs % columns);
            let inputs = inputs_of_split(matrix, split);
            let weights = &weights[place % matrix.outputs][inputs.clone()];
            let exact = exact(weights, &rows[column][inputs]);
            // Twice as many terms, and what the second part leaves of an activation: 2⁻²² of it, or 2⁻²⁵.
            let of_weights: f64 = weights.iter().map(|weight| f64::from(weight.abs())).sum();
            let bound = (2.0 * sum_bound(matrix) + 2f64.powi(-22)) * exact.size + 2f64.powi(-25) * of_weights;
            let error = (f64::from(*found) - exact.sum).abs();
            assert!(error <= bound, "{kernel:?} {matrix:?}, place {place}: {found}, not {}", exact.sum);
            high_alone_misses += usize::from((f64::from(*high_alone) - exact.sum).abs() > bound);
        }
        // A column's sums are the same in every batch.
        let of_first_column =
            found.chunks(columns * matrix.outputs).flat_map(|split| &split[..matrix.outputs]);
        let of_first_column: Vec<f32> = of_first_column.copied().collect();
        if first.is_empty() {
            first.clone_from(&of_first_column);
        }
        assert_eq!(of_first_column, first, "{columns} columns");
    }
    assert!(high_alone_misses > 0, "the second part is lost in the bound");
}

#[test]
fn float16_activations_in_two_parts_count_with_both() {
    check_in_two_parts(plain(20, 70, 2), &COLUMNS);
    check_in_two_parts(plain(33, 300, 1), &COLUMNS);
    check_in_two_parts(MatrixShapes::new(&true_spec()).down, &[1, 9]);
}
