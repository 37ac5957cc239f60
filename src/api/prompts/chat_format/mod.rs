//! Chat formats: what a model writes for reasoning and tool calls under its template, and how the answer's message is read from it.
//!
//! `api::prompts::chat` renders the prompt. `foredraft_chat` describes formats: it finds the format of a template, and has the grammar for tools and
//! the parser for completions. `cached` keeps the formats of templates, `detect` makes the format of a request's answer, `tools` reads
//! tools, `stream` reads messages while they are generated, `received` takes those that another process reads, `message` writes the message of an answer.

mod cached;
mod detect;
pub mod message;
mod received;
mod stream;
#[cfg(test)]
mod tests;
mod tools;

pub(in crate::api) use self::cached::{KnownTemplate, RequestTemplates};
pub(in crate::api) use self::detect::{AnswerFormat, FormatRequest, seen_messages, text_of};
pub(in crate::api) use self::stream::MessageStream;
