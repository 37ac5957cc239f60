//! Source to tokens, with the whitespace rules of Jinja2 for `trim_blocks` and `lstrip_blocks`.

use crate::error::{Fault, FaultKind, TemplateResult};

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Lexeme {
    /// Text outside of tags.
    Data(String),
    /// `{{`
    PrintBegin,
    /// `}}`
    PrintEnd,
    /// `{%`
    BlockBegin,
    /// `%}`
    BlockEnd,
    Name(String),
    Text(String),
    Int(i128),
    Float(f64),
    Operator(&'static str),
}

/// Longer ones first.
const OPERATORS: [&str; 26] = [
    "**", "//", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<", "=", ".",
    ":", "|", ",", ";",
];

/// The tokens of a source with their lines.
pub(crate) fn tokens(source: &str) -> TemplateResult<Vec<(Lexeme, u32)>> {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut lexer =
        Lexer { rest: source.strip_suffix('\n').unwrap_or(&source), line: 1, tokens: Vec::new(), at_line_start: true };
    while !lexer.rest.is_empty() {
        lexer.segment()?;
    }
    Ok(lexer.tokens)
}

struct Lexer<'s> {
    rest: &'s str,
    line: u32,
    tokens: Vec<(Lexeme, u32)>,
    /// The last tag ended with a line feed, or there was none.
    at_line_start: bool,
}

impl<'s> Lexer<'s> {
    fn fail<T>(&self, message: impl Into<String>) -> TemplateResult<T> {
        Err(Fault::new(FaultKind::Syntax, message).at(self.line))
    }

