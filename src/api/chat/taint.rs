//! Distinguishes the text of messages from the template's own text in a rendered prompt, so that messages cannot contain control
//! tokens.
//!
//! A template transforms strings: it trims, splits and joins them, removes parts, and quotes them as JSON. So the position of a
//! message in the prompt cannot be computed. Instead, marks are inserted into the messages before rendering, after each character
//! that could begin a control token. The marks survive the transformations, and are removed from the prompt afterwards. The
//! character before a mark is *tainted*: no control token may begin with it (see [`crate::llama::SpecialTokens`]).
//!
//! Marks must not change what the template does. A string that the template searches for is a literal in its source. So no
//! mark is inserted inside of such a string, unless the string contains the whole text of a control token. In that case the
//! template does not find it in a message, because in a message it is only text.

use std::borrow::Cow;
use std::ops::Range;

use aho_corasick::AhoCorasick;
use serde_json::{Map, Value as Json};

use super::source::NAME;
use crate::error::{Error, Result};
use crate::llama::{ControlStarts, SpecialTokens};

/// Marks are noncharacters, which do not occur in interchanged text. One that occurs in the messages is not used.
const NONCHARACTERS: std::ops::RangeInclusive<char> = '\u{fdd0}'..='\u{fdef}';
/// The literals that are looked at in a text, for each of its bytes.
const MAX_FOUND: usize = 4;
/// Roles that templates print without comparing them to a literal, possibly inside of a control token (`<|user|>`).
const ROLES: [&str; 7] = ["system", "developer", "user", "assistant", "tool", "function", "model"];

/// A rendered prompt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rendered {
    /// The prompt.
    pub text: String,
    /// The byte offsets after the tainted characters, ascending.
    pub tainted: Vec<usize>,
}

/// Inserts marks into a template's variables, and removes them from the rendered prompt.
pub(super) struct Marker<'a> {
    mark: char,
    specials: &'a SpecialTokens,
    /// The string literals in the template's source.
    literals: &'a [String],
    /// Finds the literals inside of which a mark could be inserted.
    sought: AhoCorasick,
}

