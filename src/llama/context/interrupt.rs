//! Stops a decode from another thread, or at a deadline.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The state behind llama.cpp's abort callback, which runs between the nodes of a graph. Any thread can raise it; the thread that
/// decodes clears it.
#[derive(Debug)]
pub struct Interrupt {
    raised: AtomicBool,
    /// Decodes run to their end, even if the interrupt is raised.
    held: AtomicBool,
    /// The deadline of decodes in nanoseconds after `start`. `u64::MAX`: none.
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
    /// Stops the running decode, or the next one.
    pub fn raise(&self) {
        self.raised.store(true, Ordering::Release);
    }

    /// Clears it, so that decodes run again. The caller has to check the reason afterwards, so that none is missed.
    pub fn clear(&self) {
        self.raised.store(false, Ordering::Release);
    }

    /// Sets the time at which decodes stop. `None`: no deadline.
    pub fn set_deadline(&self, deadline: Option<Instant>) {
        let nanos = deadline.map_or(u64::MAX, |deadline| nanos(deadline.saturating_duration_since(self.start)));
        self.deadline.store(nanos, Ordering::Relaxed);
    }

    /// While held, decodes run to their end.
    pub(in crate::llama) fn hold(&self, held: bool) {
        self.held.store(held, Ordering::Relaxed);
    }

    /// Whether the running decode must stop.
    pub(in crate::llama) fn stops_now(&self) -> bool {
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
    pub(in crate::llama) unsafe extern "C" fn callback(data: *mut c_void) -> bool {
        // SAFETY: guaranteed by the caller. All fields are atomic or never written.
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
        assert!(interrupt.stops_now(), "an interrupt raised while held takes effect afterwards");
        interrupt.clear();
        interrupt.set_deadline(None);
        assert!(!interrupt.stops_now());
    }
}
