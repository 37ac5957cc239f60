//! The engine's process: an ordinary [`JsonEngine`] that is called through a connection.
//!
//! The thread that reads the connection does nothing that can wait, so a process that lives answers pings, and a call never waits for
//! another one. Calls run on threads of their own. One more thread, the pusher, sends the events of requests, so the host's process can
//! answer polls by itself.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::api::isolation::{
    Frame, FrameKind, FrameSender, LogitsRow, MessageParts, RequestEvent, RequestHead, floats,
};
use crate::api::life_cycle::LoadCommand;
use crate::api::loaded::local_engine::LoadedEngine as _;
use crate::api::loaded::registry::{AcceptedRequest, RequestRecord};
use crate::api::prompts::PreparedPrompt;
use crate::api::prompts::chat_format::MessageStream;
use crate::api::{Function, JsonEngine, error_json};
use crate::engine::{Event, Phase};
use crate::error::{Code, Error, Result};
use crate::llama::log::{self, Level};
use crate::llama::{self, CpuSet, PauseGate, Token, process};

/// How often a load's progress is reported.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(50);
/// How long `stop` waits for requests to end.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long a request waits for the one before it to be queued.
const ORDER_PATIENCE: Duration = Duration::from_millis(100);
/// How often a thread that waits for the host's logits callback looks whether its request was cancelled.
const CANCEL_INTERVAL: Duration = Duration::from_millis(20);

/// The requests whose ends the host does not know yet.
#[derive(Default)]
struct KnownRequests {
    /// The number of a request in the host's process, by its id here.
    numbers: HashMap<u64, u64>,
    /// The requests by their numbers.
    requests: BTreeMap<u64, KnownRequest>,
}

enum KnownRequest {
    /// It is not queued yet: its messages are rendered, for example.
    Preparing {
        is_cancelled: bool,
        ends_reasoning: bool,
        /// Dropped when the request is queued or refused.
        _unqueued: Sender<()>,
    },
    Queued {
        record: Arc<RequestRecord>,
        /// The host has its prompts.
        has_prompts: bool,
    },
}

/// The argument of a load.
#[derive(Deserialize)]
struct LoadArgument {
    command: Map<String, Value>,
    warnings: Vec<String>,
}

struct EngineChild {
    engine: JsonEngine,
    sender: FrameSender,
    /// A link to the host's working folder.
    host_folder: PathBuf,
    known: Mutex<KnownRequests>,
    /// The ids of requests that have an update, for the pusher.
    updates: Sender<u64>,
    /// Rows that the host's logits callback has changed, with their numbers.
    changed_rows: Sender<(u64, Vec<u8>)>,
    /// Requests in their order, each with a channel that is closed when the request is queued.
    ordered: Sender<(Frame, Receiver<()>)>,
}

