//! Long prompts: they are rendered and tokenized after the call that queued them has returned.

mod common;

use common::{cancel, complete, drain, poll, start, submit, with};
use foredraft::api::Endpoint::Completion;
use foredraft::api::System;
use serde_json::{Value, json};

/// A prompt of a few megabytes, which takes a while to tokenize.
fn huge() -> String {
    "Tom had a hat and a drum, and Mia had a kite. ".repeat(60_000)
}

/// A prompt that is just long enough not to be tokenized at once.
fn long() -> String {
    "Tom had a hat and a drum, and Mia had a kite. ".repeat(100)
}

fn queued(system: &System, request: &Value) -> Value {
    let answer = system.with_server(|server| server.submit(Completion, request.to_string().as_bytes()));
    answer.unwrap_or_else(|error| panic!("{request}: {error}"))
}

fn last(updates: &[Value]) -> &Value {
    updates.last().expect("a final response")
}

#[test]
fn a_long_prompt_is_pending_at_first_and_answered_as_any_other() {
    let system = start(json!({"n_ctx": 256}));
    let settings = json!({"n_predict": 8, "seed": 1, "cache_prompt": false});
    let messages = json!([{"role": "user", "content": long()}]);
    for input in [
        json!({"prompt": long()}),
        json!({"prompt": [long(), 5, "and"]}),
        json!({"messages": messages, "on_overflow": "truncate"}),
        json!({"prompts": [long(), "Tom"], "n_cmpl": 2}),
        json!({"prompt": "Tom", "prediction": {"type": "content", "content": long()}, "speculative": true}),
    ] {
        let request = with(&settings, input);
        let answer = queued(&system, &request);
        let stats = &answer["prompt_stats"];
        let pending = json!({"n_ctx": 256, "pending": true});
        match stats.as_array() {
            Some(all) => assert!(all.len() == 4 && all.iter().all(|stats| *stats == pending), "{stats}"),
            None => assert_eq!(*stats, pending),
        }
        let updates = drain(&system, Completion, answer["id"].as_u64().expect("an id"));
        let expected = complete(&system, Completion, &request);
        let expected = expected["results"].as_array().cloned().unwrap_or_else(|| vec![expected]);
        for expected in expected {
            let own: Vec<Value> = updates.iter().filter(|it| it["index"] == expected["index"]).cloned().collect();
            assert_eq!(common::text(&own), expected["content"].as_str().expect("content"));
            for key in ["prompt", "prompt_stats", "tokens_evaluated", "truncated"] {
                assert_eq!(last(&own)[key], expected[key], "{key}");
            }
        }
    }
    // A short one is known at once.
    assert!(queued(&system, &with(&settings, json!({"prompt": "Tom"})))["prompt_stats"]["n_past"].is_u64());
}

#[test]
fn requests_are_served_in_the_order_in_which_they_came() {
    let system = start(json!({"n_ctx": 256, "n_parallel": 1}));
    let first = submit(&system, Completion, &json!({"prompt": huge(), "n_predict": 4}));
    let second = submit(&system, Completion, &json!({"prompt": "Tom", "n_predict": 4}));
    let third = submit(&system, Completion, &json!({"prompt": long(), "n_predict": 4}));
    assert_eq!(last(&drain(&system, Completion, third))["success"], true);
    for id in [first, second] {
        assert_eq!(poll(&system, Completion, id, 0)["finished"], true, "{id}");
    }
}

#[test]
fn a_request_can_be_cancelled_and_time_out_while_its_prompt_is_prepared() {
    let system = start(json!({"n_ctx": 256}));
    let ids: Vec<u64> =
        (0..3).map(|_| submit(&system, Completion, &json!({"prompt": huge(), "n_predict": 4}))).collect();
    let late = submit(&system, Completion, &json!({"prompt": huge(), "n_predict": 4, "timeout_ms": 1}));
    let end = drain(&system, Completion, late);
    assert_eq!(last(&end)["stop_type"], "timeout", "{end:?}");
    for id in ids {
        assert!(cancel(&system, Completion, id));
        let updates = drain(&system, Completion, id);
        assert_eq!(last(&updates)["stop_type"], "cancelled");
    }
    // The engine goes on.
    assert_eq!(complete(&system, Completion, &json!({"prompt": "Tom", "n_predict": 2}))["tokens_predicted"], 2);
}

#[test]
fn what_is_wrong_with_a_long_prompt_ends_the_request() {
    let system = start(json!({"n_ctx": 256}));
    let chat = json!([{"role": "user", "content": long()}]);
    for (request, code, message) in [
        (json!({"prompt": [long(), 99999]}), "invalid_request", "prompt[1]: 99999 is not in the vocabulary"),
        (json!({"prompt": huge(), "on_overflow": "error"}), "context_full", "prompt: "),
        (json!({"messages": chat}), "context_full", "messages: the system message and the last turn have"),
        (
            json!({"messages": chat, "chat_template": "{{ raise_exception('no') }}"}),
            "invalid_request",
            "chat_template: no (line 1)",
        ),
        (json!({"prompts": [long(), ["a", 99999]]}), "invalid_request", "prompts[1][1]: 99999 is not in"),
    ] {
        let id = submit(&system, Completion, &request);
        let updates = drain(&system, Completion, id);
        for end in updates.iter().filter(|update| update["stop"] == true) {
            assert_eq!(
                (&end["success"], &end["stop_type"], &end["code"]),
                (&json!(false), &json!("error"), &json!(code))
            );
            assert!(end["error"].as_str().expect("a message").starts_with(message), "{}", end["error"]);
            assert_eq!(end["prompt_stats"], json!({"n_ctx": 256, "pending": true}));
        }
        assert_eq!(updates.len(), if request.get("prompts").is_some() { 2 } else { 1 });
    }
    // What is known at once is in the answer of the submit.
    for (request, message) in [
        (json!({"prompt": huge(), "n_predict": "a"}), "n_predict: expected"),
        (json!({"messages": [{"role": 5, "content": huge()}]}), "messages[0].role: expected a string"),
        (json!({"prompt": huge(), "grammar": "root ::="}), "grammar: "),
    ] {
        let refused = system.with_server(|server| server.submit(Completion, request.to_string().as_bytes()));
        let refused = refused.expect_err("refused");
        assert!(refused.message().starts_with(message), "{refused}");
    }
}

#[test]
fn a_queue_of_long_prompts_is_bounded_and_ends_with_the_engine() {
    let system = start(json!({"n_ctx": 256, "n_parallel": 1, "max_queue": 3}));
    let request = json!({"prompt": huge(), "n_predict": 4});
    let ids: Vec<u64> = (0..4).map(|_| submit(&system, Completion, &request)).collect();
    let refused = system.with_server(|server| server.submit(Completion, request.to_string().as_bytes()));
    assert_eq!(refused.expect_err("full").code().as_str(), "queue_full");
    // Cancelled ones make room at once.
    for id in ids {
        assert!(cancel(&system, Completion, id));
        assert!(cancel(&system, Completion, submit(&system, Completion, &request)));
    }
    for _ in 0..4 {
        submit(&system, Completion, &request);
    }
    system.deinit();
    assert_eq!(system.status()["state"], "uninitialized");
}
