//! Engines do not disturb each other: in one library, in two copies of it, with models of their own.

use std::collections::BTreeSet;
use std::ffi::c_void;
use std::sync::Mutex;
use std::thread;

use serde_json::{Value, json};

use crate::host;
use crate::library::{Engine, LIBRARY, Library, config, endless, turn, with_draft};

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

/// The shipped target with its draft, and the draft model as a target, with other speculation, at once.
#[test]
fn two_engines_with_different_models_run_at_once() {
    let _turn = turn();
    let [fixed, history] = [
        json!({"type": "draft", "adaptive": false, "n_max": 4}),
        json!({"type": ["suffix", "ngram-simple"], "n_max": 8}),
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
        assert_eq!(answer["speculative"]["type"], json!(["suffix", "ngram-simple"]), "{answer}");
    }
    assert_eq!((large.status()["n_parallel"].clone(), small.status()["n_parallel"].clone()), (json!(1), json!(2)));
}

#[test]
fn a_request_is_known_to_its_own_engine_alone() {
    let _turn = turn();
    let (one, other) = (Engine::loaded("draft", json!({})), Engine::loaded("draft", json!({})));
    let id = one.submit(&endless());
    for name in ["poll", "cancel"] {
        assert_eq!(other.call(name, &json!({"id": id}))["code"], "not_found", "{name}");
    }
    assert_ne!(other.submit(&endless()), id, "numbers are unique in the process");
    // The other one's end is not this one's.
    drop(other);
    assert_eq!(one.call("poll", &json!({"id": id}))["finished"], false);
    one.call("cancel", &json!({"id": id}));
    assert_eq!(one.drain(id).1["stop_type"], "cancelled");
    // Nor is the unload of the default engine.
    LIBRARY.unload(std::ptr::null_mut());
    assert_eq!(one.status()["state"], "ready");
}

#[test]
fn each_engine_has_its_own_update_callback() {
    static SEEN: Mutex<BTreeSet<(usize, u64)>> = Mutex::new(BTreeSet::new());
    unsafe extern "C" fn note(id: u64, user: *mut c_void) {
        SEEN.lock().expect("not poisoned").insert((user as usize, id));
    }
    let _turn = turn();
    let engines = [Engine::loaded("draft", json!({})), Engine::loaded("draft", json!({}))];
    for (index, engine) in engines.iter().enumerate() {
        LIBRARY.set_update_callback(engine.handle, Some(note), index + 1);
    }
    let ids = engines.each_ref().map(|engine| engine.submit(&json!({"prompt": "Tom", "n_predict": 5})));
    for (engine, id) in engines.iter().zip(ids) {
        engine.drain(id);
    }
    // A callback has ended when its engine is freed.
    drop(engines);
    let seen = std::mem::take(&mut *SEEN.lock().expect("not poisoned"));
    assert_eq!(seen, BTreeSet::from([(1, ids[0]), (2, ids[1])]));
}

/// What an engine learns from what it generates stays its own.
#[test]
fn each_engine_has_its_own_ngram_caches() {
    let _turn = turn();
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

/// Two plugins of one host: the same file opened twice is one library, whose engines are apart by their handles; a copy of
/// the file is another library, with a default engine of its own, and takes none of the first one's handles.
#[test]
fn two_plugins_do_not_disturb_each_other() {
    let _turn = turn();
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
    // A plugin that ends, ends its own: by its handle, or all of its library's default engine.
    let [first, second, third] = engines;
    assert_eq!(other.load(std::ptr::null_mut(), &config("draft", json!({"warmup": false}))), 0);
    assert_eq!(LIBRARY.status(std::ptr::null_mut())["state"], "uninitialized");
    other.unload(std::ptr::null_mut());
    drop((second, third));
    assert_eq!(first.call("poll", &json!({"id": running}))["finished"], false);
    first.call("cancel", &json!({"id": running}));
    assert_eq!(first.drain(running).1["stop_type"], "cancelled");
}
