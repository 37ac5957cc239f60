//! A thread that renders and tokenizes long prompts, so that the submitting call does not have to wait.
//!
//! Jobs run in the order of the requests. The engine's `max_queue` bounds the queue, because each job belongs to an unfinished
//! request; jobs of cancelled requests are removed when the next job is queued.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

use crate::engine::{Phase, RequestHandle};
use crate::forks;
use crate::llama::PauseGate;
use crate::llama::log::{self, Level};

/// The thread. While the host pauses the engine, it begins no job.
pub struct Preparer {
    jobs: Arc<Jobs>,
    thread: Mutex<Option<JoinHandle<()>>>,
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
    /// Starts the thread, of an engine with these pauses.
    pub fn new(pauses: Arc<PauseGate>) -> Preparer {
        let jobs = Arc::new(Jobs { queue: Mutex::default(), changed: Condvar::new(), pauses });
        let running = Arc::clone(&jobs);
        let thread = forks::spawn("foredraft-prep", move || running.run());
        if let Err(error) = &thread {
            let message = format!("cannot start the thread that prepares prompts, the caller's threads do it: {error}");
            log::write(Level::Warn, &message);
        }
        Preparer { jobs, has_thread: thread.is_ok(), thread: Mutex::new(thread.ok()) }
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

    /// Ends the thread after its current job, and drops the other jobs.
    pub fn stop(&self) {
        let dropped = {
            let mut queue = self.jobs.queue.lock();
            queue.is_stopping = true;
            std::mem::take(&mut queue.jobs)
        };
        self.jobs.changed.notify_one();
        self.jobs.pauses.notify();
        drop(dropped);
        if self.thread.lock().take().is_some_and(|thread| thread.join().is_err()) {
            log::write(Level::Error, "the thread that prepares prompts panicked");
        }
    }
}

impl Jobs {
    fn run(&self) {
        while let Some(job) = self.next() {
            self.pauses.wait_while(|| !self.queue.lock().is_stopping);
            job.run();
        }
    }

    /// Waits for a job. `None`: the thread has to end.
    fn next(&self) -> Option<Job> {
        let mut queue = self.queue.lock();
        loop {
            if queue.is_stopping {
                return None;
            }
            if let Some(job) = queue.jobs.pop_front() {
                return Some(job);
            }
            self.changed.wait(&mut queue);
        }
    }
}
