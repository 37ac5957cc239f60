//! The value of drafted tokens. A draft continues as long as another token pays.
//!
//! A step drafts, decodes B + m tokens with the target (B: one for each slot that generates; m: drafted ones) and gains one token for each
//! accepted draft token. Let A be the product of the acceptances up to a token, and S the number of tokens that the engine makes in the
//! time of one plain forward pass. Then m tokens gain the sum of A, and cost S * (v(B + m) - v(B)). This is the renewal-reward rule, where
//! S is the rate that results from following it (Dinkelbach's iteration, one iteration per step). v is a staircase, so the best m is the
//! maximum over all m, not the first local one. The number of tokens of the finished drafts that are decoded is decided for all slots
//! together, by [`decide`](super::lengths::decide); here each slot has its share of a step's price.
//!
//! If one slot generates, a batch of another size than the last one costs more ([`Costs::next`]): with small models, as much as a token or
//! two. So the size that is best in the long run is preferred ([`DraftPrices::choose_preferred`]), and other sizes must pay for the change and for
//! changing back.
//!
//! A history-based draft costs nothing to repeat, and while text is being copied the next draft is as good as this one. Tokens that are not
//! verified now are verified in the next step, so a token saves only its share of such a step. There S is the rate at which this draft
//! makes tokens, if that is higher. With the average S, long drafts would look cheap at the start of each copied passage.

use std::ops::RangeInclusive;

use super::calibration::{Bias, Calibration};
use super::costs::{Costs, DraftPasses};
use super::prices::Prices;
use crate::{Adaptive, MAX_DRAFT, Settings};

/// The weight of earlier steps in the rate, per step.
const FADE: f64 = 0.98;
/// How many tokens ahead a drafter looks for the end of a step of v.
const LOOK_AHEAD: usize = 16;
/// The number of steps in which another preferred size must pay for the change.
const PATIENCE: f64 = 32.0;

/// The recent speed of the engine relative to plain decoding. Multiplied with the rate of plain decoding, which depends on the number of
/// slots, it gives S.
#[derive(Debug, Default)]
pub struct Rate {
    tokens: f64,
    plain: f64,
}

impl Rate {
    /// Records a step that made `tokens` tokens and cost this number of forward passes of one token. Plain decoding makes `plain` tokens in
    /// each.
    pub fn record(&mut self, tokens: usize, cost: f64, plain: f64) {
        self.tokens = FADE * self.tokens + tokens as f64;
        self.plain = FADE * self.plain + cost * plain;
    }

    /// S, if plain decoding makes `plain` tokens per forward pass. At least that, because plain decoding is always possible.
    pub fn of(&self, plain: f64) -> f64 {
        if self.plain > 0.0 { plain * (self.tokens / self.plain).max(1.0) } else { plain }
    }
}

/// The prices of tokens in one step, for the drafters that make them.
#[derive(Debug, Default)]
pub struct DraftPrices {
    /// The cost of a slot's 0, 1, ... drafted tokens, in tokens. With rectangles, its share if all slots draft the same number.
    verify: Vec<f64>,
    /// The cost of a pass of drafting, in tokens, and the number of slots in it.
    draft: f64,
    passes: DraftPasses,
    n_drafting: usize,
    /// The number of tokens without drafts, and their cost in tokens. In shares, too.
    base: f64,
    alone: f64,
    longest: usize,
    /// The preferred number of drafted tokens.
    preferred: Option<usize>,
    /// The number of drafting slots, if all of them have the same length.
    shares: Option<usize>,
}

/// A history-based draft so far.
#[derive(Debug, Clone, Copy)]
pub struct SoFar {
    drafted: usize,
    /// The sum of A.
    sum: f64,
    /// The highest rate of tokens of its prefixes, in units of S. At least 1.
    rate: f64,
}

impl Default for SoFar {
    fn default() -> Self {
        SoFar { drafted: 0, sum: 0.0, rate: 1.0 }
    }
}

impl DraftPrices {
    /// The number of drafted tokens that is best in the long run, if one slot generates.
    pub fn preferred(&self) -> Option<usize> {
        self.preferred
    }

