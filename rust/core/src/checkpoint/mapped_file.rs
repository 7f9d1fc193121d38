//! One safetensors file, mapped: its header checked, its tensors lent and given back. All `unsafe` of the checkpoint
//! room is here.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use safetensors::tensor::{SafeTensors, TensorInfo};

use super::CheckpointError;

/// The bytes in front of a header: its length.
const HEADER_LENGTH_BYTES: usize = 8;

/// A mapped safetensors file whose header has been validated against the file's length.
#[derive(Debug)]
pub(super) struct MappedFile {
    path: PathBuf,
    file: File,
    /// The whole file.
    map: Mmap,
    tensors: BTreeMap<String, TensorInfo>,
    /// The metadata that the file's writer added.
    notes: HashMap<String, String>,
    /// Offset of the first tensor's bytes.
    data_start: usize,
}

impl MappedFile {
    /// Maps a file and reads its header.
    ///
    /// # Errors
    /// The file is missing, not a regular file, unreadable, or its header is invalid.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        let (file, length) = open_regular(path)?;
        let read = |cause| CheckpointError::Read { file: path.to_owned(), cause };
        let header = |cause| CheckpointError::Header { file: path.to_owned(), cause };
        if length == 0 {
            return Err(header(safetensors::SafeTensorError::HeaderTooSmall));
        }
        // SAFETY: the mapping is read-only and private to this struct, which lends its bytes only in `read`, after
        // checking that the file is as long as it was. That nobody rewrites or truncates the file in the moments of
        // reading is the user's promise, as for every loader that maps files: bytes that change under a reader are
        // only ever taken as numbers, but a page that vanishes under one ends the process.
        let map = unsafe { Mmap::map(&file) }.map_err(read)?;
        let (header_bytes, metadata) = SafeTensors::read_metadata(&map).map_err(header)?;
        let tensors = metadata.tensors().into_iter().map(|(name, info)| (name, info.clone())).collect();
        let notes = metadata.metadata().clone().unwrap_or_default();
        let data_start = HEADER_LENGTH_BYTES + header_bytes;
        Ok(Self { path: path.to_owned(), file, map, tensors, notes, data_start })
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Type, shape and place of a tensor.
    pub fn info(&self, key: &str) -> Option<&TensorInfo> {
        self.tensors.get(key)
    }

    /// Every tensor of the file, by name.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &TensorInfo)> + Clone {
        self.tensors.iter().map(|(key, info)| (key.as_str(), info))
    }

    /// An entry of the metadata.
    pub fn note(&self, key: &str) -> Option<&str> {
        self.notes.get(key).map(String::as_str)
    }

    /// Lends the bytes of a tensor, then gives their pages back to the system, so that a load never holds more than
    /// one tensor of the file in memory.
    ///
    /// # Errors
    /// The file is no longer as long as when it was opened.
    pub fn read<T>(&self, info: &TensorInfo, consume: impl FnOnce(&[u8]) -> T) -> Result<T, CheckpointError> {
        let metadata = self.file.metadata();
        let metadata = metadata.map_err(|cause| CheckpointError::Read { file: self.path.clone(), cause })?;
        if metadata.len() != self.map.len() as u64 {
            return Err(CheckpointError::FileChanged {
                file: self.path.clone(),
                found: metadata.len(),
                expected: self.map.len() as u64,
            });
        }
        let range = self.data_start + info.data_offsets.0..self.data_start + info.data_offsets.1;
        let value = consume(&self.map[range.clone()]);
        self.release(range);
        Ok(value)
    }

    /// Drops the pages of a range from this process. It only saves memory, so a system that declines is not at fault.
    #[cfg(unix)]
    fn release(&self, range: Range<usize>) {
        use memmap2::UncheckedAdvice::DontNeed;
        // SAFETY: the mapping is shared, read-only and backed by a file, so a dropped page comes back with the file's
        // bytes when it is next touched: a neighbouring tensor on the first or last page, or the same tensor read by
        // another thread at this moment, sees no change. `range` lies inside the mapping, as it was just sliced.
        let declined = unsafe { self.map.unchecked_advise_range(DontNeed, range.start, range.len()) };
        if let Err(cause) = declined {
            tracing::debug!(file = %self.path.display(), %cause, "mapped pages were not given back");
        }
    }

    #[cfg(not(unix))]
    fn release(&self, _range: Range<usize>) {}
}

/// Opens a regular file for reading and tells its length. Pipes and devices are refused before they are opened, since
/// opening one may block for ever.
pub(super) fn open_regular(path: &Path) -> Result<(File, u64), CheckpointError> {
    let refuse = |cause: std::io::Error| match cause.kind() {
        ErrorKind::NotFound => CheckpointError::FileNotFound { file: path.to_owned() },
        _ => CheckpointError::Read { file: path.to_owned(), cause },
    };
    if !fs::metadata(path).map_err(refuse)?.is_file() {
        return Err(CheckpointError::NotAFile { file: path.to_owned() });
    }
    let file = File::open(path).map_err(refuse)?;
    let length = file.metadata().map_err(refuse)?.len();
    Ok((file, length))
}
