//! Adapts messages to the form that a template expects.

use serde_json::{Value as Json, json};

use super::tool_shape::ToolShape;
use super::values::json_text;
use crate::api::wire::fields::check_memory;
use crate::api::wire::fields::{unexpected, unexpected_part};
use crate::api::wire::request::{ends_with_mark, is_mark};
use crate::error::{Error, Result};

/// The form of messages that a template expects.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct MessageShape {
    pub(super) forms: ContentForms,
    /// The arguments of tool calls: an object (true), JSON in a string (false), or both (None).
    pub(super) arguments_object: Option<bool>,
    /// Tool calls are rendered only if the content is null.
    pub(super) null_content: bool,
    /// The template supports the role `developer`. If not, the role becomes `system`.
    pub(super) developer: bool,
    /// The template refuses or ignores a second message of the system at the beginning. Its text is then added to the first one.
    pub(super) one_system: bool,
    /// The template refuses or ignores system messages. Their text is then added to the first user message.
    pub(super) no_system: bool,
    /// The template's needs in tools.
    pub(super) tools: ToolShape,
}

/// The form of `content` that a template expects in the messages of each role. Some templates know parts in user messages only.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ContentForms {
    pub(super) system: ContentForm,
    pub(super) user: ContentForm,
    pub(super) assistant: ContentForm,
    pub(super) tool: ContentForm,
}

impl ContentForms {
    fn of(&self, role: &str) -> ContentForm {
        match role {
            "system" | "developer" => self.system,
            "assistant" | "model" => self.assistant,
            "tool" | "function" | "ipython" => self.tool,
            _ => self.user,
        }
    }
}

/// The form of `content` that a template expects.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) enum ContentForm {
    /// Only a string: parts are joined.
    #[default]
    Text,
    /// Only an array of parts: a string becomes one part.
    Parts,
    /// Only an array, of which the first part is printed: all text becomes one part.
    OnePart,
    /// Both.
    Any,
}

impl MessageShape {
    /// Converts the messages.
    ///
    /// # Errors
    /// A message is invalid.
    pub(super) fn messages(&self, given: &[Json]) -> Result<Vec<Json>> {
        let mut messages = given.iter().enumerate().map(|(i, it)| self.message(i, it)).collect::<Result<Vec<_>>>()?;
        let role = |message: &Json| message.get("role").and_then(Json::as_str).unwrap_or_default().to_owned();
        let is = |message: &Json, roles: &[&str]| roles.contains(&role(message).as_str());
        let n_first = messages.iter().take_while(|message| is(message, &["system", "developer"])).count();
        if self.one_system && n_first > 1 {
            let content = taken_content(&mut messages, n_first);
            messages.drain(1..n_first);
            if let Some(first) = messages.first_mut() {
                set(first, "content", content);
            }
        }
        if !self.no_system {
            return Ok(messages);
        }
        let n_system = messages.iter().take_while(|message| is(message, &["system"])).count();
        let n_joined = n_system + usize::from(messages.get(n_system).is_some_and(|next| is(next, &["user"])));
        if n_system > 0 && n_joined > 1 {
            let content = taken_content(&mut messages, n_joined);
            messages.drain(..n_joined - 1);
            if let Some(last) = messages.first_mut() {
                set(last, "content", content);
            }
        }
        if let Some(system) = messages.first_mut().filter(|message| role(message) == "system") {
            set(system, "role", "user".into());
        }
        Ok(messages)
    }

