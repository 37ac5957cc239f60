//! An engine in another process, as the host's process sees it.
//!
//! One thread, the supervisor, starts the process, reads what it sends, and starts another one when it dies. Then it sends all requests
//! that have not ended again, with the tokens that have arrived, and all calls that have no answer. Callbacks of the host run on a thread
//! of their own, because they may call functions that wait for the supervisor. A third thread watches the process.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, TryRecvError};
use parking_lot::Mutex;
use serde_json::{Map, Value};

use super::protocol::{Frame, FrameKind};
use super::remote_request::{RemoteRequest, stopped};
use super::settings::IsolationSettings;
use super::shared::{RemoteShared, notify_host};
use super::supervisor::{Supervisor, SupervisorEvent};
use super::watch::watch;
use crate::api::Function;
use crate::api::loaded::calls::{completion_records, messages};
use crate::api::loaded::local_engine::LoadedEngine;
use crate::api::loaded::local_engine::{validate_slot, vocab_only};
use crate::api::loaded::pauses::{Following, HostPauses};
use crate::api::loaded::registry::{RequestRecord, no_logits_callback};
use crate::api::wire::answer::with_fields;
use crate::api::wire::fields::parse_object;
use crate::api::wire::load::LoadRequest;
use crate::api::wire::request::{
    CompletionRequest, DecisionModel, RequestArguments, RequestDefaults, UsedValues, embed_media, parse_request,
};
use crate::engine::{self, LogitsCallback, RequestHandle, Stop};
use crate::error::{Code, Error, Result};
use crate::host::Hook;
use crate::llama::PauseGate;
use crate::{forks, host};

/// How long a status waits for the process before it is the last known one.
const STATUS_PATIENCE: Duration = Duration::from_millis(5);
/// How long an unload waits until the process has ended its requests.
const STOP_PATIENCE: Duration = Duration::from_secs(3);
/// How much later than its `timeout_ms` a call is given up that the process has not answered.
const GRACE: Duration = Duration::from_secs(2);
/// How often a load looks whether it is still wanted.
const LOAD_INTERVAL: Duration = Duration::from_millis(50);

/// A loaded engine in another process.
pub struct RemoteEngine {
    shared: Arc<RemoteShared>,
    logits: Arc<Hook<LogitsCallback>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Where a status arrives that the process has not answered yet.
    asked_status: Mutex<Option<Receiver<Value>>>,
    /// The gate at which its threads sleep follows the host's pauses.
    _following: Following,
}

/// Starts an engine in a process of its own, and loads the models there, as `load` says, which was read from `command`. `warnings`: those of
/// the load that the process does not find. Its threads sleep while `pauses` are closed. `notify` gets the id of each request that has an
/// update, and `logits` the rows of those that ask for it. `progress` gets 0..=1 and aborts the load by returning false.
///
/// # Errors
/// A key of isolation is invalid, the process cannot be started, the load failed there, or it was aborted.
pub fn start(
    command: &[u8],
    warnings: Vec<String>,
    load: LoadRequest,
    pauses: &Arc<HostPauses>,
    notify: Arc<engine::Notify>,
    logits: Arc<Hook<LogitsCallback>>,
    mut progress: impl FnMut(f32) -> bool,
) -> Result<Arc<dyn LoadedEngine>> {
    let settings = IsolationSettings::read(command, warnings)?;
    let (gate, file) = PauseGate::shared().map_err(|error| Error::exhausted(format!("isolate: {error}")))?;
    let (notices, noticed) = crossbeam_channel::unbounded();
    let (wake, woken) = crossbeam_channel::bounded(1);
    let shared = Arc::new(RemoteShared::new(notices, wake, load));
    let engine = RemoteEngine {
        shared: Arc::clone(&shared),
        logits: Arc::clone(&logits),
        threads: Mutex::default(),
        asked_status: Mutex::default(),
        _following: pauses.follow(Arc::new(gate)),
    };
    let (events, loading) = crossbeam_channel::unbounded();
    let hook = Arc::clone(&logits);
    engine.spawn("foredraft-notify", move || notify_host(&noticed, &*notify, &hook))?;
    let watched = Arc::clone(&shared);
    engine.spawn("foredraft-watch", move || watch(&watched, &woken))?;
    let supervisor = Supervisor::new(shared, settings, file, events);
    engine.spawn("foredraft-super", move || supervisor.run())?;
    let mut last = 0.0;
    loop {
        match loading.recv_timeout(LOAD_INTERVAL) {
            Ok(SupervisorEvent::Loaded(result)) => {
                return result.map(|()| -> Arc<dyn LoadedEngine> { Arc::new(engine) });
            }
            Ok(SupervisorEvent::Progress(progress)) => last = progress,
            Err(crossbeam_channel::RecvTimeoutError::Timeout) => {}
            Err(crossbeam_channel::RecvTimeoutError::Disconnected) => {
                return Err(Error::new(Code::Internal, "isolate: the supervisor has ended"));
            }
        }
        // Dropping the engine ends the process.
        if !progress(last) {
            return Err(Error::new(Code::Cancelled, "the load was aborted"));
        }
    }
}

