//! A thread that renders and tokenizes long prompts, so that the host's call that queued them does not wait.
//!
//! The work is done in the order of the requests. What is queued is bounded by the engine's `max_queue`: each job belongs to an
//! unfinished request, and the jobs of requests that were cancelled go as soon as another one comes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

use crate::engine::{Phase, RequestHandle};
use crate::llama::log::{self, Level};

/// The thread, which starts with the first job.
#[derive(Default)]
pub(super) struct Preparer {
    jobs: Arc<Jobs>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Jobs {
    queue: Mutex<JobQueue>,
    news: Condvar,
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
    fn is_wanted(&self) -> bool {
        self.request.phase() != Phase::Finished
    }

    fn run(self) {
        if self.is_wanted() {
            (self.work)();
        }
    }
}

impl Preparer {
    /// Queues work for a request. It is not done if the request ends before, and must not panic.
    pub(super) fn start(&self, request: Arc<RequestHandle>, work: impl FnOnce() + Send + 'static) {
        // Held to the end: no thread starts when it was stopped.
        let mut thread = self.thread.lock();
        let unwanted: VecDeque<Job> = {
            let mut queue = self.jobs.queue.lock();
            if queue.is_stopping {
                return;
            }
            let (wanted, unwanted) = queue.jobs.drain(..).partition(Job::is_wanted);
            queue.jobs = wanted;
            queue.jobs.push_back(Job { request, work: Box::new(work) });
            unwanted
        };
        self.jobs.news.notify_one();
        drop(unwanted);
        if thread.is_none() {
            let jobs = Arc::clone(&self.jobs);
            match std::thread::Builder::new().name("foredraft-prep".into()).spawn(move || jobs.run()) {
                Ok(started) => *thread = Some(started),
                Err(error) => {
                    log::write(Level::Warn, &format!("no thread to prepare prompts, the caller does it: {error}"));
                    let jobs = std::mem::take(&mut self.jobs.queue.lock().jobs);
                    jobs.into_iter().for_each(Job::run);
                }
            }
        }
    }

    /// Ends the thread after the job that it works on; the others are forgotten.
    pub(super) fn stop(&self) {
        let mut thread = self.thread.lock();
        let forgotten = {
            let mut queue = self.jobs.queue.lock();
            queue.is_stopping = true;
            std::mem::take(&mut queue.jobs)
        };
        self.jobs.news.notify_one();
        drop(forgotten);
        if thread.take().is_some_and(|thread| thread.join().is_err()) {
            log::write(Level::Error, "the thread that prepares prompts panicked");
        }
    }
}

impl Jobs {
    fn run(&self) {
        while let Some(job) = self.next() {
            job.run();
        }
    }

    /// Waits for a job; `None` when the thread shall end.
    fn next(&self) -> Option<Job> {
        let mut queue = self.queue.lock();
        loop {
            if queue.is_stopping {
                return None;
            }
            if let Some(job) = queue.jobs.pop_front() {
                return Some(job);
            }
            self.news.wait(&mut queue);
        }
    }
}
