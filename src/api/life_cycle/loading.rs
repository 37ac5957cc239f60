//! Loading and unloading.
//!
//! Each load and unload begins a new *epoch*, and only the newest epoch counts: a load of an older epoch aborts as soon as it
//! notices. Loads and unloads run one after the other, under the lock `loading`, so two models are never in memory at the same
//! time. The lock `life` is held only for a moment.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use foredraft_jinja::StopSignal;
use parking_lot::{Mutex, MutexGuard};

use crate::api::isolation;
use crate::api::life_cycle::lookup_progress::RunningLookups;
use crate::api::loaded::local_engine::LoadedEngine;
use crate::api::loaded::local_engine::LocalEngine;
use crate::api::loaded::pauses::HostPauses;
use crate::api::loaded::registry::RequestRegistry;
use crate::api::loaded::status::LoadPhase;
use crate::api::wire::load::{GivenModels, LoadRequest};
use crate::api::wire::request::RequestDefaults;
use crate::engine::{self, LOAD_STACK, LogitsCallback};
use crate::error::{Code, Error, Result};
use crate::forks;
use crate::host::{Hook, Notice};
use crate::llama::log::{self, Level};
use crate::llama::{self, PauseGate, large_stack};

/// The stages at which llama.cpp creates globals whose destructors run when the process ends.
#[derive(Clone, Copy)]
pub enum LlamaStage {
    /// llama.cpp has started, and is about to load a model.
    Started,
    /// A model that can be decoded is loaded.
    ModelLoaded,
}

/// Called at each [`LlamaStage`].
pub type OnLlamaStage = fn(LlamaStage);
/// Opens the host's file descriptor for update notices.
pub type OpenNotifyFd = fn(i32) -> Result<Notice>;

/// The state that all clones of a [`JsonEngine`](super::JsonEngine) share.
#[derive(Default)]
pub(super) struct LifeCycle {
    epoch: AtomicU64,
    /// Held while a model is loaded or unloaded.
    loading: Mutex<()>,
    /// Held while background threads are joined.
    joining: Mutex<()>,
    life: Mutex<Life>,
    updates: Arc<Hook<dyn Fn(u64) + Send + Sync>>,
    pauses: Arc<HostPauses>,
    logits: Arc<Hook<LogitsCallback>>,
    lookups: RunningLookups,
    requests: Arc<RequestRegistry>,
    /// The process that began the newest epoch and has its threads. Readable without the lock.
    process: AtomicU32,
    on_llama_stage: Option<OnLlamaStage>,
    open_notify_fd: Option<OpenNotifyFd>,
    /// A reference to this value.
    me: Weak<LifeCycle>,
}

#[derive(Default)]
struct Life {
    state: LoadState,
    /// The models that the newest load was given.
    given: GivenModels,
    /// Replaced engines, which stop. The next thread that gets the lock `loading` waits for them.
    replaced: Vec<Arc<dyn LoadedEngine>>,
    /// Threads that load or unload in the background, each with its epoch.
    background: Vec<(u64, JoinHandle<()>)>,
    /// The RPC servers of the newest load.
    rpc: Vec<String>,
    /// Set by [`LifeCycle::refuse_loads`].
    is_closed: bool,
}

enum LoadState {
    NotReady(LoadPhase),
    Ready(Arc<dyn LoadedEngine>),
}

impl Default for LoadState {
    fn default() -> Self {
        LoadState::NotReady(LoadPhase::Uninitialized)
    }
}

/// The argument of a load.
pub struct LoadCommand {
    given: GivenModels,
    command: Vec<u8>,
    /// The level at which a failure is logged. Most hosts get it from the call and the status.
    failure_level: Level,
    /// The warnings about defaults of requests.
    warn_about: fn(&RequestDefaults) -> Vec<String>,
    /// The warnings of the host's process of an isolated engine.
    warnings: Vec<String>,
}

