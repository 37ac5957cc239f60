//! Drafting with a head that predicts token by token from hidden states: layers for multi-token prediction (MTP), which are part of the
//! target's file or in one of their own, or an EAGLE-3 head.
//!
//! A head predicts the token after next from a token and the hidden state of the previous one. For EAGLE-3 this state is computed by the
//! head's encoder, from states of three of the target's layers. The target's decodes provide these states (see [`Drafter::decoded`]). They
//! are encoded when a draft needs them, so that steps without a draft run no pass, and the controller sees what a draft costs. For
//! drafted tokens, the head's own states are used instead. The KV cache of drafted tokens is computed from such states, so it is recomputed
//! when the target has decoded these tokens (as in llama.cpp's `draft-mtp`). A model with several MTP layers is trained to predict the next
//! token with the first layer, the one after it with the second, and so on. Each layer attends only to its own cache of the context and of
//! the draft so far.
//!
//! A state can be missing, if the target's cache was reused or a session was loaded. Single missing states are zero, as before the first
//! token. After longer gaps, the layers start with an empty context. This only makes drafts worse.

use std::ops::Range;

use super::draft_branch::follow;
use super::head_cache::{HeadCache, HeadDrafter, HeadKind};
use foredraft_base::HiddenStates;
use foredraft_llama::{Context, DecodeError, DraftKind, Token};
use foredraft_speculation::another_round_pays;
use foredraft_speculation::{DecodedTokens, DraftRequest, DrafterKind};

/// A drafter with a `TokenHead`.
pub type Head = HeadDrafter<TokenHead>;

/// A head that predicts token by token.
pub struct TokenHead {
    /// The number of layers, which draft one token each. 1: a single layer drafts all.
    n_layers: usize,
    /// Whether the states are computed by the head's encoder.
    encodes: bool,
    /// States of the target, and those that the head's tokens need: the same, or what the encoder makes of them.
    features: Vec<f32>,
    states: Vec<f32>,
}

/// A slot's part in a round of drafting.
#[derive(Default)]
pub struct Round {
    /// The slot's tokens in the batch that will stay in the cache.
    in_batch: Vec<Token>,
    /// The cache has the whole context except the end, with which a draft begins.
    ready: bool,
    /// The batch index of the output to sample from. `None`: this slot's draft is complete.
    row: Option<usize>,
    /// The hidden states of the context's last token and of the drafted ones. With a single layer, only the last one.
    behind: Vec<f32>,
}

/// Up to this number of tokens is decoded together with the first drafted one, because on CPUs four rows cost as much as one.
const FEW: usize = 4;

impl Head {
    /// Creates a drafter for `n_slots` slots, with a context made by [`Context::mtp`] or [`Context::head`]. `source`: what it counts as.
    /// `needs_hidden`: it reads the target's hidden states after the last layer.
    pub fn new(mut context: Context, n_slots: usize, source: DrafterKind, needs_hidden: bool) -> Head {
        let moves = context.test_moves();
        let encodes = context.model().draft_kind() == DraftKind::Eagle3;
        // EAGLE-3 has no state before the first token, so it begins with the second.
        let first = usize::from(encodes);
        let n_state = if encodes { context.n_features() } else { context.n_hidden() };
        let caches = (0..n_slots).map(|index| HeadCache::new(index, n_state, first, 1));
        let n_layers = context.model().n_mtp_layers().max(1);
        let kind = TokenHead { n_layers, encodes, features: Vec::new(), states: Vec::new() };
        Head { source, moves, needs_hidden, ..HeadDrafter::with(kind, context, caches) }
    }

    fn free_batch_tokens(&self) -> usize {
        self.context.n_batch() - self.batch.len().min(self.context.n_batch())
    }

    /// Decodes the batch through every layer, and adds its tokens to the slots' caches. Returns false on failure.
    fn decode_all_layers(&mut self) -> bool {
        for layer in 0..self.kind.n_layers {
            if layer > 0 {
                for slot in &mut self.slots {
                    slot.cache.cut(&mut self.context);
                }
            }
            match self.decode_layer(layer) {
                Ok(()) => {}
                Err(DecodeError::Full) => {
                    self.disable("the context of the layers for it is full");
                    return false;
                }
                Err(_) => return false,
            }
        }
        for slot in &mut self.slots {
            slot.cache.tokens.push(&slot.round.in_batch);
            slot.round.in_batch.clear();
        }
        true
    }

    /// Decodes the batch through one layer. On failure, the caches are restored.
    fn decode_layer(&mut self, layer: usize) -> std::result::Result<(), DecodeError> {
        self.context.set_mtp_layer(layer);
        let mut result = self.context.decode(&self.batch);
        if result == Err(DecodeError::Full)
            && self.clear_idle(|_, slot| slot.round.in_batch.is_empty() && !slot.round.ready)
        {
            result = self.context.decode(&self.batch);
        }
        let Err(failure) = &result else { return result };
        if let DecodeError::Failed(error) = failure {
            self.disable(&format!("drafting with the head failed: {}", error.message()));
            // The state of the caches is unknown after a failure.
            self.context.reset();
            self.slots.iter_mut().for_each(|slot| slot.cache.tokens.clear(&mut self.context));
        }
        for slot in &mut self.slots {
            (slot.round.ready, slot.round.row) = (false, None);
            slot.round.in_batch.clear();
            slot.cache.cut(&mut self.context);
        }
        result
    }

