//! The state that the threads of an isolated engine share in the host's process: requests, calls, and the connection.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::connection::Connection;
use super::events::{RequestEvent, breach};
use super::protocol::{FIRST_CALL, Frame, FrameKind, LogitsRow};
use super::remote_request::{RemoteRequest, stopped};
use super::trial::{self, Presence};
use crate::api::error_json;
use crate::api::prompts::ServedModel;
use crate::api::wire::load::LoadRequest;
use crate::engine::{self, Counts, LogitsCallback, Stop};
use crate::error::{Error, Result};
use crate::host::Hook;
use crate::llama::log::{self, Level};

/// How long the process may be late with the end of a request before it counts as hanging. Some models' decodes cannot be interrupted,
/// and an RPC server may be silent for two minutes.
const HANG_PATIENCE: Duration = Duration::from_secs(180);

/// The state that the threads share.
pub(super) struct RemoteShared {
    /// The connection to the process that serves.
    pub(super) connection: Mutex<Option<Arc<Connection>>>,
    /// The connection to the process that loads or serves, to end it.
    pub(super) starting: Mutex<Option<Arc<Connection>>>,
    /// Calls that have no answer yet.
    pub(super) calls: Mutex<BTreeMap<u64, PendingCall>>,
    /// The requests that have not finished.
    pub(super) unfinished: Mutex<BTreeMap<u64, Arc<RemoteRequest>>>,
    /// The requests as polls see them.
    /// How many completions there are.
    pub(super) counts: Arc<Counts>,
    /// The same of preparations.
    pub(super) preparations: Arc<Counts>,
    /// The target, and the draft model that can generate alone, of the process that was loaded last.
    pub(super) models: Mutex<[Option<ServedModel>; 2]>,
    /// The status that the process sent last.
    pub(super) last_status: Mutex<Value>,
    pub(super) isolation: Mutex<IsolationStatus>,
    pub(super) is_stopping: AtomicBool,
    /// Why no process runs any more.
    pub(super) failure: Mutex<Option<Error>>,
    pub(super) notices: Sender<HostNotice>,
    pub(super) next_call: AtomicU64,
    pub(super) load: LoadRequest,
    /// Wakes the watch.
    wake: Sender<()>,
    /// Requests that the host has ended, and the process has not, with the moments of their ends.
    overdue: Mutex<BTreeMap<u64, Instant>>,
}

/// The contents of `isolation` in the status.
#[derive(Default)]
pub(super) struct IsolationStatus {
    pub(super) pid: Option<u32>,
    pub(super) n_restarts: u64,
    /// The deaths of processes: the newest ones.
    pub(super) deaths: VecDeque<Value>,
}

/// A call of the host that waits, or a status, which waits for a moment only.
pub(super) struct PendingCall {
    function: &'static str,
    argument: Arc<[u8]>,
    reply: Sender<Value>,
    /// `None`: a status. It is sent whatever else is there, and its loss does not matter.
    presence: Option<Presence>,
}

/// The events for the host's callbacks.
pub(super) enum HostNotice {
    Update(u64),
    Log(Level, String),
    /// A row for the logits callback, with its number, which the process at this connection waits for, if it lives.
    Logits(Weak<Connection>, u64, LogitsRow),
}

impl RemoteShared {
    /// The state before the load. [`notify_host`] reads `notices`, `wake` wakes the watch.
    pub(super) fn new(notices: Sender<HostNotice>, wake: Sender<()>, load: LoadRequest) -> Self {
        RemoteShared {
            connection: Mutex::new(None),
            starting: Mutex::new(None),
            calls: Mutex::default(),
            unfinished: Mutex::default(),
            counts: Arc::default(),
            preparations: Arc::default(),
            models: Mutex::default(),
            last_status: Mutex::default(),
            isolation: Mutex::default(),
            is_stopping: AtomicBool::new(false),
            failure: Mutex::new(None),
            notices,
            next_call: AtomicU64::new(FIRST_CALL),
            load,
            wake,
            overdue: Mutex::default(),
        }
    }
}

impl RemoteShared {
    /// Sends a frame, if a process runs. Otherwise the next one gets what matters.
    pub(super) fn send(&self, frame: Frame) {
        if let Some(connection) = &*self.connection.lock() {
            connection.send(frame);
        }
    }

