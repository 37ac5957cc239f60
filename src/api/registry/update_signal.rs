//! Wakes polls that wait for several requests.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::engine::Notify;

/// A counter of updates of any request, with a condition variable.
#[derive(Default)]
pub(in crate::api) struct UpdateSignal {
    count: Mutex<u64>,
    changed: Condvar,
}

impl UpdateSignal {
    fn signal(&self) {
        *self.count.lock() += 1;
        self.changed.notify_all();
    }

    /// The number of updates so far.
    pub(in crate::api) fn count(&self) -> u64 {
        *self.count.lock()
    }

    /// Waits until the count differs from `seen`, but not beyond `deadline`, and at most 50 ms.
    pub(in crate::api) fn wait(&self, seen: u64, deadline: Instant) {
        // If another thread ends a queued request, the engine signals it only when it next looks at its queue.
        const MAX_WAIT: Duration = Duration::from_millis(50);
        let deadline = deadline.min(Instant::now() + MAX_WAIT);
        let mut count = self.count.lock();
        while *count == seen {
            if self.changed.wait_until(&mut count, deadline).timed_out() {
                return;
            }
        }
    }
}

/// A callback for the engine that signals, and then calls `notify`.
pub(in crate::api) fn notify_and_signal(signal: &Arc<UpdateSignal>, notify: Arc<Notify>) -> Arc<Notify> {
    let signal = Arc::clone(signal);
    Arc::new(move |id| {
        signal.signal();
        notify(id);
    })
}
