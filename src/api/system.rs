//! The life cycle: at most one [`Server`], loaded, replaced and unloaded from any thread at any time.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use serde_json::Value;

use super::init::GivenModels;
use super::lookup::progress::{Lookup, Lookups};
use super::poll::{PollCommand, nothing_to_cancel, nothing_to_poll};
use super::status::Status;
use super::{Endpoint, InitRequest, Server};
use crate::engine;
use crate::error::{Code, Error, Result};
use crate::host::{self, Hook, Notice};
use crate::llama;
use crate::llama::log::{self, Level};

/// Everything behind the C interface. Clones are the same system.
///
/// Each `init` and `deinit` begins a new *epoch*, and only the newest one counts: a load of an older epoch aborts as
/// soon as it notices. Loading and unloading is done in `turn`, one after the other, so that two models are never in
/// memory together; `life` is only ever held for a moment.
#[derive(Clone, Default)]
pub struct System {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    epoch: AtomicU64,
    turn: Mutex<()>,
    joining: Mutex<()>,
    life: Mutex<Life>,
    updates: Arc<Hook<dyn Fn(u64) + Send + Sync>>,
    lookups: Lookups,
    /// The process that the state is of, and its threads; also for those who cannot wait for the lock.
    process: AtomicU32,
    /// See [`System::calling`].
    llama_runs: Option<fn(Loaded)>,
    /// Makes a [`Notice`] of `notify_fd`.
    open_notify_fd: Option<fn(i32) -> Result<Notice>>,
    /// This.
    me: Weak<Inner>,
}

/// How far llama.cpp is with making the globals whose destructors run when the process ends.
#[derive(Clone, Copy)]
pub enum Loaded {
    /// It has started, and will load a model.
    Nothing,
    /// It has loaded a model that can be evaluated.
    Model,
}

/// What an epoch begins with, and what is left of those before it.
#[derive(Default)]
struct Life {
    state: State,
    /// What the newest load was given.
    given: GivenModels,
    /// Servers that were replaced and told to stop. Whoever gets the turn stops them before anything else.
    replaced: Vec<Arc<Server>>,
    /// Threads that load or unload, each with its epoch.
    aside: Vec<(u64, JoinHandle<()>)>,
    /// Set by [`System::close`]: nothing is loaded any more.
    closed: bool,
}

/// What `poll_system_status` shows as `state`.
#[derive(Default)]
pub(super) enum State {
    /// Nothing is loaded.
    #[default]
    Uninitialized,
    /// A load runs and has come so far, 0..=1.
    Loading(f32),
    /// RequestRegistry are served.
    Ready(Arc<Server>),
    /// The last load failed.
    Failed(Error),
}

impl State {
    /// The name used in JSON.
    pub(super) fn name(&self) -> &'static str {
        match self {
            State::Uninitialized => "uninitialized",
            State::Loading(_) => "loading",
            State::Ready(_) => "ready",
            State::Failed(_) => "failed",
        }
    }
}

impl System {
    /// Nothing loaded yet.
    pub fn new() -> System {
        System::default()
    }

    /// The same, and `llama_runs` is called before each load and, when a model is loaded that can be evaluated, before
    /// anything can be asked of it; `open_notify_fd` makes a notice of the host's file descriptor.
    pub fn calling(llama_runs: fn(Loaded), open_notify_fd: fn(i32) -> Result<Notice>) -> System {
        let inner = Arc::new_cyclic(|me| Inner {
            llama_runs: Some(llama_runs),
            open_notify_fd: Some(open_notify_fd),
            me: Weak::clone(me),
            ..Inner::default()
        });
        System { inner }
    }

    /// Loads what `command` asks for, in place of what is loaded, and waits for it.
    ///
    /// # Errors
    /// The command is wrong, a model cannot be loaded, a later `init` or `deinit` took its place, a callback called, or
    /// another process, of which this one is a fork, has loaded a model.
    pub fn init(&self, command: &[u8]) -> Result<()> {
        if host::inside() {
            return Err(Error::would_deadlock("init"));
        }
        let given = GivenModels::of(command);
        let epoch = self.inner.begin_load(&mut self.inner.life.lock(), given)?;
        self.inner.join_older(epoch);
        self.inner.load(epoch, command)
    }

