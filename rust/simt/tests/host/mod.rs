//! A device that is the host: overtone-cuda's own launches, run kernel by kernel under the SIMT runtime.
//!
//! | file | what it holds |
//! |---|---|
//! | [`predictor`] | a loaded predictor and its frames |
//! | [`fragments`] | where tensor cores look for weights and activations |
//! | [`fixtures`] | what is predicted: models, rows, expected outputs |

#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../../../cuda/tests/fixtures/mod.rs"]
pub mod fixtures;
pub mod fragments;
pub mod predictor;
use overtone_core::tensor::FloatType;
use overtone_cuda::layout::Address;
use overtone_cuda::machine::Machine;
use overtone_cuda::plan::Launch;
use overtone_simt::{GuardedBuffer, LaunchError, Schedule, kernel, launch};

/// Rounding error of a type: half a unit in the last place, of a number's size.
pub fn unit_roundoff(float_type: FloatType) -> f64 {
    match float_type {
        FloatType::Float32 => 2f64.powi(-24),
        FloatType::Float16 => 2f64.powi(-11),
        FloatType::BFloat16 => 2f64.powi(-8),
    }
}

/// The largest rounding error of a number too small for a type's normal range.
pub fn subnormal_roundoff(float_type: FloatType) -> f64 {
    if float_type == FloatType::Float16 { 2f64.powi(-25) } else { 2f64.powi(-134) }
}

/// The nearest value of a type.
pub fn rounded(float_type: FloatType, value: f32) -> f32 {
    let mut bytes = [0; 4];
    float_type.narrow(value, &mut bytes, 0);
    float_type.widen(&bytes, 0)
}

/// Runs launches on the host.
#[derive(Clone, Copy)]
pub struct Host {
    pub schedule: Schedule,
}

impl Host {
    pub const NATURAL: Self = Self { schedule: Schedule::Natural };

    /// Runs launches whose addresses are of memory that the caller made for them.
    pub fn go(mut self, works: &[Launch]) {
        for work in works {
            // SAFETY: the tests pass addresses of guarded memory made for the launch.
            unsafe { self.run(work) }.unwrap_or_else(|error| panic!("{error}"));
        }
    }
}

impl Machine for Host {
    type Error = LaunchError;

    unsafe fn write(&mut self, target: Address, bytes: &[u8]) -> Result<(), LaunchError> {
        // SAFETY: the caller's condition: the target has room for the bytes.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target as *mut u8, bytes.len()) };
        Ok(())
    }

    unsafe fn run(&mut self, work: &Launch) -> Result<(), LaunchError> {
        let symbol = work.kernel.symbol();
        let function = kernel(symbol).unwrap_or_else(|| panic!("{symbol} is in no kernel file"));
        let (shared, arguments) = (work.shared_bytes as usize, work.arguments.as_bytes());
        // SAFETY: the caller's condition: the addresses in the arguments are valid for what the kernel does.
        unsafe { launch(function, work.grid, work.block, shared, arguments, self.schedule) }
    }
}

/// Memory that a kernel cannot leave unnoticed.
pub struct Memory(GuardedBuffer<u64>);

impl Memory {
    pub fn zeroed(bytes: u64) -> Self {
        Self(GuardedBuffer::zeroed((bytes as usize).div_ceil(8)))
    }

    /// Memory whose bytes are all `byte`: 0xff is NaN in every float type.
    pub fn filled(bytes: u64, byte: u8) -> Self {
        Self(GuardedBuffer::filled_with_byte((bytes as usize).div_ceil(8), byte))
    }

    /// Room for `count` float32, all NaN.
    pub fn of_nan(count: usize) -> Self {
        Self::filled((count * size_of::<f32>()) as u64, 0xff)
    }

    pub fn of<T: bytemuck::NoUninit>(values: &[T]) -> Self {
        let mut memory = Self::zeroed(size_of_val(values) as u64);
        memory.bytes_mut()[..size_of_val(values)].copy_from_slice(bytemuck::cast_slice(values));
        memory
    }

    /// Numbers rounded to a type.
    pub fn of_floats(float_type: FloatType, values: &[f32]) -> Self {
        let mut memory = Self::zeroed((values.len() * float_type.size()) as u64);
        for (index, value) in values.iter().enumerate() {
            float_type.narrow(*value, memory.bytes_mut(), index);
        }
        memory
    }

    pub fn address(&self) -> Address {
        self.0.address()
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(self.0.as_mut_slice())
    }

    pub fn read<T: bytemuck::Pod>(&self, count: usize) -> Vec<T> {
        let bytes: &[u8] = bytemuck::cast_slice(self.0.as_slice());
        bytes[..count * size_of::<T>()]
            .chunks_exact(size_of::<T>())
            .map(bytemuck::pod_read_unaligned)
            .collect()
    }

    /// What lies so many bytes behind its start.
    pub fn read_at<T: bytemuck::Pod>(&self, offset: usize) -> T {
        let bytes: &[u8] = bytemuck::cast_slice(self.0.as_slice());
        bytemuck::pod_read_unaligned(&bytes[offset..offset + size_of::<T>()])
    }

    /// Numbers of a type, widened.
    pub fn read_floats(&self, float_type: FloatType, count: usize) -> Vec<f32> {
        let bytes: &[u8] = bytemuck::cast_slice(self.0.as_slice());
        (0..count).map(|index| float_type.widen(bytes, index)).collect()
    }
}
