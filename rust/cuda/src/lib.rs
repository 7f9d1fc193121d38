//! The CUDA executor of overtone: the one crate that names cudarc.
//!
//! | room | what it holds |
//! |---|---|
//! | [`driver`] | the boundary to the driver: the guard before it, contexts, memory, streams, events, graphs, launches |
//! | [`kernels`] | the kernels embedded in this build: which there are, what each takes, and where a context has them |
//! | [`arguments`], [`frame`] | what the kernels take, field by field, and what a frame's tensors are |
//! | [`layout`] | where everything lies on the device |
//! | [`plan`], [`product`] | a frame as a list of launches |
//! | [`rounds`] | a frame in speculative rounds, likewise |
//! | [`ragged_step`] | the layout of a step whose rows bring different numbers of tokens, as one launch |
//! | [`machine`], [`graphs`] | what launches run on: a stream, or a graph for each batch size |
//! | [`round_stream`], [`kv_lengths`] | speculative rounds of any engine, issued blind and read once; the lengths that they roll back |
//! | [`load`] | a checkpoint's tensors, made into what a frame reads |
//! | [`support`] | what the kernels can run |
//! | [`executor`] | a predictor on one device |
//!
//! Nothing here needs a GPU, a driver or CUDA to be linked or loaded: [`driver::Driver::get`] says what is missing.

pub mod arguments;
pub mod driver;
pub mod executor;
pub mod frame;
pub mod graphs;
pub mod kernels;
pub mod kv_lengths;
pub mod layout;
pub mod load;
pub mod machine;
pub mod plan;
pub mod product;
pub mod ragged_step;
pub mod round_stream;
pub mod rounds;
pub mod support;
