//! A frame's tensors and parameters as the block that its kernels find them in.

use std::sync::Arc;

use overtone_core::sampling::SamplingParams;
use overtone_cuda::arguments::ElementType as DeviceType;
use overtone_cuda::executor::CodeZeroTable;
use overtone_cuda::frame::{FrameBlock, FrameHeader, RowParameters, TensorReference};

use crate::dlpack::element::ElementType;
use crate::dlpack::import::ImportedTensor;
use crate::dlpack::view::StridedView;
use crate::errors::{ErrorClass, Raised};
use crate::frame::arguments::{CodeZero, FrameIndex, Sampling};
use crate::frame::host_values::{advance, frame_index_of, params_of, read_integers};
use crate::frame::{FrameInputs, FrameTargets};

/// The talker's codec table E0 that frames read.
#[derive(Debug)]
pub struct TalkerTable {
    /// As the kernels read it.
    pub table: CodeZeroTable,
    /// The tensor, when it is a talker's.
    pub lent: Option<ImportedTensor>,
}

/// Where a frame's outputs go.
#[derive(Clone, Copy, Debug, Default)]
pub struct OutputReferences {
    /// [any, B, C], or a ring [M, B, C].
    pub codes: TensorReference,
    /// `[1]`; absent without a ring.
    pub ring_slot: TensorReference,
    /// [B, Ht].
    pub codec_sum: TensorReference,
    /// [B, C, Ht].
    pub codec_hiddens: TensorReference,
    /// `[B]`.
    pub status: TensorReference,
    /// [B, R, V], or absent.
    pub logits: TensorReference,
}

impl OutputReferences {
    /// A contiguous tensor.
    pub fn contiguous(address: u64, element: ElementType, shape: &[usize]) -> TensorReference {
        let mut strides = [0; 3];
        let mut step = 1;
        for (stride, &extent) in strides[..shape.len()].iter_mut().zip(shape).rev() {
            *stride = step;
            step *= extent as i64;
        }
        TensorReference::new(address, device_type(element), &strides, shape[0])
    }

    /// A contiguous matrix as the only slot of a ring.
    pub fn contiguous_slot(address: u64, element: ElementType, shape: [usize; 2]) -> TensorReference {
        TensorReference::new(address, device_type(element), &[0, shape[1] as i64, 1], 1)
    }

    /// Those of a caller's and our own tensors.
    pub fn of_targets(targets: &FrameTargets) -> Self {
        let absent = TensorReference::default();
        let codes = targets.codes.view();
        Self {
            codes: if targets.ring_slot.is_some() { reference(codes) } else { slotted(codes) },
            ring_slot: targets.ring_slot.as_ref().map_or(absent, |slot| reference(slot.view())),
            codec_sum: reference(targets.codec_sum.view()),
            codec_hiddens: reference(targets.codec_hiddens.view()),
            status: reference(targets.status.view()),
            logits: targets.logits.as_ref().map_or(absent, |logits| reference(logits.view())),
        }
    }
}

/// The block of a frame; what the host holds is still to be read into it ([`read_host_values`]).
pub fn frame_block(inputs: &FrameInputs, outputs: &OutputReferences, table: &TalkerTable) -> FrameBlock {
    let mut header = FrameHeader {
        batch: inputs.batch as u32,
        talker_last_hidden: reference(inputs.talker_last_hidden.view()),
        active: inputs.active.as_ref().map_or(TensorReference::default(), on_device),
        codes: outputs.codes,
        ring_slot: outputs.ring_slot,
        codec_sum: outputs.codec_sum,
        codec_hiddens: outputs.codec_hiddens,
        status: outputs.status,
        logits: outputs.logits,
        code_zero_table: table.table.raw,
        code_zero_projected: table.table.projected,
        ..FrameHeader::default()
    };
    let mut rows = vec![RowParameters::default(); inputs.batch];
    match &inputs.code_zero {
        CodeZero::Host(codes) => {
            rows.iter_mut().zip(codes).for_each(|(row, &code)| row.code_zero = code);
        }
        CodeZero::Tensor(tensor) => header.code_zero = on_device(tensor),
    }
    match &inputs.sampling {
        Sampling::Rows(params) => rows.iter_mut().zip(params).for_each(|(row, params)| draw_by(row, params)),
        Sampling::Arrays(tensors) => {
            header.temperature = on_device(&tensors.temperature);
            header.top_k = on_device(&tensors.top_k);
            header.top_p = on_device(&tensors.top_p);
            header.seed = on_device(&tensors.seed);
        }
    }
    match &inputs.frame_index {
        FrameIndex::Number(number) => {
            rows.iter_mut().for_each(|row| row.frame_index = number.unwrap_or(0));
            header.advance_frame_index = u32::from(inputs.advance);
        }
        FrameIndex::Tensor(tensor) => {
            header.frame_index = on_device(tensor);
            let is_there = header.frame_index.address() != 0;
            header.advance_frame_index = u32::from(is_there && inputs.advance);
        }
    }
    FrameBlock { header, rows }
}

