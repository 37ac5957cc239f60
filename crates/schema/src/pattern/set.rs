//! Sets of texts that patterns match and others do not, as automata over characters.
//!
//! The states are derivatives of regular expressions (Brzozowski, 1964): what may follow a beginning. One of a set is a derivative of each
//! of its patterns, so that intersections and complements cost no more than stepping them side by side.

use std::collections::{BTreeSet, HashMap};

use foredraft_base::work::Work;
use foredraft_grammar::pattern::{CharSet, Ranges};

use super::PatternNode;
use super::node::SURROGATES;

/// The most states of an automaton.
const MAX_STATES: usize = 1 << 13;
/// The characters of decimal numbers, whose classes have the indexes from 1 on.
const DECIMAL: &str = "-.0123456789";
/// The most different derivatives.
const MAX_TERMS: usize = 1 << 17;

/// The texts that all of some patterns match and none of others. Not empty.
#[derive(Debug, Clone)]
pub(crate) struct TextSet {
    pub(crate) all: Vec<PatternNode>,
    pub(crate) none: Vec<PatternNode>,
    step: Option<DecimalStep>,
    pub(crate) states: Vec<TextState>,
}

/// A state of a set's automaton. The first one is the start.
#[derive(Debug, Clone)]
pub(crate) struct TextState {
    /// The characters that may come next, and the state after them.
    pub(crate) next: Vec<(CharSet, usize)>,
    pub(crate) may_end: bool,
    /// Any text may follow.
    pub(crate) is_any: bool,
}

/// Why a set has no automaton.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SetFault {
    /// It has no text.
    Empty,
    /// It is too large, in words.
    TooLarge(String),
}

/// Decimal numbers that are multiples of `units` of the last of `n_digits` digits behind the point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DecimalStep {
    pub(crate) units: u64,
    pub(crate) n_digits: u32,
}

impl TextSet {
    pub(crate) fn new(
        all: Vec<PatternNode>,
        none: Vec<PatternNode>,
        step: Option<DecimalStep>,
        work: &Work,
    ) -> Result<TextSet, SetFault> {
        let states = automaton(&all, &none, step, &[], work)?;
        Ok(TextSet { all, none, step, states })
    }

    /// The texts of the set that have none of the delimiters, do not end with the beginning of one, and have none of the characters.
    pub(crate) fn without(
        &self,
        delimiters: &[String],
        chars: &[(u32, u32)],
        work: &Work,
    ) -> Result<TextSet, SetFault> {
        let (mut none, mut excluded, any) = (self.none.clone(), chars.to_vec(), PatternNode::any_text());
        for delimiter in delimiters {
            if let (Some(only), None) = (delimiter.chars().next(), delimiter.chars().nth(1)) {
                excluded.push((only.into(), only.into()));
                continue;
            }
            none.push(PatternNode::Seq(vec![any.clone(), PatternNode::text(delimiter), any.clone()]));
            for (end, _) in delimiter.char_indices().skip(1) {
                let beginning = PatternNode::text(delimiter.get(..end).unwrap_or_default());
                none.push(PatternNode::Seq(vec![any.clone(), beginning]));
            }
        }
        let states = automaton(&self.all, &none, self.step, &excluded, work)?;
        Ok(TextSet { all: self.all.clone(), none, step: self.step, states })
    }

    /// Whether the set has this text.
    pub(crate) fn has(&self, text: &str) -> bool {
        let step = |state: usize, char: char| {
            let state = self.states.get(state)?;
            state.next.iter().find(|(set, _)| state.is_any || set.contains(char.into())).map(|(_, next)| *next)
        };
        let end = text.chars().try_fold(0, step).and_then(|end| self.states.get(end));
        end.is_some_and(|end| end.may_end)
    }
}

/// A derivative.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Term {
    /// No text.
    Never,
    /// The empty text.
    Empty,
    /// One character of the set with this index.
    Class(usize),
    Seq(usize, usize),
    /// In order, without duplicates.
    Alt(Vec<usize>),
    Repeat(usize, u32, Option<u32>),
    /// The rest of a decimal number: the remainder of its units so far, and its digits behind the point.
    Decimal(u64, Option<u32>),
}

const NEVER: usize = 0;
const EMPTY: usize = 1;
/// Any text.
const ANY: usize = 3;

struct Terms<'w> {
    terms: Vec<(Term, bool)>,
    ids: HashMap<Term, usize>,
    classes: Vec<CharSet>,
    derived: HashMap<(usize, u32), usize>,
    step: DecimalStep,
    work: &'w Work,
}

type Made = Result<usize, SetFault>;

