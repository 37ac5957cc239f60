//! The n-gram cache: counts of the tokens that followed each n-gram.

use std::ops::Range;

use super::index::{Index, IndexSearch, MAX_RECORDS};
use super::key::{LONGEST, NONE, NgramKey, Sizes, seed};
use super::pool::{CountPool, ListId, MAX_COUNT, TokenCount, try_grow};

/// N-grams searched at once, so that their memory accesses overlap.
const BATCH: usize = 32;

/// One n-gram in 32 bytes. Most lookups read one index slot and one record.
#[derive(Clone, Copy)]
pub(super) struct CacheRecord {
    pub key: NgramKey,
    /// The most frequent token, the lowest id among equals.
    best: TokenCount,
    /// The sum of all counts, saturating at `u32::MAX`; see [`NgramCounts::total`].
    total: u32,
    /// The other tokens. Most n-grams have none.
    others: ListId,
}

/// Counts of the tokens that followed n-grams of 1 to 4 tokens.
///
/// A plain value: share it between threads in an `Arc`, or behind a lock if it changes.
#[derive(Default)]
pub struct Cache {
    index: Index,
    records: Vec<CacheRecord>,
    pool: CountPool,
}

/// The counts of one n-gram.
#[derive(Debug, Clone, Copy)]
pub struct NgramCounts<'a> {
    /// The most frequent token, the lowest id among equals.
    pub best: TokenCount,
    /// The sum of all counts, saturating at `u32::MAX`. Counts saturate at `i32::MAX`, so no token has half of such a sum and
    /// the drafting rule is not affected.
    pub total: u32,
    /// All other tokens, by id.
    pub others: &'a [TokenCount],
}

impl<'a> NgramCounts<'a> {
    /// The count of `token`.
    pub fn count(&self, token: i32) -> u32 {
        if self.best.token == token {
            return self.best.count;
        }
        let at = self.others.binary_search_by_key(&token, |pair| pair.token);
        at.ok().and_then(|at| self.others.get(at)).map_or(0, |pair| pair.count)
    }

    /// All tokens, by id.
    pub fn by_id(&self) -> impl Iterator<Item = TokenCount> + use<'a> {
        let (before, after) = self.others.split_at(self.others.partition_point(|pair| pair.token < self.best.token));
        before.iter().copied().chain([self.best]).chain(after.iter().copied())
    }
}

/// The size of a [`Cache`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CacheStatistics {
    /// Number of n-grams of 1, 2, 3 and 4 tokens.
    pub ngrams: [usize; LONGEST],
    /// Number of pairs of an n-gram and a token that followed it.
    pub continuations: usize,
    /// The sum of all counts.
    pub observations: u64,
    /// The largest token id, if there is any.
    pub largest_token: Option<i32>,
    /// Memory in bytes.
    pub bytes: usize,
    /// Size of its file in bytes.
    pub file_bytes: u64,
}

/// A key with its hash, which is the same in all caches.
#[derive(Clone, Copy)]
pub(super) struct HashedKey {
    key: NgramKey,
    hash: u64,
}

impl HashedKey {
    const EMPTY: HashedKey = HashedKey { key: NgramKey([NONE; LONGEST]), hash: 0 };

    #[inline]
    pub fn new(key: NgramKey) -> HashedKey {
        HashedKey { key, hash: key.hash(seed()) }
    }
}

/// Counts about to be added to a cache; their index slots are being prefetched.
pub(super) struct AddBatch<'a> {
    cache: &'a mut Cache,
    adds: [(HashedKey, TokenCount); BATCH],
    length: usize,
    /// Whether n-grams that are not in the cache are added.
    adds_ngrams: bool,
}

