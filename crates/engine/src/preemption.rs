//! Preempted requests: they have made way for others in their slots, and go on in any slot with the same tokens.
//!
//! Where memory allows, a request takes the state of its cells along. Otherwise its tokens are decoded again. A preparation leaves its cells
//! to its conversation.

use super::conversations::{make_room, switch};
use super::event::{Outcome, Stop};
use super::prefixes::beginning;
use super::request_handle::CompletionSink;
use super::slots::{SlotPool, Task};
use crate::session::ConversationRecord;
use foredraft_base::Snapshot;

/// A request that was preempted.
pub(super) struct PreemptedTask {
    pub(super) task: Box<Task>,
    /// The LoRA scales of its cells.
    lora: Vec<f32>,
    /// The slot that it had.
    slot: usize,
    /// The conversation to which it belongs.
    pub(super) conversation: Option<ConversationRecord>,
    /// Its cells; `None`: its tokens are decoded again.
    pub(super) state: Option<Box<Snapshot>>,
}

/// Takes the request out of the slot `index`, with the state of its cells if `keeps_state`. `None`, and nothing changes: this state is
/// needed, because its tokens would not give the same cells again, and cannot be kept.
pub(super) fn preempt(pool: &mut SlotPool, index: usize, keeps_state: bool) -> Option<PreemptedTask> {
    let SlotPool { context, slots, drafters, n_admissions, .. } = pool;
    let slot = slots.get_mut(index)?;
    let is_preparation = slot.task.as_ref().is_some_and(|task| task.options.is_preparation());
    let has_cells = keeps_state && !is_preparation && !slot.cache.is_empty();
    let state = if has_cells { slot.cache.save(context).ok().map(Box::new) } else { None };
    if state.is_none() && !is_preparation && slot.task.as_ref().is_none_or(Task::has_irreplaceable_cells) {
        return None;
    }
    let mut task = slot.task.take()?;
    slot.last_used = *n_admissions;
    // Drafters learn from whole completions.
    drafters.end(index, &[], 0);
    task.is_preempted = false;
    task.n_preempted += 1;
    Some(PreemptedTask {
        task: Box::new(task),
        lora: slot.lora.clone(),
        slot: index,
        conversation: if is_preparation { None } else { slot.conversation.take() },
        state,
    })
}

/// Lets a preempted request go on in the slot `index`, which is free.
pub(super) fn resume(pool: &mut SlotPool, index: usize, preempted: PreemptedTask) {
    switch(pool, index, preempted.prepared_conversation(), &preempted.task.tokens);
    let PreemptedTask { mut task, lora, conversation, state, .. } = preempted;
    let n_tokens = state.as_ref().map_or(0, |state| state.tokens.len());
    // Without room the state is not put back, and its tokens are decoded again.
    let has_room = make_room(pool, index, n_tokens).is_ok();
    let reuses = pool.reuses_prompts && task.options.cache_prompt && task.options.prompt_probs.is_none();
    let last_used = pool.count_admission();
    let is_taken = |name: &str| pool.slots.iter().any(|slot| slot.has_conversation(name));
    let conversation = conversation.filter(|conversation| !is_taken(&conversation.name));
    let SlotPool { context, slots, drafters, .. } = pool;
    let Some(slot) = slots.get_mut(index) else { return };
    match state {
        Some(state) if has_room => slot.cache.put_back(context, &state, task.has_irreplaceable_cells()),
        _ => {
            let reusable = if reuses && slot.lora == lora { beginning(&task.tokens) } else { &[] };
            slot.cache.reuse(context, reusable, 0);
        }
    }
    if let Some(speculation) = &mut task.speculation {
        speculation.drafting = drafters.begin(index, &task.sampler, speculation.drafting.settings());
    }
    (slot.lora, slot.last_used, slot.loaded) = (lora, last_used, None);
    slot.conversation = conversation.or(slot.conversation.take());
    slot.task = Some(*task);
}

impl PreemptedTask {
    /// The conversation of a preparation, whose cells it has left to it.
    pub(super) fn prepared_conversation(&self) -> Option<&str> {
        self.task.options.conversation.as_deref().filter(|_| self.task.options.is_preparation())
    }

    /// Ends the request while it has no slot.
    pub(super) fn end(self, stop: Stop) -> (CompletionSink, Outcome) {
        self.task.finish(stop, self.slot, 0, false)
    }
}
