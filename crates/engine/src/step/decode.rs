//! The stage of a step that calls llama.cpp: one decode for all slots.

use std::time::{Duration, Instant};

use super::plan::{SlotPlan, StepPlan};
use crate::slots::Slot;
use foredraft_llama::{Batch, Context, DecodeError};

/// The rows of a decoded batch.
pub(crate) struct Rows<'a> {
    context: &'a mut Context,
    /// How long the decode took.
    pub(crate) time: Duration,
}

impl Rows<'_> {
    /// The logits of the token at this index of the batch, which the caller may change.
    pub(crate) fn logits(&mut self, index: usize) -> Option<&mut [f32]> {
        // The tokens of many rows take longer than the host may wait.
        self.context.wait_while_paused();
        self.context.logits(index)
    }
}

/// Decodes what is planned of all slots, in the order of their sequence ids. `runs_to_end`: the decode cannot be interrupted.
///
/// # Errors
/// The decode was interrupted, found no cells, or failed; what the context then holds of the planned tokens is not known.
pub(crate) fn decode<'a>(
    plan: &StepPlan,
    slots: &[Slot],
    context: &'a mut Context,
    batch: &mut Batch,
    runs_to_end: bool,
    now: impl Fn() -> Instant,
) -> Result<Rows<'a>, DecodeError> {
    if let Some(slot) = plan.adapters_of.and_then(|index| slots.get(index)) {
        context.set_adapters(&slot.lora);
    }
    batch.clear();
    let planned = || slots.iter().zip(&plan.slots).filter(|(_, planned)| planned.n_context > 0);
    let shared = planned().all(|(_, planned)| share_branches(planned, context));
    planned().for_each(|(slot, planned)| push(slot, planned, batch));
    context.keep_hidden(plan.keeps_hidden);
    let start = now();
    let result = match (shared, runs_to_end) {
        (false, _) => Err(DecodeError::failed("the branches of a draft cannot share a sequence")),
        (true, true) => context.decode_whole(batch),
        (true, false) => context.decode(batch),
    };
    let time = now().saturating_duration_since(start);
    for (_, planned) in planned() {
        planned.tree.sequences().1.iter().for_each(|branch| _ = context.truncate(*branch, 0));
    }
    result.map(|()| Rows { context, time })
}

/// Gives each branch of a slot's draft what the slot's own sequence holds.
fn share_branches(planned: &SlotPlan, context: &mut Context) -> bool {
    let (own, branches) = planned.tree.sequences();
    branches.iter().all(|branch| context.share(own, *branch))
}

/// Puts one slot's part into the batch.
fn push(slot: &Slot, planned: &SlotPlan, batch: &mut Batch) {
    let Some(task) = &slot.task else { return };
    let (known, next) = (slot.cache.len(), slot.cache.next());
    let context = task.tokens.get(known..known + planned.n_context).unwrap_or(&[]);
    if let Some(medium) = context.first().and_then(|first| task.media_of(*first)) {
        return medium.push_to(batch, context, next, slot.cache.id());
    }
    for (offset, token) in context.iter().enumerate() {
        let is_output = planned.scores || planned.row == Some(planned.first + offset);
        batch.push_shared(*token, next + offset, planned.tree.of_context(), is_output);
    }
    for (node, depth, sequences) in planned.tree.nodes() {
        if let Some(token) = planned.drafted(node) {
            let is_output = task.decision.as_ref().is_none_or(|decision| decision.needs_row(node));
            batch.push_shared(token, next + context.len() + depth, sequences, is_output);
        }
    }
    let next = next + context.len() + planned.draft.tokens.len();
    for (position, token) in (next..next + planned.n_filler).zip(context.iter().rev().cycle()) {
        batch.push(*token, position, slot.cache.id(), true);
    }
}
