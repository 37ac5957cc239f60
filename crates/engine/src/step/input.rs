//! The input of a step's plan: the state of the slots, and the limits of the step. Plain data.

use foredraft_llama::Rollback;

/// A draft follows at most this many undecoded tokens of its context: the token sampled last, and those of an accepted branch that are
/// decoded again (see [`DraftTree`]).
pub(crate) const MAX_PENDING: usize = 16;

/// The input of a step's plan. The next step uses its memory again.
#[derive(Debug, Default)]
pub(crate) struct StepInput {
    /// The state of each slot, by sequence id.
    pub(crate) slots: Vec<SlotState>,
    /// The limits of the step.
    pub(crate) limits: StepLimits,
}

/// The scheduler's view of a slot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SlotState {
    pub(crate) has_request: bool,
    /// Whether the request waits for cells.
    pub(crate) is_preempted: bool,
    /// Whether it must be decoded alone, to find out whether its logits are finite then.
    pub(crate) is_suspect: bool,
    /// Whether it is decoded only while no request is.
    pub(crate) is_preparation: bool,
    /// See [`Rank`](crate::priority::Rank).
    pub(crate) level: i32,
    /// Whether another request may take its slot.
    pub(crate) may_be_preempted: bool,
    pub(crate) is_generating: bool,
    /// Whether each token of its prompt needs a row of logits.
    pub(crate) scores_prompt: bool,
    /// Tokens of the request's context.
    pub(crate) n_tokens: usize,
    /// Tokens in the slot's cache.
    pub(crate) n_cached: usize,
    /// The rows of a picture that come next, which are decoded without anything else; 0: tokens come next.
    pub(crate) n_rows: usize,
    /// The rows that are decoded in one step; 0: any part of them.
    pub(crate) n_whole: usize,
    /// Tokens that the request may still generate, at least one.
    pub(crate) n_remaining: usize,
    /// Most tokens of a draft; 0: the request does not speculate.
    pub(crate) n_max_draft: usize,
    /// Tokens that may be decoded before positions are grouped (see [`SelfExtend`](crate::session::SelfExtend)), or before a picture begins or
    /// ends.
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
    /// Whether the slot has a request that does not wait for cells.
    pub(crate) fn is_running(&self) -> bool {
        self.has_request && !self.is_preempted
    }

    /// Tokens of its context that are not decoded yet.
    pub(crate) fn n_pending(&self) -> usize {
        self.n_tokens.saturating_sub(self.n_cached)
    }

    /// Whether a draft may follow the slot's context in a step.
    pub(crate) fn may_draft(&self) -> bool {
        self.is_generating && (1..=MAX_PENDING).contains(&self.n_pending())
    }

    /// Tokens for which there is room after the slot's context, and which can be rejected.
    pub(crate) fn room_after(&self, limits: &StepLimits) -> usize {
        let most = limits.max_invariant_tokens.min(limits.n_budgeted_tokens).saturating_sub(self.n_pending());
        limits.n_ctx.saturating_sub(self.n_tokens + 1).min(most).min(limits.max_rejected())
    }
}

/// The limits of a step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
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
    /// Whether logits are batch-invariant, up to `max_invariant_tokens`.
    pub(crate) is_batch_invariant: bool,
    /// Whether logits do not depend on the places of cells either, so that the tokens of every branch have the logits that they have alone.
    pub(crate) branches_are_invariant: bool,
    /// How many rejected tokens can be removed from the cache. If none can, the cache returns to its state before the step, and the others
    /// are decoded again.
    pub(crate) rollback: Rollback,
    /// Whether a context has shifted since the last decode, so that no state can be copied.
    pub(crate) has_pending_moves: bool,
    /// Whether a prompt stops before its last token, so that its cache has a checkpoint there.
    pub(crate) needs_checkpoints: bool,
    /// Whether a token that would be decoded alone is padded.
    pub(crate) pads_single_tokens: bool,
    /// Whether several slots can take part in a step.
    pub(crate) decodes_slots_together: bool,
}

impl StepLimits {
    /// The most tokens after a slot's context that can be rejected.
    pub(crate) fn max_rejected(&self) -> usize {
        match self.rollback {
            Rollback::Never if self.has_pending_moves => 0,
            Rollback::Recent(n) => n,
            Rollback::Anywhere | Rollback::Never => usize::MAX,
        }
    }
}
