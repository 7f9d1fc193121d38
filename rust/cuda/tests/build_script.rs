//! The build script's parts: where nvcc is looked for, which architectures there are, what ptxas says, and what is compiled
//! again. A compiler is only run where one is installed, through a script that stands in for it.

#![allow(clippy::unwrap_used)] // helpers of tests

#[path = "../build/architectures.rs"]
mod architectures;
#[path = "../build/cache.rs"]
mod cache;
#[path = "../build/compile.rs"]
mod compile;
#[path = "../build/embed.rs"]
mod embed;
#[path = "../build/resources.rs"]
mod resources;
#[path = "../build/toolkit.rs"]
mod toolkit;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use architectures::Architecture;
use cache::Cache;
use tempfile::TempDir;

/// A machine of files and variables. Its Pythons print what they are made to; its compilers are of the release that they hold.
struct FakeMachine {
    root: TempDir,
    variables: BTreeMap<String, OsString>,
    site_packages: BTreeMap<String, String>,
}

impl FakeMachine {
    fn new() -> Self {
        Self { root: TempDir::new().unwrap(), variables: BTreeMap::new(), site_packages: BTreeMap::new() }
    }

    fn path(&self, relative: &str) -> PathBuf {
        self.root.path().join(relative)
    }

    fn file(&self, relative: &str, text: &str) -> PathBuf {
        let path = self.path(relative);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    fn compiler(&self, relative: &str, release: &str) -> PathBuf {
        self.file(relative, &format!("Cuda compilation tools, release {release}, V{release}.88"))
    }

    /// The five wheels in one Python's folder.
    fn wheels(&mut self, python: &str, folder: &str) -> PathBuf {
        let root = format!("{folder}/nvidia/cu13");
        let parts = [
            "bin/ptxas",
            "nvvm/bin/cicc",
            "include/crt/host_config.h",
            "include/cuda_runtime.h",
            "include/cccl/nv/target",
        ];
        for part in parts {
            self.file(&format!("{root}/{part}"), "");
        }
        let listing = format!("\n/nowhere\n{}\n", self.path(folder).display());
        self.site_packages.insert(python.to_owned(), listing);
        self.compiler(&format!("{root}/bin/nvcc"), "13.0")
    }

    fn set(&mut self, name: &str, value: impl Into<OsString>) {
        self.variables.insert(name.to_owned(), value.into());
    }

    fn find(&self) -> Result<PathBuf, String> {
        let run = |program: &Path, arguments: &[&str]| match arguments {
            ["--version"] => fs::read_to_string(program).map_err(|error| error.to_string()),
            _ => self
                .site_packages
                .get(program.to_str().unwrap())
                .cloned()
                .ok_or_else(|| "not found".to_owned()),
        };
        let machine = toolkit::Machine { variable: &|name| self.variables.get(name).cloned(), run: &run };
        toolkit::find(&machine).map(|toolkit| toolkit.nvcc).map_err(|error| error.to_string())
    }
}

#[test]
fn nvcc_is_taken_from_the_environment_then_the_wheels_then_an_installation_then_the_path() {
    let mut machine = FakeMachine::new();
    let on_path = machine.compiler("path/nvcc", "13.2");
    machine.set("PATH", machine.path("path"));
    assert_eq!(machine.find(), Ok(on_path));

    let second = machine.compiler("second/bin/nvcc", "13.1");
    machine.set("CUDA_PATH", machine.path("second"));
    assert_eq!(machine.find(), Ok(second));
    let first = machine.compiler("first/bin/nvcc", "13.1");
    machine.set("CUDA_HOME", machine.path("first"));
    assert_eq!(machine.find(), Ok(first));

    let any = machine.wheels("python3", "any");
    assert_eq!(machine.find(), Ok(any));
    let active_python = machine.path("active/bin/python").display().to_string();
    let active = machine.wheels(&active_python, "active/site");
    machine.set("VIRTUAL_ENV", machine.path("active"));
    assert_eq!(machine.find(), Ok(active));
    let building = machine.wheels("/build/python", "building");
    machine.set("PYO3_PYTHON", "/build/python");
    assert_eq!(machine.find(), Ok(building));

    let named = machine.compiler("named", "13.0");
    machine.set("OVERTONE_NVCC", &named);
    assert_eq!(machine.find(), Ok(named));
}

#[test]
fn a_compiler_that_is_named_is_used_or_the_build_ends() {
    let mut machine = FakeMachine::new();
    machine.wheels("python3", "any");
    let old = machine.compiler("old", "12.8");
    machine.set("OVERTONE_NVCC", &old);
    let error = machine.find().unwrap_err();
    assert!(error.contains(&format!("{} is of CUDA 12.8", old.display())), "{error}");

    machine.set("OVERTONE_NVCC", "/nowhere/nvcc");
    assert!(machine.find().unwrap_err().contains("/nowhere/nvcc is not a file"));
}

#[test]
fn a_compiler_too_old_is_passed_over_and_wheels_that_lack_a_part_name_it() {
    let mut machine = FakeMachine::new();
    machine.compiler("old/bin/nvcc", "12.9");
    machine.set("CUDA_HOME", machine.path("old"));
    machine.wheels("python3", "partial");
    fs::remove_file(machine.path("partial/nvidia/cu13/nvvm/bin/cicc")).unwrap();
    let error = machine.find().unwrap_err();
    assert!(error.contains("is missing: install nvidia-nvvm"), "{error}");
    assert!(error.contains("is of CUDA 12.9"), "{error}");

    let good = machine.compiler("path/nvcc", "14.0");
    machine.set("PATH", machine.path("path"));
    assert_eq!(machine.find(), Ok(good));
}

#[test]
fn without_a_compiler_the_error_names_every_place_and_the_command_that_mends_it() {
    let error = FakeMachine::new().find().unwrap_err();
    for part in [
        "OVERTONE_NVCC: not set",
        "wheels of python3",
        "CUDA_HOME: not set",
        "PATH: no nvcc",
        "pip install nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-cuda-runtime==13.0.96 \
         nvidia-cuda-cccl==13.0.85\n",
        "--no-default-features",
    ] {
        assert!(error.contains(part), "{part:?} is not in:\n{error}");
    }
}

fn targets(list: Option<&str>) -> Result<Vec<String>, String> {
    architectures::parse(list).map(|found| found.iter().map(Architecture::target).collect())
}

#[test]
fn a_release_holds_code_for_every_generation_and_ptx_for_later_ones() {
    let all = targets(None).unwrap();
    let expected = ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_100f", "sm_120f", "compute_90"];
    let codes: Vec<_> = all.iter().map(|target| target.split_once("code=").unwrap().1).collect();
    assert_eq!(codes, expected);
    assert_eq!(targets(Some(" ")), Ok(all));
}

#[test]
fn a_list_restricts_the_architectures_and_nonsense_in_it_is_refused() {
    let found = targets(Some("90a, sm_80,compute_90,90a")).unwrap();
    let expected =
        ["arch=compute_90a,code=sm_90a", "arch=compute_80,code=sm_80", "arch=compute_90,code=compute_90"];
    assert_eq!(found, expected);
    for nonsense in ["75", "hopper", "90a,", "sm_", "9.0"] {
        assert!(targets(Some(nonsense)).unwrap_err().contains("OVERTONE_CUDA_ARCHITECTURES"), "{nonsense}");
    }
}

const LOG: &str = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'tidy' for 'sm_86'
ptxas info    : Function properties for tidy
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 4096 bytes smem, 368 bytes cmem[0], 8 bytes cmem[2]
ptxas info    : Compile time = 11.407 ms
ptxas info    : Compiling entry function 'wasteful' for 'sm_90a'
ptxas info    : Function properties for wasteful
    16 bytes stack frame, 24 bytes spill stores, 28 bytes spill loads
ptxas info    : Used 255 registers, used 2 barriers, 64 bytes cumulative stack size
ptxas info    : Function properties for not_inlined
    32 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
";

#[test]
fn what_ptxas_says_of_each_kernel_is_read() {
    let table = resources::parse(LOG).unwrap();
    let tidy = resources::Resources {
        kernel: "tidy".to_owned(),
        architecture: "sm_86".to_owned(),
        registers: 40,
        shared_bytes: 4096,
        constant_bytes: 376,
        ..Default::default()
    };
    let wasteful = resources::Resources {
        kernel: "wasteful".to_owned(),
        architecture: "sm_90a".to_owned(),
        registers: 255,
        stack_bytes: 64,
        spill_store_bytes: 28,
        spill_load_bytes: 32,
        ..Default::default()
    };
    assert_eq!(table, [tidy, wasteful]);
}

#[test]
fn a_log_that_is_not_understood_is_an_error_rather_than_a_clean_table() {
    let orphan = "ptxas info    : Used 40 registers\n";
    let silent = "ptxas info    : Compiling entry function 'silent' for 'sm_80'\n";
    let garbled =
        "ptxas info    : Compiling entry function 'k' for 'sm_80'\nptxas info    : Used many registers\n";
    for log in [orphan, silent, garbled] {
        assert!(resources::parse(log).is_err(), "{log}");
    }
}

/// A compiler that writes its arguments into the image, counts its runs, and fails on `#error`.
#[cfg(unix)]
fn stand_in(folder: &Path) -> toolkit::Toolkit {
    use std::os::unix::fs::PermissionsExt;
    let script = "#!/bin/sh\n\
        echo run >> \"$(dirname \"$0\")/runs\"\n\
        for last; do :; done\n\
        if grep -q '#error' \"$last\"; then echo \"$last: error: as told\" >&2; exit 2; fi\n\
        arguments=\"$*\"\n\
        while [ \"$1\" != -o ]; do shift; done\n\
        echo \"$arguments\" > \"$2.arguments\"\n\
        echo image > \"$2\"\n\
        echo \"ptxas info    : Compiling entry function 'k' for 'sm_80'\"\n\
        echo \"ptxas info    : Used 8 registers\"\n";
    let nvcc = folder.join("nvcc");
    fs::write(&nvcc, script).unwrap();
    fs::set_permissions(&nvcc, fs::Permissions::from_mode(0o755)).unwrap();
    toolkit::Toolkit { nvcc, version: "13.0".to_owned() }
}

#[cfg(unix)]
#[test]
fn only_what_has_changed_is_compiled_again_and_a_failure_shows_what_the_compiler_said() {
    let root = TempDir::new().unwrap();
    let (kernels, output) = (root.path().join("kernels"), root.path().join("output"));
    fs::create_dir(&kernels).unwrap();
    fs::create_dir(&output).unwrap();
    for name in ["one.cu", "two.cu", "shared.cuh", "notes.txt"] {
        fs::write(kernels.join(name), name).unwrap();
    }
    let nvcc = stand_in(root.path());
    let compile = |list| {
        let architectures = architectures::parse(Some(list)).unwrap();
        compile::compile_folder(&nvcc, &architectures, &kernels, &output, &Cache(None), 2)
    };
    let runs = || fs::read_to_string(root.path().join("runs")).unwrap().lines().count();

    let modules = compile("80").unwrap();
    let sources: Vec<_> = modules.iter().map(|module| module.source.as_str()).collect();
    assert_eq!((sources, runs()), (vec!["one.cu", "two.cu"], 2));
    compile("80").unwrap();
    assert_eq!(runs(), 2, "nothing has changed");
    fs::write(kernels.join("two.cu"), "changed").unwrap();
    compile("80").unwrap();
    assert_eq!(runs(), 3, "one source has changed");
    fs::write(kernels.join("shared.cuh"), "changed").unwrap();
    compile("80").unwrap();
    assert_eq!(runs(), 5, "a header has changed");
    compile("90a").unwrap();
    assert_eq!(runs(), 7, "the architectures have changed");
    let arguments = fs::read_to_string(output.join("one.cu.fatbin.arguments")).unwrap();
    for argument in ["-std=c++17", "-fmad=false", "-ftz=false", "arch=compute_90a,code=sm_90a"] {
        assert!(
            arguments.split_ascii_whitespace().any(|word| word == argument),
            "{argument} is not in:\n{arguments}"
        );
    }

    fs::write(kernels.join("one.cu"), "#error").unwrap();
    let error = compile("90a").unwrap_err();
    assert!(error.contains("one.cu: error: as told"), "{error}");
}

#[cfg(unix)]
#[test]
fn builds_that_share_a_cache_compile_once_wherever_their_sources_lie() {
    let root = TempDir::new().unwrap();
    let nvcc = stand_in(root.path());
    let cache = Cache(Some(root.path().join("kept/kernels")));
    let compile = |build: &str, source: &str| {
        let (kernels, output) =
            (root.path().join(build).join("kernels"), root.path().join(build).join("output"));
        fs::create_dir_all(&kernels).unwrap();
        fs::create_dir_all(&output).unwrap();
        fs::write(kernels.join("one.cu"), source).unwrap();
        fs::write(kernels.join("shared.cuh"), "").unwrap();
        let architectures = architectures::parse(Some("80")).unwrap();
        let modules = compile::compile_folder(&nvcc, &architectures, &kernels, &output, &cache, 2).unwrap();
        assert!(modules[0].image.starts_with(&output), "a build depends on nothing outside its folder");
        (fs::read_to_string(&modules[0].image).unwrap(), modules[0].log.clone())
    };
    let runs = || fs::read_to_string(root.path().join("runs")).unwrap().lines().count();

    let first = compile("debug", "kernel");
    assert!(first.1.contains("Used 8 registers"), "{}", first.1);
    assert_eq!(compile("release", "kernel"), first);
    assert_eq!(runs(), 1);
    compile("release", "another kernel");
    assert_eq!(runs(), 2);
}

#[test]
fn the_wheels_that_the_error_names_are_what_pip_installs_for_a_build() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../pyproject.toml");
    let text = fs::read_to_string(file).unwrap();
    let table = text.split("\n[").find(|table| table.starts_with("[build-system]")).unwrap();
    let required: Vec<_> = table
        .split('"')
        .filter(|item| item.starts_with("nvidia-"))
        .map(|item| item.split(';').next().unwrap())
        .collect();
    assert_eq!(required, toolkit::WHEELS.split_ascii_whitespace().collect::<Vec<_>>());
}

#[test]
fn the_source_that_embeds_the_modules_states_what_their_kernels_take() {
    let root = TempDir::new().unwrap();
    let image = root.path().join("one.fatbin");
    fs::write(&image, "image").unwrap();
    let module = |log: &str| compile::Module {
        source: "one.cu".to_owned(),
        image: image.clone(),
        log: log.to_owned(),
        kernels: vec!["tidy".to_owned()],
    };
    let source = embed::source(&[module(LOG)]).unwrap();
    assert!(
        source.contains(r#"Image { source: "one.cu", kernels: &["tidy"], bytes: { static BYTES: Aligned<5>"#),
        "{source}"
    );
    assert!(
        source.contains(r#"KernelResources { kernel: "tidy", architecture: "sm_86", registers: 40,"#),
        "{source}"
    );
    let error = embed::source(&[module("Used 1 registers")]).unwrap_err();
    assert!(error.starts_with("one.cu: "), "{error}");
}
