//! Matches the output against a grammar: a deterministic pushdown automaton that is built lazily.
//!
//! The state is a set of stacks. A stack has the positions where the open rules continue, the innermost on top; its top is a
//! terminal, or the stack is empty and the output may end. Stacks share their lower parts, sets have ids, and the
//! transition from a set by a character is cached, so a repeated transition is one lookup.
//!
//! llama.cpp computes the sets again for each token and copies all rules with every copy. It does not limit the number of
//! stacks, which grows without bound in some grammars (`x ::= "a" x "b" | "a" x "c" | "a"` doubles it per character).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::rules::{LinkedRules, Symbol};
use foredraft_base::Token;

/// The maximum number of stacks in a set.
const MAX_STACKS: usize = 1 << 14;
/// The maximum number of stacks visited for one set. It includes those with a rule on top, of which a grammar may have long chains.
const MAX_VISITED: usize = 1 << 18;
/// The maximum work of one call, in stacks: about a second.
const MAX_WORK: usize = 1 << 24;
/// The size of the caches, in entries of about 16 bytes, at which the automaton is rebuilt.
const MAX_CACHED: usize = 1 << 19;

/// The empty stack.
const EMPTY: u32 = 0;
/// The set without stacks: the output does not match the grammar.
const REJECTED_SET: u32 = 0;
/// Stands for all tokens that a set does not name.
const OTHER_TOKENS: u32 = u32::MAX;
/// Visiting this many stacks counts as the work of making one.
const STACKS_PER_WORK: usize = 16;

/// The first bytes of an incomplete UTF-8 character.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::tests) struct PartialChar {
    pub(in crate::tests) value: u32,
    /// Number of missing bytes; 0: no character has begun.
    pub(in crate::tests) left: u8,
    /// The smallest character that is written with this many bytes.
    pub(in crate::tests) min: u32,
}

/// The effect of a byte.
pub(in crate::tests) enum Utf8Step {
    /// The character is still incomplete.
    More(PartialChar),
    /// The character is complete.
    Char(u32),
    /// Invalid UTF-8.
    Invalid,
}

impl PartialChar {
    /// Whether a character has begun.
    pub(in crate::tests) fn is_open(self) -> bool {
        self.left > 0
    }

    /// Adds a byte. Accepts surrogates as characters, because a grammar may name them.
    pub(in crate::tests) fn push(self, byte: u8) -> Utf8Step {
        let bits = u32::from(byte);
        let begin = |value, left, min| Utf8Step::More(PartialChar { value, left, min });
        match (self.left, byte) {
            (0, 0..=0x7F) => Utf8Step::Char(bits),
            (0, 0xC2..=0xDF) => begin(bits & 0x1F, 1, 0x80),
            (0, 0xE0..=0xEF) => begin(bits & 0x0F, 2, 0x800),
            (0, 0xF0..=0xF4) => begin(bits & 0x07, 3, 0x1_0000),
            (1.., 0x80..=0xBF) => {
                let next = PartialChar { value: self.value << 6 | bits & 0x3F, left: self.left - 1, ..self };
                match next.range() {
                    (low, high) if low > high => Utf8Step::Invalid,
                    (char, _) if next.left == 0 => Utf8Step::Char(char),
                    _ => Utf8Step::More(next),
                }
            }
            _ => Utf8Step::Invalid,
        }
    }

    /// The first and the last character that it can become; an empty range if the first is above the last.
    pub(in crate::tests) fn range(self) -> (u32, u32) {
        let bits = 6 * u32::from(self.left);
        let low = self.value << bits;
        (low.max(self.min), (low | ((1 << bits) - 1)).min(0x10_FFFF))
    }
}

/// The state of the output in the grammar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::tests) struct GrammarState {
    set: u32,
    partial: PartialChar,
}

impl GrammarState {
    /// The output does not match the grammar.
    pub(in crate::tests) const REJECTED: GrammarState =
        GrammarState { set: REJECTED_SET, partial: PartialChar { value: 0, left: 0, min: 0 } };

    /// Whether the output does not match the grammar.
    pub(in crate::tests) fn is_rejected(self) -> bool {
        self.set == REJECTED_SET
    }
}

/// The grammar is so ambiguous that a limit was exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::tests) struct TooAmbiguous;

