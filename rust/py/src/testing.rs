//! An interpreter for unit tests.

use std::ffi::CStr;
use std::sync::Once;

use pyo3::prelude::*;
use pyo3::sync::OnceExt;

/// Attaches to an interpreter that has `overtone.errors`, and nothing else of the package.
pub fn with_python<R>(test: impl for<'py> FnOnce(Python<'py>) -> R) -> R {
    static ERRORS: Once = Once::new();
    Python::initialize();
    Python::attach(|py| {
        ERRORS.call_once_py_attached(py, || {
            let source = concat!(include_str!("../../../python/overtone/errors.py"), "\0");
            let source = CStr::from_bytes_with_nul(source.as_bytes()).unwrap();
            let errors = PyModule::from_code(py, source, c"errors.py", c"overtone.errors").unwrap();
            let modules = py.import("sys").unwrap().getattr("modules").unwrap();
            modules.set_item("overtone", PyModule::new(py, "overtone").unwrap()).unwrap();
            modules.set_item("overtone.errors", errors).unwrap();
        });
        test(py)
    })
}
