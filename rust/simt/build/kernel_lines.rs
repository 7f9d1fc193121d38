//! Finds the kernels of a CUDA file: the lines that begin with `KERNEL(name, Arguments, maximum_threads, minimum_blocks)`.

/// A kernel as its line declares it; the texts are C++.
#[derive(Debug, PartialEq, Eq)]
pub struct KernelLine {
    pub name: String,
    pub arguments: String,
    pub maximum_threads: String,
}

/// The kernels that `source` declares, in order. The error is a sentence with the line's number.
pub fn kernel_lines(source: &str) -> Result<Vec<KernelLine>, String> {
    const MACRO: &str = "KERNEL(";
    let mut found = Vec::new();
    let mut start = 0;
    for (number, line) in source.split_inclusive('\n').enumerate() {
        if line.starts_with(MACRO) {
            let inner = &source[start + MACRO.len()..];
            let parts = parts_in_parentheses(inner)
                .ok_or_else(|| format!("line {}: KERNEL( is not closed", number + 1))?;
            let [name, arguments, maximum_threads, _] = parts.as_slice() else {
                return Err(format!(
                    "line {}: KERNEL takes (name, Arguments, maximum_threads, minimum_blocks), found {} parts",
                    number + 1,
                    parts.len()
                ));
            };
            found.push(KernelLine {
                name: (*name).to_owned(),
                arguments: (*arguments).to_owned(),
                maximum_threads: (*maximum_threads).to_owned(),
            });
        }
        start += line.len();
    }
    Ok(found)
}

/// Splits at the commas outside inner parentheses, up to the closing one.
fn parts_in_parentheses(text: &str) -> Option<Vec<&str>> {
    let mut parts = Vec::new();
    let (mut depth, mut start) = (0_usize, 0);
    for (at, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' if depth == 0 => {
                parts.push(text[start..at].trim());
                return Some(parts);
            }
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    None
}
