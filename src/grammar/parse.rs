//! Reads GBNF, llama.cpp's notation for grammars, as its own parser does (`src/llama-grammar.cpp`): the same texts are
//! grammars and mean the same, but a text that is none is answered with the place and what was expected there, and
//! nothing is written to stderr.
//!
//! Refused beyond that is what llama.cpp's parser would not survive: a repetition of at least 5 and at most 2, which it
//! counts down from 2^64, and expansions that take gigabytes. Nesting costs no stack.

use std::collections::HashMap;

use super::rules::{Class, Draft, Rules, Symbol};
use super::scanner::{Scanner, Wrong, is_word};

/// Most times that something may be repeated, and most rules that a repetition may repeat; an upper bound above it means
/// no bound. llama.cpp's number.
pub(super) const MAX_REPEAT: u64 = 2000;
/// Most symbols that a grammar may expand to.
const MAX_SYMBOLS: usize = 1 << 21;
/// What a rule takes beside its symbols, in symbols.
const RULE: usize = 8;
/// Finds the one token that a text in angle brackets is.
pub(super) type FindToken<'a> = &'a dyn Fn(&str) -> Option<u32>;

/// The rules of `gbnf`, whose start is `root`. The error says where it is wrong and why.
pub(super) fn parse(gbnf: &str, find_token: FindToken<'_>) -> Result<Rules, String> {
    let mut parser = Parser {
        scanner: Scanner::new(gbnf),
        find_token,
        ids: HashMap::new(),
        drafts: Vec::new(),
        classes: Vec::new(),
        size: 0,
    };
    parser.grammar().map_err(|wrong| wrong.describe(gbnf))?;
    Rules::link(&parser.drafts, parser.classes).map_err(|wrong| wrong.describe(gbnf))
}

struct Parser<'a> {
    scanner: Scanner<'a>,
    find_token: FindToken<'a>,
    ids: HashMap<&'a str, u32>,
    drafts: Vec<Draft<'a>>,
    classes: Vec<Class>,
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

    /// What is pushed next is an item.
    fn begin_item(&mut self) {
        self.item = self.body.len();
        self.item_rules = 1;
    }
}

impl<'a> Parser<'a> {
    fn grammar(&mut self) -> Result<(), Wrong> {
        self.scanner.space(true);
        while self.scanner.peek().is_some() {
            self.rule()?;
            self.scanner.space(true);
        }
        Ok(())
    }

    fn rule(&mut self) -> Result<(), Wrong> {
        let at = self.scanner.at();
        let name = self.scanner.take_while(is_word);
        if name.is_empty() {
            return self.scanner.wrong("expecting a rule's name");
        }
        let rule = self.id(name, at);
        self.scanner.space(false);
        if !self.scanner.eat_text("::=") {
            return self.scanner.wrong("expecting ::=");
        }
        self.scanner.space(true);
        self.alternatives(name, rule)?;
        match self.scanner.peek() {
            None | Some(b'\r' | b'\n') => Ok(()),
            Some(_) => self.scanner.wrong("expecting newline or end"),
        }
    }

    /// The number of a rule that is mentioned at `at`.
    fn id(&mut self, name: &'a str, at: usize) -> u32 {
        let next = number(self.drafts.len());
        let id = *self.ids.entry(name).or_insert(next);
        if id == next {
            self.drafts.push(Draft { name, at, body: None });
        }
        id
    }

    /// A rule for a part of the rule `name`.
    fn part(&mut self, name: &'a str, body: Option<Vec<Symbol>>) -> u32 {
        let id = number(self.drafts.len());
        self.drafts.push(Draft { name, at: self.scanner.at(), body });
        id
    }

    fn define(&mut self, group: Group) {
        let mut body = group.body;
        body.push(Symbol::End);
        if let Some(draft) = self.drafts.get_mut(group.rule as usize) {
            draft.body = Some(body);
        }
    }

    /// Counts what the grammar expands to.
    fn grow(&mut self, symbols: usize) -> Result<(), Wrong> {
        self.size = self.size.saturating_add(symbols);
        if self.size > MAX_SYMBOLS {
            return self.scanner.wrong(format!("the grammar expands to more than {MAX_SYMBOLS} symbols"));
        }
        Ok(())
    }

