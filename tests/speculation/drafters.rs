//! Every drafter through the server: the text stays the same, and each drafts where it can.

use crate::common::{cancel, cancelled, complete, essence, merge, poll, prompts, start, submit, with};
use foredraft::api::Endpoint::{Completion, Speculative};
use foredraft::api::System;
use serde_json::{Value, json};

const TYPES: [&str; 9] = [
    "draft",
    "ngram-cache",
    "ngram-simple",
    "ngram-map-k",
    "ngram-map-k4v",
    "ngram-mod",
    "suffix",
    "auto",
    "prediction",
];

/// A prompt that the model continues by saying much of it again.
const REPETITIVE: &str = "<|im_start|>user\nRepeat after me: Mia has a kite. Mia has a kite. Mia has a kite.<|im_end|>\n\
    <|im_start|>assistant\nMia has a kite. Mia has a kite. Mia has a";

/// Parameters with which each drafts on short texts.
fn eager(kind: &str) -> Value {
    let mut speculative = json!({
        "type": kind, "adaptive": false, "n_max": 6, "ngram_size_n": 3, "ngram_size_m": 6, "ngram_mod_n_match": 4, "ngram_mod_n_min": 0,
    });
    if kind == "prediction" {
        speculative["type"] = json!(["ngram-mod"]);
    }
    speculative
}

