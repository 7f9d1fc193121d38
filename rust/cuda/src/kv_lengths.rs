//! KV lengths on the device, and tables of their addresses, so that one kernel can roll back every layer of any engine.
//!
//! | type | what it is |
//! |---|---|
//! | [`LayerLengths`] | one layer's lengths, int32 `[B]`: how many positions of each row the layer's cache holds |
//! | [`KvLengths`] | those of all layers; a layer without a KV cache has none |
//! | [`KvLengthTable`] | their addresses on the device, one a layer, 0 for none; the position counter last when asked |
//! | [`LengthTable`] | such a table as launches name it: its address, with its rows and its batch |
//!
//! A table is read by as many threads as it has rows and lengths, so its size is part of its type: a [`LengthTable`] is
//! made only from the addresses that lie there ([`LengthAddresses::at`]), and launches take nothing else.
//!
//! [`KvLengths::kv_len_ptr_table`] is over all layers; [`KvLengths::kv_len_ptr_table_range`] is for a pipeline stage,
//! which must not touch what lies on another device. Both hold the lengths alive. What is written here to memory of a
//! device is written in the order of the stream given.

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

use crate::driver::{BorrowedStream, Context, DeviceMemory, DriverError, Entered, copy_host_to_device};
use crate::layout::Address;

/// Lengths or tables that do not fit together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LengthsError {
    /// A batch of no rows.
    #[error("KV lengths of 0 rows, expected at least 1")]
    NoRows,
    /// Layers whose lengths are for batches of different sizes.
    #[error("the KV lengths of layer {layer} are for {found} rows, expected {expected}")]
    Batch {
        /// The layer; the position counter counts as one more.
        layer: usize,
        /// Rows it has.
        found: usize,
        /// Rows of the others.
        expected: usize,
    },
    /// Layers that there are not.
    #[error("layers {} to {} (exclusive) of KV lengths of {layers} layers", range.start, range.end)]
    Range {
        /// What was asked for.
        range: Range<usize>,
        /// Layers there are.
        layers: usize,
    },
    /// Lengths on another device than the table.
    #[error(
        "the KV lengths of layer {layer} are on device {found}, and the table is on device {expected}: \
         a pipeline stage takes the range of its own layers"
    )]
    OtherDevice {
        /// The layer; the position counter counts as one more.
        layer: usize,
        /// Where its lengths are.
        found: usize,
        /// Where the table is.
        expected: usize,
    },
    /// The driver refused.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

// ---------------------------------------------------------------------------------------------------------------------
// Addresses alone

/// What a table holds, before it lies anywhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LengthAddresses {
    batch: usize,
    addresses: Vec<Address>,
    position: Option<Address>,
}

impl LengthAddresses {
    /// The addresses of layers' lengths, int32 `[batch]` each, 0 for a layer without; then that of the position
    /// counter, when it is given.
    pub fn new(batch: usize, layers: &[Address], position: Option<Address>) -> Self {
        Self { batch, addresses: layers.iter().copied().chain(position).collect(), position }
    }

    /// The words of the table: uint64 `[rows]`.
    pub fn words(&self) -> &[Address] {
        &self.addresses
    }

    /// The table, once [`words`](Self::words) lie at `address`.
    pub fn at(&self, address: Address) -> LengthTable {
        LengthTable { address, rows: self.addresses.len(), batch: self.batch, position: self.position }
    }
}

/// A table on the device as a launch names it. It does not hold the table alive: [`KvLengthTable`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LengthTable {
    address: Address,
    rows: usize,
    batch: usize,
    position: Option<Address>,
}

impl LengthTable {
    /// Where it lies.
    pub const fn address(&self) -> Address {
        self.address
    }

    /// Its addresses: one for each layer, and one more for the position counter if that is in it.
    pub const fn rows(&self) -> usize {
        self.rows
    }

    /// B: lengths at each address.
    pub const fn batch(&self) -> usize {
        self.batch
    }