    /// Sends the requests and calls that the process should have now and has not, in the order of their numbers.
    pub(super) fn dispatch(&self) {
        // Held together, so that nothing is sent twice. Texts are shared and not copied, so polls and cancels do not wait for long.
        let (requests, mut calls) = (self.unfinished.lock(), self.calls.lock());
        let connection = self.connection.lock();
        if let Some(connection) = &*connection {
            let now = Instant::now();
            let of_requests = requests.iter().map(|(id, request)| (*id, request.presence()));
            let of_calls = calls.iter().filter_map(|(number, call)| Some((*number, call.presence?)));
            let work: Vec<(u64, Presence)> = of_requests.chain(of_calls).collect();
            for number in trial::to_send(&work, now) {
                if let Some(call) = calls.get_mut(&number) {
                    connection.send(call.frame(number));
                    call.presence.iter_mut().for_each(|presence| presence.send(now));
                } else if let Some(request) = requests.get(&number) {
                    request.send_to(connection, now);
                }
            }
        }
        self.wake_watch();
    }

    /// Wakes the watch.
    pub(super) fn wake_watch(&self) {
        let _ = self.wake.try_send(());
    }

    /// A process serves: sends it the requests that have not ended and the calls that have no answer.
    pub(super) fn connect(&self, connection: &Arc<Connection>, pid: u32) {
        self.isolation.lock().pid = Some(pid);
        // From now on, new ones are sent by their callers.
        *self.connection.lock() = Some(Arc::clone(connection));
        self.dispatch();
    }

    /// No process serves.
    pub(super) fn disconnect(&self) {
        *self.connection.lock() = None;
        *self.starting.lock() = None;
        self.isolation.lock().pid = None;
    }

    /// A process died while it served. Ends the request or call that is the cause, if that is known.
    pub(super) fn process_died(&self, cause: &str) {
        let error = Error::model(format!("the engine's process died again and again while this ran: {cause}"));
        let requests = self.unfinished();
        let mut calls = self.calls.lock();
        let of_requests = requests.iter().map(|request| request.presence());
        let presences = of_requests.chain(calls.values().filter_map(|call| call.presence));
        let n_overdue = std::mem::take(&mut *self.overdue.lock()).len();
        let is_alone = presences.filter(|presence| presence.is_sent()).count() + n_overdue == 1;
        let is_guilty =
            |call: &mut PendingCall| call.presence.as_mut().is_some_and(|presence| presence.process_died(is_alone));
        let guilty: Vec<u64> =
            calls.iter_mut().filter_map(|(number, call)| is_guilty(call).then_some(*number)).collect();
        guilty.iter().filter_map(|number| calls.remove(number)).for_each(|call| call.fail(&error));
        drop(calls);
        for request in requests {
            let is_guilty = request.process_died(cause, is_alone);
            if request.is_cancelled() {
                self.end(&request, Stop::Cancelled);
            } else if is_guilty {
                self.end(&request, Stop::Error(error.clone()));
            } else {
                self.notify(request.id());
            }
        }
    }

    /// A request has got a token, or has ended. If it was suspect, others may be sent now.
    fn cleared(&self, was_suspect: bool) {
        if was_suspect {
            self.dispatch();
        }
    }

    /// Fails if no process runs, and none will.
    pub(super) fn check(&self) -> Result<()> {
        if self.is_stopping.load(Ordering::Acquire) {
            return Err(stopped());
        }
        self.failure.lock().clone().map_or(Ok(()), Err)
    }

    /// Calls a function in the process. `None`: there is no answer in this time, or the engine stops.
    pub(super) fn call(
        &self,
        function: &'static str,
        argument: &[u8],
        patience: Option<Duration>,
    ) -> Result<Option<Value>> {
        Frame::check_argument(argument)?;
        let (number, answer) = self.begin_call(Some(Presence::default()), function, argument)?;
        let answer = match patience {
            Some(patience) => answer.recv_timeout(patience).ok(),
            None => answer.recv().ok(),
        };
        self.calls.lock().remove(&number);
        Ok(answer)
    }

