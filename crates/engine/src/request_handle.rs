//! The two ends of a request: the engine puts events into [`CompletionSink`]s, one for each completion; the submitter takes them out of
//! the [`RequestHandle`].

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::event::{Event, Outcome, Stop, Timings};
use super::priority::Rank;
use super::trace;
use foredraft_base::error::{Code, Error, Result};

/// Updates kept for a request that is not polled. Further ones are appended to the last, so that nothing is lost and memory only grows
/// with the completion.
const MAX_UPDATES: usize = 1024;

foredraft_base::words! {
    /// The phase of a request, in this order.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Phase {
        /// Waiting for a slot.
        Queued => "queued",
        /// Its prompt is being decoded.
        Prompt => "prompt",
        /// It generates.
        Generating => "generating",
        /// It has ended.
        Finished => "finished",
    }
}

/// A submitted request: its number, and the events of its completions, of which it has one or several.
#[derive(Debug)]
pub struct RequestHandle {
    id: u64,
    texts: Vec<Expected>,
    /// Its deadline, which does not end it.
    due: OnceLock<Instant>,
    cancelled: AtomicBool,
    inner: Mutex<HandleState>,
    changed: Condvar,
    counts: Arc<Counts>,
}

/// How many completions there are, of all requests.
#[derive(Debug, Default)]
pub struct Counts {
    /// Those that have not finished.
    unfinished: AtomicUsize,
    /// Those of them that wait for a slot.
    queued: AtomicUsize,
}

impl Counts {
    pub(super) fn unfinished(&self) -> usize {
        self.unfinished.load(Ordering::Acquire)
    }

    pub(super) fn queued(&self) -> usize {
        self.queued.load(Ordering::Acquire)
    }

    /// Whether `n_texts` more completions could be queued now, where `n_slots` can run and `max_queue` wait.
    ///
    /// # Errors
    /// They could not ([`Code::QueueFull`]).
    pub fn check_room(&self, n_texts: usize, n_slots: usize, max_queue: usize) -> Result<()> {
        let (unfinished, most) = (self.unfinished(), n_slots + max_queue);
        if unfinished + n_texts <= most {
            return Ok(());
        }
        let waiting = unfinished.saturating_sub(n_slots);
        let message = match n_texts {
            1 => format!("max_queue: {waiting} requests are waiting already"),
            n => format!(
                "max_queue: {n} texts were asked for, where {most} may run or wait and {unfinished} do so already"
            ),
        };
        Err(Error::new(Code::QueueFull, message))
    }
}

/// The known properties of a completion before it runs.
#[derive(Debug)]
pub(super) struct Expected {
    /// Tokens of its prompt; 0 until it is prepared.
    n_prompt: AtomicUsize,
    speculates: bool,
}

impl Expected {
    pub(super) fn new(n_prompt: usize, speculates: bool) -> Expected {
        Expected { n_prompt: n_prompt.into(), speculates }
    }
}

#[derive(Debug)]
struct HandleState {
    /// The phase of each completion.
    phases: Vec<Phase>,
    /// Each with the index of its completion.
    events: VecDeque<(usize, Event)>,
    /// When the last completion finished.
    ended: Option<Instant>,
}

impl HandleState {
    /// The phase of the request: that of the completion that is furthest, and `Finished` when all are.
    fn phase(&self) -> Phase {
        let is = |phase| self.phases.contains(&phase);
        [Phase::Generating, Phase::Prompt, Phase::Queued]
            .into_iter()
            .find(|phase| is(*phase))
            .unwrap_or(Phase::Finished)
    }
}

impl RequestHandle {
    pub(super) fn new(id: u64, texts: Vec<Expected>, counts: Arc<Counts>) -> Arc<RequestHandle> {
        counts.unfinished.fetch_add(texts.len(), Ordering::AcqRel);
        counts.queued.fetch_add(texts.len(), Ordering::AcqRel);
        Arc::new(RequestHandle {
            counts,
            id,
            due: OnceLock::new(),
            cancelled: AtomicBool::new(false),
            inner: Mutex::new(HandleState {
                phases: vec![Phase::Queued; texts.len()],
                events: VecDeque::new(),
                ended: None,
            }),
            texts,
            changed: Condvar::new(),
        })
    }

