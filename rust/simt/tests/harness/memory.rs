//! Shared memory at the start of a block, asynchronous copies, guarded buffers.

use bytemuck::{Pod, Zeroable};
use overtone_simt::{GuardedBuffer, MAX_SHARED_BYTES};

use crate::{SCHEDULES, buffer, numbers, run};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct MemoryArguments {
    input: u64,
    output: u64,
    wait: u32,
    reserved: u32,
}

#[test]
fn every_block_finds_its_shared_memory_poisoned() {
    for schedule in SCHEDULES {
        for bytes in [4, 100, 4096, 5000, MAX_SHARED_BYTES] {
            // Blocks run one after the other here and there: what one left must not be seen by the next.
            let output = GuardedBuffer::<u32>::zeroed(4 * (bytes / 4));
            let arguments = MemoryArguments { input: 0, output: output.address(), wait: 0, reserved: 0 };
            run("simt_test_poison", 4, 64, bytes, arguments, schedule).unwrap();
            assert!(output.as_slice().iter().all(|word| *word == u32::MAX), "{bytes} bytes, {schedule:?}");
        }
    }
}

#[test]
fn a_copy_lands_when_it_is_waited_for_and_not_before() {
    let threads = 2 * 64;
    let input = GuardedBuffer::from_slice(&numbers(threads * 8));
    for schedule in SCHEDULES {
        for wait in [0, 1] {
            let output = buffer(threads * 8);
            let arguments =
                MemoryArguments { input: input.address(), output: output.address(), wait, reserved: 0 };
            run("simt_test_copies", 2, 64, 64 * 32, arguments, schedule).unwrap();
            for (given, found) in input.as_slice().chunks(8).zip(output.as_slice().chunks(8)) {
                assert_eq!(found[..4], given[..4], "{schedule:?}");
                // Of the second copy eight bytes have a source, the rest is zero.
                let landed = [given[4], given[5], 0, 0];
                assert_eq!(found[4..], if wait == 1 { landed } else { [u32::MAX; 4] }, "{schedule:?}");
            }
        }
    }
}

#[test]
fn guarded_buffers_hold_what_they_are_given() {
    for len in [0, 1, 3, 4, 1023, 1024, 1025, 70_000] {
        let values: Vec<u16> = (0..len).map(|i| i as u16).collect();
        let mut buffer = GuardedBuffer::from_slice(&values);
        assert_eq!(buffer.as_slice(), values);
        assert_eq!(buffer.address() % 16, 0);
        buffer.as_mut_slice().fill(7);
        assert!(buffer.clone().as_slice().iter().all(|value| *value == 7));
    }
}
