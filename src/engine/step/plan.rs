//! The plan of a step: plain data, and the pure functions that decide it.
//!
//! [`schedule`] plans which slots take part, and [`fill`] how much of the batch each of them gets. `decode`, `verify` and `commit` read
//! the plan.
//!
//! Requests with different LoRA scales cannot be decoded in one batch, so they take turns. So do long prompts: next to others they
//! would be divided in other places than alone, and the last bits of their cells in the KV cache depend on that.

use std::cmp::Reverse;
use std::time::Duration;

use crate::llama::{SeqId, Token};
use crate::speculative::{ChosenDraft, DrafterKind, StepSlot};

/// A draft follows at most this many undecoded tokens of its context: the token sampled last, and those of an accepted branch that are
/// decoded again (see [`DraftTree`]).
pub(crate) const MAX_PENDING: usize = 16;

/// A step computes the logits of at most this many tokens of a prompt: each is a row as long as the vocabulary.
pub(crate) const MAX_SCORED: usize = 64;

/// What the scheduler knows of a slot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SlotState {
    pub(crate) has_request: bool,
    /// Whether the request waits for cells.
    pub(crate) is_paused: bool,
    pub(crate) is_generating: bool,
    /// Whether each token of its prompt needs a row of logits.
    pub(crate) scores_prompt: bool,
    /// Tokens of the request's context.
    pub(crate) n_tokens: usize,
    /// Tokens in the slot's cache.
    pub(crate) n_cached: usize,
    /// Tokens that the request may still generate, at least one.
    pub(crate) n_remaining: usize,
    /// Most tokens of a draft; 0: the request does not speculate.
    pub(crate) n_max_draft: usize,
    /// Tokens that may be decoded before positions are grouped (see [`SelfExtend`](crate::session::SelfExtend)).
    pub(crate) tokens_until_group: usize,
    /// The first slot whose cache has the same LoRA scales.
    pub(crate) adapters: usize,
    /// When a request last began or ended here, counted in admissions.
    pub(crate) last_used: u64,
    /// Its last turn, counted in turns.
    pub(crate) last_turn: u64,
    /// The last step in which it took part.
    pub(crate) last_step: u64,
}

impl SlotState {
    /// Whether it has a request that does not wait for cells.
    pub(crate) fn is_running(&self) -> bool {
        self.has_request && !self.is_paused
    }

    /// Tokens of its context that are not decoded yet.
    pub(crate) fn n_pending(&self) -> usize {
        self.n_tokens.saturating_sub(self.n_cached)
    }
}

/// What limits a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StepLimits {
    pub(crate) n_ctx: usize,
    pub(crate) n_batch: usize,
    pub(crate) n_ubatch: usize,
    /// Cells that all slots share; `None`: each slot has its own.
    pub(crate) shared_cells: Option<usize>,
    /// Most tokens of a sequence in a batch whose logits do not depend on their number.
    pub(crate) max_invariant_tokens: usize,
    /// Most tokens that the host's frame budget leaves time for in a batch.
    pub(crate) n_budgeted_tokens: usize,
    /// Whether logits are batch-invariant up to there.
    pub(crate) is_batch_invariant: bool,
    /// Whether rejected tokens can be removed from the cache.
    pub(crate) can_roll_back: bool,
    /// Whether a prompt pauses before its last token, so that its cache has a checkpoint there.
    pub(crate) needs_checkpoints: bool,
    /// Whether a token that would be decoded alone is padded.
    pub(crate) pads_single_tokens: bool,
}

/// A slot's draft: before [`fill`] the chosen one, then as much of it as is in the batch.
#[derive(Debug, Default)]
pub(crate) struct PlannedDraft {
    pub(crate) tokens: Vec<Token>,
    /// The node before each token; node 0 is the committed prefix.
    parents: Vec<usize>,
    /// Who proposed it; `None`: it is a free draft token.
    pub(crate) kind: Option<DrafterKind>,
    /// The most that can be accepted: fewer than all tokens where it has branches.
    pub(crate) depth: usize,
}

