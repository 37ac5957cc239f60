//! Regular expressions in schemas.
//!
//! llama.cpp's converter copies a pattern's characters into the grammar unchanged, so `.` and `[^a]` would accept an unescaped quote
//! inside a JSON string. It replaces unsupported patterns by "any string", with only a message on stderr. So each character and
//! class is converted here: to a class of the characters that need no escape in JSON strings; or, if there are none, to the
//! escapes. Everything else is refused.

/// Characters that need an escape in a JSON string, and surrogates.
const ESCAPED: [(u32, u32); 5] = [(0, 0x1F), (0x22, 0x22), (0x5C, 0x5C), (0x7F, 0x7F), (0xD800, 0xDFFF)];
/// The escapes that have a letter in JSON.
const LETTERS: [(u32, char); 7] =
    [(0x08, 'b'), (0x09, 't'), (0x0A, 'n'), (0x0C, 'f'), (0x0D, 'r'), (0x22, '"'), (0x5C, '\\')];
/// Line ends, which `.` does not match (ECMA-262).
const LINE_ENDS: [(u32, u32); 3] = [(0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029)];
/// The whitespace that `\s` matches (ECMA-262). The list is complete, because `\S` is its complement.
const WHITESPACE: [(u32, u32); 10] = [
    (0x09, 0x0D),
    (0x20, 0x20),
    (0xA0, 0xA0),
    (0x1680, 0x1680),
    (0x2000, 0x200A),
    (0x2028, 0x2029),
    (0x202F, 0x202F),
    (0x205F, 0x205F),
    (0x3000, 0x3000),
    (0xFEFF, 0xFEFF),
];
/// The maximum nesting of groups.
const MAX_DEPTH: usize = 32;
/// The maximum count of a repetition.
const MAX_REPEAT: u32 = 2000;

/// Converts a pattern to one that the converter handles correctly: anchored (narrower than a search, so still valid), and with only
/// classes, groups, `|` and repetitions. The error names the part that a grammar cannot express.
pub(super) fn convert(pattern: &str) -> Result<String, String> {
    let inner = pattern.strip_prefix('^').unwrap_or(pattern);
    let escaped = inner.strip_suffix('$').is_some_and(|rest| (rest.len() - rest.trim_end_matches('\\').len()) % 2 == 1);
    let inner = if escaped { inner } else { inner.strip_suffix('$').unwrap_or(inner) };
    let mut reader = PatternReader { rest: inner.chars().peekable(), out: String::from("^") };
    let mut depth = 0_usize;
    // Whether the previous item can be repeated.
    let mut item = false;
    while let Some(char) = reader.rest.next() {
        item = match char {
            '(' => {
                if reader.rest.next_if_eq(&'?').is_some() && reader.rest.next() != Some(':') {
                    return Err("groups with lookaround, names or flags".into());
                }
                depth += 1;
                if depth > MAX_DEPTH {
                    return Err(format!("groups nested deeper than {MAX_DEPTH}"));
                }
                reader.out.push('(');
                false
            }
            ')' => {
                depth = depth.checked_sub(1).ok_or("unbalanced parentheses")?;
                reader.out.push(')');
                true
            }
            '|' => {
                reader.out.push('|');
                false
            }
            '*' | '+' | '?' | '{' if !item => return Err(format!("{char:?} without an item to repeat")),
            '*' | '+' | '?' => {
                reader.out.push(char);
                false
            }
            '{' => {
                reader.bounds()?;
                false
            }
            '^' | '$' => return Err("anchors inside".into()),
            '.' => reader.class(true, &LINE_ENDS)?,
            '[' => {
                let (negated, ranges) = reader.ranges()?;
                reader.class(negated, &ranges)?
            }
            '\\' => {
                let (negated, ranges) = reader.escape()?;
                reader.class(negated, &ranges)?
            }
            _ => reader.class(false, &[(u32::from(char), u32::from(char))])?,
        };
    }
    if depth > 0 {
        return Err("unbalanced parentheses".into());
    }
    Ok(reader.out + "$")
}

/// Ranges of code points, both ends inclusive.
type Ranges = Vec<(u32, u32)>;

struct PatternReader<'a> {
    rest: std::iter::Peekable<std::str::Chars<'a>>,
    out: String,
}

