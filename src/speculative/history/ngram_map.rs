//! `ngram-map-k` and `ngram-map-k4v`: what followed the last n tokens, remembering n-gram by n-gram what became of it.
//!
//! llama.cpp's `common_ngram_map` (`common/ngram-map.cpp`), but exact and without its scans of the history and of all
//! keys:
//! - `ngram-map-k`: the m tokens behind the n-gram's place: the last one in the prompt, else the first one in the
//!   answer (of those that become known in one step, the last one). Once a draft from there was wrong, later ones are
//!   no longer than what was right of it. Draft for draft what llama.cpp makes of a text, but for the first two defects
//!   below.
//! - `ngram-map-k4v`: up to four different m-grams behind the n-gram are counted. The most frequent one is drafted (of
//!   equals the one seen first) if it is at least twice as frequent as the others together.
//!
//! Both look at an n-gram only once the m tokens behind it, and two more, are known, and never at index 0.
//!
//! Defects of llama.cpp that are not repeated here:
//! - Its hash table has no chains: the second of two n-grams with the same place in it is never found.
//! - The n-grams in the last n + m tokens of the prompt are never found.
//! - A draft that was cut short by others and accepted in full shortens later ones.
//! - `k4v` counts an occurrence again with each look-up, does not count those after the first one it found, and drafts
//!   what is behind that one whichever m-gram is the most frequent.
//!
//! Memory: 28 bytes for each token of the text at most, and 52 for each n-gram that drafted (`k`) or occurred twice
//! (`k4v`).

use super::drafter::Draft;
use super::history_drafter::{HistoryDrafter, Limits, TextDrafter};
use super::ngram_index::{NgramIndex, Place, RollingHash, same_ngram, to_index, to_value};
use super::ngram_simple::confidence;
use super::{DrafterKind, Settings};
use crate::llama::Token;

/// `ngram-map-k`.
pub type NgramMapK = TextDrafter<Map<false>>;
/// `ngram-map-k4v`.
pub type NgramMapK4v = TextDrafter<Map<true>>;

/// Different continuations that are told apart.
const MAX_VALUES: usize = 4;
/// In the index: the number of a record, not a place in the text.
const RECORD: u32 = 1 << 31;

/// The rule; `COUNTS`: whether continuations are counted.
pub struct Map<const COUNTS: bool> {
    n: usize,
    m: usize,
    min_hits: u32,
    /// Each n-gram's place, or its record.
    index: NgramIndex,
    records: Vec<Record>,
    /// Rolls over what is in `index`, and over all of the text.
    indexed: RollingHash,
    tail: RollingHash,
    /// Begin of the next n-gram to be indexed.
    next: usize,
    /// Record and value of the last draft.
    last: Option<(usize, usize)>,
}

/// What is known of an n-gram.
#[derive(Debug, Clone, Copy, Default)]
struct Record {
    hits: u32,
    values: [Value; MAX_VALUES],
}

/// A continuation; unused if its count is 0.
#[derive(Debug, Clone, Copy, Default)]
struct Value {
    /// Where it begins: behind its n-gram.
    start: u32,
    count: u32,
    /// No more of it is drafted.
    limit: u32,
}

impl Record {
    fn of(place: usize, n: usize, m: usize) -> Record {
        let mut record = Record::default();
        if let Some(value) = record.values.first_mut() {
            *value = Value { start: to_value(place + n), count: 1, limit: to_value(m) };
        }
        record
    }

    fn place(&self, n: usize) -> usize {
        self.values.first().map_or(0, |value| to_index(value.start).saturating_sub(n))
    }

    /// Counts the m-gram that begins at `start`; not if it is a fifth one.
    fn count(&mut self, text: &[Token], start: usize, m: usize) {
        let known = |value: &&mut Value| value.count == 0 || same_ngram(text, to_index(value.start), start, m);
        match self.values.iter_mut().find(known) {
            Some(value) if value.count == 0 => *value = Value { start: to_value(start), count: 1, limit: to_value(m) },
            Some(value) => value.count += 1,
            None => {}
        }
    }

    /// The index of the value to draft, and how likely it is.
    fn best(&self, n: usize) -> Option<(usize, f32)> {
        let mut best = (0, Value::default());
        for (index, value) in self.values.iter().enumerate() {
            if value.count > best.1.count {
                best = (index, *value);
            }
        }
        let count = best.1.count;
        let others = self.values.iter().map(|value| value.count).sum::<u32>() - count;
        let share = f64::from(count) / f64::from(count + others).max(1.0);
        // A ratio of small integers fits.
        #[allow(clippy::cast_possible_truncation)]
        let share = share as f32;
        (others == 0 || count >= 2 * others).then_some((best.0, share * confidence(n)))
    }
}

