//! The arguments of a frame: taken from Python, imported and checked.

use overtone_core::sampling::SamplingParams;
use pyo3::prelude::*;

use crate::dlpack::element::ElementType;
use crate::dlpack::expect::{Expect, expect_shape, expect_type};
use crate::dlpack::import::ImportedTensor;
use crate::errors::Raised;

/// Types of tensors of integers.
pub(super) const INTEGERS: [ElementType; 2] = [ElementType::Int32, ElementType::Int64];
/// Types of tensors of 64-bit words.
const WORDS: [ElementType; 2] = [ElementType::UInt64, ElementType::Int64];
/// Characters of a wrong argument that a message shows.
const SHOWN: usize = 200;

/// The items of the mapping that `prepare_frame` takes, as `overtone.CodePredictor` gives them.
#[derive(Debug, FromPyObject)]
#[pyo3(from_item_all)]
pub struct FrameArguments<'py> {
    pub(super) batch: i64,
    pub(super) exact_rows: bool,
    pub(super) talker_last_hidden: Bound<'py, PyAny>,
    pub(super) code_zero: Bound<'py, PyAny>,
    pub(super) sampling_rows: Option<Vec<(f64, i64, f64, u64)>>,
    pub(super) sampling_arrays: Option<[Bound<'py, PyAny>; 4]>,
    pub(super) frame_idx: Bound<'py, PyAny>,
    pub(super) advance_frame_idx: bool,
    pub(super) active: Option<Bound<'py, PyAny>>,
    pub(super) codes: Bound<'py, PyAny>,
    pub(super) codec_sum: Bound<'py, PyAny>,
    pub(super) codec_hiddens: Bound<'py, PyAny>,
    pub(super) status: Bound<'py, PyAny>,
    pub(super) logits: Option<Bound<'py, PyAny>>,
}

/// `code_0` of every row.
#[derive(Debug)]
pub(super) enum CodeZero {
    Host(Vec<i64>),
    Tensor(ImportedTensor),
}

/// Sampling parameters of every row.
#[derive(Debug)]
pub(super) enum Sampling {
    Rows(Vec<SamplingParams>),
    Arrays(Box<SamplingTensors>),
}

/// Sampling parameters in tensors, [B] each, read at each launch.
#[derive(Debug)]
pub(super) struct SamplingTensors {
    pub(super) temperature: ImportedTensor,
    pub(super) top_k: ImportedTensor,
    pub(super) top_p: ImportedTensor,
    pub(super) seed: ImportedTensor,
}

/// Where the frame index comes from.
#[derive(Debug)]
pub(super) enum FrameIndex {
    /// One for all rows; `None` when unset.
    Number(Option<u64>),
    /// [1] or [B], read at each launch.
    Tensor(ImportedTensor),
}

/// Imports and checks the tensors of one frame.
pub(super) struct Checker {
    pub(super) batch: usize,
    /// Whether a tensor must have exactly the batch's rows, or may have more.
    pub(super) rows: Expect,
}

impl Checker {
    /// A tensor whose first extent is `rows`, the others `rest`.
    fn shaped(
        name: &'static str,
        object: &Bound<'_, PyAny>,
        rows: Expect,
        rest: &[Expect],
    ) -> PyResult<ImportedTensor> {
        let tensor = ImportedTensor::new(name, object)?;
        let shape: Vec<_> = [rows].iter().chain(rest).copied().collect();
        expect_shape(&tensor, &shape)?;
        Ok(tensor)
    }

    pub(super) fn rows_of(
        &self,
        name: &'static str,
        object: &Bound<'_, PyAny>,
        rest: &[Expect],
    ) -> PyResult<ImportedTensor> {
        Self::shaped(name, object, self.rows, rest)
    }

    pub(super) fn vector(
        &self,
        name: &'static str,
        object: &Bound<'_, PyAny>,
        types: &[ElementType],
    ) -> PyResult<ImportedTensor> {
        let tensor = self.rows_of(name, object, &[])?;
        expect_type(&tensor, types)?;
        Ok(tensor)
    }

