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
use crate::errors::Raised;

#[pymethods]
impl Tensor {
    /// A tensor of zeros: `shape` as a sequence of extents, `dtype` by name. Serves as a buffer to bind or to write
    /// codes into, in types that NumPy lacks too.
    #[staticmethod]
    #[pyo3(signature = (shape, dtype = "float32"))]
    fn zeros(shape: Vec<usize>, dtype: &str) -> PyResult<Self> {
        let element = ElementType::from_name(dtype).ok_or_else(|| {
            let expected = "a name such as float32, bfloat16 or int32";
            Raised::input(format!("dtype: {dtype:?}, expected {expected}"))
                .key("dtype")
                .found(dtype)
                .expected(expected)
        })?;
        Ok(Self::zeroed(element, &shape)?)
    }

    /// A tensor over the memory of any DLPack producer or NumPy array, without a copy.
    #[staticmethod]
    fn from_dlpack(tensor: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Self::from_imported(&ImportedTensor::new("tensor", tensor)?))
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

    /// Where the memory is: `cpu`.
    #[getter]
    fn device(&self) -> String {
        Device::CPU.to_string()
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
            Device::CPU
        )
    }

    /// The elements as nested lists of Python numbers; a tensor without dimensions gives one number.
    fn tolist<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        nested(py, &self.view, &mut Vec::with_capacity(self.view.shape().len()))
    }

    /// The elements as a NumPy array that shares the tensor's memory; bfloat16, which NumPy lacks, is widened into
    /// a fresh float32 array.
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
        let widened = slf.get().view.element() == ElementType::BFloat16;
        let array = array(slf)?;
        let converts = match dtype {
            Some(dtype) => {
                let numpy = py.import(intern!(py, "numpy"))?;
                array.getattr(intern!(py, "dtype"))?.ne(numpy.call_method1(intern!(py, "dtype"), (dtype,))?)?
            }
            None => false,
        };
        match (dtype, copy) {
            (_, Some(false)) if widened || converts => Err(PyValueError::new_err(format!(
                "a {} tensor cannot become this array without a copy",
                slf.get().dtype()
            ))),
            (Some(dtype), _) if converts => array.call_method1(intern!(py, "astype"), (dtype,)),
            (_, Some(true)) if !widened => array.call_method0(intern!(py, "copy")),
            _ => Ok(array),
        }
    }

    /// NumPy's array interface, by which arrays share the memory; NumPy has no bfloat16.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let element = self.view.element();
        let type_string = element
            .type_string()
            .ok_or_else(|| PyAttributeError::new_err(format!("NumPy has no {element}: use .numpy()")))?;
        let size = element.size() as i64;
        let byte_strides = self.view.strides().iter().map(|stride| stride.wrapping_mul(size));
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("typestr", type_string)?;
        interface.set_item("shape", PyTuple::new(py, self.view.shape())?)?;
        interface.set_item("strides", PyTuple::new(py, byte_strides.collect::<Vec<_>>())?)?;
        interface.set_item("data", (self.view.data().expose_provenance(), self.read_only))?;
        Ok(interface)
    }

    /// (device type, device index), as DLPack numbers them.
    fn __dlpack_device__(&self) -> (i32, i32) {
        let device = Device::CPU.raw();
        (device.kind, device.index)
    }

    /// A DLPack capsule that shares the tensor's memory and keeps it alive: the versioned form when the consumer's
    /// `max_version` is at least (1, 0), else the legacy one, which cannot say read-only and is refused for such
    /// tensors. `copy=True` makes a fresh, writable copy.
    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if let Some(stream) = stream {
            return Err(PyBufferError::new_err(format!(
                "stream {stream}: a tensor on the CPU has no stream"
            )));
        }
        if let Some((kind, index)) = dl_device
            && (kind, index) != self.__dlpack_device__()
        {
            let wanted = Device::new(kind, index);
            return Err(PyBufferError::new_err(format!(
                "a tensor on the CPU cannot be exported to {wanted}"
            )));
        }
        let versioned = max_version.is_some_and(|(major, _)| major >= 1);
        if copy == Some(true) {
            let copied = self.copied()?;
            return copied.capsule(py, versioned, FLAG_IS_COPIED);
        }
        if self.read_only && !versioned {
            return Err(PyBufferError::new_err(
                "the tensor is read-only, which only DLPack 1.0 can say: pass max_version=(1, 0), or copy=True",
            ));
        }
        self.capsule(py, versioned, if self.read_only { FLAG_READ_ONLY } else { 0 })
    }
}

impl Tensor {
    fn capsule<'py>(&self, py: Python<'py>, versioned: bool, flags: u64) -> PyResult<Bound<'py, PyAny>> {
        if versioned {
            export::<VersionedManaged>(py, &self.view, Device::CPU, self.owner(), flags)
        } else {
            export::<LegacyManaged>(py, &self.view, Device::CPU, self.owner(), flags)
        }
    }
}

/// The array that NumPy makes of [`Tensor::__array_interface__`]: through it, unlike through DLPack, every version of
/// NumPy knows whether the memory may be written.
fn array<'py>(tensor: &Bound<'py, Tensor>) -> PyResult<Bound<'py, PyAny>> {
    let py = tensor.py();
    let shared = if tensor.get().view.element() == ElementType::BFloat16 {
        &Bound::new(py, tensor.get().widened()?)?
    } else {
        tensor
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
