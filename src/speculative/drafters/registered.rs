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
}

impl RegisteredDrafter {
    /// A drafter that only looks at the token history.
    pub(super) fn of_history(drafter: Box<dyn Drafter + Send>) -> RegisteredDrafter {
        let calibration = Calibration::of_text();
        RegisteredDrafter { drafter, is_model_based: false, calibration, against_models: HitRate::default() }
    }

    /// A drafter that runs a model.
    pub(super) fn of_model(drafter: Box<dyn Drafter + Send>) -> RegisteredDrafter {
        let calibration = Calibration::of_model();
        RegisteredDrafter { drafter, is_model_based: true, calibration, against_models: HitRate::default() }
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
