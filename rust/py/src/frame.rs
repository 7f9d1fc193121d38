//! `PreparedFrame`: a frame's tensors, imported and checked once, launched any number of times.

use overtone_core::frame::{FrameInputs, FrameOutputs, RowSampling, STATUS_GOOD};
use overtone_core::sampling::SamplingParams;
use pyo3::prelude::*;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use crate::dlpack::access::Scalar;
use crate::dlpack::element::ElementType;
use crate::dlpack::expect::{Expect, expect_float, expect_type};
use crate::dlpack::import::ImportedTensor;
use crate::dlpack::view::overlaps;
use crate::enter::enter;
use crate::errors::{ErrorClass, Raised};
use crate::executor::{CodeZeroTable, Shared, State, lock};
use arguments::{Checker, CodeZero, FrameArguments, FrameIndex, INTEGERS, Sampling};

pub mod arguments;

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
    logits: Vec<f32>,
}

/// A frame whose tensors were imported and checked.
#[pyclass(frozen, module = "overtone._core")]
#[derive(Debug)]
pub struct PreparedFrame {
    executor: Arc<Shared>,
    batch: usize,
    talker_last_hidden: ImportedTensor,
    code_zero: CodeZero,
    sampling: Sampling,
    frame_index: Mutex<FrameIndex>,
    advance: bool,
    active: Option<ImportedTensor>,
    code_zero_table: CodeZeroTable,
    codes: ImportedTensor,
    codec_sum: ImportedTensor,
    codec_hiddens: ImportedTensor,
    status: ImportedTensor,
    logits: Option<ImportedTensor>,
    scratch: Mutex<Scratch>,
}

#[pymethods]
impl PreparedFrame {
    fn launch(&self, py: Python<'_>) -> PyResult<()> {
        enter(py, || self.run())
    }
}

impl PreparedFrame {
    /// Imports and checks everything a frame touches.
    ///
    /// # Errors
    /// An `InputError` that names the argument; a `BindingError` when there is no talker's codec table.
    pub fn new(executor: Arc<Shared>, arguments: &FrameArguments<'_>) -> PyResult<Self> {
        let spec = executor.spec.clone();
        let limit = executor.max_batch;
        let batch = usize::try_from(arguments.batch).ok().filter(|batch| (1..=limit).contains(batch));
        let batch = batch.ok_or_else(|| {
            Raised::input(format!("batch: found {} rows, expected 1 to {limit} (max_batch)", arguments.batch))
                .key("active_batch_size")
                .found(arguments.batch.to_string())
                .expected(format!("1 to {limit}"))
        })?;
        let rows = if arguments.exact_rows { Expect::Is(batch) } else { Expect::AtLeast(batch) };
        let checker = Checker { batch, rows };
        let (codes, width) = (Expect::Is(spec.codes_per_frame()), Expect::Is(spec.talker_hidden_size));
        let code_zero_table = executor.code_zero_table().ok_or_else(|| {
            Raised::new(
                ErrorClass::Binding,
                "this checkpoint has no talker's codec table: bind one (code_zero_embed_table), or load with \
                 code_zero_table",
            )
        })?;
        let talker_last_hidden =
            checker.rows_of("talker_last_hidden", &arguments.talker_last_hidden, &[width])?;
        expect_float(&talker_last_hidden)?;
        let logits = [Expect::Is(spec.residual_codebooks), Expect::Is(spec.codebook_size)];
        let truths = [ElementType::Bool, ElementType::UInt8, ElementType::Int32, ElementType::Int64];
        let prepared = Self {
            batch,
            talker_last_hidden,
            code_zero: checker.code_zero(&arguments.code_zero)?,
            sampling: checker.sampling(arguments)?,
            frame_index: Mutex::new(checker.frame_index(&arguments.frame_idx, arguments.advance_frame_idx)?),
            advance: arguments.advance_frame_idx,
            active: match &arguments.active {
                Some(active) => Some(checker.vector("active", active, &truths)?),
                None => None,
            },
            code_zero_table,
            codes: checker.output("output_codes", &arguments.codes, &[codes])?,
            codec_sum: checker.output("codec_sum", &arguments.codec_sum, &[width])?,
            codec_hiddens: checker.output("codec_hiddens", &arguments.codec_hiddens, &[codes, width])?,
            status: checker.output("status", &arguments.status, &[])?,
            logits: match &arguments.logits {
                Some(tensor) => Some(checker.output("logits", tensor, &logits)?),
                None => None,
            },
            scratch: Mutex::default(),
            executor,
        };
        expect_type(&prepared.codes, &INTEGERS)?;
        prepared.refuse_unset_frame_index()?;
        prepared.refuse_overlaps()?;
        Ok(prepared)
    }

