//! A graph that ends with a loop: work that the device repeats for as long as a kernel of it says so, without the host.

use cudarc::driver::sys::{
    self, CU_GRAPH_COND_ASSIGN_DEFAULT, CUDA_CONDITIONAL_NODE_PARAMS, CUgraph, CUgraphConditionalHandle,
    CUgraphConditionalNodeType, CUgraphNodeParams, CUgraphNodeType, CUstreamCaptureMode,
    CUstreamCaptureStatus,
};

use super::context::Entered;
use super::error::{DriverError, check};
use super::graph::Graph;
use super::stream::{BorrowedStream, OwnedStream};

/// A graph under construction: what comes before the loop, then the loop.
#[derive(Debug)]
pub struct GraphLoop<'a> {
    entered: &'a Entered<'a>,
    stream: &'a OwnedStream,
    graph: Graph,
    handle: CUgraphConditionalHandle,
}

impl<'a> GraphLoop<'a> {
    /// An empty graph, whose work will be recorded on `stream`.
    pub fn create(entered: &'a Entered<'a>, stream: &'a OwnedStream) -> Result<Self, DriverError> {
        let mut graph = std::ptr::null_mut();
        // SAFETY: a context is current; the call writes one handle.
        check(unsafe { sys::cuGraphCreate(&raw mut graph, 0) }, "make a graph")?;
        let graph = Graph::owned(entered, graph);
        let mut handle = 0;
        let context = entered.context().handle();
        let default = CU_GRAPH_COND_ASSIGN_DEFAULT;
        // SAFETY: graph and context live; the call writes one handle, which lives as long as the graph.
        let status = unsafe {
            sys::cuGraphConditionalHandleCreate(&raw mut handle, graph.handle(), context, 0, default)
        };
        check(status, "make the condition of a loop")?;
        Ok(Self { entered, stream, graph, handle })
    }

    /// What kernels name the loop by (`repeat_loop` of `kernels/ptx.cuh`). It is not entered unless one of them says so.
    pub const fn handle(&self) -> u64 {
        self.handle
    }

    /// Records what comes before the loop, and one round of it.
    ///
    /// # Errors
    /// The driver's, and those of the closures.
    pub fn record<E: From<DriverError>>(
        self,
        before: impl FnOnce(&BorrowedStream) -> Result<(), E>,
        round: impl FnOnce(&BorrowedStream) -> Result<(), E>,
    ) -> Result<Graph, E> {
        let recording = Recording::begin(self.stream, self.graph.handle())?;
        before(self.stream)?;
        let body = self.add_loop()?;
        recording.end()?;
        let recording = Recording::begin(self.stream, body)?;
        round(self.stream)?;
        recording.end()?;
        Ok(self.graph)
    }

    /// Adds the loop behind what was recorded so far; the result is the graph of its body, which belongs to it.
    fn add_loop(&self) -> Result<CUgraph, DriverError> {
        let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        let (mut last, mut edges, mut count) = (std::ptr::null(), std::ptr::null(), 0);
        // SAFETY: the stream lives and is under capture; the call writes five values, two of them pointers into the capture
        // that are valid until it is given more work.
        let asked = unsafe {
            sys::cuStreamGetCaptureInfo_v3(
                self.stream.handle(),
                &raw mut status,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                &raw mut last,
                &raw mut edges,
                &raw mut count,
            )
        };
        check(asked, "ask where a capture stands")?;
        let conditional = CUDA_CONDITIONAL_NODE_PARAMS {
            handle: self.handle,
            type_: CUgraphConditionalNodeType::CU_GRAPH_COND_TYPE_WHILE,
            size: 1,
            phGraph_out: std::ptr::null_mut(),
            ctx: self.entered.context().handle(),
        };
        // SAFETY: the structure is plain data, and the driver asks for zeros in what is not used.
        let mut parameters: CUgraphNodeParams = unsafe { std::mem::zeroed() };
        parameters.type_ = CUgraphNodeType::CU_GRAPH_NODE_TYPE_CONDITIONAL;
        parameters.__bindgen_anon_1.conditional = conditional;
        let mut node = std::ptr::null_mut();
        // SAFETY: the graph lives; `last` and `edges` have `count` entries; the call writes the node, and the bodies' handles
        // into the parameters.
        let added = unsafe {
            sys::cuGraphAddNode_v2(
                &raw mut node,
                self.graph.handle(),
                last,
                edges,
                count,
                &raw mut parameters,
            )
        };
        check(added, "add a loop to a graph")?;
        // SAFETY: the call succeeded for a node with one body, so the pointer leads to one handle.
        Ok(unsafe { *parameters.__bindgen_anon_1.conditional.phGraph_out })
    }
}

/// A capture into a graph that somebody else owns. Dropped unfinished, it ends.
struct Recording<'a> {
    stream: &'a OwnedStream,
    ended: bool,
}

impl<'a> Recording<'a> {
    fn begin(stream: &'a OwnedStream, graph: CUgraph) -> Result<Self, DriverError> {
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        let (none, no_edges) = (std::ptr::null(), std::ptr::null());
        // SAFETY: a context is current; stream and graph live; there are no dependencies to read.
        let status =
            unsafe { sys::cuStreamBeginCaptureToGraph(stream.handle(), graph, none, no_edges, 0, mode) };
        check(status, "begin a capture into a graph")?;
        Ok(Self { stream, ended: false })
    }

    fn end(mut self) -> Result<(), DriverError> {
        self.ended = true;
        let mut graph = std::ptr::null_mut();
        // SAFETY: a context is current, and this thread began the capture; the call writes one handle, of the graph that the
        // work was recorded into.
        check(unsafe { sys::cuStreamEndCapture(self.stream.handle(), &raw mut graph) }, "end a capture")
    }
}

impl Drop for Recording<'_> {
    fn drop(&mut self) {
        if !self.ended {
            let mut graph = std::ptr::null_mut();
            // A capture that an error has spoiled ends with that error, which its cause has reported already.
            // SAFETY: as in `end`.
            let _ = unsafe { sys::cuStreamEndCapture(self.stream.handle(), &raw mut graph) };
        }
    }
}
