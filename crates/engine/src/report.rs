//! The changes of steps for the submitters of requests, as values.
//!
//! A step only appends to a [`StepReport`]. The scheduler saves sessions and begins second runs by it, and delivers the rest. So nothing
//! is visible outside before the step is committed and the state of the slots is published: a host that learns of an end finds the slot
//! free.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use super::compare::Compare;
use super::event::{Event, Outcome, Stop};
use super::request::{Prepared, PromptState, Submission};
use super::request_handle::{CompletionSink, Phase};
use foredraft_base::error::{Error, Result};

/// The changes since the last delivery. The scheduler keeps them, for their memory, and so that a panic in a step loses no end of a
/// request.
#[derive(Default)]
pub(super) struct StepReport {
    /// The updates of completions that go on, in order.
    pub(super) updates: Vec<(CompletionSink, CompletionUpdate)>,
    /// The completions that have ended, with their results.
    pub(super) ended: Vec<(CompletionSink, Outcome)>,
    /// Runs that have ended in a slot, and leave work to the scheduler.
    pub(super) follow_ups: Vec<EndedRun>,
}

/// An update of a completion that goes on.
pub(super) enum CompletionUpdate {
    /// It has its first token.
    FirstToken,
    /// Something for the submitter.
    Event(Event),
}

/// A run that has ended in a slot.
pub(super) struct EndedRun {
    pub(super) slot: usize,
    pub(super) sink: CompletionSink,
    pub(super) deadline: Option<Instant>,
    pub(super) outcome: Outcome,
    /// Where the slot's session is to be saved.
    pub(super) session_save: Option<PathBuf>,
    /// The comparison of which this was a run.
    pub(super) compare: Option<Compare>,
}

impl StepReport {
    /// Appends an event of a completion that goes on.
    pub(super) fn update(&mut self, sink: &CompletionSink, event: Event) {
        self.updates.push((sink.clone(), CompletionUpdate::Event(event)));
    }

    /// Appends that a completion has its first token.
    pub(super) fn first_token(&mut self, sink: &CompletionSink) {
        self.updates.push((sink.clone(), CompletionUpdate::FirstToken));
    }

    /// Appends the end of a completion.
    pub(super) fn end(&mut self, sink: CompletionSink, outcome: Outcome) {
        self.ended.push((sink, outcome));
    }

    /// Appends the end of a completion that waits for a slot. If it has ended already, this only says so.
    pub(super) fn end_queued(&mut self, sink: CompletionSink, stop: Stop) {
        let outcome = sink.never_ran(stop);
        self.end(sink, outcome);
    }

    /// Whether a completion waits for a slot or a context. Appends its end if it was cancelled or its time has passed.
    pub(super) fn waits(&mut self, submission: &Submission, now: Instant) -> bool {
        let is_late = submission.deadline.is_some_and(|deadline| deadline <= now);
        let waits = submission.sink.phase() == Phase::Queued && !is_late;
        if !waits {
            let stop = if is_late { Stop::Timeout } else { Stop::Cancelled };
            self.end_queued(submission.sink.clone(), stop);
        }
        waits
    }

    /// Gives a waiting completion its prompt, if it is one of the request `id`. Returns false, and appends its end, if it has none.
    pub(super) fn set_prompt(&mut self, submission: &mut Submission, id: u64, prepared: &Result<Prepared>) -> bool {
        if submission.sink.id() != id {
            return true;
        }
        let prepared = prepared.as_ref().map_err(Error::clone).and_then(|prepared| {
            let prompt = prepared.prompts.get(submission.sink.index());
            Ok((prompt.ok_or_else(|| Error::invalid("prompt: is missing"))?, prepared))
        });
        match prepared {
            Ok((prompt, prepared)) => {
                submission.sink.set_prompt_len(prompt.len());
                submission.request.prompt = Arc::clone(prompt);
                submission.request.media =
                    prepared.media.get(submission.sink.index()).map(Arc::clone).unwrap_or_default();
                submission.request.questions = submission.request.questions.take().or(prepared.questions.clone());
                if let Some(settings) = &mut submission.request.speculative {
                    settings.prediction = prepared.prediction.clone();
                }
                submission.prompt = PromptState::Known;
            }
            Err(error) => self.end_queued(submission.sink.clone(), Stop::Error(error)),
        }
        submission.prompt == PromptState::Known
    }

    /// Appends the end of a run: of its completion, unless something is left to do.
    pub(super) fn end_run(&mut self, run: EndedRun) {
        if run.session_save.is_some() || run.compare.is_some() {
            self.follow_ups.push(run);
        } else {
            self.end(run.sink, run.outcome);
        }
    }

    /// Hands everything to the requests' handles, except for what is left to do. Appends the number of each request that has an event to
    /// `changed`.
    pub(super) fn deliver(&mut self, changed: &mut Vec<u64>) {
        for (sink, update) in self.updates.drain(..) {
            match update {
                CompletionUpdate::FirstToken => sink.set_generating(),
                CompletionUpdate::Event(event) => {
                    sink.report(event);
                    changed.push(sink.id());
                }
            }
        }
        for (sink, outcome) in self.ended.drain(..) {
            sink.finish(outcome);
            changed.push(sink.id());
        }
    }
}
