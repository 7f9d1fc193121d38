//! Plain safetensors files: frames in, codes out. Read whole into memory, written whole or not at all.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::Path;

use safetensors::SafeTensorError;
use safetensors::tensor::{Dtype, Metadata, TensorInfo};

use super::mapped_file::MappedFile;
use super::pending_file::{Existing, PendingFile};
use super::{CheckpointError, TensorSite};
use crate::tensor::FloatType;

/// Element type of a tensor in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ElementType {
    /// A floating-point type that weights can have too.
    Float(FloatType),
    /// IEEE binary64.
    Float64,
    /// One byte, 0 or 1.
    Bool,
    /// A signed integer of 8 bits.
    Int8,
    /// A signed integer of 16 bits.
    Int16,
    /// A signed integer of 32 bits.
    Int32,
    /// A signed integer of 64 bits.
    Int64,
    /// An unsigned integer of 8 bits.
    UInt8,
    /// An unsigned integer of 16 bits.
    UInt16,
    /// An unsigned integer of 32 bits.
    UInt32,
    /// An unsigned integer of 64 bits.
    UInt64,
}

impl ElementType {
    /// The name users see, that of NumPy.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Float(float_type) => float_type.name(),
            Self::Float64 => "float64",
            Self::Bool => "bool",
            Self::Int8 => "int8",
            Self::Int16 => "int16",
            Self::Int32 => "int32",
            Self::Int64 => "int64",
            Self::UInt8 => "uint8",
            Self::UInt16 => "uint16",
            Self::UInt32 => "uint32",
            Self::UInt64 => "uint64",
        }
    }

    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            Self::Float(float_type) => float_type.size(),
            Self::Bool | Self::Int8 | Self::UInt8 => 1,
            Self::Int16 | Self::UInt16 => 2,
            Self::Int32 | Self::UInt32 => 4,
            Self::Float64 | Self::Int64 | Self::UInt64 => 8,
        }
    }

    /// The floating-point type, of those that weights can have.
    pub const fn float_type(self) -> Option<FloatType> {
        match self {
            Self::Float(float_type) => Some(float_type),
            _ => None,
        }
    }

    pub(super) const fn of(dtype: Dtype) -> Option<Self> {
        Some(match dtype {
            Dtype::F32 => Self::Float(FloatType::Float32),
            Dtype::F16 => Self::Float(FloatType::Float16),
            Dtype::BF16 => Self::Float(FloatType::BFloat16),
            Dtype::F64 => Self::Float64,
            Dtype::BOOL => Self::Bool,
            Dtype::I8 => Self::Int8,
            Dtype::I16 => Self::Int16,
            Dtype::I32 => Self::Int32,
            Dtype::I64 => Self::Int64,
            Dtype::U8 => Self::UInt8,
            Dtype::U16 => Self::UInt16,
            Dtype::U32 => Self::UInt32,
            Dtype::U64 => Self::UInt64,
            _ => return None,
        })
    }

    const fn dtype(self) -> Dtype {
        match self {
            Self::Float(FloatType::Float32) => Dtype::F32,
            Self::Float(FloatType::Float16) => Dtype::F16,
            Self::Float(FloatType::BFloat16) => Dtype::BF16,
            Self::Float64 => Dtype::F64,
            Self::Bool => Dtype::BOOL,
            Self::Int8 => Dtype::I8,
            Self::Int16 => Dtype::I16,
            Self::Int32 => Dtype::I32,
            Self::Int64 => Dtype::I64,
            Self::UInt8 => Dtype::U8,
            Self::UInt16 => Dtype::U16,
            Self::UInt32 => Dtype::U32,
            Self::UInt64 => Dtype::U64,
        }
    }
}

/// A tensor of a file: contiguous, row-major, little-endian.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileTensor<'a> {
    /// Element type.
    pub element_type: ElementType,
    /// Extent of each dimension, outermost first.
    pub shape: Vec<usize>,
    /// The elements.
    pub bytes: Cow<'a, [u8]>,
}

impl FileTensor<'static> {
    /// A float32 tensor of these values.
    pub fn from_f32(shape: Vec<usize>, values: &[f32]) -> Self {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Self { element_type: ElementType::Float(FloatType::Float32), shape, bytes: Cow::Owned(bytes) }
    }

    /// An int32 tensor of these values.
    pub fn from_i32(shape: Vec<usize>, values: &[i32]) -> Self {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Self { element_type: ElementType::Int32, shape, bytes: Cow::Owned(bytes) }
    }
}

impl FileTensor<'_> {
    /// The values of a float32, float16 or bfloat16 tensor, widened exactly; `None` for another type.
    pub fn to_f32(&self) -> Option<Vec<f32>> {
        let float_type = self.element_type.float_type()?;
        Some(
            (0..self.bytes.len() / float_type.size())
                .map(|index| float_type.widen(&self.bytes, index))
                .collect(),
        )
    }

    /// The values of an integer tensor; `None` for another type, or where a value does not fit 64 bits with a sign.
    pub fn to_i64(&self) -> Option<Vec<i64>> {
        let bytes = &self.bytes;
        match self.element_type {
            ElementType::Int8 => Some(elements(bytes).map(i8::from_le_bytes).map(i64::from).collect()),
            ElementType::Int16 => Some(elements(bytes).map(i16::from_le_bytes).map(i64::from).collect()),
            ElementType::Int32 => Some(elements(bytes).map(i32::from_le_bytes).map(i64::from).collect()),
            ElementType::Int64 => Some(elements(bytes).map(i64::from_le_bytes).collect()),
            ElementType::UInt8 => Some(elements(bytes).map(u8::from_le_bytes).map(i64::from).collect()),
            ElementType::UInt16 => Some(elements(bytes).map(u16::from_le_bytes).map(i64::from).collect()),
            ElementType::UInt32 => Some(elements(bytes).map(u32::from_le_bytes).map(i64::from).collect()),
            ElementType::UInt64 => {
                elements(bytes).map(u64::from_le_bytes).map(|value| i64::try_from(value).ok()).collect()
            }
            ElementType::Float(_) | ElementType::Float64 | ElementType::Bool => None,
        }
    }
}

