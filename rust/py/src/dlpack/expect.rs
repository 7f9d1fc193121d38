//! Checks of place, shape and type of arguments, with messages that name the tensor, what was found and what was expected.

use std::fmt;

use overtone_core::tensor::FloatType;

use super::device::Device;
use super::element::ElementType;
use super::import::ImportedTensor;
use crate::errors::Raised;

/// What a dimension has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// Exactly this extent.
    Is(usize),
    /// Any extent; the text is what the documentation calls it.
    Any(&'static str),
    /// An extent from 1 to the limit.
    UpTo(&'static str, usize),
    /// At least this extent.
    AtLeast(usize),
}

impl Expect {
    const fn accepts(self, extent: usize) -> bool {
        match self {
            Self::Is(expected) => extent == expected,
            Self::Any(_) => true,
            Self::UpTo(_, limit) => 1 <= extent && extent <= limit,
            Self::AtLeast(least) => extent >= least,
        }
    }
}

impl fmt::Display for Expect {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Is(extent) => write!(formatter, "{extent}"),
            Self::Any(symbol) => formatter.write_str(symbol),
            Self::UpTo(symbol, limit) => write!(formatter, "1 ≤ {symbol} ≤ {limit}"),
            Self::AtLeast(least) => write!(formatter, "{least} or more"),
        }
    }
}

/// Where a tensor has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In memory that the host works in.
    Host,
    /// In memory that kernels of this CUDA device work in.
    Cuda(i32),
    /// There, or in host memory that CUDA has pinned.
    CudaOrPinned(i32),
    /// There, or in any host memory.
    CudaOrHost(i32),
    /// In host memory, or in CUDA memory of any device.
    HostOrAnyCuda,
}

impl Place {
    /// Whether `device` is such a place.
    pub const fn admits(self, device: Device) -> bool {
        match self {
            Self::Host => device.is_host(),
            Self::Cuda(index) => device.is_on_cuda(index),
            Self::CudaOrPinned(index) => device.is_on_cuda(index) || device.is_pinned(),
            Self::CudaOrHost(index) => device.is_on_cuda(index) || device.is_host(),
            Self::HostOrAnyCuda => device.is_host() || device.is_cuda(),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => formatter.write_str("a CPU tensor (the cpu executor works in host memory)"),
            Self::Cuda(index) => write!(formatter, "a tensor on cuda:{index}"),
            Self::CudaOrPinned(index) => {
                write!(formatter, "a tensor on cuda:{index} or in pinned host memory")
            }
            Self::CudaOrHost(index) => write!(formatter, "a tensor on cuda:{index} or in host memory"),
            Self::HostOrAnyCuda => formatter.write_str("a tensor in host or CUDA memory"),
        }
    }
}

/// Checks where a tensor is.
///
/// # Errors
/// An `InputError` such as `talker_last_hidden: on cpu, expected a tensor on cuda:0`.
pub fn expect_device(tensor: &ImportedTensor, place: Place) -> Result<(), Raised> {
    // Libraries call memory that they pinned by `cudaHostRegister`, or export by DLPack's C table, plain host memory.
    let pinned =
        || matches!(place, Place::CudaOrPinned(_)) && tensor.device().is_host() && tensor.is_pinned();
    if place.admits(tensor.device()) || pinned() {
        return Ok(());
    }
    Err(tensor.refused(&format!("on {}", tensor.device()), &place.to_string()))
}

/// Checks a tensor's shape.
///
/// # Errors
/// An `InputError` such as `talker_last_hidden: shape [3, 63], expected [B, 64]`.
pub fn expect_shape(tensor: &ImportedTensor, expected: &[Expect]) -> Result<(), Raised> {
    let shape = tensor.view().shape();
    let fits = shape.len() == expected.len()
        && shape.iter().zip(expected).all(|(&extent, expect)| expect.accepts(extent));
    if fits { Ok(()) } else { Err(mismatch(tensor, "shape", &bracketed(shape), &bracketed(expected))) }
}