    /// Both ends of a request that another process generates, with the engine's end of each completion.
    pub fn of_other_process(
        id: u64,
        n_completions: usize,
        speculates: bool,
        counts: &Arc<Counts>,
    ) -> (Arc<RequestHandle>, Vec<CompletionSink>) {
        let texts = (0..n_completions).map(|_| Expected::new(0, speculates)).collect();
        let handle = RequestHandle::new(id, texts, Arc::clone(counts));
        let sinks = handle.sinks().collect();
        (handle, sinks)
    }

    /// Whether the request was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    /// The engine's end of each completion.
    pub(super) fn sinks(self: &Arc<Self>) -> impl Iterator<Item = CompletionSink> {
        (0..self.texts.len()).map(|index| CompletionSink { handle: Arc::clone(self), index })
    }

    /// The request's number, unique in the process.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Sets its deadline.
    pub(super) fn set_due(&self, due: Option<Instant>) {
        if let Some(due) = due {
            let _ = self.due.set(due);
        }
    }

    /// Its phase: that of the completion that is furthest, and `Finished` when all are.
    pub fn phase(&self) -> Phase {
        self.inner.lock().phase()
    }

    /// When it finished.
    pub fn ended(&self) -> Option<Instant> {
        self.inner.lock().ended
    }

    /// Takes the events so far, each with the index of its completion. Waits for the first one up to `wait`, unless the
    /// request has finished. The phase is the one after them.
    pub fn take(&self, wait: Duration) -> (Vec<(usize, Event)>, Phase) {
        let mut inner = self.wait_while(wait, |inner| inner.events.is_empty());
        (inner.events.drain(..).collect(), inner.phase())
    }

    /// Waits for its end up to `wait`, and returns its phase. Takes no event.
    pub fn watch(&self, wait: Duration) -> Phase {
        self.wait_while(wait, |_| true).phase()
    }

    /// Waits up to `wait` while `so` holds and the request has not finished.
    fn wait_while(&self, wait: Duration, so: impl Fn(&HandleState) -> bool) -> MutexGuard<'_, HandleState> {
        let mut inner = self.inner.lock();
        if wait.is_zero() {
            return inner;
        }
        // A far deadline that does not fit into an `Instant` is no deadline.
        let deadline = Instant::now().checked_add(wait);
        while so(&inner) && inner.phase() != Phase::Finished {
            let late = match deadline {
                Some(deadline) => self.changed.wait_until(&mut inner, deadline).timed_out(),
                None => {
                    self.changed.wait(&mut inner);
                    false
                }
            };
            if late {
                break;
            }
        }
        inner
    }

    /// Waits for the end of all completions and returns all events not taken yet.
    pub fn wait(&self) -> Vec<(usize, Event)> {
        let mut inner = self.inner.lock();
        while inner.phase() != Phase::Finished {
            self.changed.wait(&mut inner);
        }
        inner.events.drain(..).collect()
    }

    /// Cancels all completions. Those that still wait for a slot end immediately. Returns whether no other is left.
    pub(super) fn cancel(self: &Arc<Self>) -> bool {
        self.cancelled.store(true, Ordering::Release);
        for sink in self.sinks() {
            sink.finish_if_queued(Stop::Cancelled);
        }
        self.phase() == Phase::Finished
    }
}

/// The engine's end of one completion.
#[derive(Debug, Clone)]
pub struct CompletionSink {
    handle: Arc<RequestHandle>,
    index: usize,
}

impl CompletionSink {
    /// The request's number.
    pub(super) fn id(&self) -> u64 {
        self.handle.id
    }

    /// Its index among the request's completions.
    pub(super) fn index(&self) -> usize {
        self.index
    }

    /// The completion's rank when it is submitted.
    pub(super) fn rank(&self, priority: i32) -> Rank {
        Rank::new(priority, (self.handle.id, self.index), self.handle.due.get().copied())
    }

    /// The time since its deadline, 0 before it; `None`: it has none.
    pub(super) fn deadline_missed(&self) -> Option<Duration> {
        self.handle.due.get().map(|due| Instant::now().saturating_duration_since(*due))
    }

