//! What a request asks to continue: a prompt of text and tokens, or messages for the chat template.

use serde_json::{Map, Value};

use super::token;
use crate::api::fields::{Fields, c_text_in, text_in, unexpected};
use crate::error::{Error, Result};
use crate::llama::Token;

/// The input of a generation.
#[derive(Debug, Clone, PartialEq)]
pub enum Prompt {
    /// Pieces to be tokenized one by one and joined; there may be none. BOS goes before a piece that is the
    /// first one and text.
    Text(Vec<Piece>),
    /// Messages to be rendered by the chat template.
    Messages(Chat),
}

/// A part of a prompt.
#[derive(Debug, Clone, PartialEq)]
pub enum Piece {
    /// Text, which may be empty.
    Text(String),
    /// A token id, not negative; whether the vocabulary has it is checked later.
    Token(Token),
}

/// The chat template's input.
#[derive(Debug, Clone, PartialEq)]
pub struct Chat {
    /// At least one object, each with a string `role` and a `content` that is a string, an array of parts, null
    /// or absent.
    pub messages: Vec<Value>,
    /// Descriptions of tools: objects.
    pub tools: Vec<Value>,
    /// A template instead of the model's (or `init`'s).
    pub chat_template: Option<String>,
    /// Further variables for the template.
    pub chat_template_kwargs: Map<String, Value>,
    /// Whether the text ends with the opening of the assistant's turn.
    pub add_generation_prompt: bool,
}

/// Reads `prompt` or `messages`; also returns `prompt` as it was given. Neither of them is the empty text, as
/// with the old server.
pub(super) fn read(fields: &mut Fields) -> Result<(Prompt, Value)> {
    let given = fields.get("prompt");
    let chat = Chat::read(fields)?;
    match (given, chat) {
        (Some(Value::String(text)), Some(_)) if !text.is_empty() => Err(both()),
        (Some(Value::Array(_)), Some(_)) => Err(both()),
        (_, Some(chat)) => Ok((Prompt::Messages(chat), Value::Null)),
        (None, None) => Ok((Prompt::Text(vec![Piece::Text(String::new())]), Value::from(""))),
        (Some(value), None) => Ok((Prompt::Text(pieces(value)?), value.clone())),
    }
}

fn both() -> Error {
    Error::invalid("messages: expected either prompt or messages, got both")
}

fn pieces(value: &Value) -> Result<Vec<Piece>> {
    match value {
        Value::String(text) => Ok(vec![Piece::Text(text.clone())]),
        Value::Array(items) => items
            .iter()
            .enumerate()
            .map(|(i, item)| {
                let name = format!("prompt[{i}]");
                match item {
                    Value::String(text) => Ok(Piece::Text(text.clone())),
                    Value::Number(_) => token(&name, item).map(Piece::Token),
                    _ => Err(unexpected(&name, "a string or a token id", item)),
                }
            })
            .collect(),
        _ => Err(unexpected("prompt", "a string, or an array of strings and token ids", value)),
    }
}

impl Chat {
    /// Reads `messages` and what goes with them; `None` without `messages`.
    ///
    /// # Errors
    /// A field of the wrong type, or no message.
    pub fn read(fields: &mut Fields) -> Result<Option<Chat>> {
        let messages = fields.list("messages", "an array of messages", message)?;
        let object = |name: &str, value: &Value| match value {
            Value::Object(_) => Ok(value.clone()),
            _ => Err(unexpected(name, "an object", value)),
        };
        let tools = fields.list("tools", "an array of objects", object)?;
        let chat_template = fields.c_text("chat_template")?;
        let kwargs = match fields.get("chat_template_kwargs") {
            None => None,
            Some(Value::Object(map)) => Some(map.clone()),
            Some(other) => return Err(unexpected("chat_template_kwargs", "an object", other)),
        };
        let add_generation_prompt = fields.flag("add_generation_prompt")?;
        let Some(messages) = messages else {
            let given = [
                ("tools", tools.is_some()),
                ("chat_template", chat_template.is_some()),
                ("chat_template_kwargs", kwargs.is_some()),
                ("add_generation_prompt", add_generation_prompt.is_some()),
            ];
            for (key, _) in given.into_iter().filter(|(_, given)| *given) {
                fields.warn(format!("{key}: means nothing without messages"));
            }
            return Ok(None);
        };
        if messages.is_empty() {
            return Err(Error::invalid("messages: expected at least one message, got []"));
        }
        Ok(Some(Chat {
            messages,
            tools: tools.unwrap_or_default(),
            chat_template,
            chat_template_kwargs: kwargs.unwrap_or_default(),
            add_generation_prompt: add_generation_prompt.unwrap_or(true),
        }))
    }
}

/// A message. Its other keys (`name`, `tool_calls`, `reasoning_content`, ...) are the template's business.
fn message(name: &str, value: &Value) -> Result<Value> {
    let Value::Object(map) = value else {
        return Err(unexpected(name, "an object with role and content", value));
    };
    c_text_in(&format!("{name}.role"), map.get("role").unwrap_or(&Value::Null))?;
    match map.get("content") {
        None | Some(Value::Null | Value::String(_)) => {}
        Some(Value::Array(parts)) => {
            for (i, part) in parts.iter().enumerate() {
                let name = format!("{name}.content[{i}]");
                match part.get("text") {
                    Some(text) => text_in(&format!("{name}.text"), text).map(drop)?,
                    None => return Err(unexpected(&name, "{\"type\": \"text\", \"text\": ...}", part)),
                }
            }
        }
        Some(other) => return Err(unexpected(&format!("{name}.content"), "a string or an array of parts", other)),
    }
    Ok(value.clone())
}

#[cfg(test)]
#[path = "prompt_tests.rs"]
mod tests;