impl Terms<'_> {
    fn add(&mut self, term: Term) -> Made {
        if let Some(known) = self.ids.get(&term) {
            return Ok(*known);
        }
        let is_nullable = |id: &usize| self.is_nullable(id);
        let is_empty = match &term {
            Term::Never | Term::Class(_) => false,
            Term::Empty => true,
            Term::Seq(one, other) => is_nullable(one) && is_nullable(other),
            Term::Alt(ids) => ids.iter().any(is_nullable),
            Term::Repeat(_, least, _) => *least == 0,
            Term::Decimal(rest, digits) => self.step.is_whole(*rest, digits.unwrap_or(0)),
        };
        let size = if let Term::Alt(ids) = &term { ids.len() } else { 1 };
        self.work.step(size).map_err(|end| SetFault::TooLarge(end.to_string()))?;
        if self.terms.len() >= MAX_TERMS {
            return Err(SetFault::TooLarge("too many parts".to_owned()));
        }
        self.terms.push((term.clone(), is_empty));
        self.ids.insert(term, self.terms.len() - 1);
        Ok(self.terms.len() - 1)
    }

    /// One after the other. The first part of a sequence is none.
    fn seq(&mut self, one: usize, other: usize) -> Made {
        let (mut firsts, mut last) = (Vec::new(), one);
        while let Some((Term::Seq(first, rest), _)) = self.terms.get(last) {
            firsts.push(*first);
            last = *rest;
        }
        firsts.push(last);
        firsts.into_iter().rev().try_fold(other, |rest, first| match (first, rest) {
            (NEVER, _) | (_, NEVER) => Ok(NEVER),
            (EMPTY, _) => Ok(rest),
            (_, EMPTY) | (ANY, ANY) => Ok(first),
            _ => self.add(Term::Seq(first, rest)),
        })
    }

    fn alt(&mut self, ids: impl IntoIterator<Item = usize>) -> Made {
        let mut all = Vec::new();
        for id in ids {
            match self.terms.get(id) {
                Some((Term::Alt(parts), _)) => all.extend_from_slice(parts),
                _ => all.push(id),
            }
        }
        all.retain(|id| *id != NEVER);
        all.sort_unstable();
        all.dedup();
        match all.as_slice() {
            [] => Ok(NEVER),
            all if all.contains(&ANY) => Ok(ANY),
            [only] => Ok(*only),
            _ => self.add(Term::Alt(all)),
        }
    }

    fn repeat(&mut self, id: usize, least: u32, most: Option<u32>) -> Made {
        match (id, most) {
            (_, Some(0)) => Ok(EMPTY),
            (NEVER | EMPTY, _) => Ok(if least == 0 { EMPTY } else { id }),
            (_, Some(1)) if least == 1 => Ok(id),
            _ => self.add(Term::Repeat(id, least, most)),
        }
    }

    /// The term of a pattern. Its nesting is bounded, and so are its repetitions: what they repeat is not empty.
    fn pattern(&mut self, node: &PatternNode) -> Made {
        match node {
            PatternNode::Class(set) => {
                let index = self.classes.iter().position(|known| known == set);
                let index = index.unwrap_or_else(|| {
                    self.classes.push(set.clone());
                    self.classes.len() - 1
                });
                self.work.step(index / 4).map_err(|end| SetFault::TooLarge(end.to_string()))?;
                self.add(Term::Class(index))
            }
            PatternNode::Seq(nodes) => nodes.iter().rev().try_fold(EMPTY, |rest, node| {
                let first = self.pattern(node)?;
                self.seq(first, rest)
            }),
            PatternNode::Alt(nodes) => {
                let parts = nodes.iter().map(|node| self.pattern(node)).collect::<Result<Vec<_>, _>>()?;
                self.alt(parts)
            }
            PatternNode::Repeat(node, least, most) => {
                let id = self.pattern(node)?;
                self.repeat(id, *least, *most)
            }
        }
    }

    /// Adds the classes with which the texts of a term begin.
    fn add_firsts(&self, mut id: usize, firsts: &mut BTreeSet<usize>) -> Result<(), SetFault> {
        loop {
            self.work.step(1).map_err(|end| SetFault::TooLarge(end.to_string()))?;
            match self.terms.get(id).map(|term| &term.0) {
                Some(Term::Class(index)) => drop(firsts.insert(*index)),
                Some(Term::Alt(ids)) => ids.iter().try_for_each(|id| self.add_firsts(*id, firsts))?,
                Some(Term::Repeat(inner, ..)) => self.add_firsts(*inner, firsts)?,
                Some(Term::Decimal(..)) => firsts.extend(1..=DECIMAL.len()),
                Some(Term::Seq(first, rest)) => {
                    self.add_firsts(*first, firsts)?;
                    if self.is_nullable(first) {
                        id = *rest;
                        continue;
                    }
                }
                _ => {}
            }
            return Ok(());
        }
    }

    fn is_nullable(&self, id: &usize) -> bool {
        self.terms.get(*id).is_some_and(|term| term.1)
    }

    /// The derivative after a character.
    fn derive(&mut self, id: usize, char: u32) -> Made {
        if let Some(known) = self.derived.get(&(id, char)) {
            return Ok(*known);
        }
        let derived = match self.terms.get(id).map(|term| term.0.clone()).unwrap_or(Term::Never) {
            Term::Never | Term::Empty => NEVER,
            Term::Class(index) if self.classes.get(index).is_some_and(|set| set.contains(char)) => EMPTY,
            Term::Class(_) => NEVER,
            Term::Seq(mut first, mut rest) => {
                // A loop, because a sequence can be long.
                let mut forms = Vec::new();
                loop {
                    let after = self.derive(first, char)?;
                    forms.push(self.seq(after, rest)?);
                    if !self.is_nullable(&first) {
                        break;
                    }
                    match self.terms.get(rest) {
                        Some((Term::Seq(next, others), _)) => (first, rest) = (*next, *others),
                        _ => {
                            forms.push(self.derive(rest, char)?);
                            break;
                        }
                    }
                }
                self.alt(forms)?
            }
            Term::Alt(ids) => {
                let forms = ids.into_iter().map(|id| self.derive(id, char)).collect::<Result<Vec<_>, _>>()?;
                self.alt(forms)?
            }
            Term::Repeat(inner, least, most) => {
                let after = self.derive(inner, char)?;
                let rest = self.repeat(inner, least.saturating_sub(1), most.map(|most| most.saturating_sub(1)))?;
                self.seq(after, rest)?
            }
            Term::Decimal(rest, digits) => match self.step.after(rest, digits, char) {
                Some((rest, digits)) => self.add(Term::Decimal(rest, digits))?,
                None => NEVER,
            },
        };
        self.derived.insert((id, char), derived);
        Ok(derived)
    }
}

