//! What Python calls on a `Tensor`: its attributes, and the DLPack and NumPy protocols of a producer.

use pyo3::exceptions::{PyAttributeError, PyBufferError, PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use super::Tensor;
use crate::dlpack::abi::{FLAG_IS_COPIED, FLAG_READ_ONLY, LegacyManaged, VersionedManaged};
use crate::dlpack::access::Scalar;
use crate::dlpack::device::Device;
use crate::dlpack::element::ElementType;
use crate::dlpack::expect::bracketed;
use crate::dlpack::export::export;
use crate::dlpack::import::ImportedTensor;
use crate::dlpack::view::StridedView;
use crate::enter::enter;
use crate::errors::Raised;
use crate::streams::{StreamHandle, consumer_stream};

#[pymethods]
impl Tensor {
    /// A tensor of zeros: `shape` as a sequence of extents, `dtype` by name, on a `device` such as `cpu` or `cuda:0`.
    /// Serves as a buffer to bind or to write codes into, in types that NumPy lacks too.
    #[staticmethod]
    #[pyo3(signature = (shape, dtype = "float32", device = "cpu"))]
    fn zeros(py: Python<'_>, shape: Vec<usize>, dtype: &str, device: &str) -> PyResult<Self> {
        let element = ElementType::from_name(dtype).ok_or_else(|| {
            let expected = "a name such as float32, bfloat16 or int32";
            Raised::input(format!("dtype: {dtype:?}, expected {expected}"))
                .key("dtype")
                .found(dtype)
                .expected(expected)
        })?;
        let device = named_device(device)?;
        enter(py, || Self::zeroed_on(device, element, &shape))
    }

    /// The same elements on a `device` such as `cpu` or `cuda:0`: the tensor itself where it is there already, else a
    /// contiguous copy, which is there when the call returns.
    fn to<'py>(slf: &Bound<'py, Self>, device: &str) -> PyResult<Bound<'py, Self>> {
        let (py, here, device) = (slf.py(), slf.get(), named_device(device)?);
        if here.view.device() == device {
            return Ok(slf.clone());
        }
        Bound::new(py, enter(py, || here.copied_to(device))?)
    }

    /// Overwrites the elements, all contiguous, with those of `source`, of the same type and shape, after whatever fills
    /// either; waits until they are there.
    fn copy_from(&self, py: Python<'_>, source: &Bound<'_, PyAny>) -> PyResult<()> {
        let source = match source.cast::<Self>() {
            Ok(own) => own.get().shared(),
            Err(_) => Self::from_imported(&ImportedTensor::on_stream(
                "source",
                source,
                Some(StreamHandle::LEGACY),
            )?)?,
        };
        enter(py, || self.overwrite(&source))
    }

    /// A tensor over the memory of any DLPack producer, NumPy array or CUDA array, without a copy. What fills CUDA
    /// memory is ordered before the legacy default stream.
    #[staticmethod]
    fn from_dlpack(tensor: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(own) = tensor.cast::<Self>() {
            return Ok(own.get().shared());
        }
        let imported = ImportedTensor::on_stream("tensor", tensor, Some(StreamHandle::LEGACY))?;
        Ok(Self::from_imported(&imported)?)
    }

    /// Extents, outermost first.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.view.shape())
    }

    /// Strides, in elements.
    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.view.strides())
    }

    /// Name of the element type, `float32` for example.
    #[getter]
    const fn dtype(&self) -> &'static str {
        self.view.element().name()
    }

    /// Where the memory is: `cpu`, `cuda:0`, or `cuda_host:0` for pinned host memory.
    #[getter]
    fn device(&self) -> String {
        self.view.device().to_string()
    }

    /// Number of dimensions.
    #[getter]
    fn ndim(&self) -> usize {
        self.view.shape().len()
    }

    /// Size of the elements in bytes.
    #[getter]
    const fn nbytes(&self) -> usize {
        self.view.size_in_bytes()
    }

    /// Whether the memory must not be written.
    #[getter]
    const fn readonly(&self) -> bool {
        self.read_only
    }

    fn __len__(&self) -> PyResult<usize> {
        self.view
            .shape()
            .first()
            .copied()
            .ok_or_else(|| PyTypeError::new_err("len() of a tensor without dimensions"))
    }

    fn __repr__(&self) -> String {
        let shape = bracketed(self.view.shape());
        let access = if self.read_only { ", readonly" } else { "" };
        format!(
            "overtone.Tensor(shape={shape}, dtype={}, device={}{access})",
            self.view.element(),
            self.view.device()
        )
    }

    /// The elements as nested lists of Python numbers; a tensor without dimensions gives one number. Waits for the
    /// work that fills them.
    fn tolist<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let host = on_host(slf)?;
        let view = host.get().view();
        nested(slf.py(), view, &mut Vec::with_capacity(view.shape().len()))
    }

    /// The elements as a NumPy array that shares the tensor's memory. Memory of a CUDA device is copied, after the
    /// work that fills it; bfloat16, which NumPy lacks, is widened into a fresh float32 array.
    fn numpy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        array(slf)
    }

    /// NumPy's protocol: [`Self::numpy`], converted to `dtype` when one is asked for.
    #[pyo3(signature = (dtype = None, copy = None))]
    fn __array__<'py>(
        slf: &Bound<'py, Self>,
        dtype: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let view = slf.get().view();
        let fresh = view.element() == ElementType::BFloat16 || !view.device().is_host();
        let refused = || {
            PyValueError::new_err(format!(
                "a {} tensor on {} cannot become this array without a copy",
                view.element(),
                view.device()
            ))
        };
        if fresh && copy == Some(false) {
            return Err(refused());
        }
        let array = array(slf)?;
        let converts = match dtype {
            Some(dtype) => {
                let numpy = py.import(intern!(py, "numpy"))?;
                array.getattr(intern!(py, "dtype"))?.ne(numpy.call_method1(intern!(py, "dtype"), (dtype,))?)?
            }
            None => false,
        };
        match (dtype, copy) {
            (_, Some(false)) if converts => Err(refused()),
            (Some(dtype), _) if converts => array.call_method1(intern!(py, "astype"), (dtype,)),
            (_, Some(true)) if !fresh => array.call_method0(intern!(py, "copy")),
            _ => Ok(array),
        }
    }

    /// NumPy's array interface, by which arrays share the memory; NumPy has no bfloat16, and no CUDA memory.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let device = self.view.device();
        if !device.is_host() {
            return Err(PyAttributeError::new_err(format!("NumPy has no memory on {device}: use .numpy()")));
        }
        if let Some(producer) = &self.producer {
            enter(py, || producer.wait())?;
        }
        let interface = self.interface(py, "NumPy")?;
        interface.set_item("strides", self.byte_strides(py)?)?;
        Ok(interface)
    }

    /// The CUDA array interface, for a tensor in CUDA memory, by which arrays share it. Its consumer waits for the
    /// legacy default stream, which waits for the work that fills the memory. The interface has no bfloat16.
    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let device = self.view.device();
        if !device.is_cuda() {
            return Err(PyAttributeError::new_err(format!("the memory is on {device}, not in CUDA memory")));
        }
        let interface = self.interface(py, "the CUDA array interface")?;
        let strides = if self.view.is_contiguous() { None } else { Some(self.byte_strides(py)?) };
        interface.set_item("strides", strides)?;
        let stream = match &self.producer {
            Some(producer) => {
                producer.order_before(StreamHandle::LEGACY)?;
                Some(StreamHandle::LEGACY.number())
            }
            None => None,
        };
        interface.set_item("stream", stream)?;
        Ok(interface)
    }

    /// (device type, device index), as DLPack numbers them.
    fn __dlpack_device__(&self) -> (i32, i32) {
        let device = self.view.device().raw();
        (device.kind, device.index)
    }

    /// A DLPack capsule that shares the tensor's memory and keeps it alive: the versioned form when the consumer's
    /// `max_version` is at least (1, 0), else the legacy one, which cannot say read-only and is refused for such
    /// tensors.
    ///
    /// In host memory, `copy=True` makes a fresh, writable copy. In CUDA memory, the consumer's `stream` is made to
    /// wait for the work that fills the tensor: None or 1 is the legacy default stream, 2 the thread's, -1 asks for
    /// no ordering, any other number is a handle. `dl_device=(1, 0)` copies to the host; copies on the device are the
    /// consumer's to make.
    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let here = self.view.device();
        let wanted = dl_device.map_or(here, |(kind, index)| Device::new(kind, index));
        let versioned = max_version.is_some_and(|(major, _)| major >= 1);
        if here.is_cuda() {
            let stream = consumer_stream(stream)?;
            if wanted == Device::CPU && copy != Some(false) {
                let copied = enter(py, || self.to_host())?;
                return copied.capsule(py, wanted, versioned, FLAG_IS_COPIED);
            }
            self.refuse_export(wanted == here, wanted, versioned)?;
            if copy == Some(true) {
                return Err(PyBufferError::new_err(format!(
                    "a copy on {here} is the consumer's to make: export without copy=True"
                )));
            }
            if let (Some(stream), Some(producer)) = (stream, &self.producer) {
                producer.order_before(stream)?;
            }
            return self.capsule(py, wanted, versioned, self.flags());
        }
        if let Some(stream) = stream {
            return Err(PyBufferError::new_err(format!(
                "stream {stream}: a tensor in host memory has no stream"
            )));
        }
        if let Some(producer) = &self.producer {
            enter(py, || producer.wait())?;
        }
        // Pinned memory is the host's, to whoever wants it as such.
        let reachable = wanted == here || wanted == Device::CPU;
        if copy == Some(true) && reachable {
            return self.copied()?.capsule(py, Device::CPU, versioned, FLAG_IS_COPIED);
        }
        self.refuse_export(reachable, wanted, versioned)?;
        self.capsule(py, wanted, versioned, self.flags())
    }
}

