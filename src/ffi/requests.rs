//! The functions that take and return JSON. Each is a [`Function`] of the engine.

use std::ffi::c_char;

use super::engines;
use super::guard::{answer, bytes, required};
use super::types::foredraft_engine;
use crate::api::{Function, RequestArguments};
#[cfg(unix)]
use crate::thread_state::without_signal;

/// Calls a function of an engine.
///
/// # Safety
/// `request` is NULL or NUL-terminated, and readable during the call.
pub(super) unsafe fn call(engine: *mut foredraft_engine, request: *const c_char, function: Function) -> *mut c_char {
    // SAFETY: guaranteed by the caller.
    let call = || answer(|| engines::find(engine)?.call(function, unsafe { required(request) }));
    // A write beyond the limit on file sizes is an error. The library's own threads block the signal.
    #[cfg(unix)]
    if function.writes_files() {
        return without_signal(libc::SIGXFSZ, call);
    }
    call()
}

/// Generates a completion and returns the final response; with `prompts` or `n_cmpl`, `results` has one for each completion.
/// Speculates unless the request disables it; with `verify` `coupled` (the default) or `match`, the completion is the same with and
/// without speculation. Returns when the request has finished. The caller owns the returned string, as with all functions below.
#[unsafe(no_mangle)]
pub extern "C" fn foredraft_complete(engine: *mut foredraft_engine, request: *const c_char) -> *mut c_char {
    // SAFETY: see "Safety" in the module's documentation.
    answer(|| engines::find(engine)?.complete(unsafe { required(request) }, RequestArguments::default()))
}

/// Decides questions about a state: `{"state": ..., "questions": {"route": {"type": "choice", "instructions": "Which team?", "criteria":
/// {"billing": null, "shipping": null}}}}`. `state` is any JSON; `messages` and `prompt` can stand for it. The types: `choice`, `score`
/// (`criteria`: 2 to 10 levels), `noul` (the probability that a statement holds). The answer has `answers` by id, and `usage`. The state is
/// decoded once, and each question, of at most 800, has the bits that it has alone. Nothing is generated. `foredraft_submit` with
/// `questions` does the same without waiting.
#[unsafe(no_mangle)]
pub extern "C" fn foredraft_decide(engine: *mut foredraft_engine, request: *const c_char) -> *mut c_char {
    // SAFETY: see "Safety" in the module's documentation.
    unsafe { call(engine, request, Function::Decide) }
}

/// Queues a request and returns its `id` and `prompt_stats`. A long prompt (over 4 KiB) is tokenized after the call has returned.
/// `prompt_stats` is then `pending`, and the request ends with an error if the prompt is invalid.
#[unsafe(no_mangle)]
pub extern "C" fn foredraft_submit(engine: *mut foredraft_engine, request: *const c_char) -> *mut c_char {
    // SAFETY: see "Safety" in the module's documentation.
    answer(|| engines::find(engine)?.submit(unsafe { required(request) }, RequestArguments::default(), &|_| ()))
}

/// Prepares a request that may come, and returns at once with an `id`: its `conversation`, or the slot `id_slot`, is brought to the
/// request's prompt while no request runs. With `"begin": true` the answer is begun, up to `n_predict` tokens. The next prepare or submit
/// of the same conversation takes over the part that fits and drops the rest. A begun answer is taken over where prompt, settings and seed
/// are the same, so the answer has the tokens that it has without it.
#[unsafe(no_mangle)]
pub extern "C" fn foredraft_prepare(engine: *mut foredraft_engine, request: *const c_char) -> *mut c_char {
    // SAFETY: see "Safety" in the module's documentation.
    unsafe { call(engine, request, Function::Prepare) }
}

/// Returns the updates of a request since the last poll: `{"id": 7, "timeout_ms": 0}`. `finished` is true when the last update has
/// been returned. Waits for an update for at most `timeout_ms`; 0 never waits. `{"ids": [7, 8]}` polls several requests and waits
/// for the first update of any; `results` has an answer for each, or an error object if there is no such request.
#[unsafe(no_mangle)]
pub extern "C" fn foredraft_poll(engine: *mut foredraft_engine, command: *const c_char) -> *mut c_char {
    // SAFETY: see "Safety" in the module's documentation.
    answer(|| engines::find(engine)?.poll(unsafe { bytes(command) }))
}

/// Ends a request, `{"id": 7}`, several, `{"ids": [7, 8]}`, or all of the engine that wait or run, whichever function began them,
/// `{"all": true}`, within one decode. The last update of each has the `stop_type` `cancelled`.
#[unsafe(no_mangle)]
pub extern "C" fn foredraft_cancel(engine: *mut foredraft_engine, command: *const c_char) -> *mut c_char {
    // SAFETY: see "Safety" in the module's documentation.
    answer(|| engines::find(engine)?.cancel(unsafe { bytes(command) }))
}

