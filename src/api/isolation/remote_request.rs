//! A request of an isolated engine, as the host's process keeps it: what is needed to continue it in a new process. Polls read its record,
//! as they do in an engine of this process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::connection::Connection;
use super::events::{MessageParts, RequestEvent, breach};
use super::protocol::{Frame, FrameKind, RequestHead};
use super::trial::Presence;
use crate::api::loaded::registry::RequestRecord;
use crate::api::wire::request::RequestArguments;
use crate::engine::{CompletionSink, Event, Generated, Outcome, Phase, Stop};
use crate::error::{Code, Error, Result};
use crate::llama::Token;

/// How much later than `timeout_ms`, or than a cancel, the host ends a request that the process has not ended.
const GRACE: Duration = Duration::from_secs(2);

/// A request that has not finished.
pub(super) struct RemoteRequest {
    pub(super) record: Arc<RequestRecord>,
    /// The engine's end of each completion.
    sinks: Vec<CompletionSink>,
    text: Arc<[u8]>,
    arguments: RequestArguments,
    submitted: Instant,
    ends_reasoning: AtomicBool,
    state: Mutex<RemoteState>,
}

struct RemoteState {
    completions: Vec<ArrivedCompletion>,
    cancelled: Option<Instant>,
    presence: Presence,
}

/// A completion, as far as it has arrived. A new process sends all of it again.
#[derive(Default)]
struct ArrivedCompletion {
    tokens: Vec<Token>,
    /// The length of the text.
    text_len: usize,
    /// The numbers of tokens and bytes of text that the process has sent which serves now.
    n_sent: (usize, usize),
}

/// The effect of an event.
#[derive(Default)]
pub(super) struct EventEffect {
    /// Whether a poll has something new.
    pub(super) has_news: bool,
    /// Whether the request was suspect, and is not any more.
    pub(super) was_suspect: bool,
}

impl ArrivedCompletion {
    /// Removes from tokens and text what has arrived before. Returns whether tokens are new.
    fn take(&mut self, tokens: &mut Vec<Generated>, text: &mut String) -> bool {
        let (n_tokens, n_bytes) = self.n_sent;
        self.n_sent = (n_tokens + tokens.len(), n_bytes + text.len());
        tokens.drain(..(self.tokens.len() - n_tokens.min(self.tokens.len())).min(tokens.len()));
        self.tokens.extend(tokens.iter().map(|generated| generated.token));
        // Both processes cut between characters of the same text.
        let known = (self.text_len - n_bytes.min(self.text_len)).min(text.len());
        let known = (0..=known).rev().find(|known| text.is_char_boundary(*known)).unwrap_or(0);
        text.drain(..known);
        self.text_len += text.len();
        !tokens.is_empty()
    }
}

impl RemoteRequest {
    pub(super) fn new(
        record: Arc<RequestRecord>,
        sinks: Vec<CompletionSink>,
        text: Arc<[u8]>,
        arguments: RequestArguments,
    ) -> RemoteRequest {
        let completions = sinks.iter().map(|_| ArrivedCompletion::default()).collect();
        let state = RemoteState { completions, cancelled: None, presence: Presence::default() };
        RemoteRequest {
            record,
            sinks,
            text,
            arguments,
            submitted: Instant::now(),
            ends_reasoning: AtomicBool::new(false),
            state: Mutex::new(state),
        }
    }

    pub(super) fn id(&self) -> u64 {
        self.record.handle.id()
    }

    pub(super) fn is_finished(&self) -> bool {
        self.record.handle.phase() == Phase::Finished
    }

    /// Begins it in a process, or continues it there.
    pub(super) fn send_to(&self, connection: &Connection, now: Instant) {
        let mut state = self.state.lock();
        let mut arguments = self.arguments.clone();
        arguments.isolated.prefixes = state.completions.iter().map(|completion| completion.tokens.clone()).collect();
        arguments.isolated.elapsed = now.saturating_duration_since(self.submitted);
        let head = RequestHead { is_awaited: self.record.is_awaited, arguments };
        connection.send(Frame::request(self.id(), &head, &self.text));
        if self.ends_reasoning.load(Ordering::Acquire) {
            connection.send(Frame::new(FrameKind::EndReasoning, self.id(), Vec::new()));
        }
        state.presence.send(now);
    }

    /// Lets its reasoning end with the next token, also in a later process.
    pub(super) fn end_reasoning(&self) {
        self.ends_reasoning.store(true, Ordering::Release);
    }

