//! Element types, and what DLPack, NumPy and overtone call them.

use std::fmt;

use overtone_core::tensor::FloatType;

use super::abi::RawDataType;

/// Type of one element of a tensor at the boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "each is its own name")]
pub enum ElementType {
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    UInt8,
    UInt16,
    UInt32,
    UInt64,
    Float16,
    BFloat16,
    Float32,
    Float64,
}

/// Codes of `DLDataTypeCode`.
const CODE_INT: u8 = 0;
const CODE_UINT: u8 = 1;
const CODE_FLOAT: u8 = 2;
const CODE_BFLOAT: u8 = 4;
const CODE_BOOL: u8 = 6;

/// NumPy's mark of the machine's own byte order, and of the other.
const NATIVE: char = if cfg!(target_endian = "little") { '<' } else { '>' };
const SWAPPED: char = if cfg!(target_endian = "little") { '>' } else { '<' };

/// (type, name, DLPack code, bits, NumPy kind or none).
const TYPES: [(ElementType, &str, u8, u8, Option<char>); 13] = [
    (ElementType::Bool, "bool", CODE_BOOL, 8, Some('b')),
    (ElementType::Int8, "int8", CODE_INT, 8, Some('i')),
    (ElementType::Int16, "int16", CODE_INT, 16, Some('i')),
    (ElementType::Int32, "int32", CODE_INT, 32, Some('i')),
    (ElementType::Int64, "int64", CODE_INT, 64, Some('i')),
    (ElementType::UInt8, "uint8", CODE_UINT, 8, Some('u')),
    (ElementType::UInt16, "uint16", CODE_UINT, 16, Some('u')),
    (ElementType::UInt32, "uint32", CODE_UINT, 32, Some('u')),
    (ElementType::UInt64, "uint64", CODE_UINT, 64, Some('u')),
    (ElementType::Float16, "float16", CODE_FLOAT, 16, Some('f')),
    (ElementType::BFloat16, "bfloat16", CODE_BFLOAT, 16, None),
    (ElementType::Float32, "float32", CODE_FLOAT, 32, Some('f')),
    (ElementType::Float64, "float64", CODE_FLOAT, 64, Some('f')),
];

/// What a NumPy type string says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TypeString {
    /// A type that overtone knows, in the machine's byte order.
    Known(ElementType),
    /// A type in the other byte order.
    Swapped,
    /// Anything else; NumPy says so of types that extensions register, bfloat16 among them.
    Other,
}

impl ElementType {
    const fn entry(self) -> (Self, &'static str, u8, u8, Option<char>) {
        TYPES[self as usize]
    }

    /// Bytes of one element.
    pub const fn size(self) -> usize {
        self.entry().3 as usize / 8
    }

    /// The name users see, `float32` for example.
    pub const fn name(self) -> &'static str {
        self.entry().1
    }

    /// The type that users call `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        TYPES.iter().find(|entry| entry.1 == name).map(|entry| entry.0)
    }

    /// The type of a `DLDataType`; `None` for vectors and for types that overtone has no use for.
    pub fn from_raw(raw: RawDataType) -> Option<Self> {
        TYPES
            .iter()
            .find(|entry| (entry.2, entry.3, 1) == (raw.code, raw.bits, raw.lanes))
            .map(|entry| entry.0)
    }

    /// The same type for a `DLTensor`.
    pub const fn raw(self) -> RawDataType {
        let (_, _, code, bits, _) = self.entry();
        RawDataType { code, bits, lanes: 1 }
    }

    /// Reads the `typestr` of NumPy's array interface, `<f4` for example.
    pub fn from_type_string(text: &str) -> TypeString {
        let mut rest = text.chars();
        let (Some(order), Some(kind)) = (rest.next(), rest.next()) else { return TypeString::Other };
        let Ok(bytes) = rest.as_str().parse::<u8>() else { return TypeString::Other };
        match TYPES.iter().find(|entry| entry.4 == Some(kind) && Some(entry.3) == bytes.checked_mul(8)) {
            Some(_) if order == SWAPPED && bytes > 1 => TypeString::Swapped,
            Some(entry) => TypeString::Known(entry.0),
            None => TypeString::Other,
        }
    }

    /// The `typestr` of NumPy's array interface; `None` for bfloat16, which NumPy lacks.
    pub fn type_string(self) -> Option<String> {
        let order = if self.size() == 1 { '|' } else { NATIVE };
        self.entry().4.map(|kind| format!("{order}{kind}{}", self.size()))
    }

    /// The engine's float type; `None` for integers, bool and float64.
    pub const fn float_type(self) -> Option<FloatType> {
        match self {
            Self::Float32 => Some(FloatType::Float32),
            Self::Float16 => Some(FloatType::Float16),
            Self::BFloat16 => Some(FloatType::BFloat16),
            _ => None,
        }
    }
}

impl From<FloatType> for ElementType {
    fn from(float_type: FloatType) -> Self {
        match float_type {
            FloatType::Float32 => Self::Float32,
            FloatType::Float16 => Self::Float16,
            FloatType::BFloat16 => Self::BFloat16,
        }
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_comes_back_from_each_of_its_names() {
        for (element, name, ..) in TYPES {
            assert_eq!(element.name(), name);
            assert_eq!(ElementType::from_name(name), Some(element));
            assert_eq!(ElementType::from_raw(element.raw()), Some(element));
            match element.type_string() {
                Some(text) => assert_eq!(ElementType::from_type_string(&text), TypeString::Known(element)),
                None => assert_eq!(element, ElementType::BFloat16),
            }
        }
    }

    #[test]
    fn vectors_swapped_bytes_and_strangers_are_told_apart() {
        assert_eq!(ElementType::from_raw(RawDataType { lanes: 4, ..ElementType::Float32.raw() }), None);
        assert_eq!(ElementType::from_raw(RawDataType { code: 5, bits: 64, lanes: 1 }), None);
        assert_eq!(ElementType::from_type_string(&format!("{SWAPPED}f4")), TypeString::Swapped);
        for text in ["", "<", "<f", "<c8", "<V2", "|O8", "<f300", "<M8[ns]"] {
            assert_eq!(ElementType::from_type_string(text), TypeString::Other, "{text}");
        }
    }
}