/// The tokens of a text. Request: `text` (or `content`; an array can mix strings and token ids), `add_special` (true), `parse_special`
/// (true), `with_pieces` (false; true: `tokens` has ids and pieces). Answer: `tokens` (pieces as strings), `length`, `ids`,
/// `pieces`.
#[unsafe(no_mangle)]
pub extern "C" fn foredraft_tokenize(engine: *mut foredraft_engine, request: *const c_char) -> *mut c_char {
    // SAFETY: see "Safety" in the module's documentation.
    unsafe { call(engine, request, Function::Tokenize) }
}

/// The text of tokens. Request: `tokens` (ids), `special` (true). Answer: `content`; `bytes`, an array of numbers, where the tokens are
/// not whole characters.
#[unsafe(no_mangle)]
pub extern "C" fn foredraft_detokenize(engine: *mut foredraft_engine, request: *const c_char) -> *mut c_char {
    // SAFETY: see "Safety" in the module's documentation.
    unsafe { call(engine, request, Function::Detokenize) }
}

/// Describes the model's file: `n_vocab`, `n_embd`, `n_layer`, `n_ctx_train`, the ids of special tokens (`bos`, `eos`, `eot`, `newline`,
/// and `eog`, all that end a completion), `chat_template`, and `metadata`, an object of texts. `{"model": "draft"}` asks for the draft
/// model's.
#[unsafe(no_mangle)]
pub extern "C" fn foredraft_model_info(engine: *mut foredraft_engine, request: *const c_char) -> *mut c_char {
    // SAFETY: see "Safety" in the module's documentation.
    unsafe { call(engine, request, Function::ModelInfo) }
}

/// Renders messages with the model's chat template. Request: `messages`, `add_generation_prompt` (true), `chat_template`,
/// `tools`, `chat_template_kwargs`. Answer: `prompt`.
#[unsafe(no_mangle)]
pub extern "C" fn foredraft_apply_template(engine: *mut foredraft_engine, request: *const c_char) -> *mut c_char {
    // SAFETY: see "Safety" in the module's documentation.
    unsafe { call(engine, request, Function::ApplyTemplate) }
}

/// The embedding of a text. Requires an engine that was loaded with `"embedding": true`. Request: `content` (or `prompt`),
/// `embd_normalize` (2: Euclidean), `truncate` (false). Answer: `embedding`, `tokens_evaluated`. Several texts: `input`, an array; answer:
/// `data` (`index`, `embedding`), `usage`. They are decoded together, and have the embeddings that each has alone. Waits for the engine.
#[unsafe(no_mangle)]
pub extern "C" fn foredraft_embed(engine: *mut foredraft_engine, request: *const c_char) -> *mut c_char {
    // SAFETY: see "Safety" in the module's documentation.
    unsafe { call(engine, request, Function::Embed) }
}

/// How well documents answer a query. Requires a model with a classifier, loaded with `"reranking": true`. Request: `query`,
/// `documents` (an array of strings), `top_n` (all), `truncate` (false). Answer: `results` (`index`, `relevance_score`), the best
/// first; `usage`. Waits for the engine.
#[unsafe(no_mangle)]
pub extern "C" fn foredraft_rerank(engine: *mut foredraft_engine, request: *const c_char) -> *mut c_char {
    // SAFETY: see "Safety" in the module's documentation.
    unsafe { call(engine, request, Function::Rerank) }
}

/// Saves a slot's cache to a file. Request: `id_slot` (0), `filename`, `timeout_ms` (how long to wait for the slot; 0: no limit). Answer:
/// `n_saved`, `n_saved_draft` (tokens), `n_written` (bytes). The file is replaced completely or left unchanged.
#[unsafe(no_mangle)]
pub extern "C" fn foredraft_session_save(engine: *mut foredraft_engine, request: *const c_char) -> *mut c_char {
    // SAFETY: see "Safety" in the module's documentation.
    unsafe { call(engine, request, Function::SessionSave) }
}

/// Restores a slot's cache from a file, so that the next request in this slot decodes only new tokens. Request: `id_slot` (0),
/// `filename`, `timeout_ms` (as `foredraft_session_save`). Answer: `n_restored`, `n_restored_draft` (tokens), `seed`, `seed_position`. A file that is damaged, of another version
/// or of another model is an error, and the slot is left unchanged.
#[unsafe(no_mangle)]
pub extern "C" fn foredraft_session_load(engine: *mut foredraft_engine, request: *const c_char) -> *mut c_char {
    // SAFETY: see "Safety" in the module's documentation.
    unsafe { call(engine, request, Function::SessionLoad) }
}