impl std::fmt::Display for TooAmbiguous {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "too ambiguous: the output has more than {MAX_STACKS} parses or continuations")
    }
}

/// The lazily built automaton of a grammar: its stacks, sets and transitions.
#[derive(Debug)]
pub(in crate::tests) struct Automaton {
    rules: Arc<LinkedRules>,
    /// (position on top, stack below) by stack id. Id 0 is the empty stack.
    stacks: Vec<(u32, u32)>,
    stack_ids: HashMap<(u32, u32), u32>,
    sets: Vec<Arc<[u32]>>,
    /// For each set, the sorted token ids that its terminals name; `None` if it has no such terminals.
    named: Vec<Option<Arc<[u32]>>>,
    set_ids: HashMap<Arc<[u32]>, u32>,
    /// Transitions by character: (set, character) to set.
    follows: HashMap<(u32, u32), u32>,
    /// Transitions by token id: (set, token) to set. All tokens that a set does not name share [`OTHER_TOKENS`].
    follows_token: HashMap<(u32, u32), u32>,
    /// Unions of two sets.
    joined: HashMap<(u32, u32), u32>,
    /// Total number of stacks in all sets.
    n_listed: usize,
    work: usize,
}

impl Automaton {
    pub(in crate::tests) fn new(rules: Arc<LinkedRules>) -> Automaton {
        let nothing: Arc<[u32]> = Arc::new([]);
        Automaton {
            rules,
            stacks: vec![(u32::MAX, EMPTY)],
            stack_ids: HashMap::new(),
            sets: vec![Arc::clone(&nothing)],
            named: vec![None],
            set_ids: HashMap::from([(nothing, REJECTED_SET)]),
            follows: HashMap::new(),
            follows_token: HashMap::new(),
            joined: HashMap::new(),
            n_listed: 0,
            work: 0,
        }
    }

    /// The state of an empty output.
    pub(in crate::tests) fn start(&mut self) -> Result<GrammarState, TooAmbiguous> {
        let rules = Arc::clone(&self.rules);
        let stacks = rules.alternatives(rules.root()).iter().map(|at| self.push(*at, EMPTY)).collect();
        Ok(GrammarState { set: self.expand(stacks)?, partial: PartialChar::default() })
    }

    /// Resets the work counter at the beginning of a call.
    pub(in crate::tests) fn begin_work(&mut self) {
        self.work = 0;
    }

    /// A new automaton with only this state; `None` while this one is small. The work counter is kept, and copying the stacks
    /// counts as work, because the stacks alone may exceed the cache limit.
    pub(in crate::tests) fn rebuilt(
        &self,
        state: GrammarState,
    ) -> Result<Option<(Automaton, GrammarState)>, TooAmbiguous> {
        let sets = self.follows.len() + self.follows_token.len() + self.joined.len();
        if self.stacks.len() + self.n_listed + sets < MAX_CACHED {
            return Ok(None);
        }
        let mut fresh = Automaton { work: self.work, ..Automaton::new(Arc::clone(&self.rules)) };
        let mut stacks = Vec::new();
        for &stack in self.set(state.set).iter() {
            let mut places = Vec::new();
            let mut rest = stack;
            while let Some(&(at, below)) = self.stacks.get(rest as usize).filter(|_| rest != EMPTY) {
                places.push(at);
                rest = below;
            }
            fresh.spend(places.len())?;
            stacks.push(places.into_iter().rev().fold(EMPTY, |below, at| fresh.push(at, below)));
        }
        let set = fresh.set_id(stacks);
        Ok(Some((fresh, GrammarState { set, ..state })))
    }

    /// Whether the output may end.
    pub(in crate::tests) fn may_end(&self, state: GrammarState) -> bool {
        !state.partial.is_open() && self.set(state.set).contains(&EMPTY)
    }

    /// The state after a token with the piece `piece` that adds `text` to the output; [`GrammarState::REJECTED`] if it may not
    /// follow.
    ///
    /// Control tokens have a piece (their name) and no text. They match only where the grammar names them by id. (In llama.cpp
    /// they also match by their names, and the output then lacks text that the grammar requires.)
    pub(in crate::tests) fn follow(
        &mut self,
        state: GrammarState,
        token: Token,
        piece: &[u8],
        text: &[u8],
    ) -> Result<GrammarState, TooAmbiguous> {
        // As in llama.cpp, tokens without a piece and NUL never match.
        if piece.first().is_none_or(|byte| *byte == 0) {
            return Ok(GrammarState::REJECTED);
        }
        let by_text = if text.is_empty() { GrammarState::REJECTED } else { self.follow_text(state, text)? };
        let by_id = self.follow_token(state, token)?;
        if by_id == REJECTED_SET {
            return Ok(by_text);
        }
        Ok(GrammarState { set: self.join(by_id, by_text.set)?, partial: by_text.partial })
    }

