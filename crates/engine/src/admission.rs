//! Admission: which waiting request gets which slot, and what it begins with there.

use std::cmp::Reverse;
use std::sync::Arc;

use super::beams::Beams;
use super::compare::Compare;
use super::completion::Completion;
use super::conversations;
use super::decision::ChoiceDecision;
use super::edited_rows::EditedRows;
use super::event::{PromptProbs, PromptStats, Restored};
use super::preemption::PreemptedTask;
use super::prefixes::{self, SlotPrefix};
use super::priority::to_preempt;
use super::request::{PromptState, Request, Submission};
use super::sessions::load_from;
use super::slots::{DroppedTokens, RequestSpeculation, SlotPool, Task};
use super::step::input::SlotState;
use foredraft_base::error::{Code, Error, Result};
use foredraft_base::prompt_fit;
use foredraft_llama::{Token, Vocab};
use foredraft_sampling::{Sampler, SamplingSettings};
use foredraft_speculation::{Settings, Verify};

/// Where a request runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Placement {
    /// A slot. The request that runs there, if there is one, is preempted.
    Slot(usize),
    Beams,
}

/// A waiting request, as far as its place depends on it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Applicant {
    pub(super) prompt: PromptState,
    pub(super) priority: i32,
    pub(super) n_prompt: usize,
    /// The slot that it asks for.
    pub(super) slot: Option<usize>,
    /// Whether the request is a beam search.
    pub(super) has_beams: bool,
    /// Whether a session, or the state of a preempted request, replaces what the slot holds.
    pub(super) loads_session: bool,
}

impl Applicant {
    fn of(submission: &Submission) -> Applicant {
        let Request { options, prompt, .. } = &submission.request;
        Applicant {
            prompt: submission.prompt,
            priority: options.priority,
            n_prompt: prompt.len(),
            slot: options.slot,
            has_beams: options.n_beams > 1,
            loads_session: options.session_load.is_some(),
        }
    }

    fn of_preempted(PreemptedTask { task, .. }: &PreemptedTask) -> Applicant {
        Applicant {
            prompt: PromptState::Known,
            priority: task.options.priority,
            n_prompt: task.tokens.len(),
            slot: task.options.slot,
            has_beams: false,
            loads_session: true,
        }
    }
}

/// One pass over the waiting requests, in the order of their ranks.
///
/// Where slots share their cells, no request overtakes one that waits for cells, nor one of the same or a higher level that waits for them
/// in its slot: they might wait forever. A request keeps a slot from later ones, and lets them have the others, while its prompt is still being prepared, for a moment, or another slot
/// reads the beginning of it.
#[derive(Debug)]
pub(super) struct AdmissionPass {
    states: Vec<SlotState>,
    /// Cells that all slots share; `None`: each slot has its own.
    shared_cells: Option<usize>,
    n_ctx: usize,
    /// See [`prefixes::copy_cost`].
    copy_cost: Option<usize>,
    beams_are_busy: bool,
    cells_are_awaited: bool,
    /// The slots that are kept for requests so far: those that they ask for, or any.
    kept_slots: Vec<Option<usize>>,
    beams_are_kept: bool,
}

impl AdmissionPass {
    pub(super) fn new(pool: &SlotPool, beams_are_busy: bool) -> AdmissionPass {
        let mut states = Vec::with_capacity(pool.slots.len());
        pool.states(&mut states);
        let n_ctx = pool.context.n_ctx();
        AdmissionPass {
            copy_cost: prefixes::copy_cost(pool),
            ..Self::over(states, pool.shared_cells, n_ctx, beams_are_busy)
        }
    }

    fn over(states: Vec<SlotState>, shared_cells: Option<usize>, n_ctx: usize, beams_are_busy: bool) -> AdmissionPass {
        AdmissionPass {
            copy_cost: None,
            cells_are_awaited: false,
            states,
            shared_cells,
            n_ctx,
            beams_are_busy,
            kept_slots: Vec::new(),
            beams_are_kept: false,
        }
    }

    /// The place of the next waiting request; `None`: it has to wait.
    pub(super) fn place(&mut self, pool: &SlotPool, submission: &Submission) -> Option<Placement> {
        let mut applicant = Applicant::of(submission);
        if let (Some(name), None) = (&submission.request.options.conversation, applicant.slot) {
            applicant.slot = free_slot_of(pool, name);
            applicant.loads_session |= applicant.slot.is_none() && pool.conversations.get(name).is_some();
        }
        self.place_applicant(&applicant, || SlotPrefix::in_slots(pool, submission))
    }

