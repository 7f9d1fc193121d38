//! A device's primary context: the one that torch, CuPy and JAX use, so that addresses and streams of theirs are ours too.

use std::marker::PhantomData;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUcontext, CUresult};

use super::capture_mode::RelaxedCaptureMode;
use super::device::Device;
use super::error::{DriverError, check, report};
use super::guard::Driver;

/// A reference to a device's primary context, given back when dropped.
#[derive(Debug)]
pub struct Context {
    driver: &'static Driver,
    device: Device,
    handle: CUcontext,
}

// SAFETY: a context may be used by every thread; the driver locks what must be locked.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// Device memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInformation {
    /// What can still be allocated, by any process.
    pub free: usize,
    /// What there is.
    pub total: usize,
}

impl Context {
    /// Retains the primary context of a device, which exists from the first retention to the last release.
    pub fn retain(driver: &'static Driver, device: &Device) -> Result<Arc<Self>, DriverError> {
        driver.check_process()?;
        let _mode = RelaxedCaptureMode::enter();
        let mut handle = std::ptr::null_mut();
        // SAFETY: the driver is initialized and gave the device's handle; the call writes one handle and leaves the
        // thread's current context alone.
        let status = unsafe { sys::cuDevicePrimaryCtxRetain(&raw mut handle, device.handle()) };
        check(status, "retain the device's primary context")?;
        Ok(Arc::new(Self { driver, device: device.clone(), handle }))
    }

    /// The device.
    pub const fn device(&self) -> &Device {
        &self.device
    }

    /// Makes the context current on this thread until the guard is dropped, which leaves the thread's current context as
    /// it was found, also when it had none. Cheap where it is current already. Guards are dropped in reverse order.
    pub fn enter(self: &Arc<Self>) -> Result<Entered<'_>, DriverError> {
        self.driver.check_process()?;
        let mut current = std::ptr::null_mut();
        // SAFETY: the driver is initialized; the call writes one handle.
        check(unsafe { sys::cuCtxGetCurrent(&raw mut current) }, "read the thread's current context")?;
        let pushed = current != self.handle;
        if pushed {
            // SAFETY: the context is retained for as long as `self` lives, which the guard borrows.
            check(unsafe { sys::cuCtxPushCurrent_v2(self.handle) }, "make the device's context current")?;
        }
        Ok(Entered { context: self, pushed, thread: PhantomData })
    }

    pub(super) const fn handle(&self) -> CUcontext {
        self.handle
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.driver.check_process().is_err() {
            return;
        }
        let _mode = RelaxedCaptureMode::enter();
        // SAFETY: matches the retention in `retain`; everything made in the context holds an `Arc` of it, so nothing of it
        // is left.
        let status = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device.handle()) };
        report(at_exit(status, "release the device's primary context"));
    }
}

/// The result of a release. When the process ends, the driver may have ended first, and released everything.
pub(super) fn at_exit(status: CUresult, action: &'static str) -> Result<(), DriverError> {
    match status {
        CUresult::CUDA_ERROR_DEINITIALIZED => Ok(()),
        status => check(status, action),
    }
}

/// Proof that a context is current on this thread.
#[derive(Debug)]
pub struct Entered<'context> {
    context: &'context Arc<Context>,
    pushed: bool,
    /// The current context belongs to a thread, so the guard stays on it.
    thread: PhantomData<*const ()>,
}

impl Entered<'_> {
    /// The context that is current.
    pub const fn context(&self) -> &Arc<Context> {
        self.context
    }

    /// How much device memory is free.
    pub fn memory(&self) -> Result<MemoryInformation, DriverError> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: a context is current; the call writes two sizes.
        let status = unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut total) };
        check(status, "ask how much device memory is free")?;
        Ok(MemoryInformation { free, total })
    }

    /// Waits for everything that was queued in the context, by whomever.
    pub fn synchronize(&self) -> Result<(), DriverError> {
        let _mode = RelaxedCaptureMode::enter();
        // SAFETY: a context is current.
        check(unsafe { sys::cuCtxSynchronize() }, "wait for the device")
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if !self.pushed {
            return;
        }
        let mut popped = std::ptr::null_mut();
        // SAFETY: `enter` pushed the context on this thread, and guards end in reverse order, so it is on top.
        let status = unsafe { sys::cuCtxPopCurrent_v2(&raw mut popped) };
        report(at_exit(status, "leave the device's context"));
        debug_assert!(
            popped.is_null() || popped == self.context.handle,
            "guards of contexts ended out of order"
        );
    }
}

/// What destructors do: enters the context and releases something, without breaking anyone's capture. In a process that was
/// forked there is nothing to release.
pub(super) fn release(context: &Arc<Context>, action: &'static str, release: impl FnOnce() -> CUresult) {
    match context.enter() {
        Ok(_entered) => {
            let _mode = RelaxedCaptureMode::enter();
            report(at_exit(release(), action));
        }
        Err(DriverError::Forked { .. }) => {}
        Err(DriverError::Failed { code, .. }) if code == CUresult::CUDA_ERROR_DEINITIALIZED as u32 => {}
        Err(error) => report(Err(error)),
    }
}
