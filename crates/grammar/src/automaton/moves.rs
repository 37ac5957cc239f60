//! The effect of a transition on each stack: the stack that it comes from, and the marks that it passes. Only readers look at moves.

use std::sync::Arc;

use foldhash::HashMap;

use crate::tree::{Mark, NodeId};

/// A mark or a text that a stack passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Passed {
    /// The text of the mark begins.
    Open(Mark),
    /// The text of the mark ends.
    Close(Mark),
    /// The text of an [`crate::tree::TreeBuilder::emit`] belongs to the arguments.
    Emit(NodeId),
}

/// The moves of one transition.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct Moves {
    /// For each stack after the transition, the index of the stack before it, and how much of `passed` belongs to it and to those before.
    stacks: Vec<(u32, u32)>,
    passed: Vec<Passed>,
    /// The stacks before from which they come, in the order in which these come up.
    sources: Vec<u32>,
}

impl Moves {
    /// Adds the next stack.
    pub(super) fn add(&mut self, from: u32, passed: Vec<Passed>) {
        if !self.sources.contains(&from) {
            self.sources.push(from);
        }
        self.passed.extend(passed);
        self.stacks.push((from, u32::try_from(self.passed.len()).unwrap_or(u32::MAX)));
    }

    /// Whether `n` stacks stay in their places and pass nothing.
    pub(super) fn is_plain(&self, n: usize) -> bool {
        let stays = self.stacks.iter().zip(0..).all(|((from, _), index)| *from == index);
        self.passed.is_empty() && self.stacks.len() == n && stays
    }

    /// The stacks before from which stacks come.
    pub(crate) fn sources(&self) -> &[u32] {
        &self.sources
    }

    /// The stack before from which this one comes, if it passes nothing.
    pub(crate) fn unmarked_source(&self, stack: u32) -> Option<u32> {
        let stack = stack as usize;
        let begin = stack.checked_sub(1).and_then(|before| self.stacks.get(before)).map_or(0, |before| before.1);
        self.stacks.get(stack).filter(|(_, end)| *end == begin).map(|(from, _)| *from)
    }

    /// The stacks before from which one comes that passes nothing, if others pass marks.
    pub(crate) fn unmarked_sources(&self) -> impl Iterator<Item = u32> {
        let all = if self.passed.is_empty() { 0..0 } else { 0..u32::try_from(self.stacks.len()).unwrap_or(0) };
        all.filter_map(|stack| self.unmarked_source(stack))
    }

    /// The index of the stack before, and what was passed, for each stack after the transition.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &[Passed])> {
        let mut begin = 0;
        self.stacks.iter().map(move |(from, end)| {
            let end = *end as usize;
            let passed = self.passed.get(begin..end).unwrap_or(&[]);
            begin = end;
            (*from, passed)
        })
    }
}

/// All moves by id. Id 0 stands for the plain ones, with which nothing changes.
#[derive(Debug, Default)]
pub(super) struct MoveTable {
    moves: Vec<Arc<Moves>>,
    ids: HashMap<Arc<Moves>, u32>,
    /// The moves of transitions: of a set by the column of a byte.
    transitions: HashMap<(u32, u8), u32>,
    size: usize,
}

impl MoveTable {
    pub(super) fn id(&mut self, moves: Moves) -> u32 {
        if let Some(known) = self.ids.get(&moves) {
            return *known;
        }
        self.size += 4 + moves.stacks.len() / 2 + moves.passed.len() / 2;
        let moves = Arc::new(moves);
        self.moves.push(Arc::clone(&moves));
        let id = u32::try_from(self.moves.len()).unwrap_or(u32::MAX);
        self.ids.insert(moves, id);
        id
    }

    /// The moves of a transition, if they are known.
    pub(super) fn of(&self, set: u32, column: u8) -> Option<u32> {
        self.transitions.get(&(set, column)).copied()
    }

    pub(super) fn set_of(&mut self, set: u32, column: u8, moves: u32) {
        self.transitions.insert((set, column), moves);
    }

    /// `None`: nothing changes.
    pub(super) fn get(&self, id: u32) -> Option<&Moves> {
        self.moves.get((id as usize).checked_sub(1)?).map(|moves| &**moves)
    }

    /// The size in entries of about 16 bytes.
    pub(super) fn size(&self) -> usize {
        self.size + self.transitions.len()
    }
}