    /// The slot of a preempted request that goes on; `None`: it has to wait.
    pub(super) fn place_preempted(&mut self, pool: &SlotPool, preempted: &PreemptedTask) -> Option<Placement> {
        let mut applicant = Applicant::of_preempted(preempted);
        applicant.slot = applicant.slot.or_else(|| free_slot_of(pool, preempted.prepared_conversation()?));
        self.place_applicant(&applicant, Vec::new)
    }

    /// Keeps a slot, one that is asked for or any, for a request that cannot begin yet.
    pub(super) fn keep_slot(&mut self, slot: Option<usize>) {
        self.kept_slots.push(slot);
    }

    /// A request has begun.
    pub(super) fn begun(&mut self, pool: &SlotPool, beams_are_busy: bool) {
        pool.states(&mut self.states);
        self.beams_are_busy = beams_are_busy;
    }

    /// As [`AdmissionPass::place`]. `prefixes`: the beginning of the prompt in each slot.
    fn place_applicant(
        &mut self,
        applicant: &Applicant,
        prefixes: impl FnOnce() -> Vec<SlotPrefix>,
    ) -> Option<Placement> {
        match applicant.prompt {
            PromptState::Known => {}
            PromptState::Late => return None,
            PromptState::Awaited(_) => {
                match applicant.has_beams {
                    true => self.beams_are_kept = true,
                    false => self.kept_slots.push(applicant.slot),
                }
                return None;
            }
        }
        if applicant.has_beams {
            return (!self.beams_are_busy && !self.beams_are_kept).then_some(Placement::Beams);
        }
        let has_free = self.states.iter().filter(|state| !state.has_request).count() > self.kept_slots.len();
        let prefixes = if has_free { prefixes() } else { Vec::new() };
        let free = if has_free { self.slot_for(applicant, &prefixes) } else { None };
        let index = free.or_else(|| to_preempt(&self.states, applicant.priority, applicant.slot))?;
        if self.kept_slots.contains(&Some(index)) {
            return None;
        }
        if self.cells_are_awaited || !self.has_cells_for(applicant) {
            self.cells_are_awaited = true;
            return None;
        }
        if free.is_none() {
            return Some(Placement::Slot(index));
        }
        if self.waits_for_prefix(index, &prefixes) {
            self.kept_slots.push(applicant.slot);
            return None;
        }
        Some(Placement::Slot(index))
    }

    /// The free slot for a request: the one it asks for, else the one whose cache begins with most of its prompt, else, or if the rest of
    /// that cache is worth more, the one unused for longest. `None`: none is free.
    fn slot_for(&self, applicant: &Applicant, prefixes: &[SlotPrefix]) -> Option<usize> {
        let mut free = (0..).zip(&self.states).filter(|(_, state)| !state.has_request);
        if let Some(requested) = applicant.slot {
            return free.find(|(index, _)| *index == requested).map(|(index, _)| index);
        }
        if applicant.loads_session {
            return free.min_by_key(|(_, state)| state.last_used).map(|(index, _)| index);
        }
        let reusable = |index: usize| prefixes.get(index).map_or(0, |prefix| prefix.reusable);
        let unused =
            |index: usize, state: &SlotState| (Reverse(self.batch_parts_with(index)), Reverse(state.last_used));
        let oldest = free.clone().max_by_key(|(index, state)| unused(*index, state))?;
        let fullest = free.max_by_key(|(index, state)| {
            // A tenth in common is more than a BOS and a system prompt's first words.
            let worth = if 10 * reusable(*index) > applicant.n_prompt { reusable(*index) } else { 0 };
            (worth, unused(*index, state))
        })?;
        // The cache that begins with most of the prompt can be that of another conversation, which goes on if the prompt gets a copy in a
        // slot that has less to lose. A cache that has the whole prompt is asked for another answer.
        let is_another = reusable(fullest.0) + 1 < applicant.n_prompt;
        let Some(cost) = self.copy_cost.filter(|_| is_another) else { return Some(fullest.0) };
        let longest = prefixes.iter().map(|prefix| prefix.copyable).max().unwrap_or(0);
        // The tokens that are decoded, or copied, for this prompt or for the next request that wants what the slot had.
        let loss = |(index, state): (usize, &SlotState)| {
            let missing = applicant.n_prompt - reusable(index).min(applicant.n_prompt);
            let copied = (applicant.n_prompt - longest.min(applicant.n_prompt)).saturating_add(cost);
            state.n_cached.saturating_sub(reusable(index)) + missing.min(copied)
        };
        Some(if loss(oldest) < loss(fullest) { oldest.0 } else { fullest.0 })
    }

