//! The thread that reads and writes the files of conversations, so that no step of the engine waits for a disk.
//!
//! It does one job after the other. The engine begins jobs for a request or an action only when all earlier ones have ended, so a file is
//! read as it was last written, and no more states are in memory for it than one request displaces.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Select, Sender, unbounded};

use super::conversation_files::{ConversationFiles, ConversationState};
use crate::session::ConversationRecord;
use foredraft_host::forks;

/// Work on files. Returns the conversation that was read, if one was.
type FileWork = dyn FnOnce(&ConversationFiles) -> Option<ConversationState> + Send;

/// Work on files, and the name of the conversation that it looks for.
struct DiskJob {
    name: Option<String>,
    work: Box<FileWork>,
}

/// A conversation that was looked for on disk.
struct FetchedConversation {
    name: String,
    /// `None`: there is no file, or it cannot be used.
    state: Option<Arc<ConversationState>>,
}

/// The files of conversations, with their thread. Dropping it waits for the jobs.
pub(super) struct ConversationDisk {
    pub(super) files: Arc<ConversationFiles>,
    jobs: Option<Sender<DiskJob>>,
    done: Receiver<Option<FetchedConversation>>,
    /// Jobs that have not ended, as far as the engine has observed.
    n_jobs: usize,
    /// The conversation that was read last, until a slot gets it or no request waits for it.
    fetched: Option<FetchedConversation>,
    thread: Option<JoinHandle<()>>,
}

impl ConversationDisk {
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn new(files: ConversationFiles) -> io::Result<ConversationDisk> {
        let files = Arc::new(files);
        let (jobs, queue) = unbounded::<DiskJob>();
        let (results, done) = unbounded();
        let own = Arc::clone(&files);
        let work = move || {
            for DiskJob { name, work } in queue {
                // A defect must not end the thread, for which requests wait.
                let state = catch_unwind(AssertUnwindSafe(|| work(&own))).ok().flatten();
                let _ = results.send(name.map(|name| FetchedConversation { name, state: state.map(Arc::new) }));
            }
        };
        let thread = Some(forks::spawn("foredraft-disk", work)?);
        Ok(ConversationDisk { files, jobs: Some(jobs), done, n_jobs: 0, fetched: None, thread })
    }

    /// Begins work on files after all earlier work. `name`: the conversation that it looks for.
    pub(super) fn begin(
        &mut self,
        name: Option<String>,
        work: impl FnOnce(&ConversationFiles) -> Option<ConversationState> + Send + 'static,
    ) {
        let sent = self.jobs.as_ref().is_some_and(|jobs| jobs.send(DiskJob { name, work: Box::new(work) }).is_ok());
        self.n_jobs += usize::from(sent);
    }

    /// Adds to `events` that a job has ended, of which [`ConversationDisk::observe`] takes note.
    pub(super) fn add_to<'a>(&'a self, events: &mut Select<'a>) {
        events.recv(&self.done);
    }

    /// Takes note of the jobs that have ended.
    pub(super) fn observe(&mut self) {
        while let Ok(fetched) = self.done.try_recv() {
            self.end_job(fetched);
        }
    }

    /// Waits for all jobs.
    pub(super) fn wait(&mut self) {
        while self.n_jobs > 0
            && let Ok(fetched) = self.done.recv()
        {
            self.end_job(fetched);
        }
    }

    fn end_job(&mut self, fetched: Option<FetchedConversation>) {
        self.n_jobs -= 1;
        self.fetched = fetched.or(self.fetched.take());
    }

    /// Whether jobs have not ended.
    pub(super) fn is_busy(&self) -> bool {
        self.n_jobs > 0
    }

    /// Reads a conversation. Returns whether that has ended; otherwise it has begun, unless other jobs have to end before.
    pub(super) fn fetch(&mut self, name: &str) -> bool {
        if self.fetched.as_ref().is_some_and(|fetched| fetched.name == name) {
            return true;
        }
        if !self.is_busy() {
            self.fetched = None;
            let own = name.to_owned();
            self.begin(Some(name.to_owned()), move |files| files.read(&own));
        }
        false
    }

    /// The conversation `name`, if it was fetched.
    pub(super) fn fetched(&self, name: &str) -> Option<&ConversationState> {
        self.fetched.as_ref().filter(|fetched| fetched.name == name)?.state.as_deref()
    }

    /// Takes the conversation `name`, if it was fetched.
    pub(super) fn take(&mut self, name: &str) -> Option<ConversationState> {
        self.fetched.take_if(|fetched| fetched.name == name)?.state.map(Arc::unwrap_or_clone)
    }

    /// Forgets a fetched conversation for which nothing waits.
    pub(super) fn keep_fetched(&mut self, is_awaited: impl Fn(&str) -> bool) {
        self.fetched.take_if(|fetched| !is_awaited(&fetched.name));
    }

    /// Changes a conversation that was fetched, also on disk.
    pub(super) fn change(&mut self, name: &str, change: impl FnOnce(&mut ConversationRecord)) {
        let fetched = self.fetched.as_mut().filter(|fetched| fetched.name == name);
        let Some(state) = fetched.and_then(|fetched| fetched.state.as_mut()) else { return };
        change(&mut Arc::make_mut(state).conversation);
        let state = Arc::clone(state);
        self.begin(None, move |files| {
            files.write(&state);
            None
        });
    }

    /// Writes the state of a conversation, which the thread makes.
    pub(super) fn write(&mut self, name: &str, state: impl FnOnce() -> ConversationState + Send + 'static) {
        self.keep_fetched(|fetched| fetched != name);
        self.begin(None, move |files| {
            files.write(&state());
            None
        });
    }

    /// Removes the file of a conversation, if there is one.
    pub(super) fn remove(&mut self, name: &str) {
        self.keep_fetched(|fetched| fetched != name);
        let name = name.to_owned();
        self.begin(None, move |files| {
            files.remove(&name);
            None
        });
    }
}

impl Drop for ConversationDisk {
    fn drop(&mut self) {
        self.jobs = None;
        // Its panics are caught.
        self.thread.take().into_iter().for_each(|thread| _ = thread.join());
    }
}
