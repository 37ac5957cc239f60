//! Finds the format of a template.

use crate::families::{self, TOOL_CALL};
use crate::format::{CallPart, Calls, ChatFormat};
use crate::probes::{Conversation, Probes, after};

/// The maximum length of a text around calls, reasoning or content. The longest one of a known template has 60 bytes.
const MAX_TEXT: usize = 256;

/// Finds the format of a template. `render` renders a conversation, or returns `None` if the template refuses it. `texts` are the
/// template's texts without comments, which tell what no conversation shows.
#[must_use]
pub fn detect(texts: &[&str], render: &dyn Fn(&Conversation) -> Option<String>) -> ChatFormat {
    let probes = Probes::new(texts, render);
    let mut format = families::recognize(&probes).unwrap_or_else(|| probes.compared());
    // The time to write a grammar grows with these texts.
    let is_short = |text: &String| text.len() <= MAX_TEXT;
    format.calls.retain(|calls| calls.texts().iter().all(is_short));
    if format.calls.is_empty() {
        format.calls.extend(families::instructed(&probes));
    }
    if format.calls.is_empty() {
        format.calls.push(generic_calls());
        format.is_generic = true;
    }
    let without: Vec<Calls> = format.calls.iter().filter_map(without_outer_tag).collect();
    format.calls.extend(without.iter().cloned());
    // Models that write arguments between tags fall back to JSON there.
    let is_tagged =
        |calls: &Calls| matches!(calls.call.first(), Some(CallPart::Text(text)) if text.starts_with(TOOL_CALL));
    if !without.is_empty() && format.calls.iter().any(is_tagged) {
        format.calls.push(families::json_in_tags());
    }
    format.between.extend(families::other_sections(&format.calls));
    for calls in &mut format.calls {
        let ends = |prompt: &str| calls.end.trim().is_empty() || after(prompt, "Hello?").contains(calls.end.trim());
        calls.end_is_optional = probes.call.as_deref().is_some_and(|prompt| !ends(prompt));
    }
    if format.reasoning.is_none() {
        format.reasoning = probes.reasoning();
    }
    for block in [&mut format.reasoning, &mut format.content] {
        if block.as_ref().is_some_and(|block| !block.begins.iter().chain(&block.ends).all(is_short)) {
            *block = None;
        }
    }
    format.shows_tools = probes.shows_tools;
    format
}

/// A call that begins with two tags, without the first one: Qwen3-Coder's models leave it out.
fn without_outer_tag(calls: &Calls) -> Option<Calls> {
    let (CallPart::Text(head), true) = (calls.call.first()?, calls.begin.is_empty()) else { return None };
    let (outer, inner) = head.split_once("\n<")?;
    if !(outer.starts_with('<') && outer.ends_with('>')) {
        return None;
    }
    let mut calls = calls.clone();
    if let Some(first) = calls.call.first_mut() {
        *first = CallPart::Text(format!("<{inner}"));
    }
    calls.separator = format!("{}{outer}\n", calls.separator);
    Some(calls)
}

/// Calls as JSON, for templates that show none.
fn generic_calls() -> Calls {
    let object = families::object("name", "arguments");
    Calls { call: vec![object], separator: "\n".to_owned(), is_anchored: true, ..Calls::default() }
}
