//! Compiles each `kernels/*.cu` to a fat binary of its own, several at a time, and only what has changed.
//!
//! One file is one module at run time: nothing links them, so a kernel calls no kernel of another file.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::architectures::Architecture;
use super::cache::Cache;
use super::toolkit::Toolkit;

/// `-fmad=false`: the arithmetic of sampling is the core's, which rounds every product; a fused product says `fmaf`.
/// `-allow-unsupported-compiler`: the host compiler only preprocesses, no code of it is kept.
/// `-compress-mode=size`: a quarter of the bytes; the driver unpacks what it loads.
const FLAGS: [&str; 8] = [
    "-fatbin",
    "-std=c++17",
    "-fmad=false",
    "-ftz=false",
    "-allow-unsupported-compiler",
    "-compress-mode=size",
    "-Xptxas",
    "-v",
];

/// One compiled file.
#[derive(Debug)]
pub struct Module {
    /// Name of the source, such as `sample.cu`.
    pub source: String,
    /// The fat binary.
    pub image: PathBuf,
    /// What nvcc printed.
    pub log: String,
    /// Names of its kernels, as its `KERNEL(name, ...` lines have them.
    pub kernels: Vec<String>,
}

/// Compiles every `*.cu` of a folder into `output`, at most `jobs` at a time. The modules come in the order of their names.
pub fn compile_folder(
    toolkit: &Toolkit,
    architectures: &[Architecture],
    folder: &Path,
    output: &Path,
    cache: &Cache,
    jobs: usize,
) -> Result<Vec<Module>, String> {
    let sources = files(folder, "cu")?;
    let mut headers = DefaultHasher::new();
    (&toolkit.version, FLAGS).hash(&mut headers);
    for header in files(folder, "cuh")? {
        (header.file_name(), read(&header)?).hash(&mut headers);
    }
    let next = AtomicUsize::new(0);
    let modules = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..jobs.clamp(1, sources.len().max(1)) {
            scope.spawn(|| {
                while let Some(source) = sources.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let module = compile(toolkit, architectures, source, output, cache, headers.clone());
                    modules.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(module);
                }
            });
        }
    });
    let modules = modules.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    let mut modules: Vec<Module> = modules.into_iter().collect::<Result<_, _>>()?;
    modules.sort_by(|left, right| left.source.cmp(&right.source));
    Ok(modules)
}

/// Compiles one file, unless what lies in `output` or in the cache was made by the same compiler from the same text.
fn compile(
    toolkit: &Toolkit,
    architectures: &[Architecture],
    source: &Path,
    output: &Path,
    cache: &Cache,
    mut key: DefaultHasher,
) -> Result<Module, String> {
    let targets: Vec<String> = architectures.iter().map(Architecture::target).collect();
    let text = read(source)?;
    (source.file_name(), &text, &targets).hash(&mut key);
    let kernels = kernel_names(&String::from_utf8_lossy(&text));
    let key = format!("{:016x}", key.finish());
    let name = source.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let image = output.join(format!("{name}.fatbin"));
    let (key_file, log_file) = (output.join(format!("{name}.key")), output.join(format!("{name}.log")));
    if image.is_file()
        && fs::read_to_string(&key_file).is_ok_and(|stored| stored == key)
        && let Ok(log) = fs::read_to_string(&log_file)
    {
        return Ok(Module { source: name, image, log, kernels });
    }
    let log = match cache.take(&key, &image) {
        Some(log) => log,
        None => {
            let log = run_nvcc(toolkit, &targets, source, &image)?;
            cache.keep(&key, &image, &log)?;
            log
        }
    };
    write(&log_file, &log)?;
    // Last: a build that was interrupted leaves no key that fits.
    write(&key_file, &key)?;
    Ok(Module { source: name, image, log, kernels })
}

/// The kernels that a file defines.
fn kernel_names(text: &str) -> Vec<String> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("KERNEL("));
    lines.filter_map(|rest| rest.split(',').next()).map(|name| name.trim().to_owned()).collect()
}

fn run_nvcc(toolkit: &Toolkit, targets: &[String], source: &Path, image: &Path) -> Result<String, String> {
    let mut command = Command::new(&toolkit.nvcc);
    command.args(FLAGS);
    for target in targets {
        command.args(["-gencode", target]);
    }
    command.arg("-o").arg(image).arg(source);
    let output = command.output().map_err(|error| format!("{}: {error}", toolkit.nvcc.display()))?;
    let log =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.success() {
        return Ok(log);
    }
    let failure: Vec<&str> = log.lines().filter(|line| !line.starts_with("ptxas info")).collect();
    Err(format!("{}: nvcc failed ({}):\n{}", source.display(), output.status, failure.join("\n")))
}

/// The files of a folder with this extension, sorted.
fn files(folder: &Path, extension: &str) -> Result<Vec<PathBuf>, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|found| found == extension) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn read(file: &Path) -> Result<Vec<u8>, String> {
    fs::read(file).map_err(|error| format!("{}: {error}", file.display()))
}

fn write(file: &Path, text: &str) -> Result<(), String> {
    fs::write(file, text).map_err(|error| format!("{}: {error}", file.display()))
}
