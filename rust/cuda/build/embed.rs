//! Writes the Rust source that embeds the compiled modules and states what their kernels take.
//!
//! It is included by `src/kernels/embedded.rs`, which declares the types.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use super::compile::Module;
use super::resources;

/// The source for these modules.
pub fn source(modules: &[Module]) -> Result<String, String> {
    let mut images = String::new();
    let mut table = String::new();
    for module in modules {
        let bytes = size(&module.image)?;
        // Writing to a `String` does not fail.
        let _ = writeln!(
            images,
            "    Image {{ source: {:?}, kernels: &{:?}, bytes: {{ static BYTES: Aligned<{bytes}> = Aligned(*include_bytes!({:?})); &BYTES.0 }} }},",
            module.source, module.kernels, module.image,
        );
        for entry in resources::parse(&module.log).map_err(|error| format!("{}: {error}", module.source))? {
            let _ = writeln!(table, "    Kernel{entry:?},");
        }
    }
    Ok(format!(
        "pub(super) static IMAGES: &[Image] = &[\n{images}];\n\npub(super) static RESOURCES: &[KernelResources] = &[\n{table}];\n"
    ))
}

fn size(file: &Path) -> Result<u64, String> {
    fs::metadata(file).map(|metadata| metadata.len()).map_err(|error| format!("{}: {error}", file.display()))
}
