//! The engine's process dies while requests run: they end as they would have.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use foredraft::api::{Function, JsonEngine};
use serde_json::{Value, json};

use crate::common::{Endpoint, complete, start as start_local, text, with};
use crate::process::{at_next_update, call, drain, is_alive, kill, pid, poll, start, submit, until_found};
use crate::toolchain::{compiler, folder, run};

pub const SIGNALS: [&str; 3] = ["KILL", "SEGV", "ABRT"];
/// After this signal, allocations of a process of [`engine_with_fault`] fail.
const MEMORY_ENDS: &str = "USR2";
/// Some ten steps allocate so often.
const FAILING_ALLOCATIONS: u32 = 241;

/// A program that runs the engine's process with a shim between it and the system: after the signal [`MEMORY_ENDS`], what `fault` names fails,
/// or its `at`-th call. With `held`, it waits in a load while the file of the program's name with `.hold` exists, and one with `.hold.reached`
/// exists meanwhile.
pub fn engine_with_fault(fault: &str, at: u32) -> String {
    // Processes of other tests load the shim and run their programs meanwhile.
    static SHIM: OnceLock<PathBuf> = OnceLock::new();
    static N_PROGRAMS: AtomicU32 = AtomicU32::new(0);
    let shim = SHIM.get_or_init(|| {
        let shim = folder("isolation").join("fault_shim.so");
        let mut build = Command::new(compiler("c"));
        build.args(["-O1", "-shared", "-fPIC", "-pthread", "tests/hosts/fault_shim.c", "-o"]).arg(&shim).arg("-ldl");
        run(&mut build, "");
        shim
    });
    let program =
        folder("isolation").join(format!("engine-{fault}-{at}-{}", N_PROGRAMS.fetch_add(1, Ordering::Relaxed)));
    let engine = env!("CARGO_BIN_EXE_foredraft-engine");
    let shim = shim.display();
    let script = format!(
        "#!/bin/sh\nLD_PRELOAD={shim} FAULT={fault} FAULT_AT={at} FAULT_HOLD=\"$0.hold\" exec {engine} \"$@\"\n"
    );
    std::fs::write(&program, script).expect("target/ is writable");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("an own file");
    program.to_str().expect("a path").to_owned()
}

/// Sampled completions of 300 tokens, with different seeds.
fn requests(n: usize, more: &Value) -> Vec<Value> {
    let one = |seed: usize| {
        let request = json!({"prompt": "Once upon a time there was a child named Mia.", "n_predict": 300,
            "ignore_eos": true, "seed": 11 + seed, "return_tokens": true});
        with(&request, more.clone())
    };
    (0..n).map(one).collect()
}

/// The joined contents of updates.
struct Joined {
    text: String,
    tokens: Value,
    stop_type: Value,
}

/// Joins updates. They must be in order: the end is the last one, and there is one.
fn joined(updates: &[Value]) -> Joined {
    let (last, rest) = updates.split_last().expect("updates");
    assert!(rest.iter().all(|update| update["stop"] == false) && last["stop"] == true, "{last}");
    let tokens = |update: &Value| update["tokens"].as_array().cloned().unwrap_or_default();
    Joined {
        text: text(updates),
        tokens: updates.iter().flat_map(tokens).collect(),
        stop_type: last["stop_type"].clone(),
    }
}

/// All updates of a request.
pub struct Updates {
    pub updates: Vec<Value>,
    /// The number of deaths that they report.
    pub n_notifications: usize,
}

impl Updates {
    fn new(updates: Vec<Value>) -> Updates {
        // Each completion of a request that has not ended has an update about it.
        let of_completion = |index: &Value| {
            updates.iter().filter(|update| update.get("engine").is_some() && update["index"] == *index).count()
        };
        let n_notifications = updates.iter().map(|update| of_completion(&update["index"])).max().unwrap_or(0);
        Updates { updates, n_notifications }
    }
}

