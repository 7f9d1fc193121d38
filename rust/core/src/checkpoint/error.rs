//! Why a checkpoint was refused, or could not be written.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use safetensors::SafeTensorError;

use crate::spec::config::ConfigError;

/// A tensor and the file that holds it; `file` is `None` for a tensor handed over in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSite {
    /// The safetensors file.
    pub file: Option<PathBuf>,
    /// The tensor's name in that file.
    pub tensor: String,
}

impl fmt::Display for TensorSite {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            write!(formatter, "{}: ", file.display())?;
        }
        write!(formatter, "tensor `{}`", self.tensor)
    }
}

/// One cause each. A message names file and tensor, what was found and what was expected, and includes what the
/// operating system or a parser said.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The configuration is at fault.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The directory does not exist.
    #[error("{}: no such directory", .directory.display())]
    DirectoryNotFound {
        /// The directory.
        directory: PathBuf,
    },
    /// The path leads to something else than a directory.
    #[error("{}: not a directory", .path.display())]
    NotADirectory {
        /// The path.
        path: PathBuf,
    },
    /// No directory has a `config.json`.
    #[error("{}: no config.json", list(.directories))]
    NoConfig {
        /// The directories.
        directories: Vec<PathBuf>,
    },
    /// No directory has any weights.
    #[error(
        "{}: no weights, expected model.safetensors, model.safetensors.index.json, one *.safetensors, \
         or codec_embeddings.safetensors and lm_heads.safetensors",
        list(.directories)
    )]
    NoWeights {
        /// The directories.
        directories: Vec<PathBuf>,
    },
    /// Several safetensors files and nothing that says which to read.
    #[error(
        "{}: no model.safetensors and no model.safetensors.index.json, but {} other files: {}",
        .directory.display(), .files.len(), .files.join(", ")
    )]
    AmbiguousWeights {
        /// The directory.
        directory: PathBuf,
        /// Names of the files.
        files: Vec<String>,
    },
    /// A file does not exist.
    #[error("{}: no such file", .file.display())]
    FileNotFound {
        /// The file.
        file: PathBuf,
    },
    /// The path leads to a directory, a pipe or a device.
    #[error("{}: not a regular file", .file.display())]
    NotAFile {
        /// The path.
        file: PathBuf,
    },
    /// The operating system could not read it.
    #[error("{}: cannot be read: {cause}", .file.display())]
    Read {
        /// The file or directory.
        file: PathBuf,
        /// What the operating system said.
        cause: io::Error,
    },
    /// A JSON file larger than any real one.
    #[error("{}: larger than {limit} bytes", .file.display())]
    FileTooLarge {
        /// The file.
        file: PathBuf,
        /// Bytes that are read at most.
        limit: u64,
    },
    /// The header of a safetensors file is damaged, or does not match the file's length.
    #[error("{}: not a valid safetensors file: {cause}", .file.display())]
    Header {
        /// The file.
        file: PathBuf,
        /// What the parser said.
        cause: SafeTensorError,
    },
    /// The index is not JSON.
    #[error("{}: not valid JSON: {cause}", .file.display())]
    IndexJson {
        /// The index.
        file: PathBuf,
        /// What the parser said.
        cause: serde_json::Error,
    },
    /// The index has no object `weight_map`.
    #[error("{}: no object `weight_map`", .file.display())]
    IndexWithoutMap {
        /// The index.
        file: PathBuf,
    },
    /// The index maps a tensor to something else than a plain file name.
    #[error("{}: tensor `{tensor}` is in {found}, expected the plain name of a file beside the index", .file.display())]
    ShardName {
        /// The index.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// What the index says, as JSON.
        found: String,
    },
    /// A shard does not hold a tensor that the index promises.
    #[error("{site}: not in this file, though {} says so", .index.display())]
    NotInShard {
        /// The shard and the tensor.
        site: TensorSite,
        /// The index.
        index: PathBuf,
    },
    /// A tensor that the configuration asks for is nowhere.
    #[error("{}no tensor `{tensor}`, expected one of shape {expected}", place(.searched))]
    MissingTensor {
        /// Where it was looked for: weights files, indexes.
        searched: Vec<PathBuf>,
        /// The name it would have.
        tensor: String,
        /// The shape it would have.
        expected: String,
    },
    /// No directory holds the predictor's decoder layers. Artifacts exported for another runtime have none: those of
    /// the original checkpoint are needed beside them.
    #[error("{}no decoder layers (`layers.0.…`) of a code predictor", place(.searched))]
    MissingBody {
        /// Where they were looked for: weights files, indexes.
        searched: Vec<PathBuf>,
    },
    /// A table, head or layer beyond what the configuration implies.
    #[error("{site}: the configuration leaves no room for it: `{key}` is {value}")]
    ExcessTensor {
        /// The tensor.
        site: TensorSite,
        /// The key of the configuration.
        key: &'static str,
        /// Its value.
        value: usize,
    },
    /// A bias in a layer; this predictor's layers have none.
    #[error("{site}: layers with biases are not supported")]
    LayerBias {
        /// The tensor.
        site: TensorSite,
    },
    /// `small_to_mtp_projection` has a weight and no bias, or a bias and no weight.
    #[error("{site}: present without `{missing}`")]
    HalfProjection {
        /// The half that is there.
        site: TensorSite,
        /// The half that is not.
        missing: String,
    },
    /// The tables are not as wide as the predictor, and nothing maps one to the other.
    #[error(
        "{site}: rows of {talker_hidden_size}, but hidden_size is {hidden_size} and there is no \
         small_to_mtp_projection"
    )]
    ProjectionNeeded {
        /// The first codec table.
        site: TensorSite,
        /// Ht, the width of the tables.
        talker_hidden_size: usize,
        /// H, the width of the predictor.
        hidden_size: usize,
    },
    /// A tensor of another shape; in `expected`, a word stands for an extent that may be anything.
    #[error("{site}: shape {found:?}, expected {expected}")]
    Shape {
        /// The tensor.
        site: TensorSite,
        /// Its shape.
        found: Vec<usize>,
        /// The shape it must have.
        expected: String,
    },
    /// A tensor of a type that is not read here.
    #[error("{site}: type {found}, expected {expected}")]
    Type {
        /// The tensor.
        site: TensorSite,
        /// Its type, in the words of safetensors.
        found: String,
        /// The types that are read.
        expected: &'static str,
    },
    /// The codec tables are not all of one type.
    #[error("{site}: type {found}, expected {expected} like the first codec table")]
    TableTypes {
        /// The odd one out.
        site: TensorSite,
        /// Its type.
        found: &'static str,
        /// The type of the first table.
        expected: &'static str,
    },
    /// A tensor in memory is not as long as its shape says.
    #[error("{site}: {found} bytes, expected {expected}")]
    ByteCount {
        /// The tensor.
        site: TensorSite,
        /// Its bytes.
        found: usize,
        /// The bytes of its shape.
        expected: usize,
    },
    /// A value that is NaN or infinite.
    #[error("{site}: {value} at {position:?}, expected finite values")]
    NotFinite {
        /// The tensor.
        site: TensorSite,
        /// Indices of the first such value.
        position: Vec<usize>,
        /// The value.
        value: f32,
    },
    /// The file changed its length after it was opened.
    #[error("{}: {found} bytes, expected the {expected} it had when it was opened", .file.display())]
    FileChanged {
        /// The file.
        file: PathBuf,
        /// Its length now.
        found: u64,
        /// Its length when it was opened.
        expected: u64,
    },
    /// A file given as the talker's codec table does not hold exactly one matrix.
    #[error("{}: {}, expected exactly one two-dimensional tensor", .file.display(), matrices(.found))]
    CodeZeroTableFile {
        /// The file.
        file: PathBuf,
        /// Names of its two-dimensional tensors.
        found: Vec<String>,
    },
    /// The record of a file of drafts is missing, or speaks of another format or architecture.
    #[error("{}: metadata `{key}`: {found}, expected {expected}", .file.display())]
    DraftsRecord {
        /// The file.
        file: PathBuf,
        /// The entry of the metadata, and the key in it.
        key: String,
        /// What is there, as JSON.
        found: String,
        /// What must be there.
        expected: String,
    },
    /// Drafts that were fitted for other heads than the checkpoint's.
    #[error(
        "{}: drafts of another predictor: SHA-256 of its heads {found}, expected {expected}; \
         `overtone fit-drafts` makes them anew",
        .file.display()
    )]
    ForeignDrafts {
        /// The file of drafts.
        file: PathBuf,
        /// The fingerprint of the heads they were fitted for.
        found: String,
        /// That of the checkpoint's heads.
        expected: String,
    },
    /// A tensor that has no place in its file.
    #[error("{site}: has no place here, expected {expected}")]
    UnknownTensor {
        /// The tensor.
        site: TensorSite,
        /// Names of those that have one.
        expected: String,
    },
    /// A directory that shall receive a checkpoint has one already.
    #[error("{}: exists already, and is not overwritten", .file.display())]
    AlreadyExists {
        /// The file that is there.
        file: PathBuf,
    },
    /// The operating system could not write it.
    #[error("{}: cannot be written: {cause}", .file.display())]
    Write {
        /// The file or directory.
        file: PathBuf,
        /// What the operating system said.
        cause: io::Error,
    },
    /// Frames of a synthetic checkpoint without an extent, or of more bytes than can be counted.
    #[error(
        "{frames} frames of {batch} streams, expected at least one of each, and a countable number of bytes"
    )]
    FrameCount {
        /// T.
        frames: usize,
        /// B.
        batch: usize,
    },
    /// A tensor to be written is not as long as its shape says, or its name is taken twice.
    #[error("{}: cannot be laid out: {cause}", .file.display())]
    Layout {
        /// The file.
        file: PathBuf,
        /// What the format's library said.
        cause: SafeTensorError,
    },
    /// The caller asked to stop.
    #[error("{}: writing was interrupted; nothing was left behind", .directory.display())]
    Interrupted {
        /// The directory that was to be written.
        directory: PathBuf,
    },
}

