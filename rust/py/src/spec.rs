//! `overtone.ModelSpec`: the architecture, as Python reads it.

use overtone_core::checkpoint::Checkpoint;
use overtone_core::checkpoint::synthetic::Architecture;
use overtone_core::sampling::SamplingParams;
use overtone_core::spec::{Family, ModelSpec, PositionEncoding};
use pyo3::prelude::*;
use std::path::PathBuf;

use crate::enter::enter;
use crate::errors::{ErrorClass, Raised};

/// The architecture of a code predictor; see `docs/concepts.md` for the symbols.
#[pyclass(frozen, eq, module = "overtone", name = "ModelSpec")]
#[derive(Clone, Debug, PartialEq)]
pub struct PyModelSpec(pub ModelSpec);

#[pymethods]
impl PyModelSpec {
    /// The architecture of a checkpoint; checks everything but the values of its weights.
    #[staticmethod]
    #[pyo3(signature = (artifact_dir, checkpoint_dir=None))]
    fn from_directory(
        py: Python<'_>,
        artifact_dir: PathBuf,
        checkpoint_dir: Option<PathBuf>,
    ) -> PyResult<Self> {
        enter(py, || {
            let checkpoint = Checkpoint::open_with(&artifact_dir, checkpoint_dir.as_deref())?;
            Ok::<_, Raised>(Self(checkpoint.spec().clone()))
        })
    }

    /// A true architecture by name; `ARCHITECTURES` lists them.
    #[staticmethod]
    fn named(architecture: &str) -> Result<Self, Raised> {
        Ok(Self(parse_architecture(architecture)?.spec()))
    }

    /// `qwen3-tts` or `qwen3-omni`.
    #[getter]
    const fn family(&self) -> &'static str {
        match self.0.family {
            Family::Qwen3Tts => "qwen3-tts",
            Family::Qwen3Omni => "qwen3-omni",
        }
    }

    /// R.
    #[getter]
    const fn residual_codebooks(&self) -> usize {
        self.0.residual_codebooks
    }

    /// C = R + 1.
    #[getter]
    const fn codes_per_frame(&self) -> usize {
        self.0.codes_per_frame()
    }

    /// V.
    #[getter]
    const fn codebook_size(&self) -> usize {
        self.0.codebook_size
    }

    /// V0; None until the talker's table is known.
    #[getter]
    const fn code_zero_size(&self) -> Option<usize> {
        self.0.code_zero_size
    }

    /// H.
    #[getter]
    const fn hidden_size(&self) -> usize {
        self.0.hidden_size
    }

    /// Ht.
    #[getter]
    const fn talker_hidden_size(&self) -> usize {
        self.0.talker_hidden_size
    }

    /// L.
    #[getter]
    const fn layers(&self) -> usize {
        self.0.layers
    }

    /// Nq.
    #[getter]
    const fn query_heads(&self) -> usize {
        self.0.query_heads
    }

    /// Nkv.
    #[getter]
    const fn key_value_heads(&self) -> usize {
        self.0.key_value_heads
    }

    /// D.
    #[getter]
    const fn head_size(&self) -> usize {
        self.0.head_size
    }

    /// I.
    #[getter]
    const fn mlp_width(&self) -> usize {
        self.0.mlp_width
    }

    /// Added to the mean square inside every `RMSNorm`.
    #[getter]
    fn rms_norm_epsilon(&self) -> f64 {
        shortest(self.0.rms_norm_epsilon)
    }

    /// Base of the rotary angles.
    #[getter]
    const fn rope_theta(&self) -> f32 {
        let PositionEncoding::Rope { theta } = self.0.position_encoding;
        theta
    }

    /// Whether `small_to_mtp_projection` maps Ht to H.
    #[getter]
    const fn projected(&self) -> bool {
        self.0.projected
    }

    /// Temperature, `top_k` and `top_p` that the family uses.
    #[getter]
    fn default_sampling(&self) -> (f64, u32, f64) {
        let params = SamplingParams::for_family(self.0.family, 0);
        (shortest(params.temperature()), params.top_k(), shortest(params.top_p()))
    }

    /// Parameters of the predictor, the talker's table not counted.
    #[getter]
    fn parameters(&self) -> usize {
        self.0.parameters()
    }

    /// Parameters of the decoder layers and the final norm.
    #[getter]
    fn body_parameters(&self) -> usize {
        self.0.body_parameters()
    }

    fn __repr__(&self) -> String {
        let spec = &self.0;
        format!(
            "ModelSpec({}: R={}, V={}, H={}, Ht={}, L={}, Nq={}, Nkv={}, D={}, I={}, projected={})",
            self.family(),
            spec.residual_codebooks,
            spec.codebook_size,
            spec.hidden_size,
            spec.talker_hidden_size,
            spec.layers,
            spec.query_heads,
            spec.key_value_heads,
            spec.head_size,
            spec.mlp_width,
            if spec.projected { "True" } else { "False" },
        )
    }
}

/// A float32 as Python shall show it: 0.9, not 0.8999999761581421.
fn shortest(value: f32) -> f64 {
    value.to_string().parse().unwrap_or_else(|_| f64::from(value))
}

/// The architecture of that name.
///
/// # Errors
/// An `InputError` that lists the names there are.
pub fn parse_architecture(name: &str) -> Result<Architecture, Raised> {
    name.parse().map_err(|error| {
        Raised::from_error(ErrorClass::Input, &error)
            .key("arch")
            .found(name)
            .expected(Architecture::NAMES.join(", "))
    })
}
