//! A checkpoint's tensors, read once and packed for the CPU.

use super::lanes::LANES;
use super::pages::Pages;
use super::panels::{PanelMatrix, WeightType};
use super::team::Team;
use crate::checkpoint::{Checkpoint, CheckpointError};
use crate::frame::Table;
use crate::spec::ModelSpec;
use crate::spec::weights::WeightName;
use crate::tensor::{FloatType, TensorView};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Why loading stopped.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A tensor could not be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// There is no memory for the weights.
    #[error("no memory for the weights")]
    Memory(#[from] std::io::Error),
    /// The caller's progress function said so.
    #[error("loading was interrupted")]
    Interrupted,
}

/// Called while loading with (bytes done, bytes in all); `Break` ends it.
pub type Progress<'a> = dyn FnMut(u64, u64) -> ControlFlow<()> + 'a;

/// An embedding table [rows, Ht] in its storage type; shared, since Python may hold it longer than the predictor.
#[derive(Debug)]
pub struct OwnedTable {
    float_type: FloatType,
    rows: usize,
    width: usize,
    words: Pages<u64>,
}

impl OwnedTable {
    pub(super) fn copy(tensor: TensorView<'_>) -> std::io::Result<Self> {
        let (rows, width) = (tensor.shape[0], tensor.shape[1]);
        let mut words = Pages::<u64>::zeroed(tensor.bytes.len().div_ceil(size_of::<u64>()))?;
        bytemuck::cast_slice_mut(&mut words)[..tensor.bytes.len()].copy_from_slice(tensor.bytes);
        Ok(Self { float_type: tensor.float_type, rows, width, words })
    }

    /// The table, borrowed.
    pub fn view(&self) -> Table<'_> {
        let bytes = self.rows * self.width * self.float_type.size();
        let words: &[u8] = bytemuck::cast_slice(&self.words);
        Table { float_type: self.float_type, rows: self.rows, width: self.width, bytes: &words[..bytes] }
    }
}

/// One decoder layer.
#[derive(Debug)]
pub(super) struct LayerWeights {
    pub(super) input_norm: Vec<f32>,
    pub(super) query_norm: Vec<f32>,
    pub(super) key_norm: Vec<f32>,
    /// Rows of q, then k, then v.
    pub(super) query_key_value: PanelMatrix,
    pub(super) output: PanelMatrix,
    pub(super) post_attention_norm: Vec<f32>,
    /// Panels of gate and up, alternating.
    pub(super) gate_up: PanelMatrix,
    pub(super) down: PanelMatrix,
}

/// `small_to_mtp_projection`: W·x + b.
#[derive(Debug)]
pub(super) struct ProjectionWeights {
    pub(super) weight: PanelMatrix,
    pub(super) bias: Vec<f32>,
}

/// Everything a frame reads.
#[derive(Debug)]
pub(super) struct Weights {
    pub(super) projection: Option<ProjectionWeights>,
    pub(super) layers: Vec<LayerWeights>,
    pub(super) final_norm: Vec<f32>,
    /// `Head[i]` gives the logits of `code_{i+1}`.
    pub(super) heads: Vec<PanelMatrix>,
    /// `E[i]` embeds `code_{i+1}`.
    pub(super) tables: Vec<Arc<OwnedTable>>,
    /// E0, when the checkpoint has the talker's.
    pub(super) code_zero_table: Option<Arc<OwnedTable>>,
}

/// The type that keeps every stored weight exactly: bfloat16 when all matrices are, else float32.
pub fn exact_weight_type(checkpoint: &Checkpoint<'_>) -> WeightType {
    let is_matrix = |name: &WeightName| {
        !matches!(name, WeightName::CodecEmbedding(_)) && checkpoint.spec().weight_shape(*name).len() == 2
    };
    let bfloat16 = checkpoint
        .spec()
        .weights()
        .filter(is_matrix)
        .all(|name| checkpoint.float_type(name) == Some(FloatType::BFloat16));
    if bfloat16 { WeightType::BFloat16 } else { WeightType::Float32 }
}

