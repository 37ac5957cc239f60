//! The first stage of a step: which slots take part, and how much of the batch each of them gets. Pure functions of plain data.
//!
//! Requests with different LoRA scales cannot be decoded in one batch, so they take turns. So do long prompts: next to others they
//! would be divided in other places than alone, and the last bits of their cells in the KV cache depend on that.

use std::cmp::Reverse;

use super::plan::{MAX_PENDING, SlotPlan, SlotState, StepLimits, StepPlan, Turn};
use crate::speculative::StepSlot;

/// Steps that a turn lasts: llama.cpp plans its graph anew whenever scales change.
const STEPS_OF_TURN: u64 = 8;

/// Plans which slots take part: those whose turn it is, or else, for some steps, the slot whose turn was longest ago and all with the
/// same LoRA scales.
pub(in crate::engine) fn schedule(plan: &mut StepPlan, limits: &StepLimits) {
    let StepPlan { states, slots, turn, adapters_of, .. } = plan;
    slots.iter_mut().for_each(SlotPlan::clear);
    turn.n_steps += 1;
    *adapters_of = next_in_turn(states, turn);
    if let Some(next) = adapters_of.and_then(|next| states.get(next)) {
        for (state, slot) in states.iter().zip(&mut *slots) {
            slot.is_in_turn = state.adapters == next.adapters;
        }
        turn.step += 1;
        part_long_prompts(states, slots, limits);
    }
    plan_steps(plan, limits);
}

/// The slot whose LoRA scales are used in this step.
fn next_in_turn(states: &[SlotState], turn: &mut Turn) -> Option<usize> {
    let mut running = (0..).zip(states).filter(|(_, state)| state.is_running());
    let now = running.clone().find(|(_, state)| state.last_turn == turn.number);
    if let Some((now, _)) = now.filter(|_| turn.n_steps <= STEPS_OF_TURN) {
        return Some(now);
    }
    let (next, _) = running.by_ref().min_by_key(|(_, state)| state.last_turn)?;
    (turn.number, turn.n_steps) = (turn.number + 1, 1);
    Some(next)
}

/// Of the slots whose turn it is, lets either one with a long prompt take part or all others: whichever took part longest ago.
fn part_long_prompts(states: &[SlotState], slots: &mut [SlotPlan], limits: &StepLimits) {
    let most = if limits.is_batch_invariant { limits.max_invariant_tokens } else { usize::MAX };
    let is_long = |state: &SlotState| state.n_pending() > most;
    let working =
        (0..).zip(states.iter().zip(&*slots)).filter(|(_, (state, slot))| state.is_running() && slot.is_in_turn);
    let working = working.map(|(index, (state, _))| (index, state));
    let others = working.clone().filter(|(_, state)| !is_long(state)).map(|(_, state)| state.last_step).max();
    let long = working.filter(|(_, state)| is_long(state)).min_by_key(|(_, state)| state.last_step);
    let long = long.filter(|(_, state)| others.is_none_or(|others| state.last_step <= others)).map(|(index, _)| index);
    for (index, (state, slot)) in states.iter().zip(slots).enumerate() {
        slot.is_scheduled = slot.is_in_turn && long.map_or(!is_long(state), |long| index == long);
    }
}

/// The step as the controller of draft lengths sees it.
fn plan_steps(plan: &mut StepPlan, limits: &StepLimits) {
    let StepPlan { states, slots, steps, .. } = plan;
    steps.clear();
    steps.extend(states.iter().zip(slots).map(|(state, slot)| {
        if !state.is_running() || !slot.is_scheduled {
            return StepSlot::default();
        }
        let n_pending = state.n_pending();
        let room = match limits.can_roll_back {
            true => room_after(state, limits).min(state.tokens_until_group.saturating_sub(n_pending)),
            false => 0,
        };
        StepSlot { n_tokens: n_pending.min(limits.n_ubatch), generates: may_draft(state), room }
    }));
}

/// Whether a draft may follow the slot's context in this step.
pub(in crate::engine) fn may_draft(state: &SlotState) -> bool {
    state.is_generating && (1..=MAX_PENDING).contains(&state.n_pending())
}

/// Tokens for which there is room after the slot's context.
pub(in crate::engine) fn room_after(state: &SlotState, limits: &StepLimits) -> usize {
    let most = limits.max_invariant_tokens.min(limits.n_budgeted_tokens).saturating_sub(state.n_pending());
    limits.n_ctx.saturating_sub(state.n_tokens + 1).min(most)
}

