//! A step of all slots together: draft, evaluate one batch, sample and check.

use std::cmp::Reverse;
use std::time::Duration;

use super::checking::{self, Drafted};
use super::event::Stop;
use super::generation::Generation;
use super::slots::{InBatch, Slot};
use super::task::Task;
use crate::error::{Code, Error};
use crate::llama::DecodeError;
use crate::session::Sequence;
use crate::speculative::Wish;

/// A draft follows no more tokens than these that are not evaluated yet: the one sampled last, and those of a branch that was
/// right (see [`super::branches`]).
const MAX_PENDING: usize = 16;

impl Generation {
    /// Lets the drafters keep up with all requests that speculate, and propose tokens to those that generate.
    pub(super) fn draft(&mut self) {
        self.t_draft = Duration::ZERO;
        let (n_ctx, n_alike) = (self.context.n_ctx(), self.context.n_alike());
        let base = self.running().filter(|(_, task)| task.is_generating()).count();
        // Where a token would get company otherwise.
        let alone = self.context.keeps_company() && (base == 1 || self.shared_cells.is_none());
        let Generation { slots, team, .. } = &mut *self;
        let wish = |index: usize| {
            let slot = slots.get(index)?;
            let task =
                slot.task.as_ref().filter(|task| !task.paused && !slot.sits_out && task.speculation.is_some())?;
            let pending = task.tokens.len().saturating_sub(slot.cache.len());
            let most = n_alike.saturating_sub(pending).min(task.remaining() - 1);
            let room = n_ctx.saturating_sub(task.tokens.len() + 1).min(most);
            let ready = task.is_generating() && (1..=MAX_PENDING).contains(&pending);
            Some(Wish {
                tokens: &task.tokens,
                sampler: &task.sampler,
                generated: task.output().len(),
                position: task.position(),
                room: ready.then_some(room),
                alone,
            })
        };
        if (0..slots.len()).all(|index| wish(index).is_none()) {
            return;
        }
        let start = team.now();
        team.draft(wish, base);
        self.t_draft = team.now().saturating_duration_since(start);
        for slot in &mut self.slots {
            let Some(task) = &mut slot.task else { continue };
            let Some(speculation) = &mut task.speculation else { continue };
            // Who waited was not drafted for.
            if !task.paused && !slot.sits_out {
                speculation.stats.t_draft += self.t_draft;
            }
            if let Some(why) = self.team.disabled(slot.index) {
                speculation.stats.disabled = Some(why.to_owned());
            }
        }
    }

    /// Puts every slot's unevaluated tokens into the batch, and its draft behind them. False when there are none.
    pub(super) fn fill_batch(&mut self) -> bool {
        self.batch.clear();
        let generates = |slot: &Slot| slot.task.as_ref().is_some_and(Task::is_generating);
        // While others generate, a prompt comes in pieces that do not keep them waiting for long.
        let (n_batch, n_ubatch) = (self.context.n_batch(), self.context.n_ubatch());
        // A long prompt is divided in the same places, whoever waits.
        let most = if self.slots.iter().any(generates) { n_ubatch } else { n_batch - n_batch % n_ubatch.min(n_batch) };
        let mut free = self.free_cells();
        // What each needs of the batch to get on comes before anybody's draft, and before more of a prompt.
        let due = |slot: &Slot| {
            let task = slot.task.as_ref().filter(|task| !task.paused && !slot.sits_out);
            task.map_or(0, |task| task.tokens.len().saturating_sub(slot.cache.len()).min(MAX_PENDING))
        };
        let mut owed: usize = self.slots.iter().map(due).sum();
        let mut room = most.max(owed).min(n_batch);
        let mut order = std::mem::take(&mut self.order);
        order.clear();
        order.extend(0..self.slots.len());
        order.sort_unstable_by_key(|index| {
            (self.slots.get(*index).map(|slot| (Reverse(generates(slot)), slot.last_used)), *index)
        });
        for index in order.iter().copied() {
            let Some(slot) = self.slots.get_mut(index) else { continue };
            slot.in_batch = None;
            let own = due(slot);
            owed -= own;
            let Some(task) = slot.task.as_ref().filter(|task| !task.paused && !slot.sits_out) else { continue };
            slot.cache.group(&mut self.context);
            let pending = task.tokens.get(slot.cache.len()..).unwrap_or(&[]);
            let most = room.saturating_sub(owed).max(own.min(room)).min(slot.cache.room());
            let chunk = pending.get(..most.min(pending.len())).unwrap_or(&[]);
            // A prompt pauses before its last token, where such memories are come back to when it is sent again.
            let pauses = !task.is_generating() && chunk.len() > 1 && Sequence::needs_checkpoints(&self.context);
            let chunk = if pauses { chunk.get(..chunk.len().min(pending.len() - 1)).unwrap_or(&[]) } else { chunk };
            let draft = self.team.drafted(index);
            let complete = chunk.len() == pending.len();
            let n_draft = draft.len().min(most - chunk.len()).min(free);
            let draft = if complete { draft.get(..n_draft).unwrap_or(&[]) } else { &[] };
            let first = self.batch.len();
            let next = slot.cache.next();
            let parents = self.team.parents(index).take(draft.len());
            let planted = slot.branches.plant(parents, |own, spare| self.context.share(own, spare));
            let draft = draft.get(..planted).unwrap_or(&[]);
            let mut row = None;
            for (offset, token) in chunk.iter().enumerate() {
                let output = complete && offset + 1 == chunk.len();
                let at = self.batch.push_shared(*token, next + offset, slot.branches.of_text(), output);
                row = Some(at).filter(|_| output);
            }
            for (node, depth, sequences) in slot.branches.nodes() {
                let Some(token) = draft.get(node - 1) else { continue };
                self.batch.push_shared(*token, next + chunk.len() + depth, sequences, true);
            }
            room -= chunk.len() + draft.len();
            free -= draft.len();
            if !chunk.is_empty() {
                slot.in_batch = Some(InBatch { first, chunk: chunk.len(), draft: draft.len(), row });
            }
        }
        self.order = order;
        !self.batch.is_empty()
    }

