//! Frames on a real device, without Python. Where there is none, tests return at once.

#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::ops::ControlFlow;
use std::sync::Arc;

use overtone_core::checkpoint::Checkpoint;
use overtone_core::sampling::SamplingParams;
use overtone_core::tensor::FloatType;
use overtone_cuda::arguments::ElementType;
use overtone_cuda::driver::{BorrowedStream, Context, DeviceMemory, Driver, Event};
use overtone_cuda::executor::{CudaExecutor, CudaOptions};
use overtone_cuda::frame::{FrameBlock, FrameHeader, RowParameters, TensorReference};

/// The first device's context, if there is a device.
pub fn context() -> Option<Arc<Context>> {
    let driver = Driver::get().ok()?;
    Some(Context::retain(driver, driver.device(0).ok()?).unwrap())
}

pub fn load(checkpoint: &Checkpoint<'_>, float_type: FloatType, max_batch: usize) -> CudaExecutor {
    let options = CudaOptions { device: 0, float_type, max_batch };
    CudaExecutor::load(checkpoint, options, &mut |_, _| ControlFlow::Continue(())).unwrap()
}

/// Device memory of a frame of `batch` rows.
pub struct Frame {
    pub block: FrameBlock,
    pub codes: DeviceMemory,
    pub codec_sum: DeviceMemory,
    pub status: DeviceMemory,
    pub logits: DeviceMemory,
    pub done: Arc<Event>,
    pub stream: BorrowedStream,
    kept: Vec<DeviceMemory>,
    context: Arc<Context>,
}

/// What one row asks for.
#[derive(Clone, Debug)]
pub struct Row {
    pub hidden: Vec<f32>,
    pub code_zero: i64,
    pub params: SamplingParams,
    pub frame_index: u64,
}

/// What one row gets.
#[derive(Clone, Debug, PartialEq)]
pub struct Predicted {
    pub codes: Vec<i32>,
    pub codec_sum: Vec<f32>,
    pub status: i32,
    pub logits: Vec<f32>,
}

impl Frame {
    pub fn new(executor: &CudaExecutor, rows: &[Row], logits: bool) -> Self {
        let (spec, batch) = (executor.spec(), rows.len());
        let (per_frame, width) = (spec.codes_per_frame(), spec.talker_hidden_size);
        let per_row = spec.residual_codebooks * spec.codebook_size;
        let context = Arc::clone(executor.context());
        let entered = context.enter().unwrap();
        let allocate = |bytes: usize| DeviceMemory::allocate(&entered, bytes).unwrap();
        let values: Vec<f32> = rows.iter().flat_map(|row| row.hidden.iter().copied()).collect();
        let mut hidden = allocate(values.len() * 4);
        hidden.write(&entered, 0, bytemuck::cast_slice(&values)).unwrap();
        let codes = allocate(batch * per_frame * 4);
        let codec_sum = allocate(batch * width * 4);
        let status = allocate(batch * 4);
        let kept_logits = allocate(if logits { batch * per_row * 4 } else { 4 });
        let hiddens = allocate(batch * per_frame * width * 4);
        let table = executor.codec_table(0).unwrap().0;
        let tensor = |memory: &DeviceMemory, element: ElementType, strides: &[usize]| {
            let strides: Vec<i64> = strides.iter().map(|&stride| stride as i64).collect();
            TensorReference::new(memory.address(), element, &strides, batch)
        };
        let float = ElementType::Float32;
        let code_zero = executor.code_zero_table().unwrap();
        let header = FrameHeader {
            batch: batch as u32,
            talker_last_hidden: tensor(&hidden, float, &[width, 1]),
            codes: tensor(&codes, ElementType::Int32, &[0, per_frame, 1]),
            codec_sum: tensor(&codec_sum, float, &[width, 1]),
            codec_hiddens: tensor(&hiddens, table.float_type.into(), &[per_frame * width, width, 1]),
            status: tensor(&status, ElementType::Int32, &[1]),
            logits: if logits {
                tensor(&kept_logits, float, &[per_row, spec.codebook_size, 1])
            } else {
                TensorReference::default()
            },
            code_zero_table: code_zero.raw,
            code_zero_projected: code_zero.projected,
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
        let done = Arc::new(Event::create(&entered).unwrap());
        // SAFETY: 0 is the legacy default stream.
        let stream = unsafe { BorrowedStream::from_handle(&context, 0) };
        drop(entered);
        Self {
            block,
            codes,
            codec_sum,
            status,
            logits: kept_logits,
            done,
            stream,
            kept: vec![hidden, hiddens],
            context,
        }
    }

    pub fn launch(&self, executor: &mut CudaExecutor) {
        // SAFETY: the frame's memory is this value's, which outlives the wait in `read`.
        unsafe { executor.launch(&self.block, &self.stream, &self.done) }.unwrap();
    }

    pub fn read(&self, executor: &CudaExecutor) -> Vec<Predicted> {
        let (spec, batch) = (executor.spec(), self.block.rows.len());
        let entered = self.context.enter().unwrap();
        fn values<T: bytemuck::Pod>(entered: &overtone_cuda::driver::Entered<'_>, memory: &DeviceMemory) -> Vec<T> {
            let mut bytes = vec![0; memory.bytes()];
            memory.read(entered, 0, &mut bytes).unwrap();
            bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
        }
        let codes = values::<i32>(&entered, &self.codes);
        let sums = values::<f32>(&entered, &self.codec_sum);
        let status = values::<i32>(&entered, &self.status);
        let logits = values::<f32>(&entered, &self.logits);
        let part = |all: usize| all / batch;
        let _ = spec;
        (0..batch)
            .map(|row| Predicted {
                codes: codes[row * part(codes.len())..][..part(codes.len())].to_vec(),
                codec_sum: sums[row * part(sums.len())..][..part(sums.len())].to_vec(),
                status: status[row],
                logits: logits[row * part(logits.len())..][..part(logits.len())].to_vec(),
            })
            .collect()
    }
}
