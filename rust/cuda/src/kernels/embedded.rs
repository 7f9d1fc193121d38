//! What the build script compiled: the modules, and what ptxas says their kernels take.

/// Whether this build holds kernels (feature `kernels`).
pub const EMBEDDED: bool = cfg!(feature = "kernels");

/// One compiled file of `kernels/`.
pub(super) struct Image {
    /// Name of the source, such as `sample.cu`.
    pub(super) source: &'static str,
    /// Names of its kernels.
    pub(super) kernels: &'static [&'static str],
    /// A fat binary: machine code for several architectures, and PTX.
    pub(super) bytes: &'static [u8],
}

/// The driver reads an image's headers in words.
#[cfg(feature = "kernels")]
#[repr(C, align(16))]
struct Aligned<const BYTES: usize>([u8; BYTES]);

/// What one kernel takes on one architecture, as its compiler says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelResources {
    /// Its name in the source.
    pub kernel: &'static str,
    /// What it was compiled for, such as `sm_90a`.
    pub architecture: &'static str,
    /// Registers of a thread, of 32 bits.
    pub registers: u32,
    /// Bytes of a thread's stack.
    pub stack_bytes: u32,
    /// Bytes written to memory for want of registers.
    pub spill_store_bytes: u32,
    /// Bytes read back.
    pub spill_load_bytes: u32,
    /// Bytes of shared memory of a block, beside the dynamic.
    pub shared_bytes: u32,
    /// Bytes of constant memory, arguments included, where the compiler says them.
    pub constant_bytes: u32,
}

#[cfg(feature = "kernels")]
mod generated {
    use super::{Aligned, Image, KernelResources};

    include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
}

#[cfg(not(feature = "kernels"))]
mod generated {
    use super::{Image, KernelResources};

    pub(super) static IMAGES: &[Image] = &[];
    pub(super) static RESOURCES: &[KernelResources] = &[];
}

pub(super) fn images() -> &'static [Image] {
    generated::IMAGES
}

/// What each kernel takes on each architecture of this build. Kernels that are only there as PTX are not in it: their
/// machine code is made on the device.
pub fn resources() -> &'static [KernelResources] {
    generated::RESOURCES
}
