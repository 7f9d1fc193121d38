//! Running a kernel on the calling thread.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};

use crate::ffi::{self, outcome};
use crate::{KernelFunction, LaunchError};

/// The most shared memory that a block may ask for, in bytes: 227 KiB, as on compute capability 9.0.
pub const MAX_SHARED_BYTES: usize = 227 * 1024;

/// The most threads of a launch.
pub const MAX_THREADS: u64 = 1 << 21;

/// In which order threads run between their barriers. A kernel without races gives the same bytes under all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Schedule {
    /// Block after block, warp after warp, lane after lane, each as far as it gets.
    Natural,
    /// Drawn anew each time a thread is resumed; threads also give way at atomics and fences. Equal seeds, equal orders.
    Seeded(u64),
}

/// Runs `kernel` over `grid` blocks of `block` threads to its end.
///
/// `arguments` are the bytes of the kernel's argument structure; device addresses in it are host addresses. Runs on the
/// calling thread; several threads may launch at once.
///
/// # Errors
/// [`LaunchError`]; the process goes on whatever the kernel does to its barriers, shared memory or stack.
///
/// # Safety
/// What the kernel reads and writes through the addresses in `arguments` must be valid for that, and no other thread may
/// use it meanwhile. An access to unmapped memory is caught, one to mapped memory of somebody else is not.
pub unsafe fn launch(
    kernel: KernelFunction,
    grid: [u32; 3],
    block: u32,
    shared_bytes: usize,
    arguments: &[u8],
    schedule: Schedule,
) -> Result<(), LaunchError> {
    check(kernel, grid, block, shared_bytes, arguments)?;
    let arguments = AlignedCopy::new(arguments, kernel.0.arguments_alignment);
    let (seeded, seed) = match schedule {
        Schedule::Natural => (0, 0),
        Schedule::Seeded(seed) => (1, seed),
    };
    let request = ffi::Request {
        kernel: kernel.0,
        arguments: arguments.address.cast(),
        shared_bytes: shared_bytes as u64,
        seed,
        grid,
        block,
        seeded,
    };
    let mut report = ffi::Report { outcome: outcome::DONE, text: [0; 8192] };
    // SAFETY: the request's pointers live through the call; what the kernel does with its arguments is the caller's word.
    unsafe { ffi::simt_launch(&raw const request, &raw mut report) };
    result(kernel.name(), &report)
}

fn check(
    kernel: KernelFunction,
    grid: [u32; 3],
    block: u32,
    shared_bytes: usize,
    arguments: &[u8],
) -> Result<(), LaunchError> {
    let name = kernel.name();
    if !(is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")) {
        return Err(LaunchError::Processor);
    }
    if arguments.len() != kernel.arguments_bytes() {
        let (expected, found) = (kernel.arguments_bytes(), arguments.len());
        return Err(LaunchError::Arguments { kernel: name, expected, found });
    }
    let maximum = kernel.maximum_threads().min(1024);
    if block == 0 || block > maximum {
        return Err(LaunchError::Block { kernel: name, maximum, found: block });
    }
    let threads =
        grid.iter().try_fold(u64::from(block), |product, &size| product.checked_mul(u64::from(size)));
    if !threads.is_some_and(|threads| (1..=MAX_THREADS).contains(&threads)) {
        return Err(LaunchError::Grid { kernel: name, grid, block, maximum: MAX_THREADS });
    }
    if shared_bytes > MAX_SHARED_BYTES {
        return Err(LaunchError::SharedBytes {
            kernel: name,
            maximum: MAX_SHARED_BYTES,
            found: shared_bytes,
        });
    }
    Ok(())
}

fn result(kernel: &'static str, report: &ffi::Report) -> Result<(), LaunchError> {
    let end = report.text.iter().position(|&byte| byte == 0).unwrap_or(report.text.len());
    let text = String::from_utf8_lossy(&report.text[..end]).trim_end().to_owned();
    Err(match report.outcome {
        outcome::DONE => return Ok(()),
        outcome::DEADLOCK => LaunchError::Deadlock { kernel, waiting: text },
        outcome::SHARED_OVERRUN => LaunchError::SharedMemory { kernel, what: text },
        outcome::MEMORY_FAULT => LaunchError::Fault { kernel, what: text },
        outcome::STACK_OVERFLOW => LaunchError::Stack { kernel, what: text },
        outcome::TRAP => LaunchError::Trap { kernel, what: text },
        outcome::NO_MEMORY => LaunchError::HostMemory { kernel, what: text },
        _ => LaunchError::Misuse { kernel, what: text },
    })
}

/// The arguments at the alignment of the kernel's structure.
struct AlignedCopy {
    address: *mut u8,
    layout: Layout,
}

impl AlignedCopy {
    fn new(bytes: &[u8], alignment: usize) -> Self {
        // A C++ alignment is a power of two, and no argument structure nears isize::MAX.
        let layout = Layout::from_size_align(bytes.len().max(1), alignment).unwrap_or(Layout::new::<u128>());
        // SAFETY: the layout is not empty; the copy stays within both.
        let address = unsafe { alloc(layout) };
        if address.is_null() {
            handle_alloc_error(layout);
        }
        // SAFETY: `address` has room for `bytes.len()` bytes and is new.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address, bytes.len()) };
        Self { address, layout }
    }
}

impl Drop for AlignedCopy {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.address, self.layout) };
    }
}
