//! Drafting with the target's own layers for multi-token prediction.
//!
//! A layer guesses what follows a token from the token and the hidden state of the one before it. The target's evaluations
//! leave those states (see [`Drafter::decoded`]); behind the context, where there are none, the layer's own take their
//! place. What it has in its KV cache of drafted tokens is made of such states, so it is made anew once the target has
//! evaluated them (llama.cpp's `draft-mtp` does the same). A model with several such layers was trained to guess the
//! next token with the first, the one after it with the second, and so on: each then looks at its own cache alone, of the
//! context and of the draft so far.
//!
//! A state can be missing, where the target's cache was used again or a file loaded: single ones are taken as empty, as
//! before a text's first token; behind longer gaps the layers begin as behind nothing. That makes drafts worse and nothing else.

use std::ops::Range;

use super::draft_branch::{choose, follow};
use super::drafter::{DecodedTokens, DraftRequest, Drafter};
use super::policy::another_round_pays;
use super::states::States;
use super::{DrafterKind, Settings, Verify};
use crate::llama::{Batch, Context, DecodeError, Token};
use crate::sampling::Sampler;
use crate::session::{Sequence, common_prefix};

/// The layers' context and what each slot has in it.
pub struct Mtp {
    context: Context,
    batch: Batch,
    slots: Vec<MtpSlot>,
    /// Layers that draft one token each; 1: a single one drafts all.
    n_layers: usize,
    /// Whether what is in their caches can be moved.
    moves: bool,
}

struct MtpSlot {
    /// The tokens in the layers' KV caches, with states of the target.
    cache: Sequence,
    /// Number in the context of the first of them.
    start: usize,
    states: States,
    /// Its tokens in the batch, behind those in the cache, that stay there.
    in_batch: Vec<Token>,
    sampler: Option<Sampler>,
    disabled: Option<String>,
    /// Context and draft while drafting: what the sampler's penalties look at.
    history: Vec<Token>,
    /// Whether its cache has all of the context but the end with which a draft begins.
    ready: bool,
    /// Index in the batch of the row to sample from; `None`: this slot's draft is done.
    row: Option<usize>,
    /// The hidden states that belong to the context's last token and the drafted ones: with a single layer the last alone.
    behind: Vec<f32>,
}

/// The longest gap of states that is taken as empty ones.
const GAP: usize = 8;
/// So few tokens are evaluated together with the first drafted one: on CPUs four rows cost as much as one.
const FEW: usize = 4;

impl Mtp {
    /// A drafter for `n_slots` slots, with a context made by [`Context::mtp`].
    pub fn new(mut context: Context, n_slots: usize) -> Mtp {
        let moves = context.proves_moves();
        let slot = |index| MtpSlot {
            cache: Sequence::new(index, None),
            start: 0,
            states: States::new(context.n_hidden()),
            in_batch: Vec::new(),
            sampler: None,
            disabled: None,
            history: Vec::new(),
            ready: false,
            row: None,
            behind: Vec::new(),
        };
        let slots = (0..n_slots).map(slot).collect();
        Mtp { n_layers: context.model().n_mtp_layers().max(1), context, batch: Batch::new(), slots, moves }
    }

    fn room(&self) -> usize {
        self.context.n_batch() - self.batch.len().min(self.context.n_batch())
    }

    /// Evaluates the batch through every layer, and takes the tokens in it into the slots' caches. False: it failed.
    fn evaluate(&mut self) -> bool {
        for layer in 0..self.n_layers {
            if layer > 0 {
                for slot in &mut self.slots {
                    slot.cut(&mut self.context);
                }
            }
            match self.decode(layer) {
                Ok(()) => {}
                Err(DecodeError::Full) => {
                    self.disable("the context of the layers for it is full");
                    return false;
                }
                Err(_) => return false,
            }
        }
        for slot in &mut self.slots {
            slot.cache.push(&slot.in_batch);
            slot.in_batch.clear();
        }
        true
    }

