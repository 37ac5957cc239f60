//! The plan of a step: plain data. `schedule` decides it, `draft` adds drafts, and `decode`, `verify` and `commit` read it.

use std::time::Duration;

use super::draft_tree::DraftTree;
use crate::llama::Token;
use crate::speculative::{ChosenDraft, DrafterKind, StepSlot};

/// A draft follows at most this many undecoded tokens of its context: the token sampled last, and those of an accepted branch that are
/// decoded again (see [`draft_tree`](super::draft_tree)).
pub(in crate::engine) const MAX_PENDING: usize = 16;

/// What the scheduler knows of a slot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::engine) struct SlotState {
    pub(in crate::engine) has_request: bool,
    /// Whether the request waits for cells.
    pub(in crate::engine) is_paused: bool,
    pub(in crate::engine) is_generating: bool,
    /// Tokens of the request's context.
    pub(in crate::engine) n_tokens: usize,
    /// Tokens in the slot's cache.
    pub(in crate::engine) n_cached: usize,
    /// Tokens that the request may still generate, at least one.
    pub(in crate::engine) n_remaining: usize,
    /// Most tokens of a draft; 0: the request does not speculate.
    pub(in crate::engine) n_max_draft: usize,
    /// Tokens that may be decoded before positions are grouped (see [`SelfExtend`](crate::session::SelfExtend)).
    pub(in crate::engine) tokens_until_group: usize,
    /// The first slot whose cache has the same LoRA scales.
    pub(in crate::engine) adapters: usize,
    /// When a request last began or ended here, counted in admissions.
    pub(in crate::engine) last_used: u64,
    /// Its last turn, counted in turns.
    pub(in crate::engine) last_turn: u64,
    /// The last step in which it took part.
    pub(in crate::engine) last_step: u64,
}

impl SlotState {
    /// Whether it has a request that does not wait for cells.
    pub(in crate::engine) fn is_running(&self) -> bool {
        self.has_request && !self.is_paused
    }

    /// Tokens of its context that are not decoded yet.
    pub(in crate::engine) fn n_pending(&self) -> usize {
        self.n_tokens.saturating_sub(self.n_cached)
    }
}

/// What limits a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) struct StepLimits {
    pub(in crate::engine) n_ctx: usize,
    pub(in crate::engine) n_batch: usize,
    pub(in crate::engine) n_ubatch: usize,
    /// Cells that all slots share; `None`: each slot has its own.
    pub(in crate::engine) shared_cells: Option<usize>,
    /// Most tokens of a sequence in a batch whose logits do not depend on their number.
    pub(in crate::engine) max_invariant_tokens: usize,
    /// Most tokens that the host's frame budget leaves time for in a batch.
    pub(in crate::engine) n_budgeted_tokens: usize,
    /// Whether logits are batch-invariant up to there.
    pub(in crate::engine) is_batch_invariant: bool,
    /// Whether rejected tokens can be removed from the cache.
    pub(in crate::engine) can_roll_back: bool,
    /// Whether a prompt pauses before its last token, so that its cache has a checkpoint there.
    pub(in crate::engine) needs_checkpoints: bool,
    /// Whether a token that would be decoded alone is padded.
    pub(in crate::engine) pads_single_tokens: bool,
}

/// A slot's draft, as far as it is in the batch.
#[derive(Debug, Default)]
pub(in crate::engine) struct PlannedDraft {
    pub(in crate::engine) tokens: Vec<Token>,
    /// Who proposed it; `None`: it is a free draft token.
    pub(in crate::engine) kind: Option<DrafterKind>,
    /// The most that can be accepted: fewer than all tokens where it has branches.
    pub(in crate::engine) depth: usize,
}

/// A slot's part of a step.
#[derive(Debug, Default)]
pub(in crate::engine) struct SlotPlan {
    /// Whether it is the turn of its LoRA scales.
    pub(in crate::engine) is_in_turn: bool,
    /// Whether it takes part in the step, if it has a request that runs.
    pub(in crate::engine) is_scheduled: bool,
    /// Tokens of its context to decode; 0: it is not in the batch.
    pub(in crate::engine) n_context: usize,
    pub(in crate::engine) draft: PlannedDraft,
    /// Which drafted tokens may see which.
    pub(in crate::engine) tree: DraftTree,
    /// Tokens without meaning after the draft, so that the batch is one forward pass: see
    /// [`controller`](crate::speculative::Controller).
    pub(in crate::engine) n_filler: usize,
    /// Index in the batch of the first of its tokens.
    pub(in crate::engine) first: usize,
    /// Index in the batch of the first token with logits: the context's last one. `None` while a prompt goes on.
    pub(in crate::engine) row: Option<usize>,
}