/// Reads what tensors in host memory hold now.
///
/// # Errors
/// An `InputError` for a value out of range.
pub fn read_host_values(inputs: &FrameInputs, rows: &mut [RowParameters]) -> Result<(), Raised> {
    let mut integers = Vec::new();
    if let Some(active) = in_host_memory(inputs.active.as_ref()) {
        let active = read_integers(active, &mut integers)?;
        rows.iter_mut().zip(active).for_each(|(row, &active)| row.inactive = u32::from(active == 0));
    }
    if let CodeZero::Tensor(tensor) = &inputs.code_zero
        && let Some(tensor) = in_host_memory(Some(tensor))
    {
        let codes = read_integers(tensor, &mut integers)?;
        rows.iter_mut().zip(codes).for_each(|(row, &code)| row.code_zero = code);
    }
    if let Sampling::Arrays(tensors) = &inputs.sampling
        && tensors.seed.device().is_host()
    {
        for (place, row) in rows.iter_mut().enumerate().filter(|(_, row)| row.inactive == 0) {
            draw_by(row, &params_of(tensors, place)?);
        }
    }
    if let Some(tensor) = in_host_memory(inputs.frame_index.tensor()) {
        // Of parameters on the device, only the kernels know whether a row is greedy.
        let on_device =
            matches!(&inputs.sampling, Sampling::Arrays(tensors) if tensors.seed.device().is_cuda());
        for (place, row) in rows.iter_mut().enumerate().filter(|(_, row)| row.inactive == 0) {
            row.frame_index = frame_index_of(tensor, place, !on_device && row.temperature == 0.0)?;
        }
    }
    Ok(())
}

/// Counts the frame index on where the host holds it, after a launch. On the device, the frame does.
///
/// # Errors
/// An `InputError` for a tensor that cannot be written.
pub fn advance_host_index(inputs: &FrameInputs, rows: &mut [RowParameters]) -> Result<(), Raised> {
    if !inputs.advance {
        return Ok(());
    }
    match &inputs.frame_index {
        FrameIndex::Number(_) => {
            rows.iter_mut().for_each(|row| row.frame_index = row.frame_index.wrapping_add(1));
            Ok(())
        }
        FrameIndex::Tensor(tensor) if tensor.device().is_host() => {
            let taken = rows.iter().enumerate().filter(|(_, row)| row.inactive == 0);
            advance(tensor, taken.map(|(place, _)| place), &mut Vec::new())
        }
        FrameIndex::Tensor(_) => Ok(()),
    }
}

/// Refuses what only the kernels could do, and the host would have to.
///
/// # Errors
/// An `InputError`.
pub fn check_advance(inputs: &FrameInputs) -> Result<(), Raised> {
    let per_row = in_host_memory(inputs.frame_index.tensor()).filter(|tensor| tensor.view().elements() > 1);
    let unknown = inputs.active.as_ref().is_some_and(|active| active.device().is_cuda());
    match per_row {
        Some(tensor) if inputs.advance && unknown => Err(tensor.refused(
            "one index a row on the host, to be advanced for rows that active on the device names",
            "both in the same place",
        )),
        _ => Ok(()),
    }
}

