//! Drafting with an assistant of Gemma 4: layers that have no KV cache of their own, and read that of the target's last layers.
//!
//! A pass gets a token and the hidden state of the token before it. For the context's last token, this state is the target's; for drafted
//! tokens, it is what the previous pass made. The cache has no cells of drafted tokens, so all are decoded at the position of the context's
//! last token, for which the assistants were trained (as in llama.cpp's `draft-mtp`). An assistant never has to catch up with the context,
//! and a rejected draft leaves nothing behind.
//!
//! The state is missing right after a session was loaded. There is no draft then until the target's next decode.

use super::draft_branch::follow;
use super::head_cache::{HeadCache, HeadDrafter, HeadKind};
use foredraft_base::HiddenStates;
use foredraft_llama::{Context, DecodeError};
use foredraft_speculation::another_round_pays;
use foredraft_speculation::{DecodedTokens, DraftRequest};

/// A drafter with an assistant. The slots' caches have no tokens, because the cells are the target's.
pub type Assistant = HeadDrafter<AssistantLayers>;

/// The layers of an assistant, which keep nothing between drafts.
pub struct AssistantLayers;

/// A slot's draft in progress.
#[derive(Default)]
pub struct AssistantDraft {
    /// The batch index of the output to sample from. `None`: this slot's draft is complete.
    row: Option<usize>,
    /// The position of all tokens of the draft.
    position: usize,
}

impl Assistant {
    /// Creates a drafter for `n_slots` slots, with a context made by [`Context::head`]. The target's sequences have the numbers of the slots.
    pub fn new(context: Context, n_slots: usize) -> Assistant {
        let n_hidden = context.n_hidden();
        let caches = (0..n_slots).map(|index| HeadCache::new(index, n_hidden, 0, 1));
        HeadDrafter::with(AssistantLayers, context, caches)
    }

    /// Adds the last token of each context whose states and cells the target has.
    fn begin_drafts(&mut self, requests: &[DraftRequest<'_>]) {
        self.batch.clear();
        for request in requests {
            let has_space = self.batch.len() < self.context.n_batch();
            let Some(slot) = self.slots.get_mut(request.slot) else { continue };
            slot.round.row = None;
            let Some((token, before)) = request.tokens.split_last() else { continue };
            let (sequence, states) = (slot.cache.tokens.id(), &slot.cache.states);
            let position = self.context.len(sequence);
            let is_known = position > 0 && states.from() < before.len() && states.reach(request.tokens) >= before.len();
            let Some(sampler) = slot.sampler.as_mut().filter(|_| is_known && has_space && request.n_max > 0) else {
                continue;
            };
            sampler.sync_from(request.sampler);
            follow(&mut slot.history, request.tokens);
            slot.round = AssistantDraft { row: Some(self.batch.push(*token, position, sequence, true)), position };
            self.batch.push_hidden(slot.cache.state_for(before.len()));
        }
    }

    /// Decodes the batch. Returns false on failure: the drafts end.
    fn decode(&mut self) -> bool {
        match self.context.decode(&self.batch) {
            Ok(()) => true,
            Err(DecodeError::Failed(error)) => {
                self.disable(&format!("drafting with the assistant failed: {}", error.message()));
                false
            }
            Err(_) => false,
        }
    }

    /// Samples each slot's next token and adds it to the next batch. A slot whose draft is complete has no `row` afterwards.
    fn extend(&mut self, requests: &mut [DraftRequest<'_>]) {
        self.batch.clear();
        for request in requests {
            let Some(slot) = self.slots.get_mut(request.slot) else { continue };
            let (Some(row), most) = (slot.round.row.take(), request.n_max) else { continue };
            if !slot.extend(request, &mut self.context, row, most) {
                continue;
            }
            let (Some(token), Some(state)) = (request.draft.tokens.last(), self.context.hidden(row)) else { continue };
            slot.round.row = Some(self.batch.push(*token, slot.round.position, slot.cache.tokens.id(), true));
            self.batch.push_hidden(state);
        }
    }
}

impl HeadKind for AssistantLayers {
    type Round = AssistantDraft;

    fn draft(head: &mut HeadDrafter<Self>, requests: &mut [DraftRequest<'_>]) {
        head.begin_drafts(requests);
        while !head.batch.is_empty() && head.decode() {
            head.extend(requests);
            if !another_round_pays(requests.iter().map(DraftRequest::growing)) {
                head.batch.clear();
            }
        }
    }

    fn decoded(head: &mut HeadDrafter<Self>, slot: usize, what: &mut DecodedTokens<'_>) {
        let Some(slot) = head.slots.get_mut(slot) else { return };
        // Only the last token of the context and those after it can be before the last one of the next draft's context.
        let from = what.from.max(what.tokens.len().saturating_sub(1));
        let states = &mut slot.cache.states;
        states.begin(what.tokens, from);
        states.forget_before(from);
        let tokens = what.tokens.get(from..).unwrap_or(&[]).iter().chain(what.draft);
        for (index, token) in (what.first + (from - what.from)..).zip(tokens) {
            if !what.target.hidden(index).is_some_and(|state| states.push(*token, state)) {
                break;
            }
        }
    }
}
