//! The promises of the CPU executor, kept on the goldens and on synthetic checkpoints.

mod drafts;
mod fixture;
mod goldens;
mod invariance;
mod kernels;
mod rounds;
