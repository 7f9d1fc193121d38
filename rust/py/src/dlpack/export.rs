//! Capsules: a tensor handed to a consumer, with its memory kept alive until the consumer lets go.

use std::any::Any;
use std::ffi::c_void;
use std::sync::Arc;

use pyo3::ffi;
use pyo3::prelude::*;

use super::abi::{ManagedAbi, RawTensor};
use super::device::Device;
use super::view::StridedView;

/// What an exported tensor points to, and what keeps its memory alive.
struct Holder {
    shape: Box<[i64]>,
    strides: Box<[i64]>,
    _owner: Arc<dyn Any + Send + Sync>,
}

/// A capsule of the form `M` that describes `view` on `device`. `owner` is released by the consumer's call of the
/// deleter, on whichever thread, or with the capsule when nobody consumes it.
///
/// # Errors
/// When Python cannot allocate the capsule.
pub fn export<'py, M: ManagedAbi>(
    py: Python<'py>,
    view: &StridedView,
    device: Device,
    owner: Arc<dyn Any + Send + Sync>,
    flags: u64,
) -> PyResult<Bound<'py, PyAny>> {
    let holder = Box::into_raw(Box::new(Holder {
        shape: view.shape().iter().map(|&extent| extent as i64).collect(),
        strides: view.strides().into(),
        _owner: owner,
    }));
    // SAFETY: `holder` is the box just made, and nobody else knows it yet.
    let (shape, strides) = unsafe { ((*holder).shape.as_mut_ptr(), (*holder).strides.as_mut_ptr()) };
    let tensor = RawTensor {
        data: if view.elements() == 0 { std::ptr::null_mut() } else { view.data().cast() },
        device: device.raw(),
        ndim: view.shape().len() as i32,
        dtype: view.element().raw(),
        shape,
        strides,
        byte_offset: 0,
    };
    let managed = Box::into_raw(Box::new(M::new(tensor, flags, holder.cast(), release::<M>)));
    // SAFETY: the capsule takes `managed` over; its name is static, and the destructor is made for that name.
    unsafe {
        let capsule = ffi::PyCapsule_New(managed.cast::<c_void>(), M::NAME.as_ptr(), Some(discard::<M>));
        // Without a capsule the tensor is still ours to release.
        Bound::from_owned_ptr_or_err(py, capsule).inspect_err(|_| release(managed))
    }
}

/// The deleter of every exported tensor. Needs neither the GIL nor a particular thread.
unsafe extern "C" fn release<M: ManagedAbi>(managed: *mut M) {
    if managed.is_null() {
        return;
    }
    // SAFETY: the consumer passes the pointer that the capsule held, once: the box of `export`, whose context is
    // the other box made there.
    unsafe {
        let managed = Box::from_raw(managed);
        drop(Box::from_raw(managed.context().cast::<Holder>()));
    }
}

/// The capsule's destructor: releases a tensor that nobody consumed. A consumer renames the capsule.
unsafe extern "C" fn discard<M: ManagedAbi>(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls this once, with the capsule of `export` and the GIL held.
    let managed = unsafe {
        if ffi::PyCapsule_IsValid(capsule, M::NAME.as_ptr()) == 0 {
            return;
        }
        ffi::PyCapsule_GetPointer(capsule, M::NAME.as_ptr()).cast::<M>()
    };
    // SAFETY: under its first name the capsule still owns its tensor. Attaching tells PyO3 that the GIL is held, so
    // that Python objects among the owners go at once; it fails only when the interpreter is going away.
    unsafe {
        if Python::try_attach(|_| release(managed)).is_none() {
            release(managed);
        }
    }
}