impl CheckpointError {
    /// The file or directory at fault; `None` for tensors and configurations in memory.
    pub fn file(&self) -> Option<&Path> {
        match self {
            Self::Config(error) => error.file(),
            Self::DirectoryNotFound { directory }
            | Self::AmbiguousWeights { directory, .. }
            | Self::Interrupted { directory } => Some(directory),
            Self::NoConfig { directories: several }
            | Self::NoWeights { directories: several }
            | Self::MissingTensor { searched: several, .. }
            | Self::MissingBody { searched: several } => several.first().map(PathBuf::as_path),
            Self::NotADirectory { path: file }
            | Self::FileNotFound { file }
            | Self::NotAFile { file }
            | Self::Read { file, .. }
            | Self::FileTooLarge { file, .. }
            | Self::Header { file, .. }
            | Self::IndexJson { file, .. }
            | Self::IndexWithoutMap { file }
            | Self::ShardName { file, .. }
            | Self::FileChanged { file, .. }
            | Self::CodeZeroTableFile { file, .. }
            | Self::DraftsRecord { file, .. }
            | Self::ForeignDrafts { file, .. }
            | Self::AlreadyExists { file }
            | Self::Write { file, .. }
            | Self::Layout { file, .. } => Some(file),
            Self::FrameCount { .. } => None,
            _ => self.site().and_then(|site| site.file.as_deref()),
        }
    }

