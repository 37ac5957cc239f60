//! Loads, unloads and requests in every order.

use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::c::{
    COMMANDS, FUNCTIONS, call, command, deinit, endless, finds_nothing, init, init_async, loaded, needing_a_model,
    refusal, set_log_callback, set_update_callback, status, submit, turn, until, version, wait_for_state, works,
};

/// Holds whoever calls back until it is opened: a load, or an evaluation, that takes as long as a test wants.
struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
    waiting: AtomicU32,
}

static GATE: Gate = Gate { open: Mutex::new(true), opened: Condvar::new(), waiting: AtomicU32::new(0) };

impl Gate {
    /// Closes it and makes the log pass through it.
    fn close(&self) {
        *self.open.lock().expect("not poisoned") = false;
        set_log_callback(Some(log_through_the_gate), 0);
    }

    /// Closes it and makes the engine's thread pass through it.
    fn close_for_updates(&self) {
        *self.open.lock().expect("not poisoned") = false;
        set_update_callback(Some(update_through_the_gate), 0);
    }

    fn pass(&self) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let mut open = self.open.lock().expect("not poisoned");
        while !*open {
            open = self.opened.wait(open).expect("not poisoned");
        }
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    fn open(&self) {
        *self.open.lock().expect("not poisoned") = true;
        self.opened.notify_all();
    }

    fn wait_until_someone_waits(&self) {
        until("a callback", || self.waiting.load(Ordering::SeqCst) > 0);
    }
}

extern "C" fn log_through_the_gate(_level: i32, _text: *const c_char, _user: *mut c_void) {
    GATE.pass();
}

extern "C" fn update_through_the_gate(_id: u64, _user: *mut c_void) {
    GATE.pass();
}

fn talkative() -> String {
    command(json!({"log_level": "debug"})).to_string()
}

#[test]
fn every_function_during_a_load() {
    let _turn = turn();
    GATE.close();
    init_async(Some(talkative().as_bytes()));
    GATE.wait_until_someone_waits();
    let seen = status();
    assert_eq!(seen["state"], "loading");
    assert!((0.0..1.0).contains(&seen["progress"].as_f64().expect("a number")), "{seen}");
    for name in needing_a_model() {
        assert_eq!(call(name, &json!({"prompt": "a", "id": 1}))["code"], "loading", "{name}");
    }
    finds_nothing("loading");
    GATE.open();
    until("the load's end", || status()["state"] == "ready");
    works();
}

#[test]
fn deinit_aborts_a_load() {
    let _turn = turn();
    GATE.close();
    let loading = thread::spawn(|| init(Some(talkative().as_bytes())));
    GATE.wait_until_someone_waits();
    let unloading = thread::spawn(deinit);
    until("deinit's beginning", || status()["state"] == "uninitialized");
    GATE.open();
    unloading.join().expect("deinit returns");
    assert_eq!(loading.join().expect("init returns"), 4, "cancelled");
    assert_eq!(status()["state"], "uninitialized");
    assert_eq!(init(Some(command(json!({})).to_string().as_bytes())), 0);
    works();
}

