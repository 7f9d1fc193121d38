//! Fitted drafts, packed like the heads they stand in for.

use super::panels::{PanelMatrix, WeightType};
use super::team::Team;
use super::weights::{LoadError, OwnedTable};
use crate::checkpoint::drafts::{DraftName, Drafts, drafted_behind};
use crate::frame::Table;
use crate::spec::ModelSpec;

/// The drafts that rounds read.
#[derive(Debug)]
pub(super) struct DraftWeights {
    /// D\[j\] and T\[j\] for each pending `code_j` of [`drafted_behind`].
    pending: Vec<(PanelMatrix, OwnedTable)>,
}

impl DraftWeights {
    /// Reads and packs.
    ///
    /// # Errors
    /// A value is not finite, or the file has changed; there is no memory.
    pub(super) fn load(
        drafts: &Drafts,
        spec: &ModelSpec,
        team: &mut Team,
        weight_type: WeightType,
    ) -> Result<Self, LoadError> {
        let weight_type = weight_type.unquantised();
        let mut read = |pending| {
            let mut head = PanelMatrix::new(weight_type, spec.codebook_size, spec.hidden_size)?;
            drafts.read(DraftName::Head(pending), |tensor| {
                head.pack(team, tensor, |output| (output < spec.codebook_size).then_some(output));
            })?;
            let table = drafts.read(DraftName::Table(pending), OwnedTable::copy)??;
            Ok((head, table))
        };
        let pending = drafted_behind(spec).map(&mut read);
        Ok(Self { pending: pending.collect::<Result<_, LoadError>>()? })
    }

    /// What drafts `code_codebook` from the hidden row of the code before it, and from that code.
    pub(super) fn of(&self, codebook: usize) -> (&PanelMatrix, Table<'_>) {
        let (head, table) = &self.pending[codebook - 2];
        (head, table.view())
    }
}