    /// The same on a thread of its own.
    pub fn init_async(&self, command: &[u8]) {
        let command = command.to_vec();
        let given = GivenModels::of(&command);
        self.aside(
            "foredraft-init",
            move |inner, life| inner.begin_load(life, given),
            move |inner, epoch| {
                // The status tells of a failure.
                let _ = inner.load(epoch, &command);
            },
        );
    }

    /// Unloads, or aborts the load that runs, and waits for that and for the threads of earlier calls; inside a
    /// callback it only begins to, and in a fork of the process that loaded it does nothing.
    pub fn deinit(&self) {
        if host::inside() {
            let begin = |inner: &Inner, life: &mut Life| inner.begin(life, State::Uninitialized);
            self.aside("foredraft-deinit", begin, |inner, _| drop(inner.take_turn()));
        } else {
            let begun = self.inner.begin(&mut self.inner.life.lock(), State::Uninitialized);
            let Ok(epoch) = begun else { return };
            self.inner.join_older(epoch);
            drop(self.inner.take_turn());
        }
    }

    /// Unloads for good: as [`System::deinit`], and every later load fails with [`Code::InvalidEngine`]. The update
    /// callback runs no more when this returns (unless this is called from inside a callback).
    pub fn close(&self) {
        self.inner.life.lock().closed = true;
        self.deinit();
        self.set_update_hook(None);
    }

    /// For the end of the process: what runs must not compute any more when the destructors of llama.cpp's globals have
    /// run. The host's callbacks are not called any more. Waits no longer than `patience`, because the host may hold what
    /// one of them waits for; much shorter where a callback does not return, as it waits for the thread that ends the
    /// process; inside a callback not at all, and in a fork of the process that loaded it does nothing. False: some of it
    /// may run still.
    pub fn end(systems: Vec<System>, patience: Duration) -> bool {
        log::set_level(Level::Off);
        // In a fork, a thread that does not exist there may hold the lock.
        let is_here = |system: &System| system.inner.process.load(Ordering::Acquire) == std::process::id();
        let systems: Vec<System> = systems.into_iter().filter(is_here).collect();
        if host::inside() {
            systems.iter().for_each(System::deinit);
            return true;
        }
        if systems.is_empty() {
            return true;
        }
        let (ended, wait) = crossbeam_channel::bounded(1);
        let end = move || {
            // All are told to stop before the first one is waited for.
            for system in &systems {
                let _ = system.inner.begin(&mut system.inner.life.lock(), State::Uninitialized);
            }
            log::set_sink(None);
            for system in &systems {
                system.set_update_hook(None);
                system.deinit();
            }
            let _ = ended.send(());
        };
        let Ok(thread) = std::thread::Builder::new().name("foredraft-end".into()).spawn(end) else { return true };
        let has_ended = wait_patiently(&wait, patience);
        if has_ended {
            let _ = thread.join();
        }
        has_ended
    }

    /// Unloads, as a callback may, if what is loaded is still of that epoch.
    fn unload_epoch(&self, epoch: u64) {
        let begin = |inner: &Inner, life: &mut Life| {
            if !inner.is_current(epoch) {
                return Err(superseded());
            }
            log::write(Level::Warn, "notify_fd: its reader is gone, so the engine is unloaded");
            inner.begin(life, State::Uninitialized)
        };
        self.aside("foredraft-deinit", begin, |inner, _| drop(inner.take_turn()));
    }

    /// Begins a new epoch by `begin`, and runs `work` for it on a thread of its own.
    fn aside(
        &self,
        name: &str,
        begin: impl FnOnce(&Inner, &mut Life) -> Result<u64>,
        work: impl FnOnce(&Inner, u64) + Send + 'static,
    ) {
        let inner = Arc::clone(&self.inner);
        let thread = std::thread::Builder::new().name(name.into());
        // Held until the thread is in the list, where every later epoch finds it.
        let mut life = self.inner.life.lock();
        let Ok(epoch) = begin(&self.inner, &mut life) else { return };
        match thread.spawn(move || work(&inner, epoch)) {
            Ok(thread) => {
                // Those that have ended do not add up.
                let ended = life.aside.extract_if(.., |(_, thread)| thread.is_finished());
                ended.for_each(|(_, thread)| drop(thread.join()));
                life.aside.push((epoch, thread));
            }
            Err(error) => {
                let error = Error::new(Code::Internal, format!("no thread for {name}: {error}"));
                life.state = State::Failed(error.clone());
                drop(life);
                log::write(Level::Error, error.message());
            }
        }
    }

