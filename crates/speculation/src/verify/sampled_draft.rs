//! A draft for stochastic verification, with the rule that verifies it.

use super::distribution::TokenDistribution;
use super::proposal::{ChainProposal, TreeProposal};
use super::random::RandomSource;
use super::residual::Residual;
use super::{TargetDistributions, Verdict};
use super::{block, rejection};
use crate::Verify;
use foredraft_base::Token;

/// A [`ChainProposal`] or a [`TreeProposal`], with its rule.
#[derive(Debug)]
pub enum SampledDraft {
    /// A chain for `rejection`.
    Chain(ChainProposal),
    /// A chain for `block`.
    Block(ChainProposal),
    /// A tree for recursive rejection.
    Tree(TreeProposal),
}

impl SampledDraft {
    /// An empty draft. `block` ignores `n_branches`.
    pub fn new(rule: Verify, n_branches: usize) -> SampledDraft {
        match rule {
            Verify::Block => SampledDraft::Block(ChainProposal::default()),
            _ if n_branches > 1 => SampledDraft::Tree(TreeProposal::default()),
            _ => SampledDraft::Chain(ChainProposal::default()),
        }
    }

    /// Empties it, to become a draft for this rule. Keeps its memory if it was one.
    pub fn begin_as(&mut self, rule: Verify, n_branches: usize) {
        let is_one = match self {
            SampledDraft::Chain(_) => rule != Verify::Block && n_branches <= 1,
            SampledDraft::Block(_) => rule == Verify::Block,
            SampledDraft::Tree(_) => rule != Verify::Block && n_branches > 1,
        };
        if !is_one {
            *self = SampledDraft::new(rule, n_branches);
        }
        self.begin(0);
    }

    /// As [`ChainProposal::begin`].
    pub fn begin(&mut self, limit: usize) {
        match self {
            SampledDraft::Chain(proposal) | SampledDraft::Block(proposal) => proposal.begin(limit),
            SampledDraft::Tree(tree) => tree.begin(limit),
        }
    }

    /// As [`ChainProposal::cap`].
    pub fn cap(&mut self, limit: usize) {
        match self {
            SampledDraft::Chain(proposal) | SampledDraft::Block(proposal) => proposal.cap(limit),
            SampledDraft::Tree(tree) => tree.cap(limit),
        }
    }

    /// The number of drafted tokens.
    pub fn len(&self) -> usize {
        match self {
            SampledDraft::Chain(proposal) | SampledDraft::Block(proposal) => proposal.tokens().len(),
            SampledDraft::Tree(tree) => tree.len(),
        }
    }

    /// Whether no token was drafted.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Draws up to `n` different tokens from `q` as children of `parent`, at least one below the limit. A chain draws one
    /// token after its last. Returns the tokens; they are the next nodes.
    pub fn draw(
        &mut self,
        parent: usize,
        q: TokenDistribution<'_>,
        n: usize,
        random: &mut impl RandomSource,
    ) -> Vec<Token> {
        match self {
            SampledDraft::Chain(proposal) | SampledDraft::Block(proposal) => {
                proposal.draw(q, random).into_iter().collect()
            }
            SampledDraft::Tree(tree) => {
                tree.draw(parent, q, n, random);
                tree.children(parent).map(|(_, token)| token).collect()
            }
        }
    }

    /// Appends a token that was found without randomness after the last one. Returns false at the limit.
    pub fn push_deterministic(&mut self, token: Token) -> bool {
        match self {
            SampledDraft::Chain(proposal) | SampledDraft::Block(proposal) => proposal.push_deterministic(token),
            SampledDraft::Tree(tree) => tree.push_deterministic(tree.len(), token),
        }
    }

    /// Verifies the draft with its rule.
    pub fn verify(
        &self,
        target: &mut impl TargetDistributions,
        random: &mut impl RandomSource,
        residual: &mut Residual,
    ) -> Verdict {
        match self {
            SampledDraft::Chain(proposal) => rejection::verify(proposal, target, random, residual),
            SampledDraft::Block(proposal) => block::verify(proposal, target, random, residual),
            SampledDraft::Tree(tree) => rejection::verify_tree(tree, target, random, residual),
        }
    }
}
