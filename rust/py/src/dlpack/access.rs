//! Reading and writing a strided view: one element, or one row (the innermost dimension) at a time. Only views of host
//! memory can be; to every accessor an address on a device is an error.
//!
//! A row is named by its *leading* index, one number for every dimension but the last: `[b, k]` in a [B, C, Ht]
//! tensor, `[]` in a vector. Floats are widened or rounded (nearest, ties to even) on the way; integers keep their
//! value or the call fails.

use half::{bf16, f16};

use super::device::Device;
use super::element::ElementType;
use super::view::StridedView;

/// Why elements could not be read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// Memory that the host cannot touch.
    #[error("elements on {device}, expected host memory")]
    Device {
        /// Where the elements are.
        device: Device,
    },
    /// An index outside the shape, or one with too few or too many numbers.
    #[error("index {index:?} is outside shape {shape:?}")]
    Index {
        /// The index given.
        index: Vec<usize>,
        /// The tensor's shape.
        shape: Vec<usize>,
    },
    /// A buffer of another length than the row.
    #[error("{found} values for a row of {expected}")]
    Width {
        /// Length of the buffer.
        found: usize,
        /// Length of the row, in the buffer's unit.
        expected: usize,
    },
    /// An element type that this access does not serve.
    #[error("type {found}, expected {expected}")]
    Type {
        /// The tensor's type.
        found: ElementType,
        /// What the access serves.
        expected: &'static str,
    },
    /// An integer that the other side's type cannot hold.
    #[error("value {value} at position {position}, expected {expected}")]
    Value {
        /// Position within the row.
        position: usize,
        /// The value.
        value: i128,
        /// The range it had to be in.
        expected: &'static str,
    },
}

/// A row of host memory: where it starts, and how far apart its elements are. Made by [`StridedView::host_row`] alone.
struct Row {
    start: *mut u8,
    step: isize,
    width: usize,
}

impl Row {
    /// Address of one element; `position` is below `width`.
    fn at(&self, position: usize) -> *mut u8 {
        self.start.wrapping_offset(position as isize * self.step)
    }

    /// Copies every element out. `T` has the size of the view's elements.
    fn load<T: Copy>(&self, mut take: impl FnMut(usize, T)) {
        for position in 0..self.width {
            // SAFETY: the row comes from `StridedView::host_row`, so the element lies within the view's bytes, which
            // are mapped on the host by `StridedView::on_device`'s condition; no alignment is assumed, and every `T`
            // used here is a plain number, for which any bits are valid.
            take(position, unsafe { self.at(position).cast::<T>().read_unaligned() });
        }
    }

    /// Copies every element in. `T` has the size of the view's elements.
    fn store<T: Copy>(&self, mut give: impl FnMut(usize) -> T) {
        for position in 0..self.width {
            // SAFETY: as in `load`; that the memory may be written is what `Writer` stands for.
            unsafe { self.at(position).cast::<T>().write_unaligned(give(position)) }
        }
    }
}

/// Calls `$action!(T)` with the Rust type that stores `$element`, if it is an integer (or bool, as one byte).
macro_rules! with_integer {
    ($element:expr, $action:ident, $otherwise:expr) => {
        match $element {
            ElementType::Bool | ElementType::UInt8 => $action!(u8),
            ElementType::Int8 => $action!(i8),
            ElementType::Int16 => $action!(i16),
            ElementType::Int32 => $action!(i32),
            ElementType::Int64 => $action!(i64),
            ElementType::UInt16 => $action!(u16),
            ElementType::UInt32 => $action!(u32),
            ElementType::UInt64 => $action!(u64),
            ElementType::Float16 | ElementType::BFloat16 | ElementType::Float32 | ElementType::Float64 => {
                $otherwise
            }
        }
    };
}

const FLOATS: &str = "float32, float16, bfloat16 or float64";
const INTEGERS: &str = "an integer type";

