//! Engines are independent: models, requests, callbacks and caches, in one library and in two loaded copies of it.

use std::collections::BTreeSet;
use std::ffi::c_void;
use std::sync::Mutex;
use std::thread;

use serde_json::{Value, json};

use crate::host;
use crate::library::{Engine, LIBRARY, Library, config, endless, exclusive, with_draft};

const PROMPTS: [&str; 3] =
    ["Once upon a time", "Tom was 7 years old and", "<|im_start|>user\nCount from 3 to 9.<|im_end|>\n"];

fn texts(engine: &Engine, speculative: &Value) -> Vec<Value> {
    PROMPTS
        .map(|prompt| {
            let request = json!({"prompt": prompt, "n_predict": 40, "seed": 7, "speculative": speculative});
            let answer = engine.call("complete", &request);
            assert_eq!(answer["success"], true, "{answer}");
            answer
        })
        .to_vec()
}

fn contents(answers: &[Value]) -> Vec<&str> {
    answers.iter().map(|answer| answer["content"].as_str().expect("content")).collect()
}

/// The shipped target with its draft runs beside the draft model as a target with history drafters.
#[test]
fn engines_with_different_models_run_concurrently() {
    let _guard = exclusive();
    let [fixed, history] = [
        json!({"type": "draft", "adaptive": false, "n_max": 4}),
        json!({"type": ["suffix", "ngram-cache"], "n_max": 8}),
    ];
    let large = Engine::loaded("target", with_draft());
    let small = Engine::loaded("draft", json!({"n_parallel": 2}));
    let alone = [texts(&large, &json!(false)), texts(&small, &json!(false))];
    let (together_large, together_small) = thread::scope(|scope| {
        let large = scope.spawn(|| texts(&large, &fixed));
        let small = scope.spawn(|| texts(&small, &history));
        (large.join().expect("answers"), small.join().expect("answers"))
    });
    assert_eq!(contents(&together_large), contents(&alone[0]));
    assert_eq!(contents(&together_small), contents(&alone[1]));
    assert_ne!(contents(&alone[0]), contents(&alone[1]), "the models differ");
    for answer in &together_large {
        assert_eq!(answer["speculative"]["type"], "draft", "{answer}");
        assert!(answer["speculative"]["n_drafted"].as_u64().expect("a number") > 0, "{answer}");
    }
    for answer in &together_small {
        assert_eq!(answer["speculative"]["type"], json!(["suffix", "ngram-cache"]), "{answer}");
    }
    assert_eq!((large.status()["n_parallel"].clone(), small.status()["n_parallel"].clone()), (json!(1), json!(2)));
}

#[test]
fn request_ids_are_valid_only_on_their_own_engine() {
    let _guard = exclusive();
    let (one, other) = (Engine::loaded("draft", json!({})), Engine::loaded("draft", json!({})));
    let id = one.submit(&endless());
    for name in ["poll", "cancel"] {
        assert_eq!(other.call(name, &json!({"id": id}))["code"], "not_found", "{name}");
    }
    assert_ne!(other.submit(&endless()), id, "ids are unique in the process");
    // Freeing the other engine does not end this one's request.
    drop(other);
    assert_eq!(one.call("poll", &json!({"id": id}))["finished"], false);
    one.call("cancel", &json!({"id": id}));
    assert_eq!(one.drain(id).1["stop_type"], "cancelled");
    // Neither does unloading the default engine.
    LIBRARY.unload(std::ptr::null_mut());
    assert_eq!(one.status()["state"], "ready");
}

#[test]
fn each_engine_has_its_own_update_callback() {
    static SEEN: Mutex<BTreeSet<(usize, u64)>> = Mutex::new(BTreeSet::new());
    unsafe extern "C" fn note(id: u64, user: *mut c_void) {
        SEEN.lock().expect("not poisoned").insert((user as usize, id));
    }
    let _guard = exclusive();
    let engines = [Engine::loaded("draft", json!({})), Engine::loaded("draft", json!({}))];
    for (index, engine) in engines.iter().enumerate() {
        LIBRARY.set_update_callback(engine.handle, Some(note), index + 1);
    }
    let ids = engines.each_ref().map(|engine| engine.submit(&json!({"prompt": "Tom", "n_predict": 5})));
    for (engine, id) in engines.iter().zip(ids) {
        engine.drain(id);
    }
    // Freeing an engine waits for its callbacks.
    drop(engines);
    let seen = std::mem::take(&mut *SEEN.lock().expect("not poisoned"));
    assert_eq!(seen, BTreeSet::from([(1, ids[0]), (2, ids[1])]));
}

/// An engine's n-gram caches learn only from its own outputs.
#[test]
fn each_engine_has_its_own_ngram_caches() {
    let _guard = exclusive();
    let (one, other) = (Engine::loaded("draft", json!({})), Engine::loaded("draft", json!({})));
    one.call(
        "complete",
        &json!({"prompt": "Once upon a time", "n_predict": 40, "speculative": {"type": "ngram-cache"}}),
    );
    let known = |engine: &Engine| {
        let answer = engine.call("lookup_cache", &json!({"action": "stats", "cache": "dynamic"}));
        answer["n_observations"].as_u64().unwrap_or_else(|| panic!("{answer}"))
    };
    assert!(known(&one) > 0);
    assert_eq!(known(&other), 0);
}

