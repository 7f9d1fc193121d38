//! Files that the command line reads and writes: synthetic checkpoints, frames, codes.

use overtone_core::checkpoint::Checkpoint;
use overtone_core::checkpoint::synthetic::write_synthetic;
use overtone_core::checkpoint::tensor_file::{self, FileTensor};
use overtone_core::tensor::FloatType;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use crate::dlpack::element::ElementType;
use crate::dlpack::import::ImportedTensor;
use crate::enter::{enter, enter_interruptible};
use crate::errors::Raised;
use crate::spec::parse_architecture;
use crate::tensor::Tensor;

/// Write a synthetic checkpoint of a true architecture, and frames for it.
#[pyfunction]
#[pyo3(signature = (directory, architecture, seed, frames, batch, progress=None))]
pub fn make_checkpoint(
    py: Python<'_>,
    directory: PathBuf,
    architecture: &str,
    seed: u64,
    frames: usize,
    batch: usize,
    progress: Option<Py<PyAny>>,
) -> PyResult<()> {
    let architecture = parse_architecture(architecture)?;
    enter_interruptible(py, progress, |check| {
        write_synthetic(&directory, architecture, seed, frames, batch, &mut |done, total| {
            check.poll(done, total)
        })
    })
}

/// The files of a checkpoint, and the bytes of its tensors by storage type. Values are not checked.
#[pyfunction]
#[pyo3(signature = (artifact_dir, checkpoint_dir=None))]
pub fn describe_checkpoint(
    py: Python<'_>,
    artifact_dir: PathBuf,
    checkpoint_dir: Option<PathBuf>,
) -> PyResult<(Vec<PathBuf>, BTreeMap<&'static str, usize>)> {
    enter(py, || {
        let checkpoint = Checkpoint::open_with(&artifact_dir, checkpoint_dir.as_deref())?;
        Ok::<_, Raised>((checkpoint.sources(), checkpoint.stored_bytes()))
    })
}

/// Every tensor of a safetensors file.
#[pyfunction]
pub fn read_tensors(py: Python<'_>, file: PathBuf) -> PyResult<BTreeMap<String, Tensor>> {
    let tensors = enter(py, || tensor_file::read(&file))?;
    let handed = tensors.into_iter().map(|(name, tensor)| Ok((name, owned_tensor(tensor)?)));
    handed.collect::<Result<_, Raised>>().map_err(PyErr::from)
}

/// A tensor of a file, handed to Python with its memory.
///
/// # Errors
/// An `InputError` for a shape that no tensor has.
pub fn owned_tensor(tensor: FileTensor<'static>) -> Result<Tensor, Raised> {
    let element = ElementType::from(tensor.element_type);
    let shape = tensor.shape.clone();
    Tensor::borrowed(Arc::new(tensor), element, &shape, |tensor| &tensor.bytes)
}

/// Write tensors to a safetensors file, which appears whole or not at all.
#[pyfunction]
pub fn write_tensors(py: Python<'_>, file: PathBuf, tensors: &Bound<'_, PyDict>) -> PyResult<()> {
    let tensors = copied_tensors(tensors)?;
    enter(py, || tensor_file::write(&file, &tensors))
}

/// Copies of tensors by name, for a file.
///
/// # Errors
/// A name is no text; a value is no tensor in memory that the host can read.
pub fn copied_tensors(tensors: &Bound<'_, PyDict>) -> PyResult<BTreeMap<String, FileTensor<'static>>> {
    let mut copied = BTreeMap::new();
    for (name, object) in tensors {
        let name: String = name.extract()?;
        let tensor = ImportedTensor::new(name.clone(), &object)?;
        let mut bytes = vec![0; tensor.view().size_in_bytes()];
        tensor.view().read_bytes(&mut bytes).map_err(|error| tensor.inaccessible(&error))?;
        let shape = tensor.view().shape().to_vec();
        let element_type = tensor.view().element().into();
        copied.insert(name, FileTensor { element_type, shape, bytes: Cow::Owned(bytes) });
    }
    Ok(copied)
}

/// One spelling of the element types there are, for each side.
macro_rules! same_types {
    ($($name:ident),*) => {
        impl From<tensor_file::ElementType> for ElementType {
            fn from(element: tensor_file::ElementType) -> Self {
                match element {
                    $(tensor_file::ElementType::$name => Self::$name,)*
                    tensor_file::ElementType::Float(float_type) => float_type.into(),
                }
            }
        }

        impl From<ElementType> for tensor_file::ElementType {
            fn from(element: ElementType) -> Self {
                match element {
                    $(ElementType::$name => Self::$name,)*
                    ElementType::Float32 => Self::Float(FloatType::Float32),
                    ElementType::Float16 => Self::Float(FloatType::Float16),
                    ElementType::BFloat16 => Self::Float(FloatType::BFloat16),
                }
            }
        }
    };
}

same_types!(Float64, Bool, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64);
