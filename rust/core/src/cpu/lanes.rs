//! Sixteen float32 lanes, one per output row of a panel: the only place that names instructions.
//!
//! [`Lanes`] has an implementation per instruction set, and code generic over it is entered through
//! [`InstructionSet::run`], which compiles it once with the instructions enabled. The scalar implementation is the
//! reference: every operation here is a single IEEE operation per lane, so all implementations agree bit for bit.

/// Lanes of one panel: output rows that are computed together.
pub const LANES: usize = 16;

/// One value per output row of a panel, or sixteen consecutive features of an activation row.
pub type Lane16<T = f32> = [T; LANES];

/// Sixteen float32 accumulators or weights in registers.
pub trait Lanes: Copy {
    /// All lanes zero.
    fn zero() -> Self;
    /// Sixteen float32.
    fn load(from: &Lane16) -> Self;
    /// Sixteen bfloat16: word i holds lane i in its lower and lane i + 8 in its upper half.
    fn widen_bfloat16(words: &[u32; LANES / 2]) -> Self;
    /// Two features' sixteen int8, biased by 128, in the order of [`int8_byte`].
    fn widen_int8_pair(bytes: &[u8; 2 * LANES]) -> [Self; 2];
    /// `weight · x + self`, rounded once.
    fn fused_multiply_add(self, weight: Self, x: f32) -> Self;
    /// Writes all lanes.
    fn store(self, to: &mut Lane16);
}

/// Added to an int8 weight so that it is stored as an unsigned byte.
pub const INT8_BIAS: i32 = 128;

/// Where a pair of features keeps the weight of feature 0 or 1 for `lane`: the order in which interleaving the
/// bytes of each 128-bit half, twice, brings the lanes of one feature together.
pub const fn int8_byte(feature: usize, lane: usize) -> usize {
    lane % 8 / 4 * 16 + feature * 8 + lane / 8 * 4 + lane % 4
}

/// Work that runs with one set of instructions enabled, generic over the lanes.
pub trait Kernel {
    /// What the work returns.
    type Output;
    /// Does the work. Implementations are `#[inline(always)]`, so that they are compiled for the caller's instructions.
    fn run<L: Lanes>(self) -> Self::Output;
}

/// The instructions that a kernel is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstructionSet {
    /// The target's baseline.
    Scalar,
    /// 256-bit vectors with fused multiply-add (x86-64-v3).
    #[cfg(target_arch = "x86_64")]
    Avx2Fma,
}

impl InstructionSet {
    /// The widest set that this machine can run.
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            return Self::Avx2Fma;
        }
        Self::Scalar
    }

    /// The name shown by `overtone doctor`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2Fma => "avx2+fma",
        }
    }

    /// Runs `kernel` compiled for this set.
    #[inline]
    pub fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self {
            Self::Scalar => kernel.run::<ScalarLanes>(),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: this variant is made by `detect` alone, after both features were found, or by a test that
            // asked `detect` first.
            Self::Avx2Fma => unsafe { avx2::run(kernel) },
        }
    }
}

/// The reference implementation.
#[derive(Clone, Copy)]
pub struct ScalarLanes(Lane16);

impl Lanes for ScalarLanes {
    #[inline(always)]
    fn zero() -> Self {
        Self([0.0; LANES])
    }

    #[inline(always)]
    fn load(from: &Lane16) -> Self {
        Self(*from)
    }

    #[inline(always)]
    fn widen_bfloat16(words: &[u32; LANES / 2]) -> Self {
        Self(std::array::from_fn(|lane| {
            let pair = words[lane % (LANES / 2)];
            f32::from_bits(if lane < LANES / 2 { pair << 16 } else { pair & 0xffff_0000 })
        }))
    }

    #[inline(always)]
    fn widen_int8_pair(bytes: &[u8; 2 * LANES]) -> [Self; 2] {
        std::array::from_fn(|feature| {
            Self(std::array::from_fn(|lane| (i32::from(bytes[int8_byte(feature, lane)]) - INT8_BIAS) as f32))
        })
    }

