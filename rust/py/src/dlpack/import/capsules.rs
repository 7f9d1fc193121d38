//! Tensors by DLPack: managed tensors out of capsules, or straight from a C exchange table.

use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use pyo3::exceptions::{PyException, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};
use pyo3::{ffi, intern};

use super::{Argument, ImportedTensor, Target};
use crate::dlpack::abi::{FLAG_READ_ONLY, LegacyManaged, ManagedAbi, RawTensor, VERSION, VersionedManaged};
use crate::dlpack::device::Device;
use crate::dlpack::element::ElementType;
use crate::dlpack::exchange::Exchange;
use crate::dlpack::view::{MAX_DIMENSIONS, StridedView};
use crate::errors::{Raised, chain};

/// The number by which a consumer asks for no ordering.
const NO_ORDER: i32 = -1;

impl<'py> Argument<'_, 'py> {
    /// The tensor by its type's exchange table; `None` when the library would rather not, which `__dlpack__` will
    /// then explain.
    pub(super) fn export_exchanged(
        &self,
        exchange: Exchange,
    ) -> PyResult<Option<ForeignTensor<VersionedManaged>>> {
        match exchange.export(self.object) {
            Ok(managed) => Ok(managed.map(ForeignTensor)),
            Err(refusal) if refusal.is_instance_of::<PyException>(self.object.py()) => Ok(None),
            Err(interrupt) => Err(interrupt),
        }
    }

    pub(super) fn import_exchanged(
        self,
        exchange: Exchange,
        foreign: ForeignTensor<VersionedManaged>,
    ) -> PyResult<ImportedTensor> {
        let (view, read_only) = self.foreign_view(&foreign)?;
        let awaited_stream = match self.target {
            Target::Stream(Some(_)) if view.device().is_cuda() => {
                let producing = exchange
                    .current_stream(self.object.py(), view.device())
                    .map_err(|cause| self.failed("asking for the library's stream", cause))?;
                self.awaited(producing)
            }
            _ => None,
        };
        Ok(ImportedTensor { awaited_stream, ..self.imported(view, read_only, Arc::new(foreign)) })
    }

    pub(super) fn import_dlpack(self) -> PyResult<ImportedTensor> {
        let py = self.object.py();
        let mut device = Device::CPU;
        if self.attribute("__dlpack_device__")?.is_some() {
            let (kind, index) = self
                .object
                .call_method0(intern!(py, "__dlpack_device__"))
                .and_then(|device| device.extract::<(i32, i32)>())
                .map_err(|cause| self.failed("__dlpack_device__ failed", cause))?;
            device = Device::new(kind, index);
            self.admit(device)?;
        }
        let exported = self.export(device).map_err(|cause| self.failed("__dlpack__ failed", cause))?;
        let capsule = exported
            .cast::<PyCapsule>()
            .map_err(|_| self.refused("no capsule from __dlpack__", "a DLPack capsule"))?;
        if let Some(foreign) = ForeignTensor::<VersionedManaged>::take(capsule)? {
            return self.import_foreign(foreign, device);
        }
        if let Some(foreign) = ForeignTensor::<LegacyManaged>::take(capsule)? {
            return self.import_foreign(foreign, device);
        }
        let expected = "one named dltensor or dltensor_versioned that nobody has consumed";
        Err(self.refused("an unusable capsule from __dlpack__", expected).into())
    }

    /// Calls `__dlpack__`, without `max_version` when the producer does not know that argument, and with a stream
    /// where memory has one.
    fn export(&self, device: Device) -> PyResult<Bound<'py, PyAny>> {
        let py = self.object.py();
        let method = intern!(py, "__dlpack__");
        let arguments = PyDict::new(py);
        match self.target {
            Target::Stream(Some(stream)) if device.is_cuda() => {
                arguments.set_item(intern!(py, "stream"), stream.number())?;
            }
            Target::Stream(None) if device.is_cuda() => {
                arguments.set_item(intern!(py, "stream"), NO_ORDER)?;
            }
            _ => {}
        }
        let versioned = arguments.copy()?;
        versioned.set_item(intern!(py, "max_version"), (VERSION.major, VERSION.minor))?;
        match self.object.call_method(method, (), Some(&versioned)) {
            Err(error) if error.is_instance_of::<PyTypeError>(py) => {
                self.object.call_method(method, (), Some(&arguments))
            }
            outcome => outcome,
        }
    }

    /// The tensor of a capsule whose producer was asked as one on `device`.
    fn import_foreign<M: ManagedAbi>(
        self,
        foreign: ForeignTensor<M>,
        device: Device,
    ) -> PyResult<ImportedTensor> {
        let (view, read_only) = self.foreign_view(&foreign)?;
        if view.device().is_cuda() != device.is_cuda() {
            // Streams were named, or not, for the wrong memory.
            let found = format!("a capsule on {}", view.device());
            return Err(self.refused(&found, &format!("one on {device}, as __dlpack_device__ says")).into());
        }
        Ok(self.imported(view, read_only, Arc::new(foreign)))
    }

    /// What a managed tensor describes, and whether it must not be written.
    fn foreign_view<M: ManagedAbi>(&self, foreign: &ForeignTensor<M>) -> Result<(StridedView, bool), Raised> {
        if let Some(version) = foreign.managed().version()
            && version.major != VERSION.major
        {
            let found = format!("DLPack {}.{}", version.major, version.minor);
            return Err(self.refused(&found, &format!("version {}", VERSION.major)));
        }
        let read_only = foreign.managed().flags() & FLAG_READ_ONLY != 0;
        Ok((self.raw_view(&foreign.managed().tensor())?, read_only))
    }

    fn raw_view(&self, tensor: &RawTensor) -> Result<StridedView, Raised> {
        let device = Device::new(tensor.device.kind, tensor.device.index);
        self.admit(device)?;
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
        self.view(device, data, element, &shape, strides.as_deref())
    }

    pub(super) fn view(
        &self,
        device: Device,
        data: *mut u8,
        element: ElementType,
        shape: &[i64],
        strides: Option<&[i64]>,
    ) -> Result<StridedView, Raised> {
        // SAFETY: the producer's protocol promises mapped memory behind the description it gave, and the owner
        // stored next to the view keeps the producer's reference until both are dropped.
        unsafe { StridedView::on_device(device, data, element, shape, strides) }
            .map_err(|error| Raised::input(format!("{}: {}", self.name, chain(&error))).tensor(&*self.name))
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

/// A managed tensor that its producer gave away: ours to release, once.
pub(super) struct ForeignTensor<M: ManagedAbi>(NonNull<M>);

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
        // SAFETY: the pointer came from a capsule of this form, or from a C exchange table, and is valid until the
        // deleter runs.
        unsafe { self.0.as_ref() }
    }
}

impl<M: ManagedAbi> Drop for ForeignTensor<M> {
    fn drop(&mut self) {
        if let Some(deleter) = self.managed().deleter() {
            // SAFETY: the tensor is ours since it was taken, and drop runs once.
            unsafe { deleter(self.0.as_ptr()) }
        }
    }
}
