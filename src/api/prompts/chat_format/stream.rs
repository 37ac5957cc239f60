//! Messages while they are generated, as the parts of OpenAI's interface.

use std::sync::Arc;

use foredraft_chat::{ChatMessage, MessageDelta, MessageParser, MessageReader, ToolCall};
use serde_json::{Map, Value, json};

use super::message::call_json;
use super::received::ReceivedMessage;
use crate::api::wire::answer::with_fields;

/// The characters of generated ids, as the strictest templates (Mistral's) demand them.
const ID_CHARS: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
/// The length of generated ids, as above.
const ID_LEN: u32 = 9;

/// The message of one completion, as far as it is known. It depends on the text alone, not on how the text arrived, and nothing that a
/// delta had is taken back.
#[derive(Debug)]
pub struct MessageStream {
    source: MessageSource,
    has_begun: bool,
    /// Calls are also given in OpenAI's older form.
    with_function_call: bool,
    /// Determines the ids of calls.
    seed: u64,
}

/// Where the parts of a message come from.
#[derive(Debug)]
enum MessageSource {
    /// From the completion's text.
    Parsed(Box<MessageParser>),
    /// From the process of an isolated engine, which reads the text.
    Received(ReceivedMessage),
}

impl MessageStream {
    /// An empty message. `reader`: of the completion's text; `None`: another process reads it. `seed` determines the ids of calls to which
    /// the model gives none.
    pub(in crate::api) fn new(
        reader: Option<&Arc<MessageReader>>,
        with_function_call: bool,
        seed: u64,
    ) -> MessageStream {
        let source = match reader {
            Some(reader) => MessageSource::Parsed(Box::new(MessageParser::new(Arc::clone(reader)))),
            None => MessageSource::Received(ReceivedMessage::default()),
        };
        MessageStream { source, has_begun: false, with_function_call, seed }
    }

    /// Appends generated text.
    pub(in crate::api) fn push(&mut self, text: &str) {
        if let MessageSource::Parsed(parser) = &mut self.source {
            parser.push(text);
        }
    }

    /// Appends parts that another process has read, with its warnings so far. Returns false if they do not continue the message.
    pub(in crate::api) fn receive(&mut self, parts: MessageDelta, warnings: Vec<String>) -> bool {
        let MessageSource::Received(message) = &mut self.source else { return false };
        message.warnings = warnings;
        message.append(parts)
    }

    /// Another process sends all parts again.
    pub(in crate::api) fn repeat(&mut self) {
        if let MessageSource::Received(message) = &mut self.source {
            message.repeat();
        }
    }

    /// Ends the completion's text.
    pub(in crate::api) fn end(&mut self) {
        if let MessageSource::Parsed(parser) = &mut self.source {
            parser.finish();
        }
    }

    /// The new parts of the message.
    pub(in crate::api) fn parts(&mut self) -> MessageDelta {
        match &mut self.source {
            MessageSource::Parsed(parser) => parser.delta(),
            MessageSource::Received(message) => message.delta(),
        }
    }

    /// The new parts of the message, as JSON.
    pub(in crate::api) fn delta(&mut self) -> Value {
        let new = self.parts();
        let mut delta = Map::new();
        for (key, text) in [("reasoning_content", new.reasoning), ("content", new.content)] {
            if !text.is_empty() {
                delta.insert(key.to_owned(), text.into());
            }
        }
        let mut calls = Vec::with_capacity(new.calls.len());
        for call in new.calls {
            calls.push(match call.begun {
                None => json!({"index": call.index, "function": {"arguments": call.arguments}}),
                Some((name, id)) => {
                    let id = self.id_of(id, call.index);
                    let call_json = call_json(&ToolCall { name, arguments: call.arguments, id });
                    with_fields(call_json, [("index", call.index.into())])
                }
            });
        }
        if self.with_function_call
            && let Some(first) = calls.iter().find(|call| call.get("index") == Some(&json!(0)))
        {
            delta.insert("function_call".to_owned(), first.get("function").cloned().unwrap_or_default());
        }
        if !calls.is_empty() {
            delta.insert("tool_calls".to_owned(), calls.into());
        }
        if !delta.is_empty() && !std::mem::replace(&mut self.has_begun, true) {
            delta.insert("role".to_owned(), "assistant".into());
        }
        Value::Object(delta)
    }

    /// The remaining parts of the message, and the whole message, when nothing more is generated.
    pub(in crate::api) fn finish(&mut self) -> (Value, ChatMessage) {
        self.end();
        let delta = self.delta();
        let mut message = match &self.source {
            MessageSource::Parsed(parser) => parser.message(),
            MessageSource::Received(message) => message.message(),
        };
        for (index, call) in message.calls.iter_mut().enumerate() {
            call.id = self.id_of(std::mem::take(&mut call.id), index);
        }
        (delta, message)
    }

    /// Calls that are not valid, each with the reason.
    pub(in crate::api) fn warnings(&self) -> &[String] {
        match &self.source {
            MessageSource::Parsed(parser) => parser.warnings(),
            MessageSource::Received(message) => &message.warnings,
        }
    }

    /// The id that the model gives, or one that is made.
    fn id_of(&self, given: String, index: usize) -> String {
        if given.is_empty() { generated_id(self.seed, index) } else { given }
    }
}

/// The id of a call to which the model gives none.
fn generated_id(seed: u64, index: usize) -> String {
    // The constants of SplitMix64.
    let mut bits = seed.wrapping_add((index as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^= bits >> 31;
    let digit = |place: u32| (bits / 36_u64.pow(place) % 36) as usize;
    (0..ID_LEN).filter_map(|place| ID_CHARS.get(digit(place))).map(|byte| char::from(*byte)).collect()
}

#[cfg(test)]
pub(super) mod tests;
