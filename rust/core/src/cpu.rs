//! The CPU executor: the embedded default, and the reference that every other executor is held to.
//!
//! It is bound by memory: a frame streams every weight of the body once per step. So weights are packed at load
//! into *panels* that are read strictly forward ([`panels`]), one pass serves the whole batch, and all else stays
//! in the caches.
//!
//! # Arithmetic
//! Activations are float32 whatever the weights are. Every output of a linear layer is one chain of fused
//! multiply-adds over the input features in order, starting from 0; int8 weights meet activations of sixteen bits in
//! exact integer sums (`product/int8.rs`). A lane of a vector register is an output row, so the order is the same
//! for every instruction set, thread count and batch, and so is every bit of the result.
//! Sums inside RMSNorm and attention run over sixteen interleaved chains that are then added pairwise.
//!
//! | room | what it holds |
//! |---|---|
//! | [`panels`] | weight matrices, packed, in memory of `pages` |
//! | [`lanes`] | the lanes of a register, scalar or AVX2 + FMA, chosen at run time |
//! | `product` | matrix × rows, on all threads |
//! | `layer_math` | RMSNorm, rotary embedding, SwiGLU |
//! | `attention` | one stream's attention over its own KV slots |
//! | [`weights`] | a checkpoint's tensors, read and packed |
//! | `body` | passes of the decoder over token rows of any streams, and heads |
//! | [`workspace`] | all that a frame writes before its outputs |
//! | [`team`], [`threads`] | the threads, and how many |
//! | `steps` | the frame itself, step by step |
//! | `rounds` | the same frame in speculative rounds |
//! | `drafts` | fitted drafts, packed |
//! | [`executor`] | all of these together: what others load and run |

mod attention;
mod body;
mod drafts;
pub mod executor;
pub mod lanes;
mod layer_math;
mod pages;
pub mod panels;
mod product;
mod rounds;
mod steps;
pub mod team;
pub mod threads;
pub mod weights;
pub mod workspace;

pub use executor::CpuExecutor;
pub use lanes::InstructionSet;
pub use panels::WeightType;

#[cfg(test)]
mod tests;
