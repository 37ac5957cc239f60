//! Where the threads of decodes run, what they are called, and how a frame budget paces them.

use std::fs;
use std::time::{Duration, Instant};

use foredraft::Function;
use foredraft::api::JsonEngine;
use serde_json::{Value, json};

use crate::library::{config, exclusive, with_draft};

/// `SCHED_BATCH`.
const LOW: u32 = 3;
/// `SCHED_IDLE`.
const IDLE: u32 = 5;

/// A thread as Linux reports it.
#[derive(Debug, PartialEq, Eq)]
struct Thread {
    name: String,
    cpus: String,
    policy: u32,
}

fn thread(folder: &std::path::Path) -> Option<Thread> {
    let status = fs::read_to_string(folder.join("status")).ok()?;
    let cpus = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?.trim().to_owned();
    let stat = fs::read_to_string(folder.join("stat")).ok()?;
    // Field 41; the name in field 2 may have spaces.
    let policy = stat.rsplit_once(')')?.1.split_whitespace().nth(38)?.parse().ok()?;
    Some(Thread { name: fs::read_to_string(folder.join("comm")).ok()?.trim().to_owned(), cpus, policy })
}

/// Threads of this process with a policy, sorted by their names.
fn threads_with(policy: u32) -> Vec<Thread> {
    let tasks = fs::read_dir("/proc/self/task").expect("tasks").flatten();
    let mut threads: Vec<Thread> = tasks.filter_map(|task| thread(&task.path())).collect();
    threads.retain(|thread| thread.policy == policy);
    threads.sort_by(|one, other| one.name.cmp(&other.name));
    threads
}

/// Threads of this process with the low priority. No other test uses it.
fn low_threads() -> Vec<Thread> {
    threads_with(LOW)
}

fn this_thread() -> Thread {
    thread("/proc/thread-self".as_ref()).expect("this thread")
}

fn start(more: Value) -> JsonEngine {
    let engine = JsonEngine::new();
    let config = config("target", more);
    engine.load(config.to_string().as_bytes()).unwrap_or_else(|error| panic!("{config}: {error}"));
    engine
}

fn complete(engine: &JsonEngine, request: &Value) -> Value {
    let bytes = request.to_string();
    engine.call(Function::Complete, Ok(bytes.as_bytes())).expect("an answer")
}

fn story(more: Value) -> Value {
    let mut request =
        json!({"prompt": "Once upon a time there was", "n_predict": 30, "temperature": 0, "return_tokens": true});
    request.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    request
}

