//! Loads, unloads and requests in any order.

use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::c_api::{
    COMMANDS, assert_finds_nothing, assert_works, both_ways, call, command, endless, error_of, exclusive, functions,
    functions_needing_a_model, load, load_async, loaded, set_log_callback, set_update_callback, status, submit, unload,
    version, wait_for_state, wait_until,
};

/// Blocks callbacks until it is opened, so that a load or a decode takes as long as a test needs.
pub struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
    waiting: AtomicU32,
}

pub static GATE: Gate = Gate { open: Mutex::new(true), opened: Condvar::new(), waiting: AtomicU32::new(0) };

impl Gate {
    /// Closes the gate for the log callback.
    pub fn close(&self) {
        *self.open.lock().expect("not poisoned") = false;
        set_log_callback(Some(log_through_the_gate), 0);
    }

    /// Closes the gate for the update callback, on the engine's thread.
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

    pub fn open(&self) {
        *self.open.lock().expect("not poisoned") = true;
        self.opened.notify_all();
    }

    pub fn wait_for_a_caller(&self) {
        wait_until("a callback", || self.waiting.load(Ordering::SeqCst) > 0);
    }
}

extern "C" fn log_through_the_gate(_level: i32, _text: *const c_char, _user: *mut c_void) {
    GATE.pass();
}

extern "C" fn update_through_the_gate(_id: u64, _user: *mut c_void) {
    GATE.pass();
}

pub fn debug_command() -> String {
    command(json!({"log_level": "debug"})).to_string()
}

#[test]
fn functions_report_loading_during_a_load() {
    let _guard = exclusive();
    GATE.close();
    load_async(Some(debug_command().as_bytes()));
    GATE.wait_for_a_caller();
    let seen = status();
    assert_eq!(seen["state"], "loading");
    assert!((0.0..1.0).contains(&seen["progress"].as_f64().expect("a number")), "{seen}");
    for name in functions_needing_a_model() {
        assert_eq!(call(name, &json!({"prompt": "a", "id": 1}))["code"], "loading", "{name}");
    }
    assert_finds_nothing();
    GATE.open();
    wait_until("the load's end", || status()["state"] == "ready");
    assert_works();
}

#[test]
fn unload_aborts_a_load() {
    let _guard = exclusive();
    GATE.close();
    let loading = thread::spawn(|| load(Some(debug_command().as_bytes())));
    GATE.wait_for_a_caller();
    let unloading = thread::spawn(unload);
    wait_until("unload's beginning", || status()["state"] == "uninitialized");
    GATE.open();
    unloading.join().expect("the unload returns");
    assert_eq!(loading.join().expect("the load returns"), 4, "cancelled");
    assert_eq!(status()["state"], "uninitialized");
    assert_eq!(load(Some(command(json!({})).to_string().as_bytes())), 0);
    assert_works();
}

