//! The supervisor of an engine's process: starts it, reads what it sends, and starts another one when it dies.

use std::fs::File;
use std::io::{BufRead as _, BufReader, ErrorKind, Read};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use serde_json::{Value, json};

use super::connection::{Connection, write_all};
use super::events::breach;
use super::launch::{self, EngineProcess};
use super::protocol::{FIRST_CALL, Frame, FrameKind, FrameSender};
use super::remote_request::stopped;
use super::settings::IsolationSettings;
use super::shared::RemoteShared;
use crate::api::prompts::ServedModel;
use crate::error::{Code, Error, Result};
use crate::llama::log::{self, Level};
use crate::llama::process;

/// The number of the call that loads.
const LOAD: u64 = FIRST_CALL - 1;
/// After this many starts in a row that did not lead to a process that serves, the supervisor gives up.
const MAX_FAILURES: u32 = 5;
/// The pause between two starts in a row, at first. It doubles.
const PAUSE: Duration = Duration::from_millis(50);
/// How long a process may take to end after its connection was closed.
const END_PATIENCE: Duration = Duration::from_secs(1);
/// The number of deaths that the status shows.
const MAX_SHOWN_DEATHS: usize = 16;

/// The events that the load gets from the supervisor.
pub(super) enum SupervisorEvent {
    Progress(f32),
    Loaded(Result<()>),
}

pub(super) struct Supervisor {
    shared: Arc<RemoteShared>,
    settings: IsolationSettings,
    /// The file of the gate at which the process's threads sleep.
    pauses: File,
    events: Sender<SupervisorEvent>,
    /// A process has loaded the models.
    has_served: bool,
}

/// Why a process does not serve.
enum ProcessFailure {
    /// It cannot be started.
    Start(Error),
    /// It cannot load the models; [`Code::Internal`]: it died.
    Load(Error),
}

/// How a process ended.
struct Death {
    cause: String,
    /// Lack of memory seems to be the cause.
    lacked_memory: bool,
    /// It had loaded its models.
    has_served: bool,
}

impl Supervisor {
    pub(super) fn new(
        shared: Arc<RemoteShared>,
        settings: IsolationSettings,
        pauses: File,
        events: Sender<SupervisorEvent>,
    ) -> Supervisor {
        Supervisor { shared, settings, pauses, events, has_served: false }
    }

    /// Runs until the engine is unloaded, or no process can be started. The kernel ends the process with this thread.
    pub(super) fn run(mut self) {
        // Starts in a row that did not lead to a process that serves.
        let mut n_failures = 0;
        while !self.is_stopping() {
            let ended = self.run_process();
            if self.is_stopping() {
                break;
            }
            let (error, lacked_memory) = match ended {
                Ok(death) => {
                    n_failures = if death.has_served { 0 } else { n_failures };
                    (Error::model(format!("the engine's process died: {}", death.cause)), death.lacked_memory)
                }
                // Less memory for the models starts no process.
                Err(ProcessFailure::Start(error)) => (error, false),
                Err(ProcessFailure::Load(error)) => {
                    let lacked_memory = error.code() == Code::ResourceExhausted || lacks_memory(error.message());
                    (error, lacked_memory)
                }
            };
            let change = match lacked_memory {
                true => self.ask_for_less(),
                false => self.settings.leave_out_server(error.message()),
            };
            n_failures += 1;
            let is_hopeless = !self.has_served || n_failures > MAX_FAILURES || error.code() == Code::NotFound;
            if is_hopeless && change.is_none() {
                return self.give_up(error);
            }
            self.notify(&error, change);
            if n_failures > 1 {
                std::thread::sleep(PAUSE * 2_u32.pow(n_failures.min(6)));
            }
        }
        self.shared.end_all(None);
        let _ = self.events.send(SupervisorEvent::Loaded(Err(stopped())));
    }

    fn is_stopping(&self) -> bool {
        self.shared.is_stopping.load(Ordering::Acquire)
    }

    fn give_up(&self, error: Error) {
        log::write(Level::Error, &format!("isolate: the engine's process is not started again: {}", error.message()));
        *self.shared.failure.lock() = Some(error.clone());
        self.shared.end_all(Some(&error));
        let _ = self.events.send(SupervisorEvent::Loaded(Err(error)));
    }

