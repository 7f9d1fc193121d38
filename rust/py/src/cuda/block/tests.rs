//! What kernels are told of a frame. Addresses on the device are made up: nothing reads them.

use std::ptr::without_provenance_mut;

use overtone_core::checkpoint::synthetic::Architecture;
use overtone_core::spec::ModelSpec;
use pyo3::types::PyList;

use super::*;
use crate::dlpack::device::Device;
use crate::frame::arguments::{FrameArguments, GivenSampling};
use crate::frame::site::Site;
use crate::streams::StreamHandle;
use crate::tensor::Tensor;
use crate::testing::with_python;
use pyo3::prelude::*;

const SITE: Site = Site::Cuda { index: 0, stream: StreamHandle::LEGACY };

fn spec() -> ModelSpec {
    "tiny".parse::<Architecture>().unwrap().spec()
}

/// A tensor on `cuda:0`.
fn there<'py>(
    py: Python<'py>,
    address: usize,
    element: ElementType,
    shape: &[i64],
    strides: Option<&[i64]>,
) -> Bound<'py, PyAny> {
    // SAFETY: nobody looks there.
    let view = unsafe {
        StridedView::on_device(Device::cuda(0), without_provenance_mut(address), element, shape, strides)
    };
    Bound::new(py, Tensor::over(view.unwrap(), Arc::new(()), None)).unwrap().into_any()
}

/// A vector of int64 in host memory.
fn here<'py>(py: Python<'py>, values: &[i64]) -> Bound<'py, PyAny> {
    let tensor = Tensor::zeroed(ElementType::Int64, &[values.len()]).unwrap();
    tensor.writer().unwrap().write_row_i64(&[], values).unwrap();
    Bound::new(py, tensor).unwrap().into_any()
}

