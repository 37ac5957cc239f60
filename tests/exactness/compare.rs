//! `speculative.compare`: the engine generates again without speculation and reports the first difference.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::Endpoint::{Foredraft, Plain};
use crate::common::{cancel, complete, drain, merge, prompts, start, submit, text, with};
use foredraft::api::JsonEngine;
use serde_json::{Value, json};

/// The fields of a final response that `compare` must not change.
fn output_fields(answer: &Value) -> Value {
    let speculative = &answer["speculative"];
    json!([
        answer["content"],
        answer["tokens"],
        answer["sources"],
        answer["stop_type"],
        answer["stopping_word"],
        answer["tokens_predicted"],
        answer["tokens_cached"],
        answer["timings"]["cache_n"],
        answer["timings"]["predicted_n"],
        answer["completion_probabilities"],
        speculative["n_drafted"],
        speculative["n_accepted"],
        speculative["n_steps"],
        answer["session_save"]["n_saved"],
    ])
}

/// A draft model and fixed draft lengths, so that every run drafts the same tokens. (`suffix` also drafts from earlier completions.)
fn speculating(compare: bool) -> Value {
    json!({"type": "draft", "adaptive": false, "n_max": 4, "compare": compare})
}

/// The fields of a response that `compare` adds.
fn comparison(answer: &Value) -> Vec<(String, Value)> {
    let speculative = answer["speculative"].as_object().unwrap_or_else(|| panic!("{answer}"));
    let keys = ["first_difference", "first_difference_logit_gap", "compare_skipped"];
    keys.iter().filter_map(|key| Some(((*key).to_owned(), speculative.get(*key)?.clone()))).collect()
}

fn no_difference() -> Vec<(String, Value)> {
    vec![("first_difference".into(), Value::Null)]
}

fn skipped(why: &str) -> Vec<(String, Value)> {
    vec![("compare_skipped".into(), why.into())]
}

#[test]
fn compare_finds_no_difference_and_returns_the_first_run() {
    let engine = start(json!({"n_ctx": 512, "n_parallel": 2}));
    let settings = [
        json!({"temperature": 0}),
        json!({"temperature": 1.2, "seed": 5, "n_probs": 2}),
        json!({"temperature": 0.7, "post_sampling_probs": true, "n_probs": 3, "return_progress": true}),
        json!({"grammar": "root ::= [A-Za-z ,.]{20,200}", "mirostat": 2}),
        json!({"stop": ["\n", "Nora"], "temperature": 0.8, "seed": 3}),
        json!({"ignore_eos": true, "n_predict": 200, "t_max_predict_ms": 1}),
        json!({"n_predict": 0}),
    ];
    for (index, setting) in settings.iter().enumerate() {
        let mut request = json!({
            "prompt": prompts()[index], "n_predict": 48, "seed": index, "return_tokens": true, "cache_prompt": false,
        });
        merge(&mut request, setting);
        let request = |compare| with(&request, json!({"speculative": speculating(compare)}));
        let once = complete(&engine, Foredraft, &request(false));
        assert_eq!(comparison(&once), []);
        for endpoint in [Plain, Foredraft] {
            let answer = complete(&engine, endpoint, &request(true));
            assert_eq!(comparison(&answer), no_difference(), "{setting}: {answer}");
            if setting.get("t_max_predict_ms").is_none() {
                assert_eq!(output_fields(&answer), output_fields(&once), "{setting}");
            }
            let updates = drain(&engine, endpoint, submit(&engine, endpoint, &request(true)));
            let last = updates.last().expect("a final response");
            assert_eq!(comparison(last), no_difference(), "{setting}: {last}");
            assert_eq!(last["speculative"]["compare"], Value::Null);
            assert_eq!(last["generation_settings"]["speculative"]["compare"], true);
            if setting.get("t_max_predict_ms").is_none() {
                assert_eq!(crate::common::text(&updates), once["content"].as_str().expect("a text"), "{setting}");
            }
        }
    }
}

/// The second run uses the seed that was drawn, and as much of the cached prompt as the first run found.
#[test]
fn second_run_uses_the_first_runs_seed_and_cached_prompt() {
    let engine = start(json!({"n_ctx": 1024, "n_batch": 64, "n_ubatch": 64}));
    let prompt = prompts().iter().take(12).cloned().collect::<Vec<_>>().join("\n");
    let mut longer = prompt.clone();
    for turn in 0..4 {
        let request = json!({
            "prompt": longer, "n_predict": 24, "temperature": 1, "return_tokens": true, "speculative": speculating(true),
        });
        let answer = complete(&engine, Foredraft, &request);
        assert_eq!(comparison(&answer), no_difference(), "{answer}");
        if turn > 0 {
            assert!(answer["timings"]["cache_n"].as_u64() > Some(150), "{answer}");
        }
        longer += answer["content"].as_str().expect("a text");
        longer += "\nOnce upon a time";
    }
}

