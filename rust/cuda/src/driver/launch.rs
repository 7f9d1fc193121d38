//! One launch of one kernel.

use std::ffi::c_void;

use cudarc::driver::sys::{
    self, CUlaunchAttribute, CUlaunchAttributeID, CUlaunchAttributeValue, CUlaunchConfig,
};

use super::context::Entered;
use super::error::{DriverError, check_with};
use super::module::Function;
use super::stream::BorrowedStream;

/// How large a launch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchShape {
    /// Blocks, in three directions.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: u32,
    /// Bytes of dynamic shared memory of a block; above 48 KiB, [`Function::allow_shared_bytes`] comes first.
    pub shared_bytes: u32,
    /// Whether it may start while the launch before it on the stream ends. The kernel waits by itself before it reads what
    /// that one writes. Without effect where the device or the kernel's code has no such thing.
    pub programmatic: bool,
}

/// Gives one launch to the stream. `arguments` are the bytes of the one struct that the kernel takes.
///
/// # Safety
/// The addresses in the arguments are valid, for what the kernel does with them, until it has completed; on a stream under
/// capture, until the last launch of the graph has.
pub unsafe fn launch(
    entered: &Entered<'_>,
    stream: &BorrowedStream,
    function: &Function,
    shape: &LaunchShape,
    arguments: &[u8],
) -> Result<(), DriverError> {
    if arguments.len() != function.argument_bytes() {
        let (expected, found) = (function.argument_bytes(), arguments.len());
        return Err(DriverError::ArgumentSize { kernel: function.name().to_owned(), expected, found });
    }
    debug_assert_eq!(
        function.context().handle(),
        entered.context().handle(),
        "the kernel is of another context"
    );
    let early = shape.programmatic
        && function.waits_by_itself()
        && entered.context().device().has_programmatic_launch();
    let mut attribute = CUlaunchAttribute {
        id: CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
        pad: [0; 4],
        value: CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
    };
    let [grid_x, grid_y, grid_z] = shape.grid;
    let configuration = CUlaunchConfig {
        gridDimX: grid_x,
        gridDimY: grid_y,
        gridDimZ: grid_z,
        blockDimX: shape.block,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: shape.shared_bytes,
        hStream: stream.handle(),
        attrs: &raw mut attribute,
        numAttrs: u32::from(early),
    };
    let mut parameters = [arguments.as_ptr().cast_mut().cast::<c_void>()];
    let (handle, extra) = (function.handle(), std::ptr::null_mut());
    // SAFETY: a context is current; function and stream live; the driver copies `argument_bytes` bytes of the one parameter,
    // which were just counted, and the attribute, before it returns; the caller speaks for the addresses in them.
    let status =
        unsafe { sys::cuLaunchKernelEx(&raw const configuration, handle, parameters.as_mut_ptr(), extra) };
    check_with(status, || format!("launch the kernel {}", function.name()).into())
}
