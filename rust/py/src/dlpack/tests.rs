//! What views and their accessors promise, on memory that Rust owns: no interpreter needed.

use half::{bf16, f16};

use super::access::{AccessError, Scalar, Writer};
use super::element::ElementType;
use super::view::{LayoutError, StridedView, overlaps};

/// A view over `memory`, starting `offset` elements in.
fn view<T>(
    memory: &mut [T],
    element: ElementType,
    offset: usize,
    shape: &[i64],
    strides: Option<&[i64]>,
) -> StridedView {
    assert_eq!(size_of::<T>(), element.size());
    let data = memory.as_mut_ptr().wrapping_add(offset).cast();
    // SAFETY: every test keeps its memory beyond its view, and describes no more than it.
    unsafe { StridedView::new(data, element, shape, strides) }.unwrap()
}

fn refused(address: usize, shape: &[i64], strides: Option<&[i64]>) -> LayoutError {
    let data = std::ptr::without_provenance_mut(address);
    // SAFETY: the view is never used: making it must fail.
    unsafe { StridedView::new(data, ElementType::Float32, shape, strides) }.unwrap_err()
}

#[test]
fn sizes_beyond_the_address_space_are_refused() {
    let huge = i64::MAX;
    for shape in [&[huge, huge][..], &[huge], &[1 << 31, 1 << 31, 2]] {
        assert!(matches!(refused(64, shape, None), LayoutError::TooLarge { .. }), "{shape:?}");
    }
    for (shape, strides) in [
        (&[2, 2][..], &[huge, huge][..]),
        (&[2], &[huge]),
        (&[2], &[i64::MIN]),
        (&[3], &[-32]),
        (&[huge / 8], &[huge]),
    ] {
        assert!(
            matches!(refused(64, shape, Some(strides)), LayoutError::TooLarge { .. }),
            "{shape:?} {strides:?}"
        );
    }
}

#[test]
fn descriptions_that_contradict_themselves_are_refused() {
    assert_eq!(refused(64, &[2, -1], None), LayoutError::NegativeExtent { dimension: 1, extent: -1 });
    assert_eq!(refused(64, &[2, 2], Some(&[1])), LayoutError::StrideCount { strides: 1, dimensions: 2 });
    assert_eq!(refused(64, &[1; 65], None), LayoutError::TooManyDimensions { found: 65 });
    assert_eq!(refused(0, &[2, 2], None), LayoutError::NullData { elements: 4 });
}

#[test]
fn a_tensor_without_elements_needs_no_memory_and_no_sane_strides() {
    let wild = [i64::MAX, i64::MIN];
    // SAFETY: no elements, so no memory.
    let empty = unsafe { StridedView::new(std::ptr::null_mut(), ElementType::Float32, &[3, 0], Some(&wild)) }
        .unwrap();
    assert_eq!((empty.elements(), empty.size_in_bytes(), empty.byte_range().len()), (0, 0, 0));
    assert!(empty.is_contiguous() && !empty.overlaps_itself());
    empty.read_row_f32(&[2], &mut []).unwrap();
    empty.read_bytes(&mut []).unwrap();
    assert!(empty.read_row_f32(&[3], &mut []).is_err());
    assert_eq!(empty.scalar(&[0, 0]), None);
}

#[test]
fn a_dimension_of_one_element_may_have_any_stride() {
    let mut memory = [1.0_f32, 2.0];
    let view = view(&mut memory, ElementType::Float32, 0, &[1, 2, 1], Some(&[i64::MAX, 1, i64::MIN]));
    assert!(view.is_contiguous());
    assert_eq!(view.byte_range().len(), 8);
    let mut row = [0.0];
    view.read_row_f32(&[0, 1], &mut row).unwrap();
    assert_eq!(row, [2.0]);
}

#[test]
fn the_byte_range_covers_negative_strides() {
    let mut memory: Vec<f32> = (0..12_u8).map(f32::from).collect();
    let start = memory.as_ptr().addr();
    // Both axes of [3, 4] reversed: element [0, 0] is the last in memory.
    let flipped = view(&mut memory, ElementType::Float32, 11, &[3, 4], Some(&[-4, -1]));
    assert_eq!(*flipped.byte_range(), start..start + 48);
    assert!(!flipped.is_contiguous() && !flipped.overlaps_itself());
    let mut row = [0.0; 4];
    flipped.read_row_f32(&[2], &mut row).unwrap();
    assert_eq!(row, [3.0, 2.0, 1.0, 0.0]);
    assert_eq!(flipped.get_f32(&[1, 0]), Ok(7.0));
}

#[test]
fn overlap_is_judged_by_the_bytes_covered() {
    let mut memory = [0_f32; 12];
    let memory = &mut memory;
    let first = view(memory, ElementType::Float32, 0, &[6], None);
    let second = view(memory, ElementType::Float32, 6, &[6], None);
    let across = view(memory, ElementType::Float32, 5, &[2], None);
    let backwards = view(memory, ElementType::Float32, 11, &[6], Some(&[-1]));
    let nothing = view(memory, ElementType::Float32, 3, &[0], None);
    for (left, right, expected) in [
        (&first, &second, false),
        (&first, &across, true),
        (&second, &across, true),
        (&first, &backwards, false),
        (&second, &backwards, true),
        (&first, &nothing, false),
        (&nothing, &nothing, false),
    ] {
        assert_eq!(overlaps(left, right), expected, "{left:?} {right:?}");
        assert_eq!(overlaps(right, left), expected);
    }
}