    /// The position counter, if it is in the table.
    pub const fn position(&self) -> Option<Address> {
        self.position
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Memory on a device

/// One layer's lengths: int32 `[B]` on a device. A position counter is the same thing.
#[derive(Debug)]
pub struct LayerLengths {
    context: Arc<Context>,
    address: Address,
    batch: usize,
    /// What keeps the memory.
    _owner: Arc<dyn Any + Send + Sync>,
}

impl LayerLengths {
    /// Lengths of our own, all 0, in the order of `stream`.
    ///
    /// # Errors
    /// No rows, or the driver's.
    pub fn allocate(
        entered: &Entered<'_>,
        stream: &BorrowedStream,
        batch: usize,
    ) -> Result<Arc<Self>, LengthsError> {
        if batch == 0 {
            return Err(LengthsError::NoRows);
        }
        let mut memory = DeviceMemory::allocate(entered, batch * size_of::<i32>())?;
        memory.fill(entered, stream, 0, memory.bytes(), 0)?;
        let address = memory.address();
        let context = Arc::clone(entered.context());
        Ok(Arc::new(Self { context, address, batch, _owner: Arc::new(memory) }))
    }

    /// Lengths that somebody else made: of a cache that a caller lends.
    ///
    /// # Errors
    /// No rows.
    ///
    /// # Safety
    /// `address` is that of int32 `[batch]` in memory of `context`, valid for reading and writing while `owner` lives.
    pub unsafe fn lend(
        context: &Arc<Context>,
        address: Address,
        batch: usize,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Result<Arc<Self>, LengthsError> {
        if batch == 0 {
            return Err(LengthsError::NoRows);
        }
        Ok(Arc::new(Self { context: Arc::clone(context), address, batch, _owner: owner }))
    }

    /// Where they lie.
    pub const fn address(&self) -> Address {
        self.address
    }

    /// B.
    pub const fn batch(&self) -> usize {
        self.batch
    }
}

/// The lengths of an engine's layers.
#[derive(Clone, Debug)]
pub struct KvLengths {
    batch: usize,
    layers: Vec<Option<Arc<LayerLengths>>>,
}

impl KvLengths {
    /// Lengths for `batch` rows of the layers, in order: `None` for a layer that keeps no keys and values, or shares
    /// those of another.
    ///
    /// # Errors
    /// No rows, or a layer whose lengths are for another batch.
    pub fn new(batch: usize, layers: Vec<Option<Arc<LayerLengths>>>) -> Result<Self, LengthsError> {
        if batch == 0 {
            return Err(LengthsError::NoRows);
        }
        for (layer, lengths) in layers.iter().enumerate() {
            check_batch(layer, lengths.as_deref(), batch)?;
        }
        Ok(Self { batch, layers })
    }

    /// Lengths of our own for `layers` layers that all keep keys and values, all 0, in the order of `stream`.
    ///
    /// # Errors
    /// As [`LayerLengths::allocate`].
    pub fn allocate(
        entered: &Entered<'_>,
        stream: &BorrowedStream,
        batch: usize,
        layers: usize,
    ) -> Result<Self, LengthsError> {
        let lengths = (0..layers).map(|_| LayerLengths::allocate(entered, stream, batch).map(Some));
        Self::new(batch, lengths.collect::<Result<_, _>>()?)
    }

    /// B.
    pub const fn batch(&self) -> usize {
        self.batch
    }

    /// Each layer's lengths.
    pub fn layers(&self) -> &[Option<Arc<LayerLengths>>] {
        &self.layers
    }

    /// The table of all layers, and of the position counter if it is given.
    ///
    /// # Errors
    /// Lengths on another device, a position counter for another batch, or the driver's.
    pub fn kv_len_ptr_table(
        &self,
        entered: &Entered<'_>,
        stream: &BorrowedStream,
        position: Option<&Arc<LayerLengths>>,
    ) -> Result<KvLengthTable, LengthsError> {
        self.kv_len_ptr_table_range(entered, stream, 0..self.layers.len(), position)
    }

    /// The table of some layers: row i is layer `layers.start` + i. Lengths of other layers are neither looked at nor
    /// held.
    ///
    /// # Errors
    /// Layers that there are not; else as [`kv_len_ptr_table`](Self::kv_len_ptr_table), for the layers of the range.
    pub fn kv_len_ptr_table_range(
        &self,
        entered: &Entered<'_>,
        stream: &BorrowedStream,
        layers: Range<usize>,
        position: Option<&Arc<LayerLengths>>,
    ) -> Result<KvLengthTable, LengthsError> {
        let held = self.layers.get(layers.clone());
        let held = held.ok_or(LengthsError::Range { range: layers.clone(), layers: self.layers.len() })?;
        check_batch(self.layers.len(), position.map(AsRef::as_ref), self.batch)?;
        let expected = entered.context().device().ordinal();
        let numbers = layers.chain([self.layers.len()]);
        let lengths = held.iter().map(Option::as_ref).chain([position]);
        for (layer, lengths) in numbers.zip(lengths) {
            if let Some(found) = lengths.map(|lengths| lengths.context.device().ordinal())
                && found != expected
            {
                return Err(LengthsError::OtherDevice { layer, found, expected });
            }
        }
        let of_layers: Vec<Address> =
            held.iter().map(|lengths| lengths.as_ref().map_or(0, |lengths| lengths.address)).collect();
        let addresses =
            LengthAddresses::new(self.batch, &of_layers, position.map(|position| position.address));
        let bytes: &[u8] = bytemuck::cast_slice(addresses.words());
        let memory = DeviceMemory::allocate(entered, bytes.len())?;
        if !bytes.is_empty() {
            // SAFETY: the memory was just made for these bytes; pageable bytes have been read when the call returns.
            unsafe { copy_host_to_device(entered, stream, memory.address(), bytes.as_ptr(), bytes.len()) }?;
        }
        let table = addresses.at(memory.address());
        let lengths = held.iter().flatten().chain(position).cloned().collect();
        Ok(KvLengthTable { table, _memory: memory, _lengths: lengths })
    }
}

fn check_batch(layer: usize, lengths: Option<&LayerLengths>, expected: usize) -> Result<(), LengthsError> {
    match lengths {
        Some(LayerLengths { batch, .. }) if *batch != expected => {
            Err(LengthsError::Batch { layer, found: *batch, expected })
        }
        _ => Ok(()),
    }
}

/// A table on a device, and the lengths that it points at: they live as long as it does.
#[derive(Debug)]
pub struct KvLengthTable {
    table: LengthTable,
    _memory: DeviceMemory,
    _lengths: Vec<Arc<LayerLengths>>,
}

impl KvLengthTable {
    /// What launches take.
    pub const fn table(&self) -> LengthTable {
        self.table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_knows_its_rows_and_holds_the_position_counter_last() {
        let addresses = LengthAddresses::new(3, &[0x100, 0, 0x300], Some(0x400));
        assert_eq!(addresses.words(), [0x100, 0, 0x300, 0x400]);
        let table = addresses.at(0x1000);
        assert_eq!((table.address(), table.rows(), table.batch()), (0x1000, 4, 3));
        assert_eq!(table.position(), Some(0x400));
        let without = LengthAddresses::new(3, &[0x100], None).at(0x1000);
        assert_eq!((without.rows(), without.position()), (1, None));
    }
}
