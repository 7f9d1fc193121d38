//! The golden models on the kernels: float64 arithmetic on the stored weights, rounded once, is what is expected.

mod host;

use host::fixtures::golden::{GOLDENS, Golden, SETS};
use host::predictor::Predictor;
use overtone_core::tensor::FloatType;

/// Predicts the first frames of the named sets in float32.
fn check(name: &str, sets: &[&str], most_frames: usize) {
    let golden = Golden::new(name);
    let mut predictor = Predictor::load(&golden.open(), FloatType::Float32);
    let (frames, streams) = golden.shape();
    for set in sets {
        for frame in 0..frames.min(most_frames) {
            for (stream, predicted) in predictor.predict(&golden.rows(set, frame), streams).iter().enumerate()
            {
                golden.check(set, frame, stream, predictor.table_type(), predicted);
            }
        }
    }
}

#[test]
fn omni_tiny_is_predicted() {
    check(GOLDENS[0], &SETS, usize::MAX);
}

#[test]
fn tts_tiny_projected_is_predicted() {
    check(GOLDENS[1], &SETS, usize::MAX);
}

#[test]
fn standalone_is_predicted_greedily() {
    check(GOLDENS[2], &SETS[..1], usize::MAX);
}

/// One frame of each set: rows of 2,048 logits take their time here.
#[test]
fn standalone_is_predicted_with_samples() {
    check(GOLDENS[2], &SETS[1..], 1);
}
