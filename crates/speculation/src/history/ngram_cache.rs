//! `ngram-cache`: llama.cpp's lookup decoding with three n-gram caches.
//!
//! The context cache counts the request's own tokens and ends with the request. The dynamic cache counts the outputs of
//! earlier requests, the static cache a corpus ([`Caches`]). llama.cpp's drafter never counts n-grams across the boundary
//! between old and new tokens and keeps counts of earlier requests; here every n-gram is counted exactly once.

use std::path::Path;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use super::history_drafter::{HistoryDrafter, Limits, SlotDrafters};
use super::params::CacheFile;
use crate::{Draft, DrafterKind, Settings};
use foredraft_base::Token;
use foredraft_base::error::Result;
use foredraft_ngram::{Cache, CacheLevels, CacheStatistics, DraftedToken, Sizes};

/// The `ngram-cache` drafter.
pub type NgramCache = SlotDrafters<CacheLookup>;

/// The drafter of one slot.
pub struct CacheLookup {
    /// The context cache of the first `known` tokens.
    context: Cache,
    known: usize,
    /// The request's own cache files, used instead of the shared caches.
    static_cache: Option<CacheFile>,
    dynamic: Option<CacheFile>,
    drafted: Vec<DraftedToken>,
}

impl HistoryDrafter for CacheLookup {
    const KIND: DrafterKind = DrafterKind::NgramCache;
    type Shared = Arc<Caches>;

    fn new(settings: &Settings) -> Self {
        let (static_cache, dynamic) = (settings.lookup_static.clone(), settings.lookup_dynamic.clone());
        CacheLookup { context: Cache::new(), known: 0, static_cache, dynamic, drafted: Vec::new() }
    }

    fn reset(&mut self) {
        self.context.clear();
        self.known = 0;
    }

    fn extend(&mut self, _shared: &Arc<Caches>, text: &[Token], _prompt: usize) {
        self.context.update(text, text.len().saturating_sub(self.known), Sizes::ALL);
        self.known = text.len();
    }

    fn draft(&mut self, shared: &Arc<Caches>, text: &[Token], limits: Limits<'_>, draft: &mut Draft) {
        let empty = Cache::new();
        let common = if self.dynamic.is_some() { None } else { shared.dynamic() };
        let own = self.dynamic.as_ref().map(|file| &*file.0);
        let dynamic = own.or(common.as_deref()).unwrap_or(&empty);
        let static_cache = self.static_cache.as_ref().map_or_else(|| shared.static_cache(), |file| Arc::clone(&file.0));
        let levels = CacheLevels { context: &self.context, dynamic, static_cache: &static_cache, sizes: Sizes::ALL };
        levels.draft(text, limits.n_max, &mut self.drafted);
        for drafted in &self.drafted {
            draft.push(drafted.token, confidence(drafted));
        }
    }

    fn learn_output(shared: &mut Arc<Caches>, context: &[Token], output: usize) {
        shared.learn(context, output);
    }
}

/// The token's share of the n-gram's continuations, with additive smoothing that is stronger for shorter n-grams: a share
/// of 1 from a single observation is not certain.
#[allow(clippy::cast_precision_loss)] // Counts above 2^24 need no more precision.
fn confidence(drafted: &DraftedToken) -> f32 {
    let pseudo_count = 0.1 + 2.0 / drafted.size.max(1) as f32;
    drafted.count as f32 / (drafted.total as f32 + pseudo_count)
}

/// The dynamic cache adds no new n-grams beyond this number (about 200 MB), and only counts known ones.
const MAX_DYNAMIC_NGRAMS: usize = 1 << 22;

/// One of the shared caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheKind {
    /// 2-grams of a corpus, made by `lookup_create`.
    Static,
    /// N-grams of the outputs of requests.
    Dynamic,
}

/// The static and the dynamic cache, shared by the engine's thread, which drafts and learns, and the threads that load and
/// save. The engine never waits: while another thread holds a cache, the engine drafts without it and queues new outputs.
#[derive(Default)]
pub struct Caches {
    static_cache: Mutex<Arc<Cache>>,
    dynamic: Mutex<Cache>,
    /// Queued outputs, each with the number of context tokens before it.
    queued: Mutex<Vec<(Vec<Token>, usize)>>,
}

impl Caches {
    /// The static cache.
    pub fn static_cache(&self) -> Arc<Cache> {
        Arc::clone(&self.static_cache.lock())
    }

