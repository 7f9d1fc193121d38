//! Reads what ptxas says each kernel takes (`-Xptxas -v`).

/// What one kernel takes on one architecture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    pub kernel: String,
    pub architecture: String,
    pub registers: u32,
    pub stack_bytes: u32,
    pub spill_store_bytes: u32,
    pub spill_load_bytes: u32,
    pub shared_bytes: u32,
    pub constant_bytes: u32,
}

/// Reads the log of one compilation, which may be for several architectures. A function that was not inlined counts to the
/// kernel that ptxas compiled with it.
pub fn parse(log: &str) -> Result<Vec<Resources>, String> {
    let mut table: Vec<Resources> = Vec::new();
    for line in log.lines() {
        let fact = line.trim().trim_start_matches("ptxas info").trim_start_matches([' ', ':']);
        if let Some(rest) = fact.strip_prefix("Compiling entry function '") {
            let names = rest.trim_end_matches('\'').split_once("' for '");
            let (kernel, architecture) = names.ok_or_else(|| unreadable(line))?;
            table.push(Resources {
                kernel: kernel.to_owned(),
                architecture: architecture.to_owned(),
                ..Resources::default()
            });
            continue;
        }
        let is_registers = fact.starts_with("Used ") && fact.contains("registers");
        if !is_registers && !fact.contains("bytes stack frame") {
            continue;
        }
        let entry = table.last_mut().ok_or_else(|| unreadable(line))?;
        for part in fact.split(',') {
            record(entry, part.trim()).ok_or_else(|| unreadable(line))?;
        }
    }
    match table.iter().find(|entry| entry.registers == 0) {
        Some(entry) => Err(format!("ptxas does not say how many registers {} takes", entry.kernel)),
        None => Ok(table),
    }
}

/// Enters one part of a line, such as `16 bytes spill stores`; `None` when it holds no number.
fn record(entry: &mut Resources, part: &str) -> Option<()> {
    let number = part.split_ascii_whitespace().find_map(|word| word.parse::<u32>().ok())?;
    if part.ends_with("registers") {
        entry.registers = entry.registers.max(number);
    } else if part.ends_with("bytes stack frame") || part.ends_with("bytes cumulative stack size") {
        entry.stack_bytes = entry.stack_bytes.max(number);
    } else if part.ends_with("bytes spill stores") {
        entry.spill_store_bytes += number;
    } else if part.ends_with("bytes spill loads") {
        entry.spill_load_bytes += number;
    } else if part.ends_with("bytes smem") {
        entry.shared_bytes = number;
    } else if part.contains("bytes cmem[") {
        entry.constant_bytes += number;
    }
    Some(())
}

fn unreadable(line: &str) -> String {
    format!("ptxas says what is not understood: {line:?}")
}