    /// The union of two sets.
    fn join(&mut self, one: u32, other: u32) -> Result<u32, TooAmbiguous> {
        if let Some(&known) = self.joined.get(&(one, other)) {
            return Ok(known);
        }
        let mut stacks = self.set(one).to_vec();
        stacks.extend_from_slice(&self.set(other));
        self.spend(stacks.len())?;
        let both = self.set_id(stacks);
        self.joined.insert((one, other), both);
        Ok(both)
    }

    /// The characters that may come next, in order, if there are at most `most` and the output may not end here.
    pub(in crate::tests) fn next_chars(
        &mut self,
        state: GrammarState,
        most: usize,
    ) -> Result<Option<Vec<u32>>, TooAmbiguous> {
        let stacks = self.set(state.set);
        self.spend(1 + stacks.len() / STACKS_PER_WORK)?;
        let mut chars = Vec::new();
        if state.partial.is_open() || stacks.contains(&EMPTY) {
            return Ok(None);
        }
        for stack in stacks.iter() {
            if !self.rules.add_chars(self.top(*stack), most, &mut chars) {
                return Ok(None);
            }
            chars.sort_unstable();
            chars.dedup();
            if chars.len() > most {
                return Ok(None);
            }
        }
        Ok((!chars.is_empty()).then_some(chars))
    }

    /// The state after a character.
    pub(in crate::tests) fn after_char(
        &mut self,
        state: GrammarState,
        char: u32,
    ) -> Result<GrammarState, TooAmbiguous> {
        Ok(GrammarState { set: self.follow_char(state.set, char)?, partial: PartialChar::default() })
    }

    /// The state after text; [`GrammarState::REJECTED`] if it may not follow.
    pub(in crate::tests) fn follow_text(
        &mut self,
        mut state: GrammarState,
        piece: &[u8],
    ) -> Result<GrammarState, TooAmbiguous> {
        for &byte in piece {
            match state.partial.push(byte) {
                Utf8Step::More(partial) => state.partial = partial,
                Utf8Step::Char(char) => {
                    state = GrammarState { set: self.follow_char(state.set, char)?, partial: PartialChar::default() };
                }
                Utf8Step::Invalid => return Ok(GrammarState::REJECTED),
            }
            if state.set == REJECTED_SET {
                return Ok(GrammarState::REJECTED);
            }
        }
        if state.partial.is_open() {
            return Ok(if self.can_continue(state)? { state } else { GrammarState::REJECTED });
        }
        Ok(state)
    }

