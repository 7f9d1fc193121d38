//! What a device is: read once, when the driver is initialized.

use std::ffi::{CStr, c_char};
use std::fmt;

use cudarc::driver::sys::{self, CUdevice, CUdevice_attribute};

use super::error::{DriverError, check};
use super::guard::{OLDEST_COMPUTE_CAPABILITY, Unavailable};

/// The generation of a GPU: 9.0 is Hopper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ComputeCapability {
    /// 9 of 9.0.
    pub major: u32,
    /// 0 of 9.0.
    pub minor: u32,
}

impl fmt::Display for ComputeCapability {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}", self.major, self.minor)
    }
}

/// What never changes about a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceProperties {
    /// The product, such as "NVIDIA H200".
    pub name: String,
    /// Its generation.
    pub compute_capability: ComputeCapability,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of the second-level cache.
    pub l2_cache_bytes: usize,
    /// Bytes of device memory.
    pub total_memory_bytes: usize,
    /// Bytes of shared memory that a block may have when its kernel opts in.
    pub shared_memory_per_block_bytes: usize,
    /// Bytes of shared memory that the blocks of one multiprocessor share.
    pub shared_memory_per_multiprocessor_bytes: usize,
    /// Registers (of 32 bits) that the blocks of one multiprocessor share.
    pub registers_per_multiprocessor: u32,
    /// Where it sits: `domain:bus:device.function`.
    pub pci_bus_id: String,
}

/// A device that the driver sees.
#[derive(Clone, Debug)]
pub struct Device {
    ordinal: usize,
    handle: CUdevice,
    properties: DeviceProperties,
}

impl Device {
    /// Every device. The driver must be initialized.
    pub(super) fn all() -> Result<Vec<Self>, DriverError> {
        let mut count = 0;
        // SAFETY: the driver is initialized; the call writes one integer.
        check(unsafe { sys::cuDeviceGetCount(&raw mut count) }, "count the devices")?;
        (0..count).map(Self::read).collect()
    }

    fn read(ordinal: i32) -> Result<Self, DriverError> {
        let mut handle = 0;
        // SAFETY: the driver is initialized, and has a device of this ordinal; the call writes one handle.
        check(unsafe { sys::cuDeviceGet(&raw mut handle, ordinal) }, "find a device")?;
        let properties = DeviceProperties::read(handle)?;
        Ok(Self { ordinal: ordinal.unsigned_abs() as usize, handle, properties })
    }

    /// Its number among the devices that the driver sees, as in torch's `cuda:0`.
    pub const fn ordinal(&self) -> usize {
        self.ordinal
    }

    /// What it is.
    pub const fn properties(&self) -> &DeviceProperties {
        &self.properties
    }

    /// Whether a kernel may start while the one before it ends (programmatic dependent launch).
    pub fn has_programmatic_launch(&self) -> bool {
        self.properties.compute_capability >= ComputeCapability { major: 9, minor: 0 }
    }

    pub(super) const fn handle(&self) -> CUdevice {
        self.handle
    }

    pub(super) fn check_compute_capability(&self) -> Result<(), Unavailable> {
        let found = self.properties.compute_capability;
        if found >= OLDEST_COMPUTE_CAPABILITY {
            return Ok(());
        }
        Err(Unavailable::ComputeCapabilityTooOld { device: self.to_string(), found })
    }
}

impl fmt::Display for Device {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "device {} ({})", self.ordinal, self.properties.name)
    }
}

impl DeviceProperties {
    fn read(device: CUdevice) -> Result<Self, DriverError> {
        use CUdevice_attribute as Attribute;
        let number = |attribute| attribute_of(device, attribute);
        let bytes = |attribute| number(attribute).map(|value| value as usize);
        let mut total_memory_bytes = 0;
        // SAFETY: the driver gave the handle; the call writes one size.
        let status = unsafe { sys::cuDeviceTotalMem_v2(&raw mut total_memory_bytes, device) };
        check(status, "read a device's memory size")?;
        Ok(Self {
            name: text_of(device, sys::cuDeviceGetName, "read a device's name")?,
            compute_capability: ComputeCapability {
                major: number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                minor: number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            },
            multiprocessors: number(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            l2_cache_bytes: bytes(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?,
            total_memory_bytes,
            shared_memory_per_block_bytes: bytes(
                Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
            )?,
            shared_memory_per_multiprocessor_bytes: bytes(
                Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR,
            )?,
            registers_per_multiprocessor: number(
                Attribute::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR,
            )?,
            pci_bus_id: text_of(device, sys::cuDeviceGetPCIBusId, "read a device's PCI address")?,
        })
    }
}

fn attribute_of(device: CUdevice, attribute: CUdevice_attribute) -> Result<u32, DriverError> {
    let mut value = 0;
    // SAFETY: the driver gave the handle; the call writes one integer.
    let status = unsafe { sys::cuDeviceGetAttribute(&raw mut value, attribute, device) };
    check(status, "read a device's properties")?;
    Ok(value.unsigned_abs())
}

fn text_of(
    device: CUdevice,
    read: unsafe fn(*mut c_char, i32, CUdevice) -> sys::CUresult,
    action: &'static str,
) -> Result<String, DriverError> {
    let mut text: [c_char; 256] = [0; 256];
    // SAFETY: the driver gave the handle; the call writes at most the 255 bytes it is told of, and a NUL.
    check(unsafe { read(text.as_mut_ptr(), 256, device) }, action)?;
    text[255] = 0;
    // SAFETY: the last byte is NUL, and the array outlives the borrow.
    Ok(unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned())
}
