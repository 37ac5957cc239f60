//! The second half of planning: drafters draft for the scheduled slots, and the drafts go into the plan.

use super::plan::{StepLimits, StepPlan};
use super::schedule::{fill, may_draft, room_after};
use crate::engine::slots::Slot;
use crate::speculative::{Drafters, DraftingSlot};

/// Lets the drafters keep up with all requests of the step that speculate, and propose tokens to those that generate; then plans
/// what of each slot goes into the batch. `buffer` is empty, and kept for its memory.
pub(in crate::engine) fn draft(
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
    let drafts = slots.iter().filter_map(|slot| slot.task.as_ref()?.drafts());
    plan.keeps_hidden = drafts.fold(false, |keeps, drafts| keeps || drafters.needs_hidden(drafts));
    let plan_draft = |index: usize, planned: &mut super::plan::SlotPlan, n: usize| {
        let drafts = slots.get_mut(index).and_then(Slot::drafts_mut);
        let n = planned.plan_draft(drafts.as_ref().and_then(|drafts| drafts.chosen()), n);
        if let Some(drafts) = drafts {
            drafts.limit(n);
        }
        n
    };
    fill(plan, limits, plan_draft, |slot| drafters.controller.length(slot));
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
    let active = slots.iter_mut().zip(planned).filter(|(_, (state, slot))| state.is_running() && slot.is_scheduled);
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
fn recycle<'a>(mut items: Vec<DraftingSlot<'_>>) -> Vec<DraftingSlot<'a>> {
    items.clear();
    // The standard library collects into the memory of the same layout that it reads from.
    items.into_iter().filter_map(|_| None).collect()
}
