//! Callbacks that call back: every function from inside both of them, and their replacement at any moment.

use std::ffi::{CStr, c_char, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;

use serde_json::{Value, json};

use crate::c::{
    FUNCTIONS, call, command, deinit, drop_line, endless, init, init_async, last_update, loaded, set_log_callback,
    set_update_callback, status, submit, turn, until, works,
};

/// What the calls from inside a callback answered.
static ANSWERS: Mutex<Vec<(String, Value)>> = Mutex::new(Vec::new());
static CALLS: AtomicUsize = AtomicUsize::new(0);
static LAST: AtomicU64 = AtomicU64::new(0);

/// Calls everything once, the first time.
fn call_everything() {
    if CALLS.fetch_add(1, Ordering::SeqCst) > 0 {
        return;
    }
    let mut answers = Vec::new();
    for name in FUNCTIONS {
        let request = json!({"prompt": "a", "content": "a", "text": "a", "tokens": [1], "n_predict": 1});
        answers.push((name.to_owned(), call(name, &request)));
        answers.push((format!("{name} with timeout_ms"), call(name, &json!({"prompt": "a", "timeout_ms": 1000}))));
    }
    answers.push(("poll_system_status".into(), status()));
    answers.push(("init".into(), json!(init(Some(b"-m /nowhere.gguf")))));
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

#[test]
fn every_function_from_inside_the_update_callback() {
    let _turn = loaded(json!({"max_queue": 64}));
    answers();
    set_update_callback(Some(on_update), 0);
    let id = submit("async_completion_init", &json!({"prompt": "Once", "n_predict": 8}));
    last_update("async_completion", id);
    until("the calls from inside", || !ANSWERS.lock().expect("not poisoned").is_empty());
    for (name, answer) in answers() {
        let function = name.trim_end_matches(" with timeout_ms");
        let waits = ["get_completion", "speculative_completion", "get_embedding", "session_save", "session_load"]
            .contains(&function)
            || name.ends_with("poll with timeout_ms");
        match name.as_str() {
            "init" => assert_eq!(answer, 5),
            _ if waits => assert_eq!(answer["code"], "would_deadlock", "{name}: {answer}"),
            _ => assert_ne!(answer["code"], "would_deadlock", "{name}: {answer}"),
        }
    }
    set_update_callback(None, 0);
    works();
}

#[test]
fn every_function_from_inside_the_log_callback() {
    let _turn = loaded(json!({"log_level": "warn"}));
    answers();
    set_log_callback(Some(on_line), 0);
    // A line on the caller's thread, while it is inside the library.
    let answer = call("get_completion", &json!({"prompt": "Once", "n_predict": 2, "__debug": true}));
    assert_eq!(answer["success"], true);
    let answered = answers();
    let codes: Vec<_> = answered.iter().filter(|(_, answer)| answer["code"] == "would_deadlock").collect();
    assert!(answered.iter().any(|(name, answer)| name == "init" && *answer == 5), "{answered:?}");
    assert!(codes.iter().any(|(name, _)| name == "get_completion"), "{answered:?}");
    set_log_callback(Some(drop_line), 0);
    works();
    // And a line of a load, where init and deinit would wait for themselves.
    answers();
    set_log_callback(Some(on_line), 0);
    assert_eq!(init(Some(command(json!({"log_level": "debug"})).to_string().as_bytes())), 0);
    let answered = answers();
    assert!(
        answered.iter().any(|(name, answer)| name == "get_completion" && answer["code"] == "loading"),
        "{answered:?}"
    );
    set_log_callback(Some(drop_line), 0);
    works();
}

/// What [`collect`] was told: level, text and the host's pointer.
static LINES: Mutex<Vec<(i32, String, usize)>> = Mutex::new(Vec::new());

extern "C" fn collect(level: i32, text: *const c_char, user: *mut c_void) {
    // SAFETY: the library passes a NUL-terminated text.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
    LINES.lock().expect("not poisoned").push((level, text, user as usize));
}

#[test]
fn log_lines_come_with_their_level_and_the_hosts_pointer() {
    const USER: usize = 7;
    let _turn = turn();
    let lines = || std::mem::take(&mut *LINES.lock().expect("not poisoned"));
    set_log_callback(Some(collect), USER);
    lines();
    assert_eq!(init(Some(command(json!({"log_level": "debug", "no_such_key": 1})).to_string().as_bytes())), 0);
    let said = lines();
    assert!(said.iter().all(|(level, _, user)| (1..=4).contains(level) && *user == USER), "{said:?}");
    let has = |level: i32, part: &str| said.iter().any(|(l, text, _)| *l == level && text.contains(part));
    assert!(has(2, "llama_model_loader"), "llama.cpp's own lines: {said:?}");
    assert!(has(3, "no_such_key"), "ours: {said:?}");

    // `__debug` writes the request and the answer, whatever the level.
    deinit();
    lines();
    assert_eq!(init(Some(command(json!({"log_level": "error", "no_such_key": 1})).to_string().as_bytes())), 0);
    assert_eq!(lines(), [], "nothing is an error");
    let request = json!({"prompt": "Once upon", "n_predict": 2, "tag": "a mark", "__debug": true});
    let answer = call("get_completion", &request);
    let debugged: Vec<Value> = lines().iter().filter_map(|(_, text, _)| json_in(text)).collect();
    assert!(debugged.contains(&request) && debugged.contains(&answer), "{debugged:?}");

    assert_eq!(init(Some(b"-m /nowhere.gguf")), 1);
    let said = lines();
    assert!(said.iter().any(|(level, text, _)| *level == 4 && text.contains("/nowhere.gguf")), "{said:?}");
    set_log_callback(Some(drop_line), 0);
    assert_eq!(init(Some(b"-m /nowhere.gguf")), 1);
    assert_eq!(lines(), [], "a replaced callback is not called");
}

/// The object that a line ends with.
fn json_in(line: &str) -> Option<Value> {
    serde_json::from_str(&line[line.find('{')?..]).ok()
}

extern "C" fn unload(_id: u64, _user: *mut c_void) {
    deinit();
}

extern "C" fn load_anew(_id: u64, _user: *mut c_void) {
    set_update_callback(None, 0);
    init_async(Some(command(json!({"model_alias": "anew"})).to_string().as_bytes()));
}

#[test]
fn unloading_and_loading_from_inside_a_callback() {
    let _turn = loaded(json!({}));
    set_update_callback(Some(unload), 0);
    assert_eq!(call("get_completion", &endless())["stop_type"], "cancelled");
    // Or else the callback for the request's end would end the next load too.
    set_update_callback(None, 0);
    until("the end", || status()["state"] == "uninitialized");
    assert_eq!(init(Some(command(json!({})).to_string().as_bytes())), 0);
    set_update_callback(Some(load_anew), 0);
    assert_eq!(call("get_completion", &endless())["stop_type"], "cancelled");
    until("the new load", || {
        let status = status();
        status["state"] == "ready" && status["model_alias"] == "anew"
    });
    works();
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
fn callbacks_replaced_at_any_moment() {
    let _turn = loaded(json!({}));
    set_update_callback(Some(replace_itself), 0);
    let answer =
        call("get_completion", &json!({"prompt": "Once", "n_predict": 20, "ignore_eos": true, "__debug": true}));
    assert_eq!(answer["success"], true);
    let [first, second] = [0, 1].map(|which| REPLACED[which].load(Ordering::SeqCst));
    assert!(first > 0 && first.abs_diff(second) <= 1, "they took turns: {first} {second}");
    // From other threads, while it runs.
    let id = submit("async_completion_init", &endless());
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
    call("async_completion_cancel", &json!({"id": id}));
    last_update("async_completion", id);
    let after = [0, 1].map(|which| REPLACED[which].load(Ordering::SeqCst));
    assert_eq!(before, after, "a removed callback was called");
    works();
}