    /// Chooses the number of drafted tokens that is best in the long run, if one slot generates and a model drafts up to `n_max` tokens for
    /// it, after `n_past` tokens of context, accepted with this probability. `None`: there is no such model.
    pub fn choose_preferred(&mut self, costs: &Costs, n_past: usize, drafts: Option<(f64, usize)>) {
        let before = self.preferred;
        self.preferred = drafts.map(|(acceptance, n_max)| {
            let (mut best, mut most, mut tokens, mut sure) = (0, 0.0, 0.0, 1.0);
            for m in 0..=n_max.min(LOOK_AHEAD) {
                tokens += sure;
                sure *= acceptance;
                let moves = before.is_some_and(|before| before != m);
                let moving = if moves { costs.change() / PATIENCE } else { 0.0 };
                let cost = costs.v(1 + m) + costs.attention(1 + m, n_past);
                let cost = cost + costs.c(1, n_past) * costs.passes().between(0, m) as f64;
                let rate = tokens / (cost + moving);
                if rate > most {
                    (best, most) = (m, rate);
                }
            }
            best
        });
    }

    /// Updates them for a step with these prices, with drafts for up to `n_drafting` slots.
    pub fn update(&mut self, prices: &Prices<'_>, n_drafting: usize) {
        let generating = prices.slots.iter().filter(|slot| slot.generates).count().max(1);
        let n_drafting = n_drafting.max(1);
        let alone = prices.cost_of_all(0);
        let rectangles = prices.costs.split().is_rectangular() && generating > 1;
        self.shares = rectangles.then_some(n_drafting);
        let parts = if rectangles { n_drafting as f64 } else { 1.0 };
        let n_past = prices.mean_n_past();
        self.passes = prices.costs.passes();
        self.set_draft_cost(prices.rate * prices.costs.c(n_drafting, n_past), n_drafting);
        let attention = |m: usize| prices.costs.attention(1 + m, n_past) - prices.costs.attention(1, n_past);
        (self.base, self.alone) = (generating as f64 / parts, prices.rate * alone / parts);
        self.verify.clear();
        let n_tokens: usize = prices.slots.iter().map(|slot| slot.n_tokens).sum();
        let cost = |m: usize| match rectangles {
            // A draft that is much longer than all others has its own forward pass.
            true => ((prices.cost_of_all(m) - alone) / parts).min(prices.costs.v(m) + attention(m)),
            false if generating == 1 => prices.cost_of_all(m) - alone,
            false => prices.costs.v(n_tokens + m) - prices.costs.v(n_tokens) + attention(m),
        };
        self.verify.extend((0..=MAX_DRAFT).map(|m| prices.rate * cost(m)));
        self.longest = self.best(std::iter::repeat_n(1.0, MAX_DRAFT), 0).0;
    }

    /// Sets the cost of a pass of drafting for `n_slots` slots together, in tokens.
    pub fn set_draft_cost(&mut self, cost: f64, n_slots: usize) {
        (self.draft, self.n_drafting) = (cost, n_slots.max(1));
    }

    /// The number of tokens to verify if all were accepted. More never pay.
    pub fn longest(&self) -> usize {
        self.longest
    }

    fn verify(&self, m: usize) -> f64 {
        self.verify.get(m).copied().unwrap_or(f64::INFINITY)
    }

    /// The number of tokens of a draft to verify (none or at least `n_min`) and the gain in tokens. `sure`: for each token, the probability
    /// that it and all tokens before it are accepted.
    pub fn best(&self, sure: impl Iterator<Item = f64>, n_min: usize) -> (usize, f64) {
        let (mut best, mut sum) = ((0, 0.0), 0.0);
        for (m, sure) in (1..).zip(sure) {
            sum += sure;
            let gain = sum - self.verify(m);
            if gain > best.1 && m >= n_min {
                best = (m, gain);
            }
        }
        best
    }

    fn with(&self, so_far: SoFar, sure: f64) -> SoFar {
        let (drafted, sum) = (so_far.drafted + 1, so_far.sum + sure);
        let rate = (self.base + sum) / (self.alone + self.verify(drafted));
        SoFar { drafted, sum, rate: so_far.rate.max(rate) }
    }

