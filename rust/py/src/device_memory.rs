//! CUDA memory as the boundary meets it: which device an address belongs to, which stream waits for which, and bytes
//! copied out to the host. Frames take another way; nothing here is fast, or called by them.

use std::sync::{Arc, Mutex};

use overtone_cuda::driver::{
    BorrowedStream, Context, DeviceMemory, Driver, DriverError, Entered, Event, OwnedStream,
    copy_device_to_host, copy_host_to_device, ordinal_of_address,
};

use crate::causes::{cuda_error, cuda_unavailable};
use crate::dlpack::device::Device;
use crate::errors::Raised;
use crate::executor::lock;
use crate::streams::StreamHandle;
use crate::tensor::producer::Producer;

/// The CUDA device whose memory is at `address`.
///
/// # Errors
/// A `CudaUnavailableError` without a driver; an `InputError` when the address is none of CUDA's.
pub fn device_of(address: usize) -> Result<Device, Raised> {
    let driver = Driver::get().map_err(|error| cuda_unavailable(&error))?;
    match ordinal_of_address(driver, address as u64).map_err(|error| cuda_error(&error))? {
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
        let stream = copying_stream(&entered)?;
        // SAFETY: the source is the caller's promise; the target is borrowed alone until the stream is done.
        unsafe {
            copy_device_to_host(&entered, &stream, target.as_mut_ptr(), address as u64, target.len())?;
        }
        stream.synchronize(&entered)
    };
    copy().map_err(|error| cuda_error(&error))
}

/// Copies bytes of the host to `address` on `device`, and waits until they are there.
///
/// # Safety
/// `source.len()` bytes must be mapped at the address, and nothing may use them, for as long as the copy takes.
///
/// # Errors
/// As for [`read`].
pub unsafe fn write(device: Device, address: usize, source: &[u8]) -> Result<(), Raised> {
    let context = context(device)?;
    let copy = || {
        let entered = context.enter()?;
        let stream = copying_stream(&entered)?;
        // SAFETY: the target is the caller's promise; the source is borrowed until the stream is done.
        unsafe { copy_host_to_device(&entered, &stream, address as u64, source.as_ptr(), source.len())? };
        stream.synchronize(&entered)
    };
    copy().map_err(|error| cuda_error(&error))
}

/// Memory of zeros on `device`.
///
/// # Errors
/// A `CudaUnavailableError` without a driver, an `OutOfMemoryError`, a `DeviceError`.
pub fn allocate(device: Device, bytes: usize) -> Result<DeviceMemory, Raised> {
    let context = context(device)?;
    let make = || zeroed(&context.enter()?, bytes);
    make().map_err(|error| cuda_error(&error))
}

/// Memory of zeros, which are there when the call returns.
///
/// # Errors
/// The driver's.
pub fn zeroed(entered: &Entered<'_>, bytes: usize) -> Result<DeviceMemory, DriverError> {
    let stream = copying_stream(entered)?;
    DeviceMemory::zeroed(entered, &stream, bytes)
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
        let second = borrowed(&context, second);
        // A graph cannot wait for what is done outside of it: whoever launches it does.
        if second.is_capturing(&entered)? {
            return Ok(());
        }
        let event = Event::create(&entered)?;
        event.record(&entered, &borrowed(&context, first))?;
        second.wait_for(&entered, &event)
    };
    link().map_err(|error| cuda_error(&error))
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
        wait().map_err(|error| cuda_error(&error))
    }
}

/// The stream of a device that copies of tensors are given to: made once, and kept, for a stream takes longer to make than
/// most copies.
fn copying_stream(entered: &Entered<'_>) -> Result<Arc<OwnedStream>, DriverError> {
    static STREAMS: Mutex<Vec<Arc<OwnedStream>>> = Mutex::new(Vec::new());
    let ordinal = |stream: &OwnedStream| stream.context().device().ordinal();
    let mut streams = lock(&STREAMS);
    let wanted = entered.context().device().ordinal();
    if let Some(stream) = streams.iter().find(|stream| ordinal(stream) == wanted) {
        return Ok(Arc::clone(stream));
    }
    let stream = Arc::new(OwnedStream::create(entered)?);
    streams.push(Arc::clone(&stream));
    Ok(stream)
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
    let (driver, device) = find().map_err(|error| cuda_unavailable(&error))?;
    Context::retain(driver, device).map_err(|error| cuda_error(&error))
}
