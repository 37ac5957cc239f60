//! The engine's thread: the only one that touches contexts.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Select, TryRecvError};

use super::conversations;
use super::draft_only::DraftOnly;
use super::embedder::Embedder;
use super::event::Stop;
use super::measure::IdleMeasuring;
use super::report::StepReport;
use super::request::{Command, Prepared, Submission};
use super::scheduler::{BatchScheduler, NextWork};
use super::slots::Task;
use super::{Notify, Shared};
use foredraft_base::error::{Code, Error, Result};

/// How long the thread waits before it looks again whether the weights have their final layout.
const PANELS_LOOK: Duration = Duration::from_millis(50);

/// How long a paused engine sleeps before it looks whether a file is read or written, for which an action on a conversation may wait.
const DISK_LOOK: Duration = Duration::from_millis(5);

pub(super) struct Worker {
    pub(super) commands: Receiver<Command>,
    pub(super) scheduler: Option<Box<BatchScheduler>>,
    pub(super) draft_only: Option<DraftOnly>,
    pub(super) embedder: Option<Embedder>,
    /// The sizes that are left to measure before the slots are used for the first time.
    pub(super) measuring: IdleMeasuring,
    pub(super) shared: Arc<Shared>,
    pub(super) notify: Arc<Notify>,
    /// Commands that take time and came while the host paused the engine.
    pub(super) postponed: VecDeque<Command>,
    /// The ends of requests that no scheduler has.
    pub(super) report: StepReport,
    /// The numbers of the requests that have an event; empty between deliveries.
    pub(super) changed: Vec<u64>,
}

