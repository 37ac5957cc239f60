//! Drafting with a small model that shares the target's vocabulary.
//!
//! llama.cpp's `draft-simple` cuts the draft's cache back after each draft and evaluates all of it again. Here the
//! cache keeps whatever agrees with the context; the last drafted token, which was never evaluated, is evaluated
//! together with the token that the target added, in one batch. All slots draft in the same batches.

use super::draft_branch::DraftBranch;
use super::drafter::{DraftRequest, Drafter};
use super::policy::another_round_pays;
use super::{Adaptive, DrafterKind, Settings, Verify};
use crate::llama::{Batch, Context, DecodeError, SeqId, Token};
use crate::sampling::Sampler;
use crate::session::{self, SelfExtend, Sequence, Snapshot, common_prefix};

/// The draft model's context and what each slot has in it.
pub struct DraftModel {
    context: Context,
    batch: Batch,
    slots: Vec<DraftModelSlot>,
    /// Tokens that both vocabularies have.
    n_vocab: usize,
}

struct DraftModelSlot {
    /// The tokens in the draft's KV cache.
    cache: Sequence,
    /// Its tokens in the batch, behind those.
    in_batch: Vec<Token>,
    /// The branches of the draft, the first of which goes into the cache; `None`: no request speculates here.
    tips: Option<Vec<DraftBranch>>,
    /// How many of them are used.
    n_tips: usize,
    /// The sequences of branches beside the cache's. They hold something only while drafting.
    branches: Vec<SeqId>,
    disabled: Option<String>,
}

impl DraftModelSlot {
    fn new(index: usize, extend: Option<SelfExtend>, branches: Vec<SeqId>) -> DraftModelSlot {
        let cache = Sequence::new(index, extend);
        DraftModelSlot { cache, in_batch: Vec::new(), tips: None, n_tips: 0, branches, disabled: None }
    }

    /// The branch that goes into the cache.
    fn main(&mut self) -> Option<&mut DraftBranch> {
        self.tips.as_mut()?.first_mut()
    }
}

/// Whether an evaluation brought what was asked for.
#[derive(PartialEq)]
enum BatchResult {
    Yes,
    /// There is no room in the context; nothing changed.
    Full,
    No,
}

impl DraftModel {
    /// A drafter for `n_slots` slots of a target with a vocabulary of `n_vocab` tokens.
    pub fn new(context: Context, n_slots: usize, n_vocab: usize, extend: Option<SelfExtend>) -> DraftModel {
        let n_vocab = n_vocab.min(context.model().vocab().n_tokens());
        let branches = |index| session::branches(index, n_slots, context.n_shared());
        let slots = (0..n_slots).map(|index| DraftModelSlot::new(index, extend, branches(index))).collect();
        DraftModel { context, batch: Batch::new(), slots, n_vocab }
    }