impl LoadCommand {
    /// `command` is a JSON object or a command line.
    pub(super) fn new(command: &[u8]) -> LoadCommand {
        LoadCommand {
            given: GivenModels::read(command),
            command: command.to_vec(),
            failure_level: Level::Info,
            warn_about: |_| Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// The command of a host in another process, which has these warnings about it.
    pub fn isolated(command: &[u8], warnings: Vec<String>) -> LoadCommand {
        LoadCommand { warnings, ..LoadCommand::new(command) }
    }

    /// A command through another interface, whose hosts learn of a failure only from the log. `warn_about` returns the warnings about
    /// defaults that its requests do not use.
    pub fn translated(command: &[u8], warn_about: fn(&RequestDefaults) -> Vec<String>) -> LoadCommand {
        LoadCommand { failure_level: Level::Error, warn_about, ..LoadCommand::new(command) }
    }
}

/// A snapshot of the state.
pub(super) enum EngineState {
    /// No model is loaded.
    NotReady(LoadPhase),
    /// A model is loaded.
    Ready(Arc<dyn LoadedEngine>),
    /// This process was forked from the one that loaded the model.
    Forked(Error),
}

impl LifeCycle {
    /// See [`JsonEngine::with_callbacks`](super::JsonEngine::with_callbacks).
    pub(super) fn with_callbacks(on_llama_stage: OnLlamaStage, open_notify_fd: OpenNotifyFd) -> Arc<LifeCycle> {
        Arc::new_cyclic(|me| LifeCycle {
            on_llama_stage: Some(on_llama_stage),
            open_notify_fd: Some(open_notify_fd),
            me: Weak::clone(me),
            ..LifeCycle::default()
        })
    }

    /// See [`JsonEngine::of_other_process`](super::JsonEngine::of_other_process).
    pub(super) fn of_other_process(gate: Arc<PauseGate>) -> LifeCycle {
        LifeCycle { pauses: Arc::new(HostPauses::of_other_process(gate)), ..LifeCycle::default() }
    }

    pub(super) fn pauses(&self) -> &Arc<HostPauses> {
        &self.pauses
    }

    pub(super) fn state(&self) -> EngineState {
        let life = self.life.lock();
        if let Err(error) = self.check_process(&life) {
            return EngineState::Forked(error);
        }
        match &life.state {
            LoadState::Ready(engine) => EngineState::Ready(Arc::clone(engine)),
            LoadState::NotReady(phase) => EngineState::NotReady(phase.clone()),
        }
    }

    pub(super) fn given(&self) -> GivenModels {
        self.life.lock().given.clone()
    }

    pub(super) fn requests(&self) -> &RequestRegistry {
        &self.requests
    }

    pub(super) fn lookups(&self) -> &RunningLookups {
        &self.lookups
    }

    pub(super) fn set_update_hook(&self, hook: Option<Box<dyn Fn(u64) + Send + Sync>>) {
        self.updates.set(hook);
    }

    pub(super) fn set_logits_hook(&self, hook: Option<Box<LogitsCallback>>) {
        self.logits.set(hook);
    }

    /// Returns a function that is true until a later load or unload begins.
    pub(super) fn watch_epoch(&self) -> impl Fn() -> bool + '_ {
        let epoch = self.epoch.load(Ordering::Acquire);
        move || self.is_current(epoch)
    }

    /// Whether this process began the newest epoch. False in a fork, and before the first epoch.
    pub(super) fn belongs_to_this_process(&self) -> bool {
        self.process.load(Ordering::Acquire) == std::process::id()
    }

    /// Makes every later load fail.
    pub(super) fn refuse_loads(&self) {
        self.life.lock().is_closed = true;
    }

    /// Loads, and waits for it. Not allowed inside a callback.
    pub(super) fn load(&self, command: LoadCommand) -> Result<()> {
        let epoch = self.begin_load(&mut self.life.lock(), &command)?;
        {
            let _open = self.pauses.open();
            self.join_older(epoch);
        }
        self.run_load(epoch, &command)
    }

    /// Loads on another thread.
    pub(super) fn load_in_background(self: &Arc<Self>, command: LoadCommand) {
        let command = Arc::new(command);
        let begun = Arc::clone(&command);
        self.run_in_background(
            "foredraft-load",
            move |this, life| this.begin_load(life, &begun),
            move |this, epoch| {
                // The status reports a failure.
                let _ = this.run_load(epoch, &command);
            },
        );
    }

    /// Unloads, and waits for it. Not allowed inside a callback.
    pub(super) fn unload(&self) {
        let begun = self.begin_unload();
        let Ok(epoch) = begun else { return };
        let _open = self.pauses.open();
        self.join_older(epoch);
        drop(self.lock_loading());
    }

    /// Unloads on another thread.
    pub(super) fn unload_in_background(self: &Arc<Self>) {
        let begin = |this: &LifeCycle, life: &mut Life| this.begin(life, LoadPhase::Uninitialized);
        self.run_in_background("foredraft-unload", begin, |this, _| drop(this.lock_loading()));
    }

    /// Begins an unload without waiting for it.
    pub(super) fn begin_unload(&self) -> Result<u64> {
        self.begin(&mut self.life.lock(), LoadPhase::Uninitialized)
    }

    /// Unloads on another thread if `epoch` is still the newest one.
    fn unload_epoch(self: &Arc<Self>, epoch: u64) {
        let begin = move |this: &LifeCycle, life: &mut Life| {
            if this.is_current(epoch) { this.begin(life, LoadPhase::Uninitialized) } else { Err(superseded()) }
        };
        self.run_in_background("foredraft-unload", begin, |this, _| {
            log::write(Level::Warn, "notify_fd: the reader closed it, so the engine is unloaded");
            drop(this.lock_loading());
        });
    }

    /// Calls `begin` to begin a new epoch, and runs `work` for it on a new thread.
    fn run_in_background(
        self: &Arc<Self>,
        name: &str,
        begin: impl FnOnce(&LifeCycle, &mut Life) -> Result<u64>,
        work: impl FnOnce(&LifeCycle, u64) + Send + 'static,
    ) {
        let this = Arc::clone(self);
        // Held until the thread is in the list, where later epochs find it.
        let mut life = self.life.lock();
        let Ok(epoch) = begin(self, &mut life) else { return };
        match forks::spawn(name, move || work(&this, epoch)) {
            Ok(thread) => {
                // Finished threads are joined here, so the list stays short.
                let finished = life.background.extract_if(.., |(_, thread)| thread.is_finished());
                finished.for_each(|(_, thread)| drop(thread.join()));
                life.background.push((epoch, thread));
            }
            Err(error) => {
                let error = Error::exhausted(format!("cannot start the thread {name}: {error}"));
                life.state = LoadState::NotReady(LoadPhase::Failed(error.clone()));
                drop(life);
                log::write(Level::Error, error.message());
            }
        }
    }

    /// Fails in a process that was forked from the one that has the model: it has none of the threads.
    fn check_process(&self, life: &Life) -> Result<()> {
        match life.state {
            LoadState::NotReady(LoadPhase::Loading(_)) | LoadState::Ready(_) if !self.belongs_to_this_process() => {
                Err(cut_off())
            }
            _ => Ok(()),
        }
    }

    /// Begins a new epoch. A loaded engine begins to stop, and is left to the next thread that gets the lock `loading`.
    ///
    /// # Errors
    /// Those of [`LifeCycle::check_process`]; or loads are refused.
    fn begin(&self, life: &mut Life, next: LoadPhase) -> Result<u64> {
        self.check_process(life)?;
        if life.is_closed && matches!(next, LoadPhase::Loading(_)) {
            return Err(Error::new(Code::InvalidEngine, "engine: it was freed"));
        }
        self.process.store(std::process::id(), Ordering::Release);
        // A silent one would keep the unload waiting.
        llama::hurry_rpc_servers(&std::mem::take(&mut life.rpc));
        if let LoadState::Ready(loaded) = std::mem::replace(&mut life.state, LoadState::NotReady(next)) {
            loaded.begin_stop();
            life.replaced.push(loaded);
        }
        Ok(self.epoch.fetch_add(1, Ordering::AcqRel) + 1)
    }

    fn begin_load(&self, life: &mut Life, command: &LoadCommand) -> Result<u64> {
        let epoch = self.begin(life, LoadPhase::Loading(0.0))?;
        life.given = command.given.clone();
        Ok(epoch)
    }

    /// Locks `loading`, and stops all engines that were replaced so far. An older load that holds the lock notices that its epoch has
    /// ended, and aborts.
    fn lock_loading(&self) -> MutexGuard<'_, ()> {
        // A pause does not keep an engine or a load from ending.
        let _open = self.pauses.open();
        let loading = self.loading.lock();
        let replaced = std::mem::take(&mut self.life.lock().replaced);
        for loaded in replaced {
            loaded.stop();
            self.requests.unloaded();
        }
        loading
    }

