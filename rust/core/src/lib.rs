//! The heart of overtone, without CUDA and without Python.
//!
//! A speech talker emits one code, `code_0`, per 80 ms audio frame; the code predictor turns it and the
//! talker's last hidden state into the frame's residual codes `code_1 … code_R` with a small transformer.
//!
//! | room | what it holds |
//! |---|---|
//! | [`spec`] | [`ModelSpec`](spec::ModelSpec): the architecture, read from `config.json` |
//! | [`tensor`] | element types and borrowed tensors |
//! | [`checkpoint`] | checkpoint directories, checked and read; synthetic checkpoints, written |
//! | [`sampling`] | one draw: a pure function of (logits, parameters, seed, frame, codebook) |
//! | [`rounds`] | speculation: what is drafted, accepted and kept |
//! | [`ragged`] | steps of batches whose rows bring different numbers of tokens |
//! | [`frame`] | what goes into a frame and what comes out of it |
//! | [`cpu`] | the executor that runs a frame on the CPU, and the reference of every other |

pub mod checkpoint;
pub mod cpu;
pub mod frame;
pub mod ragged;
pub mod rounds;
pub mod sampling;
pub mod spec;
pub mod tensor;
