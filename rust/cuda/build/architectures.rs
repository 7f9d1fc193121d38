//! The GPU architectures that the kernels are compiled for.

/// Machine code for every generation, and PTX for what comes later. Code of `90a`, `100f` and `120f` uses what only those
/// have and runs nowhere else: a GPU of another or a later generation compiles the PTX when the kernels are loaded. The
/// PTX is that of 9.0, for older GPUs all have machine code; so programmatic dependent launch is in it.
const ALL: &str = "80,86,89,90a,100f,120f,compute_90";

/// One target of nvcc.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Architecture {
    /// Compute capability and suffix: `80`, `90a`, `100f`.
    name: String,
    /// PTX rather than machine code.
    portable: bool,
}

impl Architecture {
    /// The value of nvcc's `-gencode`.
    pub fn target(&self) -> String {
        let kind = if self.portable { "compute" } else { "sm" };
        format!("arch=compute_{name},code={kind}_{name}", name = self.name)
    }
}

/// Reads a list such as `80,90a,compute_90` (the value of `OVERTONE_CUDA_ARCHITECTURES`): `90a` or `sm_90a` is machine
/// code, `compute_90` is PTX. Without a list, all that a release holds.
pub fn parse(list: Option<&str>) -> Result<Vec<Architecture>, String> {
    let list = list.filter(|list| !list.trim().is_empty()).unwrap_or(ALL);
    let mut architectures = Vec::new();
    for item in list.split(',').map(str::trim) {
        let (name, portable) = match item.strip_prefix("compute_") {
            Some(name) => (name, true),
            None => (item.strip_prefix("sm_").unwrap_or(item), false),
        };
        let number = name.strip_suffix(['a', 'f']).unwrap_or(name);
        if !matches!(number.parse::<u32>(), Ok(80..)) {
            return Err(format!(
                "OVERTONE_CUDA_ARCHITECTURES={list}: {item:?} is none of 80, 90a, sm_90a, compute_90, … (8.0 is the oldest)"
            ));
        }
        let architecture = Architecture { name: name.to_owned(), portable };
        if !architectures.contains(&architecture) {
            architectures.push(architecture);
        }
    }
    Ok(architectures)
}
