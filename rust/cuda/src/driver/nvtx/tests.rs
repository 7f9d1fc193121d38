//! A profiler in this process: it attaches as NVTX says, and notes what it is told.

use std::sync::Mutex;

use super::*;

static NOTES: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn note(text: String) {
    NOTES.lock().unwrap().push(text);
}

unsafe extern "C" fn create(name: *const c_char) -> Domain {
    // SAFETY: NVTX gives a NUL-terminated name.
    note(format!("domain {}", unsafe { CStr::from_ptr(name) }.to_str().unwrap()));
    7 as Domain
}

unsafe extern "C" fn push(domain: Domain, attributes: *const EventAttributes) -> c_int {
    // SAFETY: NVTX gives attributes with a NUL-terminated message.
    let (attributes, message) = unsafe { (&*attributes, CStr::from_ptr((*attributes).message)) };
    assert_eq!((attributes.version, attributes.size, attributes.message_type), (3, 48, 1));
    note(format!("push {} {}", domain as usize, message.to_str().unwrap()));
    0
}

unsafe extern "C" fn pop(domain: Domain) -> c_int {
    note(format!("pop {}", domain as usize));
    0
}

/// Attaches; when `FILL`, it puts its functions into the slots.
unsafe extern "C" fn attach<const FILL: bool>(get: GetExportTable) -> c_int {
    // SAFETY: table 1 is of this type.
    let callbacks = unsafe { &*get(1).cast::<Callbacks>() };
    let (mut table, mut functions) = (std::ptr::null(), 0);
    // SAFETY: both are places to write to.
    assert_eq!(unsafe { (callbacks.module_table)(MODULE_CORE2, &raw mut table, &raw mut functions) }, 1);
    assert_eq!(functions, 16);
    if FILL {
        let functions = [(4, push as *mut c_void), (5, pop as *mut c_void), (12, create as *mut c_void)];
        for (slot, function) in functions {
            // SAFETY: the table has 16 addresses of slots, the first of which is null.
            unsafe { &**table.add(slot) }.store(function, Ordering::Release);
        }
    }
    1
}

unsafe extern "C" fn refuse(_: GetExportTable) -> c_int {
    0
}

#[test]
fn a_profiler_is_told_of_nested_ranges_and_one_that_refuses_or_takes_none_is_left_alone() {
    assert!(Profiler::initialize(refuse, None).is_none());
    assert!(Profiler::initialize(attach::<false>, None).is_none());

    let profiler = Profiler::initialize(attach::<true>, None).unwrap();
    {
        let _frame = profiler.begin(c"frame");
        let _step = profiler.begin(c"step");
    }
    assert_eq!(*NOTES.lock().unwrap(), ["domain overtone", "push 7 frame", "push 7 step", "pop 7", "pop 7"]);
}

#[test]
fn without_a_profiler_a_range_does_nothing() {
    if std::env::var_os("NVTX_INJECTION64_PATH").is_none() {
        assert!(range(c"frame").pop.is_none());
    }
}
