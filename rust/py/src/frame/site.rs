//! Where an executor works, and so where a frame's tensors have to be.

use pyo3::prelude::*;

use crate::dlpack::expect::{Place, expect_device};
use crate::dlpack::import::ImportedTensor;
use crate::errors::Raised;
use crate::streams::StreamHandle;

/// Where frames run.
#[derive(Clone, Copy, Debug)]
pub enum Site {
    /// On the host, at once.
    Host,
    /// On a CUDA device; what producers have under way is ordered before the stream.
    Cuda {
        /// The device's ordinal.
        index: i32,
        /// The stream that the tensors are used on.
        stream: StreamHandle,
    },
}

/// How far a tensor may be from where frames run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Where the executor works.
    Work,
    /// There, or in host memory that it can write to by itself.
    WorkOrPinned,
    /// There, or in any host memory: its values are read at each launch.
    WorkOrHost,
}

impl Site {
    /// Takes an argument as a tensor within reach.
    ///
    /// # Errors
    /// An `InputError` that names the argument when it is no tensor, or somewhere else.
    pub fn import(
        self,
        name: &'static str,
        object: &Bound<'_, PyAny>,
        reach: Reach,
    ) -> PyResult<ImportedTensor> {
        let Self::Cuda { index, stream } = self else { return ImportedTensor::new(name, object) };
        let tensor = ImportedTensor::on_stream(name, object, Some(stream))?;
        expect_device(
            &tensor,
            match reach {
                Reach::Work => Place::Cuda(index),
                Reach::WorkOrPinned => Place::CudaOrPinned(index),
                Reach::WorkOrHost => Place::CudaOrHost(index),
            },
        )?;
        if reach != Reach::WorkOrHost || tensor.device().is_cuda() {
            expect_aligned(&tensor)?;
        }
        Ok(tensor)
    }
}

/// Checks that every element lies at a multiple of its size: a kernel that loads another address ends its context.
fn expect_aligned(tensor: &ImportedTensor) -> Result<(), Raised> {
    let (address, size) = (tensor.view().data().addr(), tensor.view().element().size());
    if address.is_multiple_of(size) {
        return Ok(());
    }
    Err(tensor.refused(&format!("at address {address:#x}"), &format!("a multiple of {size} bytes")))
}