    /// The gain of a draft of this number of tokens, each accepted with `acceptance`, minus the cost of drafting it.
    pub fn prospect(&self, acceptance: f64, lengths: RangeInclusive<usize>) -> f64 {
        self.ahead(0, 1.0, 0.0, acceptance, lengths)
    }

    /// The cost of drafting from `drafted` tokens to `length`, for all slots together.
    fn drafting(&self, drafted: usize, length: usize) -> f64 {
        self.draft * self.passes.between(drafted, length) as f64
    }

    /// The best gain of a draft of `drafted` tokens (`sure`: the product of their acceptances, `sum`: the sum of such products) that
    /// continues to one of these lengths with tokens accepted with `acceptance`.
    fn ahead(&self, drafted: usize, sure: f64, sum: f64, acceptance: f64, lengths: RangeInclusive<usize>) -> f64 {
        let (n_min, n_max) = lengths.into_inner();
        let (mut best, mut sure, mut sum) = (f64::NEG_INFINITY, sure, sum);
        for m in drafted + 1..=n_max.min(n_min.max(drafted + LOOK_AHEAD)) {
            sure *= acceptance;
            sum += sure;
            if m >= n_min {
                let drafting = self.drafting(drafted, m) / self.n_drafting.max(1) as f64;
                best = best.max(sum - self.verify(m) - drafting);
            }
        }
        best
    }
}

/// Tells a drafter whether another token pays.
#[derive(Debug, Clone, Copy)]
pub enum StopPolicy<'a> {
    /// Continue to `n_max`.
    All,
    /// Continue as long as it pays.
    Paying {
        /// The step's prices.
        prices: &'a DraftPrices,
        /// The calibration of the drafter's confidence.
        calibration: &'a Calibration,
        /// The request's deviation from the calibration.
        bias: Bias,
        /// Shorter drafts are dropped.
        n_min: usize,
    },
}

impl StopPolicy<'_> {
    /// Whether a draft of tokens with these confidences should get another one, up to `n_max`.
    pub fn wants_more(&self, confidence: &[f32], n_max: usize) -> bool {
        match self {
            StopPolicy::All => true,
            StopPolicy::Paying { prices, calibration, bias, n_min } => {
                if prices.shares.is_some() {
                    // The slots continue together: see `another_round_pays`.
                    return true;
                }
                let acceptances = || confidence.iter().map(|confidence| calibration.acceptance(bias, *confidence));
                let sure = || {
                    acceptances().scan(1.0, |sure, acceptance| {
                        *sure *= acceptance;
                        Some(*sure)
                    })
                };
                let (now, lengths) = (prices.best(sure(), *n_min).1, *n_min..=n_max);
                prices.ahead(
                    confidence.len(),
                    sure().last().unwrap_or(1.0),
                    sure().sum(),
                    calibration.mean(bias),
                    lengths,
                ) > now
            }
        }
    }

    /// The probability that a token of this confidence is accepted, if those before it are. Without prices, the confidence itself.
    pub fn acceptance(&self, confidence: f32) -> f64 {
        match self {
            StopPolicy::All => f64::from(confidence),
            StopPolicy::Paying { calibration, bias, .. } => calibration.acceptance(bias, confidence),
        }
    }

    /// Whether a history-based draft can still gain by its next token, or by the tokens after it, if the draft including the next token is
    /// accepted with probability `sure`. If so, the token is added. The first one always is, because it shows the draft's quality.
    pub fn may_gain(&self, so_far: &mut SoFar, sure: f64) -> bool {
        let StopPolicy::Paying { prices, .. } = self else { return true };
        let SoFar { drafted, rate, .. } = *so_far;
        let before = prices.verify(drafted);
        let gains = |more: usize| rate * (prices.verify(drafted + more) - before) < sure * more as f64;
        let may_gain = drafted == 0 || (1..=LOOK_AHEAD).any(gains);
        if may_gain {
            *so_far = prices.with(*so_far, sure);
        }
        may_gain
    }

    /// Whether a branch that begins with a token of this `confidence`, after tokens with the confidences `path`, is worth verifying next to
    /// a draft of `drafted` tokens.
    pub fn wants_branch(&self, path: &[f32], confidence: f32, drafted: usize) -> bool {
        match self {
            StopPolicy::All => true,
            StopPolicy::Paying { prices, calibration, bias, .. } => {
                let acceptance = |confidence: &f32| calibration.acceptance(bias, *confidence);
                let sure: f64 = path.iter().chain([&confidence]).map(acceptance).product();
                sure > prices.verify(drafted + 1) - prices.verify(drafted)
            }
        }
    }
}