    /// The dynamic cache; `None` while another thread holds it.
    pub fn dynamic(&self) -> Option<MutexGuard<'_, Cache>> {
        self.dynamic.try_lock()
    }

    /// Counts the tokens of `text` from `output` on in the dynamic cache.
    pub fn learn(&self, text: &[Token], output: usize) {
        if output >= text.len() {
            return;
        }
        // N-grams that begin before the output need no more context than this.
        let from = output.saturating_sub(foredraft_ngram::LONGEST);
        self.queued.lock().push((text.get(from..).unwrap_or(&[]).to_vec(), output - from));
        if let Some(mut dynamic) = self.dynamic() {
            self.catch_up(&mut dynamic);
        }
    }

    fn catch_up(&self, dynamic: &mut Cache) {
        // A separate statement, so that the lock is not held while counting.
        let queued = std::mem::take(&mut *self.queued.lock());
        for (text, before) in queued {
            update_dynamic(dynamic, &text, text.len() - before, Sizes::ALL);
        }
    }

    /// Counts the last `appended` tokens of `history` in a cache, each after the n-grams of `sizes` before it.
    pub fn update(&self, kind: CacheKind, history: &[Token], appended: usize, sizes: Sizes) {
        // More tokens than these are counted without the lock, which the engine takes in each step.
        const FEW: usize = 1 << 10;
        if kind == CacheKind::Dynamic {
            update_dynamic(&mut self.up_to_date(), history, appended, sizes);
        } else {
            if appended <= FEW
                && let Some(cache) = Arc::get_mut(&mut *self.static_cache.lock())
            {
                return cache.update(history, appended, sizes);
            }
            let mut added = Cache::new();
            added.update(history, appended, sizes);
            self.merge(kind, &added);
        }
    }

    /// Drafts up to `n_draft` tokens that continue `history`, from the n-grams of `sizes` in the history itself and in the dynamic cache,
    /// and from the static cache; or from the history and `only` one of these. Waits for the dynamic cache.
    pub fn draft(&self, history: &[Token], n_draft: usize, sizes: Sizes, only: Option<CacheKind>) -> Vec<DraftedToken> {
        let mut context = Cache::new();
        context.update(history, history.len(), sizes);
        let (static_cache, dynamic, unused) = (self.static_cache(), self.up_to_date(), Cache::new());
        let levels = CacheLevels {
            context: &context,
            dynamic: if only == Some(CacheKind::Static) { &unused } else { &dynamic },
            static_cache: if only == Some(CacheKind::Dynamic) { &unused } else { &static_cache },
            sizes,
        };
        let mut draft = Vec::new();
        levels.draft(history, n_draft, &mut draft);
        draft
    }

    /// Replaces a cache. The dynamic cache also drops its queued outputs.
    pub fn set(&self, kind: CacheKind, cache: Cache) {
        match kind {
            CacheKind::Static => {
                // A separate statement, so that the old cache is freed after the lock is released.
                let before = std::mem::replace(&mut *self.static_cache.lock(), Arc::new(cache));
                drop(before);
            }
            CacheKind::Dynamic => {
                let mut dynamic = self.dynamic.lock();
                self.queued.lock().clear();
                *dynamic = cache;
            }
        }
    }

    /// Adds the counts of another cache.
    pub fn merge(&self, kind: CacheKind, other: &Cache) {
        match kind {
            // Merges without the lock, which the engine takes in each step, and retries if the cache was replaced.
            CacheKind::Static => loop {
                let before = self.static_cache();
                let mut merged = Cache::new();
                merged.merge(&before);
                merged.merge(other);
                let mut static_cache = self.static_cache.lock();
                if Arc::ptr_eq(&static_cache, &before) {
                    *static_cache = Arc::new(merged);
                    return;
                }
            },
            CacheKind::Dynamic => self.up_to_date().merge(other),
        }
    }

    /// Writes a cache to a file, whole or not at all.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self, kind: CacheKind, path: &Path) -> Result<()> {
        match kind {
            CacheKind::Static => self.static_cache().save(path),
            CacheKind::Dynamic => self.up_to_date().save(path),
        }
    }

    /// The size of a cache.
    pub fn statistics(&self, kind: CacheKind) -> CacheStatistics {
        match kind {
            CacheKind::Static => self.static_cache().statistics(),
            CacheKind::Dynamic => self.up_to_date().statistics(),
        }
    }

    /// The dynamic cache including all queued outputs. Waits for the lock.
    fn up_to_date(&self) -> MutexGuard<'_, Cache> {
        let mut dynamic = self.dynamic.lock();
        self.catch_up(&mut dynamic);
        dynamic
    }
}

/// Counts tokens in the dynamic cache. If it has very many n-grams, only known ones are counted.
fn update_dynamic(dynamic: &mut Cache, history: &[Token], appended: usize, sizes: Sizes) {
    match dynamic.len() < MAX_DYNAMIC_NGRAMS {
        true => dynamic.update(history, appended, sizes),
        false => dynamic.update_known(history, appended, sizes),
    }
}