/// A slot's part of a step.
#[derive(Debug, Default)]
pub(crate) struct SlotPlan {
    /// Whether it is the turn of its LoRA scales.
    pub(crate) is_in_turn: bool,
    /// Whether it takes part in the step, if it has a request that runs.
    pub(crate) is_scheduled: bool,
    /// Tokens of its context to decode; 0: it is not in the batch.
    pub(crate) n_context: usize,
    /// Tokens that the controller wants after the context, drafted or filler.
    n_wanted: usize,
    pub(crate) draft: PlannedDraft,
    /// Which drafted tokens may see which.
    pub(crate) tree: DraftTree,
    /// Tokens without meaning after the draft, so that the batch is one forward pass: see
    /// [`controller`](crate::speculative::Controller).
    pub(crate) n_filler: usize,
    /// Whether all tokens of its context have logits, not only the last one.
    pub(crate) scores: bool,
    /// Index in the batch of the first of its tokens.
    pub(crate) first: usize,
    /// Index in the batch of the first token with logits: the context's last one. `None` while a prompt goes on.
    pub(crate) row: Option<usize>,
}

impl SlotPlan {
    pub(crate) fn new(tree: DraftTree) -> SlotPlan {
        SlotPlan { tree, ..SlotPlan::default() }
    }

    /// Empties it for the next step.
    pub(crate) fn clear(&mut self) {
        (self.is_in_turn, self.is_scheduled, self.n_context, self.n_filler, self.row) = (false, false, 0, 0, None);
        self.scores = false;
        self.set_draft(None, 0);
    }

    /// Whether the slot in this state takes part in the step.
    pub(crate) fn is_active(&self, state: &SlotState) -> bool {
        self.is_scheduled && state.is_running()
    }

    /// Tokens in the batch.
    pub(crate) fn n_batch_tokens(&self) -> usize {
        self.n_context + self.draft.tokens.len() + self.n_filler
    }

    /// Sets the draft that was chosen for the slot, and how many tokens are wanted after its context.
    pub(crate) fn set_draft(&mut self, chosen: Option<ChosenDraft<'_>>, n_wanted: usize) {
        self.n_wanted = n_wanted;
        let PlannedDraft { tokens, parents, kind, depth } = &mut self.draft;
        tokens.clear();
        parents.clear();
        (*kind, *depth) = (None, 0);
        if let Some(chosen) = chosen {
            tokens.extend(chosen.draft.tokens.iter().take(chosen.n));
            parents.extend(chosen.draft.parents(tokens.len()));
            *kind = chosen.kind;
        }
    }

    /// Lays out the first `n` tokens of the draft, as far as there are sequences for its branches, and drops the others. Returns how many.
    fn plant(&mut self, n: usize) -> usize {
        let PlannedDraft { tokens, parents, kind, depth } = &mut self.draft;
        let n = self.tree.plant(parents.iter().copied().take(n));
        tokens.truncate(n);
        *kind = kind.filter(|_| n > 0);
        *depth = self.tree.depth();
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
}

/// The layout of a slot's draft in the target's batch: which tokens may see which. Pure data; [`decode`](super::decode) makes llama.cpp
/// share the sequences.
///
/// A draft with branches is a tree. Each branch is a sequence that shares the committed prefix, and the drafted tokens before it,
/// with the slot's own sequence; the first branch is the slot's own. The others are emptied after each decode: if tokens of another
/// branch than the first are accepted, they are decoded again with the next step's, contiguously. Keeping them in place would
/// save that, but attention sums in the order of cells, so the last bits of the output would depend on drafts. For the same
/// reason the first branch comes before the others in the batch: its accepted tokens then leave no hole that later tokens
/// would fill.
#[derive(Debug, Default)]
pub(crate) struct DraftTree {
    /// The slot's sequence, and those that it may use for branches.
    own: SeqId,
    spare: Vec<SeqId>,
    /// Node 0 is the committed prefix.
    nodes: Vec<DraftNode>,
    /// How many branches there are; the first is the slot's own sequence.
    used: usize,
    /// The sequences of each node, one list behind the other.
    lists: Vec<SeqId>,
}

#[derive(Debug, Clone)]
struct DraftNode {
    parent: usize,
    depth: usize,
    /// The branch that it belongs to first.
    branch: usize,
    /// All branches through it, as bits.
    through: u64,
    /// Where its sequences end in `lists`.
    end: usize,
}

impl DraftTree {
    /// For a slot that has the sequence `own` and may use `spare`.
    pub(crate) fn new(own: SeqId, spare: Vec<SeqId>) -> DraftTree {
        DraftTree { own, spare, ..DraftTree::default() }
    }

