//! Stopping an evaluation from outside, at once or when a time has come.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What llama.cpp asks between the nodes of a graph: go on? Set from any thread, cleared by the thread that evaluates.
#[derive(Debug)]
pub struct Interrupt {
    raised: AtomicBool,
    /// Evaluations run to their end whatever is raised.
    held: AtomicBool,
    /// Nanoseconds after `start` at which evaluations stop by themselves; `u64::MAX`: never.
    deadline: AtomicU64,
    start: Instant,
}

impl Default for Interrupt {
    fn default() -> Self {
        Interrupt {
            raised: AtomicBool::new(false),
            held: AtomicBool::new(false),
            deadline: AtomicU64::new(u64::MAX),
            start: Instant::now(),
        }
    }
}

impl Interrupt {
    /// Stops the evaluation that runs, or else the next one.
    pub fn raise(&self) {
        self.raised.store(true, Ordering::Release);
    }

    /// Takes note of it: evaluations run again. Whoever clears it looks afterwards at why it was raised.
    pub fn clear(&self) {
        self.raised.store(false, Ordering::Release);
    }

    /// From `deadline` on evaluations stop; `None`: no such time.
    pub fn set_deadline(&self, deadline: Option<Instant>) {
        let nanos = deadline.map_or(u64::MAX, |deadline| nanos(deadline.saturating_duration_since(self.start)));
        self.deadline.store(nanos, Ordering::Relaxed);
    }

    /// While held, evaluations run to their end.
    pub(super) fn hold(&self, held: bool) {
        self.held.store(held, Ordering::Relaxed);
    }

    /// Whether the decode that runs is to stop.
    pub(super) fn stops_now(&self) -> bool {
        if self.held.load(Ordering::Relaxed) {
            return false;
        }
        if self.raised.load(Ordering::Acquire) {
            return true;
        }
        let deadline = self.deadline.load(Ordering::Relaxed);
        deadline != u64::MAX && nanos(self.start.elapsed()) >= deadline
    }

    /// llama.cpp's abort callback; `data` is an `Interrupt`.
    ///
    /// # Safety
    /// `data` points to an `Interrupt` that is alive during the call.
    pub(super) unsafe extern "C" fn callback(data: *mut c_void) -> bool {
        // SAFETY: the caller's promise; all fields are atomic or never written.
        unsafe { &*data.cast::<Interrupt>() }.stops_now()
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stops_when_raised_or_late() {
        let interrupt = Interrupt::default();
        assert!(!interrupt.stops_now());
        interrupt.raise();
        assert!(interrupt.stops_now());
        interrupt.clear();
        assert!(!interrupt.stops_now());
        interrupt.set_deadline(Some(interrupt.start));
        assert!(interrupt.stops_now());
        interrupt.set_deadline(Some(Instant::now() + Duration::from_secs(3600)));
        assert!(!interrupt.stops_now());
        interrupt.hold(true);
        interrupt.raise();
        assert!(!interrupt.stops_now(), "held");
        interrupt.hold(false);
        assert!(interrupt.stops_now(), "what was raised meanwhile counts afterwards");
        interrupt.clear();
        interrupt.set_deadline(None);
        assert!(!interrupt.stops_now());
    }
}
