//! Gumbel coupling (arXiv 2408.07978): target and draft choose with the same noise.
//!
//! Each takes the argmax of ln prob(x) + G(x). With E = exp(-G), which is exponential of rate 1, that is the least
//! E(x)/prob(x): a race in which x has the rate prob(x), so x wins with the probability prob(x). Both choose x if
//! E(y) > E(x) · max(p(y)/p(x), q(y)/q(x)) for all other y, hence
//!
//! ```text
//! P(match) = Σx 1 / Σy max(p(y)/p(x), q(y)/q(x)) ≥ (1 - TV)/(1 + TV)
//! ```
//!
//! The target's choice depends on p and the noise alone, so drafts, trees and stopping rules are free, and the text is
//! the same for each of them. The noise of a position may be used by many drafts.
//!
//! In the product [`crate::sampling::Sampler::pick`] is this choice, on logits. Verified by
//! [`super::matching::verify`].

use super::rows::Row;
use crate::llama::Token;

/// The winner of the race: target and draft call it with the noise of the same position. The lowest of equals.
pub fn choose(row: Row<'_>, gumbel: impl Fn(Token) -> f64) -> Option<Token> {
    let mut best: Option<(f64, Token)> = None;
    for (token, p) in row.iter().filter(|(_, p)| *p > 0.0) {
        let score = p.ln() + gumbel(token);
        if best.is_none_or(|(top, winner)| score > top || (score == top && token < winner)) {
            best = Some((score, token));
        }
    }
    best.map(|(_, token)| token)
}
