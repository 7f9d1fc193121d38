//! The tensors that an executor makes for a frame's outputs, and those of frames that reuse them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use overtone_core::spec::ModelSpec;
use overtone_core::tensor::FloatType;
use pyo3::prelude::*;

use super::FrameTargets;
use crate::dlpack::element::ElementType;
use crate::dlpack::import::ImportedTensor;
use crate::executor::lock;
use crate::tensor::Tensor;
use crate::tensor::producer::Producer;

/// What the shapes and types of a frame's outputs follow from, besides the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OutputKind {
    /// B.
    pub batch: usize,
    /// Type of the hidden rows, and so of `codec_sum`.
    pub hidden_type: FloatType,
    /// Whether there are logits.
    pub logits: bool,
}

impl OutputKind {
    /// Type and shape of codes, `codec_sum`, `codec_hiddens`, status and logits, in this order.
    pub fn layout(self, spec: &ModelSpec, table_type: FloatType) -> Vec<(ElementType, Vec<usize>)> {
        let (batch, codes, width) = (self.batch, spec.codes_per_frame(), spec.talker_hidden_size);
        let mut layout = vec![
            (ElementType::Int32, vec![batch, codes]),
            (self.hidden_type.into(), vec![batch, width]),
            (table_type.into(), vec![batch, codes, width]),
            (ElementType::Int32, vec![batch]),
        ];
        if self.logits {
            let shape = vec![batch, spec.residual_codebooks, spec.codebook_size];
            layout.push((ElementType::Float32, shape));
        }
        layout
    }
}

/// The tensors of one frame's outputs.
#[derive(Debug)]
#[allow(missing_docs, reason = "each is its own name")]
pub struct Outputs {
    pub codes: Py<Tensor>,
    pub codec_sum: Py<Tensor>,
    pub codec_hiddens: Py<Tensor>,
    pub status: Py<Tensor>,
    pub logits: Option<Py<Tensor>>,
}

impl Outputs {
    /// Outputs of `kind`, each tensor as `make` makes it from its place in the layout, its type and its shape.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn new(
        py: Python<'_>,
        layout: &[(ElementType, Vec<usize>)],
        mut make: impl FnMut(usize, ElementType, &[usize]) -> PyResult<Tensor>,
    ) -> PyResult<Self> {
        let mut tensor = |place: usize| {
            let (element, shape) = &layout[place];
            Py::new(py, make(place, *element, shape)?)
        };
        Ok(Self {
            codes: tensor(0)?,
            codec_sum: tensor(1)?,
            codec_hiddens: tensor(2)?,
            status: tensor(3)?,
            logits: if layout.len() > 4 { Some(tensor(4)?) } else { None },
        })
    }

    /// The same tensors once more.
    #[must_use]
    pub fn share(&self, py: Python<'_>) -> Self {
        Self {
            codes: self.codes.clone_ref(py),
            codec_sum: self.codec_sum.clone_ref(py),
            codec_hiddens: self.codec_hiddens.clone_ref(py),
            status: self.status.clone_ref(py),
            logits: self.logits.as_ref().map(|tensor| tensor.clone_ref(py)),
        }
    }

    /// The outputs of a frame that writes into `targets`: where those are the caller's own, tensors over them, which
    /// `producer` fills.
    ///
    /// # Errors
    /// When Python cannot allocate.
    pub fn of_targets(
        self,
        py: Python<'_>,
        targets: &FrameTargets,
        producer: Option<&Arc<dyn Producer>>,
    ) -> PyResult<Self> {
        let over = |made: Py<Tensor>, target: &ImportedTensor| {
            if made.get().view().data() == target.view().data() {
                return Ok(made);
            }
            Py::new(py, Tensor::over(target.view().clone(), target.owner(), producer.cloned()))
        };
        Ok(Self {
            codes: over(self.codes, &targets.codes)?,
            codec_hiddens: over(self.codec_hiddens, &targets.codec_hiddens)?,
            ..self
        })
    }
}

/// Outputs that frames of the same kind write one after another, with what else belongs to them.
#[derive(Debug)]
pub struct ReusedOutputs<T>(Mutex<HashMap<OutputKind, Arc<(Outputs, T)>>>);

impl<T> Default for ReusedOutputs<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> ReusedOutputs<T> {
    /// Those of `kind`, made at the first time.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn get(
        &self,
        kind: OutputKind,
        make: impl FnOnce() -> PyResult<(Outputs, T)>,
    ) -> PyResult<Arc<(Outputs, T)>> {
        if let Some(found) = lock(&self.0).get(&kind) {
            return Ok(Arc::clone(found));
        }
        // Outside the lock: making Python objects may run Python code, which may come back here.
        let made = Arc::new(make()?);
        Ok(Arc::clone(lock(&self.0).entry(kind).or_insert(made)))
    }
}
