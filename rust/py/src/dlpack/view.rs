//! Shape and strides over memory that something else owns, and the bytes they cover.
//!
//! All size arithmetic of the boundary happens in [`StridedView::new`], once and checked; afterwards an index in
//! range always leads to an address in range. Whether the memory is really there only its owner can promise.
//! A view says which device the memory belongs to; only views of host memory can be read or written
//! ([`super::access`]).

use std::ops::Range;

use super::device::Device;
use super::element::ElementType;

/// Most dimensions a tensor may have: NumPy's own limit.
pub const MAX_DIMENSIONS: usize = 64;

/// Why a shape, strides and an address do not make a view.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// More dimensions than any producer makes.
    #[error("{found} dimensions, expected at most {MAX_DIMENSIONS}")]
    TooManyDimensions {
        /// Dimensions given.
        found: usize,
    },
    /// An extent below zero.
    #[error("extent {extent} of dimension {dimension} is negative")]
    NegativeExtent {
        /// Which dimension.
        dimension: usize,
        /// Its extent.
        extent: i64,
    },
    /// Strides of another length than the shape.
    #[error("{strides} strides for {dimensions} dimensions")]
    StrideCount {
        /// Strides given.
        strides: usize,
        /// Dimensions given.
        dimensions: usize,
    },
    /// More elements, or more bytes, than an address space holds.
    #[error("shape {shape:?} with strides {strides:?} covers more memory than there are addresses")]
    TooLarge {
        /// The shape.
        shape: Vec<i64>,
        /// The strides, in elements.
        strides: Vec<i64>,
    },
    /// Elements, but no memory.
    #[error("a null data pointer for {elements} elements")]
    NullData {
        /// Elements of the shape.
        elements: usize,
    },
}

/// A strided tensor over memory owned elsewhere. Cloning it copies the description, not the memory: keep the owner
/// beside every clone.
#[derive(Clone, Debug)]
pub struct StridedView {
    device: Device,
    data: *mut u8,
    element: ElementType,
    shape: Box<[usize]>,
    strides: Box<[i64]>,
    elements: usize,
    bytes: Range<usize>,
}

// SAFETY: a view is an address and numbers. It never touches the memory by itself; its accessors copy single
// elements through raw pointers under the module's rule on memory shared with Python, which no thread affinity
// enters into.
unsafe impl Send for StridedView {}
// SAFETY: as for `Send`; nothing in a view changes behind a shared reference.
unsafe impl Sync for StridedView {}

impl StridedView {
    /// [`Self::on_device`] in ordinary host memory.
    ///
    /// # Errors
    /// As for [`Self::on_device`].
    ///
    /// # Safety
    /// As for [`Self::on_device`].
    pub unsafe fn new(
        data: *mut u8,
        element: ElementType,
        shape: &[i64],
        strides: Option<&[i64]>,
    ) -> Result<Self, LayoutError> {
        // SAFETY: passed on to the caller.
        unsafe { Self::on_device(Device::CPU, data, element, shape, strides) }
    }

    /// Describes `shape` elements at `data`, `strides` (in elements, any sign) apart; contiguous and row-major when
    /// `strides` is `None`. Strides of dimensions that hold at most one element are ignored.
    ///
    /// # Errors
    /// [`LayoutError`] when the numbers make no sense together.
    ///
    /// # Safety
    /// All bytes of [`Self::byte_range`] must be mapped on the device, and stay so for as long as the view or a clone
    /// of it is used.
    pub unsafe fn on_device(
        device: Device,
        data: *mut u8,
        element: ElementType,
        shape: &[i64],
        strides: Option<&[i64]>,
    ) -> Result<Self, LayoutError> {
        if shape.len() > MAX_DIMENSIONS {
            return Err(LayoutError::TooManyDimensions { found: shape.len() });
        }
        if let Some(strides) = strides
            && strides.len() != shape.len()
        {
            return Err(LayoutError::StrideCount { strides: strides.len(), dimensions: shape.len() });
        }
        let extents = shape
            .iter()
            .enumerate()
            .map(|(dimension, &extent)| {
                usize::try_from(extent).map_err(|_| LayoutError::NegativeExtent { dimension, extent })
            })
            .collect::<Result<Box<[usize]>, _>>()?;
        let too_large =
            || LayoutError::TooLarge { shape: shape.to_vec(), strides: strides.unwrap_or_default().to_vec() };
        let elements = checked_elements(&extents, element).ok_or_else(too_large)?;
        let strides = match strides {
            Some(strides) => strides.into(),
            None => contiguous_strides(&extents),
        };
        if elements > 0 && data.is_null() {
            return Err(LayoutError::NullData { elements });
        }
        let bytes = covered_bytes(data.addr(), element, &extents, &strides).ok_or_else(too_large)?;
        Ok(Self { device, data, element, shape: extents, strides, elements, bytes })
    }