impl PatternReader<'_> {
    /// Writes a class. Returns true: it can be repeated.
    fn class(&mut self, negated: bool, ranges: &[(u32, u32)]) -> Result<bool, String> {
        let wanted = if negated { complement(ranges) } else { complement(&complement(ranges)) };
        let mut excluded = ESCAPED.to_vec();
        excluded.extend(complement(&wanted));
        let plain = complement(&excluded);
        if plain.is_empty() {
            return self.escapes(&wanted);
        }
        self.out.push('[');
        for (first, last) in plain {
            self.out.push_str(&format!("\\U{first:08X}-\\U{last:08X}"));
        }
        self.out.push(']');
        Ok(true)
    }

    /// Writes the escapes of these characters. Returns true: they can be repeated.
    fn escapes(&mut self, wanted: &[(u32, u32)]) -> Result<bool, String> {
        let chars = wanted.iter().flat_map(|(first, last)| *first..=*last).filter_map(char::from_u32);
        let alternatives: Vec<String> = chars
            .map(|char| match LETTERS.iter().find(|(code, _)| *code == u32::from(char)) {
                Some((_, letter)) => letter.to_string(),
                None => format!("u{:04x}", u32::from(char)),
            })
            .map(|escape| {
                ['\\'].into_iter().chain(escape.chars()).map(|char| format!("[\\U{:08X}]", u32::from(char))).collect()
            })
            .collect();
        if alternatives.is_empty() {
            return Err("an empty class".into());
        }
        self.out.push_str(&format!("({})", alternatives.join("|")));
        Ok(true)
    }

    /// Reads a class, after `[`.
    fn ranges(&mut self) -> Result<(bool, Ranges), String> {
        let negated = self.rest.next_if_eq(&'^').is_some();
        let mut ranges = Vec::new();
        loop {
            let first = match self.rest.next().ok_or("unterminated character class")? {
                ']' => return Ok((negated, ranges)),
                '\\' => match self.escape()? {
                    (false, set) => set,
                    (true, _) => return Err("negated escapes in a class".into()),
                },
                char => vec![(u32::from(char), u32::from(char))],
            };
            let mut ahead = self.rest.clone();
            let is_range = ahead.next() == Some('-') && ahead.next().is_some_and(|next| next != ']');
            if !is_range {
                ranges.extend(first);
                continue;
            }
            self.rest.next();
            let low = match first.as_slice() {
                [(char, last)] if char == last => *char,
                // A class cannot begin a range, so the hyphen is a literal (ECMA-262, annex B), and so is the next character.
                _ => {
                    ranges.extend(first);
                    ranges.push((0x2D, 0x2D));
                    continue;
                }
            };
            let high = match self.rest.next().ok_or("unterminated character class")? {
                '\\' => match self.escape()?.1.as_slice() {
                    [(char, last)] if char == last => *char,
                    _ => return Err("a range that ends with a class".into()),
                },
                char => u32::from(char),
            };
            if high < low {
                return Err("a range in reverse order".into());
            }
            ranges.push((low, high));
        }
    }

    /// Reads an escape, after the backslash.
    fn escape(&mut self) -> Result<(bool, Ranges), String> {
        let digit = || vec![(0x30, 0x39)];
        let word = || vec![(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)];
        let hex = |reader: &mut Self, digits: usize| {
            let text: String = reader.rest.by_ref().take(digits).collect();
            let is_hex = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit());
            u32::from_str_radix(&text, 16).ok().filter(|_| is_hex).ok_or("an invalid escape")
        };
        let char = self.rest.next().ok_or("trailing backslash")?;
        let one = match char {
            'd' => return Ok((false, digit())),
            'D' => return Ok((true, digit())),
            'w' => return Ok((false, word())),
            'W' => return Ok((true, word())),
            's' => return Ok((false, WHITESPACE.to_vec())),
            'S' => return Ok((true, WHITESPACE.to_vec())),
            't' => 0x09,
            'n' => 0x0A,
            'r' => 0x0D,
            'x' => hex(self, 2)?,
            'u' => hex(self, 4)?,
            _ if char.is_ascii_punctuation() => u32::from(char),
            _ => return Err(format!("the escape \\{char}")),
        };
        Ok((false, vec![(one, one)]))
    }

    /// Reads the bounds of a repetition, after `{`.
    fn bounds(&mut self) -> Result<(), String> {
        let mut inside = String::new();
        loop {
            match self.rest.next().ok_or("unterminated curly brackets")? {
                '}' => break,
                char => inside.push(char),
            }
        }
        let (least, most) = inside.split_once(',').unwrap_or((&inside, &inside));
        let is_number = |text: &&str| text.bytes().all(|byte| byte.is_ascii_digit());
        let read =
            |text: &str| Some(text).filter(is_number)?.parse::<u32>().ok().filter(|number| *number <= MAX_REPEAT);
        let bad = || format!("{{{inside}}} (expected whole numbers up to {MAX_REPEAT})");
        let least = read(least).ok_or_else(bad)?;
        if most.is_empty() {
            self.out.push_str(&format!("{{{least},}}"));
        } else {
            let most = read(most).filter(|most| *most >= least).ok_or_else(bad)?;
            self.out.push_str(&format!("{{{least},{most}}}"));
        }
        Ok(())
    }
}

/// The complement of the ranges, in order.
fn complement(ranges: &[(u32, u32)]) -> Ranges {
    let mut ranges = ranges.to_vec();
    ranges.sort_unstable();
    let mut next = 0;
    let mut rest = Vec::new();
    for (first, last) in ranges {
        if next < first {
            rest.push((next, first - 1));
        }
        next = next.max(last.saturating_add(1));
    }
    if next <= 0x10_FFFF {
        rest.push((next, 0x10_FFFF));
    }
    rest
}
