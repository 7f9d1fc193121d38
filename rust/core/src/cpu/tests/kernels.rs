//! Packed products against plain loops.

use crate::cpu::lanes::{INT8_BIAS, InstructionSet, LANES, Lane16, int8_byte};
use crate::cpu::panels::{PanelMatrix, WeightType};
use crate::cpu::product::{ActivationRows, Finish, product};
use crate::tensor::{FloatType, TensorView};
use half::bf16;
use proptest::prelude::*;

/// The weights a packed matrix stands for, by the documented rounding.
fn rounded(weight_type: WeightType, weights: &[f32], inputs: usize) -> (Vec<f32>, Vec<f32>) {
    let mut scales = vec![1.0; weights.len() / inputs];
    let values = match weight_type {
        WeightType::Float32 => weights.to_vec(),
        WeightType::BFloat16 => weights.iter().map(|&weight| bf16::from_f32(weight).to_f32()).collect(),
        WeightType::Int8 => weights
            .chunks(inputs)
            .zip(&mut scales)
            .flat_map(|(row, scale)| {
                *scale = row.iter().fold(0.0_f32, |largest, weight| largest.max(weight.abs())) / 127.0;
                let scale = *scale;
                row.iter()
                    .map(move |weight| if scale > 0.0 { (weight / scale).round_ties_even() } else { 0.0 })
            })
            .collect(),
    };
    (values, scales)
}

/// A strategy's number as a weight of mixed magnitudes.
fn number(seed: u32, index: usize) -> f32 {
    let mixed = (seed ^ index as u32).wrapping_mul(0x9e37_79b9).rotate_left(13).wrapping_mul(0x85eb_ca6b);
    (mixed as i32 as f32) / 2_f32.powi(31 + (mixed % 5) as i32)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Every output is the chain of fused multiply-adds over the features in order, bit for bit.
    #[test]
    fn a_product_is_one_fused_chain_per_output(
        outputs in 1_usize..150,
        inputs in 1_usize..300,
        rows in 1_usize..11,
        kind in 0_usize..3,
        seed in any::<u32>(),
    ) {
        let weight_type = [WeightType::Float32, WeightType::BFloat16, WeightType::Int8][kind];
        let weights: Vec<f32> = (0..outputs * inputs).map(|index| number(seed, index)).collect();
        let bytes: Vec<u8> = weights.iter().flat_map(|weight| weight.to_le_bytes()).collect();
        let shape = [outputs, inputs];
        let mut matrix = PanelMatrix::new(weight_type, outputs, inputs);
        matrix.pack(TensorView { float_type: FloatType::Float32, shape: &shape, bytes: &bytes }, |row| {
            (row < outputs).then_some(row)
        });
        let blocks = inputs.div_ceil(LANES);
        let mut activations = vec![[f32::NAN; LANES]; rows * blocks];
        for (row, blocks) in activations.chunks_exact_mut(blocks).enumerate() {
            for (input, value) in blocks.as_flattened_mut()[..inputs].iter_mut().enumerate() {
                *value = number(!seed, row * inputs + input);
            }
        }
        let (values, scales) = rounded(weight_type, &weights, inputs);
        for instructions in [InstructionSet::Scalar, InstructionSet::detect()] {
            let mut found: Vec<Lane16> = vec![[f32::NAN; LANES]; outputs.div_ceil(LANES) * rows];
            product(instructions, &matrix, ActivationRows::row_major(&activations, rows), &mut found, Finish::Keep);
            for row in 0..rows {
                let input = &activations[row * blocks..(row + 1) * blocks].as_flattened()[..inputs];
                for output in 0..outputs {
                    let chain = values[output * inputs..(output + 1) * inputs]
                        .iter()
                        .zip(input)
                        .fold(0.0_f32, |sum, (weight, input)| weight.mul_add(*input, sum));
                    let expected = if weight_type == WeightType::Int8 { chain * scales[output] } else { chain };
                    prop_assert_eq!(found[output / LANES * rows + row][output % LANES], expected);
                }
            }
        }
    }
}

#[test]
fn int8_bytes_of_a_pair_have_places_of_their_own() {
    let mut places: Vec<_> =
        (0..2).flat_map(|feature| (0..LANES).map(move |lane| int8_byte(feature, lane))).collect();
    places.sort_unstable();
    assert_eq!(places, (0..2 * LANES).collect::<Vec<_>>());
    assert_eq!(INT8_BIAS, 128);
}

#[test]
fn a_row_of_zeros_quantises_to_zeros() {
    let bytes = vec![0; 4 * 16 * 4];
    let mut matrix = PanelMatrix::new(WeightType::Int8, 16, 4);
    matrix.pack(TensorView { float_type: FloatType::Float32, shape: &[16, 4], bytes: &bytes }, Some);
    let mut found = vec![[f32::NAN; LANES]];
    product(
        InstructionSet::detect(),
        &matrix,
        ActivationRows::row_major(&[[1.0; LANES]], 1),
        &mut found,
        Finish::Keep,
    );
    assert_eq!(found, [[0.0; LANES]]);
}