impl<'a> AddBatch<'a> {
    pub fn new(cache: &'a mut Cache) -> AddBatch<'a> {
        AddBatch {
            cache,
            adds: [(HashedKey::EMPTY, TokenCount { token: NONE, count: 0 }); BATCH],
            length: 0,
            adds_ngrams: true,
        }
    }

    /// Queues one count. Adds all queued counts if the batch is full.
    #[inline]
    pub fn add(&mut self, key: NgramKey, next: TokenCount) {
        let key = HashedKey::new(key);
        self.cache.index.prefetch(key.hash);
        if let Some(add) = self.adds.get_mut(self.length) {
            *add = (key, next);
            self.length += 1;
        }
        if self.length == BATCH {
            self.add_all();
        }
    }

    /// Adds all queued counts to the cache.
    pub fn add_all(&mut self) {
        let adds = self.adds.get(..self.length).unwrap_or_default();
        for (key, _) in adds {
            let record = self.cache.index.likely_record(key.hash).and_then(|at| self.cache.records.get(at as usize));
            std::hint::black_box(record.map(|record| record.others));
        }
        for (key, next) in adds {
            if self.adds_ngrams || self.cache.find(*key).is_some() {
                self.cache.add(*key, next.token, next.count);
            }
        }
        self.length = 0;
    }
}

impl Cache {
    /// An empty cache; does not allocate.
    pub fn new() -> Cache {
        Cache::default()
    }

    /// The number of n-grams.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Returns whether the cache has no n-grams.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Its memory in bytes.
    pub fn bytes(&self) -> usize {
        self.index.bytes() + self.records.capacity() * size_of::<CacheRecord>() + self.pool.bytes()
    }

    /// As [`Cache::update`], but only for n-grams that are already in the cache.
    pub fn update_known(&mut self, history: &[i32], appended: usize, sizes: Sizes) {
        self.count(history, appended, sizes, false);
    }

    pub(super) fn count(&mut self, history: &[i32], appended: usize, sizes: Sizes, adds_ngrams: bool) {
        let old = history.len().saturating_sub(appended);
        let mut batch = AddBatch { adds_ngrams, ..AddBatch::new(self) };
        for (at, token) in history.iter().enumerate().skip(old).filter(|(_, token)| **token >= 0) {
            for size in sizes.iter() {
                let ngram = at.checked_sub(size).and_then(|start| history.get(start..at));
                let Some(key) = ngram.and_then(NgramKey::new) else { break };
                batch.add(key, TokenCount { token: *token, count: 1 });
            }
        }
        batch.add_all();
    }

    /// Adds to the count of a token after an n-gram, saturating at `i32::MAX`. If out of memory, or at 2^30 n-grams, adds no
    /// new n-gram.
    fn add(&mut self, HashedKey { key, hash }: HashedKey, token: i32, count: u32) {
        let has_space = !self.index.is_full() || self.enlarge_index().is_some();
        let records = &self.records;
        let slot = match self.index.find(hash, |at| records.get(at as usize).is_some_and(|record| record.key == key)) {
            IndexSearch::Slot(slot) if has_space => slot,
            IndexSearch::Slot(_) => return,
            IndexSearch::Record(at) => {
                let record = self.records.get_mut(at as usize);
                return record.into_iter().for_each(|record| record.add(&mut self.pool, token, count));
            }
        };
        let count = count.min(MAX_COUNT);
        self.push(
            slot,
            hash,
            CacheRecord { key, best: TokenCount { token, count }, total: count, others: ListId::EMPTY },
        );
    }

    fn push(&mut self, slot: usize, hash: u64, record: CacheRecord) {
        let at = u32::try_from(self.records.len()).ok().filter(|at| (*at as usize) < MAX_RECORDS);
        if let (Some(at), Some(())) = (at, try_grow(&mut self.records, 1)) {
            self.records.push(record);
            self.index.put(slot, hash, at);
        }
    }

    #[cold]
    fn enlarge_index(&mut self) -> Option<()> {
        self.index = self.index.larger()?;
        let mut numbers = 0..;
        for batch in self.records.chunks(BATCH) {
            for (hash, number) in hashes(&self.index, batch).into_iter().zip(numbers.by_ref().take(batch.len())) {
                if let IndexSearch::Slot(slot) = self.index.find(hash, |_| false) {
                    self.index.put(slot, hash, number);
                }
            }
        }
        Some(())
    }

