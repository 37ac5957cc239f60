//! Who gets a slot, and what a request begins with there.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::sync::Arc;

use super::command::Submission;
use super::event::{Outcome, PromptStats, Stop};
use super::generation::Generation;
use super::task::{Parts, Speculation, Task};
use crate::error::{Code, Error, Result};
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
                    let (ticket, n_prompt) = (Arc::clone(&submission.ticket), submission.request.prompt.len());
                    if let Err(error) = self.begin(index, submission) {
                        self.ended.push((ticket, Outcome::never_ran(Stop::Error(error), n_prompt, false)));
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
        let free = self.slots.iter().filter(|slot| slot.task.is_none());
        let slot = match request.slot {
            Some(index) => free.into_iter().find(|slot| slot.index == index)?,
            // What it holds makes way for the session.
            None if request.session_load.is_some() => free.into_iter().min_by_key(|slot| slot.last_used)?,
            None => free.into_iter().max_by_key(|slot| {
                let common = session::common_prefix(&slot.cache, &request.prompt);
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

    /// Starts a request in a free slot.
    fn begin(&mut self, index: usize, submission: Submission) -> Result<()> {
        let Submission { request, ticket, deadline } = submission;
        let n_ctx = self.context.n_ctx();
        let model = Arc::clone(self.context.model());
        let vocab = model.vocab();
        let n_total = request.prompt.len();
        let n_keep = session::keep(request.n_keep, n_total, n_ctx);
        let mut tokens = request.prompt;
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
        let session_load = request.session_load.as_deref().map(|path| self.load_from(index, path)).transpose()?;
        let slot = self.slots.get_mut(index).ok_or_else(|| Error::new(Code::Internal, "no such slot"))?;
        // A session's seed goes on where the request does.
        let continues = std::mem::take(&mut slot.loaded) && tokens.starts_with(&slot.cache);
        let seed = slot.seed.filter(|seed| continues && seed.seed == request.sampling.seed);
        let seed_position = request.seed_position.or(seed.map(|seed| seed.position(tokens.len()))).unwrap_or(0);
        // One token at least must be evaluated, for its logits.
        let reusable = if request.cache_prompt { tokens.get(..tokens.len() - 1).unwrap_or(&[]) } else { &[] };
        let reused = slot.cache.reuse(&mut self.context, reusable, request.n_cache_reuse);
        let sampler = Sampler::new(&request.sampling, vocab, request.grammar)?;
        let mut speculation = request.speculative.map(Speculation::new);
        if let Some(speculation) = &mut speculation {
            let obstacle = match &mut self.drafter {
                _ if !model.can_roll_back() => {
                    Some("the target's memory cannot be cut back after a rejected draft".to_owned())
                }
                _ if !speculation.settings.sources.contains(&Source::Draft) => Some("no drafter was asked for".into()),
                Some(drafter) => {
                    drafter.begin(index, &sampler, &speculation.settings).err().map(|error| error.message().to_owned())
                }
                None => Some(self.draft_obstacle.clone().unwrap_or_else(|| "there is no draft model".into())),
            };
            speculation.stats.disabled = obstacle;
        }
        if let Some(drafter) = self.drafter.as_mut().filter(|_| request.cache_prompt && request.n_cache_reuse > 0) {
            drafter.reuse(index, &tokens, request.n_cache_reuse);
        }
        self.tick += 1;
        slot.last_used = self.tick;
        slot.task = Some(Task::new(Parts {
            ticket,
            prompt: PromptStats { n_total, n_prompt: tokens.len(), n_cached: reused, truncated: left_out.is_some() },
            tokens,
            n_probs: request.sampling.n_probs,
            sampler,
            // As llama.cpp: a BOS that begins every text is kept as well.
            n_keep: session::keep(Some(n_keep + usize::from(vocab.adds_bos())), n_total, n_ctx),
            n_predict: request.n_predict,
            deadline,
            speculation,
            stop: request.stop,
            seed: request.sampling.seed,
            seed_position,
            session_load,
            session_save: request.session_save,
        }));
        Ok(())
    }
}
