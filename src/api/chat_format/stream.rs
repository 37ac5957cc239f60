//! Messages while they are generated.
//!
//! llama.cpp's parser reads the whole text at each call. Of a text that has the format, each further character only adds to the message
//! (`deltas_add_up_to_the_message_at_every_cut`). Of a text that does not have it, the message would lose parts again. From the first
//! character on that breaks the format, this module therefore takes no part back: the message stays what it is, and without calls the
//! rest of the text is content. So the message depends on the text alone, not on when it was polled.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::message::{ChatMessage, ParsedText, ToolCall};
use crate::error::Result;
use crate::llama::CompletionParser;

/// Parsing takes at most this part of the time.
const MAX_SHARE: u32 = 100;
/// The characters of generated ids, as the strictest templates (Mistral's) demand them.
const ID_CHARS: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
/// The length of generated ids, as above.
const ID_LEN: u32 = 9;

/// Reads the messages of completions.
#[derive(Debug)]
pub(in crate::api) struct MessageReader {
    pub(super) parser: CompletionParser,
    /// The texts at which parts of the format end.
    pub(super) delimiters: Vec<String>,
    /// The model writes ids of calls, possibly after the arguments.
    pub(super) has_ids: bool,
    /// Calls are also given in OpenAI's older form.
    pub(super) with_function_call: bool,
    /// The texts that end reasoning.
    pub(super) thinking_ends: Vec<String>,
    /// The part of the message that the request gave, which is not repeated.
    pub(super) given: ChatMessage,
}

/// The message of one completion, as far as it is known.
#[derive(Debug)]
pub(in crate::api) struct MessageStream {
    reader: Arc<MessageReader>,
    text: String,
    /// The bytes of the text that were parsed.
    n_parsed: usize,
    /// All parts that were sent.
    sent: ChatMessage,
    has_begun: bool,
    /// The text does not have the format.
    broken: Option<Broken>,
    /// Determines the ids of calls.
    seed: u64,
    /// When the last parse ended, and its duration.
    last_parse: Option<(Instant, Duration)>,
}

/// How a text that does not have the format is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Broken {
    /// The text from this byte on is content.
    Content(usize),
    /// The rest is ignored, as in llama.cpp.
    Ignored,
}

impl MessageStream {
    /// An empty message. `seed` determines the ids of calls to which the model gives none.
    pub(in crate::api) fn new(reader: Arc<MessageReader>, seed: u64) -> MessageStream {
        MessageStream {
            text: String::new(),
            n_parsed: 0,
            sent: reader.given.clone(),
            has_begun: false,
            broken: None,
            seed,
            last_parse: None,
            reader,
        }
    }

    /// Appends generated text.
    pub(in crate::api) fn push(&mut self, text: &str) {
        self.text.push_str(text);
    }

    /// The new parts of the message; an empty object: none, or none are looked for now, because parsing takes time.
    pub(in crate::api) fn delta(&mut self) -> Value {
        let is_due = self.last_parse.is_none_or(|(end, took)| end.elapsed() >= took * MAX_SHARE);
        if !is_due || self.n_parsed == self.text.len() {
            return json!({});
        }
        let start = Instant::now();
        let delta = self.advance(false);
        self.last_parse = Some((Instant::now(), start.elapsed()));
        delta
    }

    /// The remaining parts of the message, and the whole message, when nothing more is generated.
    pub(in crate::api) fn finish(&mut self) -> (Value, ChatMessage) {
        let delta = self.advance(true);
        let without = |text: &str, given: &str| text.strip_prefix(given).unwrap_or(text).to_owned();
        let (sent, given) = (&self.sent, &self.reader.given);
        let message = ChatMessage {
            content: without(&sent.content, &given.content),
            reasoning: without(&sent.reasoning, &given.reasoning),
            calls: sent.calls.clone(),
        };
        (delta, message)
    }

    /// Parses the text, and returns what is new.
    fn advance(&mut self, is_final: bool) -> Value {
        self.n_parsed = self.text.len();
        let message = match self.broken {
            Some(broken) => self.after_break(self.sent.clone(), broken),
            None => match ParsedText::read(&self.reader.parser, &self.text) {
                Ok(parsed) if parsed.is_whole(&self.text, &self.reader.delimiters) => parsed.message,
                parsed => self.break_off(parsed),
            },
        };
        self.send(message, is_final)
    }

