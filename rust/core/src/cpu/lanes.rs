//! Eight lanes of a vector register, one per output row: the only place that names instructions.
//!
//! [`Lanes`] has an implementation per instruction set, and code generic over it is entered through
//! [`InstructionSet::run`], which compiles it once with the instructions enabled. The scalar implementation is the
//! reference: every operation here is one IEEE or integer operation per lane, so all implementations agree bit for bit.

/// Output rows of one panel, and floats of one block of activations.
pub const LANES: usize = 16;

/// Lanes of one register: half a panel.
pub const HALF: usize = LANES / 2;

/// One value per output row of a panel, or sixteen consecutive features of an activation row.
pub type Lane16<T = f32> = [T; LANES];

/// One value per lane of a register.
pub type Lane8<T = f32> = [T; HALF];

/// Eight float32 in a register.
pub trait Lanes: Copy {
    /// Eight int32 of the same instruction set.
    type Integers: IntegerLanes;

    /// All lanes zero.
    fn zero() -> Self;
    /// Eight float32.
    fn load(from: &Lane8) -> Self;
    /// Eight bfloat16 in the lower halves of eight words.
    fn widen_lower(words: &Lane8<u32>) -> Self;
    /// Eight bfloat16 in the upper halves of eight words.
    fn widen_upper(words: &Lane8<u32>) -> Self;
    /// `weight · x + self`, rounded once.
    fn fused_multiply_add(self, weight: Self, x: f32) -> Self;
    /// Writes all lanes.
    fn store(self, to: &mut Lane8);
}

/// Eight int32 in a register.
pub trait IntegerLanes: Copy {
    /// All lanes zero.
    fn zero() -> Self;
    /// Each lane's two int8 as two int16.
    fn widen_pairs(weights: &Lane8<[i8; 2]>) -> Self;
    /// Adds `weights[0] · x[0] + weights[1] · x[1]` to each lane, whose weights are two int16; wraps around at 32 bits.
    fn multiply_add_pairs(self, weights: Self, x: [i16; 2]) -> Self;
    /// Writes all lanes.
    fn store(self, to: &mut Lane8<i32>);
    /// Asks for a cache line ahead of its use; any address will do.
    fn prefetch(address: *const u8);
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
    Avx2Fma(avx2::Detected),
}

impl InstructionSet {
    /// The widest set that this machine can run.
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        if let Some(detected) = avx2::Detected::new() {
            return Self::Avx2Fma(detected);
        }
        Self::Scalar
    }

    /// The name shown by `overtone doctor`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2Fma(_) => "avx2+fma",
        }
    }

    /// Runs `kernel` compiled for this set.
    #[inline]
    pub fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self {
            Self::Scalar => kernel.run::<ScalarLanes>(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2Fma(detected) => detected.run(kernel),
        }
    }
}

/// The reference implementation.
#[derive(Clone, Copy)]
pub struct ScalarLanes<T = f32>(Lane8<T>);

impl Lanes for ScalarLanes {
    type Integers = ScalarLanes<i32>;

    #[inline(always)]
    fn zero() -> Self {
        Self([0.0; HALF])
    }

    #[inline(always)]
    fn load(from: &Lane8) -> Self {
        Self(*from)
    }

    #[inline(always)]
    fn widen_lower(words: &Lane8<u32>) -> Self {
        Self(words.map(|word| f32::from_bits(word << 16)))
    }

    #[inline(always)]
    fn widen_upper(words: &Lane8<u32>) -> Self {
        Self(words.map(|word| f32::from_bits(word & 0xffff_0000)))
    }

    #[inline(always)]
    fn fused_multiply_add(self, weight: Self, x: f32) -> Self {
        Self(std::array::from_fn(|lane| weight.0[lane].mul_add(x, self.0[lane])))
    }

    #[inline(always)]
    fn store(self, to: &mut Lane8) {
        *to = self.0;
    }
}

impl IntegerLanes for ScalarLanes<i32> {
    #[inline(always)]
    fn zero() -> Self {
        Self([0; HALF])
    }

    #[inline(always)]
    fn widen_pairs(weights: &Lane8<[i8; 2]>) -> Self {
        Self(weights.map(|pair| bytemuck::cast::<[i16; 2], i32>(pair.map(i16::from))))
    }

    #[inline(always)]
    fn multiply_add_pairs(self, weights: Self, x: [i16; 2]) -> Self {
        Self(std::array::from_fn(|lane| {
            let [first, second] = bytemuck::cast::<i32, [i16; 2]>(weights.0[lane]).map(i32::from);
            let sum = first * i32::from(x[0]) + second * i32::from(x[1]);
            self.0[lane].wrapping_add(sum)
        }))
    }

    #[inline(always)]
    fn store(self, to: &mut Lane8<i32>) {
        *to = self.0;
    }

    #[inline(always)]
    fn prefetch(_: *const u8) {}
}

#[cfg(target_arch = "x86_64")]
pub mod avx2;
