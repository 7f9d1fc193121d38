//! The boundary to the driver, on a GPU. Where there is none, each test says so and returns.

#![allow(clippy::unwrap_used)] // helpers of tests

use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys;
use overtone_cuda::driver::{
    BorrowedStream, Capture, Context, DeviceMemory, Driver, DriverError, Entered, Event, Function,
    LaunchShape, Module, OwnedStream, PinnedMemory, copy_device_to_host, copy_host_to_device,
    copy_within_device, launch,
};
use overtone_cuda::kernels::{Kernel, Registry};

/// `target[i] += value` for `count` words: `{ uint64_t target; uint32_t value; uint32_t count; }`.
const ADD: &str = "\
.version 7.0
.target sm_80
.address_size 64
.visible .entry add(.param .align 8 .b8 arguments[16])
.maxntid 256, 1, 1
{
    .reg .pred %p<2>;
    .reg .b32 %r<8>;
    .reg .b64 %d<4>;
    ld.param.u64 %d1, [arguments];
    ld.param.u32 %r1, [arguments+8];
    ld.param.u32 %r2, [arguments+12];
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mov.u32 %r5, %tid.x;
    mad.lo.u32 %r6, %r3, %r4, %r5;
    setp.ge.u32 %p1, %r6, %r2;
    @%p1 bra DONE;
    cvta.to.global.u64 %d2, %d1;
    mad.wide.u32 %d3, %r6, 4, %d2;
    ld.global.u32 %r7, [%d3];
    add.u32 %r7, %r7, %r1;
    st.global.u32 [%d3], %r7;
DONE:
    ret;
}
\0";

/// A context for the one test that runs: a capture in global mode, and what is measured, concern the whole process.
fn context() -> Option<(MutexGuard<'static, ()>, Arc<Context>)> {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let driver = match Driver::get() {
        Ok(driver) => driver,
        Err(error) => {
            eprintln!("not run: {error}");
            return None;
        }
    };
    Some((alone, Context::retain(driver, driver.device(0).unwrap()).unwrap()))
}

fn add(entered: &Entered<'_>) -> Function {
    // SAFETY: the image is PTX that ends with a NUL.
    let module = unsafe { Module::load(entered, "the test", ADD.as_bytes()) }.unwrap();
    assert!(module.function(entered, "subtract").unwrap().is_none());
    module.function(entered, "add").unwrap().unwrap()
}

fn arguments(target: u64, value: u32, count: u32) -> Vec<u8> {
    [&target.to_ne_bytes()[..], &value.to_ne_bytes(), &count.to_ne_bytes()].concat()
}

const SHAPE: LaunchShape = LaunchShape { grid: [2, 1, 1], block: 256, shared_bytes: 0, programmatic: true };

/// 300 words of zeros.
fn zeros(entered: &Entered<'_>, stream: &BorrowedStream) -> DeviceMemory {
    let mut memory = DeviceMemory::allocate(entered, 1200).unwrap();
    memory.fill(entered, stream, 0, 1200, 0).unwrap();
    stream.synchronize(entered).unwrap();
    memory
}

fn words(entered: &Entered<'_>, memory: &DeviceMemory) -> Vec<u32> {
    let mut bytes = vec![0; memory.bytes()];
    memory.read(entered, 0, &mut bytes).unwrap();
    bytes.as_chunks::<4>().0.iter().map(|word| u32::from_ne_bytes(*word)).collect()
}

fn current() -> *mut c_void {
    let mut context = std::ptr::null_mut();
    // SAFETY: the driver is initialized; the call writes one handle.
    assert_eq!(unsafe { sys::cuCtxGetCurrent(&raw mut context) }, sys::CUresult::CUDA_SUCCESS);
    context.cast()
}

#[test]
fn every_call_leaves_the_current_context_as_it_found_it() {
    let Some((_alone, context)) = context() else { return };
    assert!(current().is_null(), "a fresh thread has none");
    let ours = {
        let outer = context.enter().unwrap();
        let ours = current();
        assert!(!ours.is_null());
        {
            let _inner = context.enter().unwrap();
            assert_eq!(current(), ours);
        }
        assert_eq!(current(), ours);
        drop(OwnedStream::create(&outer).unwrap());
        assert_eq!(current(), ours);
        ours
    };
    assert!(current().is_null());

    let mut other = std::ptr::null_mut();
    // SAFETY: the driver is initialized and has device 0; the context is destroyed below.
    let status = unsafe { sys::cuCtxCreate_v4(&raw mut other, std::ptr::null_mut(), 0, 0) };
    assert_eq!(status, sys::CUresult::CUDA_SUCCESS);
    assert_eq!(current(), other.cast());
    let memory = {
        let entered = context.enter().unwrap();
        assert_eq!(current(), ours);
        DeviceMemory::allocate(&entered, 64).unwrap()
    };
    assert_eq!(current(), other.cast());
    drop(memory);
    assert_eq!(current(), other.cast(), "after a destructor that had to enter");
    // SAFETY: made above, and nothing of it is left.
    assert_eq!(unsafe { sys::cuCtxDestroy_v2(other) }, sys::CUresult::CUDA_SUCCESS);
}

