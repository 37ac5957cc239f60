//! N-gram caches of texts and files: `lookup_create`, `lookup_merge`, `lookup_stats`.
//!
//! Each takes a JSON object and returns one, which the caller owns and releases with `free_string` or `free`.

use std::ffi::c_char;

use super::SYSTEM;
use super::guard::{answer, required};

/// Makes an n-gram cache of a text, in llama.cpp's format. Request: `text`, `file` (a path) or `tokens` (ids); `output` (a
/// path); `ngram_min`, `ngram_max` (2, 2; 1 to 4). Answer: `n_tokens`, `n_ngrams`, `ngrams_by_size`, `n_continuations`,
/// `n_observations`, `size` (bytes of the file), `memory` (bytes that it takes when loaded), `t_ms`.
///
/// `text` and `file` need a loaded model, to tokenize; `tokens` need none. Works on the calling thread and holds no other
/// call up; `poll_system_status` tells in `lookups` how far it is, and a `deinit` or `init` stops it (`cancelled`). The file
/// is replaced whole or stays as it was. The caller owns the returned string.
#[unsafe(no_mangle)]
pub extern "C" fn lookup_create(req: *const c_char) -> *const c_char {
    // SAFETY: see the room's promise.
    answer(|| SYSTEM.lookup_create(unsafe { required(req) }?))
}

/// Adds n-gram caches up. Request: `inputs` (paths), `output` (a path, also of an input). Answer: as `lookup_create`, with
/// `n_inputs`. Needs no model. The caller owns the returned string.
#[unsafe(no_mangle)]
pub extern "C" fn lookup_merge(req: *const c_char) -> *const c_char {
    // SAFETY: see the room's promise.
    answer(|| SYSTEM.lookup_merge(unsafe { required(req) }?))
}

/// How well a text is drafted from n-gram caches, as llama.cpp's `llama-lookup-stats` finds out. Request: `text`, `file` or
/// `tokens`; `n_draft` (3), `n_ctx` (the model's, or 4096), `lookup_cache_static`, `lookup_cache_dynamic` (paths), `plot` (a path: an
/// SVG of the acceptance by n-gram size and position is written there). Answer: `n_predict`, `n_drafted`, `n_accept`,
/// `accept_rate`, `t_draft_flat_ms`, `t_draft_ms`, `us_per_token`, `tokens_per_second`; `by_level`; `by_size` (of n-grams of 1 to
/// 4) and `by_static`, each by position in the draft.
///
/// Models, threads and files as with `lookup_create`. The caller owns the returned string.
#[unsafe(no_mangle)]
pub extern "C" fn lookup_stats(req: *const c_char) -> *const c_char {
    // SAFETY: see the room's promise.
    answer(|| SYSTEM.lookup_stats(unsafe { required(req) }?))
}