    /// Asks the process for its status.
    pub(super) fn ask_status(&self) -> Result<Receiver<Value>> {
        Ok(self.begin_call(None, "status", b"")?.1)
    }

    /// Sends a call. Returns its number, and where the answer arrives.
    fn begin_call(
        &self,
        presence: Option<Presence>,
        function: &'static str,
        argument: &[u8],
    ) -> Result<(u64, Receiver<Value>)> {
        self.check()?;
        let number = self.next_call.fetch_add(1, Ordering::Relaxed);
        let (reply, answer) = crossbeam_channel::bounded(1);
        let call = PendingCall { function, argument: argument.into(), reply, presence };
        let frame = call.frame(number);
        self.calls.lock().insert(number, call);
        match presence {
            Some(_) => self.dispatch(),
            None => self.send(frame),
        }
        // The supervisor may have given up before the call was in the list.
        if let Err(error) = self.check() {
            self.calls.lock().remove(&number);
            return Err(error);
        }
        Ok((number, answer))
    }

    /// Handles the answer of a call, or the last frame of a request.
    pub(super) fn answered(&self, number: u64, answer: Value) {
        self.overdue.lock().remove(&number);
        let call = self.calls.lock().remove(&number);
        if let Some(call) = call {
            let _ = call.reply.send(answer);
            self.cleared(call.presence.is_some_and(|mut presence| presence.clear()));
        }
    }

    /// Handles an event of a request. Nothing is new of one that the host has ended.
    ///
    /// # Errors
    /// It is none that an engine sends.
    pub(super) fn event(&self, id: u64, text: &[u8]) -> Result<()> {
        let Some(request) = self.find(id) else { return Ok(()) };
        let event = RequestEvent::read(text, request.record.completions.len(), &request.record.model.pieces)?;
        let effect = request.arrived(event)?;
        self.forget_finished(&request);
        if effect.has_news {
            self.notify(id);
        }
        self.cleared(effect.was_suspect);
        Ok(())
    }

    /// Ends a request by the host.
    pub(super) fn end(&self, request: &RemoteRequest, stop: Stop) {
        request.end(stop);
        self.forget_finished(request);
        self.notify(request.id());
    }

    fn forget_finished(&self, request: &RemoteRequest) {
        if request.is_finished() {
            self.unfinished.lock().remove(&request.id());
        }
    }

    /// A request that has not finished.
    pub(super) fn find(&self, id: u64) -> Option<Arc<RemoteRequest>> {
        self.unfinished.lock().get(&id).cloned()
    }

    /// The model that generates: the target, or the draft model alone, if it can.
    pub(super) fn model(&self, draft_only: bool) -> ServedModel {
        let [target, draft] = &*self.models.lock();
        let model = draft.as_ref().filter(|_| draft_only).or(target.as_ref());
        // No process has loaded one again, and the requests wait for it.
        let none = || ServedModel { name: self.load.alias(), n_ctx: 0, pieces: Arc::default(), decision: None };
        model.cloned().unwrap_or_else(none)
    }

    /// The requests that have not finished, in the order of their ids.
    pub(super) fn unfinished(&self) -> Vec<Arc<RemoteRequest>> {
        self.unfinished.lock().values().cloned().collect()
    }

    /// Handles a row of logits: the host's callback changes it, or it goes back as one that no callback has changed.
    ///
    /// # Errors
    /// It is none of a model's rows.
    pub(super) fn logits(&self, connection: &Arc<Connection>, frame: &Frame) -> Result<()> {
        let row = LogitsRow::read(&frame.text).ok_or_else(|| breach("a row of logits that is cut"))?;
        let Some(request) = self.find(row.request).filter(|request| request.record.request.logits_callback) else {
            // It has ended here meanwhile.
            connection.send(Frame::new(FrameKind::ChangedLogits, frame.number, Vec::new()));
            return Ok(());
        };
        let pieces = &request.record.model.pieces;
        if row.logits.len() != pieces.n_tokens() || !row.tokens.iter().all(|token| pieces.contains(*token)) {
            return Err(breach("a row of logits of another vocabulary"));
        }
        let _ = self.notices.send(HostNotice::Logits(Arc::downgrade(connection), frame.number, row));
        Ok(())
    }

