//! Sampling parameters as Python gives them, checked.

use overtone_core::sampling::SamplingParams;
use pyo3::prelude::*;

use crate::errors::Raised;

/// Raise an `InputError` for a sampling parameter that is no number, or out of range.
#[pyfunction]
pub fn check_sampling(
    temperature: &Bound<'_, PyAny>,
    top_k: &Bound<'_, PyAny>,
    top_p: &Bound<'_, PyAny>,
    seed: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let params = SamplingParams::from_numbers(
        number("temperature", temperature, "a finite float32, 0 (greedy) or above")?,
        number("top_k", top_k, "a whole number from 0 (off) to 2^63 - 1")?,
        number("top_p", top_p, "a float32 above 0 and at most 1 (off)")?,
        number("seed", seed, "a whole number from 0 to 2^64 - 1")?,
    );
    params.map_err(Raised::from)?;
    Ok(())
}

/// The sampling parameter `key` as a number of that type.
fn number<'py, T: for<'a> FromPyObject<'a, 'py>>(
    key: &'static str,
    value: &Bound<'py, PyAny>,
    expected: &'static str,
) -> Result<T, Raised> {
    value.extract().map_err(|_| {
        let found = value.repr().map_or_else(|_| "an object".to_owned(), |text| text.to_string());
        Raised::input(format!("{key} is {found}: expected {expected}"))
            .key(key)
            .found(found)
            .expected(expected)
    })
}