    /// A rule's body, to the first byte that does not belong to it.
    fn alternatives(&mut self, name: &'a str, rule: u32) -> Result<(), Wrong> {
        let mut outer: Vec<Group> = Vec::new();
        let mut here = Group::new(rule, 0);
        while let Some(byte) = self.scanner.peek() {
            match byte {
                b'(' => {
                    self.scanner.skip();
                    self.scanner.space(true);
                    let rules_before = self.drafts.len();
                    let inner = Group::new(self.part(name, None), rules_before);
                    outer.push(std::mem::replace(&mut here, inner));
                    continue;
                }
                b')' => {
                    let Some(around) = outer.pop() else { break };
                    let inner = std::mem::replace(&mut here, around);
                    here.begin_item();
                    here.item_rules = (self.drafts.len() - inner.rules_before) as u64;
                    here.body.push(Symbol::Rule(inner.rule));
                    self.define(inner);
                    self.scanner.skip();
                }
                b'|' => {
                    self.scanner.skip();
                    self.scanner.space(true);
                    here.body.push(Symbol::Or);
                    here.begin_item();
                    continue;
                }
                b'"' => self.literal(&mut here)?,
                b'[' => self.class(&mut here)?,
                b'<' | b'!' => self.token(&mut here)?,
                b'.' => {
                    self.scanner.skip();
                    here.begin_item();
                    here.body.push(Symbol::Any);
                }
                b'*' | b'+' | b'?' | b'{' => self.repetition(&mut here, name, !outer.is_empty())?,
                _ if is_word(byte) => {
                    let at = self.scanner.at();
                    let mentioned = self.scanner.take_while(is_word);
                    here.begin_item();
                    here.body.push(Symbol::Rule(self.id(mentioned, at)));
                }
                _ => break,
            }
            self.grow(1)?;
            self.scanner.space(!outer.is_empty());
        }
        if !outer.is_empty() {
            return self.scanner.wrong("expecting ')'");
        }
        self.define(here);
        Ok(())
    }

    fn literal(&mut self, here: &mut Group) -> Result<(), Wrong> {
        let start = self.scanner.at();
        self.scanner.skip();
        here.begin_item();
        while !self.scanner.eat(b'"') {
            let Some(char) = self.scanner.char()? else { return self.scanner.not_closed(start, "\"") };
            here.body.push(Symbol::Char(char));
            self.grow(1)?;
        }
        Ok(())
    }

