//! Which stream an argument means.

use std::ffi::CString;

use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::prelude::*;

use super::{StreamHandle, consumer_stream, stream_argument};
use crate::testing::with_python;

/// The value of an expression about streams.
fn value<'py>(py: Python<'py>, expression: &str) -> Bound<'py, PyAny> {
    let prelude = cr#"
class Torch:
    cuda_stream = 5
class Protocol:
    def __cuda_stream__(self):
        return (0, 9)
class FirstProtocol:
    __cuda_stream__ = (0, 9)
class Newer:
    def __cuda_stream__(self):
        return (1, 9)
class CuPy:
    ptr = 11
class Broken:
    cuda_stream = "five"
class Raising:
    def __cuda_stream__(self):
        raise RuntimeError("destroyed")
"#;
    let names = pyo3::types::PyDict::new(py);
    py.run(prelude, Some(&names), None).unwrap();
    py.eval(&CString::new(expression).unwrap(), Some(&names), None).unwrap()
}

#[test]
fn both_handles_of_the_legacy_default_stream_are_one_stream() {
    assert_eq!(StreamHandle::new(0), StreamHandle::new(1));
    assert_eq!((StreamHandle::LEGACY.handle(), StreamHandle::LEGACY.number()), (0, 1));
    assert_eq!((StreamHandle::PER_THREAD.handle(), StreamHandle::PER_THREAD.number()), (2, 2));
    assert_eq!(StreamHandle::new(0x70).handle(), 0x70);
}

#[test]
fn a_stream_is_named_by_handle_or_by_an_object_that_has_one() {
    with_python(|py| {
        for (argument, handle) in [
            ("0", 0),
            ("1", 0),
            ("2", 2),
            ("0xffff_ffff_ffff_fff0", 0xffff_ffff_ffff_fff0),
            ("Torch()", 5),
            ("Protocol()", 9),
            ("FirstProtocol()", 9),
            ("CuPy()", 11),
        ] {
            let stream = stream_argument(py, Some(&value(py, argument)), 0).unwrap();
            assert_eq!(stream.handle(), handle, "{argument}");
        }
    });
}

#[test]
fn what_is_no_stream_is_refused_by_name() {
    with_python(|py| {
        for (argument, found) in [
            ("True", "found True"),
            ("-1", "found -1"),
            ("2 ** 64", "found 18446744073709551616"),
            ("1.5", "found 1.5"),
            ("'1'", "found '1'"),
            ("Broken()", "Broken object"),
            ("Newer()", "version 1 of __cuda_stream__"),
            ("Raising()", "RuntimeError: destroyed"),
        ] {
            let error = stream_argument(py, Some(&value(py, argument)), 0).unwrap_err();
            let text = error.value(py).to_string();
            assert!(text.starts_with("stream: ") && text.contains(found), "{argument}: {text}");
            assert_eq!(error.get_type(py).name().unwrap(), "InputError");
        }
    });
}

/// One test, since it changes `sys.modules`.
#[test]
fn without_a_stream_it_is_torchs_current_one_and_torch_is_never_imported() {
    with_python(|py| {
        let modules = py.import("sys").unwrap().getattr("modules").unwrap();
        let current = |index| stream_argument(py, None, index).unwrap();
        assert!(!modules.contains("torch").unwrap());
        assert_eq!(current(3), StreamHandle::LEGACY);
        assert!(!modules.contains("torch").unwrap());

        for (torch, expected) in [
            (
                "type('torch', (), dict(_C=type('_C', (), dict(_cuda_getCurrentRawStream=lambda i: 100 + i))))",
                103,
            ),
            ("type('torch', (), dict(_C=type('_C', (), dict(_cuda_getCurrentRawStream=lambda i: 0))))", 0),
            (
                "type('torch', (), dict(_C=type('_C', (), dict(_cuda_getCurrentRawStream=lambda i: 1 / 0))))",
                0,
            ),
            ("type('torch', (), dict(_C=type('without CUDA', (), {})))", 0),
            ("type('half imported', (), {})", 0),
            ("None", 0),
        ] {
            modules.set_item("torch", value(py, torch)).unwrap();
            assert_eq!(current(3).handle(), expected, "{torch}");
            assert_eq!(stream_argument(py, Some(&value(py, "None")), 3).unwrap().handle(), expected);
        }
        modules.del_item("torch").unwrap();
    });
}

#[test]
fn a_consumers_stream_follows_dlpack() {
    with_python(|py| {
        assert_eq!(consumer_stream(None).unwrap(), Some(StreamHandle::LEGACY));
        for (argument, stream) in [
            ("None", Some(StreamHandle::LEGACY)),
            ("1", Some(StreamHandle::LEGACY)),
            ("2", Some(StreamHandle::PER_THREAD)),
            ("0x1230", Some(StreamHandle::new(0x1230))),
            ("-1", None),
        ] {
            assert_eq!(consumer_stream(Some(&value(py, argument))).unwrap(), stream, "{argument}");
        }
        for argument in ["0", "-2", "2 ** 64", "-2 ** 200"] {
            let error = consumer_stream(Some(&value(py, argument))).unwrap_err();
            assert!(error.is_instance_of::<PyBufferError>(py), "{argument}: {error}");
        }
        for argument in ["True", "1.0", "'1'", "Torch()"] {
            let error = consumer_stream(Some(&value(py, argument))).unwrap_err();
            assert!(error.is_instance_of::<PyTypeError>(py), "{argument}: {error}");
        }
    });
}
