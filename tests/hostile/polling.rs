//! Polls and cancels of unknown and finished requests, full queues, and cancels at every stage.

use std::ffi::c_void;
use std::sync::Mutex;

use serde_json::{Value, json};

use crate::c_api::{
    COMMANDS, assert_works, both_ways, call, command, endless, error_of, last_update, load, loaded,
    set_update_callback, status, submit, unload, wait_for_state, wait_until,
};

#[test]
fn unknown_ids_are_not_found() {
    let _guard = loaded(json!({}));
    for name in COMMANDS {
        for id in [json!(0), json!(999_999_999), json!(u64::MAX)] {
            assert_eq!(error_of(name, &json!({"id": id})).0, "not_found", "{name} {id}");
        }
        for id in [json!(-1), json!("7"), json!(1.5), json!([7]), json!(true), json!(1e30)] {
            assert_eq!(error_of(name, &json!({"id": id})).0, "invalid_request", "{name} {id}");
        }
        for timeout in [json!(-1), json!("long"), json!(1e300)] {
            let command = json!({"id": 1, "timeout_ms": timeout});
            assert_eq!(error_of(name, &command).0, "invalid_request", "{name} {command}");
        }
    }
    assert_works();
}

#[test]
fn finished_and_cancelled_requests_stay_finished() {
    let _guard = loaded(json!({}));
    let [finish, run] = [json!({"prompt": "Once", "n_predict": 2}), endless()].map(|request| both_ways(&request));
    for (finish, run) in finish.iter().zip(&run) {
        let finished = submit(finish);
        assert_eq!(last_update(finished)["stop_type"], "limit");
        let cancelled = submit(run);
        assert_eq!(call("cancel", &json!({"id": cancelled}))["cancelled"], true);
        assert_eq!(last_update(cancelled)["stop_type"], "cancelled");
        for id in [finished, cancelled] {
            for _ in 0..3 {
                let answer = call("poll", &json!({"id": id, "timeout_ms": 60_000}));
                assert_eq!(answer["finished"], true, "{answer}");
                assert_eq!(answer["completion_updates"], json!([]), "each update is handed out once");
                assert_eq!(call("cancel", &json!({"id": id}))["cancelled"], false);
            }
        }
    }
    assert_works();
}

#[test]
fn ids_from_before_a_new_load_are_polled_to_their_end() {
    let _guard = loaded(json!({}));
    let id = submit(&endless());
    assert_eq!(load(Some(command(json!({})).to_string().as_bytes())), 0);
    assert_eq!(last_update(id)["stop_type"], "cancelled");
    assert_ne!(submit(&json!({"prompt": "a", "n_predict": 1})), id, "ids are never reused");
}

#[test]
fn full_queue_refuses_new_requests() {
    let _guard = loaded(json!({"max_queue": 2}));
    let running = submit(&endless());
    wait_for_state(running, "generating");
    let waiting = [submit(&endless()), submit(&json!({"prompt": "Once", "n_predict": 2}))];
    for request in both_ways(&endless()) {
        for name in ["submit", "complete"] {
            let (code, error) = error_of(name, &request);
            assert_eq!(code, "queue_full", "{name} {request}: {error}");
        }
    }
    // The other requests are unaffected.
    wait_until("the queue's length", || status()["queue"] == 2);
    assert_eq!(call("poll", &json!({"id": waiting[0]}))["state"], "queued");
    for id in [waiting[0], running] {
        assert_eq!(call("cancel", &json!({"id": id}))["cancelled"], true);
        assert_eq!(last_update(id)["stop_type"], "cancelled");
    }
    assert_eq!(last_update(waiting[1])["stop_type"], "limit");
    assert_works();
}

/// The status is read while the prompt is decoded as one batch.
#[test]
fn status_shows_a_request_that_has_just_started() {
    let _guard = loaded(json!({"n_ctx": 2048}));
    let prompt: Vec<u32> = (0..1900).map(|n| 300 + n * n % 700).collect();
    // On a machine that is busy this thread can sleep during a whole decode.
    let is_shown = |_| {
        let request = json!({"prompt": prompt, "n_predict": 1, "cache_prompt": false});
        let id = submit(&request);
        let is_shown = || {
            let slot = status()["slots"][0].clone();
            slot["state"] == "prompt" && slot["request_id"] == id
        };
        loop {
            if is_shown() {
                last_update(id);
                return true;
            }
            if call("poll", &json!({"id": id}))["finished"] == true {
                return false;
            }
        }
    };
    assert!((0..50).any(is_shown), "the status must show the request before it finishes");
    assert_works();
}

