//! Malformed arguments: not UTF-8, not JSON, nested too deeply, not an object; NULL; and invalid configurations.

use serde_json::json;

use crate::c_api::{
    assert_finds_nothing, assert_works, call, call_bytes, command, exclusive, free_null, functions,
    functions_needing_a_model, load, load_async, loaded, status, unload, wait_until,
};

/// Documents that are not JSON objects, with descriptions.
pub fn broken() -> Vec<(&'static str, Vec<u8>)> {
    let repeated = |parts: &[&str]| parts.iter().map(|part| part.repeat(10_000)).collect::<String>().into_bytes();
    vec![
        ("not UTF-8", b"{\"prompt\": \"\xFF\"}".to_vec()),
        ("a surrogate in UTF-8", b"{\"prompt\": \"\xED\xA0\x80\"}".to_vec()),
        ("a lone surrogate escaped", br#"{"prompt": "\ud800"}"#.to_vec()),
        ("truncated in a string", br#"{"prompt": "Once"#.to_vec()),
        ("truncated in an object", br#"{"prompt": "Once","#.to_vec()),
        ("truncated in an escape", br#"{"prompt": "\u00"#.to_vec()),
        ("10,000 open arrays", repeated(&["["])),
        ("10,000 arrays", repeated(&["[", "]"])),
        ("10,000 open objects", repeated(&["{\"a\":"])),
        ("a prompt of 10,000 arrays", [b"{\"prompt\":".to_vec(), repeated(&["[", "]"]), b"}".to_vec()].concat()),
        ("NaN", br#"{"temperature": NaN}"#.to_vec()),
        ("infinity", br#"{"temperature": 1e400}"#.to_vec()),
        ("an array", b"[1]".to_vec()),
        ("a string", b"\"prompt\"".to_vec()),
        ("a number", b"7".to_vec()),
        ("null", b"null".to_vec()),
        ("two objects", b"{}{}".to_vec()),
        ("a comment", b"{/* */}".to_vec()),
        ("a control character", b"{\"prompt\": \"\x01\"}".to_vec()),
        ("10 MB of nothing", vec![b'x'; 10 << 20]),
    ]
}

#[test]
fn every_function_refuses_malformed_json() {
    let _guard = loaded(json!({}));
    for (what, document) in broken() {
        for name in functions() {
            let answer = call_bytes(name, Some(&document));
            assert_eq!(answer["code"], "invalid_json", "{name}, {what}: {answer}");
            assert!(answer["error"].to_string().len() < 400, "{name}, {what}: {answer}");
        }
    }
    assert_works();
}

/// Editors on Windows write it.
#[test]
fn byte_order_mark_before_a_document_is_skipped() {
    let _guard = loaded(json!({}));
    let request = "\u{feff}{\"prompt\": \"Once\", \"n_predict\": 2, \"content\": \"Once\"}";
    for name in ["complete", "submit", "tokenize"] {
        let answer = call_bytes(name, Some(request.as_bytes()));
        assert_eq!(answer["success"], true, "{name}: {answer}");
    }
    let models = json!({"model": crate::c_api::model("target")});
    assert_eq!(load(Some(format!("\u{feff}{models}").as_bytes())), 0, "{}", status());
}

#[test]
fn null_and_empty_strings_are_refused() {
    let _guard = loaded(json!({}));
    free_null();
    for document in [None, Some(&b""[..]), Some(b" \n\t")] {
        for name in functions() {
            let answer = call_bytes(name, document);
            assert_eq!(answer["code"], "invalid_json", "{name} {document:?}: {answer}");
        }
    }
    assert_finds_nothing();
    assert_works();
}

#[test]
fn functions_report_not_initialized_before_a_load_and_after_an_unload() {
    let _guard = exclusive();
    let check = || {
        for name in functions_needing_a_model() {
            for document in [None, Some(&b""[..]), Some(b"{}"), Some(b"\xFF"), Some(br#"{"prompt": "a", "id": 1}"#)] {
                assert_eq!(call_bytes(name, document)["code"], "not_initialized", "{name} {document:?}");
            }
        }
        assert_finds_nothing();
    };
    check();
    assert_eq!(load(Some(command(json!({})).to_string().as_bytes())), 0);
    assert_works();
    unload();
    unload();
    assert_eq!(status()["state"], "uninitialized");
    check();
}

/// Configurations that a load must refuse, with the returned code and part of the error in the status.
fn wrong_loads() -> Vec<(Vec<u8>, i32, &'static str)> {
    let missing = |flags: &str| format!("-m /nowhere.gguf {flags}").into_bytes();
    let mut cases: Vec<(Vec<u8>, i32, &str)> = broken()
        .into_iter()
        // Anything that does not begin like JSON is parsed as a command line.
        .filter(|(_, document)| matches!(document.first(), Some(b'{' | b'[')) || std::str::from_utf8(document).is_err())
        .map(|(_, document)| (document, 2, ""))
        .collect();
    cases.extend([
        (b"{}".to_vec(), 3, "model: "),
        (b"".to_vec(), 2, ""),
        (b"  \n ".to_vec(), 2, ""),
        (br#"{"model": 5}"#.to_vec(), 3, "model: "),
        (br#"{"model": ""}"#.to_vec(), 3, "model: "),
        (br#"{"model": "a\u0000b"}"#.to_vec(), 3, "model: "),
        (br#"{"model": "x", "n_ctx": -1}"#.to_vec(), 3, "n_ctx: "),
        (br#"{"model": "x", "n_ctx": 1e300}"#.to_vec(), 3, "n_ctx: "),
        (br#"{"model": "x", "n_ctx": "many"}"#.to_vec(), 3, "n_ctx: "),
        (br#"{"model": "x", "n_parallel": 0}"#.to_vec(), 3, "n_parallel: "),
        (br#"{"model": "x", "n_parallel": 100000}"#.to_vec(), 3, "n_parallel: "),
        (br#"{"model": "x", "n_batch": 0}"#.to_vec(), 3, "n_batch: "),
        (br#"{"model": "x", "n_threads": 100000}"#.to_vec(), 3, "n_threads: "),
        (br#"{"model": "x", "cache_type_k": "q3"}"#.to_vec(), 3, "cache_type_k: "),
        (br#"{"model": "x", "override_kv": [{}]}"#.to_vec(), 3, "override_kv"),
        (br#"{"model": "x", "mmproj": 5}"#.to_vec(), 3, "mmproj: expected a string"),
        (
            br#"{"model": "x", "mmproj": "y", "image_min_tokens": 3, "image_max_tokens": 2}"#.to_vec(),
            3,
            "image_min_tokens: ",
        ),
        (br#"{"model": "x", "tensor_split": [-1]}"#.to_vec(), 3, "tensor_split"),
        (br#"{"model": "x", "lora": ["nowhere.gguf", 5]}"#.to_vec(), 3, "lora"),
        (br#"{"model": "x", "speculative": {"n_max": 1000000}}"#.to_vec(), 3, "n_max"),
        (br#"{"model": "/nowhere.gguf"}"#.to_vec(), 1, "/nowhere.gguf"),
        (br#"{"model": "x", "rpc": ["nowhere"]}"#.to_vec(), 3, "rpc"),
        (b"-m".to_vec(), 3, "-m: "),
        (b"-m -c 4096".to_vec(), 3, "-m: "),
        (b"-m \"unclosed".to_vec(), 3, "quote"),
        (b"program stray -m x".to_vec(), 3, "stray"),
        (missing("-c many"), 3, "-c: "),
        (missing("-c 99999999999999999999"), 3, "-c: "),
        (missing("--no-such-flag"), 3, "--no-such-flag"),
        (missing(""), 1, "/nowhere.gguf"),
        (missing("-c 16 -ngl 99 --temp warm"), 1, "/nowhere.gguf"), // a request's flag is only a warning
        (missing("-c 16 -ngl 99 --mmproj x"), 1, "/nowhere.gguf"),
        ("-m ".bytes().chain(std::iter::repeat_n(b'a', 10 << 20)).collect(), 1, "model: "),
    ]);
    cases
}

#[test]
fn invalid_load_arguments_are_refused() {
    let _guard = exclusive();
    let short = |document: &[u8]| String::from_utf8_lossy(document).chars().take(100).collect::<String>();
    for (document, number, part) in wrong_loads() {
        assert_eq!(load(Some(&document)), number, "{}: {}", short(&document), status());
        let status = status();
        assert_eq!(status["state"], "failed", "{}", short(&document));
        assert!(status["error"].as_str().expect("checked").contains(part), "{}: {status}", short(&document));
        assert_eq!(call("tokenize", &json!({"text": "a"}))["code"], "not_initialized");
    }
    assert_eq!(load(None), 2, "NULL: {}", status());
    load_async(None);
    wait_until("a failed load", || status()["state"] == "failed");
    assert_eq!(load(Some(command(json!({})).to_string().as_bytes())), 0);
    assert_works();
}