    /// Evaluates the batch through one layer. When it failed, it is as if it had not been tried.
    fn decode(&mut self, layer: usize) -> std::result::Result<(), DecodeError> {
        self.context.set_mtp_layer(layer);
        let mut result = self.context.decode(&self.batch);
        if result == Err(DecodeError::Full) && self.forget_waiting() {
            result = self.context.decode(&self.batch);
        }
        let Err(error) = &result else { return result };
        if let DecodeError::Failed(why) = error {
            self.disable(&format!("multi-token prediction failed: {why}"));
            // What it left behind nobody knows.
            self.context.reset();
            self.slots.iter_mut().for_each(|slot| slot.cache.clear(&mut self.context));
        }
        for slot in &mut self.slots {
            (slot.ready, slot.row) = (false, None);
            slot.in_batch.clear();
            slot.cut(&mut self.context);
        }
        result
    }

    /// Nothing is drafted for those who have a request now.
    fn disable(&mut self, why: &str) {
        for slot in self.slots.iter_mut().filter(|slot| slot.sampler.is_some()) {
            slot.disabled = Some(why.to_owned());
        }
    }

    /// Empties the caches of slots that nothing is drafted for in this step, as of those that the target lets wait: what they
    /// need of it is evaluated again. False when that made no room.
    fn forget_waiting(&mut self) -> bool {
        let waits = |slot: &&mut MtpSlot| slot.in_batch.is_empty() && !slot.ready && !slot.cache.is_empty();
        let waiting = self.slots.iter_mut().filter(waits);
        waiting.map(|slot| slot.cache.clear(&mut self.context)).count() > 0
    }

