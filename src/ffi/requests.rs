//! What an engine answers: JSON in, JSON out. Each is a method of [`Server`] or [`System`] on the engine of the handle.

use std::ffi::c_char;

use serde_json::Value;

use super::engines;
use super::guard::{answer, bytes, required};
use super::types::foredraft_engine;
use crate::api::{Endpoint, Server, System};
use crate::error::Result;

/// The answer of a loaded engine.
///
/// # Safety
/// `request` is NULL or NUL-terminated, and readable during the call.
unsafe fn served(
    engine: *mut foredraft_engine,
    request: *const c_char,
    call: impl FnOnce(&Server, &[u8]) -> Result<Value>,
) -> *mut c_char {
    // SAFETY: the caller's promise.
    answer(|| engines::find(engine)?.with_server(|server| call(server, unsafe { required(request) }?)))
}

/// The answer of an engine that needs no model for it.
///
/// # Safety
/// `request` is NULL or NUL-terminated, and readable during the call.
unsafe fn offered(
    engine: *mut foredraft_engine,
    request: *const c_char,
    call: impl FnOnce(&System, &[u8]) -> Result<Value>,
) -> *mut c_char {
    // SAFETY: the caller's promise.
    answer(|| call(&engines::find(engine)?, unsafe { required(request) }?))
}

/// Generates, and returns the final response; with `prompts` or `n_cmpl` the `results`, one for each text. Speculates unless
/// the request turns it off: with the default `verify`, and with `match`, the text is the same. Waits until the request has
/// finished. The caller owns the returned string, as with all functions below.
#[unsafe(no_mangle)]
pub extern "C" fn foredraft_complete(engine: *mut foredraft_engine, request: *const c_char) -> *mut c_char {
    // SAFETY: see the module's promise.
    unsafe { served(engine, request, |server, bytes| server.complete(Endpoint::Foredraft, bytes)) }
}

/// Queues a request and returns its `id` and `prompt_stats`. A long prompt (over 4 KiB) is tokenized after the call has
/// returned; `prompt_stats` is `pending` then, and what is wrong with the prompt ends the request.
#[unsafe(no_mangle)]
pub extern "C" fn foredraft_submit(engine: *mut foredraft_engine, request: *const c_char) -> *mut c_char {
    // SAFETY: see the module's promise.
    unsafe { served(engine, request, |server, bytes| server.submit(Endpoint::Foredraft, bytes)) }
}

/// Takes the updates of a request since the last poll: `{"id": 7, "timeout_ms": 0}`. `finished` is true once the last one
/// was handed out. Waits for an update up to `timeout_ms`; 0 never waits. `{"ids": [7, 8]}` polls several at once and waits for
/// the first update of any: `results` has the answer for each, an error object where there is no such request.
#[unsafe(no_mangle)]
pub extern "C" fn foredraft_poll(engine: *mut foredraft_engine, command: *const c_char) -> *mut c_char {
    // SAFETY: see the module's promise.
    answer(|| engines::find(engine)?.poll(Endpoint::Foredraft, unsafe { bytes(command) }))
}

/// Ends a request, `{"id": 7}`, or several, `{"ids": [7, 8]}`, within one decode; the last update of each says so.
#[unsafe(no_mangle)]
pub extern "C" fn foredraft_cancel(engine: *mut foredraft_engine, command: *const c_char) -> *mut c_char {
    // SAFETY: see the module's promise.
    answer(|| engines::find(engine)?.cancel(Endpoint::Foredraft, unsafe { bytes(command) }))
}

/// The tokens of a text. Request: `text` (or `content`; token ids may be mixed in), `add_special` (true), `parse_special`
/// (true), `with_pieces` (false: then `tokens` has ids and pieces). Answer: `tokens` (pieces as strings), `length`, `ids`,
/// `pieces`.
#[unsafe(no_mangle)]
pub extern "C" fn foredraft_tokenize(engine: *mut foredraft_engine, request: *const c_char) -> *mut c_char {
    // SAFETY: see the module's promise.
    unsafe { served(engine, request, Server::tokenize) }
}

/// The text of tokens. Request: `tokens` (ids), `special` (true). Answer: `content`.
#[unsafe(no_mangle)]
pub extern "C" fn foredraft_detokenize(engine: *mut foredraft_engine, request: *const c_char) -> *mut c_char {
    // SAFETY: see the module's promise.
    unsafe { served(engine, request, Server::detokenize) }
}

/// Renders messages with the model's chat template. Request: `messages`, `add_generation_prompt` (true), `chat_template`,
/// `tools`, `chat_template_kwargs`. Answer: `prompt`.
#[unsafe(no_mangle)]
pub extern "C" fn foredraft_apply_template(engine: *mut foredraft_engine, request: *const c_char) -> *mut c_char {
    // SAFETY: see the module's promise.
    unsafe { served(engine, request, Server::apply_template) }
}

