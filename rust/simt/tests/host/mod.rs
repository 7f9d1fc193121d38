//! A predictor whose device is the host: overtone-cuda's own launches, run kernel by kernel under the SIMT runtime.

#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

pub mod golden;

use std::ops::ControlFlow;

use overtone_core::checkpoint::Checkpoint;
use overtone_core::sampling::SamplingParams;
use overtone_core::spec::ModelSpec;
use overtone_core::tensor::FloatType;
use overtone_cuda::arguments::ElementType;
use overtone_cuda::frame::{FrameBlock, FrameCounters, FrameHeader, RowParameters, TensorReference, block_bytes};
use overtone_cuda::layout::{Address, TableAddresses, WeightAddresses, WorkspaceAddresses};
use overtone_cuda::load::{load, staging_bytes, weight_addresses};
use overtone_cuda::machine::Machine;
use overtone_cuda::plan::{FramePlan, Launch};
use overtone_simt::{GuardedBuffer, LaunchError, Schedule, kernel, launch};

/// Runs launches on the host.
pub struct Host {
    pub schedule: Schedule,
}

impl Machine for Host {
    type Error = LaunchError;

    unsafe fn write(&mut self, target: Address, bytes: &[u8]) -> Result<(), LaunchError> {
        // SAFETY: the caller's condition: the target has room for the bytes.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target as *mut u8, bytes.len()) };
        Ok(())
    }

    unsafe fn run(&mut self, work: &Launch) -> Result<(), LaunchError> {
        let symbol = work.kernel.symbol();
        let function = kernel(symbol).unwrap_or_else(|| panic!("{symbol} is in no kernel file"));
        let (shared, arguments) = (work.shared_bytes as usize, work.arguments.as_bytes());
        // SAFETY: the caller's condition: the addresses in the arguments are valid for what the kernel does.
        unsafe { launch(function, work.grid, work.block, shared, arguments, self.schedule) }
    }
}

/// Memory that a kernel cannot leave unnoticed.
pub struct Memory(GuardedBuffer<u64>);

impl Memory {
    pub fn zeroed(bytes: u64) -> Self {
        Self(GuardedBuffer::zeroed((bytes as usize).div_ceil(8)))
    }

    pub fn filled(bytes: u64, byte: u8) -> Self {
        Self(GuardedBuffer::filled_with_byte((bytes as usize).div_ceil(8), byte))
    }

    pub fn of<T: bytemuck::NoUninit>(values: &[T]) -> Self {
        let mut memory = Self::zeroed(size_of_val(values) as u64);
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(memory.0.as_mut_slice());
        bytes[..size_of_val(values)].copy_from_slice(bytemuck::cast_slice(values));
        memory
    }

    pub fn address(&self) -> Address {
        self.0.as_slice().as_ptr() as Address
    }

    pub fn read<T: bytemuck::Pod>(&self, count: usize) -> Vec<T> {
        let bytes: &[u8] = bytemuck::cast_slice(self.0.as_slice());
        bytes[..count * size_of::<T>()].chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
    }
}

/// A loaded predictor.
pub struct Predictor {
    pub spec: ModelSpec,
    pub float_type: FloatType,
    pub weights: WeightAddresses,
    _memory: Memory,
    pub host: Host,
}

/// What one row asks for.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    pub hidden: &'a [f32],
    pub code_zero: i64,
    pub params: SamplingParams,
    pub frame_index: u64,
}

/// Everything one frame gives a row.
#[derive(Clone, Debug, PartialEq)]
pub struct Predicted {
    pub codes: Vec<i32>,
    pub codec_sum: Vec<f32>,
    pub status: i32,
    pub logits: Vec<f32>,
    /// As stored, rows 0 and R included.
    pub codec_hiddens: Vec<u8>,
}

impl Predictor {
    pub fn load(checkpoint: &Checkpoint<'_>, float_type: FloatType) -> Self {
        let bytes = weight_addresses(checkpoint, float_type, 0).bytes;
        let memory = Memory::zeroed(bytes);
        let weights = weight_addresses(checkpoint, float_type, memory.address());
        let staging = Memory::filled(staging_bytes(checkpoint, float_type), 0xff);
        let mut host = Host { schedule: Schedule::Natural };
        let mut progress = |_, _| ControlFlow::Continue(());
        // SAFETY: both memories are as large as they have to be.
        unsafe { load(&mut host, checkpoint, float_type, &weights, staging.address(), &mut progress) }.unwrap();
        Self { spec: checkpoint.spec().clone(), float_type, weights, _memory: memory, host }
    }

    fn table_size(&self) -> usize {
        self.weights.tables[0].float_type.size()
    }