/// Bytes of the packed weights, tables and norms of `spec` with `weight_type` and tables stored as `table_type`.
pub fn weight_bytes(spec: &ModelSpec, weight_type: WeightType, table_type: FloatType) -> u64 {
    let padded = |outputs: usize| outputs.next_multiple_of(LANES) as u64;
    let plain = weight_type.unquantised().size() as u64;
    let hidden = spec.hidden_size as u64;
    let quantised = |outputs: usize, inputs: usize| {
        let scales = if weight_type == WeightType::Int8 { 4 } else { 0 };
        padded(outputs) * (inputs as u64 * weight_type.size() as u64 + scales)
    };
    let layer = quantised(spec.query_width() + 2 * spec.key_value_width(), spec.hidden_size)
        + quantised(spec.hidden_size, spec.query_width())
        + 2 * quantised(spec.mlp_width, spec.hidden_size)
        + padded(spec.hidden_size) * spec.mlp_width as u64 * plain
        + 4 * (2 * hidden + 2 * spec.head_size as u64);
    let projection = if spec.projected {
        padded(spec.hidden_size) * spec.talker_hidden_size as u64 * plain + 4 * hidden
    } else {
        0
    };
    let codebooks = spec.residual_codebooks as u64;
    let table_rows = spec.code_zero_size.unwrap_or(0) as u64 + codebooks * spec.codebook_size as u64;
    spec.layers as u64 * layer
        + projection
        + 4 * hidden
        + codebooks * padded(spec.codebook_size) * hidden * plain
        + table_rows * spec.talker_hidden_size as u64 * table_type.size() as u64
}

/// Reads and packs, reporting progress after each tensor.
struct Reader<'a, 'b> {
    checkpoint: &'a Checkpoint<'b>,
    team: &'a mut Team,
    weight_type: WeightType,
    progress: &'a mut Progress<'a>,
    done: u64,
    total: u64,
}