    /// Evaluates the tokens of each context that the cache lacks, but no more than a physical batch of them in all.
    /// Those that are complete and want a draft get a row to sample from.
    fn catch_up(&mut self, asks: &[DraftRequest<'_>]) -> BatchResult {
        self.batch.clear();
        let mut room = self.context.n_ubatch().min(self.context.n_batch());
        // Also of those that an evaluation which failed has left, and that nobody asks for any more.
        self.slots.iter_mut().for_each(|slot| slot.n_tips = 0);
        let together = self.few_missing(asks);
        for ask in asks {
            let Some(slot) = self.slots.get_mut(ask.slot) else { continue };
            if slot.disabled.is_some() {
                continue;
            }
            if ask.tokens.len() >= self.context.n_ctx() {
                let n_ctx = self.context.n_ctx();
                slot.disabled = Some(format!("the text is longer than the draft's context of {n_ctx} tokens"));
                continue;
            }
            let wants_draft = ask.n_max > 0;
            // The last token is evaluated again if it must be, because its logits are needed.
            let kept = common_prefix(&slot.cache, ask.tokens);
            let least = if wants_draft && ask.tokens.len() - kept <= together { together } else { 0 };
            let kept = kept.min(ask.tokens.len().saturating_sub(least.max(usize::from(wants_draft))));
            let kept = slot.cache.cut(&mut self.context, kept);
            slot.cache.group(&mut self.context);
            let missing = ask.tokens.get(kept..).unwrap_or(&[]);
            let chunk = missing.get(..room.min(slot.cache.tokens_until_group()).min(missing.len())).unwrap_or(&[]);
            if let Some(foreign) = chunk.iter().find(|token| is_foreign(**token, self.n_vocab)) {
                slot.disabled = Some(format!("the draft has no token {foreign}"));
                continue;
            }
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

    /// How many tokens to decode for each slot that lacks no more than a few, so that they make one physical batch: after a draft that was
    /// accepted whole a slot lacks one more than after others. 0: their number makes no difference.
    fn few_missing(&self, asks: &[DraftRequest<'_>]) -> usize {
        const FEW: usize = 3;
        if !self.context.decodes_rectangles() || !self.context.model().can_roll_back() {
            return 0;
        }
        let missing = |ask: &DraftRequest<'_>| {
            let slot = self.slots.get(ask.slot).filter(|slot| slot.disabled.is_none() && ask.n_max > 0)?;
            Some(ask.tokens.len() - common_prefix(&slot.cache, ask.tokens))
        };
        asks.iter().filter_map(missing).filter(|missing| *missing <= FEW).max().unwrap_or(0)
    }

    /// Evaluates the batch, and takes the tokens in it into the slots' caches.
    fn evaluate(&mut self) -> BatchResult {
        if self.batch.is_empty() {
            return BatchResult::Yes;
        }
        let mut result = self.context.decode(&self.batch);
        if result == Err(DecodeError::Full) && self.forget_waiting() {
            result = self.context.decode(&self.batch);
        }
        for slot in &mut self.slots {
            match &result {
                Ok(()) => slot.cache.push(&slot.in_batch),
                Err(DecodeError::Full) => {}
                Err(DecodeError::Aborted) if slot.in_batch.is_empty() => {}
                Err(DecodeError::Aborted) => slot.cache.recover(&mut self.context, &slot.in_batch),
                Err(DecodeError::Failed(_)) => slot.cache.clear(&mut self.context),
            }
            slot.in_batch.clear();
        }
        match result {
            Ok(()) => BatchResult::Yes,
            Err(DecodeError::Full) => BatchResult::Full,
            Err(DecodeError::Aborted) => BatchResult::No,
            Err(DecodeError::Failed(why)) => {
                self.disable(&format!("the draft failed: {why}"));
                BatchResult::No
            }
        }
    }

    /// Nothing is drafted for those who have a request now.
    fn disable(&mut self, why: &str) {
        for slot in self.slots.iter_mut().filter(|slot| slot.tips.is_some()) {
            slot.disabled = Some(why.to_owned());
        }
    }

    /// Empties the caches of slots that nothing is drafted for in this step, as of those that the target lets wait: what they
    /// need of it is evaluated again. False when that made no room.
    fn forget_waiting(&mut self) -> bool {
        let mut forgot = false;
        for slot in &mut self.slots {
            if slot.in_batch.is_empty() && slot.n_tips == 0 && !slot.cache.is_empty() {
                slot.cache.clear(&mut self.context);
                forgot = true;
            }
        }
        forgot
    }

    /// Samples the next token of each branch and puts it into the next batch. A branch that is done has no row afterwards.
    fn extend(&mut self, asks: &mut [DraftRequest<'_>]) {
        self.batch.clear();
        for ask in asks {
            for index in 0..self.slots.get(ask.slot).map_or(0, |slot| slot.n_tips) {
                self.grow(ask, index);
            }
        }
    }

    /// Adds a token to a branch, and branches that begin beside it.
    fn grow(&mut self, ask: &mut DraftRequest<'_>, index: usize) {
        let DraftModel { context, batch, slots, n_vocab } = self;
        let Some(slot) = slots.get_mut(ask.slot) else { return };
        let DraftModelSlot { cache, in_batch, tips: Some(tips), n_tips, branches, .. } = slot else { return };
        let Some((tip, row)) = tips.get_mut(index).and_then(|tip| tip.row.take().map(|row| (tip, row))) else { return };
        // Branches beside this one may have taken what there was room for.
        if ask.draft.tokens.len() >= ask.n_max {
            return;
        }
        let Some(logits) = context.logits(row).and_then(|logits| logits.get_mut(..*n_vocab)) else { return };
        let parent = tip.node;
        let free = ask.branches.0.min(branches.len() + 1).saturating_sub(*n_tips);
        // Nothing can follow (a grammar's end): the draft ends, the target says what is next.
        let [Some(first), others @ ..] = tip.choose(ask, logits, free) else { return };
        let node = ask.draft.push_behind(parent, first.0, first.1);
        for (token, confidence) in others.into_iter().flatten() {
            let node = ask.draft.push_behind(parent, token, confidence);
            if tips.len() == *n_tips && !add_tip(tips, branches) {
                continue;
            }
            let Some((used, unused)) = tips.split_at_mut_checked(*n_tips) else { continue };
            let (Some(tip), Some(branch)) = (used.get(index), unused.first_mut()) else { continue };
            branch.branch_from(tip);
            if !context.share(tip.sequence, branch.sequence) {
                continue;
            }
            *n_tips += 1;
            branch.take(node, token, confidence);
            if branch.goes_on(ask, context, token) {
                branch.row = Some(batch.push(token, branch.position - 1, branch.sequence, true));
            }
        }
        let Some(tip) = tips.get_mut(index) else { return };
        tip.take(node, first.0, first.1);
        let is_main = index == 0;
        if tip.goes_on(ask, context, first.0) && (!is_main || cache.tokens_until_group() > 0) {
            tip.row = Some(batch.push(first.0, tip.position - 1, tip.sequence, true));
            in_batch.extend(is_main.then_some(first.0));
        }
    }

    /// Decodes nothing of what was put into the batch.
    fn stop(&mut self) {
        self.batch.clear();
        for slot in &mut self.slots {
            slot.in_batch.clear();
            slot.tips.iter_mut().flatten().for_each(|tip| tip.row = None);
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
fn add_tip(tips: &mut Vec<DraftBranch>, branches: &[SeqId]) -> bool {
    let Some(main) = tips.first() else { return false };
    let (sampler, ends_in_doubt) = (main.sampler.for_draft(false), main.ends_in_doubt);
    let Some(sequence) = tips.len().checked_sub(1).and_then(|index| branches.get(index)) else { return false };
    tips.push(DraftBranch::new(*sequence, sampler, ends_in_doubt));
    true
}

impl Drafter for DraftModel {
    fn source(&self) -> DrafterKind {
        DrafterKind::Draft
    }

    fn begin(&mut self, slot: usize, sampler: &Sampler, settings: &Settings) {
        if let Some(slot) = self.slots.get_mut(slot) {
            let sampler = sampler.for_draft(settings.verify == Verify::Match);
            let ends_in_doubt = settings.adaptive == Adaptive::Heuristic;
            slot.tips = Some(vec![DraftBranch::new(slot.cache.id(), sampler, ends_in_doubt)]);
            slot.disabled = None;
        }
    }

    fn draft(&mut self, asks: &mut [DraftRequest<'_>]) {
        match self.catch_up(asks) {
            BatchResult::Yes => {}
            BatchResult::Full => return self.disable("the draft's context is full"),
            BatchResult::No => return,
        }
        for ask in asks.iter() {
            let Some(slot) = self.slots.get_mut(ask.slot).filter(|slot| slot.n_tips > 0) else { continue };
            let begun = slot.main().map(|main| main.begin(ask.tokens, ask.sampler));
            slot.n_tips = usize::from(begun.is_some());
        }
        loop {
            self.extend(asks);
            if !another_round_pays(asks.iter().map(DraftRequest::growing)) {
                self.stop();
            }
            // Where there is no room for a longer draft, it ends.
            if self.batch.is_empty() || self.evaluate() != BatchResult::Yes {
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
        if snapshot.tokens.len() > self.context.n_ctx() || cache.mismatch(&self.context, snapshot).is_some() {
            return false;
        }
        let Ok(before) = cache.save_before_load(&mut self.context) else { return false };
        if cache.load(&mut self.context, snapshot, before).is_ok() {
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

/// Whether a vocabulary of `n_vocab` tokens lacks this one.
fn is_foreign(token: Token, n_vocab: usize) -> bool {
    usize::try_from(token).map_or(true, |token| token >= n_vocab)
}
