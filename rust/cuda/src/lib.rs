//! The CUDA executor of overtone: the one crate that names cudarc.
//!
//! | room | what it holds |
//! |---|---|
//! | [`driver`] | the boundary to the driver: the guard before it, contexts, memory, streams, events, graphs, launches |
//! | [`kernels`] | the kernels embedded in this build: which there are, what each takes, and where a context has them |
//!
//! Nothing here needs a GPU, a driver or CUDA to be linked or loaded: [`driver::Driver::get`] says what is missing.

pub mod arguments;
pub mod driver;
pub mod executor;
pub mod frame;
pub mod graphs;
pub mod kernels;
pub mod layout;
pub mod load;
pub mod machine;
pub mod plan;
pub mod product;
pub mod support;