impl Reader<'_, '_> {
    fn read<T>(
        &mut self,
        name: WeightName,
        consume: impl FnOnce(&mut Team, TensorView<'_>) -> T,
    ) -> Result<T, LoadError> {
        let team = &mut *self.team;
        let (value, bytes) =
            self.checkpoint.read(name, |tensor| (consume(team, tensor), tensor.bytes.len() as u64))?;
        self.done += bytes;
        match (self.progress)(self.done, self.total) {
            ControlFlow::Continue(()) => Ok(value),
            ControlFlow::Break(()) => Err(LoadError::Interrupted),
        }
    }

    fn vector(&mut self, name: WeightName) -> Result<Vec<f32>, LoadError> {
        self.read(name, |_, tensor| (0..tensor.shape[0]).map(|index| tensor.get(index)).collect())
    }

    fn matrix(&mut self, name: WeightName, weight_type: WeightType) -> Result<PanelMatrix, LoadError> {
        self.stacked(&[name], weight_type)
    }

    /// One tensor's rows after another's.
    fn stacked(&mut self, names: &[WeightName], weight_type: WeightType) -> Result<PanelMatrix, LoadError> {
        let shapes = names.iter().map(|name| self.checkpoint.spec().weight_shape(*name));
        let (outputs, inputs) = shapes.fold((0, 0), |(outputs, _), shape| (outputs + shape[0], shape[1]));
        let mut matrix = PanelMatrix::new(weight_type, outputs, inputs)?;
        let mut first = 0;
        for name in names {
            first += self.read(*name, |team, tensor| {
                let rows = tensor.shape[0];
                let source_row = |output: usize| output.checked_sub(first).filter(|row| *row < rows);
                matrix.pack(team, tensor, source_row);
                rows
            })?;
        }
        Ok(matrix)
    }

    /// A panel of `names[0]`, one of `names[1]`, and so on in turn.
    fn alternating(
        &mut self,
        names: [WeightName; 2],
        weight_type: WeightType,
    ) -> Result<PanelMatrix, LoadError> {
        let shape = self.checkpoint.spec().weight_shape(names[0]);
        let (rows, inputs) = (shape[0], shape[1]);
        let mut matrix = PanelMatrix::new(weight_type, 2 * rows.next_multiple_of(LANES), inputs)?;
        for (turn, name) in names.into_iter().enumerate() {
            let source_row = |output: usize| {
                let (panel, lane) = (output / LANES, output % LANES);
                let row = panel / 2 * LANES + lane;
                (panel % 2 == turn && row < rows).then_some(row)
            };
            self.read(name, |team, tensor| matrix.pack(team, tensor, source_row))?;
        }
        Ok(matrix)
    }

    fn table(&mut self, name: WeightName) -> Result<Arc<OwnedTable>, LoadError> {
        Ok(Arc::new(self.read(name, |_, tensor| OwnedTable::copy(tensor))??))
    }

    fn layer(&mut self, layer: usize) -> Result<LayerWeights, LoadError> {
        use WeightName as Name;
        let narrow = self.weight_type;
        Ok(LayerWeights {
            input_norm: self.vector(Name::InputNorm(layer))?,
            query_norm: self.vector(Name::QueryNorm(layer))?,
            key_norm: self.vector(Name::KeyNorm(layer))?,
            query_key_value: self
                .stacked(&[Name::Query(layer), Name::Key(layer), Name::Value(layer)], narrow)?,
            output: self.matrix(Name::Output(layer), narrow)?,
            post_attention_norm: self.vector(Name::PostAttentionNorm(layer))?,
            gate_up: self.alternating([Name::Gate(layer), Name::Up(layer)], narrow)?,
            down: self.matrix(Name::Down(layer), narrow.unquantised())?,
        })
    }
}

impl Weights {
    pub(super) fn load<'a>(
        checkpoint: &'a Checkpoint<'_>,
        team: &'a mut Team,
        weight_type: WeightType,
        progress: &'a mut Progress<'a>,
    ) -> Result<Self, LoadError> {
        let spec = checkpoint.spec().clone();
        let mut names: Vec<_> = spec.weights().collect();
        names.extend(checkpoint.has(WeightName::CodeZeroTable).then_some(WeightName::CodeZeroTable));
        let bytes = |name: &WeightName| {
            let elements: usize = spec.weight_shape(*name).iter().product();
            (elements * checkpoint.float_type(*name).map_or(0, FloatType::size)) as u64
        };
        let total = names.iter().map(bytes).sum();
        let mut reader = Reader { checkpoint, team, weight_type, progress, done: 0, total };
        let plain = weight_type.unquantised();
        let projection = match spec.projected {
            true => Some(ProjectionWeights {
                weight: reader.matrix(WeightName::ProjectionWeight, plain)?,
                bias: reader.vector(WeightName::ProjectionBias)?,
            }),
            false => None,
        };
        let codebooks = 0..spec.residual_codebooks;
        Ok(Self {
            projection,
            layers: (0..spec.layers).map(|layer| reader.layer(layer)).collect::<Result<_, _>>()?,
            final_norm: reader.vector(WeightName::FinalNorm)?,
            heads: codebooks
                .clone()
                .map(|index| reader.matrix(WeightName::Head(index), plain))
                .collect::<Result<_, _>>()?,
            tables: codebooks
                .map(|index| reader.table(WeightName::CodecEmbedding(index)))
                .collect::<Result<_, _>>()?,
            code_zero_table: match checkpoint.has(WeightName::CodeZeroTable) {
                true => Some(reader.table(WeightName::CodeZeroTable)?),
                false => None,
            },
        })
    }

    /// Every matrix that a frame reads, as often and in the order it does.
    pub(super) fn in_frame_order(&self) -> impl Iterator<Item = &PanelMatrix> + Send {
        self.heads.iter().flat_map(|head| {
            let body = self
                .layers
                .iter()
                .flat_map(|layer| [&layer.query_key_value, &layer.output, &layer.gate_up, &layer.down]);
            let projection = self.projection.iter().map(|projection| &projection.weight);
            projection.chain(body).chain([head])
        })
    }
}
