//! Polls and cancels of requests that are not there, or not any more; full queues; cancels at every stage.

use std::ffi::c_void;
use std::sync::Mutex;

use serde_json::{Value, json};

use crate::c::{
    call, call_bytes, endless, last_update, loaded, refusal, set_update_callback, status, submit, until,
    wait_for_state, works,
};

const FAMILIES: [&str; 2] = ["async_completion", "speculative_completion"];

#[test]
fn unknown_requests() {
    let _turn = loaded(json!({}));
    for family in FAMILIES {
        for name in [format!("{family}_poll"), format!("{family}_cancel")] {
            for id in [json!(0), json!(999_999_999), json!(u64::MAX)] {
                assert_eq!(refusal(&name, &json!({"id": id})).0, "not_found", "{name} {id}");
            }
            for id in [json!(-1), json!("7"), json!(1.5), json!([7]), json!(true), json!(1e30)] {
                assert_eq!(refusal(&name, &json!({"id": id})).0, "invalid_request", "{name} {id}");
            }
            for timeout in [json!(-1), json!("long"), json!(1e300)] {
                let command = json!({"id": 1, "timeout_ms": timeout});
                assert_eq!(refusal(&name, &command).0, "invalid_request", "{name} {command}");
            }
        }
    }
    works();
}

#[test]
fn finished_and_cancelled_requests_stay_finished() {
    let _turn = loaded(json!({}));
    for family in FAMILIES {
        let (start, poll, cancel) = (format!("{family}_init"), format!("{family}_poll"), format!("{family}_cancel"));
        let finished = submit(&start, &json!({"prompt": "Once", "n_predict": 2}));
        assert_eq!(last_update(family, finished)["stop_type"], "limit");
        let cancelled = submit(&start, &endless());
        assert_eq!(call(&cancel, &json!({"id": cancelled}))["cancelled"], true);
        assert_eq!(last_update(family, cancelled)["stop_type"], "cancelled");
        for id in [finished, cancelled] {
            for _ in 0..3 {
                let answer = call(&poll, &json!({"id": id, "timeout_ms": 60_000}));
                assert_eq!(answer["finished"], true, "{answer}");
                assert_eq!(answer["completion_updates"], json!([]), "each update is handed out once");
                assert_eq!(call(&cancel, &json!({"id": id}))["cancelled"], false);
            }
        }
        // Without an id: the newest request of the family.
        for document in [None, Some(&b""[..]), Some(b"{}"), Some(b" "), Some(b"7"), Some(b"no JSON")] {
            assert_eq!(call_bytes(&poll, document)["id"], cancelled);
            assert_eq!(call_bytes(&cancel, document)["cancelled"], false);
        }
    }
    works();
}

#[test]
fn a_request_from_before_a_new_init_is_unknown() {
    let _turn = loaded(json!({}));
    let id = submit("async_completion_init", &endless());
    assert_eq!(crate::c::init(Some(crate::c::command(json!({})).to_string().as_bytes())), 0);
    assert_eq!(refusal("async_completion_poll", &json!({"id": id})).0, "not_found");
    assert_ne!(submit("async_completion_init", &json!({"prompt": "a", "n_predict": 1})), id, "numbers are used once");
}

#[test]
fn a_full_queue() {
    let _turn = loaded(json!({"max_queue": 2}));
    let running = submit("async_completion_init", &endless());
    wait_for_state("async_completion", running, "generating");
    let waiting = [
        submit("async_completion_init", &endless()),
        submit("speculative_completion_init", &json!({"prompt": "Once", "n_predict": 2})),
    ];
    for name in ["async_completion_init", "speculative_completion_init", "get_completion", "speculative_completion"] {
        let (code, error) = refusal(name, &endless());
        assert_eq!(code, "queue_full", "{name}: {error}");
    }
    // The others are as they were.
    until("the queue's length", || status()["queue"] == 2);
    assert_eq!(call("async_completion_poll", &json!({"id": waiting[0]}))["state"], "queued");
    for id in [waiting[0], running] {
        assert_eq!(call("async_completion_cancel", &json!({"id": id}))["cancelled"], true);
        assert_eq!(last_update("async_completion", id)["stop_type"], "cancelled");
    }
    assert_eq!(last_update("speculative_completion", waiting[1])["stop_type"], "limit");
    works();
}

/// While its prompt is evaluated as one batch.
#[test]
fn the_status_tells_of_what_has_just_begun() {
    let _turn = loaded(json!({"n_ctx": 2048}));
    let prompt: Vec<u32> = (0..1900).map(|n| 300 + n * n % 700).collect();
    let id = submit("async_completion_init", &json!({"prompt": prompt, "n_predict": 1}));
    let is_told = || {
        let slot = status()["slots"][0].clone();
        slot["state"] == "prompt" && slot["request_id"] == id
    };
    while !is_told() {
        assert_eq!(
            call("async_completion_poll", &json!({"id": id}))["finished"],
            false,
            "it is not told before the end"
        );
    }
    last_update("async_completion", id);
    works();
}

