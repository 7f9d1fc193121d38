//! Barriers of block and grid.

use std::time::Instant;

use overtone_simt::{GuardedBuffer, Schedule};

use crate::{SCHEDULES, ValuesArguments, buffer, numbers, run};

#[test]
fn a_block_barrier_separates_writes_from_reads() {
    for schedule in SCHEDULES {
        for block in [32, 96, 256, 1000, 1024] {
            let input = GuardedBuffer::from_slice(&numbers(3 * block as usize));
            let output = buffer(3 * block as usize);
            let arguments =
                ValuesArguments { input: input.address(), output: output.address(), count: 0, parameter: 0 };
            run("simt_test_reverse", 3, block, 4 * block as usize, arguments, schedule).unwrap();
            for (given, found) in
                input.as_slice().chunks(block as usize).zip(output.as_slice().chunks(block as usize))
            {
                assert!(given.iter().rev().eq(found), "{schedule:?}");
            }
        }
    }
}

#[test]
fn a_grid_barrier_separates_rounds_of_all_blocks() {
    for schedule in SCHEDULES {
        let (blocks, block, rounds) = (6_u32, 64_u32, 5_u32);
        let threads = (blocks * block) as usize;
        let input = GuardedBuffer::from_slice(&numbers(threads));
        let output = buffer(blocks as usize + threads);
        let arguments =
            ValuesArguments { input: input.address(), output: output.address(), count: 0, parameter: rounds };
        run("simt_test_grid_sum", blocks, block, 4 * block as usize, arguments, schedule).unwrap();
        let sum = input
            .as_slice()
            .iter()
            .fold(0_u32, |sum, value| sum.wrapping_add(*value))
            .wrapping_add(blocks * block * (rounds - 1));
        assert!(output.as_slice()[blocks as usize..].iter().all(|total| *total == sum), "{schedule:?}");
    }
}

#[test]
fn barriers_with_thread_counts_hand_over_between_warps() {
    for schedule in SCHEDULES {
        let rounds = 9;
        let input = GuardedBuffer::from_slice(&numbers(64));
        let output = GuardedBuffer::<u32>::zeroed(64);
        let arguments =
            ValuesArguments { input: input.address(), output: output.address(), count: 0, parameter: rounds };
        run("simt_test_producers", 1, 128, 256, arguments, schedule).unwrap();
        let factor = rounds * (rounds + 1) / 2;
        for place in 0..64 {
            let expected = input.as_slice()[63 - place].wrapping_mul(factor);
            assert_eq!(output.as_slice()[place], expected, "{schedule:?}");
        }
    }
}

#[test]
fn exited_threads_do_not_count_at_a_block_barrier() {
    for schedule in SCHEDULES {
        let output = buffer(4 * 4);
        let arguments = ValuesArguments { input: 0, output: output.address(), count: 0, parameter: 0 };
        run("simt_test_early_exit", 4, 192, 0, arguments, schedule).unwrap();
        for block in output.as_slice().chunks(4) {
            assert_eq!(block, [48, 1, 1, 0], "{schedule:?}");
        }
    }
}

#[test]
fn a_block_may_poll_for_a_block_that_comes_later() {
    for schedule in SCHEDULES {
        let output = GuardedBuffer::<u32>::zeroed(2);
        let arguments = ValuesArguments { input: 0, output: output.address(), count: 0, parameter: 0 };
        run("simt_test_flag", 300, 64, 0, arguments, schedule).unwrap();
        assert_eq!(output.as_slice(), [41, 42], "{schedule:?}");
    }
}

#[test]
fn a_bounded_wait_reaches_its_bound() {
    for schedule in SCHEDULES {
        let output = GuardedBuffer::<u32>::zeroed(2);
        let arguments = ValuesArguments { input: 0, output: output.address(), count: 0, parameter: 0 };
        run("simt_test_bounded_wait", 4, 64, 0, arguments, schedule).unwrap();
        assert_eq!(output.as_slice(), [0, 1], "{schedule:?}");
    }
}

#[test]
fn a_whole_device_of_threads_is_launched_in_under_a_second() {
    let (blocks, block) = (128_u32, 256_u32);
    let threads = (blocks * block) as usize;
    let values = GuardedBuffer::<f32>::zeroed(threads);
    let arguments =
        ValuesArguments { input: 0, output: values.address(), count: threads as u32, parameter: 0 };
    // The best of a few: other tests and processes take their share of the machine.
    let attempts = 5;
    for schedule in [Schedule::Natural, Schedule::Seeded(1)] {
        let seconds = (0..attempts).map(|_| {
            let begin = Instant::now();
            run("simt_test_increment", blocks, block, 0, arguments, schedule).unwrap();
            begin.elapsed().as_secs_f64()
        });
        let best = seconds.fold(f64::INFINITY, f64::min);
        assert!(best < 1.0, "{schedule:?}: {best} s");
    }
    assert!(values.as_slice().iter().all(|value| *value == (2 * attempts) as f32));
}

#[test]
fn a_whole_device_of_threads_meets_at_a_grid_barrier() {
    let (blocks, block) = (128_u32, 256_u32);
    let threads = (blocks * block) as usize;
    let input = GuardedBuffer::from_slice(&numbers(threads));
    let expected = input.as_slice().iter().fold(0_u32, |sum, value| sum.wrapping_add(*value));
    for schedule in [Schedule::Natural, Schedule::Seeded(1)] {
        let sums = buffer(blocks as usize + threads);
        let arguments =
            ValuesArguments { input: input.address(), output: sums.address(), count: 0, parameter: 1 };
        run("simt_test_grid_sum", blocks, block, 1024, arguments, schedule).unwrap();
        assert!(sums.as_slice()[blocks as usize..].iter().all(|sum| *sum == expected), "{schedule:?}");
    }
}
