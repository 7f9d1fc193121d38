//! DLPack's C exchange table: a library's tensors without a call of Python, and the stream it works on.
//!
//! A type that has it names it in `__dlpack_c_exchange_api__` (DLPack 1.3; torch from 2.10 on). Nothing that goes
//! through it waits or makes anybody wait: who imports a tensor this way orders the streams.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::{NonNull, null_mut};

use pyo3::prelude::*;
use pyo3::{ffi, intern};

use super::abi::{PackVersion, VERSION, VersionedManaged};
use super::device::Device;
use crate::streams::StreamHandle;

/// Name of the capsule that holds the table.
const CAPSULE: &CStr = c"dlpack_exchange_api";
/// More tables than any library keeps for consumers of other versions.
const MOST_TABLES: usize = 16;

/// `DLPackExchangeAPIHeader`: what stays as it is in every version.
#[repr(C)]
#[derive(Debug)]
struct Header {
    version: PackVersion,
    /// The table of an older version, or null.
    older: *mut Header,
}

/// `DLPackExchangeAPI` of version 1.
#[repr(C)]
#[derive(Debug)]
struct Table {
    header: Header,
    allocate: *mut c_void,
    export: Option<unsafe extern "C" fn(*mut ffi::PyObject, *mut *mut VersionedManaged) -> c_int>,
    import: *mut c_void,
    describe: *mut c_void,
    current_work_stream: Option<unsafe extern "C" fn(c_int, i32, *mut *mut c_void) -> c_int>,
}

#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(size_of::<Header>() == 16);
    assert!(size_of::<Table>() == 56);
    assert!(std::mem::offset_of!(Table, export) == 24);
    assert!(std::mem::offset_of!(Table, current_work_stream) == 48);
};

/// The exchange table of a type of tensors.
#[derive(Clone, Copy, Debug)]
pub struct Exchange(NonNull<Table>);

impl Exchange {
    /// The table of `kind`, the type of a tensor, in the version overtone knows; `None` when there is none.
    /// The type's own attribute cache makes this a matter of nanoseconds.
    ///
    /// # Errors
    /// What reading the attribute raises.
    pub fn of(kind: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        let Some(capsule) = kind.getattr_opt(intern!(kind.py(), "__dlpack_c_exchange_api__"))? else {
            return Ok(None);
        };
        // SAFETY: the capsule is alive and the GIL held. `PyCapsule_IsValid` answers for any object, and a capsule of
        // this name holds a pointer to a table by DLPack's definition.
        let mut table = unsafe {
            if ffi::PyCapsule_IsValid(capsule.as_ptr(), CAPSULE.as_ptr()) == 0 {
                return Ok(None);
            }
            ffi::PyCapsule_GetPointer(capsule.as_ptr(), CAPSULE.as_ptr()).cast::<Header>()
        };
        for _ in 0..MOST_TABLES {
            let Some(header) = NonNull::new(table).filter(|header| header.is_aligned()) else { break };
            // SAFETY: every table starts with a header, and lives as long as the process.
            let Header { version, older } = unsafe { header.as_ref() };
            if version.major == VERSION.major {
                return Ok(Some(Self(header.cast())));
            }
            table = *older;
        }
        Ok(None)
    }

    fn table(&self) -> &Table {
        // SAFETY: `of` has seen that the version is the one laid out above; tables live as long as the process and
        // do not change.
        unsafe { self.0.as_ref() }
    }

    /// The tensor that `object`, of the type that the table was read from, is: the caller's to release.
    ///
    /// # Errors
    /// The exception that the library sets.
    pub fn export(&self, object: &Bound<'_, PyAny>) -> PyResult<Option<NonNull<VersionedManaged>>> {
        let Some(export) = self.table().export else { return Ok(None) };
        let mut managed = null_mut();
        // SAFETY: the object is of the table's type, `managed` has room for the answer, and the GIL is held.
        let outcome = unsafe { export(object.as_ptr(), &raw mut managed) };
        if outcome != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        Ok(NonNull::new(managed).filter(|managed| managed.is_aligned()))
    }

    /// The stream on which the library works on `device` now.
    ///
    /// # Errors
    /// The exception that the library sets.
    pub fn current_stream(&self, py: Python<'_>, device: Device) -> PyResult<StreamHandle> {
        let Some(current_work_stream) = self.table().current_work_stream else {
            return Ok(StreamHandle::LEGACY);
        };
        let device = device.raw();
        let mut stream = null_mut();
        // SAFETY: `stream` has room for the answer, and the GIL is held.
        let outcome = unsafe { current_work_stream(device.kind, device.index, &raw mut stream) };
        if outcome != 0 {
            return Err(PyErr::fetch(py));
        }
        Ok(StreamHandle::new(stream.expose_provenance() as u64))
    }
}

/// Tables for tests.
#[cfg(test)]
pub(super) mod testing {
    use super::*;

    /// A table that lives as long as the process.
    #[derive(Clone, Copy, Debug)]
    pub struct TestTable(&'static Table);

    /// A table of version 1 behind one of a version that nobody knows.
    pub fn exchanged(
        export: unsafe extern "C" fn(*mut ffi::PyObject, *mut *mut VersionedManaged) -> c_int,
        current_work_stream: unsafe extern "C" fn(c_int, i32, *mut *mut c_void) -> c_int,
    ) -> TestTable {
        let table = |major, older| {
            Box::leak(Box::new(Table {
                header: Header { version: PackVersion { major, minor: 3 }, older },
                allocate: null_mut(),
                export: Some(export),
                import: null_mut(),
                describe: null_mut(),
                current_work_stream: Some(current_work_stream),
            }))
        };
        let known: *mut Table = table(VERSION.major, null_mut());
        TestTable(table(VERSION.major + 1, known.cast()))
    }

    impl TestTable {
        /// The capsule that a type names.
        pub fn capsule<'py>(&self, py: Python<'py>) -> Bound<'py, PyAny> {
            let table: *const Table = self.0;
            // SAFETY: the table and the name are static.
            unsafe {
                let capsule = ffi::PyCapsule_New(table.cast_mut().cast(), CAPSULE.as_ptr(), None);
                Bound::from_owned_ptr(py, capsule)
            }
        }
    }
}