    /// Where the memory is.
    pub const fn device(&self) -> Device {
        self.device
    }

    /// The same elements in host memory that holds a copy of [`Self::byte_range`] from `start` on.
    ///
    /// # Safety
    /// The copy must be as long as the range, and stay mapped for as long as the new view or a clone of it is used.
    pub unsafe fn moved_to(&self, start: *mut u8) -> Self {
        let offset = self.data.addr().wrapping_sub(self.bytes.start);
        let first = start.addr();
        Self {
            device: Device::CPU,
            data: start.wrapping_add(offset),
            bytes: first..first + self.bytes.len(),
            ..self.clone()
        }
    }

    /// Address of element [0, …, 0].
    pub const fn data(&self) -> *mut u8 {
        self.data
    }

    /// Element type.
    pub const fn element(&self) -> ElementType {
        self.element
    }

    /// Extents, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Strides in elements.
    pub fn strides(&self) -> &[i64] {
        &self.strides
    }

    /// Product of the extents; 1 for a scalar.
    pub const fn elements(&self) -> usize {
        self.elements
    }

    /// Size of the elements in bytes, gaps between them not counted.
    pub const fn size_in_bytes(&self) -> usize {
        self.elements * self.element.size()
    }

    /// Addresses from the lowest element's first byte to past the highest element's last; empty without elements.
    pub const fn byte_range(&self) -> &Range<usize> {
        &self.bytes
    }

    /// Whether the elements follow one another in row-major order without gaps.
    pub fn is_contiguous(&self) -> bool {
        if self.elements == 0 {
            return true;
        }
        let mut step = 1_usize;
        for (&extent, &stride) in self.shape.iter().zip(&self.strides).rev() {
            if extent > 1 && usize::try_from(stride) != Ok(step) {
                return false;
            }
            step *= extent;
        }
        true
    }

    /// Whether two different indices may lead to the same byte, as in a broadcast. Layouts whose dimensions do not
    /// nest count as such even where they happen not to collide.
    pub fn overlaps_itself(&self) -> bool {
        if self.elements == 0 {
            return false;
        }
        let mut dimensions: Vec<(u64, u64)> = self
            .shape
            .iter()
            .zip(&self.strides)
            .filter(|&(&extent, _)| extent > 1)
            .map(|(&extent, &stride)| (stride.unsigned_abs(), extent as u64))
            .collect();
        dimensions.sort_unstable();
        let mut reach = 0_u64;
        for (stride, extent) in dimensions {
            if stride <= reach {
                return true;
            }
            // Cannot overflow: `new` has checked that the whole reach fits an address.
            reach += stride * (extent - 1);
        }
        false
    }

    /// Address of one element, or `None` when the index has another length than the shape or leaves it.
    pub fn address(&self, index: &[usize]) -> Option<*mut u8> {
        (index.len() == self.shape.len()).then_some(())?;
        self.start(index)
    }

