//! A loaded engine, in this process or in another one.

use std::sync::Arc;

use serde_json::Value;

use super::pauses::{Following, HostPauses};
use crate::api::Function;
use crate::api::isolation::{IsolationSettings, RemoteEngine};
use crate::api::loaded::calls::{PollCommand, PollSource};
use crate::api::loaded::local_engine::LocalEngine;
use crate::api::wire::load::LoadRequest;
use crate::api::wire::request::{RequestArguments, RequestDefaults};
use crate::engine::{LogitsCallback, Notify};
use crate::error::{Error, Result};
use crate::host::Hook;

/// A loaded engine.
#[derive(Clone)]
pub(super) enum LoadedEngine {
    /// In this process.
    Local(Arc<LocalEngine>),
    /// In a process of its own, which follows the host's pauses.
    Isolated { engine: Arc<RemoteEngine>, _following: Arc<Following> },
}

impl LoadedEngine {
    /// Starts an engine in a process of its own.
    ///
    /// # Errors
    /// As `RemoteEngine::start`; or this platform has no isolation.
    pub(super) fn isolated(
        settings: IsolationSettings,
        load: LoadRequest,
        pauses: &Arc<HostPauses>,
        notify: Arc<Notify>,
        logits: Arc<Hook<LogitsCallback>>,
        progress: impl FnMut(f32) -> bool,
    ) -> Result<LoadedEngine> {
        let (gate, shared) = settings.share_pauses()?;
        let following = Arc::new(pauses.follow(Arc::new(gate)));
        RemoteEngine::start(settings, load, shared, notify, logits, progress)
            .map(|engine| LoadedEngine::Isolated { engine: Arc::new(engine), _following: following })
    }

    /// Whether this process decodes with it.
    pub(super) fn decodes_here(&self) -> bool {
        match self {
            LoadedEngine::Local(loaded) => loaded.worker().is_ok(),
            LoadedEngine::Isolated { .. } => false,
        }
    }

    /// Whether both are the same engine.
    pub(super) fn is(&self, other: &LoadedEngine) -> bool {
        match (self, other) {
            (LoadedEngine::Local(one), LoadedEngine::Local(other)) => Arc::ptr_eq(one, other),
            (LoadedEngine::Isolated { engine: one, .. }, LoadedEngine::Isolated { engine: other, .. }) => {
                Arc::ptr_eq(one, other)
            }
            _ => false,
        }
    }

    pub(super) fn is_local(&self) -> bool {
        matches!(self, LoadedEngine::Local(_))
    }

    /// The engine in this process.
    ///
    /// # Errors
    /// It is in another one.
    pub(super) fn local(self) -> Result<Arc<LocalEngine>> {
        match self {
            LoadedEngine::Local(loaded) => Ok(loaded),
            LoadedEngine::Isolated { .. } => Err(Error::invalid("isolate: the engine is in another process")),
        }
    }

    /// Begins to end all running requests, and returns at once.
    pub(super) fn begin_stop(&self) {
        match self {
            LoadedEngine::Local(loaded) => loaded.begin_stop(),
            LoadedEngine::Isolated { engine, .. } => engine.begin_stop(),
        }
    }

    /// Ends all running requests, and waits for that.
    pub(super) fn stop(&self) {
        match self {
            LoadedEngine::Local(loaded) => loaded.stop(),
            LoadedEngine::Isolated { engine, .. } => engine.stop(),
        }
    }

    /// The updates of its requests are no longer polled from it.
    pub(super) fn close(&self) {
        match self {
            LoadedEngine::Local(loaded) => loaded.close(),
            LoadedEngine::Isolated { engine, .. } => engine.close(),
        }
    }

    pub(super) fn status(&self) -> Value {
        match self {
            LoadedEngine::Local(loaded) => loaded.status().to_json(),
            LoadedEngine::Isolated { engine, .. } => engine.status(),
        }
    }

    /// Calls a function. `arguments`: those of a completion request. `announce` gets the id of a request that it queues.
    pub(super) fn call(
        &self,
        function: Function,
        request: &[u8],
        arguments: RequestArguments,
        announce: &dyn Fn(u64),
    ) -> Result<Value> {
        match self {
            LoadedEngine::Local(loaded) => loaded.during(|loaded| loaded.call(function, request, arguments, announce)),
            LoadedEngine::Isolated { engine, .. } => engine.call(function, request, arguments, announce),
        }
    }

    /// Takes updates; `None`: it is closed.
    pub(super) fn poll(&self, command: PollCommand) -> Option<Result<Value>> {
        match self {
            LoadedEngine::Local(loaded) => loaded.while_open(|loaded| loaded.poll(command)),
            LoadedEngine::Isolated { engine, .. } => engine.is_open().then(|| engine.poll(command)),
        }
    }

    /// Ends requests.
    pub(super) fn cancel(&self, command: PollCommand) -> Result<Value> {
        match self {
            LoadedEngine::Local(loaded) => loaded.during(|loaded| loaded.cancel(command)),
            LoadedEngine::Isolated { engine, .. } => engine.cancel(command),
        }
    }

    /// The values that a request gets for absent fields.
    pub(super) fn defaults(&self) -> &RequestDefaults {
        match self {
            LoadedEngine::Local(loaded) => loaded.defaults(),
            LoadedEngine::Isolated { engine, .. } => engine.defaults(),
        }
    }

    /// Its requests.
    pub(super) fn source(&self) -> &dyn PollSource {
        match self {
            LoadedEngine::Local(loaded) => &**loaded,
            LoadedEngine::Isolated { engine, .. } => &**engine,
        }
    }
}
