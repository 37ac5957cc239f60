//! The interface of all drafters.

use super::controller::{GrowingDraft, StopPolicy};
use super::verify::{SampledDraft, StepRandom};
use super::{DrafterKind, Settings};
use foredraft_base::{HiddenStates, Snapshot, Token};
use foredraft_sampling::Sampler;

/// Proposes tokens that the target verifies. One drafter serves all slots.
///
/// A drafter cannot make the output wrong, only slow, because the target verifies all proposed tokens. (One exception: with a [`Drawing`],
/// the distribution must be the one that the tokens were drawn from. They are drawn there.) A drafter need not track which tokens it has
/// seen: each [`DraftRequest`] has the whole context, and the drafter finds the new part. So it does not have to know about cancelled
/// decodes, context shifts and reused prompts.
pub trait Drafter {
    /// The drafter's kind.
    fn source(&self) -> DrafterKind;

    /// A request starts in `slot`. `sampler` is the target's. Nothing of the slot's previous request may remain, except what the drafter
    /// learns intentionally from all outputs.
    fn begin(&mut self, slot: usize, sampler: &Sampler, settings: &Settings);

    /// Drafts for all requests together, once per step. If a drafter has not yet caught up with a [`DraftRequest`]'s context, it continues
    /// to catch up and proposes nothing, so that other requests do not wait for a long prompt.
    fn draft(&mut self, requests: &mut [DraftRequest<'_>]);

    /// Records that `drafted` tokens of the slot's last draft were verified, and that the first `accepted` of them were accepted.
    fn verified(&mut self, _slot: usize, _drafted: usize, _accepted: usize) {}

    /// The `dropped` tokens from position `keep` on were removed from the context of `slot`, and the later ones moved down.
    fn shift(&mut self, slot: usize, keep: usize, dropped: usize);

    /// The request in `slot` has ended. The last `generated` tokens of its context are its output. Called on all drafters, including those
    /// that the request did not use.
    fn end(&mut self, slot: usize, tokens: &[Token], generated: usize);

    /// The drafter's part of a session of `slot`. `None`: nothing worth saving.
    fn save(&mut self, slot: usize) -> Option<Snapshot> {
        let _ = slot;
        None
    }

    /// The bytes of what [`Drafter::save`] saves, at most.
    fn state_size(&mut self, slot: usize) -> usize {
        let _ = slot;
        0
    }

    /// Restores a result of [`Drafter::save`]. Returns false if it does not fit or on failure; the drafter then catches up as usual.
    fn load(&mut self, slot: usize, snapshot: &Snapshot) -> bool {
        let _ = (slot, snapshot);
        false
    }

    /// Removes all that it keeps of the contexts of `slot`, which has no request. Returns how many tokens were in its own cache.
    fn erase(&mut self, slot: usize) -> usize {
        let _ = slot;
        0
    }

    /// A request for `prompt` starts in the slot `to`, with a copy of what the target's cache has of the prompt in the slot `from`.
    fn copy(&mut self, from: usize, to: usize, prompt: &[Token]) {
        let _ = (from, to, prompt);
    }

    /// A request for `prompt` starts in `slot` that allows moving parts of the cache.
    fn reuse(&mut self, slot: usize, prompt: &[Token], least: usize) {
        let _ = (slot, prompt, least);
    }

    /// Whether the contexts that it gets have the rows of pictures and sounds, which are negative numbers. Other drafters get the text alone.
    fn sees_rows(&self) -> bool {
        false
    }

    /// Whether [`Drafter::decoded`] needs the target's hidden states after the last layer.
    fn needs_hidden(&self) -> bool {
        false
    }

    /// The target has decoded tokens of the request in `slot`. [`HiddenStates::hidden`] has their states, if a drafter needs them. Not called
    /// for decodes that failed or were interrupted.
    fn decoded(&mut self, slot: usize, what: &mut DecodedTokens<'_>) {
        let _ = (slot, what);
    }

    /// Forgets what it has learned from earlier outputs, unless drafters share that.
    fn forget_answers(&mut self) {}

    /// The reason why it is disabled for the request in `slot`.
    fn disabled(&self, slot: usize) -> Option<&str>;
}

/// A request for a draft for one slot.
pub struct DraftRequest<'a> {
    /// The slot.
    pub slot: usize,
    /// The whole context: prompt and generated tokens, with rows if [`Drafter::sees_rows`]. The target has not decoded the last one yet.
    /// Between the calls for a request, it only grows at its end, except by [`Drafter::shift`].
    pub tokens: &'a [Token],
    /// The target's sampler, in the state after `tokens`.
    pub sampler: &'a Sampler,
    /// The number of generated tokens among `tokens`, at the end.
    pub generated: usize,
    /// The RNG counter of the next token.
    pub position: usize,
    /// The maximum number of tokens. 0: only catch up with `tokens`.
    pub n_max: usize,
    /// Drafting stops at a token with a smaller probability.
    pub p_min: f32,
    /// The maximum number of branches, at least 1, and the minimum probability of a token that starts one.
    pub branches: (usize, f32),
    /// Tells a model-based drafter when a longer draft does not pay.
    pub stop_policy: StopPolicy<'a>,
    /// The draft, empty before.
    pub draft: &'a mut Draft,
    /// Set for drafters with a distribution, if the verification compares probabilities: each token must be drawn here, and also added to
    /// the draft. It cannot be removed afterwards.
    pub drawing: Option<Drawing<'a>>,
}

impl DraftRequest<'_> {
    /// The draft so far, which is a chain.
    pub fn growing(&self) -> GrowingDraft<'_> {
        GrowingDraft { confidence: &self.draft.confidence, n_max: self.n_max, policy: self.stop_policy }
    }
}