/// Reads a cache file and checks that its tokens are in a vocabulary of `n_vocab`. If `may_be_missing`, a missing file is
/// an empty cache, as for a dynamic cache that has not been saved yet.
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
    use foredraft_ngram::CacheLevel;

    #[test]
    fn confidence_rises_with_count_share_and_length() {
        let of =
            |count, total, size| confidence(&DraftedToken { token: 1, count, total, size, level: CacheLevel::Context });
        let rising = [of(1, 2, 4), of(1, 1, 3), of(1, 1, 4), of(2, 2, 4), of(9, 9, 2), of(9, 9, 4), of(500, 500, 4)];
        assert!(rising.is_sorted() && rising.iter().all(|share| (0.0..1.0).contains(share)), "{rising:?}");
        assert!(of(500, 500, 4) > 0.99 && of(1, 1, 4) < 0.7, "{rising:?}");
    }

    fn next(caches: &Caches, history: &[Token]) -> Option<Token> {
        let (dynamic, static_cache) = (caches.dynamic()?, caches.static_cache());
        let levels =
            CacheLevels { context: &Cache::new(), dynamic: &dynamic, static_cache: &static_cache, sizes: Sizes::ALL };
        Some(levels.next(history)?.token)
    }

    #[test]
    fn outputs_are_counted_with_their_context_and_prompts_are_not() {
        let caches = Caches::default();
        for _ in 0..3 {
            caches.learn(&[1, 2, 3, 4, 5, 6, 7, 8], 6);
        }
        assert_eq!(next(&caches, &[3, 4, 5, 6]), Some(7));
        assert_eq!(next(&caches, &[4, 5, 6, 7]), Some(8));
        assert_eq!(next(&caches, &[1, 2, 3, 4]), None, "this n-gram is in the prompt");
        caches.learn(&[1, 2], 2);
        assert_eq!(caches.statistics(CacheKind::Dynamic).observations, 3 * 2 * 4);
    }

    /// The host's tokens are counted in pieces and at once, into both caches, and after outputs.
    #[test]
    fn hosts_update_caches_and_draft_from_all_three() {
        let caches = Caches::default();
        let history: Vec<Token> = (0..60).map(|index| [1, 2, 3, 1, 2, 4][index % 6]).collect();
        for kind in [CacheKind::Static, CacheKind::Dynamic] {
            let held = caches.static_cache(); // a step that drafts
            for end in 1..=history.len() {
                caches.update(kind, &history[..end], 1, Sizes::ALL);
            }
            drop(held);
            let pieces = caches.statistics(kind);
            caches.set(kind, Cache::new());
            caches.update(kind, &history, history.len(), Sizes::ALL);
            let at_once = caches.statistics(kind);
            assert_eq!((pieces.ngrams, pieces.observations), (at_once.ngrams, at_once.observations), "{kind:?}");
            caches.set(kind, Cache::new());
        }
        let levels = |caches: &Caches, history: &[Token]| -> Vec<(Token, CacheLevel)> {
            caches.draft(history, 2, Sizes::ALL, None).iter().map(|drafted| (drafted.token, drafted.level)).collect()
        };
        assert_eq!(levels(&caches, &history), [(1, CacheLevel::Context), (2, CacheLevel::Context)]);
        assert_eq!(levels(&caches, &[7, 8]), []);
        caches.update(CacheKind::Static, &[7, 8, 9, 7, 8, 9], 6, Sizes::STATIC);
        assert_eq!(levels(&caches, &[7, 8]), [(9, CacheLevel::Static)]);
        // Outputs that are still queued count, too.
        let held = caches.dynamic().expect("free");
        (0..4).for_each(|_| caches.learn(&[5, 6, 5, 6, 5], 0));
        drop(held);
        assert_eq!(levels(&caches, &[5, 6]), [(5, CacheLevel::Dynamic), (6, CacheLevel::Dynamic)]);
        let only = |kind: CacheKind, history: &[Token]| {
            caches.draft(history, 1, Sizes::ALL, Some(kind)).first().map(|drafted| drafted.token)
        };
        assert_eq!((only(CacheKind::Static, &[7, 8]), only(CacheKind::Dynamic, &[7, 8])), (Some(9), None));
        assert_eq!((only(CacheKind::Static, &[5, 6]), only(CacheKind::Dynamic, &[5, 6])), (None, Some(5)));
        assert_eq!((levels(&caches, &[]), caches.draft(&history, 0, Sizes::ALL, None)), (vec![], vec![]));
    }

    #[test]
    fn outputs_are_queued_while_the_cache_is_locked() {
        let caches = Caches::default();
        let held = caches.dynamic().expect("free");
        caches.learn(&[1, 2, 3], 0);
        assert!(caches.dynamic().is_none(), "the engine does not wait");
        drop(held);
        assert_eq!(caches.statistics(CacheKind::Dynamic).observations, 2 + 1);
    }

    #[test]
    fn replacing_the_dynamic_cache_drops_queued_outputs() {
        let caches = Caches::default();
        let held = caches.dynamic().expect("free");
        caches.learn(&[1, 2, 3], 0);
        drop(held);
        caches.set(CacheKind::Dynamic, Cache::new());
        assert_eq!(caches.statistics(CacheKind::Dynamic).observations, 0);
    }

    #[test]
    fn caches_can_be_replaced_merged_saved_and_read() {
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
            let error = read_cache("filename", &path, 3, false).err().expect("token 3 is outside the vocabulary");
            assert!(error.message().starts_with("filename: "), "{error}");
            std::fs::remove_file(&path).expect("removed");
            assert!(read_cache("filename", &path, 4, false).is_err());
            assert!(read_cache("filename", &path, 4, true).expect("may be missing").is_empty());
        }
    }
}