    /// The message of a text that does not have the format: that of its longest beginning that has it, and what follows.
    fn break_off(&mut self, parsed: Result<ParsedText>) -> ChatMessage {
        let cuts: Vec<usize> = self.text.char_indices().map(|(at, _)| at).chain([self.text.len()]).collect();
        let read = |at: usize| {
            let beginning = self.text.get(..at).unwrap_or_default();
            let parsed = ParsedText::read(&self.reader.parser, beginning).ok();
            parsed.filter(|parsed| parsed.is_whole(beginning, &self.reader.delimiters))
        };
        let n = cuts.partition_point(|at| read(*at).is_some());
        let longest = n.checked_sub(1).and_then(|index| read(*cuts.get(index)?));
        let (message, covered) = longest.map_or_else(Default::default, |longest| (longest.message, longest.covered));
        // A complete message, or calls, and then something else.
        if let Some(whole) = parsed.ok().filter(|parsed| parsed.matches && is_continued_by(&message, &parsed.message)) {
            self.broken = Some(Broken::Ignored);
            return whole.message;
        }
        let broken = match message.has_calls() {
            true => Broken::Ignored,
            false if message.content.is_empty() => Broken::Content(self.after_thinking(covered)),
            false => Broken::Content(covered),
        };
        self.broken = Some(broken);
        self.after_break(message, broken)
    }

    /// Where the text goes on after the end of reasoning at this byte, if there is one.
    fn after_thinking(&self, at: usize) -> usize {
        let rest = self.text.get(at..).unwrap_or_default();
        let trimmed = rest.trim_start();
        let ends = self.reader.thinking_ends.iter().map(|end| end.trim()).filter(|end| !end.is_empty());
        match ends.filter_map(|end| trimmed.strip_prefix(end)).map(str::trim_start).next() {
            Some(after) => self.text.len() - after.len(),
            None => at,
        }
    }

    fn after_break(&mut self, mut message: ChatMessage, broken: Broken) -> ChatMessage {
        if let Broken::Content(at) = broken {
            message.content.push_str(self.text.get(at..).unwrap_or_default());
            self.broken = Some(Broken::Content(self.text.len()));
        }
        message
    }

    /// Returns the parts of `message` that were not sent, and takes them as sent.
    fn send(&mut self, message: ChatMessage, is_final: bool) -> Value {
        let mut delta = Map::new();
        let texts = [
            ("reasoning_content", &mut self.sent.reasoning, &message.reasoning),
            ("content", &mut self.sent.content, &message.content),
        ];
        for (key, sent, new) in texts {
            if let Some(more) = new.strip_prefix(sent.as_str()).filter(|more| !more.is_empty()) {
                delta.insert(key.to_owned(), more.into());
                sent.push_str(more);
            }
        }
        let mut calls = Vec::new();
        let n_calls = message.calls.len();
        for (index, call) in message.calls.into_iter().enumerate() {
            match self.sent.calls.get_mut(index) {
                Some(sent) => {
                    let more = call.arguments.strip_prefix(sent.arguments.as_str()).filter(|more| !more.is_empty());
                    if let Some(more) = more {
                        calls.push(json!({"index": index, "function": {"arguments": more}}));
                        sent.arguments.push_str(more);
                    }
                }
                None => {
                    // Its id is sent with its name, so it waits for its id.
                    if self.reader.has_ids && call.id.is_empty() && index + 1 == n_calls && !is_final {
                        break;
                    }
                    let id = if call.id.is_empty() { generated_id(self.seed, index) } else { call.id };
                    let call = ToolCall { id, ..call };
                    let mut json = call.to_json();
                    if let Value::Object(fields) = &mut json {
                        fields.insert("index".to_owned(), index.into());
                    }
                    calls.push(json);
                    self.sent.calls.push(call);
                }
            }
        }
        if self.reader.with_function_call
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
}

/// Whether all parts of `message` begin the parts of `longer`.
fn is_continued_by(message: &ChatMessage, longer: &ChatMessage) -> bool {
    let mut calls = message.calls.iter().zip(&longer.calls);
    longer.content.starts_with(&message.content)
        && longer.reasoning.starts_with(&message.reasoning)
        && message.calls.len() <= longer.calls.len()
        && calls.all(|(one, other)| one.name == other.name && other.arguments.starts_with(&one.arguments))
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
