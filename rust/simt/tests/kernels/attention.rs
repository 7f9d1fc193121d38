//! Attention by itself: norms, rotation, cache and softmax, in the prefill and at later positions.

use overtone_core::spec::ModelSpec;
use overtone_core::tensor::FloatType;
use overtone_cuda::arguments::AttentionArguments;
use overtone_cuda::kernels::Kernel;
use overtone_cuda::layout::{PAIR, TILE_COLUMNS};
use overtone_cuda::plan::Launch;
use overtone_cuda::product::attention_shared_bytes;

use crate::host::fixtures::FLOAT_TYPES;
use crate::host::fixtures::random::Random;
use crate::host::fragments::unpacked_activations;
use crate::host::{Host, Memory, rounded, subnormal_roundoff, unit_roundoff};
use crate::product::{activation_memory, true_spec};

const EPSILON: f32 = 1e-6;

/// Where a step stands.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    pub streams: usize,
    pub rows: usize,
    pub first_position: usize,
}

/// The prefill, the step after it, one in the middle and the last.
pub fn steps(spec: &ModelSpec, streams: usize) -> Vec<Step> {
    let one = |first_position| Step { streams, rows: 1, first_position };
    let last = spec.positions() - 1;
    vec![Step { streams, rows: 2, first_position: 0 }, one(2), one(last / 2 + 1), one(last)]
}

/// What attention is given. Slots at and beyond the first position hold NaN.
pub struct Problem {
    pub spec: ModelSpec,
    pub float_type: FloatType,
    pub step: Step,
    projected: Vec<f32>,
    norms: [Vec<f32>; 2],
    rotary: Vec<[f32; 2]>,
    memory: [Memory; 4],
    pub keys: Memory,
    pub values: Memory,
    earlier: [Vec<f32>; 2],
}

impl Problem {
    pub fn new(spec: &ModelSpec, float_type: FloatType, step: Step) -> Self {
        let mut random = Random::new((spec.query_heads * 100 + step.first_position) as u64);
        let width = spec.query_width() + 2 * spec.key_value_width();
        let projected = random.normals(step.rows * step.streams * width, 2.0);
        let mut norm =
            || -> Vec<f32> { random.normals(spec.head_size, 0.3).iter().map(|value| 1.0 + value).collect() };
        let norms = [norm(), norm()];
        let turn = |place: usize| {
            let (position, index) = (place / (spec.head_size / 2), place % (spec.head_size / 2));
            let angle = position as f64 * 1e6_f64.powf(-2.0 * index as f64 / spec.head_size as f64);
            [angle.cos() as f32, angle.sin() as f32]
        };
        let rotary: Vec<[f32; 2]> = (0..spec.positions() * spec.head_size / 2).map(turn).collect();
        let memory =
            [Memory::of(&projected), Memory::of(&norms[0]), Memory::of(&norms[1]), Memory::of(&rotary)];
        let slots = step.streams * spec.key_value_heads * spec.positions();
        let mut cache = || -> Vec<f32> {
            let slot = |slot: usize| match slot % spec.positions() < step.first_position {
                true => random.normals(spec.head_size, 1.0),
                false => vec![f32::NAN; spec.head_size],
            };
            (0..slots).flat_map(slot).map(|value| rounded(float_type, value)).collect()
        };
        let earlier = [cache(), cache()];
        let [keys, values] = earlier.each_ref().map(|cache| Memory::of_floats(float_type, cache));
        let spec = spec.clone();
        Self { spec, float_type, step, projected, norms, rotary, memory, keys, values, earlier }
    }

    pub fn arguments(&self) -> AttentionArguments {
        let spec = &self.spec;
        let [projected, query_norm, key_norm, rotary] = self.memory.each_ref().map(Memory::address);
        AttentionArguments {
            projected,
            query_norm,
            key_norm,
            rotary,
            keys: self.keys.address(),
            values: self.values.address(),
            attended: 0,
            query_heads: spec.query_heads as u32,
            key_value_heads: spec.key_value_heads as u32,
            head_size: spec.head_size as u32,
            positions: spec.positions() as u32,
            cache_slots: spec.positions() as u32,
            first_position: self.step.first_position as u32,
            rows: self.step.rows as u32,
            streams: self.step.streams as u32,
            pairs: self.pairs() as u32,
            epsilon: EPSILON,
            scale: 1.0 / (spec.head_size as f32).sqrt(),
            reserved: 0,
        }
    }

    /// Width of the attended activations.
    pub fn pairs(&self) -> usize {
        self.spec.query_width().div_ceil(PAIR)
    }

