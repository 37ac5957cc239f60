//! What the threads of an isolated engine share in the host's process: requests, calls, and the connection.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::connection::Connection;
use super::protocol::{FIRST_CALL, Frame, FrameKind};
use super::remote_request::RemoteRequest;
use crate::api::error_json;
use crate::api::registry::{MAX_ENDED, MAX_UNPOLLED, UpdateSignal};
use crate::engine;
use crate::error::{Code, Error, Result};
use crate::llama::log::{self, Level};

/// What the threads share.
pub(super) struct RemoteShared {
    /// The connection to the process that serves.
    pub(super) connection: Mutex<Option<Arc<Connection>>>,
    /// The connection to the process that loads or serves, to end it.
    pub(super) starting: Mutex<Option<Arc<Connection>>>,
    /// Calls that have no answer yet.
    pub(super) calls: Mutex<BTreeMap<u64, PendingCall>>,
    pub(super) requests: Mutex<RemoteRequests>,
    /// The status that the process sent last.
    pub(super) last_status: Mutex<Value>,
    pub(super) isolation: Mutex<IsolationStatus>,
    pub(super) is_stopping: AtomicBool,
    /// Why no process runs any more.
    pub(super) failure: Mutex<Option<Error>>,
    pub(super) updates: Arc<UpdateSignal>,
    pub(super) notices: Sender<HostNotice>,
    pub(super) next_call: AtomicU64,
    pub(super) default_seed: Option<Value>,
}

/// What the status shows as `isolation`.
#[derive(Default)]
pub(super) struct IsolationStatus {
    pub(super) pid: Option<u32>,
    pub(super) n_restarts: u64,
    /// The deaths of processes: the newest ones.
    pub(super) deaths: VecDeque<Value>,
}

/// A call of the host that waits.
pub(super) struct PendingCall {
    frame: Vec<u8>,
    function: String,
    reply: Sender<Value>,
    /// Deaths of the process while it ran.
    pub(super) n_deaths: u32,
}

/// What the host's callbacks are told.
pub(super) enum HostNotice {
    Update(u64),
    Log(Level, String),
}

impl RemoteShared {
    /// Of an engine that is about to be loaded with these keys of `init`. `updates`: signals them to polls; `notices`: what
    /// [`tell_host`] reads.
    pub(super) fn new(updates: Arc<UpdateSignal>, notices: Sender<HostNotice>, default_seed: Option<Value>) -> Self {
        RemoteShared {
            connection: Mutex::new(None),
            starting: Mutex::new(None),
            calls: Mutex::default(),
            requests: Mutex::default(),
            last_status: Mutex::default(),
            isolation: Mutex::default(),
            is_stopping: AtomicBool::new(false),
            failure: Mutex::new(None),
            updates,
            notices,
            next_call: AtomicU64::new(FIRST_CALL),
            default_seed,
        }
    }
}

/// The requests by id, and those whose end was polled.
#[derive(Default)]
pub(super) struct RemoteRequests {
    pub(super) records: BTreeMap<u64, Arc<RemoteRequest>>,
    pub(super) ended: VecDeque<u64>,
    pub(super) newest: [Option<u64>; 2],
}

impl RemoteShared {
    /// Sends a frame, if a process runs. Otherwise the next one gets what matters.
    pub(super) fn send(&self, frame: Frame) {
        if let Some(connection) = &*self.connection.lock() {
            connection.send(frame);
        }
    }

    /// A process serves: sends it the requests that have not ended and the calls that have no answer.
    pub(super) fn connect(&self, connection: &Arc<Connection>, pid: u32) {
        let (requests, calls) = (self.requests.lock(), self.calls.lock());
        self.isolation.lock().pid = Some(pid);
        for request in requests.unfinished() {
            if request.is_cancelled() {
                request.end(None);
                self.notify(request.id);
            } else {
                connection.send(request.frame());
                if request.ends_reasoning() {
                    connection.send(Frame::new(FrameKind::EndReasoning, request.id, Vec::new()));
                }
            }
        }
        for (number, call) in &*calls {
            connection.send(call.frame(*number));
        }
        // From now on, new ones are sent by their callers.
        *self.connection.lock() = Some(Arc::clone(connection));
    }

    /// No process serves.
    pub(super) fn disconnect(&self) {
        *self.connection.lock() = None;
        *self.starting.lock() = None;
        self.isolation.lock().pid = None;
    }

    /// A process died while it served. Ends the requests and calls that seem to be the cause.
    pub(super) fn process_died(&self, event: &Value, max_deaths: u32) {
        let cause = event.get("cause").and_then(Value::as_str).unwrap_or_default();
        let error = Error::model(format!("the engine's process died again and again while this ran: {cause}"));
        for request in self.requests.lock().unfinished() {
            if !request.process_died(event) {
                request.end(Some(&error));
            }
            self.notify(request.id);
        }
        let mut calls = self.calls.lock();
        calls.values_mut().for_each(|call| call.n_deaths += 1);
        let hopeless: Vec<u64> =
            calls.iter().filter(|(_, call)| call.n_deaths >= max_deaths).map(|(number, _)| *number).collect();
        hopeless.iter().filter_map(|number| calls.remove(number)).for_each(|call| call.fail(&error));
    }

