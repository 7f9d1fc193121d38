//! A checkpoint's tensors, read once and made into what a frame reads: each goes from the mapping to a staging buffer on
//! the device, and a kernel puts it where it belongs, in the working type.

use std::ops::ControlFlow;

use bytemuck::cast_slice;
use overtone_core::checkpoint::drafts::{DraftName, Drafts, drafted_behind};
use overtone_core::checkpoint::{Checkpoint, CheckpointError};
use overtone_core::spec::weights::WeightName;
use overtone_core::spec::{ModelSpec, PositionEncoding};
use overtone_core::tensor::{FloatType, TensorView};

use crate::arguments::{
    ConvertArguments, ElementType, PackArguments, ProductArguments, RowPlacement, TableRowsArguments,
};
use crate::kernels::Kernel;
use crate::layout::{
    Address, DraftAddresses, MatrixShape, MatrixShapes, PAIR, TILE_COLUMNS, TableAddresses, WeightAddresses,
};
use crate::machine::Machine;
use crate::plan::Launch;
use crate::product::product_launch;

/// Largest finite float16.
const FLOAT16_MAX: f32 = 65504.0;
/// Table rows that pass through the projection together.
const PROJECTED_ROWS: usize = 256;
/// Threads of a block of the loading kernels.
const THREADS: usize = 256;
/// Elements that a thread of them handles, about.
const ELEMENTS_PER_THREAD: usize = 16;

/// Why loading stopped. `E` is the machine's own error.
#[derive(Debug, thiserror::Error)]
pub enum LoadError<E> {
    /// A tensor could not be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The device failed.
    #[error("the device failed while weights were loaded")]
    Device(#[source] E),
    /// A weight does not fit the working type.
    #[error(
        "{tensor}: a weight is {found}, expected at most {FLOAT16_MAX} in float16: load as bfloat16 or float32"
    )]
    OutOfRange {
        /// The tensor.
        tensor: String,
        /// Its value.
        found: f32,
    },
    /// The caller's progress function said so.
    #[error("loading was interrupted")]
    Interrupted,
}

/// Called while loading with (bytes done, bytes in all); `Break` ends it.
pub type Progress<'a> = dyn FnMut(u64, u64) -> ControlFlow<()> + 'a;

/// What loading needs besides the weights' own memory, laid out from the staging address on.
#[derive(Clone, Copy, Debug)]
struct Staging {
    /// One tensor as it is stored.
    tensor: Address,
    /// Table rows as activations of the projection.
    activations: Address,
    /// Their products, float32.
    products: Address,
    bytes: u64,
}

impl Staging {
    fn new(source: Source<'_, '_>, float_type: FloatType, base: Address) -> Self {
        let Source { checkpoint, drafts } = source;
        let spec = checkpoint.spec();
        let draft_head = drafts.map_or(0, |drafts| draft_bytes(drafts, spec, DraftName::Head(1)));
        let weights = tensors(checkpoint).map(|name| stored_bytes(checkpoint, name));
        let largest = weights.chain([draft_head]).max().unwrap_or(0);
        let mut carver = crate::layout::Carver::new(base);
        let tensor = carver.take(largest);
        let projection = MatrixShapes::new(spec).projection;
        let columns = if spec.projected { PROJECTED_ROWS } else { 0 };
        Self {
            tensor,
            activations: carver.take((columns * projection.total_pairs() * PAIR * float_type.size()) as u64),
            products: carver.take((columns * spec.hidden_size * size_of::<f32>()) as u64),
            bytes: carver.used(),
        }
    }
}

/// What weights are read from.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a, 'b> {
    /// The checkpoint.
    pub checkpoint: &'a Checkpoint<'b>,
    /// Fitted drafts, if rounds use some.
    pub drafts: Option<&'a Drafts>,
}

/// Bytes of device memory that [`load`] uses besides the weights' own.
pub fn staging_bytes(source: Source<'_, '_>, float_type: FloatType) -> u64 {
    Staging::new(source, float_type, 0).bytes
}