impl RemoteEngine {
    fn spawn(&self, name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
        let thread = forks::spawn(name, work);
        let thread = thread.map_err(|error| Error::exhausted(format!("isolate: cannot start a thread: {error}")))?;
        self.threads.lock().push(thread);
        Ok(())
    }

    /// Calls a function that may have a `timeout_ms`.
    fn call_in_time(&self, function: Function, argument: &[u8]) -> Result<Value> {
        let limit = parse_object(argument).ok().and_then(|object| object.get("timeout_ms")?.as_u64());
        let limit = limit.filter(|limit| *limit > 0).map(|limit| Duration::from_millis(limit).saturating_add(GRACE));
        let late = || match limit {
            Some(_) if self.shared.check().is_ok() => {
                Error::new(Code::Timeout, "timeout_ms: passed before the engine's process answered")
            }
            _ => stopped(),
        };
        self.shared.call(function.as_str(), argument, limit)?.ok_or_else(late)
    }

    /// Takes over the process's status if it is answered at once. An answer that comes later is for the next call.
    fn update_status(&self) {
        let Some(mut asked) = self.asked_status.try_lock() else { return };
        match asked.as_ref().map(Receiver::try_recv) {
            Some(Err(TryRecvError::Empty)) => return,
            Some(Ok(status)) => *self.shared.last_status.lock() = status,
            Some(Err(TryRecvError::Disconnected)) | None => {}
        }
        // Fails if the engine has ended, and then the last status stays.
        *asked = self.shared.ask_status().ok();
        if let Some(Ok(status)) = asked.as_ref().map(|answer| answer.recv_timeout(STATUS_PATIENCE)) {
            *self.shared.last_status.lock() = status;
            *asked = None;
        }
    }
}

impl LoadedEngine for RemoteEngine {
    fn begin_stop(&self) {
        if !self.shared.is_stopping.swap(true, Ordering::AcqRel) {
            let number = self.shared.next_call.fetch_add(1, Ordering::Relaxed);
            self.shared.send(Frame::call(number, "stop", &Arc::default()));
            self.shared.wake_watch();
        }
    }

    fn stop(&self) {
        self.begin_stop();
        let begun = Instant::now();
        while begun.elapsed() < STOP_PATIENCE
            && self.shared.connection.lock().is_some()
            && !self.shared.unfinished().is_empty()
        {
            std::thread::sleep(Duration::from_millis(2));
        }
        if let Some(connection) = self.shared.starting.lock().take() {
            connection.close();
        }
        self.shared.end_all(None);
        let threads = std::mem::take(&mut *self.threads.lock());
        // The notifier ends when the supervisor has let go of the shared state. A callback of the host may be the caller.
        if !host::inside() {
            for thread in threads.into_iter().filter(|thread| thread.thread().name() != Some("foredraft-notify")) {
                let _ = thread.join();
            }
        }
    }

    fn defaults(&self) -> &RequestDefaults {
        &self.shared.load.defaults
    }

    fn status(&self) -> Value {
        self.update_status();
        let status = self.shared.last_status.lock().clone();
        let failure = self.shared.failure.lock().clone();
        let failed = failure.as_ref().map(|error| {
            [
                ("load_state", (-1).into()),
                ("init_success", (-1).into()),
                ("state", "failed".into()),
                ("error", error.message().into()),
                ("code", error.code().as_str().into()),
            ]
        });
        let isolation = ("isolation", self.shared.isolation.lock().to_json(failure.is_some()));
        with_fields(status, failed.into_iter().flatten().chain([isolation]))
    }