impl StridedView {
    /// A row of `width` elements, `step` bytes apart, all within the view.
    fn host_row(&self, start: *mut u8, step: isize, width: usize) -> Result<Row, AccessError> {
        if self.device().is_host() {
            Ok(Row { start, step, width })
        } else {
            Err(AccessError::Device { device: self.device() })
        }
    }

    fn row(&self, leading: &[usize]) -> Result<Row, AccessError> {
        let out_of_range = || AccessError::Index { index: leading.to_vec(), shape: self.shape().to_vec() };
        let Some((&width, outer)) = self.shape().split_last() else { return Err(out_of_range()) };
        if leading.len() != outer.len() {
            return Err(out_of_range());
        }
        let start = self.start(leading).ok_or_else(out_of_range)?;
        // Wraps only where it is never taken: for a row of at most one element, whose stride nothing has checked.
        let step = (self.strides()[leading.len()] as isize).wrapping_mul(self.element().size() as isize);
        self.host_row(start, step, width)
    }

    fn row_of(&self, leading: &[usize], width: usize) -> Result<Row, AccessError> {
        let row = self.row(leading)?;
        if row.width == width {
            Ok(row)
        } else {
            Err(AccessError::Width { found: width, expected: row.width })
        }
    }

    /// Reads one float, widened to float32 (float64 is rounded).
    ///
    /// # Errors
    /// [`AccessError`] for an index outside the shape, or a tensor that holds no floats.
    pub fn get_f32(&self, index: &[usize]) -> Result<f32, AccessError> {
        let start = self
            .address(index)
            .ok_or_else(|| AccessError::Index { index: index.to_vec(), shape: self.shape().to_vec() })?;
        let mut value = [0.0];
        self.load_f32(&self.host_row(start, 0, 1)?, &mut value)?;
        Ok(value[0])
    }

    /// Reads one row of floats, widened to float32 (float64 is rounded).
    ///
    /// # Errors
    /// [`AccessError`] for a leading index outside the shape, a buffer of another length than the row, or a tensor
    /// that holds no floats.
    pub fn read_row_f32(&self, leading: &[usize], out: &mut [f32]) -> Result<(), AccessError> {
        let row = self.row_of(leading, out.len())?;
        self.load_f32(&row, out)
    }

    fn load_f32(&self, row: &Row, out: &mut [f32]) -> Result<(), AccessError> {
        match self.element() {
            ElementType::Float32 => row.load(|at, value: f32| out[at] = value),
            ElementType::Float16 => row.load(|at, value: f16| out[at] = value.to_f32()),
            ElementType::BFloat16 => row.load(|at, value: bf16| out[at] = value.to_f32()),
            ElementType::Float64 => row.load(|at, value: f64| out[at] = value as f32),
            found => return Err(AccessError::Type { found, expected: FLOATS }),
        }
        Ok(())
    }

    /// Reads one row of integers; bool counts as 0 and 1.
    ///
    /// # Errors
    /// [`AccessError`] as for [`Self::read_row_f32`], for a tensor that holds no integers, or for a uint64 above
    /// int64's range.
    pub fn read_row_i64(&self, leading: &[usize], out: &mut [i64]) -> Result<(), AccessError> {
        self.read_integers(leading, out, "a value within int64")
    }

    /// Reads one row of non-negative integers.
    ///
    /// # Errors
    /// [`AccessError`] as for [`Self::read_row_f32`], for a tensor that holds no integers, or for a negative value.
    pub fn read_row_u64(&self, leading: &[usize], out: &mut [u64]) -> Result<(), AccessError> {
        self.read_integers(leading, out, "a value of at least 0")
    }

    /// Reads one row of integers that fit int32.
    ///
    /// # Errors
    /// [`AccessError`] as for [`Self::read_row_f32`], for a tensor that holds no integers, or for a value outside
    /// int32's range.
    pub fn read_row_i32(&self, leading: &[usize], out: &mut [i32]) -> Result<(), AccessError> {
        self.read_integers(leading, out, "a value within int32")
    }