    /// Lets `call` use the server, which is not unloaded meanwhile.
    ///
    /// # Errors
    /// None is loaded, or what `call` returns.
    pub fn with_server<R>(&self, call: impl FnOnce(&Server) -> Result<R>) -> Result<R> {
        self.server().map_err(|(_, error)| error)?.during(call)
    }

    /// The server, or the name of the state without one and the error that says so.
    fn server(&self) -> Result<Arc<Server>, (&'static str, Error)> {
        let life = self.inner.life.lock();
        self.inner.in_this_process(&life).map_err(|error| ("failed", error))?;
        let (code, why) = match &life.state {
            State::Ready(server) => return Ok(Arc::clone(server)),
            State::Loading(_) => (Code::Loading, "a model is being loaded; the status tells how far it is".to_owned()),
            State::Uninitialized => (Code::NotInitialized, "no model is loaded; load one first".to_owned()),
            State::Failed(error) => (Code::NotInitialized, format!("the last load failed: {}", error.message())),
        };
        Err((life.state.name(), Error::new(code, why)))
    }

    /// Takes the updates of a request, or of several, since the last poll: see [`Server::poll`]. Without a server there
    /// are none, which is an error only where the command names a request.
    ///
    /// # Errors
    /// The command is wrong, or there is no such request.
    pub fn poll(&self, endpoint: Endpoint, command: Option<&[u8]>) -> Result<Value> {
        let command = PollCommand::read(endpoint, command)?;
        match self.server() {
            Ok(server) => server.during(|server| server.run_poll(endpoint, command)),
            Err((state, _)) => nothing_to_poll(command, state),
        }
    }

    /// Ends a request, or several: see [`Server::cancel`]. Without a server there are none, which is an error only where
    /// the command names a request.
    ///
    /// # Errors
    /// The command is wrong, or there is no such request.
    pub fn cancel(&self, endpoint: Endpoint, command: Option<&[u8]>) -> Result<Value> {
        let command = PollCommand::read(endpoint, command)?;
        match self.server() {
            Ok(server) => server.during(|server| server.run_cancel(endpoint, command)),
            Err(_) => nothing_to_cancel(command),
        }
    }

    /// What `poll_system_status` answers.
    pub fn status(&self) -> Value {
        let life = self.inner.life.lock();
        let status = match (&life.state, self.inner.in_this_process(&life)) {
            (_, Err(error)) => Status::without_server(&State::Failed(error), &life.given),
            (State::Ready(server), _) => {
                let server = Arc::clone(server);
                drop(life);
                Status::of_server(&server)
            }
            (other, _) => Status::without_server(other, &life.given),
        };
        self.inner.lookups.shown_in(status.to_json())
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
    /// An error in a fork of the process that loaded what is loaded: nobody's thread is in it but the caller's.
    fn in_this_process(&self, life: &Life) -> Result<()> {
        match life.state {
            State::Loading(_) | State::Ready(_) if self.process.load(Ordering::Acquire) != std::process::id() => {
                let why = "this process was forked from one that loaded a model, whose threads it does not have: fork before init";
                Err(Error::new(Code::NotInitialized, why))
            }
            _ => Ok(()),
        }
    }

    /// Begins a new epoch in that state. What was loaded is told to stop, and left to whoever gets the turn next.
    ///
    /// # Errors
    /// As [`Inner::in_this_process`]; or this would be a load and the system was closed.
    fn begin(&self, life: &mut Life, next: State) -> Result<u64> {
        self.in_this_process(life)?;
        if life.closed && matches!(next, State::Loading(_)) {
            return Err(Error::new(Code::InvalidEngine, "engine: it was freed"));
        }
        self.process.store(std::process::id(), Ordering::Release);
        if let State::Ready(server) = std::mem::replace(&mut life.state, next) {
            server.begin_stop();
            life.replaced.push(server);
        }
        Ok(self.epoch.fetch_add(1, Ordering::AcqRel) + 1)
    }

    /// The same for a load of these models.
    fn begin_load(&self, life: &mut Life, given: GivenModels) -> Result<u64> {
        let epoch = self.begin(life, State::Loading(0.0))?;
        life.given = given;
        Ok(epoch)
    }

    /// Waits for the turn, and stops all that was replaced until then, whoever replaced it and may get the turn later.
    /// An older load that has the turn notices that its epoch is over.
    fn take_turn(&self) -> MutexGuard<'_, ()> {
        let turn = self.turn.lock();
        let replaced = std::mem::take(&mut self.life.lock().replaced);
        for server in replaced {
            server.stop();
        }
        turn
    }

