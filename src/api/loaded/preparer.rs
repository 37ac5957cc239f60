//! Threads that render and tokenize long prompts, so that the submitting call does not have to wait.
//!
//! Jobs begin in the order of the requests. A few run at the same time, so that a slow one does not hold the others. The engine's `max_queue` bounds the queue, because each job belongs to an unfinished
//! request; jobs of cancelled requests are removed when the next job is queued.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

use crate::engine::{Phase, RequestHandle};
use crate::forks;
use crate::llama::PauseGate;
use crate::llama::log::{self, Level};

/// The maximum number of prompts that are prepared at the same time.
const MAX_THREADS: usize = 4;

/// The threads. While the host pauses the engine, they begin no job.
pub struct Preparer {
    jobs: Arc<Jobs>,
    has_thread: bool,
}

struct Jobs {
    queue: Mutex<JobQueue>,
    changed: Condvar,
    pauses: Arc<PauseGate>,
}

#[derive(Default)]
struct JobQueue {
    jobs: VecDeque<Job>,
    threads: Vec<JoinHandle<()>>,
    /// The threads that run a job.
    n_busy: usize,
    is_stopping: bool,
}

struct Job {
    request: Arc<RequestHandle>,
    work: Box<dyn FnOnce() + Send>,
}

impl Job {
    fn is_needed(&self) -> bool {
        self.request.phase() != Phase::Finished
    }

    fn run(self) {
        if self.is_needed() {
            (self.work)();
        }
    }
}

impl Preparer {
    /// Starts the first thread, of an engine with these pauses. It starts others while all are busy.
    pub fn new(pauses: Arc<PauseGate>) -> Preparer {
        let jobs = Arc::new(Jobs { queue: Mutex::default(), changed: Condvar::new(), pauses });
        let thread = jobs.add_thread();
        if let Err(error) = &thread {
            let message = format!("cannot start the thread that prepares prompts, the caller's threads do it: {error}");
            log::write(Level::Warn, &message);
        }
        Preparer { jobs, has_thread: thread.is_ok() }
    }

    /// Queues work for a request. It is skipped if the request ends first. It must not panic.
    pub fn start(&self, request: Arc<RequestHandle>, work: impl FnOnce() + Send + 'static) {
        let obsolete: VecDeque<Job> = {
            let mut queue = self.jobs.queue.lock();
            if queue.is_stopping {
                return;
            }
            let (needed, obsolete) = queue.jobs.drain(..).partition(Job::is_needed);
            queue.jobs = needed;
            queue.jobs.push_back(Job { request, work: Box::new(work) });
            obsolete
        };
        self.jobs.changed.notify_one();
        drop(obsolete);
        if !self.has_thread {
            let jobs = std::mem::take(&mut self.jobs.queue.lock().jobs);
            jobs.into_iter().for_each(Job::run);
        }
    }

    /// Ends the threads after their current jobs, and drops the other jobs.
    pub fn stop(&self) {
        let dropped = {
            let mut queue = self.jobs.queue.lock();
            queue.is_stopping = true;
            std::mem::take(&mut queue.jobs)
        };
        self.jobs.changed.notify_all();
        self.jobs.pauses.notify();
        drop(dropped);
        // A thread that starts another one adds it before its own end.
        while let Some(thread) = self.jobs.next_thread() {
            if thread.join().is_err() {
                log::write(Level::Error, "a thread that prepares prompts panicked");
            }
        }
    }
}

impl Jobs {
    fn add_thread(self: &Arc<Self>) -> io::Result<()> {
        let running = Arc::clone(self);
        let thread = forks::spawn("foredraft-prep", move || running.run())?;
        self.queue.lock().threads.push(thread);
        Ok(())
    }

    fn next_thread(&self) -> Option<JoinHandle<()>> {
        self.queue.lock().threads.pop()
    }

    fn run(self: &Arc<Self>) {
        while let Some((job, n_busy, n_threads)) = self.next() {
            if n_busy >= n_threads && n_threads < MAX_THREADS {
                // Without another thread, the next jobs wait for this one.
                let _ = self.add_thread();
            }
            self.pauses.wait_while(|| !self.queue.lock().is_stopping);
            job.run();
            self.queue.lock().n_busy -= 1;
        }
    }

    /// Waits for a job. Also returns how many threads run one now, and how many there are. `None`: the thread has to end.
    fn next(&self) -> Option<(Job, usize, usize)> {
        let mut queue = self.queue.lock();
        loop {
            if queue.is_stopping {
                return None;
            }
            if let Some(job) = queue.jobs.pop_front() {
                queue.n_busy += 1;
                return Some((job, queue.n_busy, queue.threads.len()));
            }
            self.changed.wait(&mut queue);
        }
    }
}