    /// Starts a process, loads the models there, and serves until it dies.
    ///
    /// # Errors
    /// It cannot be started, or the load failed and would fail again.
    fn run_process(&mut self) -> Result<Death, ProcessFailure> {
        let EngineProcess { mut child, stream } =
            launch::start(&self.settings, &self.pauses).map_err(ProcessFailure::Start)?;
        let lost = |error| ProcessFailure::Start(Error::exhausted(format!("isolate: {error}")));
        let mut reader = BufReader::new(stream.try_clone().map_err(lost)?);
        let writer = stream.try_clone().map(FrameSender::new).map_err(lost)?;
        let (frames, outgoing) = crossbeam_channel::unbounded();
        let connection = Arc::new(Connection::new(frames, stream));
        let lacked_memory = Arc::new(AtomicBool::new(false));
        let (mut is_given_up, mut breach) = (false, None);
        let result = std::thread::scope(|scope| {
            let started = std::thread::Builder::new().spawn_scoped(scope, || write_all(&writer, &outgoing));
            let stderr = child.stderr.take();
            let heard = Arc::clone(&lacked_memory);
            let shared = Arc::clone(&self.shared);
            let listening = std::thread::Builder::new()
                .spawn_scoped(scope, move || stderr.into_iter().for_each(|stderr| listen(stderr, &shared, &heard)));
            let result = match started.and(listening) {
                Ok(_) => {
                    *self.shared.starting.lock() = Some(Arc::clone(&connection));
                    self.shared.wake_watch();
                    // An unload that came earlier did not see the connection.
                    if self.is_stopping() {
                        connection.close();
                    }
                    let loaded = self.load(&connection, &mut reader);
                    if loaded.is_ok() {
                        breach = self.serve(&connection, &mut reader, child.id()).err();
                    }
                    loaded.map_err(ProcessFailure::Load)
                }
                Err(error) => {
                    let error = Error::exhausted(format!("isolate: cannot start a thread: {error}"));
                    Err(ProcessFailure::Start(error))
                }
            };
            self.shared.disconnect();
            connection.close();
            is_given_up = connection.is_given_up();
            // The writer ends with the channel, the listener with the process.
            drop(connection);
            let status = reap(&mut child, if is_given_up || breach.is_some() { Duration::ZERO } else { END_PATIENCE });
            result.map(|()| status)
        });
        let lacked_memory = lacked_memory.load(Ordering::Acquire);
        match result {
            Ok(status) => {
                let death = match breach {
                    Some(breach) => Death::by_host(breach.message()),
                    None if is_given_up => Death::by_host("it did not answer"),
                    None => Death::new(status, lacked_memory),
                };
                if !self.is_stopping() {
                    self.shared.process_died(&death.cause);
                }
                Ok(death)
            }
            // The process died while it loaded.
            Err(ProcessFailure::Load(error)) if error.code() == Code::Internal && !self.is_stopping() => {
                Ok(Death { cause: error.message().to_owned(), lacked_memory, has_served: false })
            }
            Err(failure) => Err(failure),
        }
    }

    /// Waits for the process and its load.
    ///
    /// # Errors
    /// The load failed; [`Code::Internal`]: the process died.
    fn load(&self, connection: &Arc<Connection>, reader: &mut impl Read) -> Result<()> {
        let died = || match connection.is_given_up() {
            true if !connection.has_greeted() => {
                Error::new(Code::ModelError, "isolate: the program does not answer as foredraft-engine does")
            }
            true => Error::new(Code::Internal, "it did not answer while it loaded the model"),
            false => Error::new(Code::Internal, "it died while it loaded the model"),
        };
        match Frame::read(reader) {
            Ok(Some(Frame { kind: FrameKind::Hello, text, .. })) if text == env!("CARGO_PKG_VERSION").as_bytes() => {
                connection.greeted();
                connection.heard();
            }
            Ok(Some(frame)) => {
                let theirs = String::from_utf8_lossy(&frame.text).into_owned();
                let ours = env!("CARGO_PKG_VERSION");
                return Err(Error::new(
                    Code::NotFound,
                    format!("isolate: the program is of version {theirs}, not {ours}"),
                ));
            }
            _ => return Err(died()),
        }
        let command = json!({"command": self.settings.load, "warnings": self.settings.warnings}).to_string();
        connection.send(Frame::call(LOAD, "load", &command.into_bytes().into()));
        loop {
            let Ok(Some(frame)) = Frame::read(reader) else { return Err(died()) };
            connection.heard();
            match frame.kind {
                FrameKind::Answer if frame.number == LOAD => {
                    let answer: Value = serde_json::from_slice(&frame.text).unwrap_or_default();
                    return loaded(answer, &self.shared);
                }
                FrameKind::Progress => {
                    let thousandths: f32 = String::from_utf8_lossy(&frame.text).parse().unwrap_or(0.0);
                    let _ = self.events.send(SupervisorEvent::Progress(thousandths / 1e3));
                }
                _ => self.handle(connection, frame).map_err(|breach| breach.with_code(Code::Internal))?,
            }
        }
    }

