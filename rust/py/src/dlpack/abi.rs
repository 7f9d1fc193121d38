//! The C structs of DLPack 1.1, as `dlpack.h` lays them out: legacy and versioned managed tensors.
//!
//! Only the layout lives here, and [`ManagedAbi`], what the two have in common.

use std::ffi::{CStr, c_void};

/// The version written into exported tensors, and asked of producers.
pub const VERSION: PackVersion = PackVersion { major: 1, minor: 1 };

/// `DLPACK_FLAG_BITMASK_READ_ONLY`: the consumer must not write.
pub const FLAG_READ_ONLY: u64 = 1;
/// `DLPACK_FLAG_BITMASK_IS_COPIED`: the producer made a copy for this consumer.
pub const FLAG_IS_COPIED: u64 = 1 << 1;

/// `DLPackVersion`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackVersion {
    /// Changes when the layout does.
    pub major: u32,
    /// Changes when enumerations grow.
    pub minor: u32,
}

/// `DLDevice`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawDevice {
    /// A `DLDeviceType`.
    pub kind: i32,
    /// Index among devices of the kind.
    pub index: i32,
}

/// `DLDataType`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawDataType {
    /// A `DLDataTypeCode`.
    pub code: u8,
    /// Bits of one lane.
    pub bits: u8,
    /// Lanes of one element; 1 for everything but vector types.
    pub lanes: u16,
}

/// `DLTensor`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RawTensor {
    /// Start of the memory; null when there are no elements.
    pub data: *mut c_void,
    /// Where the memory is.
    pub device: RawDevice,
    /// Length of `shape` and of `strides`.
    pub ndim: i32,
    /// Element type.
    pub dtype: RawDataType,
    /// Extents; may be null when `ndim` is 0.
    pub shape: *mut i64,
    /// Strides in elements; null means contiguous, row-major (before DLPack 1.2).
    pub strides: *mut i64,
    /// Bytes from `data` to the first element.
    pub byte_offset: u64,
}

/// `DLManagedTensor`, the legacy form.
#[repr(C)]
#[derive(Debug)]
pub struct LegacyManaged {
    /// The tensor.
    pub tensor: RawTensor,
    /// The producer's own.
    pub context: *mut c_void,
    /// Releases the tensor and this struct; may be null.
    pub deleter: Option<unsafe extern "C" fn(*mut Self)>,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
#[derive(Debug)]
pub struct VersionedManaged {
    /// Version of the layout that follows `flags`.
    pub version: PackVersion,
    /// The producer's own.
    pub context: *mut c_void,
    /// Releases the tensor and this struct; may be null.
    pub deleter: Option<unsafe extern "C" fn(*mut Self)>,
    /// [`FLAG_READ_ONLY`], [`FLAG_IS_COPIED`].
    pub flags: u64,
    /// The tensor.
    pub tensor: RawTensor,
}

/// A function that releases a managed tensor.
pub type Deleter<M> = unsafe extern "C" fn(*mut M);

/// What the legacy and the versioned form have in common.
pub trait ManagedAbi: Sized + 'static {
    /// Name of a capsule whose tensor nobody has taken yet.
    const NAME: &'static CStr;
    /// Name of a capsule whose tensor has been taken.
    const USED_NAME: &'static CStr;

    /// Wraps a tensor for export.
    fn new(tensor: RawTensor, flags: u64, context: *mut c_void, deleter: Deleter<Self>) -> Self;
    /// What [`Self::new`] was given as `context`.
    fn context(&self) -> *mut c_void;
    /// The deleter, when the producer gave one.
    fn deleter(&self) -> Option<Deleter<Self>>;
    /// The version, for the form that has one.
    fn version(&self) -> Option<PackVersion>;
    /// The flags; a form without any has none set.
    fn flags(&self) -> u64;
    /// The tensor. Meaningful only when [`Self::version`] is one we know.
    fn tensor(&self) -> RawTensor;
}

impl ManagedAbi for LegacyManaged {
    const NAME: &'static CStr = c"dltensor";
    const USED_NAME: &'static CStr = c"used_dltensor";

    fn new(tensor: RawTensor, _flags: u64, context: *mut c_void, deleter: Deleter<Self>) -> Self {
        Self { tensor, context, deleter: Some(deleter) }
    }

    fn context(&self) -> *mut c_void {
        self.context
    }

    fn deleter(&self) -> Option<Deleter<Self>> {
        self.deleter
    }

    fn version(&self) -> Option<PackVersion> {
        None
    }

    fn flags(&self) -> u64 {
        0
    }

    fn tensor(&self) -> RawTensor {
        self.tensor
    }
}

impl ManagedAbi for VersionedManaged {
    const NAME: &'static CStr = c"dltensor_versioned";
    const USED_NAME: &'static CStr = c"used_dltensor_versioned";

    fn new(tensor: RawTensor, flags: u64, context: *mut c_void, deleter: Deleter<Self>) -> Self {
        Self { version: VERSION, context, deleter: Some(deleter), flags, tensor }
    }

    fn context(&self) -> *mut c_void {
        self.context
    }

    fn deleter(&self) -> Option<Deleter<Self>> {
        self.deleter
    }

    fn version(&self) -> Option<PackVersion> {
        Some(self.version)
    }

    fn flags(&self) -> u64 {
        self.flags
    }

    fn tensor(&self) -> RawTensor {
        self.tensor
    }
}

#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(size_of::<RawTensor>() == 48);
    assert!(size_of::<LegacyManaged>() == 64);
    assert!(size_of::<VersionedManaged>() == 80);
    assert!(std::mem::offset_of!(RawTensor, byte_offset) == 40);
    assert!(std::mem::offset_of!(VersionedManaged, flags) == 24);
    assert!(std::mem::offset_of!(VersionedManaged, tensor) == 32);
};
