//! Sampling: turns validated [`SamplingSettings`] into a chain of stages, and a row of the model's logits into a token.
//!
//! ```text
//! row of logits ── biases, penalties ──> the same row, edited ── scan ──> largest logit of each block
//!                                                                              │
//!              first stage that truncates: a list of candidates  <─────────────┤
//!                              │ the other stages                              │ no truncation
//!                              └──────────────> argmax of ln p + G <───────────┘
//! ```
//!
//! - [`sampler`](Sampler): the sampler of one completion, with its grammar, state and scratch buffers. [`probability`]
//!   and [`token_probs`] (`probs`) report probabilities.
//! - `chain`: the stages in the request's order. A stage works on a list of candidates. The stages that often come first
//!   also have a form that works on the row, so the whole vocabulary is hardly ever listed or sorted.
//! - `penalties`, `dry`, `truncation`, `temperature`, `stateful` (mirostat, adaptive-p): the stages.
//! - `noise`: Gumbel noise as a function of (seed, position, token), and why speculation does not change the output.
//! - `blocks`, `candidates`, `math`: fast queries on a row, the list of candidates, and the exponential.
//!   `interfaces`: what sampling needs from grammars and vocabularies.
//! - `reference` (tests only): a second, slow implementation of the chain in `f64`. `fakes`: a vocabulary without a model.
//!
//! The stages follow llama.cpp's samplers: same order, conditions and `min_keep`. The differences:
//! - Equal logits are always ordered by token id. llama.cpp leaves that order to its sort.
//! - A draw is an argmax with noise (see `noise`) instead of an inverted cumulative sum, so a seed gives other tokens.
//! - A temperature at or below 0 takes the most probable token after biases and penalties and ignores the other stages,
//!   as the old server did. A temperature so small that logits overflow does the same.
//! - The penalties also apply with mirostat, as in the old server.
//! - Sums are taken in `f64`.
//! - Candidates of probability 0 are handled. In llama.cpp, `typ_p` after a ban gives NaN.

mod blocks;
mod candidates;
mod chain;
mod dry;
mod interfaces;
mod math;
mod noise;
mod penalties;
mod probs;
mod sampler;
mod settings;
mod stateful;
mod temperature;
mod truncation;

pub use interfaces::Constraint;
pub use noise::{stream, uniform};
pub use probs::{TokenProbs, has_candidate, probability, token_probs};
pub use sampler::Sampler;
pub use settings::{DrySettings, MirostatVersion, SamplingSettings, Stage};

#[cfg(test)]
mod tests;
