//! The n-gram caches of a serving engine: what the dynamic cache learns, and the `lookup_cache` function.

use crate::common::Endpoint::{Foredraft, Plain};
use crate::common::{cancel, cancelled, complete, poll, start, submit, with};
use foredraft::api::JsonEngine;
use serde_json::{Value, json};

fn lookup(engine: &JsonEngine, request: Value) -> Result<Value, String> {
    let bytes = request.to_string();
    engine.with_loaded(|loaded| loaded.lookup_cache(bytes.as_bytes())).map_err(|error| error.message().to_owned())
}

#[test]
fn dynamic_cache_learns_generated_tokens_and_nothing_else_leaks() {
    let engine = start(json!({"n_ctx": 512, "n_parallel": 2}));
    let stats = |cache: &str| lookup(&engine, json!({"action": "stats", "cache": cache})).unwrap();
    assert_eq!(stats("dynamic")["n_ngrams"], 0);
    let request = json!({
        "prompt": "Once upon a time there was a child named Nora.", "n_predict": 60, "temperature": 0, "ignore_eos": true,
        "speculative": {"type": "ngram-cache", "adaptive": false, "n_max": 8}, "return_tokens": true,
    });
    let first = complete(&engine, Foredraft, &request);
    let learnt = stats("dynamic");
    // Every generated token is recorded after n-grams of 1 to 4 tokens, which may begin in the prompt.
    assert_eq!(learnt["n_observations"], 4 * first["tokens_predicted"].as_u64().unwrap(), "{learnt}");
    // The thresholds are strict: the cache does not draft what it saw once, but does after three times.
    let again: Vec<Value> = (0..3).map(|_| complete(&engine, Foredraft, &request)).collect();
    let accepted = |answer: &Value| answer["speculative"]["n_accepted"].as_u64().unwrap();
    assert!(accepted(&again[2]) > accepted(&first) + 20, "{} {}", first["speculative"], again[2]["speculative"]);
    lookup(&engine, json!({"action": "clear", "cache": "dynamic"})).unwrap();
    assert_eq!(
        accepted(&complete(&engine, Foredraft, &request)),
        accepted(&first),
        "a context cache ends with its request"
    );
    // The cache learns from plain requests too, and from the tokens a cancelled request has generated.
    lookup(&engine, json!({"action": "clear", "cache": "dynamic"})).unwrap();
    complete(&engine, Plain, &with(&request, json!({"speculative": false})));
    assert_eq!(stats("dynamic")["n_observations"], learnt["n_observations"]);
    for endpoint in [Plain, Foredraft] {
        lookup(&engine, json!({"action": "clear", "cache": "dynamic"})).unwrap();
        let updates = cancelled(&engine, endpoint, &with(&request, json!({"n_predict": -1})));
        let n_said = updates.last().unwrap()["tokens_predicted"].as_u64().unwrap();
        assert!(n_said > 0);
        assert_eq!(stats("dynamic")["n_observations"], 4 * n_said);
    }
}

/// Tokens that were shifted out of the context are learned all the same.
#[test]
fn dynamic_cache_learns_tokens_shifted_out_of_the_context() {
    let engine = start(json!({"n_ctx": 128, "n_keep": 5}));
    let stats = || lookup(&engine, json!({"action": "stats", "cache": "dynamic"})).unwrap();
    let save = |name: &str| {
        let path = std::env::temp_dir().join(format!("foredraft-shift-{}-{name}.bin", std::process::id()));
        lookup(&engine, json!({"action": "save", "cache": "dynamic", "filename": path.to_string_lossy()})).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        bytes
    };
    let request = json!({
        "prompt": "Once upon a time there was a child named Nora.", "n_predict": 300, "temperature": 1, "seed": 6,
        "ignore_eos": true, "return_tokens": true, "n_keep": 5,
    });
    let mut files = Vec::new();
    for (endpoint, more) in
        [(Plain, json!({})), (Foredraft, json!({"speculative": {"type": ["suffix", "ngram-cache"]}}))]
    {
        lookup(&engine, json!({"action": "clear", "cache": "dynamic"})).unwrap();
        let answer = complete(&engine, endpoint, &with(&request, more));
        assert_eq!(answer["truncated"], true);
        assert_eq!(stats()["n_observations"], 4 * answer["tokens_predicted"].as_u64().unwrap());
        files.push(save("learnt"));
        // The n-grams of the prompt and the whole output, as if nothing had been shifted out.
        let prompt =
            engine.with_loaded(|loaded| loaded.tokenize(json!({"text": request["prompt"]}).to_string().as_bytes()));
        let prompt = prompt.unwrap()["ids"].as_array().unwrap().clone();
        let text: Vec<i32> =
            prompt.iter().chain(answer["tokens"].as_array().unwrap()).map(|id| id.as_i64().unwrap() as i32).collect();
        let mut expected = foredraft::ngram::Cache::new();
        expected.update(&text, text.len() - prompt.len(), foredraft::ngram::Sizes::ALL);
        let mut bytes = Vec::new();
        expected.write(&mut bytes).unwrap();
        assert!(files.last() == Some(&bytes), "the cache must hold the n-grams of the whole output");
    }
    assert!(files[0] == files[1], "speculation must not change what is learned");
}