/// Empties a slot's cache, of the target and of the draft model, so that the next request in it begins anew. Request: `id_slot` (0),
/// `timeout_ms` (as `foredraft_session_save`). Answer: `n_erased`, `n_erased_draft` (tokens; 0: the slot was empty). Files are left
/// unchanged.
#[unsafe(no_mangle)]
pub extern "C" fn foredraft_session_erase(engine: *mut foredraft_engine, request: *const c_char) -> *mut c_char {
    // SAFETY: see "Safety" in the module's documentation.
    unsafe { call(engine, request, Function::SessionErase) }
}

/// Does something with the conversations that requests have by name. Request: `action`, and the name in `conversation`. `list`: all, in
/// `conversations`, or that one. `drop`: forgets its state. `fork`: gives the conversation `to` a copy of the state. `pin`, `unpin`: its
/// state makes no room for others, or may again. `rewind`: cuts the state back to the end of a `turn` or to so many tokens (`token`).
/// `save`, `load`: to and from a file, `filename`. Answer: `place` (`slot`, `memory`, `disk`, `preempted`), `id_slot`, `n_tokens`, `n_turns`, `bytes`, `pinned`, `running`. Waits for one step of
/// the engine at most, and for no request.
#[unsafe(no_mangle)]
pub extern "C" fn foredraft_conversation(engine: *mut foredraft_engine, request: *const c_char) -> *mut c_char {
    // SAFETY: see "Safety" in the module's documentation.
    unsafe { call(engine, request, Function::Conversation) }
}

/// Loads, saves, merges, clears, updates or inspects an n-gram cache of a running engine. Request: `action` (`load`, `save`, `merge`,
/// `clear`, `stats`, `update`), `cache` (`static`, `dynamic`), `filename` (for the first three), `tokens` and `n_new` (for `update`).
/// Answer: the size of the cache afterwards. Clearing the dynamic cache also clears the previous completions that the drafter `suffix`
/// uses. `action` `draft`: the tokens that its caches draft after `tokens`, at most `n_draft`, in `draft`.
#[unsafe(no_mangle)]
pub extern "C" fn foredraft_lookup_cache(engine: *mut foredraft_engine, request: *const c_char) -> *mut c_char {
    // SAFETY: see "Safety" in the module's documentation.
    unsafe { call(engine, request, Function::LookupCache) }
}

/// Creates an n-gram cache file from a text, in llama.cpp's format. Request: `text`, `file` (a path) or `tokens` (ids); `output` (a
/// path); `ngram_min`, `ngram_max` (2, 2; 1 to 4). Answer: `n_tokens`, `n_ngrams`, `ngrams_by_size`, `n_continuations`,
/// `n_observations`, `size` (bytes of the file), `memory` (bytes when loaded), `t_ms`.
///
/// `text` and `file` require a loaded model for tokenization, `tokens` does not. Runs on the calling thread and blocks no other
/// call. The status has the progress in `lookups`, and a load or unload of the engine cancels it (`cancelled`). The file is
/// replaced completely or left unchanged.
#[unsafe(no_mangle)]
pub extern "C" fn foredraft_lookup_create(engine: *mut foredraft_engine, request: *const c_char) -> *mut c_char {
    // SAFETY: see "Safety" in the module's documentation.
    unsafe { call(engine, request, Function::LookupCreate) }
}

/// Adds up n-gram cache files. Request: `inputs` (paths), `output` (a path, possibly one of the inputs). Answer: as for
/// `lookup_create`, with `n_inputs`. Requires no model.
#[unsafe(no_mangle)]
pub extern "C" fn foredraft_lookup_merge(engine: *mut foredraft_engine, request: *const c_char) -> *mut c_char {
    // SAFETY: see "Safety" in the module's documentation.
    unsafe { call(engine, request, Function::LookupMerge) }
}

/// Measures how well n-gram caches draft a text, as llama.cpp's `llama-lookup-stats` does. Request: `text`, `file` or
/// `tokens`; `n_draft` (3), `n_ctx` (the model's, or 4096), `lookup_cache_static`, `lookup_cache_dynamic` (paths). Answer:
/// `n_predict`, `n_drafted`, `n_accept`, `accept_rate`, `t_draft_flat_ms`, `t_draft_ms`, `us_per_token`, `tokens_per_second`;
/// `by_level`; `by_size` (of n-grams of 1 to 4) and `by_static`, each by position in the draft. Models, threads and files: as for
/// `lookup_create`.
#[unsafe(no_mangle)]
pub extern "C" fn foredraft_lookup_stats(engine: *mut foredraft_engine, request: *const c_char) -> *mut c_char {
    // SAFETY: see "Safety" in the module's documentation.
    unsafe { call(engine, request, Function::LookupStats) }
}
