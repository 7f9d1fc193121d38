//! [`ImportedTensor`]: a tensor argument, from whichever protocol its library speaks, without a copy.
//!
//! Asked in this order: overtone's own `Tensor`; NumPy's `__array_interface__`, which serves read-only and
//! unaligned arrays too; `__dlpack_device__` and `__dlpack__`, versioned if the producer knows how. What the tensor
//! must look like beyond that is the caller's to say ([`super::expect`]).

use std::any::Any;
use std::borrow::Cow;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyCapsule, PyDict};
use pyo3::{ffi, intern};

use super::abi::{FLAG_READ_ONLY, LegacyManaged, ManagedAbi, RawTensor, VERSION, VersionedManaged};
use super::access::{AccessError, Writer};
use super::device::Device;
use super::element::{ElementType, TypeString};
use super::view::{MAX_DIMENSIONS, StridedView};
use crate::errors::{Raised, chain};
use crate::tensor::Tensor;

/// A tensor that Python lent us: described, checked to be in host memory, and kept alive until dropped. It may be
/// dropped on any thread, with or without the GIL, which overtone never waits for: a Python object let go without it
/// is freed at the next call into overtone.
#[derive(Debug)]
pub struct ImportedTensor {
    name: Cow<'static, str>,
    view: StridedView,
    read_only: bool,
    owner: Arc<dyn Any + Send + Sync>,
}

impl ImportedTensor {
    /// Takes `object`, the argument called `name`, as a tensor.
    ///
    /// # Errors
    /// An `InputError` that names the argument when the object is no tensor, is not in host memory, has elements
    /// of a type overtone does not know, or describes itself inconsistently. An exception of the producer's own is
    /// its `__cause__`; Ctrl-C passes through unchanged.
    pub fn new(name: impl Into<Cow<'static, str>>, object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let argument = Argument { name: name.into(), object };
        if let Ok(tensor) = object.cast::<Tensor>() {
            let tensor = tensor.get();
            return Ok(argument.imported(tensor.view().clone(), tensor.read_only(), tensor.owner()));
        }
        if let Some(interface) = argument.attribute("__array_interface__")? {
            return argument.import_array(interface);
        }
        if argument.attribute("__dlpack__")?.is_some() {
            return argument.import_dlpack();
        }
        if argument.attribute("__cuda_array_interface__")?.is_some() {
            return Err(argument.refused("in CUDA memory", "a tensor in host memory").into());
        }
        let found = object.get_type().name()?.to_string();
        Err(argument.refused(&found, "a tensor (a DLPack producer or a NumPy array)").into())
    }

    /// The argument's name, as messages give it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Shape, strides, type and elements.
    pub const fn view(&self) -> &StridedView {
        &self.view
    }

    /// Whether the producer forbids writing. The legacy DLPack form cannot say; it counts as writable.
    pub const fn read_only(&self) -> bool {
        self.read_only
    }

    /// What keeps the memory alive.
    pub fn owner(&self) -> Arc<dyn Any + Send + Sync> {
        Arc::clone(&self.owner)
    }

    /// Write access.
    ///
    /// # Errors
    /// An `InputError` for a read-only tensor, or one whose elements share memory with each other.
    pub fn writer(&self) -> Result<Writer<'_>, Raised> {
        if self.read_only {
            return Err(self.refused("a read-only tensor", "a writable one"));
        }
        if self.view.overlaps_itself() {
            return Err(self.refused("elements that share memory", "one place for every element"));
        }
        Ok(Writer::new(&self.view))
    }

    /// Reads a vector of integers; bool counts as 0 and 1.
    ///
    /// # Errors
    /// An `InputError` when the tensor is no vector of `out.len()` integers, or one does not fit.
    pub fn read_i64(&self, out: &mut [i64]) -> Result<(), Raised> {
        self.view.read_row_i64(&[], out).map_err(|error| self.inaccessible(&error))
    }

    /// Reads the row of floats at `leading` ([`super::access`]), widened to float32.
    ///
    /// # Errors
    /// An `InputError` when there is no such row of `out.len()` floats.
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

