//! What an executor's plans are made from, and the memory that they need.

use overtone_core::rounds::Speculation;
use overtone_core::spec::ModelSpec;
use overtone_core::tensor::FloatType;

use crate::driver::{DriverError, Entered, OwnedStream, nvtx};
use crate::frame::{FrameCounters, block_bytes};
use crate::graphs::FrameGraphs;
use crate::kernels::Registry;
use crate::layout::{Address, RoundExtent, WeightAddresses, WorkspaceAddresses};
use crate::plan::FramePlan;
use crate::rounds::RoundPlan;
use crate::rounds::arguments::RoundCounters;

/// The largest third extent of a grid.
const MOST_REPETITIONS: usize = 65_535;

/// What plans are made from.
#[derive(Clone, Copy)]
pub(super) struct Planner<'a> {
    pub(super) spec: &'a ModelSpec,
    pub(super) float_type: FloatType,
    pub(super) weights: &'a WeightAddresses,
    pub(super) max_batch: usize,
    pub(super) speculation: Option<&'a Speculation>,
    /// Rows of a frame up to which it may go in rounds.
    pub(super) most_round_rows: usize,
    pub(super) shared_bytes_per_block: usize,
}

/// Memory that plans have addresses of.
#[derive(Clone, Copy)]
pub(super) struct Places {
    pub(super) arena: Address,
    /// The frame block and, behind it, the counters.
    pub(super) persistent: Address,
    /// Counters of rounds that the host can read.
    pub(super) host_counters: Address,
}

impl<'a> Planner<'a> {
    /// How large rounds are, where there are some.
    pub(super) fn round_extent(&self) -> Option<RoundExtent> {
        let fitted = self.weights.drafts.is_some();
        let slots = self.most_round_rows.min(self.max_batch);
        self.speculation.map(|speculation| RoundExtent::new(&speculation.tree, fitted, slots))
    }

    /// The plan of frames of `slots` rows that go step by step.
    pub(super) fn plan(self, places: Places, slots: usize) -> FramePlan<'a> {
        FramePlan {
            spec: self.spec,
            float_type: self.float_type,
            weights: self.weights,
            workspace: WorkspaceAddresses::new(
                self.spec,
                self.float_type,
                self.max_batch,
                self.round_extent(),
                places.arena,
            ),
            frame: places.persistent,
            counters: places.persistent + block_bytes(self.max_batch) as u64,
            slots,
            shared_bytes_per_block: self.shared_bytes_per_block,
        }
    }

    /// The plan of frames of `slots` rows that go in rounds, whose loop has no handle yet; `None` where they never do.
    pub(super) fn rounds(self, places: Places, slots: usize) -> Option<RoundPlan<'a>> {
        let extent = self.round_extent()?;
        if slots > extent.slots || slots * extent.heads > MOST_REPETITIONS {
            return None;
        }
        let frame = self.plan(places, slots);
        Some(RoundPlan {
            speculation: self.speculation?,
            addresses: frame.workspace.rounds?,
            counters: frame.counters + size_of::<FrameCounters>() as u64,
            host_counters: places.host_counters,
            conditional: 0,
            frame,
        })
    }

    /// The most shared memory that any block of a frame takes, in bytes.
    pub(super) fn most_shared_bytes(self) -> u32 {
        let nowhere = Places { arena: 0, persistent: 0, host_counters: 0 };
        let steps = self.plan(nowhere, self.max_batch).most_shared_bytes(self.max_batch);
        let most_rows = self.max_batch.min(self.most_round_rows);
        let rounds = self.rounds(nowhere, most_rows);
        steps.max(rounds.map_or(0, |rounds| rounds.most_shared_bytes(most_rows)))
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
        places: Places,
    ) -> Result<FrameGraphs, DriverError> {
        let _range = nvtx::range(c"overtone capture");
        let plan = |slots| self.plan(places, slots);
        let rounds = |slots| self.rounds(places, slots);
        // SAFETY: the caller's condition.
        unsafe { FrameGraphs::capture(entered, stream, registry, self.max_batch, plan, rounds) }
    }
}

/// Bytes of the arena of frames of up to `max_batch` rows, and of their rounds.
pub fn context_bytes(
    spec: &ModelSpec,
    float_type: FloatType,
    max_batch: usize,
    rounds: Option<RoundExtent>,
) -> u64 {
    WorkspaceAddresses::new(spec, float_type, max_batch, rounds, 0).bytes
}

/// Bytes of the counters of rounds.
pub(super) const fn round_counters_bytes(max_batch: usize) -> usize {
    max_batch * size_of::<RoundCounters>()
}

/// Bytes of the frame block and all counters.
pub(super) const fn persistent_bytes(max_batch: usize) -> u64 {
    (block_bytes(max_batch) + size_of::<FrameCounters>() + round_counters_bytes(max_batch)) as u64
}
