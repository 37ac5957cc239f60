//! The prompts of a request: text and tokens, messages for the chat template, or text with a gap.

use std::ops::Range;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::chat::{read_tools, response_schema};
use super::media::{self, GivenMedia};
use crate::api::wire::fields::{Fields, c_text_in, int_in, text_in, unexpected, unexpected_part};
use crate::api::wire::schema;
use crate::error::{Error, Result};
use crate::llama::Token;

/// The longest schema that is in the prompt by default, in bytes of JSON.
const MAX_SHOWN_SCHEMA: usize = 16 << 10;

/// A prompt.
#[derive(Debug, Clone, PartialEq)]
pub enum Prompt {
    /// Pieces to tokenize separately and concatenate; possibly none. BOS is added if the first piece is text.
    Text(Vec<Piece>),
    /// Messages to render with the chat template.
    Messages(ChatInput),
    /// Text with a gap to fill.
    Infill(Infill),
}

impl Prompt {
    /// The length of its text in bytes, including keys and the request's own template.
    pub fn text_len(&self) -> usize {
        let of_pieces = |pieces: &[Piece]| -> usize {
            let len = |piece: &Piece| if let Piece::Text(text) = piece { text.len() } else { 0 };
            pieces.iter().map(len).sum()
        };
        match self {
            Prompt::Text(pieces) => of_pieces(pieces),
            Prompt::Infill(infill) => {
                let extra: usize = infill.extra.iter().map(|file| file.filename.len() + file.text.len()).sum();
                of_pieces(&infill.prefix) + of_pieces(&infill.prompt) + of_pieces(&infill.suffix) + extra
            }
            Prompt::Messages(chat) => {
                let values = chat.messages.iter().chain(&chat.tools).chain(chat.chat_template_kwargs.values());
                let shown = chat.shown_schema.as_ref().map_or(0, |shown| match shown {
                    ShownSchema::Schema(schema) => value_len(schema),
                    ShownSchema::Text(text) => text.len(),
                });
                values.map(value_len).sum::<usize>() + chat.chat_template.as_ref().map_or(0, String::len) + shown
            }
        }
    }
}

/// A value as the model reads it: a string as it is, nothing for null, others as JSON.
pub(super) fn as_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// The length of the texts in a value, in bytes. Other values count as one.
pub(super) fn value_len(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(value_len).sum(),
        Value::Object(map) => map.iter().map(|(name, value)| name.len() + value_len(value)).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 1,
    }
}

/// Text with a gap to fill (fill-in-the-middle).
#[derive(Debug, Clone, PartialEq)]
pub struct Infill {
    /// The text before the gap.
    pub prefix: Vec<Piece>,
    /// The beginning of the gap's text.
    pub prompt: Vec<Piece>,
    /// The text after the gap.
    pub suffix: Vec<Piece>,
    /// Other files of the repository.
    pub extra: Vec<Extra>,
}

/// Another file of the repository.
#[derive(Debug, Clone, PartialEq)]
pub struct Extra {
    /// Its name.
    pub filename: String,
    /// Its text.
    pub text: String,
}

impl Infill {
    /// Reads `input_prefix`, `input_suffix` and `input_extra`. `None`: all of them are empty.
    fn read(fields: &mut Fields, prompt: Option<&Value>) -> Result<Option<Infill>> {
        let mut text = |key| fields.get(key).map_or(Ok(Vec::new()), |value| pieces(key, value));
        let (prefix, suffix) = (text("input_prefix")?, text("input_suffix")?);
        let extra = fields.list("input_extra", "an array of {\"filename\", \"text\"}", |name, value| {
            let text = value.get("text").ok_or_else(|| unexpected(name, "{\"filename\", \"text\"}", value))?;
            let filename = value
                .get("filename")
                .filter(|name| !name.is_null())
                .map(|value| text_in(&format!("{name}.filename"), value))
                .transpose()?;
            Ok(Extra {
                filename: filename.unwrap_or("tmp").to_owned(), // as in llama-server
                text: text_in(&format!("{name}.text"), text)?.to_owned(),
            })
        })?;
        let extra = extra.unwrap_or_default();
        let is_empty = |pieces: &[Piece]| pieces.iter().all(|piece| *piece == Piece::Text(String::new()));
        if is_empty(&prefix) && is_empty(&suffix) && extra.is_empty() {
            return Ok(None);
        }
        let prompt = prompt.map_or(Ok(Vec::new()), |value| pieces("prompt", value))?;
        Ok(Some(Infill { prefix, prompt, suffix, extra }))
    }
}

