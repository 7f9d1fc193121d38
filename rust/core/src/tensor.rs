//! Element types, and tensors borrowed from a mapping, from Python or from the weights.
//!
//! A [`TensorView`] is contiguous and row-major; strided tensors stay at the Python boundary.

use half::{bf16, f16};

/// Element type of a stored weight, an embedding table or a hidden row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FloatType {
    /// IEEE binary32.
    Float32,
    /// IEEE binary16.
    Float16,
    /// The upper half of a binary32.
    BFloat16,
}

impl FloatType {
    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            Self::Float32 => 4,
            Self::Float16 | Self::BFloat16 => 2,
        }
    }

    /// The name users see: `float32`, `float16` or `bfloat16`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Float32 => "float32",
            Self::Float16 => "float16",
            Self::BFloat16 => "bfloat16",
        }
    }

    /// Widens the element stored at `bytes[index * size ..]` (little-endian), exactly.
    ///
    /// # Panics
    /// When the element lies outside `bytes`.
    #[inline]
    pub fn widen(self, bytes: &[u8], index: usize) -> f32 {
        let at = index * self.size();
        match self {
            Self::Float32 => f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]),
            Self::Float16 => f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32(),
            Self::BFloat16 => bf16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32(),
        }
    }

    /// Rounds `value` to this type (nearest, ties to even) and stores it at `bytes[index * size ..]`.
    ///
    /// # Panics
    /// When the element lies outside `bytes`.
    #[inline]
    pub fn narrow(self, value: f32, bytes: &mut [u8], index: usize) {
        let at = index * self.size();
        match self {
            Self::Float32 => bytes[at..at + 4].copy_from_slice(&value.to_le_bytes()),
            Self::Float16 => bytes[at..at + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes()),
            Self::BFloat16 => bytes[at..at + 2].copy_from_slice(&bf16::from_f32(value).to_le_bytes()),
        }
    }
}

impl std::fmt::Display for FloatType {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.name())
    }
}

/// A contiguous, row-major tensor of floating-point elements, borrowed. The bytes need no alignment.
#[derive(Clone, Copy, Debug)]
pub struct TensorView<'a> {
    /// Element type.
    pub float_type: FloatType,
    /// Extent of each dimension, outermost first.
    pub shape: &'a [usize],
    /// `shape` elements, little-endian.
    pub bytes: &'a [u8],
}

impl TensorView<'_> {
    /// Widens one element by its flat index.
    #[inline]
    pub fn get(&self, index: usize) -> f32 {
        self.float_type.widen(self.bytes, index)
    }
}
