//! The layout of a step whose rows bring different numbers of tokens, published by one launch. Pure: nothing here touches a
//! device. What is published [`overtone_core::ragged`] defines.

use bytemuck::{Pod, Zeroable, bytes_of};
use overtone_core::ragged::{MOST_ROWS, Phase, RaggedConfig, TokenLayout};

use crate::arguments::ElementType;
use crate::driver::LaunchShape;
use crate::frame::TensorReference;
use crate::kernels::Kernel;
use crate::layout::Address;

/// Bytes of `RaggedShared` of `kernels/ragged_step.cu`.
const SHARED_BYTES: usize = (4 * MOST_ROWS + 1) * size_of::<i32>();

/// Where a step is published. Of vectors of int32 there are addresses; rows are `max_batch`.
#[derive(Clone, Copy, Debug)]
pub struct PublishedAddresses {
    /// [rows + 1].
    pub query_offsets: Address,
    /// `[rows]`.
    pub query_lengths: Address,
    /// `[rows]`.
    pub past_lengths: Address,
    /// `[rows]`.
    pub total_lengths: Address,
    /// `[rows]`.
    pub last_tokens: Address,
    /// `[rows]`.
    pub status: Address,
    /// `[places]`, and whether int32 or int64.
    pub positions: (Address, ElementType),
    /// `[places]`, and whether int32 or int64.
    pub state_indices: (Address, ElementType),
    /// `[1]`.
    pub phase: Address,
    /// `[1]`.
    pub faults: Address,
}

/// KV states of the rows, and their lengths.
#[derive(Clone, Copy, Debug, Default)]
pub struct States {
    /// State of each row, int32 or int64 `[batch]`; absent where row b has state b.
    pub indices: TensorReference,
    /// Length of each state, int32; absent where nobody keeps any.
    pub kv_lengths: TensorReference,
    /// Whether those of the rows that take part become their total lengths.
    pub advance: bool,
}

/// Query lengths of the rows.
#[derive(Clone, Copy, Debug)]
pub enum QueryLengths<'a> {
    /// Numbers that the host has checked.
    Given(&'a [i32]),
    /// int32 or int64 `[batch]` on the device.
    OnDevice(TensorReference),
}

/// Past lengths of the rows.
#[derive(Clone, Copy, Debug)]
pub enum PastLengths<'a> {
    /// Numbers that the host has checked.
    Given(&'a [i32]),
    /// int32 or int64 `[batch]` on the device.
    OnDevice(TensorReference),
    /// The KV lengths of the rows' states.
    OfStates,
}

/// What changes from step to step.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// Tokens that rows bring.
    pub query_lengths: QueryLengths<'a>,
    /// Tokens that their states hold.
    pub past_lengths: PastLengths<'a>,
    /// Rows.
    pub batch: usize,
    /// Places of a row.
    pub query_width: usize,
    /// What the step is for.
    pub phase: Phase,
}

/// `RaggedStepArguments` of `kernels/ragged_step.cu`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct RaggedStepArguments {
    query_lengths: TensorReference,
    past_lengths: TensorReference,
    given_states: TensorReference,
    kv_lengths: TensorReference,
    query_offsets: Address,
    published_query_lengths: Address,
    published_past_lengths: Address,
    total_lengths: Address,
    last_tokens: Address,
    status: Address,
    positions: Address,
    state_indices: Address,
    phase_out: Address,
    faults: Address,
    positions_type: u32,
    state_indices_type: u32,
    batch: u32,
    rows: u32,
    query_width: u32,
    max_positions: u32,
    states: u32,
    phase: u32,
    packed: u32,
    chunked_prefill: u32,
    past_of_states: u32,
    advance: u32,
    padding_position: i32,
    reserved: u32,
    given_query_lengths: [i32; MOST_ROWS],
    given_past_lengths: [i32; MOST_ROWS],
}

/// The launch that publishes one step. Its arguments are larger than a frame's: lengths that the host gives travel in them.
#[derive(Clone, Debug)]
pub struct RaggedStepLaunch(Box<RaggedStepArguments>);

impl RaggedStepLaunch {
    /// Which kernel.
    pub const KERNEL: Kernel = Kernel::RaggedStep;
    /// One block, a thread a row.
    pub const SHAPE: LaunchShape = LaunchShape {
        grid: [1, 1, 1],
        block: MOST_ROWS as u32,
        shared_bytes: SHARED_BYTES as u32,
        programmatic: false,
    };

    /// The launch of a step.
    ///
    /// # Panics
    /// When the configuration's sizes are out of range ([`RaggedConfig::check`]), the step has no rows or places, or more
    /// than those, the host gives another number of lengths than there are rows, or there are no KV lengths to read or advance.
    pub fn new(
        config: &RaggedConfig,
        published: &PublishedAddresses,
        states: &States,
        step: &Step<'_>,
    ) -> Self {
        assert_eq!(config.check(), Ok(()));
        let fits = (1..=config.max_batch).contains(&step.batch)
            && (1..=config.max_query_width).contains(&step.query_width);
        assert!(fits, "{step:?} does not fit {config:?}");
        let has_lengths = states.kv_lengths.address() != 0;
        let past_of_states = matches!(step.past_lengths, PastLengths::OfStates);
        assert!(has_lengths || !states.advance && !past_of_states, "no KV lengths");
        let mut arguments = RaggedStepArguments {
            given_states: states.indices,
            kv_lengths: states.kv_lengths,
            query_offsets: published.query_offsets,
            published_query_lengths: published.query_lengths,
            published_past_lengths: published.past_lengths,
            total_lengths: published.total_lengths,
            last_tokens: published.last_tokens,
            status: published.status,
            positions: published.positions.0,
            state_indices: published.state_indices.0,
            phase_out: published.phase,
            faults: published.faults,
            positions_type: published.positions.1 as u32,
            state_indices_type: published.state_indices.1 as u32,
            batch: step.batch as u32,
            rows: config.max_batch as u32,
            query_width: step.query_width as u32,
            max_positions: config.max_positions as u32,
            states: config.max_states as u32,
            phase: step.phase as u32,
            packed: u32::from(config.layout == TokenLayout::Packed),
            chunked_prefill: u32::from(config.chunked_prefill),
            past_of_states: u32::from(past_of_states),
            advance: u32::from(states.advance),
            padding_position: config.padding_position,
            ..Zeroable::zeroed()
        };
        match step.query_lengths {
            QueryLengths::Given(lengths) => {
                arguments.given_query_lengths[..step.batch].copy_from_slice(lengths);
            }
            QueryLengths::OnDevice(tensor) => arguments.query_lengths = tensor,
        }
        match step.past_lengths {
            PastLengths::Given(lengths) => {
                arguments.given_past_lengths[..step.batch].copy_from_slice(lengths);
            }
            PastLengths::OnDevice(tensor) => arguments.past_lengths = tensor,
            PastLengths::OfStates => {}
        }
        Self(Box::new(arguments))
    }

    /// The bytes of the kernel's one argument.
    pub fn arguments(&self) -> &[u8] {
        bytes_of(&*self.0)
    }
}

const _: () = assert!(size_of::<RaggedStepArguments>() == 2344);
