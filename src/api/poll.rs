//! Poll and cancel: the commands that take a request's updates or end it, alone or several at once.

use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::fields::{Fields, int_in, parse_object};
use super::registry::{Found, unknown};
use super::response::{error_json, success};
use super::{Endpoint, Server, response};
use crate::engine::Phase;
use crate::error::{Error, Result};
use crate::host;

/// The longest that a poll may wait; a host that wants more polls again.
const MAX_POLL_MS: i64 = 24 * 60 * 60 * 1000;
/// The most requests that one command may name.
const MAX_IDS: usize = 4096;

/// What a poll or a cancel asks for.
pub(super) struct PollCommand {
    which: PollTarget,
    wait: Duration,
    warnings: Vec<String>,
}

enum PollTarget {
    /// The newest request of the endpoint's family: the old names only.
    Newest,
    One(u64),
    Several(Vec<u64>),
}

impl PollCommand {
    /// Reads `{"id": 7}` or `{"ids": [7, 8]}`, and `timeout_ms`. The old names need no number, take NULL and blanks for
    /// `{}`, and as the old server did not look at its argument, everything that is no object, too, with a warning.
    ///
    /// # Errors
    /// A field is wrong; or, through `foredraft_*`, the command is no object or names no request.
    pub(super) fn read(endpoint: Endpoint, command: Option<&[u8]>) -> Result<PollCommand> {
        let is_old = endpoint.is_old();
        let command = command.unwrap_or_default();
        let mut warnings = Vec::new();
        let object = match parse_object(command) {
            Ok(object) => object,
            Err(_) if is_old && command.iter().all(u8::is_ascii_whitespace) => Map::new(),
            Err(error) if is_old => {
                warnings.push(format!("the argument counts as {{}}: {}", error.message()));
                Map::new()
            }
            Err(error) => return Err(error),
        };
        let mut fields = Fields::new(&object);
        let number = |name: &str, value: &Value| value.as_u64().map_or_else(|| int_in(name, value, 0..=i64::MAX), Ok);
        let id = fields.get("id").map(|value| number("id", value)).transpose()?;
        let ids = fields.list("ids", "an array of request numbers", number)?;
        let which = match (id, ids) {
            (Some(_), Some(_)) => return Err(Error::invalid("ids: either id or ids can be given, but not both")),
            (Some(id), None) => PollTarget::One(id),
            (None, Some(ids)) if ids.len() > MAX_IDS => {
                let n = ids.len();
                return Err(Error::invalid(format!("ids: expected at most {MAX_IDS} request numbers, got {n}")));
            }
            (None, Some(ids)) => PollTarget::Several(ids),
            (None, None) if is_old => PollTarget::Newest,
            (None, None) => return Err(Error::invalid("id: is missing; it is the number that the submit returned")),
        };
        let wait: i64 = fields.int("timeout_ms", 0..=MAX_POLL_MS)?.unwrap_or(0);
        warnings.extend(fields.finish());
        Ok(PollCommand { which, wait: Duration::from_millis(wait.unsigned_abs()), warnings })
    }
}

/// The answer of a poll that found no request to poll.
fn idle(state: &str) -> Value {
    json!({"completion_updates": [], "finished": false, "state": state})
}

/// The answer of a poll while no server is loaded.
///
/// # Errors
/// The command names a request.
pub(super) fn nothing_to_poll(command: PollCommand, state: &str) -> Result<Value> {
    without_server(command, idle(state))
}

/// The answer of a cancel while no server is loaded.
///
/// # Errors
/// The command names a request.
pub(super) fn nothing_to_cancel(command: PollCommand) -> Result<Value> {
    without_server(command, json!({"cancelled": false}))
}

fn without_server(command: PollCommand, nothing: Value) -> Result<Value> {
    match command.which {
        PollTarget::Newest => Ok(success(nothing, command.warnings)),
        PollTarget::One(id) => Err(unknown(id)),
        PollTarget::Several(ids) => Ok(results(ids.iter().map(|id| (*id, Err(unknown(*id)))), command.warnings)),
    }
}

/// The answer for several requests: one object each, in the order asked for, an error object where there is no such request.
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

