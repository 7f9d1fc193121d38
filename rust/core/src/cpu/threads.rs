//! How many threads run a frame, and the pool they live in.

use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};

/// The environment variable that sets the number of threads where the caller does not.
pub const THREADS_VARIABLE: &str = "OVERTONE_NUM_THREADS";

/// A number of threads that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ThreadsError {
    /// The variable is set to something that is not a positive number.
    #[error("{THREADS_VARIABLE}: found {found:?}, expected a whole number from 1 to {MAX_THREADS}")]
    Variable {
        /// Its value.
        found: String,
    },
    /// The caller asked for none, or for absurdly many.
    #[error("threads: found {found}, expected 1 to {MAX_THREADS}")]
    OutOfRange {
        /// What was asked for.
        found: usize,
    },
    /// The operating system refused.
    #[error("the thread pool could not be started")]
    Start(#[from] ThreadPoolBuildError),
}

/// More threads than any machine's memory needs; a typing error above it.
pub const MAX_THREADS: usize = 1024;

/// Starts a predictor's own pool: of `threads`, else as `OVERTONE_NUM_THREADS` says, else of every core this
/// process may use.
pub fn start_pool(threads: Option<usize>) -> Result<ThreadPool, ThreadsError> {
    let threads = match threads {
        Some(threads) => threads,
        None => match std::env::var_os(THREADS_VARIABLE) {
            Some(value) => {
                let value = value.to_string_lossy().into_owned();
                value.trim().parse().map_err(|_| ThreadsError::Variable { found: value })?
            }
            None => std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS),
        },
    };
    if !(1..=MAX_THREADS).contains(&threads) {
        return Err(ThreadsError::OutOfRange { found: threads });
    }
    Ok(ThreadPoolBuilder::new()
        .num_threads(threads)
        .thread_name(|index| format!("overtone-{index}"))
        .build()?)
}
