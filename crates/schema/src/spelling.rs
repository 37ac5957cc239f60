//! How strings are spelled: in JSON, in Python, or raw between tags.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::classes::{class, class_without};
use crate::delimiters::Delimiters;
use crate::pattern::{CharSet, PatternNode, Ranges};
use crate::rules::{Rules, literal};

/// Characters that a JSON string has only as escapes, DEL, and surrogates.
const ESCAPED: [(u32, u32); 5] = [(0, 0x1F), (0x22, 0x22), (0x5C, 0x5C), (0x7F, 0x7F), SURROGATES];
/// Surrogates are no characters.
const SURROGATES: (u32, u32) = (0xD800, 0xDFFF);
/// Characters that no completion has raw.
const UNSAYABLE: [(u32, u32); 2] = [(0, 0), SURROGATES];
/// The escapes that have a letter in JSON.
const LETTERS: [(u32, char); 8] =
    [(0x08, 'b'), (0x09, 't'), (0x0A, 'n'), (0x0C, 'f'), (0x0D, 'r'), (0x22, '"'), (0x2F, '/'), (0x5C, '\\')];
/// Any escape of a JSON string. Surrogates only in pairs, because a lone one is invalid.
const ESCAPE: &str = concat!(
    r#"[\\] (["\\/bfnrt] | "u" ([0-9a-ce-fA-CE-F] [0-9a-fA-F]{3} | [dD] [0-7] [0-9a-fA-F]{2} | "#,
    r#"[dD] [89abAB] [0-9a-fA-F]{2} [\\] "u" [dD] [c-fC-F] [0-9a-fA-F]{2}))"#,
);
/// The escapes that have a letter in a Python string in single quotes.
const PYTHON_LETTERS: [(u32, char); 5] = [(0x09, 't'), (0x0A, 'n'), (0x0D, 'r'), (0x27, '\''), (0x5C, '\\')];
/// Characters that a Python string in single quotes has only as escapes, DEL, and surrogates.
const PYTHON_ESCAPED: [(u32, u32); 5] = [(0, 0x1F), (0x27, 0x27), (0x5C, 0x5C), (0x7F, 0x7F), SURROGATES];
/// The escapes of a Python string that the reader of calls knows.
const PYTHON_ESCAPE: &str =
    r#"[\\] (["'\\nrt] | "x" [0-9a-fA-F]{2} | "u" ([0-9a-ce-fA-CE-F] [0-9a-fA-F]{3} | [dD] [0-7] [0-9a-fA-F]{2}))"#;
/// The maximum length of what a pattern is written to, in bytes.
const MAX_LEN: usize = 1 << 16;
/// Characters that JSON has outside of strings, or in escapes. No delimiter is recognized by them.
const STRUCTURE: &str = " \t\r\n{}[]:,\"\\/+-.0123456789abcdefABCDEFlnrstu";

/// Further characters that Python has outside of strings, or in escapes.
const PYTHON_WORDS: &str = "'TFNox";

/// How the strings of a value are written.
#[derive(Debug, Clone)]
pub(crate) enum Spelling {
    /// As JSON strings, without their quotes. They contain none of the delimiters.
    Json(Option<Delimiters>),
    /// As Python's strings in single quotes, without these. They contain none of the delimiters.
    Python(Option<Delimiters>),
    /// As they are. They contain none of the delimiters.
    Raw(Option<Delimiters>),
}

impl Spelling {
    /// The ways to write a value outside of tags, in which no delimiter occurs: JSON, and also Python. The error names a delimiter that
    /// these cannot avoid.
    pub(crate) fn quoted(delimiters: &[&str], python: bool) -> Result<Vec<Spelling>, String> {
        let mut parts = Vec::new();
        for delimiter in delimiters.iter().filter(|text| !text.is_empty()) {
            // The rest from the first character on that occurs only in strings. To avoid the rest is to avoid the delimiter.
            match delimiter.trim_start_matches(|char| STRUCTURE.contains(char) || python && PYTHON_WORDS.contains(char))
            {
                "" => {
                    return Err(format!("the delimiter {delimiter:?} has no character that JSON has only in strings"));
                }
                rest => parts.push(rest),
            }
        }
        let delimiters = Delimiters::new(&parts);
        let python = python.then(|| Spelling::Python(delimiters.clone()));
        Ok(std::iter::once(Spelling::Json(delimiters)).chain(python).collect())
    }

