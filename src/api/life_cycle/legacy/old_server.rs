//! The old server's functions, as calls of an engine.
//!
//! The old server had one queue of updates for each group of functions, and its hosts named no request: a poll meant the newest one. The
//! queue was a global, which neither `init` nor `deinit` touched, so the newest request stays pollable after both. Its hosts do not look at
//! the answer of a submit, but poll. So a refused request is the newest one, too, already ended.

use std::collections::BTreeSet;

use parking_lot::Mutex;
use serde_json::{Map, Value, json};

use super::request::{Endpoint, translate, warn_about_defaults};
use crate::api::life_cycle::LoadCommand;
use crate::api::loaded::calls::{PollCommand, cancelled};
use crate::api::wire::answer::{error_json, success, with_fields};
use crate::api::wire::fields::parse_object;
use crate::api::wire::request::RequestArguments;
use crate::api::{Function, JsonEngine};
use crate::error::{Error, Result};
use crate::host;

/// The number of known requests of an endpoint above which those that have ended are forgotten.
const MAX_KNOWN: usize = 1024;

/// The functions of the old server, in front of an engine.
pub struct OldServer {
    engine: JsonEngine,
    completion: Mutex<EndpointRequests>,
    speculative: Mutex<EndpointRequests>,
}

/// The requests that came through an endpoint, except for those whose caller waits.
#[derive(Default)]
struct EndpointRequests {
    newest: Option<u64>,
    /// The refusal of the last request, if it was refused.
    refused: Option<RefusedRequest>,
    /// All that may not have finished.
    known: BTreeSet<u64>,
}

/// A request that never began.
struct RefusedRequest {
    /// The answer of its submit.
    answer: Value,
    /// A poll has taken its only update.
    is_polled: bool,
}

/// A command of a poll or cancel.
struct OldCommand {
    command: PollCommand,
    /// It names no request, so `command` names the newest one, or 0 if there is none.
    is_unnamed: bool,
}

impl OldServer {
    /// The functions in front of `engine`.
    pub fn new(engine: JsonEngine) -> OldServer {
        OldServer { engine, completion: Mutex::default(), speculative: Mutex::default() }
    }

    /// `init`: as [`JsonEngine::load`]. Warns about values that requests do not use.
    ///
    /// # Errors
    /// As [`JsonEngine::load`].
    pub fn load(&self, command: &[u8]) -> Result<()> {
        if host::inside() {
            return Err(Error::would_deadlock("init"));
        }
        self.engine.run_load(LoadCommand::translated(command, warn_about_defaults))
    }

    /// `init_async`: as [`JsonEngine::load_async`].
    pub fn load_async(&self, command: &[u8]) {
        self.engine.run_load_async(LoadCommand::translated(command, warn_about_defaults));
    }

    /// `get_completion`, `speculative_completion`: generates a completion, and returns the final response.
    ///
    /// # Errors
    /// No model is loaded; that of `request`; or those of [`Function::Complete`].
    pub fn complete(&self, endpoint: Endpoint, request: Result<&[u8]>) -> Result<Value> {
        let (request, arguments) = self.translated(endpoint, true, request)?;
        self.engine.complete(Ok(request.as_bytes()), arguments)
    }

    /// `async_completion_init`, `speculative_completion_init`: queues a request, which becomes the endpoint's newest one, also if it is
    /// refused.
    ///
    /// # Errors
    /// No model is loaded; that of `request`; or those of [`Function::Submit`].
    pub fn submit(&self, endpoint: Endpoint, request: Result<&[u8]>) -> Result<Value> {
        let requests = self.requests(endpoint);
        let answer = self.translated(endpoint, false, request).and_then(|(request, arguments)| {
            self.engine.submit(Ok(request.as_bytes()), arguments, &|id| {
                let mut requests = requests.lock();
                // Two threads that submit at the same time can arrive here in the reverse order.
                if requests.newest < Some(id) {
                    self.engine.keep_request(id, requests.newest.replace(id));
                }
                requests.refused = None;
                requests.known.insert(id);
            })
        });
        let refusal = match &answer {
            Ok(answer) if answer.get("success") == Some(&Value::Bool(true)) => None,
            Ok(answer) => Some(answer.clone()),
            Err(error) => Some(error_json(error)),
        };
        let n_known = {
            let mut requests = requests.lock();
            requests.refused = refusal.map(|answer| RefusedRequest { answer, is_polled: false });
            requests.known.len()
        };
        if n_known > MAX_KNOWN {
            // The lock is free meanwhile, because polls take it.
            let unfinished = BTreeSet::from_iter(self.engine.unfinished());
            let newest = unfinished.last().copied();
            requests.lock().known.retain(|id| unfinished.contains(id) || Some(*id) > newest);
        }
        answer
    }

    /// `async_completion_poll`, `speculative_completion_poll`: as [`JsonEngine::poll`]. A command without an id means the endpoint's newest
    /// request. If there was none, the answer has no updates.
    ///
    /// # Errors
    /// A field of the command is invalid, or there is no such request.
    pub fn poll(&self, endpoint: Endpoint, command: Option<&[u8]>) -> Result<Value> {
        let mut requests = self.requests(endpoint).lock();
        let newest = requests.newest;
        let OldCommand { command, is_unnamed } = OldCommand::read(command, newest)?;
        if let Some(refused) = requests.refused.as_mut().filter(|_| is_unnamed) {
            return Ok(refused.poll(command));
        }
        drop(requests);
        if newest.is_none() && is_unnamed {
            let state = self.engine.not_ready().unwrap_or("idle");
            let answer = json!({"completion_updates": [], "finished": false, "state": state});
            return Ok(success(answer, command.into_warnings()));
        }
        self.engine.run_poll(command)
    }