#[test]
fn no_drafter_changes_a_text() {
    let system = start(json!({"n_ctx": 512}));
    let mut accepted = json!({});
    let mut texts = prompts();
    texts.truncate(6);
    texts.push(REPETITIVE.into());
    for (index, prompt) in texts.iter().enumerate() {
        for temperature in [0.0, 0.8] {
            let request = json!({
                "prompt": prompt, "n_predict": 72, "temperature": temperature, "seed": index, "return_tokens": true,
                "repeat_penalty": 1, "cache_prompt": index % 2 == 0, "ignore_eos": true,
            });
            let plain = complete(&system, Completion, &request);
            for kind in TYPES {
                for adaptive in [json!(true), json!(false)] {
                    let mut speculative = eager(kind);
                    merge(&mut speculative, &json!({"adaptive": adaptive}));
                    let mut fast = with(&request, json!({"speculative": speculative}));
                    if kind == "prediction" {
                        let mut predicted = plain["content"].as_str().unwrap().to_owned();
                        predicted.truncate(predicted.floor_char_boundary(predicted.len() * 3 / 4));
                        fast["prediction"] = json!({"type": "content", "content": predicted});
                    }
                    let fast = complete(&system, Speculative, &fast);
                    assert_eq!(essence(&fast), essence(&plain), "{prompt:?} {temperature} {kind} {adaptive}");
                    for (source, counts) in fast["speculative"]["by_type"].as_object().unwrap() {
                        let before = accepted[source].as_u64().unwrap_or(0);
                        accepted[source] = json!(before + counts["n_accepted"].as_u64().unwrap());
                    }
                }
            }
        }
    }
    for source in
        ["draft", "ngram-cache", "ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "suffix", "prediction"]
    {
        assert!(accepted[source].as_u64() > Some(20), "nothing is proved of who drafts nothing: {source} {accepted}");
    }
}

#[test]
fn a_list_takes_the_best_and_tells_who_it_was() {
    let system = start(json!({"n_ctx": 512}));
    let request = json!({
        "prompt": "Mia had a red kite. Mia had a red kite. Mia had a", "n_predict": 60, "temperature": 0, "repeat_penalty": 1,
        "ignore_eos": true, "return_tokens": true,
        "speculative": {"type": ["ngram-mod", "suffix", "draft"], "adaptive": false, "n_max": 6},
    });
    let answer = complete(&system, Speculative, &request);
    let report = &answer["speculative"];
    assert_eq!(report["type"], json!(["ngram-mod", "suffix", "draft"]));
    let by_type = report["by_type"].as_object().unwrap();
    assert!(by_type.contains_key("suffix") && by_type.len() > 1, "{report}");
    let sum = |key: &str| by_type.values().map(|counts| counts[key].as_u64().unwrap()).sum::<u64>();
    assert_eq!(
        (json!(sum("n_drafted")), json!(sum("n_accepted"))),
        (report["n_drafted"].clone(), report["n_accepted"].clone())
    );
    let sources = answer["sources"].as_array().unwrap();
    for (source, counts) in by_type {
        let said = sources.iter().filter(|other| *other == source).count();
        assert_eq!(json!(said), counts["n_accepted"], "{source}");
    }
}

#[test]
fn without_a_draft_model_the_text_drafts() {
    let system = start(json!({"n_ctx": 512, "model_draft": null}));
    let request =
        json!({"prompt": REPETITIVE, "n_predict": 60, "temperature": 0, "repeat_penalty": 1, "ignore_eos": true});
    let answer = complete(&system, Speculative, &with(&request, json!({"speculative": {"adaptive": false}})));
    assert!(answer["speculative"]["n_accepted"].as_u64() > Some(10), "{}", answer["speculative"]);
    assert_eq!(answer["speculative"].get("disabled"), None);
    let asked = complete(&system, Speculative, &with(&request, json!({"speculative": {"type": "draft"}})));
    assert_eq!(asked["speculative"]["disabled"], "there is no draft model");
    assert_eq!(asked["content"], answer["content"]);
}

fn lookup(system: &System, request: Value) -> Result<Value, String> {
    let bytes = request.to_string();
    system.with_server(|server| server.lookup_cache(bytes.as_bytes())).map_err(|error| error.message().to_owned())
}

#[test]
fn the_dynamic_cache_learns_what_is_generated_and_nothing_of_a_request_leaks_otherwise() {
    let system = start(json!({"n_ctx": 512, "n_parallel": 2}));
    let stats = |cache: &str| lookup(&system, json!({"action": "stats", "cache": cache})).unwrap();
    assert_eq!(stats("dynamic")["n_ngrams"], 0);
    let request = json!({
        "prompt": "Once upon a time there was a child named Nora.", "n_predict": 60, "temperature": 0, "ignore_eos": true,
        "speculative": {"type": "ngram-cache", "adaptive": false, "n_max": 8}, "return_tokens": true,
    });
    let first = complete(&system, Speculative, &request);
    let learnt = stats("dynamic");
    // Every generated token follows n-grams of 1 to 4 tokens, those of the prompt's end included.
    assert_eq!(learnt["n_observations"], 4 * first["tokens_predicted"].as_u64().unwrap(), "{learnt}");
    // Strict thresholds: what was said once is not said again by the cache; after three times it is.
    let again: Vec<Value> = (0..3).map(|_| complete(&system, Speculative, &request)).collect();
    let accepted = |answer: &Value| answer["speculative"]["n_accepted"].as_u64().unwrap();
    assert!(accepted(&again[2]) > accepted(&first) + 20, "{} {}", first["speculative"], again[2]["speculative"]);
    lookup(&system, json!({"action": "clear", "cache": "dynamic"})).unwrap();
    assert_eq!(
        accepted(&complete(&system, Speculative, &request)),
        accepted(&first),
        "a context cache ends with its request"
    );
    // A plain request teaches as well, and a cancelled one what it has said.
    lookup(&system, json!({"action": "clear", "cache": "dynamic"})).unwrap();
    complete(&system, Completion, &with(&request, json!({"speculative": false})));
    assert_eq!(stats("dynamic")["n_observations"], learnt["n_observations"]);
    for family in [Completion, Speculative] {
        lookup(&system, json!({"action": "clear", "cache": "dynamic"})).unwrap();
        let updates = cancelled(&system, family, &with(&request, json!({"n_predict": -1})));
        let n_said = updates.last().unwrap()["tokens_predicted"].as_u64().unwrap();
        assert!(n_said > 0);
        assert_eq!(stats("dynamic")["n_observations"], 4 * n_said);
    }
}

/// What has left the context was said all the same.
#[test]
fn the_dynamic_cache_learns_what_contexts_shift_out() {
    let system = start(json!({"n_ctx": 128, "n_keep": 5}));
    let stats = || lookup(&system, json!({"action": "stats", "cache": "dynamic"})).unwrap();
    let save = |name: &str| {
        let path = std::env::temp_dir().join(format!("foredraft-shift-{}-{name}.bin", std::process::id()));
        lookup(&system, json!({"action": "save", "cache": "dynamic", "filename": path.to_string_lossy()})).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        bytes
    };
    let request = json!({
        "prompt": "Once upon a time there was a child named Nora.", "n_predict": 300, "temperature": 1, "seed": 6,
        "ignore_eos": true, "return_tokens": true, "n_keep": 5,
    });
    let mut files = Vec::new();
    for (family, more) in
        [(Completion, json!({})), (Speculative, json!({"speculative": {"type": ["suffix", "ngram-cache"]}}))]
    {
        lookup(&system, json!({"action": "clear", "cache": "dynamic"})).unwrap();
        let answer = complete(&system, family, &with(&request, more));
        assert_eq!(answer["truncated"], true);
        assert_eq!(stats()["n_observations"], 4 * answer["tokens_predicted"].as_u64().unwrap());
        files.push(save("learnt"));
        // As if nothing had ever left it: the n-grams of the prompt and the whole answer.
        let prompt =
            system.with_server(|server| server.tokenize(json!({"text": request["prompt"]}).to_string().as_bytes()));
        let prompt = prompt.unwrap()["ids"].as_array().unwrap().clone();
        let text: Vec<i32> =
            prompt.iter().chain(answer["tokens"].as_array().unwrap()).map(|id| id.as_i64().unwrap() as i32).collect();
        let mut expected = foredraft::ngram::Cache::new();
        expected.update(&text, text.len() - prompt.len(), foredraft::ngram::Sizes::ALL);
        let mut bytes = Vec::new();
        expected.write(&mut bytes).unwrap();
        assert!(files.last() == Some(&bytes), "what was learnt is what was said");
    }
    assert!(files[0] == files[1], "with and without speculation");
}

#[test]
fn caches_are_loaded_saved_merged_and_cleared_while_serving() {
    let dir = std::env::temp_dir().join(format!("foredraft-drafters-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = |name: &str| dir.join(name).to_string_lossy().into_owned();
    let system = start(json!({"n_ctx": 512, "n_parallel": 2, "lookup_cache_dynamic": path("not-there-yet.bin")}));
    let request = json!({
        "prompt": "Tom was 7 years old and lived near the hill.", "n_predict": 50, "temperature": 0, "ignore_eos": true,
        "speculative": {"type": "ngram-cache", "adaptive": false},
    });
    let running = submit(&system, Completion, &with(&request, json!({"n_predict": -1, "temperature": 1, "seed": 3})));
    let plain = complete(&system, Speculative, &request);
    // What was said once is too little to go by.
    (0..2).for_each(|_| drop(complete(&system, Speculative, &request)));
    let saved = lookup(&system, json!({"action": "save", "cache": "dynamic", "filename": path("learnt.bin")})).unwrap();
    assert_eq!(saved["file_bytes"], std::fs::metadata(path("learnt.bin")).unwrap().len());
    let of_file = |action: &str, cache: &str| {
        lookup(&system, json!({"action": action, "cache": cache, "filename": path("learnt.bin")})).unwrap()
    };
    let loaded = of_file("load", "static");
    assert_eq!(loaded["n_ngrams"], saved["n_ngrams"]);
    let merged = of_file("merge", "static");
    assert_eq!(merged["n_observations"].as_u64(), saved["n_observations"].as_u64().map(|n| 2 * n));
    assert_eq!(merged["n_ngrams"], saved["n_ngrams"]);
    assert_eq!(lookup(&system, json!({"action": "clear", "cache": "static"})).unwrap()["n_ngrams"], 0);
    // A request's own files, and init's.
    lookup(&system, json!({"action": "clear", "cache": "dynamic"})).unwrap();
    for key in ["lookup_cache_static", "lookup_cache_dynamic"] {
        let own = json!({"speculative": {"type": "ngram-cache", "adaptive": false, key: path("learnt.bin")}});
        let fast = complete(&system, Speculative, &with(&request, own));
        assert_eq!(fast["content"], plain["content"], "{key}");
        assert!(
            fast["speculative"]["n_accepted"].as_u64() > plain["speculative"]["n_accepted"].as_u64(),
            "{key} {}",
            fast["speculative"]
        );
        lookup(&system, json!({"action": "clear", "cache": "dynamic"})).unwrap();
    }
    // It has been writing all the while.
    assert_eq!(poll(&system, Completion, running, 0)["finished"], false);
    assert!(cancel(&system, Completion, running));
    for (request, expected) in [
        (json!({"action": "load", "cache": "static"}), "filename: is missing"),
        (json!({"action": "lod", "cache": "static"}), "action: expected"),
        (json!({"action": "stats", "cache": "both"}), "cache: expected"),
        (json!({"action": "load", "cache": "static", "filename": path("nothing.bin")}), "nothing.bin"),
        (json!({"action": "save", "cache": "dynamic", "filename": dir}), "filename"),
    ] {
        let error = lookup(&system, request.clone()).unwrap_err();
        assert!(error.contains(expected), "{request}: {error}");
    }
    let other = start(json!({"n_ctx": 512, "lookup_cache_static": path("learnt.bin")}));
    assert_eq!(lookup(&other, json!({"action": "stats", "cache": "static"})).unwrap()["n_ngrams"], saved["n_ngrams"]);
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn contexts_that_shift_and_requests_that_are_cancelled_leave_no_wrong_draft() {
    let system = start(json!({"n_ctx": 128, "n_parallel": 2}));
    let request = json!({"prompt": REPETITIVE, "n_predict": 300, "temperature": 0.7, "seed": 5, "ignore_eos": true, "return_tokens": true});
    let plain = complete(&system, Completion, &request);
    assert_eq!(plain["truncated"], true);
    for kind in ["auto", "suffix", "ngram-cache", "ngram-map-k", "ngram-mod"] {
        let fast = with(&request, json!({"speculative": eager(kind)}));
        // In the slot of one that was cancelled, and beside another.
        let endless = with(&fast, json!({"n_predict": -1, "id_slot": 0}));
        cancelled(&system, Speculative, &endless);
        let beside = submit(&system, Speculative, &with(&endless, json!({"id_slot": 1})));
        let answer = complete(&system, Speculative, &with(&fast, json!({"id_slot": 0})));
        assert!(cancel(&system, Speculative, beside), "{kind}");
        assert_eq!(essence(&answer), essence(&plain), "{kind}");
        assert!(answer["speculative"]["n_drafted"].as_u64() > Some(0), "{kind} {}", answer["speculative"]);
    }
}

/// What answers have taught can be taken back.
#[test]
fn a_cleared_dynamic_cache_makes_suffix_forget_earlier_answers() {
    let system = start(json!({"n_ctx": 512}));
    let drafted = || {
        let request = json!({
            "prompt": "Once upon a time there was a child", "n_predict": 80, "temperature": 0,
            "speculative": {"type": "suffix", "adaptive": false, "n_max": 8},
        });
        let answer = complete(&system, Speculative, &request);
        answer["speculative"]["n_accepted"].as_u64().expect("a count")
    };
    let (first, second) = (drafted(), drafted());
    assert!(second > first + 40, "the same answer again: {first} {second}");
    let clear = |cache: &str| {
        let request = json!({"action": "clear", "cache": cache}).to_string();
        system.with_server(|server| server.lookup_cache(request.as_bytes())).expect("cleared");
    };
    clear("static");
    let third = drafted();
    assert!(third > first + 40, "still known: {first} {third}");
    clear("dynamic");
    assert_eq!(drafted(), first);
    assert_eq!(drafted(), second, "it learns again");
}
