//! A step of all slots together: draft, evaluate one batch, sample and check.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::event::Stop;
use super::generation::Generation;
use super::slots::{InBatch, Slot};
use super::task::Task;
use crate::error::{Code, Error};
use crate::llama::{Context, DecodeError};
use crate::sampling;
use crate::speculative::{Ask, Source};

impl Generation {
    /// Lets the drafter keep up with all requests that speculate, and propose tokens to those that generate.
    pub(super) fn draft(&mut self) {
        let Some(drafter) = &mut self.drafter else { return };
        let n_ctx = self.context.n_ctx();
        let others = self.slots.iter().filter(|slot| slot.task.as_ref().is_some_and(Task::is_generating)).count();
        let others = others.saturating_sub(1);
        let mut asks = Vec::with_capacity(self.slots.len());
        for slot in &mut self.slots {
            let Some(task) = slot.task.as_mut().filter(|task| !task.paused && !slot.sits_out) else { continue };
            let room = n_ctx.saturating_sub(task.tokens.len() + 1);
            let most = room.min(task.remaining() - 1);
            let ready = task.is_generating() && task.tokens.len() == slot.cache.len() + 1;
            let Some(speculation) = &mut task.speculation else { continue };
            if speculation.stats.disabled.is_some() {
                continue;
            }
            speculation.draft.clear();
            let n_max = if ready { speculation.length.next(&self.costs, others).min(most) } else { 0 };
            if ready && n_max == 0 {
                continue; // not worth keeping up while it does not pay
            }
            asks.push(Ask {
                slot: slot.index,
                tokens: &task.tokens,
                sampler: &task.sampler,
                position: task.n_predicted,
                n_max,
                p_min: speculation.settings.p_min,
                draft: &mut speculation.draft,
            });
        }
        if asks.is_empty() {
            return;
        }
        let start = Instant::now();
        drafter.draft(&mut asks);
        let time = start.elapsed();
        let longest = asks.iter().map(|ask| ask.draft.tokens.len()).max().unwrap_or(0);
        let asked: Vec<usize> = asks.iter().map(|ask| ask.slot).collect();
        drop(asks);
        self.costs.saw_draft(longest, time);
        for index in asked {
            let Some(task) = self.slots.get_mut(index).and_then(|slot| slot.task.as_mut()) else { continue };
            let Some(speculation) = &mut task.speculation else { continue };
            if speculation.draft.tokens.len() < speculation.settings.n_min {
                speculation.draft.clear();
            }
            speculation.stats.t_draft += time;
            speculation.stats.disabled = drafter.disabled(index).map(str::to_owned);
        }
    }

    /// Puts every slot's unevaluated tokens into the batch, and its draft behind them. False when there are none.
    pub(super) fn fill_batch(&mut self) -> bool {
        self.batch.clear();
        let generates = |slot: &Slot| slot.task.as_ref().is_some_and(Task::is_generating);
        // While others generate, a prompt comes in pieces that do not keep them waiting for long.
        let most = if self.slots.iter().any(generates) { self.context.n_ubatch() } else { self.context.n_batch() };
        let mut room = most.min(self.context.n_batch());
        let mut order: Vec<usize> = (0..self.slots.len()).collect();
        order.sort_by_key(|index| self.slots.get(*index).map(|slot| (Reverse(generates(slot)), slot.last_used)));
        for index in order {
            let Some(slot) = self.slots.get_mut(index) else { continue };
            slot.in_batch = None;
            let sequence = slot.sequence();
            let Some(task) = slot.task.as_ref().filter(|task| !task.paused && !slot.sits_out) else { continue };
            let pending = task.tokens.get(slot.cache.len()..).unwrap_or(&[]);
            let chunk = pending.get(..room.min(pending.len())).unwrap_or(&[]);
            let draft = task.speculation.as_ref().map_or(&[][..], |speculation| &speculation.draft.tokens);
            let complete = chunk.len() == pending.len();
            let draft = if complete { draft.get(..draft.len().min(room - chunk.len())).unwrap_or(&[]) } else { &[] };
            let mut row = None;
            for (offset, token) in chunk.iter().chain(draft).enumerate() {
                let output = complete && offset + 1 >= chunk.len();
                let at = self.batch.push(*token, slot.cache.len() + offset, sequence, output);
                if output && row.is_none() {
                    row = Some(at);
                }
            }
            room -= chunk.len() + draft.len();
            if !chunk.is_empty() {
                slot.in_batch = Some(InBatch { chunk: chunk.len(), draft: draft.len(), row });
            }
        }
        !self.batch.is_empty()
    }

