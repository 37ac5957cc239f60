//! Matches the output against a tree of rules: a deterministic pushdown automaton over bytes that is built lazily.
//!
//! The state is a set of stacks. A stack has the places where the open nodes continue, the innermost on top; its top reads a byte or a
//! token, or the stack is empty and the output may end. Stacks share their lower parts, sets have ids, and the transition from a set by a
//! byte is kept, so a repeated transition is one lookup.
//!
//! In a tree with marks a set is ordered: the stacks that have priority come first. There a transition also has [`Moves`], which say from
//! which stack each one comes and what it passes, for those that read the output. Otherwise sets are sorted.
//!
//! llama.cpp computes the sets again for each token and copies all rules with every copy. It does not limit the number of
//! stacks, which grows without bound in some grammars (`x ::= "a" x "b" | "a" x "c" | "a"` doubles it per character).

mod columns;
mod each;
mod mask;
mod moves;
mod sets;
mod stacks;
mod walk;

use std::collections::HashMap;
use std::sync::Arc;

use self::columns::ByteReader;
use self::mask::Masks;
pub(super) use self::mask::TokenMask;
use self::moves::MoveTable;
pub(super) use self::moves::{Moves, Passed};
use self::sets::{REJECTED_SET, SetFacts, Sets};
use self::stacks::{BASE, EMPTY, StackTop, Stacks};
use crate::tree::{MachineStep, Mark, MarkSet, Node, NodeId, Tree};
use foredraft_base::error::Error;
use foredraft_base::work::{Work, WorkEnd};
use foredraft_base::{Token, Vocabulary};

/// The maximum number of stacks in a set.
const MAX_STACKS: usize = 1 << 14;
/// The maximum number of stacks visited for one set. It includes those with an inner node on top, of which a tree may have long chains.
const MAX_VISITED: usize = 1 << 18;
/// The maximum work of one call, in stacks: about a second.
const MAX_WORK: usize = 1 << 24;
/// The size of the caches, in entries of about 16 bytes, at which the automaton is rebuilt.
const MAX_CACHED: usize = 1 << 19;

/// Stands for all tokens that a set does not name.
const OTHER_TOKENS: u32 = u32::MAX;
/// Visiting this many stacks counts as the work of making one.
const STACKS_PER_WORK: usize = 16;

/// The state of the output in the grammar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GrammarState {
    set: u32,
}

impl GrammarState {
    /// The output does not match the grammar.
    pub(super) const REJECTED: GrammarState = GrammarState { set: REJECTED_SET };

    /// Whether the output does not match the grammar.
    pub(super) fn is_rejected(self) -> bool {
        self.set == REJECTED_SET
    }
}

/// The grammar is so ambiguous that a limit was exceeded, or the [`Work`] of a metered automaton has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooAmbiguous;

impl std::fmt::Display for TooAmbiguous {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "too ambiguous: the output has more than {MAX_STACKS} parses or continuations")
    }
}

/// The error of a grammar that could not be made: of `work`, if that has ended.
pub(super) fn refused(why: impl std::fmt::Display, work: &Work) -> Error {
    work.step(1).err().map_or_else(|| Error::invalid(format!("grammar: {why}")), ended)
}

pub(super) fn ended(end: WorkEnd) -> Error {
    Error::new(end.code(), format!("grammar: {end}"))
}

/// A stack that may belong to a set.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    stack: u32,
    /// The index of the stack before from which it comes.
    from: u32,
    /// The marks that it passed, as a list of [`PassedLists`].
    passed: u32,
    /// Its top reads a byte or a token.
    is_read: bool,
}

/// Lists of what candidates passed, with shared beginnings. List 0 is empty.
#[derive(Debug, Default)]
struct PassedLists(Vec<(u32, Passed)>);

impl PassedLists {
    fn add(&mut self, list: u32, passed: Passed) -> u32 {
        self.0.push((list, passed));
        u32::try_from(self.0.len()).unwrap_or(u32::MAX)
    }

    fn list(&self, mut list: u32) -> Vec<Passed> {
        let mut passed = Vec::new();
        while let Some((before, last)) = (list as usize).checked_sub(1).and_then(|index| self.0.get(index)) {
            passed.push(*last);
            list = *before;
        }
        passed.reverse();
        passed
    }
}

