//! A request of an isolated engine, as the host's process keeps it: what is needed to answer polls, and to continue it in a new process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use serde_json::{Map, Value, json};

use super::connection::Connection;
use super::delivered::DeliveredCompletion;
use super::protocol::{Frame, FrameKind, RequestHead};
use super::trial::Presence;
use super::updates::UntakenUpdates;
use crate::api::calls::Taken;
use crate::api::error_json;
use crate::api::request::{IsolatedArguments, RequestArguments, draw_id_seed, draw_seed};
use crate::error::{Code, Error};
use crate::llama::Token;

/// How much later than `timeout_ms`, or than a cancel, the host ends a request that the process has not ended.
const GRACE: Duration = Duration::from_secs(2);

/// A request in the engine's process.
pub(super) struct RemoteRequest {
    pub(super) id: u64,
    /// Its caller waits for the final response, so polls take no updates.
    pub(super) is_awaited: bool,
    object: Map<String, Value>,
    text: Arc<[u8]>,
    arguments: RequestArguments,
    submitted: Instant,
    /// `timeout_ms`.
    time_limit: Option<Duration>,
    ends_reasoning: AtomicBool,
    state: Mutex<RemoteState>,
    changed: Condvar,
}

struct RemoteState {
    phase: &'static str,
    /// Updates that no poll has taken.
    updates: UntakenUpdates,
    completions: Vec<DeliveredCompletion>,
    /// The number of completions, if updates have an `index`. Known once the process has accepted the request.
    n_indexed: Option<usize>,
    /// The answer of a submit, or of an awaited request.
    answer: Option<Value>,
    finished: Option<Instant>,
    cancelled: Option<Instant>,
    presence: Presence,
}

/// Why the host ends a request.
#[derive(Debug, Clone)]
pub(super) enum HostEnd {
    /// It was cancelled, or the engine is unloaded.
    Cancelled,
    /// It was cancelled, or its `timeout_ms` passed, and the process has not ended it since.
    Overdue(&'static str),
    Failed(Error),
}

/// The effect of an update.
pub(super) struct Updated {
    /// Whether a poll has something new.
    pub(super) has_news: bool,
    /// Whether the request was suspect, and is not any more.
    pub(super) was_suspect: bool,
}

impl RemoteRequest {
    pub(super) fn new(
        id: u64,
        is_awaited: bool,
        (object, text): (Map<String, Value>, Arc<[u8]>),
        mut arguments: RequestArguments,
    ) -> RemoteRequest {
        // A continued request must have the same seed and the same ids of its calls. The logits callback gets the number of this process.
        let (drawn_seed, id_seed, host_number) = (Some(draw_seed()), Some(draw_id_seed()), Some(id));
        arguments.isolated = IsolatedArguments { drawn_seed, id_seed, host_number, ..IsolatedArguments::default() };
        let time_limit = object.get("timeout_ms").and_then(Value::as_u64).filter(|limit| *limit > 0);
        RemoteRequest {
            id,
            is_awaited,
            object,
            text,
            arguments,
            submitted: Instant::now(),
            time_limit: time_limit.map(Duration::from_millis),
            ends_reasoning: AtomicBool::new(false),
            state: Mutex::new(RemoteState {
                phase: "queued",
                updates: UntakenUpdates::default(),
                completions: Vec::new(),
                n_indexed: None,
                answer: None,
                finished: None,
                cancelled: None,
                presence: Presence::default(),
            }),
            changed: Condvar::new(),
        }
    }

    /// Begins it in a process, or continues it there.
    pub(super) fn send_to(&self, connection: &Connection, now: Instant) {
        let mut state = self.state.lock();
        connection.send(self.frame(&state, now));
        if self.ends_reasoning.load(Ordering::Acquire) {
            connection.send(Frame::new(FrameKind::EndReasoning, self.id, Vec::new()));
        }
        state.presence.send(now);
    }

