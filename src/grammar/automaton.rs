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
    set_ids: HashMap<Arc<[u32]>, u32>,
    follows: HashMap<(u32, u32), u32>,
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
            set_ids: HashMap::from([(nothing, DEAD)]),
            follows: HashMap::new(),
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

    /// The same state in an automaton that remembers nothing else; `None` while this one is small.
    pub(super) fn renewed(&self, state: State) -> Option<(Automaton, State)> {
        if self.stacks.len() + self.listed + self.follows.len() < MAX_REMEMBERED {
            return None;
        }
        let mut fresh = Automaton::new(Arc::clone(&self.rules));
        let mut stacks = Vec::new();
        for &stack in self.set(state.set).iter() {
            let mut places = Vec::new();
            let mut rest = stack;
            while let Some(&(at, below)) = self.stacks.get(rest as usize).filter(|_| rest != EMPTY) {
                places.push(at);
                rest = below;
            }
            stacks.push(places.into_iter().rev().fold(EMPTY, |below, at| fresh.push(at, below)));
        }
        let set = fresh.number(stacks);
        Some((fresh, State { set, ..state }))
    }

    /// Whether the text may end.
    pub(super) fn may_end(&self, state: State) -> bool {
        !state.partial.is_open() && self.set(state.set).contains(&EMPTY)
    }

    /// The state after a token that is `piece`; [`State::NOWHERE`] when it may not follow.
    pub(super) fn follow(&mut self, state: State, token: Token, piece: &[u8]) -> Result<State, TooAmbiguous> {
        // As in llama.cpp: what has no text, or is NUL, follows nothing.
        if piece.first().is_none_or(|byte| *byte == 0) {
            return Ok(State::NOWHERE);
        }
        let by_text = self.follow_text(state, piece)?;
        let by_number = self.follow_token(state, token)?;
        if by_number == DEAD {
            return Ok(by_text);
        }
        let mut stacks = self.set(by_number).to_vec();
        stacks.extend_from_slice(&self.set(by_text.set));
        Ok(State { set: self.number(stacks), partial: by_text.partial })
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
            let (low, high) = state.partial.range();
            let goes_on = self.set(state.set).iter().any(|stack| self.rules.admits_any(self.top(*stack), low, high));
            return Ok(if goes_on { state } else { State::NOWHERE });
        }
        Ok(state)
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
        let rules = Arc::clone(&self.rules);
        let is_token = |at: u32| matches!(rules.symbol(at), Symbol::Token(_) | Symbol::NotToken(_));
        if state.partial.is_open() || !self.set(state.set).iter().any(|stack| is_token(self.top(*stack))) {
            return Ok(DEAD);
        }
        self.step(state.set, |at| match rules.symbol(at) {
            Symbol::Token(wanted) => i64::from(wanted) == i64::from(token),
            Symbol::NotToken(other) => i64::from(other) != i64::from(token),
            _ => false,
        })
    }

    /// The set after the terminals of `set` that are taken.
    fn step(&mut self, set: u32, takes: impl Fn(u32) -> bool) -> Result<u32, TooAmbiguous> {
        let stacks = self.set(set);
        self.spend(stacks.len())?;
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
        self.sets.push(Arc::clone(&stacks));
        self.set_ids.insert(stacks, id);
        id
    }

    fn set(&self, set: u32) -> Arc<[u32]> {
        self.sets.get(set as usize).cloned().unwrap_or_else(|| Arc::new([]))
    }

    fn spend(&mut self, work: usize) -> Result<(), TooAmbiguous> {
        self.work = self.work.saturating_add(work);
        if self.work > MAX_WORK { Err(TooAmbiguous) } else { Ok(()) }
    }
}
