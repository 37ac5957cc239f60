//! What the drafters without a model have in common: the slots, and following the text of each.
//!
//! A [`HistoryDrafter`] sees one text that only grows. Where it comes from (contexts that shift, steps without a draft, contexts
//! that are not what they were) is [`History`]'s business, and the slots are [`TextDrafter`]'s.

use super::drafter::{Draft, DraftRequest, Drafter};
use super::{DrafterKind, Settings, StopPolicy};
use crate::llama::Token;
use crate::sampling::Sampler;

/// How to draft from a text.
pub trait HistoryDrafter: Sized {
    /// The drafter's name.
    const SOURCE: DrafterKind;
    /// What the rules of all slots share, and what outlives a request.
    type Shared: Default;

    /// A rule that has seen no text yet.
    fn new(settings: &Settings) -> Self;

    /// Forgets all text: another follows, beginning at its first token.
    fn forget(&mut self);

    /// `text` has grown at its end; its first `prompt` tokens were not generated.
    fn learn(&mut self, shared: &Self::Shared, text: &[Token], prompt: usize);

    /// Continues `text`, all of which was learnt.
    fn draft(&mut self, shared: &Self::Shared, text: &[Token], limits: Limits<'_>, draft: &mut Draft);

    /// Of the last draft, `drafted` tokens were checked and `accepted` right.
    fn checked(&mut self, _drafted: usize, _accepted: usize) {}

    /// A request has ended with this context, whose tokens from `output` on were generated.
    fn remember(_shared: &mut Self::Shared, _context: &[Token], _output: usize) {}

    /// What [`HistoryDrafter::remember`] learnt is to be forgotten.
    fn forget_answers(_shared: &mut Self::Shared) {}

    /// Why it can draft nothing for this request.
    fn disabled(&self) -> Option<&str> {
        None
    }
}

/// What an [`DraftRequest`] allows.
#[derive(Debug, Clone, Copy)]
pub struct Limits<'a> {
    /// Most tokens to draft, at least 1.
    pub n_max: usize,
    /// Drafting stops at a token less probable than this. llama.cpp's rules know no probabilities and ignore it, as
    /// there.
    pub p_min: f32,
    /// Tells when more is not worth looking for; who copies a piece at once need not ask.
    pub pace: StopPolicy<'a>,
}

impl Draft {
    /// Adds tokens of equal confidence.
    pub(super) fn extend_from(&mut self, tokens: &[Token], confidence: f32) {
        self.tokens.extend_from_slice(tokens);
        self.confidence.resize(self.tokens.len(), confidence);
    }
}

/// A [`Drafter`] by a [`HistoryDrafter`], for all slots. What a rule knows is thrown away when its request ends.
pub struct TextDrafter<R: HistoryDrafter> {
    slots: Vec<Option<Slot<R>>>,
    shared: R::Shared,
}

struct Slot<R> {
    rule: R,
    history: History,
}

impl<R: HistoryDrafter> Slot<R> {
    fn follow(&mut self, shared: &R::Shared, context: &[Token], generated: usize) {
        if self.history.follow(context, generated) == Followed::Anew {
            self.rule.forget();
        }
        self.rule.learn(shared, &self.history.tokens, self.history.prompt);
    }
}

impl<R: HistoryDrafter> TextDrafter<R> {
    /// A drafter for `n_slots` slots.
    pub fn new(n_slots: usize) -> Self {
        TextDrafter::with(n_slots, R::Shared::default())
    }

    /// A drafter for `n_slots` slots that shares this with others.
    pub fn with(n_slots: usize, shared: R::Shared) -> Self {
        TextDrafter { slots: std::iter::repeat_with(|| None).take(n_slots).collect(), shared }
    }

    /// What all slots share.
    pub fn shared(&self) -> &R::Shared {
        &self.shared
    }

    fn slot(&mut self, slot: usize) -> Option<&mut Slot<R>> {
        self.slots.get_mut(slot)?.as_mut()
    }

    /// A request begins in `slot`.
    pub(super) fn start(&mut self, slot: usize, settings: &Settings) {
        if let Some(slot) = self.slots.get_mut(slot) {
            *slot = Some(Slot { rule: R::new(settings), history: History::default() });
        }
    }

