//! The end of a request in a slot: what changes in the slot, and what the scheduler has to do afterwards.

use super::compare::Compare;
use super::event::Stop;
use super::report::{EndedRun, StepReport};
use super::slots::SlotPool;
use crate::session::SeedOrigin;

/// Ends the request in the slot `index`, if there is one. `truncated`: the context is full.
pub(super) fn end(pool: &mut SlotPool, index: usize, stop: Stop, truncated: bool, report: &mut StepReport) {
    let SlotPool { context, slots, drafters, begun, n_admissions, .. } = pool;
    let Some(slot) = slots.get_mut(index) else { return };
    let Some(mut task) = slot.task.take() else { return };
    slot.last_used = *n_admissions;
    // Drafters learn from answers that are given.
    let is_preparation = task.options.is_preparation();
    if is_preparation {
        drafters.end(index, &[], 0);
    } else if !task.completion.is_repeated() {
        let (tokens, generated) = task.whole_context();
        drafters.end(index, &tokens, generated);
    }
    if !is_preparation {
        slot.seed = Some(SeedOrigin::new(task.completion.seed, task.tokens.len(), task.completion.rng_counter(0)));
    }
    // The last generated token is decoded if it was drafted, and not otherwise: nothing may depend on that.
    let generated = usize::from(task.completion.n_predicted() > 0);
    slot.cache.cut(context, task.tokens.len().saturating_sub(generated));
    if let Some(answer) = task.begun_answer().filter(|_| !matches!(stop, Stop::Error(_))) {
        begun.keep(answer);
    } else if let Some(conversation) = &mut slot.conversation {
        // The ends of earlier turns are unknown where the context has lost tokens.
        if task.truncated {
            conversation.turns.clear();
        }
        conversation.end_turn(slot.cache.len());
    }
    let session_save = task.options.session_save.take().filter(|_| !matches!(stop, Stop::Error(_)));
    let (compare, deadline) = (task.completion.compare.take(), task.deadline);
    let (sink, outcome) = task.finish(stop, index, slot.cache.len(), truncated);
    let run = match compare {
        Some(Compare::Second(second)) => {
            let outcome = second.answer(outcome.stop);
            EndedRun { slot: index, sink, deadline, outcome, session_save: None, compare: None }
        }
        first => EndedRun { slot: index, sink, deadline, outcome, session_save, compare: first },
    };
    report.end_run(run);
}
