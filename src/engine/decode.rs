//! A step of all slots together: draft, evaluate one batch, sample and check.

use std::time::Duration;

use super::event::Stop;
use super::pacing;
use super::scheduler::BatchScheduler;
use super::slots::{InBatch, MAX_PENDING};
use super::verification::{self, Drafted};
use crate::error::{Code, Error};
use crate::llama::DecodeError;
use crate::speculative::{SlotView, StepSlot};

impl BatchScheduler {
    /// Lets the drafters keep up with all requests that speculate, and propose tokens to those that generate.
    pub(super) fn draft(&mut self) {
        self.t_draft = Duration::ZERO;
        let (n_ctx, max_invariant_tokens) = (self.context.n_ctx(), self.context.max_invariant_tokens());
        let base = self.running().filter(|(_, task)| task.is_generating()).count();
        // Where a token would be padded otherwise.
        let padded = self.context.pads_single_tokens() && (base == 1 || self.shared_cells.is_none());
        let most_tokens = pacing::most_tokens(&self.context, &self.drafters.costs);
        let (n_ubatch, can_cut) = (self.context.n_ubatch(), self.context.model().can_roll_back());
        let BatchScheduler { slots, drafters, .. } = &mut *self;
        let view = |index: usize| {
            let slot = slots.get(index)?;
            let task = slot.working().filter(|task| task.speculation.is_some())?;
            let pending = slot.pending();
            let most = max_invariant_tokens.min(most_tokens).saturating_sub(pending).min(task.remaining() - 1);
            let room = n_ctx.saturating_sub(task.tokens.len() + 1).min(most);
            let ready = task.is_generating() && (1..=MAX_PENDING).contains(&pending);
            Some(SlotView {
                tokens: &task.tokens,
                sampler: &task.sampler,
                generated: task.output().len(),
                position: task.position(),
                room: ready.then_some(room),
                padded,
            })
        };
        let step = |index: usize| {
            let Some((slot, task)) = slots.get(index).and_then(|slot| Some((slot, slot.working()?))) else {
                return StepSlot::default();
            };
            let pending = slot.pending();
            let generates = task.is_generating() && (1..=MAX_PENDING).contains(&pending);
            let room = n_ctx.saturating_sub(task.tokens.len() + 1).min(max_invariant_tokens.saturating_sub(pending));
            let room = if can_cut { room.min(slot.cache.tokens_until_group().saturating_sub(pending)) } else { 0 };
            StepSlot { n_tokens: pending.min(n_ubatch), generates, room }
        };
        let start = drafters.now();
        drafters.draft(view, step);
        self.t_draft = drafters.now().saturating_duration_since(start);
        for slot in &mut self.slots {
            let waited = slot.working().is_none();
            let Some(speculation) = slot.task.as_mut().and_then(|task| task.speculation.as_mut()) else { continue };
            if !waited {
                speculation.stats.t_draft += self.t_draft;
            }
            if let Some(why) = self.drafters.disabled(slot.index) {
                speculation.stats.disabled = Some(why.to_owned());
            }
        }
    }

    /// Evaluates the batch and goes on with each slot in it.
    pub(super) fn evaluate(&mut self, notify: &mut dyn FnMut(u64)) {
        self.context.keep_hidden(self.drafters.needs_hidden());
        let start = self.drafters.now();
        // llama.cpp exchanges the cells of recurrent states before it moves what is in them: whoever is stopped in between has
        // those of others, who may not even be in the batch.
        let exchanges = self.exchanges_states();
        let result = if exchanges { self.context.decode_whole(&self.batch) } else { self.context.decode(&self.batch) };
        let time = self.drafters.now().saturating_duration_since(start);
        for slot in &mut self.slots {
            slot.branches.clear(&mut self.context);
        }
        match result {
            Ok(()) => self.advance(time, notify),
            Err(DecodeError::Aborted) => self.roll_back(),
            // Nothing was evaluated: the next step tries again with what fits.
            Err(DecodeError::Full) if self.shared_cells.is_some() && self.make_way() => {}
            Err(DecodeError::Full) => self.fail_batch(&Error::new(Code::ContextFull, "the KV cache is full")),
            Err(DecodeError::Failed(why)) => {
                self.fail_batch(&Error::model(why));
                if exchanges {
                    self.context.reset();
                    (0..self.slots.len()).for_each(|index| self.forget(index));
                }
            }
        }
    }

