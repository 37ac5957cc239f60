//! A draft for stochastic verification: its tokens, with the distributions that they were drawn from.

use super::distribution::{DistributionStore, TokenDistribution};
use super::random::{RandomSource, RandomUse};
use crate::Verify;
use foredraft_base::Token;

/// A tree of drafted tokens for the rules that compare p with q, mostly a chain. Node 0 is the committed prefix; the other
/// nodes have one token each, numbered in the order drawn. The rules are exact only if each token x was drawn from the q
/// that is kept with it, and if the decision to keep x does not depend on x. The type enforces this:
/// - [`SampledDraft::draw`] draws tokens and stores them with their q. A token and a q cannot be stored separately.
/// - [`SampledDraft::push_deterministic`] appends a token found without randomness (n-grams, a draft at temperature 0, an
///   argmax); its q has only that token.
/// - The maximum length is set before the first draw. The drafter may stop earlier, depending on the tokens so far and on
///   the next distribution ([`TokenDistribution::best`]), but **a drawn token cannot be removed**. Dropping a draft's end
///   because its q is low, or by a rule like "at least n tokens or none", distorts the output (by a total variation of
///   .24 in the tests). A draft may be dropped or shortened ([`SampledDraft::cap`]) only for a reason that does not depend
///   on its tokens: a cancel, a full cache, a full batch.
/// - Whether a node gets children, and how many, must be decided before they are drawn.
/// - The same holds for a choice between several drafters: deterministic drafts may be compared freely, but whether a
///   drawn draft is used must be decided before it is drawn.
#[derive(Debug, Default)]
pub struct SampledDraft {
    is_block: bool,
    limit: usize,
    /// Nodes 1, 2, ...
    nodes: Vec<DraftedNode>,
    rows: DistributionStore,
}

#[derive(Debug)]
struct DraftedNode {
    token: Token,
    parent: usize,
    /// Index of the distribution that it and the siblings drawn with it were drawn from.
    row: usize,
}

impl SampledDraft {
    /// Empties it for a step whose draft is verified by `rule`. Keeps its allocations.
    pub fn begin_as(&mut self, rule: Verify) {
        self.is_block = rule == Verify::Block;
        self.begin(0);
    }

    /// Empties it for at most `limit` tokens.
    pub fn begin(&mut self, limit: usize) {
        self.limit = limit;
        self.nodes.clear();
        self.rows.clear();
    }

    /// Shortens the draft as if its limit had been `limit`. Only for a limit that does not depend on the drawn tokens, such
    /// as the space left in a batch.
    pub fn cap(&mut self, limit: usize) {
        self.limit = self.limit.min(limit);
        self.nodes.truncate(limit);
    }

    /// The number of drafted tokens: the nodes are 0..=`len`.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether no token was drafted.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Draws up to `n` different children from `q`, the draft's distribution at `parent`, which has no children yet; for
    /// `block` one. Returns their tokens; they are the next nodes. Fewer than `n`: at the limit, or `q` has no more tokens.
    pub fn draw(
        &mut self,
        parent: usize,
        q: TokenDistribution<'_>,
        n: usize,
        random: &mut impl RandomSource,
    ) -> impl Iterator<Item = Token> {
        let before = self.nodes.len();
        let n = if self.is_block { n.min(1) } else { n }.min(self.limit.saturating_sub(before));
        if n > 0 && parent <= before && self.children(parent).next().is_none() {
            let row = self.rows.push(q);
            for node in before + 1..=before + n {
                let weights = self.left(q, row, node).map(|(_, q)| q);
                let index = random.sample_index(RandomUse::Draft(node), weights, 1.0);
                let Some((token, _)) = index.and_then(|index| q.iter().nth(index)) else { break };
                self.nodes.push(DraftedNode { token, parent, row });
            }
        }
        self.nodes.iter().skip(before).map(|node| node.token)
    }

    /// Appends a child that was found without randomness. Returns false at the limit, if `parent` has drawn children, or if
    /// it already has this child.
    pub fn push_deterministic(&mut self, parent: usize, token: Token) -> bool {
        let fits = self.nodes.len() < self.limit
            && parent <= self.nodes.len()
            && self.children(parent).all(|(sibling, id)| id != token && self.is_deterministic(sibling));
        if fits {
            let row = self.rows.push_deterministic(token);
            self.nodes.push(DraftedNode { token, parent, row });
        }
        fits
    }

    fn is_deterministic(&self, node: usize) -> bool {
        self.node(node).and_then(|node| self.rows.get(node.row)).is_some_and(|row| row.iter().count() == 1)
    }

    fn node(&self, node: usize) -> Option<&DraftedNode> {
        self.nodes.get(node.checked_sub(1)?)
    }

    /// The children of a node and their tokens, in the order drawn.
    pub(super) fn children(&self, parent: usize) -> impl Iterator<Item = (usize, Token)> {
        (1..).zip(&self.nodes).filter(move |(_, node)| node.parent == parent).map(|(number, node)| (number, node.token))
    }

    /// The token of a node, with the draft's distribution at its parent.
    pub(super) fn drawn(&self, number: usize) -> Option<(Token, TokenDistribution<'_>)> {
        let node = self.node(number)?;
        Some((node.token, self.rows.get(node.row)?))
    }

    /// The distribution that a node was drawn from: q without the earlier siblings.
    pub(super) fn drawn_from(&self, number: usize) -> Option<impl Iterator<Item = (Token, f64)> + Clone> {
        let row = self.node(number)?.row;
        Some(self.left(self.rows.get(row)?, row, number))
    }

    /// The distribution `q`, number `row`, without the tokens that were drawn from it before node `number`.
    fn left<'a>(
        &'a self,
        q: TokenDistribution<'a>,
        row: usize,
        number: usize,
    ) -> impl Iterator<Item = (Token, f64)> + Clone + use<'a> {
        let earlier = self.nodes.iter().take(number.saturating_sub(1)).rev().take_while(move |node| node.row == row);
        let is_first = earlier.clone().next().is_none();
        let is_left = move |token| !earlier.clone().any(|node| node.token == token);
        let left = q.iter().map(move |(token, q)| (token, if is_left(token) { q } else { 0.0 }));
        let total = if is_first { 1.0 } else { left.clone().map(|(_, q)| q).sum() };
        left.map(move |(token, q)| (token, q / total))
    }

    /// Whether `block` verifies it, which needs a chain; otherwise `rejection`.
    pub fn is_block(&self) -> bool {
        self.is_block
    }
}

#[cfg(test)]
mod tests;
