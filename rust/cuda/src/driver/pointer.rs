//! Whose an address is.

use std::ffi::c_void;

use cudarc::driver::sys::{self, CUpointer_attribute, CUresult};

use super::error::{DriverError, check};
use super::guard::Driver;

/// The ordinal of the device whose memory is at `address`, also when it is managed or pinned memory of that device's
/// context; `None` for an address that CUDA knows nothing of.
pub fn ordinal_of_address(driver: &Driver, address: u64) -> Result<Option<usize>, DriverError> {
    driver.check_process()?;
    let mut ordinal = 0_i32;
    // SAFETY: the driver is initialized; this attribute is one int, which the call writes, and any address may be asked.
    let status = unsafe {
        sys::cuPointerGetAttribute(
            (&raw mut ordinal).cast::<c_void>(),
            CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
            address,
        )
    };
    if status == CUresult::CUDA_ERROR_INVALID_VALUE {
        return Ok(None);
    }
    check(status, "ask whose an address is")?;
    Ok(usize::try_from(ordinal).ok())
}
