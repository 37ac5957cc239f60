//! An engine from the host's point of view: load, unload, and calls at any time in between.

mod left_requests;
mod loaded;
mod loading;
mod shutdown;

use std::sync::Arc;

use serde_json::Value;

use self::loaded::LoadedEngine;
pub(crate) use self::loading::cut_off;
use self::loading::{EngineState, LifeCycle, LoadCommand};
pub use self::loading::{LlamaStage, OnLlamaStage, OpenNotifyFd};
pub(crate) use self::shutdown::stop_all;
use super::calls::{PollCommand, cancel_left, cancel_without_models, found_elsewhere, poll_without_request};
use super::function::Function;
use super::local_engine::LocalEngine;
use super::lookup::{RunningLookup, RunningLookups};
use super::request::Endpoint;
use super::status::{EngineStatus, LoadPhase};
use crate::error::{Code, Error, Result};
use crate::host;

/// An engine: loads, replaces and unloads models, from any thread at any time. Clones refer to the same engine.
#[derive(Clone, Default)]
pub struct JsonEngine {
    life_cycle: Arc<LifeCycle>,
}

impl JsonEngine {
    /// An engine without a model.
    pub fn new() -> JsonEngine {
        JsonEngine::default()
    }

    /// An engine without a model. `on_llama_stage` is called at each [`LlamaStage`] of each load. `open_notify_fd` opens the host's
    /// file descriptor of `notify_fd`.
    pub fn with_callbacks(on_llama_stage: OnLlamaStage, open_notify_fd: OpenNotifyFd) -> JsonEngine {
        JsonEngine { life_cycle: LifeCycle::with_callbacks(on_llama_stage, open_notify_fd) }
    }

    /// Loads models in place of the loaded ones, and waits until that is done. `command` is a JSON object or a command line.
    ///
    /// # Errors
    /// The command is invalid, a model cannot be loaded, a later `init` or `deinit` replaced this load, the call is from inside a
    /// callback, or this process was forked from one that has a model loaded.
    pub fn load(&self, command: &[u8]) -> Result<()> {
        if host::inside() {
            return Err(Error::would_deadlock("init"));
        }
        self.life_cycle.load(LoadCommand::new(command))
    }

    /// As [`JsonEngine::load`], on another thread. The status reports the result.
    pub fn load_async(&self, command: &[u8]) {
        self.life_cycle.load_in_background(LoadCommand::new(command));
    }

    /// As [`JsonEngine::load`], by the old name. Warns about values that requests of the old names do not use.
    ///
    /// # Errors
    /// As [`JsonEngine::load`].
    pub fn load_by_old_name(&self, command: &[u8]) -> Result<()> {
        if host::inside() {
            return Err(Error::would_deadlock("init"));
        }
        self.life_cycle.load(LoadCommand::by_old_name(command))
    }

    /// As [`JsonEngine::load_async`], by the old name.
    pub fn load_async_by_old_name(&self, command: &[u8]) {
        self.life_cycle.load_in_background(LoadCommand::by_old_name(command));
    }

    /// Unloads, or aborts a running load, and waits for the threads of earlier calls. Inside a callback it returns at once, and
    /// unloads on another thread. Does nothing in a process that was forked from the one that loaded the model.
    pub fn unload(&self) {
        if host::inside() {
            self.life_cycle.unload_in_background();
        } else {
            self.life_cycle.unload();
        }
    }

    /// As [`JsonEngine::unload`]; every later load fails with [`Code::InvalidEngine`]. When this returns, the update callback no longer
    /// runs (unless this is called from inside a callback).
    pub fn close(&self) {
        self.life_cycle.refuse_loads();
        self.unload();
        self.set_update_hook(None);
    }

    /// Calls `call` with the loaded engine. It is not unloaded meanwhile.
    ///
    /// # Errors
    /// No model is loaded; or those of `call`.
    pub fn with_loaded<R>(&self, call: impl FnOnce(&LocalEngine) -> Result<R>) -> Result<R> {
        self.loaded().map_err(|(_, error)| error)?.local()?.during(call)
    }

    /// Calls a function of the interface, in the process where the engine is. `request`: its argument, or why there is none.
    ///
    /// # Errors
    /// No model is loaded and the function needs one; that of `request`; or those of the function.
    pub fn call(&self, function: Function, request: Result<&[u8]>) -> Result<Value> {
        let answer = match request {
            Ok(request) => self.call_with(function, request),
            // Without a model, the argument does not matter.
            Err(error) => self.check_ready(function).and(Err(error)),
        };
        if let Function::Submit(endpoint) = function {
            self.life_cycle.left_requests().set_refused(endpoint, answer.as_ref().err());
        }
        answer
    }

