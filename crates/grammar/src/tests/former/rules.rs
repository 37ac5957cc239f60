//! The rules of a parsed grammar, in the form that the automaton reads.

use super::scanner::ParseError;

/// An element of a rule's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::tests) enum Symbol {
    /// The end of an alternative that is followed by another one.
    Or,
    /// The end of a rule.
    End,
    /// A reference to a rule.
    Rule(u32),
    /// One character.
    Char(u32),
    /// One character of a character class.
    Class(u32),
    /// Any one character.
    Any,
    /// A token by id.
    Token(u32),
    /// Any token except this id.
    NotToken(u32),
}

impl Symbol {
    fn is_end(self) -> bool {
        matches!(self, Symbol::Or | Symbol::End)
    }
}

/// A set of characters: those in the ranges (both ends included), or all others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::tests) struct CharClass {
    negated: bool,
    /// Sorted, neither overlapping nor adjacent, so that one binary search answers any query.
    ranges: Vec<(u32, u32)>,
}

impl CharClass {
    /// Builds a class from the ranges as written: in any order, possibly overlapping or empty (first above last).
    pub(in crate::tests) fn new(negated: bool, mut ranges: Vec<(u32, u32)>) -> CharClass {
        ranges.retain(|(first, last)| first <= last);
        ranges.sort_unstable();
        ranges.dedup_by(|next, kept| {
            let joins = next.0 <= kept.1.saturating_add(1);
            if joins {
                kept.1 = kept.1.max(next.1);
            }
            joins
        });
        CharClass { negated, ranges }
    }

    /// The first range that ends at `char` or above it.
    fn first_range_reaching(&self, char: u32) -> Option<(u32, u32)> {
        let at = self.ranges.partition_point(|(_, last)| *last < char);
        self.ranges.get(at).copied()
    }

    /// Its characters, if there are at most `most`.
    fn few(&self, most: usize) -> Option<impl Iterator<Item = u32> + '_> {
        let count = |(first, last): &(u32, u32)| (last - first) as usize + 1;
        let is_few = !self.negated && self.ranges.iter().map(count).fold(0, usize::saturating_add) <= most;
        is_few.then(|| self.ranges.iter().flat_map(|(first, last)| *first..=*last))
    }

    fn contains(&self, char: u32) -> bool {
        self.first_range_reaching(char).is_some_and(|(first, _)| first <= char) != self.negated
    }

    /// Returns whether the class has a character from `low` to `high`.
    fn intersects(&self, low: u32, high: u32) -> bool {
        let first_range_reaching = self.first_range_reaching(low);
        let any_matches = if self.negated {
            // All of them are excluded only if one range covers them, because there is a gap between any two ranges.
            first_range_reaching.is_none_or(|(first, last)| low < first || last < high)
        } else {
            first_range_reaching.is_some_and(|(first, _)| first <= high)
        };
        any_matches && low <= high
    }
}

/// A rule while it is parsed.
pub(in crate::tests) struct RuleDefinition<'a> {
    /// Its name, or for an internal rule the name of the rule that contains it.
    pub(in crate::tests) name: &'a str,
    /// Byte offset of its first mention.
    pub(in crate::tests) at: usize,
    /// Ends with [`Symbol::End`]; `None` until it is defined.
    pub(in crate::tests) body: Option<Vec<Symbol>>,
}

/// A valid grammar: all rules are defined, without left recursion.
#[derive(Debug)]
pub(in crate::tests) struct LinkedRules {
    symbols: Vec<Symbol>,
    /// Start positions of the alternatives of all rules; rule i has `alternatives[ends[i - 1]..ends[i]]`.
    alternatives: Vec<u32>,
    ends: Vec<usize>,
    classes: Vec<CharClass>,
    root: u32,
}