    /// The prompt is known now.
    pub(super) fn set_prompt_len(&self, n_prompt: usize) {
        if let Some(text) = self.handle.texts.get(self.index) {
            text.n_prompt.store(n_prompt, Ordering::Relaxed);
        }
    }

    /// The phase of this completion.
    pub fn phase(&self) -> Phase {
        self.of(&self.handle.inner.lock())
    }

    fn of(&self, inner: &HandleState) -> Phase {
        inner.phases.get(self.index).copied().unwrap_or(Phase::Finished)
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.handle.is_cancelled()
    }

    /// Ends the completion if it still waits for a slot. Returns whether it did.
    pub(super) fn finish_if_queued(&self, stop: Stop) -> bool {
        let inner = self.handle.inner.lock();
        if self.of(&inner) != Phase::Queued {
            return false;
        }
        self.end(inner, self.never_ran(stop));
        true
    }

    /// The outcome of a completion that got no slot, or no token.
    pub fn never_ran(&self, stop: Stop) -> Outcome {
        let expected = self.handle.texts.get(self.index);
        let n_prompt = expected.map_or(0, |text| text.n_prompt.load(Ordering::Relaxed));
        let timings = Timings { deadline_missed: self.deadline_missed(), ..Timings::default() };
        Outcome { timings, ..Outcome::never_ran(stop, n_prompt, expected.is_some_and(|text| text.speculates)) }
    }

    /// Moves from the queue into a slot. Returns false if it has ended meanwhile.
    pub fn start(&self) -> bool {
        let started = self.advance(Phase::Queued, Phase::Prompt);
        if started {
            self.handle.counts.queued.fetch_sub(1, Ordering::AcqRel);
        }
        started
    }

    /// It has a token.
    pub fn set_generating(&self) {
        self.advance(Phase::Prompt, Phase::Generating);
    }

    fn advance(&self, from: Phase, to: Phase) -> bool {
        let mut inner = self.handle.inner.lock();
        match inner.phases.get_mut(self.index).filter(|phase| **phase == from) {
            Some(phase) => {
                *phase = to;
                true
            }
            None => false,
        }
    }

    /// Reports an update or progress. If too many events were not taken yet, it is joined with this completion's last one.
    pub fn report(&self, event: Event) {
        let mut inner = self.handle.inner.lock();
        let full = inner.events.len() >= MAX_UPDATES;
        let own = inner.events.iter_mut().rev().filter(|_| full).find(|(index, _)| *index == self.index);
        match (own.map(|(_, last)| last), event) {
            (Some(Event::Update(last)), Event::Update(update)) => {
                last.text.push_str(&update.text);
                last.tokens.extend(update.tokens);
                last.timings = update.timings;
            }
            // The later one replaces the earlier one.
            (Some(Event::Progress(last)), Event::Progress(progress)) => *last = progress,
            (_, event) => inner.events.push_back((self.index, event)),
        }
        drop(inner);
        self.handle.changed.notify_all();
    }

    pub(super) fn finish(&self, outcome: Outcome) {
        if self.phase() != Phase::Finished {
            trace::log_end(self.handle.id, &outcome);
        }
        self.finish_elsewhere(outcome);
    }

    /// Ends the completion, whose end another process has logged. Does nothing if it has ended.
    pub fn finish_elsewhere(&self, outcome: Outcome) {
        let inner = self.handle.inner.lock();
        if self.of(&inner) != Phase::Finished {
            self.end(inner, outcome);
        }
    }

    fn end(&self, mut inner: MutexGuard<'_, HandleState>, outcome: Outcome) {
        inner.events.push_back((self.index, Event::Finished(Box::new(outcome))));
        let before = inner.phases.get_mut(self.index).map(|phase| std::mem::replace(phase, Phase::Finished));
        if inner.phase() == Phase::Finished {
            inner.ended = Some(Instant::now());
        }
        // The counts change before a host can learn of the end and submit another.
        let counts = &self.handle.counts;
        counts.unfinished.fetch_sub(1, Ordering::AcqRel);
        if before == Some(Phase::Queued) {
            counts.queued.fetch_sub(1, Ordering::AcqRel);
        }
        drop(inner);
        self.handle.changed.notify_all();
    }
}

#[cfg(test)]
mod tests;
