//! What imports ask of producers of CUDA memory, and what they leave to the caller. No memory is touched: addresses on
//! devices are made up.

use std::ffi::c_void;
use std::ptr::without_provenance_mut;
use std::sync::Arc;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyType};

use super::{Argument, ImportedTensor, Target};
use crate::dlpack::abi::{ManagedAbi, VersionedManaged};
use crate::dlpack::device::Device;
use crate::dlpack::element::ElementType;
use crate::dlpack::exchange::testing::exchanged;
use crate::dlpack::expect::{Place, expect_device};
use crate::dlpack::view::StridedView;
use crate::errors::Raised;
use crate::streams::StreamHandle;
use crate::tensor::Tensor;
use crate::testing::with_python;

const STREAM: StreamHandle = StreamHandle::new(0x1230);
const OTHER: StreamHandle = StreamHandle::new(0x4560);

/// A tensor of two float32 elements at an address that is nobody's.
fn tensor_on(py: Python<'_>, device: Device) -> Bound<'_, Tensor> {
    let data = without_provenance_mut(0x7000_0000);
    // SAFETY: no test reads or writes the elements.
    let view = unsafe { StridedView::on_device(device, data, ElementType::Float32, &[2], None) }.unwrap();
    Bound::new(py, Tensor::over(view, Arc::new(()), None)).unwrap()
}

/// A producer that hands on a tensor's capsules and remembers what it was asked: (producer, its calls).
fn recording<'py>(tensor: &Bound<'py, Tensor>, claimed: Device) -> (Bound<'py, PyAny>, Bound<'py, PyAny>) {
    let py = tensor.py();
    let names = PyDict::new(py);
    let class = cr#"
class Producer:
    def __init__(self, tensor, device):
        self.tensor, self.device, self.calls = tensor, device, []
    def __dlpack_device__(self):
        return self.device
    def __dlpack__(self, **arguments):
        self.calls.append(arguments)
        return self.tensor.__dlpack__(**arguments)
"#;
    py.run(class, Some(&names), None).unwrap();
    let class = names.get_item("Producer").unwrap().unwrap();
    let producer = class.call1((tensor, (claimed.raw().kind, claimed.index()))).unwrap();
    let calls = producer.getattr("calls").unwrap();
    (producer, calls)
}

fn message(error: &PyErr) -> String {
    Python::attach(|py| error.value(py).to_string())
}

#[test]
fn the_producer_is_told_the_consumers_stream_where_memory_has_one() {
    let managed = Device::new(13, 0);
    let pinned = Device::new(3, 0);
    for (device, stream, expected) in [
        (Device::cuda(1), Some(STREAM), "[{'stream': 4656, 'max_version': (1, 1)}]"),
        (Device::cuda(1), Some(StreamHandle::LEGACY), "[{'stream': 1, 'max_version': (1, 1)}]"),
        (Device::cuda(1), Some(StreamHandle::PER_THREAD), "[{'stream': 2, 'max_version': (1, 1)}]"),
        (Device::cuda(1), None, "[{'stream': -1, 'max_version': (1, 1)}]"),
        (managed, Some(STREAM), "[{'stream': 4656, 'max_version': (1, 1)}]"),
        (pinned, Some(STREAM), "[{'max_version': (1, 1)}]"),
        (Device::CPU, Some(STREAM), "[{'max_version': (1, 1)}]"),
    ] {
        with_python(|py| {
            let (producer, calls) = recording(&tensor_on(py, device), device);
            let imported = ImportedTensor::on_stream("hidden", &producer, stream).unwrap();
            assert_eq!((imported.device(), imported.awaited_stream()), (device, None));
            assert_eq!(calls.to_string(), expected, "{device}");
        });
    }
}

#[test]
fn a_host_import_refuses_device_memory_before_the_producer_exports() {
    with_python(|py| {
        let device = Device::cuda(0);
        let (producer, calls) = recording(&tensor_on(py, device), device);
        let refused = ImportedTensor::new("hidden", &producer).unwrap_err();
        let expected = "hidden: on cuda:0, expected a CPU tensor (the cpu executor works in host memory)";
        assert_eq!(message(&refused), expected);
        assert_eq!(calls.len().unwrap(), 0);
        let refused = ImportedTensor::new("hidden", &tensor_on(py, device)).unwrap_err();
        assert_eq!(message(&refused), expected);
        let imported = ImportedTensor::new("hidden", &tensor_on(py, Device::new(3, 0))).unwrap();
        assert!(imported.device().is_pinned() && imported.is_pinned());
    });
}

