//! Follows up on a run that has ended in a slot: saves its session, and begins the second run of a comparison.

use super::admission::begin;
use super::event::{Outcome, Stop};
use super::report::EndedRun;
use super::request::{PromptState, Submission};
use super::request_handle::CompletionSink;
use super::sessions::save_to;
use super::slots::SlotPool;

/// Follows up on an ended run. Returns the end of the completion; `None`: a second run has begun in the slot.
pub(super) fn follow_up(pool: &mut SlotPool, run: EndedRun) -> Option<(CompletionSink, Outcome)> {
    let EndedRun { slot, sink, deadline, mut outcome, session_save, compare } = run;
    outcome.session_save = session_save.map(|path| save_to(pool, slot, &path));
    let Some(compare) = compare else { return Some((sink, outcome)) };
    let (request, first_run, second) = match compare.repeat(outcome) {
        Ok(second) => second,
        Err(outcome) => return Some((sink, *outcome)),
    };
    let submission = Submission {
        first_run: Some(first_run),
        ..Submission::new(request, PromptState::Known, sink.clone(), deadline)
    };
    let begun = begin(pool, slot, submission);
    let stop = match (begun, pool.slots.get_mut(slot).and_then(|slot| slot.task.as_mut())) {
        (Ok(()), Some(task)) => {
            task.completion.compare = Some(second);
            return None;
        }
        (Err(error), _) => Stop::Error(error),
        (Ok(()), None) => Stop::Cancelled,
    };
    second.answer(stop).map(|outcome| (sink, outcome))
}