    pub(super) fn notify(&self, id: u64) {
        let _ = self.notices.send(HostNotice::Update(id));
    }

    pub(super) fn log(&self, level: Level, text: &str) {
        if log::is_enabled(level) {
            let _ = self.notices.send(HostNotice::Log(level, text.to_owned()));
        }
    }

    /// Ends all requests and calls.
    pub(super) fn end_all(&self, error: Option<&Error>) {
        let stop = error.map_or(Stop::Cancelled, |error| Stop::Error(error.clone()));
        self.unfinished().iter().for_each(|request| self.end(request, stop.clone()));
        let calls = std::mem::take(&mut *self.calls.lock());
        if let Some(error) = error {
            for call in calls.into_values() {
                let _ = call.reply.send(error_json(error));
            }
        }
    }
}

/// The watch's part.
impl RemoteShared {
    /// Ends the requests that the process has not ended in time. Returns whether the process is so late with one that it hangs.
    pub(super) fn end_overdue(&self, now: Instant) -> bool {
        let requests = self.unfinished();
        for (request, stop) in requests.iter().filter_map(|request| Some((request, request.overdue(now)?))) {
            if request.presence().is_sent() {
                self.overdue.lock().insert(request.id(), now);
                self.send(Frame::new(FrameKind::Cancel, request.id(), Vec::new()));
            }
            request.warn_of_silence();
            self.end(request, stop);
            self.cleared(request.clear());
        }
        self.overdue.lock().values().any(|since| now.saturating_duration_since(*since) > HANG_PATIENCE)
    }

    /// Whether something waits for the process.
    pub(super) fn is_waited_for(&self) -> bool {
        let is_loading = || self.starting.lock().is_some() && self.connection.lock().is_none();
        !self.unfinished.lock().is_empty()
            || self.calls.lock().values().any(|call| call.presence.is_some())
            || !self.overdue.lock().is_empty()
            || is_loading()
    }

    /// Whether a request or call is suspect.
    pub(super) fn has_suspects(&self) -> bool {
        let requests = self.unfinished();
        let of_calls: Vec<Presence> = self.calls.lock().values().filter_map(|call| call.presence).collect();
        trial::has_suspects(requests.iter().map(|request| request.presence()).chain(of_calls))
    }
}

impl PendingCall {
    pub(super) fn frame(&self, number: u64) -> Frame {
        Frame::call(number, self.function, &self.argument)
    }

    /// Answers it with an error.
    pub(super) fn fail(self, error: &Error) {
        let _ = self.reply.send(error_json(error));
    }
}

impl IsolationStatus {
    /// `has_failed`: no process is started any more.
    pub(super) fn to_json(&self, has_failed: bool) -> Value {
        let state = match self.pid {
            _ if has_failed => "failed",
            Some(_) => "running",
            None => "starting",
        };
        json!({
            "state": state,
            "pid": self.pid,
            "n_restarts": self.n_restarts,
            "deaths": self.deaths,
        })
    }
}

/// Calls the host's callbacks.
pub(super) fn notify_host(notices: &Receiver<HostNotice>, notify: &engine::Notify, logits: &Hook<LogitsCallback>) {
    while let Ok(notice) = notices.recv() {
        match notice {
            HostNotice::Update(id) => notify(id),
            HostNotice::Log(level, text) => log::write(level, &text),
            HostNotice::Logits(connection, number, row) => {
                if connection.strong_count() == 0 {
                    continue;
                }
                let changed = change(row, logits).unwrap_or_default();
                if let Some(connection) = connection.upgrade() {
                    connection.send(Frame::new(FrameKind::ChangedLogits, number, changed));
                }
            }
        }
    }
}

/// The row as the host's callback leaves it; `None`: there is no callback, or it fails.
fn change(mut row: LogitsRow, hook: &Hook<LogitsCallback>) -> Option<Vec<u8>> {
    let mut result = None;
    hook.with(|callback| result = callback(row.request, &mut row.logits, &row.tokens).ok());
    result.map(|()| row.logits.iter().flat_map(|logit| logit.to_le_bytes()).collect())
}