    /// Runs one frame with launches made for `slots` rows, in a workspace full of NaN, with logits.
    pub fn predict(&mut self, rows: &[Row<'_>], slots: usize) -> Vec<Predicted> {
        let (spec, batch) = (self.spec.clone(), rows.len());
        let (per_frame, width) = (spec.codes_per_frame(), spec.talker_hidden_size);
        let hidden: Vec<f32> = rows.iter().flat_map(|row| row.hidden.iter().copied()).collect();
        let hidden = Memory::of(&hidden);
        let codes = Memory::filled((batch * per_frame * 4) as u64, 0x7f);
        let codec_sum = Memory::filled((batch * width * 4) as u64, 0xff);
        let codec_hiddens = Memory::filled((batch * per_frame * width * self.table_size()) as u64, 0xff);
        let status = Memory::filled((batch * 4) as u64, 0x7f);
        let per_row = spec.residual_codebooks * spec.codebook_size;
        let logits = Memory::filled((batch * per_row * 4) as u64, 0xff);
        let tensor = |memory: &Memory, element: ElementType, strides: &[usize]| {
            let strides: Vec<i64> = strides.iter().map(|&stride| stride as i64).collect();
            TensorReference::new(memory.address(), element, &strides, batch)
        };
        let float = ElementType::Float32;
        let table = self.weights.code_zero_table.unwrap();
        let header = FrameHeader {
            batch: batch as u32,
            talker_last_hidden: tensor(&hidden, float, &[width, 1]),
            codes: tensor(&codes, ElementType::Int32, &[0, per_frame, 1]),
            codec_sum: tensor(&codec_sum, float, &[width, 1]),
            codec_hiddens: tensor(
                &codec_hiddens,
                self.weights.tables[0].float_type.into(),
                &[per_frame * width, width, 1],
            ),
            status: tensor(&status, ElementType::Int32, &[1]),
            logits: tensor(&logits, float, &[per_row, spec.codebook_size, 1]),
            code_zero_table: raw_table(&table, &spec),
            code_zero_projected: projected_table(&table, &spec),
            ..FrameHeader::default()
        };
        let parameters = rows.iter().map(|row| RowParameters {
            temperature: row.params.temperature(),
            top_k: row.params.top_k(),
            top_p: row.params.top_p(),
            inactive: 0,
            seed: row.params.seed(),
            frame_index: row.frame_index,
            code_zero: row.code_zero,
        });
        let block = FrameBlock { header, rows: parameters.collect() };
        let mut bytes = Vec::new();
        block.write_to(&mut bytes);
        assert_eq!(bytes.len(), block_bytes(batch));
        let frame = Memory::of(&bytes);
        let counters = Memory::zeroed(size_of::<FrameCounters>() as u64);
        let workspace = Memory::filled(WorkspaceAddresses::new(&spec, self.float_type, slots, 0).bytes, 0xff);
        let plan = FramePlan {
            spec: &spec,
            float_type: self.float_type,
            weights: &self.weights,
            workspace: WorkspaceAddresses::new(&spec, self.float_type, slots, workspace.address()),
            frame: frame.address(),
            counters: counters.address(),
            slots,
        };
        for work in plan.launches() {
            // SAFETY: every address in the launches belongs to one of the memories above, made for it.
            unsafe { self.host.run(&work) }.unwrap_or_else(|error| panic!("{error}"));
        }
        let counted = counters.read::<FrameCounters>(1)[0];
        assert_eq!((counted.frames, counted.rows), (1, batch as u64));
        let (all_codes, all_status) = (codes.read::<i32>(batch * per_frame), status.read::<i32>(batch));
        let (sums, all_logits) = (codec_sum.read::<f32>(batch * width), logits.read::<f32>(batch * per_row));
        let hiddens_bytes = per_frame * width * self.table_size();
        let hiddens = codec_hiddens.read::<u8>(batch * hiddens_bytes);
        (0..batch)
            .map(|row| Predicted {
                codes: all_codes[row * per_frame..(row + 1) * per_frame].to_vec(),
                codec_sum: sums[row * width..(row + 1) * width].to_vec(),
                status: all_status[row],
                logits: all_logits[row * per_row..(row + 1) * per_row].to_vec(),
                codec_hiddens: hiddens[row * hiddens_bytes..(row + 1) * hiddens_bytes].to_vec(),
            })
            .collect()
    }
}

fn raw_table(table: &TableAddresses, spec: &ModelSpec) -> TensorReference {
    let rows = spec.code_zero_size.unwrap();
    TensorReference::new(table.raw, table.float_type.into(), &[spec.talker_hidden_size as i64, 1], rows)
}

fn projected_table(table: &TableAddresses, spec: &ModelSpec) -> TensorReference {
    let rows = spec.code_zero_size.unwrap();
    TensorReference::new(table.projected, table.projected_type.into(), &[spec.hidden_size as i64, 1], rows)
}
