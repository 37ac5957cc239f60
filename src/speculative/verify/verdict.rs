//! The interface of the rules: the distributions they read, and their result.

use super::distribution::TokenDistribution;
use crate::llama::Token;

/// The target's distributions at the nodes of a draft.
pub trait TargetDistributions {
    /// The distribution of the token after `node`. Rules call it once per node, first for node 0, then each time for a
    /// child of the previous node. The implementation first advances its sampler (grammar, mirostat, penalty history) by
    /// the node's token, which has a probability above 0 in the previous distribution.
    ///
    /// `rejection` has accepted `node` when it calls this. `block` has not: it may still return to any earlier node, and
    /// the sampler with it.
    ///
    /// Returns `None` if no token can follow (the node ends the completion) or the distribution is unavailable. A verdict
    /// at that node has no next token; the implementation knows the reason.
    fn distribution(&mut self, node: usize) -> Option<TokenDistribution<'_>>;
}

/// The result of a rule.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Verdict {
    /// The last accepted node. In a chain this is the number of accepted tokens.
    pub node: usize,
    /// The target's own token after that node; `None` if the target had no distribution there.
    pub next: Option<NextToken>,
}

/// A token sampled from the target.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NextToken {
    /// The token.
    pub token: Token,
    /// Its weight as listed in the target's distribution, for samplers with a state (mirostat).
    pub p: f32,
}