impl LinkedRules {
    /// Links the rules, with the same checks as llama.cpp.
    pub(in crate::tests) fn link(
        definitions: &[RuleDefinition<'_>],
        classes: Vec<CharClass>,
    ) -> Result<LinkedRules, ParseError> {
        let error = |definition: &RuleDefinition<'_>, message: String| Err(ParseError { at: definition.at, message });
        // LinkedRules mentioned after the last definition may stay undefined if no linked rule uses them.
        let defined = definitions.iter().rposition(|definition| definition.body.is_some()).map_or(0, |last| last + 1);
        let (definitions, later) = definitions.split_at_checked(defined).unwrap_or((definitions, &[]));
        if let Some(definition) = definitions.iter().find(|definition| definition.body.is_none()) {
            return error(definition, format!("undefined rule '{}'", definition.name));
        }
        let root = definitions.iter().position(|definition| definition.name == "root");
        let Some(root) = root.and_then(|root| u32::try_from(root).ok()) else {
            let message = "the grammar does not contain a 'root' rule";
            return Err(ParseError { at: 0, message: message.into() });
        };
        let mut rules = LinkedRules { symbols: Vec::new(), alternatives: Vec::new(), ends: Vec::new(), classes, root };
        for definition in definitions {
            let mut begins = true;
            for symbol in definition.body.iter().flatten() {
                if let Symbol::Rule(rule) = symbol
                    && let Some(undefined) = (*rule as usize).checked_sub(defined).and_then(|rule| later.get(rule))
                {
                    return error(undefined, format!("undefined rule '{}'", undefined.name));
                }
                if begins {
                    rules.alternatives.push(u32::try_from(rules.symbols.len()).unwrap_or(u32::MAX));
                }
                rules.symbols.push(*symbol);
                begins = *symbol == Symbol::Or;
            }
            rules.ends.push(rules.alternatives.len());
        }
        match rules.left_recursive().and_then(|rule| definitions.get(rule as usize)) {
            Some(definition) => {
                error(definition, format!("left recursion in the rule '{}', which is not supported", definition.name))
            }
            None => Ok(rules),
        }
    }

    /// The start rule.
    pub(in crate::tests) fn root(&self) -> u32 {
        self.root
    }

    /// The symbol at a position.
    pub(in crate::tests) fn symbol(&self, at: u32) -> Symbol {
        self.symbols.get(at as usize).copied().unwrap_or(Symbol::End)
    }

    /// Whether an alternative ends at a position.
    pub(in crate::tests) fn ends_at(&self, at: u32) -> bool {
        self.symbol(at).is_end()
    }

    /// The start positions of a rule's alternatives.
    pub(in crate::tests) fn alternatives(&self, rule: u32) -> &[u32] {
        let rule = rule as usize;
        let start = rule.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        let end = self.ends.get(rule).copied().unwrap_or(start);
        self.alternatives.get(start..end).unwrap_or(&[])
    }

    /// Whether the terminal at a position matches the character.
    pub(in crate::tests) fn matches_char(&self, at: u32, char: u32) -> bool {
        match self.symbol(at) {
            Symbol::Char(wanted) => wanted == char,
            Symbol::Class(class) => self.classes.get(class as usize).is_some_and(|class| class.contains(char)),
            Symbol::Any => true,
            _ => false,
        }
    }

    /// Adds the characters that the terminal at a position matches to `chars`. Returns false if they are more than `most`, or tokens.
    pub(in crate::tests) fn add_chars(&self, at: u32, most: usize, chars: &mut Vec<u32>) -> bool {
        match self.symbol(at) {
            Symbol::Char(wanted) => chars.push(wanted),
            Symbol::Class(class) => match self.classes.get(class as usize).and_then(|class| class.few(most)) {
                Some(few) => chars.extend(few),
                None => return false,
            },
            _ => return false,
        }
        true
    }

    /// Whether the terminal at a position matches some character from `low` to `high`.
    pub(in crate::tests) fn matches_any(&self, at: u32, low: u32, high: u32) -> bool {
        match self.symbol(at) {
            Symbol::Char(wanted) => (low..=high).contains(&wanted),
            Symbol::Class(class) => self.classes.get(class as usize).is_some_and(|class| class.intersects(low, high)),
            Symbol::Any => low <= high,
            _ => false,
        }
    }

    /// A left-recursive rule, if there is one, by llama.cpp's definition: only rules with an explicitly empty alternative are
    /// skipped, so `(x*)*` is valid. The automaton's limits catch the remaining cases.
    fn left_recursive(&self) -> Option<u32> {
        #[derive(Clone, Copy, PartialEq)]
        enum Mark {
            New,
            Open,
            Done,
        }
        let mut marks = vec![Mark::New; self.ends.len()];
        for start in 0..u32::try_from(self.ends.len()).unwrap_or(0) {
            // The path of rules being visited, each with the rules it may begin with that are still to visit.
            let mut open: Vec<(u32, Vec<u32>)> = Vec::new();
            let mut next = Some(start);
            loop {
                match next.and_then(|rule| marks.get_mut(rule as usize).zip(Some(rule))) {
                    Some((Mark::Open, rule)) => return Some(rule),
                    Some((mark @ Mark::New, rule)) => {
                        *mark = Mark::Open;
                        open.push((rule, self.beginnings(rule)));
                    }
                    Some((Mark::Done, _)) | None => {}
                }
                let Some((rule, to_visit)) = open.last_mut() else { break };
                next = to_visit.pop();
                if next.is_none() {
                    if let Some(mark) = marks.get_mut(*rule as usize) {
                        *mark = Mark::Done;
                    }
                    open.pop();
                }
            }
        }
        None
    }

    /// The rules that a rule may begin with.
    fn beginnings(&self, rule: u32) -> Vec<u32> {
        let mut rules = Vec::new();
        for &start in self.alternatives(rule) {
            for at in start.. {
                let Symbol::Rule(first) = self.symbol(at) else { break };
                rules.push(first);
                if !self.alternatives(first).iter().any(|start| self.ends_at(*start)) {
                    break;
                }
            }
        }
        rules
    }
}
