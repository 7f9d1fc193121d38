//! What tensors promise about their memory: who owns it, who may write it, when it goes.

use std::any::Any;
use std::ptr::without_provenance_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use overtone_core::tensor::FloatType;
use pyo3::prelude::*;

use super::Tensor;
use super::buffer::Buffer;
use super::producer::Producer;
use crate::dlpack::abi::{LegacyManaged, ManagedAbi};
use crate::dlpack::device::Device;
use crate::dlpack::element::ElementType;
use crate::dlpack::import::ImportedTensor;
use crate::dlpack::view::StridedView;
use crate::errors::Raised;
use crate::streams::StreamHandle;
use crate::testing::with_python;

/// A table of [2, 2] float32 elements 0, 1, 2, 3 inside shared weights.
fn table(weights: &Arc<Vec<u8>>) -> Tensor {
    Tensor::borrowed(Arc::clone(weights), FloatType::Float32, &[2, 2], |weights| weights).unwrap()
}

fn weights() -> Arc<Vec<u8>> {
    Arc::new([0.0_f32, 1.0, 2.0, 3.0].iter().flat_map(|value| value.to_ne_bytes()).collect())
}

#[test]
fn a_borrowed_table_keeps_its_weights_alive_through_every_export() {
    with_python(|py| {
        let weights = weights();
        let tensor = Bound::new(py, table(&weights)).unwrap();
        let versioned = pyo3::types::PyDict::new(py);
        versioned.set_item("max_version", (1, 0)).unwrap();
        let capsule = tensor.call_method("__dlpack__", (), Some(&versioned)).unwrap();
        let imported = ImportedTensor::new("table", &tensor).unwrap();
        drop(tensor);
        assert_eq!(Arc::strong_count(&weights), 3);
        drop(capsule);
        assert_eq!(Arc::strong_count(&weights), 2);
        let mut row = [0.0; 2];
        imported.read_row_f32(&[1], &mut row).unwrap();
        assert_eq!(row, [2.0, 3.0]);
        drop(imported);
        assert_eq!(Arc::strong_count(&weights), 1);
    });
}

#[test]
fn a_borrowed_table_is_never_written() {
    with_python(|py| {
        let tensor = Bound::new(py, table(&weights())).unwrap();
        assert!(tensor.get().writer().is_err());
        let error = PyErr::from(ImportedTensor::new("codes", &tensor).unwrap().writer().unwrap_err());
        assert_eq!(error.value(py).to_string(), "codes: a read-only tensor, expected a writable one");
        // The legacy form cannot say read-only.
        assert!(tensor.call_method0("__dlpack__").is_err());
    });
}

#[test]
fn bytes_that_are_not_the_shape_are_refused() {
    let refused = Tensor::borrowed(weights(), FloatType::BFloat16, &[2, 2], |weights| weights);
    assert!(refused.is_err());
}

#[test]
fn what_the_executor_writes_is_seen_by_earlier_exports() {
    with_python(|py| {
        let tensor = Bound::new(py, Tensor::zeroed(ElementType::Int32, &[2, 3]).unwrap()).unwrap();
        let earlier = ImportedTensor::new("codes", &tensor).unwrap();
        tensor.get().writer().unwrap().write_row_i32(&[1], &[7, 8, 9]).unwrap();
        let mut row = [0; 3];
        earlier.view().read_row_i32(&[1], &mut row).unwrap();
        assert_eq!(row, [7, 8, 9]);
    });
}

#[test]
fn memory_is_aligned_for_vector_loads_and_starts_as_zeros() {
    for elements in [0, 1, 1000] {
        let tensor = Tensor::zeroed(ElementType::Float32, &[elements]).unwrap();
        assert_eq!(tensor.view().data().addr() % 64, 0);
        let mut values = vec![1.0; elements];
        tensor.view().read_f32(&mut values).unwrap();
        assert!(values.iter().all(|&value| value == 0.0));
    }
    assert!(Tensor::zeroed(ElementType::Float32, &[usize::MAX, 2]).is_err());
    assert!(Tensor::zeroed(ElementType::Float32, &[1 << 61]).is_err());
}

// Device memory. Addresses are made up: nothing reads them.

/// Work that remembers who was made to wait for it.
#[derive(Debug, Default)]
struct Work {
    ordered: Mutex<Vec<StreamHandle>>,
    waits: AtomicUsize,
}

impl Producer for Work {
    fn order_before(&self, stream: StreamHandle) -> Result<(), Raised> {
        self.ordered.lock().unwrap().push(stream);
        Ok(())
    }