/// Space that is left in a batch.
struct BatchSpace {
    tokens: usize,
    /// Of these, what later slots need to advance.
    owed: usize,
    /// Cells for drafted tokens.
    drafted: usize,
}

/// Plans each slot's tokens of the batch. `plan_draft` plans at most so many drafted tokens of a slot, and returns how many there are
/// sequences for. `filled`: the tokens after its context that a slot is to decode, drafted or filler.
///
/// Slots get space in the order of their last use, and enter the batch in the order of their sequence ids: with a KV buffer for each
/// sequence, llama.cpp decodes only consecutive, increasing ids together.
pub(in crate::engine) fn fill(
    plan: &mut StepPlan,
    limits: &StepLimits,
    mut plan_draft: impl FnMut(usize, &mut SlotPlan, usize) -> usize,
    filled: impl Fn(usize) -> usize,
) {
    let StepPlan { states, slots, order, .. } = plan;
    let is_active = |state: &SlotState, slot: &SlotPlan| state.is_running() && slot.is_scheduled;
    let due = |state: &SlotState, slot: &SlotPlan| {
        if is_active(state, slot) { state.n_pending().min(MAX_PENDING) } else { 0 }
    };
    // While others generate, a prompt comes in pieces that do not keep them waiting for long. Otherwise a long one is divided in the
    // same places, whichever slots wait.
    let (n_batch, n_ubatch) = (limits.n_batch, limits.n_ubatch);
    let generates = states.iter().any(|state| state.has_request && state.is_generating);
    let most = if generates { n_ubatch } else { n_batch - n_batch % n_ubatch.min(n_batch).max(1) };
    let most = most.min(limits.n_budgeted_tokens);
    // The tokens that each slot needs to advance come before any draft, and before more of a prompt.
    let owed: usize = states.iter().zip(&*slots).map(|(state, slot)| due(state, slot)).sum();
    let mut space =
        BatchSpace { tokens: most.max(owed).min(n_batch), owed, drafted: free_cells(states, slots, limits) };
    order.clear();
    order.extend(0..states.len());
    order.sort_unstable_by_key(|index| {
        let state = states.get(*index).copied().unwrap_or_default();
        (Reverse(state.has_request && state.is_generating), state.last_used, *index)
    });
    for index in order.iter().copied() {
        let (Some(state), Some(slot)) = (states.get(index), slots.get_mut(index)) else { continue };
        if !is_active(state, slot) {
            continue;
        }
        let (due, n_pending) = (due(state, slot), state.n_pending());
        space.owed -= due;
        let most = space.tokens.saturating_sub(space.owed).max(due.min(space.tokens)).min(state.tokens_until_group);
        slot.n_context = most.min(n_pending);
        if !state.is_generating && slot.n_context > 1 && limits.needs_checkpoints {
            slot.n_context = slot.n_context.min(n_pending - 1);
        }
        let is_complete = slot.n_context == n_pending && n_pending > 0;
        let n_free = most - slot.n_context;
        let n_draft = if is_complete { n_free.min(space.drafted) } else { 0 };
        let n_draft = plan_draft(index, slot, n_draft);
        if is_complete && state.is_generating {
            slot.n_filler = filled(index).saturating_sub(n_draft).min(n_free - n_draft);
        }
        slot.row = is_complete.then_some(slot.n_context - 1);
        space.tokens -= slot.n_batch_tokens();
        space.drafted -= n_draft;
    }
    let mut first = 0;
    plan.n_tokens.clear();
    for slot in slots {
        slot.first = first;
        slot.row = slot.row.map(|row| first + row);
        first += slot.n_batch_tokens();
        plan.n_tokens.push(slot.n_batch_tokens());
    }
}

/// Cells that drafts may take. If a step needed more, its decode would fail, the youngest request would pause, go on as soon as it
/// fits, and the same would happen again.
fn free_cells(states: &[SlotState], slots: &[SlotPlan], limits: &StepLimits) -> usize {
    let Some(cells) = limits.shared_cells else { return usize::MAX };
    let used: usize = states.iter().map(|state| state.n_cached).sum();
    let active = states.iter().zip(slots).filter(|(state, slot)| state.is_running() && slot.is_scheduled);
    let need: usize = active.map(|(state, _)| state.n_pending().min(limits.n_ubatch)).sum();
    cells.saturating_sub(used + need)
}
