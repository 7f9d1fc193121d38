//! One draw: a pure function of (logits, parameters, seed, frame, codebook).
//!
//! A code is the argmax over the kept entries of logits / temperature + noise, where the noise is Gumbel
//! noise counted by (seed, frame, codebook, entry). No state survives a draw, and the stream's place in a
//! batch is no part of the counter: a row draws the same code alone and among others, on the CPU and on a
//! GPU.
//!
//! | file | what it holds |
//! |---|---|
//! | [`math`] | `ln` and `exp` as fixed sequences of IEEE operations, the same on every device |
//! | [`philox`] | the counter-based generator |
//! | [`gumbel`] | from the generator's words to noise |
//! | [`params`] | temperature, filters and seed, checked when given |
//! | [`filter`] | which entries top_k and top_p keep |
//! | [`draw`] | the draw itself, and how a row fails |
//! | [`draft`] | the best draws of a row, as guesses |
//!
//! Which frame and codebook are drawn, and what becomes of a failed row, is left to the executors.

pub mod draft;
pub mod draw;
pub mod filter;
pub mod gumbel;
pub mod math;
pub mod params;
pub mod philox;

#[cfg(test)]
mod tests;

pub use draw::{DrawFailure, Sampler};
pub use params::{SamplingError, SamplingParams};