/// A request that was cancelled waits for nothing.
#[test]
fn cancelled_requests_leave_the_queue() {
    let _turn = loaded(json!({"max_queue": 2}));
    let running = submit("async_completion_init", &endless());
    wait_for_state("async_completion", running, "generating");
    for _ in 0..100 {
        let id = submit("speculative_completion_init", &endless());
        assert_eq!(call("speculative_completion_cancel", &json!({"id": id}))["cancelled"], true);
    }
    call("async_completion_cancel", &json!({"id": running}));
    last_update("async_completion", running);
    works();
}

/// Of those that nobody polls, the ones that ended first are forgotten, not a long one that has only just ended.
#[test]
fn results_that_nobody_polls() {
    let _turn = loaded(json!({"n_parallel": 2}));
    let in_slot = |index: u32| {
        let mut request = endless();
        request["id_slot"] = index.into();
        submit("async_completion_init", &request)
    };
    let long = in_slot(0);
    wait_for_state("async_completion", long, "generating");
    let others: Vec<u64> = (0..300)
        .map(|_| {
            let id = in_slot(1);
            assert_eq!(call("async_completion_cancel", &json!({"id": id}))["cancelled"], true);
            id
        })
        .collect();
    call("async_completion_cancel", &json!({"id": long}));
    until("nothing runs", || status()["slots"].as_array().expect("slots").iter().all(|slot| slot["state"] == "idle"));
    let newest = submit("async_completion_init", &json!({"prompt": "Once", "n_predict": 1}));
    assert_eq!(last_update("async_completion", newest)["stop_type"], "limit");
    assert_eq!(last_update("async_completion", long)["stop_type"], "cancelled");
    assert_eq!(last_update("async_completion", others[299])["stop_type"], "cancelled");
    assert_eq!(refusal("async_completion_poll", &json!({"id": others[0]})).0, "not_found");
    works();
}

#[test]
fn a_cancel_at_every_stage() {
    let _turn = loaded(json!({"n_ctx": 16384, "n_batch": 512, "max_queue": 8}));
    let long = json!({"prompt": vec![1; 16000], "n_predict": 1, "cache_prompt": false});
    for family in FAMILIES {
        let (start, cancel) = (format!("{family}_init"), format!("{family}_cancel"));
        let end = |id: u64| {
            assert_eq!(call(&cancel, &json!({"id": id}))["cancelled"], true);
            let last = last_update(family, id);
            assert_eq!(last["stop_type"], "cancelled", "{last}");
            last
        };
        // While its prompt is evaluated: the largest part of it never is.
        let id = submit(&start, &long);
        wait_for_state(family, id, "prompt");
        let last = end(id);
        assert_eq!(last["tokens_predicted"], 0, "{last}");
        assert!(last["tokens_cached"].as_u64().expect("a number") < 16000, "{last}");
        // While it generates.
        let id = submit(&start, &endless());
        wait_for_state(family, id, "generating");
        assert!(end(id)["tokens_predicted"].as_u64().expect("a number") > 0);
        // While it waits.
        let running = submit(&start, &endless());
        wait_for_state(family, running, "generating");
        let id = submit(&start, &endless());
        assert_eq!(end(id)["tokens_predicted"], 0);
        end(running);
        // At any moment.
        for polls in 0..40 {
            let id = submit(&start, &endless());
            for _ in 0..polls {
                call(&format!("{family}_poll"), &json!({"id": id}));
            }
            end(id);
        }
    }
    works();
}

/// One request's cancel is no other's business.
#[test]
fn a_cancel_disturbs_nobody_else() {
    let _turn = loaded(json!({"n_parallel": 4, "n_ctx": 4096}));
    let alone = json!({"prompt": "Once upon a time", "n_predict": 40, "temperature": 0});
    let expected = call("get_completion", &alone)["content"].clone();
    let asked = submit("async_completion_init", &json!({"prompt": "Tom", "n_predict": 40, "temperature": 0}));
    let others: Vec<u64> = (0..2).map(|_| submit("speculative_completion_init", &endless())).collect();
    for id in &others {
        call("speculative_completion_cancel", &json!({"id": id}));
    }
    assert_eq!(last_update("async_completion", asked)["stop_type"], "limit");
    for id in others {
        assert_eq!(last_update("speculative_completion", id)["stop_type"], "cancelled");
    }
    assert_eq!(call("get_completion", &alone)["content"], expected);
}

