//! What the kernels can run: checked against an architecture and a device before anything is allocated.

use overtone_core::spec::ModelSpec;

/// The most warps of a block of attention: one for each query of a key head.
const MOST_ATTENTION_WARPS: usize = 16;

/// The largest head (`MOST_HEAD_SIZE` of `kernels/attention.cu`).
const MOST_HEAD_SIZE: usize = 128;

/// The most positions of a frame (`MOST_SLOTS` of `kernels/attention.cuh`).
const MOST_POSITIONS: usize = 64;

/// An architecture that the kernels cannot run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the cuda executor cannot run this checkpoint: {what} is {found}, expected {expected}")]
pub struct Unsupported {
    /// The extent.
    pub what: &'static str,
    /// Its value.
    pub found: usize,
    /// What it would have to be.
    pub expected: String,
}

/// Checks an architecture's extents; shared memory follows from the launches and is checked with them.
///
/// # Errors
/// The first extent that does not fit.
pub fn check_architecture(spec: &ModelSpec) -> Result<(), Unsupported> {
    let multiple = |what: &'static str, found: usize, of: usize| match found.is_multiple_of(of) {
        true => Ok(()),
        false => Err(Unsupported { what, found, expected: format!("a multiple of {of}") }),
    };
    multiple("hidden_size", spec.hidden_size, 4)?;
    multiple("head_dim", spec.head_size, 8)?;
    if spec.head_size > MOST_HEAD_SIZE {
        let expected = format!("at most {MOST_HEAD_SIZE}");
        return Err(Unsupported { what: "head_dim", found: spec.head_size, expected });
    }
    multiple("intermediate_size", spec.mlp_width, 2)?;
    if spec.positions() > MOST_POSITIONS {
        let expected = format!("at most {MOST_POSITIONS}");
        return Err(Unsupported { what: "num_code_groups", found: spec.positions(), expected });
    }
    let (what, found) = ("queries per key head", spec.query_heads / spec.key_value_heads);
    if found > MOST_ATTENTION_WARPS {
        return Err(Unsupported { what, found, expected: format!("at most {MOST_ATTENTION_WARPS}") });
    }
    Ok(())
}

/// Checks that a device has the shared memory a block needs.
///
/// # Errors
/// [`Unsupported`] when it has less.
pub fn check_shared_memory(needed: u32, available: usize) -> Result<(), Unsupported> {
    if needed as usize <= available {
        return Ok(());
    }
    let what = "shared memory of a block, in bytes,";
    Err(Unsupported { what, found: needed as usize, expected: format!("at most {available} on this device") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use overtone_core::checkpoint::synthetic::Architecture;

    #[test]
    fn the_published_architectures_are_supported() {
        for name in Architecture::NAMES {
            let spec = name.parse::<Architecture>().expect("listed").spec();
            assert_eq!(check_architecture(&spec), Ok(()));
        }
    }

    #[test]
    fn an_odd_head_is_refused_by_name() {
        let mut spec = Architecture::Qwen3Tts06B.spec();
        spec.head_size = 20;
        assert_eq!(check_architecture(&spec).map_err(|error| error.what), Err("head_dim"));
        assert!(check_shared_memory(232_449, 232_448).is_err());
    }
}
