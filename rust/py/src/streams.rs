//! CUDA streams of other libraries: what a `stream` argument means, and which stream a library works on now.
//!
//! A stream is a number here. Nothing in this room calls CUDA: who waits for whom is the executor's to arrange.

use pyo3::exceptions::{PyBufferError, PyException, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyInt, PyString};
use pyo3::{ffi, intern};

use crate::errors::Raised;

/// What messages expect of a `stream` argument.
const EXPECTED: &str = "None, a stream's handle, or an object with __cuda_stream__, cuda_stream or ptr, such as torch.cuda.Stream";

/// A stream that somebody else made and keeps alive. The legacy default stream has two handles in CUDA, 0 and 1;
/// they are one stream here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamHandle(u64);

impl StreamHandle {
    /// The legacy default stream, on which every blocking stream waits, and which waits for them.
    pub const LEGACY: Self = Self(1);
    /// The default stream of the calling thread.
    pub const PER_THREAD: Self = Self(2);

    /// The stream of a `cudaStream_t` or `CUstream`.
    pub const fn new(handle: u64) -> Self {
        if handle == 0 { Self::LEGACY } else { Self(handle) }
    }

    /// The handle that CUDA takes: 0 for the legacy default stream.
    pub const fn handle(self) -> u64 {
        if self.0 == Self::LEGACY.0 { 0 } else { self.0 }
    }

    /// The number that DLPack and the CUDA array interface give it: 1 for the legacy default stream, 2 for the
    /// thread's, the handle for any other.
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// The stream that a call's `stream` argument means: a handle, an object that has one, or, for `None`, the stream on
/// which torch works on device `index` now. That is the legacy default stream while nobody has imported torch.
///
/// # Errors
/// An `InputError` for anything else; an exception of the object's own is its `__cause__`.
pub fn stream_argument(
    py: Python<'_>,
    argument: Option<&Bound<'_, PyAny>>,
    index: i32,
) -> PyResult<StreamHandle> {
    let Some(argument) = argument.filter(|argument| !argument.is_none()) else {
        return current_stream(py, index);
    };
    if let Some(handle) = integer(argument) {
        return handle_of(argument, &handle);
    }
    let reading = |what: &'static str| move |cause| failed(&format!("reading {what}")).caused_by(py, cause);
    if let Some(protocol) =
        argument.getattr_opt(intern!(py, "__cuda_stream__")).map_err(reading("__cuda_stream__"))?
    {
        // A method in the protocol's final form, an attribute in its first.
        let answer = if protocol.is_callable() { protocol.call0() } else { Ok(protocol) };
        let (version, handle) = answer
            .and_then(|answer| answer.extract::<(i64, Bound<'_, PyAny>)>())
            .map_err(reading("__cuda_stream__"))?;
        return if version == 0 {
            handle_of(argument, &handle)
        } else {
            Err(refused(&format!("version {version} of __cuda_stream__"), "version 0").into())
        };
    }
    for name in ["cuda_stream", "ptr"] {
        if let Some(handle) = argument.getattr_opt(name).map_err(reading(name))? {
            return handle_of(argument, &handle);
        }
    }
    Err(unusable(argument).into())
}

/// The stream that the consumer of an export asks for, in DLPack's numbers; `None` asks for no ordering.
///
/// # Errors
/// What DLPack gives no meaning on CUDA: a text that says so, in a `BufferError` or a `TypeError`.
pub fn consumer_stream(argument: Option<&Bound<'_, PyAny>>) -> PyResult<Option<StreamHandle>> {
    let Some(argument) = argument.filter(|argument| !argument.is_none()) else {
        return Ok(Some(StreamHandle::LEGACY));
    };
    let Some(number) = integer(argument) else {
        let found = argument.get_type().name()?;
        return Err(PyTypeError::new_err(format!("stream: found {found}, expected an int or None")));
    };
    let unusable = |why: &str| PyBufferError::new_err(format!("stream {number}: {why}"));
    match number.extract::<i128>() {
        Ok(-1) => Ok(None),
        Ok(0) => {
            Err(unusable("ambiguous on CUDA; pass 1 for the legacy default stream, or 2 for the thread's"))
        }
        Ok(found) => match u64::try_from(found) {
            Ok(handle) => Ok(Some(StreamHandle::new(handle))),
            Err(_) => Err(unusable("no stream has this handle")),
        },
        Err(_) => Err(unusable("no stream has this handle")),
    }
}

/// The stream on which torch works on device `index` now, when torch is there.
fn current_stream(py: Python<'_>, index: i32) -> PyResult<StreamHandle> {
    let Some(torch) = imported(py, "torch") else { return Ok(StreamHandle::LEGACY) };
    match torch_stream(&torch, index) {
        Ok(stream) => Ok(stream.unwrap_or(StreamHandle::LEGACY)),
        // A torch that cannot use CUDA here has no work to wait for.
        Err(error) if error.is_instance_of::<PyException>(py) => Ok(StreamHandle::LEGACY),
        Err(interrupt) => Err(interrupt),
    }
}

/// `None` for a torch that knows no streams: one without CUDA, or in the middle of being imported.
fn torch_stream(torch: &Bound<'_, PyAny>, index: i32) -> PyResult<Option<StreamHandle>> {
    let py = torch.py();
    let Some(library) = torch.getattr_opt(intern!(py, "_C"))? else { return Ok(None) };
    let Some(ask) = library.getattr_opt(intern!(py, "_cuda_getCurrentRawStream"))? else { return Ok(None) };
    Ok(Some(StreamHandle::new(ask.call1((index,))?.extract()?)))
}

/// The module `name`, if somebody has imported it; overtone does not.
fn imported<'py>(py: Python<'py>, name: &'static str) -> Option<Bound<'py, PyAny>> {
    // SAFETY: the interpreter is attached; the function borrows the name and returns a new reference or null.
    let module = unsafe {
        let module = ffi::PyImport_GetModule(PyString::intern(py, name).as_ptr());
        Bound::from_owned_ptr_or_opt(py, module)
    };
    if module.is_none() {
        drop(PyErr::take(py));
    }
    // `sys.modules["torch"] = None` forbids its import.
    module.filter(|module| !module.is_none())
}

/// The argument as a Python integer, if it is one: a truth value is not.
fn integer<'py>(argument: &Bound<'py, PyAny>) -> Option<Bound<'py, PyAny>> {
    (argument.is_instance_of::<PyInt>() && !argument.is_instance_of::<PyBool>()).then(|| argument.clone())
}

fn handle_of(argument: &Bound<'_, PyAny>, handle: &Bound<'_, PyAny>) -> PyResult<StreamHandle> {
    let handle = integer(handle).and_then(|handle| handle.extract::<u64>().ok());
    handle.map(StreamHandle::new).ok_or_else(|| unusable(argument).into())
}

fn unusable(argument: &Bound<'_, PyAny>) -> Raised {
    let text = argument.repr().map_or_else(|_| "an object".to_owned(), |text| text.to_string());
    refused(&text.chars().take(200).collect::<String>(), EXPECTED)
}

fn refused(found: &str, expected: &str) -> Raised {
    failed(&format!("found {found}, expected {expected}")).found(found).expected(expected)
}

fn failed(what: &str) -> Raised {
    Raised::input(format!("stream: {what}")).key("stream")
}

#[cfg(test)]
mod tests;