/// Runs the engine's process: serves the host on stdin until that is closed. `arguments`: the limits, and the host's process id.
pub fn serve(arguments: &[String]) -> ! {
    process::close_inherited_files();
    process::restore_crash_signals();
    process::survive_file_limit();
    process::unblock_signals();
    // Its host starts another one.
    llama::end_process_on_loss();
    let host = arguments.last().and_then(|id| id.parse().ok()).unwrap_or(0);
    if !process::end_with_parent(host) {
        process::end_now(1);
    }
    let Ok(stream) = std::io::stdin().as_fd().try_clone_to_owned().map(UnixStream::from) else { process::end_now(1) };
    let Ok(sender) = stream.try_clone().map(FrameSender::new) else { process::end_now(1) };
    // A program that was started by hand has none there.
    let pauses = process::take_stdout().and_then(|file| PauseGate::of_file(&file)).unwrap_or_default();
    let host_folder = PathBuf::from(format!("/proc/{host}/cwd"));
    let (updates, pushed) = crossbeam_channel::unbounded();
    let (changed_rows, incoming_rows) = crossbeam_channel::unbounded();
    let (ordered, requests) = crossbeam_channel::unbounded();
    let child = Arc::new(EngineChild {
        engine: JsonEngine::of_other_process(Arc::new(pauses)),
        sender,
        host_folder,
        known: Mutex::default(),
        updates: updates.clone(),
        changed_rows,
        ordered,
    });
    let logger = Arc::clone(&child);
    log::set_sink(Some(Box::new(move |level, text| {
        // The host has gone if it fails, and so will this process.
        let _ = logger.sender.send(&Frame::new(FrameKind::Log, level as u64, text));
    })));
    for failure in apply_limits(arguments) {
        log::write(Level::Warn, &failure);
    }
    child.engine.set_update_hook(Some(Box::new(move |id| _ = updates.send(id))));
    let (asker, n_rows) = (Arc::clone(&child), AtomicU64::new(0));
    child.engine.set_logits_hook(Some(Box::new(move |request, logits, tokens| {
        let number = n_rows.fetch_add(1, Ordering::Relaxed);
        asker.change_row(number, request, logits, tokens, &incoming_rows)
    })));
    let (pusher, beginner) = (Arc::clone(&child), Arc::clone(&child));
    let thread = |name: &str| std::thread::Builder::new().name(name.into());
    let pushing = thread("foredraft-push").spawn(move || pusher.push(&pushed));
    let beginning = thread("foredraft-begin").spawn(move || beginner.begin_in_order(&requests));
    if pushing.and(beginning).is_err() {
        process::end_now(1);
    }
    let _ = child.sender.send(&Frame::new(FrameKind::Hello, 0, env!("CARGO_PKG_VERSION")));
    child.read(stream);
    process::end_now(0)
}

/// Applies the limits, and returns what the system refuses.
fn apply_limits(arguments: &[String]) -> Vec<String> {
    let value = |name: &str| arguments.iter().find_map(|argument| argument.strip_prefix(name)?.strip_prefix('='));
    let number = |name: &str| value(name).and_then(|value| value.parse::<i64>().ok());
    let limits = [
        ("memory_mb", number("--memory-mb").map(|mb| process::limit_memory(mb.unsigned_abs() << 20))),
        ("isolate_cpus", value("--cpus").and_then(CpuSet::from_range).map(|cpus| process::set_cpus(cpus.iter()))),
        ("isolate_nice", number("--nice").map(|nice| process::set_nice(i32::try_from(nice).unwrap_or(0)))),
    ];
    let failures = limits.into_iter().filter_map(|(name, result)| Some((name, result?.err()?)));
    failures.map(|(name, error)| format!("{name}: the system refuses it: {error}")).collect()
}

impl EngineChild {
    fn read(self: &Arc<Self>, mut stream: UnixStream) {
        while let Ok(Some(frame)) = Frame::read(&mut stream) {
            match frame.kind {
                FrameKind::Call => self.start(frame),
                FrameKind::Request => self.request(frame),
                FrameKind::Cancel => self.cancel(frame.number),
                FrameKind::ChangedLogits => _ = self.changed_rows.send((frame.number, frame.text)),
                FrameKind::EndReasoning => self.end_reasoning(frame.number),
                FrameKind::Ping => _ = self.sender.send(&Frame::new(FrameKind::Pong, 0, "")),
                _ => {}
            }
        }
    }

    /// Lets the host's callback change a row, on the engine's thread. A cancel of the request ends the wait.
    fn change_row(
        &self,
        number: u64,
        request: u64,
        logits: &mut [f32],
        tokens: &[Token],
        changed: &Receiver<(u64, Vec<u8>)>,
    ) -> Result<()> {
        let gone = |_| Error::new(Code::Cancelled, "the host has gone");
        self.sender.send(&LogitsRow::frame(number, request, tokens, logits)).map_err(gone)?;
        loop {
            match changed.recv_timeout(CANCEL_INTERVAL) {
                Ok((answered, row)) if answered == number => {
                    let row = floats(&row);
                    if row.len() != logits.len() {
                        return Err(Error::invalid("logits_callback: the host has removed it, or it failed"));
                    }
                    logits.iter_mut().zip(row).for_each(|(logit, changed)| *logit = changed);
                    return Ok(());
                }
                // The answer to a row that was given up.
                Ok(_) => {}
                Err(_) if self.known.lock().is_cancelled(request) => {
                    return Err(Error::new(Code::Cancelled, "the request was cancelled"));
                }
                Err(_) => {}
            }
        }
    }

