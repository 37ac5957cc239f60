//! Priorities: a request that was preempted and goes on has the output of a request alone, with every kind of memory.

use crate::common::Endpoint::{Foredraft, Plain};
use crate::common::{complete, drain, model, n, start, submit, text, tiny_models, tokens, with};
use foredraft::api::JsonEngine;
use serde_json::{Value, json};

/// A request alone: without speculation and priority, and with nothing cached.
fn alone(engine: &JsonEngine, request: &Value) -> Value {
    let plain = json!({"cache_prompt": false, "speculative": false, "priority": 0, "deadline_ms": null, "id_slot": -1});
    complete(engine, Plain, &with(request, plain))["tokens"].clone()
}

fn request(number: usize) -> Value {
    let random = number * 7919 % 1009;
    let temperature = [0.0, 0.8, 1.2][random % 3];
    let drafting = [
        json!(false),
        json!({"type": ["suffix", "ngram-cache"], "adaptive": false, "n_max": 4}),
        json!({"type": "draft", "adaptive": false, "n_max": 3}),
        json!({"type": "auto"}),
    ];
    json!({
        "prompt": tokens(number, 5 + random % 60), "n_predict": 4 + random % 40, "temperature": temperature, "top_k": 0, "top_p": 1,
        "seed": number, "ignore_eos": true, "return_tokens": true, "speculative": drafting[random % 4],
        "priority": random as i64 % 21 - 10, "deadline_ms": if random.is_multiple_of(2) { json!(1 + random) } else { Value::Null },
        "id_slot": if random.is_multiple_of(11) { random as i64 % 4 } else { -1 },
    })
}

/// Storms until a request is preempted: on a machine that is busy, the requests of a small one can end before others come.
fn storm(kind: &str, init: &Value, n_requests: usize) {
    let n_preempted = (0..20).map(|_| one_storm(kind, init, n_requests));
    assert!(n_preempted.into_iter().any(|n| n > 0), "{kind}: the test needs preempted requests");
}

/// Submits requests in waves, so that later ones find the slots taken, and compares the output of each with that of the request alone. Returns
/// how often requests were preempted.
fn one_storm(kind: &str, init: &Value, n_requests: usize) -> usize {
    let expected = start(with(init, json!({"n_parallel": 1, "kv_unified": false})));
    let engine = start(with(init, json!({"n_parallel": 4, "max_queue": n_requests})));
    let requests: Vec<Value> = (0..n_requests).map(request).collect();
    let mut ids = Vec::new();
    for wave in requests.chunks(25) {
        ids.extend(wave.iter().map(|request| submit(&engine, Foredraft, request)));
        // A higher one than any that runs then.
        let highest = with(&wave[0], json!({"priority": 10, "n_predict": 1, "id_slot": -1}));
        drain(&engine, Foredraft, submit(&engine, Foredraft, &highest));
    }
    let mut n_preempted = 0;
    for (number, (request, id)) in requests.iter().zip(ids).enumerate() {
        let updates = drain(&engine, Foredraft, id);
        let found: Value =
            updates.iter().flat_map(|update| update["tokens"].as_array().cloned().unwrap_or_default()).collect();
        let timings = &updates.last().expect("an end")["timings"];
        assert_eq!(found, alone(&expected, request), "{kind}, request {number}: {request} {timings}");
        assert_eq!(timings["deadline_missed_ms"].is_f64(), request["deadline_ms"].is_u64(), "{timings}");
        n_preempted += n(&timings["preempted_n"]);
    }
    let status = engine.status();
    assert_eq!((&status["queue"], &status["queue_order"]), (&json!(0), &json!([])), "nothing is left");
    n_preempted
}

#[test]
fn a_storm_of_500_requests_changes_no_output() {
    storm("drafts", &json!({"n_ctx": 512}), 500);
}

#[test]
fn storms_on_other_memories_change_no_output() {
    let draft = model("draft");
    for (kind, init) in [
        ("shared cells", json!({"kv_unified": true, "n_ctx": 400})),
        ("hybrid", json!({"model": tiny_models::hybrid(), "model_draft": draft})),
        ("delta net with its own head", json!({"model": tiny_models::delta_net_mtp(), "model_draft": null})),
        ("recurrent", json!({"model": tiny_models::recurrent(), "model_draft": draft})),
        ("sliding window", json!({"model": tiny_models::sliding_window(), "model_draft": null, "swa_full": false})),
    ] {
        storm(kind, &with(&json!({"n_ctx": 512, "n_batch": 64, "n_ubatch": 32}), init), 75);
    }
}

/// A context that has shifted cannot be decoded again: it goes on with the state of its cells.
#[test]
fn a_preempted_request_goes_on_after_a_context_shift() {
    let init = json!({"n_ctx": 128, "model_draft": null, "speculative": false});
    let engine = start(init);
    let long = json!({"prompt": "Once upon a time", "n_predict": 400, "temperature": 0.8, "seed": 3, "ignore_eos": true, "return_tokens": true});
    let expected = alone(&engine, &long);
    // On a machine that is busy it can end before the other one comes.
    let is_preempted = |_| {
        let id = submit(&engine, Foredraft, &long);
        let mut updates = Vec::new();
        while text(&updates).len() < 600 {
            let answer = crate::common::poll(&engine, Foredraft, id, 60_000);
            updates.extend(answer["completion_updates"].as_array().expect("updates").iter().cloned());
        }
        complete(&engine, Foredraft, &json!({"prompt": "Tom had a", "n_predict": 20, "priority": 3}));
        updates.extend(drain(&engine, Foredraft, id));
        let found: Value =
            updates.iter().flat_map(|update| update["tokens"].as_array().cloned().unwrap_or_default()).collect();
        let end = updates.last().expect("an end");
        assert_eq!(end["truncated"], true);
        assert_eq!(found, expected);
        end["timings"]["preempted_n"] == 1
    };
    assert!((0..50).any(is_preempted), "it was never preempted");
}