/// A draft that a model is making.
#[derive(Debug, Clone, Copy)]
pub struct GrowingDraft<'a> {
    /// The confidence of each of its tokens, which form a chain.
    pub confidence: &'a [f32],
    /// The maximum number of tokens. 0: nothing is drafted for this slot.
    pub n_max: usize,
    /// The stop policy.
    pub policy: StopPolicy<'a>,
}

/// Whether another token for each of these drafts pays, if the lengths of the slots are decided together.
pub fn another_round_pays<'a>(drafts: impl Iterator<Item = GrowingDraft<'a>> + Clone) -> bool {
    // The expected number of accepted tokens at each length, in total.
    let mut expected = [0.0; MAX_DRAFT + 1];
    let (mut shared, mut n_max) = (None, 0);
    let drafted = drafts.clone().map(|draft| draft.confidence.len()).max().unwrap_or(0);
    for draft in drafts.filter(|draft| draft.n_max > 0) {
        let StopPolicy::Paying { prices, calibration, bias, n_min } = draft.policy else { return true };
        if prices.shares.is_none() {
            return true;
        }
        // All drafts grow together, so a shorter one has ended.
        let n_most = if draft.confidence.len() < drafted { 0 } else { draft.n_max };
        let (mut sum, mut sure) = (0.0, 1.0);
        let mut confidence = draft.confidence.iter();
        for (length, expected) in (1..).zip(expected.iter_mut().skip(1)) {
            match confidence.next() {
                Some(confidence) => sure *= calibration.acceptance(&bias, *confidence),
                None if length <= n_most => sure *= calibration.mean(&bias),
                None => sure = 0.0,
            }
            sum += sure;
            *expected += if length >= n_min { sum } else { 0.0 };
        }
        (shared, n_max) = (Some(prices), n_max.max(n_most));
    }
    let Some(prices) = shared else { return true };
    let slots = prices.shares.unwrap_or(1) as f64;
    let value = |length: usize| {
        let drafting = prices.drafting(drafted, length);
        expected.get(length).map_or(f64::NEG_INFINITY, |expected| expected - slots * prices.verify(length) - drafting)
    };
    let now = (0..=drafted).map(value).fold(f64::NEG_INFINITY, f64::max);
    (drafted + 1..=n_max).any(|length| value(length) > now)
}

/// The draft length of a request that does not use the [`DraftPrices`].
#[derive(Debug)]
pub struct Length {
    adaptive: Adaptive,
    n_max: usize,
    current: usize,
}

/// `speculative.cpp`: the increment after a full acceptance, and the minimum.
const HEURISTIC_STEP: usize = 8;
const HEURISTIC_LEAST: usize = 2;

impl Length {
    /// The initial length for a request with these settings.
    pub fn new(settings: &Settings) -> Length {
        Length { adaptive: settings.adaptive, n_max: settings.n_max, current: settings.first_length() }
    }

    /// The maximum number of tokens of the next draft.
    pub fn current(&self) -> usize {
        self.current
    }

    /// Records that of a draft of `drafted` tokens, at least one, `accepted` were accepted. `n_longest`: the maximum of `accepted`, which is
    /// less than `drafted` with branches.
    pub fn record(&mut self, drafted: usize, n_longest: usize, accepted: usize) {
        if self.adaptive != Adaptive::Heuristic {
            return;
        }
        if accepted < n_longest {
            self.current = self.current.saturating_sub(1).max(HEURISTIC_LEAST.min(self.n_max));
        } else if drafted == self.current {
            self.current = (self.current + HEURISTIC_STEP).min(self.n_max);
        }
    }
}

#[cfg(test)]
mod tests;
