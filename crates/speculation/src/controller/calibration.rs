//! Calibration of a drafter's confidence: the probability that a drafted token is accepted, learned from verified tokens.

/// The borders of the bins of confidence, finest close to 1.
const BORDERS: [f32; 13] = [0.02, 0.05, 0.1, 0.2, 0.3, 0.45, 0.6, 0.75, 0.85, 0.92, 0.96, 0.985, 0.996];
const BINS: usize = BORDERS.len() + 1;
/// The number of observations that a bin remembers, and the weight of its prior.
const MEMORY: f64 = 64.0;
const PRIOR: f64 = 4.0;
/// The initial acceptance of a drafter, and its weight.
const FIRST_MEAN: f64 = 0.75;
const FIRST_SEEN: f64 = 2.0;
/// The initial acceptance of tokens without confidence, with shared noise.
const FIRST_SHARED: f64 = 0.5;

/// The target's choice of tokens, which determines the meaning of a drafter's confidence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// The most probable token.
    Greedy,
    /// Random, independent of the drafter. A token is accepted with the target's probability.
    Chance,
    /// Random with shared noise, or stochastic verification. Improbable tokens are accepted, too, if both give them the same probability.
    Shared,
}

/// A drafter's acceptance by confidence, over all requests.
#[derive(Debug)]
pub struct Calibration {
    spread: Spread,
    greedy: Bins,
    chance: Bins,
    shared: Bins,
}

#[derive(Debug)]
struct Bins {
    /// The number of tokens and of accepted ones in each bin, with exponential decay.
    bins: [(f64, f64); BINS],
    /// The same over all bins.
    all: (f64, f64),
}

/// A request's deviation from the calibration.
#[derive(Debug, Clone, Copy)]
pub struct Bias {
    choice: Choice,
    line: Line,
    /// The number of this request's tokens and of accepted ones, with exponential decay.
    own: (f64, f64),
}

/// A request's log-odds as a function of those of all requests: `offset + slope · log_odds`. The offset is the overall quality of its
/// drafts, and the slope is the reliability of the confidence. If confident tokens are rejected, the slope falls, and the acceptance of
/// uncertain tokens changes little.
///
/// Platt scaling (Probabilistic outputs for support vector machines, 1999), updated for each token by an extended Kalman filter, so that
/// early surprises have a higher weight than later ones.
#[derive(Debug, Clone, Copy)]
struct Line {
    offset: f64,
    slope: f64,
    /// The uncertainty: variances and covariance.
    offset_variance: f64,
    slope_variance: f64,
    covariance: f64,
}

/// The variances of offset and slope between requests, and their change with each token.
#[derive(Debug, Clone, Copy)]
struct Spread {
    offset: f64,
    slope: f64,
    offset_drift: f64,
    slope_drift: f64,
}

/// History-based drafters: some texts repeat themselves, others do not.
const TEXTS: Spread = Spread { offset: 1.0, slope: 0.1, offset_drift: 0.005, slope_drift: 0.002 };
/// Models: the quality is similar for all requests. With larger values, a single rejected token shortens the next drafts of a good model.
const MODELS: Spread = Spread { offset: 0.5, slope: 0.02, offset_drift: 0.003, slope_drift: 0.0004 };
/// The limits of a request's deviation.
const MAX_OFFSET: f64 = 6.0;
const SLOPES: (f64, f64) = (0.2, 2.0);
/// The mean acceptance of a request is based on so many of its last tokens, and on so many of all requests'.
const OWN_MEMORY: f64 = 16.0;
const OF_ALL: f64 = 16.0;

