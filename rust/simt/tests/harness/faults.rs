//! What a launch says about kernels that would hang or be undefined on the device. None of it ends the process.

use bytemuck::{Pod, Zeroable};
use overtone_simt::{GuardedBuffer, LaunchError, MAX_SHARED_BYTES, Schedule, kernel, launch};

use crate::{SCHEDULES, run};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct FaultyArguments {
    address: u64,
    which: u32,
    number: i32,
}

/// The cases of self_test_kernels/faulty.cu, in its order.
#[derive(Clone, Copy)]
enum Case {
    Nothing,
    SharedReadBeyond,
    SharedWriteSlack,
    GlobalRead,
    Trap,
    Assertion,
    Division,
    Stack,
    HalfAtBarrier,
    LaneLeft,
    LaneLeftBefore,
    OtherCollective,
    OwnLaneUnnamed,
    LaneUnnamed,
    BarrierCounts,
    BarrierPartialWarp,
    BarrierUnknown,
    GridBarrierBlockLeft,
    EndlessPoll,
    CopyUnaligned,
    PartialBarrierShort,
}

fn faulty(case: Case, number: i32, schedule: Schedule) -> Result<(), LaunchError> {
    let word = GuardedBuffer::<i32>::zeroed(4);
    let arguments = FaultyArguments { address: word.address(), which: case as u32, number };
    run("simt_test_faulty", 2, 64, 128, arguments, schedule)
}

/// The error must hold all of `parts`, whichever thread came first.
fn expect(case: Case, number: i32, parts: &[&str]) {
    for schedule in SCHEDULES {
        let text = faulty(case, number, schedule).expect_err("a faulty kernel").to_string();
        for part in parts {
            assert!(text.contains(part), "{schedule:?}: {part:?} is not in: {text}");
        }
    }
    // The thread and the runtime are as before.
    assert_eq!(faulty(Case::Nothing, 0, Schedule::Natural), Ok(()));
}

#[test]
fn a_read_behind_shared_memory_is_caught() {
    expect(
        Case::SharedReadBeyond,
        32,
        &[
            "kernel simt_test_faulty: block (1, 0, 0) thread 33",
            "offset 128 of the 128 bytes of shared memory",
        ],
    );
    assert!(matches!(
        faulty(Case::SharedReadBeyond, 32, Schedule::Natural),
        Err(LaunchError::SharedMemory { .. })
    ));
    assert_eq!(faulty(Case::SharedReadBeyond, 31, Schedule::Natural), Ok(()));
}

#[test]
fn a_write_before_or_just_behind_shared_memory_is_caught() {
    expect(Case::SharedWriteSlack, -1, &["wrote its shared memory at offset -1 of 128"]);
    let word = GuardedBuffer::<i32>::zeroed(4);
    let arguments =
        FaultyArguments { address: word.address(), which: Case::SharedWriteSlack as u32, number: 25 };
    let error = run("simt_test_faulty", 2, 64, 100, arguments, Schedule::Natural).unwrap_err();
    assert!(error.to_string().contains("at offset 100 of 100"), "{error}");
    assert!(matches!(error, LaunchError::SharedMemory { .. }));
}

#[test]
fn an_access_to_unmapped_memory_is_caught() {
    expect(Case::GlobalRead, 4, &["thread 2 touched address 0x"]);
    expect(Case::GlobalRead, -1024, &["thread 2 touched address 0x"]);
    assert!(matches!(faulty(Case::GlobalRead, 4, Schedule::Natural), Err(LaunchError::Fault { .. })));
    assert_eq!(faulty(Case::GlobalRead, 3, Schedule::Natural), Ok(()));
}

#[test]
fn traps_assertions_and_divisions_by_zero_end_the_launch_only() {
    expect(Case::Trap, 0, &["thread 3: __trap"]);
    expect(Case::Division, 0, &["divided an integer by zero"]);
    for schedule in SCHEDULES {
        // Blocks of 64 threads keep the assertion.
        assert_eq!(faulty(Case::Assertion, 0, schedule), Ok(()));
        let arguments = FaultyArguments { address: 0, which: Case::Assertion as u32, number: 0 };
        let error = run("simt_test_faulty", 1, 128, 0, arguments, schedule).unwrap_err();
        assert!(error.to_string().contains("assertion failed: thread < 64"), "{error}");
    }
}

#[test]
fn a_stack_that_grows_too_deep_is_caught() {
    assert_eq!(faulty(Case::Stack, 40, Schedule::Natural), Ok(()));
    expect(Case::Stack, 200, &["has used its stack of 65536 bytes"]);
}

