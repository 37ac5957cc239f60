//! Drafting with a head that predicts a block of tokens in one pass: DFlash, or DSpark.
//!
//! Instead of tokens, the head's KV cache has the states of the target's layers for the tokens of the context. A pass decodes the context's
//! last token, which the target has not decoded yet, and mask tokens, one for each token to predict. They see the cache and each other. So
//! a longer draft costs a larger pass, and no other. Each token is drawn with the RNG counter of its position, as the target draws.

use super::draft_branch::{choose, follow};
use super::head_cache::{HeadCache, HeadDrafter, HeadKind};
use foredraft_base::error::Result;
use foredraft_llama::{Context, DecodeError, DraftBlock, Token};
use foredraft_speculation::{DecodedTokens, DraftRequest};

/// A drafter with a `BlockLayers` head.
pub type BlockHead = HeadDrafter<BlockLayers>;

/// The layers of a head that predicts a block of tokens in one pass.
pub struct BlockLayers {
    block: DraftBlock,
    /// States for the cache.
    features: Vec<f32>,
}

impl BlockHead {
    /// Creates a drafter for `n_slots` slots, with a context made by [`Context::head`]. `needs_hidden`: it reads the target's hidden states
    /// after the last layer.
    ///
    /// # Errors
    /// See [`Model::block`](foredraft_llama::Model::block).
    pub fn new(mut context: Context, n_slots: usize, needs_hidden: bool) -> Result<BlockHead> {
        let block = context.model().block()?;
        let moves = context.can_shift();
        let n_features = context.n_features();
        let caches = (0..n_slots).map(|index| HeadCache::new(index, n_features, 0, 0));
        context.reset();
        let kind = BlockLayers { block, features: Vec::new() };
        Ok(BlockHead { moves, needs_hidden, ..HeadDrafter::with(kind, context, caches) })
    }

    /// Adds the states of the first `most` tokens of a context to the cache, as far as the target has decoded them, and at most as many as
    /// fit into a physical batch. Returns whether the cache then has all of them.
    fn catch_up(&mut self, slot: usize, tokens: &[Token], most: usize) -> bool {
        let n_ubatch = self.context.n_ubatch();
        let Some(place) = self.slots.get_mut(slot) else { return false };
        let missing = place.cache.missing(&mut self.context, tokens, most);
        let missing = missing.start..missing.end.min(most).min(missing.start + n_ubatch);
        if missing.is_empty() {
            return place.cache.end() == most;
        }
        self.kind.features.clear();
        missing.clone().for_each(|number| self.kind.features.extend_from_slice(place.cache.state_for(number)));
        let (at, sequence) = (missing.start - place.cache.start, place.cache.tokens.id());
        let mut result = self.context.inject(&self.kind.features, at, sequence);
        if result == Err(DecodeError::Full) && self.clear_idle(|index, _| index != slot) {
            result = self.context.inject(&self.kind.features, at, sequence);
        }
        let Some(place) = self.slots.get_mut(slot) else { return false };
        match result {
            Ok(()) => {
                place.cache.tokens.push(tokens.get(missing).unwrap_or(&[]));
                place.cache.forget_states();
                place.cache.end() == most
            }
            Err(error) => {
                self.failed(error);
                false
            }
        }
    }

    /// Restores the caches after a failed decode, and disables drafting for the current requests, unless the decode was interrupted.
    fn failed(&mut self, error: DecodeError) {
        let why = match error {
            DecodeError::Aborted => None,
            DecodeError::Full => Some("the head's context is full".to_owned()),
            DecodeError::Failed(error) => {
                // The state of the caches is unknown after a failure.
                self.context.reset();
                self.slots.iter_mut().for_each(|slot| slot.cache.tokens.clear(&mut self.context));
                Some(format!("drafting with the head failed: {}", error.message()))
            }
        };
        for slot in &mut self.slots {
            slot.round = None;
            slot.cache.cut(&mut self.context);
            if slot.sampler.is_some() {
                slot.disabled = slot.disabled.take().or_else(|| why.clone());
            }
        }
    }

