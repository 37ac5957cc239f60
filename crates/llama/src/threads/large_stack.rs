//! Deeply recursive work on a stack that is large enough: the calling thread's own, or that of a thread which is kept for such work.
//!
//! A host's threads may have small stacks, and starting a thread can take a second on a busy machine. So the loaded engines of a process
//! keep threads together. There is always one more than there is work, which they start themselves: a call that needs one starts none, and
//! does not wait for the work of another call.

use std::cell::Cell;
use std::hint::black_box;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use parking_lot::Mutex;

use crate::log::{self, Level};
use crate::platform::stack_bounds;
use foredraft_base::error::{Code, Error, Result};
use foredraft_host::forks;

/// The stack of a kept thread. Memory that no work has touched takes addresses only.
const KEPT_STACK: usize = 32 << 20;
/// The threads that are kept while there is no work.
const IDLE: usize = 2;

static KEPT: Mutex<Weak<KeptThreads>> = Mutex::new(Weak::new());
/// Locked while the first threads are started. Work takes [`KEPT`] alone, which nothing holds for long.
static STARTING: Mutex<()> = Mutex::new(());

type DeepWork = Box<dyn FnOnce() + Send>;

enum StackJob {
    Run(DeepWork),
    StartThread,
}

/// The threads with a large stack. They end with the last engine that keeps them.
pub struct KeptThreads {
    /// `None`: the threads are ending.
    jobs: Option<Sender<StackJob>>,
    pool: Arc<Pool>,
}

struct Pool {
    queued: Receiver<StackJob>,
    counts: Mutex<ThreadCounts>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Default)]
struct ThreadCounts {
    /// The threads, those included that are to be started.
    threads: usize,
    /// The work that is queued or runs.
    work: usize,
}

impl KeptThreads {
    /// Starts the threads, unless another engine keeps them already.
    pub fn keep() -> Arc<KeptThreads> {
        let _starting = STARTING.lock();
        if let Some(kept) = KEPT.lock().upgrade() {
            return kept;
        }
        let (jobs, queued) = unbounded();
        let pool = Arc::new(Pool { queued, counts: Mutex::default(), threads: Mutex::default() });
        for _ in 0..IDLE {
            pool.counts.lock().threads += 1;
            pool.start_thread();
        }
        let started = Arc::new(KeptThreads { jobs: Some(jobs), pool });
        *KEPT.lock() = Arc::downgrade(&started);
        started
    }

    /// Queues work. Fails without threads.
    fn offer(&self, work: DeepWork) -> std::result::Result<(), DeepWork> {
        let Some(jobs) = &self.jobs else { return Err(work) };
        let is_last = {
            let mut counts = self.pool.counts.lock();
            if counts.threads == 0 {
                return Err(work);
            }
            counts.work += 1;
            let is_last = counts.threads <= counts.work;
            counts.threads += usize::from(is_last);
            is_last
        };
        // First in the queue, so that the work cannot leave it without a thread. Sending fails only if the receiver is gone, which the pool has.
        if is_last {
            let _ = jobs.send(StackJob::StartThread);
        }
        let _ = jobs.send(StackJob::Run(work));
        Ok(())
    }
}

impl Pool {
    /// Starts a thread that is counted already.
    fn start_thread(self: &Arc<Pool>) {
        match self.spawn() {
            Ok(started) => {
                let mut threads = self.threads.lock();
                // Those that found too little work.
                for ended in threads.extract_if(.., |thread| thread.is_finished()) {
                    // Work does not panic.
                    let _ = ended.join();
                }
                threads.push(started);
            }
            Err(error) => {
                self.counts.lock().threads -= 1;
                let message = format!("cannot start a thread for deeply nested texts and templates: {error}");
                log::write(Level::Warn, &message);
            }
        }
    }

    fn spawn(self: &Arc<Pool>) -> io::Result<JoinHandle<()>> {
        let pool = Arc::clone(self);
        forks::spawn_with_stack("foredraft-stack", KEPT_STACK, move || pool.run())
    }

