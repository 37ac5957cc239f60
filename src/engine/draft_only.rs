//! Draft-only mode (`speculative.model: "draft"`): the draft model answers alone.
//!
//! It gets slots of its own on a context of its own, made when the first such request comes: the drafter's context is no
//! place for it, because that follows the target's texts. Nothing else is new: the slots work as the target's do.

use std::sync::Arc;
use std::time::Instant;

use super::Config;
use super::beams::Beams;
use super::event::Stop;
use super::request::Submission;
use super::request_handle::Phase;
use super::scheduler::BatchScheduler;
use crate::error::Result;
use crate::llama::{Context, Interrupt, Model, ThreadPool};

/// The scheduler of the draft model in draft-only mode.
pub(super) struct DraftOnly {
    model: Arc<Model>,
    /// As if the draft model were the target.
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

    /// The requests that wait for a slot.
    pub(super) fn queued(&mut self) -> impl Iterator<Item = &mut Submission> {
        let queue = self.scheduler.as_deref_mut().into_iter().flat_map(|scheduler| scheduler.queue.iter_mut());
        self.waiting.iter_mut().chain(queue)
    }

    /// As [`BatchScheduler::rests_until`].
    pub(super) fn rests_until(&self) -> Option<Option<Instant>> {
        match (&self.scheduler, self.waiting.is_empty()) {
            (_, false) => None,
            (None, true) => Some(None),
            (Some(scheduler), true) => scheduler.rests_until(),
        }
    }

    /// Makes the context if a request needs it. If there is no memory for it, these requests fail, and later ones try again.
    pub(super) fn open(&mut self, notify: &mut dyn FnMut(u64)) {
        // One that was cancelled needs no context.
        self.waiting.retain(|submission| {
            let waits = submission.sink.phase() == Phase::Queued;
            if !waits {
                notify(submission.sink.id());
            }
            waits
        });
        if self.waiting.is_empty() {
            return;
        }
        match self.make() {
            Ok(mut scheduler) => {
                scheduler.queue.extend(self.waiting.drain(..));
                self.scheduler = Some(Box::new(scheduler));
            }
            Err(error) => self.end_waiting(&Stop::Error(error), notify),
        }
    }

    fn make(&self) -> Result<BatchScheduler> {
        let context = Context::new(&self.model, &self.config.context, &self.threads, &self.interrupt)?;
        let beams = Beams::new(&self.model, &self.config.context, &self.threads, &self.interrupt);
        let extend = self.config.self_extend.filter(|_| context.can_shift() && context.cuts_anywhere());
        let config = Config { self_extend: extend, ..self.config.clone() };
        Ok(BatchScheduler::new(context, beams, &config))
    }

    /// Ends the requests for which there is no context yet.
    pub(super) fn end_waiting(&mut self, stop: &Stop, notify: &mut dyn FnMut(u64)) {
        for submission in self.waiting.drain(..) {
            if submission.sink.finish_if_queued(stop.clone()) {
                notify(submission.sink.id());
            }
        }
    }
}
