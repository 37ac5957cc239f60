//! `warnings` name what a request or a load does not do although it looks as if it would.

use foredraft::api::JsonEngine;
use serde_json::{Value, json};

use crate::common::Endpoint::Foredraft;
use crate::common::{Requests as _, complete, model, start};

fn warnings(engine: &JsonEngine, request: Value) -> Vec<String> {
    let answer = complete(engine, Foredraft, &request);
    let texts = answer["warnings"].as_array().cloned().unwrap_or_default();
    texts.iter().map(|text| text.as_str().expect("a text").to_owned()).collect()
}

#[test]
fn requests_that_mean_something_else_are_warned_about() {
    let engine = start(json!({"n_ctx": 256, "model_draft": null}));
    let long = vec![5; 400];
    for (request, expected) in [
        (json!({"prompt": "a"}), None),
        (json!({}), Some("prompt: neither prompt nor messages is given, so the completion continues an empty text")),
        (json!({"prompt": "a", "temp": 0.5, "temperature": 0.5}), None),
        (
            json!({"prompt": "a", "temp": 0.5, "temperature": 0.7}),
            Some("temp: not used, because temperature is given, too"),
        ),
        (json!({"prompt": "a", "n": 2, "n_cmpl": 1}), Some("n: not used, because n_cmpl is given, too")),
        (json!({"prompt": "a", "max_tokens": 3}), Some("max_tokens: not used, because n_predict is given, too")),
        (
            json!({"prompt": "a", "response_fields": ["contents"]}),
            Some("response_fields: the answer has no field \"contents\" (did you mean \"content\"?)"),
        ),
        (json!({"prompt": "a", "response_fields": ["content", "timings/prompt_n"]}), None),
        (
            json!({"prompt": long, "n_keep": 8}),
            Some("prompt: 264 of 400 tokens are left out after the first 8, because the context has 256"),
        ),
        (
            json!({"prompt": long, "n_keep": 0}),
            Some("prompt: the first 272 of 400 tokens are left out, because the context has 256"),
        ),
    ] {
        let mut whole = request.clone();
        whole["n_predict"] = json!(2);
        let given = warnings(&engine, whole);
        match expected {
            None => assert_eq!(given, Vec::<String>::new(), "{request}"),
            Some(expected) => {
                // The number of tokens that are left out depends on how llama.cpp's rule divides them.
                let expected = expected.split_once(" of 400").map_or(expected, |(_, rest)| rest);
                assert!(given.len() == 1 && given[0].contains(expected), "{request}: {given:?}");
            }
        }
    }
}

/// What the library notes about a request stands beside it.
#[test]
fn keys_with_two_underscores_are_unknown_ones() {
    let engine = start(json!({"n_ctx": 256, "model_draft": null}));
    let request = json!({"prompt": "Once upon a time", "n_predict": 8, "temperature": 0});
    let plain = complete(&engine, Foredraft, &request)["content"].clone();
    for name in ["resume", "resumee", "translation", "delivered", "number", "id_seed", "seed_is_drawn", "warnings"] {
        let key = format!("__{name}");
        let request = crate::common::with(&request, json!({&key: [[100, 101, 102]]}));
        assert_eq!(complete(&engine, Foredraft, &request)["content"], plain, "{key}");
        let warned = warnings(&engine, request);
        assert_eq!(warned, [format!("unknown key {key:?}")], "{key}");
    }
}

#[test]
fn models_that_do_not_serve_are_warned_about() {
    let load = |init: Value| {
        let engine = start(init);
        let status = engine.status();
        status["warnings"].to_string()
    };
    let swapped = load(json!({"model": model("draft"), "model_draft": model("target"), "n_ctx": 256}));
    assert!(swapped.contains("model_draft: has ") && swapped.contains("takes longer than it saves"), "{swapped}");
    let own = load(json!({"model": model("target"), "model_draft": model("target"), "n_ctx": 256}));
    assert!(own.contains("model_draft: is the target itself"), "{own}");
    let mtp = load(json!({"model_draft": null, "n_ctx": 256, "speculative": {"type": "mtp"}}));
    assert!(mtp.contains("speculative.type: mtp is not used"), "{mtp}");
    let shared = |kind: &str, more: Value| {
        let init =
            json!({"n_ctx": 256, "model_draft": null, "cache_type_k": kind, "cache_type_v": kind, "n_parallel": 2});
        load(crate::common::with(&init, more))
    };
    let expected = "kv_unified: the last bits of a slot's log-probabilities depend on the other slots";
    let without = json!({"kv_unified": true, "flash_attn": "off"});
    assert!(shared("f16", without).contains(expected));
    for other in [shared("f16", json!({"flash_attn": "off"})), shared("q4_0", json!({"kv_unified": true}))] {
        assert!(!other.contains("kv_unified"), "{other}");
    }
    let plain = load(json!({"n_ctx": 256}));
    assert!(!plain.contains("model_draft") && !plain.contains("mtp"), "{plain}");
}

#[test]
fn prompt_that_does_not_fit_has_its_numbers_in_the_error() {
    let engine = start(json!({"n_ctx": 256, "model_draft": null}));
    let request = json!({"prompt": vec![5; 400], "on_overflow": "error"}).to_string();
    let error = engine.complete_as(Foredraft, request.as_bytes()).expect_err("too long");
    let overflow = error.overflow().expect("its numbers");
    assert_eq!((overflow.n_prompt_tokens, overflow.n_ctx), (400, 256), "{error}");
    let answer = foredraft::api::error_json(&error);
    assert_eq!((&answer["n_prompt_tokens"], &answer["n_ctx"]), (&json!(400), &json!(256)));
}
