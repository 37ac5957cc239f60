//! The engine's process, as tests see and kill it.

use std::sync::Mutex;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use foredraft::api::{Function, JsonEngine};
use serde_json::{Value, json};

use crate::common::{model, with};

/// Loads a model in a process of its own.
pub fn start(more: Value) -> JsonEngine {
    let init = json!({
        "model": model("target"), "model_draft": model("draft"), "log_level": "none", "n_threads": 1, "n_threads_batch": 1,
        "isolate": true, "isolate_path": env!("CARGO_BIN_EXE_foredraft-engine"),
    });
    let init = with(&init, more);
    let engine = JsonEngine::new();
    engine.load(init.to_string().as_bytes()).unwrap_or_else(|error| panic!("init {init}: {error}"));
    engine
}

/// Calls a function, which must succeed.
pub fn call(engine: &JsonEngine, function: Function, request: &Value) -> Value {
    let answer = engine.call(function, Ok(request.to_string().as_bytes()));
    let answer = answer.unwrap_or_else(|error| panic!("{request}: {error}"));
    assert_eq!(answer["success"], true, "{request}: {answer}");
    answer
}

pub fn submit(engine: &JsonEngine, request: &Value) -> u64 {
    call(engine, Function::Submit, request)["id"].as_u64().expect("an id")
}

pub fn poll(engine: &JsonEngine, id: u64, timeout_ms: u64) -> Value {
    let command = json!({"id": id, "timeout_ms": timeout_ms}).to_string();
    engine.poll(Some(command.as_bytes())).unwrap_or_else(|error| panic!("{error}"))
}

/// Polls a request until it is finished, and returns all its updates.
pub fn drain(engine: &JsonEngine, id: u64) -> Vec<Value> {
    let mut updates = Vec::new();
    loop {
        let answer = poll(engine, id, 60_000);
        updates.extend(answer["completion_updates"].as_array().expect("updates").iter().cloned());
        if answer["finished"] == true {
            return updates;
        }
    }
}

/// The id of the process, once one serves.
pub fn pid(engine: &JsonEngine) -> u64 {
    let begun = Instant::now();
    loop {
        let status = engine.status();
        if let Some(pid) = status["isolation"]["pid"].as_u64() {
            return pid;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{status}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Sends a signal to the process, which may have ended. In this thread, because what runs there may end before a shell has started.
#[allow(unsafe_code)]
pub fn kill(pid: u64, signal: &str) {
    let signals = [
        ("KILL", libc::SIGKILL),
        ("SEGV", libc::SIGSEGV),
        ("ABRT", libc::SIGABRT),
        ("USR2", libc::SIGUSR2),
        ("STOP", libc::SIGSTOP),
        ("CONT", libc::SIGCONT),
    ];
    let (_, number) = signals.into_iter().find(|(name, _)| *name == signal).expect("a known signal");
    // SAFETY: a number, which names this test's child or no process.
    unsafe { libc::kill(libc::pid_t::try_from(pid).expect("a process"), number) };
}

/// Lets the callback act at the next update, however late this thread is. Returns where the result of the act arrives.
pub fn at_next_update<R: Send + 'static>(engine: &JsonEngine, act: impl FnOnce() -> R + Send + 'static) -> Receiver<R> {
    let (done, result) = std::sync::mpsc::channel();
    let act = Mutex::new(Some(move || done.send(act())));
    engine.set_update_hook(Some(Box::new(move |_| {
        if let Some(act) = act.lock().unwrap().take() {
            // Not every test waits for it.
            let _ = act();
        }
    })));
    result
}

/// How often [`until_found`] tries.
const MAX_TRIES: usize = 50;

/// Tries again until a try finds what the test needs: a request can end before its process dies, on a machine that is fast or busy.
pub fn until_found<R>(what: &str, attempt: impl FnMut() -> Option<R>) -> R {
    let mut attempts = std::iter::repeat_with(attempt).take(MAX_TRIES);
    attempts.find_map(|found| found).unwrap_or_else(|| panic!("{what}: not in {MAX_TRIES} tries"))
}

/// Whether a process exists and is no zombie.
pub fn is_alive(pid: u64) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
}