    /// Whether another slot reads so much of a prompt that it pays to wait for that and to copy it. The slot `index` would read the same
    /// tokens, beside the other one and not sooner.
    fn waits_for_prefix(&self, index: usize, prefixes: &[SlotPrefix]) -> bool {
        let Some(cost) = self.copy_cost else { return false };
        let own = prefixes.get(index).map_or(0, |prefix| prefix.reusable);
        let longest = |part: fn(&SlotPrefix) -> usize| prefixes.iter().map(part).max().unwrap_or(0);
        longest(|prefix| prefix.awaited) > longest(|prefix| prefix.copyable).max(own + cost)
    }

    /// The number of parts into which llama.cpp divides a batch of all busy slots and this one: with a KV buffer for each sequence, it
    /// decodes only consecutive sequence ids together.
    fn batch_parts_with(&self, index: usize) -> usize {
        if self.shared_cells.is_some() {
            return 1;
        }
        let runs = |at: usize| at == index || self.states.get(at).is_some_and(|state| state.has_request);
        (0..self.states.len()).filter(|at| runs(*at) && !at.checked_sub(1).is_some_and(runs)).count()
    }

    /// Whether there are cells for a prompt beside the requests that do not make way for it, and none of these waits for cells.
    fn has_cells_for(&self, applicant: &Applicant) -> bool {
        let Some(cells) = self.shared_cells else { return true };
        let others = || self.states.iter().filter(|state| state.has_request && state.level >= applicant.priority);
        let running: usize = others().map(|state| state.n_cached.max(state.n_tokens)).sum();
        let is_awaited = others().any(|state| state.is_preempted);
        running == 0 || !is_awaited && running + applicant.n_prompt.min(self.n_ctx) < cells
    }
}

/// The free slot that has the state of a conversation.
fn free_slot_of(pool: &SlotPool, name: &str) -> Option<usize> {
    pool.slots.iter().position(|slot| slot.task.is_none() && slot.has_conversation(name))
}

/// The part of a prompt that is decoded, and whether tokens were left out because it does not fit.
fn fitting(pool: &SlotPool, mut tokens: Vec<Token>, n_keep: usize) -> Result<(Vec<Token>, bool)> {
    let (n_total, n_ctx) = (tokens.len(), pool.context.n_ctx());
    let left_out = prompt_fit::prompt_truncation(n_total, n_keep, n_ctx);
    match &left_out {
        Some(_) if !pool.ctx_shift => {
            let message =
                format!("prompt: {n_total} tokens do not fit into the context of {n_ctx}, which may not shift");
            return Err(Error::context_full(message, n_total, n_ctx));
        }
        Some(range) => drop(tokens.drain(range.clone())),
        None => {}
    }
    if tokens.is_empty() {
        return Err(match left_out {
            None => Error::invalid("prompt: has no tokens, and the model begins texts with none"),
            // A context of one token.
            Some(_) => {
                let message = format!("prompt: no part of its {n_total} tokens fits into the context of {n_ctx}");
                Error::context_full(message, n_total, n_ctx)
            }
        });
    }
    Ok((tokens, left_out.is_some()))
}

/// Begins a beam search.
pub(super) fn begin_beams(pool: &SlotPool, beams: &mut Beams, mut submission: Submission) -> Result<()> {
    let has_media = check_media(pool, &submission.request)?;
    let prompt = std::mem::take(&mut submission.request.prompt).to_vec();
    let n_total = prompt.len();
    let n_keep = prompt_fit::effective_n_keep(submission.request.options.n_keep, n_total, pool.context.n_ctx());
    let (prompt, truncated) = fitting(pool, prompt, n_keep)?;
    if truncated && has_media {
        return Err(media_do_not_fit(n_total, pool.context.n_ctx()));
    }
    let stats = PromptStats { n_total, n_prompt: prompt.len(), n_cached: 0, truncated };
    beams.begin(submission, prompt, stats)
}