    pub(crate) fn raw(delimiters: &[&str]) -> Spelling {
        Spelling::Raw(Delimiters::new(delimiters))
    }

    pub(crate) fn is_python(&self) -> bool {
        matches!(self, Spelling::Python(_))
    }

    /// A string with this content, in quotes.
    pub(crate) fn in_quotes(&self, content: &str) -> String {
        let quote = if self.is_python() { "\"'\"" } else { "\"\\\"\"" };
        format!("{quote} {content} {quote}")
    }

    fn letters(&self) -> &'static [(u32, char)] {
        match self {
            Spelling::Json(_) => &LETTERS,
            Spelling::Python(_) => &PYTHON_LETTERS,
            Spelling::Raw(_) => &[],
        }
    }

    /// The characters that are not written as themselves.
    fn escaped(&self) -> &'static [(u32, u32)] {
        match self {
            Spelling::Json(_) => &ESCAPED,
            Spelling::Python(_) => &PYTHON_ESCAPED,
            Spelling::Raw(_) => &UNSAYABLE,
        }
    }

    /// The rule of an escape, if there are any.
    fn escape(&self, rules: &mut Rules) -> Option<String> {
        match self {
            Spelling::Json(_) => Some(rules.add("escape", ESCAPE)),
            Spelling::Python(_) => Some(rules.add("escape", PYTHON_ESCAPE)),
            Spelling::Raw(_) => None,
        }
    }

    fn delimiters(&self) -> Option<&Delimiters> {
        match self {
            Spelling::Json(delimiters) | Spelling::Python(delimiters) | Spelling::Raw(delimiters) => {
                delimiters.as_ref()
            }
        }
    }

    /// The GBNF for one character of any kind.
    fn any_char(&self, rules: &mut Rules) -> String {
        let plain = class_without(self.escaped());
        match self.escape(rules) {
            Some(escape) => rules.add("char", format!("{plain} | {escape}")),
            None => rules.add("raw-char", plain),
        }
    }

    /// The GBNF for any string. `is_closed`: it does not end with the beginning of a delimiter.
    pub(crate) fn any_text(&self, rules: &mut Rules, is_closed: bool) -> String {
        match self.delimiters() {
            Some(delimiters) => {
                let escape = self.escape(rules);
                delimiters.rule(rules, escape.as_deref(), self.escaped(), is_closed)
            }
            None => format!("{}*", self.any_char(rules)),
        }
    }

    /// The GBNF for exactly this string. `None`: it has a delimiter.
    pub(crate) fn exactly(&self, text: &str) -> Option<String> {
        match self {
            Spelling::Raw(delimiters) => {
                let allows = delimiters.as_ref().is_none_or(|delimiters| delimiters.allows(text));
                (allows && !text.contains('\0')).then(|| literal(text))
            }
            Spelling::Json(_) | Spelling::Python(_) => {
                let quoted = self.value(&Value::from(text));
                Some(literal(quoted.get(1..quoted.len().saturating_sub(1)).unwrap_or_default()))
            }
        }
    }

    /// The text of a value, with escapes where a string would have a delimiter.
    pub(crate) fn value(&self, value: &Value) -> String {
        let mut text = match self {
            Spelling::Python(_) => {
                let mut text = String::new();
                write_python(value, &mut text);
                text
            }
            Spelling::Json(_) | Spelling::Raw(_) => value.to_string(),
        };
        for delimiter in self.delimiters().into_iter().flat_map(Delimiters::texts) {
            let Some((first, rest)) = delimiter.split_first() else { continue };
            let whole: String = delimiter.iter().collect();
            let mut units = [0; 2];
            let mut escaped: String = match self {
                Spelling::Python(_) if u32::from(*first) > 0xFFFF => format!("\\U{:08x}", u32::from(*first)),
                _ => first.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")).collect(),
            };
            escaped.extend(rest);
            text = text.replace(&whole, &escaped);
        }
        text
    }

    /// The GBNF for the strings that a pattern matches as a whole. The error names the part that a grammar cannot express.
    pub(crate) fn pattern(&self, node: &PatternNode, rules: &mut Rules) -> Result<String, String> {
        if node.is_any_text() {
            return Ok(self.any_text(rules, false));
        }
        let avoiding = match self.delimiters() {
            Some(delimiters) => avoid(node, delimiters).ok_or("only texts with what ends the argument")?,
            None => node.clone(),
        };
        let mut out = String::new();
        self.write(&avoiding, rules, &mut out)?;
        Ok(out)
    }

    fn write(&self, node: &PatternNode, rules: &mut Rules, out: &mut String) -> Result<(), String> {
        if out.len() > MAX_LEN {
            return Err("too many characters and classes".into());
        }
        if !out.is_empty() && !out.ends_with(['(', ' ']) {
            out.push(' ');
        }
        match node {
            PatternNode::Class(set) => out.push_str(&self.set(set, rules)?),
            PatternNode::Seq(nodes) if nodes.is_empty() => out.push_str("\"\""),
            PatternNode::Seq(nodes) => {
                for node in nodes {
                    if matches!(node, PatternNode::Alt(_)) {
                        self.group(node, rules, out)?;
                    } else {
                        self.write(node, rules, out)?;
                    }
                }
            }
            PatternNode::Alt(nodes) => {
                for (i, node) in nodes.iter().enumerate() {
                    if i > 0 {
                        out.push_str(" |");
                    }
                    self.write(node, rules, out)?;
                }
            }
            node if node.is_any_text() => out.push_str(&self.any_text(rules, true)),
            PatternNode::Repeat(item, least, most) => {
                match &**item {
                    PatternNode::Class(set) => out.push_str(&self.set(set, rules)?),
                    // A rule of its own counts as one in the parser's limit for repetitions.
                    item => {
                        let mut body = String::new();
                        self.write(item, rules, &mut body)?;
                        out.push_str(&rules.add("part", body));
                    }
                }
                out.push_str(&match (least, most) {
                    (0, None) => "*".to_owned(),
                    (1, None) => "+".to_owned(),
                    (0, Some(1)) => "?".to_owned(),
                    (1, Some(1)) => String::new(),
                    (least, None) => format!("{{{least},}}"),
                    (least, Some(most)) => format!("{{{least},{most}}}"),
                });
            }
            // None are left in a pattern for the whole text.
            PatternNode::Start | PatternNode::End => {}
        }
        Ok(())
    }

    fn group(&self, node: &PatternNode, rules: &mut Rules, out: &mut String) -> Result<(), String> {
        out.push_str(if out.is_empty() || out.ends_with(['(', ' ']) { "(" } else { " (" });
        self.write(node, rules, out)?;
        out.push(')');
        Ok(())
    }

    /// The spellings of all characters but some: the characters that are not written as themselves, and the letters of escapes.
    /// Characters with which a delimiter begins have none.
    pub(crate) fn spellings_without(&self, taken: &[(u32, u32)]) -> (Ranges, Ranges) {
        let mut excluded = self.escaped().to_vec();
        excluded.extend_from_slice(taken);
        excluded.extend(self.delimiters().map(Delimiters::first_chars).unwrap_or_default());
        let is_taken = |code: u32| taken.iter().any(|(first, last)| (*first..=*last).contains(&code));
        let letters = self.letters().iter().filter(|(code, _)| !is_taken(*code));
        (excluded, letters.map(|(_, letter)| (u32::from(*letter), u32::from(*letter))).collect())
    }

    /// Writes a set of characters as an item that can be repeated.
    fn set(&self, set: &CharSet, rules: &mut Rules) -> Result<String, String> {
        if *set == CharSet::any() {
            return Ok(self.any_char(rules));
        }
        if let Spelling::Raw(_) = self {
            let plain = set.without(&UNSAYABLE);
            return if plain.is_empty() { Err("an empty class".into()) } else { Ok(class(plain.ranges())) };
        }
        // A character as itself, or an escape with a letter. Escapes by number are used only where nothing else is in the set.
        let letters = self.letters().iter().filter(|(code, _)| set.contains(*code));
        let letters: Ranges = letters.map(|(_, letter)| (u32::from(*letter), u32::from(*letter))).collect();
        let plain = set.without(self.escaped());
        let mut spellings = Vec::new();
        if !plain.is_empty() {
            spellings.push(class(plain.ranges()));
        }
        if !letters.is_empty() {
            spellings.push(format!("[\\\\] {}", class(&letters)));
        }
        if plain.is_empty() {
            let controls = (0..0x20).chain([0x7F]);
            let by_number =
                controls.filter(|code| set.contains(*code) && self.letters().iter().all(|(other, _)| other != code));
            spellings.extend(by_number.map(|code| literal(&format!("\\u{code:04x}"))));
        }
        match spellings.as_slice() {
            [] => Err("an empty class".into()),
            [only] if !plain.is_empty() => Ok(only.clone()),
            _ => Ok(rules.add("chars", spellings.join(" | "))),
        }
    }
}

