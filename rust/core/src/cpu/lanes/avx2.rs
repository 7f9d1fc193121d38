//! AVX2 with fused multiply-add.

use super::{IntegerLanes, Kernel, Lane8, Lanes};
use std::arch::x86_64::*;

/// Proof that this machine has the instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Detected(());

impl Detected {
    /// The proof, if the machine has them.
    pub fn new() -> Option<Self> {
        let found = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
        found.then_some(Self(()))
    }

    /// Runs `kernel` with the instructions enabled.
    #[inline]
    pub fn run<K: Kernel>(self, kernel: K) -> K::Output {
        // SAFETY: `self` proves that the machine has both features.
        unsafe { run(kernel) }
    }
}

/// # Safety
/// The machine has AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Avx2Lanes>()
}

/// Values exist only inside [`run`].
#[derive(Clone, Copy)]
struct Avx2Lanes(__m256);

/// Lanes 0–3 and 4–7: widening and multiplying int16 is never slower in two halves, and on the first Zen much faster.
/// Values exist only inside [`run`].
#[derive(Clone, Copy)]
struct Avx2Integers(__m128i, __m128i);

impl Lanes for Avx2Lanes {
    type Integers = Avx2Integers;

    #[inline(always)]
    fn zero() -> Self {
        // SAFETY: only reached from `run`, whose caller vouches for the instructions.
        Self(unsafe { _mm256_setzero_ps() })
    }

    #[inline(always)]
    fn load(from: &Lane8) -> Self {
        // SAFETY: only reached from `run`; `from` is eight floats, read without alignment.
        Self(unsafe { _mm256_loadu_ps(from.as_ptr()) })
    }

    #[inline(always)]
    fn widen_lower(words: &Lane8<u32>) -> Self {
        // SAFETY: only reached from `run`; `words` is 32 bytes, read without alignment.
        Self(unsafe {
            let words = _mm256_loadu_si256(words.as_ptr().cast());
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(words))
        })
    }

    #[inline(always)]
    fn widen_upper(words: &Lane8<u32>) -> Self {
        // SAFETY: only reached from `run`; `words` is 32 bytes, read without alignment.
        Self(unsafe {
            let words = _mm256_loadu_si256(words.as_ptr().cast());
            let upper = _mm256_set1_epi32(0xffff_0000_u32.cast_signed());
            _mm256_castsi256_ps(_mm256_and_si256(words, upper))
        })
    }

    #[inline(always)]
    fn fused_multiply_add(self, weight: Self, x: f32) -> Self {
        // SAFETY: only reached from `run`.
        Self(unsafe { _mm256_fmadd_ps(weight.0, _mm256_set1_ps(x), self.0) })
    }

    #[inline(always)]
    fn store(self, to: &mut Lane8) {
        // SAFETY: only reached from `run`; `to` is eight floats, written without alignment.
        unsafe { _mm256_storeu_ps(to.as_mut_ptr(), self.0) }
    }
}

impl IntegerLanes for Avx2Integers {
    #[inline(always)]
    fn zero() -> Self {
        // SAFETY: only reached from `run`.
        unsafe { Self(_mm_setzero_si128(), _mm_setzero_si128()) }
    }

    #[inline(always)]
    fn widen_pairs(weights: &Lane8<[i8; 2]>) -> Self {
        let weights = weights.as_ptr();
        // SAFETY: only reached from `run`; eight bytes are read at pair 0 and at pair 4 of eight, without alignment.
        unsafe {
            Self(
                _mm_cvtepi8_epi16(_mm_loadl_epi64(weights.cast())),
                _mm_cvtepi8_epi16(_mm_loadl_epi64(weights.add(4).cast())),
            )
        }
    }

    #[inline(always)]
    fn multiply_add_pairs(self, weights: Self, x: [i16; 2]) -> Self {
        // SAFETY: only reached from `run`.
        unsafe {
            let x = _mm_set1_epi32(bytemuck::cast::<[i16; 2], i32>(x));
            Self(
                _mm_add_epi32(self.0, _mm_madd_epi16(weights.0, x)),
                _mm_add_epi32(self.1, _mm_madd_epi16(weights.1, x)),
            )
        }
    }

    #[inline(always)]
    fn store(self, to: &mut Lane8<i32>) {
        let to = to.as_mut_ptr();
        // SAFETY: only reached from `run`; `to` is eight integers, written without alignment.
        unsafe {
            _mm_storeu_si128(to.cast(), self.0);
            _mm_storeu_si128(to.add(4).cast(), self.1);
        }
    }

    #[inline(always)]
    fn prefetch(address: *const u8) {
        // SAFETY: a hint, which faults at no address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }
}
