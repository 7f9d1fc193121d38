//! What tensors promise about their memory: who owns it, who may write it, when it goes.

use std::sync::Arc;

use overtone_core::tensor::FloatType;
use pyo3::prelude::*;

use super::Tensor;
use crate::dlpack::element::ElementType;
use crate::dlpack::import::ImportedTensor;
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
