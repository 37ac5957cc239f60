//! An isolated engine answers as one in this process.

use std::time::{Duration, Instant};

use foredraft::api::{Function, JsonEngine, MAX_UNPOLLED};
use foredraft::error::Code;
use serde_json::{Value, json};

use crate::common::{model, start as start_local, with};
use crate::process::{call, drain, is_alive, kill, pid, poll, start, submit};

/// An answer without what differs from run to run.
fn comparable(mut answer: Value) -> Value {
    match &mut answer {
        Value::Object(object) => {
            ["timings", "id", "t_ms", "speculative", "completion_tokens_details"]
                .iter()
                .for_each(|key| drop(object.remove(*key)));
            object.values_mut().for_each(|value| *value = comparable(value.take()));
        }
        Value::Array(items) => items.iter_mut().for_each(|value| *value = comparable(value.take())),
        _ => {}
    }
    answer
}

#[test]
fn every_function_answers_as_in_this_process() {
    let init = json!({"n_ctx": 512, "n_parallel": 2, "embedding": true});
    let (local, isolated) = (start_local(init.clone()), start(init));
    let prompt = json!({"prompt": "Once upon a time", "n_predict": 12, "seed": 5, "speculative": false});
    let long = "Tom had a hat. ".repeat(400);
    let tools = json!([{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]);
    let chat = json!({"messages": [{"role": "user", "content": "Hi"}], "tools": tools, "n_predict": 40, "seed": 5, "speculative": false});
    for (function, request) in [
        (Function::Complete, with(&prompt, json!({"prompt": long, "on_overflow": "error"}))),
        (Function::Complete, json!({"messages": [{"role": "user", "content": long}]})),
        (Function::Complete, with(&chat, json!({"tool_choice": "look"}))),
        (Function::Complete, with(&chat, json!({"tool_choice": "other"}))),
        (Function::Embed, json!({"input": ["a", long]})),
        (Function::Tokenize, json!({"text": "Once upon a time"})),
        (Function::Detokenize, json!({"tokens": [300, 301, 302]})),
        (Function::ApplyTemplate, json!({"messages": [{"role": "user", "content": "Hi"}]})),
        (Function::Complete, prompt.clone()),
        (Function::Complete, with(&prompt, json!({"n_probs": 2}))),
        (Function::Complete, with(&prompt, json!({"__resume": [[300, 301]], "__number": 7, "timeout_ms": 60_000}))),
        (Function::Complete, json!({"prompt": 5})),
        (Function::LookupCache, json!({"action": "stats", "cache": "dynamic"})),
        (Function::LookupMerge, json!({"inputs": ["/no/such"], "output": "/no/such"})),
        (Function::SessionLoad, json!({"filename": "/no/such"})),
        (Function::SessionErase, json!({"id_slot": 0})),
        (Function::Complete, with(&prompt, json!({"conversation": "Mia", "id_slot": 0}))),
        (Function::Conversation, json!({"action": "fork", "conversation": "Mia", "to": "Tom"})),
        (Function::Conversation, json!({"action": "rewind", "conversation": "Tom", "token": 3})),
        (Function::Conversation, json!({"action": "list"})),
        (Function::Conversation, json!({"action": "drop", "conversation": "nobody"})),
        (Function::Embed, json!({"content": "a"})),
        (Function::Embed, json!({"input": ["a", "", "Once upon a time"]})),
        (Function::Rerank, json!({"query": "a", "documents": ["b"]})),
        // The last one, and without caches: the second completion has the slot of the first if that has ended before it comes.
        (Function::Complete, with(&prompt, json!({"n_cmpl": 2, "tag": {"a": 1}, "cache_prompt": false}))),
    ] {
        let bytes = request.to_string();
        let [one, other] = [&local, &isolated].map(|engine| {
            let answer = engine.call(function, Ok(bytes.as_bytes()));
            answer.unwrap_or_else(|error| foredraft::api::error_json(&error))
        });
        let (mut one, mut other) = (comparable(one), comparable(other));
        if request.get("n_cmpl").is_some() {
            let results = [&mut one, &mut other].map(|answer| answer["results"].as_array_mut().expect("results"));
            results.into_iter().flatten().for_each(|result| assert!(result["id_slot"].take().is_u64(), "{result}"));
        }
        assert!(one == other, "{function:?} {request}: {one} {other}");
    }
}

#[test]
fn updates_are_those_of_an_engine_in_this_process() {
    let init = json!({"n_ctx": 512});
    let (local, isolated) = (start_local(init.clone()), start(init));
    let request =
        json!({"prompt": "Once upon a time", "n_predict": 40, "seed": 5, "ignore_eos": true, "stop": ["zzz"]});
    let [one, other] = [&local, &isolated].map(|engine| {
        let updates = drain(engine, submit(engine, &request));
        let content: String = updates.iter().map(|update| update["content"].as_str().expect("content")).collect();
        (content, comparable(updates.last().expect("an end").clone()))
    });
    assert_eq!(one, other);
}

#[test]
fn polls_and_cancels_need_no_process() {
    let engine = start(json!({"n_ctx": 512, "n_parallel": 2}));
    let endless = json!({"prompt": "Once", "n_predict": -1, "ignore_eos": true});
    let ids = [submit(&engine, &endless), submit(&engine, &endless)];
    for id in ids {
        while poll(&engine, id, 1000)["completion_updates"].as_array().expect("updates").is_empty() {}
    }
    let process = pid(&engine);
    kill(process, "STOP");
    for id in ids {
        assert_eq!(poll(&engine, id, 0)["finished"], false);
    }
    let cancel = json!({"ids": ids}).to_string();
    let answer = engine.cancel(Some(cancel.as_bytes())).expect("an answer");
    assert!(answer["results"].as_array().expect("results").iter().all(|one| one["cancelled"] == true), "{answer}");
    kill(process, "CONT");
    for id in ids {
        assert_eq!(drain(&engine, id).last().expect("an end")["stop_type"], "cancelled");
    }
    let none = engine.poll(Some(br#"{"id": 1000000}"#)).expect_err("no such request");
    assert_eq!(none.code(), Code::NotFound);
}

#[test]
fn requests_that_an_unload_has_ended_are_polled_to_their_end() {
    let engine = start(json!({"n_ctx": 512}));
    let endless = json!({"prompt": "Once", "n_predict": -1, "ignore_eos": true});
    let ids = [submit(&engine, &endless), submit(&engine, &endless)];
    while poll(&engine, ids[0], 1000)["completion_updates"].as_array().expect("updates").is_empty() {}
    engine.unload();
    for id in ids {
        assert_eq!(drain(&engine, id).last().expect("an end")["stop_type"], "cancelled");
    }
}

#[test]
fn callbacks_may_call_functions() {
    let engine = start(json!({"n_ctx": 512}));
    let (told, news) = std::sync::mpsc::channel();
    let inner = engine.clone();
    engine.set_update_hook(Some(Box::new(move |id| {
        let tokens = inner.call(Function::Tokenize, Ok(br#"{"text": "a"}"#)).expect("tokens");
        let refused = inner.call(Function::Complete, Ok(b"{}")).expect_err("would deadlock");
        let _ = told.send((id, tokens["success"].clone(), refused.code()));
    })));
    let id = submit(&engine, &json!({"prompt": "Once", "n_predict": 4}));
    assert_eq!(news.recv_timeout(Duration::from_secs(60)), Ok((id, json!(true), Code::WouldDeadlock)));
    drain(&engine, id);
    engine.set_update_hook(None);
}

#[test]
fn failed_loads_say_why() {
    let init = json!({"model": "/no/such.gguf", "log_level": "none", "isolate": true,
        "isolate_path": env!("CARGO_BIN_EXE_foredraft-engine")});
    let engine = JsonEngine::new();
    let error = engine.load(init.to_string().as_bytes()).expect_err("no model");
    assert!(error.message().contains("/no/such.gguf"), "{error}");
    assert_eq!(engine.status()["state"], "failed");
    let missing = with(&init, json!({"isolate_path": "/no/such/engine"}));
    let error = engine.load(missing.to_string().as_bytes()).expect_err("no program");
    assert_eq!(error.code(), Code::NotFound);
    let address = with(&init, json!({"model": {"address": 4096, "length": 10}}));
    assert_eq!(engine.load(address.to_string().as_bytes()).expect_err("an address").code(), Code::InvalidRequest);
}

/// The limit is the engine's: this process goes on. `fallback` loads it with less context until it fits.
#[test]
fn memory_limit_is_the_engines() {
    let init = json!({"model": model("target"), "n_ctx": 262144, "memory_mb": 300, "log_level": "none", "isolate": true,
        "n_threads": 1, "isolate_path": env!("CARGO_BIN_EXE_foredraft-engine"), "isolate_nice": 3, "isolate_cpus": "0-0"});
    let engine = JsonEngine::new();
    let refused = engine.load(init.to_string().as_bytes()).expect_err("too much memory");
    let (_, left) = refused.message().split_once("MiB of memory, and this process can have ").expect("what it lacks");
    let left: u64 = left.split(' ').next().and_then(|left| left.parse().ok()).expect("a number");
    assert!((1..300).contains(&left), "{refused}");
    engine.load(with(&init, json!({"fallback": true})).to_string().as_bytes()).expect("less context");
    let status = engine.status();
    assert!(status["n_ctx"].as_u64().is_some_and(|n_ctx| (512..262144).contains(&n_ctx)), "{status}");
    assert!(
        status["isolation"]["deaths"][0]["change"].as_str().is_some_and(|change| change.contains("n_ctx")),
        "{status}"
    );
    let process = pid(&engine);
    let read = |name: &str| std::fs::read_to_string(format!("/proc/{process}/{name}")).expect("the process");
    assert!(read("status").lines().any(|line| line == "Cpus_allowed_list:\t0"), "{}", read("status"));
    assert_eq!(read("stat").rsplit(") ").next().and_then(|rest| rest.split(' ').nth(16)), Some("3"));
    call(&engine, Function::Complete, &json!({"prompt": "Once", "n_predict": 2}));
}

#[test]
fn process_ends_with_its_engine() {
    let engine = start(json!({"n_ctx": 512}));
    let process = pid(&engine);
    let id = submit(&engine, &json!({"prompt": "Once", "n_predict": -1, "ignore_eos": true}));
    poll(&engine, id, 1000);
    engine.unload();
    assert!(!is_alive(process));
    assert_eq!(engine.status()["state"], "uninitialized");
}

const CHILD: &str = "FOREDRAFT_TEST_ISOLATED_HOST";

/// However the host ends.
#[test]
fn process_ends_with_its_host() {
    for how in ["exit", "kill"] {
        let mut host = std::process::Command::new(std::env::current_exe().expect("a test has a path"))
            .args(["--exact", "interface::host_that_ends", "--include-ignored", "--nocapture"])
            .env(CHILD, how)
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("a test can be started");
        let mut lines = std::io::BufRead::lines(std::io::BufReader::new(host.stdout.take().expect("piped")));
        let process = lines.find_map(|line| line.ok()?.strip_prefix("process ")?.parse().ok()).expect("a number");
        if how == "kill" {
            host.kill().expect("it runs");
        }
        host.wait().expect("it ends");
        let begun = Instant::now();
        while is_alive(process) {
            assert!(begun.elapsed() < Duration::from_secs(60), "{how}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
#[ignore = "run by process_ends_with_its_host"]
fn host_that_ends() {
    let engine = start(json!({"n_ctx": 512}));
    submit(&engine, &json!({"prompt": "Once", "n_predict": -1, "ignore_eos": true}));
    println!("\nprocess {}", pid(&engine));
    if std::env::var(CHILD).is_ok_and(|how| how == "exit") {
        std::process::exit(0);
    }
    std::thread::sleep(Duration::from_secs(600));
}

/// Prints what a poll costs: `scripts/check.sh deaths`.
#[test]
#[ignore = "run by scripts/check.sh deaths"]
fn cost_of_a_poll() {
    let engine = start(json!({"n_ctx": 512}));
    let id = submit(&engine, &json!({"prompt": "Once", "n_predict": -1, "ignore_eos": true}));
    const POLLS: u32 = 20_000;
    let begun = Instant::now();
    let n_updates: usize =
        (0..POLLS).map(|_| poll(&engine, id, 0)["completion_updates"].as_array().map_or(0, Vec::len)).sum();
    let micros = begun.elapsed().as_secs_f64() * 1e6 / f64::from(POLLS);
    println!(
        "| a poll of an isolated engine that generates | {POLLS} polls, {n_updates} updates | {micros:.1} us each |"
    );
}

/// The memory of an engine grows with what its requests leave: ends that nobody polled, and the n-grams of their completions.
#[test]
fn requests_that_are_never_polled_leave_bounded_counts() {
    let engine = start(json!({"n_ctx": 256, "n_parallel": 4, "max_queue": 1000}));
    let request =
        |seed: usize| json!({"prompt": "Once upon a time", "n_predict": 4, "speculative": false, "seed": seed});
    let learned = || {
        let stats = json!({"action": "stats", "cache": "dynamic"});
        call(&engine, Function::LookupCache, &stats)["n_ngrams"].as_u64().expect("a count")
    };
    let submit_all = |requests: std::ops::Range<usize>, seed: &dyn Fn(usize) -> usize| -> Vec<u64> {
        let ids: Vec<u64> = requests.map(|number| submit(&engine, &request(seed(number)))).collect();
        // A call that waits for its completion returns after the others have ended. The second one drops the ends that are too many.
        (0..2).for_each(|_| drop(call(&engine, Function::Complete, &request(1))));
        ids
    };
    submit_all(0..20, &|_| 1);
    let same = learned();
    let mut ids = submit_all(0..MAX_UNPOLLED, &|_| 1);
    assert_eq!(learned(), same, "the same completion again is nothing new");
    let n_new = 80;
    ids.extend(submit_all(0..n_new, &|number| 2 + number));
    // Before each of the four tokens are n-grams of one to four tokens.
    assert!((same + 1..=same + 4 * 4 * n_new as u64).contains(&learned()), "{same} and {}", learned());
    let is_kept = |id: &&u64| engine.poll(Some(json!({"id": id}).to_string().as_bytes())).is_ok();
    let kept = ids.iter().filter(is_kept).count();
    assert!((MAX_UNPOLLED - 4..=MAX_UNPOLLED + 4).contains(&kept), "{kept} of {}", ids.len());
    call(&engine, Function::LookupCache, &json!({"action": "clear", "cache": "dynamic"}));
    assert_eq!(learned(), 0);
}

/// Prints the memory of the process, and of this one, while requests run that are never polled: `scripts/check.sh deaths`.
#[test]
#[ignore = "run by scripts/check.sh deaths"]
fn memory_of_requests_that_are_never_polled() {
    let engine = start(json!({"n_ctx": 512, "n_parallel": 4}));
    let request = json!({"prompt": "Once upon a time", "n_predict": 4, "speculative": false, "seed": 1}).to_string();
    let memory = |process: &str| {
        let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("a process");
        let line = status.lines().find(|line| line.starts_with("RssAnon:")).expect("a line");
        line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("a number")
    };
    let child = pid(&engine).to_string();
    const ROUND: usize = 5000;
    for round in 1..=8 {
        for _ in 0..ROUND {
            while let Err(error) = engine.call(Function::Submit, Ok(request.as_bytes())) {
                assert_eq!(error.code(), Code::QueueFull, "{error}");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let learned = call(&engine, Function::LookupCache, &json!({"action": "stats", "cache": "dynamic"}));
        println!(
            "| {} requests that are never polled | process {} KiB, its n-grams {} KiB | host {} KiB |",
            round * ROUND,
            memory(&child),
            learned["memory_bytes"].as_u64().expect("a number") >> 10,
            memory("self")
        );
    }
}
