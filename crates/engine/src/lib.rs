//! The engine: one thread that owns all contexts and generates for all requests.
//!
//! [`WorkerHandle`] is the handle. [`Request`]s go in through a channel, and their results come out of a [`RequestHandle`]. Nothing here
//! knows JSON.
//!
//! - `load`, `fit`, `builder`, `attention`, `rollback`, `measure`: from a [`Config`] to models in memory and a running engine.
//! - `worker`: the thread. `request`: what goes to it. `request_handle`: the two ends of a request.
//! - `scheduler`: queue and slots. `admission`: which request gets which slot. `space`: which slot has cells. `ending`: the end of a
//!   request in its slot. `follow_up`: the work that is left then.
//! - `step`: one step, a chain of functions over plain data. `report`: what it changes for the submitters of requests.
//! - [`session`]: the sequence of a slot in the KV caches. [`drafters`]: those that run a model.
//! - `slots`, `completion`, `text`, `decision`, `edited_rows`: what a step works on. `trace`: the log of a request's end.

mod admission;
mod attention;
mod beams;
mod begun;
mod builder;
mod chunk_pool;
mod compare;
mod completion;
mod config;
mod conversation_actions;
mod conversation_calls;
mod conversation_disk;
mod conversation_files;
mod conversation_store;
mod conversations;
#[cfg(test)]
#[allow(unsafe_code)]
#[path = "../../../tests/counting_allocator/mod.rs"]
mod counting;
mod decision;
mod draft_only;
pub mod drafters;
mod edited_rows;
mod embedder;
mod ending;
mod event;
mod fit;
mod follow_up;
mod load;
mod load_progress;
mod measure;
mod media;
mod pacing;
mod preemption;
mod prefixes;
mod priority;
mod report;
mod request;
mod request_handle;
mod rollback;
mod scheduler;
mod self_check;
pub mod session;
mod sessions;
mod slots;
mod space;
mod step;
#[cfg(test)]
mod tests;
mod text;
mod trace;
mod worker;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{RecvTimeoutError, Sender};
use parking_lot::{Mutex, MutexGuard};

use self::conversation_actions::{ConversationAnswer, ConversationJob, missing};
use self::request::{Command, EmbeddingJob, JobClaim, PromptState, SessionJob, SessionWork, Submission};
use self::request_handle::Expected;
use crate::session::Session;
use foredraft_base::error::{Code, Error, Result};
use foredraft_llama::log::{self, Level};
use foredraft_llama::{Interrupt, MediaCache, ThreadPool, Token};
use foredraft_speculation::Caches;

pub use self::attention::{AttentionCost, AttentionReport, ChosenBy};
pub use self::beams::MAX_BEAMS;
pub use self::config::{Config, DeviceFit, FitReport, FitSettings, Models};
pub use self::conversation_actions::{ConversationAction, ConversationEntry, ConversationPlace, Rewind};
pub use self::conversation_store::ConversationMemory;
pub use self::decision::{Question, Questions};
pub use self::event::{
    Comparison, DecisionScores, Difference, Erased, Event, Generated, Outcome, PromptProbs, PromptProgress,
    PromptStats, Restored, Saved, SpeculationStats, Stop, Timings, Update,
};
pub use self::load::{LOAD_STACK, load};
pub use self::priority::PREPARATION;
pub use self::request::{
    EmbeddingLimits, EmbeddingValues, LogitsCallback, LogitsEditor, Prepared, PreparedPlace, PreparedSender, Request,
    RequestOptions,
};
pub use self::request_handle::{CompletionSink, Counts, Phase, RequestHandle};
pub use self::self_check::SelfCheck;

/// Called with the number of each request that has an event, on the engine's thread.
pub type Notify = dyn Fn(u64) + Send + Sync;

/// How long a call about conversations waits before it looks whether the engine is paused.
const PAUSE_LOOK: Duration = Duration::from_millis(10);

/// Request numbers are unique in the process, so that a number from before a second load never means another request.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// A new number for a request.
pub fn new_request_id() -> u64 {
    NEXT_ID.fetch_add(1, Ordering::Relaxed)
}

/// The number of the newest request.
fn newest_id() -> u64 {
    NEXT_ID.load(Ordering::Relaxed).saturating_sub(1)
}

