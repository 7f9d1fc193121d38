//! Kernels without races give the same bytes in every schedule, kernels with races don't: the tests can fail.

use std::collections::HashSet;

use bytemuck::{Pod, Zeroable};
use overtone_simt::{GuardedBuffer, Schedule};

use crate::{SCHEDULES, ValuesArguments, buffer, numbers, run};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct RaceArguments {
    output: u64,
    barrier: u32,
    reserved: u32,
}

/// The different outputs that `kernel` gives over many schedules.
fn outcomes(kernel: &str, words: usize, initial: u32, barrier: bool) -> HashSet<Vec<u32>> {
    let schedules = (0..12).map(Schedule::Seeded).chain([Schedule::Natural]);
    schedules
        .map(|schedule| {
            let output = GuardedBuffer::from_slice(&vec![initial; words]);
            let arguments = RaceArguments { output: output.address(), barrier: barrier.into(), reserved: 0 };
            run(kernel, 2, 96, 4 * 96, arguments, schedule).expect("a race is no error");
            output.as_slice().to_vec()
        })
        .collect()
}

#[test]
fn a_missing_barrier_shows_and_a_barrier_mends_it() {
    assert!(outcomes("simt_test_neighbours", 192, 0, false).len() > 6);
    assert_eq!(outcomes("simt_test_neighbours", 192, 0, true).len(), 1);
}

#[test]
fn a_sum_in_the_order_of_arrival_shows() {
    assert!(outcomes("simt_test_unordered_sum", 1, 0, false).len() > 3);
}

#[test]
fn lost_updates_show() {
    let found = outcomes("simt_test_lost_updates", 1, 0, false);
    assert!(found.len() > 3 && found.contains(&vec![192]), "{found:?}");
}

#[test]
fn a_seed_gives_its_order_again() {
    for seed in 0..6 {
        let once = || {
            let output = buffer(192);
            let arguments = RaceArguments { output: output.address(), barrier: 0, reserved: 0 };
            run("simt_test_neighbours", 2, 96, 4 * 96, arguments, Schedule::Seeded(seed)).unwrap();
            output.as_slice().to_vec()
        };
        assert_eq!(once(), once());
    }
}

#[test]
fn many_launches_at_once_do_not_meet() {
    let launches = |seed: u64| {
        for round in 0..20 {
            let input = GuardedBuffer::from_slice(&numbers(512));
            let output = buffer(4 + 512);
            let arguments =
                ValuesArguments { input: input.address(), output: output.address(), count: 0, parameter: 3 };
            run("simt_test_grid_sum", 4, 128, 512, arguments, Schedule::Seeded(seed * 20 + round)).unwrap();
            let expected =
                input.as_slice().iter().fold(0_u32, |sum, value| sum.wrapping_add(*value)).wrapping_add(1024);
            assert!(output.as_slice()[4..].iter().all(|total| *total == expected));
            // A failure on this thread is nobody else's.
            let arguments = RaceArguments { output: 0, barrier: 0, reserved: 0 };
            run("simt_test_lost_updates", 1, 32, 0, arguments, SCHEDULES[round as usize % 7]).unwrap_err();
        }
    };
    std::thread::scope(|scope| {
        for seed in 0..6 {
            scope.spawn(move || launches(seed));
        }
    });
}
