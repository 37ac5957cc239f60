//! Questions of tests to a draft, and cases that its interface prevents.

use super::super::distribution::TokenDistribution;
use super::super::random::RandomSource;
use super::{DraftedNode, SampledDraft};
use foredraft_base::Token;

impl SampledDraft {
    /// As [`Self::draw`], of one token after the last.
    pub(in crate::verify) fn draw_next(
        &mut self,
        q: TokenDistribution<'_>,
        random: &mut impl RandomSource,
    ) -> Option<Token> {
        self.draw(self.len(), q, 1, random).next()
    }

    /// As [`Self::push_deterministic`], after the last token.
    pub(in crate::verify) fn push_next(&mut self, token: Token) -> bool {
        self.push_deterministic(self.len(), token)
    }

    /// Stores a token that was not drawn from `q`, which the public interface prevents. For tests that show the error.
    pub(in crate::verify) fn forge(&mut self, token: Token, q: TokenDistribution<'_>) {
        let row = self.rows.push(q);
        self.nodes.push(DraftedNode { token, parent: self.nodes.len(), row });
    }

    /// Removes drawn tokens from index `n` on, which the public interface prevents.
    pub(in crate::verify) fn drop_drawn(&mut self, n: usize) {
        self.nodes.truncate(n);
    }

    pub(in crate::verify) fn has_space(&self) -> bool {
        self.nodes.len() < self.limit
    }

    pub(in crate::verify) fn token(&self, node: usize) -> Option<Token> {
        self.node(node).map(|node| node.token)
    }

    pub(in crate::verify) fn parent(&self, node: usize) -> Option<usize> {
        self.node(node).map(|node| node.parent)
    }

    pub(in crate::verify) fn child(&self, parent: usize, token: Token) -> Option<usize> {
        self.children(parent).find(|(_, id)| *id == token).map(|(number, _)| number)
    }

    /// The tokens of the nodes in their order.
    pub(crate) fn tokens(&self) -> Vec<Token> {
        self.nodes.iter().map(|node| node.token).collect()
    }
}
