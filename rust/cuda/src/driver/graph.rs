//! Graphs: work recorded once, and launched many times with one call.

use std::marker::PhantomData;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUgraph, CUgraphExec, CUstreamCaptureMode};

use super::capture_mode::RelaxedCaptureMode;
use super::context::{Context, Entered, at_exit, release};
use super::error::{DriverError, check, report};
use super::stream::{BorrowedStream, OwnedStream};

/// A capture under way: what the stream is given is recorded. Thread-local: other threads may allocate meanwhile. A capture
/// that is dropped unfinished ends without a trace.
#[derive(Debug)]
pub struct Capture<'a> {
    stream: &'a OwnedStream,
    entered: &'a Entered<'a>,
    finished: bool,
    /// A thread-local capture ends on the thread that began it.
    thread: PhantomData<*const ()>,
}

impl<'a> Capture<'a> {
    /// Begins to record what the stream is given.
    pub fn begin(entered: &'a Entered<'a>, stream: &'a OwnedStream) -> Result<Self, DriverError> {
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: a context is current and the stream lives.
        check(unsafe { sys::cuStreamBeginCapture_v2(stream.handle(), mode) }, "begin a capture")?;
        Ok(Self { stream, entered, finished: false, thread: PhantomData })
    }

    /// The stream to give work to.
    pub fn stream(&self) -> &BorrowedStream {
        self.stream
    }

    /// Ends the capture.
    pub fn finish(mut self) -> Result<Graph, DriverError> {
        self.finished = true;
        Ok(Graph::owned(self.entered, self.end()?))
    }

    fn end(&self) -> Result<CUgraph, DriverError> {
        let mut graph = std::ptr::null_mut();
        // SAFETY: the context is still current, and this thread began the capture; the call writes one handle.
        check(unsafe { sys::cuStreamEndCapture(self.stream.handle(), &raw mut graph) }, "end a capture")?;
        Ok(graph)
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        // A capture that an error has spoiled ends with that error, which its cause has reported already.
        if let Ok(graph) = self.end() {
            // SAFETY: the capture gave the graph, and nothing else has it.
            report(at_exit(unsafe { sys::cuGraphDestroy(graph) }, "discard an unfinished capture"));
        }
    }
}

/// Recorded work.
#[derive(Debug)]
pub struct Graph {
    context: Arc<Context>,
    handle: CUgraph,
}

// SAFETY: a graph may move between threads; it is used by one at a time, being not `Sync`.
unsafe impl Send for Graph {}

impl Graph {
    /// A graph that nothing else owns.
    pub(super) fn owned(entered: &Entered<'_>, handle: CUgraph) -> Self {
        Self { context: Arc::clone(entered.context()), handle }
    }

    pub(super) const fn handle(&self) -> CUgraph {
        self.handle
    }

    /// How many pieces of work were recorded.
    pub fn nodes(&self) -> Result<usize, DriverError> {
        let mut count = 0;
        // SAFETY: the graph lives; without a place for the nodes, the call writes their number.
        let status = unsafe { sys::cuGraphGetNodes(self.handle, std::ptr::null_mut(), &raw mut count) };
        check(status, "count the nodes of a graph")?;
        Ok(count)
    }

    /// Makes it executable.
    pub fn instantiate(&self, entered: &Entered<'_>) -> Result<ExecutableGraph, DriverError> {
        let _mode = RelaxedCaptureMode::enter();
        let mut handle = std::ptr::null_mut();
        // SAFETY: a context is current and the graph lives; the call writes one handle. cudarc's type of these flags has no 0.
        let status = unsafe { sys::cuGraphInstantiateWithFlags(&raw mut handle, self.handle, 0) };
        check(status, "make a graph executable")?;
        Ok(ExecutableGraph { context: Arc::clone(entered.context()), handle })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let handle = self.handle;
        // SAFETY: this is its only owner.
        release(&self.context, "destroy a graph", || unsafe { sys::cuGraphDestroy(handle) });
    }
}

/// A graph that can be launched. Two launches of the same one never overlap: the driver lets the second wait.
#[derive(Debug)]
pub struct ExecutableGraph {
    context: Arc<Context>,
    handle: CUgraphExec,
}

// SAFETY: an executable graph may move between threads; it is used by one at a time, being not `Sync`.
unsafe impl Send for ExecutableGraph {}

impl ExecutableGraph {
    /// Gives all of it to the stream, which must not be under capture itself.
    ///
    /// # Safety
    /// The addresses that were recorded are valid until the launch has completed, and what they hold is as the kernels expect.
    pub unsafe fn launch(&self, _: &Entered<'_>, stream: &BorrowedStream) -> Result<(), DriverError> {
        // SAFETY: a context is current; graph and stream live; the caller speaks for the addresses.
        check(unsafe { sys::cuGraphLaunch(self.handle, stream.handle()) }, "launch a graph")
    }

    /// Prepares the device for the first launch, which is otherwise slower than the later ones.
    pub fn upload(&self, _: &Entered<'_>, stream: &BorrowedStream) -> Result<(), DriverError> {
        // SAFETY: a context is current; graph and stream live.
        check(unsafe { sys::cuGraphUpload(self.handle, stream.handle()) }, "upload a graph")
    }
}

impl Drop for ExecutableGraph {
    fn drop(&mut self) {
        let handle = self.handle;
        // SAFETY: `instantiate` made it, and this is its only owner. The driver keeps it until its launches have completed.
        release(&self.context, "destroy an executable graph", || unsafe { sys::cuGraphExecDestroy(handle) });
    }
}
