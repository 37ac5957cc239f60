//! Callbacks that call the library: every function from inside both callbacks, and replacing callbacks at any time.

use std::ffi::{CStr, c_char, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;

use serde_json::{Value, json};

use crate::c_api::{
    assert_works, call, command, drop_line, endless, exclusive, functions, last_update, load, load_async, loaded,
    set_log_callback, set_update_callback, status, submit, unload, wait_until,
};

/// The answers of the calls made inside a callback.
static ANSWERS: Mutex<Vec<(String, Value)>> = Mutex::new(Vec::new());
static CALLS: AtomicUsize = AtomicUsize::new(0);
static LAST: AtomicU64 = AtomicU64::new(0);

/// Calls every function once, in the first callback only.
fn call_everything() {
    if CALLS.fetch_add(1, Ordering::SeqCst) > 0 {
        return;
    }
    let mut answers = Vec::new();
    for name in functions() {
        let request = json!({"prompt": "a", "content": "a", "text": "a", "tokens": [1], "n_predict": 1});
        answers.push((name.to_owned(), call(name, &request)));
        answers.push((format!("{name} with timeout_ms"), call(name, &json!({"prompt": "a", "timeout_ms": 1000}))));
    }
    let poll = json!({"id": LAST.load(Ordering::SeqCst), "timeout_ms": 1000});
    answers.push(("poll of a request".into(), call("poll", &poll)));
    answers.push(("status".into(), status()));
    answers.push(("load".into(), json!(load(Some(b"-m /nowhere.gguf")))));
    ANSWERS.lock().expect("not poisoned").extend(answers);
}

extern "C" fn on_update(id: u64, _user: *mut c_void) {
    LAST.store(id, Ordering::SeqCst);
    call_everything();
}

extern "C" fn on_line(_level: i32, _text: *const c_char, _user: *mut c_void) {
    call_everything();
}

fn answers() -> Vec<(String, Value)> {
    CALLS.store(0, Ordering::SeqCst);
    std::mem::take(&mut ANSWERS.lock().expect("not poisoned"))
}

/// The functions that wait for the engine. A poll does so too, if it has a time limit.
const WAITING: [&str; 8] =
    ["complete", "decide", "embed", "rerank", "session_save", "session_load", "session_erase", "conversation"];

#[test]
fn update_callback_may_call_every_function() {
    let _guard = loaded(json!({"max_queue": 64}));
    answers();
    set_update_callback(Some(on_update), 0);
    let id = submit(&json!({"prompt": "Once", "n_predict": 8}));
    last_update(id);
    wait_until("the calls from inside", || !ANSWERS.lock().expect("not poisoned").is_empty());
    for (name, answer) in answers() {
        let function = name.trim_end_matches(" with timeout_ms");
        let waits = WAITING.contains(&function) || name == "poll of a request";
        match name.as_str() {
            "load" => assert_eq!(answer, 5),
            _ if waits => assert_eq!(answer["code"], "would_deadlock", "{name}: {answer}"),
            _ => assert_ne!(answer["code"], "would_deadlock", "{name}: {answer}"),
        }
    }
    set_update_callback(None, 0);
    assert_works();
}

#[test]
fn log_callback_may_call_every_function() {
    let _guard = loaded(json!({"log_level": "warn"}));
    answers();
    set_log_callback(Some(on_line), 0);
    // Logs a line on the caller's thread, while it is inside the library.
    let answer = call("complete", &json!({"prompt": "Once", "n_predict": 2, "__debug": true}));
    assert_eq!(answer["success"], true);
    let answered = answers();
    let codes: Vec<_> = answered.iter().filter(|(_, answer)| answer["code"] == "would_deadlock").collect();
    assert!(answered.iter().any(|(name, answer)| name == "load" && *answer == 5), "{answered:?}");
    assert!(codes.iter().any(|(name, _)| name == "complete"), "{answered:?}");
    set_log_callback(Some(drop_line), 0);
    assert_works();
    // A line logged during a load, where a load and an unload would wait for themselves.
    answers();
    set_log_callback(Some(on_line), 0);
    assert_eq!(load(Some(command(json!({"log_level": "debug"})).to_string().as_bytes())), 0);
    let answered = answers();
    assert!(answered.iter().any(|(name, answer)| name == "complete" && answer["code"] == "loading"), "{answered:?}");
    set_log_callback(Some(drop_line), 0);
    assert_works();
}

/// The lines that [`collect`] received: level, text and user pointer.
static LINES: Mutex<Vec<(i32, String, usize)>> = Mutex::new(Vec::new());

extern "C" fn collect(level: i32, text: *const c_char, user: *mut c_void) {
    // SAFETY: the library passes a NUL-terminated string.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
    LINES.lock().expect("not poisoned").push((level, text, user as usize));
}

#[test]
fn log_callback_gets_the_level_and_the_user_pointer() {
    const USER: usize = 7;
    let _guard = exclusive();
    let lines = || std::mem::take(&mut *LINES.lock().expect("not poisoned"));
    set_log_callback(Some(collect), USER);
    lines();
    assert_eq!(load(Some(command(json!({"log_level": "debug", "no_such_key": 1})).to_string().as_bytes())), 0);
    let logged = lines();
    assert!(logged.iter().all(|(level, _, user)| (1..=4).contains(level) && *user == USER), "{logged:?}");
    let has = |level: i32, part: &str| logged.iter().any(|(l, text, _)| *l == level && text.contains(part));
    assert!(has(2, "llama_model_loader"), "llama.cpp's lines: {logged:?}");
    assert!(has(3, "no_such_key"), "the library's own lines: {logged:?}");

    // `__debug` logs the request and the answer at every level.
    unload();
    lines();
    assert_eq!(load(Some(command(json!({"log_level": "error", "no_such_key": 1})).to_string().as_bytes())), 0);
    assert_eq!(lines(), [], "no line at level error");
    let request = json!({"prompt": "Once upon", "n_predict": 2, "tag": "a mark", "__debug": true});
    let answer = call("complete", &request);
    let debugged: Vec<Value> = lines().iter().filter_map(|(_, text, _)| json_in(text)).collect();
    assert!(debugged.contains(&request) && debugged.contains(&answer), "{debugged:?}");

    let nowhere = br#"{"model": "/nowhere.gguf", "log_level": "info"}"#;
    assert_eq!(load(Some(nowhere)), 1);
    let logged = lines();
    assert!(logged.iter().any(|(level, text, _)| *level == 2 && text.contains("/nowhere.gguf")), "{logged:?}");
    set_log_callback(Some(drop_line), 0);
    assert_eq!(load(Some(nowhere)), 1);
    assert_eq!(lines(), [], "a replaced callback is not called");
}

/// The JSON object at the end of a line.
fn json_in(line: &str) -> Option<Value> {
    serde_json::from_str(&line[line.find('{')?..]).ok()
}

extern "C" fn unload_inside(_id: u64, _user: *mut c_void) {
    unload();
}

extern "C" fn load_anew(_id: u64, _user: *mut c_void) {
    set_update_callback(None, 0);
    load_async(Some(command(json!({"model_alias": "anew"})).to_string().as_bytes()));
}

#[test]
fn callback_may_unload_and_load() {
    let _guard = loaded(json!({}));
    set_update_callback(Some(unload_inside), 0);
    assert_eq!(call("complete", &endless())["stop_type"], "cancelled");
    // Otherwise the callback for the request's end would cancel the next load too.
    set_update_callback(None, 0);
    wait_until("the end", || status()["state"] == "uninitialized");
    assert_eq!(load(Some(command(json!({})).to_string().as_bytes())), 0);
    set_update_callback(Some(load_anew), 0);
    assert_eq!(call("complete", &endless())["stop_type"], "cancelled");
    wait_until("the new load", || {
        let status = status();
        status["state"] == "ready" && status["model_alias"] == "anew"
    });
    assert_works();
}

static REPLACED: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];

