//! Deeply recursive work on a stack that is large enough: the calling thread's own, or that of a thread which is kept for such work.
//!
//! A host's threads may have small stacks, and starting a thread can take a second on a busy machine. So the loaded engines of a process
//! keep one thread together.

use std::cell::Cell;
use std::hint::black_box;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded};
use parking_lot::Mutex;

use crate::error::{Code, Error, Result};
use crate::forks;
use crate::llama::log::{self, Level};
use crate::llama::platform::stack_bounds;

/// The stack of the kept thread. Memory that no work has touched takes addresses only.
const KEPT_STACK: usize = 32 << 20;

static KEPT: Mutex<Weak<KeptThread>> = Mutex::new(Weak::new());

type DeepWork = Box<dyn FnOnce() + Send>;

/// The thread with a large stack. It ends with the last engine that keeps it.
pub struct KeptThread {
    /// `None`: the thread is ending, or could not be started.
    jobs: Option<Sender<DeepWork>>,
    thread: Option<JoinHandle<()>>,
    is_busy: AtomicBool,
}

impl KeptThread {
    /// Starts the thread, unless another engine keeps it already.
    pub fn keep() -> Arc<KeptThread> {
        let mut kept = KEPT.lock();
        kept.upgrade().unwrap_or_else(|| {
            let (jobs, queued): (Sender<DeepWork>, Receiver<DeepWork>) = bounded(1);
            let thread =
                forks::spawn_with_stack("foredraft-stack", KEPT_STACK, move || queued.iter().for_each(|job| job()));
            if let Err(error) = &thread {
                log::write(
                    Level::Warn,
                    &format!("cannot keep a thread for deeply nested texts and templates: {error}"),
                );
            }
            let thread = thread.ok();
            let started = Arc::new(KeptThread {
                jobs: thread.is_some().then_some(jobs),
                thread,
                is_busy: AtomicBool::new(false),
            });
            *kept = Arc::downgrade(&started);
            started
        })
    }

    /// Hands a job to the thread, unless it has one.
    fn offer(&self, job: DeepWork) -> std::result::Result<(), DeepWork> {
        let Some(jobs) = &self.jobs else { return Err(job) };
        if self.is_busy.swap(true, Ordering::AcqRel) {
            return Err(job);
        }
        jobs.send(job).map_err(|unsent| unsent.into_inner())
    }
}

impl Drop for KeptThread {
    fn drop(&mut self) {
        self.jobs = None;
        // Jobs do not panic.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// The stack in bytes that the calling thread has left. 0: unknown, for example because a coroutine of the host has its own.
pub fn left() -> usize {
    thread_local! {
        static BOUNDS: Cell<Option<Option<(usize, usize)>>> = const { Cell::new(None) };
    }
    let bounds = BOUNDS.with(|known| {
        let bounds = known.get().unwrap_or_else(stack_bounds);
        // A fiber of Windows changes its thread's bounds.
        if cfg!(not(windows)) {
            known.set(Some(bounds));
        }
        bounds
    });
    let local = 0_u8;
    let here = black_box(&raw const local).addr();
    bounds.filter(|(low, high)| (low..high).contains(&&here)).map_or(0, |(low, _)| here - low)
}

/// Runs `work` with a stack of at least `size` bytes, and waits for it: on the calling thread, else on the kept one, else, if that is busy or
/// too small, on a new one. `name` is the prefix of error messages.
///
/// # Errors
/// Those of `work`; `resource_exhausted`: no thread can be started, mostly for lack of memory for its stack; `internal`: `work` panicked on
/// another thread.
pub fn with<T: Send + 'static>(
    size: usize,
    name: &str,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    if left() >= size {
        return work();
    }
    let kept = (size <= KEPT_STACK).then(|| KEPT.lock().upgrade()).flatten();
    let (sender, result) = bounded(1);
    let job: DeepWork = Box::new(move || {
        // Fails if `work` panicked, and then the sender is dropped.
        let _ = catch_unwind(AssertUnwindSafe(work)).map(|result| sender.send(result));
    });
    let received = || result.recv().unwrap_or_else(|_| Err(Error::new(Code::Internal, format!("{name}: failed"))));
    let job = match kept {
        None => job,
        Some(kept) => match kept.offer(job) {
            Ok(()) => {
                let result = received();
                kept.is_busy.store(false, Ordering::Release);
                return result;
            }
            Err(job) => job,
        },
    };
    forks::spawn_with_stack("foredraft-stack", size, job)
        .map_err(|error| Error::exhausted(format!("{name}: no thread with a stack of {size} bytes: {error}")))?;
    received()
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Runs `work` on a thread with a stack of 128 KiB.
    fn on_a_small_stack<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> R {
        thread::Builder::new().stack_size(128 << 10).spawn(work).unwrap().join().unwrap()
    }

    fn running_thread(size: usize) -> thread::ThreadId {
        with(size, "test", || Ok(thread::current().id())).unwrap()
    }

    #[test]
    fn work_that_fits_runs_on_the_calling_thread() {
        let small = || (thread::current().id(), running_thread(16 << 10), left());
        let (own, ran, left) = on_a_small_stack(small);
        assert_eq!(ran, own);
        assert!((64 << 10..=128 << 10).contains(&left), "{left}");
    }

    #[test]
    fn deep_work_runs_on_the_kept_thread() {
        let _kept = KeptThread::keep();
        let ran = on_a_small_stack(|| [running_thread(8 << 20), running_thread(KEPT_STACK), thread::current().id()]);
        assert_eq!(ran[0], ran[1]);
        assert_ne!(ran[0], ran[2]);
    }

    #[test]
    fn busy_thread_keeps_nobody_waiting() {
        let _kept = KeptThread::keep();
        let nested = || Ok(on_a_small_stack(|| running_thread(8 << 20)));
        let outer =
            on_a_small_stack(move || with(8 << 20, "test", move || Ok((thread::current().id(), nested()?))).unwrap());
        assert_ne!(outer.0, outer.1);
    }

    #[test]
    fn panics_are_errors() {
        let _kept = KeptThread::keep();
        let result = on_a_small_stack(|| with::<()>(8 << 20, "test", || panic!("as the test wants")));
        assert_eq!(result.unwrap_err().code(), Code::Internal);
        assert_eq!(on_a_small_stack(|| with(8 << 20, "test", || Ok(7))).unwrap(), 7);
    }
}
