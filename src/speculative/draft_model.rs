//! Drafting with a small model that shares the target's vocabulary.
//!
//! llama.cpp's `draft-simple` cuts the draft's cache back after each draft and evaluates all of it again. Here the
//! cache keeps whatever agrees with the context; the last drafted token, which was never evaluated, is evaluated
//! together with the token that the target added, in one batch. All slots draft in the same batches.

use super::drafter::{Ask, Drafter, Drawing};
use super::verify::Row;
use super::{MAX_BRANCHES, Settings, Source, Verify};
use crate::error::Result;
use crate::llama::{Batch, Context, DecodeError, SeqId, Token};
use crate::sampling::{self, Sampler};
use crate::session::{self, SelfExtend, Sequence, Snapshot, common_prefix};

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
    /// The branches of the draft, the first of which goes into the cache; `None`: no request speculates here.
    tips: Option<Vec<Tip>>,
    /// How many of them are used.
    n_tips: usize,
    /// The sequences of branches beside the cache's. They hold something only while drafting.
    branches: Vec<SeqId>,
    disabled: Option<String>,
}

/// Where a branch of the draft grows. Kept for its memory when the draft is done.
struct Tip {
    sequence: SeqId,
    sampler: Sampler,
    /// Context and branch: what the sampler's penalties look at.
    history: Vec<Token>,
    /// The draft's node that it has come to.
    node: usize,
    /// The confidence of each of its tokens.
    path: Vec<f32>,
    /// The position of its next token.
    position: usize,
    /// Index in the batch of the row to sample from; `None`: it grows no more.
    row: Option<usize>,
}

impl Tip {
    fn new(sequence: SeqId, sampler: Sampler) -> Tip {
        Tip { sequence, sampler, history: Vec::new(), node: 0, path: Vec::new(), position: 0, row: None }
    }

    /// Begins where `context` ends.
    fn begin(&mut self, context: &[Token], sampler: &Sampler) -> Result<()> {
        self.sampler.sync_from(sampler)?;
        follow(&mut self.history, context);
        self.node = 0;
        self.path.clear();
        Ok(())
    }

    /// Becomes the place where `other` is.
    fn branch_from(&mut self, other: &Tip) -> Result<()> {
        self.begin(&other.history, &other.sampler)?;
        self.node = other.node;
        self.path.extend_from_slice(&other.path);
        self.position = other.position;
        Ok(())
    }

    fn take(&mut self, node: usize, token: Token, confidence: f32) {
        self.node = node;
        self.history.push(token);
        self.path.push(confidence);
        self.position += 1;
    }
}

impl Slot {
    fn new(index: usize, extend: Option<SelfExtend>, branches: Vec<SeqId>) -> Slot {
        let cache = Sequence::new(index, extend);
        Slot { cache, in_batch: Vec::new(), tips: None, n_tips: 0, branches, disabled: None }
    }

    /// The branch that goes into the cache.
    fn main(&mut self) -> Option<&mut Tip> {
        self.tips.as_mut()?.first_mut()
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
        let branches = |index| session::branches(index, n_slots, context.n_shared());
        let slots = (0..n_slots).map(|index| Slot::new(index, extend, branches(index))).collect();
        DraftModel { context, batch: Batch::new(), slots, n_vocab }
    }