extern "C" fn replace_itself(_id: u64, user: *mut c_void) {
    let which = user as usize;
    REPLACED[which].fetch_add(1, Ordering::SeqCst);
    set_update_callback(Some(replace_itself), 1 - which);
    set_log_callback(Some(replace_itself_in_log), 0);
}

extern "C" fn replace_itself_in_log(_level: i32, _text: *const c_char, _user: *mut c_void) {
    set_log_callback(Some(drop_line), 0);
}

#[test]
fn callbacks_can_be_replaced_at_any_time() {
    let _guard = loaded(json!({}));
    set_update_callback(Some(replace_itself), 0);
    let answer = call("complete", &json!({"prompt": "Once", "n_predict": 20, "ignore_eos": true, "__debug": true}));
    assert_eq!(answer["success"], true);
    let [first, second] = [0, 1].map(|which| REPLACED[which].load(Ordering::SeqCst));
    assert!(first > 0 && first.abs_diff(second) <= 1, "the callbacks must alternate: {first} {second}");
    // Replaced by other threads while a request runs.
    let id = submit(&endless());
    let replacing: Vec<_> = (0..4)
        .map(|_| {
            thread::spawn(|| {
                for n in 0..300 {
                    set_update_callback((n % 3 > 0).then_some(replace_itself), n % 2);
                    set_log_callback((n % 4 > 0).then_some(drop_line), 0);
                }
            })
        })
        .collect();
    for thread in replacing {
        thread.join().expect("no thread hangs");
    }
    set_update_callback(None, 0);
    let before = [0, 1].map(|which| REPLACED[which].load(Ordering::SeqCst));
    call("cancel", &json!({"id": id}));
    last_update(id);
    let after = [0, 1].map(|which| REPLACED[which].load(Ordering::SeqCst));
    assert_eq!(before, after, "a removed callback was called");
    assert_works();
}