    fn advance(&mut self, bytes: usize) -> &'s str {
        let (taken, rest) = self.rest.split_at_checked(bytes).unwrap_or((self.rest, ""));
        self.line += taken.matches('\n').count() as u32;
        self.rest = rest;
        taken
    }

    fn push(&mut self, token: Lexeme) {
        self.tokens.push((token, self.line));
    }

    /// Reads text up to a tag, and the tag.
    fn segment(&mut self) -> TemplateResult<()> {
        let bytes = self.rest.as_bytes();
        let is_tag = |(at, _): &(usize, &str)| matches!(bytes.get(at + 1), Some(b'{' | b'%' | b'#'));
        let begin = self.rest.match_indices('{').find(is_tag).map(|(at, _)| at);
        let Some(begin) = begin else {
            return self.data(self.rest.len(), "", false);
        };
        let tag = self.rest.get(begin..begin + 2).unwrap_or_default();
        let sign = self.sign_at(begin + 2);
        self.data(begin, sign, tag != "{{")?;
        self.advance(2 + sign.len());
        match tag {
            "{#" => {
                let Some(end) = self.rest.find("#}") else { return self.fail("unexpected end of comment") };
                // The sign before the end belongs to it.
                let inside = self.rest.get(..end).unwrap_or_default();
                let signed = inside.ends_with(['-', '+']);
                self.advance(if signed { end - 1 } else { end });
                self.tag_end("#}")
            }
            "{%" if self.keyword_end("raw").is_some() => self.raw(),
            "{%" => {
                self.push(Lexeme::BlockBegin);
                self.expression("%}")?;
                self.push(Lexeme::BlockEnd);
                self.tag_end("%}")
            }
            _ => {
                self.push(Lexeme::PrintBegin);
                self.expression("}}")?;
                self.push(Lexeme::PrintEnd);
                self.tag_end("}}")
            }
        }
    }

    /// The sign at that place: `-`, `+` or none.
    fn sign_at(&self, at: usize) -> &'static str {
        match self.rest.as_bytes().get(at) {
            Some(b'-') => "-",
            Some(b'+') => "+",
            _ => "",
        }
    }

    /// Reads text of that many bytes, before a tag with this sign.
    fn data(&mut self, bytes: usize, sign: &str, strips_line: bool) -> TemplateResult<()> {
        let line = self.line;
        let mut text = self.advance(bytes);
        if sign == "-" {
            text = text.trim_end();
        } else if strips_line && sign != "+" {
            let start = text.rfind('\n').map_or(0, |at| at + 1);
            let tail = text.get(start..).unwrap_or_default();
            if (start > 0 || self.at_line_start) && !tail.is_empty() && tail.trim().is_empty() {
                text = text.get(..start).unwrap_or_default();
            }
        }
        if !text.is_empty() {
            self.tokens.push((Lexeme::Data(text.to_owned()), line));
        }
        Ok(())
    }

    /// Reads the end of a tag with its sign, and the whitespace that it removes.
    fn tag_end(&mut self, end: &str) -> TemplateResult<()> {
        let sign = self.sign_at(0);
        self.advance(sign.len() + end.len());
        let removed = match sign {
            "-" => self.rest.len() - self.rest.trim_start().len(),
            "+" => 0,
            _ => usize::from(end != "}}" && self.rest.starts_with('\n')),
        };
        self.at_line_start = self.advance(removed).ends_with('\n');
        Ok(())
    }

    /// The bytes of a keyword that is all there is in a tag, before the tag's end.
    fn keyword_end(&self, keyword: &str) -> Option<usize> {
        let after = self.rest.trim_start().strip_prefix(keyword)?.trim_start();
        let is_end = after.starts_with("%}") || after.starts_with("-%}") || after.starts_with("+%}");
        is_end.then_some(self.rest.len() - after.len())
    }

    /// Reads raw text, after `{%`.
    fn raw(&mut self) -> TemplateResult<()> {
        self.advance(self.keyword_end("raw").unwrap_or_default());
        let sign = self.sign_at(0);
        self.advance(sign.len() + 2);
        if sign == "-" {
            self.advance(self.rest.len() - self.rest.trim_start().len());
        }
        self.at_line_start = false;
        let mut searched = 0;
        loop {
            let Some(found) = self.rest.get(searched..).and_then(|rest| rest.find("{%")) else {
                return self.fail("missing end of raw block");
            };
            let begin = searched + found;
            let sign = self.sign_at(begin + 2);
            let inside = Lexer {
                rest: self.rest.get(begin + 2 + sign.len()..).unwrap_or_default(),
                line: 0,
                tokens: Vec::new(),
                at_line_start: false,
            };
            if let Some(keyword) = inside.keyword_end("endraw") {
                self.data(begin, sign, true)?;
                self.advance(2 + sign.len() + keyword);
                return self.tag_end("%}");
            }
            searched = begin + 2;
        }
    }

    /// Reads the tokens of a tag up to its end, which is not read.
    fn expression(&mut self, end: &str) -> TemplateResult<()> {
        let mut open = Vec::new();
        loop {
            self.advance(self.rest.len() - self.rest.trim_start().len());
            let Some(first) = self.rest.chars().next() else {
                let kind = if end == "}}" { "print statement" } else { "block" };
                return self.fail(format!("unexpected end of {kind}"));
            };
            let unsigned = self.rest.strip_prefix(['-', '+']).filter(|_| end == "%}" || first == '-');
            if open.is_empty() && (self.rest.starts_with(end) || unsigned.is_some_and(|rest| rest.starts_with(end))) {
                return Ok(());
            }
            match first {
                '\'' | '"' => self.string(first)?,
                '0'..='9' => self.number()?,
                c if c.is_alphabetic() || c == '_' => {
                    let len = self.rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(self.rest.len());
                    let line = self.line;
                    let name = self.advance(len).to_owned();
                    self.tokens.push((Lexeme::Name(name), line));
                }
                c => {
                    let Some(operator) = OPERATORS.iter().find(|operator| self.rest.starts_with(**operator)) else {
                        return self.fail(format!("unexpected character {c:?}"));
                    };
                    match *operator {
                        "{" => open.push("}"),
                        "[" => open.push("]"),
                        "(" => open.push(")"),
                        closing @ ("}" | "]" | ")") if open.pop() != Some(closing) => {
                            return self.fail(format!("unexpected '{closing}'"));
                        }
                        _ => {}
                    }
                    self.push(Lexeme::Operator(operator));
                    self.advance(operator.len());
                }
            }
        }
    }

    fn string(&mut self, quote: char) -> TemplateResult<()> {
        let line = self.line;
        let (mut text, mut chars) = (String::new(), self.rest.chars());
        chars.next();
        loop {
            match chars.next() {
                None => return self.fail("unexpected end of string"),
                Some(c) if c == quote => break,
                Some('\\') => unescape(&mut chars, &mut text),
                Some(c) => text.push(c),
            }
        }
        self.advance(self.rest.len() - chars.as_str().len());
        self.tokens.push((Lexeme::Text(text), line));
        Ok(())
    }

    fn number(&mut self) -> TemplateResult<()> {
        let digits = |text: &str| {
            let len = text.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(text.len());
            text.get(..len).map_or(0, |digits| digits.trim_end_matches('_').len())
        };
        let after = |at: usize| self.rest.get(at..).unwrap_or_default();
        let radix = match self.rest.as_bytes() {
            [b'0', b'x' | b'X', ..] => Some(16),
            [b'0', b'o' | b'O', ..] => Some(8),
            [b'0', b'b' | b'B', ..] => Some(2),
            _ => None,
        };
        if let Some(radix) = radix {
            let len = after(2).find(|c: char| !c.is_digit(radix) && c != '_').unwrap_or(after(2).len());
            let text = self.advance(2 + len).get(2..).unwrap_or_default().replace('_', "");
            let Ok(number) = i128::from_str_radix(&text, radix) else { return self.fail("invalid number") };
            self.push(Lexeme::Int(number));
            return Ok(());
        }
        let mut len = digits(self.rest);
        let is_attribute = self.tokens.last().is_some_and(|(token, _)| *token == Lexeme::Operator("."));
        let mut is_float = false;
        if !is_attribute {
            let fraction = after(len).strip_prefix('.').map_or(0, digits);
            if fraction > 0 {
                len += 1 + fraction;
                is_float = true;
            }
            if let Some(exponent) = after(len).strip_prefix(['e', 'E']) {
                let sign = usize::from(exponent.starts_with(['+', '-']));
                let power = exponent.get(sign..).map_or(0, digits);
                if power > 0 {
                    len += 1 + sign + power;
                    is_float = true;
                }
            }
        }
        let text = self.advance(len).replace('_', "");
        let token = if is_float { text.parse().ok().map(Lexeme::Float) } else { text.parse().ok().map(Lexeme::Int) };
        let Some(token) = token else { return self.fail("invalid number") };
        self.push(token);
        Ok(())
    }
}