    #[inline(always)]
    fn fused_multiply_add(self, weight: Self, x: f32) -> Self {
        Self(std::array::from_fn(|lane| weight.0[lane].mul_add(x, self.0[lane])))
    }

    #[inline(always)]
    fn store(self, to: &mut Lane16) {
        *to = self.0;
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::{INT8_BIAS, Kernel, LANES, Lane16, Lanes};
    use std::arch::x86_64::*;

    /// Two vector registers: lanes 0–7 and 8–15. Values exist only inside [`run`].
    #[derive(Clone, Copy)]
    struct Avx2Lanes(__m256, __m256);

    /// # Safety
    /// The machine has AVX2 and FMA.
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
        kernel.run::<Avx2Lanes>()
    }

    impl Lanes for Avx2Lanes {
        #[inline(always)]
        fn zero() -> Self {
            // SAFETY: only reached from `run`, whose caller vouches for the instructions.
            unsafe { Self(_mm256_setzero_ps(), _mm256_setzero_ps()) }
        }

        #[inline(always)]
        fn load(from: &Lane16) -> Self {
            let from = from.as_ptr();
            // SAFETY: only reached from `run`; `from` is sixteen floats, read without alignment.
            unsafe { Self(_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))) }
        }

        #[inline(always)]
        fn widen_bfloat16(words: &[u32; LANES / 2]) -> Self {
            // SAFETY: only reached from `run`; `words` is 32 bytes, read without alignment.
            unsafe {
                let pairs = _mm256_loadu_si256(words.as_ptr().cast());
                let lower = _mm256_slli_epi32::<16>(pairs);
                let upper = _mm256_and_si256(pairs, _mm256_set1_epi32(0xffff_0000_u32.cast_signed()));
                Self(_mm256_castsi256_ps(lower), _mm256_castsi256_ps(upper))
            }
        }

        /// A byte b becomes the float 2²³ + b by standing in that float's lowest bits; taking 2²³ + 128 away is
        /// exact, and needs fewer of the scarce conversion slots than sign extension and integer-to-float.
        #[inline(always)]
        fn widen_int8_pair(bytes: &[u8; 2 * LANES]) -> [Self; 2] {
            const EXPONENT: f32 = (1 << 23) as f32;
            // SAFETY: only reached from `run`; `bytes` is 32 bytes, read without alignment.
            unsafe {
                let bytes = _mm256_loadu_si256(bytes.as_ptr().cast());
                let exponent = _mm256_set1_epi16((EXPONENT.to_bits() >> 16) as i16);
                let bias = _mm256_set1_ps(EXPONENT + INT8_BIAS as f32);
                let float = |words| _mm256_sub_ps(_mm256_castsi256_ps(words), bias);
                let first = _mm256_unpacklo_epi8(bytes, _mm256_setzero_si256());
                let second = _mm256_unpackhi_epi8(bytes, _mm256_setzero_si256());
                [first, second].map(|halves| {
                    Self(
                        float(_mm256_unpacklo_epi16(halves, exponent)),
                        float(_mm256_unpackhi_epi16(halves, exponent)),
                    )
                })
            }
        }

        #[inline(always)]
        fn fused_multiply_add(self, weight: Self, x: f32) -> Self {
            // SAFETY: only reached from `run`.
            unsafe {
                let x = _mm256_set1_ps(x);
                Self(_mm256_fmadd_ps(weight.0, x, self.0), _mm256_fmadd_ps(weight.1, x, self.1))
            }
        }

        #[inline(always)]
        fn store(self, to: &mut Lane16) {
            let to = to.as_mut_ptr();
            // SAFETY: only reached from `run`; `to` is sixteen floats, written without alignment.
            unsafe {
                _mm256_storeu_ps(to, self.0);
                _mm256_storeu_ps(to.add(8), self.1);
            }
        }
    }
}
