//! The part that all heads share: slots with requests, parts of the KV cache, and the states from which these are continued.

use std::ops::Range;

use super::draft_branch::choose;
use super::states::States;
use crate::session::Sequence;
use foredraft_base::prompt_fit::common_prefix;
use foredraft_llama::{Batch, Context, Token};
use foredraft_sampling::Sampler;
use foredraft_speculation::{DecodedTokens, DraftRequest, Drafter, DrafterKind, Settings, Verify};

/// The longest gap of states that is filled with zeros.
const GAP: usize = 8;

/// A slot of a head. `R`: its part in the current round of drafting.
pub struct HeadSlot<R> {
    pub(super) cache: HeadCache,
    /// `None`: the slot has no request.
    pub(super) sampler: Option<Sampler>,
    pub(super) disabled: Option<String>,
    /// Context and draft while drafting, for the sampler's penalties.
    pub(super) history: Vec<Token>,
    pub(super) round: R,
}

impl<R> HeadSlot<R> {
    /// Adds the token that the logits at `row` of the last batch predict to the draft of a request. Returns whether the draft goes on after
    /// it: it has at most `most` tokens.
    pub(super) fn extend(
        &mut self,
        request: &mut DraftRequest<'_>,
        context: &mut Context,
        row: usize,
        most: usize,
    ) -> bool {
        let (Some(sampler), Some(logits)) = (self.sampler.as_mut(), context.logits(row)) else { return false };
        // No token is possible (at a grammar's end): the draft ends, and the target chooses.
        let depth = request.draft.tokens.len();
        let Some((token, confidence)) = choose(request, sampler, logits, &self.history, depth) else { return false };
        request.draft.push(token, confidence);
        self.history.push(token);
        let drafted = depth + 1;
        drafted < most
            && request.stop_policy.wants_more(&request.draft.confidence, request.n_max)
            && !context.model().vocab().is_eog(token)
            && request.tokens.len() + drafted < context.n_ctx()
            && sampler.accept(token).is_ok()
    }
}

/// A head as a drafter: its context, and its slots by their numbers. `K`: the kind of head.
pub struct HeadDrafter<K: HeadKind> {
    pub(super) kind: K,
    pub(super) source: DrafterKind,
    pub(super) context: Context,
    pub(super) batch: Batch,
    pub(super) slots: Vec<HeadSlot<K::Round>>,
    /// The cache's positions can be shifted.
    pub(super) moves: bool,
    /// The head reads the target's hidden states after the last layer.
    pub(super) needs_hidden: bool,
}

/// The part in which the kinds of heads differ.
pub trait HeadKind: Sized {
    /// A slot's part in a round of drafting.
    type Round: Default;

