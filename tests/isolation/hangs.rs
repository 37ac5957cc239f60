//! Calls of different threads do not wait for each other, and a process that does not answer is ended.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use foredraft::api::{Function, JsonEngine, RequestArguments};
use foredraft::error::Code;
use serde_json::{Value, json};

use crate::common::{Endpoint, Requests as _, complete, model, start as start_local, with};
use crate::deaths::engine_with_fault;
use crate::process::{at_next_update, call, drain, kill, pid, poll, start, submit, until_found};
use crate::toolchain::folder;

/// Renders for as long as it may, with many messages.
const SLOW: &str = "{% if messages|length > 99 %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}\
    {% endif %}{% for m in messages %}{{ m.content }}{% endfor %}";

/// A request that is rendered for some seconds, in the call.
fn slow(seconds: u64) -> Value {
    let messages = vec![json!({"role": "user", "content": "u"}); 7000];
    json!({"messages": messages, "chat_template": SLOW, "n_predict": 1, "timeout_ms": 1000 * seconds})
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
    // Calls that render before they return. `foredraft_submit` leaves that to the engine, which prepares one request after another.
    let functions: [Begin; 2] = [
        |engine, request| {
            let mut arguments = RequestArguments::default();
            arguments.translation.is_prepared_first = true;
            let id = engine.submit(Ok(request), arguments, &|_| ())?["id"].as_u64().expect("an id");
            Ok(drain(engine, id).pop().expect("an end"))
        },
        |engine, request| engine.complete_as(Endpoint::Foredraft, request),
    ];
    for begin in functions {
        // The others take more than three seconds on a machine that is busy. If they wait for the slow call, they end after it, however long it is.
        let end_first = |seconds| {
            let request = slow(seconds).to_string();
            std::thread::scope(|scope| {
                let slow = scope.spawn(|| begin(&engine, request.as_bytes()));
                std::thread::sleep(Duration::from_millis(500));
                call(&engine, Function::Tokenize, &json!({"text": "a"}));
                let id = running(&engine, json!({}));
                cancel(&engine, id);
                assert_eq!(drain(&engine, id).last().expect("an end")["stop_type"], "cancelled");
                assert_eq!(engine.status()["slots"].as_array().map(Vec::len), Some(2));
                let end_first = !slow.is_finished();
                let answer = slow.join().expect("a call").unwrap_or_else(|error| foredraft::api::error_json(&error));
                assert!(answer["success"] == false || answer["stop_type"] == "timeout", "{answer}");
                end_first
            })
        };
        assert!([3, 12, 48].into_iter().any(end_first), "the others have waited for it");
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
    until_found("a request that runs when its process is stopped", || {
        let engine = start(json!({"n_ctx": 512}));
        let process = pid(&engine);
        let stopped = at_next_update(&engine, move || kill(process, "STOP"));
        let id = submit(&engine, &request);
        stopped.recv().expect("an update");
        // A call without a time limit.
        call(&engine, Function::Tokenize, &json!({"text": "a"}));
        assert_ne!(pid(&engine), process);
        let updates = drain(&engine, id);
        let content: String = updates.iter().map(|update| update["content"].as_str().expect("content")).collect();
        assert_eq!(json!(content), expected);
        let isolation = &engine.status()["isolation"];
        let change = &isolation["deaths"][0]["change"];
        assert_eq!((&isolation["n_restarts"], change), (&json!(1), &Value::Null), "{isolation}");
        let causes: Vec<&Value> =
            updates.iter().filter_map(|update| update.get("engine")).map(|event| &event["cause"]).collect();
        let is_found = !causes.is_empty();
        is_found.then(|| assert_eq!(causes, ["it did not answer"]))
    });
}

/// The host's clock ends requests before the library ends the process.
#[test]
fn cancels_and_timeouts_of_a_stopped_process_are_kept() {
    let engine = start(json!({"n_ctx": 512, "n_parallel": 2}));
    let cancelled = running(&engine, json!({}));
    // On a machine that is busy it can end before it has begun.
    let running_limited = |timeout_ms| {
        let endless = json!({"prompt": "Once", "n_predict": -1, "ignore_eos": true, "timeout_ms": timeout_ms});
        let id = submit(&engine, &endless);
        loop {
            let answer = poll(&engine, id, 1000);
            match answer["finished"] == true {
                true => return None,
                false if answer["completion_updates"] != json!([]) => return Some(id),
                false => {}
            }
        }
    };
    let limited = [1500, 4000, 12_000].into_iter().find_map(running_limited).expect("a request that runs");
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
        let submitted = submit(&engine, &json!({"prompt": "Once", "timeout_ms": 500}));
        let save = wait(Function::SessionSave, r#"{"filename": "/no/such", "timeout_ms": 500}"#);
        let end = |id: u64| drain(&engine, id).last().expect("an end").clone();
        assert_eq!(
            (&end(cancelled)["stop_type"], &end(limited)["stop_type"]),
            (&json!("cancelled"), &json!("timeout"))
        );
        assert_eq!(complete.join().expect("a call").expect("an answer")["stop_type"], "timeout");
        assert_eq!(end(submitted)["stop_type"], "timeout");
        let error = save.join().expect("a call").expect_err("the process has not answered");
        assert_eq!(error.code().as_str(), "timeout");
    });
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    call(&engine, Function::Complete, &json!({"prompt": "Once", "n_predict": 2}));
}

