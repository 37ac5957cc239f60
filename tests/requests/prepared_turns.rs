//! `foredraft_prepare`: turns that may come.

use foredraft::api::{Function, JsonEngine};
use foredraft::error::{Code, Error};
use serde_json::{Value, json};

use crate::common::Endpoint::Foredraft;
use crate::common::{cancel, complete, drain, model, n, poll, start, submit, text, tiny_models, tokens, with};

fn try_prepare(engine: &JsonEngine, request: &Value) -> Result<u64, Error> {
    let answer = engine.call(Function::Prepare, Ok(request.to_string().as_bytes()))?;
    assert_eq!(answer["success"], true, "{answer}");
    Ok(answer["id"].as_u64().expect("an id"))
}

fn prepare(engine: &JsonEngine, request: &Value) -> u64 {
    try_prepare(engine, request).expect("it is prepared")
}

/// Waits until a preparation has ended. Its polls have no updates.
fn wait(engine: &JsonEngine, id: u64) {
    loop {
        let answer = poll(engine, Foredraft, id, 60_000);
        assert_eq!(answer["completion_updates"], json!([]), "{answer}");
        if answer["finished"] == true {
            return;
        }
    }
}

fn turn(prompt: &[usize]) -> Value {
    json!({"prompt": prompt, "n_predict": 12, "temperature": 0.9, "seed": 5, "ignore_eos": true, "conversation": "hero"})
}

/// The tokens that were decoded for the first one, those that were taken over, and the completion.
fn found(engine: &JsonEngine, request: &Value) -> (usize, usize, Value) {
    let answer = complete(engine, Foredraft, request);
    (n(&answer["timings"]["prompt_n"]), n(&answer["timings"]["begun_n"]), answer["content"].clone())
}

#[test]
fn the_prompt_of_a_prepared_turn_is_decoded_before_it_comes() {
    for length in [50, 700, 4000] {
        let engine = start(json!({"n_ctx": 4200, "n_batch": 64, "n_ubatch": 64, "model_draft": null}));
        let prompt = tokens(1, length);
        let (unprepared, _, alone) = found(&engine, &with(&turn(&prompt), json!({"cache_prompt": false})));
        assert_eq!(unprepared, length);
        for (begins, known, most, begun) in
            [(false, length - 20, 20, 0), (false, length, 1, 0), (true, length - 20, 20, 0), (true, length, 1, 11)]
        {
            let other = turn(&tokens(2, 40));
            complete(&engine, Foredraft, &with(&other, json!({"conversation": "other", "cache_prompt": false})));
            wait(&engine, prepare(&engine, &with(&turn(&prompt[..known]), json!({"begin": begins}))));
            let (decoded, taken_over, completion) = found(&engine, &turn(&prompt));
            assert!(decoded <= most, "{length}, begun {begins}, known {known}: {decoded} tokens were decoded");
            assert_eq!((taken_over, &completion), (begun, &alone), "{length}, begun {begins}, known {known}");
        }
    }
}

#[test]
fn a_begun_answer_is_taken_over_by_the_same_request_alone() {
    let engine = start(json!({"n_ctx": 512}));
    let asked = turn(&tokens(1, 60));
    let same = [
        json!({}),
        json!({"n_predict": 30}),
        json!({"priority": 3, "deadline_ms": 1000, "tag": 1, "return_tokens": true}),
        json!({"stop": ["no such word"]}),
    ];
    let others = [
        json!({"seed": 6}),
        json!({"temperature": 0.8}),
        json!({"top_k": 3}),
        json!({"grammar": "root ::= [a-z ]+"}),
        json!({"logit_bias": [[300, 1.0]]}),
        json!({"prompt": tokens(1, 61)}),
        json!({"n_probs": 2}),
        json!({"conversation": "villain"}),
    ];
    for (change, is_same) in same.map(|it| (it, true)).into_iter().chain(others.map(|it| (it, false))) {
        let changed = with(&asked, change.clone());
        let alone = complete(&engine, Foredraft, &with(&changed, json!({"cache_prompt": false})))["content"].clone();
        wait(&engine, prepare(&engine, &with(&asked, json!({"begin": true}))));
        let (_, taken_over, completion) = found(&engine, &changed);
        assert_eq!((taken_over > 0, &completion), (is_same, &alone), "{change}");
        let (_, again, completion) = found(&engine, &changed);
        assert_eq!((again, &completion), (0, &alone), "{change}: it is taken over once");
    }
    // Greedy requests have no seed.
    let greedy = with(&asked, json!({"temperature": 0, "seed": null}));
    wait(&engine, prepare(&engine, &with(&greedy, json!({"begin": true}))));
    assert!(found(&engine, &greedy).1 > 0);
}

