//! Compiled kernels, kept from one build folder to the next: the folder that `OVERTONE_KERNEL_CACHE` names.
//!
//! A debug build, a release build and the build of an unpacked sdist each have an output folder of their own; with a cache
//! they compile the kernels once. An entry is named by a hash of all that went into it, so it is never out of date.

use std::fs;
use std::path::{Path, PathBuf};
use std::process;

/// The folder, or none.
pub struct Cache(pub Option<PathBuf>);

impl Cache {
    /// Copies an entry to `image` and returns its compiler's log; `None` when it is not there.
    pub fn take(&self, key: &str, image: &Path) -> Option<String> {
        let folder = self.0.as_ref()?;
        let log = fs::read_to_string(folder.join(format!("{key}.log"))).ok()?;
        fs::copy(folder.join(format!("{key}.fatbin")), image).ok()?;
        Some(log)
    }

    /// Adds an entry.
    pub fn keep(&self, key: &str, image: &Path, log: &str) -> Result<(), String> {
        let Some(folder) = &self.0 else { return Ok(()) };
        let failed = |error: std::io::Error| format!("OVERTONE_KERNEL_CACHE={}: {error}", folder.display());
        fs::create_dir_all(folder).map_err(failed)?;
        let log_file = folder.join(format!("{key}.log.{}", process::id()));
        let image_file = folder.join(format!("{key}.fatbin.{}", process::id()));
        fs::write(&log_file, log).map_err(failed)?;
        fs::copy(image, &image_file).map_err(failed)?;
        // Another build may do the same: whoever reads sees whole files.
        fs::rename(log_file, folder.join(format!("{key}.log"))).map_err(failed)?;
        fs::rename(image_file, folder.join(format!("{key}.fatbin"))).map_err(failed)
    }
}
