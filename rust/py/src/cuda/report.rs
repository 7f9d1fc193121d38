//! What this machine and this build have of CUDA, in words: for `overtone doctor`, and for the choice of an executor.

use overtone_cuda::driver::{Device, Driver};
use overtone_cuda::kernels::{EMBEDDED, resources};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::causes::cuda_unavailable;

/// Raises what keeps frames from running on a CUDA device; without an ordinal, on every one.
///
/// # Errors
/// A `CudaUnavailableError` with advice, or a `DeviceError` in a forked process.
#[pyfunction]
#[pyo3(signature = (ordinal = None))]
pub fn check_cuda(ordinal: Option<usize>) -> PyResult<()> {
    let driver = Driver::get().map_err(|error| cuda_unavailable(&error))?;
    if let Some(ordinal) = ordinal {
        driver.device(ordinal).map_err(|error| cuda_unavailable(&error))?;
    }
    Ok(())
}

/// A dictionary of: `kernels` (whether this build has some), `architectures` (that they are compiled for), `driver` (the CUDA
/// that it supports, or None), `devices` (a dictionary each), `problem` and `advice` (None where frames can run).
///
/// # Errors
/// When Python cannot allocate.
#[pyfunction]
pub fn describe_cuda(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let report = PyDict::new(py);
    let mut architectures: Vec<_> = resources().iter().map(|kernel| kernel.architecture).collect();
    architectures.sort_unstable();
    architectures.dedup();
    report.set_item("kernels", EMBEDDED)?;
    report.set_item("architectures", architectures)?;
    let devices = PyList::empty(py);
    match Driver::get() {
        Ok(driver) => {
            report.set_item("driver", driver.version().to_string())?;
            for device in driver.devices() {
                devices.append(describe(py, driver, device)?)?;
            }
            report.set_item("problem", py.None())?;
            report.set_item("advice", py.None())?;
        }
        Err(error) => {
            report.set_item("driver", py.None())?;
            report.set_item("problem", error.to_string())?;
            report.set_item("advice", error.advice())?;
        }
    }
    report.set_item("devices", devices)?;
    Ok(report)
}

fn describe<'py>(py: Python<'py>, driver: &Driver, device: &Device) -> PyResult<Bound<'py, PyDict>> {
    let properties = device.properties();
    let described = PyDict::new(py);
    described.set_item("ordinal", device.ordinal())?;
    described.set_item("name", &properties.name)?;
    described.set_item("compute_capability", properties.compute_capability.to_string())?;
    described.set_item("memory_bytes", properties.total_memory_bytes)?;
    described.set_item("multiprocessors", properties.multiprocessors)?;
    described.set_item("problem", driver.device(device.ordinal()).err().map(|error| error.to_string()))?;
    Ok(described)
}