#[test]
fn each_completion_of_a_request_is_compared_separately() {
    let engine = start(json!({"n_ctx": 2048, "n_parallel": 3}));
    let request = json!({
        "prompts": [prompts()[0], prompts()[3]], "n_cmpl": 3, "n_predict": 24, "temperature": 0.9, "return_tokens": true,
        "speculative": speculating(true),
    });
    let answer = complete(&engine, Foredraft, &request);
    let results = answer["results"].as_array().expect("results");
    assert_eq!(results.len(), 6);
    assert!(results.iter().all(|result| comparison(result) == no_difference()), "{answer}");
    let updates = drain(&engine, Foredraft, submit(&engine, Foredraft, &request));
    let ends: Vec<&Value> = updates.iter().filter(|update| update["stop"] == true).collect();
    assert_eq!(ends.len(), 6);
    assert!(ends.iter().all(|end| comparison(end) == no_difference()), "{ends:?}");
}

/// `rejection` and `block` preserve the distribution, not the tokens of a seed.
#[test]
fn first_difference_points_at_the_differing_token() {
    let engine = start(json!({"n_ctx": 256}));
    let mut differed = 0;
    for (seed, verify) in (0..4).flat_map(|seed| [(seed, "rejection"), (seed, "block")]) {
        let request = json!({
            "prompt": prompts()[seed], "n_predict": 40, "temperature": 1.5, "top_k": 0, "top_p": 1, "seed": seed,
            "return_tokens": true, "cache_prompt": false,
        });
        let plain = complete(&engine, Plain, &with(&request, json!({"n_probs": 1536})));
        let settings = with(&speculating(true), json!({"verify": verify}));
        let answer = complete(&engine, Foredraft, &with(&request, json!({"speculative": settings})));
        let tokens = |answer: &Value| -> Vec<u64> {
            answer["tokens"].as_array().expect("tokens").iter().map(|token| token.as_u64().expect("an id")).collect()
        };
        let (generated, expected) = (tokens(&answer), tokens(&plain));
        let index = generated.iter().zip(&expected).position(|(a, b)| a != b);
        let Some(index) = index else {
            let shorter = (generated.len() != expected.len()).then(|| generated.len().min(expected.len()));
            assert_eq!(answer["speculative"]["first_difference"], json!(shorter), "{answer}");
            continue;
        };
        differed += 1;
        let found = comparison(&answer);
        assert_eq!(found[0], ("first_difference".into(), json!(index)), "{found:?}");
        // Differences of logits equal differences of log-probabilities.
        let top = plain["completion_probabilities"][index]["top_logprobs"].as_array().expect("alternatives");
        let logprob = |token: u64| {
            let row = top.iter().find(|row| row["id"] == token).expect("all tokens are listed");
            row["logprob"].as_f64().expect("a number")
        };
        let gap = logprob(expected[index]) - logprob(generated[index]);
        assert!((found[1].1.as_f64().expect("a number") - gap).abs() < 1e-3, "{found:?} {gap}");
    }
    assert!(differed > 3, "{differed}");
}

/// The context shifts in both runs.
#[test]
fn long_outputs_are_compared_across_context_shifts() {
    let engine = start(json!({"n_ctx": 128}));
    let request = json!({
        "prompt": prompts()[1], "n_predict": 300, "temperature": 0.7, "seed": 11, "ignore_eos": true,
        "speculative": speculating(true),
    });
    let answer = complete(&engine, Foredraft, &request);
    assert_eq!((&answer["truncated"], answer["tokens_predicted"].as_u64()), (&json!(true), Some(300)));
    assert_eq!(comparison(&answer), no_difference());
}

#[test]
fn plain_and_unfinished_runs_are_not_compared() {
    let engine = start(json!({"n_ctx": 256}));
    let none = skipped("the request did not speculate");
    let plain = json!({"prompt": "Once upon a time", "n_predict": 4});
    for more in
        [json!({"speculative": {"type": "none", "compare": true}}), json!({"speculative.compare": true, "n_beams": 2})]
    {
        assert_eq!(comparison(&complete(&engine, Plain, &with(&plain, more))), none);
    }
    let off = with(&plain, json!({"speculative": false, "speculative.compare": true}));
    assert_eq!(comparison(&complete(&engine, Foredraft, &off)), []);

    let endless = json!({"prompt": "Once", "ignore_eos": true, "speculative": speculating(true)});
    let late = complete(&engine, Foredraft, &with(&endless, json!({"timeout_ms": 20})));
    assert_eq!(
        (&late["stop_type"], comparison(&late)),
        (&json!("timeout"), skipped("the request was ended before it was complete"))
    );
    let id = submit(&engine, Foredraft, &endless);
    assert!(cancel(&engine, Foredraft, id));
    let updates = drain(&engine, Foredraft, id);
    let last = updates.last().expect("a final response");
    assert_eq!(
        (&last["stop_type"], comparison(last)),
        (&json!("cancelled"), skipped("the request was ended before it was complete"))
    );
}