/// The lazily built automaton of a tree: its stacks, sets and transitions.
#[derive(Debug)]
pub(super) struct Automaton {
    tree: Arc<Tree>,
    root: NodeId,
    stacks: Stacks,
    sets: Sets,
    moves: MoveTable,
    /// Transitions by token id: (set, token) to set. All tokens that a set does not name share [`OTHER_TOKENS`].
    follows_token: HashMap<(u32, u32), u32>,
    /// Unions of two sets.
    joined: HashMap<(u32, u32), u32>,
    masks: Masks,
    work: usize,
    /// Counts the work, too, while a host waits for it.
    meter: Option<Work>,
}

impl Automaton {
    pub(super) fn new(tree: Arc<Tree>, root: NodeId) -> Automaton {
        let mut automaton = Automaton {
            root,
            stacks: Stacks::default(),
            sets: Sets::default(),
            moves: MoveTable::default(),
            tree,
            follows_token: HashMap::new(),
            joined: HashMap::new(),
            masks: Masks::default(),
            work: 0,
            meter: None,
        };
        automaton.set_id(Vec::new());
        automaton
    }

    /// The state of an empty output.
    pub(super) fn start(&mut self) -> Result<GrammarState, TooAmbiguous> {
        Ok(self.start_reading()?.0)
    }

    /// The state of an empty output, and the moves with which its stacks come from the empty one.
    pub(super) fn start_reading(&mut self) -> Result<(GrammarState, Option<&Moves>), TooAmbiguous> {
        let stack = self.stacks.push(self.root, 0, EMPTY);
        let (set, moves) = self.expand(vec![Candidate { stack, from: 0, passed: 0, is_read: false }], Some(0))?;
        Ok((GrammarState { set }, self.moves.get(moves)))
    }

    /// The state after a byte, and the id of its moves.
    pub(super) fn read(&mut self, state: GrammarState, byte: u8) -> Result<(GrammarState, u32), TooAmbiguous> {
        let column = self.sets.column(state.set, byte);
        let known = self.moves.of(state.set, column).zip(self.sets.next(state.set, byte));
        let (moves, set) = match known {
            Some(known) => known,
            None => {
                let (next, moves) = self.follow_byte(state.set, byte, self.tree.is_ordered())?;
                self.moves.set_of(state.set, column, moves);
                (moves, next)
            }
        };
        Ok((GrammarState { set }, moves))
    }

    /// The moves with this id; `None` if nothing changes.
    pub(super) fn moves(&self, id: u32) -> Option<&Moves> {
        self.moves.get(id)
    }

    /// The index of the first stack that may end.
    pub(super) fn first_end(&self, state: GrammarState) -> Option<usize> {
        self.sets.stacks(state.set).iter().position(|stack| *stack == EMPTY)
    }

    /// The state with only the stack that decides the meaning of a text that ends here, and the index of that stack.
    pub(super) fn chosen(&mut self, state: GrammarState) -> (GrammarState, usize) {
        let stacks = self.sets.stacks(state.set);
        let chosen = self.first_end(state).unwrap_or(0);
        (GrammarState { set: self.set_id(stacks.get(chosen..=chosen).unwrap_or(&[]).to_vec()) }, chosen)
    }

    /// Whether all stacks are inside of a mark.
    pub(super) fn is_inside(&self, state: GrammarState, mark: Mark) -> bool {
        self.sets.facts(state.set).is_some_and(|facts| facts.marks.has(mark))
    }

    /// Whether a stack is inside of a mark.
    pub(super) fn may_be_inside(&self, state: GrammarState, mark: Mark) -> bool {
        self.sets.stacks(state.set).iter().any(|stack| self.stacks.marks(*stack).has(mark))
    }

    pub(super) fn tree(&self) -> &Arc<Tree> {
        &self.tree
    }

    /// Counts the work of the calls that follow as steps of this.
    pub(super) fn meter(&mut self, work: Option<Work>) {
        self.meter = work;
    }

    /// Resets the work counter at the beginning of a call.
    pub(super) fn begin_work(&mut self) {
        self.work = 0;
    }

    /// A new automaton with only this state; `None` while this one is small. The work counter is kept, and copying the stacks
    /// counts as work, because the stacks alone may exceed the cache limit.
    pub(super) fn rebuilt(&self, state: GrammarState) -> Result<Option<(Automaton, GrammarState)>, TooAmbiguous> {
        if self.size() < MAX_CACHED {
            return Ok(None);
        }
        let mut fresh = Automaton { work: self.work, ..Automaton::new(Arc::clone(&self.tree), self.root) };
        fresh.stacks = Stacks::with_seen_of(&self.stacks);
        let mut copied = Vec::new();
        for &stack in self.sets.stacks(state.set).iter() {
            let places = self.stacks.places(stack, EMPTY);
            fresh.spend(places.len())?;
            copied.push(fresh.stacks.push_all(&self.tree, places, EMPTY));
        }
        let set = fresh.set_id(copied);
        Ok(Some((fresh, GrammarState { set })))
    }

