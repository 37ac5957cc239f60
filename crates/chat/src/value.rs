//! Reads a value of JSON, Python or Gemma's notation piece by piece, and writes it as JSON.

use std::fmt::Write;

/// The maximum nesting of a value.
const MAX_NESTING: usize = 500;
/// The longest number, word or bare key in bytes.
const MAX_ATOM: usize = 512;
/// The token around strings in Gemma's notation.
pub(crate) const GEMMA_QUOTE: &str = "<|\"|>";

/// How values are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ValueNotation {
    Json,
    /// JSON, or literals of Python. Inside of objects and arrays, strings have Python's escapes. Outside, strings in single quotes have no
    /// escapes but `\'` and `\\'`, because templates print them as they are.
    Python,
    /// Bare keys, and strings between [`GEMMA_QUOTE`].
    Gemma,
}

/// Reads one value.
#[derive(Debug, Clone)]
pub(crate) struct ValueScanner {
    notation: ValueNotation,
    /// The open containers: whether each is an object.
    open: Vec<bool>,
    expect: Expect,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expect {
    Value,
    ValueOrEnd,
    Key,
    KeyOrEnd,
    Colon,
    CommaOrEnd,
    /// Inside of a string with this quote.
    String {
        quote: &'static str,
        is_key: bool,
    },
    Done,
}

/// How far a value was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scan {
    /// It needs more text than there is.
    More,
    /// The value is complete.
    Done,
    /// It is no value.
    Bad,
}

impl ValueScanner {
    pub(crate) fn new(notation: ValueNotation) -> ValueScanner {
        ValueScanner { notation, open: Vec::new(), expect: Expect::Value }
    }

    /// Reads as much as it can of `text`, and writes it to `out` as JSON. Returns the bytes read. `is_final`: no more text follows.
    pub(crate) fn scan(&mut self, text: &str, is_final: bool, out: &mut String) -> (usize, Scan) {
        let mut at = 0;
        while self.expect != Expect::Done {
            let rest = text.get(at..).unwrap_or_default();
            match self.step(rest, is_final, out) {
                Ok(Some(n)) => at += n,
                Ok(None) => return (at, Scan::More),
                Err(()) => return (at, Scan::Bad),
            }
        }
        (at, Scan::Done)
    }

    /// Reads one piece. `None`: more text is needed.
    fn step(&mut self, rest: &str, is_final: bool, out: &mut String) -> Result<Option<usize>, ()> {
        if let Expect::String { quote, is_key } = self.expect {
            return Ok(self.string(quote, is_key, rest, is_final, out));
        }
        let trimmed = rest.trim_start();
        let space = rest.len() - trimmed.len();
        let Some(first) = trimmed.chars().next() else { return Ok(None) };
        // Space between tokens is part of JSON, and is left out otherwise.
        let spaced = |out: &mut String, is_json: bool| {
            if is_json && space > 0 {
                out.push_str(rest.get(..space).unwrap_or_default());
            }
        };
        let is_json = self.notation == ValueNotation::Json && !self.open.is_empty();
        let one = Ok(Some(space + first.len_utf8()));
        match (self.expect, first) {
            (Expect::Value | Expect::ValueOrEnd, '{' | '[') => {
                if self.open.len() >= MAX_NESTING {
                    return Err(());
                }
                spaced(out, is_json);
                out.push(first);
                self.open.push(first == '{');
                self.expect = if first == '{' { Expect::KeyOrEnd } else { Expect::ValueOrEnd };
                one
            }
            (Expect::ValueOrEnd, ']') | (Expect::KeyOrEnd, '}') => {
                spaced(out, is_json);
                self.close(first, out);
                one
            }
            (Expect::CommaOrEnd, ',') => {
                spaced(out, is_json);
                out.push_str(if self.notation == ValueNotation::Json { "," } else { ", " });
                let is_object = self.open.last() == Some(&true);
                self.expect = if is_object { Expect::Key } else { Expect::Value };
                one
            }
            (Expect::CommaOrEnd, ']' | '}') if self.open.last() == Some(&(first == '}')) => {
                spaced(out, is_json);
                self.close(first, out);
                one
            }
            (Expect::Colon, ':') => {
                spaced(out, is_json);
                out.push_str(if self.notation == ValueNotation::Json { ":" } else { ": " });
                self.expect = Expect::Value;
                one
            }
            (Expect::Value | Expect::ValueOrEnd, _) => match self.quote(trimmed, is_final)? {
                Quote::Unknown => Ok(None),
                Quote::Found(quote) => {
                    spaced(out, is_json);
                    out.push('"');
                    self.expect = Expect::String { quote, is_key: false };
                    Ok(Some(space + quote.len()))
                }
                Quote::None => {
                    let Some(atom) = atom(trimmed, is_final)? else { return Ok(None) };
                    spaced(out, is_json);
                    out.push_str(self.constant(atom)?);
                    self.end_value();
                    Ok(Some(space + atom.len()))
                }
            },
            (Expect::Key | Expect::KeyOrEnd, _) => match self.quote(trimmed, is_final)? {
                Quote::Unknown => Ok(None),
                Quote::Found(quote) => {
                    spaced(out, is_json);
                    out.push('"');
                    self.expect = Expect::String { quote, is_key: true };
                    Ok(Some(space + quote.len()))
                }
                Quote::None if self.notation == ValueNotation::Gemma => {
                    let Some(end) = trimmed.find(':') else {
                        return if trimmed.len() > MAX_ATOM { Err(()) } else { Ok(None) };
                    };
                    out.push('"');
                    escape(trimmed.get(..end).unwrap_or_default(), out);
                    out.push('"');
                    self.expect = Expect::Colon;
                    Ok(Some(space + end))
                }
                Quote::None => Err(()),
            },
            _ => Err(()),
        }
    }

