//! The parser of GBNF. Accepts the same grammars with the same meaning as llama.cpp's parser (`llama.cpp/src/llama-grammar.cpp`).
//! Errors have a position and the expected input; the parser writes nothing to stderr.
//!
//! Also rejects what llama.cpp's parser does not survive: a repetition like `{5,2}`, which it counts down from 2^64, and
//! expansions that take gigabytes. Nesting uses no stack.

use std::collections::HashMap;

use super::rules::{RuleDefinition, RuleReference, check};
use super::scanner::{ParseError, Scanner, is_word};
use super::tree::{NodeId, Tree, TreeBuilder};
use foredraft_base::work::Work;

/// Most times that something may be repeated, and most rules that a repetition may repeat; an upper bound above it means
/// no bound. llama.cpp's number.
pub(super) const MAX_REPEAT: u32 = 2000;
/// Most symbols that a grammar may expand to. llama.cpp writes repetitions out, and its numbers are kept.
const MAX_SYMBOLS: usize = 1 << 21;
/// The size of a rule beside its symbols, in symbols.
const RULE_SIZE: usize = 8;
/// Finds the one token that a text in angle brackets is.
pub(super) type FindToken<'a> = &'a dyn Fn(&str) -> Option<u32>;

/// The tree of `gbnf` and its start, the rule `root`. The error says where it is wrong and why, or that `work` has ended.
pub(super) fn parse(gbnf: &str, find_token: FindToken<'_>, work: &Work) -> Result<(Tree, NodeId), String> {
    let mut parser = Parser {
        scanner: Scanner::new(gbnf),
        find_token,
        tree: TreeBuilder::new(),
        ids: HashMap::new(),
        definitions: Vec::new(),
        n_rules: 0,
        size: 0,
        work,
    };
    let root = parser.grammar().and_then(|()| check(&parser.definitions)).map_err(|error| error.describe(gbnf))?;
    Ok((parser.tree.into(), root))
}

struct Parser<'a> {
    scanner: Scanner<'a>,
    find_token: FindToken<'a>,
    tree: TreeBuilder,
    ids: HashMap<&'a str, u32>,
    definitions: Vec<RuleDefinition<'a>>,
    /// The number of rules, with those to which repetitions expand.
    n_rules: u64,
    size: usize,
    work: &'a Work,
}

/// A rule or a group in parentheses that is being read.
struct Group {
    rule: u32,
    body: Vec<RuleReference>,
    /// The complete alternatives, and the parts of the one that is being read.
    alternatives: Vec<NodeId>,
    parts: Vec<NodeId>,
    /// The last item, which a repetition would repeat.
    item: Item,
    /// How many rules there were before it.
    rules_before: u64,
}

/// An item, the last part of a group.
struct Item {
    /// Where it begins in the body.
    start: usize,
    /// How many symbols and rules it expands to. No symbols: there is no item, or an empty one.
    n_symbols: usize,
    n_rules: u64,
}

impl Group {
    fn new(rule: u32, rules_before: u64) -> Group {
        let item = Item { start: 0, n_symbols: 0, n_rules: 1 };
        Group { rule, body: Vec::new(), alternatives: Vec::new(), parts: Vec::new(), item, rules_before }
    }

    /// Adds an item of so many symbols.
    fn add_item(&mut self, node: NodeId, reference: RuleReference, n_symbols: usize) {
        self.item = Item { start: self.body.len(), n_symbols, n_rules: 1 };
        self.parts.push(node);
        self.body.push(reference);
    }

    /// Adds an empty item.
    fn add_nothing(&mut self) {
        self.item = Item { start: self.body.len(), n_symbols: 0, n_rules: 1 };
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
        if let Some(known) = self.ids.get(name) {
            return *known;
        }
        let node = self.tree.declare();
        let id = self.add_rule(RuleDefinition { name, at, node, body: None });
        self.ids.insert(name, id);
        id
    }

    fn add_rule(&mut self, definition: RuleDefinition<'a>) -> u32 {
        self.n_rules += 1;
        self.definitions.push(definition);
        u32::try_from(self.definitions.len() - 1).unwrap_or(u32::MAX)
    }

    /// Adds an internal rule for a part of the rule `name`.
    fn add_internal_rule(&mut self, name: &'a str, body: Option<Vec<RuleReference>>) -> u32 {
        let (at, node) = (self.scanner.at(), self.tree.empty());
        self.add_rule(RuleDefinition { name, at, node, body })
    }

    /// Completes a rule or a group, and returns its node.
    fn define(&mut self, mut group: Group) -> NodeId {
        group.alternatives.push(self.tree.seq(&group.parts));
        let node = self.tree.alt(&group.alternatives);
        if let Some(definition) = self.definitions.get_mut(group.rule as usize) {
            definition.body = Some(group.body);
            self.tree.define(definition.node, node);
        }
        node
    }

