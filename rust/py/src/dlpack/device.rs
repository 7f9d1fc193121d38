//! Where a tensor lives, as DLPack numbers it.

use std::fmt;

use super::abi::RawDevice;

/// A device: its kind and its index among devices of that kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    kind: i32,
    index: i32,
}

impl Device {
    /// Host memory.
    pub const CPU: Self = Self { kind: 1, index: 0 };

    /// The device that `__dlpack_device__` or a `DLTensor` names.
    pub const fn new(kind: i32, index: i32) -> Self {
        Self { kind, index }
    }

    /// The same device for a `DLTensor`.
    pub const fn raw(self) -> RawDevice {
        RawDevice { kind: self.kind, index: self.index }
    }

    /// Whether the CPU executor can read and write it. Pinned memory is left to the executor that pinned it.
    pub const fn is_cpu(self) -> bool {
        self.kind == Self::CPU.kind
    }

    const fn kind_name(self) -> Option<&'static str> {
        Some(match self.kind {
            1 => "cpu",
            2 => "cuda",
            3 => "cuda_host",
            4 => "opencl",
            7 => "vulkan",
            8 => "metal",
            9 => "vpi",
            10 => "rocm",
            11 => "rocm_host",
            12 => "extension",
            13 => "cuda_managed",
            14 => "oneapi",
            15 => "webgpu",
            16 => "hexagon",
            17 => "maia",
            18 => "trainium",
            _ => return None,
        })
    }
}

impl fmt::Display for Device {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind_name() {
            Some(name) if self.is_cpu() => formatter.write_str(name),
            Some(name) => write!(formatter, "{name}:{}", self.index),
            None => write!(formatter, "DLPack device type {}:{}", self.kind, self.index),
        }
    }
}
