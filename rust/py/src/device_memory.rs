//! CUDA memory as the boundary meets it: which device an address belongs to, which stream waits for which, and bytes
//! copied out to the host. Frames take another way; nothing here is fast, or called by them.

use std::sync::Arc;

use overtone_cuda::driver::{
    BorrowedStream, Context, Driver, DriverError, Event, OwnedStream, Unavailable, copy_device_to_host,
    ordinal_of_address,
};

use crate::dlpack::device::Device;
use crate::errors::{ErrorClass, Raised};
use crate::streams::StreamHandle;
use crate::tensor::producer::Producer;

/// The CUDA device whose memory is at `address`.
///
/// # Errors
/// A `CudaUnavailableError` without a driver; an `InputError` when the address is none of CUDA's.
pub fn device_of(address: usize) -> Result<Device, Raised> {
    let driver = Driver::get().map_err(|error| unavailable(&error))?;
    match ordinal_of_address(driver, address as u64).map_err(|error| failed(&error))? {
        Some(ordinal) => Ok(Device::cuda(ordinal as i32)),
        None => {
            Err(Raised::input(format!("address {address:#x}: not CUDA's, expected memory of a CUDA device")))
        }
    }
}

/// Copies bytes at `address` on `device` to the host, and waits for them. Whatever writes them must be done.
///
/// # Safety
/// `target.len()` bytes must be mapped at the address for as long as the copy takes.
///
/// # Errors
/// A `CudaUnavailableError` without a driver, a `DeviceError` when the driver refuses.
pub unsafe fn read(device: Device, address: usize, target: &mut [u8]) -> Result<(), Raised> {
    let context = context(device)?;
    let mut copy = || {
        let entered = context.enter()?;
        let stream = OwnedStream::create(&entered)?;
        // SAFETY: the source is the caller's promise; the target is borrowed alone until the stream is done.
        unsafe {
            copy_device_to_host(&entered, &stream, target.as_mut_ptr(), address as u64, target.len())?;
        }
        stream.synchronize(&entered)
    };
    copy().map_err(|error| failed(&error))
}

/// Makes `second` wait for what `first` was given so far; the host does not wait. Both are live streams of the device.
///
/// # Errors
/// As for [`read`].
pub fn order(device: Device, first: StreamHandle, second: StreamHandle) -> Result<(), Raised> {
    if first == second {
        return Ok(());
    }
    let context = context(device)?;
    let link = || {
        let entered = context.enter()?;
        let event = Event::create(&entered)?;
        event.record(&entered, &borrowed(&context, first))?;
        borrowed(&context, second).wait_for(&entered, &event)
    };
    link().map_err(|error| failed(&error))
}

/// Whatever a stream has been given at the time of asking, as what a tensor waits for: a tensor that another library
/// lent, and whose work it ordered on this stream.
#[derive(Debug)]
pub struct StreamTail {
    /// The device of the stream and of the tensor.
    pub device: Device,
    /// The stream; one that always lives, such as the legacy default stream.
    pub stream: StreamHandle,
}

impl Producer for StreamTail {
    fn order_before(&self, stream: StreamHandle) -> Result<(), Raised> {
        order(self.device, self.stream, stream)
    }

    fn wait(&self) -> Result<(), Raised> {
        let context = context(self.device)?;
        let wait = || borrowed(&context, self.stream).synchronize(&context.enter()?);
        wait().map_err(|error| failed(&error))
    }
}

fn borrowed(context: &Arc<Context>, stream: StreamHandle) -> BorrowedStream {
    // SAFETY: a stream that a caller names lives as long as its call, by DLPack's and our interface's terms, and no
    // value made here outlives the call.
    unsafe { BorrowedStream::from_handle(context, stream.handle()) }
}

/// The context in which every library works on the device.
fn context(device: Device) -> Result<Arc<Context>, Raised> {
    let find = || {
        let driver = Driver::get()?;
        // A number below 0 is no device's.
        let ordinal = usize::try_from(device.index()).unwrap_or(usize::MAX);
        Ok((driver, driver.device(ordinal)?))
    };
    let (driver, device) = find().map_err(|error| unavailable(&error))?;
    Context::retain(driver, device).map_err(|error| failed(&error))
}

fn unavailable(error: &Unavailable) -> Raised {
    Raised::new(ErrorClass::CudaUnavailable, format!("{error}. {}", error.advice()))
}

fn failed(error: &DriverError) -> Raised {
    let class = match error {
        DriverError::OutOfMemory { .. } => ErrorClass::OutOfMemory,
        _ => ErrorClass::Device,
    };
    Raised::from_error(class, error)
}
