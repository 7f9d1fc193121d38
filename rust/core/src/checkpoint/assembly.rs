//! Makes one predictor of what directories offer: settles the architecture, then checks presence, type and shape of
//! every tensor against it. No weight is read here.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Slot;
use std::path::PathBuf;
use std::sync::Arc;

use safetensors::tensor::TensorInfo;

use super::directory::{Offer, Offered, OfferedPlace};
use super::mapped_file::MappedFile;
use super::tensor_file::ElementType;
use super::{CheckpointError, InMemoryTensor, TensorSite};
use crate::spec::ModelSpec;
use crate::spec::config::{Config, WIDEST};
use crate::spec::weights::WeightName;
use crate::tensor::FloatType;

/// A tensor that has been found and checked, ready to be read.
#[derive(Debug)]
pub(super) struct Entry<'a> {
    pub key: String,
    pub float_type: FloatType,
    pub shape: Vec<usize>,
    pub place: Place<'a>,
}

/// Where the bytes are.
#[derive(Debug)]
pub(super) enum Place<'a> {
    File { file: Arc<MappedFile>, info: TensorInfo },
    Memory(&'a [u8]),
}

impl Entry<'_> {
    /// File and key, for messages.
    pub fn site(&self) -> TensorSite {
        let file = match &self.place {
            Place::File { file, .. } => Some(file.path().to_owned()),
            Place::Memory(_) => None,
        };
        TensorSite { file, tensor: self.key.clone() }
    }

    pub fn shape_error(&self, expected: String) -> CheckpointError {
        CheckpointError::Shape { site: self.site(), found: self.shape.clone(), expected }
    }

    /// Checks a talker's codec table, [V0, Ht] with any V0, and returns V0.
    pub fn code_zero_size(&self, talker_hidden_size: usize) -> Result<usize, CheckpointError> {
        match *self.shape.as_slice() {
            [rows, width] if rows > 0 && width == talker_hidden_size => Ok(rows),
            _ => Err(self.shape_error(format!("[at least 1, {talker_hidden_size}]"))),
        }
    }
}

/// The entries of one checkpoint, by name.
pub(super) type Entries<'a> = BTreeMap<WeightName, Entry<'a>>;

/// Merges the offers, earlier ones first, and checks the result.
///
/// # Errors
/// See [`super::Checkpoint::open_with`].
pub(super) fn assemble<'a>(
    config: &Config,
    offers: Vec<Offer<'a>>,
) -> Result<(ModelSpec, Entries<'a>), CheckpointError> {
    let searched: Vec<PathBuf> = offers.iter().flat_map(|offer| offer.listed_in.clone()).collect();
    let naming = offers.last().map(|offer| offer.naming).unwrap_or_default();
    let mut tensors = BTreeMap::new();
    for (name, offered) in offers.into_iter().flat_map(|offer| offer.tensors) {
        tensors.entry(name).or_insert(offered);
    }
    if !tensors.keys().any(|name| name.is_body()) {
        return Err(CheckpointError::MissingBody { searched });
    }
    let mut spec = config.complete()?;
    refuse_excess(&spec, &tensors)?;
    spec.projected = has_projection(&tensors)?;

    let mut shards = Shards::default();
    let mut entries = BTreeMap::new();
    let mut require = |name: WeightName, expected: String| match tensors.remove(&name) {
        Some(offered) => shards.resolve(offered),
        None => {
            let (searched, tensor) = (searched.clone(), naming.key(name));
            Err(CheckpointError::MissingTensor { searched, tensor, expected })
        }
    };
    let first_table = require(WeightName::CodecEmbedding(0), table_shape(&spec, config))?;
    settle_talker_hidden_size(&mut spec, config, &first_table)?;
    let table_type = first_table.float_type;
    entries.insert(WeightName::CodecEmbedding(0), first_table);
    for name in spec.weights() {
        let shape = spec.weight_shape(name);
        let expected = format!("{shape:?}");
        let entry = match entries.entry(name) {
            Slot::Occupied(slot) => slot.into_mut(),
            Slot::Vacant(slot) => slot.insert(require(name, expected.clone())?),
        };
        if entry.shape != shape {
            return Err(entry.shape_error(expected));
        }
        if matches!(name, WeightName::CodecEmbedding(_)) && entry.float_type != table_type {
            return Err(CheckpointError::TableTypes {
                site: entry.site(),
                found: entry.float_type.name(),
                expected: table_type.name(),
            });
        }
    }
    if let Some(offered) = tensors.remove(&WeightName::CodeZeroTable) {
        let table = shards.resolve(offered)?;
        spec.code_zero_size = Some(table.code_zero_size(spec.talker_hidden_size)?);
        entries.insert(WeightName::CodeZeroTable, table);
    }
    Ok((spec, entries))
}

