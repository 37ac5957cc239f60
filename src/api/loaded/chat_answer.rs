//! The fields that the answer to a request with messages has beside those of every completion: OpenAI's and llama-server's names.

use serde_json::{Map, Value, json};

use foredraft_chat::ChatMessage;

use crate::api::loaded::registry::RequestRecord;
use crate::api::prompts::chat_format::message::message_json;
use crate::api::wire::answer::with_fields;
use crate::api::wire::request::ChatOptions;
use crate::engine::Generated;
use crate::llama::{Token, TokenPieces};
use crate::sampling::TokenProbs;

/// Takes text of an update into the message of a completion.
pub fn push_text(record: &RequestRecord, index: usize, text: &str) {
    if let Some(message) = record.messages.get(index) {
        message.lock().push(text);
    }
}

/// Sets `delta` in the updates of a poll: the last one of each completion that still runs has the new parts of its message.
pub fn add_deltas(record: &RequestRecord, updates: &mut [Value]) {
    if record.messages.is_empty() {
        return;
    }
    let mut done: Vec<u64> = Vec::new();
    for update in updates.iter_mut().rev() {
        let Value::Object(update) = update else { continue };
        let index = update.get("index").and_then(Value::as_u64).unwrap_or(0);
        let is_open = update.get("stop") == Some(&Value::Bool(false)) && !update.contains_key("delta");
        if !done.contains(&index) {
            done.push(index);
            let message = usize::try_from(index).ok().and_then(|index| record.messages.get(index));
            if let Some(message) = message.filter(|_| is_open) {
                update.insert("delta".into(), message.lock().delta());
            }
        } else if is_open {
            update.insert("delta".into(), json!({}));
        }
    }
}

/// Ends the message of a completion with its last text. Returns the remaining parts, and the message.
pub fn finish_message(record: &RequestRecord, index: usize, text: &str) -> Option<(Value, ChatMessage)> {
    let mut message = record.messages.get(index)?.lock();
    message.push(text);
    Some(message.finish())
}

/// Warnings about calls in the message of a completion.
pub fn message_warnings(record: &RequestRecord, index: usize) -> Vec<String> {
    let message = record.messages.get(index);
    message.map_or_else(Vec::new, |message| message.lock().warnings().to_vec())
}

/// Sets `message` and `reasoning_format` in the final response of a completion.
pub fn add_message(answer: &mut Map<String, Value>, chat: &ChatOptions, message: &ChatMessage) {
    answer.insert("message".into(), message_json(message, chat.with_function_call));
    answer.insert("reasoning_format".into(), chat.reasoning_format.as_str().into());
}

/// Sets `logprobs` in OpenAI's form, if requested.
pub fn add_logprobs<'a>(
    answer: &mut Map<String, Value>,
    record: &RequestRecord,
    tokens: impl Iterator<Item = &'a Generated>,
) {
    let Some(n_top) = record.request.chat.as_ref().and_then(|chat| chat.logprobs) else { return };
    let content: Vec<Value> = tokens
        .filter_map(|token| token.probs.as_ref())
        .map(|probs| token_logprobs(probs, n_top, &record.model.pieces))
        .collect();
    answer.insert("logprobs".into(), json!({"content": content}));
}

fn token_logprobs(probs: &TokenProbs, n_top: usize, pieces: &TokenPieces) -> Value {
    let describe = |token: Token, logprob: f32| {
        let piece = pieces.piece(token);
        // JSON has no infinity; llama-server writes the smallest float.
        json!({"token": String::from_utf8_lossy(piece), "logprob": logprob.max(f32::MIN), "bytes": piece})
    };
    let top: Vec<Value> = probs.top.iter().take(n_top).map(|(token, logprob)| describe(*token, *logprob)).collect();
    with_fields(describe(probs.token, probs.logprob), [("top_logprobs", top.into())])
}