    /// The tensor at fault, by its name in the file.
    pub fn tensor(&self) -> Option<&str> {
        match self {
            Self::ShardName { tensor, .. } | Self::MissingTensor { tensor, .. } => Some(tensor),
            _ => self.site().map(|site| site.tensor.as_str()),
        }
    }

    /// What was found, in words.
    pub fn found(&self) -> Option<String> {
        match self {
            Self::Config(error) => error.found(),
            Self::AmbiguousWeights { files, .. } => Some(files.join(", ")),
            Self::ShardName { found, .. }
            | Self::Type { found, .. }
            | Self::DraftsRecord { found, .. }
            | Self::ForeignDrafts { found, .. } => Some(found.clone()),
            Self::ExcessTensor { site, .. }
            | Self::UnknownTensor { site, .. }
            | Self::LayerBias { site }
            | Self::HalfProjection { site, .. } => Some(site.tensor.clone()),
            Self::ProjectionNeeded { talker_hidden_size, .. } => Some(talker_hidden_size.to_string()),
            Self::Shape { found, .. } => Some(format!("{found:?}")),
            Self::TableTypes { found, .. } => Some((*found).to_owned()),
            Self::ByteCount { found, .. } => Some(format!("{found} bytes")),
            Self::NotFinite { value, position, .. } => Some(format!("{value} at {position:?}")),
            Self::FileChanged { found, .. } => Some(format!("{found} bytes")),
            Self::CodeZeroTableFile { found, .. } => Some(matrices(found)),
            _ => None,
        }
    }

    /// What was expected in its place, in words.
    pub fn expected(&self) -> Option<String> {
        match self {
            Self::Config(error) => error.expected(),
            Self::FileTooLarge { limit, .. } => Some(format!("at most {limit} bytes")),
            Self::ShardName { .. } => Some("the plain name of a file beside the index".to_owned()),
            Self::ExcessTensor { key, value, .. } => Some(format!("{key} {value}")),
            Self::HalfProjection { missing, .. } => Some(missing.clone()),
            Self::ProjectionNeeded { hidden_size, .. } => Some(hidden_size.to_string()),
            Self::Shape { expected, .. }
            | Self::MissingTensor { expected, .. }
            | Self::DraftsRecord { expected, .. }
            | Self::ForeignDrafts { expected, .. }
            | Self::UnknownTensor { expected, .. } => Some(expected.clone()),
            Self::Type { expected, .. } | Self::TableTypes { expected, .. } => Some((*expected).to_owned()),
            Self::ByteCount { expected, .. } => Some(format!("{expected} bytes")),
            Self::NotFinite { .. } => Some("finite values".to_owned()),
            Self::FileChanged { expected, .. } => Some(format!("{expected} bytes")),
            Self::CodeZeroTableFile { .. } => Some("exactly one two-dimensional tensor".to_owned()),
            _ => None,
        }
    }

    fn site(&self) -> Option<&TensorSite> {
        match self {
            Self::NotInShard { site, .. }
            | Self::ExcessTensor { site, .. }
            | Self::LayerBias { site }
            | Self::HalfProjection { site, .. }
            | Self::ProjectionNeeded { site, .. }
            | Self::Shape { site, .. }
            | Self::Type { site, .. }
            | Self::TableTypes { site, .. }
            | Self::ByteCount { site, .. }
            | Self::UnknownTensor { site, .. }
            | Self::NotFinite { site, .. } => Some(site),
            _ => None,
        }
    }
}

fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

fn place(searched: &[PathBuf]) -> String {
    if searched.is_empty() { String::new() } else { list(searched) + ": " }
}

fn matrices(names: &[String]) -> String {
    if names.is_empty() {
        "no two-dimensional tensor".to_owned()
    } else {
        format!("{} two-dimensional tensors ({})", names.len(), names.join(", "))
    }
}
