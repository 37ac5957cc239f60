//! Where n-grams of one length are in a text: a flat table that is kept up to date token by token.
//!
//! Hashes roll (a polynomial modulo 2^64), so a token costs the same for any n. The table has open addressing and eight
//! bytes an entry; whoever asks compares the n-grams themselves, so that a collision costs a probe and never an error. The base
//! differs from process to process, so that nobody can make a text whose n-grams all collide.

use crate::llama::Token;
use crate::ngram::seed;

fn code(token: Token) -> u64 {
    u64::from(token.cast_unsigned()) + 1
}

/// The hash of the last n tokens while a text goes by.
#[derive(Debug, Clone)]
pub struct RollingHash {
    n: usize,
    base: u64,
    /// What the n-th last token was multiplied by when the next one arrives.
    leaving: u64,
    hash: u64,
    end: usize,
}

impl RollingHash {
    /// For n-grams of `n` tokens.
    pub fn new(n: usize) -> RollingHash {
        // Of the form 8k + 5 its powers are as many as there can be.
        let base = seed() & !7 | 5;
        let leaving = (0..n).fold(1_u64, |power, _| power.wrapping_mul(base));
        RollingHash { n, base, leaving, hash: 0, end: 0 }
    }

    /// Goes on to the n-gram that ends before index `end` of `text`.
    pub fn advance(&mut self, text: &[Token], end: usize) {
        for index in self.end..end {
            let Some(token) = text.get(index) else { return };
            let left = index.checked_sub(self.n).and_then(|left| text.get(left));
            self.push(*token, left.copied());
        }
    }

    /// `token` follows; `left` is the token n places before it, if there are so many.
    pub fn push(&mut self, token: Token, left: Option<Token>) {
        let gone = left.map_or(0, |left| code(left).wrapping_mul(self.leaving));
        self.hash = self.hash.wrapping_mul(self.base).wrapping_add(code(token)).wrapping_sub(gone);
        self.end += 1;
    }

    /// The hash of the n-gram.
    pub fn get(&self) -> u32 {
        mix(self.hash)
    }
}

/// The low bits of a product know nothing of the high ones: this brings them down.
pub fn mix(hash: u64) -> u32 {
    let hash = (hash ^ (hash >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    u32::try_from(hash >> 32).unwrap_or(u32::MAX)
}

/// A map from n-grams to numbers below `u32::MAX`. Memory: at most 24 bytes for each different n-gram, 8 KiB at least.
#[derive(Debug, Default)]
pub struct NgramIndex {
    entries: Vec<Entry>,
    used: usize,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    hash: u32,
    value: u32,
}

/// Where an n-gram's entry is or will be.
#[derive(Debug)]
pub struct Place {
    index: usize,
    hash: u32,
}

const FREE: Entry = Entry { hash: 0, value: u32::MAX };
const LEAST: usize = 1 << 10;

impl NgramIndex {
    /// The value of the n-gram with this hash; `same` says whether a value is this n-gram's.
    pub fn get(&self, hash: u32, same: impl Fn(u32) -> bool) -> Option<u32> {
        let found = self.entries.get(self.find(hash, same)?)?;
        (found.value != FREE.value).then_some(found.value)
    }

    /// The place of the n-gram with this hash, and its value if it has one. Good until the next call.
    pub fn seek(&mut self, hash: u32, same: impl Fn(u32) -> bool) -> (Place, Option<u32>) {
        if self.used * 3 >= self.entries.len() * 2 {
            self.grow();
        }
        let index = self.find(hash, same).unwrap_or(usize::MAX);
        let value = self.entries.get(index).map(|entry| entry.value).filter(|value| *value != FREE.value);
        (Place { index, hash }, value)
    }

    /// Sets the value of the n-gram at `place`.
    pub fn set(&mut self, place: &Place, value: u32) {
        let Some(entry) = self.entries.get_mut(place.index) else { return };
        self.used += usize::from(entry.value == FREE.value);
        *entry = Entry { hash: place.hash, value };
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        *self = NgramIndex::default();
    }

    /// The index of the n-gram's entry, or of the free one where it belongs.
    fn find(&self, hash: u32, same: impl Fn(u32) -> bool) -> Option<usize> {
        let mask = self.entries.len().checked_sub(1)?;
        let mut index = usize::try_from(hash).ok()? & mask;
        loop {
            let entry = self.entries.get(index)?;
            if entry.value == FREE.value || entry.hash == hash && same(entry.value) {
                return Some(index);
            }
            index = (index + 1) & mask;
        }
    }

    fn grow(&mut self) {
        let size = (self.entries.len() * 2).max(LEAST);
        let old = std::mem::replace(&mut self.entries, vec![FREE; size]);
        for entry in old.into_iter().filter(|entry| entry.value != FREE.value) {
            if let Some(free) = self.find(entry.hash, |_| false).and_then(|index| self.entries.get_mut(index)) {
                *free = entry;
            }
        }
    }
}

/// Notes for each n-gram of a text where it was last, as far as it is told to.
#[derive(Debug)]
pub struct LatestPlaces {
    n: usize,
    first: usize,
    index: NgramIndex,
    /// Rolls over what is in the index, and over all of the text.
    indexed: RollingHash,
    tail: RollingHash,
    /// Begin of the next n-gram to be noted.
    next: usize,
}

impl LatestPlaces {
    /// For n-grams of `n` tokens, at least 1, that begin at index `first` or later.
    pub fn new(n: usize, first: usize) -> LatestPlaces {
        let (indexed, tail) = (RollingHash::new(n), RollingHash::new(n));
        LatestPlaces { n, first, index: NgramIndex::default(), indexed, tail, next: first }
    }

    /// The n of its n-grams.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Begin of the next n-gram to be noted.
    pub fn next(&self) -> usize {
        self.next
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        *self = LatestPlaces::new(self.n, self.first);
    }

    /// Notes the n-grams of `text` that begin before `end`, and goes on to its last n-gram.
    pub fn learn(&mut self, text: &[Token], end: usize) {
        let n = self.n;
        for start in self.next..end {
            self.indexed.advance(text, start + n);
            let (place, _) = self.index.seek(self.indexed.get(), |other| same_ngram(text, to_index(other), start, n));
            self.index.set(&place, to_value(start));
        }
        self.next = self.next.max(end);
        self.tail.advance(text, text.len());
    }

    /// The hash of the last n-gram of the text.
    pub fn tail(&self) -> &RollingHash {
        &self.tail
    }

    /// Where `ngram`, which has this hash, was last.
    pub fn find(&self, text: &[Token], ngram: &[Token], hash: &RollingHash) -> Option<usize> {
        let same = |start| text.get(to_index(start)..).is_some_and(|there| there.starts_with(ngram));
        self.index.get(hash.get(), same).map(to_index)
    }
}

/// Whether the same `n` tokens begin at `a` and at `b`.
pub fn same_ngram(text: &[Token], a: usize, b: usize, n: usize) -> bool {
    match (text.get(a..a + n), text.get(b..b + n)) {
        (Some(a), Some(b)) => a == b,
        _ => false,
    }
}

/// An index as a table's value. Texts are short enough ([`super::history_drafter::MAX_HISTORY`]).
pub fn to_value(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX - 1)
}

/// A table's value as an index.
pub fn to_index(value: u32) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

#[cfg(test)]
#[path = "ngram_index_tests.rs"]
mod tests;