/// The first argument whose value the host gives, and which a graph would repeat for ever.
fn baked_argument(inputs: &FrameInputs) -> Option<&'static str> {
    let greedy = !inputs.is_sampled();
    let arrays_on_host =
        matches!(&inputs.sampling, Sampling::Arrays(tensors) if tensors.seed.device().is_host());
    let on_host = |tensor: &ImportedTensor| tensor.device().is_host();
    let index_on_host = inputs.frame_index.tensor().is_none_or(on_host);
    let code_zero_on_host = match &inputs.code_zero {
        CodeZero::Host(_) => true,
        CodeZero::Tensor(tensor) => on_host(tensor),
    };
    match inputs {
        _ if code_zero_on_host => Some("code_zero"),
        _ if arrays_on_host || matches!(inputs.sampling, Sampling::Rows(_)) && !greedy => Some("sampling"),
        _ if index_on_host && (!greedy || inputs.advance) => Some("frame_idx"),
        _ if inputs.active.as_ref().is_some_and(on_host) => Some("active"),
        _ => None,
    }
}

/// Whether a frame may be recorded: what changes from launch to launch of a graph must be on the device.
#[derive(Clone, Copy, Debug)]
pub struct Recordable(Option<&'static str>);

impl Recordable {
    /// Of a frame with these inputs.
    pub fn new(inputs: &FrameInputs) -> Self {
        Self(baked_argument(inputs))
    }

    /// Whether it may.
    pub const fn is_recordable(self) -> bool {
        self.0.is_none()
    }

    /// A `CaptureError` when it may not.
    ///
    /// # Errors
    /// That error.
    pub fn check(self) -> Result<(), Raised> {
        self.0.map_or(Ok(()), |argument| Err(baked(argument)))
    }
}

/// A `CaptureError` for an argument whose value the host gives.
pub fn baked(argument: &'static str) -> Raised {
    let (found, expected) = ("a value on the host", "a tensor on the device");
    let message = format!(
        "{argument}: found {found}, expected {expected}: the stream is under capture, and a graph would repeat the \
         value at every launch"
    );
    Raised::new(ErrorClass::Capture, message).key(argument).found(found).expected(expected)
}

fn in_host_memory(tensor: Option<&ImportedTensor>) -> Option<&ImportedTensor> {
    tensor.filter(|tensor| tensor.device().is_host())
}

fn draw_by(row: &mut RowParameters, params: &SamplingParams) {
    row.temperature = params.temperature();
    row.top_k = params.top_k();
    row.top_p = params.top_p();
    row.seed = params.seed();
}

/// A vector where kernels can read it; absent when the host reads it for them.
fn on_device(tensor: &ImportedTensor) -> TensorReference {
    if tensor.device().is_host() { TensorReference::default() } else { reference(tensor.view()) }
}

/// A tensor where kernels can read it.
pub(super) fn reference(view: &StridedView) -> TensorReference {
    let extent = view.shape().first().copied().unwrap_or(1);
    TensorReference::new(view.data() as u64, device_type(view.element()), &strides(view), extent)
}

/// A matrix as the only slot of a ring.
fn slotted(view: &StridedView) -> TensorReference {
    let [row, code, _] = strides(view);
    TensorReference::new(view.data() as u64, device_type(view.element()), &[0, row, code], 1)
}

/// Strides of a view of at most three dimensions; 0 where there is one element, whose stride may be anything, and which
/// serves all rows.
fn strides(view: &StridedView) -> [i64; 3] {
    let mut strides = [0; 3];
    for ((to, &stride), &extent) in strides.iter_mut().zip(view.strides()).zip(view.shape()) {
        *to = if extent > 1 { stride } else { 0 };
    }
    strides
}

/// The element type as kernels number it.
pub(super) const fn device_type(element: ElementType) -> DeviceType {
    match element {
        ElementType::Float16 => DeviceType::Float16,
        ElementType::BFloat16 => DeviceType::BFloat16,
        ElementType::Int32 => DeviceType::Int32,
        ElementType::Int64 => DeviceType::Int64,
        ElementType::UInt64 => DeviceType::UInt64,
        ElementType::Bool | ElementType::UInt8 => DeviceType::UInt8,
        // What a frame's tensors are checked to be leaves only this.
        _ => DeviceType::Float32,
    }
}

/// A talker's table, shared by the frames that read it.
pub type SharedTable = Arc<TalkerTable>;

#[cfg(test)]
mod tests;
