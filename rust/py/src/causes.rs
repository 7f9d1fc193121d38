//! What the core reports, as the exceptions of `overtone.errors`.

use overtone_core::checkpoint::CheckpointError;
use overtone_core::cpu::executor::CpuError;
use overtone_core::cpu::threads::ThreadsError;
use overtone_core::cpu::weights::LoadError;
use overtone_core::sampling::SamplingError;
use overtone_core::spec::config::ConfigError;

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

fn with_finding(mut raised: Raised, found: Option<String>, expected: Option<String>) -> Raised {
    if let Some(found) = found {
        raised = raised.found(found);
    }
    if let Some(expected) = expected {
        raised = raised.expected(expected);
    }
    raised
}
