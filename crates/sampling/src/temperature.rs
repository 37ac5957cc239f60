//! The temperature: fixed, or dynamic, following the entropy of the distribution.

use super::blocks::BlockMaxima;
use super::candidates::Candidates;
use super::settings::SamplingSettings;

/// The temperature stage, as llama.cpp's `temp-ext` sampler.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Temperature {
    base: f32,
    /// Half-width of the dynamic range; 0 means fixed.
    range: f32,
    exponent: f32,
}

impl Temperature {
    /// A fixed temperature; `None` if it is 1.
    pub(super) fn fixed(base: f32) -> Option<Self> {
        (base != 1.0).then_some(Temperature { base, range: 0.0, exponent: 1.0 })
    }

    /// The temperature of the settings; `None` if it is fixed at 1.
    pub(super) fn new(settings: &SamplingSettings) -> Option<Self> {
        if settings.dynatemp_range <= 0.0 {
            return Temperature::fixed(settings.temperature);
        }
        Some(Temperature {
            base: settings.temperature,
            range: settings.dynatemp_range,
            exponent: settings.dynatemp_exponent,
        })
    }

    /// The temperature for a distribution over `size` candidates, rising with its entropy. `None` leaves the logits
    /// unchanged.
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

    /// Applies the temperature to a row that has none yet. Returns `false` if only the most probable token is left; then
    /// that token is in `list`.
    #[must_use]
    pub(super) fn apply_to_row(self, blocks: &mut BlockMaxima<'_>, list: &mut Candidates) -> bool {
        let Some(temperature) = self.of(blocks.len(), || blocks.entropy()) else { return true };
        if is_greedy(temperature, blocks.max()) {
            let size = blocks.len();
            blocks.top_k(1, list);
            list.set_masked(size - list.len());
            return false;
        }
        blocks.set_temperature(temperature);
        true
    }

    /// Applies the temperature to a list.
    pub(super) fn apply(self, list: &mut Candidates) {
        let Some(temperature) = self.of(list.size(), || list.entropy()) else { return };
        if is_greedy(temperature, list.max()) {
            list.keep_argmax();
        } else {
            list.edit_logits(true, |items| items.iter_mut().for_each(|item| item.logit /= temperature));
        }
    }
}

/// Whether only the most probable token can be drawn: at a temperature of 0, and where the division overflows.
fn is_greedy(temperature: f32, max: f32) -> bool {
    temperature <= 0.0 || (max.is_finite() && !(max / temperature).is_finite())
}

#[cfg(test)]
mod tests {
    use super::super::blocks::{BlockMaxima, BlockScratch};
    use super::super::candidates::Candidates;
    use super::super::settings::SamplingSettings;
    use super::Temperature;

    fn dynamic(temperature: f32, range: f32, exponent: f32) -> SamplingSettings {
        SamplingSettings {
            temperature,
            dynatemp_range: range,
            dynatemp_exponent: exponent,
            ..SamplingSettings::default()
        }
    }

