//! The common part of the model-free drafters: slots, and tracking each slot's token history.
//!
//! A [`HistoryDrafter`] sees one token history that only grows. [`History`] handles context shifts, steps without a draft
//! and replaced contexts; [`SlotDrafters`] handles the slots.

use crate::{Draft, DraftRequest, Drafter, DrafterKind, Settings, StopPolicy};
use foredraft_base::Token;
use foredraft_sampling::Sampler;

/// Drafts for one slot from its token history.
pub trait HistoryDrafter: Sized {
    /// The drafter's name.
    const KIND: DrafterKind;
    /// State that all slots share and that outlives a request.
    type Shared: Default;

    /// A drafter with an empty history.
    fn new(settings: &Settings) -> Self;

    /// Clears the history. The next [`HistoryDrafter::extend`] passes a new history from its first token on.
    fn reset(&mut self);

    /// Processes new tokens at the end of `text`, the whole history. Its first `prompt` tokens were not generated.
    fn extend(&mut self, shared: &Self::Shared, text: &[Token], prompt: usize);

    /// Drafts tokens that continue `text`, the whole history, which has been passed to [`HistoryDrafter::extend`].
    fn draft(&mut self, shared: &Self::Shared, text: &[Token], limits: Limits<'_>, draft: &mut Draft);

    /// Adds the output of a finished request to the shared state: the tokens of `_context` from index `_output` on.
    fn learn_output(_shared: &mut Self::Shared, _context: &[Token], _output: usize) {}

    /// Removes all outputs added by [`HistoryDrafter::learn_output`].
    fn forget_outputs(_shared: &mut Self::Shared) {}

    /// The reason why it cannot draft for this request, if there is one.
    fn disabled(&self) -> Option<&str> {
        None
    }
}

/// The limits of a [`DraftRequest`].
#[derive(Debug, Clone, Copy)]
pub struct Limits<'a> {
    /// The largest number of tokens to draft, at least 1.
    pub n_max: usize,
    /// Drafting stops at a token less probable than this.
    pub p_min: f32,
    /// Decides when longer drafts no longer pay. Drafters that copy a whole run of tokens may ignore it.
    pub stop_policy: StopPolicy<'a>,
}

impl Draft {
    /// Appends tokens with equal confidence.
    pub(super) fn extend_from(&mut self, tokens: &[Token], confidence: f32) {
        self.tokens.extend_from_slice(tokens);
        self.confidence.resize(self.tokens.len(), confidence);
    }
}

/// A [`Drafter`] for all slots with one [`HistoryDrafter`] per slot. A slot's drafter is dropped when its request ends.
pub struct SlotDrafters<R: HistoryDrafter> {
    slots: Vec<Option<HistorySlot<R>>>,
    shared: R::Shared,
}

struct HistorySlot<R> {
    drafter: R,
    history: History,
}

impl<R: HistoryDrafter> HistorySlot<R> {
    fn follow(&mut self, shared: &R::Shared, context: &[Token], generated: usize) {
        if self.history.follow(context, generated) == Followed::Reset {
            self.drafter.reset();
        }
        self.drafter.extend(shared, &self.history.tokens, self.history.prompt);
    }
}

impl<R: HistoryDrafter> SlotDrafters<R> {
    /// A drafter for `n_slots` slots.
    pub fn new(n_slots: usize) -> Self {
        SlotDrafters::with(n_slots, R::Shared::default())
    }

    /// A drafter for `n_slots` slots with the given shared state.
    pub fn with(n_slots: usize, shared: R::Shared) -> Self {
        SlotDrafters { slots: std::iter::repeat_with(|| None).take(n_slots).collect(), shared }
    }

    /// The shared state.
    pub fn shared(&self) -> &R::Shared {
        &self.shared
    }

    /// Starts a request in `slot`.
    pub(super) fn start(&mut self, slot: usize, settings: &Settings) {
        if let Some(slot) = self.slots.get_mut(slot) {
            *slot = Some(HistorySlot { drafter: R::new(settings), history: History::default() });
        }
    }

    /// Drafts for one slot. `context`: the tokens of a [`DraftRequest`], of which the last `generated` are output.
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
            slot.drafter.draft(&self.shared, &slot.history.tokens, limits, draft);
            draft.truncate(limits.n_max);
        }
    }
}

impl<R: HistoryDrafter> Drafter for SlotDrafters<R> {
    fn source(&self) -> DrafterKind {
        R::KIND
    }

    fn begin(&mut self, slot: usize, _sampler: &Sampler, settings: &Settings) {
        self.start(slot, settings);
    }

    fn draft(&mut self, requests: &mut [DraftRequest<'_>]) {
        for request in requests {
            let limits = Limits { n_max: request.n_max, p_min: request.p_min, stop_policy: request.stop_policy };
            self.propose(request.slot, request.tokens, request.generated, limits, request.draft);
        }
    }

    fn shift(&mut self, slot: usize, keep: usize, dropped: usize) {
        if let Some(Some(slot)) = self.slots.get_mut(slot) {
            slot.history.shift(keep, dropped);
        }
    }

    fn end(&mut self, slot: usize, tokens: &[Token], generated: usize) {
        if let Some(slot) = self.slots.get_mut(slot) {
            *slot = None;
        }
        R::learn_output(&mut self.shared, tokens, tokens.len().saturating_sub(generated));
    }

    fn forget_answers(&mut self) {
        R::forget_outputs(&mut self.shared);
    }

    fn disabled(&self, slot: usize) -> Option<&str> {
        self.slots.get(slot)?.as_ref()?.drafter.disabled()
    }
}

/// The longest history in tokens. Beyond it, the older half is dropped.
pub(super) const MAX_HISTORY: usize = 1 << 20;
/// Number of tokens before the known end of the context that are compared to detect a replaced context.
const N_COMPARED: usize = 32;

/// The token history of a request: its context, and the tokens that context shifts removed.
#[derive(Default)]
struct History {
    tokens: Vec<Token>,
    /// Number of tokens at the beginning that were not generated.
    prompt: usize,
    /// Length of the context at the last call.
    context: usize,
    /// From this index on, the context is equal to the end of the history.
    joined: usize,
    begun: bool,
}

#[derive(PartialEq)]
enum Followed {
    Grown,
    Reset,
}

impl History {
    /// Appends the new tokens of `context`, of which the last `generated` are output. `Reset` means that earlier indices
    /// are no longer valid.
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
            return Followed::Reset;
        }
        if grown { Followed::Grown } else { Followed::Reset }
    }

    fn is_known_at_end_of(&self, context: &[Token]) -> bool {
        let n = N_COMPARED.min(self.context.saturating_sub(self.joined)).min(self.tokens.len());
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
pub(super) mod tests;
