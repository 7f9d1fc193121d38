//! Speculation as Python asks for it, and what comes back: counters of each row slot, and a word when it is switched off.

use overtone_core::checkpoint::drafts::Drafts;
use overtone_core::checkpoint::{Checkpoint, CheckpointError};
use overtone_core::rounds::{DraftShape, MOST_VERIFY_ROWS, OffSwitch, RoundCounters, Speculation};
use pyo3::prelude::*;
use std::path::PathBuf;

use crate::errors::Raised;

/// `(shape, verify_rows, p_min, off_below, drafts)`, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct GivenSpeculation {
    /// What is drafted.
    pub speculation: Speculation,
    /// Codes per round below which it is switched off; `None` for the executor's own number.
    pub off_below: Option<f64>,
    /// Fitted drafts for the next code.
    pub drafts: DraftsChoice,
}

/// Which fitted drafts a predictor uses.
#[derive(Clone, Debug, PartialEq)]
pub enum DraftsChoice {
    /// Those that lie beside the weights, where there are any; or none at all. `None` leaves it to the executor.
    Beside(Option<bool>),
    /// Those of a file.
    File(PathBuf),
}

impl DraftsChoice {
    /// Opens the drafts for a checkpoint that was read from these directories; `by_default` is the executor's choice.
    ///
    /// # Errors
    /// A `CheckpointError` for a file that does not hold this checkpoint's drafts.
    pub fn open(
        &self,
        checkpoint: &Checkpoint<'_>,
        directories: &[PathBuf],
        by_default: bool,
    ) -> Result<Option<Drafts>, CheckpointError> {
        let file = match self {
            Self::Beside(beside) if !beside.unwrap_or(by_default) => None,
            Self::Beside(_) => directories.iter().find_map(|directory| Drafts::beside(directory)),
            Self::File(file) => Some(file.clone()),
        };
        file.map(|file| Drafts::open(&file, checkpoint)).transpose()
    }
}

impl FromPyObject<'_, '_> for GivenSpeculation {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        let (shape, verify_rows, p_min, off_below, drafts): (_, _, _, _, Bound<'_, PyAny>) =
            object.extract()?;
        let shape: String = shape;
        let drafts = match drafts.extract::<Option<bool>>() {
            Ok(beside) => DraftsChoice::Beside(beside),
            Err(_) => DraftsChoice::File(drafts.extract()?),
        };
        Ok(Self::new(&shape, verify_rows, p_min, off_below, drafts)?)
    }
}

impl GivenSpeculation {
    fn new(
        shape: &str,
        verify_rows: i64,
        p_min: Option<f64>,
        off_below: Option<f64>,
        drafts: DraftsChoice,
    ) -> Result<Self, Raised> {
        let refused = |key: &'static str, found: String, expected: String| {
            Raised::input(format!("{key}: found {found}, expected {expected}"))
                .key(key)
                .found(found)
                .expected(expected)
        };
        let shape = match shape {
            "chain" => DraftShape::Chain,
            "siblings" => DraftShape::Siblings,
            other => return Err(refused("draft", format!("{other:?}"), "chain or siblings".to_owned())),
        };
        if let Some(p_min) = p_min.filter(|p_min| !(*p_min > 0.0 && *p_min <= 1.0)) {
            return Err(refused("p_min", p_min.to_string(), "a number above 0 and at most 1".to_owned()));
        }
        if let Some(off_below) = off_below.filter(|off_below| off_below.is_nan() || *off_below < 0.0) {
            return Err(refused("off_below", off_below.to_string(), "0 (never) or above".to_owned()));
        }
        let rows = usize::try_from(verify_rows).unwrap_or(0);
        let speculation = Speculation::new(shape, rows, p_min.map(|p_min| p_min as f32));
        let expected = || format!("2 to {MOST_VERIFY_ROWS}");
        let speculation =
            speculation.ok_or_else(|| refused("spec_verify_size", verify_rows.to_string(), expected()))?;
        Ok(Self { speculation, off_below, drafts })
    }
}

/// Frames, rounds, codes, drafts verified and drafts accepted of one row slot.
pub type SpecCounters = (u64, u64, u64, u64, u64);

/// Counters as Python reads them.
pub fn spec_counters(counters: &[RoundCounters]) -> Vec<SpecCounters> {
    counters.iter().map(|each| (each.frames, each.rounds, each.codes, each.drafted, each.accepted)).collect()
}

/// Says on the logger `overtone` that `switch` has just ended speculation. The frame before is whole whatever a log
/// handler does, so an exception of its own is only reported.
pub fn log_switched_off(py: Python<'_>, switch: &OffSwitch) {
    let log = || {
        let logger = py.import("logging")?.call_method1("getLogger", ("overtone",))?;
        let format = "speculation is switched off: %.2f codes per round are fewer than the %.2f at which it pays; \
                      frames run step by step, with the same codes";
        logger.call_method1("warning", (format, switch.found().unwrap_or(0.0), switch.off_below()))
    };
    if let Err(error) = log() {
        error.write_unraisable(py, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::with_python;
    use overtone_core::rounds::DraftTree;

    #[test]
    fn a_window_becomes_a_tree() {
        let given = GivenSpeculation::new("chain", 4, Some(0.25), None, DraftsChoice::Beside(None)).unwrap();
        assert_eq!(given.speculation.tree, DraftTree::chain(3));
        assert_eq!((given.speculation.least_probability, given.off_below), (Some(0.25), None));
    }

    #[test]
    fn what_is_out_of_range_is_refused_by_name() {
        for (shape, rows, p_min, off_below, named) in [
            ("tree", 4, None, None, "draft"),
            ("chain", 1, None, None, "spec_verify_size"),
            ("chain", 9, None, None, "spec_verify_size"),
            ("chain", -4, None, None, "spec_verify_size"),
            ("chain", 4, Some(0.0), None, "p_min"),
            ("chain", 4, Some(f64::NAN), None, "p_min"),
            ("chain", 4, Some(1.5), None, "p_min"),
            ("chain", 4, None, Some(-1.0), "off_below"),
            ("chain", 4, None, Some(f64::NAN), "off_below"),
        ] {
            let drafts = DraftsChoice::Beside(Some(false));
            let raised = GivenSpeculation::new(shape, rows, p_min, off_below, drafts).unwrap_err();
            let message = with_python(|py| PyErr::from(raised).value(py).to_string());
            assert!(message.starts_with(&format!("{named}: found ")), "{message}");
        }
    }
}