#[test]
fn a_capsule_elsewhere_than_its_producer_says_is_refused() {
    with_python(|py| {
        let (producer, _) = recording(&tensor_on(py, Device::cuda(0)), Device::CPU);
        let refused = ImportedTensor::on_stream("hidden", &producer, Some(STREAM)).unwrap_err();
        let expected = "hidden: a capsule on cuda:0, expected one on cpu, as __dlpack_device__ says";
        assert_eq!(message(&refused), expected);
    });
}

#[test]
fn a_place_admits_the_memory_it_names() {
    let (pinned, managed) = (Device::new(3, 0), Device::new(13, 0));
    let devices = [Device::CPU, pinned, Device::cuda(1), Device::cuda(0), managed, Device::new(8, 1)];
    for (place, admitted) in [
        (Place::Host, [true, true, false, false, false, false]),
        (Place::Cuda(1), [false, false, true, false, true, false]),
        (Place::CudaOrPinned(1), [false, true, true, false, true, false]),
        (Place::CudaOrHost(1), [true, true, true, false, true, false]),
        (Place::HostOrAnyCuda, [true, true, true, true, true, false]),
    ] {
        assert_eq!(devices.map(|device| place.admits(device)), admitted, "{place}");
    }
    with_python(|py| {
        let imported = ImportedTensor::on_stream("codes", &tensor_on(py, Device::cuda(0)), None).unwrap();
        expect_device(&imported, Place::Cuda(0)).unwrap();
        let refused = PyErr::from(expect_device(&imported, Place::CudaOrPinned(1)).unwrap_err());
        let expected = "codes: on cuda:0, expected a tensor on cuda:1 or in pinned host memory";
        assert_eq!(message(&refused), expected);
    });
}

// The CUDA array interface

/// What becomes of an interface whose memory is cuda:1's.
fn cuda_array(py: Python<'_>, changes: &str, stream: Option<StreamHandle>) -> PyResult<ImportedTensor> {
    let fields =
        "dict(version=3, typestr='<f4', shape=(2, 3), data=(0x7000_0000, False), strides=None, stream=None)";
    let source = std::ffi::CString::new(format!("{fields} | {changes}")).unwrap();
    let interface = py.eval(&source, None, None).unwrap();
    let object = py.None().into_bound(py);
    Argument { name: "hidden".into(), object: &object, target: Target::Stream(stream) }
        .import_cuda_array(interface, |_| Ok(Device::cuda(1)))
}

#[test]
fn a_cuda_array_is_described_by_its_interface() {
    with_python(|py| {
        let imported = cuda_array(py, "{}", Some(STREAM)).unwrap();
        assert_eq!((imported.device(), imported.awaited_stream()), (Device::cuda(1), None));
        assert_eq!((imported.view().shape(), imported.view().strides()), (&[2, 3][..], &[3, 1][..]));
        assert!(!imported.read_only());
        let changes = "dict(version=2, strides=(4, 8), data=(0x7000_0000, True))";
        let imported = cuda_array(py, changes, Some(STREAM)).unwrap();
        assert_eq!(imported.view().strides(), [1, 2]);
        assert!(imported.read_only());
        assert_eq!(imported.view().data().addr(), 0x7000_0000);
    });
}

#[test]
fn the_stream_of_a_cuda_array_is_the_callers_to_wait_for() {
    with_python(|py| {
        let awaited = |changes, stream| cuda_array(py, changes, stream).unwrap().awaited_stream();
        assert_eq!(awaited("dict(stream=0x4560)", Some(STREAM)), Some(OTHER));
        assert_eq!(awaited("dict(stream=0x1230)", Some(STREAM)), None);
        assert_eq!(awaited("dict(stream=1)", Some(STREAM)), Some(StreamHandle::LEGACY));
        assert_eq!(awaited("dict(stream=1)", Some(StreamHandle::new(0))), None);
        assert_eq!(awaited("dict(stream=2)", Some(STREAM)), Some(StreamHandle::PER_THREAD));
        assert_eq!(awaited("dict(stream=0x4560)", None), None);
    });
}

