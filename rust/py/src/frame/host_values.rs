//! Parameters of a frame in host memory: read when it is launched, and counted on afterwards.

use overtone_core::sampling::SamplingParams;

use super::arguments::SamplingTensors;
use crate::dlpack::access::Scalar;
use crate::dlpack::import::ImportedTensor;
use crate::errors::Raised;

/// Reads a whole vector of integers.
///
/// # Errors
/// An `InputError` for a value beyond 64 bits.
pub fn read_integers<'a>(tensor: &ImportedTensor, to: &'a mut Vec<i64>) -> Result<&'a [i64], Raised> {
    to.resize(tensor.view().elements(), 0);
    tensor.read_i64(to)?;
    Ok(to)
}

/// How a row draws.
///
/// # Errors
/// An `InputError` for a parameter out of range.
pub fn params_of(tensors: &SamplingTensors, row: usize) -> Result<SamplingParams, Raised> {
    let float =
        |tensor: &ImportedTensor| tensor.view().get_f32(&[row]).map_err(|error| tensor.inaccessible(&error));
    let params = SamplingParams::from_numbers(
        float(&tensors.temperature)?.into(),
        i64::try_from(integer(&tensors.top_k, row)?).unwrap_or(i64::MAX),
        float(&tensors.top_p)?.into(),
        integer(&tensors.seed, row)? as u64,
    );
    params.map_err(|error| Raised::from(error).context(format!("row {row}")))
}

/// The index of a row's frame; a greedy row needs none.
///
/// # Errors
/// An `InputError` for an index below 0.
pub fn frame_index_of(tensor: &ImportedTensor, row: usize, is_greedy: bool) -> Result<u64, Raised> {
    let found = integer(tensor, if tensor.view().elements() == 1 { 0 } else { row })?;
    match u64::try_from(found) {
        Ok(index) => Ok(index),
        Err(_) if is_greedy => Ok(0),
        Err(_) => Err(unusable(row, found)),
    }
}

/// Adds one to the frame index: to one that counts for all rows, else to those of `rows`.
///
/// # Errors
/// An `InputError` for a tensor that cannot be written.
pub fn advance(
    tensor: &ImportedTensor,
    rows: impl Iterator<Item = usize>,
    scratch: &mut Vec<u8>,
) -> Result<(), Raised> {
    let inaccessible = |error| tensor.inaccessible(&error);
    scratch.resize(tensor.view().size_in_bytes(), 0);
    tensor.view().read_bytes(scratch).map_err(inaccessible)?;
    let (indices, _) = scratch.as_chunks_mut();
    let step = |index: &mut [u8; 8]| *index = u64::from_ne_bytes(*index).wrapping_add(1).to_ne_bytes();
    match indices {
        [only] => step(only),
        all => rows.for_each(|row| step(&mut all[row])),
    }
    tensor.writer()?.write_row_bytes(&[], scratch).map_err(inaccessible)
}

/// One integer of a vector.
///
/// # Errors
/// An `InputError` for a tensor that holds none.
pub fn integer(tensor: &ImportedTensor, row: usize) -> Result<i128, Raised> {
    match tensor.view().scalar(&[row]) {
        Some(Scalar::Integer(value)) => Ok(value),
        _ => Err(tensor.refused("no integers", "integers")),
    }
}

fn unusable(row: usize, found: i128) -> Raised {
    Raised::input(format!("frame_idx of row {row} is {found}: a sampled frame needs its index"))
        .tensor("frame_idx")
        .found(found.to_string())
        .expected("0 or above")
}
