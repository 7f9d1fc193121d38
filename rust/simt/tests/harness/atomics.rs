//! Atomics, and locks and tickets made of them.

use bytemuck::{Pod, Zeroable};
use overtone_simt::GuardedBuffer;

use crate::{SCHEDULES, run};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct AtomicArguments {
    words: u64,
    floats: u64,
    wides: u64,
    taken: u64,
}

#[test]
fn atomics_lose_nothing_in_any_schedule() {
    let (blocks, block) = (5_u32, 96_u32);
    let threads = blocks * block;
    for schedule in SCHEDULES {
        let words = GuardedBuffer::from_slice(&[0_u32, 0, u32::MAX, 0, u32::MAX, 0, 0, 0]);
        let floats = GuardedBuffer::<f32>::zeroed(1);
        let wides = GuardedBuffer::<u64>::zeroed(2);
        let taken = GuardedBuffer::<u32>::zeroed(threads as usize);
        let arguments = AtomicArguments {
            words: words.address(),
            floats: floats.address(),
            wides: wides.address(),
            taken: taken.address(),
        };
        run("simt_test_atomics", blocks, block, 4, arguments, schedule).unwrap();
        let xor = (0..threads).fold(0, |xor, thread| xor ^ thread);
        assert_eq!(
            words.as_slice(),
            [threads, threads - 1, 5, u32::MAX, 0, xor, threads % 10, threads],
            "{schedule:?}"
        );
        assert_eq!(floats.as_slice(), [threads as f32 / 2.0], "{schedule:?}");
        assert_eq!(wides.as_slice(), [u64::from(threads) << 33, 0], "{schedule:?}");
        assert!(taken.as_slice().iter().all(|count| *count == 1), "{schedule:?}");
    }
}
