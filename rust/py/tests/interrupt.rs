//! Ctrl-C reaches only Python's main thread, so this test has a process of its own.

use std::ops::ControlFlow;

use _core::enter::enter_interruptible;
use _core::errors::Raised;
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;

#[test]
fn ctrl_c_stops_the_work_at_the_next_poll() {
    Python::initialize();
    Python::attach(|py| {
        py.run(c"import signal; signal.signal(signal.SIGINT, signal.default_int_handler)", None, None)
            .unwrap();
        let mut polls = 0;
        let outcome = enter_interruptible(py, None, |check| {
            // SAFETY: may be called from any thread, attached or not; it only marks the signal as having arrived.
            unsafe { pyo3::ffi::PyErr_SetInterrupt() }
            while check.poll(0, 1) == ControlFlow::Continue(()) {
                polls += 1;
            }
            Err::<(), _>(Raised::input("stopped early"))
        });
        assert!(outcome.unwrap_err().is_instance_of::<PyKeyboardInterrupt>(py));
        assert!(polls > 0, "the first poll came before 50 ms had passed");
    });
}