    /// The process has died. Everything arrives again. `is_alone`: the process had nothing else. Returns whether the request is the cause.
    pub(super) fn process_died(&self, cause: &str, is_alone: bool) -> bool {
        let mut state = self.state.lock();
        let was_sent = state.presence.is_sent();
        let is_guilty = state.presence.process_died(is_alone);
        state.completions.iter_mut().for_each(|completion| completion.n_sent = (0, 0));
        self.record.messages.iter().for_each(|message| message.lock().repeat());
        for sink in self.sinks.iter().filter(|sink| was_sent && sink.phase() != Phase::Finished) {
            sink.report(Event::Restarted { cause: cause.to_owned() });
        }
        is_guilty
    }

    /// Takes an event.
    ///
    /// # Errors
    /// It is none that an engine sends.
    pub(super) fn arrived(&self, event: RequestEvent) -> Result<EventEffect> {
        match event {
            _ if self.is_finished() => Ok(EventEffect::default()),
            RequestEvent::Accepted(accepted) => {
                // A later process finds the same.
                let _ = self.record.accepted.set(accepted);
                Ok(EventEffect::default())
            }
            RequestEvent::Prepared(prompts) => {
                self.record.set_prompts(prompts.into_iter().map(Arc::new).collect());
                Ok(EventEffect::default())
            }
            RequestEvent::Refused(error) => {
                let _ = self.record.refusal.set(error.clone());
                self.end(error_stop(error));
                Ok(EventEffect { has_news: true, was_suspect: self.clear() })
            }
            RequestEvent::Completion { index, event, message } => self.continued(index, event, message),
        }
    }

    /// Takes an event of a completion.
    fn continued(&self, index: usize, event: Event, parts: Option<MessageParts>) -> Result<EventEffect> {
        let mut state = self.state.lock();
        let (Some(completion), Some(sink)) = (state.completions.get_mut(index), self.sinks.get(index)) else {
            return Err(breach("an event of a completion that there is not"));
        };
        let message = self.record.messages.get(index);
        if let (Some(message), Some(parts)) = (message, parts)
            && !message.lock().receive(parts.delta, parts.warnings)
        {
            return Err(breach("parts of a message that do not continue it"));
        }
        sink.start();
        let (has_tokens, has_news) = match event {
            Event::Update(mut update) => {
                sink.set_generating();
                let has_tokens = completion.take(&mut update.tokens, &mut update.text);
                // Without new text there is nothing new in the message.
                let has_news = has_tokens || !update.text.is_empty();
                if has_news {
                    sink.report(Event::Update(update));
                }
                (has_tokens, has_news)
            }
            Event::Finished(mut outcome) => {
                completion.take(&mut outcome.tokens, &mut outcome.text);
                sink.finish_elsewhere(*outcome);
                (true, true)
            }
            event @ (Event::Progress(_) | Event::Restarted { .. }) => {
                sink.report(event);
                (false, true)
            }
        };
        let was_suspect = has_tokens && state.presence.clear();
        Ok(EventEffect { has_news, was_suspect })
    }

    /// Ends each completion that has not ended.
    pub(super) fn end(&self, stop: Stop) {
        let state = self.state.lock();
        for (sink, completion) in self.sinks.iter().zip(&state.completions) {
            let outcome = sink.never_ran(stop.clone());
            sink.finish_elsewhere(Outcome { n_predicted: completion.tokens.len(), ..outcome });
        }
    }

    /// Lets its end say that the process has not answered in time.
    pub(super) fn warn_of_silence(&self) {
        let warning = "isolate: the engine's process did not answer, so the end has no statistics";
        self.record.late_warnings.lock().push(warning.to_owned());
    }

    /// Notes that it is cancelled. Returns whether a process has it, which will end it.
    pub(super) fn cancel(&self) -> bool {
        let mut state = self.state.lock();
        state.cancelled.get_or_insert_with(Instant::now);
        state.presence.is_sent()
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.state.lock().cancelled.is_some()
    }

    /// Whether the process is late with its end, and why it should have ended.
    pub(super) fn overdue(&self, now: Instant) -> Option<Stop> {
        let cancelled = self.state.lock().cancelled;
        let is_late = |since: Instant| since.checked_add(GRACE).is_some_and(|end| end < now);
        if cancelled.is_some_and(is_late) {
            return Some(Stop::Cancelled);
        }
        let timeout = self.record.request.options.timeout.and_then(|limit| self.submitted.checked_add(limit));
        timeout.is_some_and(is_late).then_some(Stop::Timeout)
    }

    pub(super) fn presence(&self) -> Presence {
        self.state.lock().presence
    }

    /// It is not suspect any more. Returns whether it was.
    pub(super) fn clear(&self) -> bool {
        self.state.lock().presence.clear()
    }
}

/// The end of a request that fails with this error, which may be that its time has passed.
pub(super) fn error_stop(error: Error) -> Stop {
    if error.code() == Code::Timeout { Stop::Timeout } else { Stop::from(error) }
}

/// The error of a call whose engine is unloaded.
pub(super) fn stopped() -> Error {
    Error::new(Code::Cancelled, "the engine was stopped by a load or unload")
}