impl Tensor {
    /// A `BufferError` for an export that would need a copy to another device, or could not say what it must.
    fn refuse_export(&self, reachable: bool, wanted: Device, versioned: bool) -> PyResult<()> {
        if !reachable {
            let here = self.view.device();
            return Err(PyBufferError::new_err(format!(
                "a tensor on {here} cannot be exported to {wanted} as it is"
            )));
        }
        if self.read_only && !versioned {
            return Err(PyBufferError::new_err(
                "the tensor is read-only, which only DLPack 1.0 can say: pass max_version=(1, 0), or copy=True",
            ));
        }
        Ok(())
    }

    const fn flags(&self) -> u64 {
        if self.read_only { FLAG_READ_ONLY } else { 0 }
    }

    fn capsule<'py>(
        &self,
        py: Python<'py>,
        device: Device,
        versioned: bool,
        flags: u64,
    ) -> PyResult<Bound<'py, PyAny>> {
        if versioned {
            export::<VersionedManaged>(py, &self.view, device, self.owner(), flags)
        } else {
            export::<LegacyManaged>(py, &self.view, device, self.owner(), flags)
        }
    }

    /// What NumPy's and CUDA's array interfaces have in common; strides differ.
    fn interface<'py>(&self, py: Python<'py>, whose: &str) -> PyResult<Bound<'py, PyDict>> {
        let element = self.view.element();
        let type_string = element.type_string().ok_or_else(|| {
            PyAttributeError::new_err(format!("{whose} has no {element}: use DLPack or .numpy()"))
        })?;
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("typestr", type_string)?;
        interface.set_item("shape", PyTuple::new(py, self.view.shape())?)?;
        interface.set_item("data", (self.view.data().expose_provenance(), self.read_only))?;
        Ok(interface)
    }

    fn byte_strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let size = self.view.element().size() as i64;
        let strides: Vec<_> = self.view.strides().iter().map(|stride| stride.wrapping_mul(size)).collect();
        PyTuple::new(py, strides)
    }
}