/// Runs the requests at once, and kills the process `n_deaths` times meanwhile, by one of the signals, each time `within` a time.
pub fn killed(
    engine: &JsonEngine,
    requests: &[Value],
    signals: &[&str],
    (n_deaths, within): (usize, Duration),
    random: &mut u64,
) -> Vec<Updates> {
    std::thread::scope(|scope| {
        let ids: Vec<u64> = requests.iter().map(|request| submit(engine, request)).collect();
        let readers: Vec<_> = ids.into_iter().map(|id| scope.spawn(move || Updates::new(drain(engine, id)))).collect();
        for _ in 0..n_deaths {
            *random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let process = pid(engine);
            std::thread::sleep(within.mul_f64((*random >> 33) as f64 / f64::from(1_u32 << 31)));
            kill(process, signals[(*random >> 20) as usize % signals.len()]);
        }
        readers.into_iter().map(|reader| reader.join().expect("a reader")).collect()
    })
}

/// Rounds of [`killed`], each checked: the moments of the deaths are spread over the time that requests take on this machine. If no request was
/// running then, the process is stopped before it gets the requests of one more round. Returns the number of deaths while a request ran, and
/// the seconds that each of them cost.
pub fn survived_deaths(
    engine: &JsonEngine,
    requests: &[Value],
    signals: &[&str],
    rounds: usize,
    check: impl Fn(usize, &[Updates]),
) -> (usize, f64) {
    let mut random = 7;
    let begun = Instant::now();
    killed(engine, requests, signals, (0, Duration::ZERO), &mut random);
    let undisturbed = begun.elapsed();
    let begun = Instant::now();
    let (mut n_deaths, mut n_rounds) = (0, 0);
    while n_rounds < rounds || n_deaths == 0 {
        assert!(n_rounds <= rounds, "no request was running when the process died: {}", requests[0]);
        let found = if n_rounds < rounds {
            killed(engine, requests, signals, (1 + n_rounds % 3, undisturbed), &mut random)
        } else {
            // Not the last process, whose death the engine may not have noticed.
            let process = std::iter::repeat_with(|| pid(engine)).find(|process| is_alive(*process));
            // A stopped process has ended no request when it dies.
            kill(process.expect("a process"), "STOP");
            killed(engine, requests, &["KILL"], (1, Duration::ZERO), &mut random)
        };
        check(n_rounds, &found);
        n_deaths += found.iter().map(|found| found.n_notifications).max().unwrap_or(0);
        n_rounds += 1;
    }
    (n_deaths, (begun.elapsed().as_secs_f64() - undisturbed.as_secs_f64() * n_rounds as f64) / n_deaths as f64)
}

/// Returns the number of deaths while a request ran, and the seconds that each of them cost.
fn completions_survive(init: Value, more: Value, n: usize, rounds: usize) -> (usize, f64) {
    completions_survive_signals(&SIGNALS, init, more, n, rounds)
}

fn completions_survive_signals(signals: &[&str], init: Value, more: Value, n: usize, rounds: usize) -> (usize, f64) {
    requests_survive(signals, init, &requests(n, &more), rounds)
}

fn requests_survive(signals: &[&str], init: Value, requests: &[Value], rounds: usize) -> (usize, f64) {
    let expected: Vec<_> = {
        let engine = start_local(init.clone());
        let answers = requests.iter().map(|request| complete(&engine, Endpoint::Foredraft, request));
        answers
            .map(|answer| (answer["content"].as_str().expect("content").to_owned(), answer["tokens"].clone()))
            .collect()
    };
    let engine = start(init);
    let found = survived_deaths(&engine, requests, signals, rounds, |round, found| {
        for (found, (text, tokens)) in found.iter().zip(&expected) {
            let found = joined(&found.updates);
            assert_eq!((&found.text, &found.stop_type), (text, &json!("limit")), "round {round}");
            assert_eq!(&found.tokens, tokens, "round {round}");
        }
    });
    let isolation = &engine.status()["isolation"];
    assert!(isolation["n_restarts"].as_u64() >= Some(found.0 as u64), "{isolation}");
    assert!(isolation["deaths"][0]["cause"].as_str().is_some_and(|cause| cause.contains("SIG")), "{isolation}");
    found
}

