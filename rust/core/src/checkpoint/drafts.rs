//! Fitted drafts: what guesses a code from the hidden row of the code before it, and from that code.
//!
//! A stream whose `code_j` is pending, j = 1 … R−1, holds the final-norm row h `[H]` that made it. The logits of its
//! draft for `code_{j+1}` are D\[j\] · h + T\[j\]\[`code_j`\]: one head D\[j\] [V, H], read instead of the plain next
//! head, and one row of the table T\[j\] [V, V]. `overtone fit-drafts` fits them to a checkpoint; drafts decide how soon a
//! frame is done, never its codes.
//!
//! They lie in a safetensors file beside the weights, [`FILE_NAME`]: `draft_head.{j}.weight` and `draft_table.{j}`, all
//! of one type. Its metadata have one entry, [`RECORD`]: JSON with the format's version, the extents R, V and H, the
//! frames and the ridge of the fit, and the SHA-256 of the heads that they were fitted for.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::assembly::{Entry, from_file};
use super::finite;
use super::mapped_file::MappedFile;
use super::pending_file::Existing;
use super::tensor_file::{self, ElementType, FileTensor};
use super::{Checkpoint, CheckpointError, TensorSite};
use crate::spec::ModelSpec;
use crate::spec::weights::WeightName;
use crate::tensor::{FloatType, TensorView};

/// The name of the file in a checkpoint's directory.
pub const FILE_NAME: &str = "drafts.safetensors";

/// The metadata's key.
pub const RECORD: &str = "overtone_drafts";

/// The format's version.
const VERSION: u64 = 1;

/// One tensor of a file of drafts; the index is j, the codebook of the code that is pending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DraftName {
    /// D\[j\] [V, H]: logits of `code_{j+1}` from the final-norm row that made `code_j`.
    Head(usize),
    /// T\[j\] [V, V]: row `code_j` is added to them.
    Table(usize),
}

impl DraftName {
    /// Every tensor that an architecture's drafts have.
    pub fn all(spec: &ModelSpec) -> impl Iterator<Item = Self> + use<> {
        (1..spec.residual_codebooks).flat_map(|pending| [Self::Head(pending), Self::Table(pending)])
    }

    /// The shape of a tensor in an architecture.
    pub const fn shape(self, spec: &ModelSpec) -> [usize; 2] {
        match self {
            Self::Head(_) => [spec.codebook_size, spec.hidden_size],
            Self::Table(_) => [spec.codebook_size, spec.codebook_size],
        }
    }
}

/// The name in the file.
impl fmt::Display for DraftName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Head(pending) => write!(formatter, "draft_head.{pending}.weight"),
            Self::Table(pending) => write!(formatter, "draft_table.{pending}"),
        }
    }
}

/// The codebooks j of the pending codes that rounds draft behind: 1 … R−2. A file holds drafts of `code_R` too, but when
/// `code_{R−1}` is pending, a draft would save nothing.
pub const fn drafted_behind(spec: &ModelSpec) -> Range<usize> {
    1..spec.residual_codebooks.saturating_sub(1)
}

/// How drafts were fitted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FitRecord {
    /// Frames of one stream that the fit saw.
    pub frames: u64,
    /// Strength of the ridge; see `docs/fitted-drafts.md`.
    pub ridge: f64,
}

/// The drafts of a checkpoint, checked and ready to be read. The file stays mapped for as long as they live.
#[derive(Debug)]
pub struct Drafts {
    file: Arc<MappedFile>,
    entries: BTreeMap<DraftName, Entry<'static>>,
    float_type: FloatType,
    record: FitRecord,
}

impl Drafts {
    /// The file of drafts in a checkpoint's directory, if there is one.
    pub fn beside(directory: &Path) -> Option<PathBuf> {
        let file = directory.join(FILE_NAME);
        // A dangling link is there: opening it tells what is wrong.
        fs::symlink_metadata(&file).is_ok().then_some(file)
    }

