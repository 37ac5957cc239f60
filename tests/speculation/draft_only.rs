//! Draft-only mode (`speculative.model: "draft"`): the draft model answers alone, exactly as if it were the target.

use crate::common::Endpoint::{Foredraft, Plain};
use crate::common::{
    Requests as _, cancel, complete, drain, merge, model, poll, prompts, start, submit, text, tiny_models, with,
};
use foredraft::api::JsonEngine;
use foredraft::error::Error;
use serde_json::{Value, json};

fn draft_only() -> Value {
    json!({"speculative": {"model": "draft"}})
}

/// Loads the shipped draft model as the target.
fn draft_as_target(more: Value) -> JsonEngine {
    start(with(&json!({"model": model("draft"), "model_draft": null}), more))
}

/// The fields of a final response that must be equal.
fn output_fields(answer: &Value) -> Value {
    let keys = [
        "content",
        "tokens",
        "stop_type",
        "stopping_word",
        "tokens_predicted",
        "tokens_evaluated",
        "tokens_cached",
        "truncated",
        "completion_probabilities",
        "prompt",
        "prompt_stats",
        "model",
        "index",
    ];
    keys.iter().map(|key| answer[key].clone()).collect()
}

fn refused(engine: &JsonEngine, request: &Value) -> Error {
    let bytes = request.to_string();
    engine.submit_as(Plain, bytes.as_bytes()).expect_err(&bytes)
}

#[test]
fn draft_only_output_matches_the_draft_loaded_as_target() {
    let init = json!({"n_ctx": 256, "n_parallel": 2, "n_batch": 64});
    let (engine, alone) = (start(init.clone()), draft_as_target(init));
    let chat = json!([{"role": "user", "content": "Tell me a story about Mia and a kite."}]);
    let requests = [
        json!({"temperature": 0}),
        json!({"temperature": 1.1, "n_probs": 3}),
        json!({"post_sampling_probs": true, "n_probs": 2, "cache_prompt": true}),
        json!({"grammar": "root ::= [A-Za-z ,.]{20,200}", "mirostat": 2}),
        json!({"json_schema": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 3}}),
        json!({"stop": ["\n", "the"], "logit_bias": [[" a", 2.0], [" the", false]]}),
        json!({"prompt": null, "messages": chat}),
        json!({"prompt": [1, 2, "Once upon", 70]}),
        json!({"n_predict": 400, "ignore_eos": true, "n_keep": 4}),
        json!({"prompt": prompts().concat(), "n_keep": -1}),
        json!({"n_beams": 3}),
        json!({"n_cmpl": 3, "cache_prompt": true}),
        json!({"prompt": null, "prompts": [prompts()[1], prompts()[8]]}),
        json!({"repeat_penalty": 1.5, "dry_multiplier": 0.8, "id_slot": 1, "cache_prompt": true}),
    ];
    for (seed, request) in requests.iter().enumerate() {
        let base = json!({
            "prompt": prompts()[seed], "n_predict": 32, "seed": seed, "cache_prompt": false, "return_tokens": true,
            "temperature": 0.8,
        });
        let request = with(&base, request.clone());
        let expected = complete(&alone, Plain, &request);
        for endpoint in [Plain, Foredraft] {
            let answer = complete(&engine, endpoint, &with(&request, draft_only()));
            let parts = |answer: &Value| answer["results"].as_array().cloned().unwrap_or_else(|| vec![answer.clone()]);
            assert_eq!(parts(&answer).len(), parts(&expected).len(), "{request}");
            for (answer, expected) in parts(&answer).iter().zip(parts(&expected)) {
                if request["cache_prompt"] == false {
                    assert_eq!(output_fields(answer), output_fields(&expected), "{request}");
                } else {
                    assert_eq!(
                        (&answer["content"], &answer["tokens"]),
                        (&expected["content"], &expected["tokens"]),
                        "{request}"
                    );
                }
                assert_eq!(answer["model"], model("draft"));
                let why = "speculative.model is draft: the draft model generates alone";
                assert_eq!(
                    (&answer["speculative"]["disabled"], &answer["speculative"]["n_drafted"]),
                    (&json!(why), &json!(0))
                );
                assert_eq!(answer["generation_settings"]["speculative"]["model"], "draft");
                assert_eq!(answer["generation_settings"]["model"], model("draft"));
            }
            if request.get("prompts").is_none() && request.get("n_cmpl").is_none() {
                let updates = drain(&engine, endpoint, submit(&engine, endpoint, &with(&request, draft_only())));
                assert_eq!(text(&updates), expected["content"].as_str().expect("a text"), "{request}");
            }
        }
    }
}

