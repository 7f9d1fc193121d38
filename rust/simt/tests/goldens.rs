//! The golden models on the kernels: float64 arithmetic on the stored weights, rounded once, is what is expected.

mod host;

use host::golden::{GOLDENS, Golden};
use host::{Predictor, Row};
use overtone_core::tensor::FloatType;

const SETS: [&str; 4] = ["greedy", "sampled_a", "sampled_b", "mixed"];

/// All frames of a set in float32: every code equal, `codec_sum` bit for bit, logits within 1e-4 of the largest.
fn check(name: &str) {
    let golden = Golden::new(name);
    let mut predictor = Predictor::load(&golden.open(), FloatType::Float32);
    let (frames, streams) = golden.shape();
    for set in SETS {
        let params = golden.params(set);
        for frame in 0..frames {
            let inputs: Vec<_> = (0..streams).map(|stream| golden.input(frame, stream)).collect();
            let rows: Vec<_> = (inputs.iter().zip(&params))
                .map(|((hidden, code_zero), &params)| Row {
                    hidden,
                    code_zero: *code_zero,
                    params,
                    frame_index: frame as u64,
                })
                .collect();
            for (stream, predicted) in predictor.predict(&rows, streams).iter().enumerate() {
                let place = format!("{name} {set} frame {frame} stream {stream}");
                let found: Vec<f32> = predicted.codes.iter().map(|&code| code as f32).collect();
                if set == "greedy" {
                    let expected = golden.expected("greedy.logits", frame, stream);
                    let largest = expected.iter().fold(0.0_f32, |largest, logit| largest.max(logit.abs()));
                    for (index, (found, expected)) in predicted.logits.iter().zip(&expected).enumerate() {
                        assert!((found - expected).abs() < 1e-4 * largest, "{place}: logit {index} {found}, {expected}");
                    }
                }
                assert_eq!(found, golden.expected(&format!("{set}.codes"), frame, stream), "{place}");
                assert_eq!(predicted.codec_sum, golden.expected(&format!("{set}.codec_sum"), frame, stream), "{place}");
                assert_eq!(predicted.status, 0, "{place}");
            }
        }
    }
}

#[test]
fn omni_tiny_is_predicted() {
    check(GOLDENS[0]);
}

#[test]
fn tts_tiny_projected_is_predicted() {
    check(GOLDENS[1]);
}

#[test]
fn standalone_is_predicted() {
    check(GOLDENS[2]);
}