    /// A sampled frame needs the frame's index, and it is known now whether it is missing.
    fn refuse_unset_frame_index(&self) -> Result<(), Raised> {
        let unset = matches!(&*lock(&self.frame_index), FrameIndex::Number(None));
        let sampled = match &self.sampling {
            Sampling::Rows(rows) => rows.iter().any(|params| !params.is_greedy()),
            Sampling::Arrays(_) => true,
        };
        if unset && sampled {
            return Err(
                Raised::input("frame_idx is unset (-1): a sampled frame needs its index").key("frame_idx")
            );
        }
        Ok(())
    }

    /// What a frame writes. An index that it advances is among it.
    fn outputs<'a>(&'a self, frame_index: &'a FrameIndex) -> impl Iterator<Item = &'a ImportedTensor> {
        let advanced = tensor_of(frame_index).filter(|_| self.advance);
        [&self.codes, &self.codec_sum, &self.codec_hiddens, &self.status]
            .into_iter()
            .chain(&self.logits)
            .chain(advanced)
    }

    /// What a frame only reads.
    fn inputs<'a>(&'a self, frame_index: &'a FrameIndex) -> impl Iterator<Item = &'a ImportedTensor> {
        let code_zero = match &self.code_zero {
            CodeZero::Host(_) => None,
            CodeZero::Tensor(tensor) => Some(tensor),
        };
        let sampling = match &self.sampling {
            Sampling::Rows(_) => [None; 4],
            Sampling::Arrays(tensors) => {
                [&tensors.temperature, &tensors.top_k, &tensors.top_p, &tensors.seed].map(Some)
            }
        };
        let table = match &self.code_zero_table {
            CodeZeroTable::Loaded(_) => None,
            CodeZeroTable::Lent(tensor, _) => Some(&**tensor),
        };
        let counted = tensor_of(frame_index).filter(|_| !self.advance);
        let others = [code_zero, self.active.as_ref(), table, counted];
        [&self.talker_last_hidden]
            .into_iter()
            .chain(sampling.into_iter().flatten())
            .chain(others.into_iter().flatten())
    }

    /// No output may share memory with an input or with another output.
    fn refuse_overlaps(&self) -> Result<(), Raised> {
        let frame_index = lock(&self.frame_index);
        let outputs: Vec<_> = self.outputs(&frame_index).collect();
        let inputs: Vec<_> = self.inputs(&frame_index).collect();
        for (index, output) in outputs.iter().enumerate() {
            refuse_overlap(output, inputs.iter().chain(&outputs[index + 1..]).copied())?;
        }
        Ok(())
    }

    fn run(&self) -> Result<(), Raised> {
        let mut state = self.executor.enter()?;
        let mut scratch = lock(&self.scratch);
        let mut frame_index = lock(&self.frame_index);
        if let Some(memory) = state.arena.lent_memory() {
            refuse_overlap(memory, self.inputs(&frame_index).chain(self.outputs(&frame_index)))?;
        }
        self.gather(&mut scratch, &frame_index)?;
        self.predict(&mut state, &mut scratch);
        self.scatter(&mut scratch)?;
        if self.advance {
            self.advance(&mut frame_index, &mut scratch)?;
        }
        Ok(())
    }

