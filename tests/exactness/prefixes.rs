//! Requests at once whose prompts begin alike copy each other's caches, and give the output that each of them gives alone.

use crate::common::Endpoint::{Foredraft, Plain};
use crate::common::{complete, drain, model, n, poll, start, submit, text, tokens, with};
use foredraft::api::JsonEngine;
use serde_json::{Value, json};

/// A story of 300 tokens.
fn story(engine: &JsonEngine) -> Vec<usize> {
    let request = json!({
        "prompt": "Once upon a time there was a child named", "n_predict": 300, "temperature": 0.8, "seed": 1, "ignore_eos": true,
        "return_tokens": true,
    });
    complete(engine, Plain, &request)["tokens"].as_array().expect("tokens").iter().map(n).collect()
}

/// Submits all at once, and returns the last update of each with its whole text.
fn at_once(engine: &JsonEngine, requests: &[Value]) -> Vec<Value> {
    let ids: Vec<u64> = requests.iter().map(|request| submit(engine, Foredraft, request)).collect();
    let updates = ids.into_iter().map(|id| drain(engine, Foredraft, id));
    updates.map(|updates| with(updates.last().expect("an end"), json!({"content": text(&updates)}))).collect()
}

fn cached(answers: &[Value]) -> Vec<usize> {
    answers.iter().map(|answer| n(&answer["timings"]["cache_n"])).collect()
}

fn accepted(answers: &[Value]) -> usize {
    answers.iter().map(|answer| n(&answer["speculative"]["n_accepted"])).sum()
}

#[test]
fn equal_beginnings_at_once_give_the_output_of_each_alone() {
    for (name, kind) in [("draft", "draft"), ("eagle3", "eagle3")] {
        let load = || start(json!({"model_draft": model(name), "n_ctx": 512, "n_parallel": 4}));
        let engine = load();
        let base = story(&engine);
        let request = |own: usize| {
            json!({
                "prompt": ([base.clone(), tokens(own, 2)].concat()), "n_predict": 60, "temperature": 0.8, "seed": own, "ignore_eos": true,
                "speculative": {"type": kind, "adaptive": false, "n_max": 3},
            })
        };
        let requests: Vec<Value> = (0..4).map(request).collect();
        let alone =
            requests.iter().map(|request| complete(&engine, Foredraft, &with(request, json!({"cache_prompt": false}))));
        let alone: Vec<Value> = alone.collect();
        let engine = load();
        // In an empty engine one request reads the common beginning. Later each slot has it.
        for least in [0, 300] {
            let answers = at_once(&engine, &requests);
            for (answer, alone) in answers.iter().zip(&alone) {
                assert_eq!(answer["content"], alone["content"], "{name}");
            }
            let cached = cached(&answers);
            assert!(cached[0] >= least && cached[1..].iter().all(|cached| *cached > 280), "{name}: {cached:?}");
            // The drafters have the beginning as well.
            let (together, alone) = (accepted(&answers), accepted(&alone));
            assert!(10 * together > 9 * alone, "{name}: {together} drafted tokens were accepted, {alone} alone");
        }
    }
}

/// A head needs the target's states of a prompt's tokens, which a target that copies them does not decode.
#[test]
fn the_cache_of_a_head_is_copied() {
    let engine = start(json!({"model_draft": model("eagle3"), "n_ctx": 512, "n_parallel": 2}));
    let base = story(&engine);
    for slot in [0, 1] {
        let request = json!({
            "prompt": base, "n_predict": 8, "ignore_eos": true, "id_slot": slot, "speculative": {"type": "eagle3", "adaptive": false},
        });
        let answer = complete(&engine, Foredraft, &request);
        assert!(n(&answer["speculative"]["n_drafted"]) > 0);
    }
    let erase = json!({"id_slot": 1}).to_string();
    let erased = engine.with_loaded(|loaded| loaded.session_erase(erase.as_bytes())).expect("an erased slot");
    assert!(n(&erased["n_erased_draft"]) >= 300, "{erased}");
}

/// A running request's cache is copied while it generates.
#[test]
fn the_cache_of_a_running_request_is_copied() {
    let load = || start(json!({"n_ctx": 1024, "n_parallel": 2}));
    let engine = load();
    let base = story(&engine);
    let long = json!({"prompt": base, "n_predict": 500, "temperature": 0.9, "seed": 3, "ignore_eos": true});
    let short = with(&long, json!({"prompt": ([&base[..200], &tokens(2, 9)].concat()), "n_predict": 40}));
    let alone = [&long, &short].map(|request| complete(&engine, Plain, &with(request, json!({"cache_prompt": false}))));
    let engine = load();
    let running = submit(&engine, Plain, &long);
    let mut updates = Vec::new();
    while text(&updates).len() < 100 {
        let answer = poll(&engine, Plain, running, 60_000);
        updates.extend(answer["completion_updates"].as_array().expect("updates").iter().cloned());
    }
    let copied = complete(&engine, Plain, &short);
    updates.extend(drain(&engine, Plain, running));
    assert_eq!(copied["timings"]["cache_n"], 200);
    assert_eq!(copied["content"], alone[1]["content"]);
    assert_eq!(text(&updates), alone[0]["content"].as_str().expect("a text"));
}
