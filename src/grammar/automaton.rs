//! Follows a text through a grammar.
//!
//! Where a text stands is a set of stacks: each holds the places where the rules that are open go on, the innermost on
//! top, and its top is a terminal (or it is empty: the text may end). Stacks share their lower parts, sets are numbered,
//! and which set follows which by which character is remembered, so the same question is answered by one look-up: a
//! deterministic automaton, built as far as texts need it. llama.cpp computes the sets anew for each token and copies
//! all rules with every copy; and nothing there limits their number, which grows without end in some grammars
//! (`x ::= "a" x "b" | "a" x "c" | "a"` doubles it with each character).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::rules::{Rules, Symbol};
use super::utf8::{Partial, Step};
use crate::llama::Token;

/// Most stacks in a set.
const MAX_STACKS: usize = 1 << 14;
/// Most stacks looked at for one set: those with rules on top, too, of which a grammar may have long chains.
const MAX_LOOKED_AT: usize = 1 << 18;
/// Most stacks looked at in one call: about a second.
const MAX_WORK: usize = 1 << 24;
/// What is remembered, in entries of some 16 bytes, before it is begun again.
const MAX_REMEMBERED: usize = 1 << 19;

/// The empty stack.
const EMPTY: u32 = 0;
/// The set of no stacks: the text has left the grammar.
const DEAD: u32 = 0;
/// Stands for all tokens that a set does not name.
const UNNAMED: u32 = u32::MAX;
/// A look at a stack is this part of the work of making one.
const LOOKS: usize = 16;

/// Where a text stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct State {
    set: u32,
    partial: Partial,
}

impl State {
    /// A text that no other can follow, nor its end.
    pub(super) const NOWHERE: State = State { set: DEAD, partial: Partial { value: 0, left: 0, least: 0 } };

    /// Whether the text has left the grammar.
    pub(super) fn is_nowhere(self) -> bool {
        self.set == DEAD
    }
}

/// The grammar is so ambiguous that a limit was met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooAmbiguous;

impl std::fmt::Display for TooAmbiguous {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "too ambiguous: the text can be read in more than {MAX_STACKS} ways, or there are as many to go on")
    }
}

/// What is known of a grammar's sets and stacks.
#[derive(Debug)]
pub(super) struct Automaton {
    rules: Arc<Rules>,
    /// (the place on top, the stack below); number 0 is the empty stack and stands for none.
    stacks: Vec<(u32, u32)>,
    stack_ids: HashMap<(u32, u32), u32>,
    sets: Vec<Arc<[u32]>>,
    /// Of each set the tokens that its terminals name by number, in order; `None`: there are no such terminals.
    named: Vec<Option<Arc<[u32]>>>,
    set_ids: HashMap<Arc<[u32]>, u32>,
    /// By a character.
    follows: HashMap<(u32, u32), u32>,
    /// By a token's number; all that a set does not name lead to the same one, under [`UNNAMED`].
    follows_token: HashMap<(u32, u32), u32>,
    /// Both sets together.
    joined: HashMap<(u32, u32), u32>,
    /// All stacks in all sets.
    listed: usize,
    work: usize,
}

impl Automaton {
    pub(super) fn new(rules: Arc<Rules>) -> Automaton {
        let nothing: Arc<[u32]> = Arc::new([]);
        Automaton {
            rules,
            stacks: vec![(u32::MAX, EMPTY)],
            stack_ids: HashMap::new(),
            sets: vec![Arc::clone(&nothing)],
            named: vec![None],
            set_ids: HashMap::from([(nothing, DEAD)]),
            follows: HashMap::new(),
            follows_token: HashMap::new(),
            joined: HashMap::new(),
            listed: 0,
            work: 0,
        }
    }

    /// The beginning of a text.
    pub(super) fn start(&mut self) -> Result<State, TooAmbiguous> {
        let rules = Arc::clone(&self.rules);
        let stacks = rules.alternatives(rules.root()).iter().map(|at| self.push(*at, EMPTY)).collect();
        Ok(State { set: self.expand(stacks)?, partial: Partial::default() })
    }

    /// Begins a call, which may cost so much.
    pub(super) fn begin_work(&mut self) {
        self.work = 0;
    }

