//! What an executor's plans are made from, and the memory that they need.

use overtone_core::spec::ModelSpec;
use overtone_core::tensor::FloatType;

use crate::driver::{DriverError, Entered, OwnedStream, nvtx};
use crate::frame::{FrameCounters, block_bytes};
use crate::graphs::FrameGraphs;
use crate::kernels::Registry;
use crate::layout::{Address, WeightAddresses, WorkspaceAddresses};
use crate::plan::FramePlan;

/// What plans are made from.
#[derive(Clone, Copy)]
pub(super) struct Planner<'a> {
    pub(super) spec: &'a ModelSpec,
    pub(super) float_type: FloatType,
    pub(super) weights: &'a WeightAddresses,
    pub(super) max_batch: usize,
    pub(super) shared_bytes_per_block: usize,
}

impl<'a> Planner<'a> {
    /// The plan of frames of `slots` rows that work in the arena at `arena` and find their block at `persistent`.
    pub(super) fn plan(self, arena: Address, persistent: Address, slots: usize) -> FramePlan<'a> {
        FramePlan {
            spec: self.spec,
            float_type: self.float_type,
            weights: self.weights,
            workspace: WorkspaceAddresses::new(self.spec, self.float_type, self.max_batch, arena),
            frame: persistent,
            counters: persistent + block_bytes(self.max_batch) as u64,
            slots,
            shared_bytes_per_block: self.shared_bytes_per_block,
        }
    }

    /// Records the graphs of all sizes.
    ///
    /// # Safety
    /// As for [`FrameGraphs::capture`].
    pub(super) unsafe fn capture(
        self,
        entered: &Entered<'_>,
        stream: &OwnedStream,
        registry: &Registry,
        arena: Address,
        persistent: Address,
    ) -> Result<FrameGraphs, DriverError> {
        let _range = nvtx::range(c"overtone capture");
        let plan = |slots| self.plan(arena, persistent, slots);
        // SAFETY: the caller's condition.
        unsafe { FrameGraphs::capture(entered, stream, registry, self.max_batch, plan) }
    }
}

/// Bytes of the arena of frames of up to `max_batch` rows.
pub fn context_bytes(spec: &ModelSpec, float_type: FloatType, max_batch: usize) -> u64 {
    WorkspaceAddresses::new(spec, float_type, max_batch, 0).bytes
}

/// Bytes of the frame block and the counters.
pub(super) const fn persistent_bytes(max_batch: usize) -> u64 {
    (block_bytes(max_batch) + size_of::<FrameCounters>()) as u64
}
