//! The stages with a state: mirostat and adaptive-p. Each keeps one number, which changes only when a token is accepted,
//! so speculation looks ahead with a copy and discards it.

use super::blocks::BlockMaxima;
use super::candidates::Candidates;
use super::settings::{MirostatVersion, SamplingSettings};
use foredraft_base::{Token, TokenData};

/// Version 1 estimates the distribution's exponent from this many of the most probable tokens.
const N_ESTIMATE: usize = 100;

/// Mirostat (arXiv 2007.14966): truncation that steers the surprise of the output towards a target, as llama.cpp's
/// `mirostat` and `mirostat-v2` samplers. Its state is mu.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Mirostat {
    version: MirostatVersion,
    /// The target surprise in bits.
    tau: f32,
    /// The learning rate.
    eta: f32,
    n_vocab: usize,
}

impl Mirostat {
    /// `None` when the settings turn it off.
    pub(super) fn new(settings: &SamplingSettings, n_vocab: usize) -> Option<Self> {
        let version = settings.mirostat;
        (version != MirostatVersion::Off).then_some(Mirostat {
            version,
            tau: settings.mirostat_tau,
            eta: settings.mirostat_eta,
            n_vocab,
        })
    }

    /// The state before the first token.
    pub(super) fn initial(self) -> f32 {
        2.0 * self.tau
    }

    /// The state after a token that had the probability `p` among the remaining candidates.
    pub(super) fn next(self, mu: f32, p: f32) -> f32 {
        let surprise = -p.log2();
        mu - self.eta * (surprise - self.tau)
    }

    /// Truncates a row: lists the candidates that mu allows.
    pub(super) fn truncate_row(self, mu: f32, blocks: &mut BlockMaxima<'_>, list: &mut Candidates) {
        if self.version == MirostatVersion::V1 {
            blocks.top_k(N_ESTIMATE, list);
            let k = self.estimated_k(mu, list.items());
            if k > N_ESTIMATE {
                blocks.top_k(k, list);
            }
            list.keep_best(k);
        } else {
            blocks.at_least(min_logit(mu, blocks.max(), blocks.sum_exp().ln()), list);
            if list.is_empty() {
                blocks.top_k(1, list);
            }
        }
    }

    /// Truncates a list to the candidates that mu allows.
    pub(super) fn truncate(self, mu: f32, list: &mut Candidates) {
        if self.version == MirostatVersion::V1 {
            list.sort();
            let k = self.estimated_k(mu, list.items());
            list.keep_best(k);
        } else {
            let log_sum = list.softmax();
            let threshold = min_logit(mu, list.max(), log_sum);
            if list.max() >= threshold {
                list.retain(|item| item.logit >= threshold);
            } else {
                list.keep_best(1);
            }
        }
    }

    /// The k that version 1 truncates to: fits Zipf's exponent to the most probable tokens, and finds the k whose
    /// truncation has the surprise mu. `sorted`: the most probable candidates in order.
    fn estimated_k(self, mu: f32, sorted: &[TokenData]) -> usize {
        let pairs = sorted.iter().zip(sorted.iter().skip(1)).take(N_ESTIMATE - 1);
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
        // The cast saturates, and turns NaN into 0.
        (k as usize).max(1)
    }
}

/// The smallest logit that version 2 keeps: that of a token whose surprise is mu.
fn min_logit(mu: f32, max: f32, log_sum: f64) -> f32 {
    (f64::from(max) + log_sum - f64::from(mu) * std::f64::consts::LN_2) as f32
}

/// The distance from the target at which the transformed logit turns from a parabola into a line.
const WIDTH: f32 = 0.3;
/// The logit of a token whose probability is the target.
const PEAK: f32 = 5.0;
/// Slope of the transformed logit.
const SHARPNESS: f32 = 10.0;
/// The largest decay.
const MAX_DECAY: f32 = 0.99;

/// Adaptive-p: prefers tokens whose probability is near a target. The target moves so that the mean probability of the
/// sampled tokens approaches the requested one. Follows llama.cpp's `adaptive-p` sampler (by MrJackSpade and ddh0).
///
/// Its state is the exponential moving average of those probabilities, taken before the transformation. llama.cpp keeps
/// a weighted sum and the sum of the weights; the latter starts at its limit and never changes, so one number is enough.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct AdaptiveP {
    target: f32,
    decay: f32,
}

impl AdaptiveP {
    /// `None` when the settings turn it off.
    pub(super) fn new(settings: &SamplingSettings) -> Option<Self> {
        let (target, decay) = (settings.adaptive_target, settings.adaptive_decay.clamp(0.0, MAX_DECAY));
        (target >= 0.0).then_some(AdaptiveP { target: target.min(1.0), decay })
    }

    /// The state before the first token.
    pub(super) fn initial(self) -> f32 {
        self.target
    }

    /// The state after a token that had the probability `p` before the transformation.
    pub(super) fn next(self, mean: f32, p: f32) -> f32 {
        self.decay * mean + (1.0 - self.decay) * p
    }

    /// Transforms all logits. Stores the probabilities before the transformation in `untransformed`.
    pub(super) fn apply(self, mean: f32, list: &mut Candidates, untransformed: &mut Vec<(Token, f32)>) {
        let target = (2.0 * self.target - mean).clamp(0.0, 1.0);
        list.softmax();
        untransformed.clear();
        untransformed.extend(list.items().iter().map(|item| (item.id, item.p)));
        list.edit_logits(false, |items| {
            for item in items {
                let distance = (item.p - target).abs() / WIDTH;
                item.logit = PEAK - SHARPNESS * distance * distance / (1.0 + distance);
            }
        });
    }
}

#[cfg(test)]
mod tests;