fn named_device(name: &str) -> Result<Device, Raised> {
    Device::from_name(name).ok_or_else(|| {
        let expected = "cpu, or a CUDA device such as cuda:0";
        Raised::input(format!("device: {name:?}, expected {expected}"))
            .key("device")
            .found(name)
            .expected(expected)
    })
}

/// The tensor, if the host can read its elements already, else another over them ([`Tensor::to_host`]).
fn on_host<'py>(tensor: &Bound<'py, Tensor>) -> PyResult<Bound<'py, Tensor>> {
    let (py, here) = (tensor.py(), tensor.get());
    if here.producer.is_none() && here.view.device().is_host() {
        return Ok(tensor.clone());
    }
    Bound::new(py, enter(py, || here.to_host())?)
}

/// The array that NumPy makes of [`Tensor::__array_interface__`]: through it, unlike through DLPack, every version of
/// NumPy knows whether the memory may be written.
fn array<'py>(tensor: &Bound<'py, Tensor>) -> PyResult<Bound<'py, PyAny>> {
    let py = tensor.py();
    let host = on_host(tensor)?;
    let shared = if host.get().view.element() == ElementType::BFloat16 {
        Bound::new(py, host.get().widened()?)?
    } else {
        host
    };
    py.import(intern!(py, "numpy"))?.call_method1(intern!(py, "asarray"), (shared,))
}

/// The sub-tensor at `index` as nested lists.
fn nested<'py>(py: Python<'py>, view: &StridedView, index: &mut Vec<usize>) -> PyResult<Bound<'py, PyAny>> {
    let Some(&extent) = view.shape().get(index.len()) else {
        return Ok(match view.scalar(index) {
            Some(Scalar::Bool(value)) => value.into_pyobject(py)?.to_owned().into_any(),
            Some(Scalar::Integer(value)) => value.into_pyobject(py)?.into_any(),
            Some(Scalar::Float(value)) => value.into_pyobject(py)?.into_any(),
            None => py.None().into_bound(py),
        });
    };
    let list = PyList::empty(py);
    for position in 0..extent {
        index.push(position);
        list.append(nested(py, view, index)?)?;
        index.pop();
    }
    Ok(list.into_any())
}
