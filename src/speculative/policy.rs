//! How much to draft and to verify: as long as one token more pays.
//!
//! A step drafts, evaluates the target on B + m tokens (B: one of each slot that generates; m: drafted ones) and gains one
//! token for each drafted one that is right. With A the product of the acceptances up to a token, and S the tokens that
//! the engine makes in the time of one plain evaluation, m tokens gain ΣA and cost S · (v(B + m) - v(B)): renewal-reward's
//! rule, whose S is the rate that results from following it (Dinkelbach's iteration, one step of it each step). v is a
//! staircase, so the best m is looked for among all, not where the gain first falls.
//!
//! Where one slot generates, a batch of another size than the last one costs more ([`Costs::next`]): with small models as much as
//! a token or two. So one size is preferred, the one that pays in the long run ([`Plan::settle`]), and a step of another size has to be
//! worth the way there and back.
//!
//! A draft from the text costs nothing to make again, and where text is copied the next one is as good as this. What is not checked
//! now is checked in the next step, so that a token saves no more than its share of such steps: there S is the rate at which this
//! draft makes tokens, where that is higher ([`Plan::best_of_text`]). With the average S, long drafts look cheap wherever copying
//! begins.

use std::ops::RangeInclusive;

use super::calibration::{Bias, Calibration};
use super::{Adaptive, Costs, MAX_DRAFT, Settings};

/// What a past step still counts after one more, in the rate.
const FADE: f64 = 0.95;
/// How many tokens ahead a drafter looks for the end of a step of v.
const LOOK_AHEAD: usize = 16;
/// In how many steps another preferred has to make up for the way there.
const PATIENCE: f64 = 32.0;

/// The rate S of the whole engine: tokens in the time of one plain evaluation.
#[derive(Debug, Default)]
pub struct Rate {
    tokens: f64,
    cost: f64,
}

impl Rate {
    /// A step brought `tokens` and cost so many evaluations of one token.
    pub fn saw(&mut self, tokens: usize, cost: f64) {
        self.tokens = FADE * self.tokens + tokens as f64;
        self.cost = FADE * self.cost + cost;
    }

    fn value(&self) -> f64 {
        if self.cost > 0.0 { self.tokens / self.cost } else { 0.0 }
    }
}

/// The prices of one step.
#[derive(Debug, Default)]
pub struct Plan {
    /// Cost of verifying 0, 1, ... drafted tokens, in tokens: S · (v(B + m) - v(B)).
    verify: Vec<f64>,
    /// Cost of drafting one, in tokens: S · c.
    draft: f64,
    /// B, and S · v(B).
    base: f64,
    alone: f64,
    longest: usize,
    /// Most tokens of drafts in the long run.
    preferred: Option<usize>,
}

/// A draft from the text as far as it has been made.
#[derive(Debug, Clone, Copy)]
pub struct SoFar {
    drafted: usize,
    /// ΣA.
    sum: f64,
    /// The highest rate at which its beginnings make tokens, in units of S; at least 1.
    rate: f64,
}

impl Default for SoFar {
    fn default() -> Self {
        SoFar { drafted: 0, sum: 0.0, rate: 1.0 }
    }
}

impl Plan {
    /// One slot generates, and a model drafts for it up to `n_max` tokens accepted with this probability: how many of them bring the
    /// most in the long run. `None`: no model does.
    pub fn settle(&mut self, costs: &Costs, drafts: Option<(f64, usize)>) {
        let before = self.preferred;
        self.preferred = drafts.map(|(acceptance, n_max)| {
            let (mut best, mut most, mut tokens, mut sure) = (0, 0.0, 0.0, 1.0);
            for m in 0..=n_max.min(LOOK_AHEAD) {
                tokens += sure;
                sure *= acceptance;
                let moves = before.is_some_and(|before| before != m);
                let moving = if moves { costs.change() / PATIENCE } else { 0.0 };
                let rate = tokens / (costs.v(1 + m) + costs.c() * m as f64 + moving);
                if rate > most {
                    (best, most) = (m, rate);
                }
            }
            best
        });
    }

