//! The two ends of a request: the engine puts events in, whoever submitted it takes them out.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::event::{Event, Outcome, Progress, Stop, Update};

/// Updates kept for a request that is not polled; further ones are joined to the last, so that nothing is lost
/// and memory grows with the text alone.
pub const MAX_UPDATES: usize = 1024;

/// How far a request has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Waiting for a slot.
    Queued,
    /// Its prompt is being evaluated.
    Prompt,
    /// It generates.
    Generating,
    /// It has ended.
    Finished,
}

impl Phase {
    /// The name used in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Phase::Queued => "queued",
            Phase::Prompt => "prompt",
            Phase::Generating => "generating",
            Phase::Finished => "finished",
        }
    }
}

/// A submitted request, shared by the engine and those who poll it.
#[derive(Debug)]
pub struct Ticket {
    id: u64,
    n_prompt: usize,
    speculates: bool,
    cancelled: AtomicBool,
    inner: Mutex<Inner>,
    news: Condvar,
    /// Counts the tickets that have not finished.
    unfinished: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct Inner {
    phase: Phase,
    events: VecDeque<Event>,
}

impl Ticket {
    pub(super) fn new(id: u64, n_prompt: usize, speculates: bool, unfinished: Arc<AtomicUsize>) -> Ticket {
        unfinished.fetch_add(1, Ordering::AcqRel);
        Ticket {
            unfinished,
            id,
            n_prompt,
            speculates,
            cancelled: AtomicBool::new(false),
            inner: Mutex::new(Inner { phase: Phase::Queued, events: VecDeque::new() }),
            news: Condvar::new(),
        }
    }

    /// The request's number, unique in the process.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// How far it has come.
    pub fn phase(&self) -> Phase {
        self.inner.lock().phase
    }

    /// Takes the events so far. Waits for the first one up to `wait`, unless the request has finished.
    /// The phase is the one after them.
    pub fn take(&self, wait: Duration) -> (Vec<Event>, Phase) {
        let mut inner = self.inner.lock();
        if inner.events.is_empty() && !wait.is_zero() {
            // A far deadline that does not fit into an `Instant` is no deadline.
            let deadline = Instant::now().checked_add(wait);
            while inner.events.is_empty() && inner.phase != Phase::Finished {
                let late = match deadline {
                    Some(deadline) => self.news.wait_until(&mut inner, deadline).timed_out(),
                    None => {
                        self.news.wait(&mut inner);
                        false
                    }
                };
                if late {
                    break;
                }
            }
        }
        (inner.events.drain(..).collect(), inner.phase)
    }

    /// Waits for the end and returns all events not taken yet.
    pub fn wait(&self) -> Vec<Event> {
        let mut inner = self.inner.lock();
        while inner.phase != Phase::Finished {
            self.news.wait(&mut inner);
        }
        inner.events.drain(..).collect()
    }

    /// Asks the request to end. One that still waits for a slot ends here and now: then true is returned.
    pub(super) fn cancel(&self) -> bool {
        self.cancelled.store(true, Ordering::Release);
        self.finish_if_queued(Stop::Cancelled)
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    /// Ends the request if no slot has it yet; true when it did.
    pub(super) fn finish_if_queued(&self, stop: Stop) -> bool {
        let inner = self.inner.lock();
        if inner.phase != Phase::Queued {
            return false;
        }
        self.end(inner, Outcome::never_ran(stop, self.n_prompt, self.speculates));
        true
    }

    /// Moves from the queue into a slot; false when it has ended meanwhile.
    pub(super) fn start(&self) -> bool {
        let mut inner = self.inner.lock();
        let queued = inner.phase == Phase::Queued;
        if queued {
            inner.phase = Phase::Prompt;
        }
        queued
    }

    pub(super) fn set_generating(&self) {
        let mut inner = self.inner.lock();
        if inner.phase == Phase::Prompt {
            inner.phase = Phase::Generating;
        }
    }

    pub(super) fn update(&self, update: Update) {
        let mut inner = self.inner.lock();
        if inner.events.len() >= MAX_UPDATES
            && let Some(Event::Update(last)) = inner.events.back_mut()
        {
            last.text.push_str(&update.text);
            last.tokens.extend(update.tokens);
            last.timings = update.timings;
        } else {
            inner.events.push_back(Event::Update(update));
        }
        drop(inner);
        self.news.notify_all();
    }

    pub(super) fn progress(&self, progress: Progress) {
        let mut inner = self.inner.lock();
        if inner.events.len() >= MAX_UPDATES {
            inner.events.pop_back(); // what came before the text is progress as well, and the later one says more
        }
        inner.events.push_back(Event::Progress(progress));
        drop(inner);
        self.news.notify_all();
    }

    pub(super) fn finish(&self, outcome: Outcome) {
        let inner = self.inner.lock();
        if inner.phase != Phase::Finished {
            self.end(inner, outcome);
        }
    }

    fn end(&self, mut inner: MutexGuard<'_, Inner>, outcome: Outcome) {
        inner.events.push_back(Event::Finished(Box::new(outcome)));
        inner.phase = Phase::Finished;
        // Before anybody can learn of the end and submit another.
        self.unfinished.fetch_sub(1, Ordering::AcqRel);
        drop(inner);
        self.news.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(events: &[Event]) -> String {
        events.iter().map(|event| if let Event::Update(update) = event { update.text.as_str() } else { "|" }).collect()
    }

    #[test]
    fn updates_beyond_the_bound_are_joined_and_nothing_is_lost() {
        let ticket = Ticket::new(1, 3, false, Arc::default());
        assert!(ticket.start());
        let sent: Vec<String> = (0..MAX_UPDATES + 500).map(|n| format!("{n} ")).collect();
        for text in &sent {
            ticket.update(Update { text: text.clone(), ..Update::default() });
        }
        let (events, phase) = ticket.take(Duration::ZERO);
        assert_eq!(phase, Phase::Prompt);
        assert_eq!(events.len(), MAX_UPDATES);
        assert_eq!(text(&events), sent.concat());
    }

    #[test]
    fn a_queued_request_ends_where_it_is_cancelled() {
        let unfinished = Arc::default();
        let ticket = Ticket::new(1, 3, true, Arc::clone(&unfinished));
        assert_eq!(unfinished.load(Ordering::Relaxed), 1);
        assert!(ticket.cancel());
        assert_eq!(unfinished.load(Ordering::Relaxed), 0);
        assert!(!ticket.cancel(), "only once");
        assert!(!ticket.start(), "a slot must not take it");
        let (events, phase) = ticket.take(Duration::from_secs(3600));
        assert_eq!(phase, Phase::Finished);
        let [Event::Finished(outcome)] = events.as_slice() else { panic!("{events:?}") };
        assert_eq!(outcome.stop, Stop::Cancelled);
        assert_eq!(outcome.prompt.n_total, 3);
        assert!(outcome.speculation.is_some());
        assert_eq!(ticket.take(Duration::from_secs(3600)).0.len(), 0, "waits for nothing once finished");
    }

    #[test]
    fn waiting_ends_with_the_first_update() {
        let ticket = std::sync::Arc::new(Ticket::new(1, 3, false, Arc::default()));
        let other = std::sync::Arc::clone(&ticket);
        assert!(ticket.start());
        let waiting = std::thread::spawn(move || other.take(Duration::MAX));
        ticket.update(Update { text: "a".into(), ..Update::default() });
        assert_eq!(text(&waiting.join().unwrap().0), "a");
    }
}