    /// `async_completion_cancel`, `speculative_completion_cancel`: as [`JsonEngine::cancel`]. A command without an id, or with `"all":
    /// true`, means all requests of the endpoint that wait or run, except for those whose caller waits: the old server's cancel did not end
    /// them.
    ///
    /// # Errors
    /// A field of the command is invalid, or there is no such request.
    pub fn cancel(&self, endpoint: Endpoint, command: Option<&[u8]>) -> Result<Value> {
        let newest = self.requests(endpoint).lock().newest;
        let OldCommand { command, is_unnamed } = OldCommand::read(command, newest)?;
        if !is_unnamed && !command.means_all() {
            return self.engine.run_cancel(command);
        }
        let ids = self.cancel_all(endpoint)?;
        let mut answer = cancelled(&ids);
        if let (Value::Object(answer), true) = (&mut answer, is_unnamed) {
            if ids.is_empty() {
                answer.shift_remove("ids");
            }
            // A request can have come since `newest` was read.
            let newest = ids.iter().max().copied().or(newest);
            answer.extend(newest.filter(|id| self.engine.has_request(*id)).map(|id| ("id".to_owned(), id.into())));
        }
        Ok(success(answer, command.into_warnings()))
    }

    /// Ends the endpoint's requests that have not finished. Returns their ids.
    fn cancel_all(&self, endpoint: Endpoint) -> Result<Vec<u64>> {
        let unfinished = self.engine.unfinished();
        let ids = {
            let requests = self.requests(endpoint).lock();
            unfinished.into_iter().filter(|id| requests.known.contains(id)).collect()
        };
        let answer = self.engine.run_cancel(PollCommand::several(ids))?;
        let results = answer.get("results").and_then(Value::as_array).into_iter().flatten();
        let cancelled = results.filter(|result| result.get("cancelled") == Some(&Value::Bool(true)));
        Ok(cancelled.filter_map(|result| result.get("id")?.as_u64()).collect())
    }

    fn requests(&self, endpoint: Endpoint) -> &Mutex<EndpointRequests> {
        match endpoint {
            Endpoint::Completion => &self.completion,
            Endpoint::Speculative => &self.speculative,
        }
    }

    /// The engine's request for a request of the old server.
    fn translated(
        &self,
        endpoint: Endpoint,
        is_awaited: bool,
        request: Result<&[u8]>,
    ) -> Result<(String, RequestArguments)> {
        let defaults = self.engine.defaults()?;
        let request = request?;
        if is_awaited && host::inside() {
            return Err(Error::would_deadlock(endpoint.waiting_function()));
        }
        let mut object = parse_object(request)?;
        let n_vocab = || {
            let info = self.engine.call(Function::ModelInfo, Ok(b"{}"))?;
            let n_vocab = info.get("n_vocab").and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok());
            Ok(n_vocab.unwrap_or(0))
        };
        let translation = translate(&mut object, endpoint, is_awaited, &defaults, n_vocab)?;
        Ok((Value::Object(object).to_string(), RequestArguments { translation, ..RequestArguments::default() }))
    }
}

impl OldCommand {
    /// Reads a command. NULL and whitespace count as `{}`. The old server ignored its argument, so everything else that is not an object
    /// counts as `{}`, too, with a warning.
    ///
    /// # Errors
    /// A field is invalid.
    fn read(command: Option<&[u8]>, newest: Option<u64>) -> Result<OldCommand> {
        let command = command.unwrap_or_default();
        let mut warnings = Vec::new();
        let mut object = parse_object(command).unwrap_or_else(|error| {
            if !command.iter().all(u8::is_ascii_whitespace) {
                warnings.push(format!("the argument counts as {{}}: {}", error.message()));
            }
            Map::new()
        });
        let is_given = |key: &str| object.get(key).is_some_and(|value| !value.is_null());
        let is_unnamed = !is_given("id") && !is_given("ids") && object.get("all") != Some(&Value::Bool(true));
        if is_unnamed {
            object.insert("id".to_owned(), newest.unwrap_or(0).into());
        }
        Ok(OldCommand { command: PollCommand::read(&object, warnings)?, is_unnamed })
    }
}

impl RefusedRequest {
    /// The answer of a poll: the error, once.
    fn poll(&mut self, command: PollCommand) -> Value {
        let is_new = !std::mem::replace(&mut self.is_polled, true);
        let updates: Vec<Value> = is_new.then(|| self.update()).into_iter().collect();
        let answer = json!({"completion_updates": updates, "finished": true, "state": "finished"});
        success(answer, command.into_warnings())
    }

    /// The only update.
    fn update(&self) -> Value {
        let end = [
            ("content", "".into()),
            ("stop", true.into()),
            ("stopped_eos", false.into()),
            ("stopped_word", false.into()),
            ("stopped_limit", false.into()),
            ("stopping_word", "".into()),
            ("stop_type", "error".into()),
        ];
        with_fields(self.answer.clone(), end)
    }
}