#[test]
fn caches_are_loaded_saved_merged_and_cleared_while_serving() {
    let dir = std::env::temp_dir().join(format!("foredraft-drafters-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = |name: &str| dir.join(name).to_string_lossy().into_owned();
    let engine = start(json!({"n_ctx": 512, "n_parallel": 2, "lookup_cache_dynamic": path("not-there-yet.bin")}));
    let request = json!({
        "prompt": "Tom was 7 years old and lived near the hill.", "n_predict": 50, "temperature": 0, "ignore_eos": true,
        "speculative": {"type": "ngram-cache", "adaptive": false},
    });
    let running = submit(&engine, Plain, &with(&request, json!({"n_predict": -1, "temperature": 1, "seed": 3})));
    let plain = complete(&engine, Foredraft, &request);
    // One occurrence is below the thresholds.
    (0..2).for_each(|_| drop(complete(&engine, Foredraft, &request)));
    let saved = lookup(&engine, json!({"action": "save", "cache": "dynamic", "filename": path("learnt.bin")})).unwrap();
    assert_eq!(saved["file_bytes"], std::fs::metadata(path("learnt.bin")).unwrap().len());
    let of_file = |action: &str, cache: &str| {
        lookup(&engine, json!({"action": action, "cache": cache, "filename": path("learnt.bin")})).unwrap()
    };
    let loaded = of_file("load", "static");
    assert_eq!(loaded["n_ngrams"], saved["n_ngrams"]);
    let merged = of_file("merge", "static");
    assert_eq!(merged["n_observations"].as_u64(), saved["n_observations"].as_u64().map(|n| 2 * n));
    assert_eq!(merged["n_ngrams"], saved["n_ngrams"]);
    assert_eq!(lookup(&engine, json!({"action": "clear", "cache": "static"})).unwrap()["n_ngrams"], 0);
    // Files named by a request, and by init.
    lookup(&engine, json!({"action": "clear", "cache": "dynamic"})).unwrap();
    for key in ["lookup_cache_static", "lookup_cache_dynamic"] {
        let own = json!({"speculative": {"type": "ngram-cache", "adaptive": false, key: path("learnt.bin")}});
        let fast = complete(&engine, Foredraft, &with(&request, own));
        assert_eq!(fast["content"], plain["content"], "{key}");
        assert!(
            fast["speculative"]["n_accepted"].as_u64() > plain["speculative"]["n_accepted"].as_u64(),
            "{key} {}",
            fast["speculative"]
        );
        lookup(&engine, json!({"action": "clear", "cache": "dynamic"})).unwrap();
    }
    // The other request has been generating all the while.
    assert_eq!(poll(&engine, Plain, running, 0)["finished"], false);
    assert!(cancel(&engine, Plain, running));
    for (request, expected) in [
        (json!({"action": "load", "cache": "static"}), "filename: expected a path, got nothing"),
        (json!({"action": "lod", "cache": "static"}), "action: expected"),
        (json!({"action": "stats", "cache": "both"}), "cache: expected"),
        (json!({"action": "load", "cache": "static", "filename": path("nothing.bin")}), "nothing.bin"),
        (json!({"action": "save", "cache": "dynamic", "filename": dir}), "filename"),
    ] {
        let error = lookup(&engine, request.clone()).unwrap_err();
        assert!(error.contains(expected), "{request}: {error}");
    }
    let other = start(json!({"n_ctx": 512, "lookup_cache_static": path("learnt.bin")}));
    assert_eq!(lookup(&other, json!({"action": "stats", "cache": "static"})).unwrap()["n_ngrams"], saved["n_ngrams"]);
    std::fs::remove_dir_all(&dir).unwrap();
}

/// Clearing the dynamic cache also clears what the suffix drafter learned from earlier outputs.
#[test]
fn clearing_the_dynamic_cache_makes_suffix_forget_earlier_outputs() {
    let engine = start(json!({"n_ctx": 512}));
    let drafted = || {
        let request = json!({
            "prompt": "Once upon a time there was a child", "n_predict": 80, "temperature": 0,
            "speculative": {"type": "suffix", "adaptive": false, "n_max": 8},
        });
        let answer = complete(&engine, Foredraft, &request);
        answer["speculative"]["n_accepted"].as_u64().expect("a count")
    };
    let (first, second) = (drafted(), drafted());
    assert!(second > first + 40, "drafted from the first output: {first} {second}");
    let clear = |cache: &str| {
        let request = json!({"action": "clear", "cache": cache}).to_string();
        engine.with_loaded(|loaded| loaded.lookup_cache(request.as_bytes())).expect("cleared");
    };
    clear("static");
    let third = drafted();
    assert!(third > first + 40, "clearing the static cache must not matter: {first} {third}");
    clear("dynamic");
    assert_eq!(drafted(), first);
    assert_eq!(drafted(), second, "learned again");
}

/// `update` and `draft`: n-gram caches given by the host. tests/hosts/ngram_peer.cpp compares them with llama.cpp's functions.
#[test]
fn host_updates_caches_and_drafts_from_them() {
    let engine = start(json!({"n_ctx": 256}));
    let draft = |tokens: Value, n: usize| {
        let answer = lookup(&engine, json!({"action": "draft", "tokens": tokens, "n_draft": n})).unwrap();
        (answer["draft"].clone(), answer["levels"].clone())
    };
    assert_eq!(
        draft(json!([300, 301, 300, 301, 300, 301, 300]), 3),
        (json!([301, 300, 301]), json!(["context", "context", "context"]))
    );
    assert_eq!(draft(json!([300, 301]), 3), (json!([]), json!([])));
    let update = |cache: &str, more: Value| {
        lookup(
            &engine,
            with(&json!({"action": "update", "cache": cache, "tokens": [300, 301, 302, 300, 301, 302]}), more),
        )
        .unwrap()
    };
    // 2-grams in the static cache, 1- to 4-grams in the dynamic one, unless the request says otherwise.
    assert_eq!(update("static", json!({}))["n_observations"], 4);
    // (301, 302) has only been seen once.
    assert_eq!(draft(json!([300, 301]), 2), (json!([302]), json!(["static"])));
    for (cache, drafted) in [("static", json!([302])), ("dynamic", json!([]))] {
        let alone = json!({"action": "draft", "cache": cache, "tokens": [300, 301], "n_draft": 2});
        assert_eq!(lookup(&engine, alone).unwrap()["draft"], drafted, "{cache}");
    }
    assert_eq!(update("dynamic", json!({"n_new": 1}))["n_observations"], 4);
    assert_eq!(update("dynamic", json!({"n_new": 0}))["n_observations"], 4);
    assert_eq!(update("dynamic", json!({"ngram_min": 2, "ngram_max": 2}))["n_observations"], 8);
    assert_eq!(update("static", json!({"ngram_max": 1}))["ngrams"], json!([3, 3, 0, 0]));
    // A request drafts from what the host has given.
    lookup(&engine, json!({"action": "clear", "cache": "static"})).unwrap();
    lookup(&engine, json!({"action": "clear", "cache": "dynamic"})).unwrap();
    let request = json!({"prompt": "Once upon a time there was a child named Nora.", "n_predict": 60, "temperature": 0, "ignore_eos": true,
        "speculative": {"type": "ngram-cache", "adaptive": false, "n_max": 8}, "return_tokens": true, "cache_prompt": false});
    let first = complete(&engine, Foredraft, &request);
    lookup(&engine, json!({"action": "clear", "cache": "dynamic"})).unwrap();
    for _ in 0..4 {
        lookup(&engine, json!({"action": "update", "cache": "dynamic", "tokens": first["tokens"]})).unwrap();
    }
    let given = complete(&engine, Foredraft, &request);
    let accepted = |answer: &Value| answer["speculative"]["n_accepted"].as_u64().unwrap();
    assert!(accepted(&given) > accepted(&first) + 20, "{} {}", first["speculative"], given["speculative"]);
    assert_eq!(given["tokens"], first["tokens"]);
    for (wrong, message) in [
        (json!({"action": "update", "cache": "dynamic"}), "tokens: expected an array of token ids, got nothing"),
        (json!({"action": "update", "tokens": [1]}), "cache: expected a word"),
        (json!({"action": "update", "cache": "context", "tokens": [1]}), "cache: expected one of"),
        (
            json!({"action": "update", "cache": "dynamic", "tokens": [1, 99999]}),
            "tokens[1]: expected a whole number from 0 to",
        ),
        (
            json!({"action": "update", "cache": "dynamic", "tokens": [1], "n_new": 2}),
            "n_new: expected a whole number from 0 to 1",
        ),
        (
            json!({"action": "update", "cache": "dynamic", "tokens": [1], "ngram_min": 3, "ngram_max": 2}),
            "ngram_min, ngram_max: ",
        ),
        (json!({"action": "draft"}), "tokens: expected an array"),
        (json!({"action": "draft", "tokens": [-1]}), "tokens[0]: expected"),
        (json!({"action": "draft", "tokens": [1], "n_draft": 2000}), "n_draft: expected"),
        (json!({"action": "draft", "tokens": [1], "cache": "context"}), "cache: expected"),
    ] {
        let error = lookup(&engine, wrong.clone()).unwrap_err();
        assert!(error.starts_with(message), "{wrong}: {error}");
    }
}