    /// Joins the background threads of older epochs. Not allowed inside a callback, because the callback may run on such a thread.
    fn join_older(&self, epoch: u64) {
        // A second caller finds the list empty, and waits here for the threads that the first one is joining.
        let _joining = self.joining.lock();
        let older: Vec<_> = self.life.lock().background.extract_if(.., |(began, _)| *began < epoch).collect();
        older.into_iter().for_each(|(_, thread)| drop(thread.join()));
    }

    fn run_load(&self, epoch: u64, command: &LoadCommand) -> Result<()> {
        let _loading = self.lock_loading();
        let mut notice = None;
        let start = || match self.is_current(epoch) {
            true => self.start_engine(epoch, command, &mut notice),
            false => Err(superseded()),
        };
        let result = match large_stack::left() {
            ..LOAD_STACK => forks::run_with_stack("foredraft-load", LOAD_STACK, start).unwrap_or_else(|error| {
                Ok(Err(Error::exhausted(format!("load: no thread with a stack of {LOAD_STACK} bytes: {error}"))))
            }),
            _ => catch_unwind(AssertUnwindSafe(start)),
        };
        // If a bug panics here, the load fails instead of never ending.
        let panicked = |_| Err(Error::new(Code::Internal, "a bug in the library: the load panicked"));
        let result = result.unwrap_or_else(panicked);
        if result.is_ok() {
            forks::wait_for_starts();
        }
        let result = self.finish_load(epoch, result, command.failure_level);
        if let Some(notice) = notice {
            notice();
        }
        result
    }

