//! The scheduler of one model: its slots, the requests that wait for one, and the loop of steps.

use std::collections::VecDeque;
use std::time::Instant;

use super::admission::{self, AdmissionPass, Placement};
use super::beams::Beams;
use super::config::Config;
use super::ending::end;
use super::event::Stop;
use super::request::{SessionJob, Submission};
use super::request_handle::{Outbox, Phase};
use super::sessions;
use super::slots::{Slot, SlotPool};
use super::step::Step;
use super::step::plan::DraftTree;
use crate::llama::{Context, Interrupt, working_time};
use crate::session;
use crate::speculative::{BatchSplit, Drafters, SequencePadding};

/// A model's slots and the requests that wait for one.
pub(super) struct BatchScheduler {
    pub(super) pool: SlotPool,
    pub(super) queue: VecDeque<Submission>,
    /// Sessions to be saved and loaded as soon as no request runs in their slots.
    pub(super) session_jobs: VecDeque<SessionJob>,
    pub(super) beams: Beams,
    pub(super) outbox: Outbox,
    pub(super) step: Step,
}

impl BatchScheduler {
    pub(super) fn new(context: Context, beams: Beams, config: &Config) -> BatchScheduler {
        let n_parallel = config.n_parallel.max(1);
        let mut drafters = Drafters::new(context.model().vocab().eog_tokens().collect(), working_time);
        drafters.controller.costs.set_split(batch_split(&context));
        if context.pads_single_tokens() {
            drafters.offer_free_tokens();
        }
        let slots: Vec<Slot> = (0..n_parallel).map(|index| Slot::new(index, config.self_extend)).collect();
        let branches = |index: usize| session::branches(index, n_parallel, context.n_shared());
        let trees = slots.iter().map(|slot| DraftTree::new(slot.cache.id(), branches(slot.index))).collect();
        let shared_cells = (config.context.kv_unified && n_parallel > 1).then(|| context.n_ctx());
        BatchScheduler {
            pool: SlotPool { context, slots, drafters, shared_cells, ctx_shift: config.ctx_shift, tick: 0 },
            queue: VecDeque::new(),
            session_jobs: VecDeque::new(),
            beams,
            outbox: Outbox::default(),
            step: Step::new(trees),
        }
    }

    /// Whether nothing runs or waits.
    pub(super) fn is_idle(&self) -> bool {
        let waits = !self.queue.is_empty() || !self.session_jobs.is_empty() || self.beams.is_busy();
        !waits && self.pool.running().next().is_none()
    }

    /// Until when there is nothing to do unless a command comes: forever (`Some(None)`), or until the first deadline of the
    /// requests whose prompts are being prepared. `None`: there is something to do.
    pub(super) fn rests_until(&self) -> Option<Option<Instant>> {
        let works = !self.session_jobs.is_empty() || self.beams.is_busy() || self.pool.running().next().is_some();
        let rests = self.queue.is_empty() || self.queue.iter().any(|submission| !submission.is_prepared);
        (!works && rests).then(|| self.queue.iter().filter_map(|submission| submission.deadline).min())
    }

    /// Before a step: ends what was cancelled, and gives free slots to waiting requests. `notify` is called with the number of each
    /// request that has news.
    pub(super) fn open(&mut self, notify: &mut dyn FnMut(u64)) {
        self.end_cancelled(notify);
        self.serve_sessions();
        self.admit(notify);
    }

    /// Runs one step of all slots and one of the beam search. `interrupt` stops the decode when the first of the requests must end.
    pub(super) fn step(&mut self, interrupt: &Interrupt, notify: &mut dyn FnMut(u64)) {
        interrupt.set_deadline(self.deadline());
        self.step.run(&mut self.pool, &mut self.outbox, notify);
        self.step_beams(notify);
        interrupt.set_deadline(None);
    }

    fn step_beams(&mut self, notify: &mut dyn FnMut(u64)) {
        if let Some((sink, outcome)) = self.beams.step(notify) {
            self.outbox.end(sink, outcome);
        }
    }

