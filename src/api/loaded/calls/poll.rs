//! Poll and cancel, of one request or of several.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use crate::api::loaded::chat_answer;
use crate::api::loaded::registry::{FoundRequest, RequestRecord, RequestRegistry, UpdateSignal, no_such_request};
use crate::api::loaded::response;
use crate::api::wire::answer::{error_json, success};
use crate::api::wire::fields::{Fields, int_in};
use crate::engine::Phase;
use crate::error::{Code, Error, Result};
use crate::host;

/// The maximum `timeout_ms`.
const MAX_POLL_MS: i64 = 24 * 60 * 60 * 1000;
/// The maximum length of `ids`.
const MAX_IDS: usize = 4096;

/// A parsed poll or cancel command.
#[derive(Clone)]
pub struct PollCommand {
    which: PollTarget,
    wait: Duration,
    /// Reasoning ends with the next token.
    end_reasoning: bool,
    warnings: Vec<String>,
}

#[derive(Clone)]
enum PollTarget {
    One(u64),
    Several(Vec<u64>),
    /// `"all": true`, only of a cancel: all requests of the engine.
    All,
}

impl PollCommand {
    /// Reads `{"id": 7}` or `{"ids": [7, 8]}`, `"all"`, `timeout_ms` and `end_reasoning`. `warnings` come first in the answer's.
    ///
    /// # Errors
    /// A field is invalid, or the command does not name a request.
    pub fn read(object: &Map<String, Value>, mut warnings: Vec<String>) -> Result<PollCommand> {
        let mut fields = Fields::new(object);
        let number = |name: &str, value: &Value| value.as_u64().map_or_else(|| int_in(name, value, 0..=i64::MAX), Ok);
        let id = fields.get("id").map(|value| number("id", value)).transpose()?;
        let ids = fields.list("ids", "an array of request ids", number)?;
        let all = fields.flag("all")?.unwrap_or(false);
        if all && (id.is_some() || ids.is_some()) {
            return Err(Error::invalid("all: expected either all or an id, got both"));
        }
        let which = match (id, ids) {
            (None, None) if all => PollTarget::All,
            (Some(_), Some(_)) => return Err(Error::invalid("ids: expected either id or ids, got both")),
            (Some(id), None) => PollTarget::One(id),
            (None, Some(ids)) if ids.len() > MAX_IDS => {
                let n = ids.len();
                return Err(Error::invalid(format!("ids: expected at most {MAX_IDS} request ids, got {n}")));
            }
            (None, Some(ids)) => PollTarget::Several(ids),
            (None, None) => return Err(Error::invalid("id: expected the id that submit returned, got nothing")),
        };
        let wait: i64 = fields.int("timeout_ms", 0..=MAX_POLL_MS)?.unwrap_or(0);
        let end_reasoning = fields.flag("end_reasoning")?.unwrap_or(false);
        warnings.extend(fields.finish());
        Ok(PollCommand { which, wait: Duration::from_millis(wait.unsigned_abs()), end_reasoning, warnings })
    }

    /// Names several requests, and does not wait.
    pub fn several(ids: Vec<u64>) -> PollCommand {
        PollCommand {
            which: PollTarget::Several(ids),
            wait: Duration::ZERO,
            end_reasoning: false,
            warnings: Vec::new(),
        }
    }

    /// Names one request, and does not wait.
    fn one(id: u64) -> PollCommand {
        PollCommand { which: PollTarget::One(id), wait: Duration::ZERO, end_reasoning: false, warnings: Vec::new() }
    }

    /// Whether the command means all requests.
    pub fn means_all(&self) -> bool {
        matches!(self.which, PollTarget::All)
    }

    /// The warnings about the command.
    pub fn into_warnings(self) -> Vec<String> {
        self.warnings
    }
}

/// The answer of a poll of a request whose engine has stopped.
pub fn poll_left(id: u64, updates: Vec<Value>, command: &PollCommand) -> Value {
    success(polled(id, updates, Phase::Finished), command.warnings.clone())
}

/// The answer of a cancel of a request whose engine has stopped.
pub fn cancel_left(id: u64, command: &PollCommand) -> Value {
    success(json!({"id": id, "cancelled": false}), command.warnings.clone())
}

