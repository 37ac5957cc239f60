//! The stacks of the automaton: places in the tree, the innermost on top. Equal stacks have the same id and share their lower parts.

use foldhash::HashMap;

use super::each::SeenItems;
use crate::tree::{MarkSet, NodeId};

/// The empty stack.
pub(super) const EMPTY: u32 = 0;

/// The top of a stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct StackTop {
    pub(super) node: NodeId,
    /// The progress in the node.
    pub(super) at: u32,
    /// The stack below.
    pub(super) below: u32,
}

/// All stacks by id.
#[derive(Debug, Default)]
pub(super) struct Stacks {
    /// Id 0 is the empty stack and has none.
    frames: Vec<StackTop>,
    ids: HashMap<StackTop, u32>,
    /// The marks that each stack is inside of. The empty one is inside of none.
    marks: Vec<MarkSet>,
    /// When each stack was last visited.
    visits: Vec<u32>,
    visit: u32,
    /// The progress of [`crate::tree::Each`]. The first one has no items.
    seen: Vec<SeenItems>,
    seen_ids: HashMap<SeenItems, u32>,
}

impl Stacks {
    pub(super) fn len(&self) -> usize {
        self.frames.len()
    }

    /// The top of a stack; `None` for the empty one.
    pub(super) fn top(&self, stack: u32) -> Option<StackTop> {
        self.frames.get((stack as usize).checked_sub(1)?).copied()
    }

    pub(super) fn push(&mut self, node: NodeId, at: u32, below: u32) -> u32 {
        self.push_marked(node, at, below, MarkSet::NONE)
    }

    /// As [`Stacks::push`], for a place inside of marks.
    pub(super) fn push_marked(&mut self, node: NodeId, at: u32, below: u32, marks: MarkSet) -> u32 {
        let frame = StackTop { node, at, below };
        let next = u32::try_from(self.frames.len() + 1).unwrap_or(u32::MAX);
        let id = *self.ids.entry(frame).or_insert(next);
        if id == next {
            self.frames.push(frame);
            self.marks.push(self.marks(below).with(marks));
        }
        id
    }

    /// The marks that a stack is inside of.
    pub(super) fn marks(&self, stack: u32) -> MarkSet {
        (stack as usize).checked_sub(1).and_then(|index| self.marks.get(index)).copied().unwrap_or(MarkSet::NONE)
    }

    /// The places of a stack of other `Stacks`, the outermost first, become one here.
    pub(super) fn copy(&mut self, other: &Stacks, stack: u32) -> (u32, usize) {
        let mut frames = Vec::new();
        let mut rest = stack;
        while let Some(frame) = other.top(rest) {
            frames.push((frame, other.marks(rest)));
            rest = frame.below;
        }
        let n_frames = frames.len();
        let copy = |below, (frame, marks): (StackTop, _)| self.push_marked(frame.node, frame.at, below, marks);
        (frames.into_iter().rev().fold(EMPTY, copy), n_frames)
    }

    /// Takes over the progress of items, to which stacks refer.
    pub(super) fn with_seen_of(other: &Stacks) -> Stacks {
        Stacks { seen: other.seen.clone(), seen_ids: other.seen_ids.clone(), ..Stacks::default() }
    }

    pub(super) fn seen(&self, at: u32) -> SeenItems {
        self.seen.get((at as usize).wrapping_sub(1)).cloned().unwrap_or_default()
    }

    pub(super) fn seen_id(&mut self, seen: SeenItems) -> u32 {
        let next = u32::try_from(self.seen.len() + 1).unwrap_or(u32::MAX);
        let id = *self.seen_ids.entry(seen.clone()).or_insert(next);
        if id == next {
            self.seen.push(seen);
        }
        id
    }

    /// Forgets which stacks were visited.
    pub(super) fn begin_visits(&mut self) {
        self.visit = self.visit.wrapping_add(1);
        if self.visit == 0 {
            self.visits.clear();
            self.visit = 1;
        }
    }

    /// Whether the stack was not visited yet. It is now.
    pub(super) fn visit(&mut self, stack: u32) -> bool {
        if self.visits.len() <= stack as usize {
            self.visits.resize(self.frames.len() + 1, 0);
        }
        self.visits.get_mut(stack as usize).is_some_and(|visit| std::mem::replace(visit, self.visit) != self.visit)
    }
}