    /// Opens a file of drafts and checks it against the checkpoint, whose heads are read for it: the record, and
    /// presence, type and shape of every tensor. Values are checked as they are read.
    ///
    /// # Errors
    /// The file cannot be read or is damaged; it holds drafts of another version, of another architecture or for other
    /// heads; a tensor is missing, is not of the type or shape it must have, or has no place in such a file; the
    /// checkpoint's heads cannot be read.
    pub fn open(file: &Path, checkpoint: &Checkpoint<'_>) -> Result<Self, CheckpointError> {
        let spec = checkpoint.spec();
        let mapped = Arc::new(MappedFile::open(file)?);
        let record = Record::parse(&mapped)?;
        record.expect_extents(spec)?;
        let mut entries = BTreeMap::new();
        for name in DraftName::all(spec) {
            let shape = name.shape(spec);
            let key = name.to_string();
            if mapped.info(&key).is_none() {
                return Err(missing(file, key, shape));
            }
            let entry = from_file(Arc::clone(&mapped), key)?;
            if entry.shape != shape {
                return Err(entry.shape_error(format!("{shape:?}")));
            }
            entries.insert(name, entry);
        }
        if let Some((key, _)) =
            mapped.tensors().find(|(key, _)| !entries.values().any(|entry| entry.key == *key))
        {
            return Err(unknown(file, key, spec));
        }
        let float_type = entries.values().next().map_or(FloatType::Float32, |entry| entry.float_type);
        if let Some(odd) = entries.values().find(|entry| entry.float_type != float_type) {
            return Err(CheckpointError::Type {
                site: odd.site(),
                found: odd.float_type.name().to_owned(),
                expected: float_type.name(),
            });
        }
        record.expect_heads(&heads_fingerprint(checkpoint)?)?;
        let record = record.fit()?;
        Ok(Self { file: mapped, entries, float_type, record })
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// The type of every tensor.
    pub const fn float_type(&self) -> FloatType {
        self.float_type
    }

    /// How they were fitted.
    pub const fn record(&self) -> FitRecord {
        self.record
    }

    /// Lends a tensor, after checking that all of its values are finite. The pages of the file go back to the system
    /// when `consume` returns.
    ///
    /// # Errors
    /// The architecture has no such drafts; a value is NaN or infinite; the file's length changed since it was opened.
    pub fn read<T>(
        &self,
        name: DraftName,
        consume: impl FnOnce(TensorView<'_>) -> T,
    ) -> Result<T, CheckpointError> {
        match self.entries.get(&name) {
            Some(entry) => entry.read(consume),
            None => Err(CheckpointError::MissingTensor {
                searched: vec![self.path().to_owned()],
                tensor: name.to_string(),
                expected: "drafts of this architecture".to_owned(),
            }),
        }
    }
}

/// Writes drafts for a checkpoint, replacing a file that is there. The file appears whole or not at all.
///
/// `tensors` are the values by name, in any type that weights can have; they are rounded to `float_type`.
///
/// # Errors
/// As for [`Drafts::open`]; the operating system refuses.
pub fn write(
    file: &Path,
    checkpoint: &Checkpoint<'_>,
    float_type: FloatType,
    record: FitRecord,
    tensors: &BTreeMap<String, FileTensor<'_>>,
) -> Result<(), CheckpointError> {
    let spec = checkpoint.spec();
    let names: BTreeMap<String, DraftName> =
        DraftName::all(spec).map(|name| (name.to_string(), name)).collect();
    if let Some(key) = tensors.keys().find(|key| !names.contains_key(*key)) {
        return Err(unknown(file, key, spec));
    }
    let mut rounded = BTreeMap::new();
    for (key, name) in names {
        let shape = name.shape(spec);
        let Some(tensor) = tensors.get(&key) else { return Err(missing(file, key, shape)) };
        rounded.insert(key.clone(), round(tensor, float_type, shape, site(file, &key))?);
    }
    let record = Record::text(spec, &heads_fingerprint(checkpoint)?, record);
    tensor_file::pending(file, (RECORD, &record), &rounded)?.publish(Existing::Replace).map(drop)
}

fn round(
    tensor: &FileTensor<'_>,
    float_type: FloatType,
    shape: [usize; 2],
    site: TensorSite,
) -> Result<FileTensor<'static>, CheckpointError> {
    if tensor.shape != shape {
        let found = tensor.shape.clone();
        return Err(CheckpointError::Shape { site, found, expected: format!("{shape:?}") });
    }
    let Some(values) = tensor.to_f32() else {
        let found = tensor.element_type.name().to_owned();
        return Err(CheckpointError::Type { site, found, expected: "float32, float16 or bfloat16" });
    };
    let mut bytes = vec![0; values.len() * float_type.size()];
    for (index, value) in values.into_iter().enumerate() {
        float_type.narrow(value, &mut bytes, index);
    }
    if let Some(index) = finite::first_not_finite(float_type, &bytes) {
        let position = finite::position(index, &shape);
        return Err(CheckpointError::NotFinite { site, position, value: float_type.widen(&bytes, index) });
    }
    Ok(FileTensor {
        element_type: ElementType::Float(float_type),
        shape: shape.to_vec(),
        bytes: bytes.into(),
    })
}

/// SHA-256 of a predictor's heads in hexadecimal: `Head[0]` … `Head[R−1]`, row by row, every value as a little-endian
/// float32. It depends on neither the layout nor the storage type of a checkpoint.
fn heads_fingerprint(checkpoint: &Checkpoint<'_>) -> Result<String, CheckpointError> {
    /// Elements that are widened together.
    const BLOCK: usize = 4096;
    let mut hash = Sha256::new();
    for index in 0..checkpoint.spec().residual_codebooks {
        checkpoint.read(WeightName::Head(index), |head| {
            let mut widened = [0; BLOCK * size_of::<f32>()];
            for elements in head.bytes.chunks(BLOCK * head.float_type.size()) {
                let count = elements.len() / head.float_type.size();
                for index in 0..count {
                    let value = head.float_type.widen(elements, index);
                    FloatType::Float32.narrow(value, &mut widened, index);
                }
                hash.update(&widened[..count * size_of::<f32>()]);
            }
        })?;
    }
    Ok(format!("{:x}", hash.finalize()))
}

/// The record of a file, as far as it is JSON.
struct Record<'f> {
    file: &'f Path,
    value: Value,
}