    /// Appends an n-gram with its counts (at least one, sorted by token, without duplicates). It can be looked up only after
    /// [`Cache::index_appended`]. `None` if out of memory or record numbers.
    pub(super) fn append(&mut self, key: NgramKey, counts: &[TokenCount]) -> Option<()> {
        let best = counts.iter().copied().reduce(|best, next| if next.beats(best) { next } else { best })?;
        let total = counts.iter().fold(0_u32, |sum, pair| sum.saturating_add(pair.count));
        let at = counts.partition_point(|pair| pair.token < best.token);
        let others = self.pool.list(counts.get(..at)?, counts.get(at + 1..)?)?;
        if self.records.len() >= MAX_RECORDS {
            return None;
        }
        try_grow(&mut self.records, 1)?;
        self.records.push(CacheRecord { key, best, total, others });
        Some(())
    }

    /// Indexes a cache whose records were all appended. Keeps the first of equal n-grams. `None` if out of memory.
    pub(super) fn index_appended(&mut self) -> Option<()> {
        self.index = Index::try_with_capacity(self.records.len())?;
        let (index, records) = (&mut self.index, &mut self.records);
        let mut kept: u32 = 0;
        for start in (0..records.len()).step_by(BATCH) {
            let end = records.len().min(start + BATCH);
            for (hash, at) in hashes(index, records.get(start..end)?).into_iter().zip(start..end) {
                let record = *records.get(at)?;
                let same = |other: u32| records.get(other as usize).is_some_and(|other| other.key == record.key);
                if let IndexSearch::Slot(slot) = index.find(hash, same) {
                    index.put(slot, hash, kept);
                    // Moves the record if duplicates before it were removed.
                    *records.get_mut(kept as usize)? = record;
                    kept += 1;
                }
            }
        }
        records.truncate(kept as usize);
        records.shrink_to_fit();
        self.pool.shrink();
        Some(())
    }

    /// The counts of an n-gram of 1 to 4 tokens.
    pub fn get(&self, ngram: &[i32]) -> Option<NgramCounts<'_>> {
        self.lookup(HashedKey::new(NgramKey::new(ngram)?))
    }

    #[inline]
    pub(super) fn lookup(&self, HashedKey { key, hash }: HashedKey) -> Option<NgramCounts<'_>> {
        let record = |at: u32| self.records.get(at as usize).filter(|record| record.key == key);
        match self.index.find(hash, |at| record(at).is_some()) {
            IndexSearch::Record(at) => record(at).map(|record| self.counts_of(record)),
            IndexSearch::Slot(_) => None,
        }
    }

    pub(super) fn counts_of(&self, record: &CacheRecord) -> NgramCounts<'_> {
        NgramCounts { best: record.best, total: record.total, others: self.pool.get(record.others) }
    }

    pub(super) fn records(&self) -> &[CacheRecord] {
        &self.records
    }

    /// Adds all counts of another cache.
    pub fn merge(&mut self, other: &Cache) {
        self.merge_records(other, 0..other.len());
    }

    /// As [`Cache::merge`], for a range of the other cache's record numbers.
    pub(super) fn merge_records(&mut self, other: &Cache, numbers: Range<usize>) {
        let mut new = Vec::new();
        for batch in other.records.get(numbers).unwrap_or_default().chunks(BATCH) {
            for (hash, record) in hashes(&self.index, batch).into_iter().zip(batch) {
                self.add_counts(HashedKey { key: record.key, hash }, other.counts_of(record), &mut new);
            }
        }
    }

    /// Adds the counts of an n-gram of another cache. New tokens are inserted together, because inserting them one by one would
    /// move the rest of the list each time. `new` is a scratch buffer.
    fn add_counts(&mut self, key: HashedKey, counts: NgramCounts<'_>, new: &mut Vec<TokenCount>) {
        // Creates the record if there is none.
        self.add(key, counts.best.token, counts.best.count);
        if counts.others.is_empty() {
            return;
        }
        let Some(at) = self.find(key) else { return };
        let Some(record) = self.records.get_mut(at) else { return };
        new.clear();
        for pair in counts.others {
            if record.add_known(&mut self.pool, *pair).is_err() {
                new.push(*pair);
            }
        }
        record.add_new(&mut self.pool, new);
    }

    /// The record number of an n-gram.
    fn find(&self, HashedKey { key, hash }: HashedKey) -> Option<usize> {
        match self.index.find(hash, |at| self.records.get(at as usize).is_some_and(|record| record.key == key)) {
            IndexSearch::Record(at) => Some(at as usize),
            IndexSearch::Slot(_) => None,
        }
    }

    /// Removes all n-grams; keeps the allocations.
    pub fn clear(&mut self) {
        self.index.clear();
        self.records.clear();
        self.pool.clear();
    }

    /// How often each token from 0 to `n` followed an n-gram.
    pub fn token_counts(&self, n: usize) -> Vec<u64> {
        let mut counts = vec![0; n];
        for pair in self.records.iter().flat_map(|record| self.counts_of(record).by_id()) {
            if let Some(count) = usize::try_from(pair.token).ok().and_then(|token| counts.get_mut(token)) {
                *count += u64::from(pair.count);
            }
        }
        counts
    }

    /// Computes the statistics from all records.
    pub fn statistics(&self) -> CacheStatistics {
        let mut statistics = CacheStatistics { bytes: self.bytes(), ..CacheStatistics::default() };
        for record in &self.records {
            let counts = self.counts_of(record);
            if let Some(ngrams) = statistics.ngrams.get_mut(record.key.size() - 1) {
                *ngrams += 1;
            }
            statistics.continuations += 1 + counts.others.len();
            statistics.observations += counts.by_id().map(|pair| u64::from(pair.count)).sum::<u64>();
            let largest = record.key.0.into_iter().chain(counts.by_id().map(|pair| pair.token)).max();
            statistics.largest_token = statistics.largest_token.max(largest);
        }
        statistics.file_bytes = 20 * self.records.len() as u64 + 8 * statistics.continuations as u64;
        statistics
    }
}