impl Bins {
    /// Starts with `acceptance` for each confidence.
    fn new(acceptance: impl Fn(f64) -> f64) -> Bins {
        let mut bins = Bins { bins: [(0.0, 0.0); BINS], all: (FIRST_SEEN, FIRST_SEEN * FIRST_MEAN) };
        for (index, bin) in bins.bins.iter_mut().enumerate() {
            let low = index.checked_sub(1).and_then(|below| BORDERS.get(below)).copied().unwrap_or(0.0);
            let high = BORDERS.get(index).copied().unwrap_or(1.0);
            *bin = (PRIOR, PRIOR * acceptance(f64::from(low + high) / 2.0));
        }
        bins
    }
}

impl Line {
    /// No deviation.
    fn new(spread: Spread) -> Line {
        Line { offset: 0.0, slope: 1.0, offset_variance: spread.offset, slope_variance: spread.slope, covariance: 0.0 }
    }

    /// The probability in this request, from the log-odds over all requests.
    fn probability(&self, log_odds: f64) -> f64 {
        1.0 / (1.0 + (-self.offset - self.slope * log_odds).exp())
    }

    /// Records an observation (1: accepted, 0: rejected) of a token with these log-odds over all requests.
    fn record(&mut self, log_odds: f64, outcome: f64, spread: Spread) {
        let expected = self.probability(log_odds);
        let information = expected * (1.0 - expected);
        // The covariances of these log-odds with offset and slope, before and after.
        let with_offset = self.offset_variance + self.covariance * log_odds;
        let with_slope = self.covariance + self.slope_variance * log_odds;
        let less = information / (1.0 + information * (with_offset + with_slope * log_odds));
        self.offset_variance += spread.offset_drift - less * with_offset * with_offset;
        self.slope_variance += spread.slope_drift - less * with_slope * with_slope;
        self.covariance -= less * with_offset * with_slope;
        let with_offset = self.offset_variance + self.covariance * log_odds;
        let with_slope = self.covariance + self.slope_variance * log_odds;
        let (flattest, steepest) = SLOPES;
        self.offset = (self.offset + with_offset * (outcome - expected)).clamp(-MAX_OFFSET, MAX_OFFSET);
        self.slope = (self.slope + with_slope * (outcome - expected)).clamp(flattest, steepest);
    }
}

fn fade((seen, accepted): &mut (f64, f64), was_accepted: f64, memory: f64) {
    let keep = if *seen >= memory { 1.0 - 1.0 / memory } else { 1.0 };
    *seen = *seen * keep + 1.0;
    *accepted = *accepted * keep + was_accepted;
}

/// The bin of a confidence.
fn bin(confidence: f32) -> usize {
    BORDERS.partition_point(|border| *border <= confidence)
}

/// The log-odds of the tokens in a bin, over all requests.
fn log_odds((seen, accepted): (f64, f64)) -> f64 {
    ((accepted + 0.05) / (seen - accepted + 0.05)).ln()
}

impl Calibration {
    /// The calibration of a history-based drafter.
    pub fn of_text() -> Calibration {
        Calibration::new(TEXTS)
    }

    /// The calibration of a model.
    pub fn of_model() -> Calibration {
        Calibration::new(MODELS)
    }

    /// A calibration that equals the confidence.
    fn new(spread: Spread) -> Calibration {
        let believed = || Bins::new(|confidence| confidence);
        Calibration {
            spread,
            greedy: believed(),
            chance: believed(),
            shared: Bins::new(|confidence| FIRST_SHARED + (1.0 - FIRST_SHARED) * confidence),
        }
    }

    fn bins(&self, choice: Choice) -> &Bins {
        match choice {
            Choice::Greedy => &self.greedy,
            Choice::Chance => &self.chance,
            Choice::Shared => &self.shared,
        }
    }

    fn bins_mut(&mut self, choice: Choice) -> &mut Bins {
        match choice {
            Choice::Greedy => &mut self.greedy,
            Choice::Chance => &mut self.chance,
            Choice::Shared => &mut self.shared,
        }
    }

    /// Starts a request, with the average of all requests of its kind.
    pub fn begin(&self, choice: Choice) -> Bias {
        Bias { choice, line: Line::new(self.spread), own: (0.0, 0.0) }
    }