#[test]
fn broadcast_and_folded_layouts_are_known_to_overlap_themselves() {
    let mut memory = [0_f32; 12];
    let memory = &mut memory;
    for (shape, strides, expected) in [
        (&[3, 4][..], &[0, 1][..], true),
        (&[3, 4], &[3, 1], true),
        (&[3, 4], &[4, 1], false),
        (&[4, 3], &[1, 4], false),
        (&[2, 1, 3], &[3, 0, 1], false),
        (&[], &[], false),
    ] {
        let view = view(memory, ElementType::Float32, 0, shape, Some(strides));
        assert_eq!(view.overlaps_itself(), expected, "{shape:?} {strides:?}");
    }
}

#[test]
fn contiguity_ignores_dimensions_of_one_element() {
    let mut memory = [0_f32; 24];
    let memory = &mut memory;
    for (shape, strides, expected) in [
        (&[2, 3, 4][..], &[12, 4, 1][..], true),
        (&[1, 3, 4], &[99, 4, 1], true),
        (&[2, 3], &[1, 2], false),
        (&[4], &[2], false),
        (&[], &[], true),
    ] {
        assert_eq!(view(memory, ElementType::Float32, 0, shape, Some(strides)).is_contiguous(), expected);
    }
}

#[test]
fn a_slice_of_a_vector_keeps_its_strides_and_covers_no_more() {
    let mut memory = [0_i32, 1, 2, 3, 4, 5, 6, 7];
    let start = memory.as_ptr().addr();
    let backwards = view(&mut memory, ElementType::Int32, 7, &[4], Some(&[-2]));
    let slice = backwards.slice(1..3).unwrap();
    let mut values = [0; 2];
    slice.read_row_i32(&[], &mut values).unwrap();
    assert_eq!(values, [5, 3]);
    assert_eq!(slice.byte_range(), &(start + 12..start + 24));
    assert_eq!(backwards.slice(0..4).unwrap().byte_range(), backwards.byte_range());
    let empty = backwards.slice(4..4).unwrap();
    assert!(empty.elements() == 0 && empty.byte_range().is_empty());
    assert!(backwards.slice(3..5).is_none());
    #[allow(clippy::reversed_empty_ranges, reason = "it is refused")]
    let reversed = 2..1;
    assert!(backwards.slice(reversed).is_none());
    assert!(view(&mut memory, ElementType::Int32, 0, &[2, 4], None).slice(0..1).is_none());
}

#[test]
fn floats_of_every_type_are_widened_exactly() {
    let values = [0.5_f32, -1.0, 65504.0, 0.0];
    let mut single = values;
    let mut half_precision = values.map(f16::from_f32);
    let mut brain = [0.5_f32, -1.0, 65536.0, 0.0].map(bf16::from_f32);
    let mut double = values.map(f64::from);
    let mut row = [0.0; 2];
    for (view, expected) in [
        (view(&mut single, ElementType::Float32, 0, &[2, 2], Some(&[1, 2])), 65504.0),
        (view(&mut half_precision, ElementType::Float16, 0, &[2, 2], Some(&[1, 2])), 65504.0),
        (view(&mut brain, ElementType::BFloat16, 0, &[2, 2], Some(&[1, 2])), 65536.0),
        (view(&mut double, ElementType::Float64, 0, &[2, 2], Some(&[1, 2])), 65504.0),
    ] {
        view.read_row_f32(&[0], &mut row).unwrap();
        assert_eq!(row, [0.5, expected]);
        let mut all = [9.0; 4];
        view.read_f32(&mut all).unwrap();
        assert_eq!(all, [0.5, expected, -1.0, 0.0]);
    }
}

#[test]
fn unaligned_elements_are_read_and_written() {
    let mut bytes = [0_u8; 13];
    let data = bytes.as_mut_ptr().wrapping_add(1);
    // SAFETY: 12 bytes from the second on.
    let view = unsafe { StridedView::new(data, ElementType::Float32, &[3], None) }.unwrap();
    Writer::new(&view).write_row_f32(&[], &[1.0, 2.0, 3.0]).unwrap();
    let mut row = [0.0; 3];
    view.read_row_f32(&[], &mut row).unwrap();
    assert_eq!(row, [1.0, 2.0, 3.0]);
    assert_eq!(view.scalar(&[1]), Some(Scalar::Float(2.0)));
}

