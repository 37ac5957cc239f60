//! llama.cpp's rule of drafting from three caches (`common_ngram_cache_draft` in `common/ngram-cache.cpp`).
//!
//! For each token: the longest n-gram first, in the context's cache (lax thresholds), then in the dynamic one (strict);
//! the token with the highest count × (100 × its count in the static cache, or 1), if the n-gram was seen often enough
//! and the token after it in enough of the cases; else the static cache's own favourite.
//!
//! What llama.cpp leaves to the order of its maps, **the lowest token id among equal scores wins**, in all caches.
//! Where llama.cpp reads before the text's beginning (n-grams longer than the text), there are no such n-grams here,
//! and where its products overflow 32 bits, these do not.

use super::cache::{Cache, Hashed, Part};
use super::key::{Key, LONGEST, Sizes};
use super::pool::Count;

/// Which cache a drafted token is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// The text's own.
    Context,
    /// That of earlier texts.
    Dynamic,
    /// That of a large corpus.
    Static,
}

/// A drafted token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Drafted {
    /// The token.
    pub token: i32,
    /// How often it followed the n-gram.
    pub count: u32,
    /// How often anything did.
    pub total: u32,
    /// The tokens of the n-gram, 1..=4.
    pub size: usize,
    /// The cache that knew it.
    pub level: Level,
}

/// The caches to draft from.
#[derive(Clone, Copy)]
pub struct Levels<'a> {
    /// N-grams of this text.
    pub context: &'a Cache,
    /// N-grams of earlier texts.
    pub dynamic: &'a Cache,
    /// 2-grams of a large corpus; they also weigh what the other two propose.
    pub static_cache: &'a Cache,
    /// The n-grams to look for in the first two: [`Sizes::ALL`], usually.
    pub sizes: Sizes,
}

/// How often an n-gram must have been seen, and which percentage its best token must have: by the n-gram's rank among the
/// sizes that are looked for (so llama.cpp), which from 1 on is its size.
type Thresholds = [(u32, u32); LONGEST];
const LAX: Thresholds = [(2, 66), (2, 50), (1, 50), (1, 50)];
const STRICT: Thresholds = [(4, 75), (3, 66), (2, 66), (2, 66)];
/// That of the static cache: the lax one of 2-grams.
const FIXED: (u32, u32) = (2, 50);
/// The n-grams of the static cache.
const FIXED_SIZE: usize = 2;

impl Levels<'_> {
    /// Drafts up to `n_draft` tokens that continue `history`. `draft` is emptied first; allocates nothing else.
    pub fn draft(&self, history: &[i32], n_draft: usize, draft: &mut Vec<Drafted>) {
        draft.clear();
        // The last tokens, and behind them those drafted.
        let start = history.len().saturating_sub(LONGEST);
        let mut tail = Tail::of(history.get(start..).unwrap_or_default());
        while draft.len() < n_draft {
            let Some(next) = self.next(tail.tokens()) else { break };
            draft.push(next);
            tail.push(next.token);
        }
    }

    /// The token that continues `history`, whose last 4 tokens matter. `None` where no cache is sure enough.
    pub fn next(&self, history: &[i32]) -> Option<Drafted> {
        let before = |size: usize| history.len().checked_sub(size).and_then(|start| history.get(start..));
        let static_key = Hashed::new(Key::new(before(FIXED_SIZE)?)?);
        let static_cache = self.static_cache.lookup(static_key);
        let mut keys = [None; LONGEST];
        for (slot, size) in keys.iter_mut().zip(self.sizes.iter()) {
            let other = || before(size).and_then(Key::new).map(Hashed::new);
            let Some(key) = (if size == FIXED_SIZE { Some(static_key) } else { other() }) else { break };
            *slot = Some((size, key));
        }
        let from = |cache: &Cache, level: Level, thresholds: &Thresholds| {
            if cache.is_empty() {
                return None;
            }
            keys.iter().zip(thresholds).rev().find_map(|(key, threshold)| {
                let (size, key) = (*key)?;
                let part = cache.lookup(key)?;
                Some(part.drafted(part.favourite(static_cache.as_ref(), *threshold)?, size, level))
            })
        };
        from(self.context, Level::Context, &LAX).or_else(|| from(self.dynamic, Level::Dynamic, &STRICT)).or_else(|| {
            let part = static_cache?;
            Some(part.drafted(part.favourite(None, FIXED)?, FIXED_SIZE, Level::Static))
        })
    }
}

impl Part<'_> {
    /// The token to draft, weighed with what the static cache knows.
    fn favourite(&self, static_cache: Option<&Part>, (seen, percent): (u32, u32)) -> Option<Count> {
        // It is the favourite's own share that counts, and nobody's is larger than the best's.
        let passes = |count: Count| 100 * u64::from(count.count) >= u64::from(percent) * u64::from(self.total);
        if self.total < seen || !passes(self.best) {
            return None;
        }
        static_cache
            .map_or(Some(self.best), |static_cache| Some(self.weighed(static_cache)).filter(|winner| passes(*winner)))
    }

    /// The token with the highest score.
    fn weighed(&self, static_cache: &Part) -> Count {
        let score = |count: u32, known: u32| u128::from(count) * if known == 0 { 1 } else { 100 * u128::from(known) };
        let mut winner = (score(self.best.count, static_cache.count(self.best.token)), self.best);
        let others = self.total - self.best.count;
        if score(others, static_cache.best.count) < winner.0 {
            return self.best; // as it nearly always is
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

    fn drafted(&self, count: Count, size: usize, level: Level) -> Drafted {
        Drafted { token: count.token, count: count.count, total: self.total, size, level }
    }
}

/// The last tokens of a text that grows.
struct Tail {
    tokens: [i32; LONGEST],
    length: usize,
}

impl Tail {
    /// Of at most that many tokens.
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
#[path = "draft_tests.rs"]
mod tests;