    /// The size of the caches, in entries of about 16 bytes.
    fn size(&self) -> usize {
        let others = self.follows_token.len() + self.joined.len() + self.masks.size();
        self.stacks.len() + self.sets.size() + self.moves.size() + others
    }

    /// Whether the output may end.
    pub(super) fn may_end(&self, state: GrammarState) -> bool {
        self.first_end(state).is_some()
    }

    /// The state after `token` of a vocabulary. An end-of-generation token does not change it.
    pub(super) fn follow_in(
        &mut self,
        state: GrammarState,
        vocabulary: &dyn Vocabulary,
        token: Token,
    ) -> Result<GrammarState, TooAmbiguous> {
        if vocabulary.is_eog(token) {
            return Ok(if self.may_end(state) { state } else { GrammarState::REJECTED });
        }
        self.follow(state, token, vocabulary.piece(token), vocabulary.text(token))
    }

    /// The state after a token with the piece `piece` that adds `text` to the output; [`GrammarState::REJECTED`] if it may not
    /// follow.
    ///
    /// Control tokens have a piece (their name) and no text. They match only where the grammar names them by id. (In llama.cpp
    /// they also match by their names, and the output then lacks text that the grammar requires.)
    pub(super) fn follow(
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
        Ok(GrammarState { set: self.join(by_text.set, by_id)? })
    }

    /// The union of two sets.
    fn join(&mut self, one: u32, other: u32) -> Result<u32, TooAmbiguous> {
        if let Some(&known) = self.joined.get(&(one, other)) {
            return Ok(known);
        }
        let mut stacks = self.sets.stacks(one).to_vec();
        let others = self.sets.stacks(other);
        self.spend(stacks.len() + others.len())?;
        self.stacks.begin_visits();
        stacks.iter().for_each(|stack| _ = self.stacks.visit(*stack));
        stacks.extend(others.iter().filter(|stack| self.stacks.visit(**stack)));
        let both = self.set_id(stacks);
        self.joined.insert((one, other), both);
        Ok(both)
    }

    /// The bytes that may come next, in order, if there are at most `most` and the output may not end here.
    pub(super) fn next_bytes(&mut self, state: GrammarState, most: usize) -> Result<Option<Vec<u8>>, TooAmbiguous> {
        let stacks = self.sets.stacks(state.set);
        self.spend(1 + stacks.len() / STACKS_PER_WORK)?;
        let mut bytes: Vec<u8> = Vec::new();
        for stack in stacks.iter() {
            let Some(StackTop { node, at, .. }) = self.stacks.top(*stack) else { return Ok(None) };
            match self.tree.node(node) {
                Some(Node::Text(text)) => bytes.extend(text.get(at as usize)),
                Some(Node::Machine(machine)) => bytes.extend(machine.next_bytes(at)),
                _ => return Ok(None),
            }
            bytes.sort_unstable();
            bytes.dedup();
            if bytes.len() > most {
                return Ok(None);
            }
        }
        Ok((!bytes.is_empty()).then_some(bytes))
    }

    /// The state after text; [`GrammarState::REJECTED`] if it may not follow.
    pub(super) fn follow_text(&mut self, mut state: GrammarState, text: &[u8]) -> Result<GrammarState, TooAmbiguous> {
        for &byte in text {
            state.set = self.next_set(state.set, byte)?;
            if state.is_rejected() {
                break;
            }
        }
        Ok(state)
    }

    /// The set after a byte.
    fn next_set(&mut self, set: u32, byte: u8) -> Result<u32, TooAmbiguous> {
        match self.sets.next(set, byte) {
            Some(known) => Ok(known),
            None => Ok(self.follow_byte(set, byte, false)?.0),
        }
    }

    /// The set after a byte, and its moves if they are wanted.
    fn follow_byte(&mut self, set: u32, byte: u8, with_moves: bool) -> Result<(u32, u32), TooAmbiguous> {
        let next = self.step(set, with_moves, |frame, node| match node {
            Node::Text(text) if text.get(frame.at as usize) == Some(&byte) => {
                Some((frame.at as usize + 1 < text.len()).then_some(frame.at + 1))
            }
            Node::Machine(machine) => match machine.step(frame.at, byte) {
                MachineStep::Dead => None,
                MachineStep::State(state) => Some(Some(state)),
                MachineStep::Done => Some(None),
            },
            _ => None,
        })?;
        self.sets.set_next(set, byte, next.0);
        Ok(next)
    }

