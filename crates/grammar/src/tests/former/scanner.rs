//! The scanner of GBNF: characters, escapes, numbers, and positions of errors.

/// The largest number of the grammar's characters in an error message.
const MAX_SHOWN: usize = 24;

/// A syntax error at a byte offset.
pub(in crate::tests) struct ParseError {
    pub(in crate::tests) at: usize,
    pub(in crate::tests) message: String,
}

impl ParseError {
    /// The message with line and column; `text` is the whole grammar.
    pub(in crate::tests) fn describe(&self, text: &str) -> String {
        let (before, after) = text.split_at_checked(self.at).unwrap_or((text, ""));
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
        let rest: String = after.split(['\r', '\n']).next().unwrap_or("").chars().take(MAX_SHOWN).collect();
        let shown = match (after.is_empty(), rest.is_empty()) {
            (true, _) => "the end".to_owned(),
            (false, true) => "the line's end".to_owned(),
            (false, false) => format!("{rest:?}"),
        };
        format!("line {line}, column {column}: {} at {shown}", self.message)
    }
}

/// The grammar's text with a read position.
pub(in crate::tests) struct Scanner<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Scanner<'a> {
    pub(in crate::tests) fn new(text: &'a str) -> Scanner<'a> {
        Scanner { text, at: 0 }
    }

    /// The read position in bytes.
    pub(in crate::tests) fn at(&self) -> usize {
        self.at
    }

    /// The unread part.
    pub(in crate::tests) fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or("")
    }

    /// The part from `start` to the read position.
    pub(in crate::tests) fn since(&self, start: usize) -> &'a str {
        self.text.get(start..self.at).unwrap_or("")
    }

    /// An error at the read position.
    pub(in crate::tests) fn error<T>(&self, message: impl Into<String>) -> Result<T, ParseError> {
        Err(ParseError { at: self.at, message: message.into() })
    }

    pub(in crate::tests) fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// Skips a one-byte character.
    pub(in crate::tests) fn skip(&mut self) {
        self.at += 1;
    }

    /// Skips `byte` if it is next.
    pub(in crate::tests) fn eat(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    /// Skips `text` if it is next.
    pub(in crate::tests) fn eat_text(&mut self, text: &str) -> bool {
        let found = self.rest().starts_with(text);
        self.at += if found { text.len() } else { 0 };
        found
    }

    /// Skips and returns bytes as long as `kind` is true.
    pub(in crate::tests) fn take_while(&mut self, kind: impl Fn(u8) -> bool) -> &'a str {
        let start = self.at;
        while self.peek().is_some_and(&kind) {
            self.at += 1;
        }
        self.since(start)
    }

    /// Skips blanks and comments, and line breaks if `newlines`.
    pub(in crate::tests) fn space(&mut self, newlines: bool) {
        loop {
            self.take_while(|byte| matches!(byte, b' ' | b'\t') || newlines && matches!(byte, b'\r' | b'\n'));
            if self.peek() != Some(b'#') {
                return;
            }
            self.take_while(|byte| !matches!(byte, b'\r' | b'\n'));
        }
    }

    /// The error for input that ends inside the construct that `open` opened at `start`.
    pub(in crate::tests) fn not_closed<T>(&self, start: usize, open: &str) -> Result<T, ParseError> {
        Err(ParseError { at: start, message: format!("unexpected end of input: the {open} is not closed") })
    }

    /// Reads a character or an escape; `None` at the end.
    pub(in crate::tests) fn char(&mut self) -> Result<Option<u32>, ParseError> {
        let Some(char) = self.rest().chars().next() else { return Ok(None) };
        if char != '\\' {
            self.at += char.len_utf8();
            return Ok(Some(u32::from(char)));
        }
        let escape = self.text.as_bytes().get(self.at + 1).copied();
        let digits = match escape {
            Some(b'x') => 2,
            Some(b'u') => 4,
            Some(b'U') => 8,
            Some(b't') => return Ok(self.escaped('\t')),
            Some(b'r') => return Ok(self.escaped('\r')),
            Some(b'n') => return Ok(self.escaped('\n')),
            Some(byte @ (b'\\' | b'"' | b'[' | b']' | b'-')) => return Ok(self.escaped(char::from(byte))),
            _ => return self.error("unknown escape"),
        };
        self.at += 2;
        let end = self.at + digits;
        let value = self.text.get(self.at..end).filter(|hex| hex.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let Some(value) = value.and_then(|hex| u32::from_str_radix(hex, 16).ok()) else {
            return self.error(format!("expecting {digits} hex chars"));
        };
        self.at = end;
        Ok(Some(value))
    }

    fn escaped(&mut self, char: char) -> Option<u32> {
        self.at += 2;
        Some(u32::from(char))
    }

    /// Reads a number; `None` if there is none.
    pub(in crate::tests) fn count(&mut self) -> Result<Option<u64>, ParseError> {
        let at = self.at;
        let digits = self.take_while(|byte| byte.is_ascii_digit());
        if digits.is_empty() {
            return Ok(None);
        }
        digits.parse().map(Some).map_err(|_| ParseError { at, message: "a number too large".into() })
    }
}

/// Whether a byte may be part of a rule name.
pub(in crate::tests) fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-'
}
