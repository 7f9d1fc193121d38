//! A loaded predictor whose device is the host, and its frames.

use std::ops::ControlFlow;

use overtone_core::checkpoint::Checkpoint;
use overtone_core::checkpoint::drafts::Drafts;
use overtone_core::rounds::{self, Speculation};
use overtone_core::spec::ModelSpec;
use overtone_core::tensor::FloatType;
use overtone_cuda::arguments::ElementType;
use overtone_cuda::frame::{FrameBlock, FrameCounters, TensorReference, block_bytes};
use overtone_cuda::layout::{Address, RoundExtent, WeightAddresses, WorkspaceAddresses};
use overtone_cuda::load::{Source, load, staging_bytes, weight_addresses};
use overtone_cuda::plan::FramePlan;
use overtone_cuda::rounds::RoundPlan;
use overtone_cuda::rounds::arguments::{RoundCounters, RoundLoop};
use overtone_simt::MAX_SHARED_BYTES;

use super::fixtures::rows::{Extents, Outputs, Predicted, Row, UNWRITTEN};
use super::{Host, Memory};

/// A loaded predictor.
pub struct Predictor {
    pub spec: ModelSpec,
    pub float_type: FloatType,
    pub weights: WeightAddresses,
    _memory: Memory,
    pub host: Host,
    /// What rounds draft; `None` for frames that go step by step.
    pub speculation: Option<Speculation>,
    /// What the last frame's rounds counted, for each row.
    pub counted: Vec<rounds::RoundCounters>,
}

/// A frame's tensors; what a frame does not write stays as [`UNWRITTEN`] says.
pub struct Frame {
    pub block: FrameBlock,
    extents: Extents,
    outputs: Outputs<Memory>,
    _hidden: Memory,
}

impl Frame {
    pub fn new(predictor: &Predictor, rows: &[Row]) -> Self {
        let extents = Extents::new(&predictor.spec, predictor.table_type(), rows.len());
        let hidden: Vec<f32> = rows.iter().flat_map(|row| row.hidden.iter().copied()).collect();
        let hidden = Memory::of(&hidden);
        let filled = |bytes: &usize, byte: &u8| Memory::filled(*bytes as u64, *byte);
        let outputs = extents.bytes().zip(&UNWRITTEN, filled);
        let addresses = outputs.each(Memory::address);
        let block = extents.block(rows, hidden.address(), addresses, predictor.code_zero_tables());
        Self { block, extents, outputs, _hidden: hidden }
    }

    pub fn read(&self) -> Vec<Predicted> {
        let read = |memory: &Memory, bytes: &usize| memory.read::<u8>(*bytes);
        self.extents.predicted(&self.outputs.zip(&self.extents.bytes(), read))
    }
}

impl Predictor {
    pub fn load(checkpoint: &Checkpoint<'_>, float_type: FloatType) -> Self {
        Self::load_with(checkpoint, None, float_type)
    }

    /// With fitted drafts, if there are some.
    pub fn load_with(checkpoint: &Checkpoint<'_>, drafts: Option<&Drafts>, float_type: FloatType) -> Self {
        let source = Source { checkpoint, drafts };
        let bytes = weight_addresses(source, float_type, 0).bytes;
        let memory = Memory::zeroed(bytes);
        let weights = weight_addresses(source, float_type, memory.address());
        let staging = Memory::filled(staging_bytes(source, float_type), 0xff);
        let mut host = Host::NATURAL;
        let mut progress = |_, _| ControlFlow::Continue(());
        // SAFETY: both memories are as large as they have to be.
        unsafe { load(&mut host, source, float_type, &weights, staging.address(), &mut progress) }.unwrap();
        let spec = checkpoint.spec().clone();
        let (speculation, counted) = (None, Vec::new());
        Self { spec, float_type, weights, _memory: memory, host, speculation, counted }
    }

    /// Type of the codec tables.
    pub fn table_type(&self) -> FloatType {
        self.weights.tables[0].float_type
    }