    /// Evaluates the batch and goes on with each slot in it.
    pub(super) fn evaluate(&mut self, notify: &mut dyn FnMut(u64)) {
        let start = Instant::now();
        let result = self.context.decode(&self.batch);
        let time = start.elapsed();
        match result {
            Ok(()) => self.advance(time, notify),
            Err(DecodeError::Aborted) => self.roll_back(),
            // Nothing was evaluated: the next step tries again with what fits.
            Err(DecodeError::Full) if self.shared_cells.is_some() && self.make_way() => {}
            Err(DecodeError::Full) => self.fail_batch(&Error::new(Code::ContextFull, "the KV cache is full")),
            Err(DecodeError::Failed(why)) => self.fail_batch(&Error::model(why)),
        }
    }

    /// After an interrupted evaluation: keeps what was evaluated of prompts and cuts off the rest.
    fn roll_back(&mut self) {
        for slot in &mut self.slots {
            let Some(part) = slot.in_batch.take() else { continue };
            let sequence = slot.sequence();
            let known = slot.cache.len();
            let evaluated = self.context.len(sequence).clamp(known, known + part.chunk);
            if let Some(task) = &slot.task {
                slot.cache.extend_from_slice(task.tokens.get(known..evaluated).unwrap_or(&[]));
            }
            // The last token is evaluated again: its logits are lost.
            let all = slot.task.as_ref().map_or(0, |task| task.tokens.len());
            slot.cache.truncate(all.saturating_sub(1));
            if !self.context.truncate(sequence, slot.cache.len()) {
                self.context.truncate(sequence, 0);
                slot.cache.clear();
            }
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
        let generated: usize =
            self.slots.iter().filter_map(|slot| slot.in_batch.as_ref()).map(|part| part.draft + 1).sum();
        if generated == self.batch.len() {
            self.costs.saw_target(generated, time);
        }
        for index in 0..self.slots.len() {
            let Some(slot) = self.slots.get_mut(index) else { continue };
            let Some(part) = slot.in_batch.take() else { continue };
            let Some(task) = &mut slot.task else { continue };
            let known = slot.cache.len();
            slot.cache.extend_from_slice(task.tokens.get(known..known + part.chunk).unwrap_or(&[]));
            let is_first = task.n_predicted == 0;
            if task.progress && is_first {
                task.report_progress(slot.cache.len());
                notify(task.ticket.id());
            }
            let Some(row) = part.row else { continue };
            if let Some(speculation) = &mut task.speculation {
                speculation.stats.n_steps += 1;
                // The first token's evaluation is the prompt's.
                speculation.stats.t_verify += if is_first { Duration::ZERO } else { time };
            }
            let in_context = known + part.chunk + part.draft;
            let stop = sample(&mut self.context, slot, row, part.draft);
            let (sequence, cached) = (slot.sequence(), slot.cache.len());
            if cached < in_context && !self.context.truncate(sequence, cached) {
                self.forget(index);
            }
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
    }
}

/// Samples from the rows of a slot: `row` follows its context, the `n_draft` next ones its draft. Goes on as long as
/// the target says what was drafted. Returns why the request ends, if it does.
fn sample(context: &mut Context, slot: &mut Slot, row: usize, n_draft: usize) -> Option<Stop> {
    let task = slot.task.as_mut()?;
    if task.n_predict == Some(0) {
        return Some(Stop::Limit);
    }
    let model = Arc::clone(context.model());
    let mut accepted = 0;
    let mut stop = None;
    for place in 0..=n_draft {
        let Some(logits) = context.logits(row + place) else {
            return Some(Stop::Error(Error::new(Code::Internal, "the evaluation gave no logits")));
        };
        let picked = match task.post_sampling_probs {
            true => task
                .sampler
                .pick_with_probs(logits, &task.tokens, task.n_predicted, task.n_probs)
                .map(|(token, probs)| (token, Some(probs))),
            false => task.sampler.pick(logits, &task.tokens, task.n_predicted).map(|token| (token, None)),
        };
        let (token, probs) = match picked {
            Ok(picked) => picked,
            Err(error) => {
                stop = Some(Stop::Error(error));
                break;
            }
        };
        let probs = probs.or_else(|| (task.n_probs > 0).then(|| sampling::token_probs(logits, token, task.n_probs)));
        if let Err(error) = task.sampler.accept(token) {
            stop = Some(Stop::Error(error));
            break;
        }
        let draft = task.speculation.as_ref().map(|speculation| &speculation.draft);
        let drafted = draft.and_then(|draft| draft.source.filter(|_| draft.tokens.get(place) == Some(&token)));
        let agreed = drafted.filter(|_| place < n_draft);
        if agreed.is_some() {
            accepted += 1;
            slot.cache.push(token);
        }
        stop = task.generated(token, agreed.unwrap_or(Source::Target), probs, model.vocab());
        if stop.is_some() || agreed.is_none() {
            break;
        }
    }
    if let Some(speculation) = &mut task.speculation {
        speculation.draft.tokens.truncate(n_draft);
        speculation.checked(accepted);
    }
    stop
}