    /// Evaluates what the caches lack of the contexts, without their logits. Of those who want a draft the end is left for
    /// its first batch.
    fn catch_up(&mut self, asks: &[DraftRequest<'_>]) -> bool {
        self.batch.clear();
        for slot in &mut self.slots {
            (slot.ready, slot.row) = (false, None);
        }
        for ask in asks {
            let room = self.room();
            let Some(slot) = self.slots.get_mut(ask.slot) else { continue };
            slot.disabled = slot.disabled.take().or_else(|| obstacle(ask, &self.context));
            if slot.disabled.is_some() {
                continue;
            }
            let wants_draft = ask.n_max > 0;
            // The last token is evaluated with the draft, again if it must be, because its logits are needed.
            let most = ask.tokens.len().saturating_sub(usize::from(wants_draft));
            let missing = slot.missing(&mut self.context, ask.tokens, most);
            let complete = wants_draft && missing.end == ask.tokens.len();
            if complete && self.n_layers == 1 && missing.len() <= FEW {
                slot.ready = true;
                continue;
            }
            let end = missing.end.min(most).min(missing.start + room);
            slot.add(&mut self.batch, ask.tokens, missing.start..end, false);
            slot.ready = complete && end == most;
        }
        self.batch.is_empty() || self.evaluate()
    }

    /// Puts the end of each context that is ready for a draft into the batch.
    fn begin_drafts(&mut self, asks: &[DraftRequest<'_>]) {
        self.batch.clear();
        for ask in asks {
            let room = self.room();
            let Some(slot) = self.slots.get_mut(ask.slot).filter(|slot| slot.ready) else { continue };
            let rest = slot.start + slot.cache.len()..ask.tokens.len();
            let Some(sampler) = slot.sampler.as_mut().filter(|_| rest.len() <= room) else { continue };
            sampler.sync_from(ask.sampler);
            follow(&mut slot.history, ask.tokens);
            slot.row = slot.add(&mut self.batch, ask.tokens, rest, true);
            // With several layers it is not in the caches of all of them.
            if self.n_layers > 1 {
                slot.in_batch.clear();
                slot.behind.clear();
                slot.behind.extend_from_slice(slot.states.before(ask.tokens.len().saturating_sub(1)));
            }
        }
    }

    /// Samples each slot's next token and puts what is to be evaluated for the one after it into the next batch. A slot whose
    /// draft is done has no row afterwards.
    fn extend(&mut self, asks: &mut [DraftRequest<'_>]) {
        self.batch.clear();
        for ask in asks {
            let Some(slot) = self.slots.get_mut(ask.slot) else { continue };
            let Some(row) = slot.row.take() else { continue };
            let (Some(sampler), Some(logits)) = (slot.sampler.as_mut(), self.context.logits(row)) else { continue };
            // Nothing can follow (a grammar's end): the draft ends, the target says what is next.
            let depth = ask.draft.tokens.len();
            let Some((token, confidence)) = choose(ask, sampler, logits, &slot.history, depth) else { continue };
            ask.draft.push(token, confidence);
            slot.history.push(token);
            let drafted = depth + 1;
            let most = if self.n_layers > 1 { ask.n_max.min(self.n_layers) } else { ask.n_max };
            let ends = drafted >= most
                || !ask.pace.wants_more(&ask.draft.confidence, ask.n_max)
                || self.context.model().vocab().is_eog(token)
                || ask.tokens.len() + drafted >= self.context.n_ctx()
                || sampler.accept(token).is_err();
            if ends {
                continue;
            }
            let Some(hidden) = self.context.hidden(row) else { continue };
            if self.n_layers == 1 {
                slot.behind.clear();
            }
            slot.behind.extend_from_slice(hidden);
            self.push_draft(ask);
        }
    }

    /// Puts the last drafted token into the batch; with several layers the context's end and all drafted ones, which the
    /// next layer has not seen.
    fn push_draft(&mut self, ask: &DraftRequest<'_>) {
        let room = self.room();
        let Some(slot) = self.slots.get_mut(ask.slot) else { return };
        let n_embd = self.context.n_hidden().max(1);
        let tokens = ask.tokens.last().into_iter().chain(&ask.draft.tokens);
        let seen = if self.n_layers > 1 { 0 } else { ask.draft.tokens.len() };
        // The position of the context's last token.
        let Some(last) = ask.tokens.len().checked_sub(slot.start + 1) else { return };
        let too_many = ask.draft.tokens.len() + 1 - seen > room;
        if too_many || (self.n_layers > 1 && !slot.cut(&mut self.context)) {
            return;
        }
        for ((offset, token), hidden) in tokens.enumerate().skip(seen).zip(slot.behind.chunks_exact(n_embd)) {
            slot.row = Some(self.batch.push(*token, last + offset, slot.cache.id(), true));
            self.batch.push_hidden(hidden);
        }
    }
}

impl MtpSlot {
    /// Removes what is behind the tokens of the cache. False: some of those are gone, too.
    fn cut(&mut self, context: &mut Context) -> bool {
        let len = self.cache.len();
        self.cache.cut(context, len) == len
    }

    /// Which tokens of a context, by their numbers, the caches lack and can get. Cuts them back to what agrees with it, and to
    /// no more than its first `most` tokens.
    fn missing(&mut self, context: &mut Context, tokens: &[Token], most: usize) -> Range<usize> {
        let agrees = tokens.get(self.start..).map_or(0, |tokens| common_prefix(&self.cache, tokens));
        let agrees = self.cache.cut(context, agrees.min(most.saturating_sub(self.start)));
        if agrees == 0 {
            self.start = 0;
        }
        let next = self.start + agrees;
        let (from, reach) = (self.states.from(), self.states.reach(tokens));
        if from == reach {
            return next..next;
        }
        // A token comes with the state of the one before it.
        let end = (reach + 1).min(tokens.len());
        if next + GAP > from {
            return next..end.max(next);
        }
        self.cache.clear(context);
        self.start = from + 1;
        self.start..end
    }

    /// Puts the tokens `numbers` of a context into `batch`, behind those in the cache, each with the state of the one before
    /// it. Returns the index of the last.
    fn add(&mut self, batch: &mut Batch, tokens: &[Token], numbers: Range<usize>, output: bool) -> Option<usize> {
        let mut row = None;
        for (number, token) in tokens.iter().enumerate().take(numbers.end).skip(numbers.start) {
            row = Some(batch.push(*token, number - self.start, self.cache.id(), output));
            batch.push_hidden(self.states.before(number));
            self.in_batch.push(*token);
        }
        row
    }
}

impl Drafter for Mtp {
    fn source(&self) -> DrafterKind {
        DrafterKind::Mtp
    }

    fn begin(&mut self, slot: usize, sampler: &Sampler, settings: &Settings) {
        if let Some(slot) = self.slots.get_mut(slot) {
            slot.sampler = Some(sampler.for_draft(settings.verify == Verify::Match));
            slot.disabled = None;
        }
    }

    fn draft(&mut self, asks: &mut [DraftRequest<'_>]) {
        if !self.catch_up(asks) {
            return;
        }
        self.begin_drafts(asks);
        let mut layer = 0;
        // Where there is no room for a longer draft, it ends.
        while !self.batch.is_empty() && self.decode(layer).is_ok() {
            for slot in &mut self.slots {
                slot.cache.push(&slot.in_batch);
                slot.in_batch.clear();
            }
            self.extend(asks);
            if !another_round_pays(asks.iter().map(DraftRequest::growing)) {
                self.batch.clear();
                self.slots.iter_mut().for_each(|slot| slot.in_batch.clear());
            }
            layer = (layer + 1) % self.n_layers;
        }
        self.slots.iter_mut().for_each(|slot| slot.ready = false);
        for ask in asks {
            // Those still needed: of the token before the last, with which that is evaluated again, and what comes now.
            let Some(slot) = self.slots.get_mut(ask.slot) else { continue };
            let seen = slot.start + slot.cache.len();
            slot.states.forget_before(seen.saturating_sub(2));
        }
    }

    fn checked(&mut self, _slot: usize, _drafted: usize, _accepted: usize) {}

    fn shift(&mut self, slot: usize, keep: usize, dropped: usize) {
        let Some(slot) = self.slots.get_mut(slot) else { return };
        slot.states.shift(keep, dropped);
        if slot.start >= keep + dropped {
            slot.start -= dropped;
        } else if slot.start > keep {
            slot.cache.clear(&mut self.context);
        } else {
            let keep = keep - slot.start;
            if !self.moves || !slot.cache.shift(&mut self.context, keep..keep + dropped) {
                slot.cache.cut(&mut self.context, keep);
            }
        }
    }

    fn end(&mut self, slot: usize, _tokens: &[Token], _generated: usize) {
        if let Some(slot) = self.slots.get_mut(slot) {
            slot.sampler = None;
        }
    }

    fn needs_hidden(&self) -> bool {
        true
    }

    fn decoded(&mut self, slot: usize, what: &mut DecodedTokens<'_>) {
        let most = self.context.n_ubatch().min(self.context.n_batch());
        let Some(place) = self.slots.get_mut(slot).filter(|slot| slot.disabled.is_none()) else { return };
        place.states.begin(what.tokens, what.from);
        let tokens = what.tokens.get(what.from..).unwrap_or(&[]).iter().chain(what.draft);
        for (index, token) in tokens.enumerate() {
            let Some(state) = what.target.hidden(what.first + index) else { break };
            if !place.states.push(*token, state) {
                break;
            }
        }
        // Where nobody asks for a draft, they would become more and more.
        while let Some(place) = self.slots.get_mut(slot).filter(|place| place.states.len() > most) {
            self.batch.clear();
            let Range { start, end } = place.missing(&mut self.context, what.tokens, what.tokens.len());
            let end = end.min(start + self.context.n_batch());
            let some = place.add(&mut self.batch, what.tokens, start..end, false).is_some();
            let done = some && self.evaluate();
            let Some(place) = self.slots.get_mut(slot) else { return };
            if done {
                place.states.forget_before(end.saturating_sub(2));
            } else {
                place.states.clear();
            }
        }
    }

    fn disabled(&self, slot: usize) -> Option<&str> {
        self.slots.get(slot)?.disabled.as_deref()
    }
}

/// Why there can be no draft for this context.
fn obstacle(ask: &DraftRequest<'_>, context: &Context) -> Option<String> {
    let n_ctx = context.n_ctx();
    (ask.tokens.len() >= n_ctx).then(|| format!("the text is longer than the layers' context of {n_ctx} tokens"))
}