    /// Sends what is unfinished, and reads until the process dies.
    ///
    /// # Errors
    /// The process sent what no engine sends.
    pub(super) fn serve(&mut self, connection: &Arc<Connection>, reader: &mut impl Read, pid: u32) -> Result<()> {
        self.shared.connect(connection, pid);
        if !std::mem::replace(&mut self.has_served, true) {
            let _ = self.events.send(SupervisorEvent::Loaded(Ok(())));
        }
        loop {
            match Frame::read(reader) {
                Ok(Some(frame)) => {
                    connection.heard();
                    self.handle(connection, frame)?;
                }
                Err(error) if error.kind() == ErrorKind::InvalidData => return Err(breach(&error.to_string())),
                Ok(None) | Err(_) => return Ok(()),
            }
        }
    }

    /// Takes a frame.
    ///
    /// # Errors
    /// It is none that an engine sends.
    fn handle(&self, connection: &Arc<Connection>, frame: Frame) -> Result<()> {
        let object = || -> Result<Value> {
            let object = serde_json::from_slice(&frame.text).ok().filter(Value::is_object);
            object.ok_or_else(|| breach("an answer that is no JSON object"))
        };
        match frame.kind {
            FrameKind::Answer => self.shared.answered(frame.number, object()?),
            FrameKind::Event => self.shared.event(frame.number, &frame.text)?,
            FrameKind::Logits => self.shared.logits(connection, &frame)?,
            FrameKind::Model => {
                let model = ServedModel::read(&frame).ok_or_else(|| breach("a vocabulary that is cut"))?;
                let index = usize::try_from(frame.number).unwrap_or(usize::MAX);
                let mut models = self.shared.models.lock();
                *models.get_mut(index).ok_or_else(|| breach("more than two models"))? = Some(model);
            }
            FrameKind::Log => {
                let levels = [Level::Debug, Level::Info, Level::Warn, Level::Error];
                let level = levels.into_iter().find(|level| *level as u64 == frame.number).unwrap_or(Level::Info);
                self.shared.log(level, &String::from_utf8_lossy(&frame.text));
            }
            FrameKind::Pong | FrameKind::Progress => {}
            _ => return Err(breach("a frame that only a host sends")),
        }
        Ok(())
    }

    /// Asks for less memory, if `fallback` allows it. Returns what has changed.
    fn ask_for_less(&mut self) -> Option<String> {
        const DEFAULT_N_CTX: u64 = 4096;
        let status = self.shared.last_status.lock();
        let given = self.settings.load.get("n_ctx").and_then(Value::as_u64).filter(|n_ctx| *n_ctx > 0);
        // `fit` can have chosen less than what was given.
        let used = status.get("n_ctx").and_then(Value::as_u64).filter(|n_ctx| *n_ctx > 0);
        let n_ctx = given.into_iter().chain(used).min().unwrap_or(DEFAULT_N_CTX);
        let layers = used_layers(&status);
        drop(status);
        self.settings.ask_for_less(n_ctx, layers)
    }

