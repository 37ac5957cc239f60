//! DRY ("don't repeat yourself"): a penalty on tokens that would continue a sequence that already occurs in the history.
//! It grows exponentially with the length of the repetition. Follows llama.cpp's `dry` sampler, after pi6am's in
//! koboldcpp.

use std::sync::Arc;

use super::candidates::Candidates;
use super::penalties::EditedLogits;
use super::penalties::TokenCounts;
use super::penalties::{PenaltyWindow, clamp_to_finite};
use super::settings::SamplingSettings;
use foredraft_base::error::Result;
use foredraft_base::{Token, Vocabulary};

/// ln of the largest `f32`.
const LN_F32_MAX: f32 = 88.722_84;

/// The DRY penalty with its settings. A pure function of the history, like the other penalties.
#[derive(Debug, Clone)]
pub(super) struct Dry {
    window: PenaltyWindow,
    multiplier: f32,
    base: f32,
    allowed_length: i64,
    /// Larger exponents are clamped to this; `None` if the penalty cannot overflow.
    max_exponent: Option<i64>,
    breakers: Arc<Breakers>,
}

impl Dry {
    /// `None` if the settings turn DRY off. Searches the whole vocabulary for the sequence breakers.
    pub(super) fn new(settings: &SamplingSettings, vocab: &dyn Vocabulary) -> Result<Option<Self>> {
        let dry = &settings.dry;
        if dry.multiplier == 0.0 || dry.base < 1.0 || dry.penalty_last_n == 0 {
            return Ok(None);
        }
        let breakers = Breakers::find(&dry.sequence_breakers, vocab)?;
        Ok(Some(Dry {
            window: PenaltyWindow::new(dry.penalty_last_n),
            multiplier: dry.multiplier,
            base: dry.base,
            allowed_length: i64::from(dry.allowed_length),
            max_exponent: (dry.base > 1.000_001).then(|| (LN_F32_MAX / dry.base.ln()) as i64).filter(|max| *max > 0),
            breakers: Arc::new(breakers),
        }))
    }

    /// The largest number of different tokens it can change.
    pub(super) fn max_edits(&self) -> Option<usize> {
        self.window.limit()
    }

    /// Sets, for each token that would continue a repetition, the length of the longest such repetition plus 1.
    fn measure_repetitions(&self, history: &[Token], lengths: &mut TokenCounts, matches: &mut Vec<u32>) {
        let window = self.window.of(history);
        if window.len() as i64 <= self.allowed_length {
            return;
        }
        let limit = self.breakers.distance(window).unwrap_or(window.len());
        if (limit as i64) < self.allowed_length {
            return;
        }
        suffix_matches(window, matches);
        // Read backwards, the window's k-th token begins a match, and the (k - 1)-th is the token that followed it.
        for (length, next) in matches.iter().skip(1).zip(window.iter().rev()) {
            let length = (*length).min(limit as u32);
            if i64::from(length) >= self.allowed_length {
                lengths.update(*next, |longest| longest.max(length + 1));
            }
        }
    }

    fn penalized(&self, logit: f32, token: Token, length_plus_1: u32) -> f32 {
        if self.breakers.contains_one(token) {
            return logit;
        }
        let exponent = i64::from(length_plus_1) - 1 - self.allowed_length;
        let exponent = self.max_exponent.map_or(exponent, |max| exponent.min(max));
        let penalty = f64::from(self.multiplier) * power(f64::from(self.base), exponent);
        clamp_to_finite(logit, logit - penalty as f32)
    }

    /// Penalizes tokens in the row. `lengths` is empty before and after; `matches` is a scratch buffer.
    pub(super) fn edit(
        &self,
        row: &mut EditedLogits<'_>,
        history: &[Token],
        lengths: &mut TokenCounts,
        matches: &mut Vec<u32>,
    ) {
        self.measure_repetitions(history, lengths, matches);
        for &token in lengths.tokens() {
            row.edit(token, |logit| self.penalized(logit, token, lengths.get(token)));
        }
        lengths.clear();
    }

