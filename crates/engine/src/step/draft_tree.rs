//! The layout of a draft in the target's batch.

use foredraft_llama::SeqId;

/// The layout of a slot's draft in the target's batch: which tokens may see which. Pure data; [`decode`](super::decode) makes llama.cpp
/// share the sequences.
///
/// A draft with branches is a tree. Each branch is a sequence that shares the committed prefix, and the drafted tokens before it,
/// with the slot's own sequence; the first branch is the slot's own. The others are emptied after each decode: if tokens of another
/// branch than the first are accepted, they are decoded again with the next step's, contiguously. Keeping them in place would
/// save that, but attention sums in the order of cells, so the last bits of the output would depend on drafts. For the same
/// reason the first branch comes before the others in the batch: its accepted tokens then leave no hole that later tokens
/// would fill.
#[derive(Debug, Default)]
pub(crate) struct DraftTree {
    /// The slot's sequence, and those that it may use for branches.
    own: SeqId,
    spare: Vec<SeqId>,
    /// Node 0 is the committed prefix.
    nodes: Vec<DraftNode>,
    /// How many branches there are; the first is the slot's own sequence.
    used: usize,
    /// The sequences of each node, one list behind the other.
    lists: Vec<SeqId>,
}

#[derive(Debug, Clone)]
struct DraftNode {
    parent: usize,
    depth: usize,
    /// The branch that it belongs to first.
    branch: usize,
    /// All branches through it, as bits.
    through: u64,
    /// Where its sequences end in `lists`.
    end: usize,
}

impl DraftTree {
    /// The tree of a slot that has the sequence `own` and may use `spare`.
    pub(crate) fn new(own: SeqId, spare: Vec<SeqId>) -> DraftTree {
        DraftTree { own, spare, ..DraftTree::default() }
    }

    /// Lays out a draft whose tokens follow these nodes. Returns how many of them can be decoded together: all for which there are
    /// sequences.
    pub(crate) fn lay_out(&mut self, parents: impl Iterator<Item = usize>) -> usize {
        self.nodes.clear();
        self.nodes.push(DraftNode { parent: 0, depth: 0, branch: 0, through: 1, end: 0 });
        self.used = 1;
        for parent in parents {
            let Some(DraftNode { depth, branch, .. }) = self.nodes.get(parent).cloned() else { break };
            let is_first = !self.nodes.iter().skip(1).any(|node| node.parent == parent);
            let branch = if is_first {
                branch
            } else {
                if self.used > self.spare.len() {
                    break;
                }
                self.used += 1;
                self.used - 1
            };
            self.nodes.push(DraftNode { parent, depth: depth + 1, branch, through: 0, end: 0 });
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

    /// The sequences that see the context.
    pub(crate) fn of_context(&self) -> &[SeqId] {
        self.nodes.first().and_then(|text| self.lists.get(..text.end)).unwrap_or(&[])
    }

    /// The drafted tokens in the order of the batch: the node of each, how many are before it in its branch, and the sequences
    /// that see it.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = (usize, usize, &[SeqId])> {
        let all = || (1..).zip(self.nodes.iter().zip(self.nodes.iter().skip(1)));
        let own = all().filter(|(_, (_, node))| node.branch == 0);
        let other = all().filter(|(_, (_, node))| node.branch != 0);
        own.chain(other)
            .map(|(at, (before, node))| (at, node.depth - 1, self.lists.get(before.end..node.end).unwrap_or(&[])))
    }

    /// Where the row of `node` is, counted from that of the committed prefix.
    pub(crate) fn row(&self, node: usize) -> usize {
        self.nodes().position(|(at, ..)| at == node).map_or(0, |place| place + 1)
    }

    /// The number of tokens in its longest branch.
    pub(crate) fn depth(&self) -> usize {
        self.nodes.iter().map(|node| node.depth).max().unwrap_or(0)
    }

    /// The nodes after `node`.
    pub(crate) fn children(&self, node: usize) -> impl Iterator<Item = usize> + '_ {
        (0..).zip(&self.nodes).skip(1).filter(move |(_, child)| child.parent == node).map(|(child, _)| child)
    }

    /// The node after `node` on the path to `last`; `None`: `last` is reached.
    pub(crate) fn towards(&self, node: usize, last: usize) -> Option<usize> {
        let parent = |at: &usize| self.nodes.get(*at).map(|node| node.parent);
        let mut way = std::iter::successors(Some(last).filter(|last| *last != node), parent);
        way.find(|at| *at == 0 || parent(at) == Some(node)).filter(|at| *at > 0)
    }

    /// Whether the slot's own sequence goes through a node.
    pub(crate) fn is_own(&self, node: usize) -> bool {
        self.nodes.get(node).is_some_and(|node| node.branch == 0)
    }

    /// The slot's own sequence, and those of the other branches.
    pub(crate) fn sequences(&self) -> (SeqId, &[SeqId]) {
        (self.own, self.spare.get(..self.used.saturating_sub(1)).unwrap_or(&[]))
    }
}

#[cfg(test)]
mod tests;
