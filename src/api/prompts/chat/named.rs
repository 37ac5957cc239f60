//! The chat templates that llama.cpp has in C++, chosen by name (`--chat-template llama3`). llama.cpp gets a placeholder for each content, so
//! contents stay data, with their marks.

use serde_json::{Map, Value as Json};

use crate::error::Result;
use crate::llama::apply_template;

/// A placeholder is a number between these two, which no template prints.
const BEGIN: char = '\u{1}';
const END: char = '\u{2}';
/// White space around a placeholder, which no template prints either. Where it is gone, the template trims the content.
const SPACE: char = '\u{b}';

/// The prompt of messages whose contents are texts.
///
/// # Errors
/// A role contains NUL, or the prompt is over 2 GiB.
pub(super) fn render(name: &str, variables: &Map<String, Json>) -> Result<String> {
    let messages = variables.get("messages").and_then(Json::as_array).map(Vec::as_slice).unwrap_or_default();
    let text = |message: &'_ Json, key: &str| message.get(key).and_then(Json::as_str).unwrap_or_default().to_owned();
    let contents: Vec<String> = messages.iter().map(|message| text(message, "content")).collect();
    let given = messages.iter().zip(&contents).enumerate().map(|(index, (message, content))| {
        // Some templates leave out what is empty.
        let is_empty = content.chars().all(is_space);
        let content = if is_empty { content.clone() } else { format!("{SPACE}{BEGIN}{index}{END}{SPACE}") };
        [text(message, "role"), content]
    });
    let begins_answer = variables.get("add_generation_prompt") == Some(&Json::Bool(true));
    let prompt = apply_template(name, &given.collect::<Vec<_>>(), begins_answer)?;
    let mut parts = prompt.split(BEGIN);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (number, rest) = part.split_once(END).unwrap_or((part, ""));
        let mut content = number.parse().ok().and_then(|index: usize| contents.get(index)).map_or("", String::as_str);
        if out.ends_with(SPACE) {
            out.pop();
        } else {
            content = content.trim_start_matches(is_space);
        }
        let after = rest.strip_prefix(SPACE);
        out += if after.is_some() { content } else { content.trim_end_matches(is_space) };
        out += after.unwrap_or(rest);
    }
    Ok(out)
}

/// Whether C's `isspace` says so.
fn is_space(c: char) -> bool {
    c.is_ascii_whitespace() || c == SPACE
}
