//! Matches the output against a tree of rules: a deterministic pushdown automaton over bytes that is built lazily.
//!
//! The state is a set of stacks. A stack has the places where the open nodes continue, the innermost on top; its top reads a byte or a
//! token, or the stack is empty and the output may end. Stacks share their lower parts, sets have ids, and the transition from a set by a
//! byte is kept, so a repeated transition is one lookup.
//!
//! llama.cpp computes the sets again for each token and copies all rules with every copy. It does not limit the number of
//! stacks, which grows without bound in some grammars (`x ::= "a" x "b" | "a" x "c" | "a"` doubles it per character).

mod each;
mod sets;
mod stacks;

use std::collections::HashMap;
use std::sync::Arc;

use self::sets::{REJECTED_SET, Sets};
use self::stacks::{EMPTY, Frame, Stacks};
use crate::tree::{MachineStep, Node, NodeId, Tree};
use foredraft_base::Token;

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

/// The grammar is so ambiguous that a limit was exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooAmbiguous;

impl std::fmt::Display for TooAmbiguous {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "too ambiguous: the output has more than {MAX_STACKS} parses or continuations")
    }
}

/// The lazily built automaton of a tree: its stacks, sets and transitions.
#[derive(Debug)]
pub(super) struct Automaton {
    tree: Arc<Tree>,
    root: NodeId,
    stacks: Stacks,
    sets: Sets,
    /// The column of each byte in the rows of sets.
    columns: [u8; 256],
    /// Transitions by token id: (set, token) to set. All tokens that a set does not name share [`OTHER_TOKENS`].
    follows_token: HashMap<(u32, u32), u32>,
    /// Unions of two sets.
    joined: HashMap<(u32, u32), u32>,
    work: usize,
}

impl Automaton {
    pub(super) fn new(tree: Arc<Tree>, root: NodeId) -> Automaton {
        let (columns, n_columns) = tree.columns();
        Automaton {
            tree,
            root,
            stacks: Stacks::default(),
            sets: Sets::new(n_columns),
            columns,
            follows_token: HashMap::new(),
            joined: HashMap::new(),
            work: 0,
        }
    }

    /// The state of an empty output.
    pub(super) fn start(&mut self) -> Result<GrammarState, TooAmbiguous> {
        let stack = self.stacks.push(self.root, 0, EMPTY);
        Ok(GrammarState { set: self.expand(vec![stack])? })
    }

    /// Resets the work counter at the beginning of a call.
    pub(super) fn begin_work(&mut self) {
        self.work = 0;
    }

    /// A new automaton with only this state; `None` while this one is small. The work counter is kept, and copying the stacks
    /// counts as work, because the stacks alone may exceed the cache limit.
    pub(super) fn rebuilt(&self, state: GrammarState) -> Result<Option<(Automaton, GrammarState)>, TooAmbiguous> {
        let others = self.follows_token.len() + self.joined.len();
        if self.stacks.len() + self.sets.size() + others < MAX_CACHED {
            return Ok(None);
        }
        let mut fresh = Automaton { work: self.work, ..Automaton::new(Arc::clone(&self.tree), self.root) };
        fresh.stacks = Stacks::with_seen_of(&self.stacks);
        let mut copied = Vec::new();
        for &stack in self.sets.stacks(state.set).iter() {
            let (stack, n_places) = fresh.stacks.copy(&self.stacks, stack);
            fresh.spend(n_places)?;
            copied.push(stack);
        }
        let set = fresh.set_id(copied);
        Ok(Some((fresh, GrammarState { set })))
    }

    /// Whether the output may end.
    pub(super) fn may_end(&self, state: GrammarState) -> bool {
        self.sets.stacks(state.set).contains(&EMPTY)
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
        Ok(GrammarState { set: self.join(by_id, by_text.set)? })
    }

