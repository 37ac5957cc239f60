//! The lookup functions: with and without a model, invalid requests, damaged files, and during `unload`.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use serde_json::{Value, json};

use crate::c_api::{
    Random, assert_works, call, command, error_of, exclusive, load, loaded, model, status, unload, wait_until,
};

/// An empty folder for a test, under target/.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("lookups-{name}"));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("target/ is writable");
    folder
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("the folder is readable");
    let mut names: Vec<_> =
        entries.map(|entry| entry.expect("the folder is readable").file_name().into_string().expect("UTF-8")).collect();
    names.sort();
    names
}

fn done(name: &str, request: &Value) -> Value {
    let answer = call(name, request);
    assert_eq!(answer["success"], true, "{name} {}: {answer}", crate::c_api::shortened(request));
    answer
}

/// Numbers in the format of a cache file.
fn bytes(numbers: &[i32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// A text with some repetitions.
fn text(sentences: usize) -> String {
    let names = ["Mia", "Tom", "Nora", "Karl"];
    let things = ["kite", "drum", "hat"];
    (0..sentences).map(|i| format!("{} has a {}. It is near the river.\n", names[i * i % 4], things[i % 3])).collect()
}

#[test]
fn lookup_functions_accept_tokens_without_a_model() {
    let _guard = exclusive();
    let folder = folder("tokens");
    let path = |name: &str| folder.join(name);
    let tokens = [1, 2, 3, 1, 2, 4, 1, 2, 3];
    let answer = done("lookup_create", &json!({"tokens": tokens, "output": path("a")}));
    // Expected n-grams and continuations: 1 2 (3 3 4), 2 3 (1), 3 1 (2), 2 4 (1), 4 1 (2).
    let expected = [
        [1, 2, -1, -1, 2, 3, 2, 4, 1].as_slice(),
        &[2, 3, -1, -1, 1, 1, 1],
        &[2, 4, -1, -1, 1, 1, 1],
        &[3, 1, -1, -1, 1, 2, 1],
        &[4, 1, -1, -1, 1, 2, 1],
    ];
    let expected = bytes(&expected.concat());
    assert_eq!(fs::read(path("a")).expect("the file was written"), expected);
    for (key, value) in
        [("n_tokens", 9), ("n_ngrams", 5), ("n_continuations", 6), ("n_observations", 7), ("size", expected.len())]
    {
        assert_eq!(answer[key], value, "{key} of {answer}");
    }
    assert_eq!(answer["ngrams_by_size"], json!([0, 5, 0, 0]));
    for (more, sizes) in [
        (json!({"ngram_min": 1}), json!([4, 5, 0, 0])),
        (json!({"ngram_max": 1}), json!([4, 0, 0, 0])),
        (json!({"ngram_min": 3}), json!([0, 0, 6, 0])),
        (json!({"ngram_min": 1, "ngram_max": 4}), json!([4, 5, 6, 5])),
    ] {
        let mut request = json!({"tokens": tokens, "output": path("b")});
        request.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        assert_eq!(done("lookup_create", &request)["ngrams_by_size"], sizes, "{request}");
    }
    // The output of a merge may be one of its inputs.
    let answer = done("lookup_merge", &json!({"inputs": [path("a"), path("a")], "output": path("a")}));
    assert_eq!((answer["n_inputs"].as_u64(), answer["n_observations"].as_u64()), (Some(2), Some(14)));
    let merged = fs::read(path("a")).expect("the file was written");
    assert_eq!(merged.get(..36), Some(bytes(&[1, 2, -1, -1, 2, 3, 4, 4, 2]).as_slice()));

    // 1 2 3 4 three times in one chunk, as in the test of ngram::stats.
    let text = [1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 1];
    let request = json!({"tokens": text, "n_draft": 2, "n_ctx": 12, "lookup_cache_dynamic": path("none")});
    let answer = done("lookup_stats", &request);
    for (key, value) in [("n_tokens", 13), ("n_predict", 12), ("n_drafted", 4), ("n_accept", 4)] {
        assert_eq!(answer[key], value, "{key} of {answer}");
    }
    assert_eq!(answer["accept_rate"], 1.0);
    assert_eq!(answer["by_size"][3], json!([{"n_drafted": 1, "n_accept": 1}, {"n_drafted": 2, "n_accept": 2}]));
    assert_eq!(answer["by_level"]["context"], json!({"n_drafted": 4, "n_accept": 4}));
    assert!(answer["warnings"][0].as_str().is_some_and(|warning| warning.contains("none: ")), "{answer}");
    // A static cache with n-grams that are not in the text.
    let request = json!({"tokens": [5, 1, 2, 3, 9, 9], "n_ctx": 5, "lookup_cache_static": path("a")});
    let answer = done("lookup_stats", &request);
    // After 5 1 2 it drafts 3 (4 of 6 times), 1 and 2, of which 3 is accepted. Then 9 follows, and the chunk ends.
    assert_eq!(answer["by_level"]["static"], json!({"n_drafted": 3, "n_accept": 1}), "{answer}");
    let positions = [1, 0, 0].map(|n_accept| json!({"n_drafted": 1, "n_accept": n_accept}));
    assert_eq!(answer["by_static"], json!(positions), "{answer}");
    assert_eq!(names(&folder), ["a", "b"]);
}

#[test]
fn lookup_functions_need_a_model_for_text() {
    let _guard = exclusive();
    let folder = folder("texts");
    let path = |name: &str| folder.join(name);
    fs::write(path("text"), text(300) + "\n").expect("written");
    let (given, file) = (text(300), path("text"));
    for request in [json!({"text": given, "output": path("out")}), json!({"file": file, "output": path("out")})] {
        assert_eq!(error_of("lookup_create", &request).0, "not_initialized");
        assert_eq!(error_of("lookup_stats", &request).0, "not_initialized");
    }
    drop(_guard);
    let _guard = loaded(json!({}));
    let ids = call("tokenize", &json!({"text": given}))["ids"].clone();
    // A final line feed in a file does not count as text.
    let answers = [json!({"text": given}), json!({"file": file}), json!({"tokens": ids})].map(|mut request| {
        request["output"] = json!(path("cache"));
        let created = done("lookup_create", &request);
        assert_eq!(created["n_tokens"].as_u64(), ids.as_array().map(|ids| ids.len() as u64), "{created}");
        let file = fs::read(path("cache")).expect("the file was written");
        request.as_object_mut().expect("an object").remove("output");
        request["n_ctx"] = json!(256);
        request["lookup_cache_static"] = json!(path("cache"));
        let stats = done("lookup_stats", &request);
        assert!(stats["n_accept"].as_u64() > Some(100), "{stats}");
        (file, stats["n_predict"].clone(), stats["n_drafted"].clone(), stats["n_accept"].clone())
    });
    assert_eq!(answers[0], answers[1]);
    assert_eq!(answers[0], answers[2]);
    // The default of n_ctx is the model's.
    let n_ctx = done("lookup_stats", &json!({"tokens": [1, 2, 3]}))["n_ctx"].as_u64();
    assert!(n_ctx.is_some_and(|n_ctx| n_ctx > 0 && n_ctx != 4096), "{n_ctx:?}");
    for (request, part) in [
        (json!({"tokens": [1, 1_000_000]}), "token 1000000 is not in the vocabulary of"),
        (json!({"tokens": [1], "lookup_cache_static": path("foreign")}), "foreign: byte 20: token 1000000 is outside"),
    ] {
        fs::write(path("foreign"), bytes(&[1, 2, -1, -1, 1, 1_000_000, 1])).expect("written");
        let (code, error) = error_of("lookup_stats", &request);
        assert!(code == "invalid_request" && error.contains(part), "{request}: {error}");
    }
    assert_works();
    // Also with a vocab_only model.
    assert_eq!(load(Some(command(json!({"vocab_only": true})).to_string().as_bytes())), 0);
    assert_eq!(done("lookup_stats", &json!({"tokens": [1, 2, 3]}))["n_ctx"].as_u64(), n_ctx);
    unload();
}

#[test]
fn invalid_lookup_requests_name_the_field() {
    let _guard = exclusive();
    let folder = folder("wrong");
    let path = |name: &str| folder.join(name).to_string_lossy().into_owned();
    fs::write(path("good"), bytes(&[1, 2, -1, -1, 1, 3, 1])).expect("written");
    fs::write(path("cut"), bytes(&[1, 2, -1, -1, 1, 3, 1, 1])).expect("written");
    fs::write(path("huge"), bytes(&[1, 2, -1, -1, i32::MAX, 3, 1])).expect("written");
    let (out, tokens) = (path("out"), [1, 2, 3]);
    for (name, request, code, part) in [
        ("lookup_create", json!({"output": out}), "invalid_request", "text, file, tokens: "),
        (
            "lookup_create",
            json!({"tokens": tokens, "text": "a", "output": out}),
            "invalid_request",
            "text, file, tokens: ",
        ),
        ("lookup_create", json!({"tokens": 5, "output": out}), "invalid_request", "tokens: "),
        ("lookup_create", json!({"tokens": [1, -1], "output": out}), "invalid_request", "tokens[1]: "),
        ("lookup_create", json!({"tokens": [1, 1e10], "output": out}), "invalid_request", "tokens[1]: "),
        ("lookup_create", json!({"tokens": ["a"], "output": out}), "invalid_request", "tokens[0]: "),
        ("lookup_create", json!({"text": 5, "output": out}), "invalid_request", "text: "),
        ("lookup_create", json!({"file": "a\0b", "output": out}), "invalid_request", "file: "),
        ("lookup_create", json!({"file": "", "output": out}), "invalid_request", "text, file, tokens: "),
        ("lookup_create", json!({"tokens": tokens}), "invalid_request", "output: "),
        ("lookup_create", json!({"tokens": tokens, "output": ""}), "invalid_request", "output: "),
        ("lookup_create", json!({"tokens": tokens, "output": 7}), "invalid_request", "output: "),
        ("lookup_create", json!({"tokens": tokens, "output": folder}), "invalid_request", "is a folder"),
        ("lookup_create", json!({"tokens": tokens, "output": path("none/out")}), "not_found", "none/out: "),
        ("lookup_create", json!({"tokens": tokens, "output": path("good/out")}), "invalid_request", "good/out: "),
        ("lookup_create", json!({"tokens": tokens, "output": out, "ngram_min": 0}), "invalid_request", "ngram_min: "),
        ("lookup_create", json!({"tokens": tokens, "output": out, "ngram_max": 5}), "invalid_request", "ngram_max: "),
        (
            "lookup_create",
            json!({"tokens": tokens, "output": out, "ngram_min": 3, "ngram_max": 2}),
            "invalid_request",
            "ngram_min, ngram_max: ",
        ),
        ("lookup_merge", json!({"output": out}), "invalid_request", "inputs: "),
        ("lookup_merge", json!({"inputs": [], "output": out}), "invalid_request", "inputs: "),
        ("lookup_merge", json!({"inputs": path("good"), "output": out}), "invalid_request", "inputs: "),
        ("lookup_merge", json!({"inputs": [5], "output": out}), "invalid_request", "inputs[0]: "),
        ("lookup_merge", json!({"inputs": [""], "output": out}), "invalid_request", "inputs[0]: "),
        ("lookup_merge", json!({"inputs": [path("good")]}), "invalid_request", "output: "),
        ("lookup_merge", json!({"inputs": [path("good"), path("none")], "output": out}), "not_found", "none: "),
        (
            "lookup_merge",
            json!({"inputs": [path("good"), path("cut")], "output": out}),
            "invalid_request",
            "cut: byte 28: ",
        ),
        ("lookup_merge", json!({"inputs": [path("huge")], "output": out}), "invalid_request", "huge: byte 16: "),
        ("lookup_merge", json!({"inputs": [folder], "output": out}), "invalid_request", "is a folder"),
        ("lookup_merge", json!({"inputs": ["/dev/zero"], "output": out}), "invalid_request", "not a regular file"),
        ("lookup_stats", json!({}), "invalid_request", "text, file, tokens: "),
        ("lookup_stats", json!({"tokens": tokens, "n_draft": -1}), "invalid_request", "n_draft: "),
        ("lookup_stats", json!({"tokens": tokens, "n_draft": 1e9}), "invalid_request", "n_draft: "),
        ("lookup_stats", json!({"tokens": tokens, "n_ctx": 0}), "invalid_request", "n_ctx: "),
        ("lookup_stats", json!({"tokens": tokens, "lookup_cache_static": path("none")}), "not_found", "none: "),
        (
            "lookup_stats",
            json!({"tokens": tokens, "lookup_cache_dynamic": path("cut")}),
            "invalid_request",
            "cut: byte 28: ",
        ),
    ] {
        let (found, error) = error_of(name, &request);
        assert!(found == code && error.contains(part), "{name} {request}: {found}, {error}");
    }
    let unknown = done("lookup_stats", &json!({"tokens": tokens, "n_drafts": 5}));
    assert!(unknown["warnings"][0].as_str().is_some_and(|warning| warning.contains("n_draft")), "{unknown}");
    let number = |key: &str| unknown[key].as_f64().unwrap_or_else(|| panic!("{key}: {unknown}"));
    for key in
        ["n_predict", "n_drafted", "n_accept", "accept_rate", "t_draft_flat_ms", "t_draft_ms", "tokens_per_second"]
    {
        assert!(number(key) >= 0.0, "{key}: {unknown}");
    }
    assert!((number("us_per_token") * number("n_drafted") - 1e3 * number("t_draft_ms")).abs() < 1.0, "{unknown}");
    // None of them wrote a file.
    assert_eq!(names(&folder), ["cut", "good", "huge"]);
    done("lookup_create", &json!({"tokens": tokens, "file": "", "output": out}));
}

/// During long work on one thread other calls are served, the status reports its progress, and `unload` cancels it.
#[test]
fn long_lookup_work_does_not_block_others_and_unload_cancels_it() {
    let _guard = loaded(json!({}));
    let folder = folder("long");
    // After any two tokens the cache continues with the first of them, so every draft has the full length of 1024 tokens and is
    // wrong, about 200 thousand times.
    let pairs = (0..30).flat_map(|a| (0..30).flat_map(move |b| [a, b, -1, -1, 1, a, 2]));
    fs::write(folder.join("static"), bytes(&pairs.collect::<Vec<i32>>())).expect("written");
    let mut random = Random::new(1);
    let tokens: Vec<usize> = (0..200_000).map(|_| random.below(30)).collect();
    let request = json!({
        "tokens": tokens, "n_draft": 1024, "n_ctx": 150_000, "lookup_cache_static": folder.join("static"),
    });
    let working = thread::spawn(move || call("lookup_stats", &request));
    let step = || status()["lookups"][0].clone();
    wait_until("the beginning of the work", || step()["step"] == "drafting");
    let seen = step();
    assert_eq!(seen["function"], "lookup_stats", "{seen}");
    assert!((0.0..=1.0).contains(&seen["progress"].as_f64().expect("a number")), "{seen}");
    assert_works();
    assert_eq!(step()["step"], "drafting", "the work ended too early for this test");
    unload();
    let answer = working.join().expect("it returns");
    assert_eq!(answer["code"], "cancelled", "{answer}");
    assert_eq!(status()["lookups"], json!([]));
    assert_eq!(names(&folder), ["static"]);
}

/// A model file is refused as a cache, and is not changed.
#[test]
fn lookup_refuses_files_of_another_format() {
    let _guard = exclusive();
    let request = json!({"inputs": [model("target")], "output": folder("other").join("out")});
    let (code, error) = error_of("lookup_merge", &request);
    assert!(code == "invalid_request" && error.contains("stories-target.gguf: byte "), "{error}");
}

/// Text files must be UTF-8, whatever the tokenizer would make of other bytes.
#[test]
fn text_files_that_are_not_utf8_are_refused() {
    let _guard = loaded(json!({}));
    let folder = folder("utf8");
    let (file, output) = (folder.join("text"), folder.join("cache"));
    for (bytes, offset) in [
        (&b"Once \xFF upon"[..], 5),
        (b"\x80", 0),
        (b"caf\xE9\n", 3),
        (b"half \xF0\x9F", 5),
        (b"\xED\xA0\x80\xF4\x90\x80\x80", 0),
        (b"\xF8\x88\x80\x80\x80", 0),
        (b"O\0n\0c\0e\0\xE9\0", 8),
    ] {
        fs::write(&file, bytes).expect("target/ is writable");
        for name in ["lookup_create", "lookup_stats"] {
            let (code, error) = error_of(name, &json!({"file": file, "output": output, "n_ctx": 2}));
            let expected = format!("{}: not UTF-8 at byte {offset}", file.display());
            assert_eq!((code.as_str(), error), ("invalid_request", expected), "{name}");
        }
        assert!(!output.exists());
    }
    fs::write(&file, "caf\u{e9} \u{1F600}").expect("target/ is writable");
    assert_eq!(call("lookup_create", &json!({"file": file, "output": output}))["success"], true);
}