    /// Decodes a block of `n` tokens for each of these requests.
    fn decode_blocks(&mut self, requests: &[&mut DraftRequest<'_>], n: usize) -> bool {
        self.batch.clear();
        for request in requests {
            let Some(slot) = self.slots.get_mut(request.slot) else { continue };
            let (Some(sampler), Some(last)) = (slot.sampler.as_mut(), request.tokens.last()) else { continue };
            sampler.sync_from(request.sampler);
            follow(&mut slot.history, request.tokens);
            let (first, sequence) = (slot.cache.tokens.len(), slot.cache.tokens.id());
            for offset in 0..n {
                let token = if offset == 0 { *last } else { self.kind.block.mask };
                let row = self.batch.push(token, first + offset, sequence, offset >= self.kind.block.first_row);
                if offset == self.kind.block.first_row {
                    slot.round = Some(row);
                }
            }
        }
        if self.batch.is_empty() {
            return false;
        }
        let mut result = self.context.decode(&self.batch);
        let is_idle = |index, _: &_| requests.iter().all(|request| request.slot != index);
        if result == Err(DecodeError::Full) && self.clear_idle(is_idle) {
            result = self.context.decode(&self.batch);
        }
        match result {
            Ok(()) => true,
            Err(error) => {
                self.failed(error);
                false
            }
        }
    }

    /// Chooses the tokens of a decoded block.
    fn read_block(&mut self, request: &mut DraftRequest<'_>, n: usize) {
        let Some(slot) = self.slots.get_mut(request.slot) else { return };
        let (Some(row), Some(sampler)) = (slot.round.take(), slot.sampler.as_mut()) else { return };
        for depth in 0..n.min(request.n_max) {
            let Some(logits) = self.context.logits(row + depth) else { break };
            // No token is possible (at a grammar's end): the draft ends, and the target chooses.
            let Some((token, confidence)) = choose(request, sampler, logits, &slot.history, depth) else { break };
            request.draft.push(token, confidence);
            slot.history.push(token);
            let goes_on = request.stop_policy.wants_more(&request.draft.confidence, request.n_max)
                && !self.context.model().vocab().is_eog(token)
                && sampler.accept(token).is_ok();
            if !goes_on {
                break;
            }
        }
    }
}

impl HeadKind for BlockLayers {
    /// The batch index of the row that predicts the first token. `None`: the slot has no block in this pass.
    type Round = Option<usize>;

    fn draft(head: &mut HeadDrafter<Self>, requests: &mut [DraftRequest<'_>]) {
        let mut ready: Vec<&mut DraftRequest<'_>> = Vec::with_capacity(requests.len());
        for request in requests {
            let n_context = request.tokens.len().saturating_sub(1);
            let is_ready = head.catch_up(request.slot, request.tokens, n_context);
            if is_ready && request.n_max > 0 && !request.tokens.is_empty() {
                ready.push(request);
            }
        }
        // All blocks have the same length, as DSpark needs it, and those that are decoded together are in one physical batch, because its
        // tokens see each other.
        let most = head.kind.block.most().min(head.context.n_ubatch().saturating_sub(head.kind.block.first_row));
        let n_tokens = ready.iter().map(|request| request.n_max).max().unwrap_or(0).min(most);
        if n_tokens == 0 {
            return;
        }
        let n = n_tokens + head.kind.block.first_row;
        for requests in ready.chunks_mut((head.context.n_ubatch() / n).max(1)) {
            if head.decode_blocks(requests, n) {
                requests.iter_mut().for_each(|request| head.read_block(request, n_tokens));
            }
            for request in requests {
                if let Some(slot) = head.slots.get_mut(request.slot) {
                    slot.cache.cut(&mut head.context);
                }
            }
        }
    }

    fn decoded(head: &mut HeadDrafter<Self>, slot: usize, what: &mut DecodedTokens<'_>) {
        let most = head.context.n_ubatch().min(head.context.n_batch());
        let Some(place) = head.slots.get_mut(slot).filter(|slot| slot.disabled.is_none()) else { return };
        place.cache.states.begin(what.tokens, what.from);
        let tokens = what.tokens.get(what.from..).unwrap_or(&[]).iter().chain(what.draft);
        for (index, token) in (what.first..).zip(tokens) {
            head.kind.features.clear();
            let is_kept = what.target.layer_states(index, &mut head.kind.features);
            if !is_kept || !place.cache.states.push(*token, &head.kind.features) {
                break;
            }
        }
        // Without requests for drafts, their number would grow.
        while head.slots.get(slot).is_some_and(|place| place.cache.states.len() > most) {
            let before = head.slots.get(slot).map_or(0, |place| place.cache.end());
            head.catch_up(slot, what.tokens, what.tokens.len());
            let Some(place) = head.slots.get_mut(slot) else { return };
            if place.cache.end() <= before {
                place.cache.states.clear();
            }
        }
    }
}