/// A part of a prompt.
#[derive(Debug, Clone, PartialEq)]
pub enum Piece {
    /// Text, possibly empty.
    Text(String),
    /// A token id, at least 0. It may exceed the vocabulary.
    Token(Token),
}

/// The chat template's input.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatInput {
    /// At least one object. Each has a string `role`, and a `content` that is a string, an array of parts, null or absent.
    pub messages: Vec<Value>,
    /// The pictures and sounds for which marks stand in the messages.
    pub media: Arc<[GivenMedia]>,
    /// Tool definitions: objects.
    pub tools: Vec<Value>,
    /// A template that replaces the model's and the load's.
    pub chat_template: Option<String>,
    /// Additional variables for the template.
    pub chat_template_kwargs: Map<String, Value>,
    /// The prompt ends with the beginning of the assistant's turn.
    pub add_generation_prompt: bool,
    /// The form in which the model sees the schema of its answer.
    pub shown_schema: Option<ShownSchema>,
    /// The beginning of the last turn, which the completion continues. It follows the rendered messages.
    pub continued: Option<ContinuedTurn>,
    /// The subject of questions, for a native decision model: the state, or the messages as they came.
    pub state: Option<Box<Value>>,
}

/// The form in which the model sees the schema of its answer.
#[derive(Debug, Clone, PartialEq)]
pub enum ShownSchema {
    /// The schema, in the template's own place for it, or in the system message.
    Schema(Value),
    /// The host's text, in the system message.
    Text(String),
}

/// The beginning of a turn that the completion continues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContinuedTurn {
    /// Its text.
    pub text: String,
    /// The parts of it that come from a message, so that they contain no control tokens.
    pub data: Vec<Range<usize>>,
}

/// A prompt, and its JSON.
#[derive(Debug, Clone, PartialEq)]
pub struct Input {
    /// The prompt.
    pub prompt: Prompt,
    /// The JSON of `prompt`, for the answer; null for messages and infill, where the answer shows the rendered text.
    pub given: Value,
}

/// The prompts of a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Inputs {
    /// At least one.
    pub all: Vec<Input>,
    /// They were given as `prompts`, so the answer has `results` even for a single prompt.
    pub listed: bool,
    /// Control tokens are parsed in prompts, or in the text of messages.
    pub parse_special: bool,
    /// The behaviour if a prompt does not fit into the context.
    pub on_overflow: Overflow,
}

foredraft_base::words! {
    /// The behaviour if a prompt does not fit into the context.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Overflow {
        /// The oldest turns of the messages are dropped.
        DropTurns => "drop_turns",
        /// Tokens after the first `n_keep` are dropped.
        Truncate => "truncate",
        /// The request fails with `context_full`.
        Error => "error",
    }
}

/// The end of the last message of a request with questions, where a question is put.
pub const QUESTION_MARK: &str = "[[foredraft: question]]";
/// The text before it, once for all questions.
const HOW_TO_ANSWER: &str = "Answer this question only with the letter of the best option, with the number of the best level, or with Yes or No:";

