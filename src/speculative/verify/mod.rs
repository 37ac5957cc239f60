//! The rules by which a draft is accepted, as functions of probability rows and chance. Each leaves the text
//! distributed as the target alone would write it; the tests prove that by going through every draft and every outcome.
//!
//! | rule | the drafter must | accepted of one token |
//! | --- | --- | --- |
//! | [`coupled`] | nothing; it had better choose with the target's noise | Σx 1 / Σy max(p(y)/p(x), q(y)/q(x)) |
//! | [`matching`] (`match`) | nothing; it had better take the most probable | p(x) |
//! | [`rejection`] | draw x from the q that it gives | Σ min(p, q) |
//! | [`block`] | the same | the same; more for several |
//! | [`tree`] | draw siblings from q without replacement | more: several tries |
//!
//! The first two keep the text itself, token for token, for a seed; the others its distribution. With those a draft may
//! stop on anything known before a draw, and must keep what was drawn: [`Proposal`] and [`Tree`] see to it.
//!
//! How a step goes: make the [`StepChance`]; let the drafter fill the [`Proposal`] with it; evaluate the target on all
//! drafted tokens; call the rule, which asks a [`Target`] for rows in order; emit the accepted tokens and the next one.
//! Nothing is allocated once the [`Residual`] and the proposal have grown to their size.

pub mod block;
mod chance;
pub mod coupled;
mod drawn;
pub mod expected;
pub mod matching;
mod proposal;
pub mod rejection;
mod residual;
mod rows;
pub mod tree;

pub use chance::{Chance, Draw, StepChance};
pub use drawn::Drawn;
pub use proposal::{DrawnToken, Proposal};
pub use residual::Residual;
pub use rows::Row;
pub use tree::Tree;

use crate::llama::Token;

/// The target: its distributions behind the text and what was drafted.
pub trait Target {
    /// The distribution of the token behind `node`: 0 is the text, n the n-th drafted token. Asked for nodes in order,
    /// each once, and each a child of the one before: so the sampler is to be advanced by the node's token first
    /// (grammar, mirostat, the history that penalties look at), which has a probability above 0 in the row before.
    ///
    /// `rejection` and `tree` have accepted `node` when they ask. [`block`] has not: it may go back, and the sampler
    /// with it, to any node asked for.
    ///
    /// `None`: nothing can follow (the node ends the text), or the row cannot be had. A verdict that ends there has no
    /// next token, and whoever implements this knows why.
    fn row(&mut self, node: usize) -> Option<Row<'_>>;
}

/// What became of a draft.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Verdict {
    /// The last node accepted. In a chain that is how many drafted tokens are.
    pub node: usize,
    /// The target's own token behind it; `None` when there was no row.
    pub next: Option<Next>,
}

/// A token that the target chose.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Next {
    /// The token.
    pub token: Token,
    /// Its probability as listed in the row there, for samplers that learn from it (mirostat).
    pub p: f32,
}

#[cfg(test)]
mod tests;
