//! Frames on a real device, without Python. Where there is none, there is nothing to test.

#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use overtone_core::checkpoint::Checkpoint;
use overtone_core::rounds::Speculation;
use overtone_core::tensor::FloatType;
use overtone_cuda::driver::{BorrowedStream, Context, DeviceMemory, Driver, Entered, Event};
use overtone_cuda::executor::{CudaExecutor, CudaOptions, Taken};
use overtone_cuda::frame::FrameBlock;

use crate::fixtures::rows::{Extents, Outputs, Predicted, Row, UNWRITTEN};

/// The first device's context, for the one test that runs: what is measured concerns the whole device.
pub fn context() -> Option<(MutexGuard<'static, ()>, Arc<Context>)> {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    match Driver::get() {
        Ok(driver) => Some((alone, Context::retain(driver, driver.device(0).unwrap()).unwrap())),
        Err(error) => {
            eprintln!("not run: {error}");
            None
        }
    }
}

pub fn load(checkpoint: &Checkpoint<'_>, float_type: FloatType, max_batch: usize) -> CudaExecutor {
    load_with(checkpoint, float_type, max_batch, None)
}

pub fn load_with(
    checkpoint: &Checkpoint<'_>,
    float_type: FloatType,
    max_batch: usize,
    speculation: Option<Speculation>,
) -> CudaExecutor {
    // Rounds whatever they count, in every batch.
    let off_below = Some(0.0);
    let options = CudaOptions { device: 0, float_type, max_batch, speculation, off_below };
    CudaExecutor::load(checkpoint, None, options, &mut |_, _| ControlFlow::Continue(())).unwrap()
}

/// Type of the codec tables.
pub fn table_type(executor: &CudaExecutor) -> FloatType {
    executor.codec_table(0).unwrap().0.float_type
}

/// The legacy default stream.
pub fn default_stream(context: &Arc<Context>) -> BorrowedStream {
    // SAFETY: 0 is the legacy default stream, which every context has.
    unsafe { BorrowedStream::from_handle(context, 0) }
}

/// A frame's tensors on the device; what a frame does not write stays as [`UNWRITTEN`] says.
pub struct Frame {
    pub block: FrameBlock,
    extents: Extents,
    outputs: Outputs<DeviceMemory>,
    _hidden: DeviceMemory,
    done: Arc<Event>,
    context: Arc<Context>,
}

impl Frame {
    pub fn new(executor: &CudaExecutor, rows: &[Row]) -> Self {
        let context = Arc::clone(executor.context());
        let entered = context.enter().unwrap();
        let extents = Extents::new(executor.spec(), table_type(executor), rows.len());
        let values: Vec<f32> = rows.iter().flat_map(|row| row.hidden.iter().copied()).collect();
        let hidden = copied(&entered, bytemuck::cast_slice(&values));
        let unwritten = |bytes: &usize, byte: &u8| copied(&entered, &vec![*byte; *bytes]);
        let outputs = extents.bytes().zip(&UNWRITTEN, unwritten);
        let table = executor.code_zero_table().unwrap();
        let addresses = outputs.each(DeviceMemory::address);
        let block = extents.block(rows, hidden.address(), addresses, [table.raw, table.projected]);
        let done = Arc::new(Event::create(&entered).unwrap());
        drop(entered);
        Self { block, extents, outputs, _hidden: hidden, done, context }
    }

    pub fn launch(&self, executor: &mut CudaExecutor, stream: &BorrowedStream) -> Taken {
        // SAFETY: the frame's memory is this value's; tests wait for the frame, or for the graph that it was recorded into,
        // before they drop it.
        unsafe { executor.launch(&self.block, stream, &self.done) }.unwrap()
    }

    /// Waits for the last launch and reads what it left.
    pub fn read(&self) -> Vec<Predicted> {
        let entered = self.context.enter().unwrap();
        entered.synchronize().unwrap();
        let read = |memory: &DeviceMemory, bytes: &usize| {
            let mut copy = vec![0; *bytes];
            memory.read(&entered, 0, &mut copy).unwrap();
            copy
        };
        self.extents.predicted(&self.outputs.zip(&self.extents.bytes(), read))
    }
}

/// Bytes on the device.
fn copied(entered: &Entered<'_>, bytes: &[u8]) -> DeviceMemory {
    let mut memory = DeviceMemory::allocate(entered, bytes.len()).unwrap();
    memory.write(entered, 0, bytes).unwrap();
    memory
}

/// Runs one frame of rows on the default stream.
pub fn predict(executor: &mut CudaExecutor, rows: &[Row]) -> Vec<Predicted> {
    let (frame, stream) = (Frame::new(executor, rows), default_stream(executor.context()));
    assert_eq!(frame.launch(executor, &stream), Taken::Launched);
    frame.read()
}