/// Refuses tensors that the configuration leaves no room for: a model computed without them would be another one.
fn refuse_excess(
    spec: &ModelSpec,
    tensors: &BTreeMap<WeightName, Offered<'_>>,
) -> Result<(), CheckpointError> {
    for (&name, offered) in tensors {
        let (key, value) = match name {
            WeightName::CodecEmbedding(index) | WeightName::Head(index)
                if index >= spec.residual_codebooks =>
            {
                ("num_code_groups", spec.codes_per_frame())
            }
            _ if name.layer().is_some_and(|layer| layer >= spec.layers) => ("num_hidden_layers", spec.layers),
            _ => continue,
        };
        return Err(CheckpointError::ExcessTensor { site: offered.site(), key, value });
    }
    Ok(())
}

/// Whether there is a projection; half of one is refused.
fn has_projection(tensors: &BTreeMap<WeightName, Offered<'_>>) -> Result<bool, CheckpointError> {
    let halves = [WeightName::ProjectionWeight, WeightName::ProjectionBias];
    match halves.map(|half| tensors.get(&half)) {
        [None, None] => Ok(false),
        [Some(_), Some(_)] => Ok(true),
        [Some(half), None] => {
            Err(CheckpointError::HalfProjection { site: half.site(), missing: halves[1].to_string() })
        }
        [None, Some(half)] => {
            Err(CheckpointError::HalfProjection { site: half.site(), missing: halves[0].to_string() })
        }
    }
}

/// The shape of a codec table while Ht is known at most to the configuration.
fn table_shape(spec: &ModelSpec, config: &Config) -> String {
    let rows = spec.codebook_size;
    match config.talker_hidden_size() {
        Some(width) => format!("[{rows}, {width}]"),
        None => format!("[{rows}, 1 to {WIDEST}]"),
    }
}

/// Ht is the width of the first codec table. It must be what a talker in the configuration has, and H where nothing
/// projects.
fn settle_talker_hidden_size(
    spec: &mut ModelSpec,
    config: &Config,
    first_table: &Entry<'_>,
) -> Result<(), CheckpointError> {
    let width = match (first_table.shape.as_slice(), config.talker_hidden_size()) {
        (&[_, width], None) if (1..=WIDEST).contains(&width) => width,
        (&[_, width], Some(expected)) if width == expected => width,
        _ => return Err(first_table.shape_error(table_shape(spec, config))),
    };
    if !spec.projected && width != spec.hidden_size {
        return Err(CheckpointError::ProjectionNeeded {
            site: first_table.site(),
            talker_hidden_size: width,
            hidden_size: spec.hidden_size,
        });
    }
    spec.talker_hidden_size = width;
    Ok(())
}

/// The shards that have been opened: each at most once, and only those that hold a tensor of ours.
#[derive(Default)]
struct Shards(BTreeMap<PathBuf, Arc<MappedFile>>);

impl Shards {
    /// Finds an offered tensor in its file, and checks that its type is one that is read here.
    fn resolve<'a>(&mut self, offered: Offered<'a>) -> Result<Entry<'a>, CheckpointError> {
        let site = offered.site();
        let file = match offered.place {
            OfferedPlace::Memory(tensor) => return from_memory(tensor, site),
            OfferedPlace::Open(file) => file,
            OfferedPlace::Promised { shard, index } => {
                let file = match self.0.entry(shard) {
                    Slot::Occupied(slot) => slot.into_mut(),
                    Slot::Vacant(slot) => {
                        let file = Arc::new(MappedFile::open(slot.key())?);
                        slot.insert(file)
                    }
                };
                if file.info(&offered.key).is_none() {
                    return Err(CheckpointError::NotInShard { site, index });
                }
                Arc::clone(file)
            }
        };
        from_file(file, offered.key)
    }
}

/// A tensor that the file holds.
pub(super) fn from_file<'a>(file: Arc<MappedFile>, key: String) -> Result<Entry<'a>, CheckpointError> {
    let site = TensorSite { file: Some(file.path().to_owned()), tensor: key.clone() };
    let Some(info) = file.info(&key).cloned() else {
        return Err(CheckpointError::MissingTensor {
            searched: vec![file.path().to_owned()],
            tensor: key,
            expected: "any".to_owned(),
        });
    };
    let float_type = ElementType::of(info.dtype).and_then(ElementType::float_type);
    let float_type = float_type.ok_or_else(|| CheckpointError::Type {
        site,
        found: info.dtype.to_string(),
        expected: "F32, F16 or BF16",
    })?;
    Ok(Entry { key, float_type, shape: info.shape.clone(), place: Place::File { file, info } })
}

fn from_memory(tensor: InMemoryTensor<'_>, site: TensorSite) -> Result<Entry<'_>, CheckpointError> {
    let InMemoryTensor { float_type, shape, bytes } = tensor;
    let expected = shape.iter().try_fold(float_type.size(), |product, extent| product.checked_mul(*extent));
    if expected != Some(bytes.len()) {
        // A product that overflows is more than any memory holds.
        return Err(CheckpointError::ByteCount {
            site,
            found: bytes.len(),
            expected: expected.unwrap_or(usize::MAX),
        });
    }
    Ok(Entry { key: site.tensor, float_type, shape, place: Place::Memory(bytes) })
}
