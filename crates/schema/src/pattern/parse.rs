//! Reads a regular expression (ECMA-262) into a tree. The error names the part that a grammar cannot express.

use foredraft_base::work::Work;

use super::classes::{CharSet, Ranges};
use super::node::PatternNode;
use crate::document::VISIT;

/// The maximum nesting of groups.
const MAX_DEPTH: usize = 32;
/// The maximum count of a repetition.
const MAX_REPEAT: u32 = 2000;
/// The maximum number of classes and characters.
const MAX_ITEMS: usize = 1 << 13;

/// Reads a pattern.
pub(super) fn parse(pattern: &str, work: &Work) -> Result<PatternNode, String> {
    let mut reader = PatternReader { rest: pattern.chars().peekable(), items: 0, work };
    let node = reader.alternatives(0)?;
    match reader.rest.next() {
        None => Ok(node),
        Some(_) => Err("unbalanced parentheses".into()),
    }
}

struct PatternReader<'a> {
    rest: std::iter::Peekable<std::str::Chars<'a>>,
    items: usize,
    work: &'a Work,
}

impl PatternReader<'_> {
    /// Reads alternatives, up to a closing parenthesis or the end.
    fn alternatives(&mut self, depth: usize) -> Result<PatternNode, String> {
        if depth > MAX_DEPTH {
            return Err(format!("groups nested deeper than {MAX_DEPTH}"));
        }
        let mut alternatives = vec![self.sequence(depth)?];
        while self.rest.next_if_eq(&'|').is_some() {
            self.count()?;
            alternatives.push(self.sequence(depth)?);
        }
        Ok(if alternatives.len() == 1 { alternatives.swap_remove(0) } else { PatternNode::Alt(alternatives) })
    }

    /// Reads a sequence, up to `|`, a closing parenthesis or the end.
    fn sequence(&mut self, depth: usize) -> Result<PatternNode, String> {
        let mut nodes = Vec::new();
        while let Some(char) = self.rest.next_if(|char| !['|', ')'].contains(char)) {
            self.count()?;
            let node = match char {
                '(' => self.group(depth)?,
                '*' | '+' | '?' | '{' => return Err(format!("{char:?} without an item to repeat")),
                '^' => PatternNode::Start,
                '$' => PatternNode::End,
                '.' => PatternNode::Class(CharSet::not_line_end()),
                '[' => PatternNode::Class(self.class()?),
                '\\' => PatternNode::Class(self.escape()?),
                _ => PatternNode::Class(CharSet::one(u32::from(char))),
            };
            let node = match self.rest.peek() {
                Some('*' | '+' | '?' | '{') => self.repetition(node)?,
                _ => node,
            };
            nodes.push(node);
        }
        Ok(if nodes.len() == 1 { nodes.swap_remove(0) } else { PatternNode::Seq(nodes) })
    }

    /// Counts an item.
    fn count(&mut self) -> Result<(), String> {
        self.items += 1;
        self.work.step(VISIT).map_err(|end| end.to_string())?;
        if self.items > MAX_ITEMS { Err(format!("more than {MAX_ITEMS} characters and classes")) } else { Ok(()) }
    }

    /// Reads a group, after its parenthesis. Names mean nothing here, because references to groups are refused.
    fn group(&mut self, depth: usize) -> Result<PatternNode, String> {
        if self.rest.next_if_eq(&'?').is_some() {
            match self.rest.next() {
                Some(':') => {}
                Some('=' | '!') => return Err("a lookahead".into()),
                Some('<') if matches!(self.rest.peek(), Some('=' | '!')) => return Err("a lookbehind".into()),
                Some('<') => self.name()?,
                Some('P') if self.rest.next_if_eq(&'<').is_some() => self.name()?,
                _ => return Err("a group with flags".into()),
            }
        }
        let node = self.alternatives(depth + 1)?;
        match self.rest.next() {
            Some(_) => Ok(node),
            None => Err("unbalanced parentheses".into()),
        }
    }

    /// Skips the name of a group.
    fn name(&mut self) -> Result<(), String> {
        let mut len = 0;
        while let Some(char) = self.rest.next_if(|char| char.is_alphanumeric() || ['_', '$'].contains(char)) {
            if len == 0 && char.is_numeric() {
                break;
            }
            len += 1;
        }
        match self.rest.next() {
            Some('>') if len > 0 => Ok(()),
            _ => Err("an invalid name of a group".into()),
        }
    }

    /// Reads a repetition of `node`. Lazy ones repeat the same texts.
    fn repetition(&mut self, node: PatternNode) -> Result<PatternNode, String> {
        let (least, most) = match self.rest.next() {
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('?') => (0, Some(1)),
            _ => self.bounds()?,
        };
        self.rest.next_if_eq(&'?');
        match self.rest.peek() {
            Some(char @ ('*' | '+' | '?' | '{')) => Err(format!("{char:?} without an item to repeat")),
            _ if !node.has_anchor() => PatternNode::repeat(node, least, most, self.work),
            _ => match (least, most) {
                (_, Some(0)) => Ok(PatternNode::EMPTY),
                (1, Some(1)) => Ok(node),
                (0, Some(1)) => Ok(PatternNode::Alt(vec![node, PatternNode::EMPTY])),
                _ => Err("a repeated anchor".into()),
            },
        }
    }

    /// Reads the bounds of a repetition, after `{`.
    fn bounds(&mut self) -> Result<(u32, Option<u32>), String> {
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
        let bad = || {
            let shown: String = inside.chars().take(40).collect();
            format!("{{{shown}}} (expected whole numbers up to {MAX_REPEAT})")
        };
        let least = read(least).ok_or_else(bad)?;
        let most = match most {
            "" => None,
            most => Some(read(most).filter(|most| *most >= least).ok_or_else(bad)?),
        };
        Ok((least, most))
    }

    /// Reads a class, after `[`.
    fn class(&mut self) -> Result<CharSet, String> {
        let negated = self.rest.next_if_eq(&'^').is_some();
        let mut ranges = Ranges::new();
        loop {
            let first = match self.rest.next().ok_or("unterminated character class")? {
                ']' => return Ok(CharSet::new(negated, &ranges)),
                '\\' if self.rest.next_if_eq(&'b').is_some() => CharSet::one(0x08),
                '\\' => self.escape()?,
                char => CharSet::one(u32::from(char)),
            };
            let mut ahead = self.rest.clone();
            let is_range = ahead.next() == Some('-') && ahead.next().is_some_and(|next| next != ']');
            ranges.extend_from_slice(first.ranges());
            if !is_range {
                continue;
            }
            self.rest.next();
            // A class cannot begin a range, so the hyphen is a literal (ECMA-262, annex B), and so is the next character.
            let Some(low) = first.single() else {
                ranges.push((0x2D, 0x2D));
                continue;
            };
            let high = match self.rest.next().ok_or("unterminated character class")? {
                '\\' if self.rest.next_if_eq(&'b').is_some() => 0x08,
                '\\' => self.escape()?.single().ok_or("a range that ends with a class")?,
                char => u32::from(char),
            };
            if high < low {
                return Err("a range in reverse order".into());
            }
            ranges.push((low, high));
        }
    }

    /// Reads an escape, after the backslash.
    fn escape(&mut self) -> Result<CharSet, String> {
        let char = self.rest.next().ok_or("trailing backslash")?;
        let code = match char {
            'd' | 'D' => return Ok(CharSet::digit(char == 'D')),
            'w' | 'W' => return Ok(CharSet::word(char == 'W')),
            's' | 'S' => return Ok(CharSet::whitespace(char == 'S')),
            't' => 0x09,
            'n' => 0x0A,
            'v' => 0x0B,
            'f' => 0x0C,
            'r' => 0x0D,
            'x' => self.hex(2)?,
            'u' => self.unicode()?,
            '0' if !self.rest.peek().is_some_and(char::is_ascii_digit) => 0,
            '0'..='9' | 'k' => return Err(format!("a reference to a group (\\{char})")),
            'b' | 'B' => return Err(format!("a word boundary (\\{char})")),
            'p' | 'P' => return Err(format!("a Unicode property (\\{char})")),
            _ if char.is_ascii_punctuation() => u32::from(char),
            _ => return Err(format!("the escape \\{char}")),
        };
        Ok(CharSet::one(code))
    }

    /// Reads `XXXX`, a pair of surrogates, or `{X...}`, after `\u`.
    fn unicode(&mut self) -> Result<u32, String> {
        if self.rest.next_if_eq(&'{').is_some() {
            let mut text = String::new();
            while let Some(char) = self.rest.next_if(char::is_ascii_hexdigit) {
                text.push(char);
            }
            let code = u32::from_str_radix(&text, 16).ok().filter(|code| *code <= 0x10_FFFF);
            return code.filter(|_| self.rest.next() == Some('}')).ok_or_else(|| "an invalid escape".into());
        }
        let code = self.hex(4)?;
        if (0xD800..0xDC00).contains(&code) {
            let before = self.rest.clone();
            if self.rest.next() == Some('\\')
                && self.rest.next() == Some('u')
                && let Ok(low @ 0xDC00..0xE000) = self.hex(4)
            {
                return Ok(0x1_0000 + ((code - 0xD800) << 10) + (low - 0xDC00));
            }
            self.rest = before;
        }
        Ok(code)
    }

    /// Reads a number of this many hexadecimal digits.
    fn hex(&mut self, digits: usize) -> Result<u32, String> {
        let text: String = self.rest.by_ref().take(digits).collect();
        let is_hex = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        u32::from_str_radix(&text, 16).ok().filter(|_| is_hex).ok_or_else(|| "an invalid escape".into())
    }
}