    /// Whether the incomplete character can become one that matches. The result is not cached, so every check of stacks
    /// counts as work.
    fn can_continue(&mut self, state: GrammarState) -> Result<bool, TooAmbiguous> {
        let (low, high) = state.partial.range();
        for stacks in self.set(state.set).chunks(STACKS_PER_WORK) {
            self.spend(1)?;
            if stacks.iter().any(|stack| self.rules.matches_any(self.top(*stack), low, high)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn follow_char(&mut self, set: u32, char: u32) -> Result<u32, TooAmbiguous> {
        if let Some(&known) = self.follows.get(&(set, char)) {
            return Ok(known);
        }
        let rules = Arc::clone(&self.rules);
        let next = self.step(set, |at| rules.matches_char(at, char))?;
        self.follows.insert((set, char), next);
        Ok(next)
    }

    /// The set after a token that the grammar names by id.
    fn follow_token(&mut self, state: GrammarState, token: Token) -> Result<u32, TooAmbiguous> {
        let named = self.named.get(state.set as usize).cloned().flatten().filter(|_| !state.partial.is_open());
        let Some(named) = named else { return Ok(REJECTED_SET) };
        let number = u32::try_from(token).ok().filter(|number| named.binary_search(number).is_ok());
        let key = (state.set, number.unwrap_or(OTHER_TOKENS));
        if let Some(&known) = self.follows_token.get(&key) {
            return Ok(known);
        }
        let rules = Arc::clone(&self.rules);
        let next = self.step(state.set, |at| match rules.symbol(at) {
            Symbol::Token(wanted) => Some(wanted) == number,
            Symbol::NotToken(other) => Some(other) != number,
            _ => false,
        })?;
        self.follows_token.insert(key, next);
        Ok(next)
    }

    /// The set after the terminals of `set` that match.
    fn step(&mut self, set: u32, matches: impl Fn(u32) -> bool) -> Result<u32, TooAmbiguous> {
        let stacks = self.set(set);
        self.spend(1 + stacks.len() / STACKS_PER_WORK)?;
        let mut next = Vec::new();
        for (at, below) in stacks.iter().filter_map(|stack| self.stacks.get(*stack as usize).copied()) {
            if matches(at) {
                next.push((at, below));
            }
        }
        let next = next.into_iter().map(|(at, below)| self.push(at + 1, below)).collect();
        self.expand(next)
    }

    /// Expands rules on top of the given stacks until every stack has a terminal on top, and returns the set.
    fn expand(&mut self, mut todo: Vec<u32>) -> Result<u32, TooAmbiguous> {
        let rules = Arc::clone(&self.rules);
        let mut seen = HashSet::new();
        let mut found = Vec::new();
        while let Some(stack) = todo.pop() {
            if !seen.insert(stack) {
                continue;
            }
            if seen.len() > MAX_VISITED || found.len() > MAX_STACKS {
                return Err(TooAmbiguous);
            }
            self.spend(1)?;
            let top = self.stacks.get(stack as usize).copied().filter(|_| stack != EMPTY);
            match top.map(|(at, below)| (rules.symbol(at), at, below)) {
                Some((Symbol::Rule(rule), at, below)) => {
                    let below = self.push(at + 1, below);
                    let alternatives = rules.alternatives(rule);
                    self.spend(alternatives.len())?;
                    todo.extend(alternatives.iter().map(|start| self.push(*start, below)));
                }
                _ => found.push(stack),
            }
        }
        Ok(self.set_id(found))
    }

    /// The id of the stack with a position on top. The end of an alternative is not pushed.
    fn push(&mut self, at: u32, below: u32) -> u32 {
        if self.rules.ends_at(at) {
            return below;
        }
        let next = u32::try_from(self.stacks.len()).unwrap_or(u32::MAX);
        let id = *self.stack_ids.entry((at, below)).or_insert(next);
        if id == next {
            self.stacks.push((at, below));
        }
        id
    }

    fn top(&self, stack: u32) -> u32 {
        self.stacks.get(stack as usize).map_or(u32::MAX, |(at, _)| *at)
    }

    /// The id of the set of these stacks.
    fn set_id(&mut self, mut stacks: Vec<u32>) -> u32 {
        stacks.sort_unstable();
        stacks.dedup();
        let stacks: Arc<[u32]> = stacks.into();
        if let Some(&known) = self.set_ids.get(&stacks) {
            return known;
        }
        let id = u32::try_from(self.sets.len()).unwrap_or(u32::MAX);
        self.n_listed += stacks.len();
        self.named.push(self.named_by(&stacks));
        self.sets.push(Arc::clone(&stacks));
        self.set_ids.insert(stacks, id);
        id
    }

    /// The sorted token ids that terminals on top of these stacks name; `None` if there are no such terminals.
    fn named_by(&self, stacks: &[u32]) -> Option<Arc<[u32]>> {
        let symbols = stacks.iter().filter(|stack| **stack != EMPTY).map(|stack| self.rules.symbol(self.top(*stack)));
        let mut named: Vec<u32> = symbols
            .filter_map(|symbol| match symbol {
                Symbol::Token(token) | Symbol::NotToken(token) => Some(token),
                _ => None,
            })
            .collect();
        named.sort_unstable();
        named.dedup();
        (!named.is_empty()).then(|| named.into())
    }

    fn set(&self, set: u32) -> Arc<[u32]> {
        self.sets.get(set as usize).cloned().unwrap_or_else(|| Arc::new([]))
    }

    fn spend(&mut self, work: usize) -> Result<(), TooAmbiguous> {
        self.work = self.work.saturating_add(work);
        if self.work > MAX_WORK { Err(TooAmbiguous) } else { Ok(()) }
    }
}