/// The host's side answers it. The contract has no exception for isolated engines.
#[test]
fn submit_waits_for_no_process() {
    let engine = start(json!({"n_ctx": 512}));
    let process = pid(&engine);
    let running = |engine: &JsonEngine| engine.status()["isolation"]["pid"].clone();
    let refused = |request: Value| {
        let request = request.to_string();
        engine.call(Function::Submit, Ok(request.as_bytes())).expect_err("invalid").code()
    };
    let answered = |request: &Value| {
        let answer = call(&engine, Function::Submit, request);
        assert_eq!(answer["prompt_stats"]["pending"], true, "{answer}");
        answer["id"].as_u64().expect("an id")
    };
    kill(process, "STOP");
    let id = answered(&json!({"prompt": "Once upon a time", "n_predict": 5, "speculative": false, "seed": 2}));
    let other = engine.submit_as(Endpoint::Plain, br#"{"prompt": "Once", "n_predict": 2}"#).expect("an answer");
    assert_eq!(refused(json!({"prompt": 5})), Code::InvalidRequest);
    assert_eq!(refused(json!({"prompt": "a", "id_slot": 1})), Code::InvalidRequest);
    // Nothing has waited until the process was ended as one that does not answer.
    assert_eq!(running(&engine), process);
    kill(process, "CONT");
    assert_eq!(drain(&engine, id).last().expect("an end")["tokens_predicted"], 5);
    assert_eq!(drain(&engine, other["id"].as_u64().expect("an id")).last().expect("an end")["tokens_predicted"], 2);
    // While no process runs, and the next one loads.
    kill(process, "KILL");
    while running(&engine) == process {}
    let id = answered(&json!({"prompt": "Once upon a time", "n_predict": 5}));
    assert_eq!(drain(&engine, id).last().expect("an end")["tokens_predicted"], 5);
}

/// A model of 800 MB is loaded for seconds.
#[test]
fn submit_waits_for_no_load() {
    let program = engine_with_fault("held", 1);
    let [hold, reached] = ["hold", "hold.reached"].map(|end| PathBuf::from(format!("{program}.{end}")));
    for left in [&hold, &reached] {
        let _ = std::fs::remove_file(left);
    }
    let engine = start(json!({"n_ctx": 512, "isolate_path": program}));
    std::fs::write(&hold, "").expect("target/ is writable");
    kill(pid(&engine), "KILL");
    while !reached.exists() {
        std::thread::sleep(Duration::from_millis(2));
    }
    let request = json!({"prompt": "Once upon a time", "n_predict": 5});
    let answer = call(&engine, Function::Submit, &request);
    assert_eq!(answer["prompt_stats"]["pending"], true, "{answer}");
    let cancelled = submit(&engine, &request);
    cancel(&engine, cancelled);
    assert_eq!(drain(&engine, cancelled).last().expect("an end")["stop_type"], "cancelled");
    let error = engine.call(Function::Submit, Ok(br#"{"prompt": 5}"#)).expect_err("invalid");
    assert_eq!(error.code(), Code::InvalidRequest);
    assert!(reached.exists(), "the load goes on after none of these calls");
    std::fs::remove_file(&hold).expect("it was made");
    let id = answer["id"].as_u64().expect("an id");
    assert_eq!(drain(&engine, id).last().expect("an end")["tokens_predicted"], 5);
}

/// A fault that only the process can find ends a submitted request, and is the error of a call that waits.
#[test]
fn request_that_the_process_refuses_ends_with_its_error() {
    let engine = start(json!({"n_ctx": 512}));
    let request = json!({"prompt": [1_000_000], "n_predict": 2, "tag": 7});
    let ends = drain(&engine, submit(&engine, &request));
    let [end] = ends.as_slice() else { panic!("{ends:?}") };
    assert_eq!((&end["success"], &end["code"], &end["tag"]), (&json!(false), &json!("invalid_request"), &json!(7)));
    let error = engine.call(Function::Complete, Ok(request.to_string().as_bytes())).expect_err("no such token");
    assert!(error.message().contains("1000000"), "{error}");
}

/// Prints what other threads pay while a request of 50 MB is sent: `scripts/check.sh deaths`.
#[test]
#[ignore = "run by scripts/check.sh deaths"]
fn cost_of_calls_beside_a_large_request() {
    let large = json!({"prompt": "Once upon a time. ".repeat(2_800_000), "n_predict": 1}).to_string();
    let cpu = || {
        let stat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux has it");
        stat.split(' ').next().and_then(|ns| ns.parse::<u64>().ok()).expect("a number") as f64 / 1e6
    };
    // Small requests that are not sent yet, because the large one is being sent, fill a shorter queue.
    let init = json!({"n_ctx": 512, "n_parallel": 2, "max_queue": 1_000_000});
    for (name, engine) in [("in this process", start_local(init.clone())), ("isolated", start(init))] {
        let endless = running(&engine, json!({}));
        let worst = std::thread::scope(|scope| {
            let sender = scope.spawn(|| engine.call(Function::Submit, Ok(large.as_bytes())));
            let mut worst = [(0.0, 0.0); 3];
            // An isolated engine's process gets the request after the call has returned.
            let mut rest = 300;
            while !sender.is_finished() || rest > 0 {
                if sender.is_finished() {
                    rest -= 1;
                    std::thread::sleep(Duration::from_millis(10));
                }
                for (which, worst) in worst.iter_mut().enumerate() {
                    let (begun, before) = (Instant::now(), cpu());
                    match which {
                        0 => drop(poll(&engine, endless, 0)),
                        1 => drop(engine.status()),
                        _ => {
                            let small = json!({"prompt": "Once", "n_predict": 1}).to_string();
                            let answer =
                                engine.call(Function::Submit, Ok(small.as_bytes())).expect("space in the queue");
                            drop(cancel(&engine, answer["id"].as_u64().expect("an id")));
                        }
                    }
                    let cost = (cpu() - before, begun.elapsed().as_secs_f64() * 1e3);
                    *worst = (cost.0.max(worst.0), cost.1.max(worst.1));
                }
            }
            let answer = sender.join().expect("a call").expect("an answer");
            // The request may have ended, and the ends of the small ones that nobody polls have taken its place.
            let _ = engine.cancel(Some(json!({"id": answer["id"]}).to_string().as_bytes()));
            worst
        });
        for (call, (cpu, wall)) in ["poll", "status", "submit and cancel"].into_iter().zip(worst) {
            println!("| {name} | {call} beside a submit of 50 MB | {cpu:.2} ms CPU | {wall:.1} ms |");
        }
        cancel(&engine, endless);
    }
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

/// In the engine's process, with one slot.
#[test]
fn requests_whose_preparation_takes_long_hold_no_others() {
    let engine = start(json!({"n_ctx": 512, "n_parallel": 1}));
    let text = "Tom had a hat and a drum, and Mia had a kite. ";
    // Some seconds each.
    let slow = json!({"prompts": vec![text.repeat(60_000); 6], "n_predict": 4});
    let slow: Vec<u64> = (0..3).map(|_| submit(&engine, &slow)).collect();
    for prompt in ["Tom".to_owned(), text.repeat(100)] {
        let id = submit(&engine, &json!({"prompt": prompt, "n_predict": 4}));
        assert_eq!(drain(&engine, id).last().expect("an end")["success"], true);
        for id in &slow {
            assert_eq!(poll(&engine, *id, 0)["finished"], false, "{id}");
        }
    }
}
