//! RMSNorm with what it takes in and keeps: the kernel by itself, and inside the products that normalise their own input.

use overtone_core::spec::ModelSpec;
use overtone_core::tensor::FloatType;
use overtone_cuda::arguments::{NormArguments, NormRowsArguments, ProductArguments};
use overtone_cuda::kernels::Kernel;
use overtone_cuda::layout::{MatrixShape, MatrixShapes, PAIR, TILE_COLUMNS};
use overtone_cuda::plan::Launch;
use overtone_cuda::product::norm_shared_bytes;

use crate::gated::{self, gated};
use crate::host::fixtures::FLOAT_TYPES;
use crate::host::fixtures::random::Random;
use crate::host::fragments::unpacked_activations;
use crate::host::{Host, Memory, subnormal_roundoff, unit_roundoff};
use crate::product::{packed, plain, random_rows, sums, true_spec};

const EPSILON: f32 = 1e-6;

/// A residual stream, what is to be added to it, and the norm's weight.
struct Stream {
    width: usize,
    columns: usize,
    partial_count: usize,
    first_column: usize,
    residual: Vec<f32>,
    partials: Vec<f32>,
    weight: Vec<f32>,
    memory: [Memory; 3],
    kept: Memory,
}

impl Stream {
    fn new(width: usize, columns: usize, first_column: usize, partial_count: usize) -> Self {
        let mut random = Random::new((width * 64 + columns) as u64);
        let all = first_column + columns;
        let residual = random.normals(all * width, 2.0);
        let partials = random.normals(partial_count * all * width, 1.0);
        let weight = random.normals(width, 1.0);
        let memory = [&residual, &partials, &weight].map(|values| Memory::of(values));
        let kept = Memory::of_nan(all * width);
        Self { width, columns, partial_count, first_column, residual, partials, weight, memory, kept }
    }

    fn arguments(&self) -> NormArguments {
        let [residual, partials, weight] = self.memory.each_ref().map(Memory::address);
        NormArguments {
            residual,
            partials,
            residual_out: self.kept.address(),
            weight,
            partial_count: self.partial_count as u32,
            partial_columns: (self.first_column + self.columns) as u32,
            first_column: self.first_column as u32,
            width: self.width as u32,
            epsilon: EPSILON,
            reserved: 0,
        }
    }

    /// A column of the residual stream with its partial sums: float32, added in order.
    fn taken_in(&self, column: usize) -> Vec<f32> {
        let all = self.first_column + self.columns;
        let at = |input: usize| {
            let partial = |index: usize| self.partials[(index * all + column) * self.width + input];
            let residual = self.residual[column * self.width + input];
            (0..self.partial_count).fold(residual, |sum, index| sum + partial(index))
        };
        (0..self.width).map(at).collect()
    }

    /// Checks what was kept: the columns normalised, and nothing else.
    fn check_kept(&self) {
        let kept = self.kept.read::<f32>((self.first_column + self.columns) * self.width);
        for (column, kept) in kept.chunks(self.width).enumerate() {
            if column < self.first_column {
                assert!(kept.iter().all(|value| value.is_nan()), "column {column} is not normalised");
            } else {
                assert_eq!(kept, self.taken_in(column), "width {}, column {column}", self.width);
            }
        }
    }
}

fn norm_rows(float_type: FloatType, stream: &Stream, normed: &Memory, pairs: usize) -> Launch {
    let arguments = NormRowsArguments {
        norm: stream.arguments(),
        normed: normed.address(),
        pairs: pairs as u32,
        streams: 0,
    };
    let spec = ModelSpec { hidden_size: stream.width, ..true_spec() };
    Launch::new(Kernel::NormRows(float_type), [stream.columns, 1], &arguments)
        .shared(norm_shared_bytes(&spec))
}

/// Activations of zeros: norms leave what lies beyond the width as it is.
fn zero_activations(float_type: FloatType, columns: usize, pairs: usize) -> Memory {
    Memory::zeroed((columns.next_multiple_of(TILE_COLUMNS) * pairs * PAIR * float_type.size()) as u64)
}