    /// The set after a token that the grammar names by id.
    fn follow_token(&mut self, state: GrammarState, token: Token) -> Result<u32, TooAmbiguous> {
        let named = self.sets.facts(state.set).and_then(|facts| facts.named.as_deref());
        let Some(named) = named else { return Ok(REJECTED_SET) };
        let number = u32::try_from(token).ok().filter(|number| named.binary_search(number).is_ok());
        let key = (state.set, number.unwrap_or(OTHER_TOKENS));
        if let Some(&known) = self.follows_token.get(&key) {
            return Ok(known);
        }
        let (next, _) = self.step(state.set, false, |_, node| match node {
            Node::Token(wanted) => (Some(*wanted) == number).then_some(None),
            Node::NotToken(other) => (Some(*other) != number).then_some(None),
            _ => None,
        })?;
        self.follows_token.insert(key, next);
        Ok(next)
    }

    /// The set after the stacks of `set` whose top can be followed, and its moves if they are wanted. `advance` returns the new progress,
    /// `Some(None)` at the node's end.
    fn step(
        &mut self,
        set: u32,
        with_moves: bool,
        advance: impl Fn(StackTop, &Node) -> Option<Option<u32>>,
    ) -> Result<(u32, u32), TooAmbiguous> {
        let (tree, stacks) = (Arc::clone(&self.tree), self.sets.stacks(set));
        self.spend(1 + stacks.len() / STACKS_PER_WORK)?;
        let mut next = Vec::new();
        for (&stack, from) in stacks.iter().zip(0..) {
            let Some(frame) = self.stacks.top(stack) else { continue };
            let stack = match tree.node(frame.node).and_then(|node| advance(frame, node)) {
                Some(Some(at)) => self.stacks.push(frame.node, at, frame.below),
                Some(None) => frame.below,
                None => continue,
            };
            next.push(Candidate { stack, from, passed: 0, is_read: false });
        }
        next.reverse();
        self.expand(next, with_moves.then_some(stacks.len()))
    }

    /// Replaces inner nodes on top of the given stacks until every top reads a byte or a token. Returns the set and, if they are wanted, its
    /// moves from `n_before` stacks. The last candidate has priority, and so has the first set found: of two equal stacks the first one stays.
    fn expand(&mut self, mut todo: Vec<Candidate>, n_before: Option<usize>) -> Result<(u32, u32), TooAmbiguous> {
        let tree = Arc::clone(&self.tree);
        self.stacks.begin_visits();
        let (mut found, mut n_visited) = (Vec::new(), 0);
        let mut passed = PassedLists::default();
        while let Some(candidate) = todo.pop() {
            let Candidate { stack, is_read, .. } = candidate;
            if !is_read && !self.stacks.visit(stack) {
                continue;
            }
            n_visited += 1;
            if n_visited > MAX_VISITED || found.len() > MAX_STACKS {
                return Err(TooAmbiguous);
            }
            let n_todo = todo.len();
            let top = self.stacks.top(stack).filter(|_| !is_read);
            if top.is_none_or(|frame| self.open(&tree, frame, candidate, &mut todo, &mut passed)) {
                found.push(candidate);
            }
            self.spend(1 + todo.len().saturating_sub(n_todo))?;
        }
        let mut moves = 0;
        if let Some(n_before) = n_before.filter(|_| tree.is_ordered()) {
            let (mut made, mut n_passed) = (Moves::default(), 0);
            for candidate in &found {
                let list = passed.list(candidate.passed);
                n_passed += list.len();
                if n_passed > MAX_VISITED {
                    return Err(TooAmbiguous);
                }
                self.spend(list.len())?;
                made.add(candidate.from, list);
            }
            moves = if made.is_plain(n_before) { 0 } else { self.moves.id(made) };
        }
        Ok((self.set_id(found.into_iter().map(|candidate| candidate.stack).collect()), moves))
    }