    /// Evaluates the batch and goes on with each slot in it.
    pub(super) fn evaluate(&mut self, notify: &mut dyn FnMut(u64)) {
        self.context.keep_hidden(self.team.needs_hidden());
        let start = self.team.now();
        // llama.cpp exchanges the cells of recurrent states before it moves what is in them: whoever is stopped in between has
        // those of others, who may not even be in the batch.
        let exchanges = self.exchanges_states();
        let result = if exchanges { self.context.decode_whole(&self.batch) } else { self.context.decode(&self.batch) };
        let time = self.team.now().saturating_duration_since(start);
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
        let generated = |part: &InBatch| part.draft + if part.chunk <= MAX_PENDING { part.chunk } else { 1 };
        let generated: usize = self.slots.iter().filter_map(|slot| slot.in_batch.as_ref()).map(generated).sum();
        let evaluated = self.batch.len();
        let mut n_tokens = 0;
        for index in 0..self.slots.len() {
            let Some(slot) = self.slots.get_mut(index) else { continue };
            let Some(part) = slot.in_batch.take() else { continue };
            let Some(task) = &mut slot.task else { continue };
            let known = slot.cache.len();
            slot.cache.push(task.tokens.get(known..known + part.chunk).unwrap_or(&[]));
            let tokens = task.tokens.get(..known + part.chunk).unwrap_or(&[]);
            self.team.evaluated(index, &mut self.context, part.first, tokens, known, part.draft);
            let is_first = task.n_predicted == 0;
            if task.progress && is_first {
                task.report_progress(slot.cache.len());
                notify(task.ticket.id());
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
            self.team.cap(index, part.draft);
            let draft = Drafted {
                tokens: self.team.drafted(index),
                source: self.team.source(index),
                drawn: self.team.drawn(index),
            };
            let (stop, accepted) = checking::check(&mut self.context, slot, row, &draft);
            if let Some(task) = &mut slot.task {
                let new = task.tokens.get(before..).unwrap_or(&[]);
                n_tokens += new.len();
                let checked = self.team.saw(index, new, part.draft, accepted);
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
                        notify(task.ticket.id());
                    }
                }
            }
        }
        // Prompts, and nearly nothing else.
        if evaluated > 16 * generated {
            self.team.costs.saw_prompt(evaluated, time);
        } else if generated == evaluated {
            let cost = self.team.costs.saw_target(evaluated, time) + self.team.costs.of(self.t_draft);
            self.team.stepped(n_tokens, cost);
        } else {
            self.team.costs.saw_mixed(evaluated);
        }
    }
}
