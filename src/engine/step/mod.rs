//! One step of the engine: every stage is a function of plain data that passes from one to the next.
//!
//! ```text
//! slots ──schedule──> StepPlan ──draft──> StepPlan ──decode──> Rows ──verify──> SlotOutcome ──commit──> slots
//! ```
//!
//! - [`schedule`] and [`fill`]: which slots take part, and how much of the batch each of them gets. Pure.
//! - [`draft`]: between both, the drafters propose tokens, and the controller chooses all lengths.
//! - [`decode`](decode()): the only stage that decodes with the target.
//! - [`verify`](verify()): what a step brings for a slot. Only samplers advance.
//! - [`commit`](commit()): the only stage that changes what a slot holds: its cells, its completion and its statistics.
//!
//! Two things do not pass through the plan: a request's drafting state, in which [`draft`] leaves what a stochastic rule has drawn for
//! [`verify`](verify()), and the cells that are made free before the plan (see [`space`]).
//!
//! Every slot is decoded up to the end of its request's tokens: a prompt, the last sampled token, or everything again after its cells
//! were given away. A draft is a few more tokens after those. So prompts, speculation and resumed requests share one loop.

pub(super) mod commit;
mod decode;
pub(super) mod plan;
mod trace;
mod verify;

use self::commit::{abandon, commit, commit_turn};
use self::decode::{Rows, decode};
use self::plan::{DraftTree, StepLimits, StepPlan, fill, may_draft, room_after, schedule};
use self::verify::{SlotOutcome, VerifiedRequest, score_prompt, verify};
use super::report::StepReport;
use super::slots::{Slot, SlotPool, Task};
use super::space;
use crate::llama::{Batch, Model};
use crate::speculative::{Drafters, DraftingSlot};

/// The buffers of a step, which the next one uses again.
pub(super) struct Step {
    pub(super) plan: StepPlan,
    batch: Batch,
    outcomes: Vec<SlotOutcome>,
    drafting: Vec<DraftingSlot<'static>>,
}

impl Step {
    /// For slots with these sequences for the branches of their drafts.
    pub(super) fn new(trees: Vec<DraftTree>) -> Step {
        let outcomes = trees.iter().map(|_| SlotOutcome::default()).collect();
        Step { plan: StepPlan::new(trees.into_iter()), batch: Batch::new(), outcomes, drafting: Vec::new() }
    }

    /// Runs a step for all slots. Appends to `report` what has changed for the submitters of the requests.
    pub(super) fn run(&mut self, pool: &mut SlotPool, report: &mut StepReport) {
        self.plan(pool);
        commit_turn(&self.plan, &mut pool.slots);
        if self.plan.is_empty() {
            return;
        }
        let exchanges = exchanges_states(pool);
        let SlotPool { context, slots, drafters, .. } = pool;
        let model = context.model().clone();
        match decode(&self.plan, slots, context, &mut self.batch, exchanges, || drafters.now()) {
            Ok(mut rows) => {
                let time = rows.time;
                verify_all(&self.plan, slots, &mut rows, &model, &mut self.outcomes);
                commit(&self.plan, &mut self.outcomes, time, pool, report);
            }
            Err(error) => abandon(&self.plan, error, exchanges, pool, report),
        }
    }

    /// Plans a step, for which slots that share cells give them to each other.
    pub(super) fn plan(&mut self, pool: &mut SlotPool) {
        let plan = &mut self.plan;
        let limits = pool.limits();
        pool.states(&mut plan.states);
        space::balance(&mut plan.states, &limits, |change| space::apply(pool, change));
        schedule(plan, &limits);
        draft(plan, &limits, &mut pool.slots, &mut pool.drafters, &mut self.drafting);
        fill(plan, &limits);
        limit_drafts(plan, &mut pool.slots);
    }
}

