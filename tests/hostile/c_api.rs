//! Calls the library's C functions as a C host does, and checks that every answer has the documented form.

use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use libloading::Library;
use serde_json::{Value, json};

use crate::c_functions::{ENGINE_FUNCTIONS, WITHOUT_MODEL};
use crate::host;

/// The functions that take `{"id": 7}` and work without a model.
pub const COMMANDS: [&str; 2] = ["poll", "cancel"];

/// All error codes with their status.
const CODES: [(&str, u64); 14] = [
    ("invalid_json", 400),
    ("invalid_request", 400),
    ("not_initialized", 503),
    ("loading", 503),
    ("not_found", 404),
    ("timeout", 408),
    ("context_full", 400),
    ("cancelled", 499),
    ("queue_full", 429),
    ("model_error", 500),
    ("would_deadlock", 409),
    ("internal", 500),
    ("invalid_engine", 400),
    ("resource_exhausted", 503),
];

pub type LogCallback = extern "C" fn(i32, *const c_char, *mut c_void);
pub type UpdateCallback = extern "C" fn(u64, *mut c_void);

/// The library, loaded once and never unloaded.
static LIBRARY: LazyLock<Library> = LazyLock::new(|| {
    let path = host::library_path().expect("cargo built the library");
    // SAFETY: loading the library runs no initializers.
    let library = unsafe { Library::new(path) }.expect("the library loads");
    // SAFETY: `foredraft_set_log_callback` has this type. The log is dropped because these tests provoke errors.
    unsafe {
        type SetCallback = extern "C" fn(Option<LogCallback>, *mut c_void);
        let set = library.get::<SetCallback>(b"foredraft_set_log_callback").expect("exported");
        set(Some(drop_line), std::ptr::null_mut());
    }
    library
});

pub extern "C" fn drop_line(_level: i32, text: *const c_char, _user: *mut c_void) {
    // SAFETY: the library passes a NUL-terminated string.
    let text = unsafe { CStr::from_ptr(text) };
    assert!(text.to_str().is_ok(), "a log line that is not UTF-8: {text:?}");
}

/// A function of the library, as type `T`.
pub fn function<T: Copy>(name: &str) -> T {
    // SAFETY: all callers pass the type that the header declares.
    unsafe { *LIBRARY.get::<T>(name.as_bytes()).unwrap_or_else(|error| panic!("{name}: {error}")) }
}

