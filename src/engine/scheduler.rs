//! The batch loop: slots, one batch for all of them, and what becomes of its logits.
//!
//! A step drafts, evaluates and samples. A slot is evaluated up to the end of its [`Task`]'s tokens, whatever they are:
//! a prompt, the one token sampled last, or, after its part of the cache was taken away, all of it again. A draft is
//! a few more tokens behind those. So speculation, long prompts and paused requests need no loops of their own.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::batch::{Share, batch_split};
use super::beams::Beams;
use super::command::{SessionJob, Submission};
use super::config::Config;
use super::event::{Outcome, Stop};
use super::request_handle::TextSink;
use super::scheduling::Turn;
use super::slots::Slot;
use super::task::Task;
use crate::llama::{Batch, Context, Interrupt};
use crate::session::{self, SeedOrigin};
use crate::speculative::Drafters;

/// The target's context, its slots and the requests that wait for one.
pub(super) struct BatchScheduler {
    pub(super) context: Context,
    pub(super) slots: Vec<Slot>,
    pub(super) queue: VecDeque<Submission>,
    /// Sessions to be saved and loaded as soon as no request runs in their slots.
    pub(super) session_jobs: VecDeque<SessionJob>,
    pub(super) beams: Beams,
    pub(super) drafters: Drafters,
    /// Cells that all slots share; `None` when each has its own.
    pub(super) shared_cells: Option<usize>,
    pub(super) ctx_shift: bool,
    pub(super) outbox: Outbox,
    pub(super) batch: Batch,
    /// The slots with their shares of the batch; kept for its memory.
    pub(super) order: Vec<(usize, Share)>,
    /// How many tokens of each slot are in the batch; kept for its memory.
    pub(super) n_tokens: Vec<usize>,
    /// Time that the drafters took in this step.
    pub(super) t_draft: Duration,
    /// Counts admissions: the order of requests, and of the slots' last use.
    pub(super) tick: u64,
    /// Whose turn it is among requests with different LoRA scales.
    pub(super) turn: Turn,
}

/// What is told after a step and not in it, so that whoever learns of an end finds the slot free.
#[derive(Default)]
pub(super) struct Outbox {
    ended: Vec<(TextSink, Outcome)>,
    answers: Vec<Box<dyn FnOnce() + Send>>,
}

impl Outbox {
    /// A text has ended.
    pub(super) fn end(&mut self, sink: TextSink, outcome: Outcome) {
        self.ended.push((sink, outcome));
    }

    /// Something that was asked for is done, and `tell` says so.
    pub(super) fn answer(&mut self, tell: Box<dyn FnOnce() + Send>) {
        self.answers.push(tell);
    }

    /// Tells all of it.
    pub(super) fn deliver(&mut self, notify: &mut dyn FnMut(u64)) {
        self.answers.drain(..).for_each(|tell| tell());
        for (sink, outcome) in self.ended.drain(..) {
            sink.finish(outcome);
            notify(sink.id());
        }
    }
}

impl BatchScheduler {
    pub(super) fn new(context: Context, beams: Beams, config: &Config) -> BatchScheduler {
        let n_parallel = config.n_parallel.max(1);
        let mut drafters = Drafters::new(n_parallel);
        drafters.end_with(context.model().vocab().eog_tokens());
        drafters.costs.set_split(batch_split(&context));
        if context.pads_single_tokens() {
            drafters.guess();
        }
        BatchScheduler {
            shared_cells: (config.context.kv_unified && n_parallel > 1).then(|| context.n_ctx()),
            slots: (0..n_parallel)
                .map(|index| {
                    Slot::new(index, config.self_extend, session::branches(index, n_parallel, context.n_shared()))
                })
                .collect(),
            context,
            queue: VecDeque::new(),
            session_jobs: VecDeque::new(),
            beams,
            drafters,
            ctx_shift: config.ctx_shift,
            outbox: Outbox::default(),
            batch: Batch::new(),
            order: Vec::new(),
            n_tokens: Vec::new(),
            t_draft: Duration::ZERO,
            tick: 0,
            turn: Turn::default(),
        }
    }

    /// Whether anything runs or waits.
    pub(super) fn is_idle(&self) -> bool {
        let waits = !self.queue.is_empty() || !self.session_jobs.is_empty() || self.beams.is_busy();
        !waits && self.slots.iter().all(|slot| slot.task.is_none())
    }

