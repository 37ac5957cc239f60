//! A drafter that an engine has, and how good its drafts have been.

use crate::speculative::DrafterKind;
use crate::speculative::calibration::Calibration;
use crate::speculative::drafter::Drafter;

/// A drafter, and what its drafts have been worth.
pub(super) struct RegisteredDrafter {
    pub(super) drafter: Box<dyn Drafter + Send>,
    /// Whether it is model-based: its drafts take time that counts.
    pub(super) is_model_based: bool,
    pub(super) calibration: Calibration,
    /// Of a history drafter: how often its first token was accepted where a model drafted another one.
    pub(super) against_models: HitRate,
    /// Of a history drafter: tokens that its chosen drafts were expected to bring, and that they brought.
    pub(super) chosen: Yield,
}

impl RegisteredDrafter {
    /// A drafter that only looks at the token history.
    pub(super) fn of_history(drafter: Box<dyn Drafter + Send>) -> RegisteredDrafter {
        let calibration = Calibration::of_text();
        RegisteredDrafter {
            drafter,
            is_model_based: false,
            calibration,
            against_models: HitRate::default(),
            chosen: Yield::default(),
        }
    }

    /// A drafter that runs a model.
    pub(super) fn of_model(drafter: Box<dyn Drafter + Send>) -> RegisteredDrafter {
        let calibration = Calibration::of_model();
        RegisteredDrafter {
            drafter,
            is_model_based: true,
            calibration,
            against_models: HitRate::default(),
            chosen: Yield::default(),
        }
    }

    pub(super) fn kind(&self) -> DrafterKind {
        self.drafter.source()
    }
}

/// The share of hits among observations, where old observations fade.
#[derive(Debug, Clone, Copy)]
pub(super) struct HitRate {
    seen: f64,
    hits: f64,
}

/// What a [`HitRate`] begins with, and how many observations it remembers.
const FIRST_SEEN: f64 = 4.0;
const FIRST_HITS: f64 = 2.0;
const MOST_SEEN: f64 = 64.0;

impl Default for HitRate {
    fn default() -> Self {
        HitRate { seen: FIRST_SEEN, hits: FIRST_HITS }
    }
}

impl HitRate {
    pub(super) fn record(&mut self, is_hit: bool) {
        let keep = if self.seen < MOST_SEEN { 1.0 } else { 1.0 - 1.0 / MOST_SEEN };
        self.seen = self.seen * keep + 1.0;
        self.hits = self.hits * keep + f64::from(u8::from(is_hit));
    }

    pub(super) fn share(self) -> f64 {
        self.hits / self.seen
    }
}

/// What chosen drafts bring, relative to what was expected of them.
///
/// The expectations of all drafts are right on average, but drafts are chosen because they are expected to bring much, and those are
/// overestimated more often than underestimated.
#[derive(Debug, Clone, Copy)]
pub(super) struct Yield {
    expected: f64,
    actual: f64,
}

/// What a [`Yield`] begins with, how many tokens it remembers, and its limits.
const FIRST_EXPECTED: f64 = 10.0;
const FIRST_ACTUAL: f64 = 8.0;
const MOST_EXPECTED: f64 = 200.0;
const LEAST_YIELD: f64 = 0.2;
const MOST_YIELD: f64 = 1.5;

impl Default for Yield {
    fn default() -> Self {
        Yield { expected: FIRST_EXPECTED, actual: FIRST_ACTUAL }
    }
}

impl Yield {
    pub(super) fn record(&mut self, expected: f64, actual: f64) {
        let keep = if self.expected < MOST_EXPECTED { 1.0 } else { (1.0 - expected / MOST_EXPECTED).max(0.0) };
        self.expected = self.expected * keep + expected;
        self.actual = self.actual * keep + actual;
    }

    pub(super) fn factor(self) -> f64 {
        (self.actual / self.expected).clamp(LEAST_YIELD, MOST_YIELD)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_chosen_drafts_bring_is_expected_of_the_next_ones() {
        let mut chosen = Yield::default();
        let first = chosen.factor();
        (0..100).for_each(|_| chosen.record(4.0, 2.0));
        assert!(chosen.factor() < first && (chosen.factor() - 0.5).abs() < 0.05, "{}", chosen.factor());
        (0..200).for_each(|_| chosen.record(4.0, 4.0));
        assert!((chosen.factor() - 1.0).abs() < 0.05, "old drafts fade: {}", chosen.factor());
        (0..200).for_each(|_| chosen.record(1.0, 0.0));
        assert!(chosen.factor() > 0.0, "never given up for good");
    }
}