#[test]
fn integers_keep_their_value_or_are_refused() {
    let mut unsigned = [7_u64, u64::MAX];
    let mut signed = [-1_i64, 1 << 40];
    let mut bytes = [200_u8, 1];
    let unsigned = view(&mut unsigned, ElementType::UInt64, 0, &[2], None);
    let signed = view(&mut signed, ElementType::Int64, 0, &[2], None);
    let bytes = view(&mut bytes, ElementType::UInt8, 0, &[2], Some(&[1]));

    let (mut wide, mut natural, mut narrow) = ([0_i64; 2], [0_u64; 2], [0_i32; 2]);
    unsigned.read_row_u64(&[], &mut natural).unwrap();
    assert_eq!(natural, [7, u64::MAX]);
    signed.read_row_i64(&[], &mut wide).unwrap();
    assert_eq!(wide, [-1, 1 << 40]);
    bytes.read_row_i32(&[], &mut narrow).unwrap();
    assert_eq!(narrow, [200, 1]);

    let value = |outcome| match outcome {
        Err(AccessError::Value { position, value, .. }) => (position, value),
        other => panic!("{other:?}"),
    };
    assert_eq!(value(unsigned.read_row_i64(&[], &mut wide)), (1, i128::from(u64::MAX)));
    assert_eq!(value(signed.read_row_u64(&[], &mut natural)), (0, -1));
    assert_eq!(value(signed.read_row_i32(&[], &mut narrow)), (1, 1 << 40));
    assert!(matches!(signed.read_row_f32(&[], &mut [0.0; 2]), Err(AccessError::Type { .. })));
}

#[test]
fn rows_are_written_through_strides_and_nowhere_else() {
    let mut memory = [-1_i64; 12];
    // Columns 3, 1 of a [3, 4] matrix, as rows [3, 2].
    let codes = view(&mut memory, ElementType::Int64, 3, &[3, 2], Some(&[4, -2]));
    Writer::new(&codes).write_row_i32(&[1], &[10, 20]).unwrap();
    Writer::new(&codes).write_row_i64(&[2], &[30, 40]).unwrap();
    assert_eq!(memory, [-1, -1, -1, -1, -1, 20, -1, 10, -1, 40, -1, 30]);

    let mut narrow = [5_i32; 2];
    let narrow_view = view(&mut narrow, ElementType::Int32, 0, &[2], None);
    let refused = Writer::new(&narrow_view).write_row_i64(&[], &[1, 1 << 40]);
    assert!(matches!(refused, Err(AccessError::Value { position: 1, .. })));
    assert_eq!(narrow, [5, 5]);
}

#[test]
fn floats_are_rounded_to_nearest_even_when_written() {
    let between = 1.0 + f32::from(bf16::EPSILON) * 0.5;
    let mut brain = [bf16::ZERO; 4];
    let rows = view(&mut brain, ElementType::BFloat16, 0, &[2, 2], None);
    Writer::new(&rows).write_row_f32(&[1], &[between, f32::NAN]).unwrap();
    assert_eq!(brain[2], bf16::ONE);
    assert!(brain[3].is_nan());
    assert_eq!(brain[..2], [bf16::ZERO; 2]);
}

#[test]
fn stored_rows_are_copied_bit_for_bit() {
    let mut table = [f16::from_bits(0x7e01), f16::from_bits(0x8000)];
    let source = view(&mut table, ElementType::Float16, 0, &[2], Some(&[1]));
    let mut bytes = [0; 4];
    source.read_bytes(&mut bytes).unwrap();
    let mut target = [f16::ZERO; 3];
    let slots = view(&mut target, ElementType::Float16, 2, &[2], Some(&[-2]));
    Writer::new(&slots).write_row_bytes(&[], &bytes).unwrap();
    assert_eq!(target.map(f16::to_bits), [0x8000, 0, 0x7e01]);
    assert!(Writer::new(&slots).write_row_bytes(&[], &bytes[..3]).is_err());
}

#[test]
fn an_index_outside_the_shape_reaches_no_memory() {
    let mut memory = [0_f32; 6];
    let view = view(&mut memory, ElementType::Float32, 0, &[2, 3], None);
    let mut row = [0.0; 3];
    for leading in [&[2][..], &[], &[0, 0], &[usize::MAX]] {
        assert!(
            matches!(view.read_row_f32(leading, &mut row), Err(AccessError::Index { .. })),
            "{leading:?}"
        );
        assert!(Writer::new(&view).write_row_f32(leading, &row).is_err());
    }
    for index in [&[2, 0][..], &[0, 3], &[1], &[0, 0, 0]] {
        assert!(view.get_f32(index).is_err(), "{index:?}");
    }
    for width in [2, 4] {
        let wrong = view.read_row_f32(&[0], &mut vec![0.0; width]);
        assert_eq!(wrong, Err(AccessError::Width { found: width, expected: 3 }));
    }
}

#[test]
fn a_scalar_is_one_element() {
    let mut memory = [bf16::from_f32(1.5)];
    let scalar = view(&mut memory, ElementType::BFloat16, 0, &[], None);
    assert_eq!((scalar.elements(), scalar.get_f32(&[])), (1, Ok(1.5)));
    let (mut value, mut bytes) = ([0.0], [0; 2]);
    scalar.read_f32(&mut value).unwrap();
    scalar.read_bytes(&mut bytes).unwrap();
    assert_eq!((value, bytes), ([1.5], bf16::from_f32(1.5).to_ne_bytes()));
    assert!(scalar.read_row_f32(&[], &mut value).is_err());
}
