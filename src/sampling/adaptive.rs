//! Adaptive-p: prefers tokens whose probability is near a target, which moves so that the mean of the probabilities of
//! the tokens taken becomes what was asked for. As llama.cpp's `adaptive-p` sampler (MrJackSpade's and ddh0's).
//!
//! The state is one number: the decaying mean of those probabilities, from before the transformation. llama.cpp keeps a
//! weighted sum and the sum of the weights, which begins at its limit and never leaves it. It changes only when a token
//! is accepted, like mirostat's.

use super::candidates::Candidates;
use super::settings::Settings;
use crate::llama::Token;

/// How far from the target the preference turns from a parabola into a line.
const WIDTH: f32 = 0.3;
/// The logit of a token whose probability is the target.
const PEAK: f32 = 5.0;
/// How steeply the logit falls.
const SHARPNESS: f32 = 10.0;
/// The largest decay.
const MAX_DECAY: f32 = 0.99;

/// The stage with its settings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Adaptive {
    target: f32,
    decay: f32,
}

impl Adaptive {
    /// `None` when the settings turn it off.
    pub(super) fn new(settings: &Settings) -> Option<Self> {
        let (target, decay) = (settings.adaptive_target, settings.adaptive_decay.clamp(0.0, MAX_DECAY));
        (target >= 0.0).then_some(Adaptive { target: target.min(1.0), decay })
    }

    /// The mean before the first token.
    pub(super) fn initial(self) -> f32 {
        self.target
    }

    /// The mean after a token that had the probability `p` before the transformation.
    pub(super) fn next(self, mean: f32, p: f32) -> f32 {
        self.decay * mean + (1.0 - self.decay) * p
    }

    /// Replaces all logits; `before` becomes the probabilities until then.
    pub(super) fn apply(self, mean: f32, list: &mut Candidates, before: &mut Vec<(Token, f32)>) {
        let target = (2.0 * self.target - mean).clamp(0.0, 1.0);
        list.softmax();
        before.clear();
        before.extend(list.items().iter().map(|item| (item.id, item.p)));
        list.change(false, |items| {
            for item in items {
                let distance = (item.p - target).abs() / WIDTH;
                item.logit = PEAK - SHARPNESS * distance * distance / (1.0 + distance);
            }
        });
    }
}

#[cfg(test)]
#[path = "adaptive_tests.rs"]
mod tests;
