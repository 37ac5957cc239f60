//! Whether a model should draft, and how long: what that is expected to gain for all slots together.

use super::calibration::{Bias, Calibration};
use super::lengths::DraftOptions;
use super::prices::Prices;
use crate::MAX_DRAFT;

/// The draft to expect of a model for a slot.
#[derive(Debug, Clone, Copy)]
pub struct Prospect {
    /// The probability that a token is right, and the most that it may be.
    pub acceptance: f64,
    /// See `acceptance`.
    pub optimistic: f64,
    /// Shorter drafts are of no use, longer ones not possible.
    pub lengths: (usize, usize),
}

impl Prospect {
    /// The prospect of a request with this bias.
    pub fn of(calibration: &Calibration, bias: &Bias, lengths: (usize, usize)) -> Prospect {
        Prospect { acceptance: calibration.mean(bias), optimistic: calibration.optimistic_mean(bias), lengths }
    }

    /// The tokens to expect of a draft of `n`.
    pub fn expected(&self, n: usize) -> f64 {
        geometric(self.acceptance, n.min(self.lengths.1))
    }
}

/// Whether a model should draft, and how long.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outlook {
    /// The gains of the best lengths without the model and with it, in tokens.
    pub without: f64,
    /// See `without`.
    pub with: f64,
    /// The best length with it.
    pub length: usize,
    /// The other length that costs least to try, of those that would beat `length` if they cost as little as they may.
    pub other_length: Trial,
    /// The length that costs least to try, of those that would beat no model if costs were as low and acceptance as high as they may be.
    pub first_length: Trial,
    /// The longest draft that cannot lose too much.
    pub most: usize,
    /// Whether a longer one may pay, too.
    pub may_pay: bool,
    /// Whether a pass of drafting alone cannot lose too much.
    pub fits_draft: bool,
}

/// A length that may be better than it is expected to be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Trial {
    /// The length.
    pub length: usize,
    /// The gain at best.
    pub optimistic: f64,
    /// The gain to expect.
    pub expected: f64,
}

impl Default for Trial {
    fn default() -> Self {
        Trial { length: 0, optimistic: f64::NEG_INFINITY, expected: f64::NEG_INFINITY }
    }
}

/// Estimates the gain if a model drafts for the slots that have a prospect, all with the same length.
/// `draft`: the cost of a pass of drafting, in tokens.
pub fn outlook(prices: &Prices<'_>, options: &[DraftOptions], prospects: &[Option<Prospect>], draft: f64) -> Outlook {
    let n = prices.slots.len();
    let text = |slot: usize, length: usize| options.get(slot).map_or(0.0, |own| own.worth(prices, slot, length));
    let n_max = prospects.iter().flatten().map(|prospect| prospect.lengths.1).max().unwrap_or(0);
    let longest = options.iter().map(DraftOptions::longest).max().unwrap_or(0);
    let (mut without, mut with, mut best) = (f64::NEG_INFINITY, f64::NEG_INFINITY, 0);
    let (mut most, mut most_optimistic) = (0, f64::NEG_INFINITY);
    // For each length what it gains with the model, and what it may gain if acceptance is higher.
    let mut values = [(f64::NEG_INFINITY, f64::NEG_INFINITY); MAX_DRAFT + 1];
    for (length, value) in values.iter_mut().enumerate().take(longest.max(n_max) + 1) {
        let cost = prices.rate * prices.cost_of_all(length);
        let (mut texts, mut expected, mut optimistic, mut sure) = (0.0, 0.0, 0.0, 0.0_f64);
        for slot in 0..n {
            let share = prices.share(slot, length);
            let text = text(slot, share);
            let modelled = |prospect: Prospect, acceptance: f64| {
                let n = share.min(prospect.lengths.1);
                if n < prospect.lengths.0 {
                    return 0.0;
                }
                let (expected, all) = (geometric(acceptance, n), acceptance.powi(i32::try_from(n).unwrap_or(i32::MAX)));
                prices.worth(slot, n, expected, all)
            };
            let prospect = prospects.get(slot).copied().flatten();
            texts += text;
            sure = sure.max(prospect.map_or(0.0, |prospect| prospect.acceptance));
            expected += prospect.map_or(text, |prospect| text.max(modelled(prospect, prospect.acceptance)));
            optimistic += prospect.map_or(text, |prospect| text.max(modelled(prospect, prospect.optimistic)));
        }
        without = without.max(texts - cost);
        if (1..=n_max).contains(&length) {
            let drafting = draft * prices.costs.passes().between(0, length) as f64;
            let optimistic = optimistic - cost - drafting;
            most_optimistic = optimistic.max(most_optimistic);
            let loss = prices.loss(0..n, |slot| prices.share(slot, length)) + drafting / prices.rate;
            if !prices.may_lose(loss, length, sure) {
                continue;
            }
            most = length;
            *value = (expected - cost - drafting, optimistic);
            if value.0 > with {
                (with, best) = (value.0, length);
            }
        }
    }
    let (mut other_length, mut first_length) = (Trial::default(), Trial::default());
    for (length, (expected, optimistic)) in values.iter().copied().enumerate().skip(1).take(n_max) {
        let uncertainty = prices.rate * prices.uncertainty(length);
        let of_costs = expected + uncertainty;
        let of_all = optimistic + uncertainty;
        for (trial, optimistic, least) in [(&mut other_length, of_costs, with), (&mut first_length, of_all, without)] {
            if length != best && optimistic > least && expected > trial.expected {
                *trial = Trial { length, optimistic, expected };
            }
        }
    }
    // The best length by what is known is the cheapest to try where it may pay.
    let (expected, optimistic) = values.get(best).copied().unwrap_or_default();
    let optimistic = optimistic + prices.rate * prices.uncertainty(best);
    if best > 0 && optimistic > without && expected >= first_length.expected {
        first_length = Trial { length: best, optimistic, expected };
    }
    let (may_pay, fits_draft) = (most_optimistic > without, prices.may_lose(draft / prices.rate, 1, 1.0));
    Outlook { without, with, length: best, other_length, first_length, most, may_pay, fits_draft }
}

/// The tokens to expect of `n`, each right with this probability if those before it were.
pub(super) fn geometric(acceptance: f64, n: usize) -> f64 {
    (0..n).fold((0.0, 1.0), |(sum, sure), _| (sum + sure * acceptance, sure * acceptance)).0
}