    fn call_with(&self, function: Function, request: &[u8]) -> Result<Value> {
        match (self.loaded(), function) {
            (Ok(engine), _) if !(function.needs_no_engine() && engine.is_local()) => engine.call(function, request),
            (_, Function::LookupCreate) => self.lookup_create(request),
            (_, Function::LookupMerge) => self.lookup_merge(request),
            (_, Function::LookupStats) => self.lookup_stats(request),
            (engine, _) => engine.map_err(|(_, error)| error)?.call(function, request),
        }
    }

    /// Whether [`JsonEngine::call`] can serve this function now.
    fn check_ready(&self, function: Function) -> Result<()> {
        if function.needs_no_engine() {
            return Ok(());
        }
        self.loaded().map(|_| ()).map_err(|(_, error)| error)
    }

    /// The loaded engine; or the name of the state, and an error that describes it.
    fn loaded(&self) -> Result<LoadedEngine, (&'static str, Error)> {
        match self.life_cycle.state() {
            EngineState::Ready(engine) => Ok(engine),
            EngineState::NotReady(phase) => {
                let (code, message) = match &phase {
                    LoadPhase::Loading(_) => {
                        (Code::Loading, "a model is being loaded; the status has the progress".to_owned())
                    }
                    LoadPhase::Uninitialized => (Code::NotInitialized, "no model is loaded; load one first".to_owned()),
                    LoadPhase::Failed(error) => {
                        (Code::NotInitialized, format!("the last load failed: {}", error.message()))
                    }
                };
                Err((phase.name(), Error::new(code, message)))
            }
            EngineState::Forked(error) => Err(("failed", error)),
        }
    }

    /// As [`LocalEngine::poll`]. The request can also be one that the newest load or unload has ended; without an id it can be the last
    /// request before that, or one that was refused. If no model is loaded there are no other updates; this is an error only if the command names a request.
    ///
    /// # Errors
    /// The command is invalid, or there is no such request.
    pub fn poll(&self, endpoint: Endpoint, command: Option<&[u8]>) -> Result<Value> {
        let command = PollCommand::read(endpoint, command)?;
        let left = self.life_cycle.left_requests();
        if command.is_unnamed()
            && let Some(answer) = left.poll_refused(endpoint, &command)
        {
            return Ok(answer);
        }
        let engine = self.loaded();
        let is_here = |engine: &LoadedEngine| !command.is_unnamed() || engine.newest(endpoint).is_some();
        let here = match &engine {
            Ok(engine) if is_here(engine) => engine.poll(endpoint, command.clone()),
            _ => None,
        };
        if here.is_none()
            && command.is_unnamed()
            && let Some(answer) = left.newest(endpoint).and_then(|id| left.poll(endpoint, id, &command))
        {
            return answer;
        }
        let state = engine.map_or_else(|(state, _)| state, |_| "idle");
        let answer = here.unwrap_or_else(|| poll_without_request(command.clone(), state));
        found_elsewhere(answer, &command, |id, command| left.poll(endpoint, id, command))
    }

    /// As [`LocalEngine::cancel`]. If no model is loaded there is nothing to cancel; this is an error only if the command names a request
    /// that the newest load or unload has not ended.
    ///
    /// # Errors
    /// The command is invalid, or there is no such request.
    pub fn cancel(&self, endpoint: Endpoint, command: Option<&[u8]>) -> Result<Value> {
        let command = PollCommand::read(endpoint, command)?;
        let answer = match self.loaded() {
            Ok(engine) => engine.cancel(endpoint, command.clone()),
            Err(_) => cancel_without_models(command.clone()),
        };
        let left = self.life_cycle.left_requests();
        found_elsewhere(answer, &command, |id, command| left.has(id).then(|| Ok(cancel_left(id, command))))
    }

    /// The answer of `poll_system_status`.
    pub fn status(&self) -> Value {
        let status = match self.life_cycle.state() {
            EngineState::Ready(engine) => engine.status(),
            EngineState::NotReady(phase) => EngineStatus::not_loaded(&phase, &self.life_cycle.given()).to_json(),
            EngineState::Forked(error) => {
                EngineStatus::not_loaded(&LoadPhase::Failed(error), &self.life_cycle.given()).to_json()
            }
        };
        self.life_cycle.lookups().add_to_status(status)
    }

    /// The status of every engine in a process that is [cut off](crate::forks).
    pub fn status_when_cut_off() -> Value {
        let status = EngineStatus::cut_off(cut_off()).to_json();
        RunningLookups::default().add_to_status(status)
    }

    /// Registers a lookup function that runs until it ends, or until a later `init` or `deinit`.
    pub(super) fn begin_lookup(&self, function: &'static str) -> RunningLookup<'_> {
        let is_current = self.life_cycle.watch_epoch();
        self.life_cycle.lookups().begin(function, is_current)
    }

    /// Replaces the callback for updates; see [`Hook::set`](host::Hook::set).
    pub fn set_update_hook(&self, hook: Option<Box<dyn Fn(u64) + Send + Sync>>) {
        self.life_cycle.set_update_hook(hook);
    }
}
