//! `PreparedFrame`: a frame on the CPU, its tensors imported and checked once, launched any number of times.

use overtone_core::frame::{FrameInputs as CoreInputs, FrameOutputs, RowSampling, STATUS_GOOD};
use overtone_core::rounds::OffSwitch;
use overtone_core::sampling::SamplingParams;
use pyo3::prelude::*;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::{CodeZeroTable, HostOutputs, Shared, State, lock};
use crate::dlpack::element::ElementType;
use crate::enter::enter;
use crate::errors::{ErrorClass, Raised};
use crate::frame::arguments::{CodeZero, FrameArguments, FrameIndex, Sampling};
use crate::frame::host_values::{advance, frame_index_of, integer, params_of, read_integers};
use crate::frame::outputs::{OutputKind, Outputs};
use crate::frame::site::Site;
use crate::frame::{FrameInputs, FrameTargets, no_code_zero_table, refuse_overlap, refuse_overlaps};
use crate::speculation::log_switched_off;
use crate::tensor::Tensor;

/// Buffers of one launch, kept so that a launch allocates nothing.
#[derive(Debug, Default)]
struct Scratch {
    /// Rows that take part.
    rows: Vec<usize>,
    hidden: Vec<f32>,
    integers: Vec<i64>,
    code_zero: Vec<i64>,
    sampling: Vec<RowSampling>,
    codes: Vec<i32>,
    codec_sum: Vec<f32>,
    status: Vec<i32>,
    /// Status of every row: 0 for those left out.
    all_status: Vec<i32>,
    /// Bytes of the frame indices.
    frame_index: Vec<u8>,
    /// Launches that a frame index given as a number has been advanced by.
    launches: u64,
    logits: Vec<f32>,
    hidden_rows: Option<Vec<f32>>,
}

/// A frame whose tensors were imported and checked.
#[pyclass(frozen, module = "overtone._core")]
#[derive(Debug)]
pub struct PreparedFrame {
    executor: Arc<Shared>,
    inputs: FrameInputs,
    code_zero_table: CodeZeroTable,
    targets: FrameTargets,
    outputs: Outputs,
    scratch: Mutex<Scratch>,
}

#[pymethods]
impl PreparedFrame {
    /// Runs the frame. The stream is for executors that have some.
    #[pyo3(signature = (stream = None))]
    fn launch(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let _ = stream;
        self.run(py)
    }

    /// Codes, `codec_sum`, `codec_hiddens`, status and logits.
    fn outputs(&self, py: Python<'_>) -> HostOutputs {
        self.outputs.share(py).into()
    }
}

impl PreparedFrame {
    /// Imports and checks everything a frame touches. Outputs that the caller does not own are new, or, for a frame that
    /// names its batch, those that the frames of its kind reuse.
    ///
    /// # Errors
    /// An `InputError` that names the argument; a `BindingError` when there is no talker's codec table.
    pub fn new(py: Python<'_>, executor: Arc<Shared>, arguments: &FrameArguments<'_>) -> PyResult<Self> {
        let (site, spec) = (Site::Host, &executor.spec);
        let code_zero_table = executor.code_zero_table().ok_or_else(no_code_zero_table)?;
        let inputs = FrameInputs::new(site, spec, executor.max_batch, arguments)?;
        let kind =
            OutputKind { batch: inputs.batch, hidden_type: inputs.hidden_type, logits: arguments.logits };
        let reuses = arguments.batch.is_some();
        let made = if reuses {
            let reused = executor.reused.get(kind, || Ok((executor.new_outputs(py, kind)?, ())))?;
            reused.0.share(py)
        } else {
            executor.new_outputs(py, kind)?
        };
        let bound = lock(&executor.codec_hiddens).clone().filter(|_| reuses);
        let targets = FrameTargets::new(py, site, spec, arguments, inputs.batch, &made, bound)?;
        refuse_overlaps(&inputs, &targets, code_zero_table.lent())?;
        let outputs = made.of_targets(py, &targets, None)?;
        Ok(Self { inputs, code_zero_table, targets, outputs, scratch: Mutex::default(), executor })
    }

    /// What a frame wrote, once it has run.
    pub(super) fn into_outputs(self) -> HostOutputs {
        self.outputs.into()
    }