/// The embedding of a text; the engine must have been loaded with `"embedding": true`. Request: `content` (or `prompt`),
/// `embd_normalize` (2: Euclidean). Answer: `embedding`. Waits for the engine.
#[unsafe(no_mangle)]
pub extern "C" fn foredraft_embed(engine: *mut foredraft_engine, request: *const c_char) -> *mut c_char {
    // SAFETY: see the module's promise.
    unsafe { served(engine, request, Server::get_embedding) }
}

/// Saves what a slot holds. Request: `id_slot` (0), `filename`. Answer: `n_saved`, `n_saved_draft` (tokens), `n_written`
/// (bytes). The file is replaced whole, or not at all.
#[unsafe(no_mangle)]
pub extern "C" fn foredraft_session_save(engine: *mut foredraft_engine, request: *const c_char) -> *mut c_char {
    // SAFETY: see the module's promise.
    unsafe { served(engine, request, Server::session_save) }
}

/// Puts a saved session into a slot, in place of what it holds, so that the next request there evaluates only what is new.
/// Request: `id_slot` (0), `filename`. Answer: `n_restored`, `n_restored_draft` (tokens), `seed`, `seed_position`. A file that is
/// damaged, of another version or of another model is an error, and the slot stays as it was.
#[unsafe(no_mangle)]
pub extern "C" fn foredraft_session_load(engine: *mut foredraft_engine, request: *const c_char) -> *mut c_char {
    // SAFETY: see the module's promise.
    unsafe { served(engine, request, Server::session_load) }
}

/// Works on an n-gram cache of the engine while it serves. Request: `action` (`load`, `save`, `merge`, `clear`, `stats`),
/// `cache` (`static`, `dynamic`), `filename` (for the first three). Answer: how much the cache knows then. Clearing the dynamic
/// cache makes the drafter `suffix` forget earlier answers as well.
#[unsafe(no_mangle)]
pub extern "C" fn foredraft_lookup_cache(engine: *mut foredraft_engine, request: *const c_char) -> *mut c_char {
    // SAFETY: see the module's promise.
    unsafe { served(engine, request, Server::lookup_cache) }
}

/// Makes an n-gram cache of a text, in llama.cpp's format. Request: `text`, `file` (a path) or `tokens` (ids); `output` (a
/// path); `ngram_min`, `ngram_max` (2, 2; 1 to 4). Answer: `n_tokens`, `n_ngrams`, `ngrams_by_size`, `n_continuations`,
/// `n_observations`, `size` (bytes of the file), `memory` (bytes that it takes when loaded), `t_ms`.
///
/// `text` and `file` need a loaded model, to tokenize; `tokens` need none. Works on the calling thread and holds no other
/// call up; the status tells in `lookups` how far it is, and a load or unload of the engine stops it (`cancelled`). The file is
/// replaced whole or stays as it was.
#[unsafe(no_mangle)]
pub extern "C" fn foredraft_lookup_create(engine: *mut foredraft_engine, request: *const c_char) -> *mut c_char {
    // SAFETY: see the module's promise.
    unsafe { offered(engine, request, System::lookup_create) }
}

/// Adds n-gram caches up. Request: `inputs` (paths), `output` (a path, also of an input). Answer: as for `lookup_create`,
/// with `n_inputs`. Needs no model.
#[unsafe(no_mangle)]
pub extern "C" fn foredraft_lookup_merge(engine: *mut foredraft_engine, request: *const c_char) -> *mut c_char {
    // SAFETY: see the module's promise.
    unsafe { offered(engine, request, System::lookup_merge) }
}

/// How well a text is drafted from n-gram caches, as llama.cpp's `llama-lookup-stats` finds out. Request: `text`, `file` or
/// `tokens`; `n_draft` (3), `n_ctx` (the model's, or 4096), `lookup_cache_static`, `lookup_cache_dynamic` (paths), `plot` (a path:
/// an SVG of the acceptance by n-gram size and position is written there). Answer: `n_predict`, `n_drafted`, `n_accept`,
/// `accept_rate`, `t_draft_flat_ms`, `t_draft_ms`, `us_per_token`, `tokens_per_second`; `by_level`; `by_size` (of n-grams of 1 to
/// 4) and `by_static`, each by position in the draft. Models, threads and files as with `lookup_create`.
#[unsafe(no_mangle)]
pub extern "C" fn foredraft_lookup_stats(engine: *mut foredraft_engine, request: *const c_char) -> *mut c_char {
    // SAFETY: see the module's promise.
    unsafe { offered(engine, request, System::lookup_stats) }
}