    fn wait(&self) -> Result<(), Raised> {
        self.waits.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// A tensor [2, 2] of int32 on `device`, at `data`, that `work` fills.
fn filled(device: Device, data: *mut u8, work: &Arc<Work>, owner: Arc<dyn Any + Send + Sync>) -> Tensor {
    // SAFETY: in host memory the caller's data; on a device nobody touches it.
    let view = unsafe { StridedView::on_device(device, data, ElementType::Int32, &[2, 2], None) }.unwrap();
    Tensor::over(view, owner, Some(Arc::clone(work) as Arc<dyn Producer>))
}

fn on_cuda(work: &Arc<Work>) -> Tensor {
    filled(Device::cuda(1), without_provenance_mut(0x7000_0000), work, Arc::new(()))
}

fn ordered(work: &Work) -> Vec<u64> {
    std::mem::take(&mut *work.ordered.lock().unwrap()).into_iter().map(StreamHandle::handle).collect()
}

fn call<'py>(tensor: &Bound<'py, Tensor>, arguments: &[(&str, i64)]) -> PyResult<Bound<'py, PyAny>> {
    let keywords = pyo3::types::PyDict::new(tensor.py());
    for (name, value) in arguments {
        keywords.set_item(name, value).unwrap();
    }
    tensor.call_method("__dlpack__", (), Some(&keywords))
}

#[test]
fn a_consumers_stream_waits_for_the_work_and_nobody_else_does() {
    with_python(|py| {
        let work = Arc::new(Work::default());
        let tensor = Bound::new(py, on_cuda(&work)).unwrap();
        call(&tensor, &[]).unwrap();
        assert_eq!(ordered(&work), [0]);
        for (stream, expected) in [(1, &[0][..]), (2, &[2]), (0x1230, &[0x1230]), (-1, &[])] {
            call(&tensor, &[("stream", stream)]).unwrap();
            assert_eq!(ordered(&work), expected);
        }
        for refused in [("stream", 0), ("stream", -2)] {
            assert!(call(&tensor, &[refused]).is_err());
            assert!(ordered(&work).is_empty());
        }
        let interface = tensor.getattr("__cuda_array_interface__").unwrap();
        assert_eq!(interface.get_item("stream").unwrap().extract::<u64>().unwrap(), 1);
        assert_eq!(ordered(&work), [0]);
        assert_eq!(work.waits.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn our_own_tensors_are_ordered_before_the_stream_they_are_imported_for() {
    with_python(|py| {
        let work = Arc::new(Work::default());
        let tensor = Bound::new(py, on_cuda(&work)).unwrap();
        let stream = StreamHandle::new(0x1230);
        let imported = ImportedTensor::on_stream("codes", &tensor, Some(stream)).unwrap();
        assert_eq!((imported.awaited_stream(), ordered(&work)), (None, vec![0x1230]));
        ImportedTensor::on_stream("codes", &tensor, None).unwrap();
        assert!(ordered(&work).is_empty());
        // Another `Tensor` over it waits for the same work.
        let again = py.get_type::<Tensor>().call_method1("from_dlpack", (&tensor,)).unwrap();
        call(again.cast::<Tensor>().unwrap(), &[("stream", 7)]).unwrap();
        assert_eq!(ordered(&work), [7]);
    });
}

#[test]
fn the_host_waits_before_it_reads_pinned_memory() {
    with_python(|py| {
        let work = Arc::new(Work::default());
        let buffer = Arc::new(Buffer::zeroed(16).unwrap());
        let data = buffer.data();
        let tensor = Bound::new(py, filled(Device::new(3, 0), data, &work, buffer)).unwrap();
        assert_eq!(tensor.getattr("device").unwrap().to_string(), "cuda_host:0");
        assert_eq!(tensor.call_method0("tolist").unwrap().to_string(), "[[0, 0], [0, 0]]");
        assert_eq!(work.waits.load(Ordering::Relaxed), 1);
        tensor.getattr("__array_interface__").unwrap();
        assert_eq!(work.waits.load(Ordering::Relaxed), 2);
        let imported = ImportedTensor::new("codes", &tensor).unwrap();
        assert_eq!(imported.view().data(), data);
        assert_eq!(work.waits.load(Ordering::Relaxed), 3);
        call(&tensor, &[]).unwrap();
        assert_eq!((work.waits.load(Ordering::Relaxed), ordered(&work)), (4, vec![]));
    });
}

#[test]
fn a_deleter_needs_neither_the_gil_nor_the_interpreter() {
    let work = Arc::new(Work::default());
    let owner = Arc::new(());
    let memory: Arc<dyn Any + Send + Sync> = owner.clone();
    let managed = with_python(|py| {
        let data = without_provenance_mut(0x7000_0000);
        let tensor = Bound::new(py, filled(Device::cuda(1), data, &work, memory)).unwrap();
        let capsule = call(&tensor, &[("stream", -1)]).unwrap();
        // SAFETY: the capsule is fresh; renamed, it leaves its tensor to us.
        unsafe {
            let managed = pyo3::ffi::PyCapsule_GetPointer(capsule.as_ptr(), LegacyManaged::NAME.as_ptr());
            pyo3::ffi::PyCapsule_SetName(capsule.as_ptr(), LegacyManaged::USED_NAME.as_ptr());
            managed.expose_provenance()
        }
    });
    assert_eq!(Arc::strong_count(&owner), 2);
    let release = move || {
        let managed: *mut LegacyManaged = std::ptr::with_exposed_provenance_mut(managed);
        // SAFETY: taken from the capsule above, and released once.
        unsafe { ((*managed).deleter.unwrap())(managed) }
    };
    std::thread::spawn(release).join().unwrap();
    assert_eq!(Arc::strong_count(&owner), 1);
}
