//! The message of an answer, and the parts of it that a completion has so far.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::error::{Code, Error, Result};
use crate::llama::CompletionParser;

/// An assistant's message.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub(in crate::api) struct ChatMessage {
    /// What the user sees.
    pub(super) content: String,
    /// What the model thought before.
    #[serde(rename = "reasoning_content")]
    pub(super) reasoning: String,
    /// Calls of tools.
    #[serde(rename = "tool_calls")]
    pub(super) calls: Vec<ToolCall>,
}

/// A call of a tool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub(super) struct ToolCall {
    pub(super) name: String,
    /// JSON text, which may be broken off.
    pub(super) arguments: String,
    /// Empty: the model gave none.
    pub(super) id: String,
}

/// The result of parsing a text.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct ParsedText {
    /// The text has the format, or begins with a text that has it.
    pub(super) matches: bool,
    /// A text with the format is followed by something else.
    pub(super) ends: bool,
    /// Where that text ends, in bytes.
    pub(super) end: usize,
    /// Where the content and the reasoning end in the text, in bytes.
    pub(super) covered: usize,
    #[serde(flatten)]
    pub(super) message: ChatMessage,
}

impl ParsedText {
    /// Parses a completion, or its beginning.
    ///
    /// # Errors
    /// The text nests brackets too deeply.
    pub(super) fn read(parser: &CompletionParser, text: &str) -> Result<ParsedText> {
        let parsed = parser.parse(text)?;
        serde_json::from_str(&parsed).map_err(|error| Error::new(Code::Internal, format!("chat format: {error}")))
    }

    /// Whether the whole `text` has the format, or may become a text that has it. What may begin one of the `delimiters` is not parsed, and
    /// is no end.
    pub(super) fn is_whole(&self, text: &str, delimiters: &[String]) -> bool {
        let rest = text.get(self.end..).unwrap_or_default();
        let may_begin = |delimiter: &String| delimiter.len() > rest.len() && delimiter.starts_with(rest);
        self.matches && (!self.ends || delimiters.iter().any(may_begin))
    }
}

impl ToolCall {
    pub(super) fn to_json(&self) -> Value {
        json!({"type": "function", "function": {"name": self.name, "arguments": self.arguments}, "id": self.id})
    }
}

impl ChatMessage {
    /// OpenAI's form, with the fields that llama-server has. `with_function_call`: the first call also in OpenAI's older form.
    pub(in crate::api) fn to_json(&self, with_function_call: bool) -> Value {
        let mut answer = Map::from_iter([
            ("role".to_owned(), Value::from("assistant")),
            ("content".to_owned(), self.content.as_str().into()),
        ]);
        if !self.reasoning.is_empty() {
            answer.insert("reasoning_content".to_owned(), self.reasoning.as_str().into());
        }
        if !self.calls.is_empty() {
            answer.insert("tool_calls".to_owned(), self.calls.iter().map(ToolCall::to_json).collect());
        }
        if let (Some(call), true) = (self.calls.first(), with_function_call) {
            answer.insert("function_call".to_owned(), json!({"name": call.name, "arguments": call.arguments}));
        }
        Value::Object(answer)
    }

    /// Whether tools are called.
    pub(in crate::api) fn has_calls(&self) -> bool {
        !self.calls.is_empty()
    }
}
