//! Completions: one call that waits, or a request that is polled; plain, and with speculation by default.

use std::ffi::c_char;

use super::SYSTEM;
use super::guard::{answer, bytes, required};
use crate::api::Endpoint;

/// Generates, and returns the final response; with `prompts` or `n_cmpl` the `results`, one for each text. Waits until the
/// request has finished. The caller owns the returned string.
#[unsafe(no_mangle)]
pub extern "C" fn get_completion(req: *const c_char) -> *const c_char {
    // SAFETY: see the room's promise.
    answer(|| SYSTEM.with_server(|server| server.complete(Endpoint::Completion, unsafe { required(req) }?)))
}

/// Queues a request and returns its `id` and `prompt_stats`. The caller owns the returned string.
#[unsafe(no_mangle)]
pub extern "C" fn async_completion_init(req: *const c_char) -> *const c_char {
    // SAFETY: see the room's promise.
    answer(|| SYSTEM.with_server(|server| server.submit(Endpoint::Completion, unsafe { required(req) }?)))
}

/// Takes the updates of a request since the last poll: `{"id": 7, "timeout_ms": 0}`. `finished` is true once the last
/// one was handed out. Waits for an update up to `timeout_ms`; 0 never waits. NULL or `{}`: the newest request of
/// `async_completion_init`. The caller owns the returned string.
#[unsafe(no_mangle)]
pub extern "C" fn async_completion_poll(cmd: *const c_char) -> *const c_char {
    // SAFETY: see the room's promise.
    answer(|| SYSTEM.with_server(|server| server.poll(Endpoint::Completion, unsafe { bytes(cmd) })))
}

/// Ends a request, `{"id": 7}`, within one evaluation; its last update says so. NULL or `{}`: the newest request of
/// `async_completion_init`. The caller owns the returned string.
#[unsafe(no_mangle)]
pub extern "C" fn async_completion_cancel(cmd: *const c_char) -> *const c_char {
    // SAFETY: see the room's promise.
    answer(|| SYSTEM.with_server(|server| server.cancel(Endpoint::Completion, unsafe { bytes(cmd) })))
}

/// As `get_completion`, with speculation unless the request turns it off. With the default `verify`, and with `match`, the
/// text is the same.
#[unsafe(no_mangle)]
pub extern "C" fn speculative_completion(req: *const c_char) -> *const c_char {
    // SAFETY: see the room's promise.
    answer(|| SYSTEM.with_server(|server| server.complete(Endpoint::Speculative, unsafe { required(req) }?)))
}

/// As `async_completion_init`, with speculation unless the request turns it off.
#[unsafe(no_mangle)]
pub extern "C" fn speculative_completion_init(req: *const c_char) -> *const c_char {
    // SAFETY: see the room's promise.
    answer(|| SYSTEM.with_server(|server| server.submit(Endpoint::Speculative, unsafe { required(req) }?)))
}

/// As `async_completion_poll`; with NULL or `{}` the newest request of `speculative_completion_init` is meant.
#[unsafe(no_mangle)]
pub extern "C" fn speculative_completion_poll(cmd: *const c_char) -> *const c_char {
    // SAFETY: see the room's promise.
    answer(|| SYSTEM.with_server(|server| server.poll(Endpoint::Speculative, unsafe { bytes(cmd) })))
}

/// As `async_completion_cancel`; with NULL or `{}` the newest request of `speculative_completion_init` is meant.
#[unsafe(no_mangle)]
pub extern "C" fn speculative_completion_cancel(cmd: *const c_char) -> *const c_char {
    // SAFETY: see the room's promise.
    answer(|| SYSTEM.with_server(|server| server.cancel(Endpoint::Speculative, unsafe { bytes(cmd) })))
}
