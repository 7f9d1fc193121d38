//! Packed products against plain loops.

use crate::cpu::lanes::{InstructionSet, LANES, Lane16};
use crate::cpu::panels::{PanelMatrix, WeightType};
use crate::cpu::product::int8::integer_blocks;
use crate::cpu::product::{ActivationRows, Finish, product};
use crate::cpu::team::Team;
use crate::tensor::{FloatType, TensorView};
use half::bf16;
use proptest::prelude::*;

/// One output by the documented arithmetic, in plain loops.
fn expected(weight_type: WeightType, weights: &[f32], inputs: &[f32]) -> f32 {
    let chain = |widen: fn(f32) -> f32| {
        weights.iter().zip(inputs).fold(0.0_f32, |sum, (&weight, input)| widen(weight).mul_add(*input, sum))
    };
    match weight_type {
        WeightType::Float32 => chain(|weight| weight),
        WeightType::BFloat16 => chain(|weight| bf16::from_f32(weight).to_f32()),
        WeightType::Int8 => {
            let largest = |row: &[f32]| row.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
            let (scale, step) = (largest(weights) / 127.0, largest(inputs) / 32767.0);
            let inverse = if step > 0.0 { 32767.0 / largest(inputs) } else { 0.0 };
            let product = |(weight, input): (&f32, &f32)| {
                let weight = if scale > 0.0 { (weight / scale).round_ties_even() as i64 } else { 0 };
                weight * (input * inverse).round_ties_even() as i64
            };
            let blocks = weights.chunks(512).zip(inputs.chunks(512));
            let sums = blocks.map(|(weights, inputs)| weights.iter().zip(inputs).map(product).sum::<i64>());
            sums.fold(0.0_f32, |total, sum| total + sum as f32) * step * scale
        }
    }
}

/// A strategy's number as a weight of mixed magnitudes.
fn number(seed: u32, index: usize) -> f32 {
    let mixed = (seed ^ index as u32).wrapping_mul(0x9e37_79b9).rotate_left(13).wrapping_mul(0x85eb_ca6b);
    (mixed as i32 as f32) / 2_f32.powi(31 + (mixed % 5) as i32)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Bit for bit, whatever the instructions, for every remainder of panels, features and rows.
    #[test]
    fn a_product_follows_the_documented_arithmetic(
        outputs in 1_usize..150,
        inputs in prop_oneof![1_usize..300, 500_usize..540],
        rows in 1_usize..20,
        kind in 0_usize..3,
        seed in any::<u32>(),
    ) {
        let weight_type = [WeightType::Float32, WeightType::BFloat16, WeightType::Int8][kind];
        let weights: Vec<f32> = (0..outputs * inputs).map(|index| number(seed, index)).collect();
        let bytes: Vec<u8> = weights.iter().flat_map(|weight| weight.to_le_bytes()).collect();
        let shape = [outputs, inputs];
        let mut team = Team::new(2).unwrap();
        let mut matrix = PanelMatrix::new(weight_type, outputs, inputs).unwrap();
        matrix.pack(&mut team, TensorView { float_type: FloatType::Float32, shape: &shape, bytes: &bytes }, |row| {
            (row < outputs).then_some(row)
        });
        let blocks = inputs.div_ceil(LANES);
        let mut activations = vec![[f32::NAN; LANES]; rows * blocks];
        for (row, blocks) in activations.chunks_exact_mut(blocks).enumerate() {
            for (input, value) in blocks.as_flattened_mut()[..inputs].iter_mut().enumerate() {
                *value = number(!seed, row * inputs + input);
            }
        }
        let mut integers = vec![[f32::NAN; LANES]; rows * integer_blocks(inputs)];
        for instructions in [InstructionSet::Scalar, InstructionSet::detect()] {
            let mut found: Vec<Lane16> = vec![[f32::NAN; LANES]; outputs.div_ceil(LANES) * rows];
            let rows_in = ActivationRows::row_major(&activations, rows);
            product(&mut team, instructions, &matrix, rows_in, &mut integers, &mut found, Finish::Keep);
            for row in 0..rows {
                let input = &activations[row * blocks..(row + 1) * blocks].as_flattened()[..inputs];
                for output in 0..outputs {
                    let weights = &weights[output * inputs..(output + 1) * inputs];
                    let expected = expected(weight_type, weights, input);
                    prop_assert_eq!(found[output / LANES * rows + row][output % LANES], expected);
                }
            }
        }
    }
}