    fn read_integers<V: TryFrom<i128> + Copy>(
        &self,
        leading: &[usize],
        out: &mut [V],
        expected: &'static str,
    ) -> Result<(), AccessError> {
        let row = self.row_of(leading, out.len())?;
        let mut refused = None;
        macro_rules! load {
            ($stored:ty) => {
                row.load(|position, value: $stored| match V::try_from(i128::from(value)) {
                    Ok(value) => out[position] = value,
                    Err(_) => refused = refused.or(Some((position, i128::from(value)))),
                })
            };
        }
        let found = self.element();
        with_integer!(found, load, return Err(AccessError::Type { found, expected: INTEGERS }));
        match refused {
            None => Ok(()),
            Some((position, value)) => Err(AccessError::Value { position, value, expected }),
        }
    }

    /// Copies the stored elements out, row-major and contiguous.
    ///
    /// # Errors
    /// [`AccessError`] when `out` is not [`Self::size_in_bytes`] long, or the memory is a device's.
    pub fn read_bytes(&self, out: &mut [u8]) -> Result<(), AccessError> {
        if out.len() != self.size_in_bytes() {
            return Err(AccessError::Width { found: out.len(), expected: self.size_in_bytes() });
        }
        let size = self.element().size();
        let mut targets = out.chunks_exact_mut(size);
        self.each_row(&mut |row| {
            for (position, target) in targets.by_ref().take(row.width).enumerate() {
                // SAFETY: the source as in `Row::load`, a byte having any value and no alignment; the target is
                // `size` bytes of a slice that is ours alone.
                unsafe { target.as_mut_ptr().copy_from_nonoverlapping(row.at(position), size) }
            }
            Ok(())
        })
    }

    /// Reads every element, row-major, widened to float32 (float64 is rounded).
    ///
    /// # Errors
    /// [`AccessError`] when `out` is not [`Self::elements`] long, the tensor holds no floats, or its memory is a
    /// device's.
    pub fn read_f32(&self, out: &mut [f32]) -> Result<(), AccessError> {
        if out.len() != self.elements() {
            return Err(AccessError::Width { found: out.len(), expected: self.elements() });
        }
        let mut rest = out;
        self.each_row(&mut |row| {
            let (target, after) = std::mem::take(&mut rest).split_at_mut(row.width);
            rest = after;
            self.load_f32(&row, target)
        })
    }

    /// One element as a number of Python's kinds, or `None` when there is no such index in host memory.
    pub fn scalar(&self, index: &[usize]) -> Option<Scalar> {
        let row = self.host_row(self.address(index)?, 0, 1).ok()?;
        let mut scalar = None;
        macro_rules! load {
            ($stored:ty) => {
                row.load(|_, value: $stored| scalar = Some(Scalar::Integer(i128::from(value))))
            };
        }
        match self.element() {
            ElementType::Bool => row.load(|_, value: u8| scalar = Some(Scalar::Bool(value != 0))),
            ElementType::Float64 => row.load(|_, value: f64| scalar = Some(Scalar::Float(value))),
            element => with_integer!(element, load, {
                scalar = self.get_f32(index).ok().map(|value| Scalar::Float(f64::from(value)));
            }),
        }
        scalar
    }

    /// Calls `visit` with every row in row-major order, up to its first error; a scalar counts as one row of one
    /// element.
    fn each_row(&self, visit: &mut impl FnMut(Row) -> Result<(), AccessError>) -> Result<(), AccessError> {
        if self.elements() == 0 {
            return Ok(());
        }
        let Some((_, outer)) = self.shape().split_last() else {
            return visit(self.host_row(self.data(), 0, 1)?);
        };
        let mut index = vec![0_usize; outer.len()];
        loop {
            visit(self.row(&index)?)?;
            let Some(turn) = (0..outer.len()).rev().find(|&at| index[at] + 1 < outer[at]) else {
                return Ok(());
            };
            index[turn] += 1;
            index[turn + 1..].fill(0);
        }
    }
}

