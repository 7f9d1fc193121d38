//! A frame of `predict_frame`: everything in one call, into outputs that the caller owns.

use std::sync::Arc;

use overtone_cuda::driver::Entered;
use overtone_cuda::frame::TensorReference;
use pyo3::prelude::*;

use super::block::{OutputReferences, Recordable, frame_block, read_host_values};
use super::completion::{Completion, PyCompletion};
use super::output_pool::{OutputBlock, offsets};
use super::shared::{Reusable, Shared};
use crate::causes::cuda_error;
use crate::dlpack::element::ElementType;
use crate::dlpack::view::StridedView;
use crate::errors::Raised;
use crate::frame::arguments::FrameArguments;
use crate::frame::outputs::{OutputKind, Outputs};
use crate::frame::site::Site;
use crate::frame::{FrameInputs, awaited_streams, no_code_zero_table};
use crate::streams::StreamHandle;
use crate::tensor::Tensor;
use crate::tensor::producer::Producer;

/// Codes, `codec_sum`, `codec_hiddens`, status, logits and completion of a frame.
pub type DeviceOutputs = (Py<Tensor>, Py<Tensor>, Py<Tensor>, Py<Tensor>, Option<Py<Tensor>>, PyCompletion);

/// `outputs` with what tells when they are there.
pub fn with_completion(outputs: Outputs, completion: Arc<Completion>) -> DeviceOutputs {
    let Outputs { codes, codec_sum, codec_hiddens, status, logits } = outputs;
    (codes, codec_sum, codec_hiddens, status, logits, PyCompletion(completion))
}

/// Runs a frame on `stream`.
///
/// # Errors
/// An `InputError` that names the argument, a `BindingError` without E0, a `CaptureError`, or the device's.
pub fn predict(
    py: Python<'_>,
    shared: &Shared,
    arguments: &FrameArguments<'_>,
    stream: StreamHandle,
) -> PyResult<DeviceOutputs> {
    let entered = shared.enter()?;
    let table = shared.code_zero_table().ok_or_else(no_code_zero_table)?;
    let site = Site::Cuda { index: shared.index(), stream };
    let inputs = FrameInputs::new(site, &shared.spec, shared.max_batch, arguments)?;
    let borrowed = shared.borrowed(stream);
    shared.check_stream(&entered, &borrowed)?;
    // A graph cannot wait for what is done outside of it: whoever launches it does.
    let capturing = shared.is_capturing(&entered, &borrowed)?;
    if capturing {
        Recordable::new(&inputs).check()?;
    } else {
        shared.await_streams(&entered, &awaited_streams(inputs.tensors()), &borrowed)?;
    }
    shared.release_completed(&entered);

    let kind = OutputKind { batch: inputs.batch, hidden_type: inputs.hidden_type, logits: arguments.logits };
    let layout = kind.layout(&shared.spec, shared.table_type);
    let (places, bytes) = offsets(&layout);
    let mut block = match capturing {
        true => shared.make_block(&entered, bytes),
        false => shared.take_block(&entered, bytes, stream),
    }?;
    if inputs.active.is_some()
        && let Some(memory) = block.memory()
    {
        // What an earlier frame left in rows that this one leaves out.
        memory.fill(&entered, &borrowed, 0, bytes, 0).map_err(|error| cuda_error(&error))?;
    }
    let block = Arc::new(block);
    let references = references(&layout, &places, block.address());
    let mut frame = frame_block(&inputs, &references, &table);
    read_host_values(&inputs, &mut frame.rows)?;
    let inputs = Arc::new(inputs);
    let completion = Arc::new(Completion::new(&shared.context));
    let owner =
        || Arc::new((Arc::clone(&inputs), Arc::clone(&block), Arc::clone(&table))) as super::retired::Owner;
    // SAFETY: inputs and block are kept until the frame has completed, or for ever when it is recorded; E0 is kept by the
    // binding, which lets it go after the frames launched until then.
    let mark = unsafe {
        shared.launch(py, &entered, &frame, &borrowed, owner, |state| state.refuse_overlap(inputs.tensors()))
    }?;
    match mark {
        Some(mark) => {
            block.used(stream, Arc::clone(&mark));
            shared.retire(Arc::clone(&mark), inputs);
            completion.launched(mark);
        }
        None => completion.recorded(),
    }
    let outputs = tensors(py, shared, &layout, &places, &block, &completion)?;
    Ok(with_completion(outputs, completion))
}

/// Outputs of `kind` that frames reuse, and what belongs to them.
///
/// # Errors
/// An `OutOfMemoryError` or a `DeviceError`.
pub fn reusable_outputs(
    py: Python<'_>,
    shared: &Shared,
    entered: &Entered<'_>,
    kind: OutputKind,
) -> PyResult<(Outputs, Reusable)> {
    let layout = kind.layout(&shared.spec, shared.table_type);
    let (places, bytes) = offsets(&layout);
    let block = Arc::new(shared.make_block(entered, bytes)?);
    let completion = Arc::new(Completion::new(&shared.context));
    let outputs = tensors(py, shared, &layout, &places, &block, &completion)?;
    Ok((outputs, Reusable { completion, block }))
}

/// Tensors over a block, in the order of the layout.
fn tensors(
    py: Python<'_>,
    shared: &Shared,
    layout: &[(ElementType, Vec<usize>)],
    places: &[usize],
    block: &Arc<OutputBlock>,
    completion: &Arc<Completion>,
) -> PyResult<Outputs> {
    let device = shared.device();
    Outputs::new(py, layout, |place, element, shape| {
        let extents: Vec<i64> = shape.iter().map(|&extent| extent as i64).collect();
        let address = block.address() as usize + places[place];
        let data = std::ptr::without_provenance_mut(address);
        // SAFETY: the block holds the tensors of the layout at their places, and stays beside the view.
        let view = unsafe { StridedView::on_device(device, data, element, &extents, None) }
            .map_err(|error| Raised::input(error.to_string()))?;
        let producer = Arc::clone(completion) as Arc<dyn Producer>;
        Ok(Tensor::over(view, Arc::clone(block) as super::retired::Owner, Some(producer)))
    })
}

/// The same tensors as kernels find them.
fn references(layout: &[(ElementType, Vec<usize>)], places: &[usize], start: u64) -> OutputReferences {
    let at = |place: usize| start + places[place] as u64;
    let reference = |place: usize| {
        let Some((element, shape)) = layout.get(place) else { return TensorReference::default() };
        OutputReferences::contiguous(at(place), *element, shape)
    };
    let (element, codes) = &layout[0];
    OutputReferences {
        codes: OutputReferences::contiguous_slot(at(0), *element, [codes[0], codes[1]]),
        ring_slot: TensorReference::default(),
        codec_sum: reference(1),
        codec_hiddens: reference(2),
        status: reference(3),
        logits: reference(4),
    }
}
