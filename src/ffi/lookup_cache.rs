//! The engine's n-gram caches.

use std::ffi::c_char;

use super::SYSTEM;
use super::guard::{answer, required};

/// Works on an n-gram cache of the engine while it serves. Request: `action` (`load`, `save`, `merge`, `clear`, `stats`), `cache`
/// (`static`, `dynamic`), `filename` (for the first three). Answer: how much the cache knows then. Clearing the dynamic cache
/// makes the drafter `suffix` forget earlier answers as well. The caller owns the returned string.
#[unsafe(no_mangle)]
pub extern "C" fn lookup_cache(req: *const c_char) -> *const c_char {
    // SAFETY: see the room's promise.
    answer(|| SYSTEM.with_server(|server| server.lookup_cache(unsafe { required(req) }?)))
}