    /// As [`Drafter::draft`].
    fn draft(head: &mut HeadDrafter<Self>, requests: &mut [DraftRequest<'_>]);

    /// As [`Drafter::decoded`].
    fn decoded(head: &mut HeadDrafter<Self>, slot: usize, what: &mut DecodedTokens<'_>);
}

impl<K: HeadKind> HeadDrafter<K> {
    /// A drafter of the kind [`DrafterKind::Draft`] whose caches cannot be shifted, with these caches.
    pub(super) fn with(kind: K, context: Context, caches: impl Iterator<Item = HeadCache>) -> HeadDrafter<K> {
        let round = K::Round::default;
        let slot = |cache| HeadSlot { cache, sampler: None, disabled: None, history: Vec::new(), round: round() };
        let (slots, batch) = (caches.map(slot).collect(), Batch::new());
        HeadDrafter { kind, source: DrafterKind::Draft, context, batch, slots, moves: false, needs_hidden: true }
    }

    /// Disables drafting for all current requests.
    pub(super) fn disable(&mut self, why: &str) {
        for slot in self.slots.iter_mut().filter(|slot| slot.sampler.is_some()) {
            slot.disabled = Some(why.to_owned());
        }
    }

    /// Empties the caches of slots that are `idle`, such as those that the target has preempted. They are filled again when needed. Returns
    /// false if this freed nothing.
    pub(super) fn clear_idle(&mut self, idle: impl Fn(usize, &HeadSlot<K::Round>) -> bool) -> bool {
        let slots = self.slots.iter_mut().enumerate();
        let idle = slots.filter(|(index, slot)| idle(*index, slot) && !slot.cache.tokens.is_empty());
        idle.map(|(_, slot)| slot.cache.tokens.clear(&mut self.context)).count() > 0
    }
}

impl<K: HeadKind> Drafter for HeadDrafter<K> {
    fn source(&self) -> DrafterKind {
        self.source
    }

    fn begin(&mut self, slot: usize, sampler: &Sampler, settings: &Settings) {
        if let Some(slot) = self.slots.get_mut(slot) {
            slot.sampler = Some(sampler.for_draft(settings.verify == Verify::Match));
            slot.disabled = None;
        }
    }

    fn draft(&mut self, requests: &mut [DraftRequest<'_>]) {
        K::draft(self, requests);
    }

    fn shift(&mut self, slot: usize, keep: usize, dropped: usize) {
        if let Some(slot) = self.slots.get_mut(slot) {
            slot.cache.shift(&mut self.context, keep, dropped, self.moves);
        }
    }

    fn end(&mut self, slot: usize, _tokens: &[Token], _generated: usize) {
        if let Some(slot) = self.slots.get_mut(slot) {
            slot.sampler = None;
        }
    }

    fn erase(&mut self, slot: usize) -> usize {
        self.slots.get_mut(slot).map_or(0, |slot| slot.cache.erase(&mut self.context))
    }

    fn copy(&mut self, from: usize, to: usize, prompt: &[Token]) {
        let Ok([from, to]) = self.slots.get_disjoint_mut([from, to]) else { return };
        if self.context.has_buffers() && from.cache.reach(prompt) > to.cache.reach(prompt) {
            to.cache.copy_from(&mut self.context, &from.cache);
        }
    }

    fn sees_rows(&self) -> bool {
        true
    }

    fn needs_hidden(&self) -> bool {
        self.needs_hidden
    }

    fn decoded(&mut self, slot: usize, what: &mut DecodedTokens<'_>) {
        K::decoded(self, slot, what);
    }

    fn disabled(&self, slot: usize) -> Option<&str> {
        self.slots.get(slot)?.disabled.as_deref()
    }
}

/// The tokens of a slot in a head's KV cache, and the target's states of later ones.
pub struct HeadCache {
    /// The tokens in the cache, computed with states of the target.
    pub(super) tokens: Sequence,
    /// The index of the first of them in the context.
    pub(super) start: usize,
    /// States that are needed for later tokens.
    pub(super) states: States,
    /// The least `start`.
    first: usize,
    /// 1: a token needs the state of the previous one. 0: its own.
    lag: usize,
}

impl HeadCache {
    /// An empty cache with the sequence of slot `index`. `n_state`: the length of a state.
    pub(super) fn new(index: usize, n_state: usize, first: usize, lag: usize) -> HeadCache {
        HeadCache { tokens: Sequence::new(index, None), start: first, states: States::new(n_state), first, lag }
    }

    /// The number of tokens of the context up to the end of the cache.
    pub(super) fn end(&self) -> usize {
        self.start + self.tokens.len()
    }

    /// Removes everything after the cache's tokens. Returns false if some of those were removed, too.
    pub(super) fn cut(&mut self, context: &mut Context) -> bool {
        let len = self.tokens.len();
        self.tokens.cut(context, len) == len
    }

    /// The number of tokens of `prompt` up to the last one that the cache has, or whose state is known.
    fn reach(&self, prompt: &[Token]) -> usize {
        let cached = prompt.get(self.start..).map_or(0, |rest| common_prefix(&self.tokens, rest));
        let cached = if cached > 0 { self.start + cached } else { 0 };
        let known = self.states.reach(prompt);
        cached.max(if known > self.states.from() { known } else { 0 })
    }

    /// Replaces tokens and states by those of another slot's cache.
    fn copy_from(&mut self, context: &mut Context, other: &HeadCache) {
        if self.tokens.copy_from(context, &other.tokens, other.tokens.len()) {
            self.start = other.start;
            self.states.clone_from(&other.states);
        } else {
            self.erase(context);
        }
    }

    /// Removes all tokens and states. Returns the number of tokens.
    pub(super) fn erase(&mut self, context: &mut Context) -> usize {
        let n = self.tokens.len();
        self.tokens.clear(context);
        self.states.clear();
        self.start = self.first;
        n
    }

    /// The range of the context's tokens that are missing in the cache and can be decoded. First removes tokens that differ from the
    /// context, and all but the first `most` of it.
    pub(super) fn missing(&mut self, context: &mut Context, tokens: &[Token], most: usize) -> Range<usize> {
        let agrees = tokens.get(self.start..).map_or(0, |tokens| common_prefix(&self.tokens, tokens));
        let agrees = self.tokens.cut(context, agrees.min(most.saturating_sub(self.start)));
        if agrees == 0 {
            self.start = self.first;
        }
        let next = self.start + agrees;
        let (from, reach) = (self.states.from(), self.states.reach(tokens));
        if from == reach {
            return next..next;
        }
        let end = (reach + self.lag).min(tokens.len());
        if next + GAP > from {
            return next..end.max(next);
        }
        self.tokens.clear(context);
        self.start = from + self.lag;
        self.start..end
    }

    /// The state that the context's token `number` needs. Zero if unknown.
    pub(super) fn state_for(&self, number: usize) -> &[f32] {
        self.states.before(number + 1 - self.lag)
    }

    /// Forgets the states that the tokens of the cache needed, except those of the last two, which can be decoded again.
    pub(super) fn forget_states(&mut self) {
        self.states.forget_before(self.end().saturating_sub(1 + self.lag));
    }

    /// The `dropped` tokens from index `keep` of the context on were removed, and the later ones moved down. `moves`: the cache's
    /// positions can be shifted.
    pub(super) fn shift(&mut self, context: &mut Context, keep: usize, dropped: usize, moves: bool) {
        self.states.shift(keep, dropped);
        if self.start >= keep + dropped {
            self.start -= dropped;
            return;
        }
        let gone = keep.saturating_sub(self.start)..keep + dropped - self.start;
        self.start = self.start.min(keep);
        let place = gone.start;
        if !moves || !self.tokens.shift(context, gone) {
            self.tokens.cut(context, place);
        }
    }
}
