//! Checkpoints: opened, checked, read tensor by tensor. Synthetic ones are written in [`synthetic`], and plain
//! safetensors files (frames, codes) pass through [`tensor_file`]. Drafts that were fitted to a checkpoint lie beside
//! it: [`drafts`].
//!
//! [`Checkpoint::open`] takes a directory as `save_pretrained` leaves it, whole model or lone predictor, one file or
//! shards; [`Checkpoint::open_with`] also takes artifacts of TensorRT Edge-LLM, with the original checkpoint for what
//! they lack; [`Checkpoint::from_tensors`] takes tensors in memory. All of them check everything that can be checked
//! without reading a weight: the configuration, names, shapes, types, headers. Values are checked as they are read.
//!
//! | file | what it does |
//! |---|---|
//! | `directory` | finds the files of a directory, and the tensors they hold |
//! | `keys` | knows how tensors are spelled |
//! | `assembly` | merges what was found, and holds it against the architecture |
//! | `mapped_file` | maps one file; lends its tensors and gives their pages back |
//! | `finite` | finds NaN and infinity |
//! | `pending_file` | writes files that appear whole or not at all |
//!
//! What the architecture is lies in [`crate::spec`]; what becomes of the weights is the executors' business.

mod assembly;
mod directory;
pub mod drafts;
mod error;
mod finite;
mod keys;
mod mapped_file;
mod pending_file;
pub mod synthetic;
pub mod tensor_file;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use assembly::{Entries, Entry, Place, assemble, from_file};
use directory::{Directory, Offer, OfferedPlace};
pub use error::{CheckpointError, TensorSite};
use keys::Naming;
use mapped_file::MappedFile;

use crate::spec::ModelSpec;
use crate::spec::config::Config;
use crate::spec::weights::WeightName;
use crate::tensor::{FloatType, TensorView};

/// A tensor in the caller's memory: contiguous, row-major, little-endian. The bytes need no alignment.
#[derive(Clone, Debug)]
pub struct InMemoryTensor<'a> {
    /// Element type.
    pub float_type: FloatType,
    /// Extent of each dimension, outermost first.
    pub shape: Vec<usize>,
    /// The elements.
    pub bytes: &'a [u8],
}

/// Of the names of tensors in memory, those that [`Checkpoint::from_tensors`] looks at; the rest is other models'.
pub fn predictor_keys<'k>(keys: impl Iterator<Item = &'k str> + Clone) -> impl Iterator<Item = &'k str> {
    let naming = Naming::detect(keys.clone());
    keys.filter(move |key| naming.parse(key).is_some() || naming.is_layer_bias(key))
}

/// A predictor's weights, checked and ready to be read. Files stay mapped for as long as it lives, and no longer.
#[derive(Debug)]
pub struct Checkpoint<'a> {
    spec: ModelSpec,
    config_files: Vec<PathBuf>,
    entries: Entries<'a>,
}

impl Checkpoint<'static> {
    /// Opens a directory that holds a whole checkpoint.
    ///
    /// Weights are taken from `model.safetensors`, else from the shards that `model.safetensors.index.json` names,
    /// else from the only `*.safetensors` there.
    ///
    /// # Errors
    /// Everything [`CheckpointError`] lists about reading.
    pub fn open(directory: &Path) -> Result<Self, CheckpointError> {
        Self::open_with(directory, None)
    }

    /// Opens `artifact_dir`, a checkpoint like any other or the artifacts of TensorRT Edge-LLM
    /// (`codec_embeddings.safetensors`, `lm_heads.safetensors`, perhaps `small_to_mtp_projection.safetensors`), and
    /// takes what it lacks from `checkpoint_dir`: tensors, and keys of `config.json`. Where both configurations speak
    /// they must agree.
    ///
    /// # Errors
    /// As for [`Checkpoint::open`]; [`CheckpointError::MissingBody`] when neither holds the decoder's layers.
    pub fn open_with(artifact_dir: &Path, checkpoint_dir: Option<&Path>) -> Result<Self, CheckpointError> {
        let paths: Vec<&Path> = [Some(artifact_dir), checkpoint_dir].into_iter().flatten().collect();
        let directories = || paths.iter().map(|path| path.to_path_buf()).collect();
        let mut configs = Vec::new();
        let mut offers = Vec::new();
        for path in &paths {
            let directory = Directory::open(path)?;
            configs.extend(directory.config()?);
            offers.push(directory.offer()?);
        }
        let config_files = configs.iter().filter_map(Config::file).map(Path::to_owned).collect();
        let mut configs = configs.into_iter();
        let first = configs.next().ok_or_else(|| CheckpointError::NoConfig { directories: directories() })?;
        let config = configs.try_fold(first, |config, other| config.supplied_by(&other))?;
        if offers.iter().all(|offer| offer.listed_in.is_empty()) {
            return Err(CheckpointError::NoWeights { directories: directories() });
        }
        let (spec, entries) = assemble(&config, offers)?;
        Ok(Self { spec, config_files, entries })
    }
}

