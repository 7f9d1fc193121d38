//! How many threads run a frame.

use super::team::Team;

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
    #[error("a thread could not be started")]
    Start(#[from] std::io::Error),
}

/// More threads than any machine's memory needs; a typing error above it.
pub const MAX_THREADS: usize = 1024;

/// Starts a predictor's own team: of `threads`, else as `OVERTONE_NUM_THREADS` says, else of every core this process
/// may use.
///
/// # Errors
/// The number is out of range, the variable is no number, or the operating system refuses a thread.
pub fn start_team(threads: Option<usize>) -> Result<Team, ThreadsError> {
    let threads = match threads {
        Some(threads) => threads,
        None => match std::env::var_os(THREADS_VARIABLE) {
            Some(value) => {
                let value = value.to_string_lossy().into_owned();
                let number = value.trim().parse().ok().filter(|number| (1..=MAX_THREADS).contains(number));
                number.ok_or(ThreadsError::Variable { found: value })?
            }
            None => std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS),
        },
    };
    if !(1..=MAX_THREADS).contains(&threads) {
        return Err(ThreadsError::OutOfRange { found: threads });
    }
    Ok(Team::new(threads)?)
}