    /// Takes a completion request.
    fn request(&self, frame: Frame) {
        let (unqueued, queued) = crossbeam_channel::bounded(0);
        // Here, so that a cancel which comes later finds it.
        self.known.lock().prepare(frame.number, unqueued);
        let _ = self.ordered.send((frame, queued));
    }

    /// Runs a call on a thread of its own.
    fn start(self: &Arc<Self>, frame: Frame) {
        let (this, number) = (Arc::clone(self), frame.number);
        let thread = std::thread::Builder::new().name("foredraft-call".into());
        if let Err(error) = thread.spawn(move || this.run(&frame)) {
            let error = Error::exhausted(format!("cannot start a thread: {error}"));
            if self.known.lock().remove(number) {
                self.event(number, &RequestEvent::Refused(error.clone()));
            }
            self.answer(number, Err(error));
        }
    }

    /// Begins requests in the order in which the host has sent them. One that takes long to prepare loses its place.
    fn begin_in_order(self: &Arc<Self>, frames: &Receiver<(Frame, Receiver<()>)>) {
        while let Ok((frame, queued)) = frames.recv() {
            self.start(frame);
            let _ = queued.recv_timeout(ORDER_PATIENCE);
        }
    }

    fn run(&self, frame: &Frame) {
        // Relative paths are the host's. (Those of a load are relative to the folder in which the program was started.) A host whose
        // folder is not to be seen, such as one that has another user now, keeps the former one.
        let enter = || _ = std::env::set_current_dir(&self.host_folder);
        let number = frame.number;
        if frame.kind == FrameKind::Request {
            enter();
            return self.run_request(frame);
        }
        let Some((name, argument)) = frame.as_call() else { return };
        let answer = match (Function::named(name), name) {
            (Some(function), _) => {
                enter();
                self.engine.call(function, Ok(argument))
            }
            (None, "load") => self.load(number, argument),
            (None, "status") => Ok(self.status()),
            (None, "stop") => {
                self.stop();
                Ok(json!({"success": true}))
            }
            (None, _) => Err(Error::invalid(format!("there is no function {name}"))),
        };
        self.answer(number, answer);
    }

    fn run_request(&self, frame: &Frame) {
        let number = frame.number;
        let begun = match frame.as_request() {
            Some((RequestHead { is_awaited, arguments }, text)) => {
                self.engine.with_loaded(|loaded| loaded.enqueue(text, arguments, is_awaited, &|_| ()))
            }
            None => Err(Error::invalid("a request without its head")),
        };
        match begun {
            Ok(record) => {
                let settings = (0..record.completions.len()).map(|index| record.settings(index)).collect();
                let accepted = AcceptedRequest { settings, warnings: record.warnings() };
                self.event(number, &RequestEvent::Accepted(accepted));
                self.queued(number, record);
            }
            Err(error) => {
                self.known.lock().remove(number);
                self.event(number, &RequestEvent::Refused(error));
                self.answer(number, Ok(json!({})));
            }
        }
    }

    fn event(&self, number: u64, event: &RequestEvent) {
        let _ = self.sender.send(&Frame::new(FrameKind::Event, number, serde_json::to_vec(event).unwrap_or_default()));
    }

