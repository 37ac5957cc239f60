//! The stage of a step in which drafters propose tokens, and the controller chooses all lengths.

use std::time::Duration;

use super::input::StepInput;
use super::plan::Wanted;
use super::schedule::Schedule;
use crate::engine::slots::Slot;
use crate::speculative::{Drafters, DraftingSlot, DraftingSlots, SlotDrafts};

/// What is drafted in a step. Kept for its memory.
#[derive(Default)]
pub(crate) struct StepDrafts {
    /// The drafts of each slot, by sequence id.
    pub(crate) slots: Vec<SlotDrafts>,
    /// For each slot, how many tokens it wants after its context, drafted ones and filler.
    lengths: Vec<usize>,
    /// Whether a drafter needs the target's hidden states.
    pub(crate) needs_hidden: bool,
    /// Time that the drafters took.
    pub(crate) time: Duration,
}

impl StepDrafts {
    /// For that many slots.
    pub(crate) fn new(n_slots: usize) -> StepDrafts {
        StepDrafts { slots: (0..n_slots).map(|_| SlotDrafts::default()).collect(), ..StepDrafts::default() }
    }

    /// What a slot wants to decode after its context.
    pub(crate) fn wanted(&self, slot: usize) -> Wanted<'_> {
        Wanted {
            draft: self.slots.get(slot).and_then(SlotDrafts::chosen),
            length: self.lengths.get(slot).copied().unwrap_or(0),
        }
    }
}

/// Drafters keep up with all requests of the step that speculate, and propose tokens to those that generate.
pub(crate) fn draft(
    input: &StepInput,
    schedule: &Schedule,
    slots: &mut [Slot],
    drafters: &mut Drafters,
    drafts: &mut StepDrafts,
) {
    let start = drafters.now();
    drafts.slots.iter_mut().for_each(SlotDrafts::clear);
    let states = &input.slots;
    let n_generating = states.iter().filter(|state| state.has_request && state.is_generating).count();
    // Where a token would be padded otherwise.
    let is_padded = input.limits.pads_single_tokens && (n_generating == 1 || input.limits.shared_cells.is_none());
    let mut speculating =
        SpeculatingSlots { input, schedule, is_padded, slots: &mut *slots, drafts: &mut drafts.slots };
    let lengths = drafters.draft(&schedule.demands, &mut speculating);
    drafts.lengths.clear();
    drafts.lengths.extend_from_slice(lengths);
    drafts.time = drafters.now().saturating_duration_since(start);
    let mut speculations = slots.iter().filter_map(|slot| slot.task.as_ref()?.drafting());
    drafts.needs_hidden = speculations.any(|state| drafters.needs_hidden(state));
}

/// The slots of a step whose requests speculate, as the drafters see them.
struct SpeculatingSlots<'a> {
    input: &'a StepInput,
    schedule: &'a Schedule,
    is_padded: bool,
    slots: &'a mut [Slot],
    drafts: &'a mut [SlotDrafts],
}

impl DraftingSlots for SpeculatingSlots<'_> {
    fn all(&mut self) -> impl Iterator<Item = DraftingSlot<'_>> {
        let SpeculatingSlots { input: StepInput { slots: states, limits }, schedule, is_padded, .. } = *self;
        let all = self.slots.iter_mut().zip(&mut *self.drafts).zip(states).zip(&schedule.slots);
        all.filter(|(_, slot)| slot.takes_part).filter_map(move |(((slot, drafts), state), _)| {
            let index = slot.index;
            let task = slot.task.as_mut()?;
            let drafting = task.speculation.as_mut()?.drafting.as_mut()?;
            let room = state.room_after(limits).min(state.n_remaining.saturating_sub(1));
            Some(DraftingSlot {
                slot: index,
                tokens: &task.tokens,
                sampler: &task.sampler,
                generated: task.tokens.len().saturating_sub(task.output),
                position: task.completion.rng_counter(0),
                room: state.may_draft().then_some(room),
                is_padded,
                state: drafting,
                drafts,
            })
        })
    }
}
