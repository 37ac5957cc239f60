//! Calls of different threads do not wait for each other, and a process that does not answer is ended.

use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use foredraft::api::{Function, JsonEngine};
use serde_json::{Value, json};

use crate::common::{Endpoint, Requests as _, complete, model, start as start_local, with};
use crate::process::{call, drain, kill, pid, poll, start, submit};
use crate::toolchain::folder;

/// Renders for as long as it may, with many messages.
const SLOW: &str = "{% if messages|length > 99 %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}\
    {% endif %}{% for m in messages %}{{ m.content }}{% endfor %}";

/// A request that is rendered for three seconds, in the call.
fn slow() -> Value {
    let messages = vec![json!({"role": "user", "content": "u"}); 7000];
    json!({"messages": messages, "chat_template": SLOW, "n_predict": 1, "timeout_ms": 3000})
}

/// An endless request that has begun.
fn running(engine: &JsonEngine, more: Value) -> u64 {
    let id = submit(engine, &with(&json!({"prompt": "Once", "n_predict": -1, "ignore_eos": true}), more));
    while poll(engine, id, 1000)["completion_updates"].as_array().expect("updates").is_empty() {}
    id
}

fn cancel(engine: &JsonEngine, id: u64) -> Value {
    let command = json!({"id": id}).to_string();
    engine.cancel(Some(command.as_bytes())).expect("an answer")
}

#[test]
fn slow_submit_keeps_no_other_call_waiting() {
    let engine = start(json!({"n_ctx": 512, "n_parallel": 2}));
    let endless = running(&engine, json!({}));
    type Begin = fn(&JsonEngine, &[u8]) -> foredraft::Result<Value>;
    let functions: [Begin; 2] = [
        |engine, request| engine.submit_as(Endpoint::Completion, request),
        |engine, request| engine.complete_as(Endpoint::Foredraft, request),
    ];
    for begin in functions {
        std::thread::scope(|scope| {
            let slow = scope.spawn(|| begin(&engine, slow().to_string().as_bytes()));
            std::thread::sleep(Duration::from_millis(500));
            call(&engine, Function::Tokenize, &json!({"text": "a"}));
            let id = running(&engine, json!({}));
            cancel(&engine, id);
            assert_eq!(drain(&engine, id).last().expect("an end")["stop_type"], "cancelled");
            assert_eq!(engine.status()["slots"].as_array().map(Vec::len), Some(2));
            assert!(!slow.is_finished(), "the others have waited for it");
            let answer = slow.join().expect("a call").expect("an answer");
            assert_eq!(answer["success"], false, "{answer}");
        });
    }
    cancel(&engine, endless);
    drain(&engine, endless);
}

#[test]
fn request_that_is_cancelled_while_it_is_prepared_ends() {
    let engine = start(json!({"n_ctx": 512}));
    let request = json!({"prompt": "Once upon a time. ".repeat(20_000), "n_predict": -1, "ignore_eos": true});
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| call(&engine, Function::Complete, &request));
        while !waiting.is_finished() {
            engine.cancel(Some(br#"{"all": true}"#)).expect("an answer");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(waiting.join().expect("an answer")["stop_type"], "cancelled");
    });
}

#[test]
fn stopped_process_is_ended_and_what_was_in_flight_goes_on() {
    let request = json!({"prompt": "Once upon a time", "n_predict": 300, "ignore_eos": true, "seed": 5});
    let expected = complete(&start_local(json!({"n_ctx": 512})), Endpoint::Foredraft, &request)["content"].clone();
    let engine = start(json!({"n_ctx": 512}));
    let id = submit(&engine, &request);
    let mut updates = poll(&engine, id, 60_000)["completion_updates"].as_array().expect("updates").clone();
    let process = pid(&engine);
    kill(process, "STOP");
    // A call without a time limit.
    call(&engine, Function::Tokenize, &json!({"text": "a"}));
    assert_ne!(pid(&engine), process);
    updates.extend(drain(&engine, id));
    let content: String = updates.iter().map(|update| update["content"].as_str().expect("content")).collect();
    assert_eq!(json!(content), expected);
    let causes: Vec<&Value> =
        updates.iter().filter_map(|update| update.get("engine")).map(|event| &event["cause"]).collect();
    assert_eq!(causes, ["it did not answer"]);
    let isolation = &engine.status()["isolation"];
    assert_eq!((&isolation["n_restarts"], &isolation["deaths"][0]["change"]), (&json!(1), &Value::Null), "{isolation}");
}

/// The host's clock ends requests before the library ends the process.
#[test]
fn cancels_and_timeouts_of_a_stopped_process_are_kept() {
    let engine = start(json!({"n_ctx": 512, "n_parallel": 2}));
    let (cancelled, limited) = (running(&engine, json!({})), running(&engine, json!({"timeout_ms": 1500})));
    let process = pid(&engine);
    kill(process, "STOP");
    let begun = Instant::now();
    assert_eq!(cancel(&engine, cancelled)["cancelled"], true);
    std::thread::scope(|scope| {
        let wait = |function: Function, request: &str| {
            let (engine, request) = (engine.clone(), request.to_owned());
            scope.spawn(move || engine.call(function, Ok(request.as_bytes())))
        };
        let complete = wait(Function::Complete, r#"{"prompt": "Once", "timeout_ms": 500}"#);
        let submit = wait(Function::Submit, r#"{"prompt": "Once", "timeout_ms": 500}"#);
        let save = wait(Function::SessionSave, r#"{"filename": "/no/such", "timeout_ms": 500}"#);
        let end = |id: u64| drain(&engine, id).last().expect("an end").clone();
        assert_eq!(
            (&end(cancelled)["stop_type"], &end(limited)["stop_type"]),
            (&json!("cancelled"), &json!("timeout"))
        );
        assert_eq!(complete.join().expect("a call").expect("an answer")["stop_type"], "timeout");
        assert_eq!(submit.join().expect("a call").expect("an answer")["code"], "timeout");
        let error = save.join().expect("a call").expect_err("the process has not answered");
        assert_eq!(error.code().as_str(), "timeout");
    });
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    call(&engine, Function::Complete, &json!({"prompt": "Once", "n_predict": 2}));
}

/// A status that the process has not answered does not wait any more.
#[test]
fn stopped_process_that_nothing_waits_for_is_left_alone() {
    let engine = start(json!({"n_ctx": 512}));
    let process = pid(&engine);
    kill(process, "STOP");
    engine.status();
    std::thread::sleep(Duration::from_secs(7));
    kill(process, "CONT");
    call(&engine, Function::Tokenize, &json!({"text": "a"}));
    assert_eq!(pid(&engine), process);
}

#[test]
fn program_that_is_no_engine_ends_the_load() {
    let program = folder("isolation").join("no-engine");
    std::fs::write(&program, "#!/bin/sh\nsleep 1000\n").expect("target/ is writable");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("an own file");
    let engine = JsonEngine::new();
    let init = json!({"model": model("target"), "log_level": "none", "isolate": true, "isolate_path": program});
    let error = engine.load(init.to_string().as_bytes()).expect_err("another program");
    assert_eq!(error.message(), "isolate: the program does not answer as foredraft-engine does");
}
