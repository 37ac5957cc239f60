//! llama.cpp's rule for drafting from three caches (`common_ngram_cache_draft` in `common/ngram-cache.cpp`).
//!
//! For each token, searches the context cache (lax thresholds) and then the dynamic cache (strict thresholds), the longest
//! n-gram first. Drafts the token with the largest count × (100 × its count in the static cache, or 1), if the n-gram
//! occurred often enough and the token has a large enough share. Otherwise drafts the static cache's most frequent token.
//!
//! Differences: **among equal scores the lowest token id wins**; llama.cpp depends on the order of its maps. llama.cpp reads
//! before the beginning of the history for n-grams longer than it; here they do not exist. llama.cpp's products overflow
//! 32 bits; these do not.

use super::cache::{Cache, HashedKey, NgramCounts};
use super::key::{LONGEST, NgramKey, Sizes};
use super::pool::TokenCount;

/// The cache that a drafted token is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheLevel {
    /// The request's own cache.
    Context,
    /// The cache of earlier outputs.
    Dynamic,
    /// The cache of a large corpus.
    Static,
}

/// A drafted token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DraftedToken {
    /// The token.
    pub token: i32,
    /// Number of times it followed the n-gram.
    pub count: u32,
    /// Number of times any token followed the n-gram.
    pub total: u32,
    /// Size of the n-gram, 1..=4.
    pub size: usize,
    /// The cache that it is from.
    pub level: CacheLevel,
}

/// The caches to draft from.
#[derive(Clone, Copy)]
pub struct CacheLevels<'a> {
    /// N-grams of this history.
    pub context: &'a Cache,
    /// N-grams of earlier outputs.
    pub dynamic: &'a Cache,
    /// 2-grams of a large corpus. They also weight the candidates of the other two caches.
    pub static_cache: &'a Cache,
    /// The n-gram sizes to search in the first two caches, usually [`Sizes::ALL`].
    pub sizes: Sizes,
}

/// The minimum total of an n-gram and the minimum percentage of its best token, by the rank of the n-gram's size among the
/// searched sizes, as in llama.cpp. If the sizes start at 1, the rank is the size.
type Thresholds = [(u32, u32); LONGEST];
const LAX: Thresholds = [(2, 66), (2, 50), (1, 50), (1, 50)];
const STRICT: Thresholds = [(4, 75), (3, 66), (2, 66), (2, 66)];
/// The threshold of the static cache: the lax one of 2-grams.
const STATIC_THRESHOLD: (u32, u32) = (2, 50);
/// The n-gram size of the static cache.
const STATIC_SIZE: usize = 2;

impl CacheLevels<'_> {
    /// Drafts up to `n_draft` tokens that continue `history`. Clears `draft` first; allocates nothing else.
    pub fn draft(&self, history: &[i32], n_draft: usize, draft: &mut Vec<DraftedToken>) {
        draft.clear();
        // The last tokens followed by the drafted ones.
        let start = history.len().saturating_sub(LONGEST);
        let mut tail = Tail::of(history.get(start..).unwrap_or_default());
        while draft.len() < n_draft {
            let Some(next) = self.next(tail.tokens()) else { break };
            draft.push(next);
            tail.push(next.token);
        }
    }

    /// The token that continues `history`; only its last 4 tokens matter. `None` if no cache passes its thresholds.
    pub fn next(&self, history: &[i32]) -> Option<DraftedToken> {
        let before = |size: usize| history.len().checked_sub(size).and_then(|start| history.get(start..));
        let static_key = HashedKey::new(NgramKey::new(before(STATIC_SIZE)?)?);
        let static_cache = self.static_cache.lookup(static_key);
        let mut keys = [None; LONGEST];
        for (slot, size) in keys.iter_mut().zip(self.sizes.iter()) {
            let other = || before(size).and_then(NgramKey::new).map(HashedKey::new);
            let Some(key) = (if size == STATIC_SIZE { Some(static_key) } else { other() }) else { break };
            *slot = Some((size, key));
        }
        let best_in = |cache: &Cache, level: CacheLevel, thresholds: &Thresholds| {
            if cache.is_empty() {
                return None;
            }
            keys.iter().zip(thresholds).rev().find_map(|(key, threshold)| {
                let (size, key) = (*key)?;
                let counts = cache.lookup(key)?;
                Some(counts.drafted(counts.choose(static_cache.as_ref(), *threshold)?, size, level))
            })
        };
        best_in(self.context, CacheLevel::Context, &LAX)
            .or_else(|| best_in(self.dynamic, CacheLevel::Dynamic, &STRICT))
            .or_else(|| {
                let counts = static_cache?;
                Some(counts.drafted(counts.choose(None, STATIC_THRESHOLD)?, STATIC_SIZE, CacheLevel::Static))
            })
    }
}

impl NgramCounts<'_> {
    /// The token to draft, weighted by the static cache; `None` if it does not pass the thresholds.
    fn choose(&self, static_cache: Option<&NgramCounts>, (min_total, min_percent): (u32, u32)) -> Option<TokenCount> {
        // The chosen token's own share must pass; no share is larger than the best's.
        let passes = |count: TokenCount| 100 * u64::from(count.count) >= u64::from(min_percent) * u64::from(self.total);
        if self.total < min_total || !passes(self.best) {
            return None;
        }
        static_cache.map_or(Some(self.best), |static_cache| {
            Some(self.best_weighted(static_cache)).filter(|winner| passes(*winner))
        })
    }

    /// The token with the largest score.
    fn best_weighted(&self, static_cache: &NgramCounts) -> TokenCount {
        let score = |count: u32, known: u32| u128::from(count) * if known == 0 { 1 } else { 100 * u128::from(known) };
        let mut winner = (score(self.best.count, static_cache.count(self.best.token)), self.best);
        let others = self.total - self.best.count;
        if score(others, static_cache.best.count) < winner.0 {
            return self.best; // the common case
        }
        for other in self.others {
            if score(other.count, static_cache.best.count) < winner.0 {
                continue;
            }
            let score = score(other.count, static_cache.count(other.token));
            if score > winner.0 || (score == winner.0 && other.token < winner.1.token) {
                winner = (score, *other);
            }
        }
        winner.1
    }

    fn drafted(&self, count: TokenCount, size: usize, level: CacheLevel) -> DraftedToken {
        DraftedToken { token: count.token, count: count.count, total: self.total, size, level }
    }
}

/// The last tokens of a growing history.
struct Tail {
    tokens: [i32; LONGEST],
    length: usize,
}

impl Tail {
    /// The tail of at most [`LONGEST`] tokens.
    fn of(tokens: &[i32]) -> Tail {
        let mut tail = Tail { tokens: [0; LONGEST], length: 0 };
        tokens.iter().for_each(|token| tail.push(*token));
        tail
    }

    fn push(&mut self, token: i32) {
        self.tokens.rotate_left(1);
        if let Some(last) = self.tokens.last_mut() {
            *last = token;
        }
        self.length = (self.length + 1).min(LONGEST);
    }

    fn tokens(&self) -> &[i32] {
        self.tokens.get(LONGEST - self.length..).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