/// The lock that a test holds while it uses the default engine. No model is loaded when it is taken and after it is dropped.
pub struct Exclusive(#[allow(dead_code)] MutexGuard<'static, ()>);

pub fn exclusive() -> Exclusive {
    static LOCK: Mutex<()> = Mutex::new(());
    // The lock is poisoned if another test failed, which does not matter here.
    let guard = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    LazyLock::force(&LIBRARY);
    unload();
    Exclusive(guard)
}

/// As [`exclusive`], with both shipped models loaded; `more` adds keys to the load.
pub fn loaded(more: Value) -> Exclusive {
    let guard = exclusive();
    let command = command(more);
    assert_eq!(load(Some(command.to_string().as_bytes())), 0, "{command}: {}", status());
    guard
}

impl Drop for Exclusive {
    fn drop(&mut self) {
        unload();
        set_update_callback(None, 0);
        set_log_callback(Some(drop_line), 0);
    }
}

/// The configuration for both shipped models. One thread, because on a busy machine a second one slows them down.
pub fn command(more: Value) -> Value {
    let mut command = json!({
        "model": model("target"), "model_draft": model("draft"), "n_threads": 1, "n_ctx": 512, "log_level": "error",
    });
    command.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    command
}

/// Path of a shipped model: `target` or `draft`.
pub fn model(name: &str) -> String {
    host::root().join(format!("models/stories-{name}.gguf")).to_string_lossy().into_owned()
}

pub fn text(bytes: Option<&[u8]>) -> Option<CString> {
    bytes.map(|bytes| CString::new(bytes).expect("C strings have no NUL inside"))
}

pub fn pointer(text: &Option<CString>) -> *const c_char {
    text.as_ref().map_or(std::ptr::null(), |text| text.as_ptr())
}

/// The handle of the default engine.
const DEFAULT_ENGINE: *mut c_void = std::ptr::null_mut();
/// The function that releases an answer.
const FREE: &str = "foredraft_string_free";

/// Returns a `foredraft_code`.
pub fn load(config: Option<&[u8]>) -> i32 {
    let config = text(config);
    function::<extern "C" fn(*mut c_void, *const c_char) -> i32>("foredraft_load")(DEFAULT_ENGINE, pointer(&config))
}

/// The string is freed when this returns, which the API allows.
pub fn load_async(config: Option<&[u8]>) {
    let config = text(config);
    function::<extern "C" fn(*mut c_void, *const c_char)>("foredraft_load_async")(DEFAULT_ENGINE, pointer(&config));
}

pub fn unload() {
    function::<extern "C" fn(*mut c_void)>("foredraft_unload")(DEFAULT_ENGINE);
}

/// The returned pointer and its string.
pub fn version() -> (usize, String) {
    let version = function::<extern "C" fn() -> *const c_char>("foredraft_version")();
    // SAFETY: a NUL-terminated string that lives as long as the library.
    let text = unsafe { CStr::from_ptr(version) }.to_str().expect("UTF-8").to_owned();
    (version as usize, text)
}

pub fn free_null() {
    function::<extern "C" fn(*const c_char)>(FREE)(std::ptr::null());
}

pub fn set_log_callback(callback: Option<LogCallback>, user: usize) {
    type SetCallback = extern "C" fn(Option<LogCallback>, *mut c_void);
    function::<SetCallback>("foredraft_set_log_callback")(callback, user as *mut c_void);
}

pub fn set_update_callback(callback: Option<UpdateCallback>, user: usize) {
    type SetCallback = extern "C" fn(*mut c_void, Option<UpdateCallback>, *mut c_void);
    function::<SetCallback>("foredraft_set_update_callback")(DEFAULT_ENGINE, callback, user as *mut c_void);
}

pub fn status() -> Value {
    type OfEngine = extern "C" fn(*mut c_void) -> *const c_char;
    let status = take_answer("status", function::<OfEngine>("foredraft_status")(DEFAULT_ENGINE), FREE);
    let expected = match status["state"].as_str() {
        Some("ready") => 1,
        Some("uninitialized" | "loading") => 0,
        Some("failed") => -1,
        other => panic!("state {other:?}"),
    };
    assert_eq!(status["load_state"], expected, "{status}");
    assert_eq!(status["state"] == "failed", status["error"].is_string(), "{status}");
    status
}

/// All functions that take a document, without their prefix: `"complete"` is `foredraft_complete`.
pub fn functions() -> impl Iterator<Item = &'static str> {
    ENGINE_FUNCTIONS.into_iter().filter_map(|name| name.strip_prefix("foredraft_"))
}

/// The [`functions`] that fail without a model.
pub fn functions_needing_a_model() -> impl Iterator<Item = &'static str> {
    functions().filter(|name| !WITHOUT_MODEL.contains(name) && !COMMANDS.contains(name))
}

