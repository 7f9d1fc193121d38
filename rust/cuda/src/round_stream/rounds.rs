//! The launches of a round, and bursts of rounds issued blind.

use super::StreamError;
use super::arguments::{
    AcceptArguments, AssembleVerifyArguments, RingCommitArguments, RollbackArguments, SeedGatherArguments,
};
use super::layout::StreamLayout;
use crate::kernels::Kernel;
use crate::kv_lengths::LengthTable;
use crate::layout::Address;
use crate::machine::Machine;
use crate::plan::Launch;

/// Threads of a block, one for each row of the batch.
const THREADS: usize = 256;

/// What an engine drafts: filled before the verify pass is assembled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drafts {
    /// [B, k] int32. A row's drafts end with the first that is no code.
    pub codes: Address,
    /// Probabilities of the drafts, [B, k] float32, and the least (p_min): a row's drafts end with the first below. NaN
    /// is below.
    pub probabilities: Option<(Address, f32)>,
}

/// Hidden rows that seed the next drafts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seeds {
    /// [B, k + 1, width]: the verify pass's hidden rows, of a floating-point type of 2 or 4 bytes.
    pub hidden: Address,
    /// [B, width] of the same type: the row behind the code that is pending. A row that took no part keeps its seed.
    pub seeds: Address,
    /// Bytes of a hidden row.
    pub row_bytes: usize,
}

/// What an engine is to queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The work that fills [`Drafts`], from the seeds or from whatever the engine drafts by.
    Draft,
    /// The verify pass over [B, k + 1] entries: `verify_codes`, entry e of a row at position `round_start` + e and with
    /// a KV cache of that length, the entries before it included. It leaves the code that each entry's logits draw; an
    /// entry of [`NO_CODE`](super::NO_CODE) takes no part, and what it leaves is not looked at.
    Verify,
}

/// What the launches of a round are made from.
#[derive(Clone, Copy, Debug)]
pub struct RoundPlan {
    stream: StreamLayout,
    drafts: Drafts,
    drawn: Address,
    lengths: LengthTable,
    seeds: Option<Seeds>,
}

impl RoundPlan {
    /// Rounds of a stream: `drafts` come in, the verify pass leaves `drawn` [B, k + 1] int32, and `lengths` are rolled
    /// back, the stream's position counter among them. An engine that drafts from something else than hidden rows has
    /// no `seeds`.
    ///
    /// # Errors
    /// A table of another batch or without the stream's position counter, a p_min that is NaN, hidden rows of an odd
    /// size.
    pub fn new(
        stream: StreamLayout,
        drafts: Drafts,
        drawn: Address,
        lengths: LengthTable,
        seeds: Option<Seeds>,
    ) -> Result<Self, StreamError> {
        check_batch(&stream, &lengths)?;
        if lengths.position() != Some(stream.position) {
            return Err(StreamError::PositionNotInTable);
        }
        if drafts.probabilities.is_some_and(|(_, p_min)| p_min.is_nan()) {
            return Err(StreamError::LeastProbability);
        }
        if let Some(found) = seeds.map(|seeds| seeds.row_bytes).filter(|bytes| !bytes.is_multiple_of(2)) {
            return Err(StreamError::RowBytes { found });
        }
        Ok(Self { stream, drafts, drawn, lengths, seeds })
    }

    /// Follows what drafts: makes the verify pass's codes.
    pub fn assemble_verify(&self) -> Launch {
        let (probabilities, p_min) = self.drafts.probabilities.unwrap_or_default();
        let arguments = AssembleVerifyArguments {
            stream: self.stream.arguments(),
            drafts: self.drafts.codes,
            probabilities,
            p_min,
            reserved: 0,
        };
        Launch::new(Kernel::AssembleVerify, self.row_blocks(), &arguments)
    }

    /// Follow the verify pass: accept, commit, roll back, seed the next drafts.
    pub fn after_verify(&self) -> Vec<Launch> {
        let stream = self.stream.arguments();
        let accept = AcceptArguments { stream, drawn: self.drawn };
        let mut launches = vec![
            Launch::new(Kernel::Accept, self.row_blocks(), &accept),
            Launch::new(Kernel::RingCommit, self.row_blocks(), &RingCommitArguments { stream }),
            rollback_launch(&self.stream, &self.lengths),
        ];
        if let Some(Seeds { hidden, seeds, row_bytes }) = self.seeds {
            let arguments = SeedGatherArguments { stream, hidden, seeds, row_bytes: row_bytes as u64 };
            launches.push(Launch::new(Kernel::SeedGather, [self.stream.shape().batch(), 1], &arguments));
        }
        // What comes before the first of them is the engine's, which may not be a kernel that one can start beside.
        for launch in launches.iter_mut().skip(1) {
            launch.programmatic = true;
        }
        launches
    }

    /// Queues a burst: as many rounds as the stream's ring has room for. `engine` queues its part of each round on the
    /// machine; nothing is waited for or read. On a stream under capture the burst is recorded.
    ///
    /// # Errors
    /// The machine's, or those of `engine`; what was queued before stays queued.
    ///
    /// # Safety
    /// The addresses of the plan are valid, for what their documentation says, until the burst has completed; in a
    /// capture, until the last launch of the graph has. The stream was read since the burst before, else rings
    /// overflow.
    pub unsafe fn burst<M: Machine>(
        &self,
        machine: &mut M,
        mut engine: impl FnMut(&mut M, Phase) -> Result<(), M::Error>,
    ) -> Result<(), M::Error> {
        let (assemble_verify, after_verify) = (self.assemble_verify(), self.after_verify());
        for _ in 0..self.stream.shape().rounds() {
            engine(machine, Phase::Draft)?;
            // SAFETY: the caller's condition.
            unsafe { machine.run(&assemble_verify) }?;
            engine(machine, Phase::Verify)?;
            for launch in &after_verify {
                // SAFETY: the caller's condition.
                unsafe { machine.run(launch) }?;
            }
        }
        Ok(())
    }

    /// Blocks with a thread for every row of the batch.
    fn row_blocks(&self) -> [usize; 2] {
        [self.stream.shape().batch().div_ceil(THREADS), 1]
    }
}

/// Rolls back the lengths of a further table: those of a pipeline stage, which has a plan of its own only where the
/// position counter is. It follows `accept`.
///
/// # Errors
/// A table of another batch.
pub fn rollback(stream: &StreamLayout, lengths: &LengthTable) -> Result<Launch, StreamError> {
    check_batch(stream, lengths)?;
    Ok(rollback_launch(stream, lengths))
}

fn rollback_launch(stream: &StreamLayout, lengths: &LengthTable) -> Launch {
    let arguments = RollbackArguments {
        stream: stream.arguments(),
        table: lengths.address(),
        table_rows: lengths.rows() as u32,
        reserved: 0,
    };
    // A grid has no fewer than one block; the kernel knows how many rows there are.
    let grid = [stream.shape().batch().div_ceil(THREADS), lengths.rows().max(1)];
    Launch::new(Kernel::Rollback, grid, &arguments)
}

fn check_batch(stream: &StreamLayout, lengths: &LengthTable) -> Result<(), StreamError> {
    let (found, expected) = (lengths.batch(), stream.shape().batch());
    if found == expected { Ok(()) } else { Err(StreamError::TableBatch { found, expected }) }
}
