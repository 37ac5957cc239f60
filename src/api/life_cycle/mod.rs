//! An engine from the host's point of view: load, unload, and calls at any time in between.

#[cfg(target_os = "linux")]
pub mod engine_process;
pub mod legacy;
mod loading;
mod lookup_progress;
mod lookup_tools;
mod shutdown;

use std::sync::Arc;

use serde_json::Value;

pub use self::loading::LoadCommand;
pub(crate) use self::loading::cut_off;
use self::loading::{EngineState, LifeCycle};
pub use self::loading::{LlamaStage, OnLlamaStage, OpenNotifyFd};
pub(crate) use self::shutdown::stop_all;
use crate::api::life_cycle::lookup_progress::{RunningLookup, RunningLookups};
use crate::api::loaded::calls::PollCommand;
use crate::api::loaded::local_engine::LoadedEngine;
use crate::api::loaded::local_engine::LocalEngine;
use crate::api::loaded::response::{submitted, wait_for_response};
use crate::api::loaded::status::{EngineStatus, LoadPhase};
use crate::api::wire::answer::with_fields;
use crate::api::wire::fields::parse_object;
use crate::api::wire::function::Function;
use crate::api::wire::request::{RequestArguments, RequestDefaults};
use crate::engine::LogitsCallback;
use crate::error::{Code, Error, Result};
use crate::host;
use crate::llama::PauseGate;

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

    /// The engine of a process of its own, whose host opens and closes `gate`.
    pub fn of_other_process(gate: Arc<PauseGate>) -> JsonEngine {
        JsonEngine { life_cycle: Arc::new(LifeCycle::of_other_process(gate)) }
    }

    /// Lets the engine's threads sleep until as many calls of [`JsonEngine::resume`] have followed, also those of a load. Returns at once.
    /// Requests wait meanwhile. They can be cancelled, and the engine can be unloaded.
    ///
    /// # Errors
    /// There are 2^32 - 1 pauses already.
    pub fn pause(&self) -> Result<()> {
        self.life_cycle.pauses().pause()
    }

    /// Ends a pause. After the last one the threads go on where they were.
    ///
    /// # Errors
    /// The engine is not paused.
    pub fn resume(&self) -> Result<()> {
        self.life_cycle.pauses().resume()
    }

    /// Loads models in place of the loaded ones, and waits until that is done. `command` is a JSON object or a command line.
    ///
    /// # Errors
    /// The command is invalid, a model cannot be loaded, a later load or unload replaced this load, the call is from inside a
    /// callback, or this process was forked from one that has a model loaded.
    pub fn load(&self, command: &[u8]) -> Result<()> {
        if host::inside() {
            return Err(Error::would_deadlock("load"));
        }
        self.run_load(LoadCommand::new(command))
    }

    /// As [`JsonEngine::load`], on another thread. The status reports the result.
    pub fn load_async(&self, command: &[u8]) {
        self.run_load_async(LoadCommand::new(command));
    }

    /// As [`JsonEngine::load`]. Not allowed inside a callback.
    ///
    /// # Errors
    /// As [`JsonEngine::load`].
    pub fn run_load(&self, command: LoadCommand) -> Result<()> {
        self.life_cycle.load(command)
    }

    /// As [`JsonEngine::load_async`].
    pub fn run_load_async(&self, command: LoadCommand) {
        self.life_cycle.load_in_background(command);
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

    /// As [`JsonEngine::unload`]; every later load fails with [`Code::InvalidEngine`]. When this returns, its callbacks no longer
    /// run (unless this is called from inside a callback).
    pub fn close(&self) {
        self.life_cycle.refuse_loads();
        self.unload();
        self.set_update_hook(None);
        self.set_logits_hook(None);
    }

    /// Calls `call` with the loaded engine. It is not unloaded meanwhile.
    ///
    /// # Errors
    /// No model is loaded; or those of `call`.
    pub fn with_loaded<R>(&self, call: impl FnOnce(&LocalEngine) -> Result<R>) -> Result<R> {
        let engine = self.loaded().map_err(|(_, error)| error)?;
        let elsewhere = || Error::invalid("isolate: the engine is in another process");
        engine.local().ok_or_else(elsewhere)?.during(call)
    }

    /// Calls a function of the interface, in the process where the engine is. `request`: its argument, or why there is none.
    ///
    /// # Errors
    /// No model is loaded and the function needs one; that of `request`; or those of the function.
    pub fn call(&self, function: Function, request: Result<&[u8]>) -> Result<Value> {
        let engine = self.loaded().map_err(|(_, error)| error);
        let is_here = engine.as_ref().map_or(true, |engine| engine.local().is_some());
        let by_encoder =
            function == Function::Decide && engine.as_ref().is_ok_and(|engine| engine.decides_by_encoder());
        match function {
            Function::Complete | Function::Decide if !by_encoder => {
                let mut arguments = RequestArguments::default();
                arguments.translation.is_decision = function == Function::Decide;
                self.complete(request, arguments)
            }
            Function::Submit | Function::Prepare => {
                let mut arguments = RequestArguments::default();
                arguments.translation.is_preparation = function == Function::Prepare;
                self.submit(request, arguments, &|_| ())
            }
            Function::LookupCreate if is_here => self.lookup_create(request?),
            Function::LookupMerge if is_here => self.lookup_merge(request?),
            Function::LookupStats if is_here => self.lookup_stats(request?),
            _ => {
                // Without a model, the argument does not matter.
                let (engine, request) = (engine?, request?);
                if function.waits() && host::inside() {
                    return Err(Error::would_deadlock(function.as_str()));
                }
                engine.call(function, request)
            }
        }
    }

    /// Generates a completion or decides questions, and returns the final response: `foredraft_complete`, `foredraft_decide`.
    ///
    /// # Errors
    /// No model is loaded; that of `request`; the request is invalid; or the call is from inside a callback.
    pub fn complete(&self, request: Result<&[u8]>, arguments: RequestArguments) -> Result<Value> {
        let engine = self.loaded().map_err(|(_, error)| error)?;
        let request = request?;
        if host::inside() {
            let function = if arguments.translation.is_decision { Function::Decide } else { Function::Complete };
            return Err(Error::would_deadlock(function.as_str()));
        }
        let requests = self.life_cycle.requests();
        let record = engine.begin(request, arguments, true, &|record| requests.add(Arc::clone(record)))?;
        let answer = wait_for_response(&record);
        requests.end(record.handle.id());
        answer
    }

    /// Queues a request: `foredraft_submit`. `announce` gets its id; if the engine is in this process, before the request has an update.
    ///
    /// # Errors
    /// No model is loaded; that of `request`; or the request is invalid.
    pub fn submit(&self, request: Result<&[u8]>, arguments: RequestArguments, announce: &dyn Fn(u64)) -> Result<Value> {
        let engine = self.loaded().map_err(|(_, error)| error)?;
        let record = engine.begin(request?, arguments, false, &|record| {
            self.life_cycle.requests().add(Arc::clone(record));
            announce(record.handle.id());
        });
        Ok(submitted(&*record?))
    }

    /// The values that a request gets for absent fields.
    ///
    /// # Errors
    /// No model is loaded.
    pub fn defaults(&self) -> Result<RequestDefaults> {
        Ok(self.loaded().map_err(|(_, error)| error)?.defaults().clone())
    }

    /// The requests that have not finished, waiting ones first.
    pub fn unfinished(&self) -> Vec<u64> {
        self.loaded().map_or_else(|_| Vec::new(), |_| self.life_cycle.requests().unfinished())
    }

    /// Whether the loaded engine has a request, possibly one that was polled to its end.
    pub fn has_request(&self, id: u64) -> bool {
        self.loaded().is_ok() && self.life_cycle.requests().is_served(id)
    }

    /// Keeps a request pollable after any number of loads and unloads. `released`: the request that was kept until now.
    pub fn keep_request(&self, id: u64, released: Option<u64>) {
        self.life_cycle.requests().keep(id, released);
    }

    /// The name of the state, or `None` if a model is loaded.
    pub fn not_ready(&self) -> Option<&'static str> {
        self.loaded().err().map(|(state, _)| state)
    }

    /// The loaded engine; or the name of the state, and an error that describes it.
    fn loaded(&self) -> Result<Arc<dyn LoadedEngine>, (&'static str, Error)> {
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

    /// The loaded engine, if there is one.
    ///
    /// # Errors
    /// This process was forked from the one that has it.
    fn serving(&self) -> Result<Option<Arc<dyn LoadedEngine>>> {
        match self.life_cycle.state() {
            EngineState::Ready(engine) => Ok(Some(engine)),
            EngineState::NotReady(_) => Ok(None),
            EngineState::Forked(error) => Err(error),
        }
    }

    /// Takes the updates since the last poll, of one request or of several: `foredraft_poll`. The request can also be one that the newest
    /// load or unload has ended.
    ///
    /// # Errors
    /// The command is invalid, or there is no such request.
    pub fn poll(&self, command: Option<&[u8]>) -> Result<Value> {
        self.run_poll(PollCommand::read(&parse_object(command.unwrap_or_default())?, Vec::new())?)
    }

    /// As [`JsonEngine::poll`], with a command that was read.
    pub fn run_poll(&self, command: PollCommand) -> Result<Value> {
        let engine = self.serving()?;
        self.life_cycle.requests().poll(command, |record| engine.as_ref().map_or(Ok(()), |it| it.end_reasoning(record)))
    }

    /// Ends one request or several within one decode: `foredraft_cancel`. A request that the newest load or unload has ended is left
    /// unchanged.
    ///
    /// # Errors
    /// The command is invalid, or there is no such request.
    pub fn cancel(&self, command: Option<&[u8]>) -> Result<Value> {
        self.run_cancel(PollCommand::read(&parse_object(command.unwrap_or_default())?, Vec::new())?)
    }

    /// As [`JsonEngine::cancel`], with a command that was read.
    pub fn run_cancel(&self, command: PollCommand) -> Result<Value> {
        let engine = self.serving()?;
        self.life_cycle.requests().cancel(command, |record| engine.as_ref().map_or(Ok(false), |it| it.cancel(record)))
    }

    /// The answer of `foredraft_status`.
    pub fn status(&self) -> Value {
        let status = match self.life_cycle.state() {
            EngineState::Ready(engine) => engine.status(),
            EngineState::NotReady(phase) => EngineStatus::not_loaded(&phase, &self.life_cycle.given()).to_json(),
            EngineState::Forked(error) => {
                EngineStatus::not_loaded(&LoadPhase::Failed(error), &self.life_cycle.given()).to_json()
            }
        };
        // Not in `EngineStatus`, because that of an isolated engine comes from its process.
        let paused = ("paused", self.life_cycle.pauses().is_paused().into());
        self.life_cycle.lookups().add_to_status(with_fields(status, [paused]))
    }

    /// The status of every engine in a process that is [cut off](crate::forks).
    pub fn status_when_cut_off() -> Value {
        let status = with_fields(EngineStatus::cut_off(cut_off()).to_json(), [("paused", false.into())]);
        RunningLookups::default().add_to_status(status)
    }

    /// Registers a lookup function that runs until it ends, or until a later load or unload.
    pub(super) fn begin_lookup(&self, function: &'static str) -> RunningLookup<'_> {
        let is_current = self.life_cycle.watch_epoch();
        self.life_cycle.lookups().begin(function, is_current)
    }

    /// Replaces the callback for updates; see [`Hook::set`](host::Hook::set).
    pub fn set_update_hook(&self, hook: Option<Box<dyn Fn(u64) + Send + Sync>>) {
        self.life_cycle.set_update_hook(hook);
    }

    /// Replaces the logits callback; see [`Hook::set`](host::Hook::set).
    pub fn set_logits_hook(&self, hook: Option<Box<LogitsCallback>>) {
        self.life_cycle.set_logits_hook(hook);
    }
}
