//! Reads a regular expression in the notation of ECMAScript into a tree.

use foredraft_base::work::Work;

use super::chars::{CharSet, Ranges};

/// The maximum nesting of groups. It bounds the stack's depth.
const MAX_DEPTH: usize = 64;
/// The maximum count of a repetition.
const MAX_REPEAT: u32 = 1 << 13;
/// The maximum number of classes and characters.
const MAX_ITEMS: usize = 1 << 13;
/// The steps of reading an item.
const STEPS: usize = 8;

/// A part of a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RegexNode {
    /// One character of a set.
    Class(CharSet),
    /// `^`.
    Start,
    /// `$`.
    End,
    /// `\b`, or `\B` if false.
    WordBoundary(bool),
    /// One after the other. The empty sequence is the empty text.
    Seq(Vec<RegexNode>),
    /// One of several, the first ones preferred. Never empty.
    Alt(Vec<RegexNode>),
    /// A group whose place is remembered, by its number from 0.
    Group(Box<RegexNode>, usize),
    /// The text that follows matches this, or does not if false.
    Look(Box<RegexNode>, bool),
    /// A part at least so often, at most so often, and whether as often as possible.
    Repeat(Box<RegexNode>, u32, Option<u32>, bool),
}

/// The reason why a pattern cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PatternFault {
    /// The part that is wrong or not supported, such as "a lookbehind".
    pub what: String,
    /// Where, in characters.
    pub at: usize,
}

/// Reads a pattern. `work` counts its items.
///
/// # Errors
/// The part that is wrong or not supported: lookbehind, references to groups, Unicode properties, flags.
pub fn parse(pattern: &str, work: &Work) -> Result<RegexNode, PatternFault> {
    let rest = pattern.chars().peekable();
    let mut reader = PatternReader { rest, len: pattern.chars().count(), items: 0, n_groups: 0, work };
    let node = reader.alternatives(0).and_then(|node| match reader.rest.next() {
        None => Ok(node),
        Some(_) => Err("unbalanced parentheses".into()),
    });
    node.map_err(|what| PatternFault { what, at: reader.len - reader.rest.count() })
}

impl std::fmt::Display for PatternFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} at character {}", self.what, self.at)
    }
}

type Read<T> = Result<T, String>;

struct PatternReader<'a> {
    rest: std::iter::Peekable<std::str::Chars<'a>>,
    len: usize,
    items: usize,
    n_groups: usize,
    work: &'a Work,
}