    /// The union of two sets.
    fn join(&mut self, one: u32, other: u32) -> Result<u32, TooAmbiguous> {
        if let Some(&known) = self.joined.get(&(one, other)) {
            return Ok(known);
        }
        let mut stacks = self.sets.stacks(one).to_vec();
        stacks.extend_from_slice(&self.sets.stacks(other));
        self.spend(stacks.len())?;
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
            let Some(Frame { node, at, .. }) = self.stacks.top(*stack) else { return Ok(None) };
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
            let column = self.columns.get(usize::from(byte)).copied().unwrap_or(0);
            state.set = match self.sets.next(state.set, column) {
                Some(known) => known,
                None => self.follow_byte(state.set, byte, column)?,
            };
            if state.is_rejected() {
                break;
            }
        }
        Ok(state)
    }

    /// The set after a byte, of this column.
    fn follow_byte(&mut self, set: u32, byte: u8, column: u8) -> Result<u32, TooAmbiguous> {
        let next = self.step(set, |frame, node| match node {
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
        self.sets.set_next(set, column, next);
        Ok(next)
    }

    /// The set after a token that the grammar names by id.
    fn follow_token(&mut self, state: GrammarState, token: Token) -> Result<u32, TooAmbiguous> {
        let Some(named) = self.sets.named(state.set) else { return Ok(REJECTED_SET) };
        let number = u32::try_from(token).ok().filter(|number| named.binary_search(number).is_ok());
        let key = (state.set, number.unwrap_or(OTHER_TOKENS));
        if let Some(&known) = self.follows_token.get(&key) {
            return Ok(known);
        }
        let next = self.step(state.set, |_, node| match node {
            Node::Token(wanted) => (Some(*wanted) == number).then_some(None),
            Node::NotToken(other) => (Some(*other) != number).then_some(None),
            _ => None,
        })?;
        self.follows_token.insert(key, next);
        Ok(next)
    }

    /// The set after the stacks of `set` whose top can be followed: `advance` returns the new progress, `Some(None)` at the node's end.
    fn step(&mut self, set: u32, advance: impl Fn(Frame, &Node) -> Option<Option<u32>>) -> Result<u32, TooAmbiguous> {
        let (tree, stacks) = (Arc::clone(&self.tree), self.sets.stacks(set));
        self.spend(1 + stacks.len() / STACKS_PER_WORK)?;
        let mut next = Vec::new();
        for &stack in stacks.iter() {
            let Some(frame) = self.stacks.top(stack) else { continue };
            match tree.node(frame.node).and_then(|node| advance(frame, node)) {
                Some(Some(at)) => next.push(self.stacks.push(frame.node, at, frame.below)),
                Some(None) => next.push(frame.below),
                None => {}
            }
        }
        self.expand(next)
    }

    /// Replaces inner nodes on top of the given stacks until every top reads a byte or a token, and returns the set.
    fn expand(&mut self, mut todo: Vec<u32>) -> Result<u32, TooAmbiguous> {
        let tree = Arc::clone(&self.tree);
        self.stacks.begin_visits();
        let (mut found, mut n_visited) = (Vec::new(), 0);
        while let Some(stack) = todo.pop() {
            if !self.stacks.visit(stack) {
                continue;
            }
            n_visited += 1;
            if n_visited > MAX_VISITED || found.len() > MAX_STACKS {
                return Err(TooAmbiguous);
            }
            let n_todo = todo.len();
            let Some(frame) = self.stacks.top(stack) else {
                found.push(stack);
                continue;
            };
            if self.is_read(&tree, frame, &mut todo) {
                found.push(stack);
            }
            self.spend(1 + todo.len().saturating_sub(n_todo))?;
        }
        Ok(self.set_id(found))
    }

    /// Whether the top of a stack reads a byte or a token. Adds the stacks that stand for it to `todo`, those of less priority first.
    fn is_read(&mut self, tree: &Tree, frame: Frame, todo: &mut Vec<u32>) -> bool {
        let Frame { node, at, below } = frame;
        let stacks = &mut self.stacks;
        match tree.node(node) {
            Some(Node::Text(_) | Node::Token(_) | Node::NotToken(_)) => return true,
            Some(Node::Machine(machine)) => {
                if machine.may_end(at) {
                    todo.push(below);
                }
                return true;
            }
            Some(Node::Seq(parts)) => {
                let rest = if at as usize + 1 < parts.len() { stacks.push(node, at + 1, below) } else { below };
                todo.push(parts.get(at as usize).map_or(below, |part| stacks.push(*part, 0, rest)));
            }
            Some(Node::Alt(parts)) => todo.extend(parts.iter().rev().map(|part| stacks.push(*part, 0, below))),
            Some(Node::Repeat(repeated, min, max)) => {
                if at >= *min {
                    todo.push(below);
                }
                let count = max.map_or((at + 1).min(*min), |_| at + 1);
                if max.is_none_or(|max| at < max) {
                    let rest = if Some(count) == *max { below } else { stacks.push(node, count, below) };
                    todo.push(stacks.push(*repeated, 0, rest));
                }
            }
            Some(Node::Each(each)) => {
                let seen = stacks.seen(at);
                if seen.may_end(each) {
                    todo.push(below);
                }
                let first = todo.len();
                for (item, next) in seen.options(each) {
                    let next = stacks.seen_id(next);
                    let rest = stacks.push(node, next, below);
                    let item = stacks.push(item, 0, rest);
                    todo.push(if seen.is_empty() { item } else { stacks.push(each.separator, 0, item) });
                }
                todo.get_mut(first..).into_iter().for_each(<[u32]>::reverse);
            }
            Some(Node::Mark(_, marked)) => {
                let rest = stacks.push(node, 1, below);
                todo.push(if at == 0 { stacks.push(*marked, 0, rest) } else { below });
            }
            Some(Node::Emit(_) | Node::Commit) => todo.push(below),
            Some(Node::Rule(rule)) => todo.extend(tree.body(*rule).map(|body| stacks.push(body, 0, below))),
            None => {}
        }
        false
    }

    /// The id of the set of these stacks.
    fn set_id(&mut self, mut stacks: Vec<u32>) -> u32 {
        stacks.sort_unstable();
        stacks.dedup();
        let (tree, all) = (&self.tree, &self.stacks);
        self.sets.id(&stacks, || {
            let named =
                stacks.iter().filter_map(|stack| tree.node(all.top(*stack)?.node)).filter_map(|node| match node {
                    Node::Token(token) | Node::NotToken(token) => Some(*token),
                    _ => None,
                });
            let mut named: Vec<u32> = named.collect();
            named.sort_unstable();
            named.dedup();
            (!named.is_empty()).then(|| named.into())
        })
    }

    fn spend(&mut self, work: usize) -> Result<(), TooAmbiguous> {
        self.work = self.work.saturating_add(work);
        if self.work > MAX_WORK { Err(TooAmbiguous) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests;