/// Two plugins of one host. The same file opened twice is one library, whose engines are told apart by handle. A copy of the
/// file is another library, with its own default engine, and refuses the first library's handles.
#[test]
fn two_plugins_in_one_process_are_independent() {
    let _guard = exclusive();
    let path = host::library_path().expect("the library");
    let copy = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("libplugin.so");
    std::fs::copy(&path, &copy).expect("target/ is writable");
    let request = json!({"prompt": "Once upon a time", "n_predict": 20, "temperature": 0});
    let again = Library::open(&path);
    let other = Library::open(&copy);
    let expected = Engine::loaded("draft", json!({})).call("complete", &request)["content"].clone();
    let engines = [Engine::of(&LIBRARY), Engine::of(&again), Engine::of(&other)];
    assert_ne!(engines[0].handle, engines[1].handle, "one library");
    assert_eq!(again.status(engines[0].handle)["state"], "uninitialized", "one library");
    assert_eq!(other.status(engines[0].handle)["code"], "invalid_engine", "two libraries");
    assert_eq!(LIBRARY.status(engines[2].handle)["code"], "invalid_engine", "two libraries");
    for engine in &engines {
        engine.load("draft", json!({"warmup": false}));
    }
    let running = engines[0].submit(&endless());
    thread::scope(|scope| {
        let asked: Vec<_> =
            engines[1..].iter().map(|engine| scope.spawn(|| engine.call("complete", &request))).collect();
        for answer in asked {
            assert_eq!(answer.join().expect("an answer")["content"], expected);
        }
    });
    // A plugin that unloads ends only its own engine, or its own library's default engine.
    let [first, second, third] = engines;
    assert_eq!(other.load(std::ptr::null_mut(), &config("draft", json!({"warmup": false}))), 0);
    assert_eq!(LIBRARY.status(std::ptr::null_mut())["state"], "uninitialized");
    other.unload(std::ptr::null_mut());
    drop((second, third));
    assert_eq!(first.call("poll", &json!({"id": running}))["finished"], false);
    first.call("cancel", &json!({"id": running}));
    assert_eq!(first.drain(running).1["stop_type"], "cancelled");
}

/// Through the new functions a wrong value is an error, and the prompt is not sent back unless the request wants it.
#[test]
fn the_new_functions_are_strict_and_brief() {
    let _exclusive = exclusive();
    let engine = Engine::loaded("draft", json!({}));
    for (key, value) in [
        ("top_p", json!(1.1)),
        ("n_predict", json!(-2)),
        ("n_keep", json!(1.5)),
        ("mirostat", json!(3)),
        ("stop", json!(5)),
        ("logit_bias", json!([[5]])),
        ("logit_bias", json!([[99_999_999, 1]])),
    ] {
        let mut request = json!({"prompt": "Tom", "n_predict": 2});
        request[key] = value;
        for name in ["complete", "submit"] {
            let answer = engine.call(name, &request);
            assert_eq!(answer["code"], "invalid_request", "{name} {request}: {answer}");
            assert!(answer["error"].as_str().is_some_and(|error| error.starts_with(key)), "{answer}");
        }
    }
    let request = json!({"prompt": "Tom", "n_predict": 2});
    assert_eq!(engine.call("complete", &request).get("prompt"), None);
    assert_eq!(engine.drain(engine.submit(&request)).1.get("prompt"), None);
    let wanted = json!({"prompt": "Tom", "n_predict": 2, "response_fields": ["prompt", "content"]});
    assert_eq!(engine.call("complete", &wanted)["prompt"], "Tom");
    assert_eq!(engine.drain(engine.submit(&wanted)).1["prompt"], "Tom");
}

/// A status has the models' names at every stage.
#[test]
fn the_models_names_are_strings_at_any_time() {
    let engine = Engine::new();
    let names = || {
        let status = engine.status();
        ["model", "model_alias", "model_draft"]
            .map(|key| status[key].as_str().map(str::to_owned).unwrap_or_else(|| panic!("{status}")))
    };
    assert_eq!(names(), ["", "", ""]);
    assert_eq!(LIBRARY.load(engine.handle, &json!({"model": "/nowhere.gguf", "model_draft": "/none.gguf"})), 1);
    assert_eq!(names(), ["/nowhere.gguf", "/nowhere.gguf", "/none.gguf"]);
    assert!(engine.status()["error"].as_str().is_some_and(|error| error.contains("/nowhere.gguf")));
    assert_eq!(LIBRARY.load(engine.handle, &json!({"model": "/there.gguf", "model_alias": "it", "n_ctx": -5})), 3);
    assert_eq!(names(), ["/there.gguf", "it", ""], "also of a load that is refused");
    // The names are there from the moment that a load begins.
    let config = config("draft", json!({"model_alias": "unknown"}));
    LIBRARY.load_async(engine.handle, &config);
    let path = config["model"].as_str().expect("a path").to_owned();
    assert_eq!(names(), [path.clone(), path.clone(), String::new()]);
    while engine.status()["state"] == "loading" {
        thread::yield_now();
    }
    assert_eq!(names(), [path.clone(), path, String::new()]);
}
