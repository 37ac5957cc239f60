//! Which tokens followed an n-gram, and how often.

use std::ops::Range;

use super::bulk::Bulk;
use super::index::{Found, Index, MAX_RECORDS};
use super::key::{Key, LONGEST, NONE, Sizes, seed};
use super::pool::{Count, List, MAX_COUNT, Pool, try_grow};

/// So many n-grams are looked for at once: the memory then answers many questions in the time of one.
const BATCH: usize = 32;
/// From so many tokens on, what they repeat is added up first: for fewer that would not be worth its memory.
const BULK: usize = 1 << 16;

/// One n-gram: 32 bytes, so that most answers take one look at the index and one at this.
#[derive(Clone, Copy)]
pub(super) struct Record {
    pub key: Key,
    /// The most frequent token, the lowest id among equals.
    best: Count,
    /// Of all counts; ends at `u32::MAX`, see [`Part::total`].
    total: u32,
    /// The other tokens. Most n-grams have none.
    others: List,
}

/// How often tokens followed n-grams of 1 to 4 tokens.
///
/// A plain value: share it between threads in an `Arc`, or behind a lock where it changes.
#[derive(Default)]
pub struct Cache {
    index: Index,
    records: Vec<Record>,
    pool: Pool,
}

/// What is known of one n-gram.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    /// The most frequent token, the lowest id among equals.
    pub best: Count,
    /// The sum of all counts, or `u32::MAX` if that is more. No token has half of such a sum, as counts end at
    /// `i32::MAX`: the rule of drafting decides the same with it.
    pub total: u32,
    /// All tokens but the best, by id.
    pub others: &'a [Count],
}

impl<'a> Part<'a> {
    /// How often `token` followed.
    pub fn count(&self, token: i32) -> u32 {
        if self.best.token == token {
            return self.best.count;
        }
        let at = self.others.binary_search_by_key(&token, |pair| pair.token);
        at.ok().and_then(|at| self.others.get(at)).map_or(0, |pair| pair.count)
    }

    /// All tokens, by id.
    pub fn counts(&self) -> impl Iterator<Item = Count> + use<'a> {
        let (before, after) = self.others.split_at(self.others.partition_point(|pair| pair.token < self.best.token));
        before.iter().copied().chain([self.best]).chain(after.iter().copied())
    }
}

/// How much a [`Cache`] knows, and what that takes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Statistics {
    /// N-grams of 1, 2, 3 and 4 tokens.
    pub ngrams: [usize; LONGEST],
    /// Pairs of an n-gram and a token that followed it.
    pub continuations: usize,
    /// The sum of all counts.
    pub observations: u64,
    /// The highest token id, if there is any.
    pub largest_token: Option<i32>,
    /// Memory, in bytes.
    pub bytes: usize,
    /// The size of the file that it would be saved as, in bytes.
    pub file_bytes: u64,
}

/// A key with its hash, which is the same in all caches.
#[derive(Clone, Copy)]
pub(super) struct Hashed {
    key: Key,
    hash: u64,
}

impl Hashed {
    const NOTHING: Hashed = Hashed { key: Key([NONE; LONGEST]), hash: 0 };

    #[inline]
    pub fn new(key: Key) -> Hashed {
        Hashed { key, hash: key.hash(seed()) }
    }
}

/// N-grams, the tokens after them and their counts, which a cache is about to add. Their places in its index are on the
/// way already.
pub(super) struct Batch<'a> {
    cache: &'a mut Cache,
    adds: [(Hashed, Count); BATCH],
    length: usize,
    /// Whether n-grams that the cache does not know are added as well.
    learns: bool,
}

impl<'a> Batch<'a> {
    pub fn new(cache: &'a mut Cache) -> Batch<'a> {
        Batch { cache, adds: [(Hashed::NOTHING, Count { token: NONE, count: 0 }); BATCH], length: 0, learns: true }
    }

    /// One more. Adds all when there is no room for another.
    #[inline]
    pub fn add(&mut self, key: Key, next: Count) {
        let key = Hashed::new(key);
        self.cache.index.touch(key.hash);
        if let Some(add) = self.adds.get_mut(self.length) {
            *add = (key, next);
            self.length += 1;
        }
        if self.length == BATCH {
            self.add_all();
        }
    }

    /// Adds what there is.
    pub fn add_all(&mut self) {
        let adds = self.adds.get(..self.length).unwrap_or_default();
        for (key, _) in adds {
            let record = self.cache.index.guess(key.hash).and_then(|at| self.cache.records.get(at as usize));
            std::hint::black_box(record.map(|record| record.others));
        }
        for (key, next) in adds {
            if self.learns || self.cache.find(*key).is_some() {
                self.cache.add(*key, next.token, next.count);
            }
        }
        self.length = 0;
    }
}

impl Cache {
    /// An empty one; no allocation.
    pub fn new() -> Cache {
        Cache::default()
    }

