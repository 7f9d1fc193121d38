//! Weight matrices, packed for one forward read.
//!
//! A matrix [outputs, inputs] becomes panels of sixteen output rows; inside a panel the sixteen weights of input
//! feature 0 come first, then those of feature 1, and so on, stored two features at a time. Rows beyond the last
//! output, and a feature beyond the last, are zero.

use super::lanes::{HALF, LANES, Lane8, Lane16, Lanes};
use super::pages::Pages;
use super::team::Team;
use crate::tensor::TensorView;
use bytemuck::{Pod, Zeroable};
use half::bf16;

/// Element type of the packed weights. Activations are float32 for all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WeightType {
    /// IEEE binary32.
    Float32,
    /// bfloat16; from wider storage rounded to nearest, ties to even.
    BFloat16,
    /// Symmetric int8 with one float32 scale per output row, max |w| / 127: for q, k, v, o, gate and up. Down
    /// projections, heads and the talker's projection stay bfloat16.
    Int8,
}

impl WeightType {
    /// The name users give: `float32`, `bfloat16` or `int8`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Float32 => "float32",
            Self::BFloat16 => "bfloat16",
            Self::Int8 => "int8",
        }
    }

    /// Bytes of one weight.
    pub const fn size(self) -> usize {
        match self {
            Self::Float32 => 4,
            Self::BFloat16 => 2,
            Self::Int8 => 1,
        }
    }

    /// The type of the matrices that int8 leaves alone.
    pub const fn unquantised(self) -> Self {
        match self {
            Self::Float32 => Self::Float32,
            Self::BFloat16 | Self::Int8 => Self::BFloat16,
        }
    }
}

/// The weights of two input features for the sixteen output rows of a panel.
pub(super) trait FeaturePair: Pod + Send + Sync {
    /// Stores the weight of feature 0 or 1 for the output row at `lane`.
    fn set(&mut self, feature: usize, lane: usize, weight: f32);
}

/// A pair whose weights are floats.
pub(super) trait FloatPair: FeaturePair {
    /// Widens one feature's weights of half a panel, exactly.
    fn widen<L: Lanes>(&self, feature: usize, half: usize) -> L;
}

/// Two features in float32, half a panel at a time.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C, align(32))]
pub(super) struct Float32Pair([[Lane8; 2]; 2]);

impl FeaturePair for Float32Pair {
    fn set(&mut self, feature: usize, lane: usize, weight: f32) {
        self.0[feature][lane / HALF][lane % HALF] = weight;
    }
}

impl FloatPair for Float32Pair {
    #[inline(always)]
    fn widen<L: Lanes>(&self, feature: usize, half: usize) -> L {
        L::load(&self.0[feature][half])
    }
}

/// Two features in bfloat16: word i holds row i in its lower and row i + 8 in its upper half, so that widening is a
/// shift or a mask.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C, align(32))]
pub(super) struct BFloat16Pair([Lane8<u32>; 2]);

impl FeaturePair for BFloat16Pair {
    fn set(&mut self, feature: usize, lane: usize, weight: f32) {
        let word = &mut self.0[feature][lane % HALF];
        let shift = lane / HALF * 16;
        *word = *word & !(0xffff << shift) | u32::from(bf16::from_f32(weight).to_bits()) << shift;
    }
}

impl FloatPair for BFloat16Pair {
    #[inline(always)]
    fn widen<L: Lanes>(&self, feature: usize, half: usize) -> L {
        let words = &self.0[feature];
        if half == 0 { L::widen_lower(words) } else { L::widen_upper(words) }
    }
}

/// Two features in int8, the two of a row side by side, half a panel at a time.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C, align(32))]
pub(super) struct Int8Pair(pub(super) [Lane8<[i8; 2]>; 2]);

impl FeaturePair for Int8Pair {
    /// `weight` is already divided by its row's scale.
    fn set(&mut self, feature: usize, lane: usize, weight: f32) {
        self.0[lane / HALF][lane % HALF][feature] = weight.round_ties_even() as i8;
    }
}

/// The packed weights, by element type: [panels · ⌈inputs / 2⌉] feature pairs.
#[derive(Debug)]
pub(super) enum Pairs {
    Float32(Pages<Float32Pair>),
    BFloat16(Pages<BFloat16Pair>),
    Int8 { pairs: Pages<Int8Pair>, scales: Vec<Lane16> },
}

