//! A frame's tensors as every executor meets them: imported and checked once, then read and written by each launch.
//!
//! | room | what it holds |
//! |---|---|
//! | [`arguments`] | what Python gives, by kind |
//! | [`site`] | where an executor works, and how far from there a tensor may be |
//! | [`outputs`] | the tensors that an executor makes for a frame's outputs |
//! | [`host_values`] | parameters in host memory: read, and counted on |
//!
//! How a frame runs is the executors' own.

use overtone_core::spec::ModelSpec;
use overtone_core::tensor::FloatType;
use pyo3::prelude::*;
use std::sync::Arc;

use crate::dlpack::expect::{Expect, expect_float, expect_shape, expect_type};
use crate::dlpack::import::ImportedTensor;
use crate::dlpack::view::overlaps;
use crate::errors::{ErrorClass, Raised};
use crate::streams::StreamHandle;
use arguments::{Checker, CodeZero, FrameArguments, FrameIndex, INTEGERS, Sampling, TRUTHS};
use outputs::Outputs;
use site::{Reach, Site};

pub mod arguments;
pub mod host_values;
pub mod outputs;
pub mod site;

/// What a frame reads.
#[derive(Debug)]
pub struct FrameInputs {
    /// B.
    pub batch: usize,
    /// [B, Ht].
    pub talker_last_hidden: ImportedTensor,
    /// Its type, and that of `codec_sum`.
    pub hidden_type: FloatType,
    /// `code_0` of every row.
    pub code_zero: CodeZero,
    /// How rows draw.
    pub sampling: Sampling,
    /// The index, part of the noise's counter.
    pub frame_index: FrameIndex,
    /// Whether the frame adds one to it.
    pub advance: bool,
    /// `[B]`: rows whose entry is 0 are left out.
    pub active: Option<ImportedTensor>,
}

impl FrameInputs {
    /// Imports and checks what a frame of at most `limit` rows reads.
    ///
    /// # Errors
    /// An `InputError` that names the argument.
    pub fn new(site: Site, spec: &ModelSpec, limit: usize, arguments: &FrameArguments<'_>) -> PyResult<Self> {
        let talker_last_hidden =
            site.import("talker_last_hidden", &arguments.talker_last_hidden, Reach::Work)?;
        let width = Expect::Is(spec.talker_hidden_size);
        let rows = match arguments.batch {
            Some(batch) => Expect::AtLeast(batch),
            None => Expect::Any("B"),
        };
        expect_shape(&talker_last_hidden, &[rows, width])?;
        let batch = arguments.batch.unwrap_or_else(|| talker_last_hidden.view().shape()[0]);
        if !(1..=limit).contains(&batch) {
            return Err(too_many_rows(batch, limit).into());
        }
        let rows = arguments.batch.map_or(Expect::Is(batch), Expect::AtLeast);
        let checker = Checker { site, batch, rows };
        let inputs = Self {
            batch,
            hidden_type: expect_float(&talker_last_hidden)?,
            talker_last_hidden,
            code_zero: checker.code_zero(&arguments.code_zero)?,
            sampling: checker.sampling(&arguments.sampling)?,
            frame_index: checker.frame_index(&arguments.frame_idx, arguments.advance_frame_idx)?,
            advance: arguments.advance_frame_idx,
            active: match &arguments.active {
                Some(active) => Some(checker.vector("active", active, &TRUTHS)?),
                None => None,
            },
        };
        inputs.refuse_unset_frame_index()?;
        Ok(inputs)
    }

    /// Whether any row draws by chance, as far as the host knows.
    pub fn is_sampled(&self) -> bool {
        match &self.sampling {
            Sampling::Rows(rows) => rows.iter().any(|params| !params.is_greedy()),
            Sampling::Arrays(_) => true,
        }
    }

    /// A sampled frame needs the frame's index, and it is known now whether it is missing.
    fn refuse_unset_frame_index(&self) -> Result<(), Raised> {
        if matches!(self.frame_index, FrameIndex::Number(None)) && self.is_sampled() {
            return Err(
                Raised::input("frame_idx is unset (-1): a sampled frame needs its index").key("frame_idx")
            );
        }
        Ok(())
    }

    /// Every tensor among them.
    pub fn tensors(&self) -> impl Iterator<Item = &ImportedTensor> {
        let code_zero = match &self.code_zero {
            CodeZero::Host(_) => None,
            CodeZero::Tensor(tensor) => Some(tensor),
        };
        let sampling = match &self.sampling {
            Sampling::Rows(_) => [None; 4],
            Sampling::Arrays(tensors) => tensors.all().map(Some),
        };
        let others = [code_zero, self.active.as_ref(), self.frame_index.tensor()];
        [Some(&self.talker_last_hidden)].into_iter().chain(sampling).chain(others).flatten()
    }
}

/// What a frame writes.
#[derive(Debug)]
pub struct FrameTargets {
    /// [B, C]; with a ring [M, B, C].
    pub codes: ImportedTensor,
    /// `[1]`: frames that went into the ring so far.
    pub ring_slot: Option<ImportedTensor>,
    /// [B, Ht].
    pub codec_sum: ImportedTensor,
    /// [B, C, Ht].
    pub codec_hiddens: Arc<ImportedTensor>,
    /// `[B]`.
    pub status: ImportedTensor,
    /// [B, R, V].
    pub logits: Option<ImportedTensor>,
}

