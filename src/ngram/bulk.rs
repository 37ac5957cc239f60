//! Counting long texts: what comes again soon is added up before it reaches the cache.
//!
//! Most of what a text says it says again, and to find a record and a token in its list costs far more than to count. So
//! there is a small table for each size, in which an n-gram with the token after it has one place. What finds itself there
//! is counted there; what finds another one takes its place, and only that goes on: with its count to the cache,
//! and without its first token to the table of the next smaller size. A token is so usually counted once, not once for
//! each size, as all that end alike have the same counts to come.
//!
//! The network's routers count flows like that, and GPUs combine writes.

use super::cache::{BATCH, Batch, Cache};
use super::key::{Key, LONGEST, NONE, Sizes, seed};
use super::pool::Count;

/// Places of a table, 24 bytes each: all four fit into a core's own cache, mostly.
const PLACES: usize = 1 << 17;

/// An n-gram and the token after it, and how often it was seen since it came; 0: a place nobody took yet.
#[derive(Clone, Copy)]
struct Seen {
    key: Key,
    next: Count,
}

impl Seen {
    const NOTHING: Seen = Seen { key: Key([NONE; LONGEST]), next: Count { token: NONE, count: 0 } };

    /// Its place among so many.
    #[inline]
    fn place(&self, places: usize) -> usize {
        let hash = self.key.hash(seed() ^ u64::from(self.next.token.cast_unsigned()));
        (((hash >> 32) * places as u64) >> 32) as usize
    }
}

/// One size's n-grams, each with the tokens after it: open addressing with linear probing, at most half full.
struct Table {
    places: Vec<Seen>,
    used: usize,
    /// What is about to be counted, and where the search begins. These places are on the way already.
    waiting: [(usize, Seen); BATCH],
    length: usize,
}

/// Counts into a cache, which knows everything only after [`Bulk::finish`].
pub(super) struct Bulk<'a> {
    cache: &'a mut Cache,
    batch: Batch,
    sizes: Sizes,
    /// For each size, the smallest first.
    tables: Vec<Table>,
}

impl Table {
    fn new(places: usize) -> Table {
        Table { places: vec![Seen::NOTHING; places], used: 0, waiting: [(0, Seen::NOTHING); BATCH], length: 0 }
    }

    /// One more; whether the table is full then.
    #[inline]
    fn add(&mut self, new: Seen) -> bool {
        let at = new.place(self.places.len());
        std::hint::black_box(self.places.get(at).map(|place| place.next.count));
        if let Some(waiting) = self.waiting.get_mut(self.length) {
            *waiting = (at, new);
            self.length += 1;
        }
        self.length == BATCH && self.count_all()
    }

    /// Counts what waits; whether the table is full then.
    fn count_all(&mut self) -> bool {
        for (at, new) in self.waiting.iter().take(self.length) {
            let (before, from) = self.places.split_at_mut(*at);
            let same = |place: &&mut Seen| place.next.count == 0 || (place.key == new.key && place.next.token == new.next.token);
            let Some(place) = from.iter_mut().chain(before).find(same) else { continue };
            if place.next.count == 0 {
                *place = *new;
                self.used += 1;
            } else {
                place.next.count = place.next.count.saturating_add(new.next.count);
            }
        }
        self.length = 0;
        self.used > self.places.len() / 2
    }
}

impl<'a> Bulk<'a> {
    pub fn new(cache: &'a mut Cache, sizes: Sizes) -> Bulk<'a> {
        let places = std::env::var("PLACES").ok().and_then(|p| p.parse().ok()).unwrap_or(PLACES);
        Bulk::with_places(cache, sizes, places)
    }

    fn with_places(cache: &'a mut Cache, sizes: Sizes, places: usize) -> Bulk<'a> {
        let tables = sizes.iter().map(|_| Table::new(places)).collect();
        Bulk { cache, batch: Batch::default(), sizes, tables }
    }

    /// As [`Cache::update`].
    pub fn update(&mut self, history: &[i32], appended: usize) {
        let old = history.len().saturating_sub(appended);
        for (at, token) in history.iter().enumerate().skip(old).filter(|(_, token)| **token >= 0) {
            let ngram = |size: usize| history.get(at.checked_sub(size)?..at).and_then(Key::new);
            // The longest has those before it at its end; at the text's beginning and behind no tokens it is shorter.
            let longest = self.sizes.iter().rev().zip((0..self.tables.len()).rev());
            for (size, table) in longest {
                if let Some(key) = ngram(size) {
                    self.count(Seen { key, next: Count { token: *token, count: 1 } }, table);
                    break;
                }
            }
        }
    }

    #[inline]
    fn count(&mut self, new: Seen, table: usize) {
        if self.tables.get_mut(table).is_some_and(|table| table.add(new)) {
            self.empty(table);
        }
    }

    /// Empties a table into the cache and the table of the next smaller size.
    #[cold]
    fn empty(&mut self, table: usize) {
        let Some(full) = self.tables.get_mut(table) else { return };
        full.used = 0;
        let mut places = std::mem::take(&mut full.places);
        for seen in places.iter_mut().filter(|seen| seen.next.count > 0) {
            let seen = std::mem::replace(seen, Seen::NOTHING);
            self.batch.add(self.cache, seen.key, seen.next);
            if let Some(table) = table.checked_sub(1) {
                self.count(Seen { key: seen.key.without_first(), ..seen }, table);
            }
        }
        if let Some(table) = self.tables.get_mut(table) {
            table.places = places;
        }
    }

    /// Gives the cache what is still in the tables.
    pub fn finish(mut self) {
        for table in (0..self.tables.len()).rev() {
            self.tables.get_mut(table).map(Table::count_all);
            self.empty(table);
        }
        self.batch.add_all(self.cache);
    }
}

#[cfg(test)]
#[path = "bulk_tests.rs"]
mod tests;
