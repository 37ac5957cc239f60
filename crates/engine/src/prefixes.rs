//! Prompts with the same beginning: which slots have it in their caches or are reading it, and when a copy from slot to slot pays.

use super::request::Submission;
use super::request_handle::Phase;
use super::slots::{Slot, SlotPool};
use foredraft_llama::Token;

/// The beginning of a waiting request's prompt in a slot, in tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct SlotPrefix {
    /// Those that the request finds if it begins in this slot.
    pub(super) reusable: usize,
    /// Those that it can copy to another slot.
    pub(super) copyable: usize,
    /// Those that it can copy once the request in this slot has read them; 0: that request does not read them.
    pub(super) awaited: usize,
}

impl SlotPrefix {
    /// The prefix of a submission's prompt in each slot.
    pub(super) fn in_slots(pool: &SlotPool, submission: &Submission) -> Vec<SlotPrefix> {
        let request = &submission.request;
        let copies = request.reuses_cache() && request.options.session_load.is_none();
        let prompt = beginning(&request.prompt);
        let in_slot = |slot: &Slot| {
            let reusable = slot.reusable(&pool.context, prompt, &request.lora, request.options.n_cache_reuse);
            if !copies || slot.lora != request.lora {
                return SlotPrefix { reusable, ..SlotPrefix::default() };
            }
            let copyable = slot.cache.copyable(&pool.context, prompt);
            SlotPrefix { reusable, copyable, awaited: awaited(pool, slot, submission).unwrap_or(0) }
        };
        pool.slots.iter().map(in_slot).collect()
    }
}

/// The part of a prompt that a cache can supply: the last token must be decoded for its logits.
pub(super) fn beginning(prompt: &[Token]) -> &[Token] {
    prompt.split_last().map_or(&[], |(_, beginning)| beginning)
}

/// The number of tokens that take as long to decode as a copy of a slot's cache. `None`: caches are not copied, because the model does not
/// reuse prompts, or because slots share their cells: a shift of one would move the tokens of the other.
///
/// A copy moves the slot's whole buffer. A decode of a token multiplies each weight, and a layer has at least four times `n_embd` as many
/// weights as a cell has numbers (about 12 `n_embd`² beside at most 2 `n_embd`). Processors multiply some 30 times while memory moves a
/// number. So a token takes as long as `n_embd` / 8 cells; with grouped queries, several times as long.
pub(super) fn copy_cost(pool: &SlotPool) -> Option<usize> {
    let cells_per_token = (pool.context.model().n_embd() / 8).max(1);
    (pool.shared_cells.is_none() && pool.reuses_prompts).then(|| pool.context.n_ctx().div_ceil(cells_per_token))
}

/// The tokens of the submission's prompt that the request in `slot` is reading and that can be copied then. `None`: it reads none of them.
///
/// Only a request that was submitted before is waited for, so waits end: each one ends with a part of an older request's prompt, and no
/// request waits for one that waits itself. A request that scores its prompt reads it more slowly than others would.
fn awaited(pool: &SlotPool, slot: &Slot, submission: &Submission) -> Option<usize> {
    let leader = slot.task.as_ref().filter(|task| task.phase() == Phase::Prompt && !task.is_preempted)?;
    if leader.is_suspect
        || leader.options.is_preparation()
        || leader.prompt_probs.is_some()
        || leader.sink.id() > submission.sink.id()
    {
        return None;
    }
    let n_cached = slot.cache.len();
    let n_common = slot.cache.unmoved_prefix(&leader.tokens, beginning(&submission.request.prompt));
    let end = leader.tokens.len().saturating_sub(1);
    let n = match pool.context.cuts_anywhere() || n_common >= end {
        true => n_common.min(end),
        // The memory can be rolled back only to the ends of batches.
        false => {
            let n_batch = pool.context.n_batch().max(1);
            n_cached + n_common.saturating_sub(n_cached) / n_batch * n_batch
        }
    };
    (n > n_cached).then_some(n)
}

/// Copies to the slot `index` the longest prefix of `tokens` that another slot has, if that pays. `drafts`: the request speculates, so
/// drafters copy theirs as well.
pub(super) fn copy_longest(
    pool: &mut SlotPool,
    index: usize,
    tokens: &[Token],
    lora: &[f32],
    min_len: usize,
    drafts: bool,
) {
    let Some(cost) = copy_cost(pool) else { return };
    let prompt = beginning(tokens);
    let SlotPool { context, slots, drafters, .. } = pool;
    let own = slots.get(index).map_or(0, |slot| slot.reusable(context, prompt, lora, min_len));
    let others = slots.iter().filter(|slot| slot.index != index && slot.lora == lora);
    let others = others.map(|slot| (slot.cache.copyable(context, prompt), slot.index));
    let Some((n, from)) = others.max_by_key(|(n, _)| *n).filter(|(n, _)| *n > own + cost) else { return };
    let Ok([source, slot]) = slots.get_disjoint_mut([from, index]) else { return };
    if slot.cache.copy_from(context, &source.cache, n) {
        slot.lora = lora.to_vec();
        if drafts {
            drafters.copy(from, index, tokens);
        }
    }
}
