//! What of each slot goes into a step's batch.

use std::cmp::Reverse;

use super::pacing;
use super::scheduler::BatchScheduler;
use super::slots::{InBatch, Slot};
use super::task::Task;
use crate::llama::Context;
use crate::session::Sequence;
use crate::speculative::{BatchSplit, SequencePadding};

/// How much more a batch takes.
struct Space {
    tokens: usize,
    /// Of these, what the slots that come later need to get on.
    owed: usize,
    /// Drafted tokens.
    drafted: usize,
}

/// A slot's part of the batch, in tokens.
#[derive(Clone, Copy, Default)]
pub(super) struct Share {
    /// Tokens of its context.
    chunk: usize,
    /// Drafted tokens behind them.
    draft: usize,
    /// Tokens without any meaning behind those: see [`Drafters::filler`](crate::speculative::Drafters::filler).
    filler: usize,
}

/// How a context divides batches.
pub(super) fn batch_split(context: &Context) -> BatchSplit {
    let n_ubatch = context.n_ubatch();
    if !context.decodes_rectangles() {
        return BatchSplit::Whole { n_ubatch };
    }
    let padding = match context.pads_sequences() {
        None => SequencePadding::Never,
        Some(false) => SequencePadding::Always,
        Some(true) => SequencePadding::UnlessOneEach,
    };
    BatchSplit::Rectangles { n_ubatch, padding }
}

impl BatchScheduler {
    /// Puts every slot's undecoded tokens into the batch, and its draft behind them. False when there are none.
    ///
    /// Slots get their shares in the order of their last use, and enter the batch in the order of their sequence ids: with a KV
    /// buffer for each sequence, llama.cpp decodes only consecutive, increasing ids together.
    pub(super) fn fill_batch(&mut self) -> bool {
        self.batch.clear();
        let (n_batch, n_ubatch) = (self.context.n_batch(), self.context.n_ubatch());
        // While others generate, a prompt comes in pieces that do not keep them waiting for long. Else a long one is divided in
        // the same places, whichever slots wait.
        let generates = self.running().any(|(_, task)| task.is_generating());
        let most = if generates { n_ubatch } else { n_batch - n_batch % n_ubatch.min(n_batch) };
        let most = most.min(pacing::most_tokens(&self.context, &self.drafters.costs));
        for slot in self.slots.iter_mut().filter(|slot| slot.working().is_some()) {
            slot.cache.group(&mut self.context);
        }
        // The tokens that each slot needs to get on come before any draft, and before more of a prompt.
        let owed: usize = self.slots.iter().map(Slot::due).sum();
        let mut space = Space { tokens: most.max(owed).min(n_batch), owed, drafted: self.free_cells() };
        let mut order = std::mem::take(&mut self.order);
        order.clear();
        order.extend((0..self.slots.len()).map(|index| (index, Share::default())));
        order.sort_unstable_by_key(|(index, _)| {
            let key = |slot: &Slot| (Reverse(slot.task.as_ref().is_some_and(Task::is_generating)), slot.last_used);
            (self.slots.get(*index).map(key), *index)
        });
        for (index, share) in &mut order {
            *share = self.share(*index, &mut space);
        }
        order.sort_unstable_by_key(|(index, _)| *index);
        for (index, share) in &order {
            self.fill_from(*index, *share);
        }
        self.order = order;
        !self.batch.is_empty()
    }

    /// How much of the batch a slot gets.
    fn share(&self, index: usize, space: &mut Space) -> Share {
        let Some(slot) = self.slots.get(index) else { return Share::default() };
        let due = slot.due();
        space.owed -= due;
        let Some(task) = slot.working() else { return Share::default() };
        let pending = slot.pending();
        let most =
            space.tokens.saturating_sub(space.owed).max(due.min(space.tokens)).min(slot.cache.tokens_until_group());
        let mut chunk = most.min(pending);
        // A prompt pauses before its last token, where such memories are come back to when it is sent again.
        if !task.is_generating() && chunk > 1 && Sequence::needs_checkpoints(&self.context) {
            chunk = chunk.min(pending - 1);
        }
        let drafted = if chunk == pending { self.drafters.drafted(index).len() } else { 0 };
        let draft = drafted.min(most - chunk).min(space.drafted);
        let may_fill = chunk == pending && task.is_generating();
        let filler = if may_fill { self.drafters.filler(index, draft).min(most - chunk - draft) } else { 0 };
        space.tokens -= chunk + draft + filler;
        space.drafted -= draft;
        Share { chunk, draft, filler }
    }

    /// Puts one slot's part into the batch.
    fn fill_from(&mut self, index: usize, Share { chunk, draft, filler }: Share) {
        let Some(slot) = self.slots.get_mut(index) else { return };
        slot.in_batch = None;
        if slot.working().is_none() {
            return;
        }
        let Some(task) = &slot.task else { return };
        let pending = task.tokens.get(slot.cache.len()..).unwrap_or(&[]);
        let complete = chunk == pending.len();
        let Some(chunk) = pending.get(..chunk).filter(|chunk| !chunk.is_empty()) else { return };
        let draft = self.drafters.drafted(index).get(..draft).unwrap_or(&[]);
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
        let next = next + chunk.len() + draft.len();
        for (position, token) in (next..next + filler).zip(chunk.iter().rev().cycle()) {
            self.batch.push(*token, position, slot.cache.id(), true);
        }
        slot.in_batch = Some(InBatch { first, chunk: chunk.len(), draft: draft.len(), filler, row });
    }
}
