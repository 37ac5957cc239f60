//! llama.cpp's drafters that look up the last n tokens: `ngram-simple`, `ngram-map-k`, `ngram-map-k4v` and `ngram-mod`.
//!
//! # `ngram-simple`
//! Drafts the tokens that followed the last n tokens at their latest occurrence. Equal to llama.cpp's
//! `common_ngram_simple_draft` (`common/ngram-map.cpp`), draft for draft: the occurrence begins at least two tokens before
//! the last one and not at index 0. It drafts up to m tokens, and none if fewer than n follow. llama.cpp searches the
//! whole history in each step; here a table has the latest position of each n-gram.
//!
//! # `ngram-map-k` and `ngram-map-k4v`
//! Remember for each n-gram how well its drafts were accepted. llama.cpp's `common_ngram_map` (`common/ngram-map.cpp`),
//! but exact, and without its scans of the history and of all keys:
//! - `ngram-map-k` drafts the m tokens after the n-gram's position: the last one in the prompt, otherwise the first one in
//!   the output (among those that become known in one step, the last one). After a rejection, later drafts from there are
//!   no longer than the accepted part. Equal to llama.cpp draft for draft, except for the first two defects below.
//! - `ngram-map-k4v` counts up to four different m-grams after the n-gram. It drafts the most frequent one (the first seen
//!   among equals) if it is at least twice as frequent as the others together.
//!
//! Both index an n-gram only when the m tokens after it, and two more, are known, and never at index 0. Defects of
//! llama.cpp that are not repeated here:
//! - Its hash table has no chains: of two n-grams in the same bucket, the second is never found.
//! - The n-grams in the last n + m tokens of the prompt are never found.
//! - A draft that was shortened by other limits and fully accepted still shortens later ones.
//! - `k4v` counts an occurrence again at each lookup, does not count those after the first one it found, and drafts the
//!   tokens after that one even if another m-gram is more frequent.
//!
//! # `ngram-mod`
//! Drafts token by token, each the one that last followed the n tokens before it. llama.cpp's `common_ngram_mod`
//! (`common/ngram-mod.cpp`, `speculative.cpp`): a draft has n_min..=n_max tokens or none, and generated tokens are indexed
//! in chunks of 32 tokens less n. If a request allows fewer tokens than n_min, the draft is first made that long and then
//! truncated, as in llama.cpp. Deliberate differences:
//! - llama.cpp's table of 2^22 tokens has no keys, so n-grams in the same bucket overwrite each other's continuation. Here
//!   keys are compared.
//! - llama.cpp's table is shared by all sequences and outlives requests, so one request's tokens influence another's
//!   drafts. Here each request has its own; `suffix` is the drafter that learns from earlier outputs.
//! - llama.cpp clears the table when it is a quarter full, and after five drafts in a row with an acceptance below a
//!   quarter, to remove other sequences' tokens. Without sharing there is nothing to clear.
//!
//! Memory: at most 28 bytes per token of the history; for the maps also 52 bytes per n-gram that drafted (`k`) or occurred
//! twice (`k4v`).

use super::history_drafter::{HistoryDrafter, Limits, SlotDrafters};
use super::ngram_index::{IndexSlot, LatestPositions, NgramIndex, RollingHash, same_ngram, to_index, to_value};
use crate::{Draft, DrafterKind, Settings};
use foredraft_base::Token;

/// The `ngram-simple` drafter.
pub type NgramSimple = SlotDrafters<SimpleLookup>;

/// The drafter of one slot: `ngram-simple`.
pub struct SimpleLookup {
    n: usize,
    m: usize,
    places: LatestPositions,
}

impl HistoryDrafter for SimpleLookup {
    const KIND: DrafterKind = DrafterKind::NgramSimple;
    type Shared = ();

    fn new(settings: &Settings) -> Self {
        let params = settings.ngram.simple;
        let n = params.size_n.max(1);
        SimpleLookup { n, m: params.size_m, places: LatestPositions::new(n, 1) }
    }

    fn reset(&mut self) {
        self.places.clear();
    }

    fn extend(&mut self, (): &(), text: &[Token], _prompt: usize) {
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
            let following = text.get(start + n..start + n + available.min(limits.n_max)).unwrap_or(&[]);
            draft.extend_from(following, confidence(n));
        }
    }
}

/// The confidence in a token that followed `n` matching tokens before, without further evidence.
fn confidence(n: usize) -> f32 {
    let n = f32::from(u16::try_from(n).unwrap_or(u16::MAX));
    n / (n + 2.0)
}

/// `ngram-map-k`.
pub type NgramMapK = SlotDrafters<MapLookup<false>>;
/// `ngram-map-k4v`.
pub type NgramMapK4v = SlotDrafters<MapLookup<true>>;

/// The number of different continuations that are counted.
const MAX_VALUES: usize = 4;
/// Marks an index value as the index of a record instead of a position in the history.
const RECORD: u32 = 1 << 31;

/// The drafter of one slot: `ngram-map-k`, or with `COUNTS` `ngram-map-k4v`, which counts continuations.
pub struct MapLookup<const COUNTS: bool> {
    n: usize,
    m: usize,
    min_hits: u32,
    /// The position or the record of each n-gram.
    index: NgramIndex,
    records: Vec<NgramRecord>,
    /// Rolling hashes at the end of the indexed part, and at the end of the history.
    indexed: RollingHash,
    tail: RollingHash,
    /// Start of the next n-gram to index.
    next: usize,
    /// Record and continuation of the last draft.
    last: Option<(usize, usize)>,
}

