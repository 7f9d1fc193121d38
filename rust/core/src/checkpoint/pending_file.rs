//! Files that appear whole or not at all.

use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

use tempfile::{Builder, NamedTempFile};

use super::CheckpointError;

/// A file that is written under a temporary name beside its destination. Dropping it leaves nothing behind.
#[derive(Debug)]
pub(super) struct PendingFile {
    destination: PathBuf,
    writer: BufWriter<NamedTempFile>,
}

/// What happens to a file that is at the destination already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Existing {
    Replace,
    Refuse,
}

impl PendingFile {
    /// Starts a file that shall end up at `destination`, with the permissions of any new file.
    ///
    /// # Errors
    /// The directory cannot be written to.
    pub fn create(destination: &Path) -> Result<Self, CheckpointError> {
        let directory = destination.parent().filter(|parent| !parent.as_os_str().is_empty());
        let directory = directory.unwrap_or_else(|| Path::new("."));
        let mut builder = Builder::new();
        builder.prefix(".overtone-").suffix(".part");
        let file = with_usual_permissions(&mut builder).tempfile_in(directory);
        let file = file.map_err(|cause| write_error(destination, cause))?;
        // Half a megabyte: small pieces are gathered, large ones pass straight through.
        let writer = BufWriter::with_capacity(1 << 19, file);
        Ok(Self { destination: destination.to_owned(), writer })
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// What the operating system says, such as that the disk is full.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), CheckpointError> {
        self.writer.write_all(bytes).map_err(|cause| write_error(&self.destination, cause))
    }

    /// Moves the file to its destination in one step.
    ///
    /// # Errors
    /// It cannot be flushed or renamed; there is a file already, and it shall not be replaced.
    pub fn publish(self, existing: Existing) -> Result<PathBuf, CheckpointError> {
        let Self { destination, writer } = self;
        let file = writer.into_inner().map_err(|error| write_error(&destination, error.into_error()))?;
        let moved = match existing {
            Existing::Replace => file.persist(&destination),
            Existing::Refuse => file.persist_noclobber(&destination),
        };
        match moved {
            Ok(_) => Ok(destination),
            Err(error) if existing == Existing::Refuse && error.error.kind() == ErrorKind::AlreadyExists => {
                Err(CheckpointError::AlreadyExists { file: destination })
            }
            Err(error) => Err(write_error(&destination, error.error)),
        }
    }
}

pub(super) fn write_error(file: &Path, cause: io::Error) -> CheckpointError {
    CheckpointError::Write { file: file.to_owned(), cause }
}

/// Temporary files are for their owner only unless told otherwise; these become ordinary files, for which the
/// process's mask decides.
#[cfg(unix)]
fn with_usual_permissions<'b, 'p, 's>(builder: &'b mut Builder<'p, 's>) -> &'b mut Builder<'p, 's> {
    use std::os::unix::fs::PermissionsExt;
    builder.permissions(std::fs::Permissions::from_mode(0o666))
}

#[cfg(not(unix))]
fn with_usual_permissions<'b, 'p, 's>(builder: &'b mut Builder<'p, 's>) -> &'b mut Builder<'p, 's> {
    builder
}