/// Waits until the threads of an engine that has ended are gone; the system removes them a moment after they end.
fn gone() {
    let begin = Instant::now();
    while !low_threads().is_empty() {
        assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", low_threads());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A CPU that this process may use.
fn a_cpu() -> String {
    let cpus = this_thread().cpus;
    cpus.split([',', '-']).next().expect("a CPU").to_owned()
}

#[test]
fn threads_have_the_priority_and_cpus_that_init_says() {
    let _guard = exclusive();
    gone();
    let (own, cpu) = (this_thread(), a_cpu());
    let placed = |name: &str| Thread { name: name.to_owned(), cpus: cpu.clone(), policy: LOW };
    let range = format!("{cpu}-{cpu}");
    let settings = json!({"prio": -1, "cpu_range": range, "n_threads": 2, "speculative": false});
    let engine = start(settings);
    complete(&engine, &story(json!({})));
    assert_eq!(low_threads(), [placed("foredraft-cpu"), placed("foredraft-work")]);
    assert_eq!(this_thread(), own, "the host's thread keeps its own");
    drop(engine);
    gone();
    // As a mask, by flags, and strictly: the first thread has the first CPU.
    let mask = format!("{:x}", 1_u128 << cpu.parse::<u32>().expect("a number"));
    let engine = JsonEngine::new();
    let model = config("target", json!({}))["model"].as_str().expect("a path").to_owned();
    engine.load(format!("-m {model} --prio -1 -C {mask} --cpu-strict 1 -t 1 -tb 1").as_bytes()).expect("loaded");
    complete(&engine, &story(json!({})));
    assert_eq!(low_threads(), [placed("foredraft-work")]);
    assert_eq!(this_thread(), own);
}

#[test]
fn settings_for_one_token_and_for_several_hold_in_turn() {
    let _guard = exclusive();
    gone();
    let own = this_thread();
    let engine = start(json!({"prio_batch": -1, "n_threads": 2, "speculative": false, "flash_attn": "on"}));
    complete(&engine, &story(json!({})));
    // There are threads for one token and threads for several. The engine's own thread is as the last decode's, which had one token.
    assert_eq!(low_threads(), [Thread { name: "foredraft-cpu".to_owned(), cpus: own.cpus, policy: LOW }]);
}

/// A paused load shows its thread. The engine's threads are idle from their start, and those that engines share are not.
#[test]
fn load_of_an_idle_engine_is_idle() {
    let _guard = exclusive();
    let own = this_thread();
    let idle = || threads_with(IDLE).into_iter().map(|thread| thread.name).collect::<Vec<_>>();
    let settings = json!({"prio": "idle", "n_threads": 2, "speculative": false, "repack": false});
    let engine = JsonEngine::new();
    engine.pause().expect("paused");
    engine.load_async(config("target", settings).to_string().as_bytes());
    let until = |is_reached: &dyn Fn() -> bool| {
        let begin = Instant::now();
        while !is_reached() {
            assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", idle());
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    until(&|| idle() == ["foredraft-load"]);
    assert_eq!(engine.status()["state"], "loading");
    engine.resume().expect("resumed");
    while engine.status()["state"] == "loading" {
        std::thread::sleep(Duration::from_millis(5));
    }
    // The load's own thread ends a moment after the state has changed.
    until(&|| idle() == ["foredraft-cpu", "foredraft-work"]);
    // A host that waits for the load keeps its own priority, and threads that decode with another one inherit none.
    let mixed = start(json!({"prio": "idle", "prio_batch": 0, "n_threads": 2, "speculative": false, "repack": false}));
    assert_eq!(this_thread(), own);
    drop(engine);
    // The engine's own thread is as its last decode. This request has one of several tokens, and ends what the engine measures while it is idle.
    complete(&mixed, &json!({"prompt": "Once upon a time", "n_predict": 1}));
    until(&|| !idle().contains(&"foredraft-work".to_owned()));
    assert_eq!(idle(), ["foredraft-cpu"], "of two sets of threads");
    drop(mixed);
}

#[test]
fn cpus_that_the_process_may_not_use_are_refused() {
    let _guard = exclusive();
    let engine = JsonEngine::new();
    let error = engine.load(config("target", json!({"cpu_range": "511-511"})).to_string().as_bytes());
    let error = error.expect_err("no machine of the tests has so many CPUs").to_string();
    assert!(error.contains("cpu_mask, cpu_range: this process cannot use any of the CPUs 511"), "{error}");
}

#[test]
fn frame_budget_changes_no_completion() {
    let _guard = exclusive();
    let long = "Once upon a time there was a little girl who had a red ball. ".repeat(12);
    let requests = [story(json!({})), story(json!({"prompt": long})), story(json!({"temperature": 0.8, "seed": 5}))];
    let outputs = |more: Value| -> Vec<Value> {
        let mut settings = with_draft();
        settings.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        let engine = start(settings);
        requests.iter().map(|request| complete(&engine, request)["tokens"].clone()).collect()
    };
    let plain = outputs(json!({}));
    assert_eq!(outputs(json!({"frame_budget": {"busy_ms": 1, "per_ms": 3}})), plain);
    assert_eq!(
        outputs(json!({"frame_budget": {"busy_ms": 8, "per_ms": 12}, "n_parallel": 2})),
        outputs(json!({"n_parallel": 2}))
    );
}

/// With this budget the first decode is followed by a pause of a quarter of an hour at least. A cancel does not wait for its end.
#[test]
fn cancel_ends_a_pause_of_the_frame_budget() {
    let _guard = exclusive();
    let budget = json!({"busy_ms": 0.5, "per_ms": 1_000_000});
    let engine = start(json!({"frame_budget": budget, "warmup": false, "speculative": false}));
    let begin = Instant::now();
    let request = story(json!({"n_predict": 1000, "ignore_eos": true})).to_string();
    let answer = engine.call(Function::Submit, Ok(request.as_bytes()));
    let id = answer.expect("queued")["id"].as_u64().expect("an id");
    let command = json!({"id": id, "timeout_ms": 1000}).to_string();
    let poll = || engine.poll(Some(command.as_bytes())).expect("an answer");
    // Long enough for the pause to begin. It is right as well if it has not.
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(poll()["finished"], false);
    let cancelled = engine.cancel(Some(command.as_bytes()));
    assert_eq!(cancelled.expect("an answer")["cancelled"], true);
    while poll()["finished"] == false {
        assert!(begin.elapsed() < Duration::from_secs(300), "the pause goes on");
    }
}