impl<'a> Marker<'a> {
    /// A marker for a template with these literals and variables.
    ///
    /// # Errors
    /// All characters that could be marks occur in the messages.
    pub(super) fn new(
        literals: &'a [String],
        variables: &Map<String, Json>,
        specials: &'a SpecialTokens,
    ) -> Result<Marker<'a>> {
        let is_used = |mark: char| {
            // A template can print a mark as an escape, so escapes count.
            let hex = format!("{:x}", u32::from(mark));
            let uses = |text: &str| text.contains(mark) || text.contains(&hex);
            literals.iter().any(|text| uses(text))
                || variables.iter().any(|(name, value)| uses(name) || any_text(value, &uses))
        };
        let mark = NONCHARACTERS.into_iter().find(|mark| !is_used(*mark));
        let mark = mark.ok_or_else(|| {
            Error::invalid("messages: expected at least one unused noncharacter from U+FDD0 to U+FDEF")
        })?;
        let starts_inside = |text: &&str| {
            let last = text.chars().next_back().map_or(0, char::len_utf8);
            text.get(..text.len() - last).is_some_and(|front| front.contains(specials.first_chars()))
        };
        let sought = AhoCorasick::new(literals.iter().map(String::as_str).filter(starts_inside));
        let sought = sought.map_err(|error| Error::invalid(format!("{NAME}: its literals: {error}")))?;
        Ok(Marker { mark, specials, literals, sought })
    }

    /// Inserts marks into the variables, except into those that are tokens of the vocabulary (`bos_token`).
    pub(super) fn mark_variables(&self, mut variables: Map<String, Json>) -> Map<String, Json> {
        for (name, value) in &mut variables {
            match value {
                Json::Array(messages) if name == "messages" => {
                    messages.iter_mut().for_each(|message| self.mark_message(message))
                }
                Json::String(_) if name.ends_with("_token") => {}
                value => self.mark_value(value),
            }
        }
        variables
    }

    fn mark_message(&self, message: &mut Json) {
        let role = message.get_mut("role").map(Json::take);
        self.mark_value(message);
        if let (Some(role), Some(marked)) = (role, message.get_mut("role")) {
            *marked = match role {
                Json::String(role) => self.mark_role(role).into(),
                other => other,
            };
        }
    }

    /// Inserts marks into every string in the value, including keys.
    fn mark_value(&self, value: &mut Json) {
        match value {
            Json::String(text) => {
                if let Cow::Owned(marked) = self.mark_text(text) {
                    *text = marked;
                }
            }
            Json::Array(items) => items.iter_mut().for_each(|item| self.mark_value(item)),
            Json::Object(map) => {
                let marked = std::mem::take(map).into_iter().map(|(name, mut value)| {
                    self.mark_value(&mut value);
                    (self.mark_text(&name).into_owned(), value)
                });
                *map = marked.collect();
            }
            Json::Null | Json::Bool(_) | Json::Number(_) => {}
        }
    }

    fn mark_text<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let ControlStarts { whole: mut starts, cut } = self.specials.control_starts(text);
        // A text that equals a literal of the template stays unchanged, except for whole control tokens.
        if !self.is_literal(text) {
            starts.extend(cut);
            let ranges = self.inside_sought(text);
            let is_inside = |at: &usize| {
                ranges.get(ranges.partition_point(|range| range.end <= *at)).is_some_and(|range| range.contains(at))
            };
            let first_chars = text.match_indices(self.specials.first_chars()).map(|(at, _)| at);
            starts.extend(first_chars.filter(|at| !is_inside(at)));
            starts.sort_unstable();
            starts.dedup();
        }
        if starts.is_empty() { Cow::Borrowed(text) } else { Cow::Owned(self.marked(text, &starts)) }
    }

    /// Where a mark would be inside a string that the template may search for: ranges of bytes, ascending.
    fn inside_sought(&self, text: &str) -> Vec<Range<usize>> {
        let mut ranges: Vec<Range<usize>> = Vec::new();
        // Many literals with the same end can only be there to take time. What is not looked at is marked.
        for found in self.sought.find_overlapping_iter(text).take(text.len().saturating_mul(MAX_FOUND)) {
            let last = text.get(..found.end()).and_then(|text| text.chars().next_back()).map_or(0, char::len_utf8);
            let mut start = found.start();
            while let Some(before) = ranges.pop_if(|before| before.end >= start) {
                start = start.min(before.start);
            }
            ranges.push(start..found.end() - last);
        }
        ranges
    }

    /// A template can print a role inside of a control token's text. A role that is neither common nor a literal of the template is
    /// marked, so that it cannot select a token.
    fn mark_role(&self, role: String) -> String {
        let is_word = role.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if ROLES.contains(&role.as_str()) || is_word && self.is_literal(&role) {
            return role;
        }
        let ControlStarts { whole, cut } = self.specials.control_starts(&role);
        let mut starts = [vec![0], whole, cut].concat();
        starts.sort_unstable();
        starts.dedup();
        self.marked(&role, &starts)
    }

    /// Whether the text is a string literal of the template.
    fn is_literal(&self, text: &str) -> bool {
        self.literals.binary_search_by(|literal| literal.as_str().cmp(text)).is_ok()
    }

    /// The text with a mark after each character that begins at one of `starts`.
    fn marked(&self, text: &str, starts: &[usize]) -> String {
        let mut marked = String::with_capacity(text.len() + starts.len() * self.mark.len_utf8());
        let mut starts = starts.iter().peekable();
        for (at, c) in text.char_indices() {
            marked.push(c);
            if starts.next_if_eq(&&at).is_some() {
                marked.push(self.mark);
            }
        }
        marked
    }

    /// Removes the marks from the prompt, also those that the template printed as escapes.
    pub(super) fn remove_marks(&self, rendered: String) -> Rendered {
        let number = u32::from(self.mark);
        let mut rendered = rendered;
        // The escapes of Python (a list that is printed) and JSON (`tojson(ensure_ascii=true)`), and those of `urlencode`.
        let in_url: String = self.mark.encode_utf8(&mut [0; 4]).bytes().map(|byte| format!("%{byte:02X}")).collect();
        for escaped in [format!("\\u{number:04x}"), in_url] {
            if rendered.contains(&escaped) {
                rendered = rendered.replace(&escaped, self.mark.encode_utf8(&mut [0; 4]));
            }
        }
        if !rendered.contains(self.mark) {
            return Rendered { text: rendered, tainted: Vec::new() };
        }
        let mut clean = Rendered { text: String::with_capacity(rendered.len()), tainted: Vec::new() };
        for (index, part) in rendered.split(self.mark).enumerate() {
            if index > 0 {
                clean.tainted.push(clean.text.len());
            }
            clean.text.push_str(part);
        }
        clean
    }
}

/// Whether the predicate is true for a string or key in the value.
fn any_text(value: &Json, predicate: &impl Fn(&str) -> bool) -> bool {
    match value {
        Json::String(text) => predicate(text),
        Json::Array(items) => items.iter().any(|item| any_text(item, predicate)),
        Json::Object(map) => map.iter().any(|(name, value)| predicate(name) || any_text(value, predicate)),
        Json::Null | Json::Bool(_) | Json::Number(_) => false,
    }
}
