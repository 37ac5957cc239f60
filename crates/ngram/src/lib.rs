//! N-gram caches: counts of the tokens that followed each n-gram of 1 to 4 tokens, and drafts from those counts. Plain data
//! over `i32` tokens; no model.
//!
//! ```text
//! key ── hash ──> index: one u32 ──> record: 32 bytes ──> list of the other tokens, if there are any
//!                 (number, some      key, best token and  (sorted by id, in one pool)
//!                  of the hash)      count, total, list
//! ```
//!
//! - [`Cache`] (`cache`, on `key`, `index` and `pool`): update, get, merge, statistics. `file`: llama.cpp's file format.
//!   `bulk`: aggregates the repetitions of long inputs before they reach the cache.
//! - [`CacheLevels`] (`draft`): llama.cpp's drafting rule over a context, a dynamic and a static cache.
//! - [`create`], [`merge`], [`lookup_stats`] (`tools`): the work of llama.cpp's lookup programs.
//! - `naive` (tests only): the same with maps.
//!
//! # Why files are not memory-mapped
//! The first design was a mapped file with an index, and a second structure for changes. But truncating a mapped file ends
//! the host process (SIGBUS), and changing it invalidates the validation. Reading 18 MB takes 5 ms (mapping with
//! `MAP_POPULATE`: 1 to 5 ms), 1 % of llama.cpp's load time, and avoids both. Copied bytes can also be stored in a better
//! layout: the best token and the total of a record are known without a scan, a loaded cache can be updated like any other,
//! and a lookup searches one structure. A file is streamed once into two flat vectors and indexed in bulk. Memory is
//! allocated for data that was read, not for sizes that the file claims.
//!
//! Measured on 2 shared cores (CPU time; 627 thousand 2-grams, 707 thousand pairs, 18 MB; drafts from 1.1 million n-grams of
//! 1 to 4 tokens; drafts differ only in ties):
//!
//! | | llama.cpp | here |
//! | --- | --- | --- |
//! | memory | 159 MB | 25 MB loaded, 26 MB updated |
//! | load | 410 ms | 62 ms |
//! | update, a token at a time (4 n-grams) | 1.9 µs | .44 µs |
//! | update, all at once | 794 ms | 122 ms |
//! | a drafted token (9 lookups) | 7.9 µs | .36 µs |
//!
//! Five million tokens of the benchmark's corpus at once, without and with `bulk`: 2-grams 175 and 85 ms, 1- to 4-grams 1.11
//! and .32 s. Words of Rust sources, which repeat less: 1- to 4-grams 2.9 and 1.9 s.
//!
//! Measured and rejected for `bulk`: direct-mapped tables in which a new entry replaces the old one (2-grams: 1.15 times the
//! time without them), and prefetching 32 entries at once (1.1 times the time). For the cache: updating keys one by one
//! (1.15 times the time; memory serves 32 accesses at once in little more than the time of one, see `Index::prefetch`);
//! prefetching all nine lookups of a draft token (1.2 to 1.6 times; most are not needed); two passes over a file, the first
//! one to count (twice the time, together with indexing keys one by one).

// The checks in fuzz/ name the crate, also in unit tests.
#[cfg(test)]
extern crate self as foredraft_ngram;

mod bulk;
mod cache;
mod draft;
mod file;
mod index;
mod key;
mod pool;
mod tools;

pub use cache::{Cache, CacheStatistics, NgramCounts};
pub use draft::{CacheLevel, CacheLevels, DraftedToken};
pub use key::seed;
pub use key::{LONGEST, Sizes};
pub use pool::TokenCount;
pub use tools::{Acceptance, LookupStats, WorkProgress, create, lookup_stats, merge};

#[cfg(test)]
mod tests;