/// Both models serve requests concurrently without affecting each other.
#[test]
fn draft_only_requests_do_not_affect_the_target() {
    let engine = start(json!({"n_ctx": 512, "n_parallel": 2}));
    let request = |index: usize| json!({"prompt": prompts()[index], "n_predict": 48, "seed": index, "return_tokens": true, "cache_prompt": false});
    let more = |index: usize| match index % 3 {
        0 => json!({"speculative": {"adaptive": false, "n_max": 3, "compare": true}}),
        1 => draft_only(),
        _ => json!({}),
    };
    let requests: Vec<Value> = (0..9).map(|index| with(&request(index), more(index))).collect();
    let expected: Vec<Value> =
        requests.iter().map(|request| complete(&engine, Plain, request)["content"].clone()).collect();
    let plain: Vec<Value> = (0..9).map(|index| complete(&engine, Plain, &request(index))["content"].clone()).collect();
    assert!((0..9).all(|index| (index % 3 == 1) != (expected[index] == plain[index])), "{expected:?} {plain:?}");
    for _ in 0..3 {
        let ids: Vec<u64> = requests.iter().map(|request| submit(&engine, Plain, request)).collect();
        for (index, (id, expected)) in ids.into_iter().zip(&expected).enumerate() {
            let updates = drain(&engine, Plain, id);
            assert_eq!(text(&updates), expected.as_str().expect("a text"));
            let last = updates.last().expect("a final response");
            let none = (index % 3 == 0).then_some(&Value::Null);
            assert_eq!(last["speculative"].get("first_difference"), none, "{last}");
        }
    }
    // The status lists the target's slots; none of them is busy with a draft-only request.
    let id =
        submit(&engine, Plain, &with(&request(0), with(&draft_only(), json!({"n_predict": -1, "ignore_eos": true}))));
    while poll(&engine, Plain, id, 1000)["completion_updates"] == json!([]) {}
    let slots = engine.status()["slots"].clone();
    assert!(slots.as_array().expect("slots").iter().all(|slot| slot["state"] == "idle"), "{slots}");
    assert!(cancel(&engine, Plain, id));
}

#[test]
fn draft_only_requests_can_be_cancelled_or_time_out_at_any_stage() {
    let engine = start(json!({"n_ctx": 256, "n_parallel": 1, "max_queue": 4}));
    let endless = with(&json!({"prompt": "Once upon a time", "ignore_eos": true}), draft_only());
    let end = |id: u64| drain(&engine, Plain, id).pop().expect("a final response");
    // Right after the submit; while it runs; and while it waits for another request.
    let first = submit(&engine, Plain, &endless);
    assert!(cancel(&engine, Plain, first));
    assert_eq!(end(first)["stop_type"], "cancelled");
    let running = submit(&engine, Plain, &endless);
    while poll(&engine, Plain, running, 1000)["completion_updates"] == json!([]) {}
    let waiting = submit(&engine, Plain, &endless);
    let late = submit(&engine, Plain, &with(&endless, json!({"timeout_ms": 1})));
    assert_eq!(end(late)["stop_type"], "timeout");
    assert!(cancel(&engine, Plain, waiting));
    assert_eq!(
        (&end(waiting)["stop_type"], poll(&engine, Plain, running, 0)["finished"].clone()),
        (&json!("cancelled"), json!(false))
    );
    // The target has a slot of its own.
    complete(&engine, Foredraft, &json!({"prompt": "Once upon a time", "n_predict": 8}));
    assert!(cancel(&engine, Plain, running));
    assert_eq!(end(running)["stop_type"], "cancelled");
    let late = complete(&engine, Plain, &with(&endless, json!({"timeout_ms": 50})));
    assert_eq!(late["stop_type"], "timeout");
}

#[test]
fn unload_cancels_draft_only_requests() {
    let engine = start(json!({"n_ctx": 256}));
    let endless = with(&json!({"prompt": "Once upon a time", "ignore_eos": true}), draft_only());
    let answer = std::thread::scope(|scope| {
        let first = submit(&engine, Plain, &endless);
        while poll(&engine, Plain, first, 1000)["completion_updates"] == json!([]) {}
        let waiting = scope.spawn(|| complete(&engine, Plain, &endless));
        while engine.status()["queue"] == 0 {
            std::thread::yield_now();
        }
        engine.unload();
        waiting.join().expect("an answer")
    });
    assert_eq!(answer["stop_type"], "cancelled", "{answer}");
}

#[test]
fn draft_only_requires_a_compatible_draft_model() {
    let request = with(&json!({"prompt": "Once", "n_predict": 2}), draft_only());
    let check = |engine: &JsonEngine, request: &Value, expected: &str| {
        let error = refused(engine, request);
        assert_eq!(error.code().as_str(), "invalid_request");
        assert!(error.message().starts_with(expected), "{error}");
    };
    let alone = start(json!({"model_draft": null, "n_ctx": 128}));
    check(&alone, &request, "speculative.model: there is no draft model; load one with model_draft");
    let other = start(json!({"model_draft": tiny_models::without_vocabulary(), "n_ctx": 128}));
    let reason = other.status()["draft"]["reason"].as_str().expect("a reason").to_owned();
    check(&other, &request, &format!("speculative.model: the draft model is not used: {reason}"));
    let engine = start(json!({"n_ctx": 128}));
    for field in ["session_save", "session_load"] {
        check(
            &engine,
            &with(&request, json!({field: "/tmp/x"})),
            &format!("{field}: not available with speculative.model"),
        );
    }
    check(&engine, &with(&request, json!({"id_slot": 1})), "id_slot: expected a slot from 0 to 0, got 1");
    check(&engine, &with(&request, json!({"lora": [{"id": 0, "scale": 1}]})), "lora[0].id: there is no adapter 0");
    let mut more = request.clone();
    merge(&mut more, &json!({"speculative": {"model": "draft", "compare": true}}));
    let answer = complete(&engine, Plain, &more);
    assert_eq!(answer["speculative"]["compare_skipped"], "the request did not speculate");
}
