//! `ngram-mod`: token after token, each the one that last followed the n tokens before it.
//!
//! llama.cpp's `common_ngram_mod` (`common/ngram-mod.cpp`, `speculative.cpp`): a draft has n_min..=n_max tokens or
//! none, and what was generated becomes known in pieces of 32 tokens less n. If a request allows fewer tokens than
//! n_min, the draft is still made that long first, and then cut, as llama.cpp does.
//!
//! What is different, on purpose:
//! - llama.cpp's table of 2^22 tokens has no keys: n-grams with the same place in it take each other's continuation.
//!   Here they are compared, so each n-gram has its own.
//! - llama.cpp's table is shared by all sequences and outlives requests, so one request's text steers another's drafts.
//!   Here it is the request's own; `suffix` is the drafter that learns from earlier answers.
//! - llama.cpp empties the table when it is a quarter full, and after five drafts in a row of which less than a quarter
//!   was accepted, to get rid of what others left there; the sequence's own text it adds again in the next step. As
//!   there is only that here, there is nothing to reset.
//!
//! Memory: 28 bytes for each token of the text at most.

use super::drafter::Draft;
use super::history_drafter::{HistoryDrafter, Limits, TextDrafter};
use super::ngram_index::LatestPlaces;
use super::ngram_simple::confidence;
use super::{DrafterKind, Settings};
use crate::llama::Token;

/// The drafter.
pub type NgramMod = TextDrafter<Chain>;

/// Tokens by which the text must have grown, since the begin of the last n-gram that is known, before more become
/// known.
const PIECE: usize = 32;

/// The rule.
pub struct Chain {
    n_min: usize,
    n_max: usize,
    places: LatestPlaces,
    /// The last n tokens and the draft behind them.
    window: Vec<Token>,
}

impl HistoryDrafter for Chain {
    const SOURCE: DrafterKind = DrafterKind::NgramMod;
    type Shared = ();

    fn new(settings: &Settings) -> Self {
        let params = settings.ngram.modulo;
        let n = params.n_match.max(1);
        Chain { n_min: params.n_min, n_max: params.n_max, places: LatestPlaces::new(n, 0), window: Vec::new() }
    }

    fn forget(&mut self) {
        self.places.clear();
    }

    fn learn(&mut self, (): &(), text: &[Token], prompt: usize) {
        let n = self.places.n();
        // llama.cpp's history does not have the token sampled last.
        let before_last = text.len().saturating_sub(1);
        let mut end = prompt.min(before_last).saturating_sub(n);
        if self.places.next() + PIECE < before_last {
            end = end.max(before_last.saturating_sub(n));
        }
        self.places.learn(text, end);
    }

    fn draft(&mut self, (): &(), text: &[Token], limits: Limits<'_>, draft: &mut Draft) {
        let n = self.places.n();
        let Some(last) = text.len().checked_sub(n).and_then(|start| text.get(start..)) else { return };
        // As many as have to be seen to know whether there are enough.
        let wanted = self.n_max.min(limits.n_max.max(self.n_min));
        self.window.clear();
        self.window.extend_from_slice(last);
        let mut hash = self.places.tail().clone();
        for drafted in 0..wanted {
            let Some(ngram) = self.window.get(drafted..) else { break };
            let Some(start) = self.places.find(text, ngram, &hash) else { break };
            let (Some(next), left) = (text.get(start + n), ngram.first()) else { break };
            hash.push(*next, left.copied());
            self.window.push(*next);
        }
        let drafted = self.window.get(n..).unwrap_or(&[]);
        if drafted.len() >= self.n_min.min(self.n_max) {
            draft.extend_from(drafted.get(..limits.n_max).unwrap_or(drafted), confidence(n));
        }
    }
}

#[cfg(test)]
#[path = "ngram_mod_tests.rs"]
mod tests;
