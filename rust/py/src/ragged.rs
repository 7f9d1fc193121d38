//! A step of a batch whose rows bring different numbers of query tokens, as every executor meets it: the engine's tensors,
//! imported and checked once, and what a step's own arguments say.
//!
//! What is published [`overtone_core::ragged`] defines; how, is the executors' own.
//!
//! | room | what it holds |
//! |---|---|
//! | [`step`] | the arguments of one step, checked |

use overtone_core::ragged::{RaggedConfig, SizeError, TokenLayout};
use pyo3::prelude::*;

use crate::dlpack::element::ElementType;
use crate::dlpack::expect::{Expect, expect_shape, expect_type};
use crate::dlpack::import::ImportedTensor;
use crate::errors::Raised;
use crate::frame::arguments::{INTEGERS, SHOWN};
use crate::frame::refuse_overlap;
use crate::frame::site::{Reach, Site};

pub mod step;

/// The type of everything but positions and state indices.
const INT32: [ElementType; 1] = [ElementType::Int32];

/// `overtone.RaggedBatch`: where steps are published.
#[derive(Debug, FromPyObject)]
#[allow(missing_docs, reason = "they are described where Python has them")]
pub struct GivenBatch<'py> {
    pub query_offsets: Bound<'py, PyAny>,
    pub query_lengths: Bound<'py, PyAny>,
    pub past_lengths: Bound<'py, PyAny>,
    pub total_lengths: Bound<'py, PyAny>,
    pub last_token_indices: Bound<'py, PyAny>,
    pub positions: Bound<'py, PyAny>,
    pub state_indices: Bound<'py, PyAny>,
    pub phase: Bound<'py, PyAny>,
    pub status: Bound<'py, PyAny>,
    pub faults: Bound<'py, PyAny>,
}

/// `overtone.RaggedIo`: what the engine lends.
#[derive(Debug, FromPyObject)]
#[allow(missing_docs, reason = "they are described where Python has them")]
pub struct GivenIo<'py> {
    pub state_indices: Option<Bound<'py, PyAny>>,
    pub kv_lengths: Option<Bound<'py, PyAny>>,
    pub advance: Bound<'py, PyAny>,
}

/// The tensors that steps of one engine are published in, and what it lends for them. All outputs are contiguous.
#[derive(Debug)]
pub struct RaggedTensors {
    /// What its steps have in common.
    pub config: RaggedConfig,
    /// [rows + 1] int32.
    pub query_offsets: ImportedTensor,
    /// `[rows]` int32.
    pub query_lengths: ImportedTensor,
    /// `[rows]` int32.
    pub past_lengths: ImportedTensor,
    /// `[rows]` int32.
    pub total_lengths: ImportedTensor,
    /// `[rows]` int32.
    pub last_tokens: ImportedTensor,
    /// [rows · `max_query_width`] int32 or int64.
    pub positions: ImportedTensor,
    /// [rows · `max_query_width`] int32 or int64.
    pub state_indices: ImportedTensor,
    /// `[1]` int32.
    pub phase: ImportedTensor,
    /// `[rows]` int32.
    pub status: ImportedTensor,
    /// `[1]` int32.
    pub faults: ImportedTensor,
    /// State of each row, `[rows]` int32 or int64.
    pub given_states: Option<ImportedTensor>,
    /// Length of each state, `[states]` int32.
    pub kv_lengths: Option<ImportedTensor>,
    /// Whether those become the total lengths.
    pub advance: bool,
}

