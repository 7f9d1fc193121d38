//! Why a launch failed.

/// What ended a launch, or kept it from beginning. The memory that the kernel wrote before is left as it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LaunchError {
    /// The argument bytes are not the kernel's structure.
    #[error("kernel {kernel} takes {expected} bytes of arguments, found {found}")]
    Arguments {
        /// The kernel's name.
        kernel: &'static str,
        /// Bytes of its argument structure.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// A block without threads, or with more than the kernel was compiled for.
    #[error("kernel {kernel} runs 1 to {maximum} threads a block, found {found}")]
    Block {
        /// The kernel's name.
        kernel: &'static str,
        /// Its launch bound.
        maximum: u32,
        /// Threads asked for.
        found: u32,
    },
    /// A grid without blocks, or with more threads than can be resident here.
    #[error(
        "kernel {kernel}: a grid of {grid:?} blocks of {block} threads has none, or more than {maximum} threads"
    )]
    Grid {
        /// The kernel's name.
        kernel: &'static str,
        /// Blocks asked for.
        grid: [u32; 3],
        /// Threads of a block.
        block: u32,
        /// The most threads of a launch.
        maximum: u64,
    },
    /// More shared memory than any device has.
    #[error("kernel {kernel}: {found} bytes of shared memory, where a block has at most {maximum}")]
    SharedBytes {
        /// The kernel's name.
        kernel: &'static str,
        /// The most a block may have.
        maximum: usize,
        /// Bytes asked for.
        found: usize,
    },
    /// This machine can't run the compiled kernels.
    #[error("the kernels are compiled for a processor with AVX2 and FMA")]
    Processor,
    /// No thread can go on, or all that can only poll memory that nobody changes.
    #[error("kernel {kernel}: deadlock\n{waiting}")]
    Deadlock {
        /// The kernel's name.
        kernel: &'static str,
        /// A line for each warp: which lanes wait, and where.
        waiting: String,
    },
    /// A barrier or collective was used in a way that is undefined on the device.
    #[error("kernel {kernel}: {what}")]
    Misuse {
        /// The kernel's name.
        kernel: &'static str,
        /// Block, thread and the rule it broke.
        what: String,
    },
    /// A thread touched shared memory beyond what the launch asked for.
    #[error("kernel {kernel}: {what}")]
    SharedMemory {
        /// The kernel's name.
        kernel: &'static str,
        /// Block and offset in bytes; for an access to the page behind also the thread.
        what: String,
    },
    /// A thread touched memory that is not mapped, divided by zero, or ran an instruction this machine lacks.
    #[error("kernel {kernel}: {what}")]
    Fault {
        /// The kernel's name.
        kernel: &'static str,
        /// Block, thread and what it did.
        what: String,
    },
    /// A thread used up its stack.
    #[error("kernel {kernel}: {what}")]
    Stack {
        /// The kernel's name.
        kernel: &'static str,
        /// Block, thread and the stack's size.
        what: String,
    },
    /// A thread trapped or failed an assertion.
    #[error("kernel {kernel}: {what}")]
    Trap {
        /// The kernel's name.
        kernel: &'static str,
        /// Block, thread and the assertion.
        what: String,
    },
    /// The host has no memory for the launch.
    #[error("kernel {kernel}: {what}")]
    HostMemory {
        /// The kernel's name.
        kernel: &'static str,
        /// What there was no memory for.
        what: String,
    },
}
