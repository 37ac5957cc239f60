//! Requests that are valid JSON but invalid, extreme or far too large.

use serde_json::{Value, json};

use crate::c_api::{
    assert_works, both_ways, call, endless, error_of, last_update, loaded, plain, shortened, submit, wait_for_state,
};

/// A request with one more key.
fn with(key: &str, value: Value) -> Value {
    json!({"prompt": "Once upon a time", "n_predict": 2, "temperature": 0, key: value})
}

/// Values of the wrong type or out of range, by field.
pub fn wrong_values() -> Vec<(&'static str, Value)> {
    let numbers = [
        ("temperature", -1e39, 1001.0),
        ("dynatemp_range", -0.1, 1001.0),
        ("dynatemp_exponent", -0.1, 1001.0),
        ("top_k", -2147483649.0, 2147483648.0),
        ("top_p", -0.01, 1.01),
        ("min_p", -0.01, 1.01),
        ("tfs_z", -0.01, 1.01),
        ("typical_p", -0.01, 1.01),
        ("xtc_probability", -0.01, 1.01),
        ("xtc_threshold", -0.01, 1.01),
        ("dry_multiplier", -0.01, 1e39),
        ("dry_base", 0.9, 1e39),
        ("dry_allowed_length", -1.0, 1e12),
        ("dry_penalty_last_n", -2.0, 1e12),
        ("repeat_last_n", -2.0, 1e12),
        ("repeat_penalty", 0.0, 1e39),
        ("presence_penalty", -1e39, 1e39),
        ("frequency_penalty", -1e39, 1e39),
        ("mirostat", -1.0, 3.0),
        ("mirostat_tau", -1.0, 1e39),
        ("mirostat_eta", -1.0, 1e39),
        ("adaptive_target", -1e39, 1.01),
        ("adaptive_decay", -0.01, 1.0),
        ("min_keep", -1.0, 1e12),
        ("n_probs", -1.0, 1e12),
        ("n_predict", -2.0, 1e12),
        ("n_keep", -2.0, 1e12),
        ("id_slot", -2.0, 1.0),
        ("timeout_ms", -2.0, 1e300),
        ("seed", -2.0, 4294967296.0),
    ];
    let mut cases: Vec<(&'static str, Value)> = Vec::new();
    for (key, below, above) in numbers {
        let wrong = [json!(below), json!(above), json!("1"), json!([1]), json!({"a": 1}), json!(true)];
        cases.extend(wrong.into_iter().map(|value| (key, value)));
    }
    for key in ["penalize_nl", "ignore_eos", "cache_prompt", "stream", "return_tokens", "timings_per_token", "__debug"]
    {
        cases.extend([json!(1), json!("true"), json!([])].map(|value| (key, value)));
    }
    cases.extend([
        ("prompt", json!(5)),
        ("prompt", json!({"a": 1})),
        ("prompt", json!([["nested"]])),
        ("messages", json!("text")),
        ("messages", json!([])),
        ("messages", json!([5])),
        ("messages", json!([{"role": 5}])),
        ("stop", json!(5)),
        ("stop", json!([5])),
        ("samplers", json!(5)),
        ("samplers", json!(["no such sampler"])),
        ("samplers", json!(vec!["top_k"; 1000])),
        ("dry_sequence_breakers", json!([""])),
        ("dry_sequence_breakers", json!("x")),
        ("logit_bias", json!(5)),
        ("logit_bias", json!([[1]])),
        ("logit_bias", json!([[1, "much"]])),
        ("logit_bias", json!([[1, true]])),
        ("logit_bias", json!([[1, 1e39]])),
        ("grammar", json!(5)),
        ("speculative", json!(5)),
        ("speculative", json!({"n_max": -1})),
        ("speculative", json!({"n_max": 1e9})),
        ("speculative", json!({"p_min": 1.5})),
        ("speculative", json!({"type": "magic"})),
        ("speculative", json!({"type": []})),
        ("speculative", json!({"verify": "trust"})),
        ("speculative", json!({"adaptive": 3})),
    ]);
    cases
}

/// Asserts that the functions refuse a value of a field, by the field's name.
pub fn assert_refused(error_of: impl Fn(&str, &Value) -> (String, String), names: &[&str], key: &str, value: &Value) {
    for name in names {
        // `messages` excludes `prompt`.
        let request = if key == "messages" { json!({"messages": value}) } else { with(key, value.clone()) };
        let (code, error) = error_of(name, &request);
        assert_eq!(code, "invalid_request", "{name} {}: {error}", shortened(&request));
        assert!(error.contains(key), "{name} {}: {error}", shortened(&request));
    }
}

#[test]
fn wrong_types_and_ranges_are_refused_with_the_field_name() {
    let _guard = loaded(json!({}));
    for (key, value) in wrong_values() {
        assert_refused(error_of, &["complete", "submit"], key, &value);
    }
    assert_works();
}

#[test]
fn token_ids_outside_the_vocabulary_are_refused() {
    let _guard = loaded(json!({}));
    for id in [json!(-1), json!(1536), json!(i32::MAX), json!(1_u64 << 32), json!(u64::MAX), json!(1.5), json!(1e300)] {
        for (name, request) in [
            ("complete", json!({"prompt": ["a", id]})),
            ("submit", json!({"prompt": [id]})),
            ("detokenize", json!({"tokens": [1, id]})),
            ("complete", with("logit_bias", json!([[id, 1]]))),
            ("complete", with("logit_bias", json!({id.to_string(): 1}))),
        ] {
            // In an object form, a key that is not a whole number is text.
            if request["logit_bias"].is_object() && !id.is_i64() {
                continue;
            }
            let (code, error) = error_of(name, &request);
            assert_eq!(code, "invalid_request", "{name} {request}: {error}");
        }
    }
    assert_eq!(call("detokenize", &json!({"tokens": []}))["content"], "");
    assert_works();
}

#[test]
fn prompts_of_any_length_are_handled() {
    let guard = loaded(json!({}));
    for (prompt, truncated) in [
        (json!(""), false),
        (json!([]), false),
        (json!(["", ""]), false),
        (json!("a ".repeat(5 << 20)), true),
        (json!("Once upon a time ".repeat(400)), true),
        (json!(vec![1; 511]), false),
        (json!(vec![1; 512]), true),
        (json!(vec![1; 513]), true),
        (json!(vec![1; 1_000_000]), true),
    ] {
        // Greedy, because a sampled completion that ends inside a character gets one more token.
        let request = json!({"prompt": prompt, "n_predict": 1, "temperature": 0});
        let answer = call("complete", &plain(&request));
        // BOS is added to texts but not to token arrays, so a token array may be empty.
        if prompt == json!([]) {
            assert_eq!(answer["code"], "invalid_request", "{answer}");
            continue;
        }
        assert_eq!(
            (&answer["success"], &answer["truncated"]),
            (&json!(true), &json!(truncated)),
            "{}",
            shortened(&request)
        );
        assert_eq!(answer["tokens_predicted"], 1, "{}", shortened(&request));
    }
    for n_keep in [-1, 0, 5, 508, 1_000_000] {
        let request = json!({"prompt": vec![1; 5000], "n_predict": 1, "n_keep": n_keep});
        assert_eq!(call("complete", &request)["truncated"], true, "{n_keep}");
    }
    assert_works();
    drop(guard);
    let _guard = loaded(json!({"ctx_shift": false}));
    let (code, error) = error_of("complete", &plain(&json!({"prompt": vec![1; 5000]})));
    assert_eq!(code, "context_full", "{error}");
    assert_works();
}

#[test]
fn two_megabyte_word_is_tokenized() {
    let _guard = loaded(json!({}));
    let word = "a".repeat(2 << 20);
    let answer = call("tokenize", &json!({"text": word, "add_special": false}));
    let pieces: usize =
        answer["tokens"].as_array().expect("tokens").iter().map(|t| t.as_str().expect("text").len()).sum();
    assert_eq!(pieces, word.len());
    assert_eq!(
        call("embed", &json!({"content": "a"}))["code"],
        "invalid_request",
        "the load did not enable embeddings"
    );
    assert_works();
}

#[test]
fn logit_bias_may_ban_all_tokens_or_all_but_one() {
    let _guard = loaded(json!({}));
    let all = |bias: Value| (0..1536).map(|token| json!([token, bias])).collect::<Vec<_>>();
    let answer = call("complete", &with("logit_bias", json!(all(json!(false)))));
    assert_eq!((&answer["code"], &answer["stop_type"]), (&json!("invalid_request"), &json!("error")), "{answer}");
    let mut biases = all(json!(false));
    biases[300] = json!([300, -1e9]);
    let mut request = with("logit_bias", json!(biases));
    request["return_tokens"] = json!(true);
    for request in both_ways(&request) {
        let answer = call("complete", &request);
        assert_eq!(answer["tokens"], json!([300, 300]), "{answer}");
    }
    for request in both_ways(&with("logit_bias", json!(all(json!(1e9))))) {
        let answer = call("complete", &request);
        assert_eq!(answer["success"], true, "{answer}");
    }
    assert_works();
}

#[test]
fn extreme_but_valid_settings_are_accepted() {
    let _guard = loaded(json!({}));
    let check = |more: Value| {
        let mut request = json!({"prompt": "Once upon a time", "n_predict": 3, "seed": 5});
        request.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        for request in both_ways(&request) {
            let answer = call("complete", &request);
            assert_eq!(answer["success"], true, "{}: {answer}", shortened(&request));
        }
    };
    check(json!({"stop": "x".repeat(1 << 20)}));
    check(json!({"stop": (0..10_000).map(|n| format!("no such word {n}")).collect::<Vec<_>>()}));
    check(json!({"stop": ["", "", ""]}));
    for seed in [-1_i64, 0, 1, 4294967295, 2147483648] {
        check(json!({"seed": seed}));
    }
    check(json!({"temperature": 1000, "top_k": -1, "top_p": 1, "min_p": 0}));
    check(json!({"temperature": 1e-38, "top_p": 0, "typical_p": 0, "tfs_z": 0, "min_p": 1}));
    check(
        json!({"repeat_penalty": 100, "frequency_penalty": -1e4, "presence_penalty": 1e4, "repeat_last_n": 16777216}),
    );
    check(json!({"dry_multiplier": 1000, "dry_base": 1000, "dry_allowed_length": 0, "dry_penalty_last_n": -1}));
    check(json!({"dry_multiplier": 1, "dry_sequence_breakers": vec!["x".repeat(1000); 1000]}));
    check(json!({"mirostat": 2, "mirostat_tau": 0, "mirostat_eta": 1000}));
    check(json!({"mirostat": 1, "mirostat_tau": 1000, "mirostat_eta": 0}));
    check(json!({"dynatemp_range": 1000, "dynatemp_exponent": 1000, "xtc_probability": 1, "xtc_threshold": 0}));
    check(json!({"samplers": []}));
    check(json!({"tag": {"a": [1, {"b": "x".repeat(1 << 20)}]}}));
    check(json!({"speculative": {"n_max": 64, "n_min": 64, "p_min": 1, "adaptive": false}}));
    let unknown: serde_json::Map<String, Value> = (0..10_000).map(|n| (format!("no_such_key_{n}"), json!(n))).collect();
    check(Value::Object(unknown));
    assert_works();
}

#[test]
fn n_probs_may_cover_the_whole_vocabulary() {
    let _guard = loaded(json!({}));
    for n_probs in [1536, 1 << 20] {
        let answer = call("complete", &with("n_probs", json!(n_probs)));
        for token in answer["completion_probabilities"].as_array().expect("probabilities") {
            let probs = token["probs"].as_array().expect("probs");
            let sum: f64 = probs.iter().map(|entry| entry["prob"].as_f64().expect("prob")).sum();
            assert_eq!(probs.len(), 1536);
            assert!((sum - 1.0).abs() < 1e-3, "{sum}");
        }
    }
    assert_works();
}

#[test]
fn timeout_applies_at_every_stage() {
    let _guard = loaded(json!({"n_ctx": 16384, "n_batch": 512}));
    let stop_type = |request: &Value| {
        let answer = call("complete", request);
        assert_eq!(answer["success"], true, "{answer}");
        answer["stop_type"].as_str().expect("stop_type").to_owned()
    };
    let limited = |mut request: Value, timeout: u64| {
        request["timeout_ms"] = json!(timeout);
        request
    };
    let long = json!({"prompt": vec![1; 16000], "n_predict": 1, "cache_prompt": false});
    for (endless, long) in both_ways(&endless()).into_iter().zip(both_ways(&long)) {
        assert_eq!(stop_type(&limited(endless.clone(), 50)), "timeout", "while generating");
        assert_eq!(stop_type(&limited(long, 50)), "timeout", "in the prompt");
        let blocker = submit(&endless);
        wait_for_state(blocker, "generating");
        assert_eq!(stop_type(&limited(endless, 50)), "timeout", "in the queue");
        call("cancel", &json!({"id": blocker}));
        last_update(blocker);
    }
    assert_works();
}