/// Lays out weights from `base` on.
pub fn weight_addresses(source: Source<'_, '_>, float_type: FloatType, base: Address) -> WeightAddresses {
    let Source { checkpoint, drafts } = source;
    let spec = checkpoint.spec();
    let stored = |name| checkpoint.float_type(name).unwrap_or(FloatType::Float32);
    let tables: Vec<FloatType> =
        (0..spec.residual_codebooks).map(|index| stored(WeightName::CodecEmbedding(index))).collect();
    let code_zero = checkpoint.float_type(WeightName::CodeZeroTable);
    WeightAddresses::new(spec, float_type, &tables, code_zero, drafts.map(Drafts::float_type), base)
}

fn draft_bytes(drafts: &Drafts, spec: &ModelSpec, name: DraftName) -> u64 {
    (name.shape(spec).iter().product::<usize>() * drafts.float_type().size()) as u64
}

fn tensors(checkpoint: &Checkpoint<'_>) -> impl Iterator<Item = WeightName> {
    let code_zero = checkpoint.has(WeightName::CodeZeroTable).then_some(WeightName::CodeZeroTable);
    checkpoint.spec().weights().chain(code_zero)
}

fn stored_bytes(checkpoint: &Checkpoint<'_>, name: WeightName) -> u64 {
    let size = checkpoint.float_type(name).map_or(0, FloatType::size);
    (checkpoint.spec().weight_elements(name) * size) as u64
}

/// Reads every tensor of `source` to where `weights` says.
///
/// # Errors
/// [`LoadError`].
///
/// # Safety
/// On `machine`, the memory that `weights` lays out is the caller's and holds zeros, and [`staging_bytes`] from `staging`
/// on are the caller's too.
pub unsafe fn load<M: Machine>(
    machine: &mut M,
    source: Source<'_, '_>,
    float_type: FloatType,
    weights: &WeightAddresses,
    staging: Address,
    progress: &mut Progress<'_>,
) -> Result<(), LoadError<M::Error>> {
    let Source { checkpoint, drafts } = source;
    let of_drafts = |drafts| {
        let names = drafted_behind(checkpoint.spec());
        let names = names.flat_map(|pending| [DraftName::Head(pending), DraftName::Table(pending)]);
        names.map(|name| draft_bytes(drafts, checkpoint.spec(), name)).sum::<u64>()
    };
    let total = tensors(checkpoint).map(|name| stored_bytes(checkpoint, name)).sum::<u64>()
        + drafts.map_or(0, of_drafts);
    let staging = Staging::new(source, float_type, staging);
    let mut loader = Loader { machine, checkpoint, float_type, staging, progress, done: 0, total };
    loader.everything(weights)?;
    match (drafts, &weights.drafts) {
        (Some(drafts), Some(addresses)) => loader.drafts(drafts, addresses),
        _ => Ok(()),
    }
}

struct Loader<'a, 'b, M> {
    machine: &'a mut M,
    checkpoint: &'a Checkpoint<'b>,
    float_type: FloatType,
    staging: Staging,
    progress: &'a mut Progress<'a>,
    done: u64,
    total: u64,
}