    /// Joins the threads of older epochs, which only have to notice that these are over. Not to be called inside a
    /// callback, which may be theirs.
    fn join_older(&self, epoch: u64) {
        // Whoever comes second finds none in the list, and waits for those that the first one joins.
        let _joining = self.joining.lock();
        let older: Vec<_> = self.life.lock().aside.extract_if(.., |(began, _)| *began < epoch).collect();
        older.into_iter().for_each(|(_, thread)| drop(thread.join()));
    }

    fn load(&self, epoch: u64, command: &[u8]) -> Result<()> {
        let _turn = self.take_turn();
        let mut notice = None;
        let start = || if self.is_current(epoch) { self.start(epoch, command, &mut notice) } else { Err(superseded()) };
        // A defect must not leave a load that never ends.
        let panicked = |_| Err(Error::new(Code::Internal, "a defect of the library: the load panicked"));
        let result = catch_unwind(AssertUnwindSafe(start)).unwrap_or_else(panicked);
        let result = self.finish_load(epoch, result);
        if let Some(notice) = notice {
            notice();
        }
        result
    }

    fn finish_load(&self, epoch: u64, result: Result<Server>) -> Result<()> {
        match result {
            Ok(server) => {
                let server = Arc::new(server);
                if server.engine().is_ok() {
                    self.llama_runs(Loaded::Model);
                }
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

    fn llama_runs(&self, loaded: Loaded) {
        if let Some(llama_runs) = self.llama_runs {
            llama_runs(loaded);
        }
    }

    fn start(&self, epoch: u64, command: &[u8], notice: &mut Option<Arc<Notice>>) -> Result<Server> {
        let request = InitRequest::parse(command)?;
        if let Some(level) = request.log_level {
            log::set_level(level);
        }
        for warning in &request.warnings {
            log::write(Level::Warn, &format!("init: {warning}"));
        }
        *notice = request.notify_fd.map(|number| self.open_notice(number)).transpose()?.map(Arc::new);
        let notify = self.notify(epoch, notice.clone());
        llama::start();
        self.llama_runs(Loaded::Nothing);
        Server::start(request, notify, |progress| self.enter(epoch, State::Loading(progress.clamp(0.0, 1.0))))
    }

    fn open_notice(&self, number: i32) -> Result<Notice> {
        let open = self.open_notify_fd.ok_or_else(|| Error::invalid("notify_fd: not available here"))?;
        open(number)
    }

    /// Tells the host of news, by its callback and by its file descriptor. When nobody reads the descriptor any more, the
    /// host is gone (a worker thread that was ended, say), and its engine with it.
    fn notify(&self, epoch: u64, notice: Option<Arc<Notice>>) -> Arc<engine::Notify> {
        let (updates, me) = (Arc::clone(&self.updates), Weak::clone(&self.me));
        Arc::new(move |id| {
            updates.with(|callback| callback(id));
            if let Some(notice) = &notice
                && !notice()
                && let Some(inner) = me.upgrade()
            {
                System { inner }.unload_epoch(epoch);
            }
        })
    }

    fn is_current(&self, epoch: u64) -> bool {
        self.epoch.load(Ordering::Acquire) == epoch
    }

    /// Enters a state, unless a newer epoch has begun; false then.
    fn enter(&self, epoch: u64, next: State) -> bool {
        let mut life = self.life.lock();
        let current = self.is_current(epoch);
        if current {
            life.state = next;
        }
        current
    }
}

/// Waits for the end of what runs; not much longer than [`STUCK`] once a callback does not return.
fn wait_patiently(ended: &crossbeam_channel::Receiver<()>, patience: Duration) -> bool {
    /// A callback that has not returned after this time waits for the thread that ends the process.
    const STUCK: Duration = Duration::from_millis(300);
    let begun = Instant::now();
    let (mut seen, mut since) = (None, begun);
    while begun.elapsed() < patience {
        if ended.recv_timeout(Duration::from_millis(10)).is_ok() {
            return true;
        }
        let running = host::running();
        if running.is_none() || running != seen {
            (seen, since) = (running, Instant::now());
        } else if since.elapsed() > STUCK {
            return false;
        }
    }
    false
}

fn superseded() -> Error {
    Error::new(Code::Cancelled, "init: a later init or deinit took its place")
}
