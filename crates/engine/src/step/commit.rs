//! The last stage of a step: the only one that changes what slots hold.

use std::time::Duration;

use super::decide::next_context;
use super::draft::StepDrafts;
use super::input::{MAX_PENDING, SlotState};
use super::plan::{SlotPlan, StepPlan};
use super::schedule::Schedule;
use super::trace::log_draft;
use super::verify::SlotOutcome;
use crate::ending::end;
use crate::event::{Event, Stop};
use crate::report::StepReport;
use crate::slots::{Slot, SlotPool, Task};
use crate::space;
use foredraft_base::error::{Code, Error};
use foredraft_llama::{DecodeError, EncodedMedia};
use foredraft_speculation::DecodedTokens;

/// A step whose decode succeeded.
pub(crate) struct DecodedStep<'a> {
    pub(crate) schedule: &'a Schedule,
    pub(crate) drafts: &'a StepDrafts,
    pub(crate) plan: &'a StepPlan,
    /// How long the decode took.
    pub(crate) time: Duration,
}

/// Notes which slots took part in a step, and the time that drafting took, whatever becomes of the decode.
pub(crate) fn commit_turn(schedule: &Schedule, t_draft: Duration, slots: &mut [Slot]) {
    for (scheduled, slot) in schedule.slots.iter().zip(&mut *slots) {
        if scheduled.is_in_turn {
            slot.last_turn = schedule.turn.number;
        }
        if scheduled.is_scheduled {
            slot.last_step = schedule.turn.step;
        }
    }
    for index in schedule.active() {
        let Some(speculation) = slots.get_mut(index).and_then(|slot| slot.task.as_mut()?.speculation.as_mut()) else {
            continue;
        };
        speculation.stats.t_draft += t_draft;
        let why = speculation.drafting.disabled();
        if why.is_some() && why != speculation.stats.disabled.as_deref() {
            speculation.stats.disabled = why.map(str::to_owned);
        }
    }
}

/// Commits a step: cells, completions, statistics, and what drafters and controller learn. Appends to `report`
/// what has changed for the submitters of the requests.
///
/// If a slot's logits are not finite, its cells may be the cause, or cells of a slot that shares the buffer: attention multiplies masked
/// cells, too, and NaN times 0 is NaN. So all cells are wiped, and all suspects are decoded again, one after the other, each alone. A
/// request whose logits are not finite then fails.
pub(crate) fn commit(
    step: &DecodedStep<'_>,
    outcomes: &mut [SlotOutcome],
    pool: &mut SlotPool,
    report: &mut StepReport,
) {
    let n_tokens = outcomes.iter().map(|outcome| outcome.tokens.len()).sum();
    let mut is_poisoned = false;
    let adapts = pool.slots.iter().filter_map(|slot| slot.task.as_ref()?.drafting()).any(|drafting| drafting.adapts());
    for (index, (planned, outcome)) in step.plan.slots.iter().zip(outcomes).enumerate() {
        if planned.n_context == 0 {
            continue;
        }
        commit_prompt(planned, outcome, index, pool, report);
        if planned.row.is_none() {
            continue;
        }
        match commit_outcome(step, outcome, index, pool, report) {
            Some(Stop::Error(error)) if error.code() == Code::ModelError => {
                is_poisoned = true;
                suspect(pool, index, error, report);
            }
            Some(stop) => end(pool, index, stop, false, report),
            None => {
                if let Some(task) = pool.slots.get_mut(index).and_then(|slot| slot.task.as_mut()) {
                    task.is_suspect = false;
                }
            }
        }
    }
    learn_costs(step, n_tokens, adapts, pool);
    pool.n_withheld = 0;
    if is_poisoned {
        pool.wipe();
        if pool.shared_cells.is_some() {
            // Perhaps the cause is a request that has no logits yet.
            pool.slots.iter_mut().filter_map(|slot| slot.task.as_mut()).for_each(|task| task.is_suspect = true);
        }
    }
}

