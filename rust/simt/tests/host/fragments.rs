//! Packed weights and activations, read as the instructions read them: the tables of `mma.m16n8k16` in the PTX manual, and
//! the layout that `kernels/fragments.cuh` gives float32. The kernels go the other way, from coordinates to places.

use overtone_core::tensor::FloatType;
use overtone_cuda::layout::{PAIR, TILE_COLUMNS, TILE_ROWS};

/// (row, input) that element `place` of a tile's pair of steps holds.
fn weight_at(float_type: FloatType, place: usize) -> (usize, usize) {
    let step = place / (TILE_ROWS * PAIR / 2);
    if float_type == FloatType::Float32 {
        let (half, lane, element) = (place % 256 / 128, place % 128 / 4, place % 4);
        return (half * 8 + lane / 4, step * 16 + lane % 4 * 4 + element);
    }
    let (lane, element) = (place % 256 / 8, place % 8);
    let row = if matches!(element, 0 | 1 | 4 | 5) { lane / 4 } else { lane / 4 + 8 };
    let input = lane % 4 * 2 + element % 2 + if element < 4 { 0 } else { 8 };
    (row, step * 16 + input)
}

/// (column, input) that element `place` of a tile of columns holds.
fn activation_at(float_type: FloatType, place: usize) -> (usize, usize) {
    if float_type == FloatType::Float32 {
        return (place % 32 / 4, place / 32 * 4 + place % 4);
    }
    let (pair, lane, element) = (place / 256, place % 256 / 8, place % 8);
    let (step, of_step) = (element / 4, element % 4);
    let input = lane % 4 * 2 + of_step % 2 + if of_step < 2 { 0 } else { 8 };
    (lane / 4, pair * PAIR + step * 16 + input)
}

/// Packed weights as [row tiles · 16][pairs · 32].
pub fn unpacked_weights(float_type: FloatType, packed: &[f32], pairs: usize) -> Vec<Vec<f32>> {
    let mut rows = vec![vec![f32::NAN; pairs * PAIR]; packed.len() / (pairs * PAIR)];
    for (number, piece) in packed.chunks(TILE_ROWS * PAIR).enumerate() {
        for (place, value) in piece.iter().enumerate() {
            let (row, input) = weight_at(float_type, place);
            rows[number / pairs * TILE_ROWS + row][number % pairs * PAIR + input] = *value;
        }
    }
    rows
}

/// Activations as [columns, rounded up to whole tiles][pairs · 32].
pub fn unpacked_activations(float_type: FloatType, packed: &[f32], pairs: usize) -> Vec<Vec<f32>> {
    let width = pairs * PAIR;
    let mut columns = vec![vec![f32::NAN; width]; packed.len() / width];
    for (tile, elements) in packed.chunks(width * TILE_COLUMNS).enumerate() {
        for (place, value) in elements.iter().enumerate() {
            let (column, input) = activation_at(float_type, place);
            columns[tile * TILE_COLUMNS + column][input] = *value;
        }
    }
    columns
}