    /// Reads the states of all tokens that the target has decoded, or of the first ones if it did not keep more.
    fn read_states(&mut self, what: &mut DecodedTokens<'_>) {
        self.kind.features.clear();
        let n = what.tokens.len().saturating_sub(what.from) + what.draft.len();
        for index in what.first..what.first + n {
            let is_kept = if self.kind.encodes {
                what.target.layer_states(index, &mut self.kind.features)
            } else {
                what.target.hidden(index).map(|state| self.kind.features.extend_from_slice(state)).is_some()
            };
            if !is_kept {
                break;
            }
        }
    }

    /// Adds the tokens `numbers` of a slot's context to the batch, each with the state of the previous one. Returns the batch index of the
    /// last; `None`: nothing was added.
    fn add(&mut self, slot: usize, tokens: &[Token], numbers: Range<usize>, output: bool) -> Option<usize> {
        let head_slot = self.slots.get_mut(slot)?;
        let added = tokens.get(numbers.clone())?;
        let states = if self.kind.encodes { &mut self.kind.features } else { &mut self.kind.states };
        states.clear();
        numbers.clone().for_each(|number| states.extend_from_slice(head_slot.cache.state_for(number)));
        if self.kind.encodes {
            self.kind.states.clear();
            match self.context.encode(&self.kind.features, &mut self.kind.states) {
                Ok(()) => {}
                Err(DecodeError::Failed(error)) => {
                    self.disable(&format!("the head cannot encode states of the target: {}", error.message()));
                    return None;
                }
                Err(_) => return None,
            }
        }
        let head_slot = self.slots.get_mut(slot)?;
        let mut row = None;
        for (number, token) in numbers.zip(added) {
            let cache = &head_slot.cache;
            // llama.cpp takes no row of a picture beside a state, so a token stands for it.
            row = Some(self.batch.push((*token).max(0), number - cache.start, cache.tokens.id(), output));
        }
        self.batch.push_hidden(&self.kind.states);
        head_slot.round.in_batch.extend_from_slice(added);
        row
    }