/// An argument on its way to being a tensor.
struct Argument<'a, 'py> {
    name: Cow<'static, str>,
    object: &'a Bound<'py, PyAny>,
}

impl<'py> Argument<'_, 'py> {
    fn imported(
        self,
        view: StridedView,
        read_only: bool,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> ImportedTensor {
        ImportedTensor { name: self.name, view, read_only, owner }
    }

    fn refused(&self, found: &str, expected: &str) -> Raised {
        refused(&self.name, found, expected)
    }

    /// The exception `cause`, met while doing `what`, as an `InputError` that names the argument.
    fn failed(&self, what: &str, cause: PyErr) -> PyErr {
        Raised::input(format!("{}: {what}", self.name)).tensor(&*self.name).caused_by(self.object.py(), cause)
    }

    fn attribute(&self, name: &'static str) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.object.getattr_opt(name).map_err(|cause| self.failed(&format!("reading {name}"), cause))
    }

    fn require_host(&self, device: Device) -> Result<(), Raised> {
        if device.is_cpu() {
            return Ok(());
        }
        Err(self.refused(&format!("on {device}"), "a CPU tensor (the cpu executor works in host memory)"))
    }

    fn view(
        &self,
        data: *mut u8,
        element: ElementType,
        shape: &[i64],
        strides: Option<&[i64]>,
    ) -> Result<StridedView, Raised> {
        // SAFETY: the producer's protocol promises mapped memory behind the description it gave, and the owner
        // stored next to the view keeps the producer's reference until both are dropped.
        unsafe { StridedView::new(data, element, shape, strides) }
            .map_err(|error| Raised::input(format!("{}: {}", self.name, chain(&error))).tensor(&*self.name))
    }

    /// NumPy's array interface, version 3.
    fn import_array(self, interface: Bound<'py, PyAny>) -> PyResult<ImportedTensor> {
        let malformed = |cause| self.failed("malformed __array_interface__", cause);
        let field = |key: &str| interface.get_item(key);
        let element = field("typestr")
            .and_then(|text| text.extract::<String>())
            .map_err(malformed)
            .and_then(|text| Ok(self.array_element(&text)?))?;
        let shape: Vec<i64> = field("shape").and_then(|shape| shape.extract()).map_err(malformed)?;
        let (address, read_only): (usize, bool) =
            field("data").and_then(|data| data.extract()).map_err(malformed)?;
        let byte_strides: Option<Vec<i64>> = interface
            .cast::<PyDict>()
            .map_err(PyErr::from)
            .and_then(|fields| fields.get_item("strides"))
            .and_then(|strides| strides.map_or(Ok(None), |strides| strides.extract()))
            .map_err(malformed)?;
        let strides = byte_strides.map(|strides| self.element_strides(&strides, element)).transpose()?;
        let data = std::ptr::with_exposed_provenance_mut(address);
        let view = self.view(data, element, &shape, strides.as_deref())?;
        // The interface's dict may hold what the object itself does not: a scalar's is the only reference to it.
        let owner = Arc::new((self.object.clone().unbind(), interface.unbind()));
        Ok(self.imported(view, read_only, owner))
    }

    fn array_element(&self, type_string: &str) -> Result<ElementType, Raised> {
        match ElementType::from_type_string(type_string) {
            TypeString::Known(element) => Ok(element),
            TypeString::Swapped => {
                Err(self
                    .refused(&format!("byte-swapped elements ({type_string})"), "the machine's byte order"))
            }
            TypeString::Other => {
                // Types that extensions register, bfloat16 among them, are anonymous bytes here, but have a name.
                let dtype = self.object.getattr("dtype").and_then(|dtype| dtype.getattr("name"));
                let name = dtype.and_then(|name| name.extract::<String>()).ok();
                match name.as_deref() {
                    Some("bfloat16") => Ok(ElementType::BFloat16),
                    name => Err(self.unknown_type(name.unwrap_or(type_string))),
                }
            }
        }
    }

    fn unknown_type(&self, found: &str) -> Raised {
        self.refused(&format!("elements of type {found}"), "numbers of at most 64 bits, or bool")
    }

    fn element_strides(&self, byte_strides: &[i64], element: ElementType) -> Result<Vec<i64>, Raised> {
        let size = element.size() as i64;
        match byte_strides.iter().find(|&stride| stride % size != 0) {
            None => Ok(byte_strides.iter().map(|stride| stride / size).collect()),
            Some(stride) => Err(self.refused(
                &format!("elements {stride} bytes apart"),
                &format!("a multiple of the {size} bytes of {element}"),
            )),
        }
    }

    fn import_dlpack(self) -> PyResult<ImportedTensor> {
        let py = self.object.py();
        if self.attribute("__dlpack_device__")?.is_some() {
            let (kind, index) = self
                .object
                .call_method0(intern!(py, "__dlpack_device__"))
                .and_then(|device| device.extract::<(i32, i32)>())
                .map_err(|cause| self.failed("__dlpack_device__ failed", cause))?;
            self.require_host(Device::new(kind, index))?;
        }
        let capsule = self.export().map_err(|cause| self.failed("__dlpack__ failed", cause))?;
        let capsule = capsule
            .cast::<PyCapsule>()
            .map_err(|_| self.refused("no capsule from __dlpack__", "a DLPack capsule"))?;
        if let Some(foreign) = ForeignTensor::<VersionedManaged>::take(capsule)? {
            return self.import_foreign(foreign);
        }
        if let Some(foreign) = ForeignTensor::<LegacyManaged>::take(capsule)? {
            return self.import_foreign(foreign);
        }
        let expected = "one named dltensor or dltensor_versioned that nobody has consumed";
        Err(self.refused("an unusable capsule from __dlpack__", expected).into())
    }

    /// Calls `__dlpack__`, without `max_version` when the producer does not know that argument.
    fn export(&self) -> PyResult<Bound<'py, PyAny>> {
        let py = self.object.py();
        let method = intern!(py, "__dlpack__");
        let version = [("max_version", (VERSION.major, VERSION.minor))].into_py_dict(py)?;
        match self.object.call_method(method, (), Some(&version)) {
            Err(error) if error.is_instance_of::<PyTypeError>(py) => self.object.call_method0(method),
            outcome => outcome,
        }
    }

    fn import_foreign<M: ManagedAbi>(self, foreign: ForeignTensor<M>) -> PyResult<ImportedTensor> {
        if let Some(version) = foreign.managed().version()
            && version.major != VERSION.major
        {
            let found = format!("DLPack {}.{}", version.major, version.minor);
            return Err(self.refused(&found, &format!("version {}", VERSION.major)).into());
        }
        let read_only = foreign.managed().flags() & FLAG_READ_ONLY != 0;
        let view = self.foreign_view(&foreign.managed().tensor())?;
        Ok(self.imported(view, read_only, Arc::new(foreign)))
    }

    fn foreign_view(&self, tensor: &RawTensor) -> Result<StridedView, Raised> {
        self.require_host(Device::new(tensor.device.kind, tensor.device.index))?;
        let element = ElementType::from_raw(tensor.dtype).ok_or_else(|| {
            let dtype = tensor.dtype;
            self.unknown_type(&format!(
                "code {} with {} bits × {} lanes",
                dtype.code, dtype.bits, dtype.lanes
            ))
        })?;
        let dimensions =
            usize::try_from(tensor.ndim).ok().filter(|&dimensions| dimensions <= MAX_DIMENSIONS).ok_or_else(
                || self.refused(&format!("{} dimensions", tensor.ndim), &format!("0 to {MAX_DIMENSIONS}")),
            )?;
        if tensor.shape.is_null() && dimensions > 0 {
            return Err(self.refused(&format!("{dimensions} dimensions without a shape"), "a shape"));
        }
        // SAFETY: `shape`, when not null, has `ndim` readable extents by DLPack's definition; they are copied.
        let shape = unsafe { foreign_numbers(tensor.shape, dimensions) }.unwrap_or_default();
        // SAFETY: as for `shape`.
        let strides = unsafe { foreign_numbers(tensor.strides, dimensions) };
        let data = match usize::try_from(tensor.byte_offset) {
            _ if tensor.data.is_null() => null_mut(),
            Ok(offset) if tensor.data.addr().checked_add(offset).is_some() => {
                tensor.data.cast::<u8>().wrapping_add(offset)
            }
            _ => return Err(self.refused(&format!("byte offset {}", tensor.byte_offset), "an address")),
        };
        self.view(data, element, &shape, strides.as_deref())
    }
}

