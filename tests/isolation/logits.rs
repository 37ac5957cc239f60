//! The logits callback of an isolated engine: the rows travel to the host's process and back.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use foredraft::api::{Function, JsonEngine};
use foredraft::error::Error;
use serde_json::{Value, json};

use crate::common::start as start_local;
use crate::process::{call, drain, is_alive, kill, pid, poll, start, submit, until_found};

/// The calls of a callback: the request, and the tokens before the position.
type Calls = Arc<Mutex<Vec<(u64, Vec<i32>)>>>;

fn init() -> Value {
    json!({"n_ctx": 512})
}

fn request() -> Value {
    json!({"prompt": "Once upon a time", "n_predict": 40, "seed": 7, "return_tokens": true, "ignore_eos": true,
        "logits_callback": true, "speculative": {"adaptive": false, "n_max": 5}})
}

/// Lets the callback note its calls and ban the token two positions before.
fn ban(engine: &JsonEngine) -> Calls {
    let calls = Calls::default();
    let noted = Arc::clone(&calls);
    engine.set_logits_hook(Some(Box::new(move |id, logits, tokens| {
        noted.lock().unwrap().push((id, tokens.to_vec()));
        logits[usize::try_from(tokens[tokens.len() - 2]).unwrap()] = f32::NEG_INFINITY;
        Ok(())
    })));
    calls
}

#[test]
fn completions_and_calls_are_those_of_an_engine_in_this_process() {
    let [local, isolated] = [start_local(init()), start(init())].map(|engine| {
        let calls = ban(&engine);
        let answer = call(&engine, Function::Complete, &request());
        let id = submit(&engine, &request());
        let updates = drain(&engine, id);
        let content: String = updates.iter().map(|update| update["content"].as_str().expect("content")).collect();
        assert_eq!(answer["content"], content);
        let calls = std::mem::take(&mut *calls.lock().unwrap());
        assert!(calls[40..].iter().all(|(of, _)| *of == id), "the host's number");
        (content, calls.into_iter().map(|(_, tokens)| tokens).collect::<Vec<_>>())
    });
    assert_eq!(local.1.len(), 80);
    assert_eq!(local, isolated);
}

#[test]
fn requests_end_where_the_callback_cancels_fails_or_is_removed() {
    let engine = start(init());
    let none = engine.call(Function::Submit, Ok(request().to_string().as_bytes()));
    assert!(none.expect_err("no callback").message().contains("no callback is set"));
    let end = |in_ninth: Box<dyn Fn(u64) -> Result<(), Error> + Send + Sync>| {
        let n_calls = AtomicUsize::new(0);
        engine.set_logits_hook(Some(Box::new(move |id, _, _| match n_calls.fetch_add(1, Ordering::SeqCst) {
            8 => in_ninth(id),
            _ => Ok(()),
        })));
        let last = drain(&engine, submit(&engine, &request())).pop().expect("an end");
        (last["stop_type"].clone(), last["tokens_predicted"].clone())
    };
    let canceller = engine.clone();
    let cancels = end(Box::new(move |id| {
        let command = json!({"id": id}).to_string();
        canceller.cancel(Some(command.as_bytes())).map(|_| ())
    }));
    assert_eq!(cancels.0, "cancelled");
    assert_eq!(end(Box::new(|_| Err(Error::invalid("no")))), (json!("error"), json!(8)));
    let remover = engine.clone();
    let removed = end(Box::new(move |_| {
        remover.set_logits_hook(None);
        Ok(())
    }));
    assert_eq!(removed, (json!("error"), json!(9)));
    // Others are not disturbed.
    let plain = json!({"prompt": "Once upon a time", "n_predict": 8});
    assert_eq!(call(&engine, Function::Complete, &plain)["tokens_predicted"], 8);
}

/// How long a slow callback takes: longer than all that must not wait for it.
const SLOW: Duration = Duration::from_secs(600);

#[test]
fn slow_callbacks_are_bounded_by_cancels_time_limits_and_unloads() {
    let engine = start(init());
    let (begun, waits) = std::sync::mpsc::channel();
    engine.set_logits_hook(Some(Box::new(move |_, _, _| {
        let _ = begun.send(());
        // Until the test program ends.
        std::thread::sleep(SLOW);
        Ok(())
    })));
    let started = Instant::now();
    // On a machine that is busy, a request can end before its first position.
    let id = until_found("a callback", || {
        let mut limited = request();
        limited["timeout_ms"] = json!(1000);
        let id = submit(&engine, &limited);
        while waits.try_recv().is_err() {
            let answer = poll(&engine, id, 10);
            if answer["finished"] == true {
                assert!(answer["completion_updates"].to_string().contains("timeout"), "{answer}");
                return None;
            }
        }
        Some(id)
    });
    let status = engine.status();
    assert_eq!(status["state"], "ready", "the process answers meanwhile");
    assert_eq!(drain(&engine, id).pop().expect("an end")["stop_type"], "timeout");
    engine.unload();
    assert!(started.elapsed() < SLOW / 2, "{:?}", started.elapsed());
}

#[test]
fn completion_is_the_same_when_its_process_is_killed() {
    let engine = start(init());
    let calls = ban(&engine);
    let expected = call(&engine, Function::Complete, &request())["content"].clone();
    calls.lock().unwrap().clear();
    let mut slow = request();
    slow["speculative"] = json!(false);
    let noted = Arc::clone(&calls);
    // The tenth call ends after the process has died.
    let (died, death) = std::sync::mpsc::channel();
    let death = Mutex::new(death);
    engine.set_logits_hook(Some(Box::new(move |id, logits, tokens| {
        let n_calls = {
            let mut noted = noted.lock().unwrap();
            noted.push((id, tokens.to_vec()));
            noted.len()
        };
        if n_calls == 10 {
            death.lock().unwrap().recv().unwrap();
        }
        logits[usize::try_from(tokens[tokens.len() - 2]).unwrap()] = f32::NEG_INFINITY;
        Ok(())
    })));
    let id = submit(&engine, &slow);
    while calls.lock().unwrap().len() < 10 {
        poll(&engine, id, 10);
    }
    let process = pid(&engine);
    kill(process, "KILL");
    while is_alive(process) {
        std::thread::sleep(Duration::from_millis(1));
    }
    died.send(()).unwrap();
    let mut content = String::new();
    loop {
        let answer = poll(&engine, id, 60_000);
        let updates = answer["completion_updates"].as_array().expect("updates");
        content.extend(updates.iter().map(|update| update["content"].as_str().expect("content")));
        if answer["finished"] == true {
            break;
        }
    }
    // The first polls may have taken some of the content.
    assert!(expected.as_str().expect("content").ends_with(&content) && !content.is_empty());
    assert!(engine.status()["isolation"]["n_restarts"] == 1);
}
