//! Chat formats: what a model writes for reasoning and tool calls under its template, and how the answer's message is read from it.
//!
//! `api::chat` renders the prompt. llama.cpp (`common/chat.h`) knows the formats: it finds the format of a template, the grammar for tools,
//! and the parser for completions. `detect` asks it, `cached` keeps its answers, `message` is an answer's message, `stream` reads messages while they are
//! generated, `tools` prepares schemas, `answer` writes the fields of answers.

mod answer;
mod applied;
mod cached;
mod detect;
mod message;
mod stream;
#[cfg(test)]
mod templates;
#[cfg(test)]
mod tests;
mod tools;

pub(super) use self::answer::{add_deltas, add_logprobs, add_message, finish_message, push_text};
pub(super) use self::cached::{RequestTemplates, TemplateFormat};
pub(super) use self::detect::{ChatFormat, FormatRequest, TemplateFormats, seen_messages};
pub(super) use self::message::ChatMessage;
pub(super) use self::stream::{MessageReader, MessageStream};