    fn quote(&self, text: &str, is_final: bool) -> Result<Quote, ()> {
        if text.starts_with('"') {
            return Ok(Quote::Found("\""));
        }
        match self.notation {
            ValueNotation::Python if text.starts_with('\'') => Ok(Quote::Found("'")),
            ValueNotation::Gemma if text.starts_with(GEMMA_QUOTE) => Ok(Quote::Found(GEMMA_QUOTE)),
            ValueNotation::Gemma if GEMMA_QUOTE.starts_with(text) => {
                if is_final {
                    Err(())
                } else {
                    Ok(Quote::Unknown)
                }
            }
            _ => Ok(Quote::None),
        }
    }

    /// Reads inside of a string.
    fn string(
        &mut self,
        quote: &'static str,
        is_key: bool,
        rest: &str,
        is_final: bool,
        out: &mut String,
    ) -> Option<usize> {
        let ends = |this: &mut ValueScanner, out: &mut String| {
            out.push('"');
            if is_key {
                this.expect = Expect::Colon;
            } else {
                this.end_value();
            }
        };
        if rest.starts_with(quote) {
            ends(self, out);
            return Some(quote.len());
        }
        if quote == GEMMA_QUOTE {
            let end = rest.find(quote).unwrap_or_else(|| rest.len() - if is_final { 0 } else { overlap(rest, quote) });
            escape(rest.get(..end).unwrap_or_default(), out);
            return (end > 0).then_some(end);
        }
        let special = |byte: u8| byte == b'\\' || byte == b'"' || byte == b'\'' || byte < b' ';
        let n_plain = rest.bytes().position(special).unwrap_or(rest.len());
        if n_plain > 0 {
            out.push_str(rest.get(..n_plain).unwrap_or_default());
            return Some(n_plain);
        }
        let mut chars = rest.chars();
        match (chars.next()?, quote) {
            ('\\', _) if self.notation == ValueNotation::Python && !self.open.is_empty() => {
                python_escape(chars.as_str(), is_final, out).map(|n| 1 + n)
            }
            ('\\', "\"") => {
                let escaped = chars.next()?;
                // Escapes that JSON does not know mean the character itself.
                match escaped {
                    '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't' | 'u' => out.extend(['\\', escaped]),
                    other => escape(other.encode_utf8(&mut [0; 4]), out),
                }
                Some(1 + escaped.len_utf8())
            }
            ('\\', _) => match chars.next() {
                Some('\'') => {
                    out.push('\'');
                    Some(2)
                }
                Some('\\') if chars.as_str().starts_with('\'') => {
                    out.push_str("\\\\");
                    Some(2)
                }
                Some('\\') if chars.as_str().is_empty() && !is_final => None,
                None if !is_final => None,
                _ => {
                    out.push_str("\\\\");
                    Some(1)
                }
            },
            (char, _) => {
                escape(char.encode_utf8(&mut [0; 4]), out);
                Some(char.len_utf8())
            }
        }
    }

    /// A number or a constant as JSON.
    fn constant<'a>(&self, atom: &'a str) -> Result<&'a str, ()> {
        let is_python = self.notation == ValueNotation::Python;
        match atom {
            "true" | "false" | "null" => Ok(atom),
            "True" if is_python => Ok("true"),
            "False" if is_python => Ok("false"),
            "None" if is_python => Ok("null"),
            _ if serde_json::from_str::<serde_json::Number>(atom).is_ok() => Ok(atom),
            _ => Err(()),
        }
    }

    fn close(&mut self, char: char, out: &mut String) {
        out.push(char);
        self.open.pop();
        self.end_value();
    }

    fn end_value(&mut self) {
        self.expect = if self.open.is_empty() { Expect::Done } else { Expect::CommaOrEnd };
    }
}

