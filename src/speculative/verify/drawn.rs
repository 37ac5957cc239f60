//! A draft together with the distributions that it was drawn from, of the form that its rule verifies.

use super::{Chance, Proposal, Residual, Row, Target, Tree, Verdict, block, rejection, tree};
use crate::llama::Token;
use crate::speculative::Verify;

/// A [`Proposal`] or a [`Tree`], and the rule for it. Nodes are numbered as in a tree: 0 is the text.
#[derive(Debug)]
pub enum Drawn {
    /// One token behind the other, for `rejection`.
    Chain(Proposal),
    /// The same, for `block`.
    Block(Proposal),
    /// With branches, for recursive rejection.
    Tree(Tree),
}

impl Drawn {
    /// An empty one. `block` has no branches.
    pub fn new(rule: Verify, n_branches: usize) -> Drawn {
        match rule {
            Verify::Block => Drawn::Block(Proposal::default()),
            _ if n_branches > 1 => Drawn::Tree(Tree::default()),
            _ => Drawn::Chain(Proposal::default()),
        }
    }

    /// As [`Proposal::begin`].
    pub fn begin(&mut self, limit: usize) {
        match self {
            Drawn::Chain(proposal) | Drawn::Block(proposal) => proposal.begin(limit),
            Drawn::Tree(tree) => tree.begin(limit),
        }
    }

    /// As [`Proposal::cap`].
    pub fn cap(&mut self, limit: usize) {
        match self {
            Drawn::Chain(proposal) | Drawn::Block(proposal) => proposal.cap(limit),
            Drawn::Tree(tree) => tree.cap(limit),
        }
    }

    /// How many tokens it has.
    pub fn len(&self) -> usize {
        match self {
            Drawn::Chain(proposal) | Drawn::Block(proposal) => proposal.tokens().len(),
            Drawn::Tree(tree) => tree.len(),
        }
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Draws up to `n` different tokens from `q` to follow `parent`, and at least one while there is room; in a chain just one,
    /// behind the last. Returns them: they have the next nodes.
    pub fn draw(&mut self, parent: usize, q: Row<'_>, n: usize, chance: &mut impl Chance) -> Vec<Token> {
        match self {
            Drawn::Chain(proposal) | Drawn::Block(proposal) => proposal.draw(q, chance).into_iter().collect(),
            Drawn::Tree(tree) => {
                tree.draw(parent, q, n, chance);
                tree.children(parent).map(|(_, token)| token).collect()
            }
        }
    }

    /// Appends a token that was found without chance, behind the last one. False when there is no room.
    pub fn push_deterministic(&mut self, token: Token) -> bool {
        match self {
            Drawn::Chain(proposal) | Drawn::Block(proposal) => proposal.push_deterministic(token),
            Drawn::Tree(tree) => tree.push_deterministic(tree.len(), token),
        }
    }

    /// What becomes of it, by its rule.
    pub fn verify(&self, target: &mut impl Target, chance: &mut impl Chance, residual: &mut Residual) -> Verdict {
        match self {
            Drawn::Chain(proposal) => rejection::verify(proposal, target, chance, residual),
            Drawn::Block(proposal) => block::verify(proposal, target, chance, residual),
            Drawn::Tree(draft) => tree::verify(draft, target, chance, residual),
        }
    }
}