    /// Decodes the tokens of the contexts that are missing in the caches, without logits. For requests with a draft, the end is left for
    /// the draft's first batch.
    fn catch_up(&mut self, requests: &[DraftRequest<'_>]) -> bool {
        self.batch.clear();
        for slot in &mut self.slots {
            (slot.round.ready, slot.round.row) = (false, None);
        }
        for request in requests {
            let n_free = self.free_batch_tokens();
            let Some(slot) = self.slots.get_mut(request.slot) else { continue };
            slot.disabled = slot.disabled.take().or_else(|| unavailable_reason(request, &self.context));
            if slot.disabled.is_some() {
                continue;
            }
            let wants_draft = request.n_max > 0;
            // The last token is decoded with the draft (again if necessary), because its logits are needed.
            let most = request.tokens.len().saturating_sub(usize::from(wants_draft));
            let missing = slot.cache.missing(&mut self.context, request.tokens, most);
            let complete = wants_draft && missing.end == request.tokens.len();
            if complete && self.kind.n_layers == 1 && missing.len() <= FEW {
                slot.round.ready = true;
                continue;
            }
            let end = missing.end.min(most).min(missing.start + n_free);
            let is_added =
                missing.start >= end || self.add(request.slot, request.tokens, missing.start..end, false).is_some();
            if let Some(slot) = self.slots.get_mut(request.slot) {
                slot.round.ready = is_added && complete && end == most;
            }
        }
        self.batch.is_empty() || self.decode_all_layers()
    }

    /// Adds the end of each context that is ready for a draft to the batch.
    fn begin_drafts(&mut self, requests: &[DraftRequest<'_>]) {
        self.batch.clear();
        for request in requests {
            let n_free = self.free_batch_tokens();
            let Some(slot) = self.slots.get_mut(request.slot).filter(|slot| slot.round.ready) else { continue };
            let rest = slot.cache.end()..request.tokens.len();
            let Some(sampler) = slot.sampler.as_mut().filter(|_| rest.len() <= n_free) else { continue };
            sampler.sync_from(request.sampler);
            follow(&mut slot.history, request.tokens);
            let row = self.add(request.slot, request.tokens, rest, true);
            let Some(slot) = self.slots.get_mut(request.slot) else { continue };
            slot.round.row = row;
            // With several layers, not all of their caches have it.
            if self.kind.n_layers > 1 {
                slot.round.in_batch.clear();
                slot.round.behind.clear();
                slot.round.behind.extend_from_slice(slot.cache.states.before(request.tokens.len().saturating_sub(1)));
            }
        }
    }

    /// Samples each slot's next token and adds the input for the following one to the next batch. A slot whose draft is complete has no
    /// `row` afterwards.
    fn extend(&mut self, requests: &mut [DraftRequest<'_>]) {
        self.batch.clear();
        for request in requests {
            let Some(slot) = self.slots.get_mut(request.slot) else { continue };
            let Some(row) = slot.round.row.take() else { continue };
            let most = if self.kind.n_layers > 1 { request.n_max.min(self.kind.n_layers) } else { request.n_max };
            if !slot.extend(request, &mut self.context, row, most) {
                continue;
            }
            let Some(hidden) = self.context.hidden(row) else { continue };
            if self.kind.n_layers == 1 {
                slot.round.behind.clear();
            }
            slot.round.behind.extend_from_slice(hidden);
            self.push_draft(request);
        }
    }

    /// Adds the last drafted token to the batch. With several layers, the context's end and all drafted tokens, because the next layer has
    /// not seen them.
    fn push_draft(&mut self, request: &DraftRequest<'_>) {
        let n_free = self.free_batch_tokens();
        let Some(slot) = self.slots.get_mut(request.slot) else { return };
        let n_embd = self.context.n_hidden().max(1);
        let tokens = request.tokens.last().into_iter().chain(&request.draft.tokens);
        let seen = if self.kind.n_layers > 1 { 0 } else { request.draft.tokens.len() };
        // The position of the context's last token.
        let Some(last) = request.tokens.len().checked_sub(slot.cache.start + 1) else { return };
        let too_many = request.draft.tokens.len() + 1 - seen > n_free;
        if too_many || (self.kind.n_layers > 1 && !slot.cache.cut(&mut self.context)) {
            return;
        }
        for ((offset, token), hidden) in tokens.enumerate().skip(seen).zip(slot.round.behind.chunks_exact(n_embd)) {
            slot.round.row = Some(self.batch.push(*token, last + offset, slot.cache.tokens.id(), true));
            self.batch.push_hidden(hidden);
        }
    }
}

impl HeadKind for TokenHead {
    type Round = Round;

    fn draft(head: &mut HeadDrafter<Self>, requests: &mut [DraftRequest<'_>]) {
        if !head.catch_up(requests) {
            return;
        }
        head.begin_drafts(requests);
        let mut layer = 0;
        // There is no space for a longer draft, so it ends.
        while !head.batch.is_empty() && head.decode_layer(layer).is_ok() {
            for slot in &mut head.slots {
                slot.cache.tokens.push(&slot.round.in_batch);
                slot.round.in_batch.clear();
            }
            head.extend(requests);
            if !another_round_pays(requests.iter().map(DraftRequest::growing)) {
                head.batch.clear();
                head.slots.iter_mut().for_each(|slot| slot.round.in_batch.clear());
            }
            layer = (layer + 1) % head.kind.n_layers;
        }
        head.slots.iter_mut().for_each(|slot| slot.round.ready = false);
        for request in requests {
            // Keeps the states of the token before the last, which is decoded again, and of later ones.
            let Some(slot) = head.slots.get_mut(request.slot) else { continue };
            slot.cache.forget_states();
        }
    }

    fn decoded(head: &mut HeadDrafter<Self>, slot: usize, what: &mut DecodedTokens<'_>) {
        let most = head.context.n_ubatch().min(head.context.n_batch());
        let Some(head_slot) = head.slots.get_mut(slot).filter(|slot| slot.disabled.is_none()) else { return };
        head_slot.cache.states.begin(what.tokens, what.from);
        head.read_states(what);
        let n_state = if head.kind.encodes { head.context.n_features() } else { head.context.n_hidden() };
        let Some(head_slot) = head.slots.get_mut(slot) else { return };
        let tokens = what.tokens.get(what.from..).unwrap_or(&[]).iter().chain(what.draft);
        for (token, state) in tokens.zip(head.kind.features.chunks_exact(n_state.max(1))) {
            if !head_slot.cache.states.push(*token, state) {
                break;
            }
        }
        // Without requests for drafts, their number would grow.
        while let Some(head_slot) = head.slots.get_mut(slot).filter(|head_slot| head_slot.cache.states.len() > most) {
            head.batch.clear();
            let Range { start, end } = head_slot.cache.missing(&mut head.context, what.tokens, what.tokens.len());
            let end = end.min(start + head.context.n_batch());
            let is_added = head.add(slot, what.tokens, start..end, false).is_some();
            let done = is_added && head.decode_all_layers();
            let Some(head_slot) = head.slots.get_mut(slot) else { return };
            if done {
                head_slot.cache.states.forget_before(end.saturating_sub(2));
            } else {
                head_slot.cache.states.clear();
            }
        }
    }
}

/// The reason why there can be no draft for this context.
fn unavailable_reason(request: &DraftRequest<'_>, context: &Context) -> Option<String> {
    let n_ctx = context.n_ctx();
    (request.tokens.len() >= n_ctx).then(|| format!("the request is longer than the layers' context of {n_ctx} tokens"))
}
