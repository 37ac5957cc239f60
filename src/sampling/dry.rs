//! DRY ("don't repeat yourself"): a penalty on the token that would continue a sequence already in the text, growing
//! exponentially with the length of the repetition. As llama.cpp's `dry` sampler, after pi6am's in koboldcpp.

use std::sync::Arc;

use super::breakers::Breakers;
use super::candidates::Candidates;
use super::outside::Words;
use super::penalties::{Window, at_least_finite};
use super::row::Row;
use super::settings::Settings;
use super::tally::Tally;
use crate::error::Result;
use crate::llama::Token;

/// ln of the largest `f32`.
const LN_F32_MAX: f32 = 88.722_84;

/// The penalty with its settings. A pure function of the history, like the other penalties.
#[derive(Debug, Clone)]
pub(super) struct Dry {
    window: Window,
    multiplier: f32,
    base: f32,
    allowed_length: i64,
    /// The exponent from which the penalty grows no more; `None`: it cannot overflow.
    max_exponent: Option<i64>,
    breakers: Arc<Breakers>,
}

impl Dry {
    /// `None` when the settings turn it off. Looks through the whole vocabulary for the sequence breakers.
    pub(super) fn new(settings: &Settings, words: &impl Words) -> Result<Option<Self>> {
        let dry = &settings.dry;
        if dry.multiplier == 0.0 || dry.base < 1.0 || dry.penalty_last_n == 0 {
            return Ok(None);
        }
        let breakers = Breakers::find(&dry.sequence_breakers, words)?;
        Ok(Some(Dry {
            window: Window::new(dry.penalty_last_n),
            multiplier: dry.multiplier,
            base: dry.base,
            allowed_length: i64::from(dry.allowed_length),
            max_exponent: (dry.base > 1.000_001).then(|| (LN_F32_MAX / dry.base.ln()) as i64).filter(|max| *max > 0),
            breakers: Arc::new(breakers),
        }))
    }

    /// How many different tokens it can change.
    pub(super) fn reach(&self) -> Option<usize> {
        self.window.limit()
    }

    /// For each token that would continue a repetition the length of the longest such repetition, plus 1.
    fn measure(&self, history: &[Token], lengths: &mut Tally, matches: &mut Vec<u32>) {
        let window = self.window.of(history);
        if window.len() as i64 <= self.allowed_length {
            return;
        }
        let limit = self.breakers.distance(window).unwrap_or(window.len());
        if (limit as i64) < self.allowed_length {
            return;
        }
        suffix_matches(window, matches);
        // Read backwards, the window's k-th token begins a match, and the (k - 1)-th is what followed it back then.
        for (length, next) in matches.iter().skip(1).zip(window.iter().rev()) {
            let length = (*length).min(limit as u32);
            if i64::from(length) >= self.allowed_length {
                lengths.update(*next, |longest| longest.max(length + 1));
            }
        }
    }

    fn penalised(&self, logit: f32, token: Token, length_plus_1: u32) -> f32 {
        if self.breakers.contains_one(token) {
            return logit;
        }
        let exponent = i64::from(length_plus_1) - 1 - self.allowed_length;
        let exponent = self.max_exponent.map_or(exponent, |max| exponent.min(max));
        let penalty = f64::from(self.multiplier) * power(f64::from(self.base), exponent);
        at_least_finite(logit, logit - penalty as f32)
    }

    /// Penalises in the row. `lengths` is empty before and after; `matches` is memory.
    pub(super) fn edit(&self, row: &mut Row<'_>, history: &[Token], lengths: &mut Tally, matches: &mut Vec<u32>) {
        self.measure(history, lengths, matches);
        for &token in lengths.tokens() {
            row.edit(token, |logit| self.penalised(logit, token, lengths.get(token)));
        }
        lengths.clear();
    }

    /// Penalises in a list.
    pub(super) fn apply(&self, list: &mut Candidates, history: &[Token], lengths: &mut Tally, matches: &mut Vec<u32>) {
        self.measure(history, lengths, matches);
        list.change(false, |items| {
            for item in items {
                match lengths.get(item.id) {
                    0 => {}
                    length => item.logit = self.penalised(item.logit, item.id, length),
                }
            }
        });
        lengths.clear();
    }
}

/// base^exponent by repeated squaring; `exponent` is not negative.
fn power(mut base: f64, mut exponent: i64) -> f64 {
    let mut result = 1.0;
    while exponent > 0 {
        if exponent % 2 == 1 {
            result *= base;
        }
        base *= base;
        exponent /= 2;
    }
    result
}

/// For each k the length of the longest common suffix of the window and the window without its last k tokens; the
/// Z-algorithm on the window read backwards, linear in its length. The value for k = 0 is 0.
fn suffix_matches(window: &[Token], matches: &mut Vec<u32>) {
    let n = window.len();
    // The i-th token from the end; None before the beginning, which ends every match.
    let back = |i: usize| (i < n).then(|| window.get(n - 1 - i)).flatten();
    matches.clear();
    matches.push(0);
    // The match that reaches furthest so far: it covers left..right.
    let (mut left, mut right) = (0, 0);
    for k in 1..n {
        // Inside it, what was found at the same distance from its start holds here too, up to its end.
        let known =
            if k < right { matches.get(k - left).map_or(0, |length| *length as usize).min(right - k) } else { 0 };
        let mut length = known;
        if k + known >= right {
            while back(k + length).is_some() && back(k + length) == back(length) {
                length += 1;
            }
            (left, right) = (k, k + length);
        }
        matches.push(length as u32);
    }
}

#[cfg(test)]
#[path = "dry_tests.rs"]
mod tests;