impl Server {
    /// Takes the updates of a request, or of several, since the last poll. Of a request that a caller waits for in
    /// [`Server::complete`] it only tells how far it is.
    ///
    /// # Errors
    /// The command is wrong, or there is no such request.
    pub fn poll(&self, endpoint: Endpoint, command: Option<&[u8]>) -> Result<Value> {
        self.run_poll(endpoint, PollCommand::read(endpoint, command)?)
    }

    /// Ends a request, or several, within one decode. One that has ended already is left as it is.
    ///
    /// # Errors
    /// The command is wrong, or there is no such request.
    pub fn cancel(&self, endpoint: Endpoint, command: Option<&[u8]>) -> Result<Value> {
        self.run_cancel(endpoint, PollCommand::read(endpoint, command)?)
    }

    pub(super) fn run_poll(&self, endpoint: Endpoint, command: PollCommand) -> Result<Value> {
        let PollCommand { which, wait, warnings } = command;
        if !wait.is_zero() && host::inside() {
            return Err(Error::would_deadlock("timeout_ms: a poll that waits"));
        }
        let id = match which {
            PollTarget::Several(ids) => return Ok(results(self.poll_several(&ids, wait).into_iter(), warnings)),
            PollTarget::One(id) => id,
            PollTarget::Newest => match self.requests().newest(endpoint) {
                Some(id) => id,
                None => return Ok(success(idle("idle"), warnings)),
            },
        };
        Ok(success(self.poll_one(id, wait)?, warnings))
    }

    fn poll_one(&self, id: u64, wait: Duration) -> Result<Value> {
        let (updates, phase) = match self.requests().find(id)? {
            Found::Ended => (Vec::new(), Phase::Finished),
            Found::Here(record) if record.awaited => (Vec::new(), record.handle.watch(wait)),
            Found::Here(record) => {
                let (events, phase) = record.handle.take(wait);
                let vocab = self.vocab(record.draft_only);
                let events = events.into_iter();
                let updates: Vec<Value> =
                    events.flat_map(|(index, event)| response::updates(&record, index, event, vocab)).collect();
                for update in &updates {
                    response::debug(&record, update);
                }
                if phase == Phase::Finished {
                    self.requests().ended(id);
                }
                (updates, phase)
            }
        };
        Ok(json!({
            "id": id,
            "completion_updates": updates,
            "finished": phase == Phase::Finished,
            "state": phase.as_str(),
        }))
    }

    /// Polls each; waits until one of them has an update, or none of them will have one any more.
    fn poll_several(&self, ids: &[u64], wait: Duration) -> Vec<(u64, Result<Value>)> {
        let deadline = Instant::now() + wait;
        loop {
            let seen = self.news.seen();
            let answers: Vec<_> = ids.iter().map(|id| (*id, self.poll_one(*id, Duration::ZERO))).collect();
            let says = |answer: &Value| answer.pointer("/completion_updates/0").is_some();
            let goes_on = |answer: &Value| answer.get("finished") == Some(&Value::Bool(false));
            let told = answers.iter().any(|(_, answer)| answer.as_ref().map_or(true, says));
            let running = answers.iter().any(|(_, answer)| answer.as_ref().is_ok_and(goes_on));
            if told || !running || Instant::now() >= deadline {
                return answers;
            }
            self.news.wait(seen, deadline);
        }
    }

    pub(super) fn run_cancel(&self, endpoint: Endpoint, command: PollCommand) -> Result<Value> {
        let PollCommand { which, warnings, .. } = command;
        let id = match which {
            PollTarget::Several(ids) => {
                return Ok(results(ids.iter().map(|id| (*id, self.cancel_one(*id))), warnings));
            }
            PollTarget::One(id) => id,
            PollTarget::Newest => match self.requests().newest(endpoint) {
                Some(id) => id,
                None => return Ok(success(json!({"cancelled": false}), warnings)),
            },
        };
        Ok(success(self.cancel_one(id)?, warnings))
    }

    fn cancel_one(&self, id: u64) -> Result<Value> {
        let cancelled = match self.requests().find(id)? {
            Found::Ended => false,
            Found::Here(record) => self.engine()?.cancel(&record.handle),
        };
        Ok(json!({"id": id, "cancelled": cancelled}))
    }
}
