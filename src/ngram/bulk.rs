//! Counting long texts: what comes again soon is added up before it reaches the cache.
//!
//! Most of what a text says it says again, and to find a record and a token in its list costs far more than to count. So
//! there is a small table for each size, in which an n-gram with the token after it has one place. What finds itself there
//! is counted there; what finds another one takes its place, and only that goes on: with its count to the cache,
//! and without its first token to the table of the next smaller size. A token is so usually counted once, not once for
//! each size, as all that end alike have the same counts to come.
//!
//! The network's routers count flows like that, and GPUs combine writes.

use super::cache::{Batch, Cache};
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

/// One size's n-grams.
#[derive(Default)]
struct Table {
    places: Vec<Seen>,
    used: usize,
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
    /// Counts; whether it is full then.
    #[inline]
    fn count(&mut self, new: Seen) -> bool {
        let mut at = new.place(self.places.len());
        loop {
            let Some(place) = self.places.get_mut(at) else {
                at = 0;
                continue;
            };
            if place.key == new.key && place.next.token == new.next.token {
                place.next.count = place.next.count.saturating_add(new.next.count);
                return false;
            }
            if place.next.count == 0 {
                *place = new;
                self.used += 1;
                return self.used > self.places.len() / 2;
            }
            at += 1;
        }
    }
}

impl<'a> Bulk<'a> {
    pub fn new(cache: &'a mut Cache, sizes: Sizes) -> Bulk<'a> {
        let places = std::env::var("PLACES").ok().and_then(|p| p.parse().ok()).unwrap_or(PLACES);
        Bulk::with_places(cache, sizes, places)
    }

    fn with_places(cache: &'a mut Cache, sizes: Sizes, places: usize) -> Bulk<'a> {
        let tables = sizes.iter().map(|_| Table { places: vec![Seen::NOTHING; places], used: 0 }).collect();
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

    /// Counts an n-gram and those at its end, the longest in the last of the first so many tables.
    #[inline]
    fn count(&mut self, new: Seen, table: usize) {
        if let Some(t) = self.tables.get_mut(table) && t.count(new) {
            self.flush(table);
        }
    }

    #[cold]
    fn flush(&mut self, table: usize) {
        let Some(mut places) = self.tables.get_mut(table).map(std::mem::take) else { return };
        for place in &mut places.places {
            let seen = std::mem::replace(place, Seen::NOTHING);
            if seen.next.count > 0 {
                self.batch.add(self.cache, seen.key, seen.next);
                if let Some(table) = table.checked_sub(1) {
                    self.count(Seen { key: seen.key.without_first(), ..seen }, table);
                }
            }
        }
        places.used = 0;
        if let Some(table) = self.tables.get_mut(table) {
            *table = places;
        }
    }

    /// Gives the cache what is still in the tables.
    pub fn finish(mut self) {
        for table in (0..self.tables.len()).rev() {
            self.flush(table);
        }
        self.batch.add_all(self.cache);
    }
}

#[cfg(test)]
#[path = "bulk_tests.rs"]
mod tests;
