//! What of each slot goes into a step's batch.

use std::cmp::Reverse;

use super::generation::Generation;
use super::slots::{InBatch, Slot};
use super::task::Task;
use crate::session::Sequence;

/// How much more a batch takes.
struct Space {
    tokens: usize,
    /// Of these, what the slots that come later need to get on.
    owed: usize,
    /// Drafted tokens.
    drafted: usize,
}

impl Generation {
    /// Puts every slot's unevaluated tokens into the batch, and its draft behind them. False when there are none.
    pub(super) fn fill_batch(&mut self) -> bool {
        self.batch.clear();
        let (n_batch, n_ubatch) = (self.context.n_batch(), self.context.n_ubatch());
        // While others generate, a prompt comes in pieces that do not keep them waiting for long. Else a long one is divided in
        // the same places, whoever waits.
        let anybody = self.running().any(|(_, task)| task.is_generating());
        let most = if anybody { n_ubatch } else { n_batch - n_batch % n_ubatch.min(n_batch) };
        // What each needs of the batch to get on comes before anybody's draft, and before more of a prompt.
        let owed: usize = self.slots.iter().map(Slot::due).sum();
        let mut space = Space { tokens: most.max(owed).min(n_batch), owed, drafted: self.free_cells() };
        let mut order = std::mem::take(&mut self.order);
        order.clear();
        order.extend(0..self.slots.len());
        order.sort_unstable_by_key(|index| {
            let key = |slot: &Slot| (Reverse(slot.task.as_ref().is_some_and(Task::is_generating)), slot.last_used);
            (self.slots.get(*index).map(key), *index)
        });
        for index in order.iter().copied() {
            self.fill_from(index, &mut space);
        }
        self.order = order;
        !self.batch.is_empty()
    }

    /// Puts one slot's part into the batch.
    fn fill_from(&mut self, index: usize, space: &mut Space) {
        let Some(slot) = self.slots.get_mut(index) else { return };
        slot.in_batch = None;
        let due = slot.due();
        space.owed -= due;
        if slot.working().is_none() {
            return;
        }
        slot.cache.group(&mut self.context);
        let Some(task) = &slot.task else { return };
        let pending = task.tokens.get(slot.cache.len()..).unwrap_or(&[]);
        let most = space.tokens.saturating_sub(space.owed).max(due.min(space.tokens)).min(slot.cache.room());
        let chunk = pending.get(..most.min(pending.len())).unwrap_or(&[]);
        // A prompt pauses before its last token, where such memories are come back to when it is sent again.
        let pauses = !task.is_generating() && chunk.len() > 1 && Sequence::needs_checkpoints(&self.context);
        let chunk = if pauses { chunk.get(..chunk.len().min(pending.len() - 1)).unwrap_or(&[]) } else { chunk };
        let complete = chunk.len() == pending.len();
        let draft = self.drafters.drafted(index);
        let n_draft = draft.len().min(most - chunk.len()).min(space.drafted);
        let draft = if complete { draft.get(..n_draft).unwrap_or(&[]) } else { &[] };
        let (first, next) = (self.batch.len(), slot.cache.next());
        let parents = self.drafters.parents(index).take(draft.len());
        let planted = slot.branches.plant(parents, |own, spare| self.context.share(own, spare));
        let draft = draft.get(..planted).unwrap_or(&[]);
        let mut row = None;
        for (offset, token) in chunk.iter().enumerate() {
            let output = complete && offset + 1 == chunk.len();
            let at = self.batch.push_shared(*token, next + offset, slot.branches.of_text(), output);
            row = Some(at).filter(|_| output);
        }
        for (node, depth, sequences) in slot.branches.nodes() {
            let Some(token) = draft.get(node - 1) else { continue };
            self.batch.push_shared(*token, next + chunk.len() + depth, sequences, true);
        }
        space.tokens -= chunk.len() + draft.len();
        space.drafted -= draft.len();
        if !chunk.is_empty() {
            slot.in_batch = Some(InBatch { first, chunk: chunk.len(), draft: draft.len(), row });
        }
    }
}