/// Reads `prompt`, `prompts` or `messages`, and the infill fields. If all are absent the prompt is empty, as in the old server.
/// `asks`: the request has questions, about these or `state`.
pub(super) fn read(fields: &mut Fields, asks: bool) -> Result<Inputs> {
    let given = fields.get("prompt");
    let has_prompt = matches!(given, Some(value) if value != "");
    let listed = fields.list("prompts", "an array of prompts", input)?;
    let state = if asks { fields.get("state") } else { None };
    let mut chat = ChatInput::read(fields, state)?;
    if let Some(chat) = chat.as_mut().filter(|_| asks) {
        chat.state = Some(Box::new(state.map_or_else(|| chat.messages.clone().into(), Value::clone)));
        chat.leave_room_for_question();
    }
    let infill = Infill::read(fields, given)?;
    if listed.as_ref().is_some_and(Vec::is_empty) && !has_prompt && chat.is_none() && infill.is_none() {
        return Err(Error::invalid("prompts: expected at least one prompt, got []"));
    }
    // Beside another prompt, none counts as absent.
    let listed = listed.filter(|prompts| !prompts.is_empty());
    if infill.is_some() && (listed.is_some() || chat.is_some()) {
        return Err(Error::invalid("input_prefix, input_suffix, input_extra: expected only together with prompt"));
    }
    let parse_special = fields.flag("parse_special")?.unwrap_or(chat.is_none());
    let default = match (asks, chat.is_some()) {
        (true, _) => Overflow::Error,
        (false, true) => Overflow::DropTurns,
        (false, false) => Overflow::Truncate,
    };
    let on_overflow = fields.word("on_overflow", &Overflow::WORDS)?.unwrap_or(default);
    if on_overflow == Overflow::DropTurns && chat.is_none() {
        return Err(Error::invalid("on_overflow: expected \"drop_turns\" only together with messages"));
    }
    let inputs = |all, listed| Inputs { all, listed, parse_special, on_overflow };
    if asks && (infill.is_some() || listed.is_none() && chat.is_none() && !has_prompt) {
        return Err(Error::invalid("questions: expected state, messages or prompt with them"));
    }
    let one = match (listed, chat) {
        (Some(_), Some(_)) => return Err(Error::invalid("messages: expected either prompts or messages, got both")),
        (Some(_), None) if has_prompt => {
            return Err(Error::invalid("prompts: expected either prompt or prompts, got both"));
        }
        (Some(all), None) => return Ok(inputs(all, true)),
        (None, Some(_)) if has_prompt => {
            return Err(Error::invalid("messages: expected either prompt or messages, got both"));
        }
        (None, Some(chat)) => Input { prompt: Prompt::Messages(chat), given: Value::Null },
        (None, None) => match infill {
            Some(infill) => Input { prompt: Prompt::Infill(infill), given: Value::Null },
            None => input("prompt", given.unwrap_or(&Value::from("")))?,
        },
    };
    Ok(inputs(vec![one], false))
}

fn input(name: &str, value: &Value) -> Result<Input> {
    Ok(Input { prompt: Prompt::Text(pieces(name, value)?), given: value.clone() })
}

/// Reads a token id. It may exceed the vocabulary.
pub(super) fn token(name: &str, value: &Value) -> Result<Token> {
    int_in(name, value, 0..=i64::from(Token::MAX))
}

/// Reads a text, or an array of texts and token ids.
///
/// # Errors
/// It is neither.
pub fn pieces(name: &str, value: &Value) -> Result<Vec<Piece>> {
    match value {
        Value::String(text) => Ok(vec![Piece::Text(text.clone())]),
        Value::Array(items) => items
            .iter()
            .enumerate()
            .map(|(i, item)| {
                let name = format!("{name}[{i}]");
                match item {
                    Value::String(text) => Ok(Piece::Text(text.clone())),
                    Value::Number(_) => token(&name, item).map(Piece::Token),
                    Value::Object(message) if message.contains_key("role") => {
                        Err(unexpected(&name, "a string or a token id (messages are given as \"messages\")", item))
                    }
                    _ => Err(unexpected(&name, "a string or a token id", item)),
                }
            })
            .collect(),
        _ => Err(unexpected(name, "a string, or an array of strings and token ids", value)),
    }
}

impl ChatInput {
    /// Reads `messages` and the related fields. `None`: there are no `messages`, and no `state`, which is the text of a message.
    ///
    /// # Errors
    /// A field has the wrong type, or `messages` is empty.
    pub fn read(fields: &mut Fields, state: Option<&Value>) -> Result<Option<ChatInput>> {
        let mut media = Vec::new();
        let messages = fields.list("messages", MESSAGES, |name, value| message(name, value, &mut media))?;
        if messages.is_some() && state.is_some() {
            return Err(Error::invalid("state: expected either state or messages, got both"));
        }
        let messages = messages.or(state.map(|state| vec![json!({"role": "user", "content": as_text(state)})]));
        let tools = read_tools(fields)?;
        let chat_template = fields.c_text("chat_template")?;
        let kwargs = match fields.get("chat_template_kwargs") {
            None => None,
            Some(Value::Object(map)) => Some(map.clone()),
            Some(other) => return Err(unexpected("chat_template_kwargs", "an object", other)),
        };
        let add_generation_prompt = fields.flag("add_generation_prompt")?;
        let shown_schema = ShownSchema::read(fields, messages.is_some())?;
        let Some(messages) = messages else {
            let keys = ["tools", "chat_template", "chat_template_kwargs", "add_generation_prompt"];
            fields.warn_without_messages(&keys);
            return Ok(None);
        };
        if messages.is_empty() {
            return Err(Error::invalid("messages: expected at least one message, got []"));
        }
        Ok(Some(ChatInput {
            messages,
            media: media.into(),
            tools: tools.unwrap_or_default(),
            chat_template,
            chat_template_kwargs: kwargs.unwrap_or_default(),
            add_generation_prompt: add_generation_prompt.unwrap_or(true),
            shown_schema,
            continued: None,
            state: None,
        }))
    }
}