/// Reads an escape of Python's string literals, after the backslash.
fn unescape(chars: &mut std::str::Chars, text: &mut String) {
    let code = |digits: usize, chars: &mut std::str::Chars| {
        let hex = chars.as_str().get(..digits).filter(|hex| hex.chars().all(|c| c.is_ascii_hexdigit()));
        let found = hex.and_then(|hex| u32::from_str_radix(hex, 16).ok()).and_then(char::from_u32);
        if found.is_some() {
            chars.nth(digits - 1);
        }
        found
    };
    let Some(escaped) = chars.next() else { return };
    let plain = match escaped {
        '\n' => return,
        'n' => '\n',
        't' => '\t',
        'r' => '\r',
        'a' => '\u{7}',
        'b' => '\u{8}',
        'f' => '\u{c}',
        'v' => '\u{b}',
        '\\' | '\'' | '"' => escaped,
        'x' | 'u' | 'U' => {
            let digits = match escaped {
                'x' => 2,
                'u' => 4,
                _ => 8,
            };
            match code(digits, chars) {
                Some(c) => c,
                None => {
                    text.push('\\');
                    escaped
                }
            }
        }
        '0'..='7' => {
            let mut number = escaped.to_digit(8).unwrap_or_default();
            for _ in 0..2 {
                let Some(digit) = chars.clone().next().and_then(|c| c.to_digit(8)) else { break };
                number = number * 8 + digit;
                chars.next();
            }
            char::from_u32(number).unwrap_or_default()
        }
        other => {
            text.push('\\');
            other
        }
    };
    text.push(plain);
}
