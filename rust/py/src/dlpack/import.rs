//! [`ImportedTensor`]: a tensor argument, from whichever protocol its library speaks, without a copy.
//!
//! Asked in this order: overtone's own `Tensor`; DLPack's C exchange table ([`super::exchange`]); NumPy's
//! `__array_interface__`, which serves read-only and unaligned arrays too; `__dlpack_device__` and `__dlpack__`,
//! versioned if the producer knows how; `__cuda_array_interface__`. What the tensor must look like beyond that is the
//! caller's to say ([`super::expect`]).
//!
//! **Streams.** Whoever uses a tensor in CUDA memory names the stream on which the use is ordered. `__dlpack__`
//! passes it to the producer, which makes that stream wait for its own work. The C exchange table and the CUDA array
//! interface only say on which stream the producer works; that one is [`ImportedTensor::awaited_stream`], for the
//! caller to wait for, unless it is the same stream.

use std::any::Any;
use std::borrow::Cow;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyString;

use super::access::{AccessError, Writer};
use super::device::Device;
use super::exchange::Exchange;
use super::expect::Place;
use super::view::StridedView;
use crate::device_memory;
use crate::enter::enter;
use crate::errors::Raised;
use crate::streams::StreamHandle;
use crate::tensor::Tensor;

mod arrays;
mod capsules;

/// A tensor that Python lent us: described, checked, and kept alive until dropped. It may be dropped on any thread,
/// with or without the GIL, which overtone never waits for: a Python object let go without it is freed at the next
/// call into overtone.
#[derive(Debug)]
pub struct ImportedTensor {
    name: Cow<'static, str>,
    view: StridedView,
    read_only: bool,
    awaited_stream: Option<StreamHandle>,
    owner: Arc<dyn Any + Send + Sync>,
}

impl ImportedTensor {
    /// Takes `object`, the argument called `name`, as a tensor in host memory, ready to be read.
    ///
    /// # Errors
    /// An `InputError` that names the argument when the object is no tensor, is not in host memory, has elements
    /// of a type overtone does not know, or describes itself inconsistently. An exception of the producer's own is
    /// its `__cause__`; Ctrl-C passes through unchanged.
    pub fn new(name: impl Into<Cow<'static, str>>, object: &Bound<'_, PyAny>) -> PyResult<Self> {
        Argument { name: name.into(), object, target: Target::Host }.import()
    }

    /// Takes `object`, the argument called `name`, as a tensor in host or CUDA memory, to be used on `stream`;
    /// `None` asks nobody to wait for anything. Where it must be is for [`super::expect::expect_device`] to check.
    ///
    /// # Errors
    /// As for [`Self::new`], for memory that is neither the host's nor CUDA's.
    pub fn on_stream(
        name: impl Into<Cow<'static, str>>,
        object: &Bound<'_, PyAny>,
        stream: Option<StreamHandle>,
    ) -> PyResult<Self> {
        Argument { name: name.into(), object, target: Target::Stream(stream) }.import()
    }

    /// The argument's name, as messages give it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Shape, strides, type and elements.
    pub const fn view(&self) -> &StridedView {
        &self.view
    }

    /// Where the memory is.
    pub const fn device(&self) -> Device {
        self.view.device()
    }

    /// Whether the memory is the host's and pinned, so that a device may copy from and to it without a stop. Where the
    /// producer does not say so, the driver is asked.
    pub fn is_pinned(&self) -> bool {
        let covered = self.view.byte_range();
        let known = |address| device_memory::device_of(address).is_ok();
        let registered = || !covered.is_empty() && known(covered.start) && known(covered.end - 1);
        self.device().is_pinned() || self.device().is_host() && registered()
    }

    /// The stream whose work so far must be done before the memory is used; `None` when nothing is left to wait for.
    pub const fn awaited_stream(&self) -> Option<StreamHandle> {
        self.awaited_stream
    }

    /// Whether the producer forbids writing. The legacy DLPack form cannot say; it counts as writable.
    pub const fn read_only(&self) -> bool {
        self.read_only
    }

    /// What keeps the memory alive.
    pub fn owner(&self) -> Arc<dyn Any + Send + Sync> {
        Arc::clone(&self.owner)
    }

    /// Write access from the host.
    ///
    /// # Errors
    /// As for [`Self::expect_writable`]; in CUDA memory every write is an [`AccessError`].
    pub fn writer(&self) -> Result<Writer<'_>, Raised> {
        self.expect_writable()?;
        Ok(Writer::new(&self.view))
    }

    /// Checks that the tensor can be written to, wherever it is.
    ///
    /// # Errors
    /// An `InputError` for a read-only tensor, or one whose elements share memory with each other.
    pub fn expect_writable(&self) -> Result<(), Raised> {
        if self.read_only {
            return Err(self.refused("a read-only tensor", "a writable one"));
        }
        if self.view.overlaps_itself() {
            return Err(self.refused("elements that share memory", "one place for every element"));
        }
        Ok(())
    }

    /// Reads a vector of integers; bool counts as 0 and 1.
    ///
    /// # Errors
    /// An `InputError` when the tensor is no vector of `out.len()` integers in host memory, or one does not fit.
    pub fn read_i64(&self, out: &mut [i64]) -> Result<(), Raised> {
        self.view.read_row_i64(&[], out).map_err(|error| self.inaccessible(&error))
    }

    /// Reads the row of floats at `leading` ([`super::access`]), widened to float32.
    ///
    /// # Errors
    /// An `InputError` when there is no such row of `out.len()` floats in host memory.
    pub fn read_row_f32(&self, leading: &[usize], out: &mut [f32]) -> Result<(), Raised> {
        self.view.read_row_f32(leading, out).map_err(|error| self.inaccessible(&error))
    }

    /// An `InputError` for elements of this tensor that could not be read or written.
    pub fn inaccessible(&self, error: &AccessError) -> Raised {
        Raised::input(format!("{}: {error}", self.name)).tensor(&*self.name)
    }

    /// An `InputError` that says what this tensor is and what it should have been.
    pub fn refused(&self, found: &str, expected: &str) -> Raised {
        refused(&self.name, found, expected)
    }
}

