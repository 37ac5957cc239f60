//! The parser of GBNF. Accepts the same grammars with the same meaning as llama.cpp's parser (`llama.cpp/src/llama-grammar.cpp`).
//! Errors have a position and the expected input; the parser writes nothing to stderr.
//!
//! Also rejects what llama.cpp's parser does not survive: a repetition like `{5,2}`, which it counts down from 2^64, and
//! expansions that take gigabytes. Nesting uses no stack.

use std::collections::HashMap;

use super::rules::{CharClass, LinkedRules, RuleDefinition, Symbol};
use super::scanner::{ParseError, Scanner, is_word};

/// Most times that something may be repeated, and most rules that a repetition may repeat; an upper bound above it means
/// no bound. llama.cpp's number.
pub(in crate::tests) const MAX_REPEAT: u64 = 2000;
/// Most symbols that a grammar may expand to.
const MAX_SYMBOLS: usize = 1 << 21;
/// The size of a rule beside its symbols, in symbols.
const RULE_SIZE: usize = 8;
/// Finds the one token that a text in angle brackets is.
pub(in crate::tests) type FindToken<'a> = &'a dyn Fn(&str) -> Option<u32>;

/// The rules of `gbnf`, whose start is `root`. The error says where it is wrong and why.
pub(in crate::tests) fn parse(gbnf: &str, find_token: FindToken<'_>) -> Result<LinkedRules, String> {
    let mut parser = Parser {
        scanner: Scanner::new(gbnf),
        find_token,
        ids: HashMap::new(),
        definitions: Vec::new(),
        classes: Vec::new(),
        size: 0,
    };
    parser.grammar().map_err(|error| error.describe(gbnf))?;
    LinkedRules::link(&parser.definitions, parser.classes).map_err(|error| error.describe(gbnf))
}

struct Parser<'a> {
    scanner: Scanner<'a>,
    find_token: FindToken<'a>,
    ids: HashMap<&'a str, u32>,
    definitions: Vec<RuleDefinition<'a>>,
    classes: Vec<CharClass>,
    size: usize,
}

/// A rule or a group in parentheses that is being read.
struct Group {
    rule: u32,
    body: Vec<Symbol>,
    /// Where the item begins that a repetition would repeat, and how many rules it is.
    item: usize,
    item_rules: u64,
    /// How many rules there were before it.
    rules_before: usize,
}

impl Group {
    fn new(rule: u32, rules_before: usize) -> Group {
        Group { rule, body: Vec::new(), item: 0, item_rules: 1, rules_before }
    }

    /// Begins a new item at the end of the body.
    fn begin_item(&mut self) {
        self.item = self.body.len();
        self.item_rules = 1;
    }
}

impl<'a> Parser<'a> {
    fn grammar(&mut self) -> Result<(), ParseError> {
        self.scanner.space(true);
        while self.scanner.peek().is_some() {
            self.rule()?;
            self.scanner.space(true);
        }
        Ok(())
    }

    fn rule(&mut self) -> Result<(), ParseError> {
        let at = self.scanner.at();
        let name = self.scanner.take_while(is_word);
        if name.is_empty() {
            return self.scanner.error("expecting a rule's name");
        }
        let rule = self.id(name, at);
        self.scanner.space(false);
        if !self.scanner.eat_text("::=") {
            return self.scanner.error("expecting ::=");
        }
        self.scanner.space(true);
        self.alternatives(name, rule)?;
        match self.scanner.peek() {
            None | Some(b'\r' | b'\n') => Ok(()),
            Some(_) => self.scanner.error("expecting newline or end"),
        }
    }

    /// The id of a rule that is mentioned at `at`.
    fn id(&mut self, name: &'a str, at: usize) -> u32 {
        let next = number(self.definitions.len());
        let id = *self.ids.entry(name).or_insert(next);
        if id == next {
            self.definitions.push(RuleDefinition { name, at, body: None });
        }
        id
    }

    /// Adds an internal rule for a part of the rule `name`.
    fn add_internal_rule(&mut self, name: &'a str, body: Option<Vec<Symbol>>) -> u32 {
        let id = number(self.definitions.len());
        self.definitions.push(RuleDefinition { name, at: self.scanner.at(), body });
        id
    }

    fn define(&mut self, group: Group) {
        let mut body = group.body;
        body.push(Symbol::End);
        if let Some(definition) = self.definitions.get_mut(group.rule as usize) {
            definition.body = Some(body);
        }
    }

