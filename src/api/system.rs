//! The life cycle: at most one [`Server`], loaded, replaced and unloaded from any thread at any time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use serde_json::Value;

use super::lookups::{Lookup, Lookups};
use super::{InitRequest, Server, status};
use crate::engine;
use crate::error::{Code, Error, Result};
use crate::host::{self, Hook};
use crate::llama::log::{self, Level};

/// Everything behind the C interface. Clones are the same system.
///
/// Each `init` and `deinit` begins a new *epoch*, and only the newest one counts: a load of an older epoch aborts as
/// soon as it notices. Loading and unloading is done in `turn`, one after the other, so that two models are never in
/// memory together; `state` is only ever held for a moment.
#[derive(Clone, Default)]
pub struct System {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    epoch: AtomicU64,
    turn: Mutex<()>,
    state: Mutex<State>,
    updates: Arc<Hook<dyn Fn(u64) + Send + Sync>>,
    lookups: Lookups,
}

/// What `poll_system_status` shows as `state`.
#[derive(Default)]
pub(super) enum State {
    /// Nothing is loaded.
    #[default]
    Uninitialized,
    /// A load runs and has come so far, 0..=1.
    Loading(f32),
    /// Requests are served.
    Ready(Arc<Server>),
    /// The last load failed.
    Failed(Error),
}

/// A new epoch and what the last one left to be unloaded.
struct Begun {
    epoch: u64,
    before: Option<Arc<Server>>,
}

impl System {
    /// Nothing loaded yet.
    pub fn new() -> System {
        System::default()
    }

    /// Loads what `command` asks for, in place of what is loaded, and waits for it.
    ///
    /// # Errors
    /// The command is wrong, a model cannot be loaded, a later `init` or `deinit` took its place, or a callback called.
    pub fn init(&self, command: &[u8]) -> Result<()> {
        if host::inside() {
            return Err(would_deadlock("init"));
        }
        let begun = self.inner.begin(State::Loading(0.0));
        self.inner.load(begun, command)
    }

    /// The same on a thread of its own.
    pub fn init_async(&self, command: &[u8]) {
        let begun = self.inner.begin(State::Loading(0.0));
        let command = command.to_vec();
        self.aside("foredraft-init", move |inner| {
            // Whoever polls the status learns of it.
            let _ = inner.load(begun, &command);
        });
    }

    /// Unloads, or aborts the load that runs, and waits for that; inside a callback it only begins to.
    pub fn deinit(&self) {
        let begun = self.inner.begin(State::Uninitialized);
        if host::inside() {
            self.aside("foredraft-deinit", move |inner| inner.unload(begun));
        } else {
            self.inner.unload(begun);
        }
    }

    /// Runs `work` on a thread of its own.
    fn aside(&self, name: &str, work: impl FnOnce(&Inner) + Send + 'static) {
        let inner = Arc::clone(&self.inner);
        let thread = std::thread::Builder::new().name(name.into());
        if let Err(error) = thread.spawn(move || work(&inner)) {
            let error = Error::new(Code::Internal, format!("no thread for {name}: {error}"));
            log::write(Level::Error, error.message());
            *self.inner.state.lock() = State::Failed(error);
        }
    }

    /// Lets `call` use the server, which is not unloaded meanwhile.
    ///
    /// # Errors
    /// None is loaded, or what `call` returns.
    pub fn with_server<R>(&self, call: impl FnOnce(&Server) -> Result<R>) -> Result<R> {
        let server = match &*self.inner.state.lock() {
            State::Ready(server) => Arc::clone(server),
            State::Loading(_) => {
                return Err(Error::new(
                    Code::Loading,
                    "a model is being loaded; poll_system_status tells how far it is",
                ));
            }
            State::Uninitialized => return Err(Error::new(Code::NotInitialized, "init was not called")),
            State::Failed(error) => {
                return Err(Error::new(Code::NotInitialized, format!("init failed: {}", error.message())));
            }
        };
        server.during(call)
    }

    /// What `poll_system_status` answers.
    pub fn status(&self) -> Value {
        let state = self.inner.state.lock();
        let status = match &*state {
            State::Ready(server) => {
                let server = Arc::clone(server);
                drop(state);
                status::of_server(&server)
            }
            other => status::without_server(other),
        };
        self.inner.lookups.shown_in(status)
    }

    /// A long work of this name, which goes on until a later `init` or `deinit`.
    pub(super) fn lookup(&self, function: &'static str) -> Lookup<'_> {
        let epoch = self.inner.epoch.load(Ordering::Acquire);
        self.inner.lookups.begin(function, move || self.inner.is_current(epoch))
    }

    /// Replaces the callback for requests with news; see [`Hook::set`].
    pub fn set_update_hook(&self, hook: Option<Box<dyn Fn(u64) + Send + Sync>>) {
        self.inner.updates.set(hook);
    }
}

impl Inner {
    /// Begins a new epoch in that state. What was loaded is told to stop, and left to the caller to unload.
    fn begin(&self, next: State) -> Begun {
        let mut state = self.state.lock();
        let epoch = self.epoch.fetch_add(1, Ordering::AcqRel) + 1;
        let before = match std::mem::replace(&mut *state, next) {
            State::Ready(server) => Some(server),
            _ => None,
        };
        drop(state);
        if let Some(server) = &before {
            server.begin_stop();
        }
        Begun { epoch, before }
    }

    fn unload(&self, begun: Begun) {
        // An older load that still has the turn notices that its epoch is over.
        let _turn = self.turn.lock();
        if let Some(server) = begun.before {
            server.stop();
        }
    }

    fn load(&self, begun: Begun, command: &[u8]) -> Result<()> {
        let Begun { epoch, before } = begun;
        let _turn = self.turn.lock();
        if let Some(server) = before {
            server.stop();
        }
        let result = if self.is_current(epoch) { self.start(epoch, command) } else { Err(superseded()) };
        match result {
            Ok(server) => {
                let server = Arc::new(server);
                if self.enter(epoch, State::Ready(Arc::clone(&server))) {
                    return Ok(());
                }
                server.stop();
                Err(superseded())
            }
            Err(error) => {
                let error = if self.is_current(epoch) { error } else { superseded() };
                log::write(Level::Error, &format!("init: {}", error.message()));
                self.enter(epoch, State::Failed(error.clone()));
                Err(error)
            }
        }
    }

    fn start(&self, epoch: u64, command: &[u8]) -> Result<Server> {
        let request = InitRequest::parse(command)?;
        if let Some(level) = request.log_level {
            log::set_level(level);
        }
        for warning in &request.warnings {
            log::write(Level::Warn, &format!("init: {warning}"));
        }
        let updates = Arc::clone(&self.updates);
        let notify: Arc<engine::Notify> = Arc::new(move |id| {
            updates.with(|callback| callback(id));
        });
        Server::start(request, notify, |progress| self.enter(epoch, State::Loading(progress.clamp(0.0, 1.0))))
    }

    fn is_current(&self, epoch: u64) -> bool {
        self.epoch.load(Ordering::Acquire) == epoch
    }

    /// Enters a state, unless a newer epoch has begun; false then.
    fn enter(&self, epoch: u64, next: State) -> bool {
        let mut state = self.state.lock();
        let current = self.is_current(epoch);
        if current {
            *state = next;
        }
        current
    }
}

/// For functions that wait, called where they would wait for their caller.
pub(super) fn would_deadlock(function: &str) -> Error {
    Error::new(Code::WouldDeadlock, format!("{function}: waits, and was called from inside a callback"))
}

fn superseded() -> Error {
    Error::new(Code::Cancelled, "init: a later init or deinit took its place")
}
