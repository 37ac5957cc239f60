//! Drafts with the distributions that their tokens were drawn from: a chain, or a tree.

use super::distribution::{DistributionStore, TokenDistribution};
use super::random::{RandomSource, RandomUse};
use foredraft_base::Token;

/// A drafted chain for the rules that compare p with q. Those rules are exact only if each token x was drawn from the q
/// that is kept with it, and if the decision to keep x does not depend on x. The type enforces this:
/// - [`ChainProposal::draw`] draws a token and stores it with its q. A token and a q cannot be stored separately.
/// - [`ChainProposal::push_deterministic`] appends a token found without randomness (n-grams, a draft at temperature 0, an
///   argmax); its q has only that token.
/// - The maximum length is set before the first draw. The drafter may stop earlier, depending on the tokens so far and on
///   the next distribution ([`TokenDistribution::best`]), but **a drawn token cannot be removed**. Dropping a draft's end
///   because its q is low, or by a rule like "at least n tokens or none", distorts the output (by a total variation of
///   .24 in the tests). A draft may be dropped or shortened ([`ChainProposal::cap`]) only for a reason that does not depend
///   on its tokens: a cancel, a full cache, a full batch.
/// - The same holds for a choice between several drafters: deterministic drafts may be compared freely, but whether a
///   drawn draft is used must be decided before it is drawn.
#[derive(Debug, Default)]
pub struct ChainProposal {
    limit: usize,
    tokens: Vec<Token>,
    rows: DistributionStore,
}

/// A drafted token with the distribution that it was drawn from. Only a [`ChainProposal`] creates it.
#[derive(Debug, Clone, Copy)]
pub struct DrawnToken<'a> {
    token: Token,
    q: TokenDistribution<'a>,
}

impl<'a> DrawnToken<'a> {
    /// `token` was drawn from `q`.
    fn new(token: Token, q: TokenDistribution<'a>) -> Self {
        DrawnToken { token, q }
    }

    /// The token.
    pub fn token(self) -> Token {
        self.token
    }

    /// The distribution that it was drawn from.
    pub fn q(self) -> TokenDistribution<'a> {
        self.q
    }
}

impl ChainProposal {
    /// Clears it for a step that drafts at most `limit` tokens. Keeps its allocations.
    pub fn begin(&mut self, limit: usize) {
        self.limit = limit;
        self.tokens.clear();
        self.rows.clear();
    }

    /// Returns whether the draft is shorter than its limit.
    pub fn has_space(&self) -> bool {
        self.tokens.len() < self.limit
    }

    /// Draws the next token from `q` and stores both. `None` at the limit.
    pub fn draw(&mut self, q: TokenDistribution<'_>, random: &mut impl RandomSource) -> Option<Token> {
        if !self.has_space() {
            return None;
        }
        let draw = RandomUse::Draft(self.tokens.len() + 1);
        let index = random.sample_index(draw, q.iter().map(|(_, p)| p), 1.0)?;
        let (token, _) = q.iter().nth(index)?;
        self.rows.push(q);
        self.tokens.push(token);
        Some(token)
    }

    /// Appends a token that was found without randomness. Returns false at the limit.
    pub fn push_deterministic(&mut self, token: Token) -> bool {
        let has_space = self.has_space();
        if has_space {
            self.rows.push_deterministic(token);
            self.tokens.push(token);
        }
        has_space
    }

    /// Shortens the draft as if its limit had been `limit`. Only for a limit that does not depend on the drawn tokens, such
    /// as the space left in a batch.
    pub fn cap(&mut self, limit: usize) {
        self.limit = self.limit.min(limit);
        self.tokens.truncate(limit);
    }

    /// The tokens so far.
    pub fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// The drafted token at index `n`.
    pub fn get(&self, n: usize) -> Option<DrawnToken<'_>> {
        Some(DrawnToken::new(*self.tokens.get(n)?, self.rows.get(n)?))
    }
}

/// A tree of drafted tokens. Node 0 is the committed prefix; the other nodes have one token each, numbered in the order
/// drawn. As with a [`ChainProposal`], drawn tokens cannot be removed, and whether a node gets children, and how many,
/// must be decided before they are drawn.
#[derive(Debug, Default)]
pub struct TreeProposal {
    limit: usize,
    /// Nodes 1, 2, ...
    nodes: Vec<TreeNode>,
    rows: DistributionStore,
}

