//! The plan of a step: what will be decoded, and nothing else. Plain data, made by a pure function.

use std::cmp::Reverse;

use super::draft_tree::DraftTree;
use super::input::{MAX_PENDING, SlotState, StepInput};
use super::schedule::{Schedule, SlotSchedule};
use foredraft_llama::{Rollback, Token};
use foredraft_speculation::{ChosenDraft, DrafterKind};

/// A step computes the logits of at most this many tokens of a prompt: each is a row as long as the vocabulary.
pub(crate) const MAX_SCORED: usize = 64;

/// The tokens that a step decodes. Its buffers are used again, so a step does not allocate.
#[derive(Debug, Default)]
pub(crate) struct StepPlan {
    /// The plan of each slot, by sequence id: also its order in the batch.
    pub(crate) slots: Vec<SlotPlan>,
    /// The number of tokens of each slot in the batch.
    pub(crate) n_tokens: Vec<usize>,
    /// A slot with the LoRA scales of the decode; `None`: nothing is decoded.
    pub(crate) adapters_of: Option<usize>,
    /// Whether the target's hidden states are kept, because a drafter needs them.
    pub(crate) keeps_hidden: bool,
}

/// The tokens of a slot in a step: the next ones of its context, a draft after them, and filler.
#[derive(Debug, Default)]
pub(crate) struct SlotPlan {
    /// Tokens of its context; 0: the slot is not in the batch.
    pub(crate) n_context: usize,
    /// The draft after the context.
    pub(crate) draft: PlannedDraft,
    /// Which drafted tokens may see which.
    pub(crate) tree: DraftTree,
    /// Tokens without meaning after the draft, so that the batch is one forward pass: see
    /// [`controller`](foredraft_speculation::Controller).
    pub(crate) n_filler: usize,
    /// Whether all tokens of its context have logits, not only the last one.
    pub(crate) scores: bool,
    /// Index in the batch of the first of its tokens.
    pub(crate) first: usize,
    /// Index in the batch of the first token with logits: the context's last one. `None` while a prompt goes on.
    pub(crate) row: Option<usize>,
}

/// The drafted tokens that a slot decodes.
#[derive(Debug, Default)]
pub(crate) struct PlannedDraft {
    /// The tokens, in the order in which they were drafted.
    pub(crate) tokens: Vec<Token>,
    /// The drafter; `None`: it is a free draft token, or there is none.
    pub(crate) kind: Option<DrafterKind>,
    /// Tokens of the longest branch, the most that can be accepted.
    pub(crate) n_longest: usize,
    /// Tokens that continue the context without a branch.
    pub(crate) n_straight: usize,
}

impl StepPlan {
    /// An empty plan for slots with these trees.
    pub(crate) fn new(trees: Vec<DraftTree>) -> StepPlan {
        let slots = trees.into_iter().map(|tree| SlotPlan { tree, ..SlotPlan::default() });
        StepPlan { slots: slots.collect(), ..StepPlan::default() }
    }

    /// Whether nothing is to be decoded.
    pub(crate) fn is_empty(&self) -> bool {
        self.slots.iter().all(|slot| slot.n_context == 0)
    }
}

impl PlannedDraft {
    /// Empties it, keeping its memory.
    fn clear(&mut self) {
        self.tokens.clear();
        (self.kind, self.n_longest, self.n_straight) = (None, 0, 0);
    }
}

impl SlotPlan {
    /// Empties it for the next step.
    fn clear(&mut self) {
        (self.n_context, self.n_filler, self.scores, self.row) = (0, 0, false, None);
        self.draft.clear();
    }

    /// Tokens in the batch.
    pub(crate) fn n_batch_tokens(&self) -> usize {
        self.n_context + self.draft.tokens.len() + self.n_filler
    }

    /// Lays out at most `n` tokens of a draft, as far as there are sequences for its branches. Returns how many.
    fn set_draft(&mut self, chosen: Option<ChosenDraft<'_>>, n: usize) -> usize {
        let n = chosen.map_or(0, |chosen| chosen.n.min(chosen.draft.tokens.len()).min(n));
        let parents = |n: usize| chosen.into_iter().flat_map(move |chosen| chosen.draft.parents(n));
        let n = self.tree.lay_out(parents(n));
        let PlannedDraft { tokens, kind, n_longest, n_straight } = &mut self.draft;
        tokens.clear();
        tokens.extend(chosen.iter().flat_map(|chosen| chosen.draft.tokens.iter().take(n)));
        *kind = chosen.and_then(|chosen| chosen.kind).filter(|_| n > 0);
        *n_longest = self.tree.depth();
        *n_straight = parents(n).enumerate().take_while(|(at, parent)| at == parent).count();
        n
    }

    /// The node of `token` after `node` of the draft.
    pub(crate) fn child(&self, node: usize, token: Token) -> Option<usize> {
        self.tree.children(node).find(|child| self.drafted(*child) == Some(token))
    }

    /// The token of a node.
    pub(crate) fn drafted(&self, node: usize) -> Option<Token> {
        self.draft.tokens.get(node.checked_sub(1)?).copied()
    }

    /// The drafted tokens that continue the context without a branch.
    pub(crate) fn straight_draft(&self) -> &[Token] {
        self.draft.tokens.get(..self.draft.n_straight).unwrap_or(&[])
    }
}

