//! The batch loop: slots, one batch for all of them, and what becomes of its logits.
//!
//! A step drafts, evaluates and samples. A slot is evaluated up to the end of its [`Task`]'s tokens, whatever they are:
//! a prompt, the one token sampled last, or, after its part of the cache was taken away, all of it again. A draft is
//! a few more tokens behind those. So speculation, long prompts and paused requests need no loops of their own.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::command::Submission;
use super::event::{PromptStats, Stop};
use super::slots::Slot;
use super::task::{Parts, Speculation, Task};
use crate::error::{Code, Error, Result};
use crate::llama::{Batch, Context, DecodeError};
use crate::sampling::{self, Sampler};
use crate::session;
use crate::speculative::{Ask, Costs, Drafter, Source};

/// The target's context, its slots and the requests that wait for one.
pub(super) struct Generation {
    pub(super) context: Context,
    pub(super) slots: Vec<Slot>,
    pub(super) queue: VecDeque<Submission>,
    pub(super) drafter: Option<Box<dyn Drafter + Send>>,
    /// Why there is no drafter although there is a draft model.
    pub(super) draft_obstacle: Option<String>,
    /// Cells that all slots share; `None` when each has its own.
    pub(super) shared_cells: Option<usize>,
    pub(super) ctx_shift: bool,
    batch: Batch,
    costs: Costs,
    /// Counts admissions: the order of requests, and of the slots' last use.
    tick: u64,
}

impl Generation {
    pub(super) fn new(context: Context, n_parallel: usize, unified: bool, ctx_shift: bool) -> Generation {
        Generation {
            shared_cells: (unified && n_parallel > 1).then(|| context.n_ctx()),
            slots: (0..n_parallel).map(Slot::new).collect(),
            context,
            queue: VecDeque::new(),
            drafter: None,
            draft_obstacle: None,
            ctx_shift,
            batch: Batch::new(),
            costs: Costs::default(),
            tick: 0,
        }
    }

