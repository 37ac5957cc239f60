//! An incremental index of the n-grams of one length in a token history.
//!
//! The hash is a rolling polynomial modulo 2^64, so the cost per token does not depend on n. The table has open addressing
//! and eight bytes per entry. Callers compare the n-grams themselves, so a collision costs a probe but no error. The base of
//! the polynomial differs per process, so no input can be built to make all n-grams collide.

use foredraft_base::Token;
use foredraft_ngram::seed;

fn code(token: Token) -> u64 {
    u64::from(token.cast_unsigned()) + 1
}

/// The rolling hash of the last n tokens of a history.
#[derive(Debug, Clone)]
pub struct RollingHash {
    n: usize,
    base: u64,
    /// The factor base^n of the token that leaves the window.
    leaving: u64,
    hash: u64,
    end: usize,
}

impl RollingHash {
    /// A hash of n-grams of `n` tokens.
    pub fn new(n: usize) -> RollingHash {
        // A base of the form 8k + 5 has the maximum multiplicative order.
        let base = seed() & !7 | 5;
        let leaving = (0..n).fold(1_u64, |power, _| power.wrapping_mul(base));
        RollingHash { n, base, leaving, hash: 0, end: 0 }
    }

    /// Advances to the n-gram that ends before index `end` of `text`.
    pub fn advance(&mut self, text: &[Token], end: usize) {
        for index in self.end..end {
            let Some(token) = text.get(index) else { return };
            let left = index.checked_sub(self.n).and_then(|left| text.get(left));
            self.push(*token, left.copied());
        }
    }

    /// Appends `token`. `left` is the token n positions before it, if it exists.
    pub fn push(&mut self, token: Token, left: Option<Token>) {
        let gone = left.map_or(0, |left| code(left).wrapping_mul(self.leaving));
        self.hash = self.hash.wrapping_mul(self.base).wrapping_add(code(token)).wrapping_sub(gone);
        self.end += 1;
    }

    /// The hash of the current n-gram.
    pub fn get(&self) -> u32 {
        mix(self.hash)
    }
}

