//! What a directory offers: its `config.json`, its weights files, and which of a predictor's tensors they hold.
//!
//! Nothing is checked against an architecture here; that is [`super::assembly`].

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{ErrorKind, Read};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use super::drafts;
use super::keys::{ARTIFACTS, Naming, parse_artifact};
use super::mapped_file::{MappedFile, open_regular};
use super::{CheckpointError, InMemoryTensor, TensorSite};
use crate::spec::config::Config;
use crate::spec::weights::WeightName;

const CONFIG: &str = "config.json";
const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Bytes of a `config.json` that are read at most; real ones have some ten thousand.
const LARGEST_CONFIG: u64 = 16 << 20;
/// Bytes of an index that are read at most; real ones have some millions.
const LARGEST_INDEX: u64 = 256 << 20;

/// The tensors of a predictor that one place offers: a directory, or the memory of the caller.
#[derive(Debug, Default)]
pub(super) struct Offer<'a> {
    /// The files that say so: weights files and indexes, none for tensors in memory.
    pub listed_in: Vec<PathBuf>,
    /// How the keys are spelled, for messages about missing ones.
    pub naming: Naming,
    /// The tensors, by name.
    pub tensors: BTreeMap<WeightName, Offered<'a>>,
}

/// One tensor on offer, and the key it has there.
#[derive(Debug)]
pub(super) struct Offered<'a> {
    pub key: String,
    pub place: OfferedPlace<'a>,
}

/// Where an offered tensor is.
#[derive(Debug)]
pub(super) enum OfferedPlace<'a> {
    /// In a file that has been opened, and holds it.
    Open(Arc<MappedFile>),
    /// In a file that an index names.
    Promised { shard: PathBuf, index: PathBuf },
    /// In the caller's memory.
    Memory(InMemoryTensor<'a>),
}

impl Offered<'_> {
    /// File and key, for messages.
    pub fn site(&self) -> TensorSite {
        let file = match &self.place {
            OfferedPlace::Open(file) => Some(file.path().to_owned()),
            OfferedPlace::Promised { shard, .. } => Some(shard.clone()),
            OfferedPlace::Memory(_) => None,
        };
        TensorSite { file, tensor: self.key.clone() }
    }
}

impl<'a> Offer<'a> {
    /// Adds the tensor of a key, if it is a predictor's.
    ///
    /// # Errors
    /// It is the bias of a layer.
    pub fn add(&mut self, naming: Naming, key: &str, place: OfferedPlace<'a>) -> Result<(), CheckpointError> {
        let offered = Offered { key: key.to_owned(), place };
        if naming.is_layer_bias(key) {
            return Err(CheckpointError::LayerBias { site: offered.site() });
        }
        if let Some(name) = naming.parse(key) {
            self.tensors.entry(name).or_insert(offered);
        }
        Ok(())
    }
}

/// A directory that exists.
#[derive(Debug)]
pub(super) struct Directory<'p>(&'p Path);

impl<'p> Directory<'p> {
    /// # Errors
    /// The path leads nowhere, or to something else.
    pub fn open(path: &'p Path) -> Result<Self, CheckpointError> {
        match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => Ok(Self(path)),
            Ok(_) => Err(CheckpointError::NotADirectory { path: path.to_owned() }),
            Err(cause) if cause.kind() == ErrorKind::NotFound => {
                Err(CheckpointError::DirectoryNotFound { directory: path.to_owned() })
            }
            Err(cause) => Err(CheckpointError::Read { file: path.to_owned(), cause }),
        }
    }

    /// What its `config.json` says, if it has one.
    ///
    /// # Errors
    /// The file cannot be read, or its predictor is not one that runs here.
    pub fn config(&self) -> Result<Option<Config>, CheckpointError> {
        let Some(path) = self.existing(CONFIG) else { return Ok(None) };
        let text = read_text(&path, LARGEST_CONFIG)?;
        Ok(Some(Config::from_json(&text, Some(&path))?))
    }

    /// The tensors it offers: of `model.safetensors`, else of the shards in `model.safetensors.index.json`, else of its
    /// only `*.safetensors`, fitted drafts not counted; and of artifact files beside them, which also settle which
    /// files are meant.
    ///
    /// # Errors
    /// A file that cannot be read, a damaged header or index, several files and nothing that says which is meant.
    pub fn offer(&self) -> Result<Offer<'static>, CheckpointError> {
        let mut offer = Offer::default();
        let artifacts: Vec<_> =
            ARTIFACTS.iter().filter_map(|name| self.existing(name).map(|path| (*name, path))).collect();
        if let Some(path) = self.existing(WEIGHTS) {
            offer.add_file(path)?;
        } else if let Some(path) = self.existing(INDEX) {
            offer.add_index(self.0, path)?;
        } else if artifacts.is_empty()
            && let Some(path) = self.only_weights()?
        {
            offer.add_file(path)?;
        }
        for (name, path) in artifacts {
            offer.add_artifact(name, path)?;
        }
        Ok(offer)
    }

    fn existing(&self, name: &str) -> Option<PathBuf> {
        // A dangling link, or a name that may not be looked up, exists for this purpose: opening it tells what is wrong.
        let path = self.0.join(name);
        let absent = fs::symlink_metadata(&path).is_err_and(|cause| cause.kind() == ErrorKind::NotFound);
        (!absent).then_some(path)
    }

    fn only_weights(&self) -> Result<Option<PathBuf>, CheckpointError> {
        let read = |cause| CheckpointError::Read { file: self.0.to_owned(), cause };
        let mut files = Vec::new();
        for entry in fs::read_dir(self.0).map_err(read)? {
            let path = entry.map_err(read)?.path();
            let name = path.file_name().unwrap_or_default();
            let other = name.as_encoded_bytes().starts_with(b".") || name == drafts::FILE_NAME;
            if !other && path.extension() == Some(OsStr::new("safetensors")) {
                files.push(path);
            }
        }
        if files.len() > 1 {
            let name = |path: &PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let mut files: Vec<_> = files.iter().map(name).collect();
            files.sort();
            return Err(CheckpointError::AmbiguousWeights { directory: self.0.to_owned(), files });
        }
        Ok(files.pop())
    }
}

