//! The kernels of this build: which there are, what each may take, and where a context has them.
//!
//! To add one: `KERNEL(name, Arguments, threads, blocks)` in `kernels/*.cu`, and a line with the same numbers below. The
//! arguments' mirrors in Rust belong to who fills them.

mod embedded;

pub use embedded::{EMBEDDED, KernelResources, resources};
use overtone_core::tensor::FloatType;

use crate::driver::{DriverError, Entered, Function, Module};

/// Declares [`Kernel`]. A line is `Name = "symbol", threads, blocks;`: the most threads of a block, and how many such blocks
/// a multiprocessor must have room for. Those under `per_type` exist once for each type that frames are computed in, with the
/// suffixes `_f32`, `_f16` and `_bf16`.
macro_rules! kernels {
    (
        once { $($(#[$once_doc:meta])* $once:ident = $once_symbol:literal, $once_threads:literal, $once_blocks:literal;)* }
        per_type { $($(#[$typed_doc:meta])* $typed:ident = $typed_symbol:literal, $typed_threads:literal, $typed_blocks:literal;)* }
    ) => {
        /// A kernel.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Kernel {
            $($(#[$once_doc])* $once,)*
            $($(#[$typed_doc])* $typed(FloatType),)*
        }

        /// Kernels without regard to types, numbered.
        enum Name { $($once,)* $($typed,)* }

        impl Kernel {
            /// All of them; [`Kernel::index`] is the place in this list.
            pub const ALL: &'static [Self] = &[
                $(Self::$once,)*
                $(
                    Self::$typed(FloatType::Float32),
                    Self::$typed(FloatType::Float16),
                    Self::$typed(FloatType::BFloat16),
                )*
            ];
            const ONCE: usize = <[&str]>::len(&[$($once_symbol),*]);

            /// Its name in the source.
            pub const fn symbol(self) -> &'static str {
                match self {
                    $(Self::$once => $once_symbol,)*
                    $(
                        Self::$typed(FloatType::Float32) => concat!($typed_symbol, "_f32"),
                        Self::$typed(FloatType::Float16) => concat!($typed_symbol, "_f16"),
                        Self::$typed(FloatType::BFloat16) => concat!($typed_symbol, "_bf16"),
                    )*
                }
            }

            /// Its place in [`Kernel::ALL`].
            pub const fn index(self) -> usize {
                match self {
                    $(Self::$once => Name::$once as usize,)*
                    $(Self::$typed(float_type) => {
                        Self::ONCE + (Name::$typed as usize - Self::ONCE) * 3 + position(float_type)
                    })*
                }
            }

            /// The most threads that a block of it may have.
            pub const fn max_threads(self) -> u32 {
                match self {
                    $(Self::$once => $once_threads,)*
                    $(Self::$typed(_) => $typed_threads,)*
                }
            }

            /// How many blocks of that many threads a multiprocessor has registers for.
            pub const fn min_blocks(self) -> u32 {
                match self {
                    $(Self::$once => $once_blocks,)*
                    $(Self::$typed(_) => $typed_blocks,)*
                }
            }
        }
    };
}

kernels! {
    once {
        /// Writes bytes that travel as its arguments.
        Upload = "upload", 256, 2;
        /// Draws one code of every row from its logits.
        Sample = "sample", 256, 2;
        /// Draws one code of every row of a round, and what the row would draft behind it.
        DrawRows = "draw_rows", 256, 2;
        /// Commits the draws of a round along which its drafts agree, and makes the rows of the next.
        Settle = "settle", 256, 2;
        /// Converts a tensor to another element type.
        Convert = "convert", 256, 2;
        /// Begins a round: the pending code and the drafts become the rows of a verify pass.
        AssembleVerify = "assemble_verify", 256, 2;
        /// Takes the drafts that equal what was drawn, and one code more.
        Accept = "accept", 256, 2;
        /// Appends a round's codes to the rings.
        RingCommit = "ring_commit", 256, 2;
        /// Sets KV lengths to the positions that stay.
        Rollback = "rollback", 256, 2;
        /// Hands the hidden rows behind the last codes to the next drafts.
        SeedGather = "seed_gather", 256, 2;
        /// Publishes the layout of a step whose rows bring different numbers of tokens.
        RaggedStep = "ragged_step", 256, 2;
    }
    per_type {
        /// Packs a weight matrix into the order that products read it in.
        Pack = "pack", 256, 2;
        /// Gathers rows of an embedding table.
        TableRows = "table_rows", 256, 2;
        /// Reads a frame's tensors, and makes its rows' states and first inputs.
        Begin = "begin", 256, 2;
        /// Normalises rows.
        NormRows = "norm_rows", 256, 4;
        /// Attends to a frame's earlier positions.
        Attention = "attention", 512, 1;
        /// Attends for the rows of a verify pass.
        AttentionTree = "attention_tree", 512, 1;
        /// The heads of a round: each stream's own.
        Heads = "heads", 256, 2;
        /// Many outputs of few inputs, normalised on the way in.
        ProductWideNorm = "product_wide_norm", 256, 2;
        /// Gate and up, normalised on the way in; silu(gate) · up on the way out.
        ProductGatedNorm = "product_gated_norm", 256, 1;
        /// Few outputs of few inputs, normalised on the way in.
        ProductNarrowNorm = "product_narrow_norm", 256, 2;
        /// Few outputs of attended values, which its warps make themselves.
        ProductAttended = "product_attended", 256, 2;
        /// Many outputs of few inputs, for up to eight columns.
        ProductWideFew = "product_wide_few", 256, 2;
        /// Gate and up, for up to eight columns; silu(gate) · up on the way out.
        ProductGatedFew = "product_gated_few", 256, 2;
        /// Few outputs of few inputs, for up to eight columns.
        ProductNarrowFew = "product_narrow_few", 256, 2;
        /// Few outputs of many inputs, for up to eight columns.
        ProductDeepFew = "product_deep_few", 256, 2;
        /// Many outputs of few inputs.
        ProductWideMany = "product_wide_many", 256, 2;
        /// Gate and up; silu(gate) · up on the way out.
        ProductGatedMany = "product_gated_many", 256, 2;
        /// Few outputs of few inputs.
        ProductNarrowMany = "product_narrow_many", 256, 2;
        /// Few outputs of many inputs.
        ProductDeepMany = "product_deep_many", 256, 2;
    }
}

/// The place of a type among the kernels of one name.
const fn position(float_type: FloatType) -> usize {
    match float_type {
        FloatType::Float32 => 0,
        FloatType::Float16 => 1,
        FloatType::BFloat16 => 2,
    }
}

impl Kernel {
    /// Registers that a thread may take, so that [`min_blocks`](Self::min_blocks) blocks fit the 65,536 of a multiprocessor.
    pub const fn max_registers(self) -> u32 {
        // Registers are given out in eights, and no thread has more than 255.
        let fair = 65_536 / (self.max_threads() * self.min_blocks()) / 8 * 8;
        if fair < 255 { fair } else { 255 }
    }
}

/// Kernels that could not be loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// The driver refused.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The registry names a kernel that no module holds.
    #[error("this build holds no kernel {kernel}")]
    Missing {
        /// Its symbol.
        kernel: &'static str,
    },
    /// The device cannot hold a block of a kernel.
    #[error("kernel {kernel} runs with up to {expected} threads a block, and the device can give it {found}")]
    BlockTooLarge {
        /// Its symbol.
        kernel: &'static str,
        /// Threads that it is launched with.
        expected: u32,
        /// Threads that the device can give it.
        found: u32,
    },
}

/// Every kernel, loaded into a context.
#[derive(Debug)]
pub struct Registry {
    /// In the order of [`Kernel::ALL`].
    functions: Vec<Function>,
}

impl Registry {
    /// Loads every kernel onto the device, so that no launch loads anything.
    pub fn load(entered: &Entered<'_>) -> Result<Self, LoadError> {
        let mut modules = Vec::new();
        for image in embedded::images() {
            // SAFETY: nvcc wrote the image, and it was embedded whole.
            modules.push((image.kernels, unsafe { Module::load(entered, image.source, image.bytes) }?));
        }
        let mut functions = Vec::with_capacity(Kernel::ALL.len());
        for kernel in Kernel::ALL {
            let symbol = kernel.symbol();
            let module = modules.iter().find(|(kernels, _)| kernels.contains(&symbol));
            let function = match module {
                Some((_, module)) => module.function(entered, symbol)?,
                None => None,
            };
            let function = function.ok_or(LoadError::Missing { kernel: symbol })?;
            let (expected, threads) = (kernel.max_threads(), function.max_threads());
            if threads < expected {
                return Err(LoadError::BlockTooLarge { kernel: symbol, expected, found: threads });
            }
            functions.push(function);
        }
        Ok(Self { functions })
    }

    /// A kernel, ready to be launched.
    pub fn function(&self, kernel: Kernel) -> &Function {
        &self.functions[kernel.index()]
    }

    /// Lets launches of a kernel ask for this much dynamic shared memory.
    pub fn allow_shared_bytes(
        &self,
        entered: &Entered<'_>,
        kernel: Kernel,
        bytes: u32,
    ) -> Result<(), DriverError> {
        self.function(kernel).allow_shared_bytes(entered, bytes)
    }
}

#[cfg(test)]
mod tests;
