//! Drafting with a small model that shares the target's vocabulary.
//!
//! llama.cpp's `draft-simple` truncates the draft's cache after each draft and decodes the rest again. Here the cache keeps everything that
//! agrees with the context. The last drafted token, which was not decoded yet, is decoded together with the token that the target added, in
//! one batch. All slots draft in the same batches.

use super::draft_branch::DraftBranch;
use super::draft_vocabulary::{CommonTokens, DraftVocabulary};
use crate::session::{self, SelfExtend, Sequence};
use foredraft_base::Snapshot;
use foredraft_base::prompt_fit::common_prefix;
use foredraft_llama::{Batch, Context, DecodeError, SeqId, Token, TokenSubset};
use foredraft_sampling::Sampler;
use foredraft_speculation::another_round_pays;
use foredraft_speculation::{Adaptive, DrafterKind, Settings, Verify};
use foredraft_speculation::{DraftRequest, Drafter};

/// The draft model's context and the state of each slot in it.
pub struct DraftModel {
    context: Context,
    batch: Batch,
    slots: Vec<DraftModelSlot>,
    /// The number of tokens that both vocabularies have.
    n_vocab: usize,
    /// The tokens that every draft can have. `None`: all.
    common: Option<CommonTokens>,
    /// The tokens that a batch scores: those of all its slots.
    scored: TokenSubset,
}

struct DraftModelSlot {
    /// The tokens in the draft's KV cache.
    cache: Sequence,
    /// The slot's tokens in the batch, after those.
    in_batch: Vec<Token>,
    /// The branches of the draft. The first one's tokens go into the cache. `None`: no request speculates here.
    branches: Option<Vec<DraftBranch>>,
    /// The number of branches in use.
    n_branches: usize,
    /// The sequences for the other branches. They are empty except while drafting.
    spare: Vec<SeqId>,
    /// The tokens that its drafts can have.
    vocabulary: DraftVocabulary,
    disabled: Option<String>,
}

impl DraftModelSlot {
    fn new(index: usize, extend: Option<SelfExtend>, spare: Vec<SeqId>) -> DraftModelSlot {
        let cache = Sequence::new(index, extend);
        let vocabulary = DraftVocabulary::default();
        DraftModelSlot { cache, in_batch: Vec::new(), branches: None, n_branches: 0, spare, vocabulary, disabled: None }
    }

    /// The branch whose tokens go into the cache.
    fn main(&mut self) -> Option<&mut DraftBranch> {
        self.branches.as_mut()?.first_mut()
    }
}

/// The result of decoding the batch.
#[derive(PartialEq)]
enum BatchResult {
    Yes,
    /// The context is full. Nothing has changed.
    Full,
    No,
}

impl DraftModel {
    /// Creates a drafter for `n_slots` slots of a target with a vocabulary of `n_vocab` tokens. It scores the `frequent` tokens, those
    /// of the requests' contexts, and some of earlier completions. `None`: all.
    pub fn new(
        context: Context,
        n_slots: usize,
        n_vocab: usize,
        extend: Option<SelfExtend>,
        frequent: Option<TokenSubset>,
    ) -> DraftModel {
        let scored = TokenSubset::empty(context.model().vocab().n_tokens());
        let n_vocab = n_vocab.min(context.model().vocab().n_tokens());
        let branches = |index| session::branches(index, n_slots, context.n_shared());
        let slots = (0..n_slots).map(|index| DraftModelSlot::new(index, extend, branches(index))).collect();
        let common = frequent.map(CommonTokens::new);
        DraftModel { context, batch: Batch::new(), slots, n_vocab, common, scored }
    }