    fn class(&mut self, here: &mut Group) -> Result<(), Wrong> {
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
            self.grow(1)?;
        }
        here.begin_item();
        // A class of nothing is no item, as in llama.cpp.
        if !ranges.is_empty() {
            here.body.push(Symbol::Class(number(self.classes.len())));
            self.classes.push(Class::new(negated, ranges));
        }
        Ok(())
    }

    /// `<text>` or `<[number]>`; `!` before it means any other token.
    fn token(&mut self, here: &mut Group) -> Result<(), Wrong> {
        let negated = self.scanner.eat(b'!');
        let start = self.scanner.at();
        if !self.scanner.eat(b'<') {
            return self.scanner.wrong("expecting '<'");
        }
        let token = if self.scanner.eat(b'[') {
            let at = self.scanner.at();
            let digits = self.scanner.take_while(|byte| byte.is_ascii_digit());
            let token = match digits.parse::<u32>() {
                Ok(token) => token,
                Err(_) if digits.is_empty() => return self.scanner.wrong("expecting integer"),
                Err(_) => return Err(Wrong { at, what: "parsed token id is too big".into() }),
            };
            for close in [b']', b'>'] {
                if !self.scanner.eat(close) {
                    return self.scanner.wrong(format!("expecting '{}'", char::from(close)));
                }
            }
            token
        } else {
            self.scanner.take_while(|byte| byte != b'>');
            if !self.scanner.eat(b'>') {
                return self.scanner.wrong("expecting '>'");
            }
            let text = self.scanner.since(start);
            let Some(token) = (self.find_token)(text) else {
                return Err(Wrong { at: start, what: "invalid token (not one token of the vocabulary)".into() });
            };
            token
        };
        here.begin_item();
        here.body.push(if negated { Symbol::NotToken(token) } else { Symbol::Token(token) });
        Ok(())
    }

    fn repetition(&mut self, here: &mut Group, name: &'a str, nested: bool) -> Result<(), Wrong> {
        let start = self.scanner.at();
        let (least, most) = match self.scanner.peek() {
            Some(b'*') => (0, None),
            Some(b'+') => (1, None),
            Some(b'?') => (0, Some(1)),
            _ => self.bounds(nested)?,
        };
        if self.scanner.at() == start {
            self.scanner.skip();
        }
        self.repeat(here, name, least, most).map_err(|what| Wrong { at: start, what })
    }

    /// `{m}`, `{m,}` or `{m,n}`.
    fn bounds(&mut self, nested: bool) -> Result<(u64, Option<u64>), Wrong> {
        let start = self.scanner.at();
        self.scanner.skip();
        self.scanner.space(nested);
        let least = match self.scanner.count()? {
            Some(least) => least,
            None => return self.scanner.wrong("expecting an int"),
        };
        self.scanner.space(nested);
        let mut most = Some(least);
        if self.scanner.eat(b',') {
            self.scanner.space(nested);
            most = self.scanner.count()?;
            self.scanner.space(nested);
            if !self.scanner.eat(b'}') {
                return self.scanner.wrong("expecting '}'");
            }
        } else if !self.scanner.eat(b'}') {
            return self.scanner.wrong("expecting ','");
        }
        let wrong = |what: String| Err(Wrong { at: start, what });
        if least > MAX_REPEAT {
            return wrong(format!("number of repetitions exceeds {MAX_REPEAT}, please reduce it"));
        }
        match most.filter(|most| *most <= MAX_REPEAT) {
            Some(most) if most < least => wrong(format!("a repetition of at least {least} and at most {most}")),
            most => Ok((least, most)),
        }
    }

    /// Repeats the last item. `S{m,n}` becomes m times S and n - m rules that each hold one S more or nothing;
    /// without an upper bound it is m times S and one rule `R ::= S R | `.
    fn repeat(&mut self, here: &mut Group, name: &'a str, least: u64, most: Option<u64>) -> Result<(), String> {
        let item: Vec<Symbol> = here.body.get(here.item..).unwrap_or(&[]).to_vec();
        if item.is_empty() {
            return Err("expecting preceding item to */+/?/{".into());
        }
        let times = most.filter(|most| *most > 0).unwrap_or(least).max(1);
        here.item_rules = here.item_rules.saturating_mul(times);
        if here.item_rules > MAX_REPEAT {
            return Err(format!(
                "number of rules that are going to be repeated multiplied by the new repetition exceeds {MAX_REPEAT}, \
                 please reduce the number of repetitions or rule complexity"
            ));
        }
        let optional = most.map_or(1, |most| most.saturating_sub(least));
        let size = |count: u64, each: usize| usize::try_from(count).unwrap_or(usize::MAX).saturating_mul(each);
        let grown = size(least.saturating_sub(1), item.len()).saturating_add(size(optional, item.len() + RULE));
        self.grow(grown).map_err(|wrong| wrong.what)?;
        if least == 0 {
            here.body.truncate(here.item);
        }
        for _ in 1..least {
            here.body.extend_from_slice(&item);
        }
        let mut last = None;
        for _ in 0..optional {
            let mut body = item.clone();
            let next = if most.is_none() { Some(number(self.drafts.len())) } else { last };
            body.extend(next.map(Symbol::Rule));
            body.extend([Symbol::Or, Symbol::End]);
            last = Some(self.part(name, Some(body)));
        }
        here.body.extend(last.map(Symbol::Rule));
        Ok(())
    }
}

/// Positions and ids are below 2^21 by [`MAX_SYMBOLS`] and the length of a grammar.
fn number(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

#[cfg(test)]
#[path = "parse_tests.rs"]
mod tests;