    /// Reads the inputs of the rows that take part.
    fn gather(&self, scratch: &mut Scratch, frame_index: &FrameIndex) -> Result<(), Raised> {
        let width = self.executor.spec.talker_hidden_size;
        scratch.rows.clear();
        match &self.active {
            None => scratch.rows.extend(0..self.batch),
            Some(active) => {
                let active = read_integers(active, &mut scratch.integers)?;
                scratch.rows.extend((0..self.batch).filter(|&row| active[row] != 0));
            }
        }
        scratch.hidden.resize(scratch.rows.len() * width, 0.0);
        for (&row, hidden) in scratch.rows.iter().zip(scratch.hidden.chunks_exact_mut(width)) {
            self.talker_last_hidden.read_row_f32(&[row], hidden)?;
        }
        let code_zero = match &self.code_zero {
            CodeZero::Host(codes) => codes.as_slice(),
            CodeZero::Tensor(tensor) => read_integers(tensor, &mut scratch.integers)?,
        };
        scratch.code_zero.clear();
        scratch.code_zero.extend(scratch.rows.iter().map(|&row| code_zero[row]));
        scratch.sampling.clear();
        for &row in &scratch.rows {
            let params = self.params(row)?;
            let index = match frame_index {
                FrameIndex::Number(number) => number.unwrap_or(0),
                FrameIndex::Tensor(tensor) => {
                    let found = integer(tensor, if tensor.view().elements() == 1 { 0 } else { row })?;
                    u64::try_from(found)
                        .or_else(|_| if params.is_greedy() { Ok(0) } else { Err(unusable(row, found)) })?
                }
            };
            scratch.sampling.push(RowSampling { params, frame_index: index });
        }
        Ok(())
    }

    fn params(&self, row: usize) -> Result<SamplingParams, Raised> {
        match &self.sampling {
            Sampling::Rows(rows) => Ok(rows[row]),
            Sampling::Arrays(tensors) => {
                let float = |tensor: &ImportedTensor| {
                    tensor.view().get_f32(&[row]).map_err(|error| tensor.inaccessible(&error))
                };
                let params = SamplingParams::from_numbers(
                    float(&tensors.temperature)?.into(),
                    i64::try_from(integer(&tensors.top_k, row)?).unwrap_or(i64::MAX),
                    float(&tensors.top_p)?.into(),
                    integer(&tensors.seed, row)? as u64,
                );
                params.map_err(|error| Raised::from(error).context(format!("row {row}")))
            }
        }
    }

    fn predict(&self, state: &mut State, scratch: &mut Scratch) {
        let spec = &self.executor.spec;
        let rows = scratch.rows.len();
        scratch.codes.resize(rows * spec.codes_per_frame(), 0);
        scratch.codec_sum.resize(rows * spec.talker_hidden_size, 0.0);
        scratch.status.resize(rows, 0);
        let logits =
            if self.logits.is_some() { rows * spec.residual_codebooks * spec.codebook_size } else { 0 };
        scratch.logits.resize(logits, 0.0);
        let inputs = FrameInputs {
            talker_last_hidden: &scratch.hidden,
            code_zero: &scratch.code_zero,
            sampling: &scratch.sampling,
            code_zero_table: self.code_zero_table.view(),
        };
        let mut outputs = FrameOutputs {
            codes: &mut scratch.codes,
            codec_sum: &mut scratch.codec_sum,
            status: &mut scratch.status,
            logits: self.logits.as_ref().map(|_| scratch.logits.as_mut_slice()),
        };
        let started = Instant::now();
        state.engine.run_frame(state.arena.blocks(), &inputs, &mut outputs);
        let failed = scratch.status.iter().filter(|&&status| status != STATUS_GOOD).count();
        self.executor.count(rows, failed, started.elapsed());
    }