    /// Until when there is nothing to do unless a command comes: forever (`Some(None)`), or until the first deadline of the
    /// requests whose prompts are being prepared. `None`: there is something to do.
    pub(super) fn rests_until(&self) -> Option<Option<Instant>> {
        let works = !self.session_jobs.is_empty() || self.beams.is_busy() || self.running().next().is_some();
        let rests = self.queue.is_empty() || self.queue.iter().any(|submission| !submission.is_prepared);
        (!works && rests).then(|| self.queue.iter().filter_map(|submission| submission.deadline).min())
    }

    /// Before a step: ends what was cancelled, and gives free slots to those that wait. `notify` is called with the number of each
    /// request that has news.
    pub(super) fn open(&mut self, notify: &mut dyn FnMut(u64)) {
        self.end_cancelled(notify);
        self.serve_sessions();
        self.admit(notify);
    }

    /// One step for all slots. `interrupt` stops the evaluation when the first of the requests must end.
    pub(super) fn step(&mut self, interrupt: &Interrupt, notify: &mut dyn FnMut(u64)) {
        interrupt.set_deadline(self.deadline());
        self.make_space();
        self.balance();
        self.schedule();
        self.draft();
        if self.fill_batch() {
            self.evaluate(notify);
        }
        self.outbox.ended.extend(self.beams.step(notify));
        interrupt.set_deadline(None);
    }

    /// Ends every request.
    pub(super) fn end_all(&mut self, stop: &Stop, notify: &mut dyn FnMut(u64)) {
        for submission in std::mem::take(&mut self.queue) {
            if submission.sink.finish_if_queued(stop.clone()) {
                notify(submission.sink.id());
            }
        }
        for index in 0..self.slots.len() {
            self.end(index, stop.clone(), false);
        }
        self.outbox.ended.extend(self.beams.end(stop.clone()));
    }

    /// The earliest time at which a request has to end.
    fn deadline(&self) -> Option<Instant> {
        let slots = self.slots.iter().filter_map(|slot| slot.task.as_ref()?.deadline);
        slots.chain(self.beams.deadline()).min()
    }

    pub(super) fn end(&mut self, index: usize, stop: Stop, truncated: bool) {
        let Some(slot) = self.slots.get_mut(index) else { return };
        let Some(mut task) = slot.task.take() else { return };
        slot.last_used = self.tick;
        let length = self.drafters.length(index);
        if !task.is_repeated() {
            let (text, generated) = task.whole_text();
            self.drafters.end(index, &text, generated);
        }
        slot.seed = Some(SeedOrigin::new(task.seed, task.tokens.len(), task.position()));
        // The last generated token is evaluated if it was drafted, and not otherwise: nothing is to depend on that.
        let generated = usize::from(task.n_predicted > 0);
        slot.cache.cut(&mut self.context, task.tokens.len().saturating_sub(generated));
        let path = task.options.session_save.clone().filter(|_| !matches!(stop, Stop::Error(_)));
        let (cached, compare, deadline) = (slot.cache.len(), task.compare.take(), task.deadline);
        let saved = path.map(|path| self.save_to(index, &path));
        let (sink, mut outcome) = task.finish(stop, index, cached, truncated, length);
        outcome.session_save = saved;
        match compare {
            Some(compare) => self.compare(index, compare, sink, outcome, deadline),
            None => self.outbox.end(sink, outcome),
        }
    }

    fn end_cancelled(&mut self, notify: &mut dyn FnMut(u64)) {
        let now = Instant::now();
        for index in 0..self.slots.len() {
            let Some(task) = self.slots.get(index).and_then(|slot| slot.task.as_ref()) else { continue };
            if task.sink.is_cancelled() {
                self.end(index, Stop::Cancelled, false);
            } else if task.deadline.is_some_and(|deadline| deadline <= now) {
                self.end(index, Stop::Timeout, false);
            }
        }
        self.queue.retain(|submission| {
            if submission.deadline.is_some_and(|deadline| deadline <= now) {
                submission.sink.finish_if_queued(Stop::Timeout);
            }
            let waits = submission.sink.phase() == super::Phase::Queued;
            if !waits {
                notify(submission.sink.id());
            }
            waits
        });
    }

    /// The slots that work, and on what.
    pub(super) fn running(&self) -> impl Iterator<Item = (&Slot, &Task)> {
        self.slots.iter().filter_map(|slot| slot.task.as_ref().map(|task| (slot, task)))
    }
}