/// The hashes of up to [`BATCH`] records; prefetches their index slots.
fn hashes(index: &Index, records: &[CacheRecord]) -> [u64; BATCH] {
    let mut hashes = [0; BATCH];
    for (hash, record) in hashes.iter_mut().zip(records) {
        *hash = record.key.hash(seed());
        index.prefetch(*hash);
    }
    hashes
}

impl CacheRecord {
    fn add(&mut self, pool: &mut CountPool, token: i32, count: u32) {
        let pair = TokenCount { token, count: count.min(MAX_COUNT) };
        let Err(at) = self.add_known(pool, pair) else { return };
        if pool.insert(&mut self.others, at, pair).is_some() {
            self.total = self.total.saturating_add(pair.count);
            self.prefer(pool, at, pair);
        }
    }

    /// Adds to the count of a token. `Err`: it has no count yet; the index where it belongs in the list.
    fn add_known(&mut self, pool: &mut CountPool, TokenCount { token, count }: TokenCount) -> Result<(), usize> {
        if self.best.token == token {
            let before = self.best.count;
            self.best.count = before.saturating_add(count).min(MAX_COUNT);
            self.total = self.total.saturating_add(self.best.count - before);
            return Ok(());
        }
        let (at, pair, added) = pool.add(self.others, token, count)?;
        self.total = self.total.saturating_add(added);
        self.prefer(pool, at, pair);
        Ok(())
    }

    /// Adds tokens that have no count yet, sorted by token. Drops them if out of memory.
    fn add_new(&mut self, pool: &mut CountPool, new: &[TokenCount]) {
        let Some(best) = new.iter().copied().reduce(|best, next| if next.beats(best) { next } else { best }) else {
            return;
        };
        if pool.insert_all(&mut self.others, new).is_none() {
            return;
        }
        self.total = new.iter().fold(self.total, |sum, pair| sum.saturating_add(pair.count));
        if let Ok(at) = pool.get(self.others).binary_search_by_key(&best.token, |pair| pair.token) {
            self.prefer(pool, at, best);
        }
    }

    /// Makes the pair at `at` of the list the best, if it is now preferred.
    fn prefer(&mut self, pool: &mut CountPool, at: usize, pair: TokenCount) {
        if pair.beats(self.best) {
            pool.replace(self.others, at, self.best);
            self.best = pair;
        }
    }
}

#[cfg(test)]
mod tests;
