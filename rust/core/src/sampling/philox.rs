//! Philox4x32-10, the counter-based generator of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as
//! easy as 1, 2, 3" (SC 2011). What goes into counter and key is left to [`gumbel`](super::gumbel).

/// Multipliers of counter words 0 and 2.
const MULTIPLIERS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
/// What the key grows by from round to round: the golden ratio and √3 − 1 in 32 bits.
const KEY_STEPS: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];
/// Rounds of the full-strength generator.
const ROUNDS: usize = 10;

/// Four independent, uniform 32-bit words for a 128-bit counter under a 64-bit key, least significant words
/// first.
#[inline(always)]
pub fn philox4x32_10(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let [mut c0, mut c1, mut c2, mut c3] = counter;
    let [mut key_0, mut key_1] = key;
    for _ in 0..ROUNDS {
        let product_0 = u64::from(MULTIPLIERS[0]) * u64::from(c0);
        let product_1 = u64::from(MULTIPLIERS[1]) * u64::from(c2);
        [c0, c1, c2, c3] = [
            (product_1 >> 32) as u32 ^ c1 ^ key_0,
            product_1 as u32,
            (product_0 >> 32) as u32 ^ c3 ^ key_1,
            product_0 as u32,
        ];
        key_0 = key_0.wrapping_add(KEY_STEPS[0]);
        key_1 = key_1.wrapping_add(KEY_STEPS[1]);
    }
    [c0, c1, c2, c3]
}
