//! Ranges that profilers show (NVTX 3): free when no profiler is attached.
//!
//! A profiler that wants them sets `NVTX_INJECTION64_PATH` to its library, which is opened at the first range and told where
//! to put its functions (`nvtxDetail/nvtxInit.h`, `nvtxTypes.h` in NVIDIA's headers). Without the variable, a range is one
//! look at a pointer. NVIDIA's own crate would need libclang to build, and libnvToolsExt is no longer shipped.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::marker::PhantomData;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A range of this thread, from [`range`] until it is dropped.
#[derive(Debug)]
#[must_use = "the range ends when this is dropped"]
pub struct Range {
    pop: Option<(DomainRangePop, Domain)>,
    /// Ranges of a thread nest.
    thread: PhantomData<*const ()>,
}

/// Begins a range on this thread, in the domain "overtone".
pub fn range(name: &CStr) -> Range {
    static PROFILER: OnceLock<Option<Profiler>> = OnceLock::new();
    PROFILER.get_or_init(Profiler::attach).as_ref().map_or(Range::NONE, |profiler| profiler.begin(name))
}

impl Range {
    const NONE: Self = Self { pop: None, thread: PhantomData };
}

impl Drop for Range {
    fn drop(&mut self) {
        if let Some((pop, domain)) = self.pop {
            // SAFETY: the profiler gave the function and the domain, and `begin` began the range on this thread.
            unsafe { pop(domain) };
        }
    }
}

type Domain = *mut c_void;
type DomainCreate = unsafe extern "C" fn(name: *const c_char) -> Domain;
type DomainRangePush = unsafe extern "C" fn(Domain, *const EventAttributes) -> c_int;
type DomainRangePop = unsafe extern "C" fn(Domain) -> c_int;
type GetExportTable = unsafe extern "C" fn(table: u32) -> *const c_void;
type InitializeInjection = unsafe extern "C" fn(GetExportTable) -> c_int;

/// `nvtxEventAttributes_v2`.
#[repr(C)]
struct EventAttributes {
    version: u16,
    size: u16,
    category: u32,
    color_type: i32,
    color: u32,
    payload_type: i32,
    reserved: i32,
    payload: u64,
    message_type: i32,
    message: *const c_char,
}

const VERSION: u16 = 3;
const MESSAGE_IS_ASCII: i32 = 1;

/// The profiler's functions that ranges need.
struct Profiler {
    push: DomainRangePush,
    pop: DomainRangePop,
    domain: Domain,
    /// Its code stays loaded for as long as the functions may be called.
    _library: Option<libloading::Library>,
}

// SAFETY: NVTX functions may be called on every thread, and a domain belongs to none.
unsafe impl Send for Profiler {}
// SAFETY: as above.
unsafe impl Sync for Profiler {}

impl Profiler {
    fn attach() -> Option<Self> {
        let path = std::env::var_os("NVTX_INJECTION64_PATH")?;
        // SAFETY: the profiler that started this process names its library, whose initializers are its own.
        let library = unsafe { libloading::Library::new(&path) };
        let library = library.inspect_err(|error| tracing::warn!(%error, "NVTX_INJECTION64_PATH")).ok()?;
        // SAFETY: NVTX fixes the type of this function.
        let initialize =
            *unsafe { library.get::<InitializeInjection>(b"InitializeInjectionNvtx2\0") }.ok()?;
        Self::initialize(initialize, Some(library))
    }

    /// Lets the profiler fill the slots, and takes what it put there. A profiler that records no ranges leaves them empty.
    fn initialize(initialize: InitializeInjection, library: Option<libloading::Library>) -> Option<Self> {
        // SAFETY: the function is an NVTX injection's, and gets what NVTX fixes for it.
        if unsafe { initialize(get_export_table) } == 0 {
            return None;
        }
        let [create, push, pop] = [DOMAIN_CREATE, DOMAIN_RANGE_PUSH, DOMAIN_RANGE_POP].map(|slot| {
            let function = SLOTS[slot].load(Ordering::Acquire);
            (!function.is_null()).then_some(function)
        });
        // SAFETY: NVTX fixes the type of the function in each slot.
        let (create, push, pop) = unsafe {
            (
                std::mem::transmute::<*mut c_void, DomainCreate>(create?),
                std::mem::transmute::<*mut c_void, DomainRangePush>(push?),
                std::mem::transmute::<*mut c_void, DomainRangePop>(pop?),
            )
        };
        // SAFETY: the profiler gave the function; the name is NUL-terminated.
        let domain = unsafe { create(c"overtone".as_ptr()) };
        Some(Self { push, pop, domain, _library: library })
    }