#[test]
fn a_turn_that_comes_while_it_is_prepared_has_its_completion() {
    for (kind, init) in [
        ("plain", json!({})),
        ("one slot", json!({"n_parallel": 1})),
        ("shared cells", json!({"kv_unified": true, "n_ctx": 700})),
        ("hybrid", json!({"model": tiny_models::hybrid(), "model_draft": model("draft")})),
        ("recurrent", json!({"model": tiny_models::recurrent(), "model_draft": null})),
        ("sliding window", json!({"model": tiny_models::sliding_window(), "model_draft": null, "swa_full": false})),
    ] {
        let init = with(&json!({"n_ctx": 512, "n_batch": 64, "n_ubatch": 32, "n_parallel": 2}), init);
        let engine = start(init);
        let mut prompt = tokens(1, 200);
        for round in 0..12_usize {
            prompt.extend(tokens(round, 5));
            let asked = with(&turn(&prompt), json!({"seed": round}));
            // The player types, and another character speaks meanwhile.
            for typed in 0..3 {
                let known = prompt.len() - 3 * (2 - typed);
                let begun = with(&asked, json!({"prompt": prompt[..known], "begin": round % 3 > 0}));
                prepare(&engine, &begun);
            }
            let other = with(&turn(&tokens(round, 90)), json!({"conversation": "other", "priority": -10}));
            let other = (round % 2 == 0).then(|| submit(&engine, Foredraft, &other));
            let answer = text(&drain(&engine, Foredraft, submit(&engine, Foredraft, &asked)));
            other.into_iter().for_each(|other| _ = drain(&engine, Foredraft, other));
            let alone =
                complete(&engine, Foredraft, &with(&asked, json!({"cache_prompt": false, "conversation": null})));
            assert_eq!(json!(answer), alone["content"], "{kind}, round {round}");
        }
    }
}

#[test]
fn questions_find_their_prepared_state() {
    let engine = start(json!({"n_ctx": 1024}));
    let question = json!({"type": "noul", "instructions": "Tom lost his kite."});
    let state = "Tom had a red kite. ".repeat(20);
    let asked = json!({"state": state, "questions": {"lost": question}, "conversation": "Tom"});
    let decide =
        |request: &Value| engine.call(Function::Decide, Ok(request.to_string().as_bytes())).expect("an answer");
    let alone = decide(&with(&asked, json!({"cache_prompt": false})));
    decide(&with(&asked, json!({"state": "another", "cache_prompt": false})));
    wait(&engine, prepare(&engine, &asked));
    let answer = decide(&asked);
    assert_eq!(answer["answers"], alone["answers"]);
    assert!(n(&answer["timings"]["prompt_n"]) < 5 && n(&alone["timings"]["prompt_n"]) > 50, "{answer} {alone}");
}

