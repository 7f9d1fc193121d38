//! Tensors across the boundary, without a copy.
//!
//! | room | what it holds |
//! |---|---|
//! | [`abi`] | the C structs of DLPack, legacy and versioned, and the capsule names |
//! | [`element`] | element types and their names in DLPack, NumPy and overtone |
//! | [`device`] | where a tensor lives |
//! | [`view`] | shape, strides and the bytes they cover: the checks every tensor passes |
//! | [`access`] | reading and writing rows of a strided view in host memory |
//! | [`exchange`] | the C exchange table of a library's tensors, the fast way in |
//! | [`import`] | [`ImportedTensor`](import::ImportedTensor): an argument, from whichever protocol it speaks |
//! | [`expect`] | checks of place, shape and type with messages that name found and expected |
//! | [`export`] | capsules that keep their memory alive |
//!
//! **Memory shared with Python.** A view covers memory that Python, or another library, may read or write at any
//! time; no lock is taken. As with NumPy, whoever writes while another thread reads gets torn values. So that this
//! stays a matter of values, shared memory is only touched through raw pointers, one element or row at a time, and
//! no `&mut` to it ever exists; a `&[u8]` needs the caller's promise ([`view::StridedView::as_bytes`]).

pub mod abi;
pub mod access;
pub mod device;
pub mod element;
pub mod exchange;
pub mod expect;
pub mod export;
pub mod import;
pub mod view;

#[cfg(test)]
mod tests;
