//! The one way from Python into Rust work that takes time: the GIL is released, a panic becomes an
//! `OvertoneError`, and Ctrl-C is heard while the work goes on.
//!
//! What the work does, and how often it polls, is the caller's.

use std::any::Any;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use crate::errors::{ErrorClass, Raised};

/// Least time between two looks at Python: seldom enough to cost nothing, often enough to feel immediate.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Runs `work` without the GIL. Its error becomes the exception it describes; a panic becomes an `OvertoneError`.
pub fn enter<T, E>(py: Python<'_>, work: impl FnOnce() -> Result<T, E> + Send) -> PyResult<T>
where
    T: Send,
    E: Into<Raised> + Send,
{
    // Unwind safety: what the closure borrowed may be half-changed after a panic. The message tells the user so,
    // and nothing of it can break memory safety.
    match py.detach(|| catch_unwind(AssertUnwindSafe(work))) {
        Ok(outcome) => outcome.map_err(|error| error.into().into()),
        Err(payload) => Err(internal_error(payload.as_ref()).into()),
    }
}

/// [`enter`] for work that lasts: it polls the [`SignalCheck`] it is given, and stops when told to break. When a
/// poll met an exception (Ctrl-C, or one of the progress callable's own), that exception is the outcome.
pub fn enter_interruptible<T, E>(
    py: Python<'_>,
    progress: Option<Py<PyAny>>,
    work: impl FnOnce(&mut SignalCheck) -> Result<T, E> + Send,
) -> PyResult<T>
where
    T: Send,
    E: Into<Raised> + Send,
{
    let mut check = SignalCheck { progress, polled: Instant::now(), raised: None };
    let outcome = enter(py, || work(&mut check));
    match check.raised {
        Some(raised) => Err(raised),
        None => outcome,
    }
}

/// Looks at Python from within work that runs without the GIL.
#[derive(Debug)]
pub struct SignalCheck {
    /// Called with (done, total), in the unit of the work.
    progress: Option<Py<PyAny>>,
    polled: Instant,
    raised: Option<PyErr>,
}

impl SignalCheck {
    /// Reports `done` of `total` and asks whether to go on. Python is attached at most every 50 ms, and when
    /// `done` reaches `total`; any other call costs a clock reading. After a break every further poll breaks too.
    pub fn poll(&mut self, done: u64, total: u64) -> ControlFlow<()> {
        if self.raised.is_some() {
            return ControlFlow::Break(());
        }
        if self.polled.elapsed() < POLL_INTERVAL && done < total {
            return ControlFlow::Continue(());
        }
        let looked = Python::try_attach(|py| {
            if let Some(progress) = &self.progress {
                progress.call1(py, (done, total))?;
            }
            py.check_signals()
        });
        self.polled = Instant::now();
        match looked {
            Some(Ok(())) => ControlFlow::Continue(()),
            Some(Err(raised)) => {
                self.raised = Some(raised);
                ControlFlow::Break(())
            }
            // The interpreter is shutting down: nobody is left to take the result.
            None => ControlFlow::Break(()),
        }
    }
}

fn internal_error(payload: &(dyn Any + Send)) -> Raised {
    let text = payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a panic without a message");
    Raised::new(ErrorClass::Overtone, format!("internal error: {text}; please report it"))
}

#[cfg(test)]
mod tests;