fn refused(name: &str, found: &str, expected: &str) -> Raised {
    Raised::input(format!("{name}: {found}, expected {expected}"))
        .tensor(name)
        .found(found)
        .expected(expected)
}

/// Where a tensor will be used.
#[derive(Clone, Copy, Debug)]
enum Target {
    /// On the host, at once.
    Host,
    /// On a CUDA stream, or unordered.
    Stream(Option<StreamHandle>),
}

/// An argument on its way to being a tensor.
struct Argument<'a, 'py> {
    name: Cow<'static, str>,
    object: &'a Bound<'py, PyAny>,
    target: Target,
}

impl<'py> Argument<'_, 'py> {
    fn import(self) -> PyResult<ImportedTensor> {
        if let Ok(tensor) = self.object.cast::<Tensor>() {
            return self.import_own(tensor.get());
        }
        if let Some(exchange) = self.exchange()?
            && let Some(managed) = self.export_exchanged(exchange)?
        {
            return self.import_exchanged(exchange, managed);
        }
        if let Some(interface) = self.attribute("__array_interface__")? {
            return self.import_array(interface);
        }
        if self.attribute("__dlpack__")?.is_some() {
            return self.import_dlpack();
        }
        if let Some(interface) = self.attribute("__cuda_array_interface__")? {
            return self.import_cuda_array(interface, device_memory::device_of);
        }
        let found = self.object.get_type().name()?.to_string();
        let expected = match self.target {
            Target::Host => "a tensor (a DLPack producer or a NumPy array)",
            Target::Stream(_) => "a tensor (a DLPack producer, a NumPy array, or a CUDA array)",
        };
        Err(self.refused(&found, expected).into())
    }

    /// A tensor of our own, after whatever work fills it.
    fn import_own(self, tensor: &Tensor) -> PyResult<ImportedTensor> {
        self.admit(tensor.view().device())?;
        if let Some(work) = tensor.producer() {
            match self.target {
                Target::Host => enter(self.object.py(), || work.wait())?,
                Target::Stream(Some(stream)) => work.order_before(stream)?,
                Target::Stream(None) => {}
            }
        }
        Ok(self.imported(tensor.view().clone(), tensor.read_only(), tensor.owner()))
    }

    /// The type's exchange table. A tensor that takes part in automatic differentiation is left to `__dlpack__`,
    /// which says why it must not be shared.
    fn exchange(&self) -> PyResult<Option<Exchange>> {
        let found = Exchange::of(self.object.get_type().as_any())
            .map_err(|cause| self.failed("reading __dlpack_c_exchange_api__", cause))?;
        let Some(exchange) = found else { return Ok(None) };
        let differentiated = match self.attribute("requires_grad")? {
            Some(answer) => answer.is_truthy()?,
            None => false,
        };
        Ok((!differentiated).then_some(exchange))
    }

    /// Everything but the streams.
    fn imported(
        self,
        view: StridedView,
        read_only: bool,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> ImportedTensor {
        ImportedTensor { name: self.name, view, read_only, awaited_stream: None, owner }
    }

    fn refused(&self, found: &str, expected: &str) -> Raised {
        refused(&self.name, found, expected)
    }

    /// The exception `cause`, met while doing `what`, as an `InputError` that names the argument.
    fn failed(&self, what: &str, cause: PyErr) -> PyErr {
        Raised::input(format!("{}: {what}", self.name)).tensor(&*self.name).caused_by(self.object.py(), cause)
    }

    fn attribute(&self, name: &'static str) -> PyResult<Option<Bound<'py, PyAny>>> {
        let interned = PyString::intern(self.object.py(), name);
        self.object.getattr_opt(interned).map_err(|cause| self.failed(&format!("reading {name}"), cause))
    }

    /// Whether memory on `device` serves the target at all.
    fn admit(&self, device: Device) -> Result<(), Raised> {
        let place = match self.target {
            Target::Host => Place::Host,
            Target::Stream(_) => Place::HostOrAnyCuda,
        };
        if place.admits(device) {
            return Ok(());
        }
        Err(self.refused(&format!("on {device}"), &place.to_string()))
    }

    /// The stream that a tensor whose producer works on `producing` still has to wait for.
    fn awaited(&self, producing: StreamHandle) -> Option<StreamHandle> {
        match self.target {
            Target::Stream(Some(stream)) if stream != producing => Some(producing),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