/// A packed matrix [outputs, inputs].
#[derive(Debug)]
pub struct PanelMatrix {
    inputs: usize,
    pub(super) pairs: Pairs,
}

impl PanelMatrix {
    /// A matrix of zeros with room for `outputs` rows.
    ///
    /// # Errors
    /// The operating system has no such memory.
    pub fn new(weight_type: WeightType, outputs: usize, inputs: usize) -> std::io::Result<Self> {
        let panels = outputs.div_ceil(LANES);
        let count = panels * inputs.div_ceil(2);
        let pairs = match weight_type {
            WeightType::Float32 => Pairs::Float32(Pages::zeroed(count)?),
            WeightType::BFloat16 => Pairs::BFloat16(Pages::zeroed(count)?),
            WeightType::Int8 => {
                Pairs::Int8 { pairs: Pages::zeroed(count)?, scales: vec![[0.0; LANES]; panels] }
            }
        };
        Ok(Self { inputs, pairs })
    }

    /// Packs rows of `tensor` [rows, inputs]: `source_row` tells which of its rows, if any, becomes an output row.
    pub fn pack(
        &mut self,
        team: &mut Team,
        tensor: TensorView<'_>,
        source_row: impl Fn(usize) -> Option<usize> + Sync,
    ) {
        let inputs = self.inputs;
        let panel_pairs = inputs.div_ceil(2);
        match &mut self.pairs {
            Pairs::Float32(pairs) => {
                team.for_each(pairs.chunks_mut(panel_pairs).enumerate(), |(panel, pairs)| {
                    pack_panel(panel, pairs, inputs, tensor, &source_row, |_, _| {});
                })
            }
            Pairs::BFloat16(pairs) => {
                team.for_each(pairs.chunks_mut(panel_pairs).enumerate(), |(panel, pairs)| {
                    pack_panel(panel, pairs, inputs, tensor, &source_row, |_, _| {});
                })
            }
            Pairs::Int8 { pairs, scales } => {
                let panels = pairs.chunks_mut(panel_pairs).zip(scales).enumerate();
                team.for_each(panels, |(panel, (pairs, scales))| {
                    pack_panel(panel, pairs, inputs, tensor, &source_row, |lane, row| {
                        scales[lane] = divide_by_scale(row);
                    });
                });
            }
        }
    }

    /// Input features.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Bytes of the packed weights and their scales.
    pub fn bytes(&self) -> usize {
        let scales = match &self.pairs {
            Pairs::Int8 { scales, .. } => size_of_val(scales.as_slice()),
            Pairs::Float32(_) | Pairs::BFloat16(_) => 0,
        };
        size_of_val(self.words()) + scales
    }

    /// The packed weights as words, panel after panel.
    pub(super) fn words(&self) -> &[u32] {
        match &self.pairs {
            Pairs::Float32(pairs) => bytemuck::cast_slice(pairs),
            Pairs::BFloat16(pairs) => bytemuck::cast_slice(pairs),
            Pairs::Int8 { pairs, .. } => bytemuck::cast_slice(pairs),
        }
    }
}

/// Packs every row of a panel that `source_row` finds; `prepare` sees each widened row before, with its lane.
fn pack_panel<P: FeaturePair>(
    panel: usize,
    pairs: &mut [P],
    inputs: usize,
    tensor: TensorView<'_>,
    source_row: impl Fn(usize) -> Option<usize>,
    mut prepare: impl FnMut(usize, &mut [f32]),
) {
    let mut row = vec![0.0; inputs];
    for lane in 0..LANES {
        let Some(source) = source_row(panel * LANES + lane) else { continue };
        for (input, weight) in row.iter_mut().enumerate() {
            *weight = tensor.get(source * inputs + input);
        }
        prepare(lane, &mut row);
        for (input, &weight) in row.iter().enumerate() {
            pairs[input / 2].set(input % 2, lane, weight);
        }
    }
}

/// Divides a row by its scale, max |w| / 127, so that rounding gives its int8 weights; returns the scale.
fn divide_by_scale(row: &mut [f32]) -> f32 {
    let scale = row.iter().fold(0.0_f32, |largest, weight| largest.max(weight.abs())) / 127.0;
    if scale > 0.0 {
        for weight in row {
            *weight /= scale;
        }
    } else {
        row.fill(0.0);
    }
    scale
}