    /// A request is queued. Its events are sent from now on.
    fn queued(&self, number: u64, record: Arc<RequestRecord>) {
        let id = record.handle.id();
        let before = self.known.lock().queue(number, record);
        // The pusher has skipped its earlier events.
        let _ = self.updates.send(id);
        if let Some(KnownRequest::Preparing { is_cancelled, ends_reasoning, .. }) = before {
            if ends_reasoning {
                self.end_reasoning(number);
            }
            if is_cancelled {
                self.cancel(number);
            }
        }
    }

    fn answer(&self, number: u64, answer: Result<Value>) {
        let answer = answer.unwrap_or_else(|error| error_json(&error));
        let _ = self.sender.send(&Frame::new(FrameKind::Answer, number, answer.to_string()));
    }

    /// Loads, and reports the progress.
    fn load(&self, number: u64, argument: &[u8]) -> Result<Value> {
        let LoadArgument { command, warnings } =
            serde_json::from_slice(argument).map_err(|error| Error::invalid(format!("load: {error}")))?;
        let command = LoadCommand::isolated(Value::Object(command).to_string().as_bytes(), warnings);
        let (done, wait): (Sender<()>, Receiver<()>) = crossbeam_channel::bounded(0);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                while wait.recv_timeout(PROGRESS_INTERVAL) == Err(crossbeam_channel::RecvTimeoutError::Timeout) {
                    let progress = self.engine.status().get("progress").and_then(Value::as_f64).unwrap_or(0.0);
                    let thousandths = (progress * 1e3).clamp(0.0, 1e3) as u64;
                    let _ = self.sender.send(&Frame::new(FrameKind::Progress, number, thousandths.to_string()));
                }
            });
            let result = self.engine.run_load(command).and_then(|()| self.send_models());
            drop(done);
            result.map(|()| self.status())
        })
    }

    /// Sends what the host needs to know of the models.
    fn send_models(&self) -> Result<()> {
        self.engine.with_loaded(|loaded| {
            let models = [Some(loaded.target()), loaded.draft_only().ok()];
            for (number, model) in (0..).zip(models).filter_map(|(number, model)| Some((number, model?))) {
                let _ = self.sender.send(&model.served().frame(number));
            }
            Ok(())
        })
    }

    /// The status, with the requests' numbers in the host's process.
    fn status(&self) -> Value {
        let mut status = self.engine.status();
        let known = self.known.lock();
        let number = |id: &Value| id.as_u64().and_then(|id| known.numbers.get(&id)).map(|number| json!(number));
        let slots = status.get_mut("slots").and_then(Value::as_array_mut);
        for id in slots.into_iter().flatten().filter_map(|slot| slot.get_mut("request_id")) {
            *id = number(id).unwrap_or_default();
        }
        if let Some(order) = status.get_mut("queue_order").and_then(Value::as_array_mut) {
            *order = order.iter().filter_map(number).collect();
        }
        status
    }

    fn end_reasoning(&self, number: u64) {
        let record = match self.known.lock().requests.get_mut(&number) {
            Some(KnownRequest::Queued { record, .. }) => Arc::clone(record),
            Some(KnownRequest::Preparing { ends_reasoning, .. }) => return *ends_reasoning = true,
            None => return,
        };
        let _ = self.engine.with_loaded(|loaded| loaded.end_reasoning(&record));
    }

    fn cancel(&self, number: u64) {
        let record = match self.known.lock().requests.get_mut(&number) {
            Some(KnownRequest::Queued { record, .. }) => Arc::clone(record),
            Some(KnownRequest::Preparing { is_cancelled, .. }) => return *is_cancelled = true,
            None => return,
        };
        let _ = self.engine.with_loaded(|loaded| loaded.cancel(&record));
    }

    /// Cancels all requests, and waits until the host knows of their ends.
    fn stop(&self) {
        let begun = Instant::now();
        let numbers: Vec<u64> = self.known.lock().requests.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.cancel(number));
        while begun.elapsed() < PATIENCE && !self.known.lock().requests.is_empty() {
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Sends the events of each request that has some.
    fn push(&self, updates: &Receiver<u64>) {
        while let Ok(id) = updates.recv() {
            let mut ids: Vec<u64> = std::iter::once(id).chain(updates.try_iter()).collect();
            ids.sort_unstable();
            ids.dedup();
            for id in ids {
                // A request may have ended with its last update.
                let known = self.known.lock().with_id(id);
                if let Some((number, record, has_prompts)) = known {
                    self.push_events(number, &record, has_prompts);
                }
            }
        }
    }

    fn push_events(&self, number: u64, record: &RequestRecord, has_prompts: bool) {
        let (events, phase) = record.handle.take(Duration::ZERO);
        let prompts = record.completions.iter().map(|completion| completion.prompt.get());
        if let (false, Some(prompts)) = (has_prompts, prompts.collect::<Option<Vec<_>>>()) {
            let sent = |prompt: &Arc<PreparedPrompt>| {
                let text = prompt.text.clone().filter(|_| record.shows_prompt());
                PreparedPrompt { text, ..PreparedPrompt::clone(prompt) }
            };
            let prompts = prompts.into_iter().map(sent);
            self.event(number, &RequestEvent::Prepared(prompts.collect()));
            self.known.lock().set_has_prompts(number);
        }
        for (index, event) in events {
            let message = record.messages.get(index);
            let message = message.map(|message| message_parts(&mut message.lock(), &event));
            self.event(number, &RequestEvent::Completion { index, event, message });
        }
        if phase == Phase::Finished {
            self.known.lock().remove(number);
            self.answer(number, Ok(json!({})));
        }
    }
}

