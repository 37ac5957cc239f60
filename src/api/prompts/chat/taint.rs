//! Distinguishes the text of messages from the template's own text in a rendered prompt, so that messages cannot contain guarded
//! tokens: control tokens, and those that the template uses as its own marks.
//!
//! A template transforms strings: it trims, splits and joins them, removes parts, and quotes them as JSON. So the position of a
//! message in the prompt cannot be computed. Instead, marks are inserted into the messages before rendering, after each character
//! that could begin a guarded token. The marks survive the transformations, and are removed from the prompt afterwards. The
//! character before a mark is *tainted*: no guarded token may begin with it (see [`crate::llama::SpecialTokens`]).
//!
//! Marks must not change what the template does. A string that the template searches for is a literal in its source. So no
//! mark is inserted inside of such a string, unless the string contains the whole text of a guarded token. In that case the
//! template does not find it in a message, because in a message it is only text. One exception: many templates look for the marks of
//! reasoning (`</think>`) in what the assistant said, and cut the reasoning off. So where these are no control tokens, the
//! assistant's messages get marks that the template's searches pass over.

use std::borrow::Cow;
use std::ops::Range;

use aho_corasick::{AhoCorasick, AhoCorasickKind};
use serde_json::{Map, Value as Json};

use crate::api::wire::template_name::NAME;
use crate::error::{Error, Result};
use crate::llama::{GuardedTokens, Token, TokenStarts};

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
    /// The template's marks that are no control tokens, ascending.
    pub marks: Vec<Token>,
}

