//! `foredraft_poll` and `foredraft_cancel`: by id, and for several requests in one call.

use serde_json::{Value, json};

use crate::library::{Engine, LIBRARY, endless, exclusive};

#[test]
fn poll_and_cancel_require_an_id() {
    let _guard = exclusive();
    let engine = Engine::new();
    let check = |engine: &Engine| {
        for name in ["poll", "cancel"] {
            for document in [Some("{}"), Some(r#"{"id": null}"#), Some(r#"{"timeout_ms": 5}"#)] {
                let answer = LIBRARY.call_text(engine.handle, name, document);
                assert_eq!(answer["code"], "invalid_request", "{name} {document:?}: {answer}");
                assert!(
                    answer["error"]
                        .as_str()
                        .is_some_and(|error| error.starts_with("id: expected the id that submit returned")),
                    "{answer}"
                );
            }
            for document in [None, Some(""), Some("[]"), Some("7"), Some("no JSON")] {
                let answer = LIBRARY.call_text(engine.handle, name, document);
                assert_eq!(answer["code"], "invalid_json", "{name} {document:?}: {answer}");
            }
            for wrong in
                [json!({"id": 1, "ids": [1]}), json!({"ids": 1}), json!({"ids": ["1"]}), json!({"ids": vec![1; 5000]})]
            {
                assert_eq!(engine.call(name, &wrong)["code"], "invalid_request", "{name}");
            }
            let unknown = engine.call(name, &json!({"id": 999_999_999}));
            assert_eq!((&unknown["code"], &unknown["status"]), (&json!("not_found"), &json!(404)), "{name}");
        }
    };
    check(&engine);
    engine.load("draft", json!({}));
    let id = engine.submit(&json!({"prompt": "Tom", "n_predict": 1}));
    // Unlike the old functions, a call without an id does not mean the newest request.
    check(&engine);
    engine.drain(id);
    check(&engine);
}

#[test]
fn one_call_polls_or_cancels_several_requests() {
    let _guard = exclusive();
    let engine = Engine::loaded("draft", json!({"n_parallel": 2, "n_ctx": 1024}));
    let request =
        |n: usize| json!({"prompt": "Once upon a time", "n_predict": n, "temperature": 0, "ignore_eos": true});
    let expected = |n: usize| engine.call("complete", &request(n))["content"].clone();
    let lengths = [5, 20, 9];
    let texts = lengths.map(expected);
    let ids = lengths.map(|n| engine.submit(&request(n)));
    let mut written = ids.map(|_| String::new());
    let mut finished = [false; 3];
    while finished.contains(&false) {
        let answer = engine.call("poll", &json!({"ids": ids, "timeout_ms": 60_000}));
        assert_eq!(answer["success"], true, "{answer}");
        let results = answer["results"].as_array().expect("results");
        assert_eq!(results.len(), 3);
        let updates = results.iter().map(|result| result["completion_updates"].as_array().expect("updates").len());
        assert!(updates.sum::<usize>() > 0, "the poll must wait for an update: {answer}");
        for (index, result) in results.iter().enumerate() {
            assert_eq!((&result["id"], &result["success"]), (&json!(ids[index]), &json!(true)), "{answer}");
            let updates = result["completion_updates"].as_array().expect("updates");
            written[index].extend(updates.iter().map(|update| update["content"].as_str().expect("content")));
            finished[index] |= result["finished"] == true;
        }
    }
    assert_eq!(written.map(Value::from), texts);
    // It does not wait if all of them are finished.
    let answer = engine.call("poll", &json!({"ids": ids, "timeout_ms": 86_400_000}));
    assert!(answer["results"].as_array().expect("results").iter().all(|result| result["finished"] == true), "{answer}");

    let running = [engine.submit(&endless()), engine.submit(&endless())];
    let answer = engine.call("cancel", &json!({"ids": [running[0], 999_999_999, running[1], ids[0]]}));
    let seen: Vec<_> = answer["results"]
        .as_array()
        .expect("results")
        .iter()
        .map(|result| (&result["cancelled"], &result["code"]))
        .collect();
    let (yes, no, none, missing) = (json!(true), json!(false), Value::Null, json!("not_found"));
    assert_eq!(seen, [(&yes, &none), (&none, &missing), (&yes, &none), (&no, &none)], "{answer}");
    for id in running {
        assert_eq!(engine.drain(id).1["stop_type"], "cancelled");
    }
    // An unknown id is reported at once, even if the others have no updates.
    let id = engine.submit(&endless());
    let answer = engine.call("poll", &json!({"ids": [id, 999_999_999], "timeout_ms": 86_400_000}));
    assert_eq!(answer["results"][1]["code"], "not_found", "{answer}");
    assert_eq!(engine.call("poll", &json!({"ids": []}))["results"], json!([]));
    engine.call("cancel", &json!({"id": id}));
}

/// `{"all": true}` ends what waits and what runs, also a request that a thread waits for.
#[test]
fn one_call_cancels_all_requests() {
    let _guard = exclusive();
    let engine = Engine::loaded("draft", json!({"n_parallel": 2, "n_ctx": 1024}));
    let handle = engine.handle as usize;
    for _ in 0..3 {
        let waiting = std::thread::spawn(move || LIBRARY.call(handle as _, "complete", &endless()));
        engine.wait_until_generating();
        let ids: Vec<u64> = (0..4).map(|_| engine.submit(&endless())).collect();
        let answer = engine.call("cancel", &json!({"all": true}));
        assert_eq!((&answer["success"], &answer["cancelled"]), (&json!(true), &json!(true)), "{answer}");
        assert_eq!(answer["ids"].as_array().map(Vec::len), Some(5), "{answer}");
        for id in ids {
            assert_eq!(engine.drain(id).1["stop_type"], "cancelled");
        }
        assert_eq!(waiting.join().expect("an answer")["stop_type"], "cancelled");
        let answer = engine.call("cancel", &json!({"all": true}));
        assert_eq!(answer, json!({"success": true, "cancelled": false, "ids": []}));
    }
    for wrong in
        [json!({"all": true, "id": 1}), json!({"all": true, "ids": [1]}), json!({"all": "yes"}), json!({"all": false})]
    {
        assert_eq!(engine.call("cancel", &wrong)["code"], "invalid_request", "{wrong}");
    }
    assert_eq!(engine.call("poll", &json!({"all": true}))["code"], "invalid_request");
    drop(engine);
    let engine = Engine::new();
    assert_eq!(engine.call("cancel", &json!({"all": true})), json!({"success": true, "cancelled": false, "ids": []}));
    assert_eq!(engine.call("poll", &json!({"all": true}))["code"], "invalid_request");
}

/// A load or unload ends all requests. A later poll gets what was left of them, and their end.
#[test]
fn requests_that_an_unload_or_load_has_ended_are_polled_to_their_end() {
    let _guard = exclusive();
    for loads in [false, true] {
        let engine = Engine::loaded("draft", json!({"n_ctx": 1024}));
        let ids = [engine.submit(&endless()), engine.submit(&endless()), engine.submit(&endless())];
        engine.wait_until_generating();
        match loads {
            true => engine.load("draft", json!({"n_ctx": 1024})),
            false => LIBRARY.unload(engine.handle),
        }
        let (text, last) = engine.drain(ids[0]);
        assert_eq!(
            (&last["stop_type"], &last["success"], &last["id"]),
            (&json!("cancelled"), &json!(true), &json!(ids[0]))
        );
        assert!(!text.is_empty(), "{last}");
        let answer = engine.call("poll", &json!({"id": ids[0]}));
        assert_eq!((&answer["finished"], &answer["completion_updates"]), (&json!(true), &json!([])), "{answer}");
        let answer = engine.call("poll", &json!({"ids": [ids[1], 999_999_999], "timeout_ms": 60_000}));
        assert_eq!(answer["results"][0]["completion_updates"][0]["stop_type"], "cancelled", "{answer}");
        assert_eq!((&answer["results"][0]["id"], &answer["results"][1]["code"]), (&json!(ids[1]), &json!("not_found")));
        let answer = engine.call("cancel", &json!({"id": ids[2]}));
        assert_eq!(answer, json!({"success": true, "id": ids[2], "cancelled": false}));
        let answer = engine.call("cancel", &json!({"ids": [ids[2], 999_999_999]}));
        assert_eq!(
            (&answer["results"][0]["cancelled"], &answer["results"][1]["code"]),
            (&json!(false), &json!("not_found"))
        );
        // The requests of the next engine take their place.
        engine.load("draft", json!({"n_ctx": 1024}));
        let next = engine.submit(&endless());
        LIBRARY.unload(engine.handle);
        assert_eq!(engine.call("poll", &json!({"id": ids[2]}))["code"], "not_found");
        assert_eq!(engine.drain(next).1["stop_type"], "cancelled");
    }
}

/// The functions may be called before a model is loaded.
#[test]
fn poll_and_cancel_work_without_a_model() {
    let engine = Engine::new();
    let answer = engine.call("poll", &json!({"ids": [1, 2], "timeout_ms": 60_000}));
    let codes: Vec<&Value> =
        answer["results"].as_array().expect("results").iter().map(|result| &result["code"]).collect();
    assert_eq!(codes, ["not_found", "not_found"], "{answer}");
    assert_eq!(LIBRARY.load(engine.handle, &json!({"model": "/nowhere.gguf"})), 1);
    assert_eq!(engine.status()["state"], "failed");
    assert_eq!(engine.call("cancel", &json!({"id": 5}))["code"], "not_found");
}
