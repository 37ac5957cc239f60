//! N-gram caches: which tokens followed the last 1 to 4, and drafts made of that. Pure data over `i32` tokens.
//!
//! ```text
//! key ── hash ──> index: one u32 ──> record: 32 bytes ──> list of the other tokens, where there are any
//!                 (number, some      key, best token and  (sorted by id, in one pool)
//!                  of the hash)      count, total, list
//! ```
//!
//! - [`Cache`] (`cache`, on `key`, `index` and `pool`): update, get, merge, statistics. `file`: llama.cpp's files, both ways;
//!   `whole`: files that are written whole or not at all.
//!   `bulk`: what long texts repeat is added up before it gets there.
//! - [`Levels`] (`draft`): llama.cpp's rule over a context, a dynamic and a static cache.
//! - [`create`], [`merge`], [`lookup_stats`] (`tools`, `stats`, `plot`): the work of llama.cpp's lookup programs.
//! - `naive` (tests only): all of it once more, in maps.
//!
//! # One structure, and why files are not mapped
//! The first idea was a mapped file with an index, and a second structure over it for what changes. But who truncates a
//! mapped file ends the host (SIGBUS), and who changes it changes what was validated. `read` into memory of our own takes
//! 5 ms for 18 MB (mapping it with `MAP_POPULATE`: 1 to 5 ms), 1 % of what llama.cpp takes to load it, and cures both. And once
//! bytes are copied they may as well be copied to where they serve best: best, total and the other tokens of a record
//! are then known without walking its values, a cache that was loaded is not slower to change than one that was
//! not, and lookups never ask two structures. A file is streamed once into two flat vectors and indexed in bulk; memory is
//! taken for what is there, not for what a number in the file says.
//!
//! Measured (2 cores shared with others, CPU time; 627 thousand 2-grams, 707 thousand pairs, 18 MB; drafts from 1.1 million
//! n-grams of 1 to 4, all differences of drafts being ties):
//!
//! | | llama.cpp | here |
//! | --- | --- | --- |
//! | memory | 159 MB | 25 MB loaded, 26 MB updated |
//! | load | 410 ms | 62 ms |
//! | update, a token at a time (4 n-grams) | 1.9 µs | .44 µs |
//! | update, all at once | 794 ms | 122 ms |
//! | a drafted token (9 lookups) | 7.9 µs | .36 µs |
//!
//! Five million tokens of the benchmark's corpus at once, without `bulk` and with it: 2-grams 175 and 85 ms, 1- to 4-grams 1.11 and
//! .32 s; of words of Rust sources, which repeat less, 1- to 4-grams 2.9 and 1.9 s. Tried there: tables in which the newer
//! of two takes the other's place (2-grams: 1.15 times as long as without, too much went on to the cache); fetching the
//! places of 32 n-grams at once (fewer waits, more instructions: 1.1 times as long).
//!
//! Tried and measured as well: looking at one key after the other where many are known (updates take 1.15 times as long; the
//! memory answers 32 questions at once in little more than the time of one, see `Index::touch`); asking for all nine places of
//! a draft's lookups at once (1.2 to 1.6 times as long: most of them are not needed); two passes over a file, the first to count, so that
//! nothing has to grow (twice the time, together with keys indexed one by one).

mod bulk;
mod cache;
mod draft;
mod file;
mod index;
mod key;
mod plot;
mod pool;
mod stats;
mod tools;

pub use cache::{Cache, Part, Statistics};
pub use draft::{Drafted, Level, Levels};
pub(crate) use key::seed;
pub use key::{LONGEST, Sizes};
pub use pool::Count;
pub use stats::{LookupStats, Tally, lookup_stats};
pub use tools::{Progress, create, merge};

#[cfg(test)]
#[path = "naive_tests.rs"]
pub(crate) mod naive;