impl FrameTargets {
    /// The caller's own tensors where `arguments` or a binding (`codec_hiddens`) names some, else those made for it.
    ///
    /// # Errors
    /// An `InputError` that names the tensor.
    pub fn new(
        py: Python<'_>,
        site: Site,
        spec: &ModelSpec,
        arguments: &FrameArguments<'_>,
        batch: usize,
        made: &Outputs,
        codec_hiddens: Option<Arc<ImportedTensor>>,
    ) -> PyResult<Self> {
        let rows = Expect::AtLeast(batch);
        let codes_per_frame = Expect::Is(spec.codes_per_frame());
        let width = Expect::Is(spec.talker_hidden_size);
        let own = |name, tensor: &Py<_>| site.import(name, tensor.bind(py).as_any(), Reach::Work);
        let (codes, ring_slot) = match (&arguments.codes_ring, &arguments.output_codes) {
            (Some(_), Some(_)) => {
                let raised = Raised::input(
                    "output_codes: found a tensor, expected None where codes_ring takes the codes",
                );
                return Err(raised.tensor("output_codes").into());
            }
            (Some((codes, slot)), None) => {
                let codes = site.import("codes_ring", codes, Reach::Work)?;
                expect_shape(&codes, &[Expect::AtLeast(1), rows, codes_per_frame])?;
                let slot = site.import("codes_ring", slot, Reach::Work)?;
                slot.expect_writable()?;
                (codes, Some(slot))
            }
            (None, given) => {
                let codes = match given {
                    Some(codes) => site.import("output_codes", codes, Reach::WorkOrPinned)?,
                    None => own("output_codes", &made.codes)?,
                };
                expect_shape(&codes, &[rows, codes_per_frame])?;
                (codes, None)
            }
        };
        codes.expect_writable()?;
        expect_type(&codes, &INTEGERS)?;
        let codec_hiddens = match codec_hiddens {
            Some(bound) => bound,
            None => Arc::new(own("codec_hiddens", &made.codec_hiddens)?),
        };
        expect_shape(&codec_hiddens, &[rows, codes_per_frame, width])?;
        Ok(Self {
            codes,
            ring_slot,
            codec_sum: own("codec_sum", &made.codec_sum)?,
            codec_hiddens,
            status: own("status", &made.status)?,
            logits: match &made.logits {
                Some(tensor) => Some(own("logits", tensor)?),
                None => None,
            },
        })
    }

    /// All of them.
    pub fn tensors(&self) -> impl Iterator<Item = &ImportedTensor> {
        [&self.codes, &self.codec_sum, &*self.codec_hiddens, &self.status]
            .into_iter()
            .chain(&self.ring_slot)
            .chain(&self.logits)
    }
}

/// Refuses an output that shares memory with an input or with another output. A frame index that the frame advances is
/// one of the outputs; `table` is the talker's own codec table, where one is bound.
///
/// # Errors
/// An `InputError` that names both.
pub fn refuse_overlaps(
    inputs: &FrameInputs,
    targets: &FrameTargets,
    table: Option<&ImportedTensor>,
) -> Result<(), Raised> {
    let advanced = inputs.frame_index.tensor().filter(|_| inputs.advance);
    let written: Vec<_> = targets.tensors().chain(advanced).collect();
    let is_advanced =
        |tensor: &ImportedTensor| advanced.is_some_and(|advanced| std::ptr::eq(advanced, tensor));
    let read: Vec<_> = inputs.tensors().filter(|tensor| !is_advanced(tensor)).chain(table).collect();
    for (index, output) in written.iter().enumerate() {
        refuse_overlap(output, read.iter().chain(&written[index + 1..]).copied())?;
    }
    Ok(())
}

/// An `InputError` when `written` shares memory with one of `others`.
///
/// # Errors
/// That error.
pub fn refuse_overlap<'a>(
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

/// Streams whose work so far the tensors still have to wait for, each once.
pub fn awaited_streams<'a>(tensors: impl Iterator<Item = &'a ImportedTensor>) -> Vec<StreamHandle> {
    let mut streams = Vec::new();
    for stream in tensors.filter_map(ImportedTensor::awaited_stream) {
        if !streams.contains(&stream) {
            streams.push(stream);
        }
    }
    streams
}

/// A `BindingError`: no executor predicts without E0.
pub fn no_code_zero_table() -> Raised {
    Raised::new(
        ErrorClass::Binding,
        "this checkpoint has no talker's codec table: bind one (code_zero_embed_table), or load with code_zero_table",
    )
}

fn too_many_rows(batch: usize, limit: usize) -> Raised {
    let expected = format!("1 to {limit} (max_batch)");
    Raised::input(format!("active_batch_size: found {batch} rows, expected {expected}"))
        .key("active_batch_size")
        .found(batch.to_string())
        .expected(expected)
}