/// Prints the table of the reliability page: `scripts/check.sh deaths`.
#[test]
#[ignore = "run by scripts/check.sh deaths"]
fn deaths_at_twenty_random_moments() {
    let engine = engine_with_fault("all-memory", 1);
    for n in [1, 4] {
        for (name, speculative) in [("plain", json!(false)), ("speculating", json!({"type": "auto"}))] {
            for signal in SIGNALS.into_iter().chain([MEMORY_ENDS]) {
                let init = json!({"n_ctx": 512, "n_parallel": n, "isolate_path": engine});
                let more = json!({"speculative": speculative});
                let (n_deaths, lost) = completions_survive_signals(&[signal], init, more, n, 20);
                let how = if signal == MEMORY_ENDS { "memory ends".to_owned() } else { format!("SIG{signal}") };
                println!(
                    "| {n} of 300 tokens, {name} | {how} | {n_deaths} in 20 runs | every text the same | {lost:.2} s |"
                );
            }
        }
    }
}

/// Each of the requests preempts those before it, on one slot.
#[test]
fn preempted_requests_survive_deaths() {
    let init = json!({"n_ctx": 512, "n_parallel": 1});
    let mut requests = requests(4, &json!({"speculative": {"type": "auto"}}));
    for (priority, request) in requests.iter_mut().enumerate() {
        *request = with(request, json!({"priority": priority, "deadline_ms": 1}));
    }
    let engine = start(init.clone());
    until_found("preempted requests", || {
        let (same, higher) = (engine.clone(), requests[1..].to_vec());
        let others =
            at_next_update(&engine, move || higher.iter().map(|request| submit(&same, request)).collect::<Vec<_>>());
        let mut ids = vec![submit(&engine, &requests[0])];
        ids.extend(others.recv().expect("an update"));
        engine.set_update_hook(None);
        let ends = ids.into_iter().map(|id| drain(&engine, id).pop().expect("an end")["timings"].clone());
        let ends: Vec<Value> = ends.collect();
        assert!(ends.iter().all(|timings| timings["deadline_missed_ms"].as_f64() > Some(0.0)), "{ends:?}");
        ends.iter().any(|timings| timings["preempted_n"].as_u64() > Some(0)).then_some(())
    });
    requests_survive(&SIGNALS, init, &requests, 4);
}

#[test]
fn completions_survive_the_end_of_memory() {
    let engine = engine_with_fault("all-memory", 1);
    let init = json!({"n_ctx": 512, "n_parallel": 4, "isolate_path": engine});
    completions_survive_signals(&[MEMORY_ENDS], init.clone(), json!({"speculative": false}), 4, 3);
    completions_survive_signals(&[MEMORY_ENDS], init, json!({"speculative": {"type": "auto"}}), 4, 3);
}

/// If it is one of Rust's, the process ends. If it is one of llama.cpp's, an exception leaves a context that is of no use: it is made anew, or
/// the process ends if the decode has lost threads. Few are Rust's: where no eighth allocation was, their neighbours fail next.
#[test]
fn completion_survives_each_failing_allocation_of_a_step() {
    let request = &requests(1, &json!({"speculative": {"type": "auto"}}))[0];
    let expected = complete(&start_local(json!({"n_ctx": 512})), Endpoint::Foredraft, request)["content"].clone();
    let n_restarts = |at| {
        let engine = start(json!({"n_ctx": 512, "isolate_path": engine_with_fault("one-memory", at)}));
        let process = pid(&engine);
        let memory_ends = at_next_update(&engine, move || kill(process, MEMORY_ENDS));
        let id = submit(&engine, request);
        memory_ends.recv().expect("an update");
        let updates = drain(&engine, id);
        let found = joined(&updates);
        assert_eq!(
            (json!(found.text), found.stop_type),
            (expected.clone(), json!("limit")),
            "allocation {at}: {updates:?}"
        );
        engine.status()["isolation"]["n_restarts"].as_u64().unwrap_or(0)
    };
    let mut passes = (1..=8).map(|first| (first..=FAILING_ALLOCATIONS).step_by(8).map(n_restarts).sum::<u64>());
    assert!(passes.any(|n_restarts| n_restarts > 0), "no process ended");
}