    pub fn columns(&self) -> usize {
        self.step.rows * self.step.streams
    }

    /// The kernel's launch, which leaves activations at `attended`.
    pub fn launch(&self, attended: &Memory) -> Launch {
        let spec = &self.spec;
        let queries = spec.query_heads / spec.key_value_heads;
        let arguments = AttentionArguments { attended: attended.address(), ..self.arguments() };
        let grid = [spec.key_value_heads, self.step.streams];
        Launch {
            block: 32 * queries as u32,
            ..Launch::new(Kernel::Attention(self.float_type), grid, &arguments)
                .shared(queries * attention_shared_bytes(spec, self.float_type))
        }
    }

    /// Keys or values as they are now, [streams][Nkv][positions][D].
    fn cached(&self, cache: &Memory) -> Vec<f32> {
        cache.read_floats(self.float_type, self.earlier[0].len())
    }

    /// Head `head` of those of q, k and v of a row, as projected.
    fn head(&self, row: usize, stream: usize, head: usize) -> &[f32] {
        let spec = &self.spec;
        let heads = spec.query_heads + 2 * spec.key_value_heads;
        &self.projected[((row * self.step.streams + stream) * heads + head) * spec.head_size..]
            [..spec.head_size]
    }

    /// A head normalised and rotated in float64; and of each element the size of what was added up.
    fn prepared(&self, head: &[f32], norm: &[f32], position: usize) -> (Vec<f64>, Vec<f64>) {
        let (size, half) = (head.len(), head.len() / 2);
        let squares: f64 = head.iter().map(|value| f64::from(*value).powi(2)).sum();
        let scale = 1.0 / (squares / size as f64 + f64::from(EPSILON)).sqrt();
        let normed: Vec<f64> =
            head.iter().zip(norm).map(|(value, norm)| f64::from(*value) * scale * f64::from(*norm)).collect();
        let rotated = |element: usize| {
            let [cosine, sine] = self.rotary[position * half + element % half].map(f64::from);
            let partner = if element < half { -normed[element + half] } else { normed[element - half] };
            (normed[element] * cosine, partner * sine)
        };
        (0..size).map(rotated).map(|(own, other)| (own + other, own.abs() + other.abs())).unzip()
    }
}

/// Roundings of a prepared head: four squares of a lane, five sums over the warp, the root halving them; ε, the root, two
/// products; the rotation's two products and sum.
const PREPARED: f64 = (9.0 / 2.0 + 2.0 + 2.0 + 2.0 + 3.0) * 5.97e-8;

/// Holds the keys and values that a step leaves in the caches against the rows it was given.
fn check_caches(problem: &Problem) {
    let Problem { spec, float_type, step, .. } = problem;
    let size = spec.head_size;
    for (which, cache) in [&problem.keys, &problem.values].into_iter().enumerate() {
        let found = problem.cached(cache);
        for (slot, found) in found.chunks(size).enumerate() {
            let (position, head) = (slot % spec.positions(), slot / spec.positions());
            let (stream, head) = (head / spec.key_value_heads, head % spec.key_value_heads);
            let place = format!(
                "{float_type} {step:?}, cache {which}, stream {stream}, head {head}, slot {position}"
            );
            if !(step.first_position..step.first_position + step.rows).contains(&position) {
                let earlier = &problem.earlier[which][slot * size..][..size];
                assert!(
                    found.iter().zip(earlier).all(|(a, b)| a == b || a.is_nan() && b.is_nan()),
                    "{place} changed"
                );
                continue;
            }
            let row = position - step.first_position;
            if which == 1 {
                let value = problem.head(row, stream, spec.query_heads + spec.key_value_heads + head);
                let expected: Vec<f32> = value.iter().map(|value| rounded(*float_type, *value)).collect();
                assert_eq!(found, expected, "{place}");
                continue;
            }
            let key = problem.head(row, stream, spec.query_heads + head);
            let (expected, sizes) = problem.prepared(key, &problem.norms[1], position);
            for ((found, expected), size) in found.iter().zip(&expected).zip(&sizes) {
                let error = PREPARED * size;
                let bound = error
                    + unit_roundoff(*float_type) * (expected.abs() + error)
                    + subnormal_roundoff(*float_type);
                assert!((f64::from(*found) - expected).abs() <= bound, "{place}: {found}, not {expected}");
            }
        }
    }
}

