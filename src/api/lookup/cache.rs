//! `lookup_cache`: load, save, merge, clear and inspect the n-gram caches of a running engine.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::api::Server;
use crate::api::fields::{Fields, parse_object, word_in};
use crate::api::response::success;
use crate::error::{Error, Result};
use crate::ngram::{Cache, CacheStatistics};
use crate::speculative::{CacheKind, read_cache};

#[derive(Clone, Copy)]
enum CacheAction {
    Load,
    Save,
    Merge,
    Clear,
    Stats,
}

const ACTIONS: [(&str, CacheAction); 5] = [
    ("load", CacheAction::Load),
    ("save", CacheAction::Save),
    ("merge", CacheAction::Merge),
    ("clear", CacheAction::Clear),
    ("stats", CacheAction::Stats),
];
const CACHES: [(&str, CacheKind); 2] = [("static", CacheKind::Static), ("dynamic", CacheKind::Dynamic)];

impl Server {
    /// `lookup_cache`: loads, saves, merges or clears one of the engine's caches, or returns its size. Requests continue to run
    /// meanwhile. Clearing the dynamic cache also clears the previous completions that `suffix` drafts from.
    ///
    /// # Errors
    /// The request is invalid, or the file cannot be read, is damaged, or cannot be written. The cache is then unchanged.
    pub fn lookup_cache(&self, request: &[u8]) -> Result<Value> {
        let object = parse_object(request)?;
        let mut fields = Fields::new(&object);
        let mut word = |key: &'static str| {
            fields.get(key).cloned().ok_or_else(|| Error::invalid(format!("{key}: expected a word, got nothing")))
        };
        let action = word_in("action", &word("action")?, &ACTIONS)?;
        let kind = word_in("cache", &word("cache")?, &CACHES)?;
        let path = fields.c_text("filename")?.map(PathBuf::from);
        let path = || path.clone().ok_or_else(|| Error::invalid("filename: expected a path, got nothing"));
        let caches = self.engine()?.caches();
        let read = |path: &Path| read_cache("filename", path, self.models().target.vocab().n_tokens(), false);
        match action {
            CacheAction::Load => caches.set(kind, read(&path()?)?),
            CacheAction::Merge => caches.merge(kind, &read(&path()?)?),
            CacheAction::Save => caches.save(kind, &path()?).map_err(|error| error.within("filename"))?,
            CacheAction::Clear => {
                caches.set(kind, Cache::new());
                if kind == CacheKind::Dynamic {
                    self.engine()?.forget_answers()?;
                }
            }
            CacheAction::Stats => {}
        }
        Ok(success(statistics(&caches.statistics(kind)), fields.finish()))
    }
}

/// The contents of a cache: n-grams in total and by size, continuations, and the size in memory and as a file, in bytes.
fn statistics(statistics: &CacheStatistics) -> Value {
    json!({
        "n_ngrams": statistics.ngrams.iter().sum::<usize>(),
        "ngrams": statistics.ngrams,
        "n_continuations": statistics.continuations,
        "n_observations": statistics.observations,
        "memory_bytes": statistics.bytes,
        "file_bytes": statistics.file_bytes,
    })
}