    /// How many n-grams it knows.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether it knows nothing.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// The memory it takes, in bytes.
    pub fn bytes(&self) -> usize {
        self.index.bytes() + self.records.capacity() * size_of::<Record>() + self.pool.bytes()
    }

    /// Counts the last `appended` tokens of `history`, each after the n-grams before it, also those that begin before
    /// what was appended: as `common_ngram_cache_update`.
    ///
    /// In order to count everything once, call it each time with the whole text so far (or its last `appended` + 4
    /// tokens) and the number of tokens that are new. Negative tokens are no tokens: n-grams with them are left out.
    pub fn update(&mut self, history: &[i32], appended: usize, sizes: Sizes) {
        if appended.min(history.len()) >= BULK {
            let mut bulk = Bulk::new(self, sizes, appended);
            bulk.update(history, appended);
            return bulk.finish();
        }
        self.count(history, appended, sizes, true);
    }

    /// The same of those n-grams alone that it knows.
    pub fn update_known(&mut self, history: &[i32], appended: usize, sizes: Sizes) {
        self.count(history, appended, sizes, false);
    }

    fn count(&mut self, history: &[i32], appended: usize, sizes: Sizes, learns: bool) {
        let old = history.len().saturating_sub(appended);
        let mut batch = Batch { learns, ..Batch::new(self) };
        for (at, token) in history.iter().enumerate().skip(old).filter(|(_, token)| **token >= 0) {
            for size in sizes.iter() {
                let ngram = at.checked_sub(size).and_then(|start| history.get(start..at));
                let Some(key) = ngram.and_then(Key::new) else { break };
                batch.add(key, Count { token: *token, count: 1 });
            }
        }
        batch.add_all();
    }

    /// Adds to the count of a token after an n-gram; it ends at `i32::MAX`. Without memory, or
    /// from 2^30 n-grams on, no new ones are learnt.
    fn add(&mut self, Hashed { key, hash }: Hashed, token: i32, count: u32) {
        let has_room = !self.index.is_full() || self.enlarge_index().is_some();
        let records = &self.records;
        let slot = match self.index.find(hash, |at| records.get(at as usize).is_some_and(|record| record.key == key)) {
            Found::Slot(slot) if has_room => slot,
            Found::Slot(_) => return,
            Found::Record(at) => {
                let record = self.records.get_mut(at as usize);
                return record.into_iter().for_each(|record| record.add(&mut self.pool, token, count));
            }
        };
        let count = count.min(MAX_COUNT);
        self.push(slot, hash, Record { key, best: Count { token, count }, total: count, others: List::EMPTY });
    }