#[test]
fn plain_completion_survives_deaths() {
    completions_survive(json!({"n_ctx": 512}), json!({"speculative": false}), 1, 4);
}

#[test]
fn speculating_completion_survives_deaths() {
    completions_survive(json!({"n_ctx": 512}), json!({"speculative": {"type": "auto"}}), 1, 4);
}

#[test]
fn four_completions_survive_deaths() {
    let init = json!({"n_ctx": 512, "n_parallel": 4});
    completions_survive(init.clone(), json!({"speculative": false}), 4, 4);
    completions_survive(init, json!({"speculative": {"type": "auto"}}), 4, 4);
}

/// Their state is not only the tokens: they are generated again from the start, and what was delivered is skipped.
#[test]
fn completions_with_more_state_survive_deaths() {
    let init = json!({"n_ctx": 512});
    completions_survive(init.clone(), json!({"mirostat": 2}), 1, 3);
    completions_survive(init.clone(), json!({"grammar": "root ::= [a-zA-Z ,.\"\\n']*", "repeat_penalty": 1.2}), 1, 3);
    completions_survive(init, json!({"dry_multiplier": 0.8, "stop": ["no such text"]}), 1, 3);
}

#[test]
fn probabilities_are_complete_after_a_death() {
    let request = json!({"prompt": "Once upon a time", "n_predict": 200, "ignore_eos": true, "seed": 3, "n_probs": 2});
    let expected = complete(&start_local(json!({"n_ctx": 512})), Endpoint::Foredraft, &request);
    let engine = start(json!({"n_ctx": 512}));
    let id = submit(&engine, &request);
    let mut updates: Vec<Value> = poll(&engine, id, 60_000)["completion_updates"].as_array().expect("updates").clone();
    kill(pid(&engine), "KILL");
    updates.extend(drain(&engine, id));
    let (last, rest) = updates.split_last().expect("updates");
    let shown = |update: &Value| update["completion_probabilities"].as_array().cloned().unwrap_or_default();
    let tokens = |all: &[Value]| all.iter().map(|entry| entry["id"].clone()).collect::<Vec<Value>>();
    let polled: Vec<Value> = rest.iter().flat_map(shown).collect();
    assert_eq!(tokens(&polled), tokens(&shown(&expected)));
    assert_eq!(tokens(&shown(last)), tokens(&shown(&expected)));
    assert_eq!(text(&updates), expected["content"].as_str().expect("content"));
}

#[test]
fn waiting_call_survives_deaths() {
    let request = &requests(1, &json!({}))[0];
    let expected = complete(&start_local(json!({"n_ctx": 512})), Endpoint::Foredraft, request);
    let engine = start(json!({"n_ctx": 512}));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| call(&engine, Function::Complete, request));
        for signal in SIGNALS {
            let process = pid(&engine);
            std::thread::sleep(Duration::from_millis(40));
            kill(process, signal);
        }
        let answer = waiting.join().expect("an answer");
        for key in ["content", "tokens", "stop_type", "tokens_predicted", "tokens_evaluated", "generation_settings"] {
            assert_eq!(answer[key], expected[key], "{key}");
        }
    });
}