    fn begin(&self, name: &CStr) -> Range {
        let attributes = EventAttributes {
            version: VERSION,
            size: size_of::<EventAttributes>() as u16,
            category: 0,
            color_type: 0,
            color: 0,
            payload_type: 0,
            reserved: 0,
            payload: 0,
            message_type: MESSAGE_IS_ASCII,
            message: name.as_ptr(),
        };
        // SAFETY: the profiler gave the function and the domain; it reads the attributes before it returns.
        unsafe { (self.push)(self.domain, &raw const attributes) };
        Range { pop: Some((self.pop, self.domain)), thread: PhantomData }
    }
}

/// Functions of the module `CORE2` (`NvtxCallbackIdCore2`): those with a domain.
const FUNCTIONS: usize = 16;
const DOMAIN_RANGE_PUSH: usize = 4;
const DOMAIN_RANGE_POP: usize = 5;
const DOMAIN_CREATE: usize = 12;
const MODULE_CORE2: c_int = 5;

/// Where the profiler puts its functions; the first is none.
static SLOTS: [AtomicPtr<c_void>; FUNCTIONS] = [const { AtomicPtr::new(std::ptr::null_mut()) }; FUNCTIONS];

/// `NvtxFunctionTable`: the address of each slot, and a null.
struct Table([*const AtomicPtr<c_void>; FUNCTIONS + 1]);

// SAFETY: it holds addresses of a static of atomics, and never changes.
unsafe impl Sync for Table {}

static TABLE: Table = {
    let mut table = [std::ptr::null::<AtomicPtr<c_void>>(); FUNCTIONS + 1];
    let mut function = 1;
    while function < FUNCTIONS {
        table[function] = &raw const SLOTS[function];
        function += 1;
    }
    Table(table)
};

/// `NvtxExportTableCallbacks`.
#[repr(C)]
struct Callbacks {
    size: usize,
    module_table: unsafe extern "C" fn(c_int, *mut *const *const AtomicPtr<c_void>, *mut c_uint) -> c_int,
}

/// `NvtxExportTableVersionInfo`.
#[repr(C)]
struct VersionInformation {
    size: usize,
    version: u32,
    reserved: u32,
    set_injection_version: unsafe extern "C" fn(u32),
}

static CALLBACKS: Callbacks = Callbacks { size: size_of::<Callbacks>(), module_table };
static VERSION_INFORMATION: VersionInformation = VersionInformation {
    size: size_of::<VersionInformation>(),
    version: VERSION as u32,
    reserved: 0,
    set_injection_version,
};

unsafe extern "C" fn get_export_table(table: u32) -> *const c_void {
    match table {
        1 => (&raw const CALLBACKS).cast(),
        3 => (&raw const VERSION_INFORMATION).cast(),
        _ => std::ptr::null(),
    }
}

unsafe extern "C" fn module_table(
    module: c_int,
    table: *mut *const *const AtomicPtr<c_void>,
    functions: *mut c_uint,
) -> c_int {
    if module != MODULE_CORE2 {
        return 0;
    }
    // SAFETY: NVTX lets either be null, and otherwise makes the profiler give places to write to.
    unsafe {
        if !functions.is_null() {
            *functions = FUNCTIONS as c_uint;
        }
        if !table.is_null() {
            *table = TABLE.0.as_ptr();
        }
    }
    1
}

unsafe extern "C" fn set_injection_version(_: u32) {}

#[cfg(test)]
mod tests;
