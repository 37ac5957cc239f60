//! Who gets a slot, and what a request begins with there.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::sync::Arc;

use super::command::Submission;
use super::compare::Compare;
use super::event::{PromptStats, Stop};
use super::request_handle::Phase;
use super::scheduler::BatchScheduler;
use super::slots::Slot;
use super::task::{Speculation, Task};
use crate::error::{Code, Error, Result};
use crate::llama::Token;
use crate::sampling::Sampler;
use crate::session;
use crate::speculative::{Settings, Verify};

/// Where a request runs.
enum Place {
    Slot(usize),
    Beams,
}

/// Why a draft has one branch where more were asked for.
const NO_BRANCHES: &str = "n_branches: one, since these need another verify rule than block, a model whose memory can be cut \
    back, and n_parallel 1 or kv_unified";

impl BatchScheduler {
    /// Gives free slots to the requests that wait, in their order. Where slots share their cells, nobody overtakes one that waits
    /// for cells, nor a running one that was paused for want of them: they might wait forever. A request whose prompt is still
    /// being prepared keeps a slot from those behind it, and lets them have the others.
    pub(super) fn admit(&mut self, notify: &mut dyn FnMut(u64)) {
        let mut waiting = VecDeque::with_capacity(self.queue.len());
        let mut cells_are_awaited = self.running().any(|(_, task)| task.paused);
        let (mut kept_slots, mut beams_are_kept) = (Vec::new(), false);
        while let Some(submission) = self.queue.pop_front() {
            let options = &submission.request.options;
            if !submission.is_prepared {
                match options.n_beams {
                    0 | 1 => kept_slots.push(options.slot),
                    _ => beams_are_kept = true,
                }
                waiting.push_back(submission);
                continue;
            }
            let place = match options.n_beams {
                0 | 1 => match self.slot_for(&submission) {
                    Some(index) if self.is_kept(index, &kept_slots) => None,
                    Some(_) if cells_are_awaited || !self.has_cells_for(&submission) => {
                        cells_are_awaited = true;
                        None
                    }
                    slot => slot.map(Place::Slot),
                },
                _ => (!self.beams.is_busy() && !beams_are_kept).then_some(Place::Beams),
            };
            match place {
                Some(place) if submission.sink.start() => {
                    let sink = submission.sink.clone();
                    let (begun, slot) = match place {
                        Place::Slot(index) => (self.begin(index, submission), self.slots.get(index)),
                        Place::Beams => (self.begin_beams(submission), None),
                    };
                    if let Err(error) = begun {
                        let outcome = sink.never_ran(Stop::Error(error));
                        self.outbox.end(sink, outcome);
                    } else if let Some(task) = slot.and_then(|slot| slot.task.as_ref())
                        && task.options.progress
                    {
                        // Before the first evaluation: that it has begun.
                        task.report_progress(task.prompt.n_cached);
                        notify(sink.id());
                    }
                }
                Some(_) => notify(submission.sink.id()), // cancelled at this moment
                None => waiting.push_back(submission),
            }
        }
        self.queue = waiting;
    }

    /// Whether a free slot is kept for requests that are still being prepared, of which these are the slots that they ask for.
    fn is_kept(&self, index: usize, kept_slots: &[Option<usize>]) -> bool {
        let n_free = self.slots.iter().filter(|slot| slot.task.is_none()).count();
        n_free <= kept_slots.len() || kept_slots.contains(&Some(index))
    }

    /// The free slot for a request: the one it asks for, else the one whose cache begins with most of its prompt, else
    /// the one unused for longest. `None`: none is free.
    fn slot_for(&self, submission: &Submission) -> Option<usize> {
        let request = &submission.request;
        let leader = request.prompt_of.filter(|_| self.can_copy()).map(|index| submission.sink.phase_of(index));
        if leader.is_some_and(|phase| matches!(phase, Phase::Queued | Phase::Prompt)) {
            return None; // soon the prompt can be copied
        }
        let free = self.slots.iter().filter(|slot| slot.task.is_none());
        let slot = match request.options.slot {
            Some(index) => free.into_iter().find(|slot| slot.index == index)?,
            // What it holds makes way for the session.
            None if request.options.session_load.is_some() => free.into_iter().min_by_key(|slot| slot.last_used)?,
            None => free.into_iter().max_by_key(|slot| {
                let common = slot.common_prefix(&request.prompt, &request.lora);
                // A tenth in common is more than a BOS and a system prompt's first words.
                let worth = if 10 * common > request.prompt.len() { common } else { 0 };
                (worth, Reverse(self.batch_parts_with(slot.index)), Reverse(slot.last_used))
            })?,
        };
        Some(slot.index)
    }

    /// Into how many parts llama.cpp divides a batch of all running slots and this one: with a KV buffer for each sequence, it
    /// decodes only consecutive sequence ids together.
    fn batch_parts_with(&self, index: usize) -> usize {
        if self.shared_cells.is_some() {
            return 1;
        }
        let runs = |at: usize| self.slots.get(at).is_some_and(|slot| slot.index == index || slot.task.is_some());
        (0..self.slots.len()).filter(|at| runs(*at) && !at.checked_sub(1).is_some_and(runs)).count()
    }

