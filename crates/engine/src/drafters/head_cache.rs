//! The slots of a head: their requests, their parts of its KV cache, and the states from which these are continued.

use std::ops::{Deref, DerefMut, Range};

use super::draft_branch::choose;
use super::states::States;
use crate::session::Sequence;
use foredraft_base::prompt_fit::common_prefix;
use foredraft_llama::{Context, Token};
use foredraft_sampling::Sampler;
use foredraft_speculation::DraftRequest;
use foredraft_speculation::{Settings, Verify};

/// The longest gap of states that is filled with zeros.
const GAP: usize = 8;

/// A slot of a head. `R`: its part in the current round of drafting.
pub(super) struct HeadSlot<R> {
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

/// All slots of a head, by their numbers.
pub(super) struct HeadSlots<R>(Vec<HeadSlot<R>>);

impl<R: Default> HeadSlots<R> {
    /// Slots with these caches.
    pub(super) fn new(caches: impl Iterator<Item = HeadCache>) -> HeadSlots<R> {
        let slot = |cache| HeadSlot { cache, sampler: None, disabled: None, history: Vec::new(), round: R::default() };
        HeadSlots(caches.map(slot).collect())
    }

    /// As [`Drafter::begin`](super::Drafter::begin).
    pub(super) fn begin(&mut self, slot: usize, sampler: &Sampler, settings: &Settings) {
        if let Some(slot) = self.get_mut(slot) {
            slot.sampler = Some(sampler.for_draft(settings.verify == Verify::Match));
            slot.disabled = None;
        }
    }

    /// As [`Drafter::shift`](super::Drafter::shift). `moves`: the cache's positions can be shifted.
    pub(super) fn shift(&mut self, slot: usize, context: &mut Context, (keep, dropped): (usize, usize), moves: bool) {
        if let Some(slot) = self.get_mut(slot) {
            slot.cache.shift(context, keep, dropped, moves);
        }
    }

    /// As [`Drafter::end`](super::Drafter::end).
    pub(super) fn end(&mut self, slot: usize) {
        if let Some(slot) = self.get_mut(slot) {
            slot.sampler = None;
        }
    }

    /// As [`Drafter::erase`](super::Drafter::erase).
    pub(super) fn erase(&mut self, slot: usize, context: &mut Context) -> usize {
        self.get_mut(slot).map_or(0, |slot| slot.cache.erase(context))
    }

    /// As [`Drafter::copy`](super::Drafter::copy).
    pub(super) fn copy(&mut self, context: &mut Context, from: usize, to: usize, prompt: &[Token]) {
        let Ok([from, to]) = self.0.get_disjoint_mut([from, to]) else { return };
        if context.has_buffers() && from.cache.reach(prompt) > to.cache.reach(prompt) {
            to.cache.copy_from(context, &from.cache);
        }
    }

    /// As [`Drafter::disabled`](super::Drafter::disabled).
    pub(super) fn disabled(&self, slot: usize) -> Option<&str> {
        self.get(slot)?.disabled.as_deref()
    }
}

impl<R> Deref for HeadSlots<R> {
    type Target = [HeadSlot<R>];

    fn deref(&self) -> &[HeadSlot<R>] {
        &self.0
    }
}

impl<R> DerefMut for HeadSlots<R> {
    fn deref_mut(&mut self) -> &mut [HeadSlot<R>] {
        &mut self.0
    }
}

/// The tokens of a slot in a head's KV cache, and the target's states of later ones.
pub(super) struct HeadCache {
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