    /// Converts message `i`.
    fn message(&self, i: usize, message: &Json) -> Result<Json> {
        let Json::Object(given) = message else {
            return Err(unexpected(&format!("messages[{i}]"), "an object with role and content", message));
        };
        let role = match given.get("role") {
            Some(Json::String(role)) => role,
            other => return Err(unexpected(&format!("messages[{i}].role"), "a string", other.unwrap_or(&Json::Null))),
        };
        let form = self.forms.of(role);
        let mut message = given.clone();
        if role == "developer" && !self.developer {
            message.insert("role".to_owned(), "system".into());
        }
        if message.get("tool_calls").is_some_and(|calls| calls.is_null() || calls == &json!([])) {
            message.retain(|name, _| name != "tool_calls");
        }
        let content = match message.get("content").unwrap_or(&Json::Null) {
            Json::Null => Json::from(""),
            Json::Array(parts) if matches!(form, ContentForm::Text | ContentForm::OnePart) => {
                Json::from(joined(i, parts)?)
            }
            other => other.clone(),
        };
        let content = match content {
            Json::String(text) if text.is_empty() && self.null_content && message.contains_key("tool_calls") => {
                Json::Null
            }
            Json::String(text) if matches!(form, ContentForm::Parts | ContentForm::OnePart) => {
                json!([{"type": "text", "text": text}])
            }
            other => other,
        };
        message.insert("content".to_owned(), content);
        if let (Some(object), Some(Json::Array(calls))) = (self.arguments_object, message.get_mut("tool_calls")) {
            for (j, call) in calls.iter_mut().enumerate() {
                let Some(Json::Object(function)) = call.get_mut("function") else { continue };
                let arguments = function.entry("arguments").or_insert(Json::Null);
                // A function without parameters has no arguments.
                if arguments.is_null() || arguments.as_str().is_some_and(|text| text.trim().is_empty()) {
                    *arguments = json!({});
                }
                match arguments {
                    Json::String(text) if object => {
                        check_memory(text)?;
                        *arguments = serde_json::from_str(text).map_err(|error| {
                            Error::invalid(format!(
                                "messages[{i}].tool_calls[{j}].function.arguments: not JSON: {error}"
                            ))
                        })?;
                    }
                    Json::Object(_) if !object => {
                        *arguments = json_text(arguments)
                            .map_err(|error| error.within(&format!("messages[{i}].tool_calls")))?
                            .into();
                    }
                    _ => {}
                }
            }
        }
        Ok(Json::Object(message))
    }
}

/// Messages with the text at the end of the system message, or in a new one.
pub(in crate::api) fn add_to_system(messages: &[Json], text: &str) -> Vec<Json> {
    let mut messages = messages.to_vec();
    let is_system =
        |message: &&mut Json| message.get("role").is_some_and(|role| role == "system" || role == "developer");
    match messages.first_mut().filter(is_system).and_then(|message| message.get_mut("content")) {
        Some(Json::String(content)) => *content = format!("{content}\n\n{text}"),
        Some(Json::Array(parts)) => parts.push(json!({"type": "text", "text": text})),
        _ => messages.insert(0, json!({"role": "system", "content": text})),
    }
    messages
}

fn set(message: &mut Json, key: &str, value: Json) {
    if let Json::Object(message) = message {
        message.insert(key.to_owned(), value);
    }
}

/// The contents of the first `n` messages, which are taken from them: texts with a line feed between them, or parts.
fn taken_content(messages: &mut [Json], n: usize) -> Json {
    let parts = |content: Json| match content {
        Json::Array(parts) => parts,
        text => vec![json!({"type": "text", "text": text})],
    };
    let contents = messages.iter_mut().take(n).filter_map(|message| message.get_mut("content")).map(Json::take);
    contents.fold(Json::from(""), |all, content| match (all, content) {
        (Json::String(all), content) if all.is_empty() => content,
        (Json::String(all), Json::String(text)) => (all + "\n" + &text).into(),
        (all, content) => {
            let mut all = parts(all);
            all.extend(parts(content));
            all.into()
        }
    })
}

/// The texts of message `i`'s parts, joined by line feeds.
fn joined(i: usize, parts: &[Json]) -> Result<String> {
    let texts = parts.iter().enumerate().map(|(j, part)| match (part.get("type"), part.get("text")) {
        (None, Some(Json::String(text))) => Ok(text.as_str()),
        (Some(Json::String(kind)), Some(Json::String(text))) if kind == "text" => Ok(text.as_str()),
        _ => Err(unexpected_part(&format!("messages[{i}].content[{j}]"), part)),
    });
    let mut all = String::new();
    for text in texts {
        let text = text?;
        // As in llama.cpp, no line feed is beside a picture or a sound.
        if !all.is_empty() && !is_mark(text) && !ends_with_mark(&all) {
            all.push('\n');
        }
        all.push_str(text);
    }
    Ok(all)
}
