//! Sequences of named things, each at most once: the properties of an object, or the arguments of a call.

use std::collections::HashMap;

use crate::rules::Rules;

/// Up to so many items come in any order. There is a rule for each of their subsets.
const MAX_ANY_ORDER: usize = 5;
/// The maximum number of further items that are counted. A greater number would be no limit in a grammar.
const MAX_FURTHER: usize = 1999;
/// The maximum number of rules of a sequence.
const MAX_STATES: usize = 4096;

/// Items of which each occurs at most once.
pub(crate) struct ItemSequence<'s> {
    /// The rule of each item, and whether it is required.
    pub(crate) items: &'s [(String, bool)],
    /// GBNF between two items.
    pub(crate) separator: &'s str,
    /// The rule of further items, after these.
    pub(crate) further: Option<&'s str>,
    /// The fewest and the most items. The further ones count as one for the fewest, because they may have the same name.
    pub(crate) least: usize,
    pub(crate) most: Option<usize>,
    pub(crate) any_order: bool,
}

impl ItemSequence<'_> {
    /// Adds the rules, and returns the name of the first. `None`: no sequence has so many items, or there would be too many rules.
    pub(crate) fn add(&self, rules: &mut Rules, hint: &str) -> Option<String> {
        if self.any_order && self.items.len() <= MAX_ANY_ORDER {
            return self.in_any_order(rules, hint);
        }
        let in_order: Vec<&(String, bool)> = self.items.iter().collect();
        let (mut first, optional): (Vec<_>, Vec<_>) = self.items.iter().partition(|item| item.1);
        first.extend(optional);
        let in_schema = self.in_order(&in_order, rules, hint);
        if first == in_order {
            return in_schema;
        }
        let required_first = self.in_order(&first, rules, hint);
        match (required_first, in_schema) {
            (Some(one), Some(other)) => Some(rules.add(hint, format!("{one} | {other}"))),
            (one, other) => one.or(other),
        }
    }

    /// An item after `count` others, and then the rule `rest`.
    fn item(&self, rule: &str, count: usize, rest: &str) -> String {
        if count == 0 { format!("{rule} {rest}") } else { format!("{} {rule} {rest}", self.separator) }
    }

    /// The further items after `count` others, and the end. `None`: there are too few or too many items.
    fn end(&self, count: usize, least: usize) -> Option<String> {
        let missing = least.saturating_sub(count);
        let spare = match self.most {
            Some(most) => Some(most.checked_sub(count)?.min(MAX_FURTHER)),
            None => None,
        };
        let further = self.further.filter(|_| spare != Some(0));
        match (further, missing) {
            (_, 2..) | (None, 1..) => None,
            (None, 0) => Some("\"\"".to_owned()),
            (Some(rule), missing) => {
                // A separator stands before each, except before the first of all.
                let more = format!("({} {rule})", self.separator);
                let text = match (count, spare) {
                    (0, None) => format!("{rule} {more}*"),
                    (0, Some(1)) => rule.to_owned(),
                    (0, Some(spare)) => format!("{rule} {more}{{0,{}}}", spare - 1),
                    (_, None) => format!("{more}+"),
                    (_, Some(spare)) => format!("{more}{{1,{spare}}}"),
                };
                Some(if missing == 0 { format!("\"\" | {text}") } else { text })
            }
        }
    }

    fn in_any_order(&self, rules: &mut Rules, hint: &str) -> Option<String> {
        // By the set of the items that have occurred, from the full one down.
        let mut names: HashMap<usize, String> = HashMap::new();
        for seen in (0..1_usize << self.items.len()).rev() {
            let has = |index: usize| seen >> index & 1 == 1;
            let count = seen.count_ones() as usize;
            let is_complete = self.items.iter().enumerate().all(|(index, item)| !item.1 || has(index));
            let mut parts = Vec::new();
            for (index, (rule, _)) in self.items.iter().enumerate().filter(|(index, _)| !has(*index)) {
                if let Some(rest) = names.get(&(seen | 1 << index)) {
                    parts.push(self.item(rule, count, rest));
                }
            }
            parts.extend(if is_complete { self.end(count, self.least) } else { None });
            if !parts.is_empty() {
                names.insert(seen, rules.add(hint, parts.join(" | ")));
            }
        }
        names.remove(&0)
    }

    fn in_order(&self, items: &[&(String, bool)], rules: &mut Rules, hint: &str) -> Option<String> {
        // More items than these need not be distinguished.
        let n_required = items.iter().filter(|item| item.1).count();
        let least = if self.least > n_required { self.least } else { 0 };
        let cap = self.most.unwrap_or(0).max(least).max(1).min(items.len());
        if (cap + 1).saturating_mul(items.len() + 1) > MAX_STATES {
            return None;
        }
        let mut after: Vec<Option<String>> =
            (0..=cap).map(|count| self.end(count, least).map(|end| rules.add(hint, end))).collect();
        for (rule, is_required) in items.iter().rev() {
            let next = |count: usize| after.get(count.min(cap)).cloned().flatten();
            let mut before = Vec::new();
            for count in 0..=cap {
                // With the maximum reached, no more items come.
                let is_full = self.most.is_some_and(|most| count >= most);
                let mut parts: Vec<String> =
                    next(count + 1).filter(|_| !is_full).iter().map(|rest| self.item(rule, count, rest)).collect();
                parts.extend(next(count).filter(|_| !is_required));
                before.push((!parts.is_empty()).then(|| rules.add(hint, parts.join(" | "))));
            }
            after = before;
        }
        after.into_iter().next().flatten()
    }
}
