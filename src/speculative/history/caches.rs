//! The n-gram caches that all slots share: one of a large corpus, which requests only read, and one that learns what they
//! generate.

use std::path::Path;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use crate::error::Result;
use crate::llama::Token;
use crate::ngram::{Cache, Sizes, Statistics};

/// The dynamic cache learns no n-gram beyond so many, some 200 MB, and goes on to count those that it knows.
const MAX_LEARNT: usize = 1 << 22;

/// Which of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheKind {
    /// Of a corpus, made by `lookup_create`: 2-grams.
    Static,
    /// Of what requests generated.
    Dynamic,
}

/// A cache that was read from a file for a request.
#[derive(Clone)]
pub struct CacheFile(pub Arc<Cache>);

impl PartialEq for CacheFile {
    fn eq(&self, other: &CacheFile) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl std::fmt::Debug for CacheFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CacheFile({} n-grams)", self.0.len())
    }
}

/// Both, shared by the engine's thread, which drafts and learns, and those who load and save. The engine never waits: a
/// cache that somebody holds does not draft for that moment, and what is to be learnt meanwhile is learnt later.
#[derive(Default)]
pub struct Caches {
    fixed: Mutex<Arc<Cache>>,
    dynamic: Mutex<Cache>,
    /// Outputs to be learnt, each with the number of tokens before it that are only context.
    waiting: Mutex<Vec<(Vec<Token>, usize)>>,
}

impl Caches {
    /// The static cache.
    pub fn fixed(&self) -> Arc<Cache> {
        Arc::clone(&self.fixed.lock())
    }

    /// The dynamic one, unless somebody else holds it.
    pub fn dynamic(&self) -> Option<MutexGuard<'_, Cache>> {
        self.dynamic.try_lock()
    }

    /// Counts the tokens of `text` from `output` on in the dynamic cache.
    pub fn learn(&self, text: &[Token], output: usize) {
        if output >= text.len() {
            return;
        }
        // The n-grams that reach back need no more context than this.
        let from = output.saturating_sub(crate::ngram::LONGEST);
        self.waiting.lock().push((text.get(from..).unwrap_or(&[]).to_vec(), output - from));
        if let Some(mut dynamic) = self.dynamic() {
            self.catch_up(&mut dynamic);
        }
    }

    fn catch_up(&self, dynamic: &mut Cache) {
        // In a statement of its own, so that nobody waits for the lock while this counts.
        let waiting = std::mem::take(&mut *self.waiting.lock());
        for (text, before) in waiting {
            let appended = text.len() - before;
            match dynamic.len() < MAX_LEARNT {
                true => dynamic.update(&text, appended, Sizes::ALL),
                false => dynamic.update_known(&text, appended, Sizes::ALL),
            }
        }
    }

    /// Replaces a cache, and what it was yet to learn.
    pub fn set(&self, kind: CacheKind, cache: Cache) {
        match kind {
            CacheKind::Static => {
                // In a statement of its own: it is freed when the lock is not held any more.
                let before = std::mem::replace(&mut *self.fixed.lock(), Arc::new(cache));
                drop(before);
            }
            CacheKind::Dynamic => {
                let mut dynamic = self.dynamic.lock();
                self.waiting.lock().clear();
                *dynamic = cache;
            }
        }
    }

    /// Adds what another cache has counted.
    pub fn merge(&self, kind: CacheKind, other: &Cache) {
        match kind {
            // Without the lock, which the engine takes in each step; again where somebody else replaced it meanwhile.
            CacheKind::Static => loop {
                let before = self.fixed();
                let mut merged = Cache::new();
                merged.merge(&before);
                merged.merge(other);
                let mut fixed = self.fixed.lock();
                if Arc::ptr_eq(&fixed, &before) {
                    *fixed = Arc::new(merged);
                    return;
                }
            },
            CacheKind::Dynamic => self.learnt().merge(other),
        }
    }

    /// Writes a cache to a file, whole or not at all.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self, kind: CacheKind, path: &Path) -> Result<()> {
        match kind {
            CacheKind::Static => self.fixed().save(path),
            CacheKind::Dynamic => self.learnt().save(path),
        }
    }

    /// How much a cache knows.
    pub fn statistics(&self, kind: CacheKind) -> Statistics {
        match kind {
            CacheKind::Static => self.fixed().statistics(),
            CacheKind::Dynamic => self.learnt().statistics(),
        }
    }

    /// The dynamic cache with all that was to be learnt.
    fn learnt(&self) -> MutexGuard<'_, Cache> {
        let mut dynamic = self.dynamic.lock();
        self.catch_up(&mut dynamic);
        dynamic
    }
}

