//! The executor's threads: a team that shares out one loop after another.
//!
//! A frame is some three hundred short loops with a little serial work between them. A general pool lets its idle
//! threads sleep in those gaps, and waking them costs more than many of the loops; here they spin for as long as a
//! gap within a frame lasts, and sleep between frames.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long an idle thread spins before it sleeps.
const SPIN: Duration = Duration::from_micros(500);

/// Spins between two looks at the clock, after which the core is offered to others.
const SPINS_PER_LOOK: usize = 256;

/// A loop body that workers call until its items are used up.
type Job = dyn Fn() + Sync;

/// The calling thread and its helpers.
#[derive(Debug)]
pub struct Team {
    shared: Arc<Shared>,
    helpers: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    /// Number of the loop under way; helpers spin on it.
    loop_number: AtomicUsize,
    /// Helpers that have not finished the loop under way.
    unfinished: AtomicUsize,
    /// Whether a helper's part of the loop panicked.
    panicked: AtomicBool,
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Debug)]
struct State {
    job: Option<JobPointer>,
    sleepers: usize,
    closing: bool,
}

/// A borrowed job whose lifetime [`Team::run`] vouches for.
#[derive(Clone, Copy, Debug)]
struct JobPointer(*const Job);

// SAFETY: the job is `Sync`, so it may be called from any thread; that it is alive is `Team::run`'s promise.
unsafe impl Send for JobPointer {}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Spins until `done`, offering the core to others now and then. False when `limit` passed first.
fn spin_until(limit: Option<Duration>, done: impl Fn() -> bool) -> bool {
    let started = Instant::now();
    loop {
        for _ in 0..SPINS_PER_LOOK {
            if done() {
                return true;
            }
            std::hint::spin_loop();
        }
        if limit.is_some_and(|limit| started.elapsed() > limit) {
            return false;
        }
        std::thread::yield_now();
    }
}

impl Team {
    /// A team of `threads`, the calling one included.
    ///
    /// # Errors
    /// The operating system refuses a thread.
    pub fn new(threads: usize) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            loop_number: AtomicUsize::new(0),
            unfinished: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            state: Mutex::new(State { job: None, sleepers: 0, closing: false }),
            wake: Condvar::new(),
        });
        let mut team = Self { shared, helpers: Vec::new() };
        for index in 1..threads {
            let shared = Arc::clone(&team.shared);
            let helper = std::thread::Builder::new().name(format!("overtone-{index}"));
            // On an error, dropping `team` ends those already started.
            team.helpers.push(helper.spawn(move || shared.help())?);
        }
        Ok(team)
    }

    /// Threads, the calling one included.
    pub fn threads(&self) -> usize {
        self.helpers.len() + 1
    }

    /// Calls `work` with every item, on all threads, in no particular order. Returns when all are done.
    ///
    /// # Panics
    /// When `work` does; all threads have left the loop by then.
    pub fn for_each<I: Iterator + Send>(&mut self, items: I, work: impl Fn(I::Item) + Sync) {
        if items.size_hint().1.is_some_and(|most| most <= 1) {
            return items.for_each(work);
        }
        let items = Mutex::new(items);
        let next = || items.lock().unwrap_or_else(PoisonError::into_inner).next();
        self.run(&|| {
            while let Some(item) = next() {
                work(item);
            }
        });
    }

    /// Runs `job` once on every thread.
    fn run(&mut self, job: &(dyn Fn() + Sync)) {
        if self.helpers.is_empty() {
            return job();
        }
        // SAFETY: only the lifetime changes. `self` is borrowed mutably, so no other loop is under way; below we wait
        // for every helper to be done with the job, also when our own part panics, before the borrow ends.
        let job_pointer =
            JobPointer(unsafe { std::mem::transmute::<*const (dyn Fn() + Sync + '_), *const Job>(job) });
        let shared = &*self.shared;
        shared.unfinished.store(self.helpers.len(), Ordering::Relaxed);
        let mut state = lock(&shared.state);
        state.job = Some(job_pointer);
        shared.loop_number.fetch_add(1, Ordering::Release);
        let sleepers = state.sleepers;
        drop(state);
        if sleepers > 0 {
            shared.wake.notify_all();
        }
        let ours = catch_unwind(AssertUnwindSafe(job));
        spin_until(None, || shared.unfinished.load(Ordering::Acquire) == 0);
        lock(&shared.state).job = None;
        if let Err(payload) = ours {
            resume_unwind(payload);
        }
        assert!(!shared.panicked.swap(false, Ordering::Relaxed), "a helper thread panicked");
    }
}

impl Shared {
    /// A helper's life: wait for a loop, take part, say so.
    fn help(&self) {
        let mut seen = 0;
        loop {
            let started = || self.loop_number.load(Ordering::Acquire) != seen;
            spin_until(Some(SPIN), started);
            let mut state = lock(&self.state);
            while !started() && !state.closing {
                state.sleepers += 1;
                state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.sleepers -= 1;
            }
            if state.closing {
                return;
            }
            seen = self.loop_number.load(Ordering::Acquire);
            let Some(JobPointer(job)) = state.job else { continue };
            drop(state);
            // SAFETY: `Team::run` keeps the job alive until `unfinished` is 0, which needs this thread's step below;
            // it starts no other loop before, so `seen` is this job's number.
            let job = unsafe { &*job };
            if catch_unwind(AssertUnwindSafe(job)).is_err() {
                self.panicked.store(true, Ordering::Relaxed);
            }
            self.unfinished.fetch_sub(1, Ordering::Release);
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        lock(&self.shared.state).closing = true;
        self.shared.wake.notify_all();
        for helper in self.helpers.drain(..) {
            // A helper catches every panic of a job and has none of its own to report.
            let _ = helper.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_is_worked_on_exactly_once() {
        for threads in [1, 2, 5] {
            let mut team = Team::new(threads).unwrap();
            for count in (0..300).chain([5000]) {
                let mut items = vec![0_u32; count];
                team.for_each(items.iter_mut(), |item| *item += 1);
                assert!(items.iter().all(|&item| item == 1), "{threads} threads, {count} items");
            }
        }
    }

    #[test]
    fn helpers_that_fell_asleep_wake_up() {
        let mut team = Team::new(3).unwrap();
        for _ in 0..5 {
            std::thread::sleep(4 * SPIN);
            let done = AtomicUsize::new(0);
            team.for_each(0..1000, |_| {
                done.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(done.into_inner(), 1000);
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_leaves_the_team_usable() {
        let mut team = Team::new(3).unwrap();
        for victim in [0, 1, 99] {
            let panicking = catch_unwind(AssertUnwindSafe(|| {
                team.for_each(0..100, |item| assert!(item != victim, "planned"));
            }));
            assert!(panicking.is_err(), "{victim}");
            let done = AtomicUsize::new(0);
            team.for_each(0..100, |_| {
                done.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(done.into_inner(), 100);
        }
    }
}
