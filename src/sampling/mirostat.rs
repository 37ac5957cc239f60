//! Mirostat (arXiv 2007.14966): truncation that steers the text's surprise towards a target, as llama.cpp's
//! `mirostat` and `mirostat-v2` samplers.
//!
//! The state is one number, mu. It changes only when a token is accepted, so that speculation can look ahead with a
//! copy and throw it away.

use super::blocks::Blocks;
use super::candidates::Candidates;
use super::settings::{self, Settings};
use crate::llama::TokenData;

/// Version 1 estimates the distribution's exponent from this many of the most probable tokens.
const ESTIMATED_FROM: usize = 100;

/// Mirostat with its settings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Mirostat {
    version: settings::Mirostat,
    /// The target surprise in bits.
    tau: f32,
    /// The learning rate.
    eta: f32,
    n_vocab: usize,
}

impl Mirostat {
    /// `None` when the settings turn it off.
    pub(super) fn new(settings: &Settings, n_vocab: usize) -> Option<Self> {
        let version = settings.mirostat;
        (version != settings::Mirostat::Off).then_some(Mirostat {
            version,
            tau: settings.mirostat_tau,
            eta: settings.mirostat_eta,
            n_vocab,
        })
    }

    /// mu before the first token.
    pub(super) fn initial(self) -> f32 {
        2.0 * self.tau
    }

    /// mu after a token that had the probability `p` among the candidates left.
    pub(super) fn next(self, mu: f32, p: f32) -> f32 {
        let surprise = -p.log2();
        mu - self.eta * (surprise - self.tau)
    }

    /// Leaves in `list` the candidates of a row that mu allows.
    pub(super) fn cut_row(self, mu: f32, blocks: &mut Blocks<'_>, list: &mut Candidates) {
        if self.version == settings::Mirostat::V1 {
            blocks.top(ESTIMATED_FROM, list);
            let k = self.estimated_k(mu, list.items());
            if k > ESTIMATED_FROM {
                blocks.top(k, list);
            }
            list.keep_best(k);
        } else {
            blocks.at_least(least_logit(mu, blocks.max(), blocks.sum_exp().ln()), list);
            if list.is_empty() {
                blocks.top(1, list);
            }
        }
    }

    /// Leaves the candidates of a list that mu allows.
    pub(super) fn cut(self, mu: f32, list: &mut Candidates) {
        if self.version == settings::Mirostat::V1 {
            list.sort();
            let k = self.estimated_k(mu, list.items());
            list.keep_best(k);
        } else {
            let log_sum = list.softmax();
            let threshold = least_logit(mu, list.max(), log_sum);
            if list.max() >= threshold {
                list.retain(|item| item.logit >= threshold);
            } else {
                list.keep_best(1);
            }
        }
    }

    /// Version 1's number of candidates: fits Zipf's exponent to the most probable, and finds the k whose truncation
    /// has the surprise mu. `sorted`: the most probable candidates in order.
    fn estimated_k(self, mu: f32, sorted: &[TokenData]) -> usize {
        let pairs = sorted.iter().zip(sorted.iter().skip(1)).take(ESTIMATED_FROM - 1);
        let (mut products, mut squares) = (0.0_f32, 0.0_f32);
        for ((a, b), rank) in pairs.zip(1_u16..) {
            let ratio = (f32::from(rank + 1) / f32::from(rank)).ln();
            let drop = if a.logit == b.logit { 0.0 } else { a.logit - b.logit };
            products += ratio * drop;
            squares += ratio * ratio;
        }
        let exponent = products / squares;
        let epsilon = exponent - 1.0;
        let k = ((epsilon * mu.exp2()) / (1.0 - (self.n_vocab as f32).powf(-epsilon))).powf(1.0 / exponent);
        // NaN becomes 0, and what is too large the largest.
        (k as usize).max(1)
    }
}

/// Version 2's least logit: of the token whose surprise is mu.
fn least_logit(mu: f32, max: f32, log_sum: f64) -> f32 {
    (f64::from(max) + log_sum - f64::from(mu) * std::f64::consts::LN_2) as f32
}

#[cfg(test)]
#[path = "mirostat_tests.rs"]
mod tests;