#[test]
fn last_of_several_async_loads_wins() {
    let _guard = exclusive();
    GATE.close();
    let first = thread::spawn(|| load(Some(debug_command().as_bytes())));
    GATE.wait_for_a_caller();
    load_async(Some(br#"{"model": "/nowhere.gguf"}"#));
    let last = command(json!({"model_alias": "the last", "log_level": "debug"})).to_string();
    load_async(Some(last.as_bytes()));
    GATE.open();
    assert_eq!(first.join().expect("the load returns"), 4);
    wait_until("the last load's end", || status()["state"] == "ready");
    assert_eq!(status()["model_alias"], "the last");
    assert_works();
}

/// Starts requests on several threads, calls `end`, and returns the requests' answers.
fn ended_by(end: impl FnOnce()) -> Vec<Value> {
    let running = submit(&endless());
    wait_for_state(running, "generating");
    let asking: Vec<_> =
        (0..6).map(|n| thread::spawn(move || call("complete", &both_ways(&endless())[n % 2]))).collect();
    let polling = thread::spawn(move || {
        let answer = call("poll", &json!({"id": running, "timeout_ms": 60_000}));
        assert!(answer["success"] == true || answer["code"].is_string(), "{answer}");
    });
    // Seven requests are queued or in slots.
    wait_until("all requests to be there", || {
        let status = status();
        let busy = status["slots"].as_array().expect("slots").iter().filter(|slot| slot["state"] != "idle").count();
        status["queue"].as_u64().expect("a number") as usize + busy == 7
    });
    end();
    polling.join().expect("the poll returns");
    asking.into_iter().map(|thread| thread.join().expect("an answer")).collect()
}

#[test]
fn unload_cancels_running_requests() {
    let _guard = loaded(json!({"n_parallel": 2, "n_ctx": 1024}));
    for answer in ended_by(unload) {
        assert_eq!(answer["stop_type"], "cancelled", "{answer}");
    }
    for name in functions_needing_a_model() {
        assert_eq!(call(name, &json!({"prompt": "a"}))["code"], "not_initialized", "{name}");
    }
}

#[test]
fn load_cancels_running_requests() {
    let _guard = loaded(json!({"n_parallel": 2, "n_ctx": 1024}));
    for answer in ended_by(|| assert_eq!(load(Some(command(json!({})).to_string().as_bytes())), 0)) {
        assert_eq!(answer["stop_type"], "cancelled", "{answer}");
    }
    assert_works();
    // A failed load also unloads the model.
    assert_eq!(load(Some(b"-m /nowhere.gguf")), 1);
    assert_eq!(call("complete", &json!({"prompt": "a"}))["code"], "not_initialized");
    assert_finds_nothing();
}

#[test]
fn vocab_only_and_embedding_models_limit_the_functions() {
    let _guard = exclusive();
    assert_eq!(load(Some(command(json!({"vocab_only": true})).to_string().as_bytes())), 0, "{}", status());
    assert_eq!(call("tokenize", &json!({"text": "Once"}))["success"], true);
    for name in functions() {
        // Polls and cancels are left out: this model can have no requests.
        if !["tokenize", "detokenize", "apply_template", "model_info"].contains(&name) && !COMMANDS.contains(&name) {
            assert_eq!(call(name, &json!({"prompt": "a", "content": "a"}))["code"], "invalid_request", "{name}");
        }
    }
    assert_finds_nothing();
    assert_eq!(load(Some(command(json!({"embedding": true})).to_string().as_bytes())), 0, "{}", status());
    for (request, code) in [
        (json!({"content": "a ".repeat(10_000)}), "context_full"),
        (json!({"content": 5}), "invalid_request"),
        (json!({"content": "a", "embd_normalize": 1000}), "invalid_request"),
    ] {
        assert_eq!(call("embed", &request)["code"], code, "{}", crate::c_api::shortened(&request));
    }
    // An empty text still has BOS.
    let answer = call("embed", &json!({"content": ""}));
    let length: f64 =
        answer["embedding"].as_array().expect("numbers").iter().map(|x| x.as_f64().expect("a number").powi(2)).sum();
    assert!((length - 1.0).abs() < 1e-5, "{length}");
    assert_works();
}

#[test]
fn repeated_loads_and_unloads_work() {
    let _guard = exclusive();
    for _ in 0..10 {
        load_async(Some(command(json!({})).to_string().as_bytes()));
        unload();
    }
    assert_eq!(status()["state"], "uninitialized");
    for _ in 0..3 {
        assert_eq!(load(Some(command(json!({})).to_string().as_bytes())), 0);
    }
    assert_works();
}

/// The number of loads that logged a failure.
static FAILED: AtomicU32 = AtomicU32::new(0);

extern "C" fn count_failures(_level: i32, text: *const c_char, _user: *mut c_void) {
    // SAFETY: the library passes a NUL-terminated string.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    if text.starts_with("load: ") && ["replaced this load", "/nowhere.gguf"].iter().any(|part| text.contains(part)) {
        FAILED.fetch_add(1, Ordering::SeqCst);
    }
}

/// A replaced load logs so when its thread notices; `unload` must wait for that, so that no callback runs after it.
#[test]
fn unload_joins_the_threads_of_load_async() {
    let _guard = exclusive();
    set_log_callback(Some(count_failures), 0);
    for round in 1..=20 {
        assert_eq!(
            load(Some(command(json!({"warmup": false, "log_level": "info"})).to_string().as_bytes())),
            0,
            "{}",
            status()
        );
        load_async(Some(b"-m /nowhere.gguf"));
        unload();
        assert_eq!(FAILED.load(Ordering::SeqCst), round);
    }
    assert_eq!(status()["state"], "uninitialized");
}

/// `unload` ends the engine that `load_async` was about to replace, and waits for its callbacks.
#[test]
fn unload_ends_the_engine_that_load_async_was_replacing() {
    let _guard = loaded(json!({}));
    GATE.close_for_updates();
    submit(&endless());
    GATE.wait_for_a_caller();
    let unloading = thread::spawn(|| {
        load_async(Some(b"-m /nowhere.gguf"));
        unload();
    });
    wait_until("unload's beginning", || status()["state"] == "uninitialized");
    thread::sleep(Duration::from_millis(100));
    let waited = !unloading.is_finished();
    GATE.open();
    unloading.join().expect("the unload returns");
    assert!(waited, "unload returned while the engine's thread was in a callback");
}

#[test]
fn chat_template_can_be_chosen_by_name() {
    let messages = json!([{"role": "user", "content": "Hi"}]);
    let chatml = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
    let with = |template: &str| json!({"messages": messages, "chat_template": template});
    let check_refused = |request: &Value| {
        for name in ["apply_template", "complete"] {
            let (code, error) = error_of(name, request);
            assert!(code == "invalid_request" && error.starts_with("chat_template: "), "{name} {request}: {error}");
        }
    };
    let guard = loaded(json!({"chat_template": "chatml"}));
    assert_eq!(call("apply_template", &json!({"messages": messages}))["prompt"], chatml);
    assert_eq!(call("apply_template", &with("{{ messages[0].content }}"))["prompt"], "Hi");
    check_refused(&with("llama33"));
    let llama3 =
        "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n";
    assert_eq!(call("apply_template", &with("llama3"))["prompt"], llama3);
    drop(guard);
    let guard = loaded(json!({"chat_template": "llama3"}));
    assert_eq!(call("apply_template", &json!({"messages": messages}))["prompt"], llama3);
    drop(guard);
    let _guard = exclusive();
    assert_ne!(load(Some(command(json!({"chat_template": "llama33"})).to_string().as_bytes())), 0);
    let error = status()["error"].as_str().unwrap_or_default().to_owned();
    assert!(error.starts_with("chat_template: ") && error.contains("llama33"), "{error}");
    assert_eq!(load(Some(command(json!({})).to_string().as_bytes())), 0);
    assert_eq!(call("apply_template", &with("chatml"))["prompt"], chatml);
    assert_works();
}

#[test]
fn chat_template_can_be_read_from_a_file() {
    let _guard = exclusive();
    let folder = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("template");
    std::fs::create_dir_all(&folder).expect("target/ is writable");
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.join(name);
        std::fs::write(&path, bytes).expect("target/ is writable");
        path.to_string_lossy().into_owned()
    };
    let good =
        file("a template.jinja", "{% for m in messages %}<{{ m.role }}>\n{{ m.content }}\u{e9}{% endfor %}".as_bytes());
    let messages = json!({"messages": [{"role": "user", "content": "Hi"}]});
    let line =
        format!("-m {} -c 256 -t 1 --color -e --special --chat-template-file \"{good}\"", crate::c_api::model("draft"));
    for config in [line, command(json!({"chat_template_file": good})).to_string()] {
        assert_eq!(load(Some(config.as_bytes())), 0, "{}", status());
        assert_eq!(call("apply_template", &messages)["prompt"], "<user>\nHi\u{e9}");
    }
    let missing = folder.join("nowhere").to_string_lossy().into_owned();
    for (path, code, number) in [
        (missing, "not_found", 7),
        (file("latin1", b"{{ 'caf\xE9' }}"), "invalid_request", 3),
        (folder.to_string_lossy().into_owned(), "invalid_request", 3),
    ] {
        assert_eq!(load(Some(command(json!({"chat_template_file": path})).to_string().as_bytes())), number, "{path}");
        let status = status();
        let error = status["error"].as_str().expect("a message");
        assert!(
            status["code"] == code && error.starts_with("chat_template_file: ") && error.contains(&path),
            "{status}"
        );
    }
    let both = command(json!({"chat_template_file": good, "chat_template": "chatml"})).to_string();
    assert_eq!(load(Some(both.as_bytes())), 3);
    // A template by name in a file is that name.
    let named = file("named", b"chatml");
    assert_eq!(load(Some(command(json!({"chat_template_file": named})).to_string().as_bytes())), 0);
    assert!(call("apply_template", &messages)["prompt"].as_str().expect("text").starts_with("<|im_start|>user"));
}

#[test]
fn version_string_is_static() {
    let guard = loaded(json!({}));
    let first = version();
    assert_eq!(status()["version"], first.1);
    assert_eq!(version(), first);
    drop(guard);
    assert_eq!(version(), first, "also without a model");
}