impl<M: Machine> Loader<'_, '_, M> {
    fn everything(&mut self, weights: &WeightAddresses) -> Result<(), LoadError<M::Error>> {
        use WeightName as Name;
        let spec = self.checkpoint.spec();
        let shapes = MatrixShapes::new(spec);
        let (queries, keys) = (spec.query_width(), spec.key_value_width());
        for (layer, addresses) in weights.layers.iter().enumerate() {
            let (stacked, gate_up) = (addresses.query_key_value, addresses.gate_up);
            self.vector(Name::InputNorm(layer), addresses.input_norm)?;
            for (name, first) in
                [(Name::Query(layer), 0), (Name::Key(layer), queries), (Name::Value(layer), queries + keys)]
            {
                self.matrix(name, shapes.query_key_value, RowPlacement::Stacked, first, stacked)?;
            }
            self.vector(Name::QueryNorm(layer), addresses.query_norm)?;
            self.vector(Name::KeyNorm(layer), addresses.key_norm)?;
            self.matrix(Name::Output(layer), shapes.output, RowPlacement::Stacked, 0, addresses.output)?;
            self.vector(Name::PostAttentionNorm(layer), addresses.post_attention_norm)?;
            self.matrix(Name::Gate(layer), shapes.gate_up, RowPlacement::Gate, 0, gate_up)?;
            self.matrix(Name::Up(layer), shapes.gate_up, RowPlacement::Up, 0, gate_up)?;
            self.matrix(Name::Down(layer), shapes.down, RowPlacement::Stacked, 0, addresses.down)?;
        }
        self.vector(Name::FinalNorm, weights.final_norm)?;
        for (index, head) in weights.heads.iter().enumerate() {
            self.matrix(Name::Head(index), shapes.head, RowPlacement::Stacked, 0, *head)?;
        }
        if let Some((weight, bias)) = weights.projection {
            self.matrix(Name::ProjectionWeight, shapes.projection, RowPlacement::Stacked, 0, weight)?;
            self.vector(Name::ProjectionBias, bias)?;
        }
        for (index, table) in weights.tables.iter().enumerate() {
            self.table(Name::CodecEmbedding(index), table, weights)?;
        }
        if let Some(table) = &weights.code_zero_table {
            self.table(Name::CodeZeroTable, table, weights)?;
        }
        let rotary = rotary_table(spec);
        let codebooks = weights.codebook_addresses();
        // SAFETY: `load`'s condition: the memory of both is among the weights'.
        unsafe {
            self.machine.write(weights.rotary, cast_slice(&rotary)).map_err(LoadError::Device)?;
            self.machine.write(weights.codebooks, cast_slice(&codebooks)).map_err(LoadError::Device)
        }
    }

    /// Copies a tensor, as it is stored, to `target`.
    fn copy(&mut self, name: WeightName, target: Address) -> Result<FloatType, LoadError<M::Error>> {
        let (machine, float_type) = (&mut *self.machine, self.float_type);
        let written = self.checkpoint.read(name, |tensor| {
            if !matches!(name, WeightName::CodecEmbedding(_) | WeightName::CodeZeroTable) {
                check_range::<M::Error>(&tensor, float_type, &name)?;
            }
            // SAFETY: `load`'s condition: the target is among the weights' memory or the staging buffer, and is made for
            // this tensor.
            unsafe { machine.write(target, tensor.bytes) }.map_err(LoadError::Device)?;
            Ok::<_, LoadError<M::Error>>(tensor.float_type)
        })?;
        let stored = written?;
        self.advance(stored_bytes(self.checkpoint, name))?;
        Ok(stored)
    }