/// Drafters that learn from outputs must learn from each output once.
#[test]
fn drafters_learn_nothing_from_the_second_run() {
    let learnt = |compare| {
        let engine = start(json!({"n_ctx": 256}));
        let request = json!({
            "prompt": prompts()[0], "n_predict": 32, "temperature": 0, "speculative": speculating(compare),
        });
        complete(&engine, Foredraft, &request);
        let stats = json!({"action": "stats", "cache": "dynamic"}).to_string();
        let stats = engine.with_loaded(|loaded| loaded.lookup_cache(stats.as_bytes())).expect("statistics");
        stats["n_observations"].as_u64().expect("a number")
    };
    assert!(learnt(false) > 10);
    assert_eq!(learnt(true), learnt(false));
}

#[test]
fn saved_session_is_from_the_first_run() {
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("compare.session");
    let engine = start(json!({"n_ctx": 128}));
    let first = json!({
        "prompt": prompts()[0], "n_predict": 20, "temperature": 0.9, "seed": 4, "ignore_eos": true, "return_tokens": true,
        "speculative": speculating(true), "session_save": path,
    });
    let answer = complete(&engine, Foredraft, &first);
    assert_eq!(comparison(&answer), no_difference());
    assert_eq!(answer["session_save"]["n_saved"], answer["tokens_cached"]);
    // Both runs of the next request continue the seed's random numbers.
    let prompt = format!("{}{}", prompts()[0], answer["content"].as_str().expect("a text"));
    let next = json!({"prompt": prompt, "session_load": path, "session_save": null, "n_predict": 20});
    let next = complete(&engine, Foredraft, &with(&first, next));
    assert_eq!(comparison(&next), no_difference(), "{next}");
    let position = next["generation_settings"]["seed_position"].as_u64();
    assert!(position > Some(10), "{position:?}");
    assert!(next["timings"]["cache_n"].as_u64() > Some(20), "{next}");
    // The first run shifts the session's tokens out, so the second run cannot start from them.
    let long = json!({"prompt": prompt, "session_load": path, "session_save": null, "n_predict": 200});
    let long = complete(&engine, Foredraft, &with(&first, long));
    assert_eq!(long["tokens_predicted"], 200);
    let why = "the run without speculation failed: what the first run found in the cache is no longer there";
    assert_eq!(comparison(&long), skipped(why));
    std::fs::remove_file(&path).expect("the file");
}

/// Calls `act` on the engine's thread when a request after `last` has decoded its prompt, before its first token. For a request
/// of one token, `act` takes effect in the second run.
fn after_the_prompt(
    engine: &JsonEngine,
    last: &Value,
    n_batches: usize,
    act: impl Fn(&JsonEngine, u64) + Send + Sync + 'static,
) {
    let (n_updates, inner, last) = (AtomicUsize::new(0), engine.clone(), last["id"].as_u64().expect("a number"));
    engine.set_update_hook(Some(Box::new(move |id| {
        // The callback for the end of `last` may arrive only now. The start of a request is reported as well.
        if id > last && n_updates.fetch_add(1, Ordering::Relaxed) == n_batches {
            act(&inner, id);
        }
    })));
}

#[test]
fn interrupted_second_run_still_returns_the_first_run() {
    let n_batch = 16;
    let begin = || start(json!({"n_ctx": 512, "n_batch": n_batch, "n_ubatch": n_batch}));
    let request = json!({
        "prompt": prompts()[..4].concat(), "n_predict": 1, "cache_prompt": false, "temperature": 0, "return_progress": true,
        "speculative": speculating(true),
    });
    let engine = begin();
    let whole = complete(&engine, Foredraft, &request);
    assert_eq!(comparison(&whole), no_difference());
    let n_batches = whole["tokens_evaluated"].as_u64().expect("a number").div_ceil(n_batch);
    let n_batches = usize::try_from(n_batches).expect("it fits");
    let check = |answer: &Value| {
        let key = |answer: &Value| {
            json!([answer["success"], answer["stop_type"], answer["content"], answer["tokens_predicted"]])
        };
        assert_eq!(key(answer), key(&whole), "{answer}");
        assert_eq!(comparison(answer), skipped("the run without speculation was cancelled"), "{answer}");
    };

    after_the_prompt(&engine, &whole, n_batches, |engine, id| {
        assert!(cancel(engine, Foredraft, id));
    });
    let updates = drain(&engine, Foredraft, submit(&engine, Foredraft, &request));
    check(&with(updates.last().expect("a final response"), json!({"content": text(&updates)})));
    engine.set_update_hook(None);
    let last = complete(&engine, Foredraft, &request);
    assert_eq!(comparison(&last), no_difference());

    after_the_prompt(&engine, &last, n_batches, |engine, _| engine.unload());
    let engine = Arc::new(engine);
    check(&complete(&engine, Foredraft, &request));
    engine.set_update_hook(None);
}
