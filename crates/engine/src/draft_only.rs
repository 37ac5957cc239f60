//! Draft-only mode (`speculative.model: "draft"`): the draft model answers alone.
//!
//! Requests for it get slots on a context of their own, made when the first one comes: the drafter's context follows the target's outputs.
//! Otherwise, the slots work as the target's do.

use std::sync::Arc;
use std::time::Instant;

use super::Config;
use super::beams::Beams;
use super::event::Stop;
use super::report::StepReport;
use super::request::{Prepared, Submission};
use super::scheduler::{BatchScheduler, NextWork};
use foredraft_base::error::Result;
use foredraft_llama::{Context, Interrupt, Model, ThreadPool};

/// The scheduler of the draft model in draft-only mode.
pub(super) struct DraftOnly {
    model: Arc<Model>,
    /// The engine's configuration, with the draft model as the target.
    config: Config,
    threads: Arc<ThreadPool>,
    interrupt: Arc<Interrupt>,
    scheduler: Option<Box<BatchScheduler>>,
    /// Requests for which the context has to be made.
    waiting: Vec<Submission>,
}

impl DraftOnly {
    /// `config`: as if `model` were the target.
    pub(super) fn new(
        model: &Arc<Model>,
        config: Config,
        threads: &Arc<ThreadPool>,
        interrupt: &Arc<Interrupt>,
    ) -> DraftOnly {
        let (model, threads, interrupt) = (Arc::clone(model), Arc::clone(threads), Arc::clone(interrupt));
        DraftOnly { model, config, threads, interrupt, scheduler: None, waiting: Vec::new() }
    }

    /// The scheduler, once its context exists.
    pub(super) fn scheduler(&mut self) -> Option<&mut BatchScheduler> {
        self.scheduler.as_deref_mut()
    }

    /// Queues a completion.
    pub(super) fn submit(&mut self, submission: Submission) {
        match &mut self.scheduler {
            Some(scheduler) => scheduler.queue.push_back(submission),
            None => self.waiting.push(submission),
        }
    }

    /// Gives the completions of the request `id` their prompts. Appends the ends of those that have none to `report`.
    pub(super) fn set_prompts(&mut self, id: u64, prepared: &Result<Prepared>, report: &mut StepReport) {
        self.waiting.retain_mut(|submission| report.set_prompt(submission, id, prepared));
    }

    /// As [`BatchScheduler::next_work`].
    pub(super) fn next_work(&self) -> NextWork {
        match (&self.scheduler, self.waiting.is_empty()) {
            (_, false) => NextWork::Now,
            (None, true) => NextWork::AfterCommand,
            (Some(scheduler), true) => scheduler.next_work(),
        }
    }

    /// The earliest time at which a request has to end that waits for the context.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.waiting.iter().filter_map(|submission| submission.deadline).min()
    }

    /// Ends the requests that wait for the context and were cancelled, and those whose time has passed. Appends their ends to `report`.
    pub(super) fn end_cancelled(&mut self, report: &mut StepReport) {
        let now = Instant::now();
        self.waiting.retain(|submission| report.waits(submission, now));
    }

    /// Makes the context if a request needs it. If there is no memory for it, these requests fail, and later ones try again. Appends the
    /// ends of requests to `report`.
    pub(super) fn prepare(&mut self, report: &mut StepReport) {
        // One that was cancelled needs no context.
        self.end_cancelled(report);
        if self.waiting.is_empty() {
            return;
        }
        match self.make() {
            Ok(mut scheduler) => {
                scheduler.queue.extend(self.waiting.drain(..));
                self.scheduler = Some(Box::new(scheduler));
            }
            Err(error) => self.end_waiting(&Stop::Error(error), report),
        }
    }

    fn make(&self) -> Result<BatchScheduler> {
        let context = Context::new(&self.model, &self.config.context, &self.threads, &self.interrupt)?;
        let beams = Beams::new(&self.model, &self.config.context, &self.threads, &self.interrupt);
        let extend = self.config.self_extend.filter(|_| context.can_shift() && context.cuts_anywhere());
        // Conversations are those of the target.
        let config = Config { self_extend: extend, cache_ram: 0, cache_dir: None, ..self.config.clone() };
        Ok(BatchScheduler::new(context, beams, &config))
    }

    /// Ends the requests for which there is no context yet.
    pub(super) fn end_waiting(&mut self, stop: &Stop, report: &mut StepReport) {
        for submission in self.waiting.drain(..) {
            report.end_queued(submission.sink, stop.clone());
        }
    }
}