    /// Adds to the size that the grammar expands to.
    fn add_size(&mut self, symbols: usize) -> Result<(), ParseError> {
        self.size = self.size.saturating_add(symbols);
        if self.size > MAX_SYMBOLS {
            return self.scanner.error(format!("the grammar expands to more than {MAX_SYMBOLS} symbols"));
        }
        Ok(())
    }

    /// Parses a rule's body up to the first byte that does not belong to it.
    fn alternatives(&mut self, name: &'a str, rule: u32) -> Result<(), ParseError> {
        let mut outer: Vec<Group> = Vec::new();
        let mut group = Group::new(rule, 0);
        while let Some(byte) = self.scanner.peek() {
            match byte {
                b'(' => {
                    self.scanner.skip();
                    self.scanner.space(true);
                    let rules_before = self.definitions.len();
                    let inner = Group::new(self.add_internal_rule(name, None), rules_before);
                    outer.push(std::mem::replace(&mut group, inner));
                    continue;
                }
                b')' => {
                    let Some(around) = outer.pop() else { break };
                    let inner = std::mem::replace(&mut group, around);
                    group.begin_item();
                    group.item_rules = (self.definitions.len() - inner.rules_before) as u64;
                    group.body.push(Symbol::Rule(inner.rule));
                    self.define(inner);
                    self.scanner.skip();
                }
                b'|' => {
                    self.scanner.skip();
                    self.scanner.space(true);
                    group.body.push(Symbol::Or);
                    group.begin_item();
                    continue;
                }
                b'"' => self.literal(&mut group)?,
                b'[' => self.class(&mut group)?,
                b'<' | b'!' => self.token(&mut group)?,
                b'.' => {
                    self.scanner.skip();
                    group.begin_item();
                    group.body.push(Symbol::Any);
                }
                b'*' | b'+' | b'?' | b'{' => self.repetition(&mut group, name, !outer.is_empty())?,
                _ if is_word(byte) => {
                    let at = self.scanner.at();
                    let mentioned = self.scanner.take_while(is_word);
                    group.begin_item();
                    group.body.push(Symbol::Rule(self.id(mentioned, at)));
                }
                _ => break,
            }
            self.add_size(1)?;
            self.scanner.space(!outer.is_empty());
        }
        if !outer.is_empty() {
            return self.scanner.error("expecting ')'");
        }
        self.define(group);
        Ok(())
    }

    fn literal(&mut self, group: &mut Group) -> Result<(), ParseError> {
        let start = self.scanner.at();
        self.scanner.skip();
        group.begin_item();
        while !self.scanner.eat(b'"') {
            let Some(char) = self.scanner.char()? else { return self.scanner.not_closed(start, "\"") };
            group.body.push(Symbol::Char(char));
            self.add_size(1)?;
        }
        Ok(())
    }

    fn class(&mut self, group: &mut Group) -> Result<(), ParseError> {
        let start = self.scanner.at();
        self.scanner.skip();
        let negated = self.scanner.eat(b'^');
        let mut ranges = Vec::new();
        while !self.scanner.eat(b']') {
            let Some(first) = self.scanner.char()? else { return self.scanner.not_closed(start, "[") };
            let rest = self.scanner.rest().as_bytes();
            let last = match rest {
                [b'-', b']', ..] => first,
                [b'-', ..] => {
                    self.scanner.skip();
                    let Some(last) = self.scanner.char()? else { return self.scanner.not_closed(start, "[") };
                    last
                }
                _ => first,
            };
            ranges.push((first, last));
            self.add_size(1)?;
        }
        group.begin_item();
        // As in llama.cpp, an empty class is not an item.
        if !ranges.is_empty() {
            group.body.push(Symbol::Class(number(self.classes.len())));
            self.classes.push(CharClass::new(negated, ranges));
        }
        Ok(())
    }