/// Begins a request in a free slot.
pub(super) fn begin(pool: &mut SlotPool, index: usize, submission: Submission) -> Result<()> {
    let compare = Compare::first(&submission.request);
    let Submission { mut request, sink, deadline, rank, first_run, .. } = submission;
    let (model, n_ctx) = (Arc::clone(pool.context.model()), pool.context.n_ctx());
    adapt_to_media(pool, &mut request)?;
    let vocab = model.vocab();
    let reuses_cache = request.reuses_cache();
    let mut options = request.options;
    let is_preparation = options.is_preparation();
    let n_total = request.prompt.len();
    let n_keep = prompt_fit::effective_n_keep(options.n_keep, n_total, n_ctx);
    let (mut tokens, truncated) = fitting(pool, request.prompt.to_vec(), n_keep)?;
    if truncated && !request.media.is_empty() {
        return Err(media_do_not_fit(n_total, n_ctx));
    }
    let biases = || request.sampling.logit_bias.clone();
    let decide = |questions| ChoiceDecision::new(questions, biases(), tokens.len(), n_ctx);
    let decision = request.questions.filter(|_| !is_preparation).map(decide).transpose()?;
    let begun = options.place().map_or_else(Arc::default, |place| pool.begun.take(&place, request.identity));
    let is_begun = request.prefix.is_empty();
    let prefix = if is_begun { begun } else { request.prefix };
    conversations::switch(pool, index, options.conversation.as_deref(), &tokens);
    if reuses_cache && first_run.is_none() && options.session_load.is_none() {
        let drafts = request.speculative.is_some();
        prefixes::copy_longest(pool, index, &tokens, &request.lora, options.n_cache_reuse, drafts);
    }
    let session_load: Option<Restored> =
        options.session_load.as_deref().map(|path| load_from(pool, index, path)).transpose()?;
    let slot = pool.slots.get_mut(index).ok_or_else(|| Error::new(Code::Internal, "no such slot"))?;
    // A session's seed goes on if the request continues its tokens, whatever is left of them in the cache.
    let continues = slot.loaded.as_ref().is_some_and(|loaded| tokens.starts_with(loaded));
    slot.loaded.take_if(|_| !is_preparation);
    let seed = slot.seed.filter(|seed| continues && seed.seed == request.sampling.seed);
    let seed_position = options.seed_position.or(seed.map(|seed| seed.position(tokens.len()))).unwrap_or(0);
    let mut sampler = Sampler::new(&request.sampling, &*model, request.constraint)?;
    let is_resumed =
        options.prompt_probs.is_none() && can_resume(&prefix, &request.sampling, &compare, tokens.len(), n_ctx);
    let mut completion = Completion::new(&mut options, &request.sampling, seed_position, compare);
    let output = tokens.len();
    let mut n_begun = 0;
    if is_resumed {
        let (n_resumed, added) = resume(&mut sampler, &completion, &prefix, vocab);
        let resumed = prefix.get(..n_resumed).unwrap_or(&[]);
        tokens.extend_from_slice(resumed);
        completion.resume(resumed, &added);
        n_begun = if is_begun { n_resumed } else { 0 };
    }
    if completion.has_begun() {
        sink.set_generating();
    }
    // One token at least must be decoded, for its logits.
    let reusable = match pool.reuses_prompts && reuses_cache && slot.lora == request.lora {
        true => prefixes::beginning(&tokens),
        false => &[],
    };
    let reusable = first_run.map_or(reusable, |first_run| first_run.of(reusable));
    let n_reused = slot.cache.reuse(&mut pool.context, reusable, options.n_cache_reuse);
    first_run.map_or(Ok(()), |first_run| first_run.check(n_reused))?;
    let n_cached = n_reused.min(output.saturating_sub(1));
    slot.lora = request.lora;
    // Free draft tokens need no request. A second run to compare with has no draft at all.
    let offers_free_tokens = pool.context.pads_single_tokens() && first_run.is_none() && decision.is_none();
    let is_requested = request.speculative.is_some();
    let settings = request.speculative.or_else(|| offers_free_tokens.then(Settings::none));
    let speculation = settings.map(|settings| speculate(pool, index, settings, is_requested, &sampler));
    if options.cache_prompt && options.n_cache_reuse > 0 {
        pool.drafters.reuse(index, &tokens, options.n_cache_reuse);
    }
    let n_admissions = pool.count_admission();
    let prompt = PromptStats { n_total, n_prompt: output, n_cached, truncated };
    let slot = pool.slots.get_mut(index).ok_or_else(|| Error::new(Code::Internal, "no such slot"))?;
    slot.last_used = n_admissions;
    let prompt_probs =
        options.prompt_probs.and(tokens.first()).map(|first| PromptProbs { first: *first, others: Vec::new() });
    slot.task = Some(Task {
        sink,
        prompt_probs,
        output,
        tokens,
        media: request.media,
        sampler,
        edited_rows: request.logits_editor.map(EditedRows::new),
        completion,
        options,
        // As llama.cpp: a BOS that begins every text is kept as well.
        n_keep: prompt_fit::effective_n_keep(Some(n_keep + usize::from(vocab.adds_bos())), n_total, n_ctx),
        deadline,
        identity: request.identity,
        rank,
        n_preempted: 0,
        n_begun,
        speculation,
        decision,
        prompt,
        session_load,
        truncated,
        is_suspect: false,
        is_preempted: false,
        dropped: DroppedTokens::default(),
    });
    Ok(())
}

