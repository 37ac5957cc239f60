//! The scheduler of one model: its slots, the requests that wait for one, and the loop of steps.

use std::collections::VecDeque;
use std::time::Instant;

use super::admission::{self, AdmissionPass, Placement};
use super::beams::Beams;
use super::config::Config;
use super::ending::end;
use super::event::{Event, Stop};
use super::follow_up::follow_up;
use super::report::StepReport;
use super::request::{Prepared, PromptState, SessionJob, Submission};
use super::request_handle::Phase;
use super::sessions::{self, SessionAnswer};
use super::slots::{Slot, SlotPool};
use super::space;
use super::step::Step;
use super::step::draft_tree::DraftTree;
use crate::session;
use foredraft_base::error::Result;
use foredraft_llama::{Context, Interrupt, Rollback, working_time};
use foredraft_speculation::{BatchSplit, Drafters, SequencePadding};

/// When a scheduler has something to do, the earliest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum NextWork {
    /// Now.
    Now,
    /// At this time, unless a command comes before.
    At(Instant),
    /// When a command comes.
    AfterCommand,
}

/// A model's slots and the requests that wait for one.
pub(super) struct BatchScheduler {
    pub(super) pool: SlotPool,
    pub(super) queue: VecDeque<Submission>,
    /// Sessions to be saved and loaded as soon as no request runs in their slots.
    pub(super) session_jobs: VecDeque<SessionJob>,
    pub(super) beams: Beams,
    pub(super) step: Step,
    /// The changes that are not delivered yet.
    report: StepReport,
    session_answers: Vec<SessionAnswer>,
}

impl BatchScheduler {
    pub(super) fn new(context: Context, beams: Beams, config: &Config) -> BatchScheduler {
        let n_parallel = config.n_parallel.max(1);
        let decodes_slots_together = context.model().decodes_sequences_together();
        let mut drafters = Drafters::new(context.model().vocab().eog_tokens().collect(), working_time);
        drafters.controller.costs.set_split(batch_split(&context));
        if context.pads_single_tokens() {
            drafters.offer_free_tokens();
        }
        if context.rollback() == Rollback::Never {
            drafters.controller.costs.repeat();
        }
        if !context.rollback().is_unlimited() {
            drafters.controller.limit_losses();
        }
        let slots: Vec<Slot> = (0..n_parallel).map(|index| Slot::new(index, config.self_extend)).collect();
        let branches = |index: usize| session::branches(index, n_parallel, context.n_shared());
        let trees = slots.iter().map(|slot| DraftTree::new(slot.cache.id(), branches(slot.index))).collect();
        let shared_cells = (config.context.kv_unified && n_parallel > 1).then(|| context.n_ctx());
        BatchScheduler {
            pool: SlotPool {
                context,
                slots,
                drafters,
                shared_cells,
                ctx_shift: config.ctx_shift,
                reuses_prompts: true,
                decodes_slots_together,
                n_admissions: 0,
            },
            queue: VecDeque::new(),
            session_jobs: VecDeque::new(),
            beams,
            step: Step::new(trees),
            report: StepReport::default(),
            session_answers: Vec::new(),
        }
    }

    /// Whether nothing runs or waits.
    pub(super) fn is_idle(&self) -> bool {
        let waits = !self.queue.is_empty() || !self.session_jobs.is_empty() || self.beams.is_busy();
        !waits && self.pool.running().next().is_none()
    }

    /// When there is something to do. Requests whose prompts are being prepared have to end at their deadlines, and keep slots for a while.
    pub(super) fn next_work(&self) -> NextWork {
        let runs = !self.session_jobs.is_empty() || self.beams.is_busy() || self.pool.running().next().is_some();
        let can_begin = !self.queue.is_empty() && self.queue.iter().all(|it| it.prompt == PromptState::Known);
        if runs || can_begin {
            return NextWork::Now;
        }
        let deadlines = self.queue.iter().filter_map(|submission| submission.deadline);
        let late = self.queue.iter().filter_map(|submission| match submission.prompt {
            PromptState::Awaited(until) => Some(until),
            PromptState::Known | PromptState::Late => None,
        });
        deadlines.chain(late).min().map_or(NextWork::AfterCommand, NextWork::At)
    }

    /// Gives the completions of the request `id` their prompts. Those that have none end.
    pub(super) fn set_prompts(&mut self, id: u64, prepared: &Result<Prepared>) {
        self.queue.retain_mut(|submission| self.report.set_prompt(submission, id, prepared));
    }

    /// Prepares a step: ends what was cancelled, and gives free slots to waiting requests.
    pub(super) fn prepare(&mut self) {
        self.end_cancelled();
        self.serve_sessions();
        self.admit();
    }

    /// Runs one step of all slots and one of the beam search. `interrupt` stops the decode when the first of the requests must end.
    pub(super) fn step(&mut self, interrupt: &Interrupt) {
        interrupt.set_deadline(self.deadline());
        space::make_space(&mut self.pool, &mut self.report);
        self.follow_up();
        self.step.run(&mut self.pool, &mut self.report);
        self.follow_up();
        self.beams.step(&mut self.report);
        interrupt.set_deadline(None);
    }

