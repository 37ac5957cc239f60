//! Tells the messages' text from the template's own, in the prompt that a template renders.
//!
//! A template transforms what it prints: it trims, splits and joins strings, removes parts of them, and quotes them as JSON.
//! So where a message ends up in the prompt cannot be computed. Instead marks go into the messages before they are
//! rendered, behind each character with which a control token's text could begin. Marks survive the transformations, and are
//! taken out of the prompt again: the character before a mark is *tainted*, and no control token may be made of it (see
//! [`crate::llama::SpecialTokens`]).
//!
//! The template must understand the messages as if there were no marks. What it looks for in them stands in its source as a
//! string. So within such a string no mark is put, unless it has a whole control token's text in it: a template does not find
//! that in a message, because there it is only text.

use std::borrow::Cow;

use serde_json::{Map, Value as Json};

use crate::error::{Error, Result};
use crate::llama::{ControlStarts, SpecialTokens};

/// Marks are noncharacters, which no text for interchange has. One that the messages have is not used.
const NONCHARACTERS: std::ops::RangeInclusive<char> = '\u{fdd0}'..='\u{fdef}';
/// Roles that templates print without naming them, perhaps within a control token (`<|user|>`).
const ROLES: [&str; 7] = ["system", "developer", "user", "assistant", "tool", "function", "model"];

/// A rendered prompt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rendered {
    /// The prompt.
    pub text: String,
    /// Byte offsets behind the tainted characters, ascending.
    pub tainted: Vec<usize>,
}

/// Puts marks into a template's variables, and takes them out of what was rendered.
pub(super) struct Marker<'a> {
    mark: char,
    specials: &'a SpecialTokens,
    /// The strings in the template's source.
    literals: &'a [String],
    /// Those of them in which a mark could come to stand.
    sought: Vec<&'a str>,
}

impl<'a> Marker<'a> {
    /// For a template with these strings in its source, and these variables.
    ///
    /// # Errors
    /// The messages have all characters that could be marks.
    pub(super) fn new(
        literals: &'a [String],
        variables: &Map<String, Json>,
        specials: &'a SpecialTokens,
    ) -> Result<Marker<'a>> {
        let is_used = |mark: char| {
            // Also as escapes: marks are taken out where a template printed them so.
            let hex = format!("{:x}", u32::from(mark));
            let uses = |text: &str| text.contains(mark) || text.contains(&hex);
            literals.iter().any(|text| uses(text))
                || variables.iter().any(|(name, value)| uses(name) || any_text(value, &uses))
        };
        let mark = NONCHARACTERS.into_iter().find(|mark| !is_used(*mark));
        let mark = mark.ok_or_else(|| Error::invalid("messages: use every noncharacter from U+FDD0 to U+FDEF"))?;
        let starts_inside = |text: &&str| {
            let last = text.chars().next_back().map_or(0, char::len_utf8);
            text.get(..text.len() - last).is_some_and(|front| front.contains(specials.first_chars()))
        };
        let sought = literals.iter().map(String::as_str).filter(starts_inside).collect();
        Ok(Marker { mark, specials, literals, sought })
    }

    /// The variables with marks. Those that are tokens of the vocabulary (`bos_token`) are the template's own text.
    pub(super) fn variables(&self, mut variables: Map<String, Json>) -> Map<String, Json> {
        for (name, value) in &mut variables {
            match value {
                Json::Array(messages) if name == "messages" => messages.iter_mut().for_each(|it| self.message(it)),
                Json::String(_) if name.ends_with("_token") => {}
                value => self.value(value),
            }
        }
        variables
    }

    fn message(&self, message: &mut Json) {
        let role = message.get_mut("role").map(Json::take);
        self.value(message);
        if let (Some(role), Some(place)) = (role, message.get_mut("role")) {
            *place = match role {
                Json::String(role) => self.role(role).into(),
                other => other,
            };
        }
    }

    /// Every string in the value, names of members included.
    fn value(&self, value: &mut Json) {
        match value {
            Json::String(text) => {
                if let Cow::Owned(marked) = self.text(text) {
                    *text = marked;
                }
            }
            Json::Array(items) => items.iter_mut().for_each(|item| self.value(item)),
            Json::Object(map) => {
                let marked = std::mem::take(map).into_iter().map(|(name, mut value)| {
                    self.value(&mut value);
                    (self.text(&name).into_owned(), value)
                });
                *map = marked.collect();
            }
            Json::Null | Json::Bool(_) | Json::Number(_) => {}
        }
    }

    fn text<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let ControlStarts { whole: mut starts, cut } = self.specials.control_starts(text);
        // A word that the template compares with stays.
        if !self.is_literal(text) {
            starts.extend(cut);
            let hides = self.within_sought(text);
            let first_chars = text.match_indices(self.specials.first_chars()).map(|(at, _)| at);
            starts.extend(first_chars.filter(|at| hides.get(*at) != Some(&true)));
            starts.sort_unstable();
            starts.dedup();
        }
        if starts.is_empty() { Cow::Borrowed(text) } else { Cow::Owned(self.marked(text, &starts)) }
    }

    /// For each byte, whether a mark behind it would stand within a string that the template may look for.
    fn within_sought(&self, text: &str) -> Vec<bool> {
        let mut within = Vec::new();
        for sought in &self.sought {
            let last = sought.char_indices().next_back().map_or(0, |(at, _)| at);
            for (at, _) in text.match_indices(sought) {
                within.resize(text.len(), false);
                within.get_mut(at..at + last).unwrap_or_default().fill(true);
            }
        }
        within
    }

    /// A template may print a role within a control token's text. One that is neither usual nor known to it must not choose the token.
    fn role(&self, role: String) -> String {
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

    /// Whether the template's source has this text as a string.
    fn is_literal(&self, text: &str) -> bool {
        self.literals.binary_search_by(|literal| literal.as_str().cmp(text)).is_ok()
    }

    /// The text with a mark behind each character that begins at one of `starts`.
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

    /// The prompt without marks, whichever way the template printed them.
    pub(super) fn take_out(&self, rendered: String) -> Rendered {
        let number = u32::from(self.mark);
        let mut rendered = rendered;
        // As Python and JSON escape it (`tojson(ensure_ascii=true)`), and as Rust does where a whole list is printed.
        for escaped in [format!("\\u{number:04x}"), format!("\\u{{{number:x}}}")] {
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

/// Whether a string in the value, or a member's name, is so.
fn any_text(value: &Json, is_so: &impl Fn(&str) -> bool) -> bool {
    match value {
        Json::String(text) => is_so(text),
        Json::Array(items) => items.iter().any(|item| any_text(item, is_so)),
        Json::Object(map) => map.iter().any(|(name, value)| is_so(name) || any_text(value, is_so)),
        Json::Null | Json::Bool(_) | Json::Number(_) => false,
    }
}
