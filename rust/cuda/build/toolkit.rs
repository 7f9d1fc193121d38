//! Finds the nvcc that compiles the kernels, or says where it looked and what mends it.
//!
//! In this order: `OVERTONE_NVCC`; the wheels that pip puts beside the Python that builds us; `CUDA_HOME`, `CUDA_PATH`;
//! `PATH`. What nvcc is asked to do stands in `compile.rs`.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

/// The wheels that hold a whole compiler; they need g++ and no CUDA installation.
pub const WHEELS: &str = "nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 \
     nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85";

/// Older compilers do not know every architecture that we compile for.
pub const OLDEST_RELEASE: (u32, u32) = (13, 0);

/// What a usable folder of wheels holds, and the wheel that brings it.
const WHEEL_PARTS: [(&str, &str); 5] = [
    ("bin/ptxas", "nvidia-cuda-nvcc"),
    ("nvvm/bin/cicc", "nvidia-nvvm"),
    ("include/crt/host_config.h", "nvidia-cuda-crt"),
    ("include/cuda_runtime.h", "nvidia-cuda-runtime"),
    ("include/cccl", "nvidia-cuda-cccl"),
];

/// Environment variables that name a Python interpreter: maturin sets the first two.
pub const PYTHON_VARIABLES: [&str; 2] = ["PYO3_PYTHON", "PYTHON_SYS_EXECUTABLE"];
/// Environment variables that name a CUDA installation.
pub const INSTALLATION_VARIABLES: [&str; 2] = ["CUDA_HOME", "CUDA_PATH"];

/// Runs a program and returns its standard output, or why there is none.
type Run<'a> = &'a dyn Fn(&Path, &[&str]) -> Result<String, String>;

/// The machine as the search sees it; a test puts another in its place.
pub struct Machine<'a> {
    /// Reads an environment variable.
    pub variable: &'a dyn Fn(&str) -> Option<OsString>,
    /// Runs programs.
    pub run: Run<'a>,
}

/// A compiler that can be used.
#[derive(Debug)]
pub struct Toolkit {
    /// Path of nvcc.
    pub nvcc: PathBuf,
    /// What `nvcc --version` prints: part of the key of everything it compiled.
    pub version: String,
}

/// No usable compiler: each place that was looked at, with what was wrong there.
#[derive(Debug)]
pub struct NotFound(Vec<String>);

impl fmt::Display for NotFound {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = OLDEST_RELEASE;
        writeln!(
            formatter,
            "nvcc (CUDA {major}.{minor} or newer), which compiles overtone's kernels, was not found:"
        )?;
        for place in &self.0 {
            writeln!(formatter, "  {place}")?;
        }
        writeln!(formatter, "Install it (neither a GPU nor a CUDA installation is needed):")?;
        writeln!(formatter, "  python3 -m pip install {WHEELS}")?;
        write!(
            formatter,
            "or name one with OVERTONE_NVCC, or build for the CPU alone with --no-default-features"
        )
    }
}

/// Finds the compiler.
pub fn find(machine: &Machine<'_>) -> Result<Toolkit, NotFound> {
    let mut refused = Vec::new();
    if let Some(nvcc) = value(machine, "OVERTONE_NVCC") {
        let nvcc = PathBuf::from(nvcc);
        return usable(machine, &nvcc).map_err(|reason| {
            refused.push(format!("OVERTONE_NVCC={}: {reason}", nvcc.display()));
            NotFound(refused)
        });
    }
    refused.push("OVERTONE_NVCC: not set".to_owned());
    let candidates = std::iter::empty()
        .chain(wheels(machine))
        .chain(installations(machine))
        .chain(std::iter::once_with(|| on_path(machine)));
    for candidate in candidates {
        let (place, found) = candidate;
        match found.and_then(|nvcc| usable(machine, &nvcc)) {
            Ok(toolkit) => return Ok(toolkit),
            Err(reason) => refused.push(format!("{place}: {reason}")),
        }
    }
    Err(NotFound(refused))
}

/// A place, and nvcc there or why there is none.
type Candidate = (String, Result<PathBuf, String>);

/// nvcc in the wheels of each Python that may be building us. Under pip's build isolation the wheels lie in a folder that
/// only `sys.path` names, so the interpreter is asked.
fn wheels<'a>(machine: &'a Machine<'a>) -> impl Iterator<Item = Candidate> + 'a {
    let named = PYTHON_VARIABLES.iter().filter_map(|name| value(machine, name)).map(PathBuf::from);
    let virtual_environment = value(machine, "VIRTUAL_ENV").map(|root| Path::new(&root).join("bin/python"));
    let pythons = named.chain(virtual_environment).chain(["python3", "python"].map(PathBuf::from));
    pythons.map(|python| (format!("wheels of {}", python.display()), nvcc_of_python(machine, &python)))
}

fn nvcc_of_python(machine: &Machine<'_>, python: &Path) -> Result<PathBuf, String> {
    let folders = (machine.run)(python, &["-c", "import sys; print(*sys.path, sep='\\n')"])?;
    let root = folders
        .lines()
        .filter(|folder| !folder.is_empty())
        .map(|folder| Path::new(folder).join("nvidia/cu13"))
        .find(|root| root.join("bin/nvcc").is_file())
        .ok_or_else(|| "nvidia-cuda-nvcc is not installed".to_owned())?;
    match WHEEL_PARTS.iter().find(|(part, _)| !root.join(part).exists()) {
        Some((part, wheel)) => Err(format!("{} is missing: install {wheel}", root.join(part).display())),
        None => Ok(root.join("bin/nvcc")),
    }
}

fn installations<'a>(machine: &'a Machine<'a>) -> impl Iterator<Item = Candidate> + 'a {
    INSTALLATION_VARIABLES.iter().map(|name| {
        let nvcc = value(machine, name).map(|root| Path::new(&root).join("bin/nvcc"));
        ((*name).to_owned(), nvcc.ok_or_else(|| "not set".to_owned()))
    })
}

fn on_path(machine: &Machine<'_>) -> Candidate {
    let path = value(machine, "PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join("nvcc")).find(|nvcc| nvcc.is_file());
    ("PATH".to_owned(), found.ok_or_else(|| "no nvcc".to_owned()))
}

/// Asks a compiler for its release.
fn usable(machine: &Machine<'_>, nvcc: &Path) -> Result<Toolkit, String> {
    if !nvcc.is_file() {
        return Err(format!("{} is not a file", nvcc.display()));
    }
    let version = (machine.run)(nvcc, &["--version"])?;
    let release = release(&version).ok_or_else(|| format!("{} does not say its release", nvcc.display()))?;
    if release < OLDEST_RELEASE {
        let (major, minor) = release;
        return Err(format!("{} is of CUDA {major}.{minor}", nvcc.display()));
    }
    Ok(Toolkit { nvcc: nvcc.to_owned(), version })
}

/// The numbers of "Cuda compilation tools, release 13.0, V13.0.88".
fn release(version: &str) -> Option<(u32, u32)> {
    let (_, rest) = version.split_once("release ")?;
    let (release, _) = rest.split_once(',')?;
    let (major, minor) = release.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn value(machine: &Machine<'_>, name: &str) -> Option<OsString> {
    (machine.variable)(name).filter(|value| !value.is_empty())
}
