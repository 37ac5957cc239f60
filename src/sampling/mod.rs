//! Which token comes next: validated [`Settings`] become a chain of stages, and a [`Sampler`] draws from what they
//! leave of the model's logits.
//!
//! ```text
//! row of logits ── biases, penalties ──> the same row, edited ── survey ──> largest logit of each block
//!                                                                              │
//!              first stage that cuts something off: a list of candidates  <────┤
//!                              │ the other stages                              │ nothing cuts
//!                              └──────────────> argmax of ln p + G <───────────┘
//! ```
//!
//! - [`sampler`](Sampler): one text's sampler: grammar, state, memory; [`probability`] and [`token_probs`] beside it.
//! - `chain`: the stages in the request's order. A stage works on a list of candidates; those that often come first
//!   have a form that works on the row, so that a whole vocabulary is hardly ever listed or sorted.
//! - `penalties`, `dry` (with `breakers`), `truncation`, `temperature`, `mirostat`, `adaptive`: the stages.
//! - `noise`: chance as a function of (seed, position, token), and why a text does not depend on speculation.
//! - `row`, `blocks`, `candidates`, `tally`, `math`: the row that is put back, fast questions about it, the list,
//!   counts of tokens, and the exponential. `outside`: what is asked of grammars and vocabularies.
//! - `oracle` (tests only): the chain once more, in `f64` and without any of this.
//!
//! The stages are llama.cpp's, with its order, conditions and `min_keep`; where they differ:
//! - Equal logits are in the order of the token ids, always. llama.cpp leaves that to its sort.
//! - The draw is an argmax with noise (see `noise`), not an inverted cumulative sum, so seeds give other texts.
//! - A temperature at or below 0 takes the most probable token after biases and penalties, whatever else is on (as the
//!   old server): not what `typ_p` or `xtc` would leave of it. A temperature so small that logits overflow does too.
//! - The penalties apply with mirostat too, as in the old server.
//! - Sums are taken in `f64`.
//! - Probabilities of 0 are no trouble: llama.cpp's `typ_p` after a ban gives NaN.

mod adaptive;
mod blocks;
mod breakers;
mod candidates;
mod chain;
mod dry;
mod math;
mod mirostat;
mod noise;
mod outside;
mod penalties;
mod probs;
mod row;
mod sampler;
mod settings;
mod tally;
mod temperature;
mod truncation;

pub(crate) use noise::{stream, uniform};
pub use outside::Constraint;
pub use probs::{TokenProbs, probability, token_probs};
pub use sampler::Sampler;
pub use settings::{Dry, Mirostat, Settings, Stage};

#[cfg(test)]
pub(crate) mod oracle;