/// Writes a value as a literal of Python.
fn write_python(value: &Value, out: &mut String) {
    match value {
        Value::Null => out.push_str("None"),
        Value::Bool(flag) => out.push_str(if *flag { "True" } else { "False" }),
        Value::Number(number) => out.push_str(&number.to_string()),
        Value::String(text) => {
            out.push('\'');
            for char in text.chars() {
                let code = u32::from(char);
                match PYTHON_LETTERS.iter().find(|(escaped, _)| *escaped == code) {
                    Some((_, letter)) => out.extend(['\\', *letter]),
                    None if char.is_control() => out.push_str(&format!("\\x{code:02x}")),
                    None => out.push(char),
                }
            }
            out.push('\'');
        }
        Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                write_python(item, out);
            }
            out.push(']');
        }
        Value::Object(map) => {
            out.push('{');
            for (index, (key, item)) in map.iter().enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                write_python(&Value::from(key.as_str()), out);
                out.push_str(": ");
                write_python(item, out);
            }
            out.push('}');
        }
    }
}

/// A pattern of which no text has a delimiter, and no text ends with the beginning of one. `None`: there are no such texts.
///
/// The result can be narrower than it must be. Where the pattern has any text, this stays, because its rule avoids the delimiters by itself
/// ([`Spelling::any_text`]).
fn avoid(node: &PatternNode, delimiters: &Delimiters) -> Option<PatternNode> {
    let mut sets = Vec::new();
    node.add_sets(&mut sets);
    let is_possible = |char: &char| sets.iter().any(|set| set.contains(u32::from(*char)));
    let possible: Vec<&Vec<char>> = delimiters.texts().iter().filter(|text| text.iter().all(is_possible)).collect();
    if possible.is_empty() {
        return Some(node.clone());
    }
    let firsts = delimiters.first_chars();
    // A length alone: characters with which no delimiter begins, or those and pairs of one and a harmless next one.
    if let PatternNode::Repeat(item, least, most) = node
        && **item == PatternNode::Class(CharSet::any())
    {
        let plain = PatternNode::Class(CharSet::any().without(&firsts));
        let repeat = |item: &PatternNode, most: Option<u32>| PatternNode::Repeat(Box::new(item.clone()), *least, most);
        let seconds =
            delimiters.texts().iter().filter_map(|text| text.get(1)).map(|char| (u32::from(*char), u32::from(*char)));
        let harmless = CharSet::any().without(&seconds.chain(firsts.iter().copied()).collect::<Vec<_>>());
        let has_singles = delimiters.texts().iter().any(|text| text.len() == 1);
        let pairs = most.map(|most| most / 2).filter(|_| !has_singles);
        let can_pair = !has_singles && (most.is_none() || pairs.is_some_and(|pairs| pairs > 0 && pairs >= *least));
        if !can_pair {
            return Some(repeat(&plain, *most));
        }
        let pair = vec![PatternNode::Class(CharSet::new(false, &firsts)), PatternNode::Class(harmless)];
        let unit = PatternNode::Alt(vec![plain.clone(), PatternNode::Seq(pair)]);
        return Some(match most {
            None => repeat(&unit, None),
            Some(_) => PatternNode::Alt(vec![repeat(&plain, *most), repeat(&unit, pairs)]),
        });
    }
    // No delimiter begins outside of any text.
    if let Some(without) = node.without(&firsts, true) {
        return Some(without);
    }
    // One of each delimiter's characters occurs nowhere.
    let mut rest = node.clone();
    for text in possible {
        let candidates: BTreeSet<u32> = text.iter().map(|char| u32::from(*char)).collect();
        rest = candidates.into_iter().find_map(|code| rest.without(&[(code, code)], false))?;
    }
    Some(rest)
}
