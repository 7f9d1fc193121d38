//! The arguments of a frame: taken from Python, imported for the place where the executor works, and checked.

use overtone_core::sampling::SamplingParams;
use pyo3::prelude::*;
use pyo3::types::{PyInt, PyList, PyTuple};

use super::site::{Reach, Site};
use crate::dlpack::element::ElementType;
use crate::dlpack::expect::{Expect, expect_shape, expect_type};
use crate::dlpack::import::ImportedTensor;
use crate::errors::Raised;

/// Types of tensors of integers.
pub const INTEGERS: [ElementType; 2] = [ElementType::Int32, ElementType::Int64];
/// Types of tensors of 64-bit words.
const WORDS: [ElementType; 2] = [ElementType::UInt64, ElementType::Int64];
/// Types of tensors of truth values.
pub(super) const TRUTHS: [ElementType; 4] =
    [ElementType::Bool, ElementType::UInt8, ElementType::Int32, ElementType::Int64];
/// Characters of a wrong argument that a message shows.
pub const SHOWN: usize = 200;

/// A frame as `overtone.CodePredictor` gives it: a mapping of these items, or one made from a call's own arguments.
#[derive(Debug, FromPyObject)]
#[pyo3(from_item_all)]
pub struct FrameArguments<'py> {
    /// B; `None` takes the rows that `talker_last_hidden` has, and then every tensor must have exactly as many.
    pub batch: Option<usize>,
    /// [B, Ht].
    pub talker_last_hidden: Bound<'py, PyAny>,
    /// `[B]`, or a sequence of integers.
    pub code_zero: Bound<'py, PyAny>,
    /// See [`GivenSampling`].
    pub sampling: GivenSampling<'py>,
    /// A number, or a tensor `[1]` or `[B]`.
    pub frame_idx: Bound<'py, PyAny>,
    /// Whether the frame adds one to its index.
    pub advance_frame_idx: bool,
    /// `[B]`.
    pub active: Option<Bound<'py, PyAny>>,
    /// [B, C].
    pub output_codes: Option<Bound<'py, PyAny>>,
    /// Codes [M, B, C] and the slot counter `[1]` of a `CodesRing`.
    pub codes_ring: Option<(Bound<'py, PyAny>, Bound<'py, PyAny>)>,
    /// Whether the logits are asked for.
    pub logits: bool,
}

impl<'py> FrameArguments<'py> {
    /// Those of a frame in one call, whose outputs are new.
    pub fn of_call(
        talker_last_hidden: Bound<'py, PyAny>,
        code_zero: Bound<'py, PyAny>,
        sampling: GivenSampling<'py>,
        frame_idx: Bound<'py, PyAny>,
        active: Option<Bound<'py, PyAny>>,
        logits: bool,
    ) -> Self {
        Self {
            batch: None,
            talker_last_hidden,
            code_zero,
            sampling,
            frame_idx,
            advance_frame_idx: false,
            active,
            output_codes: None,
            codes_ring: None,
            logits,
        }
    }
}

/// Temperature, `top_k`, `top_p` and seed.
type Row = (f64, i64, f64, u64);

/// Sampling parameters, by the kind of object that holds them.
#[derive(Debug)]
pub enum GivenSampling<'py> {
    /// `None`.
    Greedy,
    /// One tuple for all rows.
    One(Row),
    /// A list of tuples, one for each row.
    Rows(Vec<Row>),
    /// Anything else: an object with a tensor for each parameter.
    Arrays([Bound<'py, PyAny>; 4]),
}

impl<'py> FromPyObject<'_, 'py> for GivenSampling<'py> {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if object.is_none() {
            Ok(Self::Greedy)
        } else if object.is_instance_of::<PyTuple>() {
            Ok(Self::One(object.extract()?))
        } else if object.is_instance_of::<PyList>() {
            Ok(Self::Rows(object.extract()?))
        } else {
            let tensor = |name| object.getattr(name);
            Ok(Self::Arrays([tensor("temperature")?, tensor("top_k")?, tensor("top_p")?, tensor("seed")?]))
        }
    }
}

/// `code_0` of every row.
#[derive(Debug)]
pub enum CodeZero {
    /// Numbers.
    Host(Vec<i64>),
    /// `[B]`, read at each launch.
    Tensor(ImportedTensor),
}

/// Sampling parameters of every row.
#[derive(Debug)]
pub enum Sampling {
    /// Numbers.
    Rows(Vec<SamplingParams>),
    /// Tensors, read at each launch.
    Arrays(Box<SamplingTensors>),
}