    /// Address of element [`leading`…, 0, …, 0]: where the sub-tensor at `leading` starts.
    pub(super) fn start(&self, leading: &[usize]) -> Option<*mut u8> {
        let mut offset = 0_isize;
        for (position, (&at, &extent)) in leading.iter().zip(&self.shape).enumerate() {
            if at >= extent {
                return None;
            }
            if self.elements > 0 {
                // In range by `new`: every in-range index has an in-range offset in bytes.
                offset += at as isize * self.strides[position] as isize * self.element.size() as isize;
            }
        }
        (leading.len() <= self.shape.len()).then(|| self.data.wrapping_offset(offset))
    }

    /// Elements `range` of a vector; `None` when this is no vector, or has fewer.
    pub fn slice(&self, range: Range<usize>) -> Option<Self> {
        let (&[extent], length) = (&*self.shape, range.len()) else { return None };
        if range.start > range.end || range.end > extent {
            return None;
        }
        let data = if length == 0 { self.data } else { self.start(&[range.start])? };
        let shape: Box<[usize]> = [length].into();
        let bytes = covered_bytes(data.addr(), self.element, &shape, &self.strides)?;
        Some(Self { data, shape, elements: length, bytes, ..self.clone() })
    }

    /// The elements as bytes when they are contiguous and in host memory, `None` otherwise.
    ///
    /// # Safety
    /// The memory's owner must outlive the slice, and nobody may write the memory while the slice is in use.
    pub unsafe fn as_bytes<'a>(&self) -> Option<&'a [u8]> {
        if self.elements == 0 {
            return Some(&[]);
        }
        let readable = self.device.is_host() && self.is_contiguous();
        // SAFETY: contiguous, so the elements fill `size_in_bytes` bytes from `data`; that they are mapped is
        // `on_device`'s condition, that they stay as they are is this function's.
        readable.then(|| unsafe { std::slice::from_raw_parts(self.data, self.size_in_bytes()) })
    }
}

/// Whether two views may share a byte, judged by the ranges they cover: interleaved views count as sharing.
pub fn overlaps(left: &StridedView, right: &StridedView) -> bool {
    left.elements > 0
        && right.elements > 0
        && left.bytes.start < right.bytes.end
        && right.bytes.start < left.bytes.end
}

/// The product of the extents, if that many elements fit an address space.
fn checked_elements(shape: &[usize], element: ElementType) -> Option<usize> {
    let mut elements = 1_usize;
    for &extent in shape {
        elements = elements.checked_mul(extent)?;
    }
    let bytes = elements.checked_mul(element.size())?;
    isize::try_from(bytes).ok().map(|_| elements)
}

/// Row-major strides. Only called on shapes whose product was checked; an extent of 0 counts as 1 so that the
/// strides stay meaningful to consumers that look at them anyway.
fn contiguous_strides(shape: &[usize]) -> Box<[i64]> {
    let mut strides = vec![1_i64; shape.len()].into_boxed_slice();
    let mut step = 1_i64;
    for (stride, &extent) in strides.iter_mut().zip(shape).rev() {
        *stride = step;
        step = step.saturating_mul(extent.max(1) as i64);
    }
    strides
}

/// The addresses covered, or `None` when they leave the address space.
fn covered_bytes(
    address: usize,
    element: ElementType,
    shape: &[usize],
    strides: &[i64],
) -> Option<Range<usize>> {
    if shape.contains(&0) {
        return Some(address..address);
    }
    let (mut lowest, mut highest) = (0_i128, 1_i128);
    for (&extent, &stride) in shape.iter().zip(strides) {
        let reach = (extent as i128 - 1).checked_mul(i128::from(stride))?;
        let side = if reach < 0 { &mut lowest } else { &mut highest };
        *side = side.checked_add(reach)?;
    }
    let size = element.size() as i128;
    let (low, high) = (lowest.checked_mul(size)?, highest.checked_mul(size)?);
    isize::try_from(high - low).ok()?;
    let start = usize::try_from(address as i128 + low).ok()?;
    let end = usize::try_from(address as i128 + high).ok()?;
    Some(start..end)
}