    /// Whether the top of a stack reads a byte or a token. Otherwise adds the stacks that stand for it to `todo`, those of less priority
    /// first.
    fn open(
        &mut self,
        tree: &Tree,
        frame: StackTop,
        candidate: Candidate,
        todo: &mut Vec<Candidate>,
        passed: &mut PassedLists,
    ) -> bool {
        let StackTop { node, at, below } = frame;
        let stacks = &mut self.stacks;
        let with = |stack| Candidate { stack, ..candidate };
        match tree.node(node) {
            Some(Node::Text(_) | Node::Token(_) | Node::NotToken(_)) => return true,
            Some(Node::Machine(machine)) => {
                if !machine.may_end(at) {
                    return true;
                }
                // The text behind it has priority.
                todo.extend([Candidate { is_read: true, ..candidate }, with(below)]);
            }
            Some(Node::Seq(parts)) => {
                let rest = if at as usize + 1 < parts.len() { stacks.push(node, at + 1, below) } else { below };
                todo.push(with(parts.get(at as usize).map_or(below, |part| stacks.push(*part, 0, rest))));
            }
            Some(Node::Alt(parts)) => {
                todo.extend(parts.iter().rev().map(|part| with(stacks.push(*part, 0, below))));
            }
            Some(Node::Repeat(repeated, min, max)) => {
                if at >= *min {
                    todo.push(with(below));
                }
                let count = max.map_or((at + 1).min(*min), |_| at + 1);
                if max.is_none_or(|max| at < max) {
                    let rest = if Some(count) == *max { below } else { stacks.push(node, count, below) };
                    todo.push(with(stacks.push(*repeated, 0, rest)));
                }
            }
            Some(Node::Each(each)) => {
                let seen = stacks.seen(at);
                if seen.may_end(each) {
                    todo.push(with(below));
                }
                let first = todo.len();
                for (item, next) in seen.options(each) {
                    let next = stacks.seen_id(next);
                    let rest = stacks.push(node, next, below);
                    let item = stacks.push(item, 0, rest);
                    todo.push(with(if seen.is_empty() { item } else { stacks.push(each.separator, 0, item) }));
                }
                todo.get_mut(first..).into_iter().for_each(<[Candidate]>::reverse);
            }
            Some(Node::Mark(mark, marked)) if at == 0 => {
                let rest = stacks.push_marked(node, 1, below, MarkSet::of(*mark));
                let passed = passed.add(candidate.passed, Passed::Open(*mark));
                todo.push(Candidate { stack: stacks.push(*marked, 0, rest), passed, ..candidate });
            }
            Some(Node::Mark(mark, _)) => {
                let passed = passed.add(candidate.passed, Passed::Close(*mark));
                todo.push(Candidate { stack: below, passed, ..candidate });
            }
            Some(Node::Emit(_)) => {
                let passed = passed.add(candidate.passed, Passed::Emit(node));
                todo.push(Candidate { stack: below, passed, ..candidate });
            }
            Some(Node::Commit) => {
                todo.clear();
                todo.push(with(below));
            }
            Some(Node::Rule(rule)) => todo.extend(tree.body(*rule).map(|body| with(stacks.push(body, 0, below)))),
            None => {}
        }
        false
    }

    /// The id of the set of these stacks.
    fn set_id(&mut self, mut stacks: Vec<u32>) -> u32 {
        if !self.tree.is_ordered() {
            stacks.sort_unstable();
        }
        if let Some(known) = self.sets.find(&stacks) {
            return known;
        }
        let (mut named, mut readers, mut marks) = (Vec::new(), Vec::new(), MarkSet::ALL);
        for stack in &stacks {
            marks = marks.shared(self.stacks.marks(*stack));
            let Some(top) = self.stacks.top(*stack) else { continue };
            match self.tree.node(top.node) {
                Some(Node::Token(token) | Node::NotToken(token)) => named.push(*token),
                Some(Node::Text(text)) => readers.extend(text.get(top.at as usize).copied().map(ByteReader::Byte)),
                _ => readers.push(ByteReader::Machine(top.node)),
            }
        }
        named.sort_unstable();
        named.dedup();
        readers.sort_unstable();
        readers.dedup();
        let (columns, are_new) = self.sets.columns.find(&self.tree, &readers);
        if are_new {
            self.work = self.work.saturating_add(readers.len().saturating_sub(1));
        }
        let named = (!named.is_empty()).then(|| named.into());
        self.sets.add(&stacks, SetFacts { named, marks, columns, is_open: stacks.contains(&BASE) })
    }

    fn spend(&mut self, work: usize) -> Result<(), TooAmbiguous> {
        self.work = self.work.saturating_add(work);
        let is_ended = self.meter.as_ref().is_some_and(|meter| meter.step(work).is_err());
        if is_ended || self.work > MAX_WORK { Err(TooAmbiguous) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests;
