//! The rules of a grammar, laid out for [`super::automaton`].

use super::scanner::Wrong;

/// A piece of a rule's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Symbol {
    /// The end of an alternative that another one follows.
    Or,
    /// The end of a rule.
    End,
    /// What a rule describes.
    Rule(u32),
    /// One character.
    Char(u32),
    /// One character of a class.
    Class(u32),
    /// Any one character.
    Any,
    /// A token, whatever its text.
    Token(u32),
    /// Any other token.
    NotToken(u32),
}

impl Symbol {
    fn is_end(self) -> bool {
        matches!(self, Symbol::Or | Symbol::End)
    }
}

/// A set of characters: those in the ranges (both ends included), or all others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Class {
    negated: bool,
    /// In order, and neither overlapping nor adjacent, so that one look at the right one answers any question.
    ranges: Vec<(u32, u32)>,
}

impl Class {
    /// From the ranges as they are written: in any order, some in others, and those of nothing, whose first character
    /// is above the last.
    pub(super) fn new(negated: bool, mut ranges: Vec<(u32, u32)>) -> Class {
        ranges.retain(|(first, last)| first <= last);
        ranges.sort_unstable();
        ranges.dedup_by(|next, kept| {
            let joins = next.0 <= kept.1.saturating_add(1);
            if joins {
                kept.1 = kept.1.max(next.1);
            }
            joins
        });
        Class { negated, ranges }
    }

    /// The first range that ends at `char` or above it.
    fn reaching(&self, char: u32) -> Option<(u32, u32)> {
        let at = self.ranges.partition_point(|(_, last)| *last < char);
        self.ranges.get(at).copied()
    }

    fn contains(&self, char: u32) -> bool {
        self.reaching(char).is_some_and(|(first, _)| first <= char) != self.negated
    }

    /// Whether it has a character from `low` to `high`.
    fn meets(&self, low: u32, high: u32) -> bool {
        let reaching = self.reaching(low);
        let met = if self.negated {
            // All of them are outside of it only if one range covers them: between two there is always a gap.
            reaching.is_none_or(|(first, last)| low < first || last < high)
        } else {
            reaching.is_some_and(|(first, _)| first <= high)
        };
        met && low <= high
    }
}

/// A rule as it is read.
pub(super) struct Draft<'a> {
    /// Its name, or the name of the rule that it is a part of.
    pub(super) name: &'a str,
    /// The byte where it is mentioned first.
    pub(super) at: usize,
    /// Ends with [`Symbol::End`]; `None` as long as it is not defined.
    pub(super) body: Option<Vec<Symbol>>,
}

/// A grammar whose rules are all defined and without left recursion.
#[derive(Debug)]
pub(super) struct Rules {
    symbols: Vec<Symbol>,
    /// Where the alternatives of all rules begin; rule i has `alternatives[ends[i - 1]..ends[i]]`.
    alternatives: Vec<u32>,
    ends: Vec<usize>,
    classes: Vec<Class>,
    root: u32,
}

impl Rules {
    /// Checks the rules together, as llama.cpp does.
    pub(super) fn link(drafts: &[Draft<'_>], classes: Vec<Class>) -> Result<Rules, Wrong> {
        let wrong = |draft: &Draft<'_>, what: String| Err(Wrong { at: draft.at, what });
        // What is mentioned after the last definition and not in use (its place was defined again) may be undefined.
        let defined = drafts.iter().rposition(|draft| draft.body.is_some()).map_or(0, |last| last + 1);
        let (drafts, later) = drafts.split_at_checked(defined).unwrap_or((drafts, &[]));
        if let Some(draft) = drafts.iter().find(|draft| draft.body.is_none()) {
            return wrong(draft, format!("undefined rule '{}'", draft.name));
        }
        let root = drafts.iter().position(|draft| draft.name == "root");
        let Some(root) = root.and_then(|root| u32::try_from(root).ok()) else {
            let what = "the grammar does not contain a 'root' rule";
            return Err(Wrong { at: 0, what: what.into() });
        };
        let mut rules = Rules { symbols: Vec::new(), alternatives: Vec::new(), ends: Vec::new(), classes, root };
        for draft in drafts {
            let mut begins = true;
            for symbol in draft.body.iter().flatten() {
                if let Symbol::Rule(rule) = symbol
                    && let Some(undefined) = (*rule as usize).checked_sub(defined).and_then(|rule| later.get(rule))
                {
                    return wrong(undefined, format!("undefined rule '{}'", undefined.name));
                }
                if begins {
                    rules.alternatives.push(u32::try_from(rules.symbols.len()).unwrap_or(u32::MAX));
                }
                rules.symbols.push(*symbol);
                begins = *symbol == Symbol::Or;
            }
            rules.ends.push(rules.alternatives.len());
        }
        match rules.left_recursive().and_then(|rule| drafts.get(rule as usize)) {
            Some(draft) => wrong(draft, format!("left recursion in the rule '{}', which is not supported", draft.name)),
            None => Ok(rules),
        }
    }

    /// The start.
    pub(super) fn root(&self) -> u32 {
        self.root
    }

    /// The symbol at a place.
    pub(super) fn symbol(&self, at: u32) -> Symbol {
        self.symbols.get(at as usize).copied().unwrap_or(Symbol::End)
    }

    /// Whether an alternative ends at a place.
    pub(super) fn ends_at(&self, at: u32) -> bool {
        self.symbol(at).is_end()
    }

    /// Where the alternatives of a rule begin.
    pub(super) fn alternatives(&self, rule: u32) -> &[u32] {
        let rule = rule as usize;
        let start = rule.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        let end = self.ends.get(rule).copied().unwrap_or(start);
        self.alternatives.get(start..end).unwrap_or(&[])
    }

    /// Whether the character may stand at a place.
    pub(super) fn admits(&self, at: u32, char: u32) -> bool {
        match self.symbol(at) {
            Symbol::Char(wanted) => wanted == char,
            Symbol::Class(class) => self.classes.get(class as usize).is_some_and(|class| class.contains(char)),
            Symbol::Any => true,
            _ => false,
        }
    }

    /// Whether some character from `low` to `high` may stand at a place.
    pub(super) fn admits_any(&self, at: u32, low: u32, high: u32) -> bool {
        match self.symbol(at) {
            Symbol::Char(wanted) => (low..=high).contains(&wanted),
            Symbol::Class(class) => self.classes.get(class as usize).is_some_and(|class| class.meets(low, high)),
            Symbol::Any => low <= high,
            _ => false,
        }
    }

    /// A rule that begins with itself. As llama.cpp sees it: only what has an empty alternative itself is looked past,
    /// so that `(x*)*` is a grammar. What escapes this is caught by the automaton's limits.
    fn left_recursive(&self) -> Option<u32> {
        #[derive(Clone, Copy, PartialEq)]
        enum Mark {
            New,
            Open,
            Done,
        }
        let mut marks = vec![Mark::New; self.ends.len()];
        for start in 0..u32::try_from(self.ends.len()).unwrap_or(0) {
            // Rules being looked into, each with the rules that it may begin with and that are still to be visited.
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

#[cfg(test)]
#[path = "rules_tests.rs"]
mod tests;