    /// Drafts for one slot: `context` is what an [`DraftRequest`] has as `tokens`, the last `generated` of them are its answer.
    pub(super) fn propose(
        &mut self,
        slot: usize,
        context: &[Token],
        generated: usize,
        limits: Limits<'_>,
        draft: &mut Draft,
    ) {
        let Some(Some(slot)) = self.slots.get_mut(slot) else { return };
        slot.follow(&self.shared, context, generated);
        if limits.n_max > 0 && !context.is_empty() {
            slot.rule.draft(&self.shared, &slot.history.tokens, limits, draft);
            draft.truncate(limits.n_max);
        }
    }
}

impl<R: HistoryDrafter> Drafter for TextDrafter<R> {
    fn source(&self) -> DrafterKind {
        R::SOURCE
    }

    fn begin(&mut self, slot: usize, _sampler: &Sampler, settings: &Settings) {
        self.start(slot, settings);
    }

    fn draft(&mut self, asks: &mut [DraftRequest<'_>]) {
        for ask in asks {
            let limits = Limits { n_max: ask.n_max, p_min: ask.p_min, pace: ask.pace };
            self.propose(ask.slot, ask.tokens, ask.generated, limits, ask.draft);
        }
    }

    fn checked(&mut self, slot: usize, drafted: usize, accepted: usize) {
        if let Some(slot) = self.slot(slot) {
            slot.rule.checked(drafted, accepted);
        }
    }

    fn shift(&mut self, slot: usize, keep: usize, dropped: usize) {
        if let Some(slot) = self.slot(slot) {
            slot.history.shift(keep, dropped);
        }
    }

    fn end(&mut self, slot: usize, tokens: &[Token], generated: usize) {
        if let Some(slot) = self.slots.get_mut(slot) {
            *slot = None;
        }
        R::remember(&mut self.shared, tokens, tokens.len().saturating_sub(generated));
    }

    fn forget_answers(&mut self) {
        R::forget_answers(&mut self.shared);
    }

    fn disabled(&self, slot: usize) -> Option<&str> {
        self.slots.get(slot)?.as_ref()?.rule.disabled()
    }
}

/// Texts are remembered up to this many tokens; when there are more, the older half is forgotten.
pub(super) const MAX_HISTORY: usize = 1 << 20;
/// How many tokens before the known end must be what they were.
const CHECKED: usize = 32;

/// A request's text: its context, and what shifts dropped from it.
#[derive(Default)]
struct History {
    tokens: Vec<Token>,
    /// The first tokens that were not generated.
    prompt: usize,
    /// The length of the context when it was last seen.
    context: usize,
    /// From here on the context ends as the history does.
    joined: usize,
    begun: bool,
}

#[derive(PartialEq)]
enum Followed {
    Grown,
    Anew,
}

impl History {
    /// Catches up with `context`, the last `generated` tokens of which are the answer. `Anew`: earlier indices are
    /// void.
    fn follow(&mut self, context: &[Token], generated: usize) -> Followed {
        let grown = self.begun && self.is_known_at_end_of(context);
        if !grown {
            self.tokens.clear();
            self.prompt = context.len().saturating_sub(generated);
            (self.context, self.joined, self.begun) = (0, 0, true);
        }
        let new = context.get(self.context..).unwrap_or(&[]);
        self.tokens.extend_from_slice(new);
        self.context = context.len();
        if self.tokens.len() > MAX_HISTORY {
            let forgotten = self.tokens.len() - MAX_HISTORY / 2;
            self.tokens.drain(..forgotten);
            self.prompt = self.prompt.saturating_sub(forgotten);
            return Followed::Anew;
        }
        if grown { Followed::Grown } else { Followed::Anew }
    }

    fn is_known_at_end_of(&self, context: &[Token]) -> bool {
        let n = CHECKED.min(self.context.saturating_sub(self.joined)).min(self.tokens.len());
        let tail = self.tokens.get(self.tokens.len() - n..).unwrap_or(&[]);
        context.get(..self.context).is_some_and(|seen| seen.ends_with(tail))
    }

    fn shift(&mut self, keep: usize, dropped: usize) {
        if dropped > 0 {
            self.context = if self.context >= keep + dropped { self.context - dropped } else { self.context.min(keep) };
            self.joined = self.joined.saturating_sub(dropped).max(keep).min(self.context);
        }
    }
}

#[cfg(test)]
#[path = "history_drafter_tests.rs"]
pub(super) mod tests;