    /// Follows up on ended runs, before another request can change their slots.
    fn follow_up(&mut self) {
        for run in std::mem::take(&mut self.report.follow_ups) {
            if let Some((sink, outcome)) = follow_up(&mut self.pool, run) {
                self.report.end(sink, outcome);
            }
        }
    }

    /// Delivers everything that has changed. Appends the number of each request that has an event to `changed`.
    pub(super) fn deliver(&mut self, changed: &mut Vec<u64>) {
        self.session_answers.drain(..).for_each(SessionAnswer::send);
        self.report.deliver(changed);
    }

    /// Ends every request.
    pub(super) fn end_all(&mut self, stop: &Stop) {
        for submission in std::mem::take(&mut self.queue) {
            self.report.end_queued(submission.sink, stop.clone());
        }
        for index in 0..self.pool.slots.len() {
            end(&mut self.pool, index, stop.clone(), false, &mut self.report);
        }
        self.follow_up();
        self.beams.end(stop.clone(), &mut self.report);
    }

    /// Copies sessions out of and into slots, as soon as these are free.
    pub(super) fn serve_sessions(&mut self) {
        for job in std::mem::take(&mut self.session_jobs) {
            if job.claim.is_taken() {
                continue; // its caller has given it up
            }
            let mut earlier = self.queue.iter().take_while(|submission| submission.sink.id() <= job.after);
            let takes_it = |slot: Option<usize>| slot.is_none_or(|slot| slot == job.slot);
            let waits = earlier.any(|submission| takes_it(submission.request.options.slot));
            if waits || !self.pool.is_free(job.slot) {
                self.session_jobs.push_back(job);
            } else if job.claim.take() {
                self.session_answers.push(sessions::serve(&mut self.pool, job));
            }
        }
    }

    /// Gives free slots to the requests that wait: see [`AdmissionPass`].
    fn admit(&mut self) {
        if self.queue.is_empty() {
            return;
        }
        let mut waiting = VecDeque::with_capacity(self.queue.len());
        let mut pass = AdmissionPass::new(&self.pool, self.beams.is_busy());
        let now = Instant::now();
        while let Some(mut submission) = self.queue.pop_front() {
            submission.prompt.look(now);
            match pass.place(&self.pool, &submission) {
                Some(placement) if submission.sink.start() => {
                    let sink = submission.sink.clone();
                    let begun = match placement {
                        Placement::Slot(index) => admission::begin(&mut self.pool, index, submission),
                        Placement::Beams => admission::begin_beams(&self.pool, &mut self.beams, submission),
                    };
                    if let Err(error) = begun {
                        let outcome = sink.never_ran(Stop::Error(error));
                        self.report.end(sink, outcome);
                    } else if let Placement::Slot(index) = placement
                        && let Some(task) = self.pool.slots.get(index).and_then(|slot| slot.task.as_ref())
                        && let Some(progress) = task.progress(task.prompt.n_cached)
                    {
                        // Reports before the first decode that it has begun.
                        self.report.update(&sink, Event::Progress(progress));
                    }
                    pass.begun(&self.pool, self.beams.is_busy());
                }
                Some(_) => self.report.end_queued(submission.sink, Stop::Cancelled), // at this moment
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

    /// The earliest time at which a running or a waiting request has to end.
    pub(super) fn first_deadline(&self) -> Option<Instant> {
        self.queue.iter().filter_map(|submission| submission.deadline).chain(self.deadline()).min()
    }

    /// Ends the requests that were cancelled, and those whose time has passed.
    pub(super) fn end_cancelled(&mut self) {
        self.beams.end_cancelled(&mut self.report);
        let now = Instant::now();
        for index in 0..self.pool.slots.len() {
            let Some(task) = self.pool.slots.get(index).and_then(|slot| slot.task.as_ref()) else { continue };
            if task.sink.is_cancelled() {
                end(&mut self.pool, index, Stop::Cancelled, false, &mut self.report);
            } else if task.deadline.is_some_and(|deadline| deadline <= now) {
                end(&mut self.pool, index, Stop::Timeout, false, &mut self.report);
            }
        }
        self.follow_up();
        self.queue.retain(|submission| {
            let is_late = submission.deadline.is_some_and(|deadline| deadline <= now);
            let waits = submission.sink.phase() == Phase::Queued && !is_late;
            if !waits {
                let stop = if is_late { Stop::Timeout } else { Stop::Cancelled };
                self.report.end_queued(submission.sink.clone(), stop);
            }
            waits
        });
    }
}

/// How a context divides batches.
fn batch_split(context: &Context) -> BatchSplit {
    let n_ubatch = context.n_ubatch();
    if !context.rollback().is_unlimited() {
        let n_together = match context.rollback().max_tokens() {
            0 => 0,
            n => n + 1,
        };
        return BatchSplit::Ends { n_ubatch, n_together, is_consecutive: context.has_buffers() };
    }
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