impl ShownSchema {
    /// Reads `schema_in_prompt`, beside the schema. `None`: the model does not see it.
    fn read(fields: &mut Fields, is_chat: bool) -> Result<Option<ShownSchema>> {
        let key = "schema_in_prompt";
        let given = fields.get(key);
        let (is_shown, text) = match given {
            None => (true, None),
            Some(Value::Bool(is_shown)) => (*is_shown, None),
            Some(Value::String(text)) => (!text.is_empty(), Some(text)),
            Some(other) => return Err(unexpected(key, "true, false or a text", other)),
        };
        if !is_chat || !is_shown {
            if given.is_some() && is_shown {
                fields.warn(format!("{key}: ignored without messages"));
            }
            return Ok(None);
        }
        let of_format = fields.get("response_format").map(response_schema).transpose()?.flatten();
        let other = fields.get("json_schema").filter(|schema| given.is_some() && **schema != "");
        let schema = match (of_format, other) {
            (Some(schema), _) => schema,
            (None, Some(schema)) => schema::parse(schema)?,
            (None, None) => {
                if given.is_some() {
                    fields.warn(format!("{key}: ignored without json_schema or response_format"));
                }
                return Ok(None);
            }
        };
        if let Some(text) = text {
            return Ok(Some(ShownSchema::Text(text.clone())));
        }
        let len = schema.to_string().len();
        if given.is_none() && len > MAX_SHOWN_SCHEMA {
            fields.warn(format!(
                "{key}: the schema has {len} bytes, so the model does not see it (true shows schemas of more than {MAX_SHOWN_SCHEMA} bytes, too)"
            ));
            return Ok(None);
        }
        Ok(Some(ShownSchema::Schema(schema)))
    }
}

/// The value of `messages`.
const MESSAGES: &str = "an array of messages, such as [{\"role\": \"user\", \"content\": \"Hello\"}]";

impl ChatInput {
    /// Ends the last message, or a new one if that is not the user's, with [`QUESTION_MARK`], and lets the model answer without reasoning.
    fn leave_room_for_question(&mut self) {
        let own = self.messages.last_mut().filter(|message| message.get("role").is_some_and(|role| role == "user"));
        let content = own.and_then(|message| message.get_mut("content"));
        let end = format!("{HOW_TO_ANSWER}\n\n{QUESTION_MARK}");
        match content {
            Some(Value::String(text)) => *text = format!("{text}\n\n{end}"),
            Some(Value::Array(parts)) => parts.push(json!({"type": "text", "text": format!("\n\n{end}")})),
            _ => self.messages.push(json!({"role": "user", "content": end})),
        }
        self.chat_template_kwargs.entry("enable_thinking").or_insert(false.into());
    }
}

/// Validates a message, and replaces the pictures and sounds in it, which become the last ones of `media`. Other keys (`name`, `tool_calls`,
/// `reasoning_content`, ...) are passed to the template.
fn message(name: &str, value: &Value, media: &mut Vec<GivenMedia>) -> Result<Value> {
    let Value::Object(map) = value else {
        return Err(unexpected(name, "an object with role and content", value));
    };
    let role = c_text_in(&format!("{name}.role"), map.get("role").unwrap_or(&Value::Null))?;
    let mut message = value.clone();
    match map.get("content") {
        None | Some(Value::Null | Value::String(_)) => {}
        Some(Value::Array(parts)) => {
            for (i, part) in parts.iter().enumerate() {
                let name = format!("{name}.content[{i}]");
                if let Some(mark) = media::replaced(&name, part, role, media)? {
                    if let Some(part) = message.get_mut("content").and_then(|parts| parts.get_mut(i)) {
                        *part = mark;
                    }
                    continue;
                }
                match part.get("text") {
                    Some(text) => text_in(&format!("{name}.text"), text).map(drop)?,
                    None => return Err(unexpected_part(&name, part)),
                }
            }
        }
        Some(other) => return Err(unexpected(&format!("{name}.content"), "a string or an array of parts", other)),
    }
    Ok(message)
}

#[cfg(test)]
mod tests;
