//! Drives a toy engine through bursts of speculative rounds: eight rounds are queued blind, then one read brings back
//! what they committed.
//!
//! ```text
//! cargo run -p overtone-cuda --example round_stream
//! ```

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

mod toy_engine;

use std::error::Error;

use overtone_cuda::driver::{Context, Driver, OwnedStream};
use overtone_cuda::graphs::StreamMachine;
use overtone_cuda::kernels::Registry;
use overtone_cuda::kv_lengths::KvLengths;
use overtone_cuda::round_stream::{StreamBufs, StreamShape};
use toy_engine::{CODE_COUNT, ToyEngine, next};

/// Rows of the batch, drafts of a round, rounds of a burst, layers of the engine.
const BATCH: usize = 3;
const DRAFTS: usize = 4;
const ROUNDS: usize = 8;
const LAYERS: usize = 2;

fn main() -> Result<(), Box<dyn Error>> {
    let driver = match Driver::get() {
        Ok(driver) => driver,
        Err(error) => {
            println!("nothing was run, there is no device to run on: {error}");
            return Ok(());
        }
    };
    let context = Context::retain(driver, driver.device(0)?)?;
    println!("on {}: {BATCH} rows, {DRAFTS} drafts a round, {ROUNDS} rounds a burst", context.device());
    let entered = context.enter()?;
    let stream = OwnedStream::create(&entered)?;
    let registry = Registry::load(&entered)?;

    let shape = StreamShape::new(BATCH, DRAFTS, ROUNDS, CODE_COUNT)?;
    let mut bufs = StreamBufs::allocate(&entered, &stream, shape)?;
    let lengths = KvLengths::allocate(&entered, &stream, BATCH, LAYERS)?;
    let table = lengths.kv_len_ptr_table(&entered, &stream, Some(bufs.position()))?;
    let engine = ToyEngine::new(&entered, &bufs, &table)?;

    // Two rows that say as much as they are asked to, and one that ends after twelve codes.
    let starts = [(1, None), (500, Some(12)), (900, None)];
    let mut last: Vec<u32> = starts.iter().map(|(code, _)| next(*code)).collect();
    for (row, (code, codes_left)) in starts.into_iter().enumerate() {
        engine.start_row(&entered, &stream, &mut bufs, row, code, codes_left)?;
    }
    for burst in 1..=2 {
        let mut machine = StreamMachine { entered: &entered, stream: &stream, registry: &registry };
        // SAFETY: everything lives until the read below has waited for the burst.
        unsafe { engine.burst(&mut machine) }?;
        // The only word with the device.
        for (row, drained) in bufs.drain_ring(&entered, &stream)?.into_iter().enumerate() {
            let counters = drained.counters;
            println!(
                "burst {burst}, row {row}: {} codes in {} rounds, {} of {} drafts accepted: {:?}",
                counters.codes, counters.rounds, counters.accepted, counters.drafted, drained.codes
            );
            for code in drained.codes {
                last[row] = next(last[row]);
                if code != last[row] {
                    return Err(
                        format!("row {row}: code {code}, where the plain loop draws {}", last[row]).into()
                    );
                }
            }
        }
    }
    println!("these are the codes of the plain loop, one step after another");
    Ok(())
}
