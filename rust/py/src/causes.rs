//! What the core reports, as the exceptions of `overtone.errors`.

use overtone_core::checkpoint::CheckpointError;
use overtone_core::cpu::executor::CpuError;
use overtone_core::cpu::threads::ThreadsError;
use overtone_core::cpu::weights::LoadError;
use overtone_core::sampling::SamplingError;
use overtone_core::spec::config::ConfigError;
use overtone_cuda::driver::{DriverError, Unavailable};
use overtone_cuda::executor::CudaError;
use overtone_cuda::load::LoadError as CudaLoadError;

use crate::errors::{ErrorClass, Raised};

impl From<ConfigError> for Raised {
    fn from(error: ConfigError) -> Self {
        let mut raised = Self::from_error(ErrorClass::Config, &error);
        if let Some(file) = error.file() {
            raised = raised.file(file.display().to_string());
        }
        if let Some(key) = error.key() {
            raised = raised.key(key);
        }
        with_finding(raised, error.found(), error.expected())
    }
}

impl From<CheckpointError> for Raised {
    fn from(error: CheckpointError) -> Self {
        if let CheckpointError::Config(error) = error {
            return error.into();
        }
        let mut raised = Self::from_error(ErrorClass::Checkpoint, &error);
        if let Some(file) = error.file() {
            raised = raised.file(file.display().to_string());
        }
        if let Some(tensor) = error.tensor() {
            raised = raised.tensor(tensor);
        }
        with_finding(raised, error.found(), error.expected())
    }
}

impl From<ThreadsError> for Raised {
    fn from(error: ThreadsError) -> Self {
        let class = match error {
            ThreadsError::Variable { .. } | ThreadsError::OutOfRange { .. } => ErrorClass::Input,
            ThreadsError::Start(_) => ErrorClass::Device,
        };
        Self::from_error(class, &error).key("threads")
    }
}

impl From<CpuError> for Raised {
    fn from(error: CpuError) -> Self {
        match error {
            CpuError::Load(LoadError::Checkpoint(error)) => error.into(),
            CpuError::Load(memory @ LoadError::Memory(_)) => {
                Self::from_error(ErrorClass::OutOfMemory, &memory)
            }
            CpuError::Load(interrupted @ LoadError::Interrupted) => {
                Self::from_error(ErrorClass::Overtone, &interrupted)
            }
            CpuError::Threads(error) => error.into(),
        }
    }
}

impl From<SamplingError> for Raised {
    fn from(error: SamplingError) -> Self {
        let key = match error {
            SamplingError::Temperature { .. } => "temperature",
            SamplingError::TopK { .. } => "top_k",
            SamplingError::TopP { .. } => "top_p",
        };
        Self::from_error(ErrorClass::Input, &error).key(key)
    }
}

/// Why CUDA cannot run here, and what would mend it.
pub fn cuda_unavailable(error: &Unavailable) -> Raised {
    match error {
        // The driver is there, and this process may not use it.
        Unavailable::Forked(error) => cuda_error(error),
        _ => Raised::new(ErrorClass::CudaUnavailable, format!("{error}. {}", error.advice())),
    }
}

/// What the driver refused, or what failed on the device.
pub fn cuda_error(error: &DriverError) -> Raised {
    let class = match error {
        DriverError::OutOfMemory { .. } => ErrorClass::OutOfMemory,
        _ => ErrorClass::Device,
    };
    Raised::from_error(class, error)
}

impl From<CudaError> for Raised {
    fn from(error: CudaError) -> Self {
        match error {
            CudaError::Unavailable(error) => cuda_unavailable(&error),
            CudaError::Driver(error) => cuda_error(&error),
            CudaError::Kernels(error) => Self::from_error(ErrorClass::Device, &error),
            CudaError::Load(CudaLoadError::Checkpoint(error)) => error.into(),
            CudaError::Load(CudaLoadError::Device(error)) => {
                cuda_error(&error).context("while weights were loaded")
            }
            CudaError::Load(error @ CudaLoadError::OutOfRange { .. }) => {
                Self::from_error(ErrorClass::Checkpoint, &error)
            }
            CudaError::Load(error @ CudaLoadError::Interrupted) => {
                Self::from_error(ErrorClass::Overtone, &error)
            }
            CudaError::Unsupported(error) => Self::from_error(ErrorClass::Unsupported, &error)
                .key(error.what)
                .found(error.found.to_string())
                .expected(error.expected.clone()),
        }
    }
}

fn with_finding(mut raised: Raised, found: Option<String>, expected: Option<String>) -> Raised {
    if let Some(found) = found {
        raised = raised.found(found);
    }
    if let Some(expected) = expected {
        raised = raised.expected(expected);
    }
    raised
}
