//! Compiles the kernels for the host: every `kernels/*.cu` of the workspace, and this crate's own test kernels, each as
//! one C++ file under `include/simt.hpp`, with a table of the kernels they define. The runtime is compiled with them.
//!
//! Which arguments a kernel takes is read from its `KERNEL(name, Arguments, ...)` line by `build/kernel_lines.rs`.

#[path = "build/kernel_lines.rs"]
mod kernel_lines;

use std::env;
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use kernel_lines::{KernelLine, kernel_lines};

/// Value-safe for arithmetic that must match the device bit for bit; `-mfma` makes `fmaf` one instruction.
const FLAGS: [&str; 8] = [
    "-ffp-contract=off",
    "-mavx2",
    "-mfma",
    "-fno-math-errno",
    "-ftls-model=initial-exec",
    "-fcf-protection=none",
    "-Wno-unknown-pragmas",
    "-Wno-unused-function",
];

/// A quarter of a fiber's stack: nothing would stop a kernel that overruns it.
const LARGEST_FRAME: &str = "-Werror=frame-larger-than=16384";

fn main() -> ExitCode {
    match build() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("cargo::error=simt: {error}");
            ExitCode::FAILURE
        }
    }
}

fn build() -> Result<(), Box<dyn Error>> {
    let here = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let out = PathBuf::from(env::var("OUT_DIR")?);
    if env::var("CARGO_CFG_TARGET_ARCH")? != "x86_64" || env::var("CARGO_CFG_TARGET_OS")? != "linux" {
        // src/lib.rs refuses these with a compile error.
        return Ok(());
    }
    let include = here.join("include");
    let kernels = here.join("../../kernels");
    for watched in [&include, &here.join("runtime"), &here.join("build")] {
        println!("cargo::rerun-if-changed={}", watched.display());
    }

    let mut kernel_files = files(&here.join("self_test_kernels"), "cu")?;
    println!("cargo::rerun-if-changed={}", here.join("self_test_kernels").display());
    // While there is no such folder cargo would build again each time.
    if kernels.is_dir() {
        println!("cargo::rerun-if-changed={}", kernels.display());
        kernel_files.extend(files(&kernels, "cu")?);
    }
    let mut generated = Vec::new();
    let mut names: Vec<String> = Vec::new();
    for (index, file) in kernel_files.iter().enumerate() {
        let lines = kernel_lines(&fs::read_to_string(file)?)
            .map_err(|error| format!("{}: {error}", file.display()))?;
        for line in &lines {
            if names.contains(&line.name) {
                return Err(format!("{}: kernel {} is defined twice", file.display(), line.name).into());
            }
            names.push(line.name.clone());
        }
        let source = out.join(format!("kernels_{index}.cpp"));
        write_if_changed(&source, &adapter(index, file, &lines))?;
        generated.push(source);
    }
    let table = out.join("kernel_files.cpp");
    write_if_changed(&table, &table_of_files(kernel_files.len()))?;

    let mut runtime = cxx(&include);
    runtime.include(here.join("runtime")).files(files(&here.join("runtime"), "cpp")?).extra_warnings(true);
    runtime.try_compile("simt_runtime")?;
    let mut kernels_of_host = cxx(&include);
    kernels_of_host
        .include(here.join("runtime"))
        .include(&kernels)
        .flag(LARGEST_FRAME)
        .flag("-fno-exceptions")
        .extra_warnings(false);
    kernels_of_host.flag("-include").flag(include.join("simt.hpp").display().to_string());
    kernels_of_host.files(&generated).file(&table);
    kernels_of_host.try_compile("simt_kernels")?;
    Ok(())
}

fn cxx(include: &Path) -> cc::Build {
    let mut build = cc::Build::new();
    build.cpp(true).std("c++17").opt_level(2).include(include).warnings(true);
    // With the debug profile's flags kernels would run at half the speed.
    build.debug(false).force_frame_pointer(false);
    for flag in FLAGS {
        build.flag(flag);
    }
    build
}

/// The C++ of one kernel file. The unnamed namespace keeps equal names in two kernel files apart, as on the device, where
/// each file is compiled whole. The parentheses around the kernel's name keep functions of its arguments' namespace out.
fn adapter(index: usize, file: &Path, lines: &[KernelLine]) -> String {
    let mut text = String::from("#include \"interface.hpp\"\n\nnamespace {\n");
    let _ = writeln!(text, "#include \"{}\"\n", file.display());
    let _ = writeln!(text, "const simt::Kernel table[] = {{");
    for KernelLine { name, arguments, maximum_threads } in lines {
        let _ = writeln!(
            text,
            "    {{\"{name}\", [](const void* arguments) {{ ({name})(*static_cast<const {arguments}*>(arguments)); }}, \
             sizeof({arguments}), alignof({arguments}), unsigned({maximum_threads})}},"
        );
    }
    let _ = writeln!(text, "    {{nullptr, nullptr, 0, 0, 0}},\n}};\n}}  // namespace\n");
    let _ = writeln!(text, "extern const simt::Kernel* const simt_kernels_{index};");
    let _ = writeln!(text, "const simt::Kernel* const simt_kernels_{index} = table;");
    text
}

fn table_of_files(count: usize) -> String {
    let mut text = String::from("#include \"interface.hpp\"\n\n");
    for index in 0..count {
        let _ = writeln!(text, "extern const simt::Kernel* const simt_kernels_{index};");
    }
    let _ = writeln!(
        text,
        "\nextern \"C\" void simt_kernel_files(void (*visit)(void*, const simt::Kernel*), void* visitor) {{"
    );
    for index in 0..count {
        let _ = writeln!(text, "    visit(visitor, simt_kernels_{index});");
    }
    text.push_str("}\n");
    text
}

fn files(folder: &Path, extension: &str) -> std::io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|found| found == extension) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn write_if_changed(path: &Path, text: &str) -> std::io::Result<()> {
    if fs::read_to_string(path).is_ok_and(|before| before == text) {
        return Ok(());
    }
    fs::write(path, text)
}
