//! The work that a text of a host, a file or a template may cause: steps, counted where the text comes from.
//!
//! One [`Work`] is made for each such text and passed to every pass over it. A pass counts its steps before it takes them, and ends with the
//! first error. So passes need no limits of their own, and none can ignore a cancel.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::error::Code;

/// Asked every few thousand steps, until it says "stop" (true).
pub type StopSignal = Arc<dyn Fn() -> bool + Send + Sync>;

/// The steps between two questions to the signal: less than a millisecond.
const STEPS_PER_QUESTION: u64 = 4096;

/// Steps that are left, and the signal that ends them early. Copies share both.
#[derive(Clone)]
pub struct Work(Arc<SharedWork>);

struct SharedWork {
    steps: u64,
    left: AtomicU64,
    stop: Option<StopSignal>,
    is_stopped: AtomicBool,
}

/// Why no further step may be taken. All later steps fail, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkEnd {
    /// All of this many steps are taken.
    UsedUp(u64),
    /// The signal said so.
    Stopped,
}

impl Work {
    /// At most this many steps. A step takes some 100 ns.
    #[must_use]
    pub fn new(steps: u64, stop: Option<StopSignal>) -> Work {
        Work(Arc::new(SharedWork { steps, left: AtomicU64::new(steps), stop, is_stopped: AtomicBool::new(false) }))
    }

    /// Any number of steps, for texts of our own.
    #[must_use]
    pub fn unlimited() -> Work {
        Work::new(u64::MAX, None)
    }

    /// Counts steps that are about to be taken.
    ///
    /// # Errors
    /// They may not be taken.
    pub fn step(&self, n: usize) -> Result<(), WorkEnd> {
        let shared = &*self.0;
        let before = shared.left.load(Ordering::Relaxed);
        let left = before.saturating_sub(n as u64);
        shared.left.store(left, Ordering::Relaxed);
        let is_due = before / STEPS_PER_QUESTION != left / STEPS_PER_QUESTION;
        if shared.is_stopped.load(Ordering::Relaxed) || is_due && shared.stop.as_ref().is_some_and(|is_over| is_over())
        {
            shared.is_stopped.store(true, Ordering::Relaxed);
            return Err(WorkEnd::Stopped);
        }
        if before < n as u64 { Err(WorkEnd::UsedUp(shared.steps)) } else { Ok(()) }
    }

    /// The steps that were taken.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.0.steps - self.0.left.load(Ordering::Relaxed)
    }
}

impl std::fmt::Debug for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Work({} of {} steps)", self.taken(), self.0.steps)
    }
}

impl std::fmt::Display for WorkEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            WorkEnd::UsedUp(steps) => write!(f, "takes more than {steps} steps to read"),
            WorkEnd::Stopped => f.write_str("was interrupted"),
        }
    }
}

impl WorkEnd {
    /// The code of the error that a host gets.
    #[must_use]
    pub fn code(self) -> Code {
        match self {
            WorkEnd::UsedUp(_) => Code::InvalidRequest,
            WorkEnd::Stopped => Code::Cancelled,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn no_step_is_taken_after_the_last_one() {
        let work = Work::new(10, None);
        assert_eq!((work.step(4), work.clone().step(6)), (Ok(()), Ok(())));
        assert_eq!((work.step(1), work.step(0)), (Err(WorkEnd::UsedUp(10)), Ok(())));
        let work = Work::new(10, None);
        assert_eq!((work.step(11), work.step(1)), (Err(WorkEnd::UsedUp(10)), Err(WorkEnd::UsedUp(10))));
    }

    #[test]
    fn the_signal_is_asked_often_and_ends_all_copies() {
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&asked);
        let work = Work::new(1 << 20, Some(Arc::new(move || counted.fetch_add(1, Ordering::Relaxed) == 2)));
        let copy = work.clone();
        assert!((0..1 << 20).any(|_| work.step(1).is_err()));
        assert!(work.taken() <= 3 * STEPS_PER_QUESTION);
        // It is not asked again.
        assert_eq!((copy.step(0), copy.step(1 << 14)), (Err(WorkEnd::Stopped), Err(WorkEnd::Stopped)));
        assert_eq!(asked.load(Ordering::Relaxed), 3);
    }
}