    fn advance(&mut self, bytes: u64) -> Result<(), LoadError<M::Error>> {
        self.done += bytes;
        match (self.progress)(self.done, self.total) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(LoadError::Interrupted),
        }
    }

    /// Fitted drafts: heads packed like the others, tables as they are stored.
    fn drafts(&mut self, drafts: &Drafts, addresses: &DraftAddresses) -> Result<(), LoadError<M::Error>> {
        let spec = self.checkpoint.spec();
        let places = addresses.heads.iter().zip(&addresses.tables);
        for (pending, (head, table)) in drafted_behind(spec).zip(places) {
            for (name, target) in
                [(DraftName::Head(pending), self.staging.tensor), (DraftName::Table(pending), *table)]
            {
                let (machine, float_type) = (&mut *self.machine, self.float_type);
                let write = |tensor: TensorView<'_>| {
                    if matches!(name, DraftName::Head(_)) {
                        check_range::<M::Error>(&tensor, float_type, &name)?;
                    }
                    // SAFETY: `load`'s condition: the target is among the weights' memory or the staging buffer, and is made
                    // for this tensor.
                    unsafe { machine.write(target, tensor.bytes) }.map_err(LoadError::Device)
                };
                drafts.read(name, write)??;
                self.advance(draft_bytes(drafts, spec, name))?;
            }
            let shape = DraftName::Head(pending).shape(spec);
            let matrix = MatrixShapes::new(spec).head;
            self.pack(drafts.float_type(), shape, matrix, RowPlacement::Stacked, 0, *head)?;
        }
        Ok(())
    }

    fn run(&mut self, launch: &Launch) -> Result<(), LoadError<M::Error>> {
        // SAFETY: `load`'s condition: what the loading kernels are given lies in the weights' memory and the staging buffer.
        unsafe { self.machine.run(launch) }.map_err(LoadError::Device)
    }

    /// A vector, as float32.
    fn vector(&mut self, name: WeightName, target: Address) -> Result<(), LoadError<M::Error>> {
        let stored = self.copy(name, self.staging.tensor)?;
        let elements = self.checkpoint.spec().weight_elements(name);
        self.convert(self.staging.tensor, stored, target, FloatType::Float32, elements)
    }

    fn convert(
        &mut self,
        source: Address,
        source_type: FloatType,
        target: Address,
        target_type: FloatType,
        elements: usize,
    ) -> Result<(), LoadError<M::Error>> {
        let arguments = ConvertArguments {
            source,
            target,
            elements: elements as u64,
            source_type: ElementType::from(source_type) as u32,
            target_type: ElementType::from(target_type) as u32,
        };
        self.run(&Launch::new(Kernel::Convert, blocks(elements), &arguments))
    }

    /// A tensor as (part of) a packed matrix.
    fn matrix(
        &mut self,
        name: WeightName,
        matrix: MatrixShape,
        placement: RowPlacement,
        first_output: usize,
        packed: Address,
    ) -> Result<(), LoadError<M::Error>> {
        let stored = self.copy(name, self.staging.tensor)?;
        let shape = self.checkpoint.spec().weight_shape(name);
        self.pack(stored, [shape[0], shape[1]], matrix, placement, first_output, packed)
    }

    /// The tensor in the staging buffer as (part of) a packed matrix.
    fn pack(
        &mut self,
        stored: FloatType,
        shape: [usize; 2],
        matrix: MatrixShape,
        placement: RowPlacement,
        first_output: usize,
        packed: Address,
    ) -> Result<(), LoadError<M::Error>> {
        let arguments = PackArguments {
            source: self.staging.tensor,
            packed,
            source_type: ElementType::from(stored) as u32,
            rows: shape[0] as u32,
            inputs: shape[1] as u32,
            pairs: matrix.total_pairs() as u32,
            first_output: first_output as u32,
            placement: placement as u32,
        };
        let grid = blocks(shape[0] * shape[1]);
        self.run(&Launch::new(Kernel::Pack(self.float_type), grid, &arguments))
    }

    /// A table as it is stored, and what the projection makes of it.
    fn table(
        &mut self,
        name: WeightName,
        table: &TableAddresses,
        weights: &WeightAddresses,
    ) -> Result<(), LoadError<M::Error>> {
        self.copy(name, table.raw)?;
        let rows = self.checkpoint.spec().weight_shape(name)[0];
        let Staging { activations, products, .. } = self.staging;
        let projection =
            TableProjection { spec: self.checkpoint.spec(), float_type: self.float_type, weights };
        for launch in projection.launches(table, rows, activations, products) {
            self.run(&launch)?;
        }
        Ok(())
    }
}

/// How a table passes through the projection; without one, there is nothing to do.
#[derive(Clone, Copy, Debug)]
pub struct TableProjection<'a> {
    /// The architecture.
    pub spec: &'a ModelSpec,
    /// The working type.
    pub float_type: FloatType,
    /// The weights, the projection's among them.
    pub weights: &'a WeightAddresses,
}

