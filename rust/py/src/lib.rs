//! `overtone._core`: the boundary between Python and the engine.
//!
//! | room | what it holds |
//! |---|---|
//! | [`dlpack`] | tensors in from any producer, and out to any consumer, without a copy |
//! | [`tensor`] | `overtone.Tensor`: the tensors that overtone hands out |
//! | [`enter`] | the one way from Python into long Rust work: GIL released, panics caught, Ctrl-C heard |
//! | [`errors`] | the exceptions of `overtone.errors`, raised from Rust |
//!
//! Model, sampling and frames live in `overtone-core`; nothing here computes.

use pyo3::prelude::*;

pub mod dlpack;
pub mod enter;
pub mod errors;
pub mod tensor;
#[cfg(test)]
mod testing;

#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<tensor::Tensor>()?;
    Ok(())
}