    /// Evaluates the tokens of each context that the cache lacks, but no more than a physical batch of them in all.
    /// Those that are complete and want a draft get a row to sample from.
    fn catch_up(&mut self, asks: &[Ask<'_>]) -> Evaluated {
        self.batch.clear();
        let mut room = self.context.n_ubatch().min(self.context.n_batch());
        for ask in asks {
            let Some(slot) = self.slots.get_mut(ask.slot) else { continue };
            slot.n_tips = 0;
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
            let (next, mut row) = (slot.cache.next(), None);
            for (index, token) in chunk.iter().enumerate() {
                let is_last = index + 1 == chunk.len();
                let at = self.batch.push(*token, next + index, slot.cache.id(), complete && is_last);
                if complete && is_last {
                    row = Some(at);
                }
            }
            slot.in_batch.extend_from_slice(chunk);
            room -= chunk.len();
            if let Some(main) = slot.main() {
                (main.row, main.position) = (row, next + chunk.len());
                slot.n_tips = usize::from(row.is_some());
            }
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
            let busy = slot.tips.is_some();
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
            if slot.tips.is_none() && !slot.cache.is_empty() {
                slot.cache.clear(&mut self.context);
                forgot = true;
            }
        }
        forgot
    }

    /// Samples the next token of each branch and puts it into the next batch. A branch that is done has no row afterwards.
    fn extend(&mut self, asks: &mut [Ask<'_>]) {
        self.batch.clear();
        for ask in asks {
            for index in 0..self.slots.get(ask.slot).map_or(0, |slot| slot.n_tips) {
                self.grow(ask, index);
            }
        }
    }

    /// Adds a token to a branch, and branches that begin beside it.
    fn grow(&mut self, ask: &mut Ask<'_>, index: usize) {
        let DraftModel { context, batch, slots, n_vocab } = self;
        let Some(slot) = slots.get_mut(ask.slot) else { return };
        let Slot { cache, in_batch, tips: Some(tips), n_tips, branches, .. } = slot else { return };
        let Some((tip, row)) = tips.get_mut(index).and_then(|tip| tip.row.take().map(|row| (tip, row))) else { return };
        let Some(logits) = context.logits(row).and_then(|logits| logits.get_mut(..*n_vocab)) else { return };
        // Nothing can follow (a grammar's end): the draft ends, the target says what is next.
        let Some(first) = choose(ask, &mut tip.sampler, logits, &tip.history, tip.path.len()) else { return };
        let free = ask.branches.0.min(branches.len() + 1).saturating_sub(*n_tips);
        let others = if free > 0 { siblings(ask, tip, logits, first, free) } else { [None; MAX_BRANCHES] };
        let parent = tip.node;
        let node = ask.draft.push_behind(parent, first.0, first.1);
        for (token, confidence) in others.into_iter().flatten() {
            let full = ask.draft.tokens.len() >= ask.n_max;
            if full || tips.len() == *n_tips && !add_tip(tips, branches) {
                break;
            }
            let Some((used, unused)) = tips.split_at_mut_checked(*n_tips) else { break };
            let (Some(tip), Some(branch)) = (used.get(index), unused.first_mut()) else { break };
            if branch.branch_from(tip).is_err() || !context.share(tip.sequence, branch.sequence) {
                break;
            }
            *n_tips += 1;
            let node = ask.draft.push_behind(parent, token, confidence);
            branch.take(node, token, confidence);
            if goes_on(branch, ask, context, token) {
                branch.row = Some(batch.push(token, branch.position - 1, branch.sequence, true));
            }
        }
        let Some(tip) = tips.get_mut(index) else { return };
        tip.take(node, first.0, first.1);
        let is_main = index == 0;
        if goes_on(tip, ask, context, first.0) && (!is_main || cache.room() > 0) {
            tip.row = Some(batch.push(first.0, tip.position - 1, tip.sequence, true));
            in_batch.extend(is_main.then_some(first.0));
        }
    }

    /// Empties the branches' sequences.
    fn prune(&mut self) {
        for slot in &mut self.slots {
            for tip in slot.tips.iter().flatten().take(slot.n_tips).skip(1) {
                self.context.truncate(tip.sequence, 0);
            }
            slot.n_tips = 0;
        }
    }
}

/// Makes memory for one branch more, in the next of these sequences. False when there is none.
fn add_tip(tips: &mut Vec<Tip>, branches: &[SeqId]) -> bool {
    let Some(sampler) = tips.first().and_then(|main| main.sampler.for_draft(false).ok()) else { return false };
    let Some(sequence) = tips.len().checked_sub(1).and_then(|index| branches.get(index)) else { return false };
    tips.push(Tip::new(*sequence, sampler));
    true
}

/// Whether a branch grows on behind `token`, its last one.
fn goes_on(tip: &mut Tip, ask: &Ask<'_>, context: &Context, token: Token) -> bool {
    ask.draft.tokens.len() < ask.n_max
        && ask.pace.wants_more(&tip.path, ask.n_max)
        && !context.model().vocab().is_eog(token)
        && tip.history.len() < context.n_ctx()
        && tip.sampler.accept(token).is_ok()
}

impl Drafter for DraftModel {
    fn source(&self) -> Source {
        Source::Draft
    }

    fn begin(&mut self, slot: usize, sampler: &Sampler, settings: &Settings) -> Result<()> {
        if let Some(slot) = self.slots.get_mut(slot) {
            let sampler = sampler.for_draft(settings.verify == Verify::Match)?;
            slot.tips = Some(vec![Tip::new(slot.cache.id(), sampler)]);
            slot.disabled = None;
        }
        Ok(())
    }

    fn draft(&mut self, asks: &mut [Ask<'_>]) {
        if self.catch_up(asks) == Evaluated::No {
            return;
        }
        for ask in asks.iter() {
            let Some(slot) = self.slots.get_mut(ask.slot).filter(|slot| slot.n_tips > 0) else { continue };
            let begun = slot.main().is_some_and(|main| main.begin(ask.tokens, ask.sampler).is_ok());
            slot.n_tips = usize::from(begun);
        }
        loop {
            self.extend(asks);
            if self.batch.is_empty() || self.evaluate() == Evaluated::No {
                break;
            }
        }
        self.prune();
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
            slot.tips = None;
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

/// The token behind `depth` others of a draft, and its probability; `None`: it ends here.
pub(super) fn choose(
    ask: &mut Ask<'_>,
    sampler: &mut Sampler,
    logits: &mut [f32],
    history: &[Token],
    depth: usize,
) -> Option<(Token, f32)> {
    let position = ask.position + depth;
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

/// Up to `n` tokens beside `first` that are worth a branch: what would be chosen if those before them were not there
/// (`speculative.cpp` takes the most probable ones).
fn siblings(
    ask: &Ask<'_>,
    tip: &mut Tip,
    logits: &mut [f32],
    first: (Token, f32),
    n: usize,
) -> [Option<(Token, f32)>; MAX_BRANCHES] {
    let mut siblings = [None; MAX_BRANCHES];
    let mut hidden = [None; MAX_BRANCHES];
    let (mut left, mut last) = (1.0 - first.1, first.0);
    let (least, position) = (ask.branches.1.max(ask.p_min), ask.position + tip.path.len());
    for (sibling, hidden) in siblings.iter_mut().zip(&mut hidden).take(n) {
        // What is left of the probability says most of the time that there is none.
        if left < least {
            break;
        }
        let Some(logit) = usize::try_from(last).ok().and_then(|index| logits.get_mut(index)) else { break };
        *hidden = Some((last, std::mem::replace(logit, f32::NEG_INFINITY)));
        let Ok(token) = tip.sampler.pick(logits, &tip.history, position) else { break };
        let confidence = left * sampling::probability(logits, token);
        if confidence < least || !ask.pace.wants_branch(&tip.path, confidence, ask.draft.tokens.len() + 1) {
            break;
        }
        *sibling = Some((token, confidence));
        (left, last) = (left - confidence, token);
    }
    for (token, logit) in hidden.into_iter().flatten() {
        if let Some(place) = usize::try_from(token).ok().and_then(|index| logits.get_mut(index)) {
            *place = logit;
        }
    }
    siblings
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
