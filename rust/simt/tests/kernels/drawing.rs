//! The sampling kernel, given rows of logits.

use overtone_core::sampling::SamplingParams;
use overtone_core::tensor::FloatType;
use overtone_cuda::arguments::{ElementType, SampleArguments};
use overtone_cuda::frame::{FrameBlock, FrameCounters, FrameHeader};
use overtone_cuda::kernels::Kernel;
use overtone_cuda::plan::Launch;
use overtone_simt::Schedule;

use crate::host::{Host, Memory};
use crate::row_state::{RowState, tensor};

/// Bytes of `SamplingShared` of `kernels/kept_set.cuh`.
const SAMPLING_SHARED_BYTES: usize = 5264;

/// One row's draw.
#[derive(Clone, Debug)]
pub struct Draw {
    pub logits: Vec<f32>,
    pub params: SamplingParams,
    pub frame_index: u64,
}

impl Draw {
    pub fn state(&self) -> RowState {
        RowState {
            temperature: self.params.temperature(),
            top_k: self.params.top_k(),
            top_p: self.params.top_p(),
            seed: self.params.seed(),
            frame_index: self.frame_index,
            active: 1,
            ..RowState::default()
        }
    }
}

/// Everything around a draw: the talker's width is 5, the predictor's 3, and there are as many codebooks as are drawn, and
/// one.
pub struct Drawing {
    pub codebook: usize,
    pub codebooks: usize,
    pub table_type: FloatType,
    pub projected: bool,
    pub entries: usize,
    pub header: FrameHeader,
    pub states: Memory,
    pub logits: Memory,
    pub table: Memory,
    pub behind_projection: Memory,
    pub residual: Memory,
    pub codec_sum: Memory,
    pub counters: Memory,
    pub codes: Memory,
    pub status: Memory,
    pub codec_hiddens: Memory,
    pub codec_sum_out: Memory,
    pub logits_out: Memory,
    pub batch: usize,
}

/// Slots beyond the rows that there are states for.
const SPARE_SLOTS: usize = 2;

pub const WIDTH: usize = 5;
pub const HIDDEN: usize = 3;

/// Entry `index` of row `code` of the table.
pub fn entry(code: usize, index: usize) -> f32 {
    (code % 97) as f32 + 0.5 * index as f32
}

/// The same of the table behind the projection.
pub fn projected_entry(code: usize, index: usize) -> f32 {
    -((code % 61) as f32) - 0.25 * index as f32
}

impl Drawing {
    /// Rows of `entries` logits each, about to have the code of a codebook drawn.
    pub fn new(logits: &[Vec<f32>], states: &[RowState], codebook: usize, codebooks: usize) -> Self {
        let (batch, entries) = (logits.len(), logits[0].len());
        let per_frame = codebooks + 1;
        let codes = Memory::filled((batch * per_frame * 4) as u64, 0x7f);
        let mut states = states.to_vec();
        for (row, state) in states.iter_mut().enumerate() {
            state.codes = codes.address() + (row * per_frame * 4) as u64;
        }
        states.resize(batch + SPARE_SLOTS, RowState::default());
        let table: Vec<f32> = (0..entries * WIDTH).map(|place| entry(place / WIDTH, place % WIDTH)).collect();
        let behind: Vec<f32> =
            (0..entries * HIDDEN).map(|place| projected_entry(place / HIDDEN, place % HIDDEN)).collect();
        let status = Memory::filled((batch * 4) as u64, 0x7f);
        let codec_hiddens = Memory::of_nan(batch * per_frame * WIDTH);
        let codec_sum_out = Memory::of_nan(batch * WIDTH);
        let logits_out = Memory::of_nan(batch * codebooks * entries);
        let (int, float) = (ElementType::Int32, ElementType::Float32);
        let per_row = (codebooks * entries) as i64;
        let header = FrameHeader {
            batch: batch as u32,
            codes: tensor(&codes, int, &[0, per_frame as i64, 1], 1),
            codec_sum: tensor(&codec_sum_out, float, &[WIDTH as i64, 1], batch),
            codec_hiddens: tensor(
                &codec_hiddens,
                float,
                &[(per_frame * WIDTH) as i64, WIDTH as i64, 1],
                batch,
            ),
            status: tensor(&status, int, &[1], batch),
            logits: tensor(&logits_out, float, &[per_row, entries as i64, 1], batch),
            ..FrameHeader::default()
        };
        Self {
            codebook,
            codebooks,
            table_type: FloatType::Float32,
            projected: false,
            entries,
            header,
            states: Memory::of(&states),
            logits: Memory::of(&logits.concat()),
            table: Memory::of(&table),
            behind_projection: Memory::of(&behind),
            residual: Memory::of_nan(batch * HIDDEN.max(WIDTH)),
            codec_sum: Memory::of(&vec![1000.0_f32; batch * WIDTH]),
            counters: Memory::zeroed(size_of::<FrameCounters>() as u64),
            codes,
            status,
            codec_hiddens,
            codec_sum_out,
            logits_out,
            batch,
        }
    }