/// Checks a tensor's element type.
///
/// # Errors
/// An `InputError` such as `code_zero: type float32, expected int32 or int64`.
pub fn expect_type(tensor: &ImportedTensor, accepted: &[ElementType]) -> Result<(), Raised> {
    let element = tensor.view().element();
    if accepted.contains(&element) {
        return Ok(());
    }
    Err(mismatch(tensor, "type", element.name(), &alternatives(accepted)))
}

/// The engine's float type of a tensor of hidden rows or weights.
///
/// # Errors
/// An `InputError` when the tensor is not float32, float16 or bfloat16.
pub fn expect_float(tensor: &ImportedTensor) -> Result<FloatType, Raised> {
    const FLOATS: [ElementType; 3] = [ElementType::Float32, ElementType::Float16, ElementType::BFloat16];
    let element = tensor.view().element();
    element.float_type().ok_or_else(|| mismatch(tensor, "type", element.name(), &alternatives(&FLOATS)))
}

fn mismatch(tensor: &ImportedTensor, what: &str, found: &str, expected: &str) -> Raised {
    Raised::input(format!("{}: {what} {found}, expected {expected}", tensor.name()))
        .tensor(tensor.name())
        .found(found)
        .expected(expected)
}

/// `[2, 16]`.
pub fn bracketed(items: &[impl fmt::Display]) -> String {
    let items: Vec<String> = items.iter().map(ToString::to_string).collect();
    format!("[{}]", items.join(", "))
}

/// `float32, float16 or bfloat16`.
fn alternatives(types: &[ElementType]) -> String {
    let names: Vec<&str> = types.iter().map(|element| element.name()).collect();
    match names.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => names.concat(),
    }
}

#[cfg(test)]
mod tests {
    use pyo3::prelude::*;

    use super::*;
    use crate::tensor::Tensor;
    use crate::testing::with_python;

    /// (message, tensor, found, expected) of what checking a float64 tensor of shape [3, 63] raises.
    fn raised(check: impl Fn(&ImportedTensor) -> Result<(), Raised>) -> Option<[String; 4]> {
        with_python(|py| {
            let tensor = Bound::new(py, Tensor::zeroed(ElementType::Float64, &[3, 63]).unwrap()).unwrap();
            let tensor = ImportedTensor::new("talker_last_hidden", &tensor).unwrap();
            let error = PyErr::from(check(&tensor).err()?);
            let value = error.value(py);
            let text = |name| value.getattr(name).unwrap().to_string();
            Some([value.to_string(), text("tensor"), text("found"), text("expected")])
        })
    }

    #[test]
    fn a_wrong_shape_is_named_with_what_was_expected() {
        let expected = [
            "talker_last_hidden: shape [3, 63], expected [B, 64]",
            "talker_last_hidden",
            "[3, 63]",
            "[B, 64]",
        ];
        let found = raised(|tensor| expect_shape(tensor, &[Expect::Any("B"), Expect::Is(64)]));
        assert_eq!(found.unwrap(), expected);
        let found = raised(|tensor| expect_shape(tensor, &[Expect::UpTo("B", 2), Expect::Is(63)]));
        assert_eq!(found.unwrap()[3], "[1 ≤ B ≤ 2, 63]");
        assert!(raised(|tensor| expect_shape(tensor, &[Expect::Any("B")])).is_some());
        assert_eq!(raised(|tensor| expect_shape(tensor, &[Expect::UpTo("B", 3), Expect::Is(63)])), None);
    }

    #[test]
    fn a_wrong_type_is_named_with_what_was_expected() {
        let found = raised(|tensor| expect_type(tensor, &[ElementType::Int32, ElementType::Int64])).unwrap();
        assert_eq!(found[0], "talker_last_hidden: type float64, expected int32 or int64");
        let found = raised(|tensor| expect_float(tensor).map(|_| ())).unwrap();
        assert_eq!(found[0], "talker_last_hidden: type float64, expected float32, float16 or bfloat16");
        assert_eq!(raised(|tensor| expect_type(tensor, &[ElementType::Float64])), None);
    }
}