impl PatternReader<'_> {
    /// Reads alternatives, up to a closing parenthesis or the end.
    fn alternatives(&mut self, depth: usize) -> Read<RegexNode> {
        if depth > MAX_DEPTH {
            return Err(format!("groups nested deeper than {MAX_DEPTH}"));
        }
        let mut alternatives = vec![self.sequence(depth)?];
        while self.rest.next_if_eq(&'|').is_some() {
            self.count()?;
            alternatives.push(self.sequence(depth)?);
        }
        Ok(if alternatives.len() == 1 { alternatives.swap_remove(0) } else { RegexNode::Alt(alternatives) })
    }

    /// Reads a sequence, up to `|`, a closing parenthesis or the end.
    fn sequence(&mut self, depth: usize) -> Read<RegexNode> {
        let mut nodes = Vec::new();
        while let Some(char) = self.rest.next_if(|char| !['|', ')'].contains(char)) {
            self.count()?;
            let node = match char {
                '(' => self.group(depth)?,
                '*' | '+' | '?' | '{' => return Err(format!("{char:?} without an item to repeat")),
                '^' => RegexNode::Start,
                '$' => RegexNode::End,
                '.' => RegexNode::Class(CharSet::not_line_end()),
                '[' => RegexNode::Class(self.class()?),
                '\\' => match self.rest.next_if(|next| ['b', 'B'].contains(next)) {
                    Some(kind) => RegexNode::WordBoundary(kind == 'b'),
                    None => RegexNode::Class(self.escape()?),
                },
                _ => RegexNode::Class(CharSet::one(u32::from(char))),
            };
            nodes.push(match self.rest.peek() {
                Some('*' | '+' | '?' | '{') => self.repetition(node)?,
                _ => node,
            });
        }
        Ok(if nodes.len() == 1 { nodes.swap_remove(0) } else { RegexNode::Seq(nodes) })
    }

    /// Counts an item, or a member of a class.
    fn count(&mut self) -> Read<()> {
        self.items += 1;
        self.work.step(STEPS).map_err(|end| end.to_string())?;
        if self.items > MAX_ITEMS { Err(format!("more than {MAX_ITEMS} characters and classes")) } else { Ok(()) }
    }

    /// Reads a group, after its parenthesis.
    fn group(&mut self, depth: usize) -> Read<RegexNode> {
        let mut look = None;
        let mut number = None;
        if self.rest.next_if_eq(&'?').is_some() {
            match self.rest.next() {
                Some(':') => {}
                Some(kind @ ('=' | '!')) => look = Some(kind == '='),
                Some('<') if matches!(self.rest.peek(), Some('=' | '!')) => return Err("a lookbehind".into()),
                Some('<') => number = Some(self.name()?),
                Some('P') if self.rest.next_if_eq(&'<').is_some() => number = Some(self.name()?),
                _ => return Err("a group with flags".into()),
            }
        } else {
            number = Some(self.number());
        }
        let node = self.alternatives(depth + 1)?;
        if self.rest.next().is_none() {
            return Err("unbalanced parentheses".into());
        }
        Ok(match (look, number) {
            (Some(ahead), _) => RegexNode::Look(Box::new(node), ahead),
            (None, Some(number)) => RegexNode::Group(Box::new(node), number),
            (None, None) => node,
        })
    }

    /// The number of a new group.
    fn number(&mut self) -> usize {
        self.n_groups += 1;
        self.n_groups - 1
    }

    /// Skips the name of a group, and returns the group's number.
    fn name(&mut self) -> Read<usize> {
        let mut len = 0;
        while let Some(char) = self.rest.next_if(|char| char.is_alphanumeric() || ['_', '$'].contains(char)) {
            if len == 0 && char.is_numeric() {
                break;
            }
            len += 1;
        }
        match self.rest.next() {
            Some('>') if len > 0 => Ok(self.number()),
            _ => Err("an invalid name of a group".into()),
        }
    }

    /// Reads a repetition of `node`.
    fn repetition(&mut self, node: RegexNode) -> Read<RegexNode> {
        let (least, most) = match self.rest.next() {
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('?') => (0, Some(1)),
            _ => self.bounds()?,
        };
        let is_greedy = self.rest.next_if_eq(&'?').is_none();
        match self.rest.peek() {
            Some(char @ ('*' | '+' | '?' | '{')) => Err(format!("{char:?} without an item to repeat")),
            _ => Ok(RegexNode::Repeat(Box::new(node), least, most, is_greedy)),
        }
    }

    /// Reads the bounds of a repetition, after `{`.
    fn bounds(&mut self) -> Read<(u32, Option<u32>)> {
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
    fn class(&mut self) -> Read<CharSet> {
        let negated = self.rest.next_if_eq(&'^').is_some();
        let mut ranges = Ranges::new();
        loop {
            self.work.step(1).map_err(|end| end.to_string())?;
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
    fn escape(&mut self) -> Read<CharSet> {
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
            'p' | 'P' => return Err(format!("a Unicode property (\\{char})")),
            _ if !char.is_alphanumeric() => u32::from(char),
            _ => return Err(format!("the escape \\{char}")),
        };
        Ok(CharSet::one(code))
    }

    /// Reads `XXXX`, a pair of surrogates, or `{X...}`, after `\u`.
    fn unicode(&mut self) -> Read<u32> {
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
    fn hex(&mut self, digits: usize) -> Read<u32> {
        let text: String = self.rest.by_ref().take(digits).collect();
        let is_hex = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        u32::from_str_radix(&text, 16).ok().filter(|_| is_hex).ok_or_else(|| "an invalid escape".into())
    }
}
