//! Text and tokens: `tokenize`, `detokenize`, `apply_template`, `get_embedding`.
//!
//! Each takes a JSON object and returns one, which the caller owns and releases with `free_string` or `free`.

use std::ffi::c_char;

use super::SYSTEM;
use super::guard::{answer, required};

/// The tokens of a text. Request: `text` (or `content`; token ids may be mixed in), `add_special` (true),
/// `parse_special` (true), `with_pieces` (false: then `tokens` has ids and pieces).
/// Answer: `tokens` (pieces as strings), `length`, `ids`, `pieces`. The caller owns the returned string.
#[unsafe(no_mangle)]
pub extern "C" fn tokenize(req: *const c_char) -> *const c_char {
    // SAFETY: see the room's promise.
    answer(|| SYSTEM.with_server(|server| server.tokenize(unsafe { required(req) }?)))
}

/// The text of tokens. Request: `tokens` (ids), `special` (true). Answer: `content`. The caller owns the returned string.
#[unsafe(no_mangle)]
pub extern "C" fn detokenize(req: *const c_char) -> *const c_char {
    // SAFETY: see the room's promise.
    answer(|| SYSTEM.with_server(|server| server.detokenize(unsafe { required(req) }?)))
}

/// Renders messages with the model's chat template. Request: `messages`, `add_generation_prompt` (true),
/// `chat_template`, `tools`, `chat_template_kwargs`. Answer: `prompt`. The caller owns the returned string.
#[unsafe(no_mangle)]
pub extern "C" fn apply_template(req: *const c_char) -> *const c_char {
    // SAFETY: see the room's promise.
    answer(|| SYSTEM.with_server(|server| server.apply_template(unsafe { required(req) }?)))
}

/// The embedding of a text; `init` must have been called with `"embedding": true`. Request: `content` (or `prompt`),
/// `embd_normalize` (2: Euclidean). Answer: `embedding`. Waits for the engine. The caller owns the returned string.
#[unsafe(no_mangle)]
pub extern "C" fn get_embedding(req: *const c_char) -> *const c_char {
    // SAFETY: see the room's promise.
    answer(|| SYSTEM.with_server(|server| server.get_embedding(unsafe { required(req) }?)))
}