    /// Whether an evaluation moves the states of sequences that are not in its batch.
    fn exchanges_states(&self) -> bool {
        self.slots.len() > 1 && !self.context.model().can_roll_back()
    }

    /// After an interrupted evaluation: keeps what was evaluated of prompts and cuts off the rest.
    fn roll_back(&mut self) {
        for slot in &mut self.slots {
            let Some(part) = slot.in_batch.take() else { continue };
            let known = slot.cache.len();
            let tokens = slot.task.as_ref().map_or(&[][..], |task| &task.tokens);
            slot.cache.recover(&mut self.context, tokens.get(known..known + part.chunk).unwrap_or(&[]));
            // The last token is evaluated again: its logits are lost.
            slot.cache.cut(&mut self.context, tokens.len().saturating_sub(1));
        }
    }

    fn fail_batch(&mut self, error: &Error) {
        for index in 0..self.slots.len() {
            let in_batch = self.slots.get_mut(index).and_then(|slot| slot.in_batch.take());
            if in_batch.is_some() {
                self.forget(index);
                self.end(index, Stop::Error(error.clone()), false);
            }
        }
    }

    /// After an evaluation that took `time`: samples, checks drafts, sends text.
    fn advance(&mut self, time: Duration, notify: &mut dyn FnMut(u64)) {
        let generated =
            |part: &InBatch| part.draft + part.filler + if part.chunk <= MAX_PENDING { part.chunk } else { 1 };
        let generated: usize = self.slots.iter().filter_map(|slot| slot.in_batch.as_ref()).map(generated).sum();
        let evaluated = self.batch.len();
        self.n_tokens.clear();
        let all = |part: &InBatch| part.chunk + part.draft + part.filler;
        self.n_tokens.extend(self.slots.iter().map(|slot| slot.in_batch.as_ref().map_or(0, all)));
        let mut n_tokens = 0;
        for index in 0..self.slots.len() {
            let Some(slot) = self.slots.get_mut(index) else { continue };
            let Some(part) = slot.in_batch.take() else { continue };
            let Some(task) = &mut slot.task else { continue };
            let known = slot.cache.len();
            slot.cache.push(task.tokens.get(known..known + part.chunk).unwrap_or(&[]));
            let tokens = task.tokens.get(..known + part.chunk).unwrap_or(&[]);
            self.drafters.evaluated(index, &mut self.context, part.first, tokens, known, part.draft);
            let is_first = task.n_predicted == 0;
            if task.options.progress && is_first {
                task.report_progress(slot.cache.len());
                notify(task.sink.id());
            }
            let Some(row) = part.row else {
                slot.cache.checkpoint(&mut self.context);
                continue;
            };
            if let Some(speculation) = &mut task.speculation {
                speculation.stats.n_steps += 1;
                // The first token's evaluation is the prompt's.
                speculation.stats.t_verify += if is_first { Duration::ZERO } else { time };
            }
            let before = task.tokens.len();
            self.drafters.cap(index, part.draft);
            let draft = Drafted {
                tokens: self.drafters.drafted(index),
                source: self.drafters.source(index),
                drawn: self.drafters.drawn(index),
            };
            let (stop, accepted) = verification::verify(&mut self.context, slot, row, &draft);
            if let Some(task) = &mut slot.task {
                let new = task.tokens.get(before..).unwrap_or(&[]);
                n_tokens += new.len();
                let checked = self.drafters.saw(index, new, part.draft, accepted);
                if let (Some(speculation), Some(checked)) = (&mut task.speculation, checked) {
                    speculation.checked(checked);
                }
            }
            let cached = slot.cache.len();
            slot.cache.cut(&mut self.context, cached);
            match stop {
                Some(stop) => self.end(index, stop, false),
                None => {
                    let Some(task) = self.slots.get_mut(index).and_then(|slot| slot.task.as_mut()) else { continue };
                    if task.send() {
                        notify(task.sink.id());
                    }
                }
            }
        }
        // Prompts, and nearly nothing else.
        if evaluated > 16 * generated {
            self.drafters.costs.saw_prompt(evaluated, time);
        } else if generated == evaluated {
            let cost = self.drafters.costs.saw_step(&self.n_tokens, time) + self.drafters.costs.of(self.t_draft);
            self.drafters.stepped(n_tokens, cost);
        } else {
            self.drafters.costs.saw_mixed(evaluated);
        }
    }
}