/// `count` numbers of a producer's array, or `None` for a null pointer.
///
/// # Safety
/// `numbers` must be null or point to `count` readable values; they need no alignment.
unsafe fn foreign_numbers(numbers: *const i64, count: usize) -> Option<Vec<i64>> {
    if numbers.is_null() {
        return None;
    }
    // SAFETY: within the `count` values that the caller vouches for.
    Some((0..count).map(|index| unsafe { numbers.add(index).read_unaligned() }).collect())
}

/// A managed tensor taken out of its capsule: ours to release, once.
struct ForeignTensor<M: ManagedAbi>(NonNull<M>);

// SAFETY: DLPack lets the consumer call the deleter from any thread, and asks producers in Python to take the GIL
// themselves where they need it. Nothing else of the producer's is touched after import.
unsafe impl<M: ManagedAbi> Send for ForeignTensor<M> {}
// SAFETY: a shared reference only reads fields that the producer no longer changes.
unsafe impl<M: ManagedAbi> Sync for ForeignTensor<M> {}

impl<M: ManagedAbi> ForeignTensor<M> {
    /// Takes the tensor out of a capsule of this form and renames the capsule, so that its destructor leaves the
    /// tensor to us. `None`, and an untouched capsule, when the capsule is not of this form, or already taken.
    fn take(capsule: &Bound<'_, PyCapsule>) -> PyResult<Option<Self>> {
        // SAFETY: the capsule is alive and the GIL held; both names are static, as `PyCapsule_SetName` needs. A
        // capsule of this name holds a pointer to this struct by DLPack's definition; one that cannot be such a
        // pointer is left alone.
        unsafe {
            if ffi::PyCapsule_IsValid(capsule.as_ptr(), M::NAME.as_ptr()) == 0 {
                return Ok(None);
            }
            let pointer = ffi::PyCapsule_GetPointer(capsule.as_ptr(), M::NAME.as_ptr()).cast::<M>();
            match NonNull::new(pointer).filter(|_| pointer.is_aligned()) {
                None => Ok(None),
                Some(_) if ffi::PyCapsule_SetName(capsule.as_ptr(), M::USED_NAME.as_ptr()) != 0 => {
                    Err(PyErr::fetch(capsule.py()))
                }
                Some(managed) => Ok(Some(Self(managed))),
            }
        }
    }

    fn managed(&self) -> &M {
        // SAFETY: `take` got the pointer from a capsule of this form, and it is valid until the deleter runs.
        unsafe { self.0.as_ref() }
    }
}

impl<M: ManagedAbi> Drop for ForeignTensor<M> {
    fn drop(&mut self) {
        if let Some(deleter) = self.managed().deleter() {
            // SAFETY: the tensor is ours since `take`, and drop runs once.
            unsafe { deleter(self.0.as_ptr()) }
        }
    }
}
