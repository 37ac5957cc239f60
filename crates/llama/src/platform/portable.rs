//! macOS and other systems: threads keep their settings, and what is not portable is unknown.

use std::fs::Metadata;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::identity::FileIdentity;
use crate::platform::cpus::{CpuSet, ThreadPriority};

pub(crate) use self::UnknownScheduling as Scheduling;
pub(crate) use super::nothing_ahead::NothingAhead as ReadAhead;
pub(crate) use super::unix::{clock_ns, file_identity, n_cores_online, own_file, stack_bounds, thread_cpu_time};

/// Whether a thread inherits an idle priority from the one that starts it.
pub(crate) const INHERITS_IDLE: bool = false;

/// ggml places the threads of its pools. The calling thread has a class of quality of service on macOS, and does not change elsewhere.
#[derive(Clone, Copy)]
pub(crate) struct UnknownScheduling {
    #[cfg(target_vendor = "apple")]
    class: libc::qos_class_t,
}

#[cfg(target_vendor = "apple")]
unsafe extern "C" {
    fn qos_class_self() -> libc::qos_class_t;
}

#[cfg(target_vendor = "apple")]
impl UnknownScheduling {
    pub(crate) fn of_this_thread() -> Option<Self> {
        // SAFETY: returns a value of the calling thread.
        Some(UnknownScheduling { class: unsafe { qos_class_self() } })
    }

    pub(crate) fn with(self, priority: ThreadPriority, _: &CpuSet) -> Self {
        match priority {
            ThreadPriority::Idle => UnknownScheduling { class: libc::qos_class_t::QOS_CLASS_BACKGROUND },
            _ => self,
        }
    }

    pub(crate) fn apply(&self) -> bool {
        // SAFETY: takes values. A thread without a class cannot get that again, and keeps its class.
        matches!(self.class, libc::qos_class_t::QOS_CLASS_UNSPECIFIED)
            || unsafe { libc::pthread_set_qos_class_self_np(self.class, 0) } == 0
    }
}

#[cfg(not(target_vendor = "apple"))]
impl UnknownScheduling {
    pub(crate) fn of_this_thread() -> Option<Self> {
        None
    }

    pub(crate) fn with(self, _: ThreadPriority, _: &CpuSet) -> Self {
        self
    }

    pub(crate) fn apply(&self) -> bool {
        true
    }
}

/// For all words, because they seldom wait at the same time.
static SLEEPERS: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());

/// Sleeps while the word has this value, until a wake-up or for `timeout`. It may also return for no reason.
pub(crate) fn sleep_on(word: &AtomicU32, value: u32, timeout: Option<Duration>) {
    let mut guard = SLEEPERS.0.lock();
    if word.load(Ordering::SeqCst) == value {
        match timeout {
            Some(timeout) => _ = SLEEPERS.1.wait_for(&mut guard, timeout),
            None => SLEEPERS.1.wait(&mut guard),
        }
    }
}

/// As `wake_all`, because a thread that sleeps on another word might be the one.
pub(crate) fn wake_one(word: &AtomicU32) {
    wake_all(word);
}

/// Wakes all threads that sleep on the word.
pub(crate) fn wake_all(_: &AtomicU32) {
    // A thread that has seen the old value holds the lock until it sleeps.
    drop(SLEEPERS.0.lock());
    SLEEPERS.1.notify_all();
}

/// Empty: unknown.
pub(crate) fn allowed_cpus() -> Vec<usize> {
    Vec::new()
}

/// `None`: unknown.
pub(crate) fn physical_cores(_: &[usize]) -> Option<usize> {
    None
}

/// `None`: models are not loaded from descriptors here.
pub(crate) fn identity_of_descriptor(_: i32) -> Option<(Metadata, FileIdentity)> {
    None
}

/// `None`: unknown.
pub(crate) fn available_memory() -> Option<u64> {
    None
}

/// Pages are left to the system.
pub(crate) fn give_back_pages(_: &[PathBuf], _: impl Fn(usize) -> bool) {}

/// The linker keeps the library on most systems (`build.rs`), but not on macOS.
pub fn keep_loaded() {}

/// Not known.
pub(crate) fn memory_limit() -> Option<u64> {
    None
}
