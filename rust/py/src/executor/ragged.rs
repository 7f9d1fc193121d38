//! `RaggedPlan`: steps of a talker's engine in host memory, laid out by the core.

use overtone_core::ragged::GivenRow;
use pyo3::prelude::*;

use crate::dlpack::access::Writer;
use crate::dlpack::import::ImportedTensor;
use crate::errors::Raised;
use crate::frame::site::Site;
use crate::ragged::step::{GivenStep, Lengths, StepArguments, read_first};
use crate::ragged::{GivenBatch, GivenIo, RaggedTensors};

/// Where steps are published: tensors that were imported and checked.
#[pyclass(frozen, module = "overtone._core")]
#[derive(Debug)]
pub struct RaggedPlan(RaggedTensors);

#[pymethods]
impl RaggedPlan {
    /// Publishes a step. The stream is for executors that have some.
    #[pyo3(signature = (query_lengths, past_lengths, batch_size, query_width, phase, stream = None))]
    fn prepare(
        &self,
        query_lengths: &Bound<'_, PyAny>,
        past_lengths: Option<&Bound<'_, PyAny>>,
        batch_size: i64,
        query_width: i64,
        phase: &Bound<'_, PyAny>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let _ = stream;
        let given = GivenStep { query_lengths, past_lengths, batch_size, query_width, phase };
        let step = StepArguments::new(Site::Host, &self.0, &given)?;
        Ok(self.publish(&step)?)
    }
}

impl RaggedPlan {
    /// Imports and checks the tensors.
    ///
    /// # Errors
    /// An `InputError` that names one.
    pub fn new(batch: &GivenBatch<'_>, io: &GivenIo<'_>, config: &Bound<'_, PyAny>) -> PyResult<Self> {
        RaggedTensors::new(Site::Host, batch, io, config).map(Self)
    }

    fn publish(&self, step: &StepArguments) -> Result<(), Raised> {
        let (tensors, config) = (&self.0, &self.0.config);
        let kv_lengths = match &tensors.kv_lengths {
            None => Vec::new(),
            Some(lengths) => read_first(lengths, config.max_states)?,
        };
        let rows = self.rows(step, &kv_lengths)?;
        let published = config.publish(&rows, step.query_width, step.phase);
        let faults = published.status.iter().filter(|&&status| status != 0);
        let faults = faults.fold(read_first(&tensors.faults, 1)?[0], |bits, &status| bits | 1 << status);
        for (tensor, values) in [
            (&tensors.query_offsets, &published.query_offsets),
            (&tensors.query_lengths, &published.query_lengths),
            (&tensors.past_lengths, &published.past_lengths),
            (&tensors.total_lengths, &published.total_lengths),
            (&tensors.last_tokens, &published.last_tokens),
            (&tensors.status, &published.status),
        ] {
            let values: Vec<i64> = values.iter().copied().map(i64::from).collect();
            write(tensor, 0, &values)?;
        }
        write(&tensors.positions, 0, &published.positions)?;
        write(&tensors.state_indices, 0, &published.state_indices)?;
        write(&tensors.phase, 0, &[step.phase as i64])?;
        write(&tensors.faults, 0, &[faults])?;
        if let Some(lengths) = tensors.kv_lengths.as_ref().filter(|_| tensors.advance) {
            for (row, given) in rows.iter().enumerate().filter(|(row, _)| published.query_lengths[*row] > 0) {
                write(lengths, given.state_index as usize, &[i64::from(published.total_lengths[row])])?;
            }
        }
        Ok(())
    }

    /// What the rows of a step say.
    fn rows(&self, step: &StepArguments, kv_lengths: &[i64]) -> Result<Vec<GivenRow>, Raised> {
        let batch = step.batch;
        let read = |lengths: &Lengths| match lengths {
            Lengths::Given(lengths) => Ok(lengths.iter().copied().map(i64::from).collect()),
            Lengths::Tensor(tensor) => read_first(tensor, batch),
        };
        let queries = read(&step.query_lengths)?;
        let states = match &self.0.given_states {
            None => (0..batch as i64).collect(),
            Some(states) => read_first(states, batch)?,
        };
        let pasts = match &step.past_lengths {
            Some(lengths) => read(lengths)?,
            None => {
                let of_state =
                    |&state: &i64| usize::try_from(state).ok().and_then(|state| kv_lengths.get(state));
                states.iter().map(|state| of_state(state).copied().unwrap_or(0)).collect()
            }
        };
        let row = |row: usize| GivenRow {
            query_length: queries[row],
            state_index: states[row],
            past_length: pasts[row],
        };
        Ok((0..batch).map(row).collect())
    }
}

/// Writes values into a vector, from a place on.
fn write(tensor: &ImportedTensor, start: usize, values: &[i64]) -> Result<(), Raised> {
    let part = tensor.view().slice(start..start + values.len()).ok_or_else(|| {
        let (found, expected) = (tensor.view().elements(), start + values.len());
        tensor.refused(&format!("{found} elements"), &format!("{expected} or more"))
    })?;
    Writer::new(&part).write_row_i64(&[], values).map_err(|error| tensor.inaccessible(&error))
}
