//! Repeated requests and loads do not leak memory.

use serde_json::{Value, json};

use crate::c_api::{
    assert_works, both_ways, call, call_bytes, command, endless, exclusive, last_update, load, loaded, status, submit,
    unload,
};

/// Bytes allocated by Rust and C++ and not freed.
fn allocated() -> usize {
    // SAFETY: `mallinfo2` only reads counters.
    let info = unsafe { libc::mallinfo2() };
    info.uordblks + info.hblkhd
}

/// Bytes that may stay allocated per round: the engine remembers recent request ids, and the n-grams of what it generated.
const BOUND: usize = 256;
/// The largest number of series in [`flat`].
const SERIES: usize = 4;

/// Runs `round` `warm` times, then in series of `count` times, and asserts that one series leaves at most `bound` bytes per
/// round. Kept memory (unpolled results, growing tables) stops growing; a leak adds up in every series.
fn flat(what: &str, warm: usize, count: usize, bound: usize, mut round: impl FnMut(usize)) {
    (0..warm).for_each(&mut round);
    let mut all = Vec::new();
    while all.len() < SERIES && all.last().is_none_or(|grown| *grown > bound) {
        let before = allocated();
        (0..count).for_each(&mut round);
        all.push(allocated().saturating_sub(before) / count);
    }
    eprintln!("{what}: {} bytes allocated, {all:?} more a round in {count} rounds each", allocated());
    assert!(all.last().is_some_and(|grown| *grown <= bound), "{what}: {all:?} bytes more a round");
}

/// Valid and invalid requests.
fn requests() -> Vec<(&'static str, Value)> {
    let prompt = "Once upon a time";
    vec![
        ("complete", json!({"speculative": false, "prompt": prompt, "n_predict": 4})),
        ("complete", json!({"prompt": prompt, "n_predict": 8, "n_probs": 5, "return_tokens": true})),
        ("complete", json!({"speculative": false, "prompt": prompt, "n_predict": 4, "grammar": "root ::= [a-z ]+"})),
        ("complete", json!({"prompt": prompt, "n_predict": 4, "grammar": "root ::= [a-z ]+"})),
        ("complete", json!({"speculative": false, "prompt": prompt, "grammar": "root ::= ("})),
        ("complete", json!({"speculative": false, "prompt": prompt, "grammar": "root ::= nowhere"})),
        ("complete", json!({"speculative": false, "prompt": prompt, "grammar": "root ::= [z-a]"})),
        ("complete", json!({"speculative": false, "prompt": [99999]})),
        ("complete", json!({"speculative": false, "prompt": 5})),
        ("complete", json!({"speculative": false, "messages": [{"role": "user", "content": "Hi"}], "n_predict": 2})),
        (
            "complete",
            json!({"speculative": false, "prompt": prompt, "n_predict": 2, "stop": vec!["no such text"; 100]}),
        ),
        ("tokenize", json!({"text": prompt.repeat(50)})),
        ("detokenize", json!({"tokens": [1, 2, 3]})),
        ("apply_template", json!({"messages": [{"role": "user", "content": "Hi"}]})),
        (
            "apply_template",
            json!({"messages": [{"role": "user", "content": "Hi"}], "chat_template": "{{ 1 / 0 }}{% for"}),
        ),
        ("embed", json!({"content": "a"})),
        ("poll", json!({"id": 99999999})),
    ]
}

#[test]
fn requests_do_not_leak_memory() {
    let _guard = loaded(json!({}));
    let requests = requests();
    flat("requests", 40, 300, BOUND, |round| {
        let (name, request) = &requests[round % requests.len()];
        call(name, request);
        call_bytes(name, Some(b"{\"prompt\": \"\xFF"));
        status();
    });
    assert_works();
}

#[test]
fn queued_and_cancelled_requests_do_not_leak_memory() {
    let _guard = loaded(json!({}));
    flat("queued requests", 40, 300, BOUND, |round| {
        // Each time the same text, so that what is learned from it does not grow with the time until the cancel.
        let mut request = endless();
        request["temperature"] = json!(0);
        let id = submit(&both_ways(&request)[round % 2]);
        if round % 3 > 0 {
            call("poll", &json!({"id": id, "timeout_ms": 1}));
        }
        call("cancel", &json!({"id": id}));
        last_update(id);
    });
    assert_works();
}

#[test]
fn loads_do_not_leak_memory() {
    let _guard = exclusive();
    let command = command(json!({"embedding": true, "n_parallel": 2})).to_string();
    flat("loads", 5, 40, 1024, |round| {
        assert_eq!(load(Some(command.as_bytes())), 0);
        call("complete", &json!({"prompt": "Once", "n_predict": 1}));
        let _ = submit(&endless());
        if round % 2 == 0 {
            unload();
        }
        assert_eq!(load(Some(b"-m /nowhere.gguf")), 1);
    });
}

/// The most memory that the process has used so far, in bytes.
#[cfg(target_os = "linux")]
fn most_resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("readable");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a line");
    let kilobytes: usize = line.trim().trim_end_matches(" kB").parse().expect("a number");
    kilobytes << 10
}

/// A document of 10 MB took .9 GiB.
#[cfg(target_os = "linux")]
#[test]
fn documents_of_many_values_are_refused_before_they_take_memory() {
    let _guard = loaded(json!({}));
    for part in ["[1],", "{\"a\":1},", "[[[1]]],", "{\"a\":[]},"] {
        let values = format!("[{}1]", part.repeat((10 << 20) / part.len()));
        let documents = [
            format!("{{\"prompt\": {values}}}"),
            format!("{{\"model\": \"{}\", \"x\": {values}}}", crate::c_api::model("draft")),
            values,
        ];
        let before = most_resident();
        for document in &documents {
            for name in ["complete", "submit", "tokenize", "lookup_create"] {
                let answer = call_bytes(name, Some(document.as_bytes()));
                assert_eq!(answer["code"], "invalid_request", "{name} {part}: {answer}");
            }
        }
        let taken = most_resident() - before;
        assert!(taken < 150 << 20, "{part}: {} MiB", taken >> 20);
    }
    // Long ones are fine if their strings are long, or their arrays of numbers.
    let text = "[1],".repeat(3_000_000);
    assert_eq!(call("tokenize", &json!({"text": text[..1 << 20], "x": text}))["success"], true);
    assert_works();
}
