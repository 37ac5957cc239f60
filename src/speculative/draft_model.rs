//! Drafting with a small model that shares the target's vocabulary.
//!
//! llama.cpp's `draft-simple` cuts the draft's cache back after each draft and evaluates all of it again. Here the
//! cache keeps whatever agrees with the context; the last drafted token, which was never evaluated, is evaluated
//! together with the token that the target added, in one batch. All slots draft in the same batches.

use super::drafter::{Ask, Drafter, Drawing};
use super::verify::Row;
use super::{Settings, Source, Verify};
use crate::error::Result;
use crate::llama::{Batch, Context, DecodeError, Token};
use crate::sampling::{self, Sampler};
use crate::session::{SelfExtend, Sequence, Snapshot, common_prefix};

/// The draft model's context and what each slot has in it.
pub struct DraftModel {
    context: Context,
    batch: Batch,
    slots: Vec<Slot>,
    /// Tokens that both vocabularies have.
    n_vocab: usize,
}

struct Slot {
    /// The tokens in the draft's KV cache.
    cache: Sequence,
    /// Its tokens in the batch, behind those.
    in_batch: Vec<Token>,
    sampler: Option<Sampler>,
    disabled: Option<String>,
    /// Context and draft while drafting: what the sampler's penalties look at.
    history: Vec<Token>,
    /// Index in the batch of the row to sample from; `None`: this slot's draft is done.
    row: Option<usize>,
}

impl Slot {
    fn new(index: usize, extend: Option<SelfExtend>) -> Slot {
        Slot {
            cache: Sequence::new(index, extend),
            in_batch: Vec::new(),
            sampler: None,
            disabled: None,
            history: Vec::new(),
            row: None,
        }
    }
}

/// Whether an evaluation brought what was asked for.
#[derive(PartialEq)]
enum Evaluated {
    Yes,
    No,
}

impl DraftModel {
    /// A drafter for `n_slots` slots of a target with a vocabulary of `n_vocab` tokens.
    pub fn new(context: Context, n_slots: usize, n_vocab: usize, extend: Option<SelfExtend>) -> DraftModel {
        let n_vocab = n_vocab.min(context.model().vocab().n_tokens());
        let slots = (0..n_slots).map(|index| Slot::new(index, extend)).collect();
        DraftModel { context, batch: Batch::new(), slots, n_vocab }
    }

