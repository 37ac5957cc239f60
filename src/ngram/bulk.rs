//! Counting long texts: what a text repeats is added up before it reaches the cache.
//!
//! To find a record and a token in its list costs far more than to count. So there is a table of limited size for each
//! size of n-grams, which holds n-grams with the token after each. Of every token only the longest n-gram before it
//! is counted there. A table that is full is emptied: into the cache, and, without their first tokens, into the table of the next
//! smaller size. So the cache is asked once for what was seen many times, and shorter n-grams, too, are counted once
//! for many.

use super::cache::{Batch, Cache};
use super::key::{Key, LONGEST, NONE, Sizes, seed};
use super::pool::Count;

/// The most places of a table, 24 bytes each: smaller ones are emptied more often, larger ones do not stay in a processor's cache.
const PLACES: usize = 1 << 17;

/// An n-gram and the token after it, and how often they were seen since the table was emptied: 0 in a place that is free.
#[derive(Clone, Copy)]
struct Seen {
    key: Key,
    next: Count,
}

impl Seen {
    const NOTHING: Seen = Seen { key: Key([NONE; LONGEST]), next: Count { token: NONE, count: 0 } };

    fn once(key: Key, token: i32) -> Seen {
        Seen { key, next: Count { token, count: 1 } }
    }
}

/// Open addressing with linear probing, at most half full, so that most searches end where they begin.
struct Table {
    places: Vec<Seen>,
    used: usize,
    seed: u64,
}

impl Table {
    fn new(places: usize) -> Table {
        Table { places: vec![Seen::NOTHING; places], used: 0, seed: seed() }
    }

    /// Counts. Returns whether the table is full now.
    #[inline]
    fn count(&mut self, new: Seen) -> bool {
        let hash = new.key.hash(self.seed ^ u64::from(new.next.token.cast_unsigned()));
        let mut at = (((hash >> 32) * self.places.len() as u64) >> 32) as usize;
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

/// Counts into a cache, which knows all of it only after [`Bulk::finish`].
pub(super) struct Bulk<'a> {
    batch: Batch<'a>,
    sizes: Sizes,
    /// One for each size, the smallest first.
    tables: Vec<Table>,
}

impl<'a> Bulk<'a> {
    /// For about so many tokens.
    pub fn new(cache: &'a mut Cache, sizes: Sizes, tokens: usize) -> Bulk<'a> {
        // A place that is free ends a search: there must be one.
        Bulk::with_places(cache, sizes, tokens.saturating_mul(2).clamp(16, PLACES))
    }

    fn with_places(cache: &'a mut Cache, sizes: Sizes, places: usize) -> Bulk<'a> {
        let tables = sizes.iter().map(|_| Table::new(places)).collect();
        Bulk { batch: Batch::new(cache), sizes, tables }
    }

    /// As [`Cache::update`].
    pub fn update(&mut self, history: &[i32], appended: usize) {
        let old = history.len().saturating_sub(appended);
        let longest = *self.sizes.iter().end();
        // At the text's beginning there are fewer before a token.
        for end in old + 1..=longest.min(history.len()) {
            self.count_longest(history.get(..end).unwrap_or_default());
        }
        for window in history.get(old.saturating_sub(longest)..).unwrap_or_default().windows(longest + 1) {
            let Some((token, ngram)) = window.split_last() else { continue };
            match Key::new(ngram).filter(|_| *token >= 0) {
                Some(key) => count(&mut self.tables, Seen::once(key, *token), &mut self.batch),
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
            let Some(key) = ngram.and_then(Key::new) else { continue };
            count(self.tables.get_mut(..tables).unwrap_or_default(), Seen::once(key, *token), &mut self.batch);
            break;
        }
    }

    /// Gives the cache what the tables still have.
    pub fn finish(mut self) {
        for tables in (1..=self.tables.len()).rev() {
            empty(self.tables.get_mut(..tables).unwrap_or_default(), &mut self.batch);
        }
        self.batch.add_all();
    }
}

/// Counts an n-gram in the last of these tables, for those that it ends with as well.
#[inline]
fn count(tables: &mut [Table], seen: Seen, batch: &mut Batch) {
    if tables.last_mut().is_some_and(|table| table.count(seen)) {
        empty(tables, batch);
    }
}

/// Empties the last of these tables into the cache and into the one before it.
#[cold]
fn empty(tables: &mut [Table], batch: &mut Batch) {
    let Some((full, smaller)) = tables.split_last_mut() else { return };
    for place in full.places.iter_mut().filter(|place| place.next.count > 0) {
        let seen = std::mem::replace(place, Seen::NOTHING);
        batch.add(seen.key, seen.next);
        count(smaller, Seen { key: seen.key.without_first(), next: seen.next }, batch);
    }
    full.used = 0;
}

#[cfg(test)]
#[path = "bulk_tests.rs"]
mod tests;