impl Worker {
    /// Runs until the engine stops. Remaining requests then end as cancelled.
    pub(super) fn run(mut self) {
        let mut stop = Stop::Cancelled;
        while !self.shared.stopping.load(Ordering::Acquire) {
            // A defect in a step must end the requests, not the host.
            let step = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.step()));
            if step.is_err() {
                let error = Error::new(Code::Internal, "the engine's thread panicked; a load starts a new one");
                stop = Stop::Error(error);
                break;
            }
        }
        self.shared.close();
        while let Ok(command) = self.commands.try_recv() {
            self.execute(command);
        }
        if let Some(draft_only) = &mut self.draft_only {
            draft_only.end_waiting(&stop, &mut self.report);
        }
        for scheduler in self.schedulers() {
            scheduler.end_all(&stop);
        }
        if let (Stop::Cancelled, Some(scheduler)) = (&stop, &mut self.scheduler) {
            conversations::write_all(&mut scheduler.pool);
        }
        self.publish();
        self.deliver();
    }

    pub(super) fn step(&mut self) {
        // First of all: what raised the interrupt is handled below, and what raises it from now on stops the decode.
        self.shared.interrupt.clear();
        self.limit_pause();
        self.receive();
        if self.shared.stopping.load(Ordering::Acquire) {
            return;
        }
        self.scheduler.iter_mut().for_each(|scheduler| scheduler.serve_conversations());
        self.limit_pause();
        // During a pause requests end, but none begins.
        let is_paused = self.shared.interrupt.gate().is_closed();
        match &mut self.draft_only {
            Some(draft_only) if is_paused => draft_only.end_cancelled(&mut self.report),
            Some(draft_only) => draft_only.prepare(&mut self.report),
            None => {}
        }
        for scheduler in self.schedulers().filter(|scheduler| !scheduler.is_idle()) {
            if is_paused { scheduler.end_cancelled() } else { scheduler.prepare() }
        }
        // The step that follows takes a while.
        self.publish();
        self.deliver();
        if is_paused {
            return;
        }
        let interrupt = Arc::clone(&self.shared.interrupt);
        // A command interrupts preparations.
        let prepares = self.schedulers().all(|scheduler| scheduler.only_prepares());
        self.shared.set_interruptible(prepares);
        let makes_way = prepares && !self.commands.is_empty();
        for scheduler in self.schedulers().filter(|scheduler| !makes_way && !scheduler.is_idle()) {
            scheduler.step(&interrupt);
        }
        self.shared.set_interruptible(false);
        self.publish();
        self.deliver();
        self.cut_states();
        self.measure();
    }

    /// Whether there is nothing to do before the next command.
    fn is_idle(&self) -> bool {
        self.next_work() == NextWork::AfterCommand && self.postponed.is_empty() && self.commands.is_empty()
    }

    /// Makes room for conversations while there is nothing else to do.
    fn cut_states(&mut self) {
        while self.is_idle()
            && !self.shared.interrupt.gate().is_closed()
            && let Some(scheduler) = &mut self.scheduler
            && scheduler.pool.conversations.cut_early()
        {
            self.publish();
        }
    }

    /// Measures a size of batches, if nothing else is to be done. A command interrupts that.
    fn measure(&mut self) {
        if self.measuring.is_done() || self.measuring.must_wait() || !self.is_idle() {
            return;
        }
        let Some(scheduler) = &mut self.scheduler else { return };
        self.shared.set_interruptible(true);
        // A later command raises the interrupt.
        if self.commands.is_empty() {
            self.measuring.step(&mut scheduler.pool);
        }
        self.shared.set_interruptible(false);
    }

    /// When there is something to do for the requests and sessions.
    fn next_work(&self) -> NextWork {
        let target = self.scheduler.as_deref().map_or(NextWork::AfterCommand, BatchScheduler::next_work);
        let draft_only = self.draft_only.as_ref().map_or(NextWork::AfterCommand, DraftOnly::next_work);
        target.min(draft_only)
    }

    /// Delivers what has changed, and then calls the host for each request that has an event.
    fn deliver(&mut self) {
        let mut changed = std::mem::take(&mut self.changed);
        self.report.deliver(&mut changed);
        self.schedulers().for_each(|scheduler| scheduler.deliver(&mut changed));
        changed.drain(..).for_each(|id| (self.notify)(id));
        self.changed = changed;
    }

    /// The schedulers of the target and of draft-only mode, as far as they exist.
    fn schedulers(&mut self) -> impl Iterator<Item = &mut BatchScheduler> {
        let target = self.scheduler.as_deref_mut().into_iter();
        target.chain(self.draft_only.as_mut().and_then(DraftOnly::scheduler))
    }

    /// Executes the commands that have arrived, up to one that takes time: between two of these, the slots have a step. If there is
    /// nothing else to do, waits for a command, at most until the first deadline.
    fn receive(&mut self) {
        if self.shared.interrupt.gate().is_closed() {
            return self.receive_while_paused();
        }
        while let Some(command) = self.postponed.pop_front() {
            if self.execute(command) {
                return;
            }
        }
        let work = match self.next_work() {
            NextWork::AfterCommand if self.measuring.is_done() => NextWork::AfterCommand,
            NextWork::AfterCommand if self.measuring.must_wait() => NextWork::At(Instant::now() + PANELS_LOOK),
            NextWork::AfterCommand => NextWork::Now,
            work => work,
        };
        let mut events = Select::new();
        events.recv(&self.commands);
        if let Some(disk) = self.scheduler.as_ref().and_then(|scheduler| scheduler.pool.conversations.disk.as_ref()) {
            disk.add_to(&mut events);
        }
        match work {
            NextWork::Now => {}
            // Nothing has come in time.
            NextWork::At(deadline) => _ = events.ready_deadline(deadline),
            NextWork::AfterCommand => _ = events.ready(),
        }
        let mut next = self.commands.try_recv();
        loop {
            match next {
                Ok(command) => {
                    if self.execute(command) {
                        return;
                    }
                }
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => return self.shared.stopping.store(true, Ordering::Release),
            }
            next = self.commands.try_recv();
        }
    }

    /// Sleeps until the pause ends, a command comes or a request has to end. Commands that take time are postponed.
    fn receive_while_paused(&mut self) {
        self.shared.threads.rest();
        let shared = Arc::clone(&self.shared);
        let gate = shared.interrupt.gate();
        let mut has_received = false;
        loop {
            let events = gate.events();
            loop {
                match self.commands.try_recv() {
                    Ok(command) if command.takes_time() => self.postponed.push_back(command),
                    Ok(command) => _ = self.execute(command),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => self.shared.stopping.store(true, Ordering::Release),
                }
                has_received = true;
                if self.shared.stopping.load(Ordering::Acquire) {
                    return;
                }
            }
            let now = Instant::now();
            let left = self.deadline().map(|deadline| deadline.saturating_duration_since(now));
            if has_received || !gate.is_closed() || left.is_some_and(|left| left.is_zero()) {
                return;
            }
            if self.scheduler.as_ref().is_some_and(|scheduler| scheduler.pool.conversations.disk_is_busy()) {
                gate.wait(events, Some(DISK_LOOK));
                return;
            }
            gate.wait(events, left);
        }
    }

    /// Lets no pause of a decode keep a request from ending in time.
    fn limit_pause(&mut self) {
        let deadline = self.deadline();
        self.shared.interrupt.limit_pause(deadline);
    }

    /// The earliest time at which a request has to end.
    fn deadline(&mut self) -> Option<Instant> {
        let waiting = self.draft_only.as_ref().and_then(DraftOnly::deadline);
        self.schedulers().filter_map(|scheduler| scheduler.first_deadline()).chain(waiting).min()
    }

    /// Executes a command. Returns whether that took time.
    fn execute(&mut self, command: Command) -> bool {
        let takes_time = command.takes_time();
        if command.uses_slots() {
            self.measuring = IdleMeasuring::none();
        }
        match command {
            Command::Submit(submission) => self.submit(*submission),
            Command::Prepare(id, prepared) => self.set_prompts(id, &prepared),
            Command::Session(job) => {
                if let Some(scheduler) = &mut self.scheduler {
                    scheduler.session_jobs.push_back(job);
                    scheduler.serve_sessions();
                }
            }
            Command::Conversation(job) => {
                if let Some(scheduler) = &mut self.scheduler {
                    scheduler.conversation_jobs.push_back(job);
                    scheduler.serve_conversations();
                }
            }
            Command::Embed(job) => {
                let texts = job.texts.get(job.first..).unwrap_or(&[]);
                let result = match &mut self.embedder {
                    Some(embedder) => embedder.embed(texts, job.of_tokens, &self.shared),
                    None => Err(Error::invalid("the engine was not started for embeddings")),
                };
                match result.transpose() {
                    // The caller may be gone.
                    Some(result) => _ = job.reply.send(result),
                    None => self.postponed.push_front(Command::Embed(job)),
                }
            }
            Command::ForgetAnswers => {
                if let Some(scheduler) = &mut self.scheduler {
                    scheduler.pool.drafters.forget_answers();
                }
            }
            Command::EndReasoning(id) => {
                let tasks = self.schedulers().flat_map(BatchScheduler::tasks_mut);
                for task in tasks.filter(|task| task.sink.id() == id) {
                    task.sampler.end_reasoning();
                }
            }
            Command::Wake => {}
        }
        takes_time
    }

    /// Queues a completion for the model that answers it.
    fn submit(&mut self, submission: Submission) {
        match (submission.request.draft_only, &mut self.scheduler, &mut self.draft_only) {
            (false, Some(scheduler), _) => scheduler.queue.push_back(submission),
            (true, _, Some(draft_only)) => draft_only.submit(submission),
            // `api` checks this before it submits.
            _ => {
                let error = Error::new(Code::Internal, "there is no model that could answer");
                self.report.end_queued(submission.sink, Stop::Error(error));
            }
        }
    }

    /// Gives the completions of a request their prompts. Those that have none end.
    fn set_prompts(&mut self, id: u64, prepared: &Result<Prepared>) {
        if let Some(draft_only) = &mut self.draft_only {
            draft_only.set_prompts(id, prepared, &mut self.report);
        }
        self.schedulers().for_each(|scheduler| scheduler.set_prompts(id, prepared));
    }

    /// Publishes what `poll_system_status` shows.
    fn publish(&self) {
        let Some(scheduler) = &self.scheduler else { return };
        self.shared.queue_order.lock().clone_from(&scheduler.queue_order);
        *self.shared.conversations.lock() = scheduler.pool.conversations.memory();
        for (status, slot) in self.shared.slots.lock().iter_mut().zip(&scheduler.pool.slots) {
            let busy = slot.task.as_ref();
            status.request = busy.map(|task| task.sink.id());
            status.phase = busy.map(Task::phase);
            status.n_past = slot.cache.len();
            status.lora.clone_from(&slot.lora);
            // Copies the tokens that a prompt can reuse: those of free slots, and only when they changed.
            if busy.is_some() {
                status.cache = None;
            } else if status.cache.as_ref().is_none_or(|cache| cache.as_slice() != &*slot.cache) {
                status.cache = Some(Arc::new(slot.cache.to_vec()));
            }
        }
    }
}