/// A running engine. Usable from all threads. Dropping it stops it.
pub struct WorkerHandle {
    commands: Sender<Command>,
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// At most as many completions are unfinished as there are slots and places in the queue.
    counts: Arc<Counts>,
    /// The same of preparations, which take no place from requests.
    preparations: Arc<Counts>,
    caches: Arc<Caches>,
    embedding_limits: Option<EmbeddingLimits>,
    n_slots: usize,
    max_queue: usize,
    media: Arc<OnceLock<Arc<MediaCache>>>,
}

/// The state that the engine's thread shares with all others.
struct Shared {
    interrupt: Arc<Interrupt>,
    threads: Arc<ThreadPool>,
    stopping: AtomicBool,
    /// Set when the thread takes no more commands. A [`Reservation`] holds the lock, so that no request is lost.
    closed: Mutex<bool>,
    /// Whether the thread measures what decodes cost, or only prepares requests, which a command interrupts. The sender raises the interrupt under the lock, so that it
    /// never stops a later decode.
    is_interruptible: Mutex<bool>,
    slots: Mutex<Vec<SlotStatus>>,
    /// See [`WorkerStatus::queue_order`].
    queue_order: Mutex<Vec<u64>>,
    conversations: Mutex<ConversationMemory>,
}

impl Shared {
    fn close(&self) {
        *self.closed.lock() = true;
    }

    fn set_interruptible(&self, is_interruptible: bool) {
        *self.is_interruptible.lock() = is_interruptible;
    }
}

/// The state of slots and queue.
#[derive(Debug, Clone, Default)]
pub struct WorkerStatus {
    /// The slots, as of the engine's last step.
    pub slots: Vec<SlotStatus>,
    /// Completions that wait for a slot.
    pub queue: usize,
    /// The requests that wait for a slot or were preempted, in the order in which they get slots, as of the engine's last step.
    pub queue_order: Vec<u64>,
    /// The conversations in memory, as of the engine's last step.
    pub conversations: ConversationMemory,
    /// Threads that decode now; 0: there is no engine.
    pub n_threads_now: usize,
}

/// A slot, seen from outside.
#[derive(Debug, Clone, Default)]
pub struct SlotStatus {
    /// The request it works on.
    pub request: Option<u64>,
    /// Its phase.
    pub phase: Option<Phase>,
    /// Tokens in its cache.
    pub n_past: usize,
    /// The tokens in the cache of a free slot.
    pub cache: Option<Arc<Vec<Token>>>,
    /// The LoRA scales that they were decoded with.
    pub lora: Vec<f32>,
}

