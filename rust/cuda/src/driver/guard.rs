//! The one guard before the driver: cudarc panics where the driver's library is missing, so nothing of it is called before
//! [`Driver::get`] has looked.

use std::fmt;
use std::sync::OnceLock;

use cudarc::driver::sys::{self, CUresult};

use super::device::{ComputeCapability, Device};
use super::error::{DriverError, words};
use crate::kernels;

/// The oldest CUDA that the driver may support: machine code of CUDA 13 runs on drivers of branch 580 and later.
pub const OLDEST_DRIVER: DriverVersion = DriverVersion { major: 13, minor: 0 };
/// The oldest GPUs that the kernels are compiled for (A100).
pub const OLDEST_COMPUTE_CAPABILITY: ComputeCapability = ComputeCapability { major: 8, minor: 0 };

/// The newest CUDA that a driver supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DriverVersion {
    /// 13 of 13.0.
    pub major: u32,
    /// 0 of 13.0.
    pub minor: u32,
}

impl fmt::Display for DriverVersion {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}", self.major, self.minor)
    }
}

/// Why no frame can run on a GPU here. What to do about it is its [`advice`](Unavailable::advice).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// This build left the kernels out.
    #[error("this build of overtone holds no CUDA kernels")]
    NoKernels,
    /// `libcuda.so.1` is not there.
    #[error("there is no NVIDIA driver: its library, libcuda.so.1, was not found")]
    NoDriver,
    /// A toolkit's stand-in for the driver's library is found before the library itself.
    #[error("the libcuda that was found is a stub, which is only there to link against")]
    StubLibrary,
    /// The driver is older than the kernels.
    #[error("the NVIDIA driver supports CUDA {found}, and CUDA {OLDEST_DRIVER} is needed")]
    DriverTooOld {
        /// What the driver supports.
        found: DriverVersion,
    },
    /// The driver could not be initialized.
    #[error("the NVIDIA driver could not be initialized: {name}: {description}")]
    InitializationFailed {
        /// The driver's name for the error.
        name: String,
        /// The driver's sentence about it.
        description: String,
    },
    /// The driver sees no GPU.
    #[error("the NVIDIA driver sees no GPU")]
    NoDevice,
    /// The device asked for is not there.
    #[error("there is no CUDA device {ordinal}: the driver sees {count}, counted from 0")]
    DeviceNotFound {
        /// The device asked for.
        ordinal: usize,
        /// How many there are.
        count: usize,
    },
    /// The GPU is older than the kernels.
    #[error("{device} has compute capability {found}, and {OLDEST_COMPUTE_CAPABILITY} is needed")]
    ComputeCapabilityTooOld {
        /// Its ordinal and name.
        device: String,
        /// What it has.
        found: ComputeCapability,
    },
    /// The driver was initialized by a process that this one was forked from.
    #[error(transparent)]
    Forked(DriverError),
    /// The driver was initialized, and then could not say what a device is.
    #[error(transparent)]
    Unanswered(DriverError),
}

impl Unavailable {
    /// What would mend it, as a sentence.
    pub const fn advice(&self) -> &'static str {
        match self {
            Self::NoKernels => "Install a wheel that holds them, or build without --no-default-features.",
            Self::NoDriver => {
                "Install an NVIDIA driver of branch 580 or later; in a container, start it with the NVIDIA Container \
                 Toolkit (docker run --gpus all)."
            }
            Self::StubLibrary => "Take the folder \"stubs\" of the CUDA installation out of LD_LIBRARY_PATH.",
            Self::DriverTooOld { .. } => {
                "Install an NVIDIA driver of branch 580 or later; nvidia-smi shows which one runs."
            }
            Self::InitializationFailed { .. } => {
                "See whether nvidia-smi works; if it reports a version mismatch, restart the machine after the driver's update."
            }
            Self::NoDevice => "See what nvidia-smi lists, and whether CUDA_VISIBLE_DEVICES hides it.",
            Self::DeviceNotFound { .. } => {
                "Name one that nvidia-smi lists and CUDA_VISIBLE_DEVICES does not hide."
            }
            Self::ComputeCapabilityTooOld { .. } => {
                "Use a GPU of the Ampere generation or later, or the executor \"cpu\"."
            }
            Self::Forked(_) => "Start worker processes with the method \"spawn\" or \"forkserver\".",
            Self::Unanswered(_) => "See whether nvidia-smi works.",
        }
    }
}

/// The driver, initialized. Having one is the permission to call it.
#[derive(Debug)]
pub struct Driver {
    version: DriverVersion,
    devices: Vec<Device>,
    process: u32,
}