    /// Draws, with as many blocks as `slots` rows take, of which a few may be spare.
    pub fn go(&self, slots: usize, schedule: Schedule) {
        assert!(slots <= self.batch + SPARE_SLOTS);
        let mut bytes = Vec::new();
        FrameBlock { header: self.header, rows: Vec::new() }.write_to(&mut bytes);
        let frame = Memory::of(&bytes);
        let arguments = SampleArguments {
            frame: frame.address(),
            rows: self.states.address(),
            counters: self.counters.address(),
            logits: self.logits.address(),
            table: self.table.address(),
            projected: if self.projected { self.behind_projection.address() } else { self.table.address() },
            residual: self.residual.address(),
            codec_sum: self.codec_sum.address(),
            table_type: ElementType::from(self.table_type) as u32,
            projected_type: ElementType::Float32 as u32,
            codebook: self.codebook as u32,
            codebooks: self.codebooks as u32,
            codebook_size: self.entries as u32,
            hidden_size: if self.projected { HIDDEN } else { WIDTH } as u32,
            talker_hidden_size: WIDTH as u32,
            reserved: 0,
        };
        let shared = SAMPLING_SHARED_BYTES + size_of::<FrameHeader>() + self.entries * 4;
        let launch = Launch::new(Kernel::Sample, [slots, 1], &arguments).shared(shared);
        Host { schedule }.go(&[launch]);
    }

    /// The rows' states after the draw.
    pub fn states(&self) -> Vec<RowState> {
        self.states.read(self.batch)
    }

    /// The code of every row; 0x7f7f7f7f where none was stored.
    pub fn drawn(&self) -> Vec<i32> {
        let codes = self.codes.read::<i32>(self.batch * (self.codebooks + 1));
        codes.chunks(self.codebooks + 1).map(|row| row[self.codebook]).collect()
    }
}

/// Draws one code for every row, in a codebook that is not the frame's last: the codes, `None` for rows that failed.
pub fn draw(rows: &[Draw], codebook: usize, schedule: Schedule) -> Vec<Option<u32>> {
    let logits: Vec<Vec<f32>> = rows.iter().map(|row| row.logits.clone()).collect();
    let states: Vec<RowState> = rows.iter().map(Draw::state).collect();
    let drawing = Drawing::new(&logits, &states, codebook, codebook + 1);
    drawing.go(rows.len(), schedule);
    let drawn = drawing.drawn();
    drawing
        .states()
        .iter()
        .zip(drawn)
        .map(|(state, code)| match state.status {
            0 => Some(code as u32),
            status => {
                assert_eq!(
                    (status, code),
                    (codebook as i32, 0),
                    "a failing draw takes code 0 and records itself"
                );
                None
            }
        })
        .collect()
}