impl WorkerHandle {
    /// Reserves places for the completions of a request, all of them or none. Tokens and settings must be valid for the model.
    ///
    /// Not `is_prepared`: the completions are without their prompts, which follow by [`WorkerHandle::prepared_sender`]. Until then they
    /// keep their places: later requests get no slot that one of them could take.
    ///
    /// # Errors
    /// As [`WorkerHandle::check_room`]; or the engine has ended.
    pub fn reserve(&self, requests: Vec<Request>, is_prepared: bool) -> Result<Reservation<'_>> {
        let id = new_request_id();
        let closed = self.shared.closed.lock();
        if *closed {
            return Err(self.stopped());
        }
        let is_preparation = requests.iter().any(|request| request.options.is_preparation());
        self.check_room(requests.len(), is_preparation)?;
        let text = |request: &Request| Expected::new(request.prompt.len(), request.speculative.is_some());
        let handle =
            RequestHandle::new(id, requests.iter().map(text).collect(), Arc::clone(self.counts(is_preparation)));
        Ok(Reservation { engine: self, handle, requests, is_prepared, is_sent: false, _open: closed })
    }

    /// The threads of the engine's decodes.
    pub fn threads(&self) -> &Arc<ThreadPool> {
        &self.shared.threads
    }

    /// Gives the engine the numbers of pictures and sounds in its token lists, for saved states that have some.
    pub fn set_media(&self, media: Arc<MediaCache>) {
        // A load has one projector.
        let _ = self.media.set(media);
    }

    /// Sends the prompts of requests that were queued without them.
    pub fn prepared_sender(&self) -> PreparedSender {
        PreparedSender { commands: self.commands.clone(), interrupt: Arc::clone(&self.shared.interrupt) }
    }

    /// Whether `n_texts` more completions, or preparations, could be queued now.
    ///
    /// # Errors
    /// They could not ([`Code::QueueFull`]).
    pub fn check_room(&self, n_texts: usize, are_preparations: bool) -> Result<()> {
        self.counts(are_preparations).check_room(n_texts, self.n_slots, self.max_queue)
    }

    fn counts(&self, of_preparations: bool) -> &Arc<Counts> {
        if of_preparations { &self.preparations } else { &self.counts }
    }

    fn send(&self, command: Command) -> Result<()> {
        let sent = self.commands.send(command).map_err(|_| self.stopped());
        if *self.shared.is_interruptible.lock() {
            self.shared.interrupt.raise();
        }
        // A paused engine sleeps at the gate.
        self.shared.interrupt.gate().notify();
        sent
    }

    /// Why the engine takes no more commands.
    fn stopped(&self) -> Error {
        if self.shared.stopping.load(Ordering::Acquire) {
            Error::new(Code::Cancelled, "the engine was stopped by a load or unload")
        } else {
            Error::new(Code::Internal, "the engine's thread has ended; a load starts a new one")
        }
    }

    /// Ends a request: immediately if it waits, otherwise within one decode. Returns whether it had not ended before.
    pub fn cancel(&self, handle: &Arc<RequestHandle>) -> bool {
        if handle.phase() == Phase::Finished {
            return false;
        }
        if !handle.cancel() {
            // Some of it is in a slot: stop the running decode.
            self.shared.interrupt.raise();
        }
        // An engine that has ended has ended the request as well.
        let _ = self.send(Command::Wake);
        true
    }

    /// Lets the completions of a request end their reasoning with the next token. Those that do not reason, or have not begun, are
    /// left unchanged.
    pub fn end_reasoning(&self, handle: &RequestHandle) {
        // An engine that has ended has ended the request as well.
        let _ = self.send(Command::EndReasoning(handle.id()));
    }

    /// The texts that can be embedded. `None`: the engine was not loaded for embeddings.
    pub fn embedding_limits(&self) -> Option<EmbeddingLimits> {
        self.embedding_limits
    }

    /// The embedding of each text, or those of its tokens, or its scores. Short texts are decoded together. Other requests have a step between two decodes.
    /// Waits for the engine.
    ///
    /// # Errors
    /// The engine was not loaded for embeddings, or stops; a text has no tokens or too many, or they cannot be decoded.
    pub fn embed(&self, texts: Vec<Vec<Token>>, of_tokens: bool) -> Result<Vec<EmbeddingValues>> {
        let most = self.embedding_limits.map_or(0, |limits| limits.n_tokens);
        if let Some(n) = texts.iter().map(Vec::len).find(|n| !(1..=most).contains(n)) {
            return Err(Error::invalid(format!("expected texts of 1 to {most} tokens, got one of {n}")));
        }
        let texts: Arc<[Vec<Token>]> = texts.into();
        let mut done = Vec::with_capacity(texts.len());
        while done.len() < texts.len() {
            let (reply, answer) = crossbeam_channel::bounded(1);
            let job = EmbeddingJob { texts: Arc::clone(&texts), first: done.len(), of_tokens, reply };
            self.send(Command::Embed(job))?;
            done.extend(answer.recv().map_err(|_| Error::new(Code::Cancelled, "the engine was stopped"))??);
        }
        Ok(done)
    }

    /// Copies the sequences of `slot` out and writes them to `path`. Waits for the request that runs there, at most for `timeout`.
    ///
    /// # Errors
    /// The slot is empty or stays busy, or the file cannot be written.
    pub fn save_session(&self, slot: usize, path: &Path, timeout: Option<Duration>) -> Result<Saved> {
        let session = self.run_session_job(slot, timeout, SessionWork::Save)??;
        session.write(path).map(|n_bytes| sessions::saved(&session, n_bytes))
    }

    /// Reads `path` and puts its sequences into `slot`. Waits for the request that runs there, at most for `timeout`.
    ///
    /// # Errors
    /// The slot stays busy, or the file is missing, damaged, of another version, or of another model; the slot is then as it was.
    pub fn load_session(&self, slot: usize, path: &Path, timeout: Option<Duration>) -> Result<Restored> {
        let session = Box::new(Session::read(path)?);
        let restored = self.run_session_job(slot, timeout, |reply| SessionWork::Load(session, reply))?;
        restored.map_err(|error| sessions::of_file(path, error))
    }

    /// Removes the tokens of `slot` from the caches of target and draft. Waits for the request that runs there, at most for `timeout`.
    ///
    /// # Errors
    /// The slot stays busy.
    pub fn erase_session(&self, slot: usize, timeout: Option<Duration>) -> Result<Erased> {
        self.run_session_job(slot, timeout, SessionWork::Erase)?
    }

    /// Does something with conversations, between two steps of the engine. Waits for no request. `name`: the conversation; `None`: all.
    ///
    /// # Errors
    /// There is no such conversation, or those of the action.
    pub fn conversations(&self, name: Option<&str>, action: ConversationAction) -> Result<Vec<ConversationEntry>> {
        let ConversationAnswer { mut conversations, files, .. } = self.run_conversation_job(name, action)?;
        if let (Some(name), Some(files)) = (name, &files) {
            let found = files.find(name).ok_or_else(|| missing(name))?;
            return Ok(vec![ConversationEntry::on_disk(&found)]);
        }
        for found in files.iter().flat_map(|files| files.list()) {
            if let Err(place) = conversations.binary_search_by(|known| known.name.cmp(&found.0.name)) {
                conversations.insert(place, ConversationEntry::on_disk(&found));
            }
        }
        Ok(conversations)
    }

    /// Saves the state of a conversation to a file. Returns the conversation, and what was saved. Waits for no request.
    ///
    /// # Errors
    /// There is no such conversation, it has no state yet, or the file cannot be written.
    pub fn save_conversation(&self, name: &str, path: &Path) -> Result<(Vec<ConversationEntry>, Saved)> {
        let ConversationAnswer { conversations, state, .. } =
            self.run_conversation_job(Some(name), ConversationAction::Copy)?;
        let state = state.ok_or_else(|| self.stopped())?;
        let n_bytes = state.session.write_of(Some(&state.conversation), path, |_| Ok(()))?;
        Ok((conversations, sessions::saved(&state.session, n_bytes)))
    }

    /// Gives a conversation the state of a file, which a conversation or a slot was saved to. Waits for no request.
    ///
    /// # Errors
    /// The file is missing, damaged, of another version or of another model, memory has no room for it, or a request of the conversation
    /// runs. It then stays as it was.
    pub fn load_conversation(&self, name: &str, path: &Path) -> Result<Vec<ConversationEntry>> {
        let read = Box::new(Session::read_of(path)?);
        let answer = self.run_conversation_job(Some(name), ConversationAction::Put(read));
        answer.map(|answer| answer.conversations).map_err(|error| sessions::of_file(path, error))
    }

    fn run_conversation_job(&self, name: Option<&str>, action: ConversationAction) -> Result<ConversationAnswer> {
        let (reply, answer) = crossbeam_channel::bounded(1);
        self.send(Command::Conversation(ConversationJob { name: name.map(str::to_owned), action, reply }))?;
        loop {
            match answer.recv_timeout(PAUSE_LOOK) {
                Ok(result) => return result,
                Err(RecvTimeoutError::Disconnected) => return Err(self.stopped()),
                // The host has paused the engine, perhaps within a decode, and may be the caller: the decode ends, and is repeated.
                Err(RecvTimeoutError::Timeout) if self.shared.interrupt.gate().is_closed() => {
                    self.shared.interrupt.raise();
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Lets the engine's thread do a job, and waits for its answer. After `timeout` it gives up, unless the job has begun.
    fn run_session_job<R>(
        &self,
        slot: usize,
        timeout: Option<Duration>,
        work: impl FnOnce(Sender<R>) -> SessionWork,
    ) -> Result<R> {
        let (reply, answer) = crossbeam_channel::bounded(1);
        let claim = JobClaim::default();
        let job = SessionJob { slot, after: newest_id(), work: work(reply), claim: claim.clone() };
        self.send(Command::Session(job))?;
        let waited = match timeout {
            Some(timeout) => answer.recv_timeout(timeout),
            None => answer.recv().map_err(RecvTimeoutError::from),
        };
        match waited {
            Err(RecvTimeoutError::Timeout) if claim.take() => {
                let ms = timeout.unwrap_or_default().as_millis();
                Err(Error::new(Code::Timeout, format!("timeout_ms: slot {slot} was busy for {ms} ms")))
            }
            // The job has begun. It takes milliseconds.
            Err(RecvTimeoutError::Timeout) => answer.recv().map_err(|_| self.stopped()),
            waited => waited.map_err(|_| self.stopped()),
        }
    }

    /// The n-gram caches that all slots share.
    pub fn caches(&self) -> &Caches {
        &self.caches
    }

    /// Lets the drafters forget earlier outputs, before any request that is submitted later.
    ///
    /// # Errors
    /// The engine has ended.
    pub fn forget_answers(&self) -> Result<()> {
        self.send(Command::ForgetAnswers)
    }

    /// Whether there are slots. A model for embeddings alone has none.
    pub fn generates(&self) -> bool {
        self.n_slots > 0
    }

    /// The state of slots and queue. Never waits for a decode.
    pub fn status(&self) -> WorkerStatus {
        WorkerStatus {
            slots: self.shared.slots.lock().clone(),
            queue: self.counts.queued(),
            queue_order: self.shared.queue_order.lock().clone(),
            conversations: *self.shared.conversations.lock(),
            n_threads_now: usize::try_from(self.shared.threads.n_threads_now()).unwrap_or(0),
        }
    }

    /// Begins to stop, without waiting: running requests end as cancelled.
    pub fn begin_stop(&self) {
        self.shared.stopping.store(true, Ordering::Release);
        self.shared.interrupt.raise();
        // Only an engine that has ended already cannot be woken.
        let _ = self.send(Command::Wake);
    }

    /// Stops, and waits for the thread, which frees the contexts. Must not be called on the engine's thread.
    pub fn stop(&self) {
        self.begin_stop();
        let thread = self.thread.lock().take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            log::write(Level::Error, "the engine's thread panicked while it stopped");
        }
    }
}

/// A request that has its places in the engine's queue, but is not sent yet. The engine can report nothing about it, so the caller can
/// register its handle first. The engine's thread does not end before this is sent or dropped. Dropping it ends the request.
pub struct Reservation<'a> {
    engine: &'a WorkerHandle,
    handle: Arc<RequestHandle>,
    requests: Vec<Request>,
    is_prepared: bool,
    is_sent: bool,
    /// The lock of [`Shared::closed`].
    _open: MutexGuard<'a, bool>,
}

impl Reservation<'_> {
    /// The host's end of the request.
    pub fn handle(&self) -> &Arc<RequestHandle> {
        &self.handle
    }

    /// Sends the completions to the engine's thread.
    ///
    /// # Errors
    /// The thread has ended. So has the request then.
    pub fn send(mut self) -> Result<()> {
        let now = Instant::now();
        // A time too far to be written as an `Instant` never comes.
        let after = |limit: Duration, elapsed: Duration| match limit.checked_sub(elapsed) {
            Some(left) => now.checked_add(left),
            None => now.checked_sub(elapsed.saturating_sub(limit)).or(Some(now)),
        };
        for (request, sink) in std::mem::take(&mut self.requests).into_iter().zip(self.handle.sinks()) {
            let RequestOptions { timeout, deadline: due, elapsed, .. } = request.options;
            let deadline = timeout.and_then(|timeout| after(timeout, elapsed));
            self.handle.set_due(due.and_then(|due| after(due, elapsed)));
            let submission = Submission::new(request, PromptState::queued(self.is_prepared, now), sink, deadline);
            self.engine.send(Command::Submit(Box::new(submission)))?;
            if deadline.is_some() {
                self.engine.shared.interrupt.limit_pause(deadline);
                self.engine.shared.interrupt.gate().notify();
            }
        }
        self.is_sent = true;
        Ok(())
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        // A registered request that will never run has ended.
        if !self.is_sent {
            self.handle.cancel();
        }
    }
}

impl Drop for WorkerHandle {
    fn drop(&mut self) {
        self.stop();
    }
}
