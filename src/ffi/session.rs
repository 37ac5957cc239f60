//! Sessions: the KV state of a slot with its tokens, target's and draft's, in a file.
//!
//! Each takes a JSON object and returns one, which the caller owns and releases with `free_string` or `free`. Both wait
//! for the request that runs in the slot. A completion has fields of the same names, with paths: `session_load` is put
//! into its slot before it begins, `session_save` written after it has ended.

use std::ffi::c_char;

use super::SYSTEM;
use super::guard::{answer, required};

/// Saves what a slot holds. Request: `id_slot` (0), `filename`. Answer: `n_saved`, `n_saved_draft` (tokens), `n_written`
/// (bytes). The file is replaced whole, or not at all. The caller owns the returned string.
#[unsafe(no_mangle)]
pub extern "C" fn session_save(req: *const c_char) -> *const c_char {
    // SAFETY: see the room's promise.
    answer(|| SYSTEM.with_server(|server| server.session_save(unsafe { required(req) }?)))
}

/// Puts a saved session into a slot, in place of what it holds, so that the next request there evaluates only what is
/// new. Request: `id_slot` (0), `filename`. Answer: `n_restored`, `n_restored_draft` (tokens), `seed`, `seed_position`. A
/// file that is damaged, of another version or of another model is an error, and the slot stays as it was. The caller
/// owns the returned string.
#[unsafe(no_mangle)]
pub extern "C" fn session_load(req: *const c_char) -> *const c_char {
    // SAFETY: see the room's promise.
    answer(|| SYSTEM.with_server(|server| server.session_load(unsafe { required(req) }?)))
}
