//! The temperature, fixed or following the entropy of the distribution.

use super::blocks::Blocks;
use super::candidates::Candidates;
use super::settings::Settings;

/// Divides logits by a number, as llama.cpp's `temp-ext` sampler.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Temperature {
    base: f32,
    /// Half-width of the range; 0: fixed.
    range: f32,
    exponent: f32,
}

impl Temperature {
    /// A fixed temperature; `None` when it changes nothing.
    pub(super) fn fixed(base: f32) -> Option<Self> {
        (base != 1.0).then_some(Temperature { base, range: 0.0, exponent: 1.0 })
    }

    /// The temperature that the settings describe; `None` when it changes nothing.
    pub(super) fn new(settings: &Settings) -> Option<Self> {
        if settings.dynatemp_range <= 0.0 {
            return Temperature::fixed(settings.temperature);
        }
        Some(Temperature {
            base: settings.temperature,
            range: settings.dynatemp_range,
            exponent: settings.dynatemp_exponent,
        })
    }

    /// The temperature for a distribution over `size` candidates: low where it is certain, high where it is not.
    /// `None`: leave the logits alone.
    fn of(self, size: usize, entropy: impl FnOnce() -> f64) -> Option<f32> {
        if self.range <= 0.0 {
            return Some(self.base);
        }
        if size <= 1 {
            return None;
        }
        let (low, high) = ((self.base - self.range).max(0.0), self.base + self.range);
        let normalized = (entropy() / (size as f64).ln()).clamp(0.0, 1.0);
        Some(low + (high - low) * normalized.powf(f64::from(self.exponent)) as f32)
    }

    /// Applies it to a row that has none yet. `false`: only the most probable token is left, so `list` has it.
    #[must_use]
    pub(super) fn set(self, blocks: &mut Blocks<'_>, list: &mut Candidates) -> bool {
        let Some(temperature) = self.of(blocks.len(), || blocks.entropy()) else { return true };
        if is_greedy(temperature, blocks.max()) {
            let size = blocks.len();
            blocks.top(1, list);
            list.set_masked(size - list.len());
            return false;
        }
        blocks.set_temperature(temperature);
        true
    }

    /// Applies it to a list.
    pub(super) fn apply(self, list: &mut Candidates) {
        let Some(temperature) = self.of(list.size(), || list.entropy()) else { return };
        if is_greedy(temperature, list.max()) {
            list.keep_argmax();
        } else {
            list.change(true, |items| items.iter_mut().for_each(|item| item.logit /= temperature));
        }
    }
}

/// Whether only the most probable token can be drawn at that temperature: at 0, and where the division overflows.
fn is_greedy(temperature: f32, max: f32) -> bool {
    temperature <= 0.0 || (max.is_finite() && !(max / temperature).is_finite())
}

#[cfg(test)]
#[path = "temperature_tests.rs"]
mod tests;
