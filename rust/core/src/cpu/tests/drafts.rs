//! Fitted drafts change how soon a frame is done, and nothing else.

use super::fixture::{GOLDENS, Golden, Predicted, load, predict, speculating};
use crate::checkpoint::drafts::{self, DraftName, Drafts, FitRecord};
use crate::checkpoint::tensor_file::FileTensor;
use crate::cpu::{CpuExecutor, WeightType};
use crate::rounds::{DraftShape, RoundCounters, Speculation};
use crate::spec::weights::WeightName;
use crate::tensor::FloatType;

/// An executor of a golden that speculates with drafts of these values.
fn drafting(
    golden: &Golden,
    weight_type: WeightType,
    speculation: Speculation,
    value: impl Fn(DraftName, usize) -> f32,
) -> CpuExecutor {
    let checkpoint = golden.open();
    let spec = checkpoint.spec().clone();
    let tensor = |name: DraftName| {
        let shape = name.shape(&spec);
        let values: Vec<f32> = (0..shape[0] * shape[1]).map(|index| value(name, index)).collect();
        (name.to_string(), FileTensor::from_f32(shape.to_vec(), &values))
    };
    let tensors = DraftName::all(&spec).map(tensor).collect();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join(drafts::FILE_NAME);
    let record = FitRecord { frames: 0, ridge: 1.0 };
    drafts::write(&file, &checkpoint, FloatType::Float32, record, &tensors).unwrap();
    let (_, batch) = golden.shape();
    let mut executor = speculating(&checkpoint, weight_type, 2, batch, Some(speculation));
    executor.use_drafts(&Drafts::open(&file, &checkpoint).unwrap()).unwrap();
    executor
}

fn windows() -> [Speculation; 3] {
    [(DraftShape::Chain, 2), (DraftShape::Chain, 4), (DraftShape::Siblings, 8)]
        .map(|(shape, rows)| Speculation::new(shape, rows, None).unwrap())
}

/// Runs a frame of every set; the counters of each.
fn run(executor: &mut CpuExecutor, golden: &Golden) -> (Vec<Predicted>, Vec<Vec<RoundCounters>>) {
    let mut frames = (Vec::new(), Vec::new());
    for set in ["greedy", "mixed", "sampled_a"] {
        for t in 0..1 {
            let (hidden, code_zero) = golden.inputs(t);
            frames.0.push(predict(executor, &hidden, &code_zero, &golden.params(set), t as u64));
            frames.1.push(executor.round_counters().to_vec());
        }
    }
    frames
}

#[test]
fn any_drafts_give_the_goldens_bits() {
    for name in GOLDENS {
        let golden = Golden::new(name);
        for weight_type in [WeightType::Float32, WeightType::Int8] {
            let (expected, _) = run(&mut load(&golden.open(), weight_type, 2, golden.shape().1), &golden);
            for speculation in windows() {
                let wavy = |name: DraftName, index: usize| {
                    let scale = if matches!(name, DraftName::Table(_)) { 4.0 } else { 0.3 };
                    ((index * 7919 % 1009) as f32).sin() * scale
                };
                let (found, _) = run(&mut drafting(&golden, weight_type, speculation, wavy), &golden);
                assert!(found == expected, "{name} {weight_type:?} {speculation:?}");
            }
        }
    }
}

#[test]
fn drafts_that_are_the_next_heads_count_what_the_next_heads_count() {
    for name in GOLDENS {
        let golden = Golden::new(name);
        for speculation in windows() {
            let (_, batch) = golden.shape();
            let mut plain = speculating(&golden.open(), WeightType::Float32, 2, batch, Some(speculation));
            let checkpoint = golden.open();
            let heads: Vec<Vec<f32>> = (0..checkpoint.spec().residual_codebooks)
                .map(|index| {
                    let name = WeightName::Head(index);
                    let elements = checkpoint.spec().weight_elements(name);
                    checkpoint.read(name, |head| (0..elements).map(|at| head.get(at)).collect()).unwrap()
                })
                .collect();
            let next_heads = |name: DraftName, index: usize| match name {
                DraftName::Head(pending) => heads[pending][index],
                DraftName::Table(_) => 0.0,
            };
            let mut fitted = drafting(&golden, WeightType::Float32, speculation, next_heads);
            assert_eq!(run(&mut fitted, &golden), run(&mut plain, &golden), "{name} {speculation:?}");
        }
    }
}

#[test]
fn a_table_row_is_that_of_the_pending_code() {
    let golden = Golden::new("omni-tiny");
    let speculation = Speculation::new(DraftShape::Chain, 2, None).unwrap();
    let (_, batch) = golden.shape();
    let (hidden, code_zero) = golden.inputs(0);
    let params = golden.params("greedy");
    let plain =
        predict(&mut load(&golden.open(), WeightType::Float32, 2, batch), &hidden, &code_zero, &params, 0);
    let codes = plain.codes;
    let codes_per_frame = golden.open().spec().codes_per_frame();
    // Row `code_j` of every table points at the code that follows it in some stream, and streams that disagree are few.
    let size = golden.open().spec().codebook_size;
    let follows = |name: DraftName, index: usize| {
        let DraftName::Table(pending) = name else { return 0.0 };
        let (row, column) = ((index / size) as i32, (index % size) as i32);
        let seen = codes.chunks(codes_per_frame).rfind(|codes| codes[pending] == row);
        f32::from(seen.is_some_and(|codes| codes[pending + 1] == column))
    };
    let mut executor = drafting(&golden, WeightType::Float32, speculation, follows);
    predict(&mut executor, &hidden, &code_zero, &params, 0);
    // The last stream's codes are the tables' own: two codes a round, and the last one alone where R − 1 is odd.
    let rounds = (codes_per_frame as u64 - 2).div_ceil(2);
    assert_eq!(executor.round_counters().last().unwrap().rounds, rounds);
}