/// What a query attends to and the most that roundings can move it, of each element, before it is rounded to its type. Keys
/// and values are those in the caches.
fn attended(problem: &Problem, row: usize, stream: usize, query_head: usize) -> (Vec<f64>, f64) {
    let Problem { spec, step, .. } = problem;
    let (size, position) = (spec.head_size, step.first_position + row);
    let unit = unit_roundoff(FloatType::Float32);
    let (query, query_sizes) =
        problem.prepared(problem.head(row, stream, query_head), &problem.norms[0], position);
    let key_head = query_head / (spec.query_heads / spec.key_value_heads);
    let first_slot = (stream * spec.key_value_heads + key_head) * spec.positions();
    let [keys, values] = [&problem.keys, &problem.values].map(|cache| problem.cached(cache));
    let slots = |cache: &[f32]| -> Vec<Vec<f64>> {
        let slots = cache[first_slot * size..].chunks(size).take(position + 1);
        slots.map(|slot| slot.iter().map(|value| f64::from(*value)).collect()).collect()
    };
    let (keys, values) = (slots(&keys), slots(&values));
    let scale = 1.0 / (size as f64).sqrt();
    let mut score_error = 0.0_f64;
    let scores: Vec<f64> = keys
        .iter()
        .map(|key| {
            let score: f64 = query.iter().zip(key).map(|(query, key)| query * key).sum();
            let products = query_sizes.iter().zip(key).map(|(size, key)| size * key.abs()).sum::<f64>();
            // Sixteen terms of a lane's four sums, four sums and two lanes; then the scale, itself rounded.
            score_error = score_error.max(scale * products * (PREPARED + (16.0 + 3.0 + 2.0) * unit));
            score * scale
        })
        .collect();
    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
    let total: f64 = weights.iter().sum();
    let most_score = scores.iter().fold(0.0_f64, |most, score| most.max(score.abs()));
    // A weight's exponent is off by both scores' errors and the difference's rounding, and e^x by two units.
    let weight_error = 2.0 * (score_error + unit * most_score) + 2.1 * unit;
    let largest_value = values.iter().flatten().fold(0.0_f64, |most, value| most.max(value.abs()));
    // Weights enter above and below; sums over the slots, their halves, the reciprocal and the product are rounded.
    let bound = (2.0 * weight_error + (2.0 * position as f64 + 8.0) * unit) * 1.1 * largest_value;
    let attended = (0..size).map(|element| {
        weights.iter().zip(&values).map(|(weight, value)| weight * value[element]).sum::<f64>() / total
    });
    (attended.collect(), bound)
}

fn check(spec: &ModelSpec, float_type: FloatType, step: Step) {
    let problem = Problem::new(spec, float_type, step);
    let memory = activation_memory(float_type, problem.columns(), problem.pairs());
    Host::NATURAL.go(&[problem.launch(&memory)]);
    check_caches(&problem);
    let elements = problem.columns().next_multiple_of(TILE_COLUMNS) * problem.pairs() * PAIR;
    let found = unpacked_activations(float_type, &memory.read_floats(float_type, elements), problem.pairs());
    for (column, found) in found.iter().enumerate() {
        if column >= problem.columns() {
            assert!(found.iter().all(|value| value.is_nan()), "column {column} is nobody's");
            continue;
        }
        let (row, stream) = (column / step.streams, column % step.streams);
        for (head, found) in found.chunks(spec.head_size).take(spec.query_heads).enumerate() {
            let (expected, error) = attended(&problem, row, stream, head);
            for (element, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let bound = error
                    + unit_roundoff(float_type) * (expected.abs() + error)
                    + subnormal_roundoff(float_type);
                assert!(
                    (f64::from(*found) - expected).abs() <= bound,
                    "{float_type} {step:?}, row {row}, stream {stream}, head {head}, element {element}: \
                     {found}, not {expected}"
                );
            }
        }
        assert!(
            found[spec.query_width()..].iter().all(|value| value.is_nan()),
            "nothing beyond the heads is written"
        );
    }
}

#[test]
fn attention_of_any_size_is_that_of_float64_and_does_not_look_at_stale_slots() {
    for (query_heads, key_value_heads, head_size, positions) in
        [(1, 1, 8, 3), (3, 1, 24, 5), (4, 4, 40, 16), (6, 2, 64, 17), (16, 1, 16, 33), (2, 1, 128, 64)]
    {
        let spec = ModelSpec {
            query_heads,
            key_value_heads,
            head_size,
            residual_codebooks: positions - 1,
            ..true_spec()
        };
        for float_type in FLOAT_TYPES {
            for step in steps(&spec, 3) {
                check(&spec, float_type, step);
            }
        }
    }
}

#[test]
fn attention_of_true_size_is_that_of_float64() {
    for float_type in FLOAT_TYPES {
        for step in steps(&true_spec(), 2) {
            check(&true_spec(), float_type, step);
        }
    }
}