#[test]
fn a_cuda_array_that_makes_no_sense_is_refused() {
    with_python(|py| {
        for (changes, expected) in [
            ("dict(version=1)", "version 1 of __cuda_array_interface__, expected version 2 or 3"),
            ("dict(version='3')", "malformed __cuda_array_interface__"),
            ("dict(stream=0)", "stream 0 in __cuda_array_interface__"),
            ("dict(stream=-1)", "malformed __cuda_array_interface__"),
            ("dict(mask=1)", "a masked array"),
            ("dict(typestr='<V2')", "elements of type <V2"),
            ("dict(typestr='>f4')", "byte-swapped"),
            ("dict(shape=(2, -1))", "negative"),
            ("dict(strides=(12,))", "1 strides for 2 dimensions"),
            ("dict(strides=(13, 4))", "elements 13 bytes apart"),
            ("dict(data=(0, False))", "null data pointer"),
            ("dict(data=None)", "malformed __cuda_array_interface__"),
        ] {
            let refused = message(&cuda_array(py, changes, Some(STREAM)).unwrap_err());
            assert!(refused.starts_with("hidden: ") && refused.contains(expected), "{changes}: {refused}");
        }
    });
}

// The C exchange table

/// Hands on the capsule of the object's `tensor`.
unsafe extern "C" fn export(object: *mut ffi::PyObject, out: *mut *mut VersionedManaged) -> i32 {
    Python::attach(|py| {
        // SAFETY: the caller lends the object for the call.
        let tensor = unsafe { Bound::from_borrowed_ptr(py, object) }.getattr("tensor").unwrap();
        let arguments = PyDict::new(py);
        arguments.set_item("max_version", (1, 1)).unwrap();
        let capsule = tensor.call_method("__dlpack__", (), Some(&arguments)).unwrap();
        // SAFETY: the capsule is fresh and versioned; renamed, it leaves its tensor to the caller.
        unsafe {
            *out = ffi::PyCapsule_GetPointer(capsule.as_ptr(), VersionedManaged::NAME.as_ptr()).cast();
            ffi::PyCapsule_SetName(capsule.as_ptr(), VersionedManaged::USED_NAME.as_ptr());
        }
        0
    })
}

/// Answers with [`STREAM`] for cuda:1.
unsafe extern "C" fn current_work_stream(kind: i32, index: i32, out: *mut *mut c_void) -> i32 {
    assert_eq!((kind, index), (2, 1));
    // SAFETY: the caller gives room for the answer.
    unsafe { *out = without_provenance_mut(STREAM.handle() as usize) };
    0
}

#[test]
fn an_exchanged_tensor_awaits_its_librarys_stream_unless_it_is_the_same() {
    with_python(|py| {
        let class = py.get_type::<PyType>().call1(("Library", (), PyDict::new(py))).unwrap();
        let table = exchanged(export, current_work_stream);
        class.setattr("__dlpack_c_exchange_api__", table.capsule(py)).unwrap();
        let object = class.call0().unwrap();
        for (device, stream, awaited) in [
            (Device::cuda(1), Some(STREAM), None),
            (Device::cuda(1), Some(OTHER), Some(STREAM)),
            (Device::cuda(1), None, None),
            (Device::new(3, 0), Some(OTHER), None),
        ] {
            object.setattr("tensor", tensor_on(py, device)).unwrap();
            let imported = ImportedTensor::on_stream("hidden", &object, stream).unwrap();
            assert_eq!((imported.device(), imported.awaited_stream()), (device, awaited));
        }
        object.setattr("tensor", tensor_on(py, Device::cuda(1))).unwrap();
        let refused = ImportedTensor::new("hidden", &object).unwrap_err();
        assert!(message(&refused).starts_with("hidden: on cuda:1, expected a CPU tensor"));
    });
}

#[test]
fn device_memory_has_no_host_accessors() {
    with_python(|py| {
        let imported = ImportedTensor::on_stream("hidden", &tensor_on(py, Device::cuda(1)), None).unwrap();
        let refused = |outcome: Result<(), Raised>| message(&PyErr::from(outcome.unwrap_err()));
        let expected = "hidden: elements on cuda:1, expected host memory";
        assert_eq!(refused(imported.read_row_f32(&[], &mut [0.0; 2])), expected);
        assert_eq!(refused(imported.read_i64(&mut [0; 2])), expected);
        let view = imported.view();
        assert!(view.get_f32(&[0]).is_err() && view.scalar(&[0]).is_none());
        assert!(view.read_f32(&mut [0.0; 2]).is_err() && view.read_bytes(&mut [0; 8]).is_err());
        // SAFETY: nothing writes; there must be no slice.
        assert!(unsafe { view.as_bytes() }.is_none());
        imported.expect_writable().unwrap();
        assert!(imported.writer().unwrap().write_row_f32(&[], &[0.0; 2]).is_err());
        assert!(imported.writer().unwrap().write_row_bytes(&[], &[0; 8]).is_err());
    });
}
