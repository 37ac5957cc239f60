//! The verification rules: they decide which tokens of a draft are accepted. Pure functions of token distributions and
//! random numbers. Each rule preserves the target's output distribution; the tests prove it by enumerating every draft
//! and every outcome.
//!
//! | rule | requires of the drafter | acceptance of one token |
//! | --- | --- | --- |
//! | [`matching`] (`coupled`) | nothing; best if it samples with the target's noise | Σx 1 / Σy max(p(y)/p(x), q(y)/q(x)) |
//! | [`matching`] (`match`) | nothing; best if it takes the most probable token | p(x) |
//! | [`rejection`] | draws x from the q that it reports | Σ min(p, q) |
//! | [`block`] | the same | the same for one token; more for several |
//! | [`rejection`] of a tree | draws siblings from q without replacement | more: several candidates |
//!
//! `matching` preserves the exact output for a seed; the other rules preserve the output distribution. For those, a
//! drafter may stop for any reason known before a draw, and must keep every drawn token. [`ChainProposal`] and
//! [`TreeProposal`] enforce that.
//!
//! One step: create the [`StepRandom`]; the drafter fills the proposal with it; decode all drafted tokens on the target;
//! call the rule, which reads [`TargetDistributions`] in order; commit the accepted tokens and the next one. Once the
//! [`Residual`] and the proposal have grown, a step allocates nothing.
//!
//! Nodes: node 0 is the committed prefix; nodes 1, 2, ... are the drafted tokens. "The distribution at a node" is that of
//! the token after it.

pub mod block;
mod distribution;
pub mod matching;
mod proposal;
mod random;
pub mod rejection;
mod residual;
mod sampled_draft;
mod verdict;

pub use distribution::TokenDistribution;
pub use proposal::{ChainProposal, DrawnToken, TreeProposal};
pub use random::{RandomSource, RandomUse, StepRandom};
pub use residual::Residual;
pub use sampled_draft::SampledDraft;
pub use verdict::{NextToken, TargetDistributions, Verdict};

#[cfg(test)]
mod tests;
