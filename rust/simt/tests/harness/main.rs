//! The harness itself, on kernels of its own (`self_test_kernels/`): what it promises the kernels' tests, and that those
//! tests can fail.

mod atomics;
mod barriers;
mod faults;
mod kernel_table;
mod memory;
mod scalars;
mod schedules;
mod warps;

use bytemuck::{Pod, Zeroable};
use overtone_simt::{GuardedBuffer, LaunchError, Schedule, kernel, launch};

/// The natural order and seeds of all three depths.
const SCHEDULES: [Schedule; 7] = [
    Schedule::Natural,
    Schedule::Seeded(0),
    Schedule::Seeded(1),
    Schedule::Seeded(2),
    Schedule::Seeded(3),
    Schedule::Seeded(4),
    Schedule::Seeded(u64::MAX),
];

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct ValuesArguments {
    input: u64,
    output: u64,
    count: u32,
    parameter: u32,
}

/// Launches by name; the arguments' addresses are of buffers that the caller holds.
fn run<A: Pod>(
    name: &str,
    blocks: u32,
    block: u32,
    shared_bytes: usize,
    arguments: A,
    schedule: Schedule,
) -> Result<(), LaunchError> {
    let kernel = kernel(name).expect("a test kernel");
    // SAFETY: the tests' kernels stay within the buffers that the tests pass, which no one else uses meanwhile; where they
    // are made to leave them, guard pages catch it.
    unsafe { launch(kernel, [blocks, 1, 1], block, shared_bytes, bytemuck::bytes_of(&arguments), schedule) }
}

fn numbers(count: usize) -> Vec<u32> {
    (0..count as u32).map(|i| i.wrapping_mul(2_654_435_761) >> 7).collect()
}

fn buffer(count: usize) -> GuardedBuffer<u32> {
    GuardedBuffer::filled_with_byte(count, 0xff)
}