/// The state of an n-gram.
#[derive(Debug, Clone, Copy, Default)]
struct NgramRecord {
    hits: u32,
    values: [MapContinuation; MAX_VALUES],
}

/// A continuation of an n-gram; unused if its count is 0.
#[derive(Debug, Clone, Copy, Default)]
struct MapContinuation {
    /// Start position, after the n-gram.
    start: u32,
    count: u32,
    /// The largest number of its tokens to draft.
    limit: u32,
}

impl NgramRecord {
    fn of(place: usize, n: usize, m: usize) -> NgramRecord {
        let mut record = NgramRecord::default();
        if let Some(value) = record.values.first_mut() {
            *value = MapContinuation { start: to_value(place + n), count: 1, limit: to_value(m) };
        }
        record
    }

    fn place(&self, n: usize) -> usize {
        self.values.first().map_or(0, |value| to_index(value.start).saturating_sub(n))
    }

    /// Counts the m-gram that begins at `start`. Ignores a fifth different one.
    fn count(&mut self, text: &[Token], start: usize, m: usize) {
        let known =
            |value: &&mut MapContinuation| value.count == 0 || same_ngram(text, to_index(value.start), start, m);
        match self.values.iter_mut().find(known) {
            Some(value) if value.count == 0 => {
                *value = MapContinuation { start: to_value(start), count: 1, limit: to_value(m) }
            }
            Some(value) => value.count += 1,
            None => {}
        }
    }

    /// The index of the continuation to draft, and its confidence.
    fn best(&self, n: usize) -> Option<(usize, f32)> {
        let mut best = (0, MapContinuation::default());
        for (index, value) in self.values.iter().enumerate() {
            if value.count > best.1.count {
                best = (index, *value);
            }
        }
        let count = best.1.count;
        let others = self.values.iter().map(|value| value.count).sum::<u32>() - count;
        let share = f64::from(count) / f64::from(count + others).max(1.0);
        // The share of two integers fits an `f32`.
        #[allow(clippy::cast_possible_truncation)]
        let share = share as f32;
        (others == 0 || count >= 2 * others).then_some((best.0, share * confidence(n)))
    }
}

impl<const COUNTS: bool> MapLookup<COUNTS> {
    /// The position of the n-gram of an index value.
    fn place(records: &[NgramRecord], value: u32, n: usize) -> usize {
        match record_of(value) {
            Some(record) => records.get(record).map_or(0, |record| record.place(n)),
            None => to_index(value),
        }
    }

    /// The record of the n-gram at the end of `text`, if it occurred before.
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
        self.records.push(NgramRecord::of(to_index(found), n, self.m));
        Some(record)
    }

    /// The index slot of the n-gram at `start` with this hash, and its value.
    fn seek(&mut self, text: &[Token], hash: u32, start: usize) -> (IndexSlot, Option<u32>) {
        let (n, records) = (self.n, &self.records);
        self.index.seek(hash, |value| same_ngram(text, Self::place(records, value, n), start, n))
    }
}

fn record_of(value: u32) -> Option<usize> {
    (value & RECORD != 0).then(|| to_index(value & !RECORD))
}

impl<const COUNTS: bool> HistoryDrafter for MapLookup<COUNTS> {
    const KIND: DrafterKind = if COUNTS { DrafterKind::NgramMapK4v } else { DrafterKind::NgramMapK };
    type Shared = ();

    fn new(settings: &Settings) -> Self {
        let params = if COUNTS { settings.ngram.map_k4v } else { settings.ngram.map_k };
        let n = params.size_n.max(1);
        MapLookup {
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

    fn reset(&mut self) {
        self.index.clear();
        self.records.clear();
        (self.indexed, self.tail, self.next) = (RollingHash::new(self.n), RollingHash::new(self.n), 1);
        self.last = None;
    }

    fn extend(&mut self, (): &(), text: &[Token], prompt: usize) {
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
                    let mut record = NgramRecord::of(to_index(old), n, m);
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

    fn verified(&mut self, drafted: usize, accepted: usize) {
        let Some((record, value)) = self.last.take() else { return };
        let value = self.records.get_mut(record).and_then(|record| record.values.get_mut(value));
        if let Some(value) = value.filter(|_| accepted < drafted) {
            value.limit = to_value(accepted);
        }
    }
}

/// The `ngram-mod` drafter.
pub type NgramMod = SlotDrafters<ModLookup>;

/// The number of tokens after the start of the last indexed n-gram before more n-grams are indexed.
const PIECE: usize = 32;

/// The drafter of one slot: `ngram-mod`.
pub struct ModLookup {
    n_min: usize,
    n_max: usize,
    places: LatestPositions,
    /// The last n tokens followed by the draft.
    window: Vec<Token>,
}

impl HistoryDrafter for ModLookup {
    const KIND: DrafterKind = DrafterKind::NgramMod;
    type Shared = ();

    fn new(settings: &Settings) -> Self {
        let params = settings.ngram.modulo;
        let n = params.n_match.max(1);
        ModLookup { n_min: params.n_min, n_max: params.n_max, places: LatestPositions::new(n, 0), window: Vec::new() }
    }

    fn reset(&mut self) {
        self.places.clear();
    }

    fn extend(&mut self, (): &(), text: &[Token], prompt: usize) {
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
        // At least n_min tokens are needed to decide whether there is a draft at all.
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
mod tests;