    fn code_zero_tables(&self) -> [TensorReference; 2] {
        let (table, rows) = (self.weights.code_zero_table.unwrap(), self.spec.code_zero_size.unwrap());
        let tensor = |address: Address, float_type: FloatType, width: usize| {
            TensorReference::new(address, ElementType::from(float_type), &[width as i64, 1], rows)
        };
        [
            tensor(table.raw, table.float_type, self.spec.talker_hidden_size),
            tensor(table.projected, table.projected_type, self.spec.hidden_size),
        ]
    }

    fn layout(&self, slots: usize, base: Address) -> WorkspaceAddresses {
        let fitted = self.weights.drafts.is_some();
        let trees = self.speculation.as_ref().map(|speculation| &speculation.tree);
        let rounds = trees.map(|tree| RoundExtent::new(tree, fitted, slots));
        WorkspaceAddresses::new(&self.spec, self.float_type, slots, rounds, base)
    }

    /// A workspace for launches made for `slots` rows, full of NaN.
    pub fn workspace(&self, slots: usize) -> Memory {
        Memory::filled(self.layout(slots, 0).bytes, 0xff)
    }

    /// Runs one frame with launches made for `slots` rows.
    pub fn run(&mut self, frame: &Frame, slots: usize, workspace: &Memory) -> FrameCounters {
        let mut bytes = Vec::new();
        frame.block.write_to(&mut bytes);
        assert_eq!(bytes.len(), block_bytes(frame.block.rows.len()));
        let block = Memory::of(&bytes);
        let counters = Memory::zeroed(size_of::<FrameCounters>() as u64);
        let plan = FramePlan {
            spec: &self.spec,
            float_type: self.float_type,
            weights: &self.weights,
            workspace: self.layout(slots, workspace.address()),
            frame: block.address(),
            counters: counters.address(),
            slots,
            shared_bytes_per_block: MAX_SHARED_BYTES,
        };
        let Some(speculation) = &self.speculation else {
            self.host.go(&plan.launches());
            return counters.read(1)[0];
        };
        let round_counters = Memory::zeroed((slots * size_of::<RoundCounters>()) as u64);
        let host_counters = Memory::zeroed((slots * size_of::<RoundCounters>()) as u64);
        let addresses = plan.workspace.rounds.unwrap();
        let launches = RoundPlan {
            frame: plan,
            speculation,
            addresses,
            counters: round_counters.address(),
            host_counters: host_counters.address(),
            conditional: 0,
        }
        .launches();
        let loop_at = (addresses.round_loop - workspace.address()) as usize;
        let round_loop = || workspace.read_at::<RoundLoop>(loop_at);
        self.host.go(&launches.before);
        let mut rounds = 0;
        // As many as a frame without a single draft takes: those after the last are to change nothing.
        for _ in 1..self.spec.residual_codebooks {
            assert_eq!(round_loop().goes_on == 1, round_loop().unfinished > 0);
            rounds += u64::from(round_loop().goes_on);
            self.host.go(&launches.round);
        }
        assert_eq!((round_loop().unfinished, round_loop().goes_on), (0, 0));
        let counted = round_counters.read::<RoundCounters>(slots);
        assert_eq!(counted, host_counters.read::<RoundCounters>(slots));
        self.counted = counted.into_iter().map(Into::into).collect();
        let slowest = self.counted.iter().map(|counted| counted.rounds).max();
        assert_eq!(Some(rounds), slowest, "the loop goes on until the slowest stream is done, and no longer");
        counters.read(1)[0]
    }

    /// Runs one frame of rows, in a new workspace.
    pub fn predict(&mut self, rows: &[Row], slots: usize) -> Vec<Predicted> {
        let (frame, workspace) = (Frame::new(self, rows), self.workspace(slots));
        let counted = self.run(&frame, slots, &workspace);
        let active = rows.iter().filter(|row| row.active).count() as u64;
        assert_eq!((counted.frames, counted.rows, counted.launches), (1, active, 1));
        frame.read()
    }
}