/// The largest products there are, in a block as long as there is: nothing may overflow.
#[test]
fn integer_sums_hold_the_largest_products() {
    for inputs in [512, 1024, 1100] {
        let bytes: Vec<u8> = (0..16 * inputs).flat_map(|_| (-3.0_f32).to_le_bytes()).collect();
        let mut team = Team::new(2).unwrap();
        let mut matrix = PanelMatrix::new(WeightType::Int8, 16, inputs).unwrap();
        matrix.pack(
            &mut team,
            TensorView { float_type: FloatType::Float32, shape: &[16, inputs], bytes: &bytes },
            Some,
        );
        let mut integers = vec![[0.0; LANES]; integer_blocks(inputs)];
        let activations = vec![[-2.0; LANES]; inputs.div_ceil(LANES)];
        for instructions in [InstructionSet::Scalar, InstructionSet::detect()] {
            let mut found = vec![[f32::NAN; LANES]];
            let rows = ActivationRows::row_major(&activations, 1);
            product(&mut team, instructions, &matrix, rows, &mut integers, &mut found, Finish::Keep);
            let exact = 6.0 * inputs as f32;
            assert!(found[0].iter().all(|value| (value - exact).abs() < 1e-6 * exact), "{found:?}");
        }
    }
}

/// A row that is not finite may not look finite after rounding, and its neighbour must not notice.
#[test]
fn an_activation_row_that_is_not_finite_fails_alone() {
    for poison in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let bytes: Vec<u8> = (0..16 * 16).flat_map(|index| number(3, index).to_le_bytes()).collect();
        let mut team = Team::new(2).unwrap();
        let mut matrix = PanelMatrix::new(WeightType::Int8, 16, 16).unwrap();
        matrix.pack(
            &mut team,
            TensorView { float_type: FloatType::Float32, shape: &[16, 16], bytes: &bytes },
            Some,
        );
        let mut activations = [[1.0; LANES]; 2];
        activations[0][5] = poison;
        let mut integers = vec![[0.0; LANES]; 2 * integer_blocks(16)];
        let mut found = vec![[0.0; LANES]; 2];
        let rows = ActivationRows::row_major(&activations, 2);
        product(&mut team, InstructionSet::detect(), &matrix, rows, &mut integers, &mut found, Finish::Keep);
        assert!(found[0].iter().all(|value| value.is_nan()), "{poison}: {found:?}");
        assert!(found[1].iter().all(|value| value.is_finite()), "{poison}: {found:?}");
    }
}

#[test]
fn a_row_of_zeros_quantises_to_zeros() {
    let bytes = vec![0; 4 * 16 * 4];
    let mut team = Team::new(2).unwrap();
    let mut matrix = PanelMatrix::new(WeightType::Int8, 16, 4).unwrap();
    matrix.pack(
        &mut team,
        TensorView { float_type: FloatType::Float32, shape: &[16, 4], bytes: &bytes },
        Some,
    );
    let mut found = vec![[f32::NAN; LANES]];
    product(
        &mut team,
        InstructionSet::detect(),
        &matrix,
        ActivationRows::row_major(&[[1.0; LANES]], 1),
        &mut [[0.0; LANES]; integer_blocks(4)],
        &mut found,
        Finish::Keep,
    );
    assert_eq!(found, [[0.0; LANES]]);
}
