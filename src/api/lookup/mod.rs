//! The lookup functions: n-gram caches as files, the caches of a running engine, and the progress of long calls.

mod cache;
mod cache_files;
mod progress;
mod tools;

pub(super) use self::cache_files::CacheFiles;
pub(super) use self::progress::{RunningLookup, RunningLookups};
