//! The golden sampler's 200 rows, the generator's known answers, and the noise of spelled-out draws.

use std::path::PathBuf;

use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use crate::sampling::gumbel::{Noise, noise_of_word, uniform};
use crate::sampling::philox::philox4x32_10;
use crate::sampling::{Sampler, SamplingParams};

fn read_golden(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/data").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn column<const N: usize>(file: &SafeTensors<'_>, name: &str, dtype: Dtype) -> Vec<[u8; N]> {
    let tensor = file.tensor(name).unwrap();
    assert_eq!(tensor.dtype(), dtype, "{name}");
    tensor.data().as_chunks().0.to_vec()
}

#[test]
fn golden_rows_draw_their_codes_and_keep_their_counts() {
    let bytes = read_golden("sampling.safetensors");
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let float32 = |name: &str| -> Vec<f32> {
        column(&file, name, Dtype::F32).into_iter().map(f32::from_le_bytes).collect()
    };
    let int32 = |name: &str| -> Vec<i32> {
        column(&file, name, Dtype::I32).into_iter().map(i32::from_le_bytes).collect()
    };
    let uint64 = |name: &str| -> Vec<u64> {
        column(&file, name, Dtype::U64).into_iter().map(u64::from_le_bytes).collect()
    };
    let (temperature, top_p, top_k) = (float32("temperature"), float32("top_p"), int32("top_k"));
    let (seed, frame, codebook) = (uint64("seed"), uint64("frame"), int32("codebook"));
    let (code, kept) = (int32("code"), int32("kept"));
    assert_eq!(code.len(), 200);

    let mut sampler = Sampler::new(2048);
    for case in 0..code.len() {
        let logits = float32(&format!("logits.{case:03}"));
        let params = SamplingParams::from_numbers(
            f64::from(temperature[case]),
            i64::from(top_k[case]),
            f64::from(top_p[case]),
            seed[case],
        )
        .unwrap();
        let drawn = sampler.draw(&logits, &params, frame[case], codebook[case] as u32).unwrap();
        assert_eq!(
            (drawn, sampler.kept()),
            (code[case] as u32, kept[case] as usize),
            "case {case}: {params:?}, {} logits",
            logits.len()
        );
    }
}

fn words(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(word).collect()
}

fn word(value: &Value) -> u32 {
    u32::from_str_radix(value.as_str().unwrap(), 16).unwrap()
}

#[test]
fn philox_gives_its_known_answers() {
    let file: Value = serde_json::from_slice(&read_golden("philox.json")).unwrap();
    let answers = file["known_answers"].as_array().unwrap();
    assert_eq!(answers.len(), 3);
    for answer in answers {
        let counter = words(&answer["counter"]).try_into().unwrap();
        let key = words(&answer["key"]).try_into().unwrap();
        assert_eq!(philox4x32_10(counter, key).to_vec(), words(&answer["words"]), "{answer}");
    }
}

#[test]
fn spelled_out_draws_have_their_words_their_u_and_their_noise() {
    let file: Value = serde_json::from_slice(&read_golden("philox.json")).unwrap();
    let draws = file["draws"].as_array().unwrap();
    assert!(draws.len() >= 16);
    for draw in draws {
        let number = |name: &str| -> u64 { draw[name].as_str().unwrap().parse().unwrap() };
        let codebook = draw["codebook"].as_u64().unwrap() as u32;
        let entry = draw["v"].as_u64().unwrap() as u32;
        let generated = philox4x32_10(
            words(&draw["counter"]).try_into().unwrap(),
            words(&draw["key"]).try_into().unwrap(),
        );
        let drawn_word = generated[(entry & 3) as usize];
        assert_eq!(drawn_word, word(&draw["word"]), "{draw}");
        // u is a float32: rounding undoes the last bit that the JSON reader may miss in float64.
        assert_eq!(uniform(drawn_word), draw["u"].as_f64().unwrap() as f32, "{draw}");

        let noise = Noise::new(number("seed"), number("frame"), codebook).at([entry])[0];
        assert_eq!(noise, noise_of_word(drawn_word), "{draw}");
        let expected = draw["g"].as_f64().unwrap();
        let error = (f64::from(noise) - expected).abs();
        assert!(error <= 5e-7 * expected.abs().max(1.0), "{draw}: {noise}");
    }
}