    /// Probabilities after the temperature, by token; the same for row and list.
    fn heated(temperature: Temperature, logits: &[f32]) -> Vec<f32> {
        let (mut list, mut scratch) = (Candidates::default(), BlockScratch::default());
        let mut blocks = BlockMaxima::scan(logits, &mut scratch);
        blocks.list_all(&mut list);
        temperature.apply(&mut list);
        list.softmax();
        let mut expected = vec![0.0; logits.len()];
        list.items().iter().for_each(|item| expected[item.id as usize] = item.p);

        if temperature.apply_to_row(&mut blocks, &mut list) {
            blocks.list_all(&mut list);
        }
        assert!((blocks.sum_exp() >= 1.0) && blocks.entropy() >= -1e-6, "also where 1 / temperature overflows");
        list.softmax();
        let mut found = vec![0.0; logits.len()];
        list.items().iter().for_each(|item| found[item.id as usize] = item.p);
        assert!(found.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-6), "{found:?} and {expected:?}");
        assert_eq!(list.size(), logits.len(), "nothing is truncated");
        found
    }

    fn check(temperature: Temperature, logits: &[f32], expected: &[f64]) {
        let found = heated(temperature, logits);
        let close = found.iter().zip(expected).all(|(a, b)| (f64::from(*a) - b).abs() < 1e-5);
        assert!(close, "{temperature:?}: {found:?}, expected {expected:?}");
    }

    fn softmax(logits: &[f32], temperature: f64) -> Vec<f64> {
        let weights: Vec<f64> = logits.iter().map(|logit| (f64::from(*logit) / temperature).exp()).collect();
        let sum: f64 = weights.iter().sum();
        weights.iter().map(|weight| weight / sum).collect()
    }

    #[test]
    fn fixed_temperature_divides_the_logits() {
        let logits = [0.1, 0.7, -0.3, 1.1];
        for temperature in [0.2_f32, 0.8, 1.5, 7.0] {
            check(Temperature::fixed(temperature).unwrap(), &logits, &softmax(&logits, f64::from(temperature)));
        }
        assert_eq!(Temperature::fixed(1.0), None);
        assert_eq!(Temperature::new(&dynamic(1.0, 0.0, 2.0)), None);
    }

    #[test]
    fn temperature_0_and_overflowing_division_keep_only_the_argmax() {
        for temperature in [0.0, -1.0, 1e-39] {
            check(Temperature::fixed(temperature).unwrap(), &[0.5, 2.0, 2.0, 1.0], &[0.0, 1.0, 0.0, 0.0]);
            check(Temperature::fixed(temperature).unwrap(), &[-5.0, -2.0, -2.5, -9.0], &[0.0, 1.0, 0.0, 0.0]);
        }
        check(Temperature::fixed(1e-39).unwrap(), &[-5.0, 0.0, -1e-3, -9.0], &[0.0, 1.0, 0.0, 0.0]);
        check(Temperature::fixed(1e-30).unwrap(), &[0.5, 2.0, 2.0, 1.0], &[0.0, 0.5, 0.5, 0.0]);
    }

    #[test]
    fn dynamic_temperature_follows_the_entropy() {
        let logits: Vec<f32> = [0.1_f32, 0.2, 0.3, 0.4].iter().map(|p| p.ln()).collect();
        let entropy: f64 = [0.1_f64, 0.2, 0.3, 0.4].iter().map(|p| -p * p.ln()).sum();
        let share = entropy / 4.0_f64.ln();
        for (base, range, exponent) in [(1.0_f32, 0.5_f32, 1.0_f32), (0.8, 0.3, 2.0), (0.5, 2.0, 0.5), (1.0, 0.5, 0.0)]
        {
            let (low, high) = ((f64::from(base) - f64::from(range)).max(0.0), f64::from(base) + f64::from(range));
            let temperature = low + (high - low) * share.powf(f64::from(exponent));
            check(Temperature::new(&dynamic(base, range, exponent)).unwrap(), &logits, &softmax(&logits, temperature));
        }
        // Flat: the highest temperature, which changes nothing. Certain: the lowest.
        check(Temperature::new(&dynamic(1.0, 0.5, 1.0)).unwrap(), &[3.0; 4], &[0.25; 4]);
        check(Temperature::new(&dynamic(1.0, 1.0, 1.0)).unwrap(), &[200.0, 0.0, 1.0, 0.0], &[1.0, 0.0, 0.0, 0.0]);
        check(Temperature::new(&dynamic(1.0, 0.5, 1.0)).unwrap(), &[3.0], &[1.0]);
    }

    /// As in llama.cpp, the maximum entropy is that of all candidates, banned ones included.
    #[test]
    fn banned_tokens_count_in_the_maximum_entropy() {
        let logits = [0.0, 1.0, f32::NEG_INFINITY, f32::NEG_INFINITY];
        let p = softmax(&logits[..2], 1.0);
        let share = p.iter().map(|p| -p * p.ln()).sum::<f64>() / 4.0_f64.ln();
        let mut expected = softmax(&logits[..2], 0.5 + share);
        expected.extend([0.0, 0.0]);
        check(Temperature::new(&dynamic(1.0, 0.5, 1.0)).unwrap(), &logits, &expected);
    }
}