#[derive(Debug)]
struct TreeNode {
    token: Token,
    parent: usize,
    /// Index of the distribution that it was drawn from, without its earlier siblings.
    row: usize,
}

impl TreeProposal {
    /// Clears it for a step that drafts at most `limit` tokens. Keeps its allocations.
    pub fn begin(&mut self, limit: usize) {
        self.limit = limit;
        self.nodes.clear();
        self.rows.clear();
    }

    /// As [`ChainProposal::cap`].
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

    /// Draws up to `n` different children from `q`, the draft's distribution at `parent`, which has no children yet.
    /// Returns their number: fewer than `n` at the limit or if `q` has no more tokens.
    pub fn draw(&mut self, parent: usize, q: TokenDistribution<'_>, n: usize, random: &mut impl RandomSource) -> usize {
        if parent > self.nodes.len() || self.children(parent).next().is_some() {
            return 0;
        }
        let row = self.rows.push(q);
        for drawn in 0..n.min(self.limit.saturating_sub(self.nodes.len())) {
            let left = |token| !self.children(parent).any(|(_, sibling)| sibling == token);
            let weights = q.iter().map(|(token, q)| if left(token) { q } else { 0.0 });
            let draw = RandomUse::Draft(self.nodes.len() + 1);
            let index = random.sample_index(draw, weights.clone(), weights.sum());
            let Some((token, _)) = index.and_then(|index| q.iter().nth(index)) else { return drawn };
            self.nodes.push(TreeNode { token, parent, row });
        }
        n.min(self.children(parent).count())
    }

    /// Appends a child that was found without randomness. Returns false at the limit, if `parent` has drawn children, or if
    /// it already has this child.
    pub fn push_deterministic(&mut self, parent: usize, token: Token) -> bool {
        let fits = self.nodes.len() < self.limit
            && parent <= self.nodes.len()
            && self.children(parent).all(|(sibling, id)| id != token && self.is_deterministic(sibling));
        if fits {
            let row = self.rows.push_deterministic(token);
            self.nodes.push(TreeNode { token, parent, row });
        }
        fits
    }

    fn is_deterministic(&self, node: usize) -> bool {
        self.node(node).and_then(|node| self.rows.get(node.row)).is_some_and(|row| row.iter().count() == 1)
    }

    fn node(&self, node: usize) -> Option<&TreeNode> {
        self.nodes.get(node.checked_sub(1)?)
    }

    /// The token of a node; `None` for node 0 and nodes that do not exist.
    pub fn token(&self, node: usize) -> Option<Token> {
        self.node(node).map(|node| node.token)
    }

    /// The parent of a node; `None` for node 0 and nodes that do not exist.
    pub fn parent(&self, node: usize) -> Option<usize> {
        self.node(node).map(|node| node.parent)
    }

    /// The children of a node and their tokens, in the order drawn.
    pub fn children(&self, parent: usize) -> impl Iterator<Item = (usize, Token)> + Clone + '_ {
        (1..).zip(&self.nodes).filter(move |(_, node)| node.parent == parent).map(|(number, node)| (number, node.token))
    }

    /// The child of `parent` with that token.
    pub fn child(&self, parent: usize, token: Token) -> Option<usize> {
        self.children(parent).find(|(_, id)| *id == token).map(|(number, _)| number)
    }

    /// The distribution that a node was drawn from: q without the earlier siblings.
    pub(super) fn drawn_from(&self, number: usize) -> impl Iterator<Item = (Token, f64)> + Clone + '_ {
        let node = self.node(number);
        let parent = node.map_or(0, |node| node.parent);
        let row = node.and_then(|node| self.rows.get(node.row));
        let is_left = move |token: Token| {
            !self.children(parent).take_while(|(sibling, _)| *sibling < number).any(|(_, sibling)| sibling == token)
        };
        let left = move || row.into_iter().flat_map(TokenDistribution::iter).filter(move |(token, _)| is_left(*token));
        let total: f64 = left().map(|(_, q)| q).sum();
        left().map(move |(token, q)| (token, q / total))
    }
}

#[cfg(test)]
impl ChainProposal {
    /// Stores a token that was not drawn from `q`, which the public interface prevents. For tests that show the error.
    pub(super) fn forge(&mut self, token: Token, q: TokenDistribution<'_>) {
        self.rows.push(q);
        self.tokens.push(token);
    }

    /// Removes drawn tokens from index `n` on, which the public interface prevents.
    pub(super) fn drop_drawn(&mut self, n: usize) {
        self.tokens.truncate(n);
    }
}
