//! The engine's process: an ordinary [`JsonEngine`] that is called through a connection.
//!
//! The thread that reads the connection executes what returns at once. Calls that wait have a thread each. One more thread, the pusher, polls
//! every request that has an update and sends its updates, so the host's process can answer polls by itself.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::api::calls::Taken;
use crate::api::isolation::{Frame, FrameKind, FrameSender};
use crate::api::registry::RequestRecord;
use crate::api::{Function, JsonEngine, LocalEngine, error_json};
use crate::error::{Error, Result};
use crate::llama::log::{self, Level};
use crate::llama::{self, CpuSet, process};

/// How often a load's progress is reported.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(50);
/// How long `stop` waits for requests to end.
const PATIENCE: Duration = Duration::from_secs(2);

/// The requests that the host has not heard the end of.
#[derive(Default)]
struct KnownEngine {
    /// The number of a request in the host's process, by its id here.
    numbers: HashMap<u64, u64>,
    records: BTreeMap<u64, Arc<RequestRecord>>,
    /// Of awaited requests: the number of tokens of each completion that the host has.
    n_sent: HashMap<u64, Vec<usize>>,
}

struct EngineChild {
    engine: JsonEngine,
    sender: FrameSender,
    /// A link to the host's working folder.
    host_folder: PathBuf,
    /// Locked while a request is submitted, so that the pusher finds each request that has an update.
    known: Mutex<KnownEngine>,
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
    let host_folder = PathBuf::from(format!("/proc/{host}/cwd"));
    let child = Arc::new(EngineChild { engine: JsonEngine::new(), sender, host_folder, known: Mutex::default() });
    let logger = Arc::clone(&child);
    log::set_sink(Some(Box::new(move |level, text| {
        // The host has gone if it fails, and so will this process.
        let _ = logger.sender.send(&Frame::new(FrameKind::Log, level as u64, text));
    })));
    for failure in apply_limits(arguments) {
        log::write(Level::Warn, &failure);
    }
    let (updates, pushed) = crossbeam_channel::unbounded();
    child.engine.set_update_hook(Some(Box::new(move |id| _ = updates.send(id))));
    let pusher = Arc::clone(&child);
    if std::thread::Builder::new().name("foredraft-push".into()).spawn(move || pusher.push(&pushed)).is_err() {
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
                FrameKind::Call => self.call(frame),
                FrameKind::Cancel => self.cancel(frame.number),
                FrameKind::EndReasoning => self.end_reasoning(frame.number),
                _ => {}
            }
        }
    }

    fn call(self: &Arc<Self>, frame: Frame) {
        let number = frame.number;
        let Some((name, argument)) = frame.as_call() else { return };
        let function = Function::named(name);
        if function.is_some() {
            // Relative paths are the host's. (Those of a load are relative to the folder in which the program was started.) A host whose
            // folder is not to be seen, such as one that has another user now, keeps the former one.
            let _ = std::env::set_current_dir(&self.host_folder);
        }
        match function {
            Some(Function::Submit(endpoint)) => {
                let mut known = self.known.lock();
                let answer = self.engine.with_loaded(|loaded| loaded.submit_record(endpoint, argument));
                let answer = answer.map(|(record, answer)| {
                    known.add(number, record);
                    answer
                });
                // Before an update of it.
                self.answer(number, answer);
            }
            // Its progress is asked for while it waits.
            _ => {
                let this = Arc::clone(self);
                let work = move || this.run(&frame);
                if let Err(error) = std::thread::Builder::new().spawn(work) {
                    self.answer(number, Err(Error::exhausted(format!("cannot start a thread: {error}"))));
                }
            }
        }
    }

    fn run(self: &Arc<Self>, frame: &Frame) {
        let Some((name, argument)) = frame.as_call() else { return };
        let answer = match (Function::named(name), name) {
            (Some(Function::Complete(endpoint)), _) => self.engine.with_loaded(|loaded| {
                let record = {
                    let mut known = self.known.lock();
                    let record = loaded.begin_awaited(endpoint, argument)?;
                    known.add(frame.number, Arc::clone(&record));
                    record
                };
                let answer = loaded.finish_awaited(&record);
                self.known.lock().remove(record.handle.id());
                answer
            }),
            (Some(function), _) => self.engine.call(function, Ok(argument)),
            (None, "init") => self.load(frame.number, || self.engine.load(argument)),
            (None, "old_init") => self.load(frame.number, || self.engine.load_by_old_name(argument)),
            (None, "status") => Ok(self.status()),
            (None, "stop") => {
                self.stop();
                Ok(json!({"success": true}))
            }
            (None, _) => Err(Error::invalid(format!("there is no function {name}"))),
        };
        self.answer(frame.number, answer);
    }

    fn answer(&self, number: u64, answer: Result<Value>) {
        let answer = answer.unwrap_or_else(|error| error_json(&error));
        let _ = self.sender.send(&Frame::new(FrameKind::Answer, number, answer.to_string()));
    }

    /// Loads, and reports the progress.
    fn load(&self, number: u64, load: impl FnOnce() -> Result<()>) -> Result<Value> {
        let (done, wait): (Sender<()>, Receiver<()>) = crossbeam_channel::bounded(0);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                while wait.recv_timeout(PROGRESS_INTERVAL) == Err(crossbeam_channel::RecvTimeoutError::Timeout) {
                    let progress = self.engine.status().get("progress").and_then(Value::as_f64).unwrap_or(0.0);
                    let thousandths = (progress * 1e3).clamp(0.0, 1e3) as u64;
                    let _ = self.sender.send(&Frame::new(FrameKind::Progress, number, thousandths.to_string()));
                }
            });
            let result = load();
            drop(done);
            result.map(|()| self.status())
        })
    }

    /// The status, with the requests' numbers in the host's process.
    fn status(&self) -> Value {
        let mut status = self.engine.status();
        let known = self.known.lock();
        let slots = status.get_mut("slots").and_then(Value::as_array_mut);
        for id in slots.into_iter().flatten().filter_map(|slot| slot.get_mut("request_id")) {
            *id = id.as_u64().and_then(|id| known.numbers.get(&id)).map_or(Value::Null, |number| json!(number));
        }
        status
    }

    fn end_reasoning(&self, number: u64) {
        let record = self.known.lock().records.get(&number).cloned();
        if let Some(record) = record {
            let _ = self.engine.with_loaded(|loaded| loaded.end_reasoning_of(&record));
        }
    }

    fn cancel(&self, number: u64) {
        let record = self.known.lock().records.get(&number).cloned();
        if let Some(record) = record {
            let _ = self.engine.with_loaded(|loaded| loaded.cancel_record(&record));
        }
    }

    /// Cancels all requests, and waits until the host has heard of their ends.
    fn stop(&self) {
        let begun = Instant::now();
        let numbers: Vec<u64> = self.known.lock().records.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.cancel(number));
        while begun.elapsed() < PATIENCE && !self.known.lock().records.is_empty() {
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Sends the updates of each request that has an update.
    fn push(&self, updates: &Receiver<u64>) {
        while let Ok(id) = updates.recv() {
            let mut ids: Vec<u64> = std::iter::once(id).chain(updates.try_iter()).collect();
            ids.sort_unstable();
            ids.dedup();
            for id in ids {
                // A request may have ended with its last update.
                let _ = self.engine.with_loaded(|loaded| {
                    self.push_updates(loaded, id);
                    Ok(())
                });
            }
        }
    }

    fn push_updates(&self, loaded: &LocalEngine, id: u64) {
        let (number, record) = {
            let known = self.known.lock();
            let Some(number) = known.numbers.get(&id) else { return };
            let Some(record) = known.records.get(number) else { return };
            (*number, Arc::clone(record))
        };
        let Taken { answer, mut tokens, is_finished } = loaded.take_updates_of(&record, Duration::ZERO);
        if record.is_awaited {
            // All tokens so far.
            let mut known = self.known.lock();
            let n_sent = known.n_sent.entry(id).or_default();
            n_sent.resize(tokens.len(), 0);
            for (tokens, n_sent) in tokens.iter_mut().zip(n_sent) {
                let before = std::mem::replace(n_sent, tokens.len());
                tokens.drain(..before.min(tokens.len()));
            }
        }
        let update = json!({"answer": answer, "tokens": tokens});
        let _ = self.sender.send(&Frame::new(FrameKind::Update, number, update.to_string()));
        // The thread that waits for it removes an awaited one.
        if is_finished && !record.is_awaited {
            self.known.lock().remove(id);
        }
    }
}

impl KnownEngine {
    fn add(&mut self, number: u64, record: Arc<RequestRecord>) {
        self.numbers.insert(record.handle.id(), number);
        self.records.insert(number, record);
    }

    fn remove(&mut self, id: u64) {
        self.n_sent.remove(&id);
        if let Some(number) = self.numbers.remove(&id) {
            self.records.remove(&number);
        }
    }
}