    /// Runs the frame without the GIL.
    ///
    /// # Errors
    /// An `InputError` for a value that only a launch reads; a `DeviceError` in a forked process.
    pub fn run(&self, py: Python<'_>) -> PyResult<()> {
        let switched_off = enter(py, || {
            let mut state = self.executor.enter()?;
            let mut scratch = lock(&self.scratch);
            if let Some(memory) = state.arena.lent_memory() {
                let table = self.code_zero_table.lent();
                refuse_overlap(memory, self.inputs.tensors().chain(table).chain(self.targets.tensors()))?;
            }
            self.gather(&mut scratch)?;
            let switched_off = self.predict(&mut state, &mut scratch);
            self.scatter(&mut scratch)?;
            if self.inputs.advance {
                self.advance(&mut scratch)?;
            }
            Ok::<_, Raised>(switched_off)
        })?;
        if let Some(switch) = switched_off {
            log_switched_off(py, &switch);
        }
        Ok(())
    }

    /// [`run`](Self::run), and the final-norm hidden row that each codebook's head reads, [B, R, H].
    ///
    /// # Errors
    /// As for [`run`](Self::run); an `OutOfMemoryError`.
    pub(super) fn run_with_hidden_rows(&self, py: Python<'_>) -> PyResult<Tensor> {
        let spec = &self.executor.spec;
        let shape = [self.inputs.batch, spec.residual_codebooks, spec.hidden_size];
        let tensor = Tensor::zeroed(ElementType::Float32, &shape)?;
        lock(&self.scratch).hidden_rows = Some(Vec::new());
        self.run(py)?;
        let scratch = lock(&self.scratch);
        let rows = scratch.hidden_rows.as_deref().unwrap_or_default().chunks_exact(spec.hidden_size);
        let mut writer = tensor.writer()?;
        for (index, row) in rows.enumerate() {
            let at = [index / spec.residual_codebooks, index % spec.residual_codebooks];
            writer
                .write_row_f32(&at, row)
                .map_err(|error| Raised::from_error(ErrorClass::Overtone, &error))?;
        }
        Ok(tensor)
    }

    /// Reads the inputs of the rows that take part.
    fn gather(&self, scratch: &mut Scratch) -> Result<(), Raised> {
        let width = self.executor.spec.talker_hidden_size;
        let inputs = &self.inputs;
        scratch.rows.clear();
        match &inputs.active {
            None => scratch.rows.extend(0..inputs.batch),
            Some(active) => {
                let active = read_integers(active, &mut scratch.integers)?;
                scratch.rows.extend((0..inputs.batch).filter(|&row| active[row] != 0));
            }
        }
        scratch.hidden.resize(scratch.rows.len() * width, 0.0);
        for (&row, hidden) in scratch.rows.iter().zip(scratch.hidden.chunks_exact_mut(width)) {
            inputs.talker_last_hidden.read_row_f32(&[row], hidden)?;
        }
        let code_zero = match &inputs.code_zero {
            CodeZero::Host(codes) => codes.as_slice(),
            CodeZero::Tensor(tensor) => read_integers(tensor, &mut scratch.integers)?,
        };
        scratch.code_zero.clear();
        scratch.code_zero.extend(scratch.rows.iter().map(|&row| code_zero[row]));
        scratch.sampling.clear();
        for &row in &scratch.rows {
            let params = self.params(row)?;
            let frame_index = match &inputs.frame_index {
                FrameIndex::Number(number) => number.unwrap_or(0).wrapping_add(scratch.launches),
                FrameIndex::Tensor(tensor) => frame_index_of(tensor, row, params.is_greedy())?,
            };
            scratch.sampling.push(RowSampling { params, frame_index });
        }
        Ok(())
    }

    fn params(&self, row: usize) -> Result<SamplingParams, Raised> {
        match &self.inputs.sampling {
            Sampling::Rows(rows) => Ok(rows[row]),
            Sampling::Arrays(tensors) => params_of(tensors, row),
        }
    }

