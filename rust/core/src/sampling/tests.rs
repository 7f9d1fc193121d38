//! What one draw promises: golden codes, exact arithmetic, corners, and the frequencies that come out.

mod arithmetic;
mod corners;
mod filters;
mod frequencies;
mod golden;

use super::SamplingParams;
use super::gumbel::Noise;

/// Parameters known to be in range.
fn params(temperature: f32, top_k: u32, top_p: f32, seed: u64) -> SamplingParams {
    SamplingParams::new(temperature, top_k, top_p, seed).unwrap()
}

/// `entries` logits that look like a codec head's: a bell around 0 with a tail of large ones, `scale` wide.
fn synthetic_logits(entries: usize, scale: f32, row: u64) -> Vec<f32> {
    let noise = Noise::new(0x5eed, row, 0);
    (0..entries as u32).map(|entry| scale * noise.at([entry])[0]).collect()
}