    /// The probability that a token drafted with this confidence is accepted, if those before it are.
    pub fn acceptance(&self, bias: &Bias, confidence: f32) -> f64 {
        let bins = self.bins(bias.choice);
        bias.line.probability(log_odds(bins.bins.get(bin(confidence)).copied().unwrap_or(bins.all)))
    }

    /// The expected acceptance of a token with unknown confidence: of this request's tokens, and of all requests' as long as those are few.
    pub fn mean(&self, bias: &Bias) -> f64 {
        let (seen, accepted) = self.known(bias);
        accepted / seen
    }

    /// An upper bound for it, from few observations.
    pub fn optimistic_mean(&self, bias: &Bias) -> f64 {
        let (seen, accepted) = self.known(bias);
        let mean = accepted / seen;
        (mean + (mean * (1.0 - mean) / seen).sqrt()).min(0.999)
    }

    /// The tokens that the mean acceptance of a request is based on, and the accepted ones.
    fn known(&self, bias: &Bias) -> (f64, f64) {
        let (all, accepted) = self.bins(bias.choice).all;
        let weight = (OF_ALL / all).min(1.0);
        (bias.own.0 + weight * all, bias.own.1 + weight * accepted)
    }

    /// Records whether a token drafted with this confidence was accepted. Those before it were.
    pub fn record(&mut self, bias: &mut Bias, confidence: f32, was_accepted: bool) {
        let spread = self.spread;
        let Bins { bins, all } = self.bins_mut(bias.choice);
        let Some(bin) = bins.get_mut(bin(confidence)) else { return };
        let log_odds = log_odds(*bin);
        bias.line.record(log_odds, f64::from(u8::from(was_accepted)), spread);
        // Uses the token's expected acceptance, which has less variance than the outcome.
        fade(&mut bias.own, bias.line.probability(log_odds), OWN_MEMORY);
        fade(bin, f64::from(u8::from(was_accepted)), MEMORY);
        fade(all, f64::from(u8::from(was_accepted)), MEMORY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A repeatable sequence in 0..1.
    fn chances(seed: u64) -> impl Iterator<Item = f64> {
        let mut state = seed;
        std::iter::repeat_with(move || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 11) as f64 / (1u64 << 53) as f64
        })
    }

    #[test]
    fn confidence_that_is_too_high_is_corrected() {
        let mut calibration = Calibration::of_text();
        let mut bias = calibration.begin(Choice::Greedy);
        assert!((calibration.acceptance(&bias, 0.9) - 0.88).abs() < 0.05, "believed at first");
        for chance in chances(1).take(3000) {
            // Confidence .9: accepted half of the time. Confidence .3: never accepted.
            calibration.record(&mut bias, 0.9, chance < 0.5);
            calibration.record(&mut bias, 0.3, false);
        }
        let fresh = calibration.begin(Choice::Greedy);
        assert!((calibration.acceptance(&fresh, 0.9) - 0.5).abs() < 0.1, "{}", calibration.acceptance(&fresh, 0.9));
        assert!(calibration.acceptance(&fresh, 0.3) < 0.02);
        assert!((calibration.mean(&fresh) - 0.25).abs() < 0.08, "{}", calibration.mean(&fresh));
    }

    #[test]
    fn a_request_that_differs_is_noticed_soon() {
        let mut calibration = Calibration::of_text();
        let mut usual = calibration.begin(Choice::Greedy);
        for chance in chances(2).take(2000) {
            calibration.record(&mut usual, 0.8, chance < 0.8);
        }
        let mut hard = calibration.begin(Choice::Greedy);
        assert!(calibration.acceptance(&hard, 0.8) > 0.7);
        for _ in 0..3 {
            calibration.record(&mut hard, 0.8, false);
        }
        assert!(calibration.acceptance(&hard, 0.8) < 0.5, "{}", calibration.acceptance(&hard, 0.8));
        assert!(
            calibration.acceptance(&calibration.begin(Choice::Greedy), 0.8) > 0.7,
            "the next request is no worse for it"
        );
    }