#[test]
fn a_graph_replays_the_launches_that_were_captured() {
    let Some((_alone, context)) = context() else { return };
    let entered = context.enter().unwrap();
    let stream = OwnedStream::create(&entered).unwrap();
    let function = add(&entered);
    let memory = zeros(&entered, &stream);

    let capture = Capture::begin(&entered, &stream).unwrap();
    assert!(stream.is_capturing(&entered).unwrap());
    for value in [1, 10] {
        let arguments = arguments(memory.address(), value, 300);
        // SAFETY: the memory outlives the graph.
        unsafe { launch(&entered, capture.stream(), &function, &SHAPE, &arguments) }.unwrap();
    }
    let graph = capture.finish().unwrap();
    assert!(!stream.is_capturing(&entered).unwrap());
    assert_eq!(graph.nodes().unwrap(), 2);
    let executable = graph.instantiate(&entered).unwrap();
    drop(graph);
    assert_eq!(words(&entered, &memory), vec![0; 300], "a capture runs nothing");

    executable.upload(&entered, &stream).unwrap();
    for _ in 0..3 {
        // SAFETY: the memory lives until the stream has been waited for.
        unsafe { executable.launch(&entered, &stream) }.unwrap();
    }
    stream.synchronize(&entered).unwrap();
    assert_eq!(words(&entered, &memory), vec![33; 300]);

    // SAFETY: handle 0 is the legacy default stream.
    let default = unsafe { BorrowedStream::from_handle(&context, 0) };
    // SAFETY: as above.
    unsafe { executable.launch(&entered, &default) }.unwrap();
    default.synchronize(&entered).unwrap();
    assert_eq!(words(&entered, &memory), vec![44; 300], "torch's default stream launches graphs too");
}

#[test]
fn a_capture_that_is_dropped_leaves_its_stream_usable() {
    let Some((_alone, context)) = context() else { return };
    let entered = context.enter().unwrap();
    let stream = OwnedStream::create(&entered).unwrap();
    let function = add(&entered);
    let memory = zeros(&entered, &stream);
    drop(Capture::begin(&entered, &stream).unwrap());
    assert!(!stream.is_capturing(&entered).unwrap());
    // SAFETY: the memory lives until the stream has been waited for.
    unsafe { launch(&entered, &stream, &function, &SHAPE, &arguments(memory.address(), 5, 300)) }.unwrap();
    stream.synchronize(&entered).unwrap();
    assert_eq!(words(&entered, &memory), vec![5; 300]);
}

#[test]
fn other_threads_allocate_during_our_capture_and_we_during_a_global_one_of_theirs() {
    let Some((_alone, context)) = context() else { return };
    let entered = context.enter().unwrap();
    let stream = OwnedStream::create(&entered).unwrap();
    let capture = Capture::begin(&entered, &stream).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut address = 0;
            let entered = context.enter().unwrap();
            // SAFETY: a context is current; what is allocated is released.
            unsafe {
                assert_eq!(sys::cuMemAlloc_v2(&raw mut address, 4096), sys::CUresult::CUDA_SUCCESS);
                assert_eq!(sys::cuMemFree_v2(address), sys::CUresult::CUDA_SUCCESS);
            }
            drop(entered);
        });
    });
    assert_eq!(capture.finish().unwrap().nodes().unwrap(), 0);

    let handle = stream.address() as sys::CUstream;
    let global = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    // SAFETY: the stream lives, and the capture ends below on this thread.
    assert_eq!(unsafe { sys::cuStreamBeginCapture_v2(handle, global) }, sys::CUresult::CUDA_SUCCESS);
    let event = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let entered = context.enter().unwrap();
            drop(DeviceMemory::allocate(&entered, 4096).unwrap());
            drop(PinnedMemory::allocate(&entered, 4096).unwrap());
            let event = Event::create(&entered).unwrap();
            assert!(event.is_complete(&entered).unwrap());
            event
        });
        thread.join().unwrap()
    });
    drop(event);
    let mut graph = std::ptr::null_mut();
    // SAFETY: this thread began the capture; the graph is destroyed once.
    unsafe {
        assert_eq!(
            sys::cuStreamEndCapture(handle, &raw mut graph),
            sys::CUresult::CUDA_SUCCESS,
            "the capture is sound"
        );
        assert_eq!(sys::cuGraphDestroy(graph), sys::CUresult::CUDA_SUCCESS);
    }
}