    /// Parses `<text>` or `<[id]>`; a preceding `!` means any other token.
    fn token(&mut self, group: &mut Group) -> Result<(), ParseError> {
        let negated = self.scanner.eat(b'!');
        let start = self.scanner.at();
        if !self.scanner.eat(b'<') {
            return self.scanner.error("expecting '<'");
        }
        let token = if self.scanner.eat(b'[') {
            let at = self.scanner.at();
            let digits = self.scanner.take_while(|byte| byte.is_ascii_digit());
            let token = match digits.parse::<u32>() {
                Ok(token) => token,
                Err(_) if digits.is_empty() => return self.scanner.error("expecting integer"),
                Err(_) => return Err(ParseError { at, message: "parsed token id is too big".into() }),
            };
            for close in [b']', b'>'] {
                if !self.scanner.eat(close) {
                    return self.scanner.error(format!("expecting '{}'", char::from(close)));
                }
            }
            token
        } else {
            self.scanner.take_while(|byte| byte != b'>');
            if !self.scanner.eat(b'>') {
                return self.scanner.error("expecting '>'");
            }
            let text = self.scanner.since(start);
            let Some(token) = (self.find_token)(text) else {
                return Err(ParseError {
                    at: start,
                    message: "invalid token (not one token of the vocabulary)".into(),
                });
            };
            token
        };
        group.begin_item();
        group.body.push(if negated { Symbol::NotToken(token) } else { Symbol::Token(token) });
        Ok(())
    }

    fn repetition(&mut self, group: &mut Group, name: &'a str, nested: bool) -> Result<(), ParseError> {
        let start = self.scanner.at();
        let (min, max) = match self.scanner.peek() {
            Some(b'*') => (0, None),
            Some(b'+') => (1, None),
            Some(b'?') => (0, Some(1)),
            _ => self.bounds(nested)?,
        };
        if self.scanner.at() == start {
            self.scanner.skip();
        }
        self.repeat(group, name, min, max).map_err(|message| ParseError { at: start, message })
    }

    /// Parses `{m}`, `{m,}` or `{m,n}`.
    fn bounds(&mut self, nested: bool) -> Result<(u64, Option<u64>), ParseError> {
        let start = self.scanner.at();
        self.scanner.skip();
        self.scanner.space(nested);
        let min = match self.scanner.count()? {
            Some(min) => min,
            None => return self.scanner.error("expecting an int"),
        };
        self.scanner.space(nested);
        let mut max = Some(min);
        if self.scanner.eat(b',') {
            self.scanner.space(nested);
            max = self.scanner.count()?;
            self.scanner.space(nested);
            if !self.scanner.eat(b'}') {
                return self.scanner.error("expecting '}'");
            }
        } else if !self.scanner.eat(b'}') {
            return self.scanner.error("expecting ','");
        }
        let error = |message: String| Err(ParseError { at: start, message });
        if min > MAX_REPEAT {
            return error(format!("number of repetitions exceeds {MAX_REPEAT}, please reduce it"));
        }
        match max.filter(|max| *max <= MAX_REPEAT) {
            Some(max) if max < min => error(format!("a repetition of at least {min} and at most {max}")),
            max => Ok((min, max)),
        }
    }

    /// Repeats the last item. `S{m,n}` becomes m times S and n - m rules that each have one more optional S; without an upper
    /// bound it becomes m times S and one rule `R ::= S R | `.
    fn repeat(&mut self, group: &mut Group, name: &'a str, min: u64, max: Option<u64>) -> Result<(), String> {
        let item: Vec<Symbol> = group.body.get(group.item..).unwrap_or(&[]).to_vec();
        if item.is_empty() {
            return Err("expecting preceding item to */+/?/{".into());
        }
        let times = max.filter(|max| *max > 0).unwrap_or(min).max(1);
        group.item_rules = group.item_rules.saturating_mul(times);
        if group.item_rules > MAX_REPEAT {
            return Err(format!(
                "number of rules that are going to be repeated multiplied by the new repetition exceeds {MAX_REPEAT}, \
                 please reduce the number of repetitions or rule complexity"
            ));
        }
        let optional = max.map_or(1, |max| max.saturating_sub(min));
        let size = |count: u64, each: usize| usize::try_from(count).unwrap_or(usize::MAX).saturating_mul(each);
        let grown = size(min.saturating_sub(1), item.len()).saturating_add(size(optional, item.len() + RULE_SIZE));
        self.add_size(grown).map_err(|error| error.message)?;
        if min == 0 {
            group.body.truncate(group.item);
        }
        for _ in 1..min {
            group.body.extend_from_slice(&item);
        }
        let mut last = None;
        for _ in 0..optional {
            let mut body = item.clone();
            let next = if max.is_none() { Some(number(self.definitions.len())) } else { last };
            body.extend(next.map(Symbol::Rule));
            body.extend([Symbol::Or, Symbol::End]);
            last = Some(self.add_internal_rule(name, Some(body)));
        }
        group.body.extend(last.map(Symbol::Rule));
        Ok(())
    }
}

/// Positions and ids are below 2^21 by [`MAX_SYMBOLS`] and the length of a grammar.
fn number(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}