    /// Ends every request.
    pub(super) fn end_all(&mut self, stop: &Stop, notify: &mut dyn FnMut(u64)) {
        for submission in std::mem::take(&mut self.queue) {
            if submission.sink.finish_if_queued(stop.clone()) {
                notify(submission.sink.id());
            }
        }
        for index in 0..self.pool.slots.len() {
            end(&mut self.pool, &mut self.outbox, index, stop.clone(), false);
        }
        if let Some((sink, outcome)) = self.beams.end(stop.clone()) {
            self.outbox.end(sink, outcome);
        }
    }

    /// Copies sessions out of and into slots, as soon as these are free.
    pub(super) fn serve_sessions(&mut self) {
        for job in std::mem::take(&mut self.session_jobs) {
            let mut earlier = self.queue.iter().take_while(|submission| submission.sink.id() <= job.after);
            let takes_it = |slot: Option<usize>| slot.is_none_or(|slot| slot == job.slot);
            let waits = earlier.any(|submission| takes_it(submission.request.options.slot));
            if waits || !self.pool.is_free(job.slot) {
                self.session_jobs.push_back(job);
            } else {
                self.outbox.answer(sessions::serve(&mut self.pool, job));
            }
        }
    }

    /// Gives free slots to the requests that wait: see [`AdmissionPass`].
    fn admit(&mut self, notify: &mut dyn FnMut(u64)) {
        if self.queue.is_empty() {
            return;
        }
        let mut waiting = VecDeque::with_capacity(self.queue.len());
        let mut pass = AdmissionPass::new(&self.pool, self.beams.is_busy());
        while let Some(submission) = self.queue.pop_front() {
            match pass.place(&self.pool, &submission) {
                Some(placement) if submission.sink.start() => {
                    let sink = submission.sink.clone();
                    let begun = match placement {
                        Placement::Slot(index) => admission::begin(&mut self.pool, index, submission),
                        Placement::Beams => admission::begin_beams(&self.pool, &mut self.beams, submission),
                    };
                    if let Err(error) = begun {
                        let outcome = sink.never_ran(Stop::Error(error));
                        self.outbox.end(sink, outcome);
                    } else if let Placement::Slot(index) = placement
                        && let Some(task) = self.pool.slots.get(index).and_then(|slot| slot.task.as_ref())
                        && task.options.progress
                    {
                        // Before the first decode: that it has begun.
                        task.report_progress(task.prompt.n_cached);
                        notify(sink.id());
                    }
                    pass.begun(&self.pool, self.beams.is_busy());
                }
                Some(_) => notify(submission.sink.id()), // cancelled at this moment
                None => waiting.push_back(submission),
            }
        }
        self.queue = waiting;
    }

    /// The earliest time at which a request has to end.
    fn deadline(&self) -> Option<Instant> {
        let slots = self.pool.running().filter_map(|(_, task)| task.deadline);
        slots.chain(self.beams.deadline()).min()
    }

    fn end_cancelled(&mut self, notify: &mut dyn FnMut(u64)) {
        let now = Instant::now();
        for index in 0..self.pool.slots.len() {
            let Some(task) = self.pool.slots.get(index).and_then(|slot| slot.task.as_ref()) else { continue };
            if task.sink.is_cancelled() {
                end(&mut self.pool, &mut self.outbox, index, Stop::Cancelled, false);
            } else if task.deadline.is_some_and(|deadline| deadline <= now) {
                end(&mut self.pool, &mut self.outbox, index, Stop::Timeout, false);
            }
        }
        self.queue.retain(|submission| {
            if submission.deadline.is_some_and(|deadline| deadline <= now) {
                submission.sink.finish_if_queued(Stop::Timeout);
            }
            let waits = submission.sink.phase() == Phase::Queued;
            if !waits {
                notify(submission.sink.id());
            }
            waits
        });
    }
}

/// How a context divides batches.
fn batch_split(context: &Context) -> BatchSplit {
    let n_ubatch = context.n_ubatch();
    if !context.decodes_rectangles() {
        return BatchSplit::Whole { n_ubatch };
    }
    let padding = match context.pads_sequences() {
        None => SequencePadding::Never,
        Some(false) => SequencePadding::Always,
        Some(true) => SequencePadding::UnlessOneEach,
    };
    BatchSplit::Rectangles { n_ubatch, padding }
}
