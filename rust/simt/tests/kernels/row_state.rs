//! Rows and frames as the kernels find them in memory.

use bytemuck::{Pod, Zeroable};
use overtone_cuda::arguments::ElementType;
use overtone_cuda::frame::TensorReference;

use crate::host::Memory;

/// `RowState` of `kernels/frame_arguments.cuh`, field by field.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct RowState {
    pub temperature: f32,
    pub top_k: u32,
    pub top_p: f32,
    pub status: i32,
    pub seed: u64,
    pub frame_index: u64,
    pub codes: u64,
    pub active: u32,
    pub parameters_out_of_range: u32,
}

/// A tensor in a test's memory.
pub fn tensor(memory: &Memory, element: ElementType, strides: &[i64], extent: usize) -> TensorReference {
    TensorReference::new(memory.address(), element, strides, extent)
}
