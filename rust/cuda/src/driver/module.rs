//! Modules: compiled code on a device, and the functions in it.

use std::ffi::CString;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUfunction, CUfunction_attribute, CUmodule, CUresult};

use super::capture_mode::RelaxedCaptureMode;
use super::context::{Context, Entered, release};
use super::error::{DriverError, check, check_with};

/// Code loaded into a context, unloaded when nothing of it is left.
#[derive(Debug)]
pub struct Module {
    context: Arc<Context>,
    handle: CUmodule,
}

// SAFETY: a module may be used by every thread; the driver locks what must be locked.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    /// Loads a fat binary, machine code or PTX (that ends with a NUL); the driver picks or compiles what fits the device.
    ///
    /// # Safety
    /// The image is whole: it is code, and the driver reads the length from the image itself.
    pub unsafe fn load(entered: &Entered<'_>, name: &str, image: &[u8]) -> Result<Arc<Self>, DriverError> {
        let _mode = RelaxedCaptureMode::enter();
        let mut handle = std::ptr::null_mut();
        // SAFETY: a context is current; the call writes one handle; the caller speaks for the image.
        let status = unsafe { sys::cuModuleLoadData(&raw mut handle, image.as_ptr().cast()) };
        check_with(status, || format!("load the kernels of {name}").into())?;
        Ok(Arc::new(Self { context: Arc::clone(entered.context()), handle }))
    }

    /// The kernel of this name, loaded onto the device; `None` when the module has none.
    pub fn function(
        self: &Arc<Self>,
        _: &Entered<'_>,
        name: &'static str,
    ) -> Result<Option<Function>, DriverError> {
        // A name with a NUL inside is the name of no kernel.
        let Ok(symbol) = CString::new(name) else { return Ok(None) };
        let _mode = RelaxedCaptureMode::enter();
        let mut handle = std::ptr::null_mut();
        // SAFETY: a context is current and the module lives; the call writes one handle.
        let status = unsafe { sys::cuModuleGetFunction(&raw mut handle, self.handle, symbol.as_ptr()) };
        if status == CUresult::CUDA_ERROR_NOT_FOUND {
            return Ok(None);
        }
        check_with(status, || format!("find the kernel {name}").into())?;
        let argument_bytes = argument_bytes(handle, name)?;
        let mut function = Function {
            module: Arc::clone(self),
            handle,
            name,
            argument_bytes,
            max_threads: 0,
            virtual_architecture: 0,
        };
        function.max_threads =
            function.attribute(CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?;
        function.virtual_architecture =
            function.attribute(CUfunction_attribute::CU_FUNC_ATTRIBUTE_PTX_VERSION)?;
        Ok(Some(function))
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        let handle = self.handle;
        // SAFETY: `load` made it, and every function of it holds an `Arc` of it, so none is left.
        release(&self.context, "unload kernels", || unsafe { sys::cuModuleUnload(handle) });
    }
}

/// Bytes of the one struct that a kernel takes.
fn argument_bytes(function: CUfunction, name: &str) -> Result<usize, DriverError> {
    let (mut offset, mut size) = (0, 0);
    // SAFETY: the driver gave the function; the call writes two sizes.
    match unsafe { sys::cuFuncGetParamInfo(function, 0, &raw mut offset, &raw mut size) } {
        // A kernel without parameters has no first one.
        CUresult::CUDA_ERROR_INVALID_VALUE => Ok(0),
        status => check_with(status, || format!("ask what the kernel {name} takes").into()).map(|()| size),
    }
}

/// A kernel, ready to be launched.
#[derive(Clone, Debug)]
pub struct Function {
    module: Arc<Module>,
    handle: CUfunction,
    name: &'static str,
    argument_bytes: usize,
    max_threads: u32,
    virtual_architecture: u32,
}

// SAFETY: a function may be used by every thread; the driver locks what must be locked.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Function {
    /// Its name in the source.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Bytes of the one struct that it takes; 0 when it takes nothing.
    pub const fn argument_bytes(&self) -> usize {
        self.argument_bytes
    }

    /// The most threads that a block of it can have on this device.
    pub const fn max_threads(&self) -> u32 {
        self.max_threads
    }

    /// Whether it was compiled to wait for the kernel before it by itself: code for GPUs before 9.0 cannot, and must not be
    /// launched while that one still runs.
    pub const fn waits_by_itself(&self) -> bool {
        self.virtual_architecture >= 90
    }

    /// Lets launches ask for this much dynamic shared memory: more than 48 KiB needs to be allowed.
    pub fn allow_shared_bytes(&self, _: &Entered<'_>, bytes: u32) -> Result<(), DriverError> {
        let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let value = i32::try_from(bytes).unwrap_or(i32::MAX);
        // SAFETY: a context is current and the function lives.
        let status = unsafe { sys::cuFuncSetAttribute(self.handle, attribute, value) };
        check_with(status, || format!("allow the kernel {} {bytes} bytes of shared memory", self.name).into())
    }

    /// Asks for as much shared memory beside the cache as there is. A multiprocessor divides the two anew only when it is
    /// empty: kernels that overlap must ask for the same.
    pub fn prefer_shared_memory(&self, _: &Entered<'_>) -> Result<(), DriverError> {
        let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
        // SAFETY: a context is current and the function lives. The value is in percent.
        let status = unsafe { sys::cuFuncSetAttribute(self.handle, attribute, 100) };
        check_with(status, || format!("prefer shared memory for the kernel {}", self.name).into())
    }

    fn attribute(&self, attribute: CUfunction_attribute) -> Result<u32, DriverError> {
        let mut value = 0;
        // SAFETY: the function lives; the call writes one integer.
        let status = unsafe { sys::cuFuncGetAttribute(&raw mut value, attribute, self.handle) };
        check(status, "read a kernel's properties")?;
        Ok(value.unsigned_abs())
    }

    pub(super) const fn handle(&self) -> CUfunction {
        self.handle
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.module.context
    }
}
