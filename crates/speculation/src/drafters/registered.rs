//! A drafter that an engine has, and how good its drafts have been.

use crate::DrafterKind;
use crate::controller::Calibration;
use crate::drafter::Drafter;

/// A drafter, with statistics on its drafts.
pub(super) struct RegisteredDrafter {
    pub(super) drafter: Box<dyn Drafter + Send>,
    /// Is true for a model-based drafter: its drafts take time that counts.
    pub(super) is_model_based: bool,
    pub(super) calibration: Calibration,
    /// The accepted tokens of a history drafter's chosen drafts, relative to the expected ones. The expectations of all drafts are right on
    /// average. But drafts are chosen for high expectations, and high ones are overestimates more often than underestimates.
    pub(super) chosen: FadingRatio,
}

/// The limits of [`RegisteredDrafter::factor_if_chosen`].
const FACTOR_IF_CHOSEN: (f64, f64) = (0.2, 1.5);

impl RegisteredDrafter {
    /// A drafter that only looks at the token history.
    pub(super) fn of_history(drafter: Box<dyn Drafter + Send>) -> RegisteredDrafter {
        RegisteredDrafter::new(drafter, false, Calibration::of_text())
    }

    /// A drafter that runs a model.
    pub(super) fn of_model(drafter: Box<dyn Drafter + Send>) -> RegisteredDrafter {
        RegisteredDrafter::new(drafter, true, Calibration::of_model())
    }

    fn new(drafter: Box<dyn Drafter + Send>, is_model_based: bool, calibration: Calibration) -> RegisteredDrafter {
        RegisteredDrafter { drafter, is_model_based, calibration, chosen: FadingRatio::CHOSEN }
    }

    /// The factor from calibrated acceptance to the acceptance to expect of its chosen drafts.
    pub(super) fn factor_if_chosen(&self) -> f64 {
        let (least, most) = FACTOR_IF_CHOSEN;
        if self.is_model_based { 1.0 } else { self.chosen.ratio().clamp(least, most) }
    }

    pub(super) fn kind(&self) -> DrafterKind {
        self.drafter.source()
    }
}

/// The ratio of actual to expected values, where old observations fade.
#[derive(Debug, Clone, Copy)]
pub(super) struct FadingRatio {
    expected: f64,
    actual: f64,
    /// The sum of expected values above which old observations fade.
    memory: f64,
}

impl FadingRatio {
    const CHOSEN: FadingRatio = FadingRatio { expected: 10.0, actual: 8.0, memory: 200.0 };

    pub(super) fn record(&mut self, expected: f64, actual: f64) {
        let keep = if self.expected < self.memory { 1.0 } else { (1.0 - expected / self.memory).max(0.0) };
        self.expected = self.expected * keep + expected;
        self.actual = self.actual * keep + actual;
    }

    pub(super) fn ratio(self) -> f64 {
        self.actual / self.expected
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_chosen_drafts_bring_is_expected_of_the_next_ones() {
        let mut chosen = FadingRatio::CHOSEN;
        let first = chosen.ratio();
        (0..100).for_each(|_| chosen.record(4.0, 2.0));
        assert!(chosen.ratio() < first && (chosen.ratio() - 0.5).abs() < 0.05, "{}", chosen.ratio());
        (0..200).for_each(|_| chosen.record(4.0, 4.0));
        assert!((chosen.ratio() - 1.0).abs() < 0.05, "old drafts fade: {}", chosen.ratio());
        (0..1000).for_each(|_| chosen.record(1.0, 0.0));
        (0..50).for_each(|_| chosen.record(4.0, 4.0));
        assert!(chosen.ratio() > 0.5, "it recovers: {}", chosen.ratio());
    }
}