impl Driver {
    /// The driver, if frames can run on at least one of its devices. The first call initializes it; the answer stays.
    pub fn get() -> Result<&'static Self, Unavailable> {
        static DRIVER: OnceLock<Result<Driver, Unavailable>> = OnceLock::new();
        let driver = DRIVER.get_or_init(Self::initialize).as_ref().map_err(Clone::clone)?;
        driver.check_process().map_err(Unavailable::Forked)?;
        Ok(driver)
    }

    fn initialize() -> Result<Self, Unavailable> {
        if !kernels::EMBEDDED {
            return Err(Unavailable::NoKernels);
        }
        // SAFETY: opens the library and closes it; its initializers are NVIDIA's.
        if !unsafe { sys::is_culib_present() } {
            return Err(Unavailable::NoDriver);
        }
        let version = version()?;
        if version < OLDEST_DRIVER {
            return Err(Unavailable::DriverTooOld { found: version });
        }
        // SAFETY: the library is there; the flags must be 0.
        refuse(unsafe { sys::cuInit(0) })?;
        let devices = Device::all().map_err(Unavailable::Unanswered)?;
        let newest = devices.iter().max_by_key(|device| device.properties().compute_capability);
        newest.ok_or(Unavailable::NoDevice)?.check_compute_capability()?;
        Ok(Self { version, devices, process: std::process::id() })
    }

    /// The newest CUDA that the driver supports.
    pub const fn version(&self) -> DriverVersion {
        self.version
    }

    /// Every device that the driver sees, also those too old to run frames, in the order of their ordinals.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// The device of this ordinal, if frames can run on it.
    pub fn device(&self, ordinal: usize) -> Result<&Device, Unavailable> {
        let count = self.devices.len();
        let device = self.devices.get(ordinal).ok_or(Unavailable::DeviceNotFound { ordinal, count })?;
        device.check_compute_capability()?;
        Ok(device)
    }

    /// Refuses the call when this process was forked from the one that initialized the driver.
    pub fn check_process(&self) -> Result<(), DriverError> {
        let process = std::process::id();
        if process == self.process {
            Ok(())
        } else {
            Err(DriverError::Forked { initialized_in: self.process, process })
        }
    }
}

/// Needs no initialized driver.
fn version() -> Result<DriverVersion, Unavailable> {
    let mut version = 0;
    // SAFETY: the library is there; the call writes one integer.
    refuse(unsafe { sys::cuDriverGetVersion(&raw mut version) })?;
    let version = version.unsigned_abs();
    Ok(DriverVersion { major: version / 1000, minor: version % 1000 / 10 })
}

/// The cause behind a refusal to initialize.
fn refuse(status: CUresult) -> Result<(), Unavailable> {
    match status {
        CUresult::CUDA_SUCCESS => Ok(()),
        CUresult::CUDA_ERROR_NO_DEVICE => Err(Unavailable::NoDevice),
        CUresult::CUDA_ERROR_STUB_LIBRARY => Err(Unavailable::StubLibrary),
        _ => {
            let (name, description) = words(status);
            Err(Unavailable::InitializationFailed { name, description })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asking_for_the_driver_never_panics_and_answers_the_same_twice() {
        let first = Driver::get().map(|driver| driver.version());
        assert_eq!(first, Driver::get().map(|driver| driver.version()));
        if let Err(error) = first {
            assert!(error.advice().ends_with('.'), "{error}");
        }
    }

    #[cfg(feature = "kernels")]
    #[test]
    fn a_machine_without_the_driver_is_told_so() {
        // SAFETY: opens the library and closes it; its initializers are NVIDIA's.
        let present = unsafe { sys::is_culib_present() };
        assert_eq!(Driver::get().err() == Some(Unavailable::NoDriver), !present);
    }

    #[cfg(not(feature = "kernels"))]
    #[test]
    fn a_build_without_kernels_says_so_before_it_looks_for_a_driver() {
        assert_eq!(Driver::get().err(), Some(Unavailable::NoKernels));
    }

    #[test]
    fn what_the_driver_answers_at_its_start_becomes_a_cause_of_its_own() {
        assert_eq!(refuse(CUresult::CUDA_SUCCESS), Ok(()));
        assert_eq!(refuse(CUresult::CUDA_ERROR_NO_DEVICE), Err(Unavailable::NoDevice));
        assert_eq!(refuse(CUresult::CUDA_ERROR_STUB_LIBRARY), Err(Unavailable::StubLibrary));
    }
}