impl<'a> Checkpoint<'a> {
    /// Takes tensors in memory, with names in any spelling that a file may have; those of other models are ignored.
    /// `config` is the text of a `config.json`.
    ///
    /// # Errors
    /// As for [`Checkpoint::open`], and [`CheckpointError::ByteCount`] for a tensor not as long as its shape says.
    pub fn from_tensors(
        config: &str,
        mut tensors: BTreeMap<String, InMemoryTensor<'a>>,
    ) -> Result<Self, CheckpointError> {
        let config = Config::from_json(config.as_bytes(), None)?;
        let keys: Vec<String> = tensors.keys().cloned().collect();
        let keys = keys.iter().map(String::as_str);
        let naming = Naming::detect(keys.clone());
        let mut offer = Offer { naming, ..Offer::default() };
        for key in keys {
            if let Some((key, tensor)) = tensors.remove_entry(key) {
                offer.add(naming, &key, OfferedPlace::Memory(tensor))?;
            }
        }
        let (spec, entries) = assemble(&config, vec![offer])?;
        Ok(Self { spec, config_files: Vec::new(), entries })
    }

    /// Takes the talker's codec table E0 [V0, Ht] from a safetensors file, where it is the only two-dimensional tensor
    /// under whatever name. It replaces one found in the checkpoint.
    ///
    /// # Errors
    /// The file cannot be read, holds no matrix or several, or one of another width or type.
    pub fn with_code_zero_table(mut self, file: &Path) -> Result<Self, CheckpointError> {
        let mapped = Arc::new(MappedFile::open(file)?);
        let matrices = mapped.tensors().filter(|(_, info)| info.shape.len() == 2);
        let found: Vec<String> = matrices.map(|(key, _)| key.to_owned()).collect();
        let [key] = found.as_slice() else {
            return Err(CheckpointError::CodeZeroTableFile { file: file.to_owned(), found });
        };
        let key = key.clone();
        let table = from_file(mapped, key)?;
        self.spec.code_zero_size = Some(table.code_zero_size(self.spec.talker_hidden_size)?);
        self.entries.insert(WeightName::CodeZeroTable, table);
        Ok(self)
    }

    /// The architecture. `code_zero_size` is there when the talker's table is.
    pub const fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// Whether a tensor is there. All of [`ModelSpec::weights`] are.
    pub fn has(&self, name: WeightName) -> bool {
        self.entries.contains_key(&name)
    }

    /// The type in which a tensor is stored.
    pub fn float_type(&self, name: WeightName) -> Option<FloatType> {
        self.entries.get(&name).map(|entry| entry.float_type)
    }

    /// Bytes of all tensors as they are stored, by type, the talker's table included.
    pub fn stored_bytes(&self) -> BTreeMap<&'static str, usize> {
        let mut bytes = BTreeMap::new();
        for entry in self.entries.values() {
            let elements: usize = entry.shape.iter().product();
            *bytes.entry(entry.float_type.name()).or_insert(0) += entry.float_type.size() * elements;
        }
        bytes
    }

    /// The files it is made of: configurations, then weights.
    pub fn sources(&self) -> Vec<PathBuf> {
        let weights = self.entries.values().filter_map(|entry| entry.site().file);
        let weights: BTreeSet<PathBuf> = weights.collect();
        self.config_files.iter().cloned().chain(weights).collect()
    }

    /// Lends a tensor, after checking that all of its values are finite. The pages of a mapped file go back to the
    /// system when `consume` returns.
    ///
    /// # Errors
    /// There is no such tensor here; a value is NaN or infinite; the file's length changed since it was opened.
    pub fn read<T>(
        &self,
        name: WeightName,
        consume: impl FnOnce(TensorView<'_>) -> T,
    ) -> Result<T, CheckpointError> {
        let Some(entry) = self.entries.get(&name) else {
            return Err(CheckpointError::MissingTensor {
                searched: self.sources(),
                tensor: name.to_string(),
                expected: format!("{:?}", self.spec.weight_shape(name)),
            });
        };
        entry.read(consume)
    }
}

impl Entry<'_> {
    fn read<T>(&self, consume: impl FnOnce(TensorView<'_>) -> T) -> Result<T, CheckpointError> {
        match &self.place {
            Place::Memory(bytes) => self.lend(bytes, consume),
            Place::File { file, info } => file.read(info, |bytes| self.lend(bytes, consume))?,
        }
    }

    fn lend<T>(&self, bytes: &[u8], consume: impl FnOnce(TensorView<'_>) -> T) -> Result<T, CheckpointError> {
        let view = TensorView { float_type: self.float_type, shape: &self.shape, bytes };
        match finite::first_not_finite(self.float_type, bytes) {
            None => Ok(consume(view)),
            Some(index) => Err(CheckpointError::NotFinite {
                site: self.site(),
                position: finite::position(index, &self.shape),
                value: view.get(index),
            }),
        }
    }
}

#[cfg(test)]
mod tests;