    /// Begins it, or continues it in a new process.
    fn frame(&self, state: &RemoteState, now: Instant) -> Frame {
        let mut arguments = self.arguments.clone();
        arguments.isolated.prefixes = state.completions.iter().map(|completion| completion.tokens().to_vec()).collect();
        arguments.isolated.delivered = state.completions.iter().map(DeliveredCompletion::text_len).collect();
        arguments.isolated.timeout = self.time_limit.map(|limit| {
            limit.saturating_sub(now.saturating_duration_since(self.submitted)).max(Duration::from_millis(1))
        });
        let head =
            RequestHead { is_awaited: self.is_awaited, is_continued: state.presence.is_continued(), arguments };
        Frame::request(self.id, &head, &self.text)
    }

    /// Lets its reasoning end with the next token, also in a later process.
    pub(super) fn end_reasoning(&self) {
        self.ends_reasoning.store(true, Ordering::Release);
    }

    /// The process has died. Everything arrives again. `is_alone`: the process had nothing else. Returns whether the request is the cause.
    pub(super) fn process_died(&self, event: &Value, is_alone: bool) -> bool {
        let mut state = self.state.lock();
        let is_guilty = state.presence.process_died(is_alone);
        state.completions.iter_mut().for_each(DeliveredCompletion::repeat);
        if !self.is_awaited && state.answer.is_some() {
            for index in state.running() {
                let mut update = self.empty_update(index);
                update.insert("engine".into(), event.clone());
                state.updates.push(update.into());
            }
        }
        drop(state);
        // A poll may wait for an update.
        self.changed.notify_all();
        is_guilty
    }

    /// Takes what the process sent.
    pub(super) fn update(&self, update: &mut Value) -> Updated {
        let mut state = self.state.lock();
        let mut has_news = false;
        let mut has_tokens = false;
        if state.finished.is_some() {
            return Updated { has_news, was_suspect: false };
        }
        for (index, tokens) in update.get("tokens").and_then(Value::as_array).into_iter().flatten().enumerate() {
            let tokens = tokens.as_array().into_iter().flatten();
            let tokens = tokens.filter_map(|token| Token::try_from(token.as_i64()?).ok());
            has_tokens |= state.completion(index).add_tokens(tokens.collect());
        }
        let answer = update.get_mut("answer").map(Value::take).unwrap_or_default();
        if let Some(phase) = answer.get("state").and_then(Value::as_str) {
            state.phase = phase_name(phase);
        }
        let is_finished = answer.get("finished") == Some(&Value::Bool(true)) && !self.is_awaited;
        if let Value::Object(mut answer) = answer
            && let Some(Value::Array(updates)) = answer.remove("completion_updates")
        {
            for update in updates {
                if let Some(update) = state.trimmed(update, self.id) {
                    state.updates.push(update);
                    has_news = true;
                }
            }
        }
        if is_finished {
            state.finish();
            has_news = true;
        }
        let was_suspect = (has_tokens || is_finished) && state.presence.clear();
        drop(state);
        self.changed.notify_all();
        Updated { has_news, was_suspect }
    }

