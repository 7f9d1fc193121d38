//! The exceptions of `overtone.errors`, raised from Rust.
//!
//! Rust code describes a failure as [`Raised`]: the class, a message with the whole cause chain, and the
//! attributes a program can read (`file`, `tensor`, `key`, `found`, `expected`). The classes themselves are Python,
//! in `python/overtone/errors.py`.

use std::error::Error;

use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyType};

/// An exception class of `overtone.errors`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// The root, and what an internal error raises.
    Overtone,
    /// A model or engine configuration that is wrong or contradicts itself.
    Config,
    /// A checkpoint that is missing, damaged or not what it claims to be.
    Checkpoint,
    /// A borrowed tensor that does not fit the artifacts.
    Binding,
    /// An argument of a call.
    Input,
    /// A device that failed.
    Device,
    /// CUDA was asked for and cannot run here.
    CudaUnavailable,
    /// An allocation that failed.
    OutOfMemory,
    /// Work that a stream capture does not allow.
    Capture,
    /// An engine that could not be built, loaded or run.
    Engine,
    /// A frame some of whose rows failed.
    Frame,
    /// A feature that this build, executor or checkpoint does not have.
    Unsupported,
}

/// How many classes [`ErrorClass`] lists.
const CLASSES: usize = ErrorClass::Unsupported as usize + 1;

impl ErrorClass {
    /// The class's name in `overtone.errors`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Overtone => "OvertoneError",
            Self::Config => "ConfigError",
            Self::Checkpoint => "CheckpointError",
            Self::Binding => "BindingError",
            Self::Input => "InputError",
            Self::Device => "DeviceError",
            Self::CudaUnavailable => "CudaUnavailableError",
            Self::OutOfMemory => "OutOfMemoryError",
            Self::Capture => "CaptureError",
            Self::Engine => "EngineError",
            Self::Frame => "FrameError",
            Self::Unsupported => "UnsupportedError",
        }
    }

    /// The class object, imported on first use.
    fn resolve(self, py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
        static RESOLVED: [PyOnceLock<Py<PyType>>; CLASSES] = [const { PyOnceLock::new() }; CLASSES];
        RESOLVED[self as usize].import(py, "overtone.errors", self.name())
    }
}

/// A failure on its way to Python.
#[derive(Debug)]
pub struct Raised(Box<Details>);

#[derive(Debug)]
struct Details {
    class: ErrorClass,
    message: String,
    file: Option<String>,
    tensor: Option<String>,
    key: Option<String>,
    found: Option<String>,
    expected: Option<String>,
    cause: Option<PyErr>,
}

impl Raised {
    /// A failure with its message and no attributes.
    pub fn new(class: ErrorClass, message: impl Into<String>) -> Self {
        Self(Box::new(Details {
            class,
            message: message.into(),
            file: None,
            tensor: None,
            key: None,
            found: None,
            expected: None,
            cause: None,
        }))
    }

    /// An `InputError`.
    pub fn input(message: impl Into<String>) -> Self {
        Self::new(ErrorClass::Input, message)
    }

    /// A failure whose message is `error` and everything that caused it.
    pub fn from_error(class: ErrorClass, error: &dyn Error) -> Self {
        Self::new(class, chain(error))
    }

    /// A failure that a Python exception caused: the message names it, and it becomes `__cause__`. What is no
    /// `Exception` (Ctrl-C, `SystemExit`) is not ours to dress: it comes back as it was.
    pub fn caused_by(mut self, py: Python<'_>, cause: PyErr) -> PyErr {
        if !cause.is_instance_of::<PyException>(py) {
            return cause;
        }
        self.0.message = format!("{}: {cause}", self.0.message);
        self.0.cause = Some(cause);
        self.into()
    }

    /// Names the file at fault.
    #[must_use]
    pub fn file(mut self, file: impl Into<String>) -> Self {
        self.0.file = Some(file.into());
        self
    }

    /// Names the tensor at fault.
    #[must_use]
    pub fn tensor(mut self, tensor: impl Into<String>) -> Self {
        self.0.tensor = Some(tensor.into());
        self
    }

    /// Names the configuration key or argument at fault.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.0.key = Some(key.into());
        self
    }

    /// Says what was found.
    #[must_use]
    pub fn found(mut self, found: impl Into<String>) -> Self {
        self.0.found = Some(found.into());
        self
    }

    /// Says what was expected.
    #[must_use]
    pub fn expected(mut self, expected: impl Into<String>) -> Self {
        self.0.expected = Some(expected.into());
        self
    }

    /// Says first where or in what it happened.
    #[must_use]
    pub fn context(mut self, what: impl std::fmt::Display) -> Self {
        self.0.message = format!("{what}: {}", self.0.message);
        self
    }

    /// The same failure as another class, for a caller that knows what the tensor is for.
    #[must_use]
    pub fn with_class(mut self, class: ErrorClass) -> Self {
        self.0.class = class;
        self
    }

    fn build(&self, py: Python<'_>) -> PyResult<PyErr> {
        let attributes = PyDict::new(py);
        for (name, value) in [
            ("file", &self.0.file),
            ("tensor", &self.0.tensor),
            ("key", &self.0.key),
            ("found", &self.0.found),
            ("expected", &self.0.expected),
        ] {
            if let Some(value) = value {
                attributes.set_item(name, value)?;
            }
        }
        let class = self.0.class.resolve(py)?;
        Ok(PyErr::from_value(class.call((self.0.message.as_str(),), Some(&attributes))?))
    }
}

impl From<Raised> for PyErr {
    fn from(raised: Raised) -> Self {
        Python::attach(|py| {
            let error = raised.build(py).unwrap_or_else(|failed| failed);
            if raised.0.cause.is_some() {
                error.set_cause(py, raised.0.cause);
            }
            error
        })
    }
}

/// A `FrameError` that names the failed rows of a frame and the status of each.
pub fn frame_error(py: Python<'_>, message: &str, rows: &[usize], statuses: &[i32]) -> PyErr {
    let build = || {
        let class = ErrorClass::Frame.resolve(py)?;
        Ok(PyErr::from_value(class.call1((message, rows, statuses))?))
    };
    build().unwrap_or_else(|failed| failed)
}

/// The error and its sources, outermost first, joined by `": "`. A source whose text the message before it already
/// ends with adds nothing and is left out.
pub fn chain(error: &dyn Error) -> String {
    let mut message = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let text = cause.to_string();
        if !message.ends_with(&text) {
            message.push_str(": ");
            message.push_str(&text);
        }
        source = cause.source();
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Link {
        text: &'static str,
        source: Option<Box<Link>>,
    }

    fn link(text: &'static str, source: Option<Link>) -> Link {
        Link { text, source: source.map(Box::new) }
    }

    #[test]
    fn a_chain_names_every_cause_once() {
        let error = link("loading", Some(link("reading a.json", Some(link("no such file", None)))));
        assert_eq!(chain(&error), "loading: reading a.json: no such file");
        let repeating = link("reading: no such file", Some(link("no such file", None)));
        assert_eq!(chain(&repeating), "reading: no such file");
    }
}
