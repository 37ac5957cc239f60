//! A slot's draft in the target's batch: which tokens may see which.
//!
//! A draft with branches is a tree. Each branch is a sequence that has the text, and what the branch shares with others, in
//! common with the slot's own; the first branch is the slot's own. They are emptied after each evaluation: when another branch
//! than the first turns out to be right, its tokens are evaluated again with the next step's, behind each other in the
//! cache. To keep them where they are would save that, but attention sums up in the order of cells, and the text's
//! last bits would depend on drafts. For the same reason the first branch comes before the others in the batch: what is
//! right of it then leaves no hole behind that later tokens would fill.

use crate::llama::{Context, SeqId};

/// The branches of a slot's draft.
#[derive(Debug, Default)]
pub(super) struct Branches {
    /// The slot's sequence, and those that it may use for branches.
    own: SeqId,
    spare: Vec<SeqId>,
    /// Node 0 is the text.
    nodes: Vec<Node>,
    /// How many branches there are; the first is the slot's own sequence.
    used: usize,
    /// The sequences of each node, one list behind the other.
    lists: Vec<SeqId>,
}

#[derive(Debug, Clone)]
struct Node {
    parent: usize,
    depth: usize,
    /// The branch that it belongs to first.
    branch: usize,
    /// All branches through it, as bits.
    through: u64,
    /// Where its sequences end in `lists`.
    end: usize,
}

impl Branches {
    /// For a slot that has the sequence `own` and may use `spare`.
    pub(super) fn new(own: SeqId, spare: Vec<SeqId>) -> Branches {
        Branches { own, spare, ..Branches::default() }
    }

    /// Lays out a draft whose tokens have these nodes before them. `share` is to give a spare sequence what the slot's own has.
    /// Returns how many of them can be evaluated together: all for which there are sequences.
    pub(super) fn plant(
        &mut self,
        parents: impl Iterator<Item = usize>,
        mut share: impl FnMut(SeqId, SeqId) -> bool,
    ) -> usize {
        self.nodes.clear();
        self.nodes.push(Node { parent: 0, depth: 0, branch: 0, through: 1, end: 0 });
        self.used = 1;
        for parent in parents {
            let Some(Node { depth, branch, .. }) = self.nodes.get(parent).cloned() else { break };
            let is_first = !self.nodes.iter().skip(1).any(|node| node.parent == parent);
            let branch = if is_first {
                branch
            } else {
                let spare = self.spare.get(self.used - 1);
                if !spare.is_some_and(|spare| share(self.own, *spare)) {
                    break;
                }
                self.used += 1;
                self.used - 1
            };
            self.nodes.push(Node { parent, depth: depth + 1, branch, through: 0, end: 0 });
            let mut at = self.nodes.len() - 1;
            while let Some(node) = self.nodes.get_mut(at).filter(|node| node.through & (1 << branch) == 0) {
                node.through |= 1 << branch;
                at = node.parent;
            }
        }
        self.lists.clear();
        for node in &mut self.nodes {
            let sequences = std::iter::once(&self.own).chain(&self.spare).enumerate();
            self.lists.extend(sequences.filter(|(bit, _)| node.through >> bit & 1 == 1).map(|(_, sequence)| sequence));
            node.end = self.lists.len();
        }
        self.nodes.len() - 1
    }

    /// The sequences that see the text.
    pub(super) fn of_text(&self) -> &[SeqId] {
        self.nodes.first().and_then(|text| self.lists.get(..text.end)).unwrap_or(&[])
    }

    /// The drafted tokens in the order of the batch: the node of each, how many are before it in its branch, and the sequences
    /// that see it.
    pub(super) fn nodes(&self) -> impl Iterator<Item = (usize, usize, &[SeqId])> {
        let all = || (1..).zip(self.nodes.iter().zip(self.nodes.iter().skip(1)));
        let own = all().filter(|(_, (_, node))| node.branch == 0);
        let other = all().filter(|(_, (_, node))| node.branch != 0);
        own.chain(other)
            .map(|(at, (before, node))| (at, node.depth - 1, self.lists.get(before.end..node.end).unwrap_or(&[])))
    }

    /// Where the row of `node` is, counted from that of the text.
    pub(super) fn row(&self, node: usize) -> usize {
        self.nodes().position(|(at, ..)| at == node).map_or(0, |place| place + 1)
    }

    /// The nodes behind `node`.
    pub(super) fn children(&self, node: usize) -> impl Iterator<Item = usize> + '_ {
        (0..).zip(&self.nodes).skip(1).filter(move |(_, child)| child.parent == node).map(|(child, _)| child)
    }

    /// The node behind `node` on the way to `last`; `None` where that is reached.
    pub(super) fn towards(&self, node: usize, last: usize) -> Option<usize> {
        let parent = |at: &usize| self.nodes.get(*at).map(|node| node.parent);
        let mut way = std::iter::successors(Some(last).filter(|last| *last != node), parent);
        way.find(|at| *at == 0 || parent(at) == Some(node)).filter(|at| *at > 0)
    }

    /// Whether the slot's own sequence goes through a node.
    pub(super) fn is_own(&self, node: usize) -> bool {
        self.nodes.get(node).is_some_and(|node| node.branch == 0)
    }

    /// Empties the branches' sequences.
    pub(super) fn clear(&mut self, context: &mut Context) {
        for sequence in self.spare.iter().take(self.used.saturating_sub(1)) {
            context.truncate(*sequence, 0);
        }
        self.used = 0;
    }
}

#[cfg(test)]
#[path = "branches_tests.rs"]
mod tests;