/// Space that is left in a batch.
struct BatchSpace {
    tokens: usize,
    /// The part of `tokens` that later slots need to advance.
    owed: usize,
    /// Cells for drafted tokens and filler.
    cells: usize,
}

/// The tokens that a slot decodes after its context, if there is space.
#[derive(Clone, Copy, Default)]
pub(crate) struct Wanted<'a> {
    pub(crate) draft: Option<ChosenDraft<'a>>,
    /// Tokens, drafted or filler.
    pub(crate) length: usize,
}

/// Plans each slot's tokens of the batch: of its context, its draft, and filler.
///
/// Slots get space in the order of their requests' levels, then of their last use, and enter the batch in the order of their sequence ids: with a KV buffer for each
/// sequence, llama.cpp decodes only consecutive, increasing ids together.
///
/// `wanted`: what a slot that takes part decodes after its context. `order` is a buffer.
pub(crate) fn fill<'a>(
    input: &StepInput,
    schedule: &Schedule,
    wanted: impl Fn(usize) -> Wanted<'a>,
    order: &mut Vec<usize>,
    plan: &mut StepPlan,
) {
    let StepInput { slots: states, limits } = input;
    plan.adapters_of = schedule.adapters_of;
    plan.slots.iter_mut().for_each(SlotPlan::clear);
    let due = |state: &SlotState, slot: &SlotSchedule| {
        // A prompt advances by any piece of it.
        let most = if state.is_generating { MAX_PENDING } else { MAX_PENDING.min(limits.n_budgeted_tokens) };
        if slot.takes_part { state.n_pending().min(most).max(state.n_whole) } else { 0 }
    };
    // While others generate, a prompt comes in pieces that do not keep them waiting for long. Otherwise a long one is divided in the
    // same places, whichever slots wait.
    let (n_batch, n_ubatch) = (limits.n_batch, limits.n_ubatch);
    let generates = states.iter().any(|state| state.has_request && state.is_generating);
    let most = if generates { n_ubatch } else { n_batch - n_batch % n_ubatch.min(n_batch).max(1) };
    let most = most.min(limits.n_budgeted_tokens);
    // The tokens that each slot needs to advance come before any draft, and before more of a prompt.
    let owed: usize = states.iter().zip(&schedule.slots).map(|(state, slot)| due(state, slot)).sum();
    let mut space = BatchSpace { tokens: most.max(owed).min(n_batch), owed, cells: free_cells(input, schedule) };
    order.clear();
    order.extend(0..states.len());
    order.sort_unstable_by_key(|index| {
        let state = states.get(*index).copied().unwrap_or_default();
        (Reverse(state.level), Reverse(state.has_request && state.is_generating), state.last_used, *index)
    });
    for index in order.iter().copied() {
        let Some(scheduled) = schedule.slots.get(index).filter(|slot| slot.takes_part) else { continue };
        let (Some(state), Some(slot)) = (states.get(index), plan.slots.get_mut(index)) else { continue };
        let (due, n_pending) = (due(state, scheduled), state.n_pending());
        space.owed -= due;
        let most = space.tokens.saturating_sub(space.owed).max(due.min(space.tokens)).min(state.tokens_until_group);
        slot.n_context = most.min(n_pending);
        slot.scores = state.scores_prompt;
        if slot.scores {
            slot.n_context = slot.n_context.min(MAX_SCORED);
        }
        if !state.is_generating && slot.n_context > 1 && limits.needs_checkpoints {
            slot.n_context = slot.n_context.min(n_pending - 1);
        }
        let is_complete = slot.n_context == n_pending && n_pending > 0;
        let n_free = (most - slot.n_context).min(limits.max_rejected()).min(space.cells);
        let n_draft = if is_complete { n_free } else { 0 };
        let Wanted { draft, length } = wanted(index);
        let n_draft = slot.set_draft(draft, n_draft);
        // Filler is always rejected.
        if is_complete && state.is_generating && limits.rollback != Rollback::Never {
            slot.n_filler = length.saturating_sub(n_draft).min(n_free - n_draft);
        }
        slot.row = is_complete.then_some(slot.n_context - 1);
        space.tokens -= slot.n_batch_tokens();
        space.cells -= n_draft + slot.n_filler;
    }
    let mut first = 0;
    plan.n_tokens.clear();
    for slot in &mut plan.slots {
        slot.first = first;
        slot.row = slot.row.map(|row| first + row);
        first += slot.n_batch_tokens();
        plan.n_tokens.push(slot.n_batch_tokens());
    }
}

/// Cells that drafts and filler may take. If a step needed more, its decode would fail, the youngest request would be preempted, go on as soon as it
/// fits, and the same would happen again.
fn free_cells(input: &StepInput, schedule: &Schedule) -> usize {
    let StepInput { slots: states, limits } = input;
    let Some(cells) = limits.shared_cells else { return usize::MAX };
    let used: usize = states.iter().map(|state| state.n_cached).sum();
    let active = states.iter().zip(&schedule.slots).filter(|(_, slot)| slot.takes_part);
    let need: usize = active.map(|(state, _)| state.n_pending().min(limits.n_ubatch)).sum();
    cells.saturating_sub(used + need)
}

#[cfg(test)]
mod tests;
