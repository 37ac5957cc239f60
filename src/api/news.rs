//! News of a server's requests, for polls that wait for several of them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::engine::Notify;

/// Wakes those that wait for news of any request.
#[derive(Default)]
pub(super) struct News {
    counter: Mutex<u64>,
    changed: Condvar,
}

impl News {
    fn announce(&self) {
        *self.counter.lock() += 1;
        self.changed.notify_all();
    }

    /// How much news there has been.
    pub(super) fn seen(&self) -> u64 {
        *self.counter.lock()
    }

    /// Waits until there is news that was not `seen`, or `deadline`.
    pub(super) fn wait(&self, seen: u64, deadline: Instant) {
        // An end that another thread brings about (a cancel in the queue) is announced only when the engine looks next.
        const GLANCE: Duration = Duration::from_millis(50);
        let deadline = deadline.min(Instant::now() + GLANCE);
        let mut counter = self.counter.lock();
        while *counter == seen {
            if self.changed.wait_until(&mut counter, deadline).timed_out() {
                return;
            }
        }
    }
}

/// The callback of an engine's requests, which announces their news as well.
pub(super) fn announcing(news: &Arc<News>, notify: Arc<Notify>) -> Arc<Notify> {
    let news = Arc::clone(news);
    Arc::new(move |id| {
        news.announce();
        notify(id);
    })
}