    /// The life of a thread: until the engines are gone, or there are more threads than needed.
    fn run(self: &Arc<Pool>) {
        for job in &self.queued {
            match job {
                StackJob::StartThread => self.start_thread(),
                StackJob::Run(work) => {
                    work();
                    let mut counts = self.counts.lock();
                    counts.work -= 1;
                    if counts.threads > counts.work + IDLE {
                        counts.threads -= 1;
                        return;
                    }
                }
            }
        }
    }
}

impl Drop for KeptThreads {
    fn drop(&mut self) {
        self.jobs = None;
        // A thread that starts another one adds it before it ends.
        while let Some(thread) = { self.pool.threads.lock().pop() } {
            // Work does not panic.
            let _ = thread.join();
        }
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

/// Runs `work` with a stack of at least `size` bytes, and waits for it: on the calling thread, else on a kept one, else, if no engine is
/// loaded or that is too small, on a new one. `name` is the prefix of error messages.
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
    let work: DeepWork = Box::new(move || {
        // Fails if `work` panicked, and then the sender is dropped.
        let _ = catch_unwind(AssertUnwindSafe(work)).map(|result| sender.send(result));
    });
    let unqueued = match kept {
        Some(kept) => kept.offer(work).err(),
        None => Some(work),
    };
    if let Some(work) = unqueued {
        forks::spawn_with_stack("foredraft-stack", size, work)
            .map_err(|error| Error::exhausted(format!("{name}: no thread with a stack of {size} bytes: {error}")))?;
    }
    result.recv().unwrap_or_else(|_| Err(Error::new(Code::Internal, format!("{name}: failed"))))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Barrier;
    use std::thread;
    use std::time::{Duration, Instant};

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
    fn deep_work_runs_on_the_kept_threads() {
        let kept = KeptThreads::keep();
        let ran = on_a_small_stack(|| [running_thread(8 << 20), running_thread(KEPT_STACK), thread::current().id()]);
        let threads: Vec<_> = kept.pool.threads.lock().iter().map(|thread| thread.thread().id()).collect();
        assert!(threads.contains(&ran[0]) && threads.contains(&ran[1]) && !threads.contains(&ran[2]), "{ran:?}");
    }

    /// Each runs until all of them do.
    #[test]
    fn deep_works_do_not_wait_for_each_other() {
        const N: usize = 12;
        let kept = KeptThreads::keep();
        for _ in 0..3 {
            let all = Arc::new(Barrier::new(N));
            let meet = || {
                let all = Arc::clone(&all);
                let work = move || {
                    all.wait();
                    Ok(thread::current().id())
                };
                thread::Builder::new().stack_size(128 << 10).spawn(move || with(8 << 20, "test", work)).unwrap()
            };
            let running: Vec<_> = (0..N).map(|_| meet()).collect();
            let ran: HashSet<_> = running.into_iter().map(|thread| thread.join().unwrap().unwrap()).collect();
            assert_eq!(ran.len(), N);
        }
        // The surplus threads end when they have no work.
        let deadline = Instant::now() + Duration::from_secs(20);
        while kept.pool.counts.lock().threads > IDLE {
            assert!(Instant::now() < deadline, "too many threads stay");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn deep_work_does_not_wait_for_the_start_of_the_kept_threads() {
        let _kept = KeptThreads::keep();
        let _starting = STARTING.lock();
        let (done, ran) = bounded(1);
        thread::Builder::new().stack_size(128 << 10).spawn(move || done.send(running_thread(8 << 20))).unwrap();
        ran.recv_timeout(Duration::from_secs(20)).expect("it does not wait");
    }

    #[test]
    fn panics_are_errors() {
        let _kept = KeptThreads::keep();
        let result = on_a_small_stack(|| with::<()>(8 << 20, "test", || panic!("as the test wants")));
        assert_eq!(result.unwrap_err().code(), Code::Internal);
        assert_eq!(on_a_small_stack(|| with(8 << 20, "test", || Ok(7))).unwrap(), 7);
    }
}