/// A cancelled request leaves the queue at once.
#[test]
fn cancelled_requests_leave_the_queue() {
    let _guard = loaded(json!({"max_queue": 2}));
    let running = submit(&endless());
    wait_for_state(running, "generating");
    for _ in 0..100 {
        let id = submit(&endless());
        assert_eq!(call("cancel", &json!({"id": id}))["cancelled"], true);
    }
    call("cancel", &json!({"id": running}));
    last_update(running);
    assert_works();
}

/// The engine forgets the unpolled requests that ended first, not a long one that has just ended.
#[test]
fn oldest_unpolled_results_are_dropped() {
    let _guard = loaded(json!({"n_parallel": 2}));
    let in_slot = |index: u32| {
        let mut request = endless();
        request["id_slot"] = index.into();
        submit(&request)
    };
    let long = in_slot(0);
    wait_for_state(long, "generating");
    let others: Vec<u64> = (0..300)
        .map(|_| {
            let id = in_slot(1);
            assert_eq!(call("cancel", &json!({"id": id}))["cancelled"], true);
            id
        })
        .collect();
    call("cancel", &json!({"id": long}));
    wait_until("no slot to be busy", || {
        status()["slots"].as_array().expect("slots").iter().all(|slot| slot["state"] == "idle")
    });
    let newest = submit(&json!({"prompt": "Once", "n_predict": 1}));
    assert_eq!(last_update(newest)["stop_type"], "limit");
    assert_eq!(last_update(long)["stop_type"], "cancelled");
    assert_eq!(last_update(others[299])["stop_type"], "cancelled");
    assert_eq!(error_of("poll", &json!({"id": others[0]})).0, "not_found");
    assert_works();
}

#[test]
fn request_can_be_cancelled_at_every_stage() {
    let _guard = loaded(json!({"n_ctx": 16384, "n_batch": 512, "max_queue": 8}));
    let long = json!({"prompt": vec![1; 16000], "n_predict": 1, "cache_prompt": false});
    for [long, endless] in [0, 1].map(|way| [&long, &endless()].map(|request| both_ways(request)[way].clone())) {
        let end = |id: u64| {
            assert_eq!(call("cancel", &json!({"id": id}))["cancelled"], true);
            let last = last_update(id);
            assert_eq!(last["stop_type"], "cancelled", "{last}");
            last
        };
        // While its prompt is decoded; most of the prompt is never decoded.
        let id = submit(&long);
        wait_for_state(id, "prompt");
        let last = end(id);
        assert_eq!(last["tokens_predicted"], 0, "{last}");
        assert!(last["tokens_cached"].as_u64().expect("a number") < 16000, "{last}");
        // While it generates.
        let id = submit(&endless);
        wait_for_state(id, "generating");
        assert!(end(id)["tokens_predicted"].as_u64().expect("a number") > 0);
        // While it is queued.
        let running = submit(&endless);
        wait_for_state(running, "generating");
        let id = submit(&endless);
        assert_eq!(end(id)["tokens_predicted"], 0);
        end(running);
        // At a random time.
        for polls in 0..40 {
            let id = submit(&endless);
            for _ in 0..polls {
                call("poll", &json!({"id": id}));
            }
            end(id);
        }
    }
    assert_works();
}

/// Other requests continue after one is cancelled.
#[test]
fn cancelling_one_request_does_not_affect_others() {
    let _guard = loaded(json!({"n_parallel": 4, "n_ctx": 4096}));
    let alone = json!({"prompt": "Once upon a time", "n_predict": 40, "temperature": 0});
    let expected = call("complete", &alone)["content"].clone();
    let asked = submit(&json!({"prompt": "Tom", "n_predict": 40, "temperature": 0}));
    let others: Vec<u64> = (0..2).map(|_| submit(&endless())).collect();
    for id in &others {
        call("cancel", &json!({"id": id}));
    }
    assert_eq!(last_update(asked)["stop_type"], "limit");
    for id in others {
        assert_eq!(last_update(id)["stop_type"], "cancelled");
    }
    assert_eq!(call("complete", &alone)["content"], expected);
}

