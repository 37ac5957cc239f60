//! `prediction`: drafts from the text that the request expects as its answer.
//!
//! A cursor stands in the expected text where the answer has come to. After a deviation it is set anew with each
//! generated token, by what the last generated tokens match, in this order:
//! 1. the last three, at the nearest place that is not behind the last sure one (text was left out or put in), else
//!    anywhere;
//! 2. the last two, else the last one, at the nearest place a little ahead (a few tokens were left out or replaced);
//! 3. nothing: the cursor stays as far ahead as if each wrong token had replaced one of the expected text's.
//!
//! How long it has been in step, and how often it was not, is the draft's confidence.
//!
//! The expected text's 3-, 2- and 1-grams are sorted once, before the request is queued: 24 bytes a token, and O(log n) a token
//! while out of step. In step, a token costs one comparison.

use std::sync::Arc;

use super::drafter::Draft;
use super::history_drafter::{HistoryDrafter, Limits, TextDrafter};
use super::ngram_index::{RollingHash, to_index, to_value};
use super::{DrafterKind, Settings};
use crate::llama::Token;

/// The drafter.
pub type Prediction = TextDrafter<Expected>;

/// N-grams up to this length find the place again; this many tokens in step make a place sure.
const MAX_N: usize = 3;
/// How far ahead fewer than [`MAX_N`] tokens may find it.
const NEAR: [usize; MAX_N] = [8, 48, usize::MAX];

/// A text that may be said, with where its n-grams are.
#[derive(Debug, PartialEq)]
pub struct Predicted {
    text: Vec<Token>,
    places: [Places; MAX_N],
}

impl From<Vec<Token>> for Predicted {
    fn from(text: Vec<Token>) -> Predicted {
        let places = [1, 2, 3].map(|n| Places::new(&text, n));
        Predicted { text, places }
    }
}

/// The rule.
pub struct Expected {
    predicted: Option<Arc<Predicted>>,
    /// Generated tokens that were compared; `None`: none of the answer was seen.
    seen: usize,
    /// The last generated tokens.
    last: Vec<Token>,
    /// What is expected next.
    cursor: usize,
    /// Where a search begins: behind the last expected token that surely was said.
    sure: usize,
    /// Tokens in step since the cursor was last set.
    in_step: usize,
    /// Deviations, fading.
    deviations: f32,
}

impl HistoryDrafter for Expected {
    const SOURCE: DrafterKind = DrafterKind::Prediction;
    type Shared = ();

    fn new(settings: &Settings) -> Self {
        Expected {
            predicted: settings.prediction.clone().filter(|predicted| !predicted.text.is_empty()),
            seen: 0,
            last: Vec::with_capacity(MAX_N + 1),
            cursor: 0,
            sure: 0,
            in_step: 0,
            deviations: 0.0,
        }
    }

    fn forget(&mut self) {
        self.last.clear();
        (self.seen, self.cursor, self.sure, self.in_step, self.deviations) = (0, 0, 0, 0, 0.0);
    }

    fn learn(&mut self, (): &(), text: &[Token], prompt: usize) {
        let Some(predicted) = self.predicted.clone() else { return };
        for token in text.get(prompt + self.seen..).unwrap_or(&[]) {
            self.step(&predicted, *token);
        }
        self.seen = self.seen.max(text.len().saturating_sub(prompt));
    }

    fn draft(&mut self, (): &(), _text: &[Token], limits: Limits<'_>, draft: &mut Draft) {
        let rest = self.predicted.as_ref().and_then(|predicted| predicted.text.get(self.cursor..)).unwrap_or(&[]);
        for (ahead, token) in rest.iter().take(limits.n_max).enumerate() {
            let confidence = self.confidence(ahead);
            if confidence < limits.p_min {
                break;
            }
            draft.extend_from(&[*token], confidence);
        }
    }

    fn disabled(&self) -> Option<&str> {
        self.predicted.is_none().then_some("the request has no prediction")
    }
}

impl Expected {
    /// `token` was generated.
    fn step(&mut self, predicted: &Predicted, token: Token) {
        if self.last.len() == MAX_N {
            self.last.remove(0);
        }
        self.last.push(token);
        if predicted.text.get(self.cursor) == Some(&token) {
            self.cursor += 1;
            self.in_step += 1;
            self.deviations *= FADE;
            if self.in_step >= MAX_N {
                self.sure = self.cursor;
            }
            return;
        }
        if self.in_step >= MAX_N {
            self.deviations += 1.0;
        }
        (self.cursor, self.in_step) = match self.find(predicted) {
            Some((cursor, matched)) => (cursor, matched - 1),
            None => ((self.cursor + 1).min(predicted.text.len()), 0),
        };
    }

    /// Where the last tokens say the answer is, and how many of them say so.
    fn find(&self, Predicted { text, places }: &Predicted) -> Option<(usize, usize)> {
        for n in (1..=self.last.len()).rev() {
            let Some(last) = self.last.len().checked_sub(n).and_then(|from| self.last.get(from..)) else { continue };
            let (places, near) = (places.get(n - 1)?, *NEAR.get(n - 1)?);
            let found = places.nearest(text, last, self.sure.saturating_sub(n - 1), near);
            if let Some(place) = found {
                return Some((place + n, n));
            }
        }
        None
    }

    /// That the token `ahead` places behind the cursor is right, if those between are. Grows with each token in step,
    /// more slowly the more deviations there were lately.
    #[allow(clippy::cast_precision_loss)]
    fn confidence(&self, ahead: usize) -> f32 {
        let steps = (self.in_step + ahead) as f32;
        (steps + 1.0) / (steps + 1.5 + 0.5 * self.deviations)
    }
}

/// What a deviation still counts after one more token in step.
const FADE: f32 = 0.98;

/// The n-grams of a text, sorted by hash and place.
#[derive(Debug, PartialEq)]
struct Places {
    n: usize,
    sorted: Vec<(u32, u32)>,
}

impl Places {
    fn new(text: &[Token], n: usize) -> Places {
        let mut hash = RollingHash::new(n);
        let mut sorted = Vec::with_capacity(text.len());
        for end in n..=text.len() {
            hash.advance(text, end);
            sorted.push((hash.get(), to_value(end - n)));
        }
        sorted.sort_unstable();
        Places { n, sorted }
    }

    /// The first place of `ngram` from `from` on, at most `near` tokens behind that; if any distance will do, else the
    /// last place before.
    fn nearest(&self, text: &[Token], ngram: &[Token], from: usize, near: usize) -> Option<usize> {
        let mut hash = RollingHash::new(self.n);
        hash.advance(ngram, self.n);
        let hash = hash.get();
        let middle = self.sorted.partition_point(|entry| *entry < (hash, to_value(from)));
        let here = |entry: &&(u32, u32)| entry.0 == hash;
        let is_it = |entry: &(u32, u32)| {
            let place = to_index(entry.1);
            text.get(place..).is_some_and(|there| there.starts_with(ngram)).then_some(place)
        };
        let ahead = self.sorted.get(middle..)?.iter().take_while(here).find_map(is_it);
        match ahead.filter(|place| place - from <= near) {
            Some(place) => Some(place),
            None if near == usize::MAX => self.sorted.get(..middle)?.iter().rev().take_while(here).find_map(is_it),
            None => None,
        }
    }
}

#[cfg(test)]
#[path = "prediction_tests.rs"]
mod tests;
