//! The functions of the old JSON-RPC server, which call the default engine. A cargo feature, on by default. `legacy_added` has the
//! functions that were added under similar names.

use std::ffi::{c_char, c_int};
use std::ptr::null_mut;

use super::guard::{answer, bytes, required, run};
use super::{engine, engines, requests};
use crate::api::{Endpoint, Function, JsonEngine};

/// # Safety
/// `command` is NULL or NUL-terminated, and readable during the call.
pub(super) unsafe fn poll(endpoint: Endpoint, command: *const c_char) -> *const c_char {
    // SAFETY: guaranteed by the caller.
    answer(|| engines::find(null_mut())?.poll(endpoint, unsafe { bytes(command) }))
}

/// # Safety
/// `command` is NULL or NUL-terminated, and readable during the call.
pub(super) unsafe fn cancel(endpoint: Endpoint, command: *const c_char) -> *const c_char {
    // SAFETY: guaranteed by the caller.
    answer(|| engines::find(null_mut())?.cancel(endpoint, unsafe { bytes(command) }))
}

/// As `foredraft_load` of the default engine.
///
/// Returns 0, or a `foredraft_code`.
#[unsafe(no_mangle)]
pub extern "C" fn init(cmd: *const c_char) -> c_int {
    // SAFETY: see "Safety" in the module's documentation.
    engine::load(|| engines::find(null_mut()), unsafe { required(cmd) }, JsonEngine::load_by_old_name)
}

/// As `foredraft_load_async` of the default engine.
#[unsafe(no_mangle)]
pub extern "C" fn init_async(cmd: *const c_char) {
    // SAFETY: see "Safety" in the module's documentation.
    let load = |engine: JsonEngine| engine.load_async_by_old_name(unsafe { bytes(cmd) }.unwrap_or(b""));
    run(|| engine::log_failure("init_async", engines::find(null_mut()).map(load)));
}

/// As `foredraft_status` of the default engine. `model`, `model_alias` and `model_draft` are always strings.
#[unsafe(no_mangle)]
pub extern "C" fn poll_system_status() -> *const c_char {
    engine::foredraft_status(null_mut())
}

/// As `foredraft_unload` of the default engine.
#[unsafe(no_mangle)]
pub extern "C" fn deinit() {
    engine::foredraft_unload(null_mut());
}

/// As `foredraft_tokenize` of the default engine.
#[unsafe(no_mangle)]
pub extern "C" fn tokenize(req: *const c_char) -> *const c_char {
    requests::foredraft_tokenize(null_mut(), req)
}

/// Generates a completion and returns the final response. No speculation unless the request enables it.
#[unsafe(no_mangle)]
pub extern "C" fn get_completion(req: *const c_char) -> *const c_char {
    // SAFETY: see "Safety" in the module's documentation.
    unsafe { requests::call(null_mut(), req, Function::Complete(Endpoint::Completion)) }
}

/// Queues a request and returns its `id` and `prompt_stats`, which is complete. No speculation unless the request enables it.
#[unsafe(no_mangle)]
pub extern "C" fn async_completion_init(req: *const c_char) -> *const c_char {
    // SAFETY: see "Safety" in the module's documentation.
    unsafe { requests::call(null_mut(), req, Function::Submit(Endpoint::Completion)) }
}

/// Returns the updates of a request since the last poll, as `foredraft_poll`. NULL, `""`, `{}` and anything that is not a JSON object
/// mean the newest request of `async_completion_init`, which stays pollable after `init` and `deinit`; a refused one has a single update, with
/// the error. If there was none, `completion_updates` is empty, and `state` is the state of the library.
#[unsafe(no_mangle)]
pub extern "C" fn async_completion_poll(cmd: *const c_char) -> *const c_char {
    // SAFETY: see "Safety" in the module's documentation.
    unsafe { poll(Endpoint::Completion, cmd) }
}

/// Ends a request, as `foredraft_cancel`. Without an id it ends all waiting and running requests of `async_completion_init`.
/// `cancelled` is false if there are none.
#[unsafe(no_mangle)]
pub extern "C" fn async_completion_cancel(cmd: *const c_char) -> *const c_char {
    // SAFETY: see "Safety" in the module's documentation.
    unsafe { cancel(Endpoint::Completion, cmd) }
}
