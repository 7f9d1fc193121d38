//! The arguments of one step: sizes, phase, and the lengths of its rows.
//!
//! Lengths that come with the call (a sequence, or a tensor that the host has to read for the executor) are checked here, and
//! raise. Those in tensors where the executor works are read when the step is published; a row that cannot be, says so then.

use overtone_core::ragged::{GivenRow, Phase, RaggedConfig, RowFault};
use pyo3::prelude::*;
use pyo3::types::PyList;

use super::{RaggedTensors, refused, told};
use crate::dlpack::expect::{Expect, expect_shape, expect_type};
use crate::dlpack::import::ImportedTensor;
use crate::errors::Raised;
use crate::frame::arguments::{INTEGERS, counted, is_tensor};
use crate::frame::refuse_overlap;
use crate::frame::site::{Reach, Site};

/// Lengths of the rows of a step.
#[derive(Debug)]
pub enum Lengths {
    /// One a row, checked; 0 for the past of a row that brings no tokens.
    Given(Vec<i32>),
    /// At least one a row, int32 or int64, where the executor works.
    Tensor(ImportedTensor),
}

impl Lengths {
    /// The tensor, when it is one.
    pub const fn tensor(&self) -> Option<&ImportedTensor> {
        match self {
            Self::Given(_) => None,
            Self::Tensor(tensor) => Some(tensor),
        }
    }
}

/// A step, as far as the host can check it.
#[derive(Debug)]
pub struct StepArguments {
    /// Rows, 1 to `max_batch`.
    pub batch: usize,
    /// Places of a row, 1 to `max_query_width`; 1 in [`Phase::Decode`].
    pub query_width: usize,
    /// What it is for.
    pub phase: Phase,
    /// Tokens that rows bring.
    pub query_lengths: Lengths,
    /// Tokens that their states hold; `None`: the KV lengths that the engine lends.
    pub past_lengths: Option<Lengths>,
}

/// The arguments of `prepare` as Python gives them.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "they are described where Python has them")]
pub struct GivenStep<'a, 'py> {
    pub query_lengths: &'a Bound<'py, PyAny>,
    pub past_lengths: Option<&'a Bound<'py, PyAny>>,
    pub batch_size: i64,
    pub query_width: i64,
    pub phase: &'a Bound<'py, PyAny>,
}

impl StepArguments {
    /// Imports and checks a step's arguments.
    ///
    /// # Errors
    /// An `InputError` that names the argument, and the row of a length that is out of range.
    pub fn new(site: Site, tensors: &RaggedTensors, given: &GivenStep<'_, '_>) -> PyResult<Self> {
        let config = &tensors.config;
        let phase = given.phase.extract().ok().and_then(|name: &str| Phase::from_name(name));
        let phase = phase.ok_or_else(|| refused("phase", given.phase, "prefill, decode or verify"))?;
        let batch = within("batch_size", given.batch_size, config.max_batch, "config.max_batch")?;
        let most = if phase == Phase::Decode { 1 } else { config.max_query_width };
        let limit = if phase == Phase::Decode { "phase decode" } else { "config.max_query_width" };
        let query_width = within("query_width", given.query_width, most, limit)?;
        let queries = GivenLengths::new(site, "query_lengths", given.query_lengths, batch)?;
        let pasts = given
            .past_lengths
            .map(|object| GivenLengths::new(site, "past_lengths", object, batch))
            .transpose()?;
        if pasts.is_none() && tensors.kv_lengths.is_none() {
            let expected = "one a row, where io.kv_lengths lends none";
            return Err(told("past_lengths", "None".to_owned(), expected).into());
        }
        let check = Check { config, query_width, phase };
        let past_lengths = match pasts {
            None => {
                check.queries(queries.given())?;
                None
            }
            Some(pasts) => Some(pasts.checked(|pasts| check.pasts(queries.given(), pasts))?),
        };
        let query_lengths = queries.checked(|queries| check.queries(Some(queries)))?;
        let step = Self { batch, query_width, phase, query_lengths, past_lengths };
        for tensor in step.tensors() {
            refuse_overlap(tensor, tensors.written())?;
        }
        Ok(step)
    }

    /// Every tensor among them.
    pub fn tensors(&self) -> impl Iterator<Item = &ImportedTensor> {
        self.query_lengths.tensor().into_iter().chain(self.past_lengths.iter().filter_map(Lengths::tensor))
    }

    /// The first argument whose values come with the call.
    pub fn given_by_host(&self) -> Option<&'static str> {
        match (&self.query_lengths, &self.past_lengths) {
            (Lengths::Given(_), _) => Some("query_lengths"),
            (_, Some(Lengths::Given(_))) => Some("past_lengths"),
            _ => None,
        }
    }
}

/// Lengths on their way to being checked.
enum GivenLengths {
    Given(Vec<i64>),
    Tensor(ImportedTensor),
}