/// Drafters keep up with all requests of the step that speculate, and propose tokens to those that generate. The plan gets the chosen
/// drafts and lengths. `buffer` is empty, and kept for its memory.
fn draft(
    plan: &mut StepPlan,
    limits: &StepLimits,
    slots: &mut [Slot],
    drafters: &mut Drafters,
    buffer: &mut Vec<DraftingSlot<'static>>,
) {
    let start = drafters.now();
    let mut drafting = recycle(std::mem::take(buffer));
    drafting.extend(drafting_slots(plan, limits, slots));
    drafters.draft(&plan.steps, &mut drafting);
    *buffer = recycle(drafting);
    plan.t_draft = drafters.now().saturating_duration_since(start);
    let mut drafts = slots.iter().filter_map(|slot| slot.task.as_ref()?.drafts());
    plan.keeps_hidden = drafts.any(|drafts| drafters.needs_hidden(drafts));
    for (index, planned) in plan.active_mut() {
        let chosen = slots.get(index).and_then(|slot| slot.task.as_ref()?.drafts()?.chosen());
        planned.set_draft(chosen, drafters.controller.length(index));
    }
}

/// Shortens the requests' own drafts to what is in the batch.
fn limit_drafts(plan: &StepPlan, slots: &mut [Slot]) {
    for (index, _, planned) in plan.active() {
        if let Some(drafts) = slots.get_mut(index).and_then(Slot::drafts_mut) {
            drafts.limit(planned.draft.tokens.len());
        }
    }
}

/// The slots of the step whose requests speculate, as the drafters see them.
fn drafting_slots<'a>(
    plan: &StepPlan,
    limits: &StepLimits,
    slots: &'a mut [Slot],
) -> impl Iterator<Item = DraftingSlot<'a>> {
    let n_generating = plan.states.iter().filter(|state| state.has_request && state.is_generating).count();
    // Where a token would be padded otherwise.
    let is_padded = limits.pads_single_tokens && (n_generating == 1 || limits.shared_cells.is_none());
    let planned = plan.states.iter().zip(&plan.slots);
    let active = slots.iter_mut().zip(planned).filter(|(_, (state, slot))| slot.is_active(state));
    active.filter_map(move |(slot, (state, _))| {
        let index = slot.index;
        let task = slot.task.as_mut()?;
        let drafts = task.speculation.as_mut()?.drafts.as_mut()?;
        let room = room_after(state, limits).min(state.n_remaining.saturating_sub(1));
        Some(DraftingSlot {
            slot: index,
            tokens: &task.tokens,
            sampler: &task.sampler,
            generated: task.tokens.len().saturating_sub(task.output),
            position: task.completion.rng_counter(0),
            room: may_draft(state).then_some(room),
            is_padded,
            drafts,
        })
    })
}

/// Empties a vector and keeps its memory for items of another lifetime.
#[expect(clippy::unnecessary_filter_map, reason = "the closure changes the lifetime of the items")]
fn recycle<'a>(mut items: Vec<DraftingSlot<'_>>) -> Vec<DraftingSlot<'a>> {
    items.clear();
    // The standard library collects into the memory of the same layout that it reads from.
    items.into_iter().filter_map(|_| None).collect()
}

/// Verifies every slot of a decoded step.
fn verify_all(plan: &StepPlan, slots: &mut [Slot], rows: &mut Rows<'_>, model: &Model, outcomes: &mut [SlotOutcome]) {
    for ((planned, slot), outcome) in plan.slots.iter().zip(slots).zip(outcomes) {
        outcome.clear();
        let Some(task) = slot.task.as_mut().filter(|_| planned.n_context > 0) else { continue };
        let Task { sampler, tokens, completion, speculation, options, output, .. } = task;
        if planned.scores {
            let prompt = tokens.get(slot.cache.len()..*output).unwrap_or(&[]);
            score_prompt(planned, prompt, options.prompt_probs.unwrap_or(0), rows, outcome);
        }
        let speculation = speculation.as_mut();
        verify(
            planned,
            VerifiedRequest { sampler, tokens, completion, speculation, vocab: model.vocab() },
            rows,
            outcome,
        );
    }
}

/// Whether a decode moves the states of sequences that are not in its batch: llama.cpp exchanges the cells of recurrent states before
/// it moves their contents. If it is stopped in between, sequences have the states of others. So such a decode runs to its end.
fn exchanges_states(pool: &SlotPool) -> bool {
    pool.slots.len() > 1 && !pool.context.model().can_roll_back()
}
