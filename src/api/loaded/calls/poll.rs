//! Poll and cancel, of one request or of several.

use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use crate::api::loaded::chat_answer;
use crate::api::loaded::registry::{RequestRecord, RequestRegistry};
use crate::api::loaded::response;
use crate::api::wire::answer::{error_json, success, with_fields};
use crate::api::wire::fields::{Fields, int_in};
use crate::engine::Phase;
use crate::error::{Error, Result};
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

    /// Names a request. A poll waits so long for an update.
    pub fn one(id: u64, wait: Duration) -> PollCommand {
        PollCommand { which: PollTarget::One(id), wait, end_reasoning: false, warnings: Vec::new() }
    }

    /// Names several requests, and does not wait.
    pub fn several(ids: Vec<u64>) -> PollCommand {
        PollCommand { which: PollTarget::Several(ids), ..PollCommand::one(0, Duration::ZERO) }
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

/// The answer of a poll of one request.
fn polled(id: u64, updates: Vec<Value>, phase: Phase) -> Value {
    json!({
        "id": id,
        "completion_updates": updates,
        "finished": phase == Phase::Finished,
        "state": phase.as_str(),
    })
}

/// The answer of a cancel of all requests, of which these had not finished.
pub fn cancelled(ids: &[u64]) -> Value {
    json!({"cancelled": !ids.is_empty(), "ids": ids})
}

/// The answer for several requests: one object for each, in the order of `ids`; an error object if there is no such request.
fn results(answers: impl Iterator<Item = (u64, Result<Value>)>, warnings: Vec<String>) -> Value {
    let each = answers.map(|(id, answer)| {
        let answer = answer.map_or_else(|error| error_json(&error), |answer| success(answer, Vec::new()));
        with_fields(answer, [("id", id.into())])
    });
    success(json!({"results": each.collect::<Vec<Value>>()}), warnings)
}

impl RequestRegistry {
    /// Takes the updates of a request. If its caller waits for the final response, or it is a preparation, there are none.
    ///
    /// # Errors
    /// There is no such request.
    fn take_updates(&self, id: u64, wait: Duration) -> Result<Value> {
        let Some(record) = self.find(id)? else { return Ok(polled(id, Vec::new(), Phase::Finished)) };
        if record.is_awaited || record.is_preparation() {
            return Ok(polled(id, Vec::new(), record.handle.watch(wait)));
        }
        let (events, phase) = record.handle.take(wait);
        let updates = events.into_iter().flat_map(|(index, event)| response::event_updates(&record, index, event));
        let mut updates: Vec<Value> = updates.collect();
        chat_answer::add_deltas(&record, &mut updates);
        for update in &updates {
            response::log_answer(&record, update);
        }
        if phase == Phase::Finished {
            self.end(id);
        }
        Ok(polled(id, updates, phase))
    }

    /// Takes the updates since the last poll, of one request or of several. If a caller waits for the final response of the request, only
    /// its state is returned. `end_reasoning` lets the reasoning of a request end with the next token.
    ///
    /// # Errors
    /// There is no such request, or the poll would wait inside a callback; or those of `end_reasoning`.
    pub fn poll(&self, command: PollCommand, end_reasoning: impl Fn(&RequestRecord) -> Result<()>) -> Result<Value> {
        let PollCommand { which, wait, end_reasoning: ends_reasoning, warnings } = command;
        if !wait.is_zero() && host::inside() {
            return Err(Error::would_deadlock("timeout_ms: a poll that waits"));
        }
        let ids = match &which {
            PollTarget::Several(ids) => ids.as_slice(),
            PollTarget::One(id) => std::slice::from_ref(id),
            PollTarget::All => {
                return Err(Error::invalid("all: only a cancel can mean all requests; expected id or ids"));
            }
        };
        if ends_reasoning {
            let mut records = ids.iter().filter_map(|id| self.find(*id).ok()?);
            records.try_for_each(|record| end_reasoning(&record))?;
        }
        match which {
            PollTarget::One(id) => Ok(success(self.take_updates(id, wait)?, warnings)),
            _ => Ok(results(self.poll_several(ids, wait).into_iter(), warnings)),
        }
    }

    /// Polls each request. Waits until one of them has an update, or until all have finished.
    fn poll_several(&self, ids: &[u64], wait: Duration) -> Vec<(u64, Result<Value>)> {
        let deadline = Instant::now() + wait;
        loop {
            let seen = self.updates.count();
            let answers: Vec<_> = ids.iter().map(|id| (*id, self.take_updates(*id, Duration::ZERO))).collect();
            let has_update = |answer: &Value| answer.pointer("/completion_updates/0").is_some();
            let is_running = |answer: &Value| answer.get("finished") == Some(&Value::Bool(false));
            let is_done = answers.iter().any(|(_, answer)| answer.as_ref().map_or(true, has_update));
            let running = answers.iter().any(|(_, answer)| answer.as_ref().is_ok_and(is_running));
            if is_done || !running || Instant::now() >= deadline {
                return answers;
            }
            self.updates.wait(seen, deadline);
        }
    }

    /// Ends one request, several, or all that have not finished, waiting ones first, by `cancel`, which returns whether there was
    /// something to end.
    ///
    /// # Errors
    /// There is no such request; or those of `cancel`.
    pub fn cancel(&self, command: PollCommand, cancel: impl Fn(&RequestRecord) -> Result<bool>) -> Result<Value> {
        let PollCommand { which, warnings, .. } = command;
        let end = |id: u64| match self.find(id)? {
            Some(record) if record.handle.phase() != Phase::Finished => cancel(&record),
            _ => Ok(false),
        };
        let answer = |id: u64| Ok(json!({"id": id, "cancelled": end(id)?}));
        match which {
            PollTarget::Several(ids) => Ok(results(ids.iter().map(|id| (*id, answer(*id))), warnings)),
            PollTarget::One(id) => Ok(success(answer(id)?, warnings)),
            PollTarget::All => {
                let ended = self.unfinished().into_iter().map(|id| Ok(end(id)?.then_some(id)));
                let ended: Vec<Option<u64>> = ended.collect::<Result<_>>()?;
                let ended: Vec<u64> = ended.into_iter().flatten().collect();
                Ok(success(cancelled(&ended), warnings))
            }
        }
    }
}
