//! The end of a request in a slot.

use super::admission::begin;
use super::compare::Compare;
use super::event::{Outcome, Stop};
use super::request::Submission;
use super::request_handle::{Outbox, TextSink};
use super::sessions::save_to;
use super::slots::SlotPool;
use crate::session::SeedOrigin;

/// Ends the request in the slot `index`, if there is one. `truncated`: the context is full.
pub(super) fn end(pool: &mut SlotPool, outbox: &mut Outbox, index: usize, stop: Stop, truncated: bool) {
    let SlotPool { context, slots, drafters, tick, .. } = pool;
    let Some(slot) = slots.get_mut(index) else { return };
    let Some(mut task) = slot.task.take() else { return };
    slot.last_used = *tick;
    if !task.completion.is_repeated() {
        let (tokens, generated) = task.whole_context();
        drafters.end(index, &tokens, generated);
    }
    slot.seed = Some(SeedOrigin::new(task.completion.seed, task.tokens.len(), task.completion.rng_counter(0)));
    // The last generated token is decoded if it was drafted, and not otherwise: nothing may depend on that.
    let generated = usize::from(task.completion.n_predicted() > 0);
    slot.cache.cut(context, task.tokens.len().saturating_sub(generated));
    let path = task.options.session_save.clone().filter(|_| !matches!(stop, Stop::Error(_)));
    let n_cached = slot.cache.len();
    let saved = path.map(|path| save_to(pool, index, &path));
    let (compare, deadline) = (task.completion.compare.take(), task.deadline);
    let (sink, mut outcome) = task.finish(stop, index, n_cached, truncated);
    outcome.session_save = saved;
    match compare {
        Some(compare @ Compare::Second(_)) => {
            let answer = compare.answer(outcome.stop);
            answer.into_iter().for_each(|answer| outbox.end(sink.clone(), answer));
        }
        Some(compare) => begin_second_run(pool, outbox, index, compare, Submitted { sink, deadline }, outcome),
        None => outbox.end(sink, outcome),
    }
}

/// What a second run has in common with the first one.
struct Submitted {
    sink: TextSink,
    deadline: Option<std::time::Instant>,
}

/// The first run of a comparison has ended in a slot: the second one begins there.
fn begin_second_run(
    pool: &mut SlotPool,
    outbox: &mut Outbox,
    index: usize,
    compare: Compare,
    Submitted { sink, deadline }: Submitted,
    outcome: Outcome,
) {
    let (request, first_run, second) = match compare.repeat(outcome) {
        Ok(second) => second,
        Err(outcome) => return outbox.end(sink, *outcome),
    };
    let submission =
        Submission { request, is_prepared: true, sink: sink.clone(), deadline, first_run: Some(first_run) };
    let stop = match (begin(pool, index, submission), pool.slots.get_mut(index).and_then(|slot| slot.task.as_mut())) {
        (Ok(()), Some(task)) => {
            task.completion.compare = Some(second);
            return;
        }
        (Err(error), _) => Stop::Error(error),
        (Ok(()), None) => Stop::Cancelled,
    };
    if let Some(answer) = second.answer(stop) {
        outbox.end(sink, answer);
    }
}
