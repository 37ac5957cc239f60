//! Bulk counting: aggregates the repetitions of long inputs before they reach the cache.
//!
//! Finding a record and a token in its list costs far more than counting. So there is a table of limited size for each
//! n-gram size, which counts pairs of an n-gram and the token after it. For every token only the longest n-gram before it is
//! counted. A full table is flushed into the cache and, without the first tokens, into the table of the next smaller size.
//! So many occurrences of a pair cost one cache update, and shorter n-grams are aggregated too.

use super::cache::{AddBatch, Cache};
use super::key::{LONGEST, NONE, NgramKey, Sizes, seed};
use super::pool::TokenCount;

/// Inputs of at least this many tokens are counted in bulk; for shorter ones the tables are not worth their memory.
const BULK: usize = 1 << 16;
/// The largest number of table entries, 24 bytes each. Smaller tables are flushed more often; larger ones do not fit into the
/// CPU's cache.
const MAX_TABLE_SIZE: usize = 1 << 17;

/// An n-gram, the token after it, and their count since the last flush; 0 in a free entry.
#[derive(Clone, Copy)]
struct BulkCount {
    key: NgramKey,
    next: TokenCount,
}

impl BulkCount {
    const FREE: BulkCount = BulkCount { key: NgramKey([NONE; LONGEST]), next: TokenCount { token: NONE, count: 0 } };

    fn once(key: NgramKey, token: i32) -> BulkCount {
        BulkCount { key, next: TokenCount { token, count: 1 } }
    }
}

/// A hash table with open addressing and linear probing, at most half full, so that most searches take one probe.
struct BulkTable {
    entries: Vec<BulkCount>,
    used: usize,
    seed: u64,
}

impl BulkTable {
    fn new(entries: usize) -> BulkTable {
        BulkTable { entries: vec![BulkCount::FREE; entries], used: 0, seed: seed() }
    }

    /// Adds a count. Returns whether the table is full now.
    #[inline]
    fn count(&mut self, new: BulkCount) -> bool {
        let hash = new.key.hash(self.seed ^ u64::from(new.next.token.cast_unsigned()));
        let mut at = (((hash >> 32) * self.entries.len() as u64) >> 32) as usize;
        loop {
            let Some(entry) = self.entries.get_mut(at) else {
                at = 0;
                continue;
            };
            if entry.key == new.key && entry.next.token == new.next.token {
                entry.next.count = entry.next.count.saturating_add(new.next.count);
                return false;
            }
            if entry.next.count == 0 {
                *entry = new;
                self.used += 1;
                return self.used > self.entries.len() / 2;
            }
            at += 1;
        }
    }
}

/// Counts into a cache, which has all counts only after [`Bulk::finish`].
pub(super) struct Bulk<'a> {
    batch: AddBatch<'a>,
    sizes: Sizes,
    /// One table per size, in ascending order.
    tables: Vec<BulkTable>,
}

