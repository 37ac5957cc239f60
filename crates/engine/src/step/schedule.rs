//! Decides which slots take part in a step.
//!
//! Requests with different LoRA scales cannot be decoded in one batch, so they take turns. So do long prompts: next to others they
//! would be divided in other places than alone, and the last bits of their cells in the KV cache depend on that. Where llama.cpp cannot
//! decode sequences together, all slots take turns. Preparations take part only in steps in which no request runs.

use std::cmp::Reverse;

use super::input::{SlotState, StepInput, StepLimits};
use foredraft_speculation::StepSlot;

/// Whose turn it is among requests with different LoRA scales.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Turn {
    /// Counts turns.
    pub(crate) number: u64,
    /// Steps of this one.
    pub(crate) n_steps: u64,
    /// Counts steps.
    pub(crate) step: u64,
}

/// Which slots take part in a step, and whose turn it is. Kept for its memory, and for the turn.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    /// By sequence id.
    pub(crate) slots: Vec<SlotSchedule>,
    /// The tokens that each slot decodes in any case, for the controller of draft lengths.
    pub(crate) demands: Vec<StepSlot>,
    pub(crate) turn: Turn,
    /// A slot with the LoRA scales of this step; `None`: no slot takes part.
    pub(crate) adapters_of: Option<usize>,
}

/// Whether a slot takes part in a step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SlotSchedule {
    /// Whether this is the turn of the slot's LoRA scales.
    pub(crate) is_in_turn: bool,
    /// Whether this is the slot's turn, with or without a request that runs.
    pub(crate) is_scheduled: bool,
    /// Whether the slot takes part: its turn, with a request that runs.
    pub(crate) takes_part: bool,
}

impl Schedule {
    /// The numbers of the slots that take part.
    pub(crate) fn active(&self) -> impl Iterator<Item = usize> + '_ {
        (0..).zip(&self.slots).filter(|(_, slot)| slot.takes_part).map(|(index, _)| index)
    }
}

/// Steps that a turn lasts: llama.cpp plans its graph anew whenever scales change.
const STEPS_OF_TURN: u64 = 8;

/// Schedules a step: a suspect alone; else the slots whose turn it is take part, or, for some steps, the slot whose turn was longest ago and
/// all with the same LoRA scales.
pub(crate) fn schedule(input: &StepInput, schedule: &mut Schedule) {
    let StepInput { slots: states, limits } = input;
    let Schedule { slots, demands, turn, adapters_of } = schedule;
    slots.clear();
    slots.resize(states.len(), SlotSchedule::default());
    turn.n_steps += 1;
    let has_requests = states.iter().any(|state| state.is_running() && !state.is_preparation);
    let works = |state: &SlotState| state.is_running() && !(state.is_preparation && has_requests);
    let suspect = states.iter().position(|state| works(state) && state.is_suspect);
    *adapters_of = suspect.or_else(|| next_in_turn(states, turn, works));
    if let Some(slot) = suspect.and_then(|suspect| slots.get_mut(suspect)) {
        (slot.is_in_turn, slot.is_scheduled) = (true, true);
        turn.step += 1;
    } else if let Some(next) = adapters_of.and_then(|next| states.get(next)) {
        for (state, slot) in states.iter().zip(&mut *slots) {
            slot.is_in_turn = state.adapters == next.adapters;
        }
        turn.step += 1;
        separate(states, slots, limits, works);
    }
    demands.clear();
    demands.extend(states.iter().zip(slots).map(|(state, slot)| {
        slot.takes_part = slot.is_scheduled && works(state);
        if slot.takes_part { demand(state, limits) } else { StepSlot::default() }
    }));
}

/// The slot whose LoRA scales are used in this step.
fn next_in_turn(states: &[SlotState], turn: &mut Turn, works: impl Fn(&SlotState) -> bool) -> Option<usize> {
    let mut running = (0..).zip(states).filter(|(_, state)| works(state));
    let now = running.clone().find(|(_, state)| state.last_turn == turn.number);
    if let Some((now, _)) = now.filter(|_| turn.n_steps <= STEPS_OF_TURN) {
        return Some(now);
    }
    let (next, _) = running.by_ref().min_by_key(|(_, state)| state.last_turn)?;
    (turn.number, turn.n_steps) = (turn.number + 1, 1);
    Some(next)
}

/// Lets one slot that is decoded alone take part, or all others of this turn: whichever took part longest ago, and of several that did
/// one of the highest level.
fn separate(states: &[SlotState], slots: &mut [SlotSchedule], limits: &StepLimits, works: impl Fn(&SlotState) -> bool) {
    let most = if limits.is_batch_invariant { limits.max_invariant_tokens } else { usize::MAX };
    let is_alone = |state: &SlotState| !limits.decodes_slots_together || state.n_pending() > most || state.n_rows > 0;
    let working = (0..).zip(states.iter().zip(&*slots)).filter(|(_, (state, slot))| works(state) && slot.is_in_turn);
    let working = working.map(|(index, (state, _))| (index, state));
    let others = working.clone().filter(|(_, state)| !is_alone(state)).map(|(_, state)| state.last_step).max();
    let alone = working.filter(|(_, state)| is_alone(state));
    let alone = alone.min_by_key(|(_, state)| (state.last_step, Reverse(state.level)));
    let alone =
        alone.filter(|(_, state)| others.is_none_or(|others| state.last_step <= others)).map(|(index, _)| index);
    for (index, (state, slot)) in states.iter().zip(slots).enumerate() {
        slot.is_scheduled = slot.is_in_turn && alone.map_or(!is_alone(state), |alone| index == alone);
    }
}

/// The tokens that a slot which takes part decodes in any case.
fn demand(state: &SlotState, limits: &StepLimits) -> StepSlot {
    let n_pending = state.n_pending();
    let room = state.room_after(limits).min(state.tokens_until_group.saturating_sub(n_pending));
    StepSlot { n_tokens: n_pending.min(limits.n_ubatch), generates: state.may_draft(), room, n_past: state.n_cached }
}