    /// Reads a request, as far as the model does not matter, and lets the process have it when that can serve. Never waits.
    fn begin(
        &self,
        text: &[u8],
        mut arguments: RequestArguments,
        is_awaited: bool,
        announce: &dyn Fn(&Arc<RequestRecord>),
    ) -> Result<Arc<RequestRecord>> {
        self.shared.check()?;
        let RemoteShared { load, counts, preparations, .. } = &*self.shared;
        if load.config.model.vocab_only {
            return Err(vocab_only());
        }
        let mut object = parse_request(text)?;
        let text: Arc<[u8]> = with_media(text, &mut object)?.into();
        Frame::check_argument(&text)?;
        let id = engine::new_request_id();
        arguments.isolated.host_number = Some(id);
        let mut request = CompletionRequest::from_object(&object, &load.defaults, arguments.clone())?;
        request.log(object);
        arguments.translation.is_logged = true;
        arguments.isolated.drawn_seed = Some(request.sampling.seed);
        if request.logits_callback && !self.logits.is_set() {
            return Err(no_logits_callback());
        }
        let n_parallel = load.config.n_parallel;
        request.options.slot.map_or(Ok(()), |slot| validate_slot(slot, n_parallel))?;
        request.validate_sessions()?;
        let counts = if request.options.is_preparation() { preparations } else { counts };
        counts.check_room(request.n_completions(), n_parallel, load.config.max_queue)?;
        let model = self.shared.model(request.speculative.draft_only);
        request.set_decision_model(model.decision.as_deref(), false)?;
        let bans_as_null = request.translation.bans_as_null;
        let used = UsedValues { streams: !is_awaited, ignores_eos: request.ignore_eos, bans_as_null };
        let sampling = request.sampling.clone();
        let completions = completion_records(&mut request, &sampling, used, &model);
        drop(request.take_inputs());
        let speculates = request.speculative.settings.is_some();
        let (handle, sinks) = RequestHandle::of_other_process(id, completions.len(), speculates, counts);
        let messages = messages(&request, None, completions.len());
        let record = Arc::new(RequestRecord::new(handle, is_awaited, request, model, completions, messages));
        announce(&record);
        let request = Arc::new(RemoteRequest::new(Arc::clone(&record), sinks, text, arguments));
        self.shared.unfinished.lock().insert(id, Arc::clone(&request));
        self.shared.dispatch();
        // The supervisor may have given up before the request was in the list.
        if let Err(error) = self.shared.check() {
            self.shared.end(&request, Stop::from(error));
        }
        Ok(record)
    }

    fn decides_by_encoder(&self) -> bool {
        DecisionModel::is_encoder_named(self.shared.model(false).decision.as_deref())
    }

    fn call(&self, function: Function, argument: &[u8]) -> Result<Value> {
        match function {
            Function::SessionSave | Function::SessionLoad | Function::SessionErase => {
                self.call_in_time(function, argument)
            }
            Function::ApplyTemplate | Function::Tokenize => {
                let argument = with_media(argument, &mut parse_object(argument)?)?;
                self.shared.call(function.as_str(), &argument, None)?.ok_or_else(stopped)
            }
            _ => self.shared.call(function.as_str(), argument, None)?.ok_or_else(stopped),
        }
    }

    fn cancel(&self, record: &RequestRecord) -> Result<bool> {
        let id = record.handle.id();
        let Some(request) = self.shared.find(id) else { return Ok(false) };
        if request.cancel() {
            self.shared.send(Frame::new(FrameKind::Cancel, id, Vec::new()));
            self.shared.wake_watch();
        } else {
            self.shared.end(&request, Stop::Cancelled);
        }
        Ok(true)
    }

    fn end_reasoning(&self, record: &RequestRecord) -> Result<()> {
        let id = record.handle.id();
        if let Some(request) = self.shared.find(id) {
            request.end_reasoning();
            self.shared.send(Frame::new(FrameKind::EndReasoning, id, Vec::new()));
        }
        Ok(())
    }
}

/// The text of a request with its pictures and sounds in it. `object`: what was read from the text.
fn with_media<'a>(text: &'a [u8], object: &mut Map<String, Value>) -> Result<Cow<'a, [u8]>> {
    if !embed_media(object)? {
        return Ok(Cow::Borrowed(text));
    }
    serde_json::to_vec(object).map(Cow::Owned).map_err(|error| Error::new(Code::Internal, error.to_string()))
}

impl Drop for RemoteEngine {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests;