#[test]
fn of_several_loads_the_last_counts() {
    let _turn = turn();
    GATE.close();
    let first = thread::spawn(|| init(Some(talkative().as_bytes())));
    GATE.wait_until_someone_waits();
    init_async(Some(br#"{"model": "/nowhere.gguf"}"#));
    let last = command(json!({"model_alias": "the last", "log_level": "debug"})).to_string();
    init_async(Some(last.as_bytes()));
    GATE.open();
    assert_eq!(first.join().expect("init returns"), 4);
    until("the last load's end", || status()["state"] == "ready");
    assert_eq!(status()["model_alias"], "the last");
    works();
}

/// The stop types of requests that run on threads of their own while `end` is called.
fn ended_by(end: impl FnOnce()) -> Vec<Value> {
    let running = submit("async_completion_init", &endless());
    wait_for_state("async_completion", running, "generating");
    let asking: Vec<_> = (0..6)
        .map(|n| {
            let name = if n % 2 == 0 { "get_completion" } else { "speculative_completion" };
            thread::spawn(move || call(name, &endless()))
        })
        .collect();
    let polling = thread::spawn(move || {
        let answer = call("async_completion_poll", &json!({"id": running, "timeout_ms": 60_000}));
        assert!(answer["success"] == true || answer["code"].is_string(), "{answer}");
    });
    // Those that wait and those in slots make seven.
    until("all requests to be there", || {
        let status = status();
        let busy = status["slots"].as_array().expect("slots").iter().filter(|slot| slot["state"] != "idle").count();
        status["queue"].as_u64().expect("a number") as usize + busy == 7
    });
    end();
    polling.join().expect("the poll returns");
    asking.into_iter().map(|thread| thread.join().expect("an answer")).collect()
}

#[test]
fn deinit_while_requests_run() {
    let _turn = loaded(json!({"n_parallel": 2, "n_ctx": 1024}));
    for answer in ended_by(deinit) {
        assert_eq!(answer["stop_type"], "cancelled", "{answer}");
    }
    for name in needing_a_model() {
        assert_eq!(call(name, &json!({"prompt": "a"}))["code"], "not_initialized", "{name}");
    }
}

#[test]
fn init_while_requests_run() {
    let _turn = loaded(json!({"n_parallel": 2, "n_ctx": 1024}));
    for answer in ended_by(|| assert_eq!(init(Some(command(json!({})).to_string().as_bytes())), 0)) {
        assert_eq!(answer["stop_type"], "cancelled", "{answer}");
    }
    works();
    // A failed init unloads as well.
    assert_eq!(init(Some(b"-m /nowhere.gguf")), 1);
    assert_eq!(call("get_completion", &json!({"prompt": "a"}))["code"], "not_initialized");
    finds_nothing("failed");
}

#[test]
fn vocab_only_and_embeddings() {
    let _turn = turn();
    assert_eq!(init(Some(command(json!({"vocab_only": true})).to_string().as_bytes())), 0, "{}", status());
    assert_eq!(call("tokenize", &json!({"text": "Once"}))["success"], true);
    for name in FUNCTIONS {
        // Commands are about requests, of which there can be none.
        if !["tokenize", "detokenize", "apply_template"].contains(&name) && !COMMANDS.contains(&name) {
            assert_eq!(call(name, &json!({"prompt": "a", "content": "a"}))["code"], "invalid_request", "{name}");
        }
    }
    finds_nothing("idle");
    assert_eq!(init(Some(command(json!({"embedding": true})).to_string().as_bytes())), 0, "{}", status());
    for (request, code) in [
        (json!({"content": "a ".repeat(10_000)}), "context_full"),
        (json!({"content": 5}), "invalid_request"),
        (json!({"content": "a", "embd_normalize": 1000}), "invalid_request"),
    ] {
        assert_eq!(call("get_embedding", &request)["code"], code, "{}", crate::c::shown(&request));
    }
    // Of nothing there is BOS at least.
    let answer = call("get_embedding", &json!({"content": ""}));
    let length: f64 =
        answer["embedding"].as_array().expect("numbers").iter().map(|x| x.as_f64().expect("a number").powi(2)).sum();
    assert!((length - 1.0).abs() < 1e-5, "{length}");
    works();
}

#[test]
fn init_and_deinit_again_and_again() {
    let _turn = turn();
    for _ in 0..10 {
        init_async(Some(command(json!({})).to_string().as_bytes()));
        deinit();
    }
    assert_eq!(status()["state"], "uninitialized");
    for _ in 0..3 {
        assert_eq!(init(Some(command(json!({})).to_string().as_bytes())), 0);
    }
    works();
}

/// Loads that said in the log why they failed.
static FAILED: AtomicU32 = AtomicU32::new(0);

extern "C" fn count_failures(_level: i32, text: *const c_char, _user: *mut c_void) {
    // SAFETY: the library passes a NUL-terminated text.
    if unsafe { CStr::from_ptr(text) }.to_bytes().starts_with(b"init: ") {
        FAILED.fetch_add(1, Ordering::SeqCst);
    }
}

/// A load that was replaced says so in the log, whenever its thread gets to it; after `deinit` nobody calls back.
#[test]
fn deinit_joins_the_threads_of_init_async() {
    let _turn = turn();
    set_log_callback(Some(count_failures), 0);
    for round in 1..=20 {
        assert_eq!(init(Some(command(json!({"warmup": false})).to_string().as_bytes())), 0, "{}", status());
        init_async(Some(b"-m /nowhere.gguf"));
        deinit();
        assert_eq!(FAILED.load(Ordering::SeqCst), round);
    }
    assert_eq!(status()["state"], "uninitialized");
}

/// The old server belongs to no thread that may be late: `deinit` ends it, and waits for its callbacks.
#[test]
fn deinit_ends_what_init_async_was_to_replace() {
    let _turn = loaded(json!({}));
    GATE.close_for_updates();
    submit("async_completion_init", &endless());
    GATE.wait_until_someone_waits();
    let unloading = thread::spawn(|| {
        init_async(Some(b"-m /nowhere.gguf"));
        deinit();
    });
    until("deinit's beginning", || status()["state"] == "uninitialized");
    thread::sleep(Duration::from_millis(100));
    let waited = !unloading.is_finished();
    GATE.open();
    unloading.join().expect("deinit returns");
    assert!(waited, "deinit returned while the engine's thread was in a callback");
}

#[test]
fn chat_templates_by_name() {
    let messages = json!([{"role": "user", "content": "Hi"}]);
    let chatml = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
    let with = |template: &str| json!({"messages": messages, "chat_template": template});
    let check_refused = |request: &Value| {
        for name in ["apply_template", "get_completion"] {
            let (code, error) = refusal(name, request);
            assert!(code == "invalid_request" && error.starts_with("chat_template: "), "{name} {request}: {error}");
        }
    };
    let turn = loaded(json!({"chat_template": "chatml"}));
    assert_eq!(call("apply_template", &json!({"messages": messages}))["prompt"], chatml);
    assert_eq!(call("apply_template", &with("{{ messages[0].content }}"))["prompt"], "Hi");
    check_refused(&with("llama3"));
    drop(turn);
    let _turn = loaded(json!({"chat_template": "llama3"}));
    check_refused(&json!({"messages": messages}));
    assert_eq!(call("apply_template", &with("chatml"))["prompt"], chatml);
    works();
}

#[test]
fn the_version_is_the_librarys_for_ever() {
    let turn = loaded(json!({}));
    let first = version();
    assert_eq!(status()["version"], first.1);
    assert_eq!(version(), first);
    drop(turn);
    assert_eq!(version(), first, "also when nothing is loaded");
}
