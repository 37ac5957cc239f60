//! The rules of a grammar while it is written.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;

/// The maximum length of the hint in a rule's name, in bytes.
const MAX_HINT: usize = 40;

/// Collects the named rules of a grammar in GBNF. Several schemas and a chat format can share one collector.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    /// Name and body, in the order of the calls.
    rules: Vec<(String, String)>,
    /// The name of each body that [`Rules::add`] got.
    by_body: HashMap<String, String>,
    names: HashSet<String>,
    /// The names of rules that mention themselves, by what they are.
    shared: HashMap<String, String>,
    size: usize,
}

impl Rules {
    /// A collector without rules.
    #[must_use]
    pub fn new() -> Rules {
        Rules::default()
    }

    /// Adds a rule and returns its name, which is unique. `hint` becomes part of the name. Rules with the same body share one.
    pub fn add(&mut self, hint: &str, body: impl Into<String>) -> String {
        let body = body.into();
        if let Some(name) = self.by_body.get(&body) {
            return name.clone();
        }
        let name = self.declare(hint);
        self.by_body.insert(body.clone(), name.clone());
        self.define(&name, body);
        name
    }

    /// Reserves a unique name for a rule whose body mentions itself. [`Rules::define`] must follow.
    pub fn declare(&mut self, hint: &str) -> String {
        let mut name = String::new();
        for char in hint.chars().take(MAX_HINT) {
            let is_plain = char.is_ascii_alphanumeric();
            if is_plain || !name.is_empty() && !name.ends_with('-') {
                name.push(if is_plain { char } else { '-' });
            }
        }
        name.truncate(name.trim_end_matches('-').len());
        if name.is_empty() {
            name.push_str("rule");
        }
        let mut unique = name.clone();
        let mut number = self.names.len();
        // `to_gbnf` names the start rule so.
        while unique == "root" || self.names.contains(&unique) {
            unique = format!("{name}-{number}");
            number += 1;
        }
        self.names.insert(unique.clone());
        unique
    }

    /// The name of the rule for `key`. True: it is new, and must be defined, as after [`Rules::declare`].
    pub(crate) fn shared(&mut self, key: &str, hint: &str) -> (String, bool) {
        if let Some(name) = self.shared.get(key) {
            return (name.clone(), false);
        }
        let name = self.declare(hint);
        self.shared.insert(key.to_owned(), name.clone());
        (name, true)
    }

    /// Defines a rule that [`Rules::declare`] has named.
    pub fn define(&mut self, name: &str, body: impl Into<String>) {
        let body = body.into();
        self.size += name.len() + body.len() + " ::= \n".len();
        self.rules.push((name.to_owned(), body));
    }

    /// The length of the grammar so far, in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// The grammar that begins with the rule `root`, in GBNF.
    #[must_use]
    pub fn to_gbnf(&self, root: &str) -> String {
        let mut text = format!("root ::= {root}\n");
        for (name, body) in &self.rules {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{name} ::= {body}");
        }
        text
    }
}

/// A literal in GBNF that matches exactly `text`.
#[must_use]
pub fn literal(text: &str) -> String {
    let mut out = String::from("\"");
    for char in text.chars() {
        match char {
            '"' | '\\' => out.extend(['\\', char]),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            char if char.is_control() => out.push_str(&format!("\\U{:08X}", u32::from(char))),
            char => out.push(char),
        }
    }
    out + "\""
}