    /// Prices for a step in which `base` slots generate; before any does, as for one.
    pub fn update(&mut self, costs: &Costs, rate: &Rate, base: usize) {
        let base = base.max(1);
        let plain = base as f64 / costs.v(base);
        // Drafting nothing is always possible.
        let rate = rate.value().max(plain);
        self.draft = rate * costs.c();
        self.verify.clear();
        // Of several, nobody knows what size the others' drafts lead to.
        let next = costs.next(self.preferred.map(|m| base + m));
        let cost = |n: usize| if base == 1 { next(n) } else { costs.v(n) };
        let alone = cost(base);
        (self.base, self.alone) = (base as f64, rate * alone);
        self.verify.extend((0..=MAX_DRAFT).map(|m| rate * (cost(base + m) - alone)));
        self.longest = self.best(std::iter::repeat_n(1.0, MAX_DRAFT), 0).0;
    }

    /// How many tokens to verify if all were right: more never pay.
    pub fn longest(&self) -> usize {
        self.longest
    }

    fn verify(&self, m: usize) -> f64 {
        self.verify.get(m).copied().unwrap_or(f64::INFINITY)
    }

    /// How many tokens of a draft to verify, none or at least `n_min`, and what that gains in tokens. `sure`: for each token the
    /// probability that it and all before it are right.
    pub fn best(&self, sure: impl Iterator<Item = f64>, n_min: usize) -> (usize, f64) {
        self.best_at(1.0, sure, n_min)
    }

    /// The same of a draft from the text.
    pub fn best_of_text(&self, sure: impl Iterator<Item = f64> + Clone, n_min: usize) -> (usize, f64) {
        let all = sure.clone().fold(SoFar::default(), |so_far, sure| self.with(so_far, sure));
        self.best_at(all.rate, sure, n_min)
    }

    /// The same where time is worth `rate` times S. The gain is by S, so that such can be compared.
    fn best_at(&self, rate: f64, sure: impl Iterator<Item = f64>, n_min: usize) -> (usize, f64) {
        let (mut best, mut most, mut sum) = ((0, 0.0), 0.0, 0.0);
        for (m, sure) in (1..).zip(sure) {
            sum += sure;
            let gain = sum - rate * self.verify(m);
            if gain > most && m >= n_min {
                (best, most) = ((m, sum - self.verify(m)), gain);
            }
        }
        best
    }

    fn with(&self, so_far: SoFar, sure: f64) -> SoFar {
        let (drafted, sum) = (so_far.drafted + 1, so_far.sum + sure);
        let rate = (self.base + sum) / (self.alone + self.verify(drafted));
        SoFar { drafted, sum, rate: so_far.rate.max(rate) }
    }

    /// What a draft of so many tokens, each accepted with `acceptance`, gains beyond the cost of drafting it.
    pub fn prospect(&self, acceptance: f64, lengths: RangeInclusive<usize>) -> f64 {
        self.ahead(0, 1.0, 0.0, acceptance, lengths)
    }

    /// The best gain of a draft that has `drafted` tokens (the product of their acceptances is `sure`, the sum of such
    /// products `sum`) and goes on with tokens accepted with `acceptance` to one of these lengths.
    fn ahead(&self, drafted: usize, sure: f64, sum: f64, acceptance: f64, lengths: RangeInclusive<usize>) -> f64 {
        let (n_min, n_max) = lengths.into_inner();
        let (mut best, mut sure, mut sum) = (f64::NEG_INFINITY, sure, sum);
        for m in drafted + 1..=n_max.min(n_min.max(drafted + LOOK_AHEAD)) {
            sure *= acceptance;
            sum += sure;
            if m >= n_min {
                best = best.max(sum - self.verify(m) - self.draft * (m - drafted) as f64);
            }
        }
        best
    }
}

/// Tells a drafter whether one token more is worth its time.
#[derive(Debug, Clone, Copy)]
pub enum StopPolicy<'a> {
    /// As many as were asked for.
    All,
    /// As long as it pays.
    Paying {
        /// The step's prices.
        plan: &'a Plan,
        /// What the drafter's confidence is worth.
        calibration: &'a Calibration,
        /// How this request differs.
        bias: Bias,
        /// Shorter drafts are dropped.
        n_min: usize,
    },
}