/// The update that tells the host of the death is empty, so that a host that only joins texts needs to know nothing.
#[test]
fn host_is_notified_of_a_death() {
    let engine = start(json!({"n_ctx": 512}));
    let id = submit(&engine, &json!({"prompt": "Once", "n_predict": -1, "ignore_eos": true}));
    let mut updates: Vec<Value> = poll(&engine, id, 60_000)["completion_updates"].as_array().expect("updates").clone();
    let first = pid(&engine);
    kill(first, "SEGV");
    while !updates.iter().any(|update| update.get("engine").is_some()) {
        updates.extend(poll(&engine, id, 60_000)["completion_updates"].as_array().expect("updates").iter().cloned());
    }
    assert_ne!(pid(&engine), first);
    let cancel = json!({"id": id}).to_string();
    engine.cancel(Some(cancel.as_bytes())).expect("an answer");
    updates.extend(drain(&engine, id));
    let notifications: Vec<&Value> = updates.iter().filter(|update| update.get("engine").is_some()).collect();
    assert_eq!(notifications.len(), 1, "{notifications:?}");
    assert_eq!((&notifications[0]["content"], &notifications[0]["engine"]["cause"]), (&json!(""), &json!("SIGSEGV")));
    assert_eq!(engine.status()["isolation"]["n_restarts"], 1);
}

/// A text that ends a process which receives it, if it was started with the fault `marker`. Repeated, because it can arrive in parts.
fn marker() -> String {
    "this ends the process. ".repeat(20)
}

/// A request that ends every process is not retried forever, and other requests complete.
#[test]
fn only_the_guilty_request_ends_with_an_error() {
    let requests = requests(3, &json!({}));
    let local = start_local(json!({"n_ctx": 512, "n_parallel": 3}));
    let engine = start(json!({"n_ctx": 512, "n_parallel": 3, "isolate_path": engine_with_fault("marker", 1)}));
    let ids: Vec<u64> = requests.iter().map(|request| submit(&engine, request)).collect();
    let guilty = submit(&engine, &json!({"prompt": marker(), "n_predict": 5}));
    let answer = drain(&engine, guilty).pop().expect("an end");
    assert_eq!((&answer["success"], &answer["code"]), (&json!(false), &json!("model_error")), "{answer}");
    for (id, request) in ids.into_iter().zip(&requests) {
        let found = joined(&drain(&engine, id));
        let expected = complete(&local, Endpoint::Foredraft, request);
        assert_eq!((json!(found.text), found.stop_type), (expected["content"].clone(), json!("limit")));
    }
    // The last death is counted before the next process serves.
    pid(&engine);
    let isolation = &engine.status()["isolation"];
    assert!((5..=6).contains(&isolation["n_restarts"].as_u64().expect("a number")), "{isolation}");
}

#[test]
fn only_the_guilty_call_ends_with_an_error() {
    let engine = start(json!({"n_ctx": 512, "isolate_path": engine_with_fault("marker", 1)}));
    let id = submit(&engine, &requests(1, &json!({}))[0]);
    std::thread::scope(|scope| {
        // It is there in each of the processes.
        let embedding = scope.spawn(|| engine.call(Function::Embed, Ok(br#"{"content": "a"}"#)));
        let guilty = json!({"text": marker()}).to_string();
        let answer = engine.call(Function::Tokenize, Ok(guilty.as_bytes())).expect("an answer");
        assert_eq!((&answer["success"], &answer["code"]), (&json!(false), &json!("model_error")), "{answer}");
        let answer = embedding.join().expect("a call").expect("an answer");
        assert_ne!(answer["code"], "model_error", "{answer}");
    });
    assert_eq!(joined(&drain(&engine, id)).stop_type, "limit");
}

/// It was never the only request of a process that died.
#[test]
fn request_that_waits_for_its_turn_is_not_taken_for_the_cause() {
    let engine = start(json!({"n_ctx": 512}));
    let endless = json!({"prompt": "Once", "n_predict": -1, "ignore_eos": true});
    let ids = [submit(&engine, &endless), submit(&engine, &endless)];
    for _ in 0..6 {
        // One of them makes progress in each process.
        let has_text = |id: &u64| poll(&engine, *id, 10)["completion_updates"].to_string().contains("\"content\":\" ");
        while !ids.iter().any(has_text) {}
        let process = pid(&engine);
        kill(process, "KILL");
        while engine.status()["isolation"]["pid"] == process {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    let cancel = json!({"ids": ids}).to_string();
    engine.cancel(Some(cancel.as_bytes())).expect("an answer");
    for id in ids {
        assert_eq!(drain(&engine, id).last().expect("an end")["stop_type"], "cancelled");
    }
}