impl DecimalStep {
    /// Whether a remainder behind so many digits is none.
    fn is_whole(self, rest: u64, digits: u32) -> bool {
        let units = (digits..self.n_digits).fold(u128::from(rest), |rest, _| rest * 10 % u128::from(self.units));
        units == 0
    }

    fn after(self, rest: u64, digits: Option<u32>, char: u32) -> Option<(u64, Option<u32>)> {
        let value = char::from_u32(char).and_then(|char| char.to_digit(10));
        match (value, digits) {
            (Some(value), _) if digits.is_none_or(|digits| digits < self.n_digits) => {
                let rest = (u128::from(rest) * 10 + u128::from(value)) % u128::from(self.units);
                Some((u64::try_from(rest).ok()?, digits.map(|digits| digits + 1)))
            }
            (Some(0), _) => Some((rest, digits)),
            (None, None) if char == u32::from('-') => Some((rest, None)),
            (None, None) if char == u32::from('.') => Some((rest, Some(0))),
            _ => None,
        }
    }
}

/// The characters in kinds that no class tells apart, each with one of them.
fn kinds(classes: &[&CharSet], excluded: &[(u32, u32)], work: &Work) -> Result<Vec<(CharSet, u32)>, SetFault> {
    let mut begins: Vec<u32> = vec![0];
    for (first, last) in classes.iter().flat_map(|set| set.ranges()) {
        begins.extend([*first, last + 1]);
    }
    begins.sort_unstable();
    begins.dedup();
    begins.retain(|begin| *begin <= 0x10_FFFF);
    let mut labels = vec![0_u32; begins.len()];
    for set in classes {
        let mut split: HashMap<u32, u32> = HashMap::new();
        let n_labels = labels.iter().max().map_or(0, |most| most + 1);
        for (first, last) in set.ranges() {
            let (from, to) =
                (begins.partition_point(|begin| begin < first), begins.partition_point(|begin| begin <= last));
            work.step(1 + (to - from) / 4).map_err(|end| SetFault::TooLarge(end.to_string()))?;
            for label in labels.get_mut(from..to).unwrap_or_default() {
                let new = n_labels + u32::try_from(split.len()).unwrap_or(u32::MAX);
                *label = *split.entry(*label).or_insert(new);
            }
        }
    }
    let ends = begins.iter().skip(1).map(|begin| begin - 1).chain([0x10_FFFF]);
    let mut ranges: HashMap<u32, Ranges> = HashMap::new();
    for ((begin, end), label) in begins.iter().zip(ends).zip(labels) {
        ranges.entry(label).or_default().push((*begin, end));
    }
    let sets = ranges.into_values().map(|ranges| CharSet::new(false, &ranges).without(excluded));
    let mut kinds: Vec<(CharSet, u32)> =
        sets.filter_map(|set| set.ranges().first().map(|range| range.0).map(|char| (set, char))).collect();
    kinds.sort_unstable_by_key(|kind| kind.1);
    Ok(kinds)
}