    /// Whether anything runs or waits.
    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.slots.iter().all(|slot| slot.task.is_none())
    }

    /// One step for all slots. `notify` is called with the number of each request that has news.
    pub(super) fn step(&mut self, notify: &mut dyn FnMut(u64)) {
        self.end_cancelled(notify);
        self.admit(notify);
        self.make_space(notify);
        self.balance();
        self.draft();
        if self.fill_batch() {
            self.evaluate(notify);
        }
    }

    /// Ends every request.
    pub(super) fn end_all(&mut self, stop: &Stop, notify: &mut dyn FnMut(u64)) {
        for submission in std::mem::take(&mut self.queue) {
            if submission.ticket.finish_if_queued(stop.clone()) {
                notify(submission.ticket.id());
            }
        }
        for index in 0..self.slots.len() {
            self.end(index, stop.clone(), false, notify);
        }
    }

    /// The earliest time at which a request has to end.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.slots.iter().filter_map(|slot| slot.task.as_ref()?.deadline).min()
    }

    fn end(&mut self, index: usize, stop: Stop, truncated: bool, notify: &mut dyn FnMut(u64)) {
        let Some(slot) = self.slots.get_mut(index) else { return };
        let Some(task) = slot.task.take() else { return };
        slot.last_used = self.tick;
        if let Some(drafter) = &mut self.drafter {
            drafter.end(index);
        }
        let id = task.ticket.id();
        task.finish(stop, index, slot.cache.len(), truncated);
        notify(id);
    }

    fn end_cancelled(&mut self, notify: &mut dyn FnMut(u64)) {
        let now = Instant::now();
        for index in 0..self.slots.len() {
            let Some(task) = self.slots.get(index).and_then(|slot| slot.task.as_ref()) else { continue };
            if task.ticket.is_cancelled() {
                self.end(index, Stop::Cancelled, false, notify);
            } else if task.deadline.is_some_and(|deadline| deadline <= now) {
                self.end(index, Stop::Timeout, false, notify);
            }
        }
        self.queue.retain(|submission| {
            if submission.deadline.is_some_and(|deadline| deadline <= now) {
                submission.ticket.finish_if_queued(Stop::Timeout);
            }
            let waits = submission.ticket.phase() == super::Phase::Queued;
            if !waits {
                notify(submission.ticket.id());
            }
            waits
        });
    }

    /// Gives free slots to the requests that wait, in their order.
    fn admit(&mut self, notify: &mut dyn FnMut(u64)) {
        let mut waiting = VecDeque::with_capacity(self.queue.len());
        while let Some(submission) = self.queue.pop_front() {
            match self.slot_for(&submission) {
                Some(index) if submission.ticket.start() => {
                    let ticket = std::sync::Arc::clone(&submission.ticket);
                    if let Err(error) = self.begin(index, submission) {
                        let outcome = super::Outcome::never_ran(Stop::Error(error), 0, false);
                        ticket.finish(outcome);
                    }
                    notify(ticket.id());
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
            None => free.into_iter().max_by_key(|slot| {
                let common = session::common_prefix(&slot.cache, &request.prompt);
                // A tenth in common is more than a BOS and a system prompt's first words.
                let worth = if 10 * common > request.prompt.len() { common } else { 0 };
                (worth, std::cmp::Reverse(slot.last_used))
            })?,
        };
        let n_prompt = request.prompt.len().min(self.context.n_ctx());
        let running: usize = self.running().map(|(slot, task)| slot.cache.len().max(task.tokens.len())).sum();
        let fits = self.shared_cells.is_none_or(|cells| running == 0 || running + n_prompt < cells);
        fits.then_some(slot.index)
    }

    fn running(&self) -> impl Iterator<Item = (&Slot, &Task)> {
        self.slots.iter().filter_map(|slot| slot.task.as_ref().map(|task| (slot, task)))
    }

    /// Starts a request in a free slot.
    fn begin(&mut self, index: usize, submission: Submission) -> Result<()> {
        let Submission { request, ticket, deadline } = submission;
        let n_ctx = self.context.n_ctx();
        let model = std::sync::Arc::clone(self.context.model());
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
        let slot = self.slots.get_mut(index).ok_or_else(|| Error::new(Code::Internal, "no such slot"))?;
        let mut reused = if request.cache_prompt { session::common_prefix(&slot.cache, &tokens) } else { 0 };
        // One token at least must be evaluated, for its logits.
        reused = reused.min(tokens.len() - 1);
        if !self.context.truncate(slot.sequence(), reused) {
            self.context.truncate(slot.sequence(), 0);
            reused = 0;
        }
        slot.cache.truncate(reused);
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
            prompt: PromptStats {
                n_total,
                n_prompt: tokens.len(),
                n_cached: reused,
                truncated: left_out.is_some(),
            },
            tokens,
            n_probs: request.sampling.n_probs,
            sampler,
            // As llama.cpp: a BOS that begins every text is kept as well.
            n_keep: session::keep(Some(n_keep + usize::from(vocab.adds_bos())), n_total, n_ctx),
            n_predict: request.n_predict,
            deadline,
            speculation,
            stop: request.stop,
        }));
        Ok(())
    }

    /// Shifts the contexts that are full, or ends their requests.
    fn make_space(&mut self, notify: &mut dyn FnMut(u64)) {
        let n_ctx = self.context.n_ctx();
        for index in 0..self.slots.len() {
            let Some(slot) = self.slots.get_mut(index) else { continue };
            let sequence = slot.sequence();
            let Some(task) = slot.task.as_mut().filter(|task| task.tokens.len() >= n_ctx) else { continue };
            let range = session::shift(slot.cache.len(), task.n_keep)
                .filter(|_| self.ctx_shift && self.context.can_shift())
                .filter(|range| self.context.remove(sequence, range.start, Some(range.end)));
            let Some(range) = range else {
                self.end(index, Stop::Limit, true, notify);
                continue;
            };
            self.context.shift_down(sequence, range.end, range.len());
            slot.cache.drain(range.clone());
            task.tokens.drain(range.clone());
            task.truncated = true;
            if let Some(drafter) = &mut self.drafter {
                drafter.shift(index, range.start, range.len());
            }
        }
    }

    /// Sees to it that what runs fits into the cells that all slots share: forgets the caches of free slots, then
    /// pauses the youngest requests; lets them go on, oldest first, as soon as they fit again. A request alone always fits.
    fn balance(&mut self) {
        let Some(cells) = self.shared_cells else { return };
        let ubatch = self.context.n_ubatch();
        loop {
            let used: usize = self.slots.iter().map(|slot| slot.cache.len()).sum();
            let need: usize = self
                .running()
                .filter(|(_, task)| !task.paused)
                .map(|(slot, task)| {
                    let drafts = task.speculation.as_ref().map_or(0, |speculation| speculation.settings.n_max);
                    (task.tokens.len() - slot.cache.len()).min(ubatch) + drafts
                })
                .sum();
            if used + need <= cells {
                break;
            }
            let forgotten = self.slots.iter().filter(|slot| slot.task.is_none() && !slot.cache.is_empty());
            if let Some(index) = forgotten.min_by_key(|slot| slot.last_used).map(|slot| slot.index) {
                self.forget(index);
                continue;
            }
            let active = self.slots.iter().filter(|slot| slot.task.as_ref().is_some_and(|task| !task.paused));
            if active.clone().count() <= 1 {
                break;
            }
            let Some(index) = active.max_by_key(|slot| slot.last_used).map(|slot| slot.index) else { break };
            self.forget(index);
            if let Some(task) = self.slots.get_mut(index).and_then(|slot| slot.task.as_mut()) {
                task.paused = true;
            }
        }
        self.resume(cells);
    }

    fn resume(&mut self, cells: usize) {
        loop {
            let running: usize =
                self.running().filter(|(_, task)| !task.paused).map(|(_, task)| task.tokens.len()).sum();
            let paused = self.slots.iter_mut().filter(|slot| slot.task.as_ref().is_some_and(|task| task.paused));
            let Some(oldest) = paused.min_by_key(|slot| slot.last_used) else { return };
            let Some(task) = &mut oldest.task else { return };
            // An eighth of the cells to grow into, or else it would soon be paused again.
            if running > 0 && running + task.tokens.len() + cells / 8 > cells {
                return;
            }
            task.paused = false;
        }
    }

    /// Empties a slot's cache.
    fn forget(&mut self, index: usize) {
        if let Some(slot) = self.slots.get_mut(index) {
            self.context.truncate(slot.sequence(), 0);
            slot.cache.clear();
        }
    }

    /// Lets the drafter keep up with all requests that speculate, and propose tokens to those that generate.
    fn draft(&mut self) {
        let Some(drafter) = &mut self.drafter else { return };
        let n_ctx = self.context.n_ctx();
        let others = self.slots.iter().filter(|slot| slot.task.as_ref().is_some_and(Task::is_generating)).count();
        let others = others.saturating_sub(1);
        let mut asks = Vec::with_capacity(self.slots.len());
        for slot in &mut self.slots {
            let Some(task) = slot.task.as_mut().filter(|task| !task.paused) else { continue };
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
    fn fill_batch(&mut self) -> bool {
        self.batch.clear();
        let generates = |slot: &Slot| slot.task.as_ref().is_some_and(Task::is_generating);
        // While others generate, a prompt comes in pieces that do not keep them waiting for long.
        let most = if self.slots.iter().any(generates) { self.context.n_ubatch() } else { self.context.n_batch() };
        let mut room = most.min(self.context.n_batch());
        let mut order: Vec<usize> = (0..self.slots.len()).collect();
        order.sort_by_key(|index| {
            self.slots.get(*index).map(|slot| (std::cmp::Reverse(generates(slot)), slot.last_used))
        });
        for index in order {
            let Some(slot) = self.slots.get_mut(index) else { continue };
            slot.in_batch = None;
            let sequence = slot.sequence();
            let Some(task) = slot.task.as_ref().filter(|task| !task.paused) else { continue };
            let pending = task.tokens.get(slot.cache.len()..).unwrap_or(&[]);
            let chunk = pending.get(..room.min(pending.len())).unwrap_or(&[]);
            let draft = task.speculation.as_ref().map_or(&[][..], |speculation| &speculation.draft.tokens);
            let complete = chunk.len() == pending.len();
            let draft = if complete { draft.get(..draft.len().min(room - chunk.len())).unwrap_or(&[]) } else { &[] };
            let mut place = slot.cache.len();
            let mut row = None;
            for (offset, token) in chunk.iter().chain(draft).enumerate() {
                let output = complete && offset + 1 >= chunk.len();
                let at = self.batch.push(*token, place, sequence, output);
                place += 1;
                if output && row.is_none() {
                    row = Some(at);
                }
            }
            room -= chunk.len() + draft.len();
            if !chunk.is_empty() {
                slot.in_batch = Some(super::slots::InBatch { chunk: chunk.len(), draft: draft.len(), row });
            }
        }
        !self.batch.is_empty()
    }

    /// Evaluates the batch and goes on with each slot in it.
    fn evaluate(&mut self, notify: &mut dyn FnMut(u64)) {
        let start = Instant::now();
        let result = self.context.decode(&self.batch);
        let time = start.elapsed();
        match result {
            Ok(()) => self.advance(time, notify),
            Err(DecodeError::Aborted) => self.roll_back(),
            // `balance` leaves no room for this but for caches that fill up in llama.cpp's own granularity.
            Err(DecodeError::Full) => {
                self.fail_batch(&Error::new(Code::ContextFull, "the KV cache is full"), notify);
            }
            Err(DecodeError::Failed(why)) => self.fail_batch(&Error::model(why), notify),
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

    fn fail_batch(&mut self, error: &Error, notify: &mut dyn FnMut(u64)) {
        for index in 0..self.slots.len() {
            let in_batch = self.slots.get_mut(index).and_then(|slot| slot.in_batch.take());
            if in_batch.is_some() {
                self.forget(index);
                self.end(index, Stop::Error(error.clone()), false, notify);
            }
        }
    }

    /// After an evaluation that took `time`: samples, checks drafts, sends text.
    fn advance(&mut self, time: Duration, notify: &mut dyn FnMut(u64)) {
        let generated: usize = self.slots.iter().filter_map(|slot| slot.in_batch.as_ref()).map(|part| part.draft + 1).sum();
        if generated == self.batch.len() {
            self.costs.saw_target(generated, time);
        }
        for index in 0..self.slots.len() {
            let Some(slot) = self.slots.get_mut(index) else { continue };
            let Some(part) = slot.in_batch.take() else { continue };
            let Some(task) = &mut slot.task else { continue };
            let known = slot.cache.len();
            slot.cache.extend_from_slice(task.tokens.get(known..known + part.chunk).unwrap_or(&[]));
            let Some(row) = part.row else { continue };
            let is_first = task.n_predicted == 0;
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
                Some(stop) => self.end(index, stop, false, notify),
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
    let model = std::sync::Arc::clone(context.model());
    let mut accepted = 0;
    let mut stop = None;
    for place in 0..=n_draft {
        let Some(logits) = context.logits(row + place) else {
            return Some(Stop::Error(Error::new(Code::Internal, "the evaluation gave no logits")));
        };
        let token = match task.sampler.pick(logits, &task.tokens, task.n_predicted) {
            Ok(token) => token,
            Err(error) => {
                stop = Some(Stop::Error(error));
                break;
            }
        };
        let probs = (task.n_probs > 0).then(|| sampling::token_probs(logits, token, task.n_probs));
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
