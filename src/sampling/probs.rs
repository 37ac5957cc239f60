//! Probabilities that are reported: the model's own, which are the softmax of the raw logits (before penalties, biases
//! and truncation), or those that a token was drawn from.

use super::blocks::{BlockScratch, Blocks, max_of, sum_exp};
use super::candidates::Candidates;
use super::math::{exp, gap};
use crate::llama::{Token, TokenData};

/// The log-probability of what cannot be drawn: JSON has no infinity, so llama-server reports this too.
const LOWEST: f32 = f32::MIN;

/// A token with its log-probability and the most probable ones with theirs.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenProbs {
    /// The token.
    pub token: Token,
    /// Its natural log-probability; `f32::MIN` where the probability is 0.
    pub logprob: f32,
    /// The most probable tokens with their log-probabilities, most probable first; of equals, the lowest first.
    pub top: Vec<(Token, f32)>,
}

impl TokenProbs {
    /// `token` and the `n` most probable tokens of a distribution, which lists the most probable first.
    pub(super) fn in_distribution(items: &[TokenData], token: Token, n: usize) -> TokenProbs {
        let logprob = |p: f32| p.ln().max(LOWEST);
        TokenProbs {
            token,
            logprob: items.iter().find(|item| item.id == token).map_or(LOWEST, |item| logprob(item.p)),
            top: items.iter().take(n).map(|item| (item.id, logprob(item.p))).collect(),
        }
    }
}

/// The logit of `token`; -inf for an id outside the row and for NaN.
fn logit_of(logits: &[f32], token: Token) -> f32 {
    let logit = usize::try_from(token).ok().and_then(|index| logits.get(index)).copied();
    logit.filter(|logit| !logit.is_nan()).unwrap_or(f32::NEG_INFINITY)
}

/// The probability of `token` in the softmax of one row of raw logits: two passes, no allocation. NaN counts as
/// -inf; 0 for an id outside the row, and in a row without a logit above -inf.
pub fn probability(logits: &[f32], token: Token) -> f32 {
    let (logit, max) = (logit_of(logits, token), max_of(logits));
    if logit == f32::NEG_INFINITY { 0.0 } else { (f64::from(exp(gap(logit, max))) / sum_exp(logits, max)) as f32 }
}

/// `token` and the `n` most probable tokens by the softmax of one row of raw logits, as in llama-server's
/// `completion_probabilities`. Fewer than `n` when fewer have a probability above 0. Two passes over the row.
pub fn token_probs(logits: &[f32], token: Token, n: usize) -> TokenProbs {
    let mut scratch = BlockScratch::new(logits.len());
    let mut blocks = Blocks::survey(logits, &mut scratch);
    let (max, log_sum) = (blocks.max(), blocks.sum_exp().ln());
    let logprob = |logit: f32| match logit {
        f32::NEG_INFINITY => LOWEST,
        _ => ((f64::from(gap(logit, max)) - log_sum) as f32).max(LOWEST),
    };
    let mut top = Candidates::default();
    if n > 0 && !blocks.is_empty() {
        blocks.top(n, &mut top);
    }
    TokenProbs {
        token,
        logprob: logprob(logit_of(logits, token)),
        top: top.items().iter().map(|item| (item.id, logprob(item.logit))).collect(),
    }
}

#[cfg(test)]
#[path = "probs_tests.rs"]
mod tests;
