//! The state that the library shares with the process of its host: the host's callbacks here, whether the process was [forked](forks), and the
//! [state of threads](thread_state). Nothing here knows a layer above it.
//!
//! This module also detects calls from inside a callback.
//! A function that waits for the engine must not be called from a callback that the engine waits for. Every callback runs
//! inside [`call`]; such functions check [`inside`] and return an error.

pub mod forks;
#[allow(unsafe_code)]
pub mod thread_state;

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::RwLock;

use crate::thread_state::StandardFloats;

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Callbacks that were begun, and those of them that run now.
static BEGUN: AtomicU64 = AtomicU64::new(0);
static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// Notifies the host of an update through its file descriptor. Returns false if the reader has closed it.
pub type Notice = Box<dyn Fn() -> bool + Send + Sync>;

/// Runs a host's callback. What it changes in how this thread computes is undone.
pub fn call<R>(callback: impl FnOnce() -> R) -> R {
    struct Leave;
    impl Drop for Leave {
        fn drop(&mut self) {
            DEPTH.with(|depth| depth.set(depth.get() - 1));
            RUNNING.fetch_sub(1, Ordering::AcqRel);
        }
    }
    DEPTH.with(|depth| depth.set(depth.get() + 1));
    BEGUN.fetch_add(1, Ordering::AcqRel);
    RUNNING.fetch_add(1, Ordering::AcqRel);
    let _leave = Leave;
    let _floats = StandardFloats::new();
    callback()
}

/// Whether this thread is inside a host's callback.
pub fn inside() -> bool {
    DEPTH.with(|depth| depth.get() > 0)
}

/// The number of the newest callback, while one runs. If the same is returned later, none has begun since, and one that ran
/// then may run still.
pub fn running() -> Option<u64> {
    (RUNNING.load(Ordering::Acquire) > 0).then(|| BEGUN.load(Ordering::Acquire))
}

/// A callback of the host. It may be replaced at any time, also while it runs and from inside itself.
#[derive(Debug)]
pub struct Hook<F: ?Sized>(RwLock<Option<Arc<Gate<F>>>>);

/// The callback; callers hold the read lock while it runs.
type Gate<F> = RwLock<Option<Box<F>>>;

impl<F: ?Sized> Hook<F> {
    /// No callback yet.
    pub const fn new() -> Self {
        Hook(RwLock::new(None))
    }

    /// Replaces the callback. When this returns, the previous callback is not running and has been dropped. Exception: when
    /// called from inside a callback, the previous one may still be running, on this thread or another.
    pub fn set(&self, callback: Option<Box<F>>) {
        let new = callback.map(|callback| Arc::new(RwLock::new(Some(callback))));
        let old = std::mem::replace(&mut *self.0.write(), new);
        if let (Some(old), false) = (old, inside()) {
            old.write().take();
        }
    }

    /// Whether there is a callback.
    pub fn is_set(&self) -> bool {
        self.0.read_recursive().is_some()
    }

    /// Passes the callback to `using`. Returns false if there is none.
    pub fn with(&self, using: impl FnOnce(&F)) -> bool {
        let Some(gate) = self.0.read_recursive().clone() else { return false };
        // Recursive, because a callback may call the library, which calls back while `set` waits for the write lock.
        let gate = gate.read_recursive();
        let Some(callback) = gate.as_ref() else { return false };
        call(|| using(callback));
        true
    }
}

impl<F: ?Sized> Default for Hook<F> {
    fn default() -> Self {
        Hook::new()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn callback_can_be_replaced_from_inside_itself() {
        static HOOK: Hook<dyn Fn(u32) + Send + Sync> = Hook::new();
        static SEEN: AtomicU32 = AtomicU32::new(0);
        assert!(!HOOK.with(|f| f(1)), "nothing is set");
        HOOK.set(Some(Box::new(|n| {
            assert!(inside());
            SEEN.fetch_add(n, Ordering::Relaxed);
            HOOK.set(Some(Box::new(|n| {
                SEEN.fetch_add(100 * n, Ordering::Relaxed);
            })));
        })));
        assert!(HOOK.with(|f| f(1)));
        assert!(HOOK.with(|f| f(2)));
        assert_eq!(SEEN.load(Ordering::Relaxed), 201);
        assert!(!inside());
        HOOK.set(None);
        assert!(!HOOK.with(|f| f(1)));
    }

    #[test]
    fn set_waits_for_the_previous_callback() {
        static HOOK: Hook<dyn Fn() + Send + Sync> = Hook::new();
        let (entered, wait_entered) = crossbeam_channel::bounded::<()>(0);
        let (leave, wait_leave) = crossbeam_channel::bounded::<()>(0);
        let done = Arc::new(AtomicU32::new(0));
        let seen = Arc::clone(&done);
        HOOK.set(Some(Box::new(move || {
            entered.send(()).unwrap();
            wait_leave.recv().unwrap();
            seen.store(1, Ordering::SeqCst);
        })));
        let caller = std::thread::spawn(|| HOOK.with(|f| f()));
        wait_entered.recv().unwrap();
        let setter = std::thread::spawn(move || {
            HOOK.set(None);
            done.load(Ordering::SeqCst)
        });
        leave.send(()).unwrap();
        assert_eq!(setter.join().unwrap(), 1, "set returned while the old callback was running");
        caller.join().unwrap();
    }
}