impl<'a> Bulk<'a> {
    /// A counter for an input of about `tokens` tokens.
    pub fn new(cache: &'a mut Cache, sizes: Sizes, tokens: usize) -> Bulk<'a> {
        // A free entry ends a search, so there must be one.
        Bulk::with_table_size(cache, sizes, tokens.saturating_mul(2).clamp(16, MAX_TABLE_SIZE))
    }

    fn with_table_size(cache: &'a mut Cache, sizes: Sizes, entries: usize) -> Bulk<'a> {
        let tables = sizes.iter().map(|_| BulkTable::new(entries)).collect();
        Bulk { batch: AddBatch::new(cache), sizes, tables }
    }

    /// As [`Cache::update`].
    pub fn update(&mut self, history: &[i32], appended: usize) {
        let old = history.len().saturating_sub(appended);
        let longest = *self.sizes.iter().end();
        // The first tokens have fewer tokens before them.
        for end in old + 1..=longest.min(history.len()) {
            self.count_longest(history.get(..end).unwrap_or_default());
        }
        for window in history.get(old.saturating_sub(longest)..).unwrap_or_default().windows(longest + 1) {
            let Some((token, ngram)) = window.split_last() else { continue };
            match NgramKey::new(ngram).filter(|_| *token >= 0) {
                Some(key) => count(&mut self.tables, BulkCount::once(key, *token), &mut self.batch),
                None => self.count_longest(window),
            }
        }
    }

    /// Counts the last of these tokens after the longest n-gram of tokens before it.
    #[cold]
    fn count_longest(&mut self, text: &[i32]) {
        let Some((token, before)) = text.split_last().filter(|(token, _)| **token >= 0) else { return };
        for (size, tables) in self.sizes.iter().rev().zip((1..=self.tables.len()).rev()) {
            let ngram = before.len().checked_sub(size).and_then(|start| before.get(start..));
            let Some(key) = ngram.and_then(NgramKey::new) else { continue };
            count(self.tables.get_mut(..tables).unwrap_or_default(), BulkCount::once(key, *token), &mut self.batch);
            break;
        }
    }

    /// Flushes all tables into the cache.
    pub fn finish(mut self) {
        for tables in (1..=self.tables.len()).rev() {
            flush(self.tables.get_mut(..tables).unwrap_or_default(), &mut self.batch);
        }
        self.batch.add_all();
    }
}

/// Counts an n-gram in the last of these tables; a flush also counts its suffixes.
#[inline]
fn count(tables: &mut [BulkTable], pair: BulkCount, batch: &mut AddBatch) {
    if tables.last_mut().is_some_and(|table| table.count(pair)) {
        flush(tables, batch);
    }
}

/// Flushes the last of these tables into the cache and into the table before it.
#[cold]
fn flush(tables: &mut [BulkTable], batch: &mut AddBatch) {
    let Some((full, smaller)) = tables.split_last_mut() else { return };
    for entry in full.entries.iter_mut().filter(|entry| entry.next.count > 0) {
        let pair = std::mem::replace(entry, BulkCount::FREE);
        batch.add(pair.key, pair.next);
        count(smaller, BulkCount { key: pair.key.without_first(), next: pair.next }, batch);
    }
    full.used = 0;
}

impl Cache {
    /// Counts the last `appended` tokens of `history`, each after the n-grams before it, including n-grams that begin before
    /// the appended tokens: as `common_ngram_cache_update`.
    ///
    /// To count everything exactly once, call it with the whole history so far (or its last `appended` + 4 tokens) and the
    /// number of new tokens. N-grams with negative tokens are skipped.
    pub fn update(&mut self, history: &[i32], appended: usize, sizes: Sizes) {
        if appended.min(history.len()) >= BULK {
            let mut bulk = Bulk::new(self, sizes, appended);
            bulk.update(history, appended);
            return bulk.finish();
        }
        self.count(history, appended, sizes, true);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Cache, Sizes};
    use super::{Bulk, MAX_TABLE_SIZE};
    use crate::tests::naive::{Naive, cache_and_naive};

    proptest! {
        /// The counts are equal for any table size, and with negative tokens anywhere.
        #[test]
        fn bulk_counting_equals_counting_one_by_one(
            before in prop::collection::vec(0..6_i32, 0..50), text in prop::collection::vec(-1..6_i32, 0..400),
            pieces in prop::collection::vec(0..90_usize, 0..6), entries in 1..200_usize, (a, b) in (1..=4_usize, 1..=4_usize),
        ) {
            let sizes = Sizes::new(a.min(b), a.max(b)).unwrap();
            // Caches that are not empty.
            let [mut bulk, mut single] = [(); 2].map(|()| cache_and_naive(&before, &[], (1, 4)).0);
            let mut counting = Bulk::with_table_size(&mut bulk, sizes, 2 + entries);
            let mut end = 0;
            for piece in pieces.into_iter().chain([text.len()]) {
                let new = piece.min(text.len() - end);
                end += new;
                counting.update(&text[..end], new);
            }
            counting.finish();
            for end in 1..=text.len() {
                single.update(&text[..end], 1, sizes);
            }
            let [ours, expected] = [&bulk, &single].map(|cache| {
                let mut bytes = Vec::new();
                cache.write(&mut bytes).unwrap();
                bytes
            });
            prop_assert_eq!(ours, expected);
            prop_assert_eq!(bulk.statistics().observations, single.statistics().observations);
        }
    }

    /// The input has more tokens than fit into the tables.
    #[test]
    fn long_inputs_are_counted_in_bulk() {
        let mut state = 1_u64;
        let text: Vec<i32> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 60) as i32
        })
        .take(MAX_TABLE_SIZE)
        .collect();
        let mut naive = Naive::default();
        naive.update(&text, text.len(), 1, 4);
        let longest: usize = naive.0.iter().filter(|(ngram, _)| ngram.len() == 4).map(|(_, next)| next.len()).sum();
        assert!(longest > MAX_TABLE_SIZE / 2, "{longest}");
        let mut cache = Cache::new();
        cache.update(&text, text.len(), Sizes::ALL);
        naive.check(&cache);
    }
}