#[test]
fn preparations_take_no_place_from_requests_and_can_be_cancelled() {
    // So long that it runs until it is cancelled.
    let engine = start(json!({"n_ctx": 16400, "n_parallel": 1, "max_queue": 0, "model_draft": null}));
    let long = |name: &str| json!({"prompt": tokens(3, 16000), "conversation": name});
    let first = prepare(&engine, &long("a"));
    // Those of other conversations have a queue of their own, which is full. One of the same conversation takes the place.
    assert_eq!(try_prepare(&engine, &long("b")).expect_err("no place").code(), Code::QueueFull);
    let answer = complete(&engine, Foredraft, &with(&turn(&tokens(1, 20)), json!({"conversation": "c"})));
    assert_eq!((n(&answer["tokens_predicted"]), n(&answer["timings"]["preempted_n"])), (12, 0));
    assert!(cancel(&engine, Foredraft, first), "it goes on after the request");
    wait(&engine, first);
    let second = prepare(&engine, &long("a"));
    let all = engine.cancel(Some(br#"{"all": true}"#)).expect("an answer");
    assert_eq!(all["ids"], json!([second]));
    wait(&engine, second);
    // One that has ended need not be polled.
    let third = prepare(&engine, &turn(&tokens(1, 10)));
    wait(&engine, third);
    assert_eq!(poll(&engine, Foredraft, third, 0)["finished"], true);
}

#[test]
fn preparations_by_slot_are_found_in_the_slot() {
    let engine = start(json!({"n_ctx": 16400, "n_parallel": 2}));
    let asked = with(&turn(&tokens(1, 60)), json!({"conversation": null, "id_slot": 1}));
    wait(&engine, prepare(&engine, &with(&asked, json!({"begin": true}))));
    let (decoded, taken_over, _) = found(&engine, &asked);
    assert_eq!((decoded, taken_over), (1, 11));
    // A session is saved without waiting for one, and has what the preparation has in common with the slot from its beginning on.
    let long = [tokens(1, 60), tokens(2, 16000)].concat();
    prepare(&engine, &with(&asked, json!({"prompt": long})));
    let path = std::env::temp_dir().join(format!("foredraft-prepared-{}", std::process::id()));
    let save = json!({"id_slot": 1, "filename": path});
    let saved = engine.call(Function::SessionSave, Ok(save.to_string().as_bytes())).expect("it is saved");
    assert!((60..16000).contains(&n(&saved["n_saved"])), "{saved}");
    let _ = std::fs::remove_file(path);
}

#[test]
fn requests_that_cannot_be_prepared_are_refused() {
    let engine = start(json!({"n_ctx": 512}));
    for (change, named) in [
        (json!({"conversation": null}), "conversation"),
        (json!({"conversation": ""}), "conversation"),
        (json!({"conversation": "a\u{7}b"}), "conversation"),
        (json!({"conversation": "x".repeat(1 << 20)}), "conversation"),
        (json!({"begin": "yes"}), "begin"),
        (json!({"begin": 1}), "begin"),
        (json!({"prompt": null, "prompts": [[1], [2]]}), "prompts: expected one completion"),
        (json!({"n_cmpl": 2}), "n_cmpl: expected one completion"),
        (json!({"n_beams": 2}), "n_beams"),
        (json!({"session_save": "a"}), "session_save"),
        (json!({"session_load": "a"}), "session_load"),
        (json!({"prompt_logprobs": 1}), "prompt_logprobs"),
        (json!({"cache_prompt": false}), "cache_prompt"),
        (json!({"speculative": {"model": "draft"}}), "speculative.model"),
        (json!({"priority": "high"}), "priority"),
        (json!({"begin": true, "choices": ["a", "b"]}), "choices"),
        (json!({"begin": true, "questions": {"a": {"type": "noul", "instructions": "a"}}}), "questions"),
        (json!({"id_slot": 99}), "id_slot"),
    ] {
        let error = try_prepare(&engine, &with(&turn(&tokens(1, 9)), change.clone())).expect_err(&change.to_string());
        assert_eq!(error.code(), Code::InvalidRequest, "{change}");
        assert!(error.message().contains(named), "{change}: {}", error.message());
    }
    let unseeded = with(&turn(&tokens(1, 9)), json!({"seed": null, "begin": true}));
    let answer = engine.call(Function::Prepare, Ok(unseeded.to_string().as_bytes())).expect("it is prepared");
    assert!(answer["warnings"][0].as_str().is_some_and(|warning| warning.starts_with("begin: ")), "{answer}");
    let known = complete(&engine, Foredraft, &with(&turn(&tokens(1, 9)), json!({"begin": true})));
    assert!(known["warnings"][0].as_str().is_some_and(|warning| warning.contains("begin")), "{known}");
    let not_loaded = JsonEngine::new().call(Function::Prepare, Ok(b"{}")).expect_err("no model");
    assert_eq!(not_loaded.code(), Code::NotInitialized);
}