/// Asks `elsewhere` for the requests that an answer did not find. It gets an id, and a command for this request that does not wait.
///
/// # Errors
/// Those of `answer`, and of `elsewhere`.
pub fn found_elsewhere(
    answer: Result<Value>,
    command: &PollCommand,
    elsewhere: impl Fn(u64, &PollCommand) -> Option<Result<Value>>,
) -> Result<Value> {
    match (&command.which, answer) {
        (PollTarget::One(id), Err(error)) if error.code() == Code::NotFound => {
            elsewhere(*id, command).unwrap_or(Err(error))
        }
        (PollTarget::Several(ids), Ok(mut answer)) => {
            let results =
                answer.get_mut("results").and_then(Value::as_array_mut).map_or(&mut [][..], Vec::as_mut_slice);
            let missing = |result: &Value| result.get("code").is_some_and(|code| code == Code::NotFound.as_str());
            for (result, id) in results.iter_mut().zip(ids).filter(|(result, _)| missing(result)) {
                if let Some(Ok(found)) = elsewhere(*id, &PollCommand::one(*id)) {
                    *result = found;
                }
            }
            Ok(answer)
        }
        (_, answer) => answer,
    }
}

/// The answer of a poll of one request.
fn polled(id: u64, updates: Vec<Value>, phase: Phase) -> Value {
    json!({
        "id": id,
        "completion_updates": updates,
        "finished": phase == Phase::Finished,
        "state": phase.as_str(),
    })
}

/// The answer of a poll while no model is loaded.
///
/// # Errors
/// The command names one request.
pub fn poll_without_models(command: PollCommand) -> Result<Value> {
    match command.which {
        PollTarget::All => Err(all_is_for_cancel()),
        _ => cancel_without_models(command),
    }
}

/// The answer of a cancel while no model is loaded.
///
/// # Errors
/// The command names one request.
pub fn cancel_without_models(command: PollCommand) -> Result<Value> {
    match command.which {
        PollTarget::All => Ok(success(cancelled(&[]), command.warnings)),
        PollTarget::One(id) => Err(no_such_request(id)),
        PollTarget::Several(ids) => {
            Ok(results(ids.iter().map(|id| (*id, Err(no_such_request(*id)))), command.warnings))
        }
    }
}

/// The answer of a cancel of all requests, of which these had not finished.
pub fn cancelled(ids: &[u64]) -> Value {
    json!({"cancelled": !ids.is_empty(), "ids": ids})
}

fn all_is_for_cancel() -> Error {
    Error::invalid("all: only a cancel can mean all requests; expected id or ids")
}

/// The answer for several requests: one object for each, in the order of `ids`; an error object if there is no such request.
fn results(answers: impl Iterator<Item = (u64, Result<Value>)>, warnings: Vec<String>) -> Value {
    let each = answers.map(|(id, answer)| {
        let mut answer = answer.map_or_else(|error| error_json(&error), |answer| success(answer, Vec::new()));
        if let Value::Object(answer) = &mut answer {
            answer.insert("id".into(), id.into());
        }
        answer
    });
    success(json!({"results": each.collect::<Vec<Value>>()}), warnings)
}

/// The result of polling a request.
pub struct Taken {
    /// The answer of the poll.
    pub answer: Value,
    pub is_finished: bool,
}

impl Taken {
    fn new(id: u64, updates: Vec<Value>, phase: Phase) -> Taken {
        Taken { answer: polled(id, updates, phase), is_finished: phase == Phase::Finished }
    }
}

/// Takes the updates of a request. If its caller waits for the final response, there are none.
fn take_updates_of(record: &RequestRecord, wait: Duration) -> Taken {
    let id = record.handle.id();
    if record.is_awaited {
        return Taken::new(id, Vec::new(), record.handle.watch(wait));
    }
    let (events, phase) = record.handle.take(wait);
    let updates = events.into_iter().flat_map(|(index, event)| response::event_updates(record, index, event));
    let mut updates: Vec<Value> = updates.collect();
    chat_answer::add_deltas(record, &mut updates);
    for update in &updates {
        response::log_answer(record, update);
    }
    Taken::new(id, updates, phase)
}

/// The requests of a loaded engine, whatever process it runs in, as polls and cancels see them.
pub trait PollSource {
    /// The requests.
    fn requests(&self) -> &RequestRegistry;

    /// The signal of updates.
    fn signal(&self) -> &UpdateSignal;

    /// Ends a request. Returns whether it had not finished.
    ///
    /// # Errors
    /// The model generates no text.
    fn cancel_record(&self, record: &RequestRecord) -> Result<bool>;

    /// Lets the reasoning of a request end with the next token.
    ///
    /// # Errors
    /// The model generates no text.
    fn end_reasoning_of(&self, record: &RequestRecord) -> Result<()>;

    /// Whether there is such a request, possibly one that was polled to its end.
    fn has_request(&self, id: u64) -> bool {
        self.requests().find(id).is_ok()
    }

    /// The updates that no poll has taken, by request. The engine has stopped.
    fn left_requests(&self) -> BTreeMap<u64, Vec<Value>> {
        let updates_of =
            |id| match self.take_updates(id, Duration::ZERO).ok()?.answer.get_mut("completion_updates")?.take() {
                Value::Array(updates) => Some((id, updates)),
                _ => None,
            };
        self.requests().pollable().into_iter().filter_map(updates_of).collect()
    }

