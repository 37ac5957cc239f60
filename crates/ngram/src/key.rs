//! Cache keys: n-grams of up to four tokens, and their hash.

use std::hash::BuildHasher;
use std::sync::LazyLock;

use foredraft_base::error::{Error, Result};

/// The longest n-gram.
pub const LONGEST: usize = 4;
/// Fills the unused positions of an n-gram.
pub(super) const NONE: i32 = -1;

/// An n-gram: its tokens, then -1. A prefix sorts before its extensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NgramKey(pub [i32; LONGEST]);

impl NgramKey {
    /// The key of 1 to 4 non-negative tokens; `None` for anything else.
    #[inline]
    pub fn new(tokens: &[i32]) -> Option<NgramKey> {
        // `any` is negative if one of the tokens is. Written out so that everything stays in registers.
        let (key, any) = match *tokens {
            [a] => ([a, NONE, NONE, NONE], a),
            [a, b] => ([a, b, NONE, NONE], a | b),
            [a, b, c] => ([a, b, c, NONE], a | b | c),
            [a, b, c, d] => ([a, b, c, d], a | b | c | d),
            _ => return None,
        };
        (any >= 0).then_some(NgramKey(key))
    }

    /// The n-gram without its first token.
    #[inline]
    pub fn without_first(self) -> NgramKey {
        let [_, b, c, d] = self.0;
        NgramKey([b, c, d, NONE])
    }

    /// The number of tokens.
    pub fn size(self) -> usize {
        self.0.iter().take_while(|token| **token >= 0).count()
    }

    /// Depends on the order of the tokens, unlike llama.cpp's hash. Differs per process, so no file can be built to make all
    /// keys collide. Both 32-bit halves are well distributed.
    ///
    /// A folded multiplication, as in wyhash (<https://github.com/wangyi-fudan/wyhash>).
    #[inline]
    pub fn hash(self, seed: u64) -> u64 {
        let [a, b, c, d] = self.0.map(|token| u64::from(token.cast_unsigned()));
        fold(fold(a | b << 32, seed) ^ (c | d << 32), 0x9E37_79B9_7F4A_7C15)
    }
}

/// XORs the halves of the product. No factor is 0: tokens in the lower half lack bit 31, which the constant has.
#[inline]
fn fold(value: u64, with: u64) -> u64 {
    let product = u128::from(value ^ 0x2D35_8DCC_AA6C_78A5) * u128::from(with | 1);
    (product >> 64) as u64 ^ product as u64
}

/// The seed of this process for all hash tables that store a host's tokens.
pub fn seed() -> u64 {
    static SEED: LazyLock<u64> = LazyLock::new(|| std::hash::RandomState::new().hash_one(0));
    *SEED
}

/// A range of n-gram sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    min: usize,
    max: usize,
}

impl Sizes {
    /// The sizes of context and dynamic caches: 1 to 4.
    pub const ALL: Sizes = Sizes { min: 1, max: LONGEST };
    /// The size of static caches: 2.
    pub const STATIC: Sizes = Sizes { min: 2, max: 2 };

    /// `min` to `max`.
    ///
    /// # Errors
    /// Not 1 ≤ `min` ≤ `max` ≤ 4.
    pub fn new(min: usize, max: usize) -> Result<Sizes> {
        if min == 0 || max > LONGEST || min > max {
            return Err(Error::invalid(format!(
                "ngram_min, ngram_max: expected 1 ≤ ngram_min ≤ ngram_max ≤ {LONGEST}, got {min} and {max}"
            )));
        }
        Ok(Sizes { min, max })
    }

    /// The sizes in ascending order.
    pub fn iter(self) -> std::ops::RangeInclusive<usize> {
        self.min..=self.max
    }
}