/// Turns off the shifts of a context, which a request with pictures or sounds cannot have.
///
/// # Errors
/// The engine cannot decode them, or the request asks for what is not available with them.
fn adapt_to_media(pool: &SlotPool, request: &mut Request) -> Result<()> {
    if check_media(pool, request)? {
        request.options.ends_when_full = true;
        request.options.n_cache_reuse = 0;
    }
    Ok(())
}

fn media_do_not_fit(n_total: usize, n_ctx: usize) -> Error {
    let message = format!("prompt: {n_total} tokens with pictures or sounds do not fit into the context of {n_ctx}");
    Error::context_full(message, n_total, n_ctx)
}

/// Returns whether a request has pictures or sounds.
///
/// # Errors
/// The engine cannot decode them, or the request asks for what is not available with them.
fn check_media(pool: &SlotPool, request: &Request) -> Result<bool> {
    let Request { prompt, media, options, .. } = request;
    let Some(n_together) = media.iter().map(|medium| medium.most_together()).max() else { return Ok(false) };
    let n_ubatch = pool.context.n_ubatch();
    let is_grouped = pool.slots.iter().any(|slot| slot.cache.tokens_until_group() < usize::MAX);
    let refusals = [
        (
            n_together > n_ubatch,
            format!("n_ubatch: a picture has {n_together} rows that are decoded together, and it is {n_ubatch}"),
        ),
        (
            prompt.last().is_some_and(|last| *last < 0),
            "prompt: ends with a picture or a sound, after which there is no text".to_owned(),
        ),
        (options.prompt_probs.is_some(), "prompt_logprobs: not available with pictures or sounds".to_owned()),
        (is_grouped, "grp_attn_n: not available with pictures or sounds".to_owned()),
    ];
    match refusals.into_iter().find(|(is_refused, _)| *is_refused) {
        Some((_, why)) => Err(Error::invalid(why)),
        None => Ok(true),
    }
}

/// Whether a completion can go on after a prefix: its sampler has no state that depends on the logits of earlier tokens, nothing is
/// reported of these, and the context has not shifted.
fn can_resume(
    prefix: &[Token],
    sampling: &SamplingSettings,
    compare: &Option<Compare>,
    n_prompt: usize,
    n_ctx: usize,
) -> bool {
    let is_plain = sampling.n_probs == 0 && !sampling.has_state() && compare.is_none();
    !prefix.is_empty() && is_plain && n_prompt + prefix.len() < n_ctx
}

/// Advances a sampler by the longest part of a prefix that does not end the completion. Returns its length, and the bytes that it adds to
/// the text. Nothing: the prefix cannot be that of this completion.
fn resume(sampler: &mut Sampler, completion: &Completion, prefix: &[Token], vocab: &Vocab) -> (usize, Vec<u8>) {
    let mut copy = sampler.for_draft(false);
    let (mut n_resumed, mut added) = (0, Vec::new());
    for token in prefix {
        let len = added.len();
        if completion.end_after(n_resumed, &mut added, *token, vocab).is_some() {
            added.truncate(len);
            break;
        }
        if copy.accept(*token).is_err() {
            return (0, Vec::new());
        }
        n_resumed += 1;
    }
    sampler.sync_from(&copy);
    (n_resumed, added)
}

/// Why a draft has one branch where the request asks for more.
const NO_BRANCHES: &str = "n_branches: one, since these need another verify rule than block, a model whose memory can be cut \
    back, and n_parallel 1 or kv_unified";

/// Begins the speculation of a request.
fn speculate(
    pool: &mut SlotPool,
    index: usize,
    mut settings: Settings,
    is_requested: bool,
    sampler: &Sampler,
) -> RequestSpeculation {
    let is_chain = settings.n_branches > 1 && (settings.verify == Verify::Block || pool.context.n_shared() < 2);
    settings.n_branches = if is_chain { 1 } else { settings.n_branches };
    let drafts = pool.drafters.begin(index, sampler, &settings);
    let disabled = drafts.disabled().or(is_chain.then_some(NO_BRANCHES)).map(str::to_owned);
    RequestSpeculation::new(&settings, is_requested, sampler, drafts, disabled)
}

#[cfg(test)]
mod tests;