impl<const COUNTS: bool> Map<COUNTS> {
    /// Where the n-gram of an index's value is.
    fn place(records: &[Record], value: u32, n: usize) -> usize {
        match record_of(value) {
            Some(record) => records.get(record).map_or(0, |record| record.place(n)),
            None => to_index(value),
        }
    }

    /// The record of the n-gram at the end of `text`, if it has occurred before.
    fn look_up(&mut self, text: &[Token]) -> Option<usize> {
        let n = self.n;
        let start = text.len().checked_sub(n)?;
        let (place, found) = self.seek(text, self.tail.get(), start);
        let found = found?;
        if let Some(record) = record_of(found) {
            return Some(record);
        }
        let record = self.records.len();
        self.index.set(&place, RECORD | to_value(record));
        self.records.push(Record::of(to_index(found), n, self.m));
        Some(record)
    }

    /// The index's place for the n-gram with this hash at `start`, and the value there.
    fn seek(&mut self, text: &[Token], hash: u32, start: usize) -> (Place, Option<u32>) {
        let (n, records) = (self.n, &self.records);
        self.index.seek(hash, |value| same_ngram(text, Self::place(records, value, n), start, n))
    }
}

fn record_of(value: u32) -> Option<usize> {
    (value & RECORD != 0).then(|| to_index(value & !RECORD))
}

impl<const COUNTS: bool> HistoryDrafter for Map<COUNTS> {
    const SOURCE: DrafterKind = if COUNTS { DrafterKind::NgramMapK4v } else { DrafterKind::NgramMapK };
    type Shared = ();

    fn new(settings: &Settings) -> Self {
        let params = if COUNTS { settings.ngram.map_k4v } else { settings.ngram.map_k };
        let n = params.size_n.max(1);
        Map {
            n,
            m: params.size_m,
            min_hits: params.min_hits,
            index: NgramIndex::default(),
            records: Vec::new(),
            indexed: RollingHash::new(n),
            tail: RollingHash::new(n),
            next: 1,
            last: None,
        }
    }

    fn forget(&mut self) {
        self.index.clear();
        self.records.clear();
        (self.indexed, self.tail, self.next) = (RollingHash::new(self.n), RollingHash::new(self.n), 1);
        self.last = None;
    }

    fn learn(&mut self, (): &(), text: &[Token], prompt: usize) {
        let (n, m) = (self.n, self.m);
        self.tail.advance(text, text.len());
        if text.len() < 2 * n + m + 1 {
            return;
        }
        let chunk = self.next;
        let in_prompt = |start: usize| start + n + m < prompt;
        while self.next + n + m + 2 <= text.len() {
            let start = self.next;
            self.indexed.advance(text, start + n);
            let (place, old) = self.seek(text, self.indexed.get(), start);
            match (old, old.and_then(record_of)) {
                (None, _) => self.index.set(&place, to_value(start)),
                (Some(_), Some(record)) => {
                    if let Some(record) = self.records.get_mut(record).filter(|_| COUNTS) {
                        record.count(text, start + n, m);
                    }
                }
                (Some(old), None) if COUNTS => {
                    self.index.set(&place, RECORD | to_value(self.records.len()));
                    let mut record = Record::of(to_index(old), n, m);
                    record.count(text, start + n, m);
                    self.records.push(record);
                }
                (Some(old), None) => {
                    let old = to_index(old);
                    if in_prompt(start) || (old >= chunk && !in_prompt(old)) {
                        self.index.set(&place, to_value(start));
                    }
                }
            }
            self.next += 1;
        }
    }

    fn draft(&mut self, (): &(), text: &[Token], limits: Limits<'_>, draft: &mut Draft) {
        self.last = None;
        if text.len() < 2 * self.n + self.m + 1 {
            return;
        }
        let Some(index) = self.look_up(text) else { return };
        let Some(record) = self.records.get_mut(index) else { return };
        record.hits = record.hits.saturating_add(1);
        if COUNTS && record.hits < self.min_hits {
            return;
        }
        let Some((best, confidence)) = record.best(self.n) else { return };
        let Some(value) = record.values.get(best) else { return };
        let length = to_index(value.limit).min(limits.n_max);
        let start = to_index(value.start);
        draft.extend_from(text.get(start..start + length).unwrap_or(&[]), confidence);
        self.last = Some((index, best));
    }

    fn checked(&mut self, drafted: usize, accepted: usize) {
        let Some((record, value)) = self.last.take() else { return };
        let value = self.records.get_mut(record).and_then(|record| record.values.get_mut(value));
        if let Some(value) = value.filter(|_| accepted < drafted) {
            value.limit = to_value(accepted);
        }
    }
}

#[cfg(test)]
#[path = "ngram_map_tests.rs"]
mod tests;