    #[test]
    fn one_refused_token_says_little_of_a_model_and_much_of_a_text() {
        for (mut calibration, expected) in [(Calibration::of_model(), 0.88..1.0), (Calibration::of_text(), 0.3..0.8)] {
            let mut usual = calibration.begin(Choice::Greedy);
            for chance in chances(5).take(2000) {
                calibration.record(&mut usual, 0.95, chance < 0.96);
            }
            let mut other = calibration.begin(Choice::Greedy);
            assert!(calibration.acceptance(&other, 0.95) > 0.9);
            calibration.record(&mut other, 0.95, false);
            let acceptance = calibration.acceptance(&other, 0.95);
            assert!(expected.contains(&acceptance), "{acceptance} {expected:?}");
        }
    }

    #[test]
    fn rejected_confident_tokens_leave_uncertain_ones_as_they_are() {
        let mut calibration = Calibration::of_text();
        let mut usual = calibration.begin(Choice::Greedy);
        for chance in chances(4).take(2000) {
            calibration.record(&mut usual, 0.99, chance < 0.99);
            calibration.record(&mut usual, 0.5, chance < 0.5);
        }
        let mut misled = calibration.begin(Choice::Greedy);
        let before = calibration.acceptance(&misled, 0.5);
        for right in [true, true, true, false].into_iter().cycle().take(16) {
            calibration.record(&mut misled, 0.99, right);
        }
        let (sure, still) = (calibration.acceptance(&misled, 0.99), calibration.acceptance(&misled, 0.5));
        assert!((sure - 0.75).abs() < 0.2, "{sure}");
        assert!(still > before - 0.25, "{still} {before}");
    }

    #[test]
    fn what_chance_makes_of_a_draft_says_nothing_of_greedy_ones() {
        let mut calibration = Calibration::of_text();
        let mut shared = calibration.begin(Choice::Shared);
        assert!(calibration.acceptance(&shared, 0.1) > 0.5, "improbable tokens come as often with the same noise");
        for chance in chances(3).take(2000) {
            calibration.record(&mut shared, 0.1, chance < 0.9);
        }
        let accepted = |choice| calibration.acceptance(&calibration.begin(choice), 0.1);
        assert!((accepted(Choice::Shared) - 0.9).abs() < 0.1, "{}", accepted(Choice::Shared));
        assert!(accepted(Choice::Greedy) < 0.2 && accepted(Choice::Chance) < 0.2);
    }

    #[test]
    fn a_request_begins_with_the_acceptance_of_all_requests() {
        let mut calibration = Calibration::of_model();
        let mut one = calibration.begin(Choice::Greedy);
        let other = calibration.begin(Choice::Greedy);
        let before = calibration.mean(&other);
        (0..12).for_each(|_| calibration.record(&mut one, 0.9, true));
        assert!(calibration.mean(&other) > before, "also a request that has begun earlier");
        assert!(calibration.optimistic_mean(&other) > calibration.mean(&other));
        let mut bad = other;
        (0..16).for_each(|_| calibration.record(&mut bad, 0.9, false));
        assert!(calibration.mean(&bad) < calibration.mean(&one) - 0.2, "its own tokens count more");
    }

    #[test]
    fn every_confidence_has_a_bin() {
        let mut calibration = Calibration::of_text();
        let mut bias = calibration.begin(Choice::Greedy);
        for confidence in [0.0, 0.02, 0.5, 0.996, 1.0, 2.0, -1.0, f32::NAN] {
            calibration.record(&mut bias, confidence, true);
            let acceptance = calibration.acceptance(&bias, confidence);
            assert!((0.0..=1.0).contains(&acceptance), "{confidence}: {acceptance}");
        }
    }
}