impl StopPolicy<'_> {
    /// Whether a draft of so confident tokens should get another, of at most `n_max`.
    pub fn wants_more(&self, confidence: &[f32], n_max: usize) -> bool {
        match self {
            StopPolicy::All => true,
            StopPolicy::Paying { plan, calibration, bias, n_min } => {
                let acceptances = || confidence.iter().map(|confidence| calibration.acceptance(bias, *confidence));
                let sure = || {
                    acceptances().scan(1.0, |sure, acceptance| {
                        *sure *= acceptance;
                        Some(*sure)
                    })
                };
                let (now, lengths) = (plan.best(sure(), *n_min).1, *n_min..=n_max);
                plan.ahead(confidence.len(), sure().last().unwrap_or(1.0), sure().sum(), bias.mean(), lengths) > now
            }
        }
    }

    /// The probability that a token of this confidence is right, if those before it are; where no prices are known, neither is
    /// what the confidence is worth.
    pub fn acceptance(&self, confidence: f32) -> f64 {
        match self {
            StopPolicy::All => f64::from(confidence),
            StopPolicy::Paying { calibration, bias, .. } => calibration.acceptance(bias, confidence),
        }
    }

    /// Whether a draft from the text can still gain by its next token, when all of it with that one is right with probability
    /// `sure`, or by what follows. If so the token is added to it. The first one is: it tells what the draft is worth.
    pub fn may_gain(&self, so_far: &mut SoFar, sure: f64) -> bool {
        let StopPolicy::Paying { plan, .. } = self else { return true };
        let SoFar { drafted, rate, .. } = *so_far;
        let before = plan.verify(drafted);
        let gains = |more: usize| rate * (plan.verify(drafted + more) - before) < sure * more as f64;
        let may_gain = drafted == 0 || (1..=LOOK_AHEAD).any(gains);
        if may_gain {
            *so_far = plan.with(*so_far, sure);
        }
        may_gain
    }

    /// Whether a branch that begins with a token of this `confidence`, behind tokens as confident as `path`, is worth being
    /// verified beside a draft of `drafted` tokens.
    pub fn wants_branch(&self, path: &[f32], confidence: f32, drafted: usize) -> bool {
        match self {
            StopPolicy::All => true,
            StopPolicy::Paying { plan, calibration, bias, .. } => {
                let acceptance = |confidence: &f32| calibration.acceptance(bias, *confidence);
                let sure: f64 = path.iter().chain([&confidence]).map(acceptance).product();
                sure > plan.verify(drafted + 1) - plan.verify(drafted)
            }
        }
    }
}

/// The draft length of a request that does not leave it to the [`Plan`].
#[derive(Debug)]
pub struct Length {
    adaptive: Adaptive,
    n_max: usize,
    current: usize,
}

/// `speculative.cpp`: longer by this after a full acceptance, and never shorter than this.
const HEURISTIC_STEP: usize = 8;
const HEURISTIC_LEAST: usize = 2;

impl Length {
    /// The length for a request with these settings.
    pub fn new(settings: &Settings) -> Length {
        Length { adaptive: settings.adaptive, n_max: settings.n_max, current: settings.first_length() }
    }

    /// Most tokens to draft next.
    pub fn current(&self) -> usize {
        self.current
    }

    /// A draft of `drafted` tokens, at least one, was checked, of which `depth` could be right (fewer where it had branches), and
    /// `accepted` of them were.
    pub fn saw(&mut self, drafted: usize, depth: usize, accepted: usize) {
        if self.adaptive != Adaptive::Heuristic {
            return;
        }
        if accepted < depth {
            self.current = self.current.saturating_sub(1).max(HEURISTIC_LEAST.min(self.n_max));
        } else if drafted == self.current {
            self.current = (self.current + HEURISTIC_STEP).min(self.n_max);
        }
    }
}

#[cfg(test)]
#[path = "policy_tests.rs"]
mod tests;