/// An element as Python knows it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scalar {
    /// A truth value.
    Bool(bool),
    /// An integer of any width.
    Integer(i128),
    /// A float of any width.
    Float(f64),
}

/// Write access to a view whose owner allows it. One writer at a time is the caller's to see to, as is that nobody
/// reads meanwhile.
#[derive(Debug)]
pub struct Writer<'a> {
    view: &'a StridedView,
}

impl<'a> Writer<'a> {
    /// Wraps a view whose memory is writable; [`super::import::ImportedTensor::writer`] and
    /// [`crate::tensor::Tensor::writer`] check that it is.
    pub(crate) const fn new(view: &'a StridedView) -> Self {
        Self { view }
    }

    /// The view written to.
    pub const fn view(&self) -> &StridedView {
        self.view
    }

    /// Writes one row of floats, rounded to the tensor's type.
    ///
    /// # Errors
    /// [`AccessError`] for a leading index outside the shape, another length than the row's, or a tensor that holds
    /// no floats.
    pub fn write_row_f32(&mut self, leading: &[usize], values: &[f32]) -> Result<(), AccessError> {
        let row = self.view.row_of(leading, values.len())?;
        match self.view.element() {
            ElementType::Float32 => row.store(|at| values[at]),
            ElementType::Float16 => row.store(|at| f16::from_f32(values[at])),
            ElementType::BFloat16 => row.store(|at| bf16::from_f32(values[at])),
            ElementType::Float64 => row.store(|at| f64::from(values[at])),
            found => return Err(AccessError::Type { found, expected: FLOATS }),
        }
        Ok(())
    }

    /// Writes one row of int32 values into an int32 or int64 tensor.
    ///
    /// # Errors
    /// [`AccessError`] for a leading index outside the shape, another length than the row's, or a tensor of another
    /// type.
    pub fn write_row_i32(&mut self, leading: &[usize], values: &[i32]) -> Result<(), AccessError> {
        let row = self.view.row_of(leading, values.len())?;
        match self.view.element() {
            ElementType::Int32 => row.store(|at| values[at]),
            ElementType::Int64 => row.store(|at| i64::from(values[at])),
            found => return Err(AccessError::Type { found, expected: "int32 or int64" }),
        }
        Ok(())
    }

    /// Writes one row of int64 values into an int64 or int32 tensor.
    ///
    /// # Errors
    /// [`AccessError`] as for [`Self::write_row_i32`], or for a value that an int32 tensor cannot hold; the row is
    /// then left as it was.
    pub fn write_row_i64(&mut self, leading: &[usize], values: &[i64]) -> Result<(), AccessError> {
        if self.view.element() == ElementType::Int64 {
            self.view.row_of(leading, values.len())?.store(|at| values[at]);
            return Ok(());
        }
        let narrowed = values
            .iter()
            .enumerate()
            .map(|(position, &value)| {
                i32::try_from(value).map_err(|_| AccessError::Value {
                    position,
                    value: i128::from(value),
                    expected: "a value within int32",
                })
            })
            .collect::<Result<Vec<i32>, _>>()?;
        self.write_row_i32(leading, &narrowed)
    }

    /// Writes one row of stored elements, bit for bit: a table's row into a tensor of the table's type.
    ///
    /// # Errors
    /// [`AccessError`] for a leading index outside the shape, or another number of bytes than the row's.
    pub fn write_row_bytes(&mut self, leading: &[usize], bytes: &[u8]) -> Result<(), AccessError> {
        let row = self.view.row(leading)?;
        let size = self.view.element().size();
        if bytes.len() != row.width * size {
            return Err(AccessError::Width { found: bytes.len(), expected: row.width * size });
        }
        for (position, element) in bytes.chunks_exact(size).enumerate() {
            // SAFETY: as in `Row::store`; source and target cannot overlap, since no Rust slice of shared memory
            // may exist while it is written (`StridedView::as_bytes`).
            unsafe { row.at(position).copy_from_nonoverlapping(element.as_ptr(), size) }
        }
        Ok(())
    }
}
