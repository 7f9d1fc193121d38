//! Compiles `kernels/*.cu` with nvcc and embeds them, with a table of what each kernel takes.
//!
//! | variable | meaning |
//! |---|---|
//! | `OVERTONE_NVCC` | the nvcc to use; `build/toolkit.rs` says what is tried without it |
//! | `OVERTONE_CUDA_ARCHITECTURES` | a list such as `90a` or `80,90a,compute_90`, for quick builds; a release holds all |
//! | `OVERTONE_KERNEL_CACHE` | a folder that keeps compiled kernels, so that several build folders compile them once |
//!
//! Without the feature `kernels` nothing is compiled.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, exit};

#[path = "build/architectures.rs"]
mod architectures;
#[path = "build/cache.rs"]
mod cache;
#[path = "build/compile.rs"]
mod compile;
#[path = "build/embed.rs"]
mod embed;
#[path = "build/resources.rs"]
mod resources;
#[path = "build/toolkit.rs"]
mod toolkit;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=build");
    if env::var_os("CARGO_FEATURE_KERNELS").is_none() {
        return;
    }
    if let Err(error) = build_kernels() {
        for line in error.lines() {
            println!("cargo::error={line}");
        }
        exit(1);
    }
}

fn build_kernels() -> Result<(), String> {
    let variables = ["OVERTONE_NVCC", "OVERTONE_CUDA_ARCHITECTURES", "VIRTUAL_ENV", "NVCC_CCBIN"];
    for name in variables.iter().chain(&toolkit::PYTHON_VARIABLES).chain(&toolkit::INSTALLATION_VARIABLES) {
        println!("cargo::rerun-if-env-changed={name}");
    }
    let folder = variable("CARGO_MANIFEST_DIR")?.join("../../kernels");
    let folder = folder.canonicalize().map_err(|error| format!("{}: {error}", folder.display()))?;
    println!("cargo::rerun-if-changed={}", folder.display());
    let output = variable("OUT_DIR")?;

    let machine = toolkit::Machine { variable: &|name| env::var_os(name), run: &run };
    let toolkit = toolkit::find(&machine).map_err(|error| error.to_string())?;
    println!("cargo::rerun-if-changed={}", toolkit.nvcc.display());
    let list = env::var("OVERTONE_CUDA_ARCHITECTURES").ok();
    let architectures = architectures::parse(list.as_deref())?;
    // Not watched: where compiled kernels are kept does not change them.
    let cache = cache::Cache(
        env::var_os("OVERTONE_KERNEL_CACHE").filter(|folder| !folder.is_empty()).map(PathBuf::from),
    );
    let jobs = env::var("NUM_JOBS").ok().and_then(|jobs| jobs.parse().ok()).unwrap_or(1);

    let modules = compile::compile_folder(&toolkit, &architectures, &folder, &output, &cache, jobs)?;
    for warning in
        modules.iter().flat_map(|module| module.log.lines()).filter(|line| line.contains("warning"))
    {
        println!("cargo::warning={warning}");
    }
    let file = output.join("kernels.rs");
    std::fs::write(&file, embed::source(&modules)?).map_err(|error| format!("{}: {error}", file.display()))
}

fn variable(name: &str) -> Result<PathBuf, String> {
    env::var_os(name).map(PathBuf::from).ok_or_else(|| format!("{name} is not set: this is run by cargo"))
}

fn run(program: &Path, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(arguments).output().map_err(|error| error.to_string())?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(format!("{} failed ({})", program.display(), output.status))
    }
}
