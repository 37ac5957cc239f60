//! Finds messages that a template has dropped.

use serde_json::{Map, Value as Json};

use super::{ChatTemplate, RenderInput};
use crate::api::wire::fields::show;
use crate::error::Result;

/// The text that replaces what is missed in a prompt. A template may print a content otherwise than it was given.
const MARK: &str = "probe-content-71c3";
/// The roles that OpenAI's clients and templates use.
const ROLES: [&str; 8] = ["system", "developer", "user", "assistant", "tool", "function", "ipython", "model"];
/// The maximum number of messages that are named in one warning.
const MAX_NAMED: usize = 8;
/// The most bytes that are searched for texts that do not come in the order of the messages. A text that is not looked for counts as found.
const MAX_SEARCHED: usize = 256 << 20;

/// A part of a message that is not in the prompt.
#[derive(Clone, Copy, PartialEq)]
enum MissingPart {
    Content,
    Calls,
}

impl ChatTemplate {
    /// A warning that names the messages of `input` whose content or calls are in no part of the prompt, if there are some. `names` has the
    /// number of each message in the request. The reasoning of an answer is not counted as content, because templates drop it.
    pub(in crate::api) fn warning_of_vanished(
        &self,
        input: &RenderInput,
        names: &[usize],
        prompt: &str,
    ) -> Option<String> {
        let mut search = PromptSearch { prompt, at: 0, left: MAX_SEARCHED };
        let missing = input.messages.iter().enumerate().filter_map(|(index, message)| {
            let is_missing = if !search.has_content(message) {
                MissingPart::Content
            } else if !search.has_calls(message) {
                MissingPart::Calls
            } else {
                return None;
            };
            Some((index, is_missing))
        });
        // Each of them costs a rendering.
        let missing: Vec<_> = missing.take(MAX_NAMED + 1).collect();
        let vanished = missing.into_iter().filter(|(index, part)| {
            // A part that the template prints in another form, or refuses, is not lost.
            matches!(self.prints_mark_instead(input, *index, *part), Ok(false))
        });
        let vanished: Vec<String> = vanished
            .map(|(index, part)| {
                let name = names.get(index).copied().unwrap_or(index);
                let part = if part == MissingPart::Content { "content" } else { "tool_calls" };
                format!("messages[{name}].{part}")
            })
            .collect();
        let (named, more) = vanished.split_at_checked(MAX_NAMED).unwrap_or((&vanished, &[]));
        if named.is_empty() {
            return None;
        }
        let more = if more.is_empty() { "" } else { " and more" };
        Some(format!("{}{more}: the chat template does not print this", named.join(", ")))
    }

    /// A warning that names the first message whose role is neither one that hosts use nor in a text of the template.
    pub(in crate::api) fn warning_of_roles(&self, input: &RenderInput, names: &[usize]) -> Option<String> {
        let is_unknown = |role: &&str| !ROLES.contains(role) && !self.literals.iter().any(|text| text.contains(*role));
        let roles = input.messages.iter().map(|message| message.get("role").and_then(Json::as_str));
        let (index, role) = roles.enumerate().find_map(|(index, role)| Some((index, role.filter(is_unknown)?)))?;
        let name = names.get(index).copied().unwrap_or(index);
        let role = show(&Json::from(role));
        Some(format!(
            "messages[{name}].role: the chat template does not know {role}, only roles such as \"system\", \"user\" and \"assistant\""
        ))
    }

    /// Whether a mark that stands in place of a part of a message arrives in the prompt.
    fn prints_mark_instead(&self, input: &RenderInput, index: usize, part: MissingPart) -> Result<bool> {
        let mut messages = input.messages.to_vec();
        if let Some(Json::Object(message)) = messages.get_mut(index) {
            replace(message, part);
        }
        Ok(self.render(&RenderInput { messages: &messages, ..*input })?.contains(MARK))
    }
}

fn replace(message: &mut Map<String, Json>, part: MissingPart) {
    if part == MissingPart::Calls {
        let calls = message.get_mut("tool_calls").and_then(Json::as_array_mut);
        let functions = calls.into_iter().flatten().filter_map(|call| call.get_mut("function"));
        functions.filter_map(|function| function.get_mut("name")).for_each(|name| *name = MARK.into());
        return;
    }
    match message.get_mut("content") {
        Some(Json::Array(parts)) => {
            parts.iter_mut().filter_map(|part| part.get_mut("text")).for_each(|text| *text = MARK.into());
        }
        Some(text) => *text = MARK.into(),
        None => {}
    }
}

/// Searches a prompt for the texts of messages, first behind the last one that was found.
struct PromptSearch<'a> {
    prompt: &'a str,
    at: usize,
    /// The bytes that may still be searched otherwise.
    left: usize,
}

impl PromptSearch<'_> {
    /// Whether the text is in the prompt, as it is or as JSON.
    fn has(&mut self, text: &str) -> bool {
        let text = text.trim();
        let Some(left) = self.left.checked_sub(self.prompt.len()) else { return true };
        let behind = self.prompt.get(self.at..).unwrap_or_default();
        if let Some(found) = behind.find(text) {
            self.at += found + text.len();
            return true;
        }
        self.left = left;
        let escaped = Json::from(text).to_string();
        let escaped = escaped.get(1..escaped.len() - 1).unwrap_or_default();
        self.prompt.contains(text) || escaped != text && self.prompt.contains(escaped)
    }

    fn has_content(&mut self, message: &Json) -> bool {
        let is_assistant = message.get("role").and_then(Json::as_str) == Some("assistant");
        let mut has = |text: &str| {
            // The text of an answer before `</think>` is its reasoning.
            let answer = text.rsplit_once("</think>").filter(|_| is_assistant);
            self.has(answer.map_or(text, |(_, answer)| answer))
        };
        match message.get("content") {
            Some(Json::String(text)) => has(text),
            Some(Json::Array(parts)) => parts.iter().filter_map(|part| part.get("text")?.as_str()).all(has),
            _ => true,
        }
    }

    fn has_calls(&mut self, message: &Json) -> bool {
        let calls = message.get("tool_calls").and_then(Json::as_array).into_iter().flatten();
        calls.filter_map(|call| call.get("function")?.get("name")?.as_str()).all(|name| self.has(name))
    }
}
