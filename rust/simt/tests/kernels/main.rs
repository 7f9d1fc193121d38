//! Every kernel of `kernels/` by itself, at small odd sizes and at those of the true architecture, against plain float64
//! arithmetic on the numbers as they are stored. Bounds are of the rounding errors that the stated order of operations can
//! make: what is computed wrongly, left out or taken twice is far beyond them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../host/mod.rs"]
mod host;

mod arithmetic;
mod attended;
mod attention;
mod begin;
mod drawing;
mod gated;
mod loading;
mod norm;
mod product;
mod ragged_step;
mod round_stream;
mod row_state;
mod sampling;
mod upload;
