//! `lookup_cache`: the engine's own n-gram caches, while it serves; and the cache files that requests name.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::super::Server;
use super::super::fields::{Fields, parse_object, word_in};
use super::super::response::success;
use crate::error::{Error, Result};
use crate::ngram::{Cache, CacheStatistics};
use crate::speculative::{CacheFile, CacheKind, read_cache};

#[derive(Clone, Copy)]
enum Action {
    Load,
    Save,
    Merge,
    Clear,
    Stats,
}

const ACTIONS: [(&str, Action); 5] = [
    ("load", Action::Load),
    ("save", Action::Save),
    ("merge", Action::Merge),
    ("clear", Action::Clear),
    ("stats", Action::Stats),
];
const CACHES: [(&str, CacheKind); 2] = [("static", CacheKind::Static), ("dynamic", CacheKind::Dynamic)];

impl Server {
    /// `lookup_cache`: loads, saves, merges, clears one of the engine's caches or tells how much it knows. Generation goes
    /// on meanwhile; what it learns is counted afterwards. To clear the dynamic one makes `suffix` forget earlier answers too.
    ///
    /// # Errors
    /// The request is wrong, or the file cannot be read, is damaged, or cannot be written; the cache is then as it was.
    pub fn lookup_cache(&self, request: &[u8]) -> Result<Value> {
        let object = parse_object(request)?;
        let mut fields = Fields::new(&object);
        let mut word =
            |key: &'static str| fields.get(key).cloned().ok_or_else(|| Error::invalid(format!("{key}: is missing")));
        let action = word_in("action", &word("action")?, &ACTIONS)?;
        let kind = word_in("cache", &word("cache")?, &CACHES)?;
        let path = fields.c_text("filename")?.map(PathBuf::from);
        let path = || path.clone().ok_or_else(|| Error::invalid("filename: is missing"));
        let caches = self.engine()?.caches();
        let read = |path: &Path| read_cache("filename", path, self.models().target.vocab().n_tokens(), false);
        match action {
            Action::Load => caches.set(kind, read(&path()?)?),
            Action::Merge => caches.merge(kind, &read(&path()?)?),
            Action::Save => caches.save(kind, &path()?).map_err(|error| error.within("filename"))?,
            Action::Clear => {
                caches.set(kind, Cache::new());
                if kind == CacheKind::Dynamic {
                    self.engine()?.forget_answers()?;
                }
            }
            Action::Stats => {}
        }
        Ok(success(statistics(&caches.statistics(kind)), fields.finish()))
    }
}

/// What a cache knows: n-grams in all and by size, what followed them, and the sizes of memory and file in bytes.
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

/// Files kept in memory for the next request that names them; of more than these the one unused for longest is dropped.
const MAX_FILES: usize = 4;

/// The cache files that requests named, read once as long as they do not change.
#[derive(Default)]
pub(in crate::api) struct CacheFiles {
    /// The last used comes last.
    files: Mutex<Vec<(PathBuf, Version, CacheFile)>>,
}

/// What shows that a file was replaced.
#[derive(PartialEq)]
struct Version {
    modified: Option<SystemTime>,
    len: u64,
    /// 0 where there is no such number.
    inode: u64,
}

impl Version {
    fn of(path: &Path) -> Option<Version> {
        let metadata = std::fs::metadata(path).ok()?;
        #[cfg(unix)]
        let inode = std::os::unix::fs::MetadataExt::ino(&metadata);
        #[cfg(not(unix))]
        let inode = 0;
        Some(Version { modified: metadata.modified().ok(), len: metadata.len(), inode })
    }
}

impl CacheFiles {
    /// The cache in `path`, which the field `name` names.
    ///
    /// # Errors
    /// The file cannot be read or is damaged.
    pub(in crate::api) fn get(&self, name: &str, path: &Path, n_vocab: usize) -> Result<CacheFile> {
        let version = Version::of(path);
        {
            let mut files = self.files.lock();
            let known = files.iter().position(|(known, of, _)| known == path && Some(of) == version.as_ref());
            if let Some(known) = known {
                let file = files.remove(known);
                let cache = file.2.clone();
                files.push(file);
                return Ok(cache);
            }
        }
        // Without the lock: others read other files meanwhile.
        let cache = CacheFile(Arc::new(read_cache(name, path, n_vocab, false)?));
        if let Some(version) = version {
            let mut files = self.files.lock();
            files.retain(|(known, ..)| known != path);
            files.push((path.to_owned(), version, cache.clone()));
            if files.len() > MAX_FILES {
                files.remove(0);
            }
        }
        Ok(cache)
    }
}