#[test]
fn rows_are_normalised_with_what_was_left_for_them_and_the_sum_is_kept() {
    for float_type in FLOAT_TYPES {
        for (width, columns, first_column, partial_count) in
            [(4, 1, 0, 0), (36, 3, 2, 2), (64, 9, 0, 1), (1024, 2, 3, 2), (1028, 3, 0, 2), (2052, 10, 1, 3)]
        {
            let stream = Stream::new(width, columns, first_column, partial_count);
            let pairs = width.div_ceil(PAIR);
            let normed = zero_activations(float_type, columns, pairs);
            Host::NATURAL.go(&[norm_rows(float_type, &stream, &normed, pairs)]);
            stream.check_kept();
            let elements = columns.next_multiple_of(TILE_COLUMNS) * pairs * PAIR;
            let normed = unpacked_activations(float_type, &normed.read_floats(float_type, elements), pairs);
            // A square passes through the sums of its thread, its warp and the block; the root halves that. The mean, ε, the
            // root (2 units), and the two products follow.
            let roundings = (width.div_ceil(1024) * 4 + 5 + 3) / 2 + 8;
            let bound =
                roundings as f64 * unit_roundoff(FloatType::Float32) + 1.001 * unit_roundoff(float_type);
            for (column, normed) in normed.iter().take(columns).enumerate() {
                let values = stream.taken_in(first_column + column);
                let squares: f64 = values.iter().map(|value| f64::from(*value).powi(2)).sum();
                let scale = 1.0 / (squares / width as f64 + f64::from(EPSILON)).sqrt();
                for (input, value) in values.iter().enumerate() {
                    let expected = f64::from(*value) * scale * f64::from(stream.weight[input]);
                    let found = f64::from(normed[input]);
                    let bound = bound * expected.abs() + subnormal_roundoff(float_type);
                    assert!(
                        (found - expected).abs() <= bound,
                        "{float_type} width {width} column {column} input {input}: {found}, not {expected}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_row_of_zeros_is_normalised_to_zeros() {
    let mut stream = Stream::new(36, 1, 0, 0);
    stream.memory[0] = Memory::zeroed(36 * 4);
    let normed = zero_activations(FloatType::Float32, 1, 2);
    Host::NATURAL.go(&[norm_rows(FloatType::Float32, &stream, &normed, 2)]);
    assert!(normed.read::<f32>(2 * PAIR * TILE_COLUMNS).iter().all(|value| *value == 0.0));
}

/// Bits of a product that normalises by itself, and of the norm's kernel with a product behind it.
fn check_in_place(float_type: FloatType, matrix: MatrixShape, columns: usize) {
    let mut random = Random::new(3);
    let deviation = 1.0 / (matrix.inputs as f32).sqrt();
    let mut weights = || random_rows(&mut random, float_type, matrix.outputs, matrix.inputs, deviation);
    let packed = if matrix.gated {
        gated::packed(float_type, matrix, &weights(), &weights())
    } else {
        packed(float_type, matrix, &weights())
    };
    let spec = ModelSpec { hidden_size: matrix.inputs, ..true_spec() };
    let run = |arguments: ProductArguments| {
        let arguments = ProductArguments { weights: packed.address(), columns: columns as u32, ..arguments };
        if matrix.gated {
            let [values, rests] = gated::run(float_type, matrix, columns, arguments);
            let rests = if float_type == FloatType::Float16 { rests } else { Vec::new() };
            values.into_iter().chain(rests).flatten().collect()
        } else {
            sums(&spec, float_type, matrix, columns, arguments).0
        }
    };
    let (apart, in_place) = [(); 2].map(|()| Stream::new(matrix.inputs, columns, 1, 2)).into();
    let normed = zero_activations(float_type, columns, matrix.total_pairs());
    Host::NATURAL.go(&[norm_rows(float_type, &apart, &normed, matrix.total_pairs())]);
    let expected = run(ProductArguments { activations: normed.address(), ..ProductArguments::default() });
    let found = run(ProductArguments { norm: in_place.arguments(), ..ProductArguments::default() });
    assert!(expected.iter().all(|value| value.is_finite()));
    assert!(found == expected, "{float_type} {matrix:?}, {columns} columns");
    in_place.check_kept();
}

#[test]
fn a_product_normalises_its_input_as_the_norm_kernel_does_bit_for_bit() {
    for float_type in FLOAT_TYPES {
        for columns in [1, 3, 8] {
            check_in_place(float_type, plain(20, 36, 1), columns);
            check_in_place(float_type, plain(4100, 68, 1), columns);
            check_in_place(float_type, gated(50, 36), columns);
        }
        let shapes = MatrixShapes::new(&true_spec());
        for matrix in [shapes.query_key_value, shapes.gate_up, shapes.head] {
            check_in_place(float_type, matrix, 1);
        }
    }
}