    /// The same state in an automaton that remembers nothing else; `None` while this one is small. What the call has cost stays.
    /// To copy its stacks costs as well: where these alone are more than is remembered, each question would begin again.
    pub(super) fn renewed(&self, state: State) -> Result<Option<(Automaton, State)>, TooAmbiguous> {
        let sets = self.follows.len() + self.follows_token.len() + self.joined.len();
        if self.stacks.len() + self.listed + sets < MAX_REMEMBERED {
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
        let set = fresh.number(stacks);
        Ok(Some((fresh, State { set, ..state })))
    }

    /// Whether the text may end.
    pub(super) fn may_end(&self, state: State) -> bool {
        !state.partial.is_open() && self.set(state.set).contains(&EMPTY)
    }

    /// The state after a token that is `piece` and adds `text` to the answer; [`State::NOWHERE`] when it may not follow.
    ///
    /// Control tokens have a piece, their name, and no text: they follow where the grammar asks for them by number. (In llama.cpp
    /// they follow by their names as well, and the answer then lacks what the grammar demands.)
    pub(super) fn follow(
        &mut self,
        state: State,
        token: Token,
        piece: &[u8],
        text: &[u8],
    ) -> Result<State, TooAmbiguous> {
        // As in llama.cpp: what has no piece, or is NUL, follows nothing.
        if piece.first().is_none_or(|byte| *byte == 0) {
            return Ok(State::NOWHERE);
        }
        let by_text = if text.is_empty() { State::NOWHERE } else { self.follow_text(state, text)? };
        let by_number = self.follow_token(state, token)?;
        if by_number == DEAD {
            return Ok(by_text);
        }
        Ok(State { set: self.join(by_number, by_text.set)?, partial: by_text.partial })
    }

    /// The set of the stacks of both.
    fn join(&mut self, one: u32, other: u32) -> Result<u32, TooAmbiguous> {
        if let Some(&known) = self.joined.get(&(one, other)) {
            return Ok(known);
        }
        let mut stacks = self.set(one).to_vec();
        stacks.extend_from_slice(&self.set(other));
        self.spend(stacks.len())?;
        let both = self.number(stacks);
        self.joined.insert((one, other), both);
        Ok(both)
    }

    fn follow_text(&mut self, mut state: State, piece: &[u8]) -> Result<State, TooAmbiguous> {
        for &byte in piece {
            match state.partial.push(byte) {
                Step::More(partial) => state.partial = partial,
                Step::Char(char) => {
                    state = State { set: self.follow_char(state.set, char)?, partial: Partial::default() };
                }
                Step::Invalid => return Ok(State::NOWHERE),
            }
            if state.set == DEAD {
                return Ok(State::NOWHERE);
            }
        }
        if state.partial.is_open() {
            return Ok(if self.goes_on(state)? { state } else { State::NOWHERE });
        }
        Ok(state)
    }

    /// Whether the character that has begun can become one that may stand there. The answer is not remembered, so each
    /// look at stacks is work.
    fn goes_on(&mut self, state: State) -> Result<bool, TooAmbiguous> {
        let (low, high) = state.partial.range();
        for stacks in self.set(state.set).chunks(LOOKS) {
            self.spend(1)?;
            if stacks.iter().any(|stack| self.rules.admits_any(self.top(*stack), low, high)) {
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
        let next = self.step(set, |at| rules.admits(at, char))?;
        self.follows.insert((set, char), next);
        Ok(next)
    }

    /// The set after a token that is asked for by its number.
    fn follow_token(&mut self, state: State, token: Token) -> Result<u32, TooAmbiguous> {
        let named = self.named.get(state.set as usize).cloned().flatten().filter(|_| !state.partial.is_open());
        let Some(named) = named else { return Ok(DEAD) };
        let number = u32::try_from(token).ok().filter(|number| named.binary_search(number).is_ok());
        let key = (state.set, number.unwrap_or(UNNAMED));
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

    /// The set after the terminals of `set` that are taken.
    fn step(&mut self, set: u32, takes: impl Fn(u32) -> bool) -> Result<u32, TooAmbiguous> {
        let stacks = self.set(set);
        self.spend(1 + stacks.len() / LOOKS)?;
        let mut next = Vec::new();
        for (at, below) in stacks.iter().filter_map(|stack| self.stacks.get(*stack as usize).copied()) {
            if takes(at) {
                next.push((at, below));
            }
        }
        let next = next.into_iter().map(|(at, below)| self.push(at + 1, below)).collect();
        self.expand(next)
    }

    /// The set of stacks with terminals on top that the given ones lead to.
    fn expand(&mut self, mut todo: Vec<u32>) -> Result<u32, TooAmbiguous> {
        let rules = Arc::clone(&self.rules);
        let mut seen = HashSet::new();
        let mut found = Vec::new();
        while let Some(stack) = todo.pop() {
            if !seen.insert(stack) {
                continue;
            }
            if seen.len() > MAX_LOOKED_AT || found.len() > MAX_STACKS {
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
        Ok(self.number(found))
    }

    /// The stack with a place on top; a place where an alternative ends adds nothing.
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

    fn number(&mut self, mut stacks: Vec<u32>) -> u32 {
        stacks.sort_unstable();
        stacks.dedup();
        let stacks: Arc<[u32]> = stacks.into();
        if let Some(&known) = self.set_ids.get(&stacks) {
            return known;
        }
        let id = u32::try_from(self.sets.len()).unwrap_or(u32::MAX);
        self.listed += stacks.len();
        self.named.push(self.named_by(&stacks));
        self.sets.push(Arc::clone(&stacks));
        self.set_ids.insert(stacks, id);
        id
    }

    /// The tokens that terminals on top of these stacks name; `None`: there are no such terminals.
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

#[cfg(test)]
#[path = "automaton_tests.rs"]
mod tests;