    /// Fails if no process runs, and none will.
    pub(super) fn check(&self) -> Result<()> {
        if self.is_stopping.load(Ordering::Acquire) {
            return Err(stopped());
        }
        self.failure.lock().clone().map_or(Ok(()), Err)
    }

    /// Calls a function in the process. `None`: there is no answer in this time, or the engine stops.
    pub(super) fn call(&self, function: &str, argument: &[u8], patience: Option<Duration>) -> Result<Option<Value>> {
        self.check()?;
        let number = self.next_call.fetch_add(1, Ordering::Relaxed);
        let (reply, answer) = crossbeam_channel::bounded(1);
        let call = PendingCall { frame: argument.to_vec(), function: function.to_owned(), reply, n_deaths: 0 };
        {
            let mut calls = self.calls.lock();
            let frame = call.frame(number);
            calls.insert(number, call);
            self.send(frame);
        }
        // The supervisor may have given up before the call was in the list.
        if let Err(error) = self.check() {
            self.calls.lock().remove(&number);
            return Err(error);
        }
        let answer = match patience {
            Some(patience) => answer.recv_timeout(patience).ok(),
            None => answer.recv().ok(),
        };
        self.calls.lock().remove(&number);
        Ok(answer)
    }

    /// Handles an answer.
    pub(super) fn answered(&self, number: u64, answer: Value) {
        if number >= FIRST_CALL {
            if let Some(call) = self.calls.lock().remove(&number) {
                let _ = call.reply.send(answer);
            }
            return;
        }
        let request = self.requests.lock().records.get(&number).cloned();
        if let Some(request) = request {
            request.answer(answer);
        }
    }

    /// Handles updates.
    pub(super) fn updated(&self, id: u64, mut update: Value) {
        let request = self.requests.lock().records.get(&id).cloned();
        if request.is_some_and(|request| request.update(&mut update)) {
            self.notify(id);
        }
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
        for request in self.requests.lock().unfinished() {
            request.end(error);
            self.notify(request.id);
        }
        let calls = std::mem::take(&mut *self.calls.lock());
        if let Some(error) = error {
            for call in calls.into_values() {
                let _ = call.reply.send(error_json(error));
            }
        }
    }
}

impl PendingCall {
    pub(super) fn frame(&self, number: u64) -> Frame {
        Frame::call(number, &self.function, &self.frame)
    }

    /// Answers it with an error.
    pub(super) fn fail(self, error: &Error) {
        let _ = self.reply.send(error_json(error));
    }
}

impl RemoteRequests {
    pub(super) fn add(&mut self, request: Arc<RemoteRequest>) {
        self.records.insert(request.id, request);
        let mut ended: Vec<_> =
            self.records.values().filter_map(|request| Some((request.finished()?, request.id))).collect();
        let surplus = ended.len().saturating_sub(MAX_UNPOLLED);
        ended.sort_unstable();
        for (_, id) in ended.iter().take(surplus) {
            self.records.remove(id);
        }
    }

    /// The process has accepted a request that is polled. It becomes its endpoint's newest one.
    pub(super) fn accepted(&mut self, request: &RemoteRequest) {
        if let Some(newest) = request.endpoint.old_index().and_then(|index| self.newest.get_mut(index)) {
            *newest = (*newest).max(Some(request.id));
        }
    }

    pub(super) fn remove(&mut self, id: u64) {
        self.records.remove(&id);
    }

    pub(super) fn end(&mut self, id: u64) {
        if self.records.remove(&id).is_some() {
            self.ended.push_back(id);
        }
        while self.ended.len() > MAX_ENDED {
            self.ended.pop_front();
        }
    }

    /// In the order of their ids.
    pub(super) fn unfinished(&self) -> Vec<Arc<RemoteRequest>> {
        self.records.values().filter(|request| request.finished().is_none()).cloned().collect()
    }
}

impl IsolationStatus {
    pub(super) fn to_json(&self) -> Value {
        json!({
            "state": if self.pid.is_some() { "running" } else { "starting" },
            "pid": self.pid,
            "n_restarts": self.n_restarts,
            "deaths": self.deaths,
        })
    }
}

pub(super) fn stopped() -> Error {
    Error::new(Code::Cancelled, "the engine was stopped by an init or deinit")
}

/// Calls the host's callbacks.
pub(super) fn tell_host(notices: &Receiver<HostNotice>, notify: &engine::Notify) {
    while let Ok(notice) = notices.recv() {
        match notice {
            HostNotice::Update(id) => notify(id),
            HostNotice::Log(level, text) => log::write(level, &text),
        }
    }
}