    /// Runs the frame, and counts it. The switch, when it has just gone off.
    fn predict(&self, state: &mut State, scratch: &mut Scratch) -> Option<OffSwitch> {
        let spec = &self.executor.spec;
        let rows = scratch.rows.len();
        scratch.codes.resize(rows * spec.codes_per_frame(), 0);
        scratch.codec_sum.resize(rows * spec.talker_hidden_size, 0.0);
        scratch.status.resize(rows, 0);
        let wanted = self.targets.logits.is_some();
        let logits = if wanted { rows * spec.residual_codebooks * spec.codebook_size } else { 0 };
        scratch.logits.resize(logits, 0.0);
        if let Some(hidden_rows) = &mut scratch.hidden_rows {
            hidden_rows.resize(rows * spec.residual_codebooks * spec.hidden_size, 0.0);
        }
        let inputs = CoreInputs {
            talker_last_hidden: &scratch.hidden,
            code_zero: &scratch.code_zero,
            sampling: &scratch.sampling,
            code_zero_table: self.code_zero_table.view(),
        };
        let mut outputs = FrameOutputs {
            codes: &mut scratch.codes,
            codec_sum: &mut scratch.codec_sum,
            status: &mut scratch.status,
            logits: wanted.then_some(scratch.logits.as_mut_slice()),
            hidden_rows: scratch.hidden_rows.as_deref_mut(),
        };
        let was_speculating = state.engine.speculating();
        let started = Instant::now();
        state.engine.run_frame(state.arena.blocks(), &inputs, &mut outputs);
        let failed = scratch.status.iter().filter(|&&status| status != STATUS_GOOD).count();
        self.executor.count(rows, failed, started.elapsed());
        self.executor.count_rounds(&scratch.rows, &state.engine);
        state.engine.off_switch().filter(|switch| was_speculating && !switch.is_on()).cloned()
    }

    /// Writes the outputs of the rows that took part.
    fn scatter(&self, scratch: &mut Scratch) -> Result<(), Raised> {
        let (spec, targets) = (&self.executor.spec, &self.targets);
        let per_row = spec.codes_per_frame();
        let slot = self.ring_slot()?;
        let mut codes_out = targets.codes.writer()?;
        let mut sum_out = targets.codec_sum.writer()?;
        let mut hiddens_out = targets.codec_hiddens.writer()?;
        scratch.all_status.clear();
        scratch.all_status.resize(self.inputs.batch, STATUS_GOOD);
        for (index, &row) in scratch.rows.iter().enumerate() {
            let codes = &scratch.codes[index * per_row..(index + 1) * per_row];
            let at = [slot.unwrap_or(0), row];
            codes_out
                .write_row_i32(&at[usize::from(slot.is_none())..], codes)
                .map_err(|error| targets.codes.inaccessible(&error))?;
            let width = spec.talker_hidden_size;
            let sum = &scratch.codec_sum[index * width..(index + 1) * width];
            sum_out.write_row_f32(&[row], sum).map_err(|error| targets.codec_sum.inaccessible(&error))?;
            // Rows 0 and R are the talker's.
            let embedded = self.executor.tables.iter().zip(&codes[1..]).take(spec.residual_codebooks - 1);
            for (index, (table, &code)) in embedded.enumerate() {
                hiddens_out
                    .write_row_bytes(&[row, index + 1], table.view().row(code as usize))
                    .map_err(|error| targets.codec_hiddens.inaccessible(&error))?;
            }
            scratch.all_status[row] = scratch.status[index];
            if let Some(logits) = &targets.logits {
                let (size, mut out) = (spec.codebook_size, logits.writer()?);
                for codebook in 0..spec.residual_codebooks {
                    let at = (index * spec.residual_codebooks + codebook) * size;
                    out.write_row_f32(&[row, codebook], &scratch.logits[at..at + size])
                        .map_err(|error| logits.inaccessible(&error))?;
                }
            }
        }
        if let Some(slot) = &targets.ring_slot {
            advance(slot, std::iter::empty(), &mut scratch.frame_index)?;
        }
        let written = targets.status.writer()?.write_row_i32(&[], &scratch.all_status);
        written.map_err(|error| targets.status.inaccessible(&error))
    }

    /// The place in the ring that the codes go to.
    fn ring_slot(&self) -> Result<Option<usize>, Raised> {
        let Some(slot) = &self.targets.ring_slot else { return Ok(None) };
        let slots = self.targets.codes.view().shape()[0];
        Ok(Some(integer(slot, 0)?.rem_euclid(slots as i128) as usize))
    }

    /// Adds one to the frame index: to one that counts for all rows, else to those of the rows that took part.
    fn advance(&self, scratch: &mut Scratch) -> Result<(), Raised> {
        match &self.inputs.frame_index {
            FrameIndex::Number(_) => scratch.launches = scratch.launches.wrapping_add(1),
            FrameIndex::Tensor(tensor) => {
                advance(tensor, scratch.rows.iter().copied(), &mut scratch.frame_index)?;
            }
        }
        Ok(())
    }
}
