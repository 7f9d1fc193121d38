//! The product that attends for itself: what a single stream's o does instead of waiting for attention.

use overtone_core::spec::ModelSpec;
use overtone_core::tensor::FloatType;
use overtone_cuda::arguments::ProductArguments;
use overtone_cuda::kernels::Kernel;
use overtone_cuda::layout::MatrixShapes;
use overtone_cuda::product::attends_in_place;
use overtone_simt::MAX_SHARED_BYTES;

use crate::attention::{Problem, Step, steps};
use crate::host::Host;
use crate::host::fixtures::FLOAT_TYPES;
use crate::host::fixtures::random::Random;
use crate::product::{activation_memory, packed, random_rows, sums, true_spec};

fn check(spec: &ModelSpec, float_type: FloatType, step: Step) {
    assert!(attends_in_place(spec, float_type, MAX_SHARED_BYTES), "{spec:?}");
    let matrix = MatrixShapes::new(spec).output;
    let weights = random_rows(&mut Random::new(2), float_type, matrix.outputs, matrix.inputs, 0.1);
    let packed = packed(float_type, matrix, &weights);
    let apart = Problem::new(spec, float_type, step);
    let activations = activation_memory(float_type, apart.columns(), apart.pairs());
    Host::NATURAL.go(&[apart.launch(&activations)]);
    let with = ProductArguments { weights: packed.address(), ..ProductArguments::default() };
    let run = |arguments| sums(spec, float_type, matrix, apart.columns(), arguments);
    let (expected, _) = run(ProductArguments { activations: activations.address(), ..with });
    assert!(expected.iter().all(|sum| sum.is_finite()));

    let in_place = Problem::new(spec, float_type, step);
    let (found, kernel) = run(ProductArguments { attention: in_place.arguments(), ..with });
    assert_eq!(kernel, Kernel::ProductAttended(float_type));
    assert!(found == expected, "{float_type} {step:?}: the sums differ");
    let cache_words = spec.key_value_heads * spec.positions() * spec.head_size * float_type.size() / 4;
    for (found, expected) in [(&in_place.keys, &apart.keys), (&in_place.values, &apart.values)] {
        let (found, expected) = (found.read::<u32>(cache_words), expected.read::<u32>(cache_words));
        assert!(found == expected, "{float_type} {step:?}: the caches differ");
    }
}

#[test]
fn a_product_attends_as_the_attention_kernel_does_bit_for_bit() {
    let small = |key_value_heads| ModelSpec {
        hidden_size: 40,
        residual_codebooks: 6,
        key_value_heads,
        ..true_spec()
    };
    for float_type in FLOAT_TYPES {
        for spec in [small(1), small(16)] {
            for step in steps(&spec, 1) {
                check(&spec, float_type, step);
            }
        }
        for step in [steps(&true_spec(), 1)[0], steps(&true_spec(), 1)[3]] {
            check(&true_spec(), float_type, step);
        }
    }
}