impl<'f> Record<'f> {
    const EXTENTS: [&'static str; 3] = ["residual_codebooks", "codebook_size", "hidden_size"];

    const fn extents(spec: &ModelSpec) -> [usize; 3] {
        [spec.residual_codebooks, spec.codebook_size, spec.hidden_size]
    }

    fn text(spec: &ModelSpec, heads: &str, fit: FitRecord) -> String {
        let mut record =
            json!({ "version": VERSION, "heads_sha256": heads, "frames": fit.frames, "ridge": fit.ridge });
        for (key, extent) in Self::EXTENTS.into_iter().zip(Self::extents(spec)) {
            record[key] = extent.into();
        }
        record.to_string()
    }

    fn parse(mapped: &'f MappedFile) -> Result<Self, CheckpointError> {
        let file = mapped.path();
        let text = mapped.note(RECORD);
        let value = text.and_then(|text| serde_json::from_str(text).ok()).filter(Value::is_object);
        let refuse = || CheckpointError::DraftsRecord {
            file: file.to_owned(),
            key: RECORD.to_owned(),
            found: text.map_or_else(|| "not there".to_owned(), |text| format!("{text:?}")),
            expected: "the record of `overtone fit-drafts`, a JSON object".to_owned(),
        };
        let record = Self { file, value: value.ok_or_else(refuse)? };
        record.expect("version", VERSION)?;
        Ok(record)
    }

    fn expect_extents(&self, spec: &ModelSpec) -> Result<(), CheckpointError> {
        let mut extents = Self::EXTENTS.into_iter().zip(Self::extents(spec));
        extents.try_for_each(|(key, extent)| self.expect(key, extent as u64))
    }

    fn expect_heads(&self, expected: &str) -> Result<(), CheckpointError> {
        match self.value["heads_sha256"].as_str() {
            Some(found) if found == expected => Ok(()),
            Some(found) => Err(CheckpointError::ForeignDrafts {
                file: self.file.to_owned(),
                found: found.to_owned(),
                expected: expected.to_owned(),
            }),
            None => Err(self.refused("heads_sha256", expected)),
        }
    }

    fn fit(&self) -> Result<FitRecord, CheckpointError> {
        let frames = self.value["frames"].as_u64();
        let ridge = self.value["ridge"].as_f64().filter(|ridge| *ridge >= 0.0);
        Ok(FitRecord {
            frames: frames.ok_or_else(|| self.refused("frames", "a whole number"))?,
            ridge: ridge.ok_or_else(|| self.refused("ridge", "a number, 0 or above"))?,
        })
    }

    fn expect(&self, key: &str, expected: u64) -> Result<(), CheckpointError> {
        let equal = self.value[key].as_u64() == Some(expected);
        if equal { Ok(()) } else { Err(self.refused(key, &expected.to_string())) }
    }

    fn refused(&self, key: &str, expected: &str) -> CheckpointError {
        let found = self.value.get(key).map_or_else(|| "not there".to_owned(), Value::to_string);
        let (file, key) = (self.file.to_owned(), format!("{RECORD}.{key}"));
        CheckpointError::DraftsRecord { file, key, found, expected: expected.to_owned() }
    }
}

fn site(file: &Path, key: &str) -> TensorSite {
    TensorSite { file: Some(file.to_owned()), tensor: key.to_owned() }
}

fn missing(file: &Path, tensor: String, shape: [usize; 2]) -> CheckpointError {
    CheckpointError::MissingTensor { searched: vec![file.to_owned()], tensor, expected: format!("{shape:?}") }
}

fn unknown(file: &Path, key: &str, spec: &ModelSpec) -> CheckpointError {
    let last = spec.residual_codebooks - 1;
    let expected = format!("draft_head.{{j}}.weight and draft_table.{{j}} with j from 1 to {last}");
    CheckpointError::UnknownTensor { site: site(file, key), expected }
}