/// A greedy frame of two rows, all on the device.
fn arguments(py: Python<'_>) -> FrameArguments<'_> {
    let width = spec().talker_hidden_size as i64;
    FrameArguments {
        batch: Some(2),
        talker_last_hidden: there(py, 0x1000, ElementType::BFloat16, &[3, width], Some(&[2 * width, 2])),
        code_zero: there(py, 0x8000, ElementType::Int64, &[2], Some(&[5])),
        sampling: GivenSampling::Greedy,
        frame_idx: (-1_i64).into_pyobject(py).unwrap().into_any(),
        advance_frame_idx: false,
        active: None,
        output_codes: None,
        codes_ring: None,
        logits: false,
    }
}

fn inputs(arguments: &FrameArguments<'_>) -> PyResult<FrameInputs> {
    FrameInputs::new(SITE, &spec(), 8, arguments)
}

fn block(inputs: &FrameInputs) -> FrameBlock {
    let raw = TensorReference::new(0x100, DeviceType::Float32, &[1, 1], 9);
    let table = CodeZeroTable::new(raw, raw);
    let table = TalkerTable { table, lent: None };
    let mut block = frame_block(inputs, &OutputReferences::default(), &table);
    read_host_values(inputs, &mut block.rows).unwrap();
    block
}

fn message(py: Python<'_>, error: Raised) -> String {
    PyErr::from(error).value(py).to_string()
}

#[test]
fn tensors_on_the_device_are_named_by_address_stride_and_type() {
    with_python(|py| {
        let block = block(&inputs(&arguments(py)).unwrap());
        let width = spec().talker_hidden_size as i64;
        assert_eq!(block.header.batch, 2);
        assert_eq!(
            block.header.talker_last_hidden,
            TensorReference::new(0x1000, DeviceType::BFloat16, &[2 * width, 2], 3)
        );
        assert_eq!(block.header.code_zero, TensorReference::new(0x8000, DeviceType::Int64, &[5], 2));
        for absent in [block.header.active, block.header.frame_index, block.header.temperature] {
            assert_eq!(absent, TensorReference::default());
        }
        assert!(block.rows.iter().all(|row| row.temperature == 0.0 && row.inactive == 0));
    });
}

#[test]
fn what_the_host_holds_travels_with_the_rows() {
    with_python(|py| {
        let mut given = arguments(py);
        given.code_zero = PyList::new(py, [7, -3]).unwrap().into_any();
        given.sampling = GivenSampling::Rows(vec![(0.5, 3, 0.25, 9), (1.0, 1 << 40, 1.0, u64::MAX)]);
        given.frame_idx = here(py, &[4, 5]);
        given.active = Some(here(py, &[0, 2]));
        given.advance_frame_idx = true;
        let inputs = inputs(&given).unwrap();
        let mut block = block(&inputs);
        assert_eq!((block.header.code_zero.address(), block.header.frame_index.address()), (0, 0));
        assert_eq!(block.header.advance_frame_index, 0);
        let [first, second] = block.rows[..] else { panic!("two rows") };
        assert_eq!((first.code_zero, first.inactive), (7, 1));
        assert_eq!((second.code_zero, second.inactive, second.frame_index), (-3, 0, 5));
        assert_eq!((first.temperature, first.top_k, first.top_p, first.seed), (0.5, 3, 0.25, 9));
        assert_eq!((second.top_k, second.seed), (u32::MAX, u64::MAX));
        // Only the row that took part moves on.
        advance_host_index(&inputs, &mut block.rows).unwrap();
        read_host_values(&inputs, &mut block.rows).unwrap();
        assert_eq!(block.rows[1].frame_index, 6);
        assert_eq!(given.frame_idx.call_method0("tolist").unwrap().to_string(), "[4, 6]");
    });
}

#[test]
fn a_number_counts_launches_and_a_device_tensor_is_left_to_the_frame() {
    with_python(|py| {
        let mut given = arguments(py);
        given.advance_frame_idx = true;
        given.frame_idx = u64::MAX.into_pyobject(py).unwrap().into_any();
        let counted = inputs(&given).unwrap();
        let mut counting = block(&counted);
        advance_host_index(&counted, &mut counting.rows).unwrap();
        assert!(counting.rows.iter().all(|row| row.frame_index == 0));
        assert_eq!(counting.header.advance_frame_index, 1);

        given.frame_idx = there(py, 0x4000, ElementType::Int64, &[1], Some(&[77]));
        let shared = block(&inputs(&given).unwrap());
        assert_eq!(shared.header.frame_index, TensorReference::new(0x4000, DeviceType::Int64, &[0], 1));
        assert_eq!(shared.header.advance_frame_index, 1);
    });
}

#[test]
fn only_the_kernels_know_which_rows_took_part_when_active_is_theirs() {
    with_python(|py| {
        let mut given = arguments(py);
        given.active = Some(there(py, 0x5000, ElementType::Bool, &[2], None));
        given.frame_idx = here(py, &[1, 2]);
        check_advance(&inputs(&given).unwrap()).unwrap();
        given.advance_frame_idx = true;
        assert!(check_advance(&inputs(&given).unwrap()).is_err());
        given.frame_idx = here(py, &[1]);
        check_advance(&inputs(&given).unwrap()).unwrap();
    });
}

#[test]
fn what_a_graph_would_repeat_is_named() {
    with_python(|py| {
        let refused = |given: &FrameArguments<'_>| {
            Recordable::new(&inputs(given).unwrap()).check().err().map(|error| message(py, error))
        };
        let mut given = arguments(py);
        assert_eq!(refused(&given), None);
        given.sampling = GivenSampling::One((0.0, 5, 1.0, 1));
        assert_eq!(refused(&given), None, "greedy rows draw nothing");
        given.sampling = GivenSampling::One((1.0, 5, 1.0, 1));
        given.frame_idx = there(py, 0x4000, ElementType::Int64, &[1], None);
        assert!(refused(&given).unwrap().starts_with("sampling: "));
        given.sampling = GivenSampling::Greedy;
        given.active = Some(here(py, &[1, 1]));
        assert!(refused(&given).unwrap().starts_with("active: "));
        given.active = None;
        given.frame_idx = here(py, &[1]);
        assert_eq!(refused(&given), None, "greedy rows need no index");
        given.advance_frame_idx = true;
        assert!(refused(&given).unwrap().starts_with("frame_idx: "));
        given.code_zero = PyList::new(py, [1, 2]).unwrap().into_any();
        assert!(refused(&given).unwrap().starts_with("code_zero: "));
    });
}

#[test]
fn an_address_that_would_end_the_context_is_refused() {
    with_python(|py| {
        let mut given = arguments(py);
        given.code_zero = there(py, 0x8004, ElementType::Int64, &[2], None);
        let refused = inputs(&given).unwrap_err();
        assert_eq!(
            refused.value(py).to_string(),
            "code_zero: at address 0x8004, expected a multiple of 8 bytes"
        );
    });
}

#[test]
fn sampling_arrays_are_all_in_one_place() {
    with_python(|py| {
        let float = |address| there(py, address, ElementType::Float32, &[2], None);
        let mut given = arguments(py);
        given.frame_idx = 3_u64.into_pyobject(py).unwrap().into_any();
        let top_k = there(py, 0x3000, ElementType::Int32, &[2], None);
        let seed = there(py, 0x6000, ElementType::UInt64, &[2], None);
        given.sampling = GivenSampling::Arrays([float(0x1000), top_k.clone(), float(0x2000), seed]);
        let block = block(&inputs(&given).unwrap());
        assert_eq!(block.header.seed, TensorReference::new(0x6000, DeviceType::UInt64, &[1], 2));
        assert!(block.rows.iter().all(|row| row.frame_index == 3));
        given.sampling = GivenSampling::Arrays([float(0x1000), top_k, float(0x2000), here(py, &[1, 2])]);
        let refused = inputs(&given).unwrap_err();
        assert_eq!(refused.value(py).to_string(), "seed: on cpu, expected all sampling arrays on cuda:0");
    });
}
