//! `overtone.Tensor`: the tensors that overtone hands out, and its view of tensors it was given.
//!
//! A tensor is a strided view and a shared owner of the memory: an allocation of its own, the weights, or whatever
//! lent the memory. Exports (capsules, NumPy arrays) share the owner, so they outlive the `Tensor`. The executor
//! writes frame outputs through [`Tensor::writer`] while Python may hold such exports: they see the new values, as
//! two NumPy views of one array do; who reads during the write sees old and new values mixed.
//!
//! Memory may be a CUDA device's. Then the elements are only there once the tensor's [`Producer`] is done: exports make
//! the consumer's stream wait for it, and the host gets a copy, made after it.
//!
//! What Python calls is in `methods`.

use std::any::Any;
use std::sync::Arc;

use pyo3::prelude::*;

use crate::device_memory::{StreamTail, allocate, order, read, write};
use crate::dlpack::access::Writer;
use crate::dlpack::device::Device;
use crate::dlpack::element::ElementType;
use crate::dlpack::expect::bracketed;
use crate::dlpack::import::ImportedTensor;
use crate::dlpack::view::StridedView;
use crate::errors::Raised;
use crate::streams::StreamHandle;
use buffer::Buffer;
use producer::Producer;

pub mod buffer;
mod methods;
pub mod producer;

/// A tensor in host or CUDA memory that speaks DLPack, NumPy's protocols and the CUDA array interface.
///
/// >>> import overtone
/// >>> overtone.Tensor.zeros([2, 3], "int32").tolist()
/// [[0, 0, 0], [0, 0, 0]]
#[pyclass(frozen, weakref, module = "overtone", name = "Tensor")]
#[derive(Debug)]
pub struct Tensor {
    view: StridedView,
    read_only: bool,
    owner: Arc<dyn Any + Send + Sync>,
    producer: Option<Arc<dyn Producer>>,
}

impl Tensor {
    /// A writable tensor over memory that `owner` keeps, on the device that the view names. `producer` is the work that
    /// fills it, if that may still be under way.
    pub fn over(
        view: StridedView,
        owner: Arc<dyn Any + Send + Sync>,
        producer: Option<Arc<dyn Producer>>,
    ) -> Self {
        Self { view, read_only: false, owner, producer }
    }

    /// [`Self::over`], for memory that nobody writes.
    pub fn over_read_only(view: StridedView, owner: Arc<dyn Any + Send + Sync>) -> Self {
        Self { read_only: true, ..Self::over(view, owner, None) }
    }