    /// Adds to the size that the grammar expands to.
    fn add_size(&mut self, symbols: usize) -> Result<(), ParseError> {
        self.work.step(1).or_else(|end| self.scanner.error(end.to_string()))?;
        self.size = self.size.saturating_add(symbols);
        if self.size > MAX_SYMBOLS || self.tree.is_too_large() {
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
                    let rules_before = self.n_rules;
                    let inner = Group::new(self.add_internal_rule(name, None), rules_before);
                    outer.push(std::mem::replace(&mut group, inner));
                    continue;
                }
                b')' => {
                    let Some(around) = outer.pop() else { break };
                    let inner = std::mem::replace(&mut group, around);
                    let (rule, n_rules) = (inner.rule, self.n_rules - inner.rules_before);
                    group.add_item(self.define(inner), RuleReference::Rule(rule), 1);
                    group.item.n_rules = n_rules;
                    self.scanner.skip();
                }
                b'|' => {
                    self.scanner.skip();
                    self.scanner.space(true);
                    let alternative = self.tree.seq(&std::mem::take(&mut group.parts));
                    group.alternatives.push(alternative);
                    group.body.push(RuleReference::Or);
                    group.add_nothing();
                    continue;
                }
                b'"' => self.literal(&mut group)?,
                b'[' => self.class(&mut group)?,
                b'<' | b'!' => self.token(&mut group)?,
                b'.' => {
                    self.scanner.skip();
                    group.add_item(self.tree.class_except(&[]), RuleReference::Terminal, 1);
                }
                b'*' | b'+' | b'?' | b'{' => self.repetition(&mut group, name, !outer.is_empty())?,
                _ if is_word(byte) => {
                    let at = self.scanner.at();
                    let mentioned = self.scanner.take_while(is_word);
                    let rule = self.id(mentioned, at);
                    let node = self.definitions.get(rule as usize).map(|definition| definition.node);
                    group.add_item(node.unwrap_or(self.tree.empty()), RuleReference::Rule(rule), 1);
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
        let mut chars = Vec::new();
        while !self.scanner.eat(b'"') {
            let Some(char) = self.scanner.char()? else { return self.scanner.not_closed(start, "\"") };
            chars.push(char);
            self.add_size(1)?;
        }
        match chars.len() {
            0 => group.add_nothing(),
            n_chars => group.add_item(self.tree.chars(&chars), RuleReference::Terminal, n_chars),
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
        // As in llama.cpp, an empty class is not an item.
        match (ranges.is_empty(), negated) {
            (true, _) => group.add_nothing(),
            (false, false) => group.add_item(self.tree.class(&ranges), RuleReference::Terminal, 1),
            (false, true) => group.add_item(self.tree.class_except(&ranges), RuleReference::Terminal, 1),
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
        let node = if negated { self.tree.not_token(token) } else { self.tree.token(token) };
        group.add_item(node, RuleReference::Terminal, 1);
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
    fn bounds(&mut self, nested: bool) -> Result<(u32, Option<u32>), ParseError> {
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
        let bounded = |count: u64| u32::try_from(count).ok().filter(|count| *count <= MAX_REPEAT);
        match (bounded(min), max.and_then(bounded)) {
            (None, _) => error(format!("number of repetitions exceeds {MAX_REPEAT}, please reduce it")),
            (Some(min), Some(max)) if max < min => error(format!("a repetition of at least {min} and at most {max}")),
            (Some(min), max) => Ok((min, max)),
        }
    }

    /// Repeats the last item. In llama.cpp, `S{m,n}` becomes m times S and n - m rules that each have one more optional S; without an
    /// upper bound it becomes m times S and one rule `R ::= S R | `.
    fn repeat(&mut self, group: &mut Group, name: &'a str, min: u32, max: Option<u32>) -> Result<(), String> {
        let Item { start, n_symbols, n_rules } = group.item;
        let Some(node) = group.parts.pop().filter(|_| n_symbols > 0) else {
            return Err("expecting preceding item to */+/?/{".into());
        };
        let times = max.filter(|max| *max > 0).unwrap_or(min).max(1);
        let n_rules = n_rules.saturating_mul(times.into());
        if n_rules > u64::from(MAX_REPEAT) {
            return Err(format!(
                "number of rules that are going to be repeated multiplied by the new repetition exceeds {MAX_REPEAT}, \
                 please reduce the number of repetitions or rule complexity"
            ));
        }
        let n_optional = max.map_or(1, |max| max.saturating_sub(min));
        let size = |count: u32, each: usize| (count as usize).saturating_mul(each);
        let grown = size(min.saturating_sub(1), n_symbols).saturating_add(size(n_optional, n_symbols + RULE_SIZE));
        self.add_size(grown).map_err(|error| error.message)?;
        let mut optional: Vec<RuleReference> = group.body.get(start..).unwrap_or(&[]).to_vec();
        if min == 0 {
            group.body.truncate(start);
        }
        if n_optional > 0 {
            let next = u32::try_from(self.definitions.len()).unwrap_or(u32::MAX);
            optional.extend(max.is_none().then_some(RuleReference::Rule(next)));
            optional.push(RuleReference::Or);
            group.body.push(RuleReference::Rule(self.add_internal_rule(name, Some(optional))));
            self.n_rules += u64::from(n_optional - 1);
        }
        let n_symbols = size(min, n_symbols) + usize::from(n_optional > 0);
        group.item = Item { start, n_symbols, n_rules };
        group.parts.extend((n_symbols > 0).then(|| self.tree.repeat(node, min, max)));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Work, parse};

    fn error(gbnf: &str) -> String {
        let shown: String = gbnf.chars().take(60).collect();
        parse(gbnf, &|text| (text == "<x>").then_some(7), &Work::unlimited())
            .err()
            .unwrap_or_else(|| panic!("{shown} is a grammar"))
    }

    #[test]
    fn errors_have_a_position_and_a_reason() {
        for (gbnf, why) in [
            ("", "line 1, column 1: the grammar does not contain a 'root' rule at the end"),
            ("# nothing", "does not contain a 'root' rule"),
            ("start ::= \"a\"", "does not contain a 'root' rule"),
            ("root ::= (", "line 1, column 11: expecting ')' at the end"),
            ("root ::= (\"a\"]", "line 1, column 14: expecting ')' at \"]\""),
            ("root ::= \"a\"\nb = \"c\"", "line 2, column 3: expecting ::= at \"= \\\"c\\\"\""),
            ("?", "line 1, column 1: expecting a rule's name at \"?\""),
            ("root ::= \"é\" )", "line 1, column 14: expecting newline or end at \")\""),
            ("root ::= \"a\"\nb ::= nowhere", "line 2, column 7: undefined rule 'nowhere'"),
            ("root ::= root \"a\" | \"a\"", "line 1, column 1: left recursion in the rule 'root'"),
            ("root ::= a\na ::= b\nb ::= a \"x\"", "left recursion in the rule 'a'"),
            ("root ::= \"abc", "line 1, column 10: unexpected end of input: the \" is not closed"),
            ("root ::= [abc", "line 1, column 10: unexpected end of input: the [ is not closed"),
            ("root ::= \"\\q\"", "line 1, column 11: unknown escape at \"\\\\q"),
            ("root ::= \"\\u12\"", "line 1, column 13: expecting 4 hex chars"),
            ("root ::= *", "line 1, column 10: expecting preceding item to */+/?/{"),
            ("root ::= \"a\"{", "line 1, column 14: expecting an int at the end"),
            ("root ::= \"a\"{1", "expecting ',' at the end"),
            ("root ::= \"a\"{1,x}", "expecting '}' at \"x}\""),
            ("root ::= \"a\"{5,2}", "line 1, column 13: a repetition of at least 5 and at most 2"),
            ("root ::= \"a\"{2001}", "number of repetitions exceeds 2000"),
            ("root ::= (\"a\"{0,1000}){3}", "multiplied by the new repetition exceeds 2000"),
            ("root ::= \"a\"{99999999999999999999}", "a number too large"),
            ("root ::= <y>", "line 1, column 10: invalid token"),
            ("root ::= <[4294967296]>", "line 1, column 12: parsed token id is too big"),
            ("root ::= <[5>", "expecting ']' at \">\""),
            ("root ::= !\"a\"", "line 1, column 11: expecting '<'"),
            ("root ::= <x", "expecting '>' at the end"),
        ] {
            let message = error(gbnf);
            assert!(message.contains(why), "{gbnf:?}: {message}");
        }
    }

    #[test]
    fn huge_expansions_are_rejected() {
        let long = format!("root ::= \"{}\"{{2000}}", "a".repeat(10_000));
        let many = format!("root ::= {}", "\"a\"{0,2000} ".repeat(1000));
        for gbnf in [&long, &many] {
            assert!(error(gbnf).contains("expands to more than"), "{}", error(gbnf));
        }
    }

    #[test]
    fn valid_grammars_are_accepted() {
        let nested = format!("root ::= {}\"a\"{}", "(".repeat(100_000), ")".repeat(100_000));
        for gbnf in [
            "root ::= \"a\"{2,5}",
            "root ::= item{3} # a comment {9,1}\nitem ::= \"{9,1}\" | [{9,1}]",
            "root ::= (\"x\" | <[7]> | !<x>){1,}",
            "root ::= \"\\\"{5,2}\"",
            "root ::= \"a\"{3,9000}",
            "root ::= (\"a\"*)*",
            &nested,
        ] {
            assert!(
                parse(gbnf, &|_| Some(7), &Work::unlimited()).is_ok(),
                "{}",
                gbnf.chars().take(60).collect::<String>()
            );
        }
    }
}