/// Inserts marks into a template's variables, and removes them from the rendered prompt.
pub(super) struct Marker<'a> {
    mark: char,
    /// The mark that searches pass over.
    seen_through: char,
    guarded: GuardedTokens<'a>,
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
        guarded: GuardedTokens<'a>,
    ) -> Result<Marker<'a>> {
        let is_used = |mark: char| {
            // A template can print a mark as an escape, so escapes count.
            let hex = format!("{:x}", u32::from(mark));
            let uses = |text: &str| text.contains(mark) || text.contains(&hex);
            literals.iter().any(|text| uses(text))
                || variables.iter().any(|(name, value)| uses(name) || any_text(value, &uses))
        };
        let mut unused = NONCHARACTERS.filter(|mark| !is_used(*mark));
        let (Some(mark), Some(seen_through)) = (unused.next(), unused.next()) else {
            return Err(Error::invalid("messages: expected at least two unused noncharacters from U+FDD0 to U+FDEF"));
        };
        let starts_inside = |text: &&str| {
            let last = text.chars().next_back().map_or(0, char::len_utf8);
            text.get(..text.len() - last).is_some_and(|front| front.contains(guarded.first_chars()))
        };
        // An NFA, because making a DFA takes the square of the length of a literal that repeats a few characters.
        let sought = AhoCorasick::builder()
            .kind(Some(AhoCorasickKind::ContiguousNFA))
            .build(literals.iter().map(String::as_str).filter(starts_inside));
        let sought = sought.map_err(|error| Error::invalid(format!("{NAME}: its literals: {error}")))?;
        Ok(Marker { mark, seen_through, guarded, literals, sought })
    }

    /// Inserts marks into the variables, except into those that are tokens of the vocabulary (`bos_token`).
    pub(super) fn mark_variables(&self, mut variables: Map<String, Json>) -> Map<String, Json> {
        for (name, value) in &mut variables {
            match value {
                Json::Array(messages) if name == "messages" => {
                    messages.iter_mut().for_each(|message| self.mark_message(message))
                }
                Json::String(_) if name.ends_with("_token") => {}
                value => self.mark_value(value, self.mark),
            }
        }
        variables
    }

    fn mark_message(&self, message: &mut Json) {
        let role = message.get_mut("role").map(Json::take);
        let is_assistant = role.as_ref().is_some_and(|role| role == "assistant");
        self.mark_value(message, if is_assistant { self.seen_through } else { self.mark });
        if let (Some(role), Some(marked)) = (role, message.get_mut("role")) {
            *marked = match role {
                Json::String(role) => self.mark_role(role).into(),
                other => other,
            };
        }
    }

    /// Inserts marks into every string in the value, including keys: `of_marks` into whole texts of the template's marks.
    fn mark_value(&self, value: &mut Json, of_marks: char) {
        match value {
            Json::String(text) => {
                if let Cow::Owned(marked) = self.mark_text(text, of_marks) {
                    *text = marked;
                }
            }
            Json::Array(items) => items.iter_mut().for_each(|item| self.mark_value(item, of_marks)),
            Json::Object(map) => {
                let marked = std::mem::take(map).into_iter().map(|(name, mut value)| {
                    self.mark_value(&mut value, of_marks);
                    (self.mark_text(&name, of_marks).into_owned(), value)
                });
                *map = marked.collect();
            }
            Json::Null | Json::Bool(_) | Json::Number(_) => {}
        }
    }

    fn mark_text<'t>(&self, text: &'t str, of_marks: char) -> Cow<'t, str> {
        let TokenStarts { whole: mut starts, marks, cut } = self.guarded.starts(text);
        // A text that equals a literal of the template stays unchanged, except for whole guarded tokens.
        if !self.is_literal(text) {
            starts.extend(cut);
            let ranges = self.inside_sought(text);
            let is_inside = |at: &usize| {
                ranges.get(ranges.partition_point(|range| range.end <= *at)).is_some_and(|range| range.contains(at))
            };
            let first_chars = text.match_indices(self.guarded.first_chars()).map(|(at, _)| at);
            starts.extend(first_chars.filter(|at| !is_inside(at) && marks.binary_search(at).is_err()));
        }
        let of_marks = marks.into_iter().map(|at| (at, of_marks));
        let mut starts: Vec<(usize, char)> = starts.into_iter().map(|at| (at, self.mark)).chain(of_marks).collect();
        starts.sort_unstable();
        starts.dedup();
        if starts.is_empty() { Cow::Borrowed(text) } else { Cow::Owned(marked(text, &starts)) }
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
        let TokenStarts { whole, marks, cut } = self.guarded.starts(&role);
        let mut starts: Vec<_> = [vec![0], whole, marks, cut].concat().into_iter().map(|at| (at, self.mark)).collect();
        starts.sort_unstable();
        starts.dedup();
        marked(&role, &starts)
    }

    /// Whether the text is a string literal of the template.
    fn is_literal(&self, text: &str) -> bool {
        self.literals.binary_search_by(|literal| literal.as_str().cmp(text)).is_ok()
    }

    /// The mark that searches pass over.
    pub(super) fn seen_through(&self) -> char {
        self.seen_through
    }

    /// Removes the marks from the prompt, also those that the template printed as escapes.
    pub(super) fn remove_marks(self, rendered: String) -> Rendered {
        let (mut rendered, mut plain_mark) = (rendered, [0; 4]);
        let plain_mark: &str = self.mark.encode_utf8(&mut plain_mark);
        for mark in [self.mark, self.seen_through] {
            // The escapes of Python (a list that is printed) and JSON (`tojson(ensure_ascii=true)`), and those of `urlencode`.
            let in_url: String = mark.encode_utf8(&mut [0; 4]).bytes().map(|byte| format!("%{byte:02X}")).collect();
            for escaped in [mark.to_string(), format!("\\u{:04x}", u32::from(mark)), in_url] {
                if escaped != plain_mark && rendered.contains(&escaped) {
                    rendered = rendered.replace(&escaped, plain_mark);
                }
            }
        }
        let marks = self.guarded.into_marks();
        if !rendered.contains(self.mark) {
            return Rendered { text: rendered, tainted: Vec::new(), marks };
        }
        let mut clean = Rendered { text: String::with_capacity(rendered.len()), tainted: Vec::new(), marks };
        for (index, part) in rendered.split(self.mark).enumerate() {
            if index > 0 {
                clean.tainted.push(clean.text.len());
            }
            clean.text.push_str(part);
        }
        clean
    }
}

/// The text with the given mark after each character that begins at one of `starts`.
fn marked(text: &str, starts: &[(usize, char)]) -> String {
    let mut marked = String::with_capacity(text.len() + starts.len() * '\u{fdd0}'.len_utf8());
    let mut starts = starts.iter().peekable();
    for (at, c) in text.char_indices() {
        marked.push(c);
        if let Some((_, mark)) = starts.next_if(|(start, _)| *start == at) {
            marked.push(*mark);
        }
    }
    marked
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