#[test]
fn copies_go_there_and_back_and_stay_within_their_memory() {
    let Some((_alone, context)) = context() else { return };
    let entered = context.enter().unwrap();
    let stream = OwnedStream::create(&entered).unwrap();
    let mut source = PinnedMemory::allocate(&entered, 256).unwrap();
    let target = PinnedMemory::allocate(&entered, 256).unwrap();
    let (first, mut second) = (zeros(&entered, &stream), zeros(&entered, &stream));
    // SAFETY: nothing is queued on the memory.
    let written = unsafe { source.as_mut_slice() };
    written.iter_mut().zip(0..=u8::MAX).for_each(|(byte, value)| *byte = value);
    // SAFETY: everything outlives the wait below.
    unsafe {
        copy_host_to_device(&entered, &stream, first.address() + 8, source.as_ptr(), 256).unwrap();
        copy_within_device(&entered, &stream, second.address(), first.address(), 1200).unwrap();
        copy_device_to_host(&entered, &stream, target.as_ptr(), second.address() + 8, 256).unwrap();
    }
    stream.synchronize(&entered).unwrap();
    // SAFETY: the stream has been waited for.
    let (sent, received) = unsafe { (source.as_slice(), target.as_slice()) };
    assert_eq!(sent, received);
    assert_eq!(received[255], 255);

    second.write(&entered, 1196, &[1, 2, 3, 4]).unwrap();
    let mut tail = [0; 4];
    second.read(&entered, 1196, &mut tail).unwrap();
    assert_eq!(tail, [1, 2, 3, 4]);
    let outside = DriverError::OutOfBounds { offset: 1197, bytes: 4, length: 1200 };
    assert_eq!(second.write(&entered, 1197, &[0; 4]), Err(outside.clone()));
    assert_eq!(second.read(&entered, 1197, &mut tail), Err(outside.clone()));
    assert_eq!(second.fill(&entered, &stream, 1197, 4, 0), Err(outside));
    assert!(second.write(&entered, usize::MAX, &[0; 4]).is_err());
}

#[test]
fn memory_that_runs_out_is_an_error_that_says_how_much_was_asked_for() {
    let Some((_alone, context)) = context() else { return };
    let entered = context.enter().unwrap();
    let memory = entered.memory().unwrap();
    let requested = memory.total * 2;
    match DeviceMemory::allocate(&entered, requested) {
        Err(DriverError::OutOfMemory { requested: found, free, total, .. }) => {
            assert_eq!((found, total), (requested, memory.total));
            assert!(free <= total);
        }
        other => panic!("{other:?}"),
    }
    drop(DeviceMemory::allocate(&entered, 1 << 20).unwrap());
}

#[test]
fn owners_are_dropped_on_threads_without_a_context_and_nothing_leaks() {
    let Some((_alone, context)) = context() else { return };
    let round = || {
        let owners = {
            let entered = context.enter().unwrap();
            let stream = OwnedStream::create(&entered).unwrap();
            let function = add(&entered);
            let capture = Capture::begin(&entered, &stream).unwrap();
            let graph = capture.finish().unwrap().instantiate(&entered).unwrap();
            let memory = DeviceMemory::allocate(&entered, 64 << 20).unwrap();
            let pinned = PinnedMemory::allocate(&entered, 1 << 20).unwrap();
            (memory, pinned, graph, function, Event::create(&entered).unwrap(), stream)
        };
        std::thread::spawn(move || {
            drop(owners);
            assert!(current().is_null());
        })
        .join()
        .unwrap();
    };
    let free = || context.enter().unwrap().memory().unwrap().free;
    (0..5).for_each(|_| round());
    let before = free();
    (0..100).for_each(|_| round());
    // The driver keeps some memory for later; a leak of all would be 6 GiB.
    assert!(before.saturating_sub(free()) < 64 << 20, "{before} bytes were free, now {}", free());
}

