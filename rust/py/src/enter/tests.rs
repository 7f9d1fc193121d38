//! What the way into Rust promises, checked with an interpreter inside the test.

use std::ops::ControlFlow;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use pyo3::exceptions::{PyKeyboardInterrupt, PyLookupError, PyValueError};
use pyo3::prelude::*;

use super::{enter, enter_interruptible};
use crate::errors::{ErrorClass, Raised, frame_error};
use crate::testing::with_python;

fn class_name(py: Python<'_>, error: &PyErr) -> String {
    error.get_type(py).name().unwrap().to_string()
}

#[test]
fn a_panic_becomes_an_overtone_error() {
    with_python(|py| {
        let error = enter(py, || -> Result<(), Raised> { panic!("row {} is lost", 3) }).unwrap_err();
        assert_eq!(class_name(py, &error), "OvertoneError");
        assert_eq!(error.value(py).to_string(), "internal error: row 3 is lost; please report it");
    });
}

#[test]
fn an_error_carries_its_class_and_attributes() {
    with_python(|py| {
        let outcome = enter(py, || -> Result<(), Raised> {
            let raised = Raised::new(ErrorClass::Checkpoint, "a.json: layers -1, expected at least 1");
            Err(raised.file("a.json").key("layers").found("-1").expected("at least 1"))
        });
        let error = outcome.unwrap_err();
        assert_eq!(class_name(py, &error), "CheckpointError");
        assert!(error.is_instance_of::<PyValueError>(py));
        let value = error.value(py);
        for (name, expected) in
            [("file", "a.json"), ("key", "layers"), ("found", "-1"), ("expected", "at least 1")]
        {
            assert_eq!(value.getattr(name).unwrap().to_string(), expected);
        }
        assert!(value.getattr("tensor").unwrap().is_none());
    });
}

#[test]
fn every_class_has_its_exception() {
    with_python(|py| {
        for class in ALL {
            let error = PyErr::from(Raised::new(class, "text"));
            assert_eq!(class_name(py, &error), class.name());
        }
        let listed = py.import("overtone.errors").unwrap().getattr("__all__").unwrap();
        assert_eq!(listed.len().unwrap(), ALL.len());
    });
}

const ALL: [ErrorClass; 12] = [
    ErrorClass::Overtone,
    ErrorClass::Config,
    ErrorClass::Checkpoint,
    ErrorClass::Binding,
    ErrorClass::Input,
    ErrorClass::Device,
    ErrorClass::CudaUnavailable,
    ErrorClass::OutOfMemory,
    ErrorClass::Capture,
    ErrorClass::Engine,
    ErrorClass::Frame,
    ErrorClass::Unsupported,
];

#[test]
fn a_frame_error_names_its_rows() {
    with_python(|py| {
        let error = frame_error(py, "rows 1 and 4 failed", &[1, 4], &[-1, 7]);
        let value = error.value(py);
        let rows: (usize, usize) = value.getattr("rows").unwrap().extract().unwrap();
        let statuses: (i32, i32) = value.getattr("statuses").unwrap().extract().unwrap();
        assert_eq!((rows, statuses, value.to_string()), ((1, 4), (-1, 7), "rows 1 and 4 failed".to_owned()));
    });
}

#[test]
fn a_python_cause_is_kept_and_ctrl_c_is_not_dressed() {
    with_python(|py| {
        let cause = PyLookupError::new_err("no such thing");
        let error = Raised::input("codes: __dlpack__ failed").caused_by(py, cause);
        assert_eq!(class_name(py, &error), "InputError");
        assert_eq!(error.value(py).to_string(), "codes: __dlpack__ failed: LookupError: no such thing");
        assert!(error.cause(py).unwrap().is_instance_of::<PyLookupError>(py));
        let interrupted = Raised::input("codes").caused_by(py, PyKeyboardInterrupt::new_err(()));
        assert!(interrupted.is_instance_of::<PyKeyboardInterrupt>(py));
    });
}

#[test]
fn the_interpreter_is_free_while_the_work_runs() {
    with_python(|py| {
        let (sender, receiver) = mpsc::channel();
        let other = thread::spawn(move || Python::attach(|_| sender.send(()).unwrap()));
        let heard = enter(py, move || -> Result<bool, Raised> {
            Ok(receiver.recv_timeout(Duration::from_secs(20)).is_ok())
        });
        assert!(heard.unwrap(), "another thread could not attach");
        py.detach(|| other.join()).unwrap();
    });
}

#[test]
fn progress_is_reported_at_the_end_and_seldom_before() {
    with_python(|py| {
        let seen = pyo3::types::PyList::empty(py);
        let progress = py.eval(c"lambda seen: lambda *pair: seen.append(pair)", None, None).unwrap();
        let progress = progress.call1((&seen,)).unwrap().unbind();
        enter_interruptible(py, Some(progress), |check| -> Result<(), Raised> {
            for done in 1..=1000 {
                assert_eq!(check.poll(done, 1000), ControlFlow::Continue(()));
            }
            Ok(())
        })
        .unwrap();
        let seen: Vec<(u64, u64)> = seen.extract().unwrap();
        assert_eq!(seen.last(), Some(&(1000, 1000)));
        assert!(seen.len() < 100, "{} reports", seen.len());
    });
}

#[test]
fn an_exception_of_a_poll_stops_the_work_and_is_raised() {
    with_python(|py| {
        let progress = py.eval(c"lambda done, total: {}[done]", None, None).unwrap().unbind();
        let mut after = None;
        let outcome = enter_interruptible(py, Some(progress), |check| {
            let first = check.poll(2, 2);
            after = Some((first, check.poll(0, 2)));
            Err::<(), _>(Raised::input("stopped early"))
        });
        assert_eq!(after, Some((ControlFlow::Break(()), ControlFlow::Break(()))));
        assert!(outcome.unwrap_err().is_instance_of::<PyLookupError>(py));
    });
}
