//! Helpers shared by the integration tests: loading a system with the shipped models, and calling it with JSON.

#![allow(dead_code)] // each test binary uses only some of these

pub mod changed_vocabulary;
pub mod chat;
mod endpoint;
#[path = "gguf.rs"]
pub mod gguf;
pub mod mutations;
pub mod pictures;
pub mod sounds;
pub mod tiny_models;

use std::path::{Path, PathBuf};

use foredraft::api::JsonEngine;
use serde_json::{Value, json};

pub use self::endpoint::{Endpoint, Requests};

/// The repository's root folder.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_path_buf()
}

/// Path of a shipped model: `target` or `draft`.
pub fn model(name: &str) -> String {
    root().join(format!("models/stories-{name}.gguf")).to_string_lossy().into_owned()
}

/// Loads a system with the shipped target and draft; `more` adds keys to `init`. It runs on one thread: the models are too
/// small to profit from more, and ggml's threads spin while they wait, which is very slow on a busy machine.
pub fn start(more: Value) -> JsonEngine {
    let mut init = json!({"model": model("target"), "model_draft": model("draft"), "log_level": "error", "n_threads": 1, "n_threads_batch": 1});
    merge(&mut init, &more);
    let engine = JsonEngine::new();
    engine.load(init.to_string().as_bytes()).unwrap_or_else(|error| panic!("init {init}: {error}"));
    engine
}

/// Sets the keys of `more` in `value`.
pub fn merge(value: &mut Value, more: &Value) {
    let (Some(object), Some(more)) = (value.as_object_mut(), more.as_object()) else { panic!("{value} {more}") };
    object.extend(more.clone());
}

/// A copy of `value` with the keys of `more` set.
pub fn with(value: &Value, more: Value) -> Value {
    let mut value = value.clone();
    merge(&mut value, &more);
    value
}

/// Sends a blocking request that must succeed, and returns its final response.
pub fn complete(engine: &JsonEngine, endpoint: Endpoint, request: &Value) -> Value {
    let bytes = request.to_string();
    let answer = engine.complete_as(endpoint, bytes.as_bytes());
    let answer = answer.unwrap_or_else(|error| panic!("{request}: {error}"));
    assert_eq!(answer["success"], true, "{request}: {answer}");
    answer
}

/// The `results` of a request for `n` completions.
pub fn results(answer: &Value, n: usize) -> &[Value] {
    let results = answer["results"].as_array().unwrap_or_else(|| panic!("results: {answer}"));
    assert_eq!(results.len(), n, "{answer}");
    results
}

/// The fields of a final response that speculation must not change.
pub fn output_fields(answer: &Value) -> Value {
    let keys = ["content", "tokens", "stop_type", "stopping_word", "tokens_predicted", "tokens_evaluated", "truncated"];
    keys.iter().map(|key| answer[key].clone()).collect()
}

/// A JSON number as a count.
pub fn n(value: &Value) -> usize {
    value.as_u64().and_then(|n| usize::try_from(n).ok()).unwrap_or_else(|| panic!("{value} is not a count"))
}

/// `count` ids of ordinary tokens, a different sequence for each seed.
pub fn tokens(seed: usize, count: usize) -> Vec<usize> {
    (0..count).map(|index| 300 + (seed * 7919 + index * index * 31 + index * 17) % 1000).collect()
}

/// Queues a request and returns its id.
pub fn submit(engine: &JsonEngine, endpoint: Endpoint, request: &Value) -> u64 {
    let bytes = request.to_string();
    let answer = engine.submit_as(endpoint, bytes.as_bytes());
    answer.unwrap_or_else(|error| panic!("{request}: {error}"))["id"].as_u64().expect("an id")
}

/// Polls a request once.
pub fn poll(engine: &JsonEngine, endpoint: Endpoint, id: u64, timeout_ms: u64) -> Value {
    let command = json!({"id": id, "timeout_ms": timeout_ms}).to_string();
    engine.poll_as(endpoint, Some(command.as_bytes())).unwrap_or_else(|error| panic!("{error}"))
}

/// Polls a request until it is finished and returns all its updates.
pub fn drain(engine: &JsonEngine, endpoint: Endpoint, id: u64) -> Vec<Value> {
    let mut updates = Vec::new();
    loop {
        let answer = poll(engine, endpoint, id, 60_000);
        updates.extend(answer["completion_updates"].as_array().expect("updates").iter().cloned());
        if answer["finished"] == true {
            return updates;
        }
    }
}

/// Cancels a request. Returns false if it had already finished.
pub fn cancel(engine: &JsonEngine, endpoint: Endpoint, id: u64) -> bool {
    let command = json!({"id": id}).to_string();
    let answer = engine.cancel_as(endpoint, Some(command.as_bytes())).expect("an answer");
    answer["cancelled"].as_bool().expect("true or false")
}

/// Starts a request that does not end by itself, cancels it after its first text, and returns all its updates.
pub fn cancelled(engine: &JsonEngine, endpoint: Endpoint, request: &Value) -> Vec<Value> {
    let id = submit(engine, endpoint, request);
    let mut updates = Vec::new();
    while text(&updates).is_empty() {
        let answer = poll(engine, endpoint, id, 60_000);
        assert_eq!(answer["finished"], false, "{request}: {answer}");
        updates.extend(answer["completion_updates"].as_array().expect("updates").iter().cloned());
    }
    assert!(cancel(engine, endpoint, id), "{request}");
    updates.extend(drain(engine, endpoint, id));
    updates
}

/// The concatenated `content` of updates.
pub fn text(updates: &[Value]) -> String {
    updates.iter().map(|update| update["content"].as_str().expect("content")).collect()
}

/// Fifty prompts of the kinds that the shipped models were trained on: stories, chats, records, code. Other prompts (one that
/// ends with a space, say) give nearly uniform logits, and then their last bits decide.
pub fn prompts() -> Vec<String> {
    let names = ["Mia", "Tom", "Nora", "Karl", "Clara"];
    let things = ["kite", "drum", "whistle", "hat", "ring"];
    let places = ["river", "hill", "cave", "bridge", "forest"];
    let mut prompts = Vec::new();
    for (i, name) in names.iter().enumerate() {
        let (thing, place) = (things[i], places[(i + 2) % 5]);
        prompts.extend([
            format!("Once upon a time there was a child named {name}."),
            format!("{name} was 7 years old and lived near the {place}."),
            format!("Once upon a time, in a house by the {place}, lived a child named {name}."),
            format!("\"Hello,\" said {name}. \"I am looking for my {thing}.\""),
            format!("<|im_start|>user\nTell me a story about {name} and a {thing}.<|im_end|>\n<|im_start|>assistant\n"),
            format!("<|im_start|>user\nCount from {i} to 12.<|im_end|>\n<|im_start|>assistant\n"),
            format!("<|im_start|>user\nWhere did {name} live? {name} lived near the {place}.<|im_end|>\n<|im_start|>assistant\n"),
            format!("<|im_start|>user\nRepeat after me: {name} has a {thing}.<|im_end|>\n<|im_start|>assistant\n"),
            format!("{{\"name\": \"{name}\", \"age\":"),
            format!("def add(a, b):\n    return a + {i}\n\ndef double(a):\n"),
        ]);
    }
    prompts
}
