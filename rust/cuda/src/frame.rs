//! What a frame reads and writes outside the predictor: the block that its kernels find it in.

use bytemuck::{Pod, Zeroable};

use crate::arguments::ElementType;
use crate::layout::Address;

/// A tensor on the device, or in pinned host memory, of at most three dimensions: `TensorReference` of
/// `kernels/frame_arguments.cuh`. The default is no tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct TensorReference {
    address: Address,
    strides: [i64; 3],
    element: u32,
    extent: u32,
}

impl TensorReference {
    /// Elements of `element` at `address`, `strides` of them apart in each dimension; `extent` is that of the first.
    pub fn new(address: Address, element: ElementType, strides: &[i64], extent: usize) -> Self {
        let mut padded = [0; 3];
        padded[..strides.len()].copy_from_slice(strides);
        Self { address, strides: padded, element: element as u32, extent: extent as u32 }
    }

    /// Address of the first element; 0 for no tensor.
    pub const fn address(&self) -> Address {
        self.address
    }
}

/// How a row draws, when the host says so: `RowParameters` of `kernels/frame_arguments.cuh`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct RowParameters {
    /// 0 draws the largest logit.
    pub temperature: f32,
    /// Entries kept; 0 keeps all.
    pub top_k: u32,
    /// Mass kept; 1 keeps all.
    pub top_p: f32,
    /// Not 0: the row is left out.
    pub inactive: u32,
    /// Key of the noise.
    pub seed: u64,
    /// Index of the frame.
    pub frame_index: u64,
    /// The talker's code.
    pub code_zero: i64,
}

/// `FrameHeader` of `kernels/frame_arguments.cuh`; [`RowParameters`] of every row follow it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct FrameHeader {
    /// B.
    pub batch: u32,
    /// Whether each launch adds one to the frame's index.
    pub advance_frame_index: u32,
    /// [B, Ht] of floats.
    pub talker_last_hidden: TensorReference,
    /// `[B]` int32 or int64; absent where the rows' own parameters hold it.
    pub code_zero: TensorReference,
    /// `[B]`; absent where all rows take part.
    pub active: TensorReference,
    /// `[B]`, or `[1]` with stride 0; absent where the rows' own parameters hold it.
    pub frame_index: TensorReference,
    /// `[B]` float32; absent where the rows' own parameters hold it and the next three.
    pub temperature: TensorReference,
    /// `[B]` int32 or int64.
    pub top_k: TensorReference,
    /// `[B]` float32.
    pub top_p: TensorReference,
    /// `[B]` of 64 bits.
    pub seed: TensorReference,
    /// [B, C] as [any, B, C], or a ring [M, B, C], int32 or int64.
    pub codes: TensorReference,
    /// `[1]` int64: frames that went into the ring so far; absent without a ring.
    pub ring_slot: TensorReference,
    /// [B, Ht] of floats.
    pub codec_sum: TensorReference,
    /// [B, C, Ht] in the codec tables' type.
    pub codec_hiddens: TensorReference,
    /// `[B]` int32.
    pub status: TensorReference,
    /// [B, R, V] float32; absent where nobody asked.
    pub logits: TensorReference,
    /// E0 [V0, Ht].
    pub code_zero_table: TensorReference,
    /// P(E0) [V0, H]; E0 without a projection.
    pub code_zero_projected: TensorReference,
    /// Zero.
    pub reserved: u64,
}

/// What frames counted since the predictor was loaded: `FrameCounters` of `kernels/frame_arguments.cuh`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct FrameCounters {
    /// Frames.
    pub frames: u64,
    /// Rows that took part.
    pub rows: u64,
    /// Rows whose status was not 0.
    pub failed_rows: u64,
    /// Launches of the frame block at hand.
    pub launches: u64,
}

/// Bytes of a frame block with `rows` rows.
pub const fn block_bytes(rows: usize) -> usize {
    size_of::<FrameHeader>() + rows * size_of::<RowParameters>()
}

/// One frame: its tensors, and how its rows draw.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FrameBlock {
    /// Tensors.
    pub header: FrameHeader,
    /// One for each row of the batch.
    pub rows: Vec<RowParameters>,
}

impl FrameBlock {
    /// Whether the device, once it has launched `held` so many times, has what this frame asks for: the same, with indices that
    /// advanced as they were to.
    pub fn follows(&self, held: &Self, launches: u64) -> bool {
        let counted = self.header.advance_frame_index != 0 && self.header.frame_index.address() == 0;
        let advanced = if counted { launches } else { 0 };
        let follows = |(row, held): (&RowParameters, &RowParameters)| {
            *row == RowParameters { frame_index: held.frame_index.wrapping_add(advanced), ..*held }
        };
        self.header == held.header
            && self.rows.len() == held.rows.len()
            && self.rows.iter().zip(&held.rows).all(follows)
    }

    /// The bytes that the device is to have, into `bytes`.
    pub fn write_to(&self, bytes: &mut Vec<u8>) {
        bytes.clear();
        bytes.extend_from_slice(bytemuck::bytes_of(&self.header));
        bytes.extend_from_slice(bytemuck::cast_slice(&self.rows));
    }
}

const _: () = assert!(size_of::<FrameHeader>() == 656 && size_of::<RowParameters>() == 40);