/// Commits the decoded tokens of a slot's context, and the probabilities of its prompt's tokens.
fn commit_prompt(
    planned: &SlotPlan,
    outcome: &mut SlotOutcome,
    index: usize,
    pool: &mut SlotPool,
    report: &mut StepReport,
) {
    let SlotPool { context, slots, drafters, .. } = pool;
    let Some(slot) = slots.get_mut(index) else { return };
    let Some(task) = &mut slot.task else { return };
    let known = slot.cache.len();
    if let (true, Some(probs)) = (planned.scores, &mut task.prompt_probs) {
        // Tokens that are decoded again, because their cells were evicted, are scored again.
        probs.others.truncate(known);
        probs.others.append(&mut outcome.prompt_probs);
    }
    let new = task.tokens.get(known..known + planned.n_context).unwrap_or(&[]);
    if let Some(span) = new.first().and_then(|first| task.media_of(*first)?.span_from(*first, known)) {
        slot.cache.begin_span(span);
    }
    slot.cache.push(new);
    let tokens = task.tokens.get(..known + planned.n_context).unwrap_or(&[]);
    if let Some(drafting) = task.drafting() {
        let (first, draft) = (planned.first, planned.straight_draft());
        drafters.decoded(index, drafting, &mut DecodedTokens { target: context, first, tokens, from: known, draft });
    }
    if !task.completion.has_begun()
        && let Some(progress) = task.progress(slot.cache.len().min(task.prompt.n_prompt))
    {
        report.update(&task.sink, Event::Progress(progress));
    }
    if planned.row.is_none() {
        slot.cache.checkpoint(context);
    }
}

/// Commits the verified tokens of a slot. Returns why its request ends; `None`: it goes on, and `report` has its update.
fn commit_outcome(
    step: &DecodedStep<'_>,
    outcome: &mut SlotOutcome,
    index: usize,
    pool: &mut SlotPool,
    report: &mut StepReport,
) -> Option<Stop> {
    let SlotPool { context, slots, drafters, .. } = pool;
    let (planned, drafts) = (step.plan.slots.get(index)?, step.drafts.slots.get(index)?);
    let slot = slots.get_mut(index)?;
    next_context(slot, context);
    let task = slot.task.as_mut()?;
    let Task { sink, tokens, completion, speculation, .. } = task;
    let is_first = !completion.has_begun();
    if is_first && !outcome.tokens.is_empty() {
        report.first_token(sink);
    }
    let before = tokens.len();
    tokens.extend(outcome.tokens.iter().map(|generated| generated.token));
    let new = tokens.get(before..).unwrap_or(&[]);
    slot.cache.push(new.get(..outcome.n_kept).unwrap_or(&[]));
    if let Some(speculation) = speculation {
        if speculation.is_requested {
            log_draft(sink.id(), planned, outcome, context.model().vocab());
        }
        speculation.stats.n_steps += 1;
        // The first token's decode is the prompt's.
        speculation.stats.t_verify += if is_first { Duration::ZERO } else { step.time };
        speculation.stats.record(&outcome.draft);
        drafters.learn(index, &step.schedule.demands, &mut speculation.drafting, drafts, new, &outcome.draft);
    }
    completion.append(&mut outcome.tokens, &outcome.added, outcome.end.as_ref(), outcome.logit_gap);
    // Cells of rejected tokens and of filler.
    if planned.n_batch_tokens() > planned.n_context {
        let n_cached = slot.cache.len();
        slot.cache.cut(context, n_cached);
    }
    if let Some(end) = outcome.end.take() {
        return Some(end.stop);
    }
    if let Some(update) = task.take_update() {
        report.update(&task.sink, Event::Update(update));
    }
    None
}

/// Records the costs of a step for the controller.
fn learn_costs(step: &DecodedStep<'_>, n_tokens: usize, adapts: bool, pool: &mut SlotPool) {
    let DecodedStep { plan, schedule: Schedule { demands, .. }, drafts, time } = *step;
    let in_batch = || plan.slots.iter().filter(|slot| slot.n_context > 0);
    let generated = |slot: &SlotPlan| {
        let own = if slot.n_context <= MAX_PENDING { slot.n_context } else { 1 };
        slot.n_batch_tokens() - slot.n_context + own
    };
    let n_generated: usize = in_batch().map(generated).sum();
    let n_decoded: usize = in_batch().map(SlotPlan::n_batch_tokens).sum();
    let costs = &mut pool.drafters.controller.costs;
    // Prompts, and nearly nothing else.
    if n_decoded > 16 * n_generated {
        costs.record_prompt(n_decoded, time);
    } else if n_generated == n_decoded && drafts.choices.iter().all(Option::is_none) {
        let n_past = |slot: usize| demands.get(slot).map_or(0, |demand| demand.n_past);
        let cost = costs.record_step(&plan.n_tokens, n_past, time);
        let drafting = costs.of(drafts.time);
        pool.drafters.stepped(demands, adapts, n_tokens, cost, drafting);
    } else {
        costs.record_mixed(n_decoded);
    }
}

