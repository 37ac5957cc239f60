//! The stacks of the automaton: places in the tree, the innermost on top. Equal stacks have the same id and share their lower parts.

use foldhash::HashMap;

use super::each::SeenItems;
use crate::tree::{MarkSet, Node, NodeId, Tree};

/// The empty stack.
pub(super) const EMPTY: u32 = 0;
/// Stands for the stack below those that were cut off ([`Stacks::moved`]).
pub(super) const BASE: u32 = 1;
/// The number of stacks without a top.
const N_BARE: usize = 2;

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
    /// The stacks from id 2 on.
    frames: Vec<StackTop>,
    ids: HashMap<StackTop, u32>,
    /// The marks that each stack is inside of, and the number of its places. The bare ones are inside of none.
    properties: Vec<(MarkSet, u32)>,
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

    /// The top of a stack; `None` for one without places.
    pub(super) fn top(&self, stack: u32) -> Option<StackTop> {
        self.frames.get((stack as usize).checked_sub(N_BARE)?).copied()
    }

    /// The stack below the top.
    fn below(&self, stack: u32) -> u32 {
        self.top(stack).map_or(EMPTY, |top| top.below)
    }

    /// The longest stack that is below the tops of all these; the empty one if it is not found in so many steps.
    pub(super) fn shared_base(&self, stacks: &[u32], mut steps: usize) -> u32 {
        let bases = stacks.iter().map(|stack| self.below(*stack));
        let mut shared = |mut one, mut other| {
            while one != other {
                let (deeper, rest) = if self.depth(one) >= self.depth(other) { (one, other) } else { (other, one) };
                (one, other) = (self.below(deeper), rest);
                steps = steps.checked_sub(1)?;
            }
            Some(one)
        };
        bases.map(Some).reduce(|one, other| shared(one?, other?)).flatten().unwrap_or(EMPTY)
    }

    /// The places of a stack above `base`, the innermost first.
    pub(super) fn places(&self, stack: u32, base: u32) -> Vec<StackTop> {
        let above = |stack: u32| self.top(stack).filter(|_| stack != base);
        std::iter::successors(above(stack), |top| above(top.below)).collect()
    }

    /// Pushes places, of which the last one is the outermost.
    pub(super) fn push_all(&mut self, tree: &Tree, places: Vec<StackTop>, base: u32) -> u32 {
        places.into_iter().rev().fold(base, |below, place| {
            let marks = match tree.node(place.node) {
                Some(Node::Mark(mark, _)) if place.at > 0 => MarkSet::of(*mark),
                _ => MarkSet::NONE,
            };
            self.push_marked(place.node, place.at, below, marks)
        })
    }

    pub(super) fn push(&mut self, node: NodeId, at: u32, below: u32) -> u32 {
        self.push_marked(node, at, below, MarkSet::NONE)
    }

    /// As [`Stacks::push`], for a place inside of marks.
    pub(super) fn push_marked(&mut self, node: NodeId, at: u32, below: u32, marks: MarkSet) -> u32 {
        let frame = StackTop { node, at, below };
        let next = u32::try_from(self.frames.len() + N_BARE).unwrap_or(u32::MAX);
        let id = *self.ids.entry(frame).or_insert(next);
        if id == next {
            self.frames.push(frame);
            self.properties.push((self.marks(below).with(marks), self.depth(below) + 1));
        }
        id
    }

    /// The marks that a stack is inside of.
    pub(super) fn marks(&self, stack: u32) -> MarkSet {
        self.properties(stack).map_or(MarkSet::NONE, |(marks, _)| *marks)
    }

    fn depth(&self, stack: u32) -> u32 {
        self.properties(stack).map_or(0, |(_, depth)| *depth)
    }

    fn properties(&self, stack: u32) -> Option<&(MarkSet, u32)> {
        self.properties.get((stack as usize).checked_sub(N_BARE)?)
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
            self.visits.resize(self.frames.len() + N_BARE, 0);
        }
        self.visits.get_mut(stack as usize).is_some_and(|visit| std::mem::replace(visit, self.visit) != self.visit)
    }
}
