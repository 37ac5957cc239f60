//! Who gets a slot, and what a request begins with there.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::sync::Arc;

use super::command::Submission;
use super::event::{PromptStats, Stop};
use super::generation::Generation;
use super::slots::Slot;
use super::task::{Parts, Speculation, Task};
use super::ticket::Phase;
use crate::error::{Code, Error, Result};
use crate::llama::Token;
use crate::sampling::Sampler;
use crate::session;
use crate::speculative::Source;

impl Generation {
    /// Gives free slots to the requests that wait, in their order.
    pub(super) fn admit(&mut self, notify: &mut dyn FnMut(u64)) {
        let mut waiting = VecDeque::with_capacity(self.queue.len());
        while let Some(submission) = self.queue.pop_front() {
            match self.slot_for(&submission) {
                Some(index) if submission.ticket.start() => {
                    let ticket = submission.ticket.clone();
                    if let Err(error) = self.begin(index, submission) {
                        let outcome = ticket.never_ran(Stop::Error(error));
                        self.ended.push((ticket, outcome));
                    } else if let Some(task) = self.slots.get(index).and_then(|slot| slot.task.as_ref())
                        && task.progress
                    {
                        // Before the first evaluation: that it has begun.
                        task.report_progress(task.prompt.n_cached);
                        notify(ticket.id());
                    }
                }
                Some(_) => notify(submission.ticket.id()), // cancelled at this moment
                None => waiting.push_back(submission),
            }
        }
        self.queue = waiting;
    }

    /// The free slot for a request: the one it asks for, else the one whose cache begins with most of its prompt, else
    /// the one unused for longest. `None`: none is free, or the cache has no room beside those that run.
    fn slot_for(&self, submission: &Submission) -> Option<usize> {
        let request = &submission.request;
        let leader = request.prompt_of.filter(|_| self.can_copy()).map(|index| submission.ticket.phase_of(index));
        if leader.is_some_and(|phase| matches!(phase, Phase::Queued | Phase::Prompt)) {
            return None; // soon the prompt can be copied
        }
        let free = self.slots.iter().filter(|slot| slot.task.is_none());
        let slot = match request.slot {
            Some(index) => free.into_iter().find(|slot| slot.index == index)?,
            None => free.into_iter().max_by_key(|slot| {
                let common = slot.common_prefix(&request.prompt, &request.lora);
                // A tenth in common is more than a BOS and a system prompt's first words.
                let worth = if 10 * common > request.prompt.len() { common } else { 0 };
                (worth, Reverse(slot.last_used))
            })?,
        };
        let n_prompt = request.prompt.len().min(self.context.n_ctx());
        let running: usize = self.running().map(|(slot, task)| slot.cache.len().max(task.tokens.len())).sum();
        let fits = self.shared_cells.is_none_or(|cells| running == 0 || running + n_prompt < cells);
        fits.then_some(slot.index)
    }

    /// Whether caches are copied from slot to slot. Not where slots share their cells: a shift of the one would move the
    /// tokens of the other.
    fn can_copy(&self) -> bool {
        self.shared_cells.is_none()
    }

    /// Copies the cache of the slot that begins with most of `tokens`, if that is more than the slot `index` has itself.
    fn copy_prefix(&mut self, index: usize, tokens: &[Token], lora: &[f32]) {
        let common = |slot: &Slot| slot.common_prefix(tokens, lora);
        let own = self.slots.get(index).map_or(0, common);
        let best = self.slots.iter().filter(|slot| slot.index != index).max_by_key(|slot| common(slot));
        let Some(best) = best.filter(|best| common(best) > own) else { return };
        let (from, cache) = (best.sequence(), best.cache.clone());
        let Some(slot) = self.slots.get_mut(index) else { return };
        if self.context.copy(from, slot.sequence()) {
            slot.cache = cache;
            slot.lora = lora.to_vec();
        }
    }

    /// Starts a request in a free slot.
    fn begin(&mut self, index: usize, submission: Submission) -> Result<()> {
        let Submission { request, ticket, deadline } = submission;
        let n_ctx = self.context.n_ctx();
        let model = Arc::clone(self.context.model());
        let vocab = model.vocab();
        let n_total = request.prompt.len();
        let n_keep = session::keep(request.n_keep, n_total, n_ctx);
        let mut tokens = request.prompt.to_vec();
        let left_out = session::leave_out(n_total, n_keep, n_ctx);
        match &left_out {
            Some(_) if !self.ctx_shift => {
                return Err(Error::new(
                    Code::ContextFull,
                    format!("prompt: {n_total} tokens do not fit into the context of {n_ctx}, which may not shift"),
                ));
            }
            Some(range) => drop(tokens.drain(range.clone())),
            None => {}
        }
        if tokens.is_empty() {
            return Err(Error::invalid("prompt: has no tokens, and the model begins texts with none"));
        }
        if request.prompt_of.is_some() && request.cache_prompt && self.can_copy() {
            self.copy_prefix(index, &tokens, &request.lora);
        }
        let slot = self.slots.get_mut(index).ok_or_else(|| Error::new(Code::Internal, "no such slot"))?;
        let mut reused = if request.cache_prompt { slot.common_prefix(&tokens, &request.lora) } else { 0 };
        // One token at least must be evaluated, for its logits.
        reused = reused.min(tokens.len() - 1);
        if !self.context.truncate(slot.sequence(), reused) {
            self.context.truncate(slot.sequence(), 0);
            reused = 0;
        }
        slot.cache.truncate(reused);
        slot.lora = request.lora;
        let sampler = Sampler::new(&request.sampling, vocab, request.grammar)?;
        let mut speculation = request.speculative.map(Speculation::new);
        if let Some(speculation) = &mut speculation {
            let obstacle = match &mut self.drafter {
                _ if !speculation.settings.sources.contains(&Source::Draft) => Some("no drafter was asked for".into()),
                Some(drafter) => {
                    drafter.begin(index, &sampler, &speculation.settings).err().map(|error| error.message().to_owned())
                }
                None => Some(self.draft_obstacle.clone().unwrap_or_else(|| "there is no draft model".into())),
            };
            speculation.stats.disabled = obstacle;
        }
        self.tick += 1;
        slot.last_used = self.tick;
        slot.task = Some(Task::new(Parts {
            ticket,
            prompt: PromptStats { n_total, n_prompt: tokens.len(), n_cached: reused, truncated: left_out.is_some() },
            tokens,
            n_probs: request.sampling.n_probs,
            post_sampling_probs: request.post_sampling_probs,
            progress: request.progress,
            sampler,
            // As llama.cpp: a BOS that begins every text is kept as well.
            n_keep: session::keep(Some(n_keep + usize::from(vocab.adds_bos())), n_total, n_ctx),
            n_predict: request.n_predict,
            t_max_predict: request.t_max_predict,
            deadline,
            speculation,
            stop: request.stop,
        }));
        Ok(())
    }
}
