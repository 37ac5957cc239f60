//! The stage of a step in which drafters propose tokens, and the controller chooses all lengths.

use std::time::Duration;

use super::input::StepInput;
use super::plan::Wanted;
use super::schedule::Schedule;
use crate::slots::{Slot, Task};
use foredraft_base::Token;
use foredraft_speculation::{ChosenDraft, Draft, Drafters, DraftingSlot, DraftingSlots, SlotDrafts, text_of};

/// The drafts of a step. Kept for its memory.
#[derive(Default)]
pub(crate) struct StepDrafts {
    /// The drafts of each slot, by sequence id.
    pub(crate) slots: Vec<SlotDrafts>,
    /// Where each slot drafts, if it does.
    places: Vec<Option<DraftPlace>>,
    /// The text of each slot that drafts and has pictures or sounds in its context.
    texts: Vec<Vec<Token>>,
    /// For each slot, how many tokens it wants after its context, drafted ones and filler.
    lengths: Vec<usize>,
    /// The choices of slots that decide, which take the place of drafts.
    pub(crate) choices: Vec<Option<Draft>>,
    /// Whether a drafter needs the target's hidden states.
    pub(crate) needs_hidden: bool,
    /// Time that the drafters took.
    pub(crate) time: Duration,
}

/// The data of a slot that drafters need besides its request.
#[derive(Clone, Copy)]
struct DraftPlace {
    /// As [`DraftingSlot::generated`].
    generated: usize,
    /// As [`DraftingSlot::position`].
    position: usize,
    /// As [`DraftingSlot::room`].
    room: Option<usize>,
}

impl StepDrafts {
    /// Empty drafts for that many slots.
    pub(crate) fn new(n_slots: usize) -> StepDrafts {
        let slots = (0..n_slots).map(|_| SlotDrafts::default()).collect();
        StepDrafts { slots, texts: vec![Vec::new(); n_slots], ..StepDrafts::default() }
    }

    /// The tokens that a slot wants to decode after its context.
    pub(crate) fn wanted(&self, slot: usize) -> Wanted<'_> {
        if let Some(draft) = self.choices.get(slot).and_then(Option::as_ref) {
            return Wanted { draft: Some(ChosenDraft { kind: None, draft, n: draft.tokens.len() }), length: 0 };
        }
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
    // A token would be padded otherwise.
    let is_padded = input.limits.pads_single_tokens && (n_generating == 1 || input.limits.shared_cells.is_none());
    drafts.places.clear();
    let all = states.iter().zip(&*slots).zip(&schedule.slots);
    drafts.places.extend(all.map(|((state, slot), scheduled)| {
        let task = slot.task.as_ref().filter(|task| scheduled.takes_part && task.drafting().is_some())?;
        let room = state.room_after(&input.limits).min(state.n_remaining.saturating_sub(1));
        Some(DraftPlace {
            generated: task.tokens.len().saturating_sub(task.output),
            position: task.completion.rng_counter(0),
            room: state.may_draft().then_some(room),
        })
    }));
    let StepDrafts { slots: slot_drafts, places, texts, .. } = &mut *drafts;
    for ((slot, place), text) in slots.iter().zip(&*places).zip(&mut *texts) {
        text.clear();
        let task = slot.task.as_ref().filter(|task| place.is_some() && !task.media.is_empty());
        text.extend(task.iter().flat_map(|task| text_of(&task.tokens)));
    }
    let mut speculating = SpeculatingSlots { slots: &mut *slots, drafts: slot_drafts, places, texts, is_padded };
    let lengths = drafters.draft(&schedule.demands, &mut speculating);
    drafts.lengths.clear();
    drafts.lengths.extend_from_slice(lengths);
    drafts.time = drafters.now().saturating_duration_since(start);
    let mut speculations = slots.iter().filter_map(|slot| slot.task.as_ref()?.drafting());
    drafts.needs_hidden = speculations.any(|state| drafters.needs_hidden(state));
}

/// The slots of a step whose requests speculate, as the drafters see them.
struct SpeculatingSlots<'a> {
    slots: &'a mut [Slot],
    drafts: &'a mut [SlotDrafts],
    places: &'a [Option<DraftPlace>],
    texts: &'a [Vec<Token>],
    is_padded: bool,
}

impl DraftingSlots for SpeculatingSlots<'_> {
    fn all(&mut self) -> impl Iterator<Item = DraftingSlot<'_>> {
        let is_padded = self.is_padded;
        let all = self.slots.iter_mut().zip(&mut *self.drafts).zip(self.places).zip(self.texts);
        all.filter_map(move |(((slot, drafts), place), text)| {
            let DraftPlace { generated, position, room } = (*place)?;
            let Task { tokens, media, sampler, speculation, .. } = slot.task.as_mut()?;
            let state = &mut speculation.as_mut()?.drafting;
            Some(DraftingSlot {
                slot: slot.index,
                tokens,
                text: if media.is_empty() { tokens } else { text },
                sampler,
                generated,
                position,
                room,
                is_padded,
                state,
                drafts,
            })
        })
    }
}
