//! The talker's codec table: the checkpoint's, or one that a talker lends.

use std::sync::Arc;

use overtone_core::spec::ModelSpec;
use overtone_core::tensor::FloatType;

use super::{CudaError, CudaExecutor};
use crate::driver::DeviceMemory;
use crate::frame::TensorReference;
use crate::graphs::StreamMachine;
use crate::layout::{Address, TableAddresses};
use crate::load::TableProjection;
use crate::machine::Machine;

/// The talker's codec table E0 as frames read it.
#[derive(Clone, Debug)]
pub struct CodeZeroTable {
    /// E0 [V0, Ht].
    pub raw: TensorReference,
    /// P(E0) [V0, H]; E0 itself without a projection.
    pub projected: TensorReference,
    /// Memory of the second, when it is nobody else's.
    _memory: Option<Arc<DeviceMemory>>,
}

impl CodeZeroTable {
    /// Tables whose memory others keep.
    pub const fn new(raw: TensorReference, projected: TensorReference) -> Self {
        Self { raw, projected, _memory: None }
    }
}

impl CudaExecutor {
    /// Makes a talker's table usable: [rows, Ht], contiguous, at `address` on this device. Waits until it is.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// The table stays at its address for as long as frames read it.
    pub unsafe fn lend_code_zero_table(
        &mut self,
        address: Address,
        float_type: FloatType,
        rows: usize,
    ) -> Result<CodeZeroTable, CudaError> {
        let (width, hidden) = (self.spec.talker_hidden_size as i64, self.spec.hidden_size);
        let raw = TensorReference::new(address, float_type.into(), &[width, 1], rows);
        if !self.spec.projected {
            return Ok(CodeZeroTable::new(raw, raw));
        }
        let entered = self.context.enter()?;
        let projection =
            TableProjection { spec: &self.spec, float_type: self.float_type, weights: &self.weights };
        let memory = DeviceMemory::allocate(&entered, rows * hidden * self.float_type.size())?;
        let (activations, products) = projection.scratch_bytes();
        let scratch = DeviceMemory::allocate(&entered, (activations + products) as usize)?;
        let table = TableAddresses {
            raw: address,
            float_type,
            projected: memory.address(),
            projected_type: self.float_type,
        };
        let mut machine = StreamMachine { entered: &entered, stream: &self.stream, registry: &self.registry };
        let (activations_at, products_at) = (scratch.address(), scratch.address() + activations);
        for work in projection.launches(&table, rows, activations_at, products_at) {
            // SAFETY: the caller speaks for the table; the other addresses are of memory that was just made for them.
            unsafe { machine.run(&work) }?;
        }
        self.stream.synchronize(&entered)?;
        let projected =
            TensorReference::new(memory.address(), self.float_type.into(), &[hidden as i64, 1], rows);
        Ok(CodeZeroTable { raw, projected, _memory: Some(Arc::new(memory)) })
    }
}

pub(super) fn loaded_code_zero_table(table: &TableAddresses, spec: &ModelSpec) -> CodeZeroTable {
    let rows = spec.code_zero_size.unwrap_or(0);
    let widths = [spec.talker_hidden_size as i64, spec.hidden_size as i64];
    CodeZeroTable {
        raw: TensorReference::new(table.raw, table.float_type.into(), &[widths[0], 1], rows),
        projected: TensorReference::new(table.projected, table.projected_type.into(), &[widths[1], 1], rows),
        _memory: None,
    }
}