fn elements<const SIZE: usize>(bytes: &[u8]) -> impl Iterator<Item = [u8; SIZE]> {
    bytes.as_chunks::<SIZE>().0.iter().copied()
}

/// Reads every tensor of a safetensors file.
///
/// # Errors
/// The file cannot be read, its header is damaged, or a tensor has a type that is not read here.
pub fn read(file: &Path) -> Result<BTreeMap<String, FileTensor<'static>>, CheckpointError> {
    let mapped = MappedFile::open(file)?;
    let mut tensors = BTreeMap::new();
    for (key, info) in mapped.tensors() {
        let element_type = ElementType::of(info.dtype).ok_or_else(|| CheckpointError::Type {
            site: TensorSite { file: Some(file.to_owned()), tensor: key.to_owned() },
            found: info.dtype.to_string(),
            expected: "integers, BOOL, F64, F32, F16 or BF16",
        })?;
        let bytes = Cow::Owned(mapped.read(info, <[u8]>::to_vec)?);
        tensors.insert(key.to_owned(), FileTensor { element_type, shape: info.shape.clone(), bytes });
    }
    Ok(tensors)
}

/// Writes tensors to a safetensors file, replacing one that is there. The file appears whole or not at all.
///
/// # Errors
/// A tensor is not as long as its shape says; the operating system refuses.
pub fn write(file: &Path, tensors: &BTreeMap<String, FileTensor<'_>>) -> Result<(), CheckpointError> {
    pending(file, FORMAT, tensors)?.publish(Existing::Replace).map(drop)
}

/// What the metadata of a file say where nothing else is said: torch's loaders ask for it.
pub(super) const FORMAT: (&str, &str) = ("format", "pt");

/// A file of these tensors that waits to be published; `note` is the only entry of its metadata, since equal tensors
/// shall make equal bytes and the format's library orders several at random.
pub(super) fn pending(
    file: &Path,
    note: (&str, &str),
    tensors: &BTreeMap<String, FileTensor<'_>>,
) -> Result<PendingFile, CheckpointError> {
    // Wider elements first, so that every element stands at a multiple of its size.
    let mut tensors: Vec<_> = tensors.iter().collect();
    tensors.sort_by_key(|(_, tensor)| Reverse(tensor.element_type.size()));
    let layout: Vec<_> = tensors
        .iter()
        .map(|(name, tensor)| ((*name).clone(), tensor.element_type, tensor.shape.clone()))
        .collect();
    let mut pending = PendingFile::create(file)?;
    pending.append(&header(file, note, layout)?)?;
    for (_, tensor) in tensors {
        let lengths = (byte_count(tensor.element_type, &tensor.shape), tensor.bytes.len());
        if lengths.0 != Some(lengths.1) {
            let dtype = tensor.element_type.dtype();
            let cause = SafeTensorError::InvalidTensorView(dtype, tensor.shape.clone(), lengths.1);
            return Err(CheckpointError::Layout { file: file.to_owned(), cause });
        }
        pending.append(&tensor.bytes)?;
    }
    Ok(pending)
}

/// The header of a file that will hold these tensors in this order, its length in front of it.
pub(super) fn header(
    file: &Path,
    note: (&str, &str),
    layout: impl IntoIterator<Item = (String, ElementType, Vec<usize>)>,
) -> Result<Vec<u8>, CheckpointError> {
    let refuse = |cause| CheckpointError::Layout { file: file.to_owned(), cause };
    let mut end = 0_usize;
    let mut infos = Vec::new();
    for (name, element_type, shape) in layout {
        let start = end;
        let bytes = byte_count(element_type, &shape).and_then(|bytes| start.checked_add(bytes));
        end = bytes.ok_or_else(|| refuse(SafeTensorError::ValidationOverflow))?;
        infos.push((name, TensorInfo { dtype: element_type.dtype(), shape, data_offsets: (start, end) }));
    }
    let notes = [(note.0.to_owned(), note.1.to_owned())].into();
    let metadata = Metadata::new(Some(notes), infos).map_err(refuse)?;
    let text = serde_json::to_vec(&metadata).map_err(|cause| refuse(SafeTensorError::JsonError(cause)))?;
    // The data shall begin at a multiple of eight bytes.
    let length = text.len().next_multiple_of(8);
    let mut header = (length as u64).to_le_bytes().to_vec();
    header.extend(text);
    header.resize(8 + length, b' ');
    Ok(header)
}

fn byte_count(element_type: ElementType, shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(element_type.size(), |product, extent| product.checked_mul(*extent))
}