/// The parts that an event adds to the message of its completion.
fn message_parts(message: &mut MessageStream, event: &Event) -> MessageParts {
    match event {
        Event::Update(update) => message.push(&update.text),
        Event::Finished(outcome) => {
            message.push(&outcome.text);
            message.end();
        }
        Event::Progress(_) | Event::Restarted { .. } => {}
    }
    MessageParts { delta: message.parts(), warnings: message.warnings().to_vec() }
}

impl KnownRequests {
    /// A request arrived.
    fn prepare(&mut self, number: u64, unqueued: Sender<()>) {
        let preparing = KnownRequest::Preparing { is_cancelled: false, ends_reasoning: false, _unqueued: unqueued };
        self.requests.insert(number, preparing);
    }

    /// A request is queued. Returns what was known of it before.
    fn queue(&mut self, number: u64, record: Arc<RequestRecord>) -> Option<KnownRequest> {
        self.numbers.insert(record.handle.id(), number);
        self.requests.insert(number, KnownRequest::Queued { record, has_prompts: false })
    }

    /// The request with this id here, with its number, and whether the host has its prompts.
    fn with_id(&self, id: u64) -> Option<(u64, Arc<RequestRecord>, bool)> {
        let number = *self.numbers.get(&id)?;
        match self.requests.get(&number)? {
            KnownRequest::Queued { record, has_prompts } => Some((number, Arc::clone(record), *has_prompts)),
            KnownRequest::Preparing { .. } => None,
        }
    }

    fn set_has_prompts(&mut self, number: u64) {
        if let Some(KnownRequest::Queued { has_prompts, .. }) = self.requests.get_mut(&number) {
            *has_prompts = true;
        }
    }

    /// Whether the host has cancelled a request, or knows of its end.
    fn is_cancelled(&self, number: u64) -> bool {
        match self.requests.get(&number) {
            Some(KnownRequest::Queued { record, .. }) => record.handle.is_cancelled(),
            Some(KnownRequest::Preparing { is_cancelled, .. }) => *is_cancelled,
            None => true,
        }
    }

    /// Removes a request. Returns whether it was there.
    fn remove(&mut self, number: u64) -> bool {
        let removed = self.requests.remove(&number);
        if let Some(KnownRequest::Queued { record, .. }) = &removed {
            self.numbers.remove(&record.handle.id());
        }
        removed.is_some()
    }
}
