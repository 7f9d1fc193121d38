//! Tensors by the array interfaces: NumPy's, and CUDA's, which differ in where the memory is and in streams.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::{Argument, ImportedTensor, Target};
use crate::dlpack::device::Device;
use crate::dlpack::element::{ElementType, TypeString};
use crate::dlpack::expect::Place;
use crate::errors::Raised;
use crate::streams::StreamHandle;

/// Versions of the CUDA array interface that say all that is needed here.
const CUDA_VERSIONS: [i64; 2] = [2, 3];

/// What both interfaces say.
struct Described {
    element: ElementType,
    shape: Vec<i64>,
    /// In elements; `None` when contiguous.
    strides: Option<Vec<i64>>,
    address: usize,
    read_only: bool,
}

impl<'py> Argument<'_, 'py> {
    /// NumPy's array interface, version 3.
    pub(super) fn import_array(self, interface: Bound<'py, PyAny>) -> PyResult<ImportedTensor> {
        let described = self.described("__array_interface__", &interface)?;
        self.import_described(described, Device::CPU, interface)
    }

    /// Numba's CUDA array interface. It does not say on which device the memory is: `device_of` does, by its address.
    pub(super) fn import_cuda_array(
        self,
        interface: Bound<'py, PyAny>,
        device_of: impl FnOnce(usize) -> Result<Device, Raised>,
    ) -> PyResult<ImportedTensor> {
        const NAME: &str = "__cuda_array_interface__";
        if matches!(self.target, Target::Host) {
            return Err(self.refused("in CUDA memory", &Place::Host.to_string()).into());
        }
        let version: i64 = self.entry(NAME, &interface, "version")?;
        if !CUDA_VERSIONS.contains(&version) {
            return Err(self.refused(&format!("version {version} of {NAME}"), "version 2 or 3").into());
        }
        if self.optional_entry::<Bound<'_, PyAny>>(NAME, &interface, "mask")?.is_some() {
            return Err(self.refused("a masked array", "one whose elements are all there").into());
        }
        let awaited_stream = match self.optional_entry::<u64>(NAME, &interface, "stream")? {
            Some(0) => {
                let expected = "1 for the legacy default stream, 2 for the thread's, or a handle";
                return Err(self.refused(&format!("stream 0 in {NAME}"), expected).into());
            }
            Some(handle) => self.awaited(StreamHandle::new(handle)),
            None => None,
        };
        let described = self.described(NAME, &interface)?;
        let device = device_of(described.address).map_err(|raised| raised.context(&self.name))?;
        self.admit(device)?;
        let imported = self.import_described(described, device, interface)?;
        Ok(ImportedTensor { awaited_stream, ..imported })
    }

    fn import_described(
        self,
        described: Described,
        device: Device,
        interface: Bound<'py, PyAny>,
    ) -> PyResult<ImportedTensor> {
        let data = std::ptr::with_exposed_provenance_mut(described.address);
        let strides = described.strides.as_deref();
        let view = self.view(device, data, described.element, &described.shape, strides)?;
        // The interface's dict may hold what the object itself does not: a scalar's is the only reference to it.
        let owner = Arc::new((self.object.clone().unbind(), interface.unbind()));
        Ok(self.imported(view, described.read_only, owner))
    }

    fn described(&self, protocol: &str, interface: &Bound<'py, PyAny>) -> PyResult<Described> {
        let type_string: String = self.entry(protocol, interface, "typestr")?;
        let element = self.array_element(&type_string)?;
        let shape = self.entry(protocol, interface, "shape")?;
        let (address, read_only) = self.entry(protocol, interface, "data")?;
        let byte_strides: Option<Vec<i64>> = self.optional_entry(protocol, interface, "strides")?;
        let strides = byte_strides.map(|strides| self.element_strides(&strides, element)).transpose()?;
        Ok(Described { element, shape, strides, address, read_only })
    }

    fn entry<T: for<'a> FromPyObject<'a, 'py>>(
        &self,
        protocol: &str,
        interface: &Bound<'py, PyAny>,
        key: &str,
    ) -> PyResult<T> {
        interface
            .get_item(key)
            .and_then(|value| value.extract().map_err(Into::into))
            .map_err(|cause| self.failed(&format!("malformed {protocol}"), cause))
    }

    /// An entry that may be missing, or `None`.
    fn optional_entry<T: for<'a> FromPyObject<'a, 'py>>(
        &self,
        protocol: &str,
        interface: &Bound<'py, PyAny>,
        key: &str,
    ) -> PyResult<Option<T>> {
        interface
            .cast::<PyDict>()
            .map_err(PyErr::from)
            .and_then(|fields| fields.get_item(key))
            .and_then(|value| match value.filter(|value| !value.is_none()) {
                Some(value) => value.extract().map(Some).map_err(Into::into),
                None => Ok(None),
            })
            .map_err(|cause| self.failed(&format!("malformed {protocol}"), cause))
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

    pub(super) fn unknown_type(&self, found: &str) -> Raised {
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
}
