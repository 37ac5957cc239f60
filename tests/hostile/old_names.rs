//! The old server's functions, called as a C host of it does.

use std::ffi::{CStr, c_char, c_void};

use serde_json::{Value, json};

use crate::c_api::{
    Exclusive, LogCallback, UpdateCallback, command, error_in, exclusive, function, pointer, shortened, take_answer,
    text, wait_until,
};
use crate::c_functions::COMMANDS;

pub fn init(command: Option<&[u8]>) -> i32 {
    let command = text(command);
    function::<extern "C" fn(*const c_char) -> i32>("init")(pointer(&command))
}

/// The string is freed when this returns, which the API allows.
pub fn init_async(command: Option<&[u8]>) {
    let command = text(command);
    function::<extern "C" fn(*const c_char)>("init_async")(pointer(&command));
}

pub fn deinit() {
    function::<extern "C" fn()>("deinit")();
}

/// As `c_api::loaded`, by `init`.
pub fn loaded(more: Value) -> Exclusive {
    let guard = exclusive();
    let command = command(more);
    assert_eq!(init(Some(command.to_string().as_bytes())), 0, "{command}: {}", status());
    guard
}

/// The returned pointer and its string.
pub fn version() -> (usize, String) {
    let version = function::<extern "C" fn() -> *const c_char>("version")();
    // SAFETY: a NUL-terminated string that lives as long as the library.
    let text = unsafe { CStr::from_ptr(version) }.to_str().expect("UTF-8").to_owned();
    (version as usize, text)
}

pub fn free_null() {
    function::<extern "C" fn(*const c_char)>("free_string")(std::ptr::null());
}

pub fn set_log_callback(callback: Option<LogCallback>, user: usize) {
    function::<extern "C" fn(Option<LogCallback>, *mut c_void)>("set_log_callback")(callback, user as *mut c_void);
}

pub fn set_update_callback(callback: Option<UpdateCallback>, user: usize) {
    function::<extern "C" fn(Option<UpdateCallback>, *mut c_void)>("set_update_callback")(
        callback,
        user as *mut c_void,
    );
}

pub fn status() -> Value {
    type Status = extern "C" fn() -> *const c_char;
    let status = take_answer("poll_system_status", function::<Status>("poll_system_status")(), "free_string");
    let ready = match status["state"].as_str() {
        Some("ready") => 1,
        Some("failed") => -1,
        _ => 0,
    };
    assert_eq!(status["init_success"], ready, "{status}");
    status
}

/// Asserts that every poll and cancel without an `id` succeeds with no updates, for any document, and reports `state`, or the end of an
/// earlier test's last request.
pub fn assert_finds_nothing(state: &str) {
    for name in COMMANDS {
        // An earlier request, which has an id unless it was refused, stays the newest one.
        let earlier = name.ends_with("_poll").then(|| call_bytes(name, None)).filter(|poll| poll["finished"] == true);
        for (document, counts) in [
            (None, false),
            (Some(&b""[..]), false),
            (Some(b" \n"), false),
            (Some(b"{}"), false),
            (Some(br#"{"id": null}"#), false),
            (Some(b"7"), true),
            (Some(b"[]"), true),
            (Some(b"null"), true),
            (Some(br#""{}""#), true),
            (Some(b"{\"id\": 7"), true),
            (Some(b"\xFF{}"), true),
        ] {
            let answer = call_bytes(name, document);
            let mut expected = json!({"success": true});
            let fields = if let Some(earlier) = &earlier {
                let mut fields = json!({"completion_updates": [], "finished": true, "state": "finished"});
                if earlier["id"].is_u64() {
                    fields["id"] = earlier["id"].clone();
                }
                fields
            } else if name.ends_with("_poll") {
                json!({"completion_updates": [], "finished": false, "state": state})
            } else {
                json!({"cancelled": false})
            };
            expected.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
            if counts {
                let warning = answer["warnings"][0].as_str().unwrap_or_default();
                assert!(warning.starts_with("the argument counts as {}: "), "{name} {document:?}: {answer}");
                expected["warnings"] = json!([warning]);
            }
            assert_eq!(answer, expected, "{name} {document:?}");
        }
        assert_eq!(call(name, &json!({"id": 1_u64 << 40}))["code"], "not_found", "{name}");
    }
}

/// Calls a function of the old server with a document or NULL, or a `foredraft_*` function on the default engine.
pub fn call_bytes(name: &str, document: Option<&[u8]>) -> Value {
    let document = text(document);
    if name.starts_with("foredraft_") {
        type OfEngine = extern "C" fn(*mut c_void, *const c_char) -> *const c_char;
        let answer = function::<OfEngine>(name)(std::ptr::null_mut(), pointer(&document));
        return take_answer(name, answer, "foredraft_string_free");
    }
    let answer = function::<extern "C" fn(*const c_char) -> *const c_char>(name)(pointer(&document));
    take_answer(name, answer, "free_string")
}

pub fn call(name: &str, request: &Value) -> Value {
    call_bytes(name, Some(request.to_string().as_bytes()))
}

/// Calls a function that must fail, and returns the error's code and message.
pub fn error_of(name: &str, request: &Value) -> (String, String) {
    error_in(name, request, &call(name, request))
}

/// Queues a request with an `_init` function and returns its id.
pub fn submit(name: &str, request: &Value) -> u64 {
    let answer = call(name, request);
    answer["id"].as_u64().unwrap_or_else(|| panic!("{name} {}: {answer}", shortened(request)))
}

/// Polls a request until it is finished and returns its last update.
pub fn last_update(endpoint: &str, id: u64) -> Value {
    let mut last = Value::Null;
    wait_until("the request's end", || {
        let answer = call(&format!("{endpoint}_poll"), &json!({"id": id, "timeout_ms": 1000}));
        assert_eq!(answer["success"], true, "{answer}");
        if let Some(update) = answer["completion_updates"].as_array().expect("updates").last() {
            last = update.clone();
        }
        answer["finished"] == true
    });
    assert_eq!(last["stop"], true, "{last}");
    last
}

/// Polls until a request is in `state`; fails if the request ends before.
pub fn wait_for_state(endpoint: &str, id: u64, state: &str) {
    wait_until(state, || {
        let answer = call(&format!("{endpoint}_poll"), &json!({"id": id}));
        assert!(answer["state"] == state || answer["finished"] == false, "{answer}");
        answer["state"] == state
    });
}

/// Asserts that a simple completion still gives the known output, with and without speculation.
pub fn assert_works() {
    let request = json!({"prompt": "Once upon a time", "n_predict": 5, "temperature": 0});
    for name in ["get_completion", "speculative_completion"] {
        let answer = call(name, &request);
        assert_eq!(answer["content"], " there was a child named", "{name}: {answer}");
    }
}