/// Sampling parameters in tensors, `[B]` each, all in one place.
#[derive(Debug)]
#[allow(missing_docs, reason = "each is its own name")]
pub struct SamplingTensors {
    pub temperature: ImportedTensor,
    pub top_k: ImportedTensor,
    pub top_p: ImportedTensor,
    pub seed: ImportedTensor,
}

impl SamplingTensors {
    /// All four.
    pub const fn all(&self) -> [&ImportedTensor; 4] {
        [&self.temperature, &self.top_k, &self.top_p, &self.seed]
    }
}

/// Where the frame index comes from.
#[derive(Debug)]
pub enum FrameIndex {
    /// One for all rows; `None` when unset.
    Number(Option<u64>),
    /// `[1]` or `[B]`, read at each launch.
    Tensor(ImportedTensor),
}

impl FrameIndex {
    /// The tensor, when it is one.
    pub const fn tensor(&self) -> Option<&ImportedTensor> {
        match self {
            Self::Number(_) => None,
            Self::Tensor(tensor) => Some(tensor),
        }
    }
}

/// Imports and checks the tensors of one frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Checker {
    pub(super) site: Site,
    pub(super) batch: usize,
    /// Whether a tensor must have exactly the batch's rows, or may have more.
    pub(super) rows: Expect,
}

impl Checker {
    /// A vector of one entry a row, where the host may hold it too.
    pub(super) fn vector(
        &self,
        name: &'static str,
        object: &Bound<'_, PyAny>,
        types: &[ElementType],
    ) -> PyResult<ImportedTensor> {
        let tensor = self.site.import(name, object, Reach::WorkOrHost)?;
        expect_shape(&tensor, &[self.rows])?;
        expect_type(&tensor, types)?;
        Ok(tensor)
    }

    pub(super) fn code_zero(&self, object: &Bound<'_, PyAny>) -> PyResult<CodeZero> {
        // A list says what it is; what has no protocol of tensors is taken for a sequence.
        if !object.is_instance_of::<PyList>() && is_tensor(object)? {
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

    pub(super) fn sampling(&self, given: &GivenSampling<'_>) -> PyResult<Sampling> {
        let checked = |&(temperature, top_k, top_p, seed): &Row| {
            SamplingParams::from_numbers(temperature, top_k, top_p, seed).map_err(Raised::from)
        };
        match given {
            GivenSampling::Greedy => Ok(Sampling::Rows(vec![SamplingParams::greedy(); self.batch])),
            GivenSampling::One(row) => Ok(Sampling::Rows(vec![checked(row)?; self.batch])),
            GivenSampling::Rows(rows) if rows.len() != self.batch => {
                Err(counted("sampling", rows.len(), self.batch).into())
            }
            GivenSampling::Rows(rows) => {
                Ok(Sampling::Rows(rows.iter().map(checked).collect::<Result<_, _>>()?))
            }
            GivenSampling::Arrays([temperature, top_k, top_p, seed]) => {
                let tensors = SamplingTensors {
                    temperature: self.vector("temperature", temperature, &[ElementType::Float32])?,
                    top_k: self.vector("top_k", top_k, &INTEGERS)?,
                    top_p: self.vector("top_p", top_p, &[ElementType::Float32])?,
                    seed: self.vector("seed", seed, &WORDS)?,
                };
                let on_host = tensors.temperature.device().is_host();
                if let Some(other) =
                    tensors.all().into_iter().find(|tensor| tensor.device().is_host() != on_host)
                {
                    let found = format!("on {}", other.device());
                    let expected = format!("all sampling arrays on {}", tensors.temperature.device());
                    return Err(other.refused(&found, &expected).into());
                }
                Ok(Sampling::Arrays(Box::new(tensors)))
            }
        }
    }

    pub(super) fn frame_index(&self, object: &Bound<'_, PyAny>, advance: bool) -> PyResult<FrameIndex> {
        if !object.is_instance_of::<PyInt>() && is_tensor(object)? {
            let tensor = self.site.import("frame_idx", object, Reach::WorkOrHost)?;
            let one = tensor.view().shape() == [1];
            expect_shape(&tensor, &[if one { Expect::Is(1) } else { self.rows }])?;
            expect_type(&tensor, &WORDS)?;
            if advance {
                tensor.expect_writable()?;
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

/// Whether an object speaks any of the protocols that tensors are taken by.
///
/// # Errors
/// What looking for them raises.
pub fn is_tensor(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    for protocol in ["__dlpack__", "__array_interface__", "__cuda_array_interface__"] {
        if object.hasattr(protocol)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// An `InputError` for a sequence of the wrong length.
pub fn counted(name: &'static str, found: usize, expected: usize) -> Raised {
    Raised::input(format!("{name}: found {found} entries, expected {expected}, one per row"))
        .key(name)
        .found(found.to_string())
        .expected(expected.to_string())
}