    /// The answer of its call. That of an awaited request ends it, and so does an error.
    pub(super) fn answer(&self, mut answer: Value) {
        set_ids(&mut answer, self.id);
        let mut state = self.state.lock();
        let failed = answer.get("success") != Some(&Value::Bool(true));
        if self.is_awaited || (failed && state.answer.is_none()) {
            state.finish();
        } else if failed {
            // It was accepted by an earlier process.
            self.end_completions(&mut state, &answer);
        }
        if state.answer.is_none() || self.is_awaited {
            let results = answer.get("prompt_stats").and_then(Value::as_array);
            state.n_indexed = results.map(Vec::len);
            state.answer = Some(answer);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Ends the request.
    pub(super) fn end(&self, end: &HostEnd) {
        let mut state = self.state.lock();
        if state.finished.is_none() {
            let fields = end.fields();
            self.end_completions(&mut state, &fields);
            if self.is_awaited {
                state.answer = state.updates.pop_last();
            } else if state.answer.is_none() {
                state.answer = Some(error_json(&end.error()));
            }
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Ends each completion that has not ended.
    fn end_completions(&self, state: &mut RemoteState, answer: &Value) {
        for index in state.running() {
            let completion = state.completion(index.unwrap_or(0));
            completion.finish();
            let n_predicted = completion.tokens().len();
            let message = self.is_chat().then(|| completion.message(self.object.contains_key("functions")));
            let mut update = self.empty_update(index);
            update.shift_remove("delta");
            let end = json!({
                "stop": true, "tokens_predicted": n_predicted,
                "stopped_eos": false, "stopped_word": false, "stopped_limit": false, "stopping_word": "",
            });
            for fields in [&end, answer] {
                update.extend(fields.as_object().cloned().unwrap_or_default());
            }
            if let Some(message) = message {
                update.insert("message".into(), message);
            }
            update.insert("finish_reason".into(), Value::Null);
            state.updates.push(update.into());
        }
        state.finish();
    }

    /// An update without text. `index`: of the completion, if updates have one.
    fn empty_update(&self, index: Option<usize>) -> Map<String, Value> {
        let mut update = Map::from_iter([
            ("content".to_owned(), Value::from("")),
            ("stop".to_owned(), false.into()),
            ("id".to_owned(), self.id.into()),
        ]);
        if let Some(index) = index {
            update.insert("index".into(), index.into());
        }
        if self.object.get("stream_options").and_then(|options| options.get("include_usage")) == Some(&true.into()) {
            update.insert("usage".into(), Value::Null);
        }
        if self.is_chat() {
            update.insert("delta".into(), json!({}));
        }
        if let Some(tag) = self.object.get("tag").filter(|tag| !tag.is_null()) {
            update.insert("tag".into(), tag.clone());
        }
        update
    }

    /// Whether its answers have a message.
    fn is_chat(&self) -> bool {
        self.object.contains_key("messages")
    }

    /// Waits for the answer of its call.
    pub(super) fn wait_for_answer(&self) -> Value {
        let mut state = self.state.lock();
        loop {
            if let Some(answer) = &state.answer {
                return answer.clone();
            }
            self.changed.wait(&mut state);
        }
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
    pub(super) fn overdue(&self, now: Instant) -> Option<HostEnd> {
        let cancelled = self.state.lock().cancelled;
        let is_late = |since: Instant| since.checked_add(GRACE).is_some_and(|end| end < now);
        if cancelled.is_some_and(is_late) {
            return Some(HostEnd::Overdue("cancelled"));
        }
        let timeout = self.time_limit.and_then(|limit| self.submitted.checked_add(limit));
        timeout.is_some_and(is_late).then_some(HostEnd::Overdue("timeout"))
    }

    pub(super) fn presence(&self) -> Presence {
        self.state.lock().presence
    }

    /// It is not suspect any more. Returns whether it was.
    pub(super) fn clear(&self) -> bool {
        self.state.lock().presence.clear()
    }

    pub(super) fn finished(&self) -> Option<Instant> {
        self.state.lock().finished
    }

    /// Takes the updates. Waits for the first one, and of an awaited request for the end.
    pub(super) fn take(&self, wait: Duration) -> Taken {
        let deadline = Instant::now().checked_add(wait);
        let mut state = self.state.lock();
        while !wait.is_zero() && state.finished.is_none() && (self.is_awaited || state.updates.is_empty()) {
            if self.wait_until(&mut state, deadline) {
                break;
            }
        }
        let is_finished = state.finished.is_some();
        let updates = state.updates.take();
        let phase = if is_finished { "finished" } else { state.phase };
        let answer = json!({"id": self.id, "completion_updates": updates, "finished": is_finished, "state": phase});
        Taken { answer, tokens: Vec::new(), is_finished }
    }

    /// Waits for a change. Returns whether the deadline has passed.
    fn wait_until(&self, state: &mut MutexGuard<'_, RemoteState>, deadline: Option<Instant>) -> bool {
        match deadline {
            Some(deadline) => self.changed.wait_until(state, deadline).timed_out(),
            None => {
                self.changed.wait(state);
                false
            }
        }
    }
}

impl HostEnd {
    /// The fields of the last update about it.
    fn fields(&self) -> Value {
        match self {
            HostEnd::Cancelled => json!({"success": true, "status": 200, "stop_type": "cancelled"}),
            HostEnd::Overdue(stop_type) => json!({"success": true, "status": 200, "stop_type": stop_type,
                "warnings": ["isolate: the engine's process did not answer, so the end has no statistics"]}),
            HostEnd::Failed(error) => {
                let mut answer = error_json(error);
                answer.as_object_mut().map(|answer| answer.insert("stop_type".into(), "error".into()));
                answer
            }
        }
    }

    /// The answer to a submit that the process has not answered.
    fn error(&self) -> Error {
        match self {
            HostEnd::Cancelled => stopped(),
            HostEnd::Overdue(_) => Error::new(Code::Timeout, "isolate: the engine's process did not answer in time"),
            HostEnd::Failed(error) => error.clone(),
        }
    }
}

impl RemoteState {
    fn completion(&mut self, index: usize) -> &mut DeliveredCompletion {
        if self.completions.len() <= index {
            self.completions.resize_with(index + 1, DeliveredCompletion::default);
        }
        // The vector has it now.
        let last = self.completions.len() - 1;
        #[expect(clippy::indexing_slicing, reason = "at most the last index of a vector that is not empty")]
        &mut self.completions[index.min(last)]
    }

    /// The completions that have not ended, by the `index` that their updates have.
    fn running(&self) -> Vec<Option<usize>> {
        let is_running = |index: usize| self.completions.get(index).is_none_or(|completion| !completion.is_finished());
        match self.n_indexed {
            Some(n) => (0..n).filter(|index| is_running(*index)).map(Some).collect(),
            None => Some(None).filter(|_| is_running(0)).into_iter().collect(),
        }
    }

    /// An update without what has been delivered before, and with this id. `None`: nothing is left of it.
    fn trimmed(&mut self, mut update: Value, id: u64) -> Option<Value> {
        let index = update.get("index").and_then(Value::as_u64).and_then(|index| usize::try_from(index).ok());
        let completion = self.completion(index.unwrap_or(0));
        let object = update.as_object_mut()?;
        if object.contains_key("id") {
            object.insert("id".into(), id.into());
        }
        let is_end = object.get("stop") == Some(&Value::Bool(true)) || !object.contains_key("stop");
        let was_finished = completion.is_finished() || (is_end && completion.finish());
        let is_left = !was_finished && (is_end || completion.trim(object));
        is_left.then_some(update)
    }

    fn finish(&mut self) {
        self.finished.get_or_insert_with(Instant::now);
    }
}

/// The error of a call whose engine is unloaded.
pub(super) fn stopped() -> Error {
    Error::new(Code::Cancelled, "the engine was stopped by a load or unload")
}

/// Puts the id of this process into an answer, and into the results inside of it.
fn set_ids(answer: &mut Value, id: u64) {
    let Some(object) = answer.as_object_mut() else { return };
    if object.contains_key("id") {
        object.insert("id".into(), id.into());
    }
    for result in object.get_mut("results").and_then(Value::as_array_mut).into_iter().flatten() {
        set_ids(result, id);
    }
}

/// The name of a phase, as a constant.
fn phase_name(name: &str) -> &'static str {
    ["queued", "prompt", "generating", "finished"].into_iter().find(|known| *known == name).unwrap_or("queued")
}