    /// Evaluates the tokens of each context that the cache lacks, but no more than a physical batch of them in all.
    /// Those that are complete and want a draft get a row to sample from.
    fn catch_up(&mut self, asks: &[Ask<'_>]) -> Evaluated {
        self.batch.clear();
        let mut room = self.context.n_ubatch().min(self.context.n_batch());
        for ask in asks {
            let Some(slot) = self.slots.get_mut(ask.slot) else { continue };
            slot.row = None;
            if slot.disabled.is_some() {
                continue;
            }
            if let Some(why) = obstacle(ask, &self.context, self.n_vocab) {
                slot.disabled = Some(why);
                continue;
            }
            let wants_draft = ask.n_max > 0;
            // The last token is evaluated again if it must be, because its logits are needed.
            let most = ask.tokens.len().saturating_sub(usize::from(wants_draft));
            let kept = common_prefix(&slot.cache, ask.tokens).min(most);
            let kept = slot.cache.cut(&mut self.context, kept);
            slot.cache.group(&mut self.context);
            let missing = ask.tokens.get(kept..).unwrap_or(&[]);
            let chunk = missing.get(..room.min(slot.cache.room()).min(missing.len())).unwrap_or(&[]);
            let complete = wants_draft && chunk.len() == missing.len();
            let next = slot.cache.next();
            for (index, token) in chunk.iter().enumerate() {
                let is_last = index + 1 == chunk.len();
                let row = self.batch.push(*token, next + index, slot.cache.id(), complete && is_last);
                if complete && is_last {
                    slot.row = Some(row);
                }
            }
            slot.in_batch.extend_from_slice(chunk);
            room -= chunk.len();
        }
        self.evaluate()
    }

    /// Evaluates the batch, and takes the tokens in it into the slots' caches.
    fn evaluate(&mut self) -> Evaluated {
        if self.batch.is_empty() {
            return Evaluated::Yes;
        }
        let mut result = self.context.decode(&self.batch);
        if result == Err(DecodeError::Full) && self.forget_idle() {
            result = self.context.decode(&self.batch);
        }
        for slot in &mut self.slots {
            match &result {
                Ok(()) => slot.cache.push(&slot.in_batch),
                Err(DecodeError::Aborted) if slot.in_batch.is_empty() => {}
                Err(DecodeError::Aborted) => slot.cache.recover(&mut self.context, &slot.in_batch),
                Err(_) => slot.cache.clear(&mut self.context),
            }
            slot.in_batch.clear();
        }
        let Err(error) = result else { return Evaluated::Yes };
        for slot in &mut self.slots {
            let busy = slot.sampler.is_some();
            match &error {
                DecodeError::Aborted => {}
                DecodeError::Full if busy => slot.disabled = Some("the draft's context is full".into()),
                DecodeError::Failed(why) if busy => slot.disabled = Some(format!("the draft failed: {why}")),
                DecodeError::Full | DecodeError::Failed(_) => {}
            }
        }
        Evaluated::No
    }

    /// Empties the caches of slots without a request; false when that made no room.
    fn forget_idle(&mut self) -> bool {
        let mut forgot = false;
        for slot in &mut self.slots {
            if slot.sampler.is_none() && !slot.cache.is_empty() {
                slot.cache.clear(&mut self.context);
                forgot = true;
            }
        }
        forgot
    }

    /// Samples each slot's next token and puts it into the next batch. A slot whose draft is done has no row afterwards.
    fn extend(&mut self, asks: &mut [Ask<'_>]) {
        self.batch.clear();
        for ask in asks {
            let Some(slot) = self.slots.get_mut(ask.slot) else { continue };
            let Some(row) = slot.row.take() else { continue };
            let (Some(sampler), Some(logits)) = (slot.sampler.as_mut(), self.context.logits(row)) else { continue };
            let Some(logits) = logits.get_mut(..self.n_vocab) else { continue };
            let drafted = ask.draft.tokens.len();
            // Nothing can follow (a grammar's end): the draft ends, the target says what is next.
            let Some((token, confidence)) = choose(ask, sampler, logits, &slot.history) else { continue };
            ask.draft.push(token, confidence);
            slot.history.push(token);
            let ends = drafted + 1 == ask.n_max
                || !ask.pace.wants_more(&ask.draft.confidence, ask.n_max)
                || self.context.model().vocab().is_eog(token)
                || slot.cache.len() + 1 >= self.context.n_ctx()
                || slot.cache.room() == 0
                || sampler.accept(token).is_err();
            if !ends {
                slot.row = Some(self.batch.push(token, slot.cache.next(), slot.cache.id(), true));
                slot.in_batch.push(token);
            }
        }
    }
}

impl Drafter for DraftModel {
    fn source(&self) -> Source {
        Source::Draft
    }

    fn begin(&mut self, slot: usize, sampler: &Sampler, settings: &Settings) -> Result<()> {
        if let Some(slot) = self.slots.get_mut(slot) {
            slot.sampler = Some(sampler.for_draft(settings.verify == Verify::Match)?);
            slot.disabled = None;
        }
        Ok(())
    }

    fn draft(&mut self, asks: &mut [Ask<'_>]) {
        if self.catch_up(asks) == Evaluated::No {
            return;
        }
        for ask in asks.iter() {
            let Some(slot) = self.slots.get_mut(ask.slot).filter(|slot| slot.row.is_some()) else { continue };
            let synced = slot.sampler.as_mut().is_some_and(|sampler| sampler.sync_from(ask.sampler).is_ok());
            if !synced {
                slot.row = None;
                continue;
            }
            follow(&mut slot.history, ask.tokens);
        }
        loop {
            self.extend(asks);
            if self.batch.is_empty() || self.evaluate() == Evaluated::No {
                break;
            }
        }
    }

    fn checked(&mut self, _slot: usize, _drafted: usize, _accepted: usize) {}

    fn shift(&mut self, slot: usize, keep: usize, dropped: usize) {
        let Some(slot) = self.slots.get_mut(slot) else { return };
        if !slot.cache.shift(&mut self.context, keep..keep + dropped) {
            slot.cache.cut(&mut self.context, keep);
        }
    }

    fn end(&mut self, slot: usize, _tokens: &[Token], _generated: usize) {
        if let Some(slot) = self.slots.get_mut(slot) {
            slot.sampler = None;
        }
    }

    fn save(&mut self, slot: usize) -> Option<Snapshot> {
        let cache = &mut self.slots.get_mut(slot)?.cache;
        if cache.is_empty() { None } else { cache.save(&mut self.context).ok() }
    }

    fn load(&mut self, slot: usize, snapshot: &Snapshot) -> bool {
        let Some(cache) = self.slots.get_mut(slot).map(|slot| &mut slot.cache) else { return false };
        if snapshot.tokens.len() > self.context.n_ctx() || cache.difference(&self.context, snapshot).is_some() {
            return false;
        }
        if cache.load(&mut self.context, snapshot).is_ok() {
            return true;
        }
        for (index, other) in self.slots.iter_mut().enumerate() {
            if index != slot {
                other.cache.clear(&mut self.context);
            }
        }
        false
    }

    fn reuse(&mut self, slot: usize, prompt: &[Token], least: usize) {
        if let Some(slot) = self.slots.get_mut(slot) {
            slot.cache.reuse(&mut self.context, prompt, least);
        }
    }

    fn disabled(&self, slot: usize) -> Option<&str> {
        self.slots.get(slot)?.disabled.as_deref()
    }
}

/// Makes `history` the same as `tokens`, from which it differs by its end alone: only that is copied.
pub(super) fn follow(history: &mut Vec<Token>, tokens: &[Token]) {
    let kept = common_prefix(history, tokens);
    history.truncate(kept);
    history.extend_from_slice(tokens.get(kept..).unwrap_or(&[]));
}

/// The next token of a draft and its probability; `None`: it ends here.
pub(super) fn choose(
    ask: &mut Ask<'_>,
    sampler: &mut Sampler,
    logits: &mut [f32],
    history: &[Token],
) -> Option<(Token, f32)> {
    let position = ask.position + ask.draft.tokens.len();
    if let Some(Drawing { proposal, chance }) = &mut ask.drawing {
        let q = Row::new(sampler.row(logits, history, position).ok()?)?;
        // Known before the draw: what was drawn could not be left out for being improbable.
        let (_, best) = q.best();
        let token = if best < f64::from(ask.p_min) { None } else { proposal.draw(q, chance) }?;
        return Some((token, sampling::probability(logits, token)));
    }
    let token = sampler.pick(logits, history, position).ok()?;
    let confidence = sampling::probability(logits, token);
    (confidence >= ask.p_min).then_some((token, confidence))
}

/// Why there can be no draft for this context.
fn obstacle(ask: &Ask<'_>, context: &Context, n_vocab: usize) -> Option<String> {
    if ask.tokens.len() >= context.n_ctx() {
        return Some(format!("the text is longer than the draft's context of {} tokens", context.n_ctx()));
    }
    let unknown = |token: &&Token| usize::try_from(**token).map_or(true, |token| token >= n_vocab);
    // Only the end can be new to us; a foreign token further back was noticed when it was the end.
    let tail = ask.tokens.len().saturating_sub(context.n_ubatch());
    let foreign = ask.tokens.get(tail..).unwrap_or(&[]).iter().find(unknown)?;
    Some(format!("the draft has no token {foreign}"))
}
