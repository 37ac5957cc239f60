//! The one interface of all drafters.

use super::policy::{GrowingDraft, StopPolicy};
use super::verify::{SampledDraft, StepRandom};
use super::{DrafterKind, Settings};
use crate::llama::{Context, Token};
use crate::sampling::Sampler;
use crate::session::Snapshot;

/// Proposes tokens that the target then checks. One drafter serves all slots.
///
/// A drafter cannot make a text wrong, only slow: what it proposes is compared with what the target says. (Where it is
/// given a [`Drawing`], the distribution that it hands over must be the one drawn from, and there the draw is made.) It owes
/// no exactness about the tokens it has seen either: each [`DraftRequest`] carries the whole context, and the drafter finds out
/// itself what of it is new. That keeps cancelled evaluations, context shifts and reused prompts out of this interface.
pub trait Drafter {
    /// Who it is.
    fn source(&self) -> DrafterKind;

    /// A request begins in `slot`; `sampler` is the target's. Nothing of the slot's earlier request may be left, except
    /// in what the drafter learns on purpose from all outputs.
    fn begin(&mut self, slot: usize, sampler: &Sampler, settings: &Settings);

    /// Drafts for all that ask, together; each asks once a step. A drafter that has not yet caught up with an [`DraftRequest`]'s
    /// context works on that and proposes nothing, so that nobody waits for a long prompt.
    fn draft(&mut self, asks: &mut [DraftRequest<'_>]);

    /// Of the slot's last draft, `drafted` tokens were checked and the first `accepted` of them were right.
    fn checked(&mut self, slot: usize, drafted: usize, accepted: usize);

    /// The tokens `dropped` positions from `keep` on are gone from the context of `slot`, those behind moved down.
    fn shift(&mut self, slot: usize, keep: usize, dropped: usize);

    /// The request in `slot` has ended; the last `generated` of its context's tokens are its output. Told to every
    /// drafter, also of requests it was not asked for.
    fn end(&mut self, slot: usize, tokens: &[Token], generated: usize);

    /// What of a session it has for `slot`; `None`: nothing that would be worth a file.
    fn save(&mut self, slot: usize) -> Option<Snapshot> {
        let _ = slot;
        None
    }

    /// Takes what [`Drafter::save`] gave; false when it does not fit or fails, after which it catches up as always.
    fn load(&mut self, slot: usize, snapshot: &Snapshot) -> bool {
        let _ = (slot, snapshot);
        false
    }

    /// A request for `prompt` begins in `slot` that lets parts of the cache be moved: see [`Sequence::reuse`].
    ///
    /// [`Sequence::reuse`]: crate::session::Sequence::reuse
    fn reuse(&mut self, slot: usize, prompt: &[Token], least: usize) {
        let _ = (slot, prompt, least);
    }

    /// Whether [`Drafter::decoded`] wants the target's hidden states.
    fn needs_hidden(&self) -> bool {
        false
    }

    /// The target evaluated tokens of the request in `slot`, and [`Context::hidden`] has their states, if somebody needs
    /// them. Not told of evaluations that failed or were stopped.
    fn decoded(&mut self, slot: usize, what: &mut DecodedTokens<'_>) {
        let _ = (slot, what);
    }

    /// Forgets what it learnt from the answers of earlier requests, if it keeps that to itself.
    fn forget_answers(&mut self) {}

    /// Why it drafts no more for the request in `slot`.
    fn disabled(&self, slot: usize) -> Option<&str>;
}

/// What a drafter is asked for one slot.
pub struct DraftRequest<'a> {
    /// The slot.
    pub slot: usize,
    /// The whole context: prompt and generated tokens, the last of them not yet evaluated by the target. From one ask of
    /// a request to the next it only grows at its end, except by [`Drafter::shift`].
    pub tokens: &'a [Token],
    /// The target's sampler, in the state after `tokens`.
    pub sampler: &'a Sampler,
    /// How many of them, at the end, were generated.
    pub generated: usize,
    /// The position of the next token in the noise.
    pub position: usize,
    /// Most tokens to draft; 0: only keep up with `tokens`.
    pub n_max: usize,
    /// Drafting stops at a token less probable than this.
    pub p_min: f32,
    /// Most branches of the draft, at least 1, and the least probability of a token that begins one.
    pub branches: (usize, f32),
    /// Tells a drafter whose drafts take time when a longer one would not pay.
    pub pace: StopPolicy<'a>,
    /// The draft goes here; it is empty before.
    pub draft: &'a mut Draft,
    /// Of a drafter that has a distribution, when the rule compares probabilities: each token is to be drawn here, and goes
    /// into the draft as well. Once it is drawn it stays.
    pub drawing: Option<Drawing<'a>>,
}

impl DraftRequest<'_> {
    /// The draft so far, which is a chain.
    pub fn growing(&self) -> GrowingDraft<'_> {
        GrowingDraft { confidence: &self.draft.confidence, n_max: self.n_max, policy: self.pace }
    }
}

/// Where tokens are drawn from a draft's distribution.
pub struct Drawing<'a> {
    /// The tokens and what they were drawn from.
    pub drawn: &'a mut SampledDraft,
    /// The step's random numbers.
    pub chance: StepRandom,
}

/// What the target evaluated of one slot: the end of its context, and behind that a draft.
pub struct DecodedTokens<'a> {
    /// The target, just after the evaluation.
    pub target: &'a mut Context,
    /// Index in the target's batch of the first of these tokens; the others follow.
    pub first: usize,
    /// The whole context.
    pub tokens: &'a [Token],
    /// Number in it of the first evaluated token.
    pub from: usize,
    /// The drafted tokens behind it. Which of them are right is not known yet.
    pub draft: &'a [Token],
}

/// A proposed continuation, or several that share their beginnings: a tree. Its nodes are numbered as they were added, from
/// 1; node 0 is the text.
#[derive(Debug, Clone, Default)]
pub struct Draft {
    /// Its tokens.
    pub tokens: Vec<Token>,
    /// For each token the drafter's own estimate, 0..=1, that the target says it if it said those before. What it
    /// is worth is learnt from what is accepted, so only its order matters: higher is likelier.
    pub confidence: Vec<f32>,
    /// The node before each token; where there is no entry, the token behind the one before.
    parents: Vec<usize>,
}

impl Draft {
    /// Adds a token behind the last one.
    pub fn push(&mut self, token: Token, confidence: f32) {
        self.tokens.push(token);
        self.confidence.push(confidence);
    }

    /// Adds a token behind `parent`, and returns its node. Drafts that are made so have no other tokens.
    pub fn push_behind(&mut self, parent: usize, token: Token, confidence: f32) -> usize {
        self.parents.push(parent);
        self.push(token, confidence);
        self.tokens.len()
    }

    /// The nodes before the first `n` tokens.
    pub fn parents(&self, n: usize) -> impl Iterator<Item = usize> + '_ {
        (0..n).map(|index| self.parents.get(index).copied().unwrap_or(index))
    }

    /// How many tokens the longest branch of the first `n` has.
    pub fn depth(&self, n: usize) -> usize {
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

    /// Forgets it, keeping its memory.
    pub fn clear(&mut self) {
        self.truncate(0);
    }
}
