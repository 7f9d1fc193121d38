//! Where a tensor lives, as DLPack numbers it.

use std::fmt;

use super::abi::RawDevice;

/// `kDLCPU`, `kDLCUDA`, `kDLCUDAHost` and `kDLCUDAManaged` of `DLDeviceType`.
const CPU: i32 = 1;
const CUDA: i32 = 2;
const CUDA_HOST: i32 = 3;
const CUDA_MANAGED: i32 = 13;

/// A device: its kind and its index among devices of that kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    kind: i32,
    index: i32,
}

impl Device {
    /// Host memory.
    pub const CPU: Self = Self { kind: CPU, index: 0 };

    /// The memory of a CUDA device.
    pub const fn cuda(index: i32) -> Self {
        Self { kind: CUDA, index }
    }

    /// The device that `__dlpack_device__` or a `DLTensor` names.
    pub const fn new(kind: i32, index: i32) -> Self {
        Self { kind, index }
    }

    /// The device that users call `name`: `cpu`, `cuda` (the first) or `cuda:1`.
    pub fn from_name(name: &str) -> Option<Self> {
        match name.strip_prefix("cuda") {
            None => (name == "cpu").then_some(Self::CPU),
            Some("") => Some(Self::cuda(0)),
            Some(rest) => rest.strip_prefix(':')?.parse::<u16>().ok().map(|index| Self::cuda(index.into())),
        }
    }

    /// The same device for a `DLTensor`.
    pub const fn raw(self) -> RawDevice {
        RawDevice { kind: self.kind, index: self.index }
    }

    /// Its index among devices of its kind. Pinned and managed memory have index 0, wherever they were made.
    pub const fn index(self) -> i32 {
        self.index
    }

    /// Whether the host may read and write the memory: ordinary memory, and what CUDA has pinned.
    pub const fn is_host(self) -> bool {
        matches!(self.kind, CPU | CUDA_HOST)
    }

    /// Whether it is host memory that CUDA has pinned, and so a device may copy from and to without a stop.
    pub const fn is_pinned(self) -> bool {
        self.kind == CUDA_HOST
    }

    /// Whether kernels work in the memory and the host does not: a CUDA device's own, or managed memory, which the
    /// host could only touch while the device is idle. Work on it is ordered on streams.
    pub const fn is_cuda(self) -> bool {
        matches!(self.kind, CUDA | CUDA_MANAGED)
    }

    /// Whether kernels of device `index` may work in the memory without a copy.
    pub const fn is_on_cuda(self, index: i32) -> bool {
        self.kind == CUDA_MANAGED || self.kind == CUDA && self.index == index
    }

    const fn kind_name(self) -> Option<&'static str> {
        Some(match self.kind {
            CPU => "cpu",
            CUDA => "cuda",
            CUDA_HOST => "cuda_host",
            4 => "opencl",
            7 => "vulkan",
            8 => "metal",
            9 => "vpi",
            10 => "rocm",
            11 => "rocm_host",
            12 => "extension",
            CUDA_MANAGED => "cuda_managed",
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
            Some(name) if self.kind == CPU => formatter.write_str(name),
            Some(name) => write!(formatter, "{name}:{}", self.index),
            None => write!(formatter, "DLPack device type {}:{}", self.kind, self.index),
        }
    }
}