impl SlotPlan {
    pub(in crate::engine) fn new(tree: DraftTree) -> SlotPlan {
        SlotPlan { tree, ..SlotPlan::default() }
    }

    /// Empties it for the next step.
    pub(in crate::engine) fn clear(&mut self) {
        (self.is_in_turn, self.is_scheduled, self.n_context, self.n_filler, self.row) = (false, false, 0, 0, None);
        self.draft.tokens.clear();
        (self.draft.kind, self.draft.depth) = (None, 0);
    }

    /// Tokens in the batch.
    pub(in crate::engine) fn n_batch_tokens(&self) -> usize {
        self.n_context + self.draft.tokens.len() + self.n_filler
    }

    /// Plans the first `n` tokens of a draft, as far as there are sequences for its branches. Returns how many.
    pub(in crate::engine) fn plan_draft(&mut self, chosen: Option<ChosenDraft<'_>>, n: usize) -> usize {
        self.draft.tokens.clear();
        let Some(ChosenDraft { kind, draft, n: n_chosen }) = chosen else {
            return self.tree.plant(std::iter::empty());
        };
        let n = self.tree.plant(draft.parents(n_chosen.min(n)));
        self.draft.tokens.extend(draft.tokens.iter().take(n));
        (self.draft.kind, self.draft.depth) = (kind.filter(|_| n > 0), draft.depth(n));
        n
    }

    /// The node of `token` after `node` of the draft.
    pub(in crate::engine) fn child(&self, node: usize, token: Token) -> Option<usize> {
        self.tree.children(node).find(|child| self.drafted(*child) == Some(token))
    }

    /// The token of a node.
    pub(in crate::engine) fn drafted(&self, node: usize) -> Option<Token> {
        self.draft.tokens.get(node.checked_sub(1)?).copied()
    }
}

/// Whose turn it is among requests with different LoRA scales.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::engine) struct Turn {
    /// Counts turns.
    pub(in crate::engine) number: u64,
    /// Steps of this one.
    pub(in crate::engine) n_steps: u64,
    /// Counts steps.
    pub(in crate::engine) step: u64,
}

/// The plan of a step. Its buffers are used again, so a step does not allocate.
#[derive(Debug, Default)]
pub(in crate::engine) struct StepPlan {
    /// What is known of each slot, by sequence id.
    pub(in crate::engine) states: Vec<SlotState>,
    /// What each slot does.
    pub(in crate::engine) slots: Vec<SlotPlan>,
    /// The same for the controller of draft lengths.
    pub(in crate::engine) steps: Vec<StepSlot>,
    /// Tokens of each slot in the batch.
    pub(in crate::engine) n_tokens: Vec<usize>,
    pub(in crate::engine) turn: Turn,
    /// A slot with the LoRA scales of this step; `None`: no slot takes part.
    pub(in crate::engine) adapters_of: Option<usize>,
    /// Whether a drafter needs the target's hidden states.
    pub(in crate::engine) keeps_hidden: bool,
    /// Time that the drafters took.
    pub(in crate::engine) t_draft: Duration,
    /// The slots in the order in which they get space in the batch.
    pub(in crate::engine) order: Vec<usize>,
}

impl StepPlan {
    /// For slots with these trees.
    pub(in crate::engine) fn new(trees: impl Iterator<Item = DraftTree>) -> StepPlan {
        StepPlan { slots: trees.map(SlotPlan::new).collect(), ..StepPlan::default() }
    }

    /// The slots that take part, with their states and their numbers.
    pub(in crate::engine) fn active(&self) -> impl Iterator<Item = (usize, &SlotState, &SlotPlan)> {
        let all = self.states.iter().zip(&self.slots).enumerate();
        all.filter(|(_, (state, slot))| state.is_running() && slot.is_scheduled)
            .map(|(index, (state, slot))| (index, state, slot))
    }

    /// Whether nothing is to be decoded.
    pub(in crate::engine) fn is_empty(&self) -> bool {
        self.slots.iter().all(|slot| slot.n_context == 0)
    }
}