    /// Lays out a draft whose tokens follow these nodes. Returns how many of them can be decoded together: all for which there are
    /// sequences.
    pub(crate) fn plant(&mut self, parents: impl Iterator<Item = usize>) -> usize {
        self.nodes.clear();
        self.nodes.push(DraftNode { parent: 0, depth: 0, branch: 0, through: 1, end: 0 });
        self.used = 1;
        for parent in parents {
            let Some(DraftNode { depth, branch, .. }) = self.nodes.get(parent).cloned() else { break };
            let is_first = !self.nodes.iter().skip(1).any(|node| node.parent == parent);
            let branch = if is_first {
                branch
            } else {
                if self.used > self.spare.len() {
                    break;
                }
                self.used += 1;
                self.used - 1
            };
            self.nodes.push(DraftNode { parent, depth: depth + 1, branch, through: 0, end: 0 });
            let mut at = self.nodes.len() - 1;
            while let Some(node) = self.nodes.get_mut(at).filter(|node| node.through & (1 << branch) == 0) {
                node.through |= 1 << branch;
                at = node.parent;
            }
        }
        self.lists.clear();
        for node in &mut self.nodes {
            let sequences = std::iter::once(&self.own).chain(&self.spare).enumerate();
            self.lists.extend(sequences.filter(|(bit, _)| node.through >> bit & 1 == 1).map(|(_, sequence)| sequence));
            node.end = self.lists.len();
        }
        self.nodes.len() - 1
    }

    /// The sequences that see the context.
    pub(crate) fn of_context(&self) -> &[SeqId] {
        self.nodes.first().and_then(|text| self.lists.get(..text.end)).unwrap_or(&[])
    }

    /// The drafted tokens in the order of the batch: the node of each, how many are before it in its branch, and the sequences
    /// that see it.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = (usize, usize, &[SeqId])> {
        let all = || (1..).zip(self.nodes.iter().zip(self.nodes.iter().skip(1)));
        let own = all().filter(|(_, (_, node))| node.branch == 0);
        let other = all().filter(|(_, (_, node))| node.branch != 0);
        own.chain(other)
            .map(|(at, (before, node))| (at, node.depth - 1, self.lists.get(before.end..node.end).unwrap_or(&[])))
    }

    /// Where the row of `node` is, counted from that of the committed prefix.
    pub(crate) fn row(&self, node: usize) -> usize {
        self.nodes().position(|(at, ..)| at == node).map_or(0, |place| place + 1)
    }

    /// The number of tokens in its longest branch.
    pub(crate) fn depth(&self) -> usize {
        self.nodes.iter().map(|node| node.depth).max().unwrap_or(0)
    }

    /// The nodes after `node`.
    pub(crate) fn children(&self, node: usize) -> impl Iterator<Item = usize> + '_ {
        (0..).zip(&self.nodes).skip(1).filter(move |(_, child)| child.parent == node).map(|(child, _)| child)
    }

    /// The node after `node` on the path to `last`; `None`: `last` is reached.
    pub(crate) fn towards(&self, node: usize, last: usize) -> Option<usize> {
        let parent = |at: &usize| self.nodes.get(*at).map(|node| node.parent);
        let mut way = std::iter::successors(Some(last).filter(|last| *last != node), parent);
        way.find(|at| *at == 0 || parent(at) == Some(node)).filter(|at| *at > 0)
    }

    /// Whether the slot's own sequence goes through a node.
    pub(crate) fn is_own(&self, node: usize) -> bool {
        self.nodes.get(node).is_some_and(|node| node.branch == 0)
    }

    /// The slot's own sequence, and those of the other branches.
    pub(crate) fn sequences(&self) -> (SeqId, &[SeqId]) {
        (self.own, self.spare.get(..self.used.saturating_sub(1)).unwrap_or(&[]))
    }
}

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

