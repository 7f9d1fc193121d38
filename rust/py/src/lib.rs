//! `overtone._core`: the boundary between Python and the engine.
//!
//! | room | what it holds |
//! |---|---|
//! | [`dlpack`] | tensors in from any producer, and out to any consumer, without a copy |
//! | [`streams`] | CUDA streams of other libraries: what a `stream` argument means |
//! | [`device_memory`] | CUDA memory as the boundary meets it: whose it is, in which order, and out to the host |
//! | [`tensor`] | `overtone.Tensor`: the tensors that overtone hands out |
//! | [`enter`] | the one way from Python into long Rust work: GIL released, panics caught, Ctrl-C heard |
//! | [`errors`], [`causes`] | the exceptions of `overtone.errors`, raised from Rust |
//! | [`spec`] | `overtone.ModelSpec` |
//! | [`frame`] | a frame's tensors, as every executor meets them |
//! | [`ragged`] | steps of batches whose rows bring different numbers of tokens, as every executor meets them |
//! | [`executor`], [`arena`] | the CPU executor |
//! | [`cuda`] | the CUDA executor |
//! | [`sampling`] | sampling parameters, checked |
//! | [`drafts`] | fitted drafts: what a fit reads, and its file |
//! | [`speculation`] | speculation as it is asked for, and its counters |
//! | [`files`] | synthetic checkpoints, and safetensors files of frames and codes |
//!
//! Model, sampling and frames live in `overtone-core`; nothing here computes.

use overtone_core::checkpoint::synthetic::Architecture;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

pub mod arena;
pub mod causes;
pub mod cuda;
pub mod device_memory;
pub mod dlpack;
pub mod drafts;
pub mod enter;
pub mod errors;
pub mod executor;
pub mod files;
pub mod frame;
pub mod ragged;
pub mod sampling;
pub mod spec;
pub mod speculation;
pub mod streams;
pub mod tensor;
#[cfg(test)]
mod testing;

#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<tensor::Tensor>()?;
    module.add_class::<spec::PyModelSpec>()?;
    module.add_class::<executor::CpuExecutor>()?;
    module.add_class::<executor::prepared::PreparedFrame>()?;
    module.add_class::<executor::ragged::RaggedPlan>()?;
    module.add_class::<cuda::CudaExecutor>()?;
    module.add_class::<cuda::prepared::CudaPreparedFrame>()?;
    module.add_class::<cuda::completion::PyCompletion>()?;
    module.add_class::<cuda::ragged::CudaRaggedPlan>()?;
    module.add_function(wrap_pyfunction!(ragged::check_ragged_config, module)?)?;
    module.add_function(wrap_pyfunction!(cuda::loading::estimate_cuda_memory, module)?)?;
    module.add_function(wrap_pyfunction!(cuda::report::check_cuda, module)?)?;
    module.add_function(wrap_pyfunction!(cuda::report::describe_cuda, module)?)?;
    module.add_function(wrap_pyfunction!(sampling::check_sampling, module)?)?;
    module.add_function(wrap_pyfunction!(executor::loading::estimate_memory, module)?)?;
    module.add_function(wrap_pyfunction!(drafts::check_drafts, module)?)?;
    module.add_function(wrap_pyfunction!(drafts::propose_drafts, module)?)?;
    module.add_function(wrap_pyfunction!(drafts::read_fit_weights, module)?)?;
    module.add_function(wrap_pyfunction!(drafts::write_drafts, module)?)?;
    module.add_function(wrap_pyfunction!(files::describe_checkpoint, module)?)?;
    module.add_function(wrap_pyfunction!(files::make_checkpoint, module)?)?;
    module.add_function(wrap_pyfunction!(files::read_tensors, module)?)?;
    module.add_function(wrap_pyfunction!(files::write_tensors, module)?)?;
    module.add("ARCHITECTURES", PyTuple::new(module.py(), Architecture::NAMES)?)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    Ok(())
}