    /// Reports in the log and in the status that the process is started again.
    fn notify(&self, error: &Error, change: Option<String>) {
        let with = change.as_ref().map_or(String::new(), |change| format!("; {change}"));
        self.shared.log(Level::Error, &format!("isolate: {}; it is started again{with}", error.message()));
        let mut isolation = self.shared.isolation.lock();
        isolation.n_restarts += 1;
        isolation.deaths.push_back(json!({"cause": error.message(), "change": change}));
        if isolation.deaths.len() > MAX_SHOWN_DEATHS {
            isolation.deaths.pop_front();
        }
    }
}

impl Death {
    /// The host has ended it.
    fn by_host(cause: &str) -> Death {
        Death { cause: cause.to_owned(), lacked_memory: false, has_served: true }
    }

    fn new(status: Option<ExitStatus>, lacked_memory: bool) -> Death {
        const KILLED: i32 = 9;
        let signal = status.and_then(|status| status.signal());
        let cause = match (signal, status) {
            (Some(signal), _) => signal_name(signal),
            (None, Some(status)) => status.to_string(),
            (None, None) => "unknown".to_owned(),
        };
        // The kernel ends processes by SIGKILL when the machine has no more memory.
        Death { cause, lacked_memory: lacked_memory || signal == Some(KILLED), has_served: true }
    }
}

fn signal_name(signal: i32) -> String {
    let names =
        [(4, "SIGILL"), (6, "SIGABRT"), (7, "SIGBUS"), (8, "SIGFPE"), (9, "SIGKILL"), (11, "SIGSEGV"), (15, "SIGTERM")];
    let name = names.iter().find(|(number, _)| *number == signal).map(|(_, name)| (*name).to_owned());
    name.unwrap_or_else(|| format!("signal {signal}"))
}

/// The result of a load.
fn loaded(answer: Value, shared: &RemoteShared) -> Result<()> {
    if answer.get("success") == Some(&Value::Bool(true)) {
        if shared.models.lock().iter().all(Option::is_none) {
            return Err(breach("a load without a model").with_code(Code::Internal));
        }
        *shared.last_status.lock() = answer;
        return Ok(());
    }
    let text = |key: &str| answer.get(key).and_then(Value::as_str).unwrap_or_default();
    let code = Code::named(text("code")).unwrap_or(Code::ModelError);
    // Internal means here that the process died.
    Err(Error::new(if code == Code::Internal { Code::ModelError } else { code }, text("error")))
}

/// The layers of the target on devices other than the CPU, with the output as one. `None`: no load has succeeded yet.
fn used_layers(status: &Value) -> Option<i64> {
    let devices = status.get("devices").and_then(Value::as_array)?;
    let gpus =
        devices.iter().filter(|device| device.get("type").and_then(Value::as_str).is_some_and(|kind| kind != "cpu"));
    let layers = gpus.filter_map(|device| device.get("target")).map(|target| {
        let has_output = target.get("output").and_then(Value::as_bool).unwrap_or(false);
        target.get("n_layers").and_then(Value::as_i64).unwrap_or(0) + i64::from(has_output)
    });
    Some(layers.sum())
}

/// Whether a message of llama.cpp, Rust or this library is about memory.
fn lacks_memory(message: &str) -> bool {
    const SIGNS: [&str; 7] = [
        "bad_alloc",
        "memory allocation",
        "out of memory",
        "failed to allocate",
        "unable to allocate",
        "cannot create a context",
        "MiB of memory",
    ];
    SIGNS.iter().any(|sign| message.contains(sign))
}

/// Logs what the process writes to stderr: llama.cpp's last words.
fn listen(stderr: impl Read, shared: &RemoteShared, lacked_memory: &AtomicBool) {
    for line in BufReader::new(stderr).split(b'\n').map_while(std::io::Result::ok) {
        let line = String::from_utf8_lossy(&line);
        if lacks_memory(&line) {
            lacked_memory.store(true, Ordering::Release);
        }
        shared.log(Level::Error, &line);
    }
}

/// Waits for the end of a process whose connection is closed, and ends it if it has not ended in this time.
fn reap(child: &mut Child, patience: Duration) -> Option<ExitStatus> {
    let begun = Instant::now();
    while begun.elapsed() < patience {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) => std::thread::sleep(Duration::from_millis(1)),
            Err(_) => return None,
        }
    }
    // Ends what a script at `isolate_path` has started, too, which would keep stderr open.
    process::kill_group(child.id());
    child.wait().ok()
}
