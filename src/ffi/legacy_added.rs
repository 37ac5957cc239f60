//! Functions that the old JSON-RPC server did not have, under names like its own, on the default engine. `rpcserver.h` declares them only
//! for a host that defines `FOREDRAFT_RPCSERVER_ALL`, because a host may have functions of these names itself.

use std::ffi::{c_char, c_void};
use std::ptr::null_mut;

use super::legacy::{cancel, complete, poll, submit};
use super::types::{foredraft_log_callback, foredraft_update_callback};
use super::{callbacks, engine, requests};
use crate::api::Endpoint;

/// Releases a string that a function of this library returned. NULL is ignored. (`free` does the same, except on Windows.)
#[unsafe(no_mangle)]
pub extern "C" fn free_string(s: *const c_char) {
    engine::foredraft_string_free(s.cast_mut());
}

/// As `foredraft_version`.
#[unsafe(no_mangle)]
pub extern "C" fn version() -> *const c_char {
    engine::foredraft_version()
}

/// As `foredraft_set_log_callback`.
#[unsafe(no_mangle)]
pub extern "C" fn set_log_callback(cb: foredraft_log_callback, user: *mut c_void) {
    callbacks::set_log(cb, user);
}

/// As `foredraft_set_update_callback` of the default engine.
#[unsafe(no_mangle)]
pub extern "C" fn set_update_callback(cb: foredraft_update_callback, user: *mut c_void) {
    callbacks::set_update(null_mut(), cb, user);
}

/// As `foredraft_detokenize` of the default engine.
#[unsafe(no_mangle)]
pub extern "C" fn detokenize(req: *const c_char) -> *const c_char {
    requests::foredraft_detokenize(null_mut(), req)
}

/// As `foredraft_apply_template` of the default engine.
#[unsafe(no_mangle)]
pub extern "C" fn apply_template(req: *const c_char) -> *const c_char {
    requests::foredraft_apply_template(null_mut(), req)
}

/// As `foredraft_embed` of the default engine.
#[unsafe(no_mangle)]
pub extern "C" fn get_embedding(req: *const c_char) -> *const c_char {
    requests::foredraft_embed(null_mut(), req)
}

/// As `get_completion`, with speculation unless the request disables it.
#[unsafe(no_mangle)]
pub extern "C" fn speculative_completion(req: *const c_char) -> *const c_char {
    // SAFETY: see "Safety" in the module's documentation.
    unsafe { complete(Endpoint::Speculative, req) }
}

/// As `async_completion_init`, with speculation unless the request disables it.
#[unsafe(no_mangle)]
pub extern "C" fn speculative_completion_init(req: *const c_char) -> *const c_char {
    // SAFETY: see "Safety" in the module's documentation.
    unsafe { submit(Endpoint::Speculative, req) }
}

/// As `async_completion_poll`; without an id it is the newest request of `speculative_completion_init`.
#[unsafe(no_mangle)]
pub extern "C" fn speculative_completion_poll(cmd: *const c_char) -> *const c_char {
    // SAFETY: see "Safety" in the module's documentation.
    unsafe { poll(Endpoint::Speculative, cmd) }
}

/// As `async_completion_cancel`; without an id it ends the requests of `speculative_completion_init`.
#[unsafe(no_mangle)]
pub extern "C" fn speculative_completion_cancel(cmd: *const c_char) -> *const c_char {
    // SAFETY: see "Safety" in the module's documentation.
    unsafe { cancel(Endpoint::Speculative, cmd) }
}

/// As `foredraft_lookup_create` of the default engine.
#[unsafe(no_mangle)]
pub extern "C" fn lookup_create(req: *const c_char) -> *const c_char {
    requests::foredraft_lookup_create(null_mut(), req)
}

/// As `foredraft_lookup_merge` of the default engine.
#[unsafe(no_mangle)]
pub extern "C" fn lookup_merge(req: *const c_char) -> *const c_char {
    requests::foredraft_lookup_merge(null_mut(), req)
}

/// As `foredraft_lookup_stats` of the default engine.
#[unsafe(no_mangle)]
pub extern "C" fn lookup_stats(req: *const c_char) -> *const c_char {
    requests::foredraft_lookup_stats(null_mut(), req)
}

/// As `foredraft_lookup_cache` of the default engine.
#[unsafe(no_mangle)]
pub extern "C" fn lookup_cache(req: *const c_char) -> *const c_char {
    requests::foredraft_lookup_cache(null_mut(), req)
}

/// As `foredraft_session_save` of the default engine.
#[unsafe(no_mangle)]
pub extern "C" fn session_save(req: *const c_char) -> *const c_char {
    requests::foredraft_session_save(null_mut(), req)
}

/// As `foredraft_session_load` of the default engine.
#[unsafe(no_mangle)]
pub extern "C" fn session_load(req: *const c_char) -> *const c_char {
    requests::foredraft_session_load(null_mut(), req)
}