impl RaggedTensors {
    /// Imports and checks what steps write, and what the engine lends.
    ///
    /// # Errors
    /// An `InputError` that names the tensor.
    pub fn new(
        site: Site,
        batch: &GivenBatch<'_>,
        io: &GivenIo<'_>,
        config: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let config = config_of(config)?;
        let rows = config.max_batch;
        let vector = |name, object: &Bound<'_, PyAny>, length: usize, types: &[ElementType]| {
            let tensor = site.import(name, object, Reach::Work)?;
            expect_shape(&tensor, &[Expect::AtLeast(length)])?;
            expect_type(&tensor, types)?;
            Ok::<_, PyErr>(tensor)
        };
        let output = |name, object: &Bound<'_, PyAny>, length: usize, types: &[ElementType]| {
            let tensor = vector(name, object, length, types)?;
            tensor.expect_writable()?;
            if !tensor.view().is_contiguous() {
                return Err(tensor.refused("a strided tensor", "a contiguous one").into());
            }
            Ok::<_, PyErr>(tensor)
        };
        let int32 = |name, object: &Bound<'_, PyAny>, length| output(name, object, length, &INT32);
        let tokens =
            |name, object: &Bound<'_, PyAny>| output(name, object, rows * config.max_query_width, &INTEGERS);
        let lent = |name, object: &Option<Bound<'_, PyAny>>, length, types: &[ElementType]| {
            object.as_ref().map(|object| vector(name, object, length, types)).transpose()
        };
        let tensors = Self {
            query_offsets: int32("batch.query_offsets", &batch.query_offsets, rows + 1)?,
            query_lengths: int32("batch.query_lengths", &batch.query_lengths, rows)?,
            past_lengths: int32("batch.past_lengths", &batch.past_lengths, rows)?,
            total_lengths: int32("batch.total_lengths", &batch.total_lengths, rows)?,
            last_tokens: int32("batch.last_token_indices", &batch.last_token_indices, rows)?,
            positions: tokens("batch.positions", &batch.positions)?,
            state_indices: tokens("batch.state_indices", &batch.state_indices)?,
            phase: int32("batch.phase", &batch.phase, 1)?,
            status: int32("batch.status", &batch.status, rows)?,
            faults: int32("batch.faults", &batch.faults, 1)?,
            given_states: lent("io.state_indices", &io.state_indices, rows, &INTEGERS)?,
            kv_lengths: lent("io.kv_lengths", &io.kv_lengths, config.max_states, &INT32)?,
            advance: io.advance.is_truthy()?,
            config,
        };
        tensors.check_advance()?;
        let written: Vec<_> = tensors.written().collect();
        for (index, output) in written.iter().enumerate() {
            refuse_overlap(output, written[index + 1..].iter().copied().chain(tensors.read()))?;
        }
        Ok(tensors)
    }

    fn check_advance(&self) -> Result<(), Raised> {
        match &self.kv_lengths {
            Some(lengths) if self.advance => lengths.expect_writable(),
            None if self.advance => {
                let (found, expected) = ("True", "False without io.kv_lengths");
                Err(Raised::input(format!("io.advance: found {found}, expected {expected}"))
                    .key("io.advance")
                    .found(found)
                    .expected(expected))
            }
            _ => Ok(()),
        }
    }

    /// All that a step writes.
    pub fn written(&self) -> impl Iterator<Item = &ImportedTensor> {
        let vectors = [
            &self.query_offsets,
            &self.query_lengths,
            &self.past_lengths,
            &self.total_lengths,
            &self.last_tokens,
            &self.positions,
            &self.state_indices,
            &self.phase,
            &self.status,
            &self.faults,
        ];
        vectors.into_iter().chain(self.kv_lengths.as_ref().filter(|_| self.advance))
    }

    /// What it only reads.
    pub fn read(&self) -> impl Iterator<Item = &ImportedTensor> {
        self.given_states.iter().chain(self.kv_lengths.as_ref().filter(|_| !self.advance))
    }
}

/// Raise an `InputError` for a `RaggedConfig` with something that is out of range.
#[pyfunction]
pub fn check_ragged_config(config: &Bound<'_, PyAny>) -> PyResult<()> {
    config_of(config)?;
    Ok(())
}

/// An `overtone.RaggedConfig`, checked.
fn config_of(given: &Bound<'_, PyAny>) -> PyResult<RaggedConfig> {
    let size = |name| number(given, name, "a whole number of 1 or more");
    let max_batch = size("max_batch")?;
    let layout = given.getattr("layout")?;
    let config = RaggedConfig {
        max_batch,
        max_query_width: size("max_query_width")?,
        max_positions: size("max_positions")?,
        max_states: if given.getattr("max_states")?.is_none() { max_batch } else { size("max_states")? },
        layout: layout
            .extract()
            .ok()
            .and_then(|name: &str| TokenLayout::from_name(name))
            .ok_or_else(|| refused("layout", &layout, "padded or packed"))?,
        chunked_prefill: given.getattr("chunked_prefill")?.is_truthy()?,
        padding_position: number(given, "padding_position", "a whole number of 32 bits")?,
    };
    config.check().map_err(Raised::from)?;
    let index_dtype = given.getattr("index_dtype")?;
    let is_integer = |name: &str| INTEGERS.iter().any(|element| element.name() == name);
    if !index_dtype.extract().is_ok_and(is_integer) {
        return Err(refused("index_dtype", &index_dtype, "int32 or int64").into());
    }
    Ok(config)
}

fn number<'py, T: for<'a> FromPyObject<'a, 'py>>(
    given: &Bound<'py, PyAny>,
    name: &'static str,
    expected: &str,
) -> PyResult<T> {
    let value = given.getattr(name)?;
    value.extract().map_err(|_| refused(name, &value, expected).into())
}

/// An `InputError` for an argument that is something else.
fn refused(name: &'static str, found: &Bound<'_, PyAny>, expected: &str) -> Raised {
    let text = found.repr().map_or_else(|_| "an object".to_owned(), |text| text.to_string());
    told(name, text.chars().take(SHOWN).collect(), expected)
}

/// An `InputError` that says what an argument is and what it should have been.
fn told(name: &'static str, found: String, expected: &str) -> Raised {
    Raised::input(format!("{name}: found {found}, expected {expected}"))
        .key(name)
        .found(found)
        .expected(expected)
}

impl From<SizeError> for Raised {
    fn from(error: SizeError) -> Self {
        told(error.name, error.found.to_string(), &format!("1 to {}", error.most))
    }
}
