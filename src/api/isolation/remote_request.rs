//! A request of an isolated engine, as the host's process keeps it: what is needed to answer polls, and to continue it in a new process.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use serde_json::{Map, Value, json};

use super::protocol::Frame;
use crate::api::Function;
use crate::api::calls::Taken;
use crate::api::error_json;
use crate::api::request::{Endpoint, draw_seed};
use crate::error::Error;
use crate::llama::Token;

/// After this many deaths of the process without a new token in between, a request is taken for the cause.
const MAX_DEATHS: u32 = 5;

/// The values of `seed` that mean "draw one".
const DRAWN: [f64; 2] = [-1.0, u32::MAX as f64];

/// A request in the engine's process.
pub(super) struct RemoteRequest {
    pub(super) id: u64,
    pub(super) endpoint: Endpoint,
    /// Its caller waits for the final response, so polls take no updates.
    pub(super) is_awaited: bool,
    /// The request, with a drawn seed.
    object: Map<String, Value>,
    submitted: Instant,
    is_cancelled: AtomicBool,
    ends_reasoning: AtomicBool,
    state: Mutex<RemoteState>,
    changed: Condvar,
}

struct RemoteState {
    phase: &'static str,
    /// Updates that no poll has taken.
    updates: VecDeque<Value>,
    completions: Vec<Delivered>,
    /// The answer of a submit, or of an awaited request.
    answer: Option<Value>,
    finished: Option<Instant>,
    /// Deaths of the process since its last token.
    n_deaths: u32,
}

/// What has arrived of a completion, and what of it arrives again because a new process continues it.
#[derive(Default)]
struct Delivered {
    tokens: Vec<Token>,
    /// The number of these that will arrive again.
    n_repeated: usize,
    /// The length of the text. The process skips it when it continues the completion.
    content: usize,
    shown_tokens: Extent,
    probabilities: Extent,
    is_finished: bool,
}

/// A length: that has been delivered, and the part of it that will be skipped.
#[derive(Debug, Default, Clone, Copy)]
struct Extent {
    delivered: usize,
    repeated: usize,
}

impl Extent {
    /// Begins again: everything delivered will arrive again.
    fn repeat(&mut self) {
        self.repeated = self.delivered;
    }

    /// Of `len` new items: how many are repeated.
    fn skip(&mut self, len: usize) -> usize {
        let skipped = len.min(self.repeated);
        self.repeated -= skipped;
        self.delivered += len - skipped;
        skipped
    }
}

impl RemoteRequest {
    pub(super) fn new(
        id: u64,
        endpoint: Endpoint,
        is_awaited: bool,
        mut object: Map<String, Value>,
        default_seed: Option<&Value>,
    ) -> RemoteRequest {
        // A continued request must have the same seed.
        let default = if endpoint.is_old() { None } else { default_seed };
        let given = object.get("seed").filter(|seed| !seed.is_null()).or(default);
        if given.is_none_or(|seed| DRAWN.contains(&seed.as_f64().unwrap_or(0.0))) {
            object.insert("seed".into(), draw_seed().into());
            object.insert("__seed_is_drawn".into(), true.into());
        }
        RemoteRequest {
            id,
            endpoint,
            is_awaited,
            object,
            submitted: Instant::now(),
            is_cancelled: AtomicBool::new(false),
            ends_reasoning: AtomicBool::new(false),
            state: Mutex::new(RemoteState {
                phase: "queued",
                updates: VecDeque::new(),
                completions: Vec::new(),
                answer: None,
                finished: None,
                n_deaths: 0,
            }),
            changed: Condvar::new(),
        }
    }

    /// The call that begins it, or continues it in a new process.
    pub(super) fn frame(&self) -> Frame {
        let mut object = self.object.clone();
        let state = self.state.lock();
        let tokens: Vec<&[Token]> = state.completions.iter().map(|completion| completion.tokens.as_slice()).collect();
        if tokens.iter().any(|tokens| !tokens.is_empty()) {
            object.insert("__resume".into(), json!(tokens));
        }
        let delivered: Vec<usize> = state.completions.iter().map(|completion| completion.content).collect();
        if delivered.iter().any(|length| *length > 0) {
            object.insert("__delivered".into(), json!(delivered));
        }
        if let Some(limit) = object.get("timeout_ms").and_then(Value::as_u64).filter(|limit| *limit > 0) {
            let passed = u64::try_from(self.submitted.elapsed().as_millis()).unwrap_or(u64::MAX);
            object.insert("timeout_ms".into(), limit.saturating_sub(passed).max(1).into());
        }
        let function = match self.is_awaited {
            true => Function::Complete(self.endpoint),
            false => Function::Submit(self.endpoint),
        };
        Frame::call(self.id, function.name(), Value::Object(object).to_string().as_bytes())
    }

    /// Lets its reasoning end with the next token, also in a later process.
    pub(super) fn end_reasoning(&self) {
        self.ends_reasoning.store(true, Ordering::Release);
    }

    pub(super) fn ends_reasoning(&self) -> bool {
        self.ends_reasoning.load(Ordering::Acquire)
    }

