//! The verification rules: they decide which tokens of a draft are accepted. Pure functions of token distributions and
//! random numbers. Each rule preserves the target's output distribution; the tests prove it by enumerating every draft
//! and every outcome.
//!
//! | rule | requires of the drafter | acceptance of one token |
//! | --- | --- | --- |
//! | [`accept_matching`] (`coupled`) | nothing; best if it samples with the target's noise | Σx 1 / Σy max(p(y)/p(x), q(y)/q(x)) |
//! | [`accept_matching`] (`match`) | nothing; best if it takes the most probable token | p(x) |
//! | [`rejection`] | draws x from the q that it reports | Σ min(p, q) |
//! | [`block`] | the same | the same for one token; more for several |
//! | [`rejection`] of a tree | draws siblings from q without replacement | more: several candidates |
//!
//! `accept_matching` preserves the exact output for a seed; the other rules preserve the output distribution. For those, a
//! drafter may stop for any reason known before a draw, and must keep every drawn token. [`SampledDraft`] enforces that.
//!
//! One step: create the [`StepRandom`]; the drafter fills the draft with it; decode all drafted tokens on the target;
//! call the rule, which reads [`TargetDistributions`] in order; commit the accepted tokens and the next one. Once the
//! [`Residual`] and the draft have grown, a step allocates nothing.
//!
//! Nodes: node 0 is the committed prefix; nodes 1, 2, ... are the drafted tokens. "The distribution at a node" is that of
//! the token after it.

pub mod block;
mod distribution;
mod random;
pub mod rejection;
mod residual;
mod sampled_draft;

use foredraft_base::Token;

pub use distribution::TokenDistribution;
pub use random::{RandomSource, RandomUse, StepRandom};
pub use residual::Residual;
pub use sampled_draft::SampledDraft;

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

/// The result of `rejection` or `block`.
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

/// `match` and `coupled`: the target samples every token, and drafted tokens are accepted while they are equal to it.
/// `accept(node)` samples the target's token after `node`, and returns the drafted node of that token after `node`: in a
/// chain the next node, in a tree one of several. It is called in order, first for node 0, and only for accepted nodes.
/// `None`: that token was not drafted, or no token follows.
///
/// The output does not depend on the draft, so any drafter, tree or stopping rule preserves it exactly. A token x is
/// accepted with the probability that the target samples x: p(x) if the drafter does not know the target's noise.
/// - `match` drafts the most probable token of q, the best choice without knowing the noise.
/// - `coupled` (Gumbel coupling, arXiv 2408.07978): target and draft sample with the same noise. Each takes the argmax of
///   ln prob(x) + G(x). With E = exp(-G), which is exponential of rate 1, that is the smallest E(x)/prob(x): a race in
///   which x has the rate prob(x), so x wins with the probability prob(x). Both sample x if
///   E(y) > E(x) · max(p(y)/p(x), q(y)/q(x)) for all other y, hence
///   P(match) = Σx 1 / Σy max(p(y)/p(x), q(y)/q(x)) ≥ (1 - TV)/(1 + TV). Many drafts may use the noise of a position.
///
/// The engine samples with [`foredraft_sampling::Sampler::sample`].
pub fn accept_matching(mut accept: impl FnMut(usize) -> Option<usize>) {
    let mut node = Some(0);
    while let Some(accepted) = node {
        node = accept(accepted);
    }
}

#[cfg(test)]
mod tests;
