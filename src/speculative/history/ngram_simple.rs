//! `ngram-simple`: what followed the last n tokens when they last occurred.
//!
//! llama.cpp's `common_ngram_simple_draft` (`common/ngram-map.cpp`), draft for draft: the latest occurrence that begins
//! at least two tokens before the one at the end, never at index 0; up to m tokens behind it, but nothing if fewer than
//! n are there. It searches the whole history in each step; here a table knows the latest occurrence of each n-gram.
//!
//! Memory: 28 bytes for each token of the text at most.

use super::drafter::Draft;
use super::history_drafter::{HistoryDrafter, Limits, TextDrafter};
use super::ngram_index::LatestPlaces;
use super::{DrafterKind, Settings};
use crate::llama::Token;

/// The drafter.
pub type NgramSimple = TextDrafter<Simple>;

/// The rule.
pub struct Simple {
    n: usize,
    m: usize,
    places: LatestPlaces,
}

impl HistoryDrafter for Simple {
    const SOURCE: DrafterKind = DrafterKind::NgramSimple;
    type Shared = ();

    fn new(settings: &Settings) -> Self {
        let params = settings.ngram.simple;
        let n = params.size_n.max(1);
        Simple { n, m: params.size_m, places: LatestPlaces::new(n, 1) }
    }

    fn forget(&mut self) {
        self.places.clear();
    }

    fn learn(&mut self, (): &(), text: &[Token], _prompt: usize) {
        self.places.learn(text, text.len().saturating_sub(self.n + 1));
    }

    fn draft(&mut self, (): &(), text: &[Token], limits: Limits<'_>, draft: &mut Draft) {
        let n = self.n;
        // llama.cpp's history does not have the token sampled last.
        let before_last = text.len().saturating_sub(1);
        if before_last <= n + self.m + 1 {
            return;
        }
        let last = text.get(text.len() - n..).unwrap_or(&[]);
        let Some(start) = self.places.find(text, last, self.places.tail()) else { return };
        let available = self.m.min(before_last - (start + n));
        if available >= n {
            let behind = text.get(start + n..start + n + available.min(limits.n_max)).unwrap_or(&[]);
            draft.extend_from(behind, confidence(n));
        }
    }
}

/// Of a token that follows `n` tokens which occurred before: nothing else is known about it.
pub(super) fn confidence(n: usize) -> f32 {
    let n = f32::from(u16::try_from(n).unwrap_or(u16::MAX));
    n / (n + 2.0)
}

#[cfg(test)]
#[path = "ngram_simple_tests.rs"]
mod tests;