/// The automaton of the texts that all of the patterns match, and none of the others, without some characters.
fn automaton(
    all: &[PatternNode],
    none: &[PatternNode],
    step: Option<DecimalStep>,
    excluded: &[(u32, u32)],
    work: &Work,
) -> Result<Vec<TextState>, SetFault> {
    let one = DecimalStep { units: 1, n_digits: 0 };
    let (derived, ids) = (HashMap::new(), HashMap::new());
    let mut terms = Terms { terms: Vec::new(), ids, classes: Vec::new(), derived, step: step.unwrap_or(one), work };
    let any = CharSet::any();
    for term in [Term::Never, Term::Empty, Term::Class(0), Term::Repeat(2, 0, None)] {
        terms.add(term)?;
    }
    terms.classes.push(any);
    terms.classes.extend(DECIMAL.chars().map(|char| CharSet::one(char.into())));
    let mut start = all.iter().map(|node| terms.pattern(node)).collect::<Result<Vec<_>, _>>()?;
    if step.is_some() {
        start.push(terms.add(Term::Decimal(0, None))?);
    }
    let n_all = start.len();
    for node in none {
        start.push(terms.pattern(node)?);
    }
    let excluded = [excluded, &[SURROGATES]].concat();
    let mut ids = HashMap::from([(start.clone(), 0)]);
    let (mut states, mut rows, mut before) = (vec![start], Vec::new(), vec![Vec::new()]);
    while let Some(state) = states.get(rows.len()).cloned() {
        let is_nullable = |id: &usize| terms.is_nullable(id);
        let (wanted, others) = state.split_at_checked(n_all).unwrap_or_default();
        let may_end = wanted.iter().all(is_nullable) && !others.iter().any(is_nullable);
        let is_any = wanted.iter().all(|id| *id == ANY) && others.iter().all(|id| *id == NEVER);
        let mut next: Vec<(Ranges, usize)> = Vec::new();
        let mut firsts = BTreeSet::new();
        state.iter().try_for_each(|id| terms.add_firsts(*id, &mut firsts))?;
        let classes: Vec<&CharSet> = firsts.iter().filter_map(|index| terms.classes.get(*index)).collect();
        for (set, char) in kinds(&classes, &excluded, work)? {
            let mut after = Vec::with_capacity(state.len());
            for id in &state {
                after.push(terms.derive(*id, char)?);
            }
            work.step(1 + after.len()).map_err(|end| SetFault::TooLarge(end.to_string()))?;
            let (wanted, others) = after.split_at_checked(n_all).unwrap_or_default();
            if wanted.contains(&NEVER) || others.contains(&ANY) {
                continue;
            }
            let id = *ids.entry(after.clone()).or_insert(states.len());
            if id == states.len() {
                states.push(after);
                before.push(Vec::new());
            }
            match next.iter_mut().find(|(_, known)| *known == id) {
                Some((ranges, _)) => ranges.extend_from_slice(set.ranges()),
                None => next.push((set.ranges().to_vec(), id)),
            }
            before.get_mut(id).into_iter().for_each(|before: &mut Vec<usize>| before.push(rows.len()));
        }
        let next = next.into_iter().map(|(ranges, id)| (CharSet::new(false, &ranges), id)).collect();
        rows.push(TextState { next, may_end, is_any });
        if states.len() > MAX_STATES {
            return Err(SetFault::TooLarge(format!("more than {MAX_STATES} states")));
        }
    }
    // Only states from which the text can end.
    let mut open: Vec<usize> = rows.iter().enumerate().filter(|(_, row)| row.may_end).map(|(id, _)| id).collect();
    let mut can_end = vec![false; rows.len()];
    while let Some(id) = open.pop() {
        if let Some(known) = can_end.get_mut(id).filter(|known| !**known) {
            *known = true;
            open.extend(before.get(id).into_iter().flatten());
        }
    }
    if can_end.first() != Some(&true) {
        return Err(SetFault::Empty);
    }
    for row in &mut rows {
        row.next.retain(|(_, id)| can_end.get(*id) == Some(&true));
    }
    Ok(rows)
}