/// An unload while a request is parsed refuses or cancels it.
#[test]
fn unload_during_parsing_ends_the_request() {
    let _guard = loaded(json!({"n_ctx": 256}));
    let request = slow_to_parse();
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| call("submit", &request));
        while status()["state"] == "ready" {
            unload();
        }
        let answer = reading.join().expect("an answer");
        let code = answer["code"].as_str().unwrap_or_default();
        assert!(answer["id"].is_u64() || ["cancelled", "not_initialized"].contains(&code), "{answer}");
        assert_eq!(load(Some(command(json!({})).to_string().as_bytes())), 0);
        if let Some(id) = answer["id"].as_u64() {
            assert_eq!(last_update(id)["stop_type"], "cancelled");
        }
    });
    assert_works();
}

/// Cancels of all requests while one is parsed: it is cancelled if and only if a cancel reported its id, and no cancel waits for it.
#[test]
fn cancel_during_parsing_does_not_wait_or_hit_the_wrong_request() {
    let _guard = loaded(json!({"n_ctx": 256}));
    for request in both_ways(&slow_to_parse()) {
        let cancels_before = |_| {
            let earlier = submit(&json!({"prompt": "Once", "n_predict": 1}));
            last_update(earlier);
            let (mut cancels_before, mut cancelled) = (0, Vec::new());
            let id = std::thread::scope(|scope| {
                let reading = scope.spawn(|| submit(&request));
                while !reading.is_finished() {
                    let ids = call("cancel", &json!({"all": true}))["ids"].as_array().expect("ids").clone();
                    cancels_before += usize::from(ids.is_empty());
                    cancelled.extend(ids);
                }
                reading.join().expect("a number")
            });
            assert!(cancelled.iter().all(|cancelled| *cancelled == id), "{cancelled:?} {id}");
            let expected = if cancelled.is_empty() { "limit" } else { "cancelled" };
            assert_eq!(last_update(id)["stop_type"], expected, "{cancelled:?}");
            wait_until("free slots", || status()["queue"] == 0 && status()["slots"][0]["state"] == "idle");
            cancels_before
        };
        // On a machine that is busy this thread can sleep while the request is parsed.
        assert!((0..50).map(cancels_before).any(|n| n > 3), "the request was parsed too fast for this test");
    }
    assert_works();
}

/// A request whose JSON, grammar and prompt take long to parse.
pub fn slow_to_parse() -> Value {
    let grammar: String = (0..2000).map(|rule| format!("r{rule} ::= [a-z]{{1,9}} r{}?\n", rule + 1)).collect();
    json!({
        "prompt": "Once upon a time there was a kite. ".repeat(20_000), "n_predict": 3, "ignore_eos": true,
        "grammar": format!("root ::= r0\n{grammar}r2000 ::= \"b\"\n"),
    })
}

/// A blocking caller gets the whole output; a poll with the id from the callback must not take any of it.
#[test]
fn poll_takes_no_updates_from_a_blocking_completion() {
    static SEEN: Mutex<Vec<(u64, Value)>> = Mutex::new(Vec::new());
    extern "C" fn poll(id: u64, _user: *mut c_void) {
        SEEN.lock().expect("not poisoned").push((id, call("poll", &json!({"id": id}))));
    }
    let _guard = loaded(json!({}));
    let request = json!({"prompt": "Once upon a time", "n_predict": 30, "temperature": 0, "ignore_eos": true});
    let expected = call("complete", &request)["content"].clone();
    set_update_callback(Some(poll), 0);
    assert_eq!(call("complete", &request)["content"], expected);
    set_update_callback(None, 0);
    let seen = std::mem::take(&mut *SEEN.lock().expect("not poisoned"));
    assert!(seen.len() > 3, "{seen:?}");
    for (id, answer) in seen {
        assert_eq!((&answer["id"], &answer["completion_updates"]), (&json!(id), &json!([])), "{answer}");
    }
    assert_works();
}

