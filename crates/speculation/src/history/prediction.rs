//! `prediction`: drafts from the predicted output that the request provides.
//!
//! A cursor tracks the position of the output in the prediction. After a mismatch, each generated token moves the cursor to
//! the position that matches the last generated tokens, in this order:
//! 1. the last three tokens, at the nearest position from the last confirmed one on (tokens were inserted or omitted),
//!    otherwise anywhere;
//! 2. the last two tokens, otherwise the last one, at the nearest position a little ahead (a few tokens were omitted or
//!    replaced);
//! 3. no match: the cursor advances by one, as if the token had replaced a predicted one.
//!
//! The draft's confidence depends on the number of matching tokens and of recent mismatches.
//!
//! The 1-, 2- and 3-grams of the prediction are sorted once, before the request is queued: 12 bytes per token. A matching
//! token costs one comparison, a mismatch O(log n).

use std::sync::Arc;

use super::history_drafter::{HistoryDrafter, Limits, SlotDrafters};
use super::predicted::{MAX_PREDICTED_N, Predicted};
use crate::{Draft, DrafterKind, Settings};
use foredraft_base::Token;

/// The `prediction` drafter.
pub type Prediction = SlotDrafters<PredictionCursor>;

/// The longest n-gram that is searched; also the number of matching tokens that confirms a position.
const MAX_N: usize = MAX_PREDICTED_N;
/// The search distance ahead for a match of 1, 2 and 3 tokens.
const MAX_DISTANCE: [usize; MAX_N] = [8, 48, usize::MAX];

/// The drafter of one slot.
pub struct PredictionCursor {
    predicted: Option<Arc<Predicted>>,
    /// Number of generated tokens that have been compared.
    seen: usize,
    /// The last generated tokens.
    last: Vec<Token>,
    /// Index of the next predicted token.
    cursor: usize,
    /// Where a search begins: after the last confirmed token.
    confirmed: usize,
    /// Matching tokens since the cursor was last moved.
    n_matching: usize,
    /// Number of mismatches, decaying.
    mismatches: f32,
}

impl HistoryDrafter for PredictionCursor {
    const KIND: DrafterKind = DrafterKind::Prediction;
    type Shared = ();

    fn new(settings: &Settings) -> Self {
        PredictionCursor {
            predicted: settings.prediction.clone().filter(|predicted| !predicted.text.is_empty()),
            seen: 0,
            last: Vec::with_capacity(MAX_N + 1),
            cursor: 0,
            confirmed: 0,
            n_matching: 0,
            mismatches: 0.0,
        }
    }

    fn reset(&mut self) {
        self.last.clear();
        (self.seen, self.cursor, self.confirmed, self.n_matching, self.mismatches) = (0, 0, 0, 0, 0.0);
    }

    fn extend(&mut self, (): &(), text: &[Token], prompt: usize) {
        let Some(predicted) = self.predicted.clone() else { return };
        for token in text.get(prompt + self.seen..).unwrap_or(&[]) {
            self.advance(&predicted, *token);
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

impl PredictionCursor {
    /// Processes the generated `token`.
    fn advance(&mut self, predicted: &Predicted, token: Token) {
        if self.last.len() == MAX_N {
            self.last.remove(0);
        }
        self.last.push(token);
        if predicted.text.get(self.cursor) == Some(&token) {
            self.cursor += 1;
            self.n_matching += 1;
            self.mismatches *= MISMATCH_DECAY;
            if self.n_matching >= MAX_N {
                self.confirmed = self.cursor;
            }
            return;
        }
        if self.n_matching >= MAX_N {
            self.mismatches += 1.0;
        }
        (self.cursor, self.n_matching) = match self.find(predicted) {
            Some((cursor, matched)) => (cursor, matched - 1),
            None => ((self.cursor + 1).min(predicted.text.len()), 0),
        };
    }

    /// The position after the best match of the last tokens, and the length of the match.
    fn find(&self, predicted: &Predicted) -> Option<(usize, usize)> {
        for n in (1..=self.last.len()).rev() {
            let Some(last) = self.last.len().checked_sub(n).and_then(|from| self.last.get(from..)) else { continue };
            let found = predicted.nearest(last, self.confirmed.saturating_sub(n - 1), *MAX_DISTANCE.get(n - 1)?);
            if let Some(place) = found {
                return Some((place + n, n));
            }
        }
        None
    }

    /// The probability that the token `ahead` positions after the cursor is accepted, given that those before are. Rises with
    /// each matching token, more slowly after recent mismatches.
    #[allow(clippy::cast_precision_loss)]
    fn confidence(&self, ahead: usize) -> f32 {
        let steps = (self.n_matching + ahead) as f32;
        (steps + 1.0) / (steps + 1.5 + 0.5 * self.mismatches)
    }
}

/// Decay of a mismatch per matching token.
const MISMATCH_DECAY: f32 = 0.98;

#[cfg(test)]
mod tests;