/// Keeps what is certain of the decoded cells after a decode that gave no rows, and ends the requests that cannot go on. `states`: what the
/// slots held before. `all_are_lost`: see [`moves_other_sequences`](super::moves_other_sequences).
pub(crate) fn abandon(
    plan: &StepPlan,
    states: &[SlotState],
    error: DecodeError,
    all_are_lost: bool,
    pool: &mut SlotPool,
    report: &mut StepReport,
) {
    match error {
        DecodeError::Aborted => roll_back(plan, pool),
        DecodeError::Full => {
            let change = pool.shared_cells.and_then(|_| space::next_to_evict(states));
            match change {
                // Nothing was decoded: the next step tries again with what fits, and with fewer tokens, or else the same could happen again.
                Some(change) => {
                    pool.n_withheld += plan.n_tokens.iter().sum::<usize>();
                    space::apply(pool, change);
                }
                None => fail(plan, &Error::new(Code::ContextFull, "the KV cache is full"), pool, report),
            }
        }
        DecodeError::Failed(error) => match pool.renew() {
            // Perhaps one of several requests is the cause: each is decoded again, alone.
            Ok(true) => {
                for (index, _) in plan.slots.iter().enumerate().filter(|(_, planned)| planned.n_context > 0) {
                    suspect(pool, index, error.clone(), report);
                }
            }
            Ok(false) => {
                fail(plan, &error, pool, report);
                if all_are_lost {
                    pool.wipe();
                }
            }
            Err(renewal) => {
                let why = format!("{}; the context cannot be made anew: {}", error.message(), renewal.message());
                fail(plan, &Error::new(error.code(), why), pool, report);
            }
        },
    }
}

/// Lets the request of a slot be decoded again, alone. The second time, it ends with the error.
fn suspect(pool: &mut SlotPool, index: usize, error: Error, report: &mut StepReport) {
    let task = pool.slots.get_mut(index).and_then(|slot| slot.task.as_mut());
    if task.is_none_or(|task| std::mem::replace(&mut task.is_suspect, true)) {
        end(pool, index, Stop::Error(error), false, report);
    }
}

/// Keeps what was decoded of prompts after an interrupted decode, and removes the rest.
fn roll_back(plan: &StepPlan, pool: &mut SlotPool) {
    let SlotPool { context, slots, .. } = pool;
    for (planned, slot) in plan.slots.iter().zip(slots).filter(|(planned, _)| planned.n_context > 0) {
        let known = slot.cache.len();
        let tokens = slot.task.as_ref().map_or(&[][..], |task| &task.tokens);
        let new = tokens.get(known..known + planned.n_context).unwrap_or(&[]);
        let medium = slot.task.as_ref().zip(new.first()).and_then(|(task, first)| task.media_of(*first));
        // How many rows are there cannot be told from a position that they share.
        let is_unknown = medium.is_some_and(EncodedMedia::shares_positions);
        slot.cache.recover(context, if is_unknown { &[] } else { new });
        if planned.scores {
            // The probabilities of the tokens after them are lost.
            slot.cache.cut(context, known);
        }
        // The last token is decoded again: its logits are lost.
        slot.cache.cut(context, tokens.len().saturating_sub(1));
    }
}

/// Ends all requests in the batch with an error.
fn fail(plan: &StepPlan, error: &Error, pool: &mut SlotPool, report: &mut StepReport) {
    for (index, _) in plan.slots.iter().enumerate().filter(|(_, planned)| planned.n_context > 0) {
        pool.clear_cache(index);
        end(pool, index, Stop::Error(error.clone()), false, report);
    }
}