    /// A contiguous tensor of zeros with memory of its own.
    ///
    /// # Errors
    /// An `InputError` for a shape that no address space holds, an `OutOfMemoryError` when memory is short.
    pub fn zeroed(element: ElementType, shape: &[usize]) -> Result<Self, Raised> {
        let too_large = || Raised::input(format!("shape {}: too large", bracketed(shape)));
        let bytes = shape
            .iter()
            .try_fold(element.size(), |bytes, &extent| bytes.checked_mul(extent))
            .ok_or_else(too_large)?;
        let buffer = Arc::new(Buffer::zeroed(bytes)?);
        let extents = shape
            .iter()
            .map(|&extent| i64::try_from(extent))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|_| too_large())?;
        // SAFETY: the buffer holds the contiguous elements of the shape, and stays beside the view.
        let view = unsafe { StridedView::new(buffer.data(), element, &extents, None) }
            .map_err(|error| Raised::input(format!("shape {}: {error}", bracketed(shape))))?;
        Ok(Self::over(view, buffer, None))
    }

    /// [`Self::zeroed`] on any device.
    ///
    /// # Errors
    /// As for [`Self::zeroed`], or those of the driver.
    pub fn zeroed_on(device: Device, element: ElementType, shape: &[usize]) -> Result<Self, Raised> {
        if device.is_host() {
            return Self::zeroed(element, shape);
        }
        let too_large = || Raised::input(format!("shape {}: too large", bracketed(shape)));
        let extents: Vec<i64> = shape
            .iter()
            .map(|&extent| i64::try_from(extent))
            .collect::<Result<_, _>>()
            .map_err(|_| too_large())?;
        let at = |address: u64| {
            let data = std::ptr::without_provenance_mut(address as usize);
            // SAFETY: made over no memory, only its size is asked for; made again, the memory has that size and stays beside
            // the view.
            unsafe { StridedView::on_device(device, data, element, &extents, None) }.map_err(|_| too_large())
        };
        let bytes = at(u64::from(u8::MAX) + 1)?.size_in_bytes();
        let memory = allocate(device, bytes.max(1))?;
        Ok(Self::over(at(memory.address())?, Arc::new(memory), None))
    }

    /// A contiguous copy on another device.
    fn copied_to(&self, device: Device) -> Result<Self, Raised> {
        if device.is_host() {
            return self.to_contiguous_host();
        }
        let copy = Self::zeroed_on(device, self.view.element(), self.view.shape())?;
        copy.overwrite(self)?;
        Ok(copy)
    }

    /// Overwrites the elements with those of `source`; waits until they are there. Call it without the GIL.
    ///
    /// # Errors
    /// An `InputError` when they differ in shape or type, or this one is read-only or strided; those of the driver.
    fn overwrite(&self, source: &Self) -> Result<(), Raised> {
        let described =
            |tensor: &Self| format!("{} {}", tensor.view.element(), bracketed(tensor.view.shape()));
        if described(self) != described(source) {
            let (found, expected) = (described(source), described(self));
            return Err(Raised::input(format!("source: {found}, expected {expected}"))
                .found(found)
                .expected(expected));
        }
        if self.read_only || !self.view.is_contiguous() {
            return Err(Raised::input(
                "the tensor is read-only or strided, expected a writable, contiguous one",
            ));
        }
        let source = source.to_contiguous_host()?;
        if let Some(producer) = &self.producer {
            producer.wait()?;
        }
        // SAFETY: the source is contiguous host memory, which its owner keeps; that nobody writes it meanwhile is what handing
        // it over means.
        let bytes = unsafe { source.view.as_bytes() }.unwrap_or_default();
        if self.view.device().is_host() {
            // SAFETY: both hold as many bytes; `copy` allows that they are the same memory.
            unsafe { std::ptr::copy(bytes.as_ptr(), self.view.data(), bytes.len()) };
            return Ok(());
        }
        // SAFETY: the tensor's bytes are mapped on its device while its owner lives.
        unsafe { write(self.view.device(), self.view.data().addr(), bytes) }
    }

    /// A read-only tensor over bytes inside `owner`, an embedding table of the weights for example: `bytes` says
    /// which, contiguous, row-major and in the machine's byte order.
    ///
    /// # Errors
    /// An `InputError` when the bytes are not `shape` elements of the type.
    pub fn borrowed<T: Send + Sync + 'static>(
        owner: Arc<T>,
        element: impl Into<ElementType>,
        shape: &[usize],
        bytes: impl for<'a> FnOnce(&'a T) -> &'a [u8],
    ) -> Result<Self, Raised> {
        let element = element.into();
        let bytes = bytes(&owner);
        let extents: Vec<i64> =
            shape.iter().map(|&extent| i64::try_from(extent).unwrap_or(i64::MAX)).collect();
        // SAFETY: the bytes live inside `owner`, which stays beside the view and, being shared, does not change;
        // that they suffice is checked before the view is used. Read-only, so nobody writes through the pointer.
        let view = unsafe { StridedView::new(bytes.as_ptr().cast_mut(), element, &extents, None) }
            .map_err(|error| Raised::input(format!("shape {}: {error}", bracketed(shape))))?;
        if view.size_in_bytes() != bytes.len() {
            let found = format!("{} bytes", bytes.len());
            let expected = format!("{} of {element} {}", view.size_in_bytes(), bracketed(shape));
            return Err(Raised::input(format!("{found}, expected {expected}"))
                .found(found)
                .expected(expected));
        }
        Ok(Self { read_only: true, ..Self::over(view, owner, None) })
    }

    /// A tensor over the memory of an argument that was imported for the legacy default stream, kept alive with it.
    ///
    /// # Errors
    /// Those of the driver, when that stream has to be told to wait for another.
    pub fn from_imported(imported: &ImportedTensor) -> Result<Self, Raised> {
        let (device, stream) = (imported.device(), StreamHandle::LEGACY);
        if let Some(awaited) = imported.awaited_stream() {
            order(device, awaited, stream)?;
        }
        let tail = || Arc::new(StreamTail { device, stream }) as Arc<dyn Producer>;
        let producer = device.is_cuda().then(tail);
        let tensor = Self::over(imported.view().clone(), imported.owner(), producer);
        Ok(Self { read_only: imported.read_only(), ..tensor })
    }

    /// The same tensor once more: the memory, its owner and its producer are shared.
    fn shared(&self) -> Self {
        Self {
            view: self.view.clone(),
            read_only: self.read_only,
            owner: self.owner(),
            producer: self.producer.clone(),
        }
    }

    /// Shape, strides, type and elements.
    pub const fn view(&self) -> &StridedView {
        &self.view
    }

    /// Whether the memory must not be written.
    pub const fn read_only(&self) -> bool {
        self.read_only
    }

    /// What keeps the memory alive.
    pub fn owner(&self) -> Arc<dyn Any + Send + Sync> {
        Arc::clone(&self.owner)
    }

    /// The work to wait for before the elements are there.
    pub fn producer(&self) -> Option<&Arc<dyn Producer>> {
        self.producer.as_ref()
    }

    /// The same elements where the host can read them, after the work that fills them: in the tensor's own memory if
    /// that is the host's, else in a copy of all bytes from its first element to its last. Waits; call it without the
    /// GIL.
    ///
    /// # Errors
    /// Those of the driver, or an `OutOfMemoryError`.
    pub fn to_host(&self) -> Result<Self, Raised> {
        if let Some(producer) = &self.producer {
            producer.wait()?;
        }
        if self.view.device().is_host() {
            return Ok(Self { producer: None, ..self.shared() });
        }
        let covered = self.view.byte_range();
        let buffer = Arc::new(Buffer::zeroed(covered.len())?);
        if !covered.is_empty() {
            // SAFETY: the buffer is as long as the range, and nobody else has seen it yet.
            let target = unsafe { std::slice::from_raw_parts_mut(buffer.data(), covered.len()) };
            // SAFETY: the view's bytes are mapped on its device while its owner lives.
            unsafe { read(self.view.device(), covered.start, target) }?;
        }
        // SAFETY: the buffer holds a copy of the range, and stays beside the view.
        let view = unsafe { self.view.moved_to(buffer.data()) };
        Ok(Self::over(view, buffer, None))
    }

    /// [`Self::to_host`], contiguous.
    ///
    /// # Errors
    /// As for [`Self::to_host`].
    pub fn to_contiguous_host(&self) -> Result<Self, Raised> {
        let host = self.to_host()?;
        if host.view.is_contiguous() { Ok(host) } else { host.copied() }
    }

    /// Write access, for as long as Python may hold views of the same memory (see the module's head).
    ///
    /// # Errors
    /// An `InputError` for a read-only tensor; in CUDA memory every write is an error.
    pub fn writer(&self) -> Result<Writer<'_>, Raised> {
        if self.read_only {
            Err(Raised::input("the tensor is read-only"))
        } else {
            Ok(Writer::new(&self.view))
        }
    }

    /// The same elements in fresh, contiguous memory.
    fn copied(&self) -> Result<Self, Raised> {
        let copy = Self::zeroed(self.view.element(), self.view.shape())?;
        // SAFETY: the copy's buffer is `size_in_bytes` long, and nobody else has seen it yet.
        let target = unsafe { std::slice::from_raw_parts_mut(copy.view.data(), copy.view.size_in_bytes()) };
        self.view.read_bytes(target).map_err(|error| Raised::input(error.to_string()))?;
        Ok(copy)
    }

    /// The same values as float32, in fresh, contiguous memory.
    fn widened(&self) -> Result<Self, Raised> {
        let copy = Self::zeroed(ElementType::Float32, self.view.shape())?;
        // SAFETY: the copy's buffer is one float32 per element long, aligned for them, and nobody else has seen it.
        let target =
            unsafe { std::slice::from_raw_parts_mut(copy.view.data().cast::<f32>(), copy.view.elements()) };
        self.view.read_f32(target).map_err(|error| Raised::input(error.to_string()))?;
        Ok(copy)
    }
}

#[cfg(test)]
mod tests;