/// A request has no number while its text is made tokens and its grammar is read: a cancel then finds the newest of those that
/// have one. It does not wait, and what comes later is cancelled if, and only if, a cancel has said so.
#[test]
fn a_cancel_meets_a_request_that_is_still_being_read() {
    let _turn = loaded(json!({"n_ctx": 256}));
    let grammar: String = (0..2000).map(|rule| format!("r{rule} ::= [a-z]{{1,9}} r{}?\n", rule + 1)).collect();
    let request = json!({
        "prompt": "Once upon a time there was a kite. ".repeat(20_000), "n_predict": 3, "ignore_eos": true,
        "grammar": format!("root ::= r0\n{grammar}r2000 ::= \"b\"\n"),
    });
    for family in FAMILIES {
        let (start, cancel) = (format!("{family}_init"), format!("{family}_cancel"));
        let earlier = submit(&start, &json!({"prompt": "Once", "n_predict": 1}));
        last_update(family, earlier);
        let (mut cancels_before, mut cancelled) = (0, Vec::new());
        let id = std::thread::scope(|scope| {
            let reading = scope.spawn(|| submit(&start, &request));
            while !reading.is_finished() {
                let answer = call_bytes(&cancel, None);
                cancels_before += usize::from(answer["id"] == earlier);
                assert!(answer["id"] != earlier || answer["cancelled"] == false, "{answer}");
                cancelled.extend(answer["id"].as_u64().filter(|_| answer["cancelled"] == true));
            }
            reading.join().expect("a number")
        });
        assert!(cancels_before > 3, "the request was read too fast to be met: {cancels_before}");
        assert!(cancelled.iter().all(|cancelled| *cancelled == id), "{cancelled:?} {id}");
        let expected = if cancelled.is_empty() { "limit" } else { "cancelled" };
        assert_eq!(last_update(family, id)["stop_type"], expected, "{cancelled:?}");
        until("free slots", || status()["queue"] == 0 && status()["slots"][0]["state"] == "idle");
    }
    // An unload is not kept waiting by the queue, and leaves nothing of the request.
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| call("async_completion_init", &request));
        while status()["state"] == "ready" {
            crate::c::deinit();
        }
        let answer = reading.join().expect("an answer");
        let code = answer["code"].as_str().unwrap_or_default();
        assert!(answer["id"].is_u64() || ["cancelled", "not_initialized"].contains(&code), "{answer}");
        assert_eq!(crate::c::init(Some(crate::c::command(json!({})).to_string().as_bytes())), 0);
        let id = answer["id"].as_u64().unwrap_or(1);
        assert_eq!(refusal("async_completion_poll", &json!({"id": id})).0, "not_found");
    });
    works();
}

/// Its caller waits for all of the text, and a poll by the id that the callback tells must not take any of it.
#[test]
fn a_poll_takes_nothing_from_a_request_that_is_waited_for() {
    static SEEN: Mutex<Vec<(u64, Value)>> = Mutex::new(Vec::new());
    extern "C" fn poll(id: u64, _user: *mut c_void) {
        SEEN.lock().expect("not poisoned").push((id, call("async_completion_poll", &json!({"id": id}))));
    }
    let _turn = loaded(json!({}));
    let request = json!({"prompt": "Once upon a time", "n_predict": 30, "temperature": 0, "ignore_eos": true});
    let expected = call("get_completion", &request)["content"].clone();
    set_update_callback(Some(poll), 0);
    assert_eq!(call("get_completion", &request)["content"], expected);
    set_update_callback(None, 0);
    let seen = std::mem::take(&mut *SEEN.lock().expect("not poisoned"));
    assert!(seen.len() > 3, "{seen:?}");
    for (id, answer) in seen {
        assert_eq!((&answer["id"], &answer["completion_updates"]), (&json!(id), &json!([])), "{answer}");
    }
    works();
}

/// The engine may be done with a request before its number is returned.
#[test]
fn a_request_is_known_as_soon_as_there_is_news_of_it() {
    static CODES: Mutex<Vec<Value>> = Mutex::new(Vec::new());
    extern "C" fn poll(id: u64, _user: *mut c_void) {
        CODES.lock().expect("not poisoned").push(call("async_completion_poll", &json!({"id": id}))["success"].clone());
    }
    let _turn = loaded(json!({"max_queue": 1000}));
    set_update_callback(Some(poll), 0);
    for _ in 0..200 {
        submit("async_completion_init", &json!({"prompt": "a", "session_load": "/nowhere"}));
    }
    until("all news", || CODES.lock().expect("not poisoned").len() >= 200);
    set_update_callback(None, 0);
    assert!(CODES.lock().expect("not poisoned").iter().all(|success| *success == true));
    works();
}