/// Reads an escape of Python behind its backslash, and writes it as JSON. `None`: more text is needed.
fn python_escape(text: &str, is_final: bool, out: &mut String) -> Option<usize> {
    let escaped = text.chars().next()?;
    let n_digits = match escaped {
        'x' => 2,
        'u' => 4,
        'U' => 8,
        _ => 0,
    };
    if text.len() <= n_digits && !is_final {
        return None;
    }
    let digits = text.get(1..=n_digits).unwrap_or_default();
    match (u32::from_str_radix(digits, 16), escaped) {
        (Ok(code), 'x' | 'u') => _ = write!(out, "\\u{code:04x}"),
        (Ok(code), _) => {
            let char = char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
            escape(char.encode_utf8(&mut [0; 4]), out);
        }
        (Err(_), 'b' | 'f' | 'n' | 'r' | 't') => out.extend(['\\', escaped]),
        (Err(_), other) => {
            escape(other.encode_utf8(&mut [0; 4]), out);
            return Some(other.len_utf8());
        }
    }
    Some(escaped.len_utf8() + n_digits)
}

enum Quote {
    Found(&'static str),
    None,
    Unknown,
}

/// A number or a word, once its end is known. `None`: it is not.
fn atom(text: &str, is_final: bool) -> Result<Option<&str>, ()> {
    let end = text.find(|char: char| !(char.is_ascii_alphanumeric() || "+-._".contains(char)));
    match end {
        Some(0) => Err(()),
        Some(end) => Ok(text.get(..end)),
        None if is_final => Ok(Some(text)),
        None if text.len() > MAX_ATOM => Err(()),
        None => Ok(None),
    }
}

/// The length of the longest end of `text` with which `word` begins, shorter than the word.
pub(crate) fn overlap(text: &str, word: &str) -> usize {
    let most = text.len().min(word.len().saturating_sub(1));
    (1..=most).rev().find(|n| text.as_bytes().ends_with(word.as_bytes().get(..*n).unwrap_or_default())).unwrap_or(0)
}

/// Writes a text as it stands inside of a JSON string.
pub(crate) fn escape(text: &str, out: &mut String) {
    let mut plain = 0;
    for (at, byte) in text.bytes().enumerate() {
        if byte >= b' ' && byte != b'"' && byte != b'\\' {
            continue;
        }
        out.push_str(text.get(plain..at).unwrap_or_default());
        plain = at + 1;
        match byte {
            b'"' => out.push_str("\\\""),
            b'\\' => out.push_str("\\\\"),
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b'\t' => out.push_str("\\t"),
            // Writing to a String cannot fail.
            byte => _ = write!(out, "\\u{byte:04x}"),
        }
    }
    out.push_str(text.get(plain..).unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The JSON of a literal of Python, read whole and byte by byte.
    fn json_of(text: &str) -> String {
        let mut whole = String::new();
        let mut scanner = ValueScanner::new(ValueNotation::Python);
        assert_eq!(scanner.scan(text, true, &mut whole), (text.len(), Scan::Done), "{text}");
        for cut in (0..text.len()).filter(|cut| text.is_char_boundary(*cut)) {
            let (mut scanner, mut out) = (ValueScanner::new(ValueNotation::Python), String::new());
            let (first, _) = scanner.scan(&text[..cut], false, &mut out);
            assert_eq!(
                scanner.scan(&text[first..], true, &mut out),
                (text.len() - first, Scan::Done),
                "{text} at {cut}"
            );
            assert_eq!(out, whole, "{text} at {cut}");
        }
        whole
    }

    #[test]
    fn literals_of_python_are_read_as_json() {
        for (python, json) in [
            (r"['a', 1, True, None]", r#"["a", 1, true, null]"#),
            (r#"{'k': "it's", "j": 'say "x"'}"#, r#"{"k": "it's", "j": "say \"x\""}"#),
            (r#"['\n\t\\\'\"']"#, r#"["\n\t\\'\""]"#),
            (r"['\x1b\u00e9\U0001f600\a']", "[\"\\u001b\\u00e9\u{1f600}a\"]"),
            (r#"["\ud83d\ude00", "\/"]"#, r#"["\ud83d\ude00", "/"]"#),
            // A text alone is as the template prints it.
            (r"'C:\new'", r#""C:\\new""#),
        ] {
            assert_eq!(json_of(python), json, "{python}");
        }
    }
}
