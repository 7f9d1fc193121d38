//! The boundary to the CUDA driver. Every `unsafe` call of it is here.
//!
//! [`Driver::get`] comes first: whoever holds a [`Driver`] may call the driver. A [`Context`] is the device's primary
//! context, which torch, CuPy and JAX use too; [`Context::enter`] makes it current for a while, and the calls that need
//! that take the [`Entered`] that it returns. Destructors enter by themselves, so owners may be dropped on any thread.

mod capture_mode;
mod context;
mod device;
mod error;
mod event;
mod graph;
mod graph_loop;
mod guard;
mod launch;
mod memory;
mod module;
pub mod nvtx;
mod pointer;
mod stream;

pub use context::{Context, Entered, MemoryInformation};
pub use device::{ComputeCapability, Device, DeviceProperties};
pub use error::DriverError;
pub use event::Event;
pub use graph::{Capture, ExecutableGraph, Graph};
pub use graph_loop::GraphLoop;
pub use guard::{Driver, DriverVersion, OLDEST_COMPUTE_CAPABILITY, OLDEST_DRIVER, Unavailable};
pub use launch::{LaunchShape, launch};
pub use memory::{DeviceMemory, PinnedMemory, copy_device_to_host, copy_host_to_device, copy_within_device};
pub use module::{Function, Module};
pub use pointer::ordinal_of_address;
pub use stream::{BorrowedStream, OwnedStream};
