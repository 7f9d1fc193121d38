//! What goes into a frame and what comes out of it: borrowed, checked once, the same for every executor.

use crate::sampling::SamplingParams;
use crate::tensor::FloatType;

/// Status of a row whose every draw succeeded.
pub const STATUS_GOOD: i32 = 0;
/// Status of a row whose `code_0` lies outside the talker's table.
pub const STATUS_CODE_ZERO_OUT_OF_RANGE: i32 = -1;

/// An embedding table [rows, width], borrowed from the weights or from a talker.
#[derive(Clone, Copy, Debug)]
pub struct Table<'a> {
    /// Element type of the table.
    pub float_type: FloatType,
    /// Entries.
    pub rows: usize,
    /// Elements of one entry, Ht.
    pub width: usize,
    /// `rows · width` elements, little-endian.
    pub bytes: &'a [u8],
}

impl<'a> Table<'a> {
    /// The stored bytes of one entry.
    ///
    /// # Panics
    /// When `row` is not below `rows`.
    #[inline]
    pub fn row(&self, row: usize) -> &'a [u8] {
        let bytes = self.width * self.float_type.size();
        &self.bytes[row * bytes..(row + 1) * bytes]
    }
}

/// How one stream of a batch draws its codes in this frame.
#[derive(Clone, Copy, Debug)]
pub struct RowSampling {
    /// Temperature, filters and seed.
    pub params: SamplingParams,
    /// Index of the frame: half of the noise's counter.
    pub frame_index: u64,
}

/// Inputs of one frame for the rows that take part in it.
#[derive(Clone, Copy, Debug)]
pub struct FrameInputs<'a> {
    /// The talker's last hidden state after its final norm, [rows, Ht].
    pub talker_last_hidden: &'a [f32],
    /// The talker's `code_0`, `[rows]`; one outside the talker's table fails its row alone.
    pub code_zero: &'a [i64],
    /// How each row draws, `[rows]`.
    pub sampling: &'a [RowSampling],
    /// The talker's codec table E0 [V0, Ht].
    pub code_zero_table: Table<'a>,
}

/// Outputs of one frame, for the same rows in the same order. `codec_hiddens` follows from the codes: row k of a
/// stream (1 ≤ k < R) is the stored row `codes[k]` of table k − 1.
#[derive(Debug)]
pub struct FrameOutputs<'a> {
    /// `code_0 … code_R`, [rows, C].
    pub codes: &'a mut [i32],
    /// `E0[c0]` + Σ `E[k−1][code_k]` in float32, summed in that order, [rows, Ht].
    pub codec_sum: &'a mut [f32],
    /// 0 good; j > 0 the first codebook whose draw failed; −1 `code_0` out of range, `[rows]`.
    pub status: &'a mut [i32],
    /// Logits of every residual codebook, [rows, R, V], when asked for.
    pub logits: Option<&'a mut [f32]>,
    /// The final-norm hidden row that each residual codebook's head reads, [rows, R, H], when asked for.
    pub hidden_rows: Option<&'a mut [f32]>,
}
