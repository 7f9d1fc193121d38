//! What the kernels of `kernels/round_stream.cu` take, field by field as declared there and in
//! `kernels/round_stream.cuh`.

use bytemuck::{Pod, Zeroable};

use crate::layout::Address;

/// `RoundStream` of `kernels/round_stream.cuh`: the buffers, B rows each, int32 where nothing else is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct RoundStreamArguments {
    /// `[B]`.
    pub position: Address,
    /// `[B]`.
    pub round_start: Address,
    /// `[B]`.
    pub pending: Address,
    /// `[B]`.
    pub last_prediction: Address,
    /// `[B]`.
    pub codes_left: Address,
    /// [B, 2].
    pub break_marks: Address,
    /// [B, 2].
    pub accept_counters: Address,
    /// [B, k + 1].
    pub verify_codes: Address,
    /// [B, 4] uint32.
    pub counters: Address,
    /// `[B]` uint32.
    pub flags: Address,
    /// [B, `ring_capacity` + 1].
    pub ring: Address,
    /// B.
    pub batch: u32,
    /// k.
    pub drafts: u32,
    /// Codes that a ring has room for.
    pub ring_capacity: u32,
    /// Codes are less than this.
    pub code_count: u32,
}

/// `AssembleVerifyArguments`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct AssembleVerifyArguments {
    /// The buffers.
    pub stream: RoundStreamArguments,
    /// [B, k] int32.
    pub drafts: Address,
    /// [B, k] float32, or 0.
    pub probabilities: Address,
    /// The least probability of a draft.
    pub p_min: f32,
    /// Zero.
    pub reserved: u32,
}

/// `AcceptArguments`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct AcceptArguments {
    /// The buffers.
    pub stream: RoundStreamArguments,
    /// [B, k + 1] int32.
    pub drawn: Address,
}

/// `RingCommitArguments`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct RingCommitArguments {
    /// The buffers.
    pub stream: RoundStreamArguments,
}

/// `RollbackArguments`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct RollbackArguments {
    /// The buffers.
    pub stream: RoundStreamArguments,
    /// `[table_rows]` addresses of int32 `[B]`, or 0.
    pub table: Address,
    /// Addresses in the table.
    pub table_rows: u32,
    /// Zero.
    pub reserved: u32,
}

/// `SeedGatherArguments`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct SeedGatherArguments {
    /// The buffers.
    pub stream: RoundStreamArguments,
    /// [B, k + 1] rows.
    pub hidden: Address,
    /// `[B]` rows.
    pub seeds: Address,
    /// Bytes of a row.
    pub row_bytes: u64,
}

const _: () = assert!(size_of::<RoundStreamArguments>() == 104);
const _: () = assert!(size_of::<AssembleVerifyArguments>() == 128 && size_of::<AcceptArguments>() == 112);
const _: () = assert!(size_of::<RollbackArguments>() == 120 && size_of::<SeedGatherArguments>() == 128);