impl Offer<'static> {
    fn add_file(&mut self, path: PathBuf) -> Result<(), CheckpointError> {
        let file = Arc::new(MappedFile::open(&path)?);
        let keys = file.tensors().map(|(key, _)| key);
        self.naming = Naming::detect(keys.clone());
        self.listed_in.push(path);
        for key in keys {
            self.add(self.naming, key, OfferedPlace::Open(Arc::clone(&file)))?;
        }
        Ok(())
    }

    fn add_artifact(&mut self, name: &str, path: PathBuf) -> Result<(), CheckpointError> {
        let file = Arc::new(MappedFile::open(&path)?);
        self.listed_in.push(path);
        for (key, _) in file.tensors() {
            let Some(name) = parse_artifact(name, key) else { continue };
            let place = OfferedPlace::Open(Arc::clone(&file));
            self.tensors.entry(name).or_insert_with(|| Offered { key: key.to_owned(), place });
        }
        Ok(())
    }

    fn add_index(&mut self, directory: &Path, index: PathBuf) -> Result<(), CheckpointError> {
        let map = read_index(&index)?;
        let mut shards = BTreeMap::new();
        for (key, shard) in &map {
            let plain = shard.as_str().filter(|name| is_plain_name(name));
            let refuse = || CheckpointError::ShardName {
                file: index.clone(),
                tensor: key.clone(),
                found: shard.to_string(),
            };
            shards.insert(key.as_str(), directory.join(plain.ok_or_else(refuse)?));
        }
        self.naming = Naming::detect(shards.keys().copied());
        self.listed_in.push(index.clone());
        for (key, shard) in shards {
            self.add(self.naming, key, OfferedPlace::Promised { shard, index: index.clone() })?;
        }
        Ok(())
    }
}

fn read_index(index: &Path) -> Result<serde_json::Map<String, Value>, CheckpointError> {
    let text = read_text(index, LARGEST_INDEX)?;
    let parsed = serde_json::from_slice(&text);
    let mut root: Value =
        parsed.map_err(|cause| CheckpointError::IndexJson { file: index.to_owned(), cause })?;
    match root.get_mut("weight_map").map(Value::take) {
        Some(Value::Object(map)) => Ok(map),
        _ => Err(CheckpointError::IndexWithoutMap { file: index.to_owned() }),
    }
}

/// Whether a name stays in its directory on every system: one component, with no separator of any system in it.
fn is_plain_name(name: &str) -> bool {
    let mut components = Path::new(name).components();
    let single = matches!((components.next(), components.next()), (Some(Component::Normal(_)), None));
    single && !name.contains(['/', '\\', ':', '\0'])
}

/// Reads a whole file of at most `limit` bytes.
fn read_text(path: &Path, limit: u64) -> Result<Vec<u8>, CheckpointError> {
    let (file, _) = open_regular(path)?;
    let mut text = Vec::new();
    let read = |cause| CheckpointError::Read { file: path.to_owned(), cause };
    file.take(limit + 1).read_to_end(&mut text).map_err(read)?;
    if text.len() as u64 > limit {
        return Err(CheckpointError::FileTooLarge { file: path.to_owned(), limit });
    }
    Ok(text)
}
