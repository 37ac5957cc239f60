//! The functions of the old JSON-RPC server, which call the default engine. A cargo feature, on by default. `legacy_added` has the
//! functions that were added under similar names.

use std::ffi::{c_char, c_int};
use std::ptr::null_mut;
use std::sync::LazyLock;

use super::guard::{answer, bytes, required, run};
use super::{engine, engines, requests};
use crate::api::{Endpoint, OldServer};

/// The old server in front of the default engine.
static OLD_SERVER: LazyLock<OldServer> = LazyLock::new(|| OldServer::new(engines::default()));

/// # Safety
/// `request` is NULL or NUL-terminated, and readable during the call.
pub(super) unsafe fn complete(endpoint: Endpoint, request: *const c_char) -> *const c_char {
    // SAFETY: guaranteed by the caller.
    answer(|| OLD_SERVER.complete(endpoint, unsafe { required(request) }))
}

/// # Safety
/// `request` is NULL or NUL-terminated, and readable during the call.
pub(super) unsafe fn submit(endpoint: Endpoint, request: *const c_char) -> *const c_char {
    // SAFETY: guaranteed by the caller.
    answer(|| OLD_SERVER.submit(endpoint, unsafe { required(request) }))
}

/// # Safety
/// `command` is NULL or NUL-terminated, and readable during the call.
pub(super) unsafe fn poll(endpoint: Endpoint, command: *const c_char) -> *const c_char {
    // SAFETY: guaranteed by the caller.
    answer(|| OLD_SERVER.poll(endpoint, unsafe { bytes(command) }))
}

/// # Safety
/// `command` is NULL or NUL-terminated, and readable during the call.
pub(super) unsafe fn cancel(endpoint: Endpoint, command: *const c_char) -> *const c_char {
    // SAFETY: guaranteed by the caller.
    answer(|| OLD_SERVER.cancel(endpoint, unsafe { bytes(command) }))
}

/// As `foredraft_load` of the default engine.
///
/// Returns 0, or a `foredraft_code`.
#[unsafe(no_mangle)]
pub extern "C" fn init(cmd: *const c_char) -> c_int {
    // SAFETY: see "Safety" in the module's documentation.
    engine::load(unsafe { required(cmd) }, |command| OLD_SERVER.load(command))
}

/// As `foredraft_load_async` of the default engine.
#[unsafe(no_mangle)]
pub extern "C" fn init_async(cmd: *const c_char) {
    // SAFETY: see "Safety" in the module's documentation.
    run(|| OLD_SERVER.load_async(unsafe { bytes(cmd) }.unwrap_or(b"")));
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
    unsafe { complete(Endpoint::Completion, req) }
}

/// Queues a request and returns its `id` and `prompt_stats`, which is complete. No speculation unless the request enables it.
#[unsafe(no_mangle)]
pub extern "C" fn async_completion_init(req: *const c_char) -> *const c_char {
    // SAFETY: see "Safety" in the module's documentation.
    unsafe { submit(Endpoint::Completion, req) }
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