impl TableProjection<'_> {
    /// Bytes of (activations, products) that the launches work in.
    pub fn scratch_bytes(&self) -> (u64, u64) {
        let width = MatrixShapes::new(self.spec).projection.total_pairs() * PAIR;
        let activations = PROJECTED_ROWS * width * self.float_type.size();
        (activations as u64, (PROJECTED_ROWS * self.spec.hidden_size * size_of::<f32>()) as u64)
    }

    /// The launches for a table of `rows` rows.
    pub fn launches(
        &self,
        table: &TableAddresses,
        rows: usize,
        activations: Address,
        products: Address,
    ) -> Vec<Launch> {
        let Some((weight, bias)) = self.weights.projection else { return Vec::new() };
        const { assert!(PROJECTED_ROWS.is_multiple_of(TILE_COLUMNS)) };
        let matrix = MatrixShapes::new(self.spec).projection;
        let hidden = self.spec.hidden_size;
        let mut launches = Vec::new();
        for first in (0..rows).step_by(PROJECTED_ROWS) {
            let count = PROJECTED_ROWS.min(rows - first);
            let gathered = TableRowsArguments {
                table: table.raw,
                activations,
                table_type: ElementType::from(table.float_type) as u32,
                first_row: first as u32,
                rows: count as u32,
                width: self.spec.talker_hidden_size as u32,
                pairs: matrix.total_pairs() as u32,
                reserved: 0,
            };
            let projected = ProductArguments {
                weights: weight,
                bias,
                activations,
                output: products,
                columns: count as u32,
                ..ProductArguments::default()
            };
            let rounded = ConvertArguments {
                source: products,
                target: table.projected + (first * hidden * table.projected_type.size()) as u64,
                elements: (count * hidden) as u64,
                source_type: ElementType::Float32 as u32,
                target_type: ElementType::from(table.projected_type) as u32,
            };
            launches.extend([
                Launch::new(Kernel::TableRows(self.float_type), [count, 1], &gathered),
                product_launch(self.spec, self.float_type, matrix, projected),
                Launch::new(Kernel::Convert, blocks(count * hidden), &rounded),
            ]);
        }
        launches
    }
}

/// Refuses a weight that float16 does not hold, where that is the working type.
fn check_range<E>(
    tensor: &TensorView<'_>,
    float_type: FloatType,
    name: &dyn std::fmt::Display,
) -> Result<(), LoadError<E>> {
    if float_type != FloatType::Float16 || tensor.float_type == FloatType::Float16 {
        return Ok(());
    }
    let mut values = (0..tensor.bytes.len() / tensor.float_type.size()).map(|index| tensor.get(index));
    match values.find(|value| value.abs() > FLOAT16_MAX) {
        Some(found) => Err(LoadError::OutOfRange { tensor: name.to_string(), found }),
        None => Ok(()),
    }
}

/// A grid for so many elements.
fn blocks(elements: usize) -> [usize; 2] {
    [elements.div_ceil(THREADS * ELEMENTS_PER_THREAD).clamp(1, 4096), 1]
}

/// Cosine and sine of every position's angles, [positions, D / 2]: computed in float64 and rounded once, as the CPU
/// executor has them.
fn rotary_table(spec: &ModelSpec) -> Vec<[f32; 2]> {
    let PositionEncoding::Rope { theta } = spec.position_encoding;
    let half = spec.head_size / 2;
    let angle = |position: usize, index: usize| {
        position as f64 * f64::from(theta).powf(-2.0 * index as f64 / spec.head_size as f64)
    };
    let angles =
        (0..spec.positions()).flat_map(|position| (0..half).map(move |index| angle(position, index)));
    angles.map(|angle| [angle.cos() as f32, angle.sin() as f32]).collect()
}