    /// Penalizes tokens in a list. `lengths` is empty before and after; `matches` is a scratch buffer.
    pub(super) fn apply(
        &self,
        list: &mut Candidates,
        history: &[Token],
        lengths: &mut TokenCounts,
        matches: &mut Vec<u32>,
    ) {
        self.measure_repetitions(history, lengths, matches);
        list.edit_logits(false, |items| {
            for item in items {
                match lengths.get(item.id) {
                    0 => {}
                    length => item.logit = self.penalized(item.logit, item.id, length),
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

/// For each k, the length of the longest common suffix of the window and the window without its last k tokens. The value
/// for k = 0 is 0. Runs the Z-algorithm on the reversed window, in linear time.
fn suffix_matches(window: &[Token], matches: &mut Vec<u32>) {
    let n = window.len();
    // The i-th token from the end; `None` beyond the beginning, which ends every match.
    let back = |i: usize| (i < n).then(|| window.get(n - 1 - i)).flatten();
    matches.clear();
    matches.push(0);
    // The match that reaches furthest so far covers left..right.
    let (mut left, mut right) = (0, 0);
    for k in 1..n {
        // Inside it, the length found at the same distance from its start also holds here, up to its end.
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

/// Longer breakers are truncated, as in llama.cpp.
const MAX_BYTES: usize = 40;
/// Longer tails are truncated, as in llama.cpp; this keeps the search for breakers linear.
const MAX_TAIL: usize = 20;

/// The sequence breakers as token sequences: every way in which a breaker can begin in a token, as in llama.cpp.
///
/// A token that contains a whole breaker is a sequence by itself. A token that ends with a prefix of a breaker must be
/// followed by its tail: the tokens of the rest of the breaker.
#[derive(Debug, Clone, Default)]
pub(super) struct Breakers {
    /// Head and tail, sorted by head.
    sequences: Vec<(Token, Vec<Token>)>,
    /// For each token, whether it is a head.
    is_head: Vec<bool>,
}

impl Breakers {
    /// Searches all pieces of the vocabulary for `strings`. Ignores empty strings.
    pub(super) fn find(strings: &[String], vocab: &dyn Vocabulary) -> Result<Self> {
        let mut sequences = Vec::new();
        for text in strings.iter().map(|text| text.as_bytes()) {
            let text = text.get(..MAX_BYTES).unwrap_or(text);
            let Some(&first) = text.first() else { continue };
            // The tail after n bytes of the breaker, tokenized on first use.
            let mut tails: Vec<Option<Vec<Token>>> = vec![None; text.len()];
            for (id, word) in (0..vocab.n_tokens()).map(|index| (index as Token, vocab.piece(index as Token))) {
                if word.windows(text.len()).any(|part| part == text) {
                    sequences.push((id, Vec::new()));
                    continue;
                }
                let starts = word.iter().enumerate().filter(|(_, byte)| **byte == first);
                for end in starts.filter_map(|(at, _)| word.get(at..)).filter(|end| text.starts_with(end)) {
                    let Some(slot) = tails.get_mut(end.len()) else { continue };
                    let tail = match slot {
                        Some(tail) => tail,
                        None => {
                            let mut tail = vocab.tokenize(text.get(end.len()..).unwrap_or(&[]), false)?;
                            tail.truncate(MAX_TAIL);
                            slot.insert(tail)
                        }
                    };
                    sequences.push((id, tail.clone()));
                }
            }
        }
        Ok(Self::from_sequences(sequences, vocab.n_tokens()))
    }

    /// Builds the breakers from (head, tail) pairs in any order.
    pub(super) fn from_sequences(mut sequences: Vec<(Token, Vec<Token>)>, n_vocab: usize) -> Self {
        sequences.sort();
        sequences.dedup();
        let mut is_head = vec![false; n_vocab];
        for (head, _) in &sequences {
            if let Some(flag) = usize::try_from(*head).ok().and_then(|index| is_head.get_mut(index)) {
                *flag = true;
            }
        }
        Breakers { sequences, is_head }
    }

    /// The tails that may follow `head`; none when it begins no breaker.
    fn tails(&self, head: Token) -> impl Iterator<Item = &[Token]> {
        let is_head = usize::try_from(head).ok().and_then(|index| self.is_head.get(index)).copied().unwrap_or(false);
        let start = if is_head { self.sequences.partition_point(|(other, _)| *other < head) } else { usize::MAX };
        let from_here = self.sequences.get(start..).unwrap_or(&[]);
        from_here.iter().take_while(move |(other, _)| *other == head).map(|(_, tail)| tail.as_slice())
    }

    /// Whether `token` contains a whole breaker.
    pub(super) fn contains_one(&self, token: Token) -> bool {
        self.tails(token).any(<[Token]>::is_empty)
    }

    /// The number of tokens after the last breaker in `window`; `None` if it contains no breaker. If several tails of
    /// the same head match, the longest counts.
    pub(super) fn distance(&self, window: &[Token]) -> Option<usize> {
        window.iter().enumerate().rev().find_map(|(at, head)| {
            let following = window.get(at + 1..).unwrap_or(&[]);
            let tails = self.tails(*head).filter(|tail| following.starts_with(tail));
            tails.map(<[Token]>::len).max().map(|longest| following.len() - longest)
        })
    }
}

#[cfg(test)]
mod tests;