    /// The process has died. Everything arrives again. Returns false if the request seems to be the cause.
    pub(super) fn process_died(&self, event: &Value) -> bool {
        let mut state = self.state.lock();
        state.n_deaths += 1;
        for completion in &mut state.completions {
            completion.n_repeated = completion.tokens.len();
            completion.shown_tokens.repeat();
            completion.probabilities.repeat();
        }
        if !self.is_awaited && state.answer.is_some() {
            state.updates.push_back(json!({"content": "", "stop": false, "id": self.id, "engine": event}));
        }
        let is_tried_again = state.n_deaths < MAX_DEATHS;
        drop(state);
        // A poll may wait for news.
        self.changed.notify_all();
        is_tried_again
    }

    /// Takes what the process sent. Returns whether a poll has something new.
    pub(super) fn update(&self, update: &mut Value) -> bool {
        let mut state = self.state.lock();
        if state.finished.is_some() {
            return false;
        }
        let mut has_news = false;
        for (index, tokens) in update.get("tokens").and_then(Value::as_array).into_iter().flatten().enumerate() {
            let tokens = tokens.as_array().into_iter().flatten();
            let tokens = tokens.filter_map(|token| Token::try_from(token.as_i64()?).ok());
            state.new_tokens(index, tokens.collect());
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
                    state.updates.push_back(update);
                    has_news = true;
                }
            }
        }
        if is_finished {
            state.finish();
            has_news = true;
        }
        drop(state);
        self.changed.notify_all();
        has_news
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
            state.end_with(self.id, &answer);
        }
        if state.answer.is_none() || self.is_awaited {
            state.answer = Some(answer);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Ends the request.
    pub(super) fn end(&self, error: Option<&Error>) {
        let mut state = self.state.lock();
        if state.finished.is_none() {
            let answer = error.map_or_else(
                || json!({"success": true, "status": 200, "stop_type": "cancelled"}),
                |error| {
                    let mut answer = error_json(error);
                    answer.as_object_mut().map(|answer| answer.insert("stop_type".into(), "error".into()));
                    answer
                },
            );
            if state.answer.is_none() || self.is_awaited {
                state.answer = Some(answer.clone());
            }
            state.end_with(self.id, &answer);
        }
        drop(state);
        self.changed.notify_all();
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

    /// Ends it also in a later process.
    pub(super) fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Release);
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Acquire)
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
        let updates: Vec<Value> = state.updates.drain(..).collect();
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

impl RemoteState {
    fn completion(&mut self, index: usize) -> &mut Delivered {
        if self.completions.len() <= index {
            self.completions.resize_with(index + 1, Delivered::default);
        }
        // The vector has it now.
        let last = self.completions.len() - 1;
        #[expect(clippy::indexing_slicing, reason = "at most the last index of a vector that is not empty")]
        &mut self.completions[index.min(last)]
    }

    /// Tokens of a completion that arrived.
    fn new_tokens(&mut self, index: usize, tokens: Vec<Token>) {
        let completion = self.completion(index);
        let before = completion.tokens.len();
        let n_repeated = completion.n_repeated.min(tokens.len());
        completion.n_repeated -= n_repeated;
        completion.tokens.extend(tokens.into_iter().skip(n_repeated));
        if completion.tokens.len() > before {
            self.n_deaths = 0;
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
        if completion.is_finished {
            return None;
        }
        let is_end = object.get("stop") == Some(&Value::Bool(true)) || !object.contains_key("stop");
        if is_end {
            completion.is_finished = true;
            return Some(update);
        }
        let content = object.get("content").and_then(Value::as_str).unwrap_or_default();
        completion.content += content.len();
        let has_delta = object.get("delta").and_then(Value::as_object).is_some_and(|delta| !delta.is_empty());
        let mut is_left = !content.is_empty() || has_delta || object.contains_key("prompt_progress");
        let shown = object.get("tokens").and_then(Value::as_array).map_or(0, Vec::len);
        let skipped = completion.shown_tokens.skip(shown);
        for key in ["tokens", "sources"] {
            is_left |= skip_items(object.get_mut(key), skipped);
        }
        let probabilities = object.get_mut("completion_probabilities");
        let n = probabilities.as_ref().and_then(|value| value.as_array()).map_or(0, Vec::len);
        is_left |= skip_items(probabilities, completion.probabilities.skip(n));
        is_left.then_some(update)
    }

    fn finish(&mut self) {
        self.finished.get_or_insert_with(Instant::now);
    }

    /// Ends each completion that has not ended.
    fn end_with(&mut self, id: u64, answer: &Value) {
        let n = self.completions.len().max(1);
        for index in 0..n {
            let completion = self.completion(index);
            if !std::mem::replace(&mut completion.is_finished, true) {
                let mut update = json!({
                    "content": "", "stop": true, "id": id, "tokens_predicted": completion.tokens.len(),
                    "stopped_eos": false, "stopped_word": false, "stopped_limit": false, "stopping_word": "",
                });
                if n > 1 {
                    update.as_object_mut().map(|update| update.insert("index".into(), index.into()));
                }
                if let (Some(update), Some(answer)) = (update.as_object_mut(), answer.as_object()) {
                    update.extend(answer.clone());
                }
                self.updates.push_back(update);
            }
        }
        self.finish();
    }
}

/// Removes items at the beginning of an array. Returns whether there are others.
fn skip_items(array: Option<&mut Value>, n: usize) -> bool {
    let Some(Value::Array(items)) = array else { return false };
    items.drain(..n.min(items.len()));
    !items.is_empty()
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