#[test]
fn events_order_streams_and_measure_time() {
    let Some((_alone, context)) = context() else { return };
    let entered = context.enter().unwrap();
    let (first, second) = (OwnedStream::create(&entered).unwrap(), OwnedStream::create(&entered).unwrap());
    let function = add(&entered);
    let memory = zeros(&entered, &first);
    let (begin, end) = (Event::create_timed(&entered).unwrap(), Event::create_timed(&entered).unwrap());
    let handover = Event::create(&entered).unwrap();
    begin.record(&entered, &first).unwrap();
    let addition = arguments(memory.address(), 1, 300);
    for round in 0..200 {
        let (giver, taker) = if round % 2 == 0 { (&first, &second) } else { (&second, &first) };
        // SAFETY: the memory lives until the streams have been waited for.
        unsafe { launch(&entered, giver, &function, &SHAPE, &addition) }.unwrap();
        handover.record(&entered, giver).unwrap();
        taker.wait_for(&entered, &handover).unwrap();
    }
    end.record(&entered, &first).unwrap();
    end.synchronize(&entered).unwrap();
    assert!(end.is_complete(&entered).unwrap() && first.is_idle(&entered).unwrap());
    assert_eq!(words(&entered, &memory), vec![200; 300], "no addition was lost");
    let milliseconds = end.milliseconds_since(&entered, &begin).unwrap();
    assert!(milliseconds > 0.0 && milliseconds < 10_000.0, "{milliseconds}");
}

#[test]
fn arguments_of_another_size_are_refused_before_the_launch() {
    let Some((_alone, context)) = context() else { return };
    let entered = context.enter().unwrap();
    let stream = OwnedStream::create(&entered).unwrap();
    let function = add(&entered);
    // SAFETY: refused, so nothing reads the addresses.
    let result = unsafe { launch(&entered, &stream, &function, &SHAPE, &[0; 12]) };
    assert_eq!(result, Err(DriverError::ArgumentSize { kernel: "add".to_owned(), expected: 16, found: 12 }));
    let shape = LaunchShape { block: 1024, ..SHAPE };
    // SAFETY: refused, as the kernel is for blocks of 256 threads.
    let result = unsafe { launch(&entered, &stream, &function, &shape, &arguments(0, 0, 0)) };
    assert!(matches!(result, Err(DriverError::Failed { .. })), "{result:?}");
    assert!(result.unwrap_err().to_string().starts_with("could not launch the kernel add: CUDA_ERROR_"));
}

#[test]
fn every_kernel_of_the_registry_loads_and_waits_by_itself_where_the_device_can_overlap_launches() {
    let Some((_alone, context)) = context() else { return };
    let entered = context.enter().unwrap();
    let registry = Registry::load(&entered).unwrap();
    for kernel in Kernel::ALL {
        let function = registry.function(*kernel);
        assert_eq!(function.name(), kernel.symbol());
        assert!(function.argument_bytes() > 0, "{kernel:?}");
        assert_eq!(function.waits_by_itself(), context.device().has_programmatic_launch(), "{kernel:?}");
    }
    let allowed = context.device().properties().shared_memory_per_block_bytes as u32;
    registry.allow_shared_bytes(&entered, Kernel::Sample, allowed).unwrap();
    assert!(registry.allow_shared_bytes(&entered, Kernel::Sample, allowed + 1).is_err());
}

#[test]
fn streams_know_their_context() {
    let Some((_alone, context)) = context() else { return };
    let entered = context.enter().unwrap();
    let stream = OwnedStream::create(&entered).unwrap();
    assert!(stream.is_of_its_context(&entered).unwrap());
    for handle in 0..3 {
        // SAFETY: a default stream.
        let default = unsafe { BorrowedStream::from_handle(&context, handle) };
        assert!(default.is_of_its_context(&entered).unwrap());
        assert!(!default.is_capturing(&entered).unwrap());
    }
}

#[test]
fn a_forked_process_is_refused() {
    let Some((_alone, context)) = context() else { return };
    // SAFETY: the child only asks, which takes no lock of another thread's, and leaves at once.
    match unsafe { libc::fork() } {
        0 => {
            let refused =
                matches!(context.enter(), Err(DriverError::Forked { .. })) && Driver::get().is_err();
            // SAFETY: leaves without destructors, which are the parent's.
            unsafe { libc::_exit(i32::from(!refused)) }
        }
        child => {
            let mut status = -1;
            // SAFETY: waits for the child made above; the call writes one integer.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0, "the child was not refused");
        }
    }
}