    /// Whether there is room for a prompt beside those that run.
    fn has_cells_for(&self, submission: &Submission) -> bool {
        let Some(cells) = self.shared_cells else { return true };
        let n_prompt = submission.request.prompt.len().min(self.context.n_ctx());
        let running: usize = self.running().map(|(slot, task)| slot.cache.len().max(task.tokens.len())).sum();
        running == 0 || running + n_prompt < cells
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
        let best = best.index;
        let [from, to] = match self.slots.get_disjoint_mut([best, index]) {
            Ok(slots) => slots,
            Err(_) => return,
        };
        if to.cache.copy_from(&mut self.context, &from.cache) {
            to.lora = lora.to_vec();
        }
    }

    /// What of a prompt is evaluated, and whether something was left out because it does not fit.
    fn fitting(&self, mut tokens: Vec<Token>, n_keep: usize) -> Result<(Vec<Token>, bool)> {
        let (n_total, n_ctx) = (tokens.len(), self.context.n_ctx());
        let left_out = session::prompt_truncation(n_total, n_keep, n_ctx);
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
        Ok((tokens, left_out.is_some()))
    }

    /// Starts a beam search.
    fn begin_beams(&mut self, mut submission: Submission) -> Result<()> {
        let prompt = std::mem::take(&mut submission.request.prompt).to_vec();
        let n_total = prompt.len();
        let n_keep = session::effective_n_keep(submission.request.options.n_keep, n_total, self.context.n_ctx());
        let (prompt, truncated) = self.fitting(prompt, n_keep)?;
        let stats = PromptStats { n_total, n_prompt: prompt.len(), n_cached: 0, truncated };
        self.beams.begin(submission, prompt, stats)
    }

    /// Starts a request in a free slot.
    pub(super) fn begin(&mut self, index: usize, submission: Submission) -> Result<()> {
        let compare = Compare::first(&submission.request);
        let Submission { request, sink, deadline, found, .. } = submission;
        let n_ctx = self.context.n_ctx();
        let model = Arc::clone(self.context.model());
        let vocab = model.vocab();
        let options = request.options;
        let n_total = request.prompt.len();
        let n_keep = session::effective_n_keep(options.n_keep, n_total, n_ctx);
        let (tokens, truncated) = self.fitting(request.prompt.to_vec(), n_keep)?;
        if request.prompt_of.is_some() && options.cache_prompt && self.can_copy() {
            self.copy_prefix(index, &tokens, &request.lora);
        }
        let session_load = options.session_load.as_deref().map(|path| self.load_from(index, path)).transpose()?;
        let slot = self.slots.get_mut(index).ok_or_else(|| Error::new(Code::Internal, "no such slot"))?;
        // A session's seed goes on where the request goes on with its text, whatever is left of that in the cache.
        let continues = slot.loaded.take().is_some_and(|loaded| tokens.starts_with(&loaded));
        let seed = slot.seed.filter(|seed| continues && seed.seed == request.sampling.seed);
        let seed_position = options.seed_position.or(seed.map(|seed| seed.position(tokens.len()))).unwrap_or(0);
        // One token at least must be evaluated, for its logits.
        let reusable = if options.cache_prompt && slot.lora == request.lora {
            tokens.get(..tokens.len() - 1).unwrap_or(&[])
        } else {
            &[]
        };
        let reusable = found.map_or(reusable, |found| found.of(reusable));
        let reused = slot.cache.reuse(&mut self.context, reusable, options.n_cache_reuse);
        found.map_or(Ok(()), |found| found.check(reused))?;
        slot.lora = request.lora;
        let sampler = Sampler::new(&request.sampling, vocab, request.grammar)?;
        let asked = request.speculative.is_some();
        // Nobody asked for it, and it costs nothing. A second run to compare with is to be without any draft.
        let guesses = self.context.pads_single_tokens() && found.is_none();
        let settings = request.speculative.or_else(|| guesses.then(Settings::none));
        let mut speculation = settings.map(|settings| Speculation::new(settings, asked, &sampler));
        match &mut speculation {
            Some(Speculation { stats, .. }) if !model.can_roll_back() => {
                stats.disabled = Some("the target's memory cannot be cut back after a rejected draft".into());
            }
            Some(Speculation { settings, stats, .. }) => {
                let chain =
                    settings.n_branches > 1 && (settings.verify == Verify::Block || self.context.n_shared() < 2);
                settings.n_branches = if chain { 1 } else { settings.n_branches };
                self.drafters.begin(index, &sampler, settings);
                let disabled = self.drafters.disabled(index).or(chain.then_some(NO_BRANCHES));
                stats.disabled = disabled.map(str::to_owned);
            }
            None => {}
        }
        if options.cache_prompt && options.n_cache_reuse > 0 {
            self.drafters.reuse(index, &tokens, options.n_cache_reuse);
        }
        self.tick += 1;
        slot.last_used = self.tick;
        let prompt = PromptStats { n_total, n_prompt: tokens.len(), n_cached: reused, truncated };
        let mut task = Task::new(sink, options, tokens, prompt, sampler, &request.sampling);
        // As llama.cpp: a BOS that begins every text is kept as well.
        task.n_keep = session::effective_n_keep(Some(n_keep + usize::from(vocab.adds_bos())), n_total, n_ctx);
        task.seed_position = seed_position;
        task.deadline = deadline;
        task.speculation = speculation;
        task.session_load = session_load;
        task.compare = compare;
        slot.task = Some(task);
        Ok(())
    }
}