    /// Writes the outputs of the rows that took part.
    fn scatter(&self, scratch: &mut Scratch) -> Result<(), Raised> {
        let spec = &self.executor.spec;
        let per_row = spec.codes_per_frame();
        let mut codes_out = self.codes.writer()?;
        let mut sum_out = self.codec_sum.writer()?;
        let mut hiddens_out = self.codec_hiddens.writer()?;
        scratch.all_status.clear();
        scratch.all_status.resize(self.batch, STATUS_GOOD);
        for (index, &row) in scratch.rows.iter().enumerate() {
            let codes = &scratch.codes[index * per_row..(index + 1) * per_row];
            codes_out.write_row_i32(&[row], codes).map_err(|error| self.codes.inaccessible(&error))?;
            let width = spec.talker_hidden_size;
            let sum = &scratch.codec_sum[index * width..(index + 1) * width];
            sum_out.write_row_f32(&[row], sum).map_err(|error| self.codec_sum.inaccessible(&error))?;
            // Rows 0 and R are the talker's.
            let embedded = self.executor.tables.iter().zip(&codes[1..]).take(spec.residual_codebooks - 1);
            for (index, (table, &code)) in embedded.enumerate() {
                hiddens_out
                    .write_row_bytes(&[row, index + 1], table.view().row(code as usize))
                    .map_err(|error| self.codec_hiddens.inaccessible(&error))?;
            }
            scratch.all_status[row] = scratch.status[index];
            if let Some(logits) = &self.logits {
                let (size, mut out) = (spec.codebook_size, logits.writer()?);
                for codebook in 0..spec.residual_codebooks {
                    let at = (index * spec.residual_codebooks + codebook) * size;
                    out.write_row_f32(&[row, codebook], &scratch.logits[at..at + size])
                        .map_err(|error| logits.inaccessible(&error))?;
                }
            }
        }
        let written = self.status.writer()?.write_row_i32(&[], &scratch.all_status);
        written.map_err(|error| self.status.inaccessible(&error))
    }

    /// Adds one to the frame index: to one that counts for all rows, else to those of the rows that took part.
    fn advance(&self, frame_index: &mut FrameIndex, scratch: &mut Scratch) -> Result<(), Raised> {
        match frame_index {
            FrameIndex::Number(number) => *number = number.map(|number| number.wrapping_add(1)),
            FrameIndex::Tensor(tensor) => {
                let inaccessible = |error| tensor.inaccessible(&error);
                scratch.frame_index.resize(tensor.view().size_in_bytes(), 0);
                tensor.view().read_bytes(&mut scratch.frame_index).map_err(inaccessible)?;
                let (indices, _) = scratch.frame_index.as_chunks_mut();
                let step = |index: &mut [u8; 8]| {
                    *index = u64::from_ne_bytes(*index).wrapping_add(1).to_ne_bytes();
                };
                match indices {
                    [only] => step(only),
                    all => scratch.rows.iter().for_each(|&row| step(&mut all[row])),
                }
                tensor.writer()?.write_row_bytes(&[], &scratch.frame_index).map_err(inaccessible)?;
            }
        }
        Ok(())
    }
}

/// The frame index, when it is a tensor.
fn tensor_of(frame_index: &FrameIndex) -> Option<&ImportedTensor> {
    match frame_index {
        FrameIndex::Number(_) => None,
        FrameIndex::Tensor(tensor) => Some(tensor),
    }
}

/// An `InputError` when `written` shares memory with one of `others`.
fn refuse_overlap<'a>(
    written: &ImportedTensor,
    mut others: impl Iterator<Item = &'a ImportedTensor>,
) -> Result<(), Raised> {
    match others.find(|other| overlaps(written.view(), other.view())) {
        None => Ok(()),
        Some(other) => Err(Raised::input(format!("{} overlaps {} in memory", written.name(), other.name()))
            .tensor(written.name())
            .found(format!("memory shared with {}", other.name()))
            .expected("memory of its own")),
    }
}

/// Reads a whole vector.
fn read_integers<'a>(tensor: &ImportedTensor, to: &'a mut Vec<i64>) -> Result<&'a [i64], Raised> {
    to.resize(tensor.view().elements(), 0);
    tensor.read_i64(to)?;
    Ok(to)
}

/// One integer of a vector.
fn integer(tensor: &ImportedTensor, row: usize) -> Result<i128, Raised> {
    match tensor.view().scalar(&[row]) {
        Some(Scalar::Integer(value)) => Ok(value),
        _ => Err(tensor.refused("no integers", "integers")),
    }
}

fn unusable(row: usize, found: i128) -> Raised {
    Raised::input(format!("frame_idx of row {row} is {found}: a sampled frame needs its index"))
        .tensor("frame_idx")
        .found(found.to_string())
        .expected("0 or above")
}
