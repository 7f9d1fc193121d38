//! Warp collectives, each against what CUDA documents.

use bytemuck::{Pod, Zeroable};
use overtone_simt::{GuardedBuffer, Schedule};

use crate::{SCHEDULES, buffer, run};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct MatrixArguments {
    a: u64,
    b: u64,
    c: u64,
    rounds: u64,
}

fn expected(thread: u32) -> [u32; 22] {
    let (lane, first) = (thread % 32, thread / 32 * 32);
    let value = |lane: u32| (first + lane) * 7 + 3;
    let sum = |lanes: &mut dyn Iterator<Item = u32>| lanes.map(value).sum::<u32>();
    let odd = lane % 2;
    let last_of_eight = lane | 7;
    [
        value(5),
        value(lane / 8 * 8 + (lane + 1) % 8),
        value(lane ^ 16),
        value(if lane ^ 9 <= last_of_eight { lane ^ 9 } else { lane }),
        value(if lane >= 3 { lane - 3 } else { lane }),
        value(if lane < 29 { lane + 3 } else { lane }),
        value(if lane % 4 < 2 { lane + 2 } else { lane }),
        (0..32).filter(|lane| value(*lane) % 3 == 0).map(|lane| 1 << lane).sum(),
        1,
        0,
        sum(&mut (0..32)),
        -20_i32 as u32,
        -9_i32 as u32,
        0xffff,
        0x1111_1111 << (lane % 4),
        2 * (lane ^ 1) + 1,
        sum(&mut (0..32).filter(|lane| lane % 2 == odd)),
        (0..32).filter(|lane| lane % 2 == odd && *lane > 16).map(|lane| 1 << lane).sum(),
        value(lane ^ 1),
        sum(&mut (0..32)),
        (0..32).map(|lane| lane % 8).sum(),
        value(31 - lane) - value(0),
    ]
}

#[test]
fn collectives_give_what_cuda_documents() {
    for schedule in SCHEDULES {
        let output = buffer(2 * 96 * 24);
        run("simt_test_collectives", 2, 96, 0, output.address(), schedule).unwrap();
        for (thread, found) in output.as_slice().chunks(24).enumerate() {
            assert_eq!(found[..22], expected(thread as u32), "thread {thread}, {schedule:?}");
        }
    }
}

#[test]
fn a_matrix_product_reads_fragments_as_ptx_lays_them_out() {
    let small = |i: usize, range: usize| (i * 37 % range) as f32 - (range / 2) as f32;
    let bits = |value: &f32| (value.to_bits() >> 16) as u16;
    let a: Vec<f32> = (0..256).map(|i| small(i, 23)).collect();
    let b: Vec<f32> = (0..128).map(|i| small(i, 19)).collect();
    let c: Vec<f32> = (0..128).map(|i| small(i, 17)).collect();
    // All sums are small integers: exact in any order.
    let mut expected = c.clone();
    for row in 0..16 {
        for column in 0..8 {
            for k in 0..16 {
                expected[row * 8 + column] += 3.0 * a[row * 16 + k] * b[k * 8 + column];
            }
        }
    }
    let a = GuardedBuffer::from_slice(&a.iter().map(bits).collect::<Vec<_>>());
    let b = GuardedBuffer::from_slice(&b.iter().map(bits).collect::<Vec<_>>());
    for schedule in SCHEDULES {
        let product = GuardedBuffer::from_slice(&c);
        let arguments = MatrixArguments { a: a.address(), b: b.address(), c: product.address(), rounds: 3 };
        run("simt_test_matrix", 1, 32, 0, arguments, schedule).unwrap();
        assert_eq!(product.as_slice(), expected, "{schedule:?}");
    }
}

#[test]
#[ignore = "a measurement"]
fn time_of_matrix_products() {
    let operands = GuardedBuffer::<u16>::zeroed(256);
    let product = GuardedBuffer::<f32>::zeroed(128);
    for (schedule, rounds) in [(Schedule::Natural, 100_000), (Schedule::Seeded(1), 10_000)] {
        let arguments =
            MatrixArguments { a: operands.address(), b: operands.address(), c: product.address(), rounds };
        let begin = std::time::Instant::now();
        run("simt_test_matrix", 1, 32, 0, arguments, schedule).unwrap();
        println!("{schedule:?}: {:.0} ns a product", begin.elapsed().as_secs_f64() * 1e9 / rounds as f64);
    }
}