    /// Takes the updates of a request.
    ///
    /// # Errors
    /// There is no such request.
    fn take_updates(&self, id: u64, wait: Duration) -> Result<Taken> {
        let FoundRequest::Live(record) = self.requests().find(id)? else {
            return Ok(Taken::new(id, Vec::new(), Phase::Finished));
        };
        let taken = take_updates_of(&record, wait);
        if taken.is_finished && !record.is_awaited {
            self.requests().end(id);
        }
        Ok(taken)
    }

    /// Ends a request. Returns whether it had not finished.
    ///
    /// # Errors
    /// There is no such request.
    fn cancel_request(&self, id: u64) -> Result<bool> {
        match self.requests().find(id)? {
            FoundRequest::Ended => Ok(false),
            FoundRequest::Live(record) => self.cancel_record(&record),
        }
    }

    /// The requests that have not finished, waiting ones first.
    fn unfinished(&self) -> Vec<u64> {
        self.requests().unfinished()
    }

    /// Lets the reasoning of a request end with the next token. Does nothing if there is no such request.
    ///
    /// # Errors
    /// The model generates no text.
    fn end_reasoning(&self, id: u64) -> Result<()> {
        if let Ok(FoundRequest::Live(record)) = self.requests().find(id) {
            self.end_reasoning_of(&record)?;
        }
        Ok(())
    }

    /// Takes the updates since the last poll, of one request or of several. If a caller waits for the final response of the request, only
    /// its state is returned.
    ///
    /// # Errors
    /// There is no such request, or the poll would wait inside a callback.
    fn poll(&self, command: PollCommand) -> Result<Value> {
        let PollCommand { which, wait, end_reasoning, warnings } = command;
        if !wait.is_zero() && host::inside() {
            return Err(Error::would_deadlock("timeout_ms: a poll that waits"));
        }
        if end_reasoning {
            let ids = match &which {
                PollTarget::Several(ids) => ids.clone(),
                PollTarget::One(id) => vec![*id],
                PollTarget::All => Vec::new(),
            };
            for id in ids {
                self.end_reasoning(id)?;
            }
        }
        let id = match which {
            PollTarget::Several(ids) => return Ok(results(self.poll_several(&ids, wait).into_iter(), warnings)),
            PollTarget::One(id) => id,
            PollTarget::All => return Err(all_is_for_cancel()),
        };
        Ok(success(self.take_updates(id, wait)?.answer, warnings))
    }

    /// Polls each request. Waits until one of them has an update, or until all have finished.
    fn poll_several(&self, ids: &[u64], wait: Duration) -> Vec<(u64, Result<Value>)> {
        let deadline = Instant::now() + wait;
        loop {
            let seen = self.signal().count();
            let answers: Vec<_> =
                ids.iter().map(|id| (*id, self.take_updates(*id, Duration::ZERO).map(|taken| taken.answer))).collect();
            let has_update = |answer: &Value| answer.pointer("/completion_updates/0").is_some();
            let is_running = |answer: &Value| answer.get("finished") == Some(&Value::Bool(false));
            let is_done = answers.iter().any(|(_, answer)| answer.as_ref().map_or(true, has_update));
            let running = answers.iter().any(|(_, answer)| answer.as_ref().is_ok_and(is_running));
            if is_done || !running || Instant::now() >= deadline {
                return answers;
            }
            self.signal().wait(seen, deadline);
        }
    }

    /// Ends one request or several within one decode. A finished request is left unchanged.
    ///
    /// # Errors
    /// There is no such request.
    fn cancel(&self, command: PollCommand) -> Result<Value> {
        let PollCommand { which, warnings, .. } = command;
        match which {
            PollTarget::Several(ids) => Ok(results(ids.iter().map(|id| (*id, self.cancel_one(*id))), warnings)),
            PollTarget::One(id) => Ok(success(self.cancel_one(id)?, warnings)),
            PollTarget::All => Ok(success(cancelled(&self.cancel_all()?), warnings)),
        }
    }

    /// Ends all [`unfinished`](PollSource::unfinished) requests, waiting ones first. Returns the ids of those that had not finished.
    fn cancel_all(&self) -> Result<Vec<u64>> {
        let mut ids = Vec::new();
        for id in self.unfinished() {
            if self.cancel_request(id)? {
                ids.push(id);
            }
        }
        Ok(ids)
    }

    /// Ends one request.
    fn cancel_one(&self, id: u64) -> Result<Value> {
        Ok(json!({"id": id, "cancelled": self.cancel_request(id)?}))
    }
}