/// Asserts that polls and cancels that name no request, or one that never was, get an error. No state of the engine changes that.
pub fn assert_finds_nothing() {
    for name in COMMANDS {
        for (document, code) in [
            (None, "invalid_json"),
            (Some(&b""[..]), "invalid_json"),
            (Some(b" \n"), "invalid_json"),
            (Some(b"7"), "invalid_json"),
            (Some(b"[]"), "invalid_json"),
            (Some(b"null"), "invalid_json"),
            (Some(br#""{}""#), "invalid_json"),
            (Some(b"{\"id\": 7"), "invalid_json"),
            (Some(b"\xFF{}"), "invalid_json"),
            (Some(b"{}"), "invalid_request"),
            (Some(br#"{"id": null}"#), "invalid_request"),
            (Some(br#"{"id": 1099511627776}"#), "not_found"),
        ] {
            let answer = call_bytes(name, document);
            assert_eq!(answer["code"], code, "{name} {document:?}: {answer}");
        }
    }
}

/// Calls one of the [`functions`] on the default engine, with a document or NULL.
pub fn call_bytes(name: &str, document: Option<&[u8]>) -> Value {
    type OfEngine = extern "C" fn(*mut c_void, *const c_char) -> *const c_char;
    let document = text(document);
    let answer = function::<OfEngine>(&format!("foredraft_{name}"))(DEFAULT_ENGINE, pointer(&document));
    take_answer(name, answer, FREE)
}

pub fn call(name: &str, request: &Value) -> Value {
    call_bytes(name, Some(request.to_string().as_bytes()))
}

/// Calls a function that must fail, and returns the error's code and message.
pub fn error_of(name: &str, request: &Value) -> (String, String) {
    error_in(name, request, &call(name, request))
}

/// The code and message of the answer of a function that must fail.
pub fn error_in(name: &str, request: &Value, answer: &Value) -> (String, String) {
    assert_eq!(answer["success"], false, "{name} {}: {answer}", shortened(request));
    let field = |key: &str| answer[key].as_str().expect("checked").to_owned();
    (field("code"), field("error"))
}

/// A document, shortened for an assertion message.
pub fn shortened(request: &Value) -> String {
    request.to_string().chars().take(300).collect()
}

/// Parses an answer, checks its form, and frees the string by the function `free`.
pub fn take_answer(name: &str, answer: *const c_char, free: &str) -> Value {
    assert!(!answer.is_null(), "{name} returned NULL");
    // SAFETY: returned by the library: NUL-terminated, and ours until it is freed.
    let bytes = unsafe { CStr::from_ptr(answer) }.to_bytes().to_vec();
    function::<extern "C" fn(*const c_char)>(free)(answer);
    let answer: Value = serde_json::from_slice(&bytes)
        .unwrap_or_else(|error| panic!("{name}: {error}: {}", String::from_utf8_lossy(&bytes)));
    match answer["success"].as_bool() {
        Some(true) => {}
        Some(false) => {
            let code = answer["code"].as_str().unwrap_or_default();
            let status = CODES.iter().find(|(known, _)| *known == code).map(|(_, status)| *status);
            assert_eq!(answer["status"].as_u64(), status, "{name}: {answer}");
            assert!(answer["error"].as_str().is_some_and(|error| error.len() > 3), "{name}: {answer}");
            assert_ne!(code, "internal", "{name}: {answer}");
        }
        None => panic!("{name}: no success in {answer}"),
    }
    answer
}

/// Asserts that a simple completion still gives the known output, with and without speculation.
pub fn assert_works() {
    let request = json!({"prompt": "Once upon a time", "n_predict": 5, "temperature": 0});
    for request in both_ways(&request) {
        let answer = call("complete", &request);
        assert_eq!(answer["content"], " there was a child named", "{request}: {answer}");
    }
}

/// A request that runs until it is cancelled.
pub fn endless() -> Value {
    json!({"prompt": "Once upon a time", "n_predict": -1, "ignore_eos": true})
}

/// A request with speculation disabled.
pub fn plain(request: &Value) -> Value {
    let mut plain = request.clone();
    plain["speculative"] = false.into();
    plain
}

/// A request without speculation, and as it is.
pub fn both_ways(request: &Value) -> [Value; 2] {
    [plain(request), request.clone()]
}

/// Queues a request and returns its id.
pub fn submit(request: &Value) -> u64 {
    let answer = call("submit", request);
    answer["id"].as_u64().unwrap_or_else(|| panic!("{}: {answer}", shortened(request)))
}

/// Polls a request until it is finished and returns its last update.
pub fn last_update(id: u64) -> Value {
    let mut last = Value::Null;
    wait_until("the request's end", || {
        let answer = call("poll", &json!({"id": id, "timeout_ms": 1000}));
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
pub fn wait_for_state(id: u64, state: &str) {
    wait_until(state, || {
        let answer = call("poll", &json!({"id": id}));
        assert!(answer["state"] == state || answer["finished"] == false, "{answer}");
        answer["state"] == state
    });
}

/// Waits until `happened` returns true, and fails after ten minutes.
pub fn wait_until(what: &str, mut happened: impl FnMut() -> bool) {
    let start = Instant::now();
    while !happened() {
        assert!(start.elapsed() < Duration::from_secs(600), "{what} did not happen");
        std::thread::yield_now();
    }
}

/// A seeded random generator (xorshift64*), so that failures can be reproduced.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % n
    }

    pub fn of<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }
}