/// Draws tokens from a draft's distribution.
pub struct Drawing<'a> {
    /// The drawn tokens and their distributions.
    pub drawn: &'a mut SampledDraft,
    /// The step's random numbers.
    pub random: StepRandom,
}

/// The tokens of one slot that the target has decoded: the end of its context, followed by a draft.
pub struct DecodedTokens<'a> {
    /// The target, directly after the decode.
    pub target: &'a mut dyn HiddenStates,
    /// The index in the target's batch of the first of these tokens. The others follow.
    pub first: usize,
    /// The whole context.
    pub tokens: &'a [Token],
    /// The index in `tokens` of the first decoded token.
    pub from: usize,
    /// The drafted tokens after it, not verified yet.
    pub draft: &'a [Token],
}

/// A proposed continuation, or a tree of several. Nodes are numbered in the order in which they were added, from 1. Node 0 is the context's
/// end.
#[derive(Debug, Clone, Default)]
pub struct Draft {
    /// The tokens.
    pub tokens: Vec<Token>,
    /// For each token, the drafter's estimate (0..=1) of its acceptance if the previous ones are accepted. It is calibrated by the observed
    /// acceptance, so only the order matters.
    pub confidence: Vec<f32>,
    /// The parent node of each token. Missing entries: the previous token.
    parents: Vec<usize>,
}

impl Draft {
    /// Adds a token after the last one.
    pub fn push(&mut self, token: Token, confidence: f32) {
        self.tokens.push(token);
        self.confidence.push(confidence);
    }

    /// Adds a token after `parent`, and returns its node. Use either this or [`Draft::push`] for all tokens of a draft.
    pub fn push_behind(&mut self, parent: usize, token: Token, confidence: f32) -> usize {
        self.parents.push(parent);
        self.push(token, confidence);
        self.tokens.len()
    }

    /// The parent nodes of the first `n` tokens.
    pub fn parents(&self, n: usize) -> impl Iterator<Item = usize> + '_ {
        (0..n).map(|index| self.parents.get(index).copied().unwrap_or(index))
    }

    /// The length of the longest branch of the first `n` tokens.
    pub fn longest_branch(&self, n: usize) -> usize {
        let n = n.min(self.tokens.len());
        if self.parents.is_empty() {
            return n;
        }
        let depth = |node: usize| {
            std::iter::successors(Some(node), |at| self.parents.get(*at - 1).copied().filter(|parent| *parent > 0))
                .count()
        };
        (1..=n).map(depth).max().unwrap_or(0)
    }

    /// Keeps the first `n` tokens.
    pub fn truncate(&mut self, n: usize) {
        self.tokens.truncate(n);
        self.confidence.truncate(n);
        self.parents.truncate(n);
    }

    /// Empties it, but keeps its memory.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.confidence.clear();
        self.parents.clear();
    }
}