    pub(super) fn output(
        &self,
        name: &'static str,
        object: &Bound<'_, PyAny>,
        rest: &[Expect],
    ) -> PyResult<ImportedTensor> {
        let tensor = Self::shaped(name, object, Expect::AtLeast(self.batch), rest)?;
        tensor.writer()?;
        Ok(tensor)
    }

    pub(super) fn code_zero(&self, object: &Bound<'_, PyAny>) -> PyResult<CodeZero> {
        if object.hasattr("__dlpack__")? || object.hasattr("__array_interface__")? {
            return Ok(CodeZero::Tensor(self.vector("code_zero", object, &INTEGERS)?));
        }
        let codes: Vec<i64> = object.extract().map_err(|_| {
            let text = object.repr().map_or_else(|_| "an object".to_owned(), |text| text.to_string());
            let found: String = text.chars().take(SHOWN).collect();
            let expected = "a tensor of int32 or int64, or a sequence of integers";
            Raised::input(format!("code_zero: found {found}, expected {expected}"))
                .tensor("code_zero")
                .found(found)
                .expected(expected)
        })?;
        if codes.len() == self.batch {
            Ok(CodeZero::Host(codes))
        } else {
            Err(counted("code_zero", codes.len(), self.batch).into())
        }
    }

    pub(super) fn sampling(&self, arguments: &FrameArguments<'_>) -> PyResult<Sampling> {
        if let Some([temperature, top_k, top_p, seed]) = &arguments.sampling_arrays {
            return Ok(Sampling::Arrays(Box::new(SamplingTensors {
                temperature: self.vector("temperature", temperature, &[ElementType::Float32])?,
                top_k: self.vector("top_k", top_k, &INTEGERS)?,
                top_p: self.vector("top_p", top_p, &[ElementType::Float32])?,
                seed: self.vector("seed", seed, &WORDS)?,
            })));
        }
        let Some(rows) = &arguments.sampling_rows else {
            return Ok(Sampling::Rows(vec![SamplingParams::greedy(); self.batch]));
        };
        if rows.len() != self.batch {
            return Err(counted("sampling", rows.len(), self.batch).into());
        }
        let rows = rows.iter().map(|&(temperature, top_k, top_p, seed)| {
            SamplingParams::from_numbers(temperature, top_k, top_p, seed).map_err(Raised::from)
        });
        Ok(Sampling::Rows(rows.collect::<Result<_, _>>()?))
    }

    pub(super) fn frame_index(&self, object: &Bound<'_, PyAny>, advance: bool) -> PyResult<FrameIndex> {
        if object.hasattr("__dlpack__")? {
            let tensor = ImportedTensor::new("frame_idx", object)?;
            let one = tensor.view().shape() == [1];
            expect_shape(&tensor, &[if one { Expect::Is(1) } else { self.rows }])?;
            expect_type(&tensor, &WORDS)?;
            if advance {
                tensor.writer()?;
            }
            return Ok(FrameIndex::Tensor(tensor));
        }
        if let Ok(number) = object.extract::<u64>() {
            return Ok(FrameIndex::Number(Some(number)));
        }
        if object.extract::<i64>().is_ok_and(|number| number == -1) {
            return Ok(FrameIndex::Number(None));
        }
        Err(Raised::input(format!("frame_idx: found {object}, expected a whole number from 0 to 2^64 - 1"))
            .key("frame_idx")
            .found(object.to_string())
            .expected("0 to 2^64 - 1")
            .into())
    }
}

/// An `InputError` for a sequence of the wrong length.
fn counted(name: &'static str, found: usize, expected: usize) -> Raised {
    Raised::input(format!("{name}: found {found} entries, expected {expected}, one per row"))
        .key(name)
        .found(found.to_string())
        .expected(expected.to_string())
}