/// Mixes the high bits of a product into the low ones, which do not depend on them.
pub fn mix(hash: u64) -> u32 {
    let hash = (hash ^ (hash >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    u32::try_from(hash >> 32).unwrap_or(u32::MAX)
}

/// A map from n-grams to numbers below `u32::MAX`. Memory: at most 24 bytes per different n-gram, at least 8 KiB.
#[derive(Debug, Default)]
pub struct NgramIndex {
    entries: Vec<IndexEntry>,
    used: usize,
}

#[derive(Debug, Clone, Copy)]
struct IndexEntry {
    hash: u32,
    value: u32,
}

/// The table slot of an n-gram, occupied or free.
#[derive(Debug)]
pub struct IndexSlot {
    index: usize,
    hash: u32,
}

const FREE: IndexEntry = IndexEntry { hash: 0, value: u32::MAX };
const MIN_SIZE: usize = 1 << 10;

impl NgramIndex {
    /// The value of the n-gram with this hash. `same`: whether a value belongs to this n-gram.
    pub fn get(&self, hash: u32, same: impl Fn(u32) -> bool) -> Option<u32> {
        let found = self.entries.get(self.find(hash, same)?)?;
        (found.value != FREE.value).then_some(found.value)
    }

    /// The slot of the n-gram with this hash, and its value if it has one. Valid until the next call.
    pub fn seek(&mut self, hash: u32, same: impl Fn(u32) -> bool) -> (IndexSlot, Option<u32>) {
        if self.used * 3 >= self.entries.len() * 2 {
            self.grow();
        }
        let index = self.find(hash, same).unwrap_or(usize::MAX);
        let value = self.entries.get(index).map(|entry| entry.value).filter(|value| *value != FREE.value);
        (IndexSlot { index, hash }, value)
    }

    /// Sets the value of the n-gram in this slot.
    pub fn set(&mut self, place: &IndexSlot, value: u32) {
        let Some(entry) = self.entries.get_mut(place.index) else { return };
        self.used += usize::from(entry.value == FREE.value);
        *entry = IndexEntry { hash: place.hash, value };
    }

    /// Removes all n-grams.
    pub fn clear(&mut self) {
        *self = NgramIndex::default();
    }

    /// The index of the n-gram's entry, or of the free entry where it belongs.
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
        let size = (self.entries.len() * 2).max(MIN_SIZE);
        let old = std::mem::replace(&mut self.entries, vec![FREE; size]);
        for entry in old.into_iter().filter(|entry| entry.value != FREE.value) {
            if let Some(free) = self.find(entry.hash, |_| false).and_then(|index| self.entries.get_mut(index)) {
                *free = entry;
            }
        }
    }
}

/// The latest position of each n-gram of a history, up to a given end.
#[derive(Debug)]
pub struct LatestPositions {
    n: usize,
    first: usize,
    index: NgramIndex,
    /// Rolling hashes at the end of the indexed part, and at the end of the history.
    indexed: RollingHash,
    tail: RollingHash,
    /// Start of the next n-gram to index.
    next: usize,
}

impl LatestPositions {
    /// An index of n-grams of `n` tokens (at least 1) that begin at index `first` or later.
    pub fn new(n: usize, first: usize) -> LatestPositions {
        let (indexed, tail) = (RollingHash::new(n), RollingHash::new(n));
        LatestPositions { n, first, index: NgramIndex::default(), indexed, tail, next: first }
    }

    /// The n of its n-grams.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Start of the next n-gram to index.
    pub fn next(&self) -> usize {
        self.next
    }

    /// Removes all n-grams.
    pub fn clear(&mut self) {
        *self = LatestPositions::new(self.n, self.first);
    }

    /// Indexes the n-grams of `text` that begin before `end`, and advances to its last n-gram.
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

    /// The hash of the last n-gram of the history.
    pub fn tail(&self) -> &RollingHash {
        &self.tail
    }

    /// The latest indexed position of `ngram`, which has this hash.
    pub fn find(&self, text: &[Token], ngram: &[Token], hash: &RollingHash) -> Option<usize> {
        let same = |start| text.get(to_index(start)..).is_some_and(|there| there.starts_with(ngram));
        self.index.get(hash.get(), same).map(to_index)
    }
}

/// The longest n-gram of a prediction that is indexed.
pub const MAX_PREDICTED_N: usize = 3;

/// A predicted output with the positions of its n-grams.
#[derive(Debug, PartialEq)]
pub struct Predicted {
    pub(super) text: Vec<Token>,
    pub(super) positions: [NgramPositions; MAX_PREDICTED_N],
}

impl From<Vec<Token>> for Predicted {
    fn from(text: Vec<Token>) -> Predicted {
        let positions = [1, 2, 3].map(|n| NgramPositions::new(&text, n));
        Predicted { text, positions }
    }
}

/// The n-grams of a prediction, sorted by hash and position.
#[derive(Debug, PartialEq)]
pub(super) struct NgramPositions {
    n: usize,
    sorted: Vec<(u32, u32)>,
}

impl NgramPositions {
    pub(super) fn new(text: &[Token], n: usize) -> NgramPositions {
        let mut hash = RollingHash::new(n);
        let mut sorted = Vec::with_capacity(text.len());
        for end in n..=text.len() {
            hash.advance(text, end);
            sorted.push((hash.get(), to_value(end - n)));
        }
        sorted.sort_unstable();
        NgramPositions { n, sorted }
    }

    /// The first position of `ngram` from `from` on, at most `near` tokens ahead. If `near` is unlimited and there is none,
    /// the last position before `from`.
    pub(super) fn nearest(&self, text: &[Token], ngram: &[Token], from: usize, near: usize) -> Option<usize> {
        let mut hash = RollingHash::new(self.n);
        hash.advance(ngram, self.n);
        let hash = hash.get();
        let middle = self.sorted.partition_point(|entry| *entry < (hash, to_value(from)));
        let here = |entry: &&(u32, u32)| entry.0 == hash;
        let is_it = |entry: &(u32, u32)| {
            let position = to_index(entry.1);
            text.get(position..).is_some_and(|there| there.starts_with(ngram)).then_some(position)
        };
        let ahead = self.sorted.get(middle..)?.iter().take_while(here).find_map(is_it);
        match ahead.filter(|position| position - from <= near) {
            Some(position) => Some(position),
            None if near == usize::MAX => self.sorted.get(..middle)?.iter().rev().take_while(here).find_map(is_it),
            None => None,
        }
    }
}

/// Whether the `n` tokens from `a` and from `b` on are equal.
pub fn same_ngram(text: &[Token], a: usize, b: usize, n: usize) -> bool {
    match (text.get(a..a + n), text.get(b..b + n)) {
        (Some(a), Some(b)) => a == b,
        _ => false,
    }
}

/// Converts an index to a table value. Histories are short enough (`history_drafter::MAX_HISTORY`).
pub fn to_value(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX - 1)
}

/// Converts a table value to an index.
pub fn to_index(value: u32) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests;