#[test]
fn a_deadlock_names_who_waits_where() {
    for schedule in SCHEDULES {
        let error = faulty(Case::HalfAtBarrier, 0, schedule).unwrap_err();
        let LaunchError::Deadlock { waiting, .. } = &error else { panic!("{error}") };
        let lines: Vec<&str> = waiting.lines().collect();
        assert_eq!(lines.len(), 4, "{waiting}");
        assert_eq!(
            lines[3],
            "block (1, 0, 0) warp 1: lanes 0-15 at __syncthreads (32 of 64 threads arrived); lanes 16-31 at __syncwarp \
             (missing lanes 0-15)",
            "{schedule:?}"
        );
    }
    expect(Case::PartialBarrierShort, 0, &["deadlock", "lanes 0-31 at barrier 1 (32 of 64 threads arrived)"]);
    expect(Case::EndlessPoll, 0, &["deadlock", "lanes 0-4, 6-31 at __syncthreads", "lanes 5 polling memory"]);
    expect(
        Case::GridBarrierBlockLeft,
        0,
        &["deadlock", "block (0, 0, 0) warp 0: lanes 0-31 at the grid barrier"],
    );
}

#[test]
fn a_lane_that_a_collective_names_must_come_to_it() {
    expect(Case::LaneLeft, 0, &["__shfl_xor_sync", "exited"]);
    let error = faulty(Case::LaneLeft, 0, Schedule::Natural).unwrap_err().to_string();
    assert!(
        error.contains("block (0, 0, 0) thread 40 exited while others wait for it at __shfl_xor_sync"),
        "{error}"
    );
    assert!(
        error.contains("warp 1: lanes 0-7, 9-31 at __shfl_xor_sync (missing lanes 8); lanes 8 exited"),
        "{error}"
    );
    expect(Case::LaneLeftBefore, 0, &["__ballot_sync", "exited"]);
    let error = faulty(Case::LaneLeftBefore, 0, Schedule::Natural).unwrap_err().to_string();
    assert!(error.contains("mask 0xffffffff, of which lanes 0x00000001 have exited"), "{error}");
    expect(Case::OtherCollective, 0, &["with mask 0xffffffff, at which lanes", "wait at"]);
    expect(
        Case::OwnLaneUnnamed,
        0,
        &["__syncwarp with mask 0x00000001, which doesn't name the calling lane"],
    );
    expect(Case::LaneUnnamed, 0, &["__shfl_sync read lane 9, which its mask doesn't name"]);
}

#[test]
fn barriers_of_a_block_are_used_alike_by_all() {
    expect(Case::BarrierPartialWarp, 0, &["barrier 3 for 40 threads: must be a multiple of 32"]);
    expect(Case::BarrierUnknown, 0, &["barrier 16: a block has barriers 0 to 15"]);
    let arguments = FaultyArguments { address: 0, which: Case::BarrierCounts as u32, number: 0 };
    for schedule in SCHEDULES {
        let error = run("simt_test_faulty", 1, 128, 0, arguments, schedule).unwrap_err();
        assert!(matches!(error, LaunchError::Misuse { .. } | LaunchError::Deadlock { .. }), "{error}");
    }
    let error = run("simt_test_faulty", 1, 128, 0, arguments, Schedule::Natural).unwrap_err();
    assert!(error.to_string().contains("barrier 3 for 128 threads, which others entered for 64"), "{error}");
}

#[test]
fn copies_check_their_addresses() {
    expect(Case::CopyUnaligned, 0, &["cp.async of addresses that are not aligned"]);
}

#[test]
fn a_launch_is_checked_before_it_begins() {
    let kernel = kernel("simt_test_faulty").unwrap();
    assert_eq!((kernel.arguments_bytes(), kernel.maximum_threads()), (16, 128));
    let attempt = |grid, block, shared, bytes: &[u8]| {
        // SAFETY: none of these begins, but for one that touches no memory.
        unsafe { launch(kernel, grid, block, shared, bytes, Schedule::Natural) }
    };
    let bytes = [0; 16];
    assert_eq!(attempt([1, 2, 3], 32, 0, &bytes), Ok(()));
    assert!(matches!(
        attempt([1, 1, 1], 32, 0, &bytes[..15]),
        Err(LaunchError::Arguments { expected: 16, found: 15, .. })
    ));
    for block in [0, 129] {
        assert!(matches!(attempt([1, 1, 1], block, 0, &bytes), Err(LaunchError::Block { maximum: 128, .. })));
    }
    for grid in [[0, 1, 1], [1, 0, 1], [u32::MAX, u32::MAX, u32::MAX], [1 << 17, 1, 1]] {
        assert!(matches!(attempt(grid, 32, 0, &bytes), Err(LaunchError::Grid { .. })));
    }
    assert!(matches!(
        attempt([1, 1, 1], 32, MAX_SHARED_BYTES + 1, &bytes),
        Err(LaunchError::SharedBytes { .. })
    ));
    assert!(overtone_simt::kernel("no_such_kernel").is_none());
}