    fn finish_load(&self, epoch: u64, result: Result<Arc<dyn LoadedEngine>>, failure_level: Level) -> Result<()> {
        match result {
            Ok(engine) => {
                if engine.local().is_some_and(|engine| engine.worker().is_ok()) {
                    self.reach(LlamaStage::ModelLoaded);
                }
                if self.set_state(epoch, LoadState::Ready(Arc::clone(&engine))) {
                    return Ok(());
                }
                engine.stop();
                Err(superseded())
            }
            Err(error) => {
                let error = if self.is_current(epoch) { error } else { superseded() };
                log::write(failure_level, &format!("load: {}", error.message()));
                self.set_state(epoch, LoadState::NotReady(LoadPhase::Failed(error.clone())));
                Err(error)
            }
        }
    }

    fn reach(&self, stage: LlamaStage) {
        if let Some(on_llama_stage) = self.on_llama_stage {
            on_llama_stage(stage);
        }
    }

    fn start_engine(
        &self,
        epoch: u64,
        command: &LoadCommand,
        notice: &mut Option<Arc<Notice>>,
    ) -> Result<Arc<dyn LoadedEngine>> {
        // The level is chosen before anything of ggml runs: parsing asks ggml for defaults.
        llama::choose_default_level()?;
        let mut request = LoadRequest::parse(&command.command)?;
        let mut more = (command.warn_about)(&request.defaults);
        more.extend(command.warnings.iter().cloned());
        request.warnings.extend(more.iter().cloned());
        if let Some(level) = request.log_level {
            log::set_level(level);
        }
        for warning in &request.warnings {
            log::write(Level::Warn, &format!("load: {warning}"));
        }
        *notice = request.notify_fd.map(|number| self.open_notice(number)).transpose()?.map(Arc::new);
        let notify = self.notify_callback(epoch, notice.clone());
        let logits = Arc::clone(&self.logits);
        let progress =
            |progress: f32| self.set_state(epoch, LoadState::NotReady(LoadPhase::Loading(progress.clamp(0.0, 1.0))));
        if request.is_isolated {
            return isolation::start(&command.command, more, request, &self.pauses, notify, logits, progress);
        }
        {
            let mut life = self.life.lock();
            if !self.is_current(epoch) {
                return Err(superseded());
            }
            life.rpc.clone_from(&request.config.rpc);
        }
        llama::start();
        self.reach(LlamaStage::Started);
        let me = Weak::clone(&self.me);
        let is_aborted: StopSignal = Arc::new(move || me.upgrade().is_some_and(|this| !this.is_current(epoch)));
        Ok(Arc::new(LocalEngine::start(request, self.pauses.gate(), notify, logits, progress, &is_aborted)?))
    }

    fn open_notice(&self, number: i32) -> Result<Notice> {
        let open = self.open_notify_fd.ok_or_else(|| Error::invalid("notify_fd: not available here"))?;
        open(number)
    }

    /// The function that notifies the host of updates: by its callback, and by its file descriptor. If the reader of the descriptor
    /// has closed it, the host is gone (for example a worker thread that was ended), and the engine is unloaded.
    fn notify_callback(&self, epoch: u64, notice: Option<Arc<Notice>>) -> Arc<engine::Notify> {
        let (requests, updates, me) = (Arc::clone(&self.requests), Arc::clone(&self.updates), Weak::clone(&self.me));
        Arc::new(move |id| {
            requests.updates.signal();
            updates.with(|callback| callback(id));
            if let Some(notice) = &notice
                && !notice()
                && let Some(this) = me.upgrade()
            {
                this.unload_epoch(epoch);
            }
        })
    }

    fn is_current(&self, epoch: u64) -> bool {
        self.epoch.load(Ordering::Acquire) == epoch
    }

    /// Sets the state, unless a newer epoch has begun; returns false then.
    fn set_state(&self, epoch: u64, next: LoadState) -> bool {
        let mut life = self.life.lock();
        let current = self.is_current(epoch);
        if current {
            life.state = next;
        }
        current
    }
}

/// The answer of every function in a process that is [cut off](forks).
pub(crate) fn cut_off() -> Error {
    Error::new(Code::NotInitialized, forks::REASON)
}

fn superseded() -> Error {
    Error::new(Code::Cancelled, "load: a later load or unload replaced this load")
}