    /// Decodes the tokens of each context that are missing in the cache, up to a physical batch in total. Slots whose cache is then
    /// complete, and whose requests want a draft, get an output to sample from.
    fn catch_up(&mut self, requests: &[DraftRequest<'_>]) -> BatchResult {
        self.batch.clear();
        let mut n_free = self.context.n_ubatch().min(self.context.n_batch());
        // Also resets branches that a failed decode has left.
        self.slots.iter_mut().for_each(|slot| slot.n_branches = 0);
        let together = self.few_missing(requests);
        for request in requests {
            let Some(slot) = self.slots.get_mut(request.slot) else { continue };
            if slot.disabled.is_some() {
                continue;
            }
            if request.tokens.len() >= self.context.n_ctx() {
                let n_ctx = self.context.n_ctx();
                slot.disabled = Some(format!("the request is longer than the draft's context of {n_ctx} tokens"));
                continue;
            }
            let wants_draft = request.n_max > 0;
            // The last token is decoded again if necessary, because its logits are needed.
            let kept = common_prefix(&slot.cache, request.tokens);
            let least = if wants_draft && request.tokens.len() - kept <= together { together } else { 0 };
            let kept = kept.min(request.tokens.len().saturating_sub(least.max(usize::from(wants_draft))));
            let kept = slot.cache.cut(&mut self.context, kept);
            slot.cache.group(&mut self.context);
            let missing = request.tokens.get(kept..).unwrap_or(&[]);
            let chunk = missing.get(..n_free.min(slot.cache.tokens_until_group()).min(missing.len())).unwrap_or(&[]);
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
            n_free -= chunk.len();
            if let Some(main) = slot.main() {
                (main.row, main.position) = (row, next + chunk.len());
                slot.n_branches = usize::from(row.is_some());
            }
        }
        self.decode_batch()
    }

    /// Restricts the decodes for these requests to the tokens that their drafts can have.
    fn restrict(&mut self, requests: &[DraftRequest<'_>]) {
        let DraftModel { context, slots, common, scored, .. } = self;
        if common.is_none() {
            return;
        }
        scored.clear();
        let mut scores_all = false;
        for request in requests {
            let Some(DraftModelSlot { vocabulary, .. }) = slots.get_mut(request.slot) else { continue };
            vocabulary.follow(request.tokens, request.generated);
            match vocabulary.tokens() {
                Some(tokens) => scored.insert_all(tokens),
                None => scores_all = true,
            }
        }
        context.score_only((!scores_all).then_some(&*scored));
    }

    /// The number of tokens to decode for each slot with only a few missing ones, so that they form one physical batch. (After a draft that
    /// was accepted completely, one more token is missing than after others.) 0: their number does not matter.
    fn few_missing(&self, requests: &[DraftRequest<'_>]) -> usize {
        const FEW: usize = 3;
        if !self.context.decodes_rectangles() || !self.context.rollback().is_unlimited() {
            return 0;
        }
        let missing = |request: &DraftRequest<'_>| {
            let slot = self.slots.get(request.slot).filter(|slot| slot.disabled.is_none() && request.n_max > 0)?;
            Some(request.tokens.len() - common_prefix(&slot.cache, request.tokens))
        };
        requests.iter().filter_map(missing).filter(|missing| *missing <= FEW).max().unwrap_or(0)
    }

    /// Decodes the batch, and adds its tokens to the slots' caches.
    fn decode_batch(&mut self) -> BatchResult {
        if self.batch.is_empty() {
            return BatchResult::Yes;
        }
        let mut result = self.context.decode(&self.batch);
        if result == Err(DecodeError::Full) && self.clear_preempted() {
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
            Err(DecodeError::Failed(error)) => {
                self.disable(&format!("the draft failed: {}", error.message()));
                BatchResult::No
            }
        }
    }

    /// If the memory cannot be rolled back, keeps the states before the drafts, and some states along contexts that are still read.
    fn keep_states(&mut self, requests: &[DraftRequest<'_>]) {
        for request in requests {
            match self.slots.get_mut(request.slot) {
                Some(slot) if slot.n_branches > 0 => slot.cache.mark(&mut self.context),
                Some(slot) => slot.cache.checkpoint(&mut self.context),
                None => {}
            }
        }
    }

    /// Disables drafting for all current requests.
    fn disable(&mut self, why: &str) {
        for slot in self.slots.iter_mut().filter(|slot| slot.branches.is_some()) {
            slot.disabled = Some(why.to_owned());
        }
    }

    /// Empties the caches of slots without a draft in this step, such as those that the target has preempted. They are decoded again when
    /// needed. Returns false if this freed nothing.
    fn clear_preempted(&mut self) -> bool {
        let mut forgot = false;
        for slot in &mut self.slots {
            if slot.in_batch.is_empty() && slot.n_branches == 0 && !slot.cache.is_empty() {
                slot.cache.clear(&mut self.context);
                forgot = true;
            }
        }
        forgot
    }

    /// Samples the next token of each branch and adds it to the next batch. A complete branch has no `row` afterwards.
    fn extend(&mut self, requests: &mut [DraftRequest<'_>]) {
        self.batch.clear();
        for request in requests {
            for index in 0..self.slots.get(request.slot).map_or(0, |slot| slot.n_branches) {
                self.grow(request, index);
            }
        }
    }

    /// Adds a token to a branch, and starts alternative branches.
    fn grow(&mut self, request: &mut DraftRequest<'_>, index: usize) {
        let DraftModel { context, batch, slots, n_vocab, .. } = self;
        let Some(slot) = slots.get_mut(request.slot) else { return };
        let DraftModelSlot { cache, in_batch, branches: Some(branches), n_branches, spare, vocabulary, .. } = slot
        else {
            return;
        };
        let Some((branch, row)) = branches.get_mut(index).and_then(|branch| branch.row.take().map(|row| (branch, row)))
        else {
            return;
        };
        // Other branches may have used up the tokens of the draft.
        if request.draft.tokens.len() >= request.n_max {
            return;
        }
        let Some(logits) = context.logits(row).and_then(|logits| logits.get_mut(..*n_vocab)) else { return };
        if let Some(tokens) = vocabulary.tokens() {
            tokens.mask(logits);
        }
        let parent = branch.node;
        let free = request.branches.0.min(spare.len() + 1).saturating_sub(*n_branches);
        // No token is possible (at a grammar's end): the draft ends, and the target chooses.
        let [Some(first), others @ ..] = branch.choose(request, logits, free) else { return };
        let node = request.draft.push_behind(parent, first.0, first.1);
        for (token, confidence) in others.into_iter().flatten() {
            let node = request.draft.push_behind(parent, token, confidence);
            if branches.len() == *n_branches && !add_branch(branches, spare) {
                continue;
            }
            let Some((used, unused)) = branches.split_at_mut_checked(*n_branches) else { continue };
            let (Some(branch), Some(beside)) = (used.get(index), unused.first_mut()) else { continue };
            beside.branch_from(branch);
            if !context.share(branch.sequence, beside.sequence) {
                continue;
            }
            *n_branches += 1;
            beside.take(node, token, confidence);
            if beside.goes_on(request, context, token) {
                beside.row = Some(batch.push(token, beside.position - 1, beside.sequence, true));
            }
        }
        let Some(branch) = branches.get_mut(index) else { return };
        branch.take(node, first.0, first.1);
        let is_main = index == 0;
        if branch.goes_on(request, context, first.0) && (!is_main || cache.tokens_until_group() > 0) {
            branch.row = Some(batch.push(first.0, branch.position - 1, branch.sequence, true));
            in_batch.extend(is_main.then_some(first.0));
        }
    }

    /// Discards the batch.
    fn stop(&mut self) {
        self.batch.clear();
        for slot in &mut self.slots {
            slot.in_batch.clear();
            slot.branches.iter_mut().flatten().for_each(|branch| branch.row = None);
        }
    }

    /// Empties the branches' sequences.
    fn prune(&mut self) {
        for slot in &mut self.slots {
            for branch in slot.branches.iter().flatten().take(slot.n_branches).skip(1) {
                self.context.truncate(branch.sequence, 0);
            }
            slot.n_branches = 0;
        }
    }
}

/// Adds a branch with the next of these sequences. Returns false if there is none.
fn add_branch(branches: &mut Vec<DraftBranch>, spare: &[SeqId]) -> bool {
    let Some(main) = branches.first() else { return false };
    let (sampler, ends_if_uncertain) = (main.sampler.for_draft(false), main.ends_if_uncertain);
    let Some(sequence) = branches.len().checked_sub(1).and_then(|index| spare.get(index)) else { return false };
    branches.push(DraftBranch::new(*sequence, sampler, ends_if_uncertain));
    true
}

impl Drafter for DraftModel {
    fn source(&self) -> DrafterKind {
        DrafterKind::Draft
    }

    fn begin(&mut self, slot: usize, sampler: &Sampler, settings: &Settings) {
        if let Some(slot) = self.slots.get_mut(slot) {
            let sampler = sampler.for_draft(settings.verify == Verify::Match);
            let ends_if_uncertain = settings.adaptive == Adaptive::Heuristic;
            slot.branches = Some(vec![DraftBranch::new(slot.cache.id(), sampler, ends_if_uncertain)]);
            slot.vocabulary.begin(self.common.as_ref());
            slot.disabled = None;
        }
    }

    fn draft(&mut self, requests: &mut [DraftRequest<'_>]) {
        self.restrict(requests);
        match self.catch_up(requests) {
            BatchResult::Yes => {}
            BatchResult::Full => return self.disable("the draft's context is full"),
            BatchResult::No => return,
        }
        self.keep_states(requests);
        for request in requests.iter() {
            let Some(slot) = self.slots.get_mut(request.slot).filter(|slot| slot.n_branches > 0) else { continue };
            let begun = slot.main().map(|main| main.begin(request.tokens, request.sampler));
            slot.n_branches = usize::from(begun.is_some());
        }
        loop {
            self.extend(requests);
            if !another_round_pays(requests.iter().map(DraftRequest::growing)) {
                self.stop();
            }
            // There is no space for a longer draft, so it ends.
            if self.batch.is_empty() || self.decode_batch() != BatchResult::Yes {
                break;
            }
        }
        self.prune();
    }

    fn shift(&mut self, slot: usize, keep: usize, dropped: usize) {
        let Some(slot) = self.slots.get_mut(slot) else { return };
        slot.vocabulary.shift(dropped);
        if !slot.cache.shift(&mut self.context, keep..keep + dropped) {
            slot.cache.cut(&mut self.context, keep);
        }
    }

    fn end(&mut self, slot: usize, tokens: &[Token], generated: usize) {
        if let Some(common) = &mut self.common {
            common.learn(tokens.get(tokens.len().saturating_sub(generated)..).unwrap_or(&[]));
        }
        if let Some(slot) = self.slots.get_mut(slot) {
            slot.branches = None;
        }
    }

    fn save(&mut self, slot: usize) -> Option<Snapshot> {
        let cache = &mut self.slots.get_mut(slot)?.cache;
        if cache.is_empty() { None } else { cache.save(&mut self.context).ok() }
    }

    fn state_size(&mut self, slot: usize) -> usize {
        let Some(slot) = self.slots.get(slot).filter(|slot| !slot.cache.is_empty()) else { return 0 };
        let size = slot.cache.state_size(&mut self.context).unwrap_or(0);
        size + slot.cache.len() * size_of::<Token>()
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

    fn erase(&mut self, slot: usize) -> usize {
        let Some(slot) = self.slots.get_mut(slot) else { return 0 };
        let n = slot.cache.len();
        slot.cache.clear(&mut self.context);
        n
    }

    fn copy(&mut self, from: usize, to: usize, prompt: &[Token]) {
        let Ok([from, to]) = self.slots.get_disjoint_mut([from, to]) else { return };
        let n = from.cache.copyable(&self.context, prompt);
        if self.context.has_buffers() && n > to.cache.reusable(&self.context, prompt, 0) {
            to.cache.copy_from(&mut self.context, &from.cache, n);
        }
    }

    fn reuse(&mut self, slot: usize, prompt: &[Token], least: usize) {
        if let Some(slot) = self.slots.get_mut(slot) {
            slot.cache.reuse(&mut self.context, prompt, least);
        }
    }

    fn forget_answers(&mut self) {
        if let Some(common) = &mut self.common {
            common.forget();
        }
    }

    fn disabled(&self, slot: usize) -> Option<&str> {
        self.slots.get(slot)?.disabled.as_deref()
    }
}

/// Whether a token is not in a vocabulary of `n_vocab` tokens.
fn is_foreign(token: Token, n_vocab: usize) -> bool {
    usize::try_from(token).map_or(true, |token| token >= n_vocab)
}
