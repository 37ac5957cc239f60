//! Reported probabilities: the model's (the softmax of the raw logits, before penalties, biases and truncation), or
//! those of the distribution that a token was drawn from.

use serde::{Deserialize, Serialize};

use super::blocks::{BlockMaxima, BlockScratch, max_of, sum_exp};
use super::candidates::Candidates;
use super::math::{exp, gap};
use foredraft_base::{Token, TokenData};

/// The reported log-probability of a token of probability 0. JSON has no infinity; llama-server reports this number too.
const LOWEST: f32 = f32::MIN;

/// A token's log-probability, and the most probable tokens with theirs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TokenProbs {
    /// The token.
    pub token: Token,
    /// Its natural log-probability; `f32::MIN` where the probability is 0.
    pub logprob: f32,
    /// The most probable tokens with their log-probabilities, most probable first, equals by token id.
    pub top: Vec<(Token, f32)>,
}

impl TokenProbs {
    /// `token` and the `n` most probable tokens of a distribution that lists the most probable first.
    pub(super) fn in_distribution(items: &[TokenData], token: Token, n: usize) -> TokenProbs {
        let logprob = |p: f32| p.ln().max(LOWEST);
        TokenProbs {
            token,
            logprob: items.iter().find(|item| item.id == token).map_or(LOWEST, |item| logprob(item.p)),
            top: items.iter().take(n).map(|item| (item.id, logprob(item.p))).collect(),
        }
    }
}

/// The logit of `token`; -inf if the id is outside the row or the logit is NaN.
fn logit_of(logits: &[f32], token: Token) -> f32 {
    let logit = usize::try_from(token).ok().and_then(|index| logits.get(index)).copied();
    logit.filter(|logit| !logit.is_nan()).unwrap_or(f32::NEG_INFINITY)
}

/// Whether a token can be sampled from a row of logits: one has a logit above -inf.
pub fn has_candidate(logits: &[f32]) -> bool {
    logits.iter().any(|logit| *logit > f32::NEG_INFINITY)
}

/// The probability of `token` in the softmax of one row of raw logits. NaN counts as -inf. Returns 0 for an id outside
/// the row, and for a row without a logit above -inf. Two passes over the row, no allocation.
pub fn probability(logits: &[f32], token: Token) -> f32 {
    let (logit, max) = (logit_of(logits, token), max_of(logits));
    if logit == f32::NEG_INFINITY { 0.0 } else { (f64::from(exp(gap(logit, max))) / sum_exp(logits, max)) as f32 }
}

/// `token` and the `n` most probable tokens in the softmax of one row of raw logits, as in llama-server's
/// `completion_probabilities`. Fewer than `n` if fewer have a probability above 0. Two passes over the row.
pub fn token_probs(logits: &[f32], token: Token, n: usize) -> TokenProbs {
    let mut scratch = BlockScratch::new(logits.len());
    let mut blocks = BlockMaxima::scan(logits, &mut scratch);
    let (max, log_sum) = (blocks.max(), blocks.sum_exp().ln());
    let logprob = |logit: f32| match logit {
        f32::NEG_INFINITY => LOWEST,
        _ => ((f64::from(gap(logit, max)) - log_sum) as f32).max(LOWEST),
    };
    let mut top = Candidates::default();
    if n > 0 && !blocks.is_empty() {
        blocks.top_k(n, &mut top);
    }
    TokenProbs {
        token,
        logprob: logprob(logit_of(logits, token)),
        top: top.items().iter().map(|item| (item.id, logprob(item.logit))).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::{LOWEST, TokenProbs, probability, token_probs};
    use crate::tests::reference::Rng;
    use foredraft_base::Token;

    /// Log-probabilities by the definition, in f64.
    fn by_definition(logits: &[f32]) -> Vec<f64> {
        let clean: Vec<f64> =
            logits.iter().map(|l| if l.is_nan() { f64::NEG_INFINITY } else { f64::from(*l) }).collect();
        let max = clean.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = clean.iter().map(|logit| (logit - max).exp()).sum();
        clean.iter().map(|logit| logit - max - sum.ln()).collect()
    }

    #[test]
    fn probabilities_are_the_softmax() {
        let mut rng = Rng::new(31);
        for n in [1, 2, 17, 300, 5000, 40_000] {
            let mut logits = rng.logits(n);
            if n > 10 {
                (logits[3], logits[5], logits[7]) = (f32::NAN, f32::NEG_INFINITY, -500.0);
            }
            let expected = by_definition(&logits);
            let mut best: Vec<Token> =
                (0..n as Token).filter(|token| expected[*token as usize] > f64::NEG_INFINITY).collect();
            best.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b)));
            for token in (0..n).step_by(1 + n / 30).chain((0..n.min(9)).filter(|token| *token < n)) {
                let p = f64::from(probability(&logits, token as Token));
                assert!((p - expected[token].exp()).abs() <= 1e-6 * expected[token].exp() + 1e-37, "{token} of {n}");
                let found = token_probs(&logits, token as Token, 5);
                let close = |logprob: f32, token: Token| {
                    let expected = expected[token as usize];
                    logprob == LOWEST && expected == f64::NEG_INFINITY
                        || (f64::from(logprob) - expected).abs() < 1e-5 * (1.0 + expected.abs())
                };
                assert_eq!(found.token, token as Token);
                assert!(close(found.logprob, token as Token), "{token} of {n}: {}", found.logprob);
                assert_eq!(found.top.iter().map(|top| top.0).collect::<Vec<_>>(), best[..best.len().min(5)]);
                assert!(found.top.iter().all(|(token, logprob)| close(*logprob, *token)));
            }
            assert_eq!(token_probs(&logits, 0, usize::MAX).top.len(), best.len(), "all that can be drawn");
            assert_eq!(token_probs(&logits, 0, 0).top, []);
        }
    }

    #[test]
    fn tokens_without_a_probability_report_zero() {
        for row in [vec![], vec![f32::NAN; 5], vec![f32::NEG_INFINITY; 300]] {
            for token in [0, 4, -1, Token::MAX] {
                assert_eq!(probability(&row, token), 0.0);
                assert_eq!(token_probs(&row, token, 3), TokenProbs { token, logprob: LOWEST, top: vec![] });
            }
        }
        let row = [1.0, 2.0];
        for token in [-1, 2, Token::MIN, Token::MAX] {
            assert_eq!(probability(&row, token), 0.0);
            assert_eq!(token_probs(&row, token, 1).logprob, LOWEST);
        }
        assert_eq!(probability(&[f32::INFINITY, 2.0], 0), 1.0);
        assert_eq!(token_probs(&[f32::INFINITY, 2.0], 1, 2).top, [(0, 0.0), (1, LOWEST)]);
    }
}
