//! A grammar's text, read from its beginning to its end: characters, escapes, numbers, and where it is wrong.

/// Characters of the grammar that an error shows.
const SHOWN: usize = 24;

/// What is wrong, and the byte where it is.
pub(super) struct Wrong {
    pub(super) at: usize,
    pub(super) what: String,
}

impl Wrong {
    /// In words, of the grammar's `text`.
    pub(super) fn describe(&self, text: &str) -> String {
        let (before, after) = text.split_at_checked(self.at).unwrap_or((text, ""));
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
        let rest: String = after.split(['\r', '\n']).next().unwrap_or("").chars().take(SHOWN).collect();
        let shown = match (after.is_empty(), rest.is_empty()) {
            (true, _) => "the end".to_owned(),
            (false, true) => "the line's end".to_owned(),
            (false, false) => format!("{rest:?}"),
        };
        format!("line {line}, column {column}: {} at {shown}", self.what)
    }
}

/// The text, and how far it is read.
pub(super) struct Scanner<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Scanner<'a> {
    pub(super) fn new(text: &'a str) -> Scanner<'a> {
        Scanner { text, at: 0 }
    }

    /// The byte to be read next.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// What is not read yet.
    pub(super) fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or("")
    }

    /// What was read since it was at `start`.
    pub(super) fn since(&self, start: usize) -> &'a str {
        self.text.get(start..self.at).unwrap_or("")
    }

    /// The error of what is next.
    pub(super) fn wrong<T>(&self, what: impl Into<String>) -> Result<T, Wrong> {
        Err(Wrong { at: self.at, what: what.into() })
    }

    pub(super) fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// Skips a byte, which is one character.
    pub(super) fn skip(&mut self) {
        self.at += 1;
    }

    /// Skips `byte` if it is next.
    pub(super) fn eat(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    /// Skips `text` if it is next.
    pub(super) fn eat_text(&mut self, text: &str) -> bool {
        let found = self.rest().starts_with(text);
        self.at += if found { text.len() } else { 0 };
        found
    }

    /// Skips and returns the bytes of a kind.
    pub(super) fn take_while(&mut self, kind: impl Fn(u8) -> bool) -> &'a str {
        let start = self.at;
        while self.peek().is_some_and(&kind) {
            self.at += 1;
        }
        self.since(start)
    }

    /// Skips blanks and comments.
    pub(super) fn space(&mut self, newlines: bool) {
        loop {
            self.take_while(|byte| matches!(byte, b' ' | b'\t') || newlines && matches!(byte, b'\r' | b'\n'));
            if self.peek() != Some(b'#') {
                return;
            }
            self.take_while(|byte| !matches!(byte, b'\r' | b'\n'));
        }
    }

    /// The error of a text that ends inside of what `open` opened at `start`.
    pub(super) fn not_closed<T>(&self, start: usize, open: &str) -> Result<T, Wrong> {
        Err(Wrong { at: start, what: format!("unexpected end of input: the {open} is not closed") })
    }

    /// A character or an escape; `None` at the end.
    pub(super) fn char(&mut self) -> Result<Option<u32>, Wrong> {
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
            _ => return self.wrong("unknown escape"),
        };
        self.at += 2;
        let end = self.at + digits;
        let value = self.text.get(self.at..end).filter(|hex| hex.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let Some(value) = value.and_then(|hex| u32::from_str_radix(hex, 16).ok()) else {
            return self.wrong(format!("expecting {digits} hex chars"));
        };
        self.at = end;
        Ok(Some(value))
    }

    fn escaped(&mut self, char: char) -> Option<u32> {
        self.at += 2;
        Some(u32::from(char))
    }

    /// A number; `None` where there is none.
    pub(super) fn count(&mut self) -> Result<Option<u64>, Wrong> {
        let at = self.at;
        let digits = self.take_while(|byte| byte.is_ascii_digit());
        if digits.is_empty() {
            return Ok(None);
        }
        digits.parse().map(Some).map_err(|_| Wrong { at, what: "a number too large".into() })
    }
}

/// What names are made of.
pub(super) fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-'
}