/// The plan of a step. Its buffers are used again, so a step does not allocate.
#[derive(Debug, Default)]
pub(crate) struct StepPlan {
    /// What is known of each slot, by sequence id.
    pub(crate) states: Vec<SlotState>,
    /// What each slot does.
    pub(crate) slots: Vec<SlotPlan>,
    /// The same for the controller of draft lengths.
    pub(crate) steps: Vec<StepSlot>,
    /// Tokens of each slot in the batch.
    pub(crate) n_tokens: Vec<usize>,
    pub(crate) turn: Turn,
    /// A slot with the LoRA scales of this step; `None`: no slot takes part.
    pub(crate) adapters_of: Option<usize>,
    /// Whether a drafter needs the target's hidden states.
    pub(crate) keeps_hidden: bool,
    /// Time that the drafters took.
    pub(crate) t_draft: Duration,
    /// The slots in the order in which they get space in the batch.
    pub(crate) order: Vec<usize>,
}

impl StepPlan {
    /// For slots with these trees.
    pub(crate) fn new(trees: impl Iterator<Item = DraftTree>) -> StepPlan {
        StepPlan { slots: trees.map(SlotPlan::new).collect(), ..StepPlan::default() }
    }

    /// The slots that take part, with their numbers, to be changed.
    pub(crate) fn active_mut(&mut self) -> impl Iterator<Item = (usize, &mut SlotPlan)> {
        let all = self.states.iter().zip(&mut self.slots).enumerate();
        all.filter(|(_, (state, slot))| slot.is_active(state)).map(|(index, (_, slot))| (index, slot))
    }

    /// The slots that take part, with their states and their numbers.
    pub(crate) fn active(&self) -> impl Iterator<Item = (usize, &SlotState, &SlotPlan)> {
        let all = self.states.iter().zip(&self.slots).enumerate();
        all.filter(|(_, (state, slot))| slot.is_active(state)).map(|(index, (state, slot))| (index, state, slot))
    }

    /// Whether nothing is to be decoded.
    pub(crate) fn is_empty(&self) -> bool {
        self.slots.iter().all(|slot| slot.n_context == 0)
    }
}

/// Steps that a turn lasts: llama.cpp plans its graph anew whenever scales change.
const STEPS_OF_TURN: u64 = 8;

/// Plans which slots take part: those whose turn it is, or else, for some steps, the slot whose turn was longest ago and all with the
/// same LoRA scales.
pub(crate) fn schedule(plan: &mut StepPlan, limits: &StepLimits) {
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
        if !slot.is_active(state) {
            return StepSlot::default();
        }
        let n_pending = state.n_pending();
        let room = match limits.can_roll_back {
            true => room_after(state, limits).min(state.tokens_until_group.saturating_sub(n_pending)),
            false => 0,
        };
        StepSlot { n_tokens: n_pending.min(limits.n_ubatch), generates: may_draft(state), room, depth: state.n_cached }
    }));
}

/// Whether a draft may follow the slot's context in this step.
pub(crate) fn may_draft(state: &SlotState) -> bool {
    state.is_generating && (1..=MAX_PENDING).contains(&state.n_pending())
}

/// Tokens for which there is room after the slot's context.
pub(crate) fn room_after(state: &SlotState, limits: &StepLimits) -> usize {
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

/// Plans each slot's tokens of the batch: of its context, its draft, and filler.
///
/// Slots get space in the order of their last use, and enter the batch in the order of their sequence ids: with a KV buffer for each
/// sequence, llama.cpp decodes only consecutive, increasing ids together.
pub(crate) fn fill(plan: &mut StepPlan, limits: &StepLimits) {
    let StepPlan { states, slots, order, .. } = plan;
    let due = |state: &SlotState, slot: &SlotPlan| {
        // A prompt advances by any piece of it.
        let most = if state.is_generating { MAX_PENDING } else { MAX_PENDING.min(limits.n_budgeted_tokens) };
        if slot.is_active(state) { state.n_pending().min(most) } else { 0 }
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
        if !slot.is_active(state) {
            continue;
        }
        let (due, n_pending) = (due(state, slot), state.n_pending());
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
        let n_free = most - slot.n_context;
        let n_draft = if is_complete { n_free.min(space.drafted) } else { 0 };
        let n_draft = slot.plant(n_draft);
        if is_complete && state.is_generating {
            slot.n_filler = slot.n_wanted.saturating_sub(n_draft).min(n_free - n_draft);
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
    let active = states.iter().zip(slots).filter(|(state, slot)| slot.is_active(state));
    let need: usize = active.map(|(state, _)| state.n_pending().min(limits.n_ubatch)).sum();
    cells.saturating_sub(used + need)
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