impl GivenLengths {
    fn new(site: Site, name: &'static str, object: &Bound<'_, PyAny>, batch: usize) -> PyResult<Self> {
        if object.is_instance_of::<PyList>() || !is_tensor(object)? {
            let expected = "a tensor of int32 or int64, or a sequence of integers";
            let lengths: Vec<i64> = object.extract().map_err(|_| refused(name, object, expected))?;
            return match lengths.len() {
                found if found == batch => Ok(Self::Given(lengths)),
                found => Err(counted(name, found, batch).into()),
            };
        }
        let tensor = site.import(name, object, Reach::WorkOrHost)?;
        expect_shape(&tensor, &[Expect::AtLeast(batch)])?;
        expect_type(&tensor, &INTEGERS)?;
        match site {
            Site::Cuda { .. } if tensor.device().is_host() => Ok(Self::Given(read_first(&tensor, batch)?)),
            _ => Ok(Self::Tensor(tensor)),
        }
    }

    fn given(&self) -> Option<&[i64]> {
        match self {
            Self::Given(lengths) => Some(lengths),
            Self::Tensor(_) => None,
        }
    }

    fn checked(self, check: impl FnOnce(&[i64]) -> Result<Vec<i32>, Raised>) -> Result<Lengths, Raised> {
        match self {
            Self::Given(lengths) => check(&lengths).map(Lengths::Given),
            Self::Tensor(tensor) => Ok(Lengths::Tensor(tensor)),
        }
    }
}

/// The first integers of a vector in host memory.
///
/// # Errors
/// An `InputError` when it has fewer.
pub fn read_first(tensor: &ImportedTensor, length: usize) -> Result<Vec<i64>, Raised> {
    let mut integers = vec![0; length];
    let first = tensor.view().slice(0..length).ok_or_else(|| {
        tensor.refused(&format!("{} elements", tensor.view().elements()), &format!("{length} or more"))
    })?;
    first.read_row_i64(&[], &mut integers).map_err(|error| tensor.inaccessible(&error))?;
    Ok(integers)
}

/// What lengths are checked against.
struct Check<'a> {
    config: &'a RaggedConfig,
    query_width: usize,
    phase: Phase,
}

impl Check<'_> {
    /// Query lengths, when they are known.
    fn queries(&self, queries: Option<&[i64]>) -> Result<Vec<i32>, Raised> {
        let mut checked = Vec::new();
        for (row, &query_length) in queries.unwrap_or_default().iter().enumerate() {
            let given = GivenRow { query_length, state_index: 0, past_length: 0 };
            if self.config.fault(&given, self.query_width, self.phase) == Some(RowFault::QueryLength) {
                let expected = format!("0 to {} (query_width)", self.query_width);
                return Err(wrong_length("query_lengths", row, query_length, &expected));
            }
            checked.push(query_length as i32);
        }
        Ok(checked)
    }

    /// Past lengths; without the query lengths, only for what no row can have.
    fn pasts(&self, queries: Option<&[i64]>, pasts: &[i64]) -> Result<Vec<i32>, Raised> {
        self.queries(queries)?;
        let mut checked = Vec::new();
        for (row, &past_length) in pasts.iter().enumerate() {
            let query_length = queries.map_or(0, |queries| queries[row]);
            if queries.is_some() && query_length == 0 {
                checked.push(0);
                continue;
            }
            let given = GivenRow { query_length, state_index: 0, past_length };
            let known_fault = self.config.fault(&given, self.query_width, self.phase);
            let most = self.config.max_positions as i64 - query_length;
            if !(0..=most).contains(&past_length) {
                let brought = if query_length == 0 { String::new() } else { format!(" - {query_length}") };
                let expected = format!("0 to {}{brought} (config.max_positions)", self.config.max_positions);
                return Err(wrong_length("past_lengths", row, past_length, &expected));
            }
            if known_fault == Some(RowFault::PastOfPrefill) {
                let expected = "0 in a prefill, unless config.chunked_prefill";
                return Err(wrong_length("past_lengths", row, past_length, expected));
            }
            checked.push(past_length as i32);
        }
        Ok(checked)
    }
}

fn wrong_length(name: &'static str, row: usize, found: i64, expected: &str) -> Raised {
    Raised::input(format!("{name}: row {row} has {found}, expected {expected}"))
        .key(name)
        .found(found.to_string())
        .expected(expected)
}

fn within(name: &'static str, found: i64, most: usize, limit: &str) -> Result<usize, Raised> {
    match usize::try_from(found) {
        Ok(number) if (1..=most).contains(&number) => Ok(number),
        _ if most == 1 => Err(told(name, found.to_string(), &format!("1 ({limit})"))),
        _ => Err(told(name, found.to_string(), &format!("1 to {most} ({limit})"))),
    }
}