/// The engine may finish a request before its id is returned to the caller.
#[test]
fn id_is_valid_as_soon_as_the_callback_reports_it() {
    static CODES: Mutex<Vec<Value>> = Mutex::new(Vec::new());
    extern "C" fn poll(id: u64, _user: *mut c_void) {
        CODES.lock().expect("not poisoned").push(call("poll", &json!({"id": id}))["success"].clone());
    }
    let _guard = loaded(json!({"max_queue": 1000}));
    set_update_callback(Some(poll), 0);
    for _ in 0..200 {
        submit(&json!({"prompt": "a", "session_load": "/nowhere"}));
    }
    wait_until("all callbacks", || CODES.lock().expect("not poisoned").len() >= 200);
    set_update_callback(None, 0);
    assert!(CODES.lock().expect("not poisoned").iter().all(|success| *success == true));
    assert_works();
}

/// Everything that was generated comes in updates with `"stop": false`, and the last update has no text
/// and, with `n_probs`, the probabilities of the whole completion.
#[test]
fn all_that_is_generated_comes_before_the_last_update() {
    let _turn = loaded(json!({"n_parallel": 2, "n_ctx": 1024}));
    let base = json!({"prompt": "Once upon a time", "temperature": 0, "n_probs": 2, "return_tokens": true});
    let requests = [
        json!({"n_predict": 1}),
        json!({"n_predict": 2}),
        json!({"n_predict": 40}),
        json!({"n_predict": 40, "speculative": {"adaptive": false, "n_max": 8, "type": "draft"}}),
        json!({"n_predict": 200, "stop": ["child named"]}),
        json!({"n_predict": 200, "stop": ["."], "speculative": {"adaptive": false, "n_max": 8}}),
        json!({"n_predict": 0}),
        json!({"prompt": "<|im_start|>user\nCount from 3 to 5.<|im_end|>\n<|im_start|>assistant\n", "n_predict": 200}),
        json!({"n_predict": 9, "n_probs": 0, "return_tokens": false}),
        json!({"n_predict": 12, "prompts": ["Tom", "Once upon"]}),
    ];
    for (more, speculates) in requests.iter().flat_map(|more| [false, true].map(|speculates| (more, speculates))) {
        let mut request = base.clone();
        request.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        if request["prompts"].is_array() {
            request.as_object_mut().expect("an object").remove("prompt");
        }
        if !speculates && !request["speculative"].is_object() {
            request["speculative"] = false.into();
        }
        let whole = call("complete", &request);
        let results = whole["results"].as_array().cloned().unwrap_or_else(|| vec![whole.clone()]);
        let mut seen: Vec<(String, Vec<Value>, Vec<Value>, usize)> =
            results.iter().map(|_| Default::default()).collect();
        let id = submit(&request);
        loop {
            let answer = call("poll", &json!({"id": id, "timeout_ms": 1000}));
            for update in answer["completion_updates"].as_array().expect("updates") {
                let (text, probabilities, tokens, ends) = &mut seen[update["index"].as_u64().unwrap_or(0) as usize];
                let list = |key: &str| update[key].as_array().cloned().unwrap_or_default();
                let told = [request["n_probs"] != 0, request["return_tokens"] == true];
                let keys = ["completion_probabilities", "tokens"].map(|key| update[key].is_array());
                assert_eq!(keys, told, "{request}: {update}");
                if update["stop"] == true {
                    *ends += 1;
                    assert_eq!(update["content"], "", "{request}: {update}");
                    assert_eq!(list("completion_probabilities"), *probabilities, "{request}: {update}");
                    assert!(list("tokens").is_empty(), "{request}: {update}");
                } else {
                    assert_eq!(*ends, 0, "{request}: {update} after the end");
                    *text += update["content"].as_str().expect("content");
                    probabilities.extend(list("completion_probabilities"));
                    tokens.extend(list("tokens"));
                }
            }
            if answer["finished"] == true {
                break;
            }
        }
        for (result, (text, probabilities, tokens, ends)) in results.iter().zip(seen) {
            assert_eq!((&json!(text), ends), (&result["content"], 1), "{request}");
            if request["return_tokens"] == true {
                assert_eq!(json!(tokens), result["tokens"], "{request}");
                assert_eq!(json!(probabilities), result["completion_probabilities"], "{request}");
            }
        }
    }
    assert_works();
}
