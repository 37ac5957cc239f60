//! `speculative.model: "draft"`: the draft model answers alone, a quick preview of what the target would say.
//!
//! It gets slots of its own on a context of its own, made when the first such request comes: the drafter's context is no
//! place for it, because that follows the target's texts. Nothing else is new: the slots work as the target's do.

use std::sync::Arc;

use super::Config;
use super::beams::Beams;
use super::command::Submission;
use super::event::Stop;
use super::generation::Generation;
use super::request_handle::Phase;
use crate::error::Result;
use crate::llama::{Context, Interrupt, Model, ThreadPool};

/// The draft model as a model of its own.
pub(super) struct Preview {
    model: Arc<Model>,
    /// As if the draft model were the target.
    config: Config,
    threads: Arc<ThreadPool>,
    interrupt: Arc<Interrupt>,
    generation: Option<Box<Generation>>,
    /// Requests for which the context has to be made.
    waiting: Vec<Submission>,
}

impl Preview {
    /// `config`: as if `model` were the target.
    pub(super) fn new(
        model: &Arc<Model>,
        config: Config,
        threads: &Arc<ThreadPool>,
        interrupt: &Arc<Interrupt>,
    ) -> Preview {
        let (model, threads, interrupt) = (Arc::clone(model), Arc::clone(threads), Arc::clone(interrupt));
        Preview { model, config, threads, interrupt, generation: None, waiting: Vec::new() }
    }

    /// The slots, once there are any.
    pub(super) fn generation(&mut self) -> Option<&mut Generation> {
        self.generation.as_deref_mut()
    }

    /// Takes a text into the queue.
    pub(super) fn submit(&mut self, submission: Submission) {
        match &mut self.generation {
            Some(generation) => generation.queue.push_back(submission),
            None => self.waiting.push(submission),
        }
    }

    /// Whether anything runs or waits.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.generation.as_deref().is_none_or(Generation::is_idle)
    }

    /// Makes the context if a request needs it. Where there is no memory for it, these requests fail; later ones try again.
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
            Ok(mut generation) => {
                generation.queue.extend(self.waiting.drain(..));
                self.generation = Some(Box::new(generation));
            }
            Err(error) => self.end_waiting(&Stop::Error(error), notify),
        }
    }

    fn make(&self) -> Result<Generation> {
        let context = Context::new(&self.model, &self.config.context, &self.threads, &self.interrupt)?;
        let beams = Beams::new(&self.model, &self.config.context, &self.threads, &self.interrupt);
        let extend = self.config.self_extend.filter(|_| context.can_shift() && context.cuts_anywhere());
        let config = Config { self_extend: extend, ..self.config.clone() };
        Ok(Generation::new(context, beams, &config))
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