/// Reads a cache file whose tokens are all in a vocabulary of `n_vocab`. A missing one is an empty cache where
/// `may_be_missing`, as for a dynamic cache that is yet to be saved.
///
/// # Errors
/// The file cannot be read or is damaged; `name` is the field that names it.
pub fn read_cache(name: &str, path: &Path, n_vocab: usize, may_be_missing: bool) -> Result<Cache> {
    if may_be_missing && !path.exists() {
        return Ok(Cache::new());
    }
    Cache::load(path, Some(n_vocab)).map_err(|error| error.within(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ngram::Levels;

    fn next(caches: &Caches, history: &[Token]) -> Option<Token> {
        let (dynamic, fixed) = (caches.dynamic()?, caches.fixed());
        let levels = Levels { context: &Cache::new(), dynamic: &dynamic, fixed: &fixed, sizes: Sizes::ALL };
        Some(levels.next(history)?.token)
    }

    #[test]
    fn outputs_are_learnt_with_what_was_before_them_and_prompts_are_not() {
        let caches = Caches::default();
        for _ in 0..3 {
            caches.learn(&[1, 2, 3, 4, 5, 6, 7, 8], 6);
        }
        assert_eq!(next(&caches, &[3, 4, 5, 6]), Some(7));
        assert_eq!(next(&caches, &[4, 5, 6, 7]), Some(8));
        assert_eq!(next(&caches, &[1, 2, 3, 4]), None, "that is the prompt's");
        caches.learn(&[1, 2], 2);
        assert_eq!(caches.statistics(CacheKind::Dynamic).observations, 3 * 2 * 4);
    }

    #[test]
    fn what_comes_while_a_cache_is_in_use_is_learnt_later() {
        let caches = Caches::default();
        let held = caches.dynamic().expect("free");
        caches.learn(&[1, 2, 3], 0);
        assert!(caches.dynamic().is_none(), "nobody waits");
        drop(held);
        assert_eq!(caches.statistics(CacheKind::Dynamic).observations, 2 + 1);
    }

    #[test]
    fn what_waits_to_be_learnt_is_forgotten_with_the_rest() {
        let caches = Caches::default();
        let held = caches.dynamic().expect("free");
        caches.learn(&[1, 2, 3], 0);
        drop(held);
        caches.set(CacheKind::Dynamic, Cache::new());
        assert_eq!(caches.statistics(CacheKind::Dynamic).observations, 0);
    }

    #[test]
    fn caches_are_replaced_merged_saved_and_read_again() {
        let caches = Caches::default();
        let mut one = Cache::new();
        one.update(&[1, 2, 3], 3, Sizes::ALL);
        for kind in [CacheKind::Static, CacheKind::Dynamic] {
            caches.merge(kind, &one);
            caches.merge(kind, &one);
            let path = std::env::temp_dir().join(format!("foredraft-caches-{}-{kind:?}", std::process::id()));
            caches.save(kind, &path).expect("saved");
            let before = caches.statistics(kind);
            assert_eq!(before.observations, 6);
            caches.set(kind, Cache::new());
            assert_eq!(caches.statistics(kind).observations, 0);
            caches.set(kind, read_cache("filename", &path, 4, false).expect("read"));
            assert_eq!(caches.statistics(kind).observations, 6);
            let error = read_cache("filename", &path, 3, false).err().expect("token 3 is none");
            assert!(error.message().starts_with("filename: "), "{error}");
            std::fs::remove_file(&path).expect("removed");
            assert!(read_cache("filename", &path, 4, false).is_err());
            assert!(read_cache("filename", &path, 4, true).expect("may be missing").is_empty());
        }
    }
}
