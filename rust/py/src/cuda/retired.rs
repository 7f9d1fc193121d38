//! What frames under way still read or write, kept until they have completed.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;

use overtone_cuda::driver::Entered;

use super::events::Mark;

/// Anything that keeps memory alive.
pub type Owner = Arc<dyn Any + Send + Sync>;

/// How many owners are let go by one call at most, so that no frame pays for many others.
const MOST_AT_ONCE: usize = 8;

/// Owners of memory, each with the end of the last frame that uses it. Frames of an executor run in the order of their
/// launches, so the first to wait for is the first to complete; behind a talker's step on a stream of its own, owners are let
/// go later than they could be.
#[derive(Debug, Default)]
pub struct Retired(VecDeque<(Arc<Mark>, Owner)>);

impl Retired {
    /// Keeps `owner` until the frame that `mark` ends has completed.
    pub fn push(&mut self, mark: Arc<Mark>, owner: Owner) {
        self.0.push_back((mark, owner));
    }

    /// Owners whose frames have completed, for the caller to drop outside of any lock: dropping may run Python code.
    /// Nothing waits.
    pub fn completed(&mut self, entered: &Entered<'_>) -> Vec<(Arc<Mark>, Owner)> {
        let mut completed = Vec::new();
        while completed.len() < MOST_AT_ONCE
            && let Some((mark, _)) = self.0.front()
            // A context that has failed runs nothing any more.
            && mark.event().is_complete(entered).unwrap_or(true)
        {
            completed.extend(self.0.pop_front());
        }
        completed
    }
}