    fn push(&mut self, slot: usize, hash: u64, record: Record) {
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
                if let Found::Slot(slot) = self.index.find(hash, |_| false) {
                    self.index.put(slot, hash, number);
                }
            }
        }
        Some(())
    }

    /// Adds an n-gram with all that followed it (at least one token; by token, without duplicates), which nobody finds
    /// before [`Cache::index_appended`]. `None`: there is no memory or no number left.
    pub(super) fn append(&mut self, key: Key, counts: &[Count]) -> Option<()> {
        let best = counts.iter().copied().reduce(|best, next| if next.beats(best) { next } else { best })?;
        let total = counts.iter().fold(0_u32, |sum, pair| sum.saturating_add(pair.count));
        let at = counts.partition_point(|pair| pair.token < best.token);
        let others = self.pool.list(counts.get(..at)?, counts.get(at + 1..)?)?;
        if self.records.len() >= MAX_RECORDS {
            return None;
        }
        try_grow(&mut self.records, 1)?;
        self.records.push(Record { key, best, total, others });
        Some(())
    }

    /// Indexes a cache whose records were all appended. Of equal n-grams the first stays. `None`: there is no memory left.
    pub(super) fn index_appended(&mut self) -> Option<()> {
        self.index = Index::try_with_capacity(self.records.len())?;
        let (index, records) = (&mut self.index, &mut self.records);
        let mut kept: u32 = 0;
        for start in (0..records.len()).step_by(BATCH) {
            let end = records.len().min(start + BATCH);
            for (hash, at) in hashes(index, records.get(start..end)?).into_iter().zip(start..end) {
                let record = *records.get(at)?;
                let same = |other: u32| records.get(other as usize).is_some_and(|other| other.key == record.key);
                if let Found::Slot(slot) = index.find(hash, same) {
                    index.put(slot, hash, kept);
                    // It moves only where there were duplicates before it.
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

    /// What is known of an n-gram of 1 to 4 tokens.
    pub fn get(&self, ngram: &[i32]) -> Option<Part<'_>> {
        self.lookup(Hashed::new(Key::new(ngram)?))
    }

    #[inline]
    pub(super) fn lookup(&self, Hashed { key, hash }: Hashed) -> Option<Part<'_>> {
        let record = |at: u32| self.records.get(at as usize).filter(|record| record.key == key);
        match self.index.find(hash, |at| record(at).is_some()) {
            Found::Record(at) => record(at).map(|record| self.part(record)),
            Found::Slot(_) => None,
        }
    }

    pub(super) fn part(&self, record: &Record) -> Part<'_> {
        Part { best: record.best, total: record.total, others: self.pool.get(record.others) }
    }

    pub(super) fn records(&self) -> &[Record] {
        &self.records
    }

    /// Adds all counts of another cache.
    pub fn merge(&mut self, other: &Cache) {
        self.merge_records(other, 0..other.len());
    }

    /// The same of a part of the other's n-grams, by their numbers.
    pub(super) fn merge_records(&mut self, other: &Cache, numbers: Range<usize>) {
        let mut new = Vec::new();
        for batch in other.records.get(numbers).unwrap_or_default().chunks(BATCH) {
            for (hash, record) in hashes(&self.index, batch).into_iter().zip(batch) {
                self.add_part(Hashed { key: record.key, hash }, other.part(record), &mut new);
            }
        }
    }

    /// Adds all that followed an n-gram elsewhere. The tokens that are `new` (kept for its memory) come into the list together: one
    /// by one, each would move those behind it.
    fn add_part(&mut self, key: Hashed, part: Part<'_>, new: &mut Vec<Count>) {
        // Makes the record, where there is none.
        self.add(key, part.best.token, part.best.count);
        if part.others.is_empty() {
            return;
        }
        let Some(at) = self.find(key) else { return };
        let Some(record) = self.records.get_mut(at) else { return };
        new.clear();
        for pair in part.others {
            if record.add_known(&mut self.pool, *pair).is_err() {
                new.push(*pair);
            }
        }
        record.add_new(&mut self.pool, new);
    }

    /// The number of an n-gram's record.
    fn find(&self, Hashed { key, hash }: Hashed) -> Option<usize> {
        match self.index.find(hash, |at| self.records.get(at as usize).is_some_and(|record| record.key == key)) {
            Found::Record(at) => Some(at as usize),
            Found::Slot(_) => None,
        }
    }

    /// Forgets everything, and keeps the memory for what comes.
    pub fn clear(&mut self) {
        self.index.clear();
        self.records.clear();
        self.pool.clear();
    }

    /// Counts everything: takes a look at each record.
    pub fn statistics(&self) -> Statistics {
        let mut statistics = Statistics { bytes: self.bytes(), ..Statistics::default() };
        for record in &self.records {
            let part = self.part(record);
            if let Some(ngrams) = statistics.ngrams.get_mut(record.key.size() - 1) {
                *ngrams += 1;
            }
            statistics.continuations += 1 + part.others.len();
            statistics.observations += part.counts().map(|pair| u64::from(pair.count)).sum::<u64>();
            let largest = record.key.0.into_iter().chain(part.counts().map(|pair| pair.token)).max();
            statistics.largest_token = statistics.largest_token.max(largest);
        }
        statistics.file_bytes = 20 * self.records.len() as u64 + 8 * statistics.continuations as u64;
        statistics
    }
}

/// The hashes of up to [`BATCH`] records, whose places in the index are being fetched.
fn hashes(index: &Index, records: &[Record]) -> [u64; BATCH] {
    let mut hashes = [0; BATCH];
    for (hash, record) in hashes.iter_mut().zip(records) {
        *hash = record.key.hash(seed());
        index.touch(*hash);
    }
    hashes
}

impl Record {
    fn add(&mut self, pool: &mut Pool, token: i32, count: u32) {
        let pair = Count { token, count: count.min(MAX_COUNT) };
        let Err(at) = self.add_known(pool, pair) else { return };
        if pool.insert(&mut self.others, at, pair).is_some() {
            self.total = self.total.saturating_add(pair.count);
            self.prefer(pool, at, pair);
        }
    }

    /// Adds to the count of a token. `Err`: it has none yet, and would be there in the list.
    fn add_known(&mut self, pool: &mut Pool, Count { token, count }: Count) -> Result<(), usize> {
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

    /// Adds tokens that have no count yet, by token. Without memory they are not learnt.
    fn add_new(&mut self, pool: &mut Pool, new: &[Count]) {
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

    /// The pair at `at` of the list becomes the best, if it is that now.
    fn prefer(&mut self, pool: &mut Pool, at: usize, pair: Count) {
        if pair.beats(self.best) {
            pool.replace(self.others, at, self.best);
            self.best = pair;
        }
    }
}

#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;
