//! What a cache is asked with: up to four tokens, and their hash.

use std::hash::BuildHasher;
use std::sync::LazyLock;

use crate::error::{Error, Result};

/// The longest n-gram.
pub const LONGEST: usize = 4;
/// Stands where an n-gram has no token.
pub(super) const NONE: i32 = -1;

/// An n-gram: its tokens, then -1. So shorter ones sort before those that they begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key(pub [i32; LONGEST]);

impl Key {
    /// The key of 1 to 4 tokens, none of them negative; `None` for everything else.
    #[inline]
    pub fn new(tokens: &[i32]) -> Option<Key> {
        // The sign is that of any; written out, it all stays in registers.
        let (key, any) = match *tokens {
            [a] => ([a, NONE, NONE, NONE], a),
            [a, b] => ([a, b, NONE, NONE], a | b),
            [a, b, c] => ([a, b, c, NONE], a | b | c),
            [a, b, c, d] => ([a, b, c, d], a | b | c | d),
            _ => return None,
        };
        (any >= 0).then_some(Key(key))
    }

    /// The n-gram that it ends with: one token fewer.
    #[inline]
    pub fn without_first(self) -> Key {
        let [_, b, c, d] = self.0;
        Key([b, c, d, NONE])
    }

    /// How many tokens it has.
    pub fn size(self) -> usize {
        self.0.iter().take_while(|token| **token >= 0).count()
    }

    /// Depends on the order of the tokens, unlike llama.cpp's, and differs from process to process, so that nobody
    /// can make a file whose keys all collide. Both halves are good.
    ///
    /// A folded multiplication, as in wyhash (<https://github.com/wangyi-fudan/wyhash>).
    #[inline]
    pub fn hash(self, seed: u64) -> u64 {
        let [a, b, c, d] = self.0.map(|token| u64::from(token.cast_unsigned()));
        fold(fold(a | b << 32, seed) ^ (c | d << 32), 0x9E37_79B9_7F4A_7C15)
    }
}

/// The halves of the product, mixed. No factor is 0: tokens in the lower half have no bit 31, which the constant has.
#[inline]
fn fold(value: u64, with: u64) -> u64 {
    let product = u128::from(value ^ 0x2D35_8DCC_AA6C_78A5) * u128::from(with | 1);
    (product >> 64) as u64 ^ product as u64
}

/// The seed of all hash tables of this process that a host's tokens are put into.
pub(crate) fn seed() -> u64 {
    static SEED: LazyLock<u64> = LazyLock::new(|| std::hash::RandomState::new().hash_one(0));
    *SEED
}

/// The sizes of n-grams that are stored or asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    min: usize,
    max: usize,
}

impl Sizes {
    /// 1 to 4: of context and dynamic caches.
    pub const ALL: Sizes = Sizes { min: 1, max: LONGEST };
    /// 2 alone: of static caches.
    pub const STATIC: Sizes = Sizes { min: 2, max: 2 };

    /// `min` to `max`.
    ///
    /// # Errors
    /// They are not 1 ≤ `min` ≤ `max` ≤ 4.
    pub fn new(min: usize, max: usize) -> Result<Sizes> {
        if min == 0 || max > LONGEST || min > max {
            return Err(Error::invalid(format!(
                "ngram_min, ngram_max: expected 1 ≤ ngram_min ≤ ngram_max ≤ {LONGEST}, got {min} and {max}"
            )));
        }
        Ok(Sizes { min, max })
    }

    /// The smallest first.
    pub fn iter(self) -> std::ops::RangeInclusive<usize> {
        self.min..=self.max
    }
}
