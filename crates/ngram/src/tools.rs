//! The work of llama.cpp's `llama-lookup-create`, `llama-lookup-merge` and `llama-lookup-stats`.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

use super::bulk::Bulk;
use super::cache::Cache;
use super::draft::{CacheLevel, CacheLevels, DraftedToken};
use super::key::{LONGEST, Sizes};
use foredraft_base::error::{Code, Error, Result};

/// Called with the progress (0..=1) of a long operation, at least every few milliseconds except while a file is read.
/// Breaking cancels the operation.
pub type WorkProgress<'a> = dyn FnMut(f32) -> ControlFlow<()> + 'a;

/// Tokens counted, or n-grams added, between two calls of [`WorkProgress`].
const STEP: usize = 1 << 15;

/// Reports progress; an error if the operation is cancelled.
fn report(progress: &mut WorkProgress, done: usize, all: usize) -> Result<()> {
    match progress(done as f32 / all.max(1) as f32) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(Error::new(Code::Cancelled, "it was stopped")),
    }
}

/// The cache of a token sequence: as [`Cache::update`] with all of it.
///
/// # Errors
/// [`Code::Cancelled`]: `progress` stopped it.
pub fn create(tokens: &[i32], sizes: Sizes, progress: &mut WorkProgress) -> Result<Cache> {
    let mut cache = Cache::new();
    let mut bulk = Bulk::new(&mut cache, sizes, tokens.len());
    for start in (0..tokens.len()).step_by(STEP) {
        report(progress, start, tokens.len())?;
        let end = tokens.len().min(start + STEP);
        bulk.update(tokens.get(..end).unwrap_or(tokens), end - start);
    }
    bulk.finish();
    report(progress, 1, 1)?;
    Ok(cache)
}

/// Merges the caches in files: adds up their counts.
///
/// # Errors
/// Those of [`Cache::load`]; [`Code::Cancelled`]: `progress` stopped it.
pub fn merge<P: AsRef<Path>>(files: &[P], n_vocab: Option<usize>, progress: &mut WorkProgress) -> Result<Cache> {
    let mut merged = Cache::new();
    for (done, file) in files.iter().enumerate() {
        report(progress, done, files.len())?;
        let next = Cache::load(file.as_ref(), n_vocab)?;
        if merged.is_empty() {
            merged = next;
            continue;
        }
        for start in (0..next.len()).step_by(STEP) {
            report(progress, done * next.len() + start, files.len() * next.len())?;
            merged.merge_records(&next, start..next.len().min(start + STEP));
        }
    }
    report(progress, 1, 1)?;
    Ok(merged)
}

/// Numbers of drafted and accepted tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Acceptance {
    /// Drafted tokens.
    pub drafted: usize,
    /// Accepted tokens: correct, with all tokens before them in the draft correct.
    pub accepted: usize,
}

impl Acceptance {
    fn add(&mut self, accepted: bool) {
        self.drafted += 1;
        self.accepted += usize::from(accepted);
    }
}

impl std::iter::Sum for Acceptance {
    fn sum<I: Iterator<Item = Acceptance>>(counts: I) -> Acceptance {
        counts.fold(Acceptance::default(), |sum, count| Acceptance {
            drafted: sum.drafted + count.drafted,
            accepted: sum.accepted + count.accepted,
        })
    }
}

/// Tokens drafted and verified between two calls of [`WorkProgress`].
const STATS_STEP: usize = 1 << 12;

/// The result of [`lookup_stats`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LookupStats {
    /// The number of tokens, without an incomplete last chunk.
    pub n_predict: usize,
    /// The acceptance by n-gram size (1 to 4) and position in the draft. [`LookupStats::static_cache`] has the static cache's drafts.
    pub by_size: [Vec<Acceptance>; LONGEST],
    /// Drafts of the static cache, by position.
    pub static_cache: Vec<Acceptance>,
    /// All drafts, by cache: context, dynamic, static.
    pub by_level: [Acceptance; 3],
    /// The time for drafting and for updating the context cache.
    pub t_draft: Duration,
}

impl LookupStats {
    /// All drafted and accepted tokens.
    pub fn all(&self) -> Acceptance {
        self.by_level.iter().copied().sum()
    }

    fn count(&mut self, position: usize, drafted: DraftedToken, accepted: bool) {
        let counts = match drafted.level {
            CacheLevel::Static => Some(&mut self.static_cache),
            CacheLevel::Context | CacheLevel::Dynamic => self.by_size.get_mut(drafted.size - 1),
        };
        counts.and_then(|counts| counts.get_mut(position)).into_iter().for_each(|count| count.add(accepted));
        let [context, dynamic, static_cache] = &mut self.by_level;
        match drafted.level {
            CacheLevel::Context => context.add(accepted),
            CacheLevel::Dynamic => dynamic.add(accepted),
            CacheLevel::Static => static_cache.add(accepted),
        }
    }
}

/// Replays a token sequence in chunks of `n_ctx` tokens as if it were generated: drafts up to `n_draft` tokens, accepts the
/// correct ones, takes the next one from the sequence. Each chunk has its own context cache, which is merged into `dynamic`
/// at its end.
///
/// As in llama.cpp, the last chunk is skipped even if it is complete; if it is, `n_predict` still counts it.
///
/// # Errors
/// `n_ctx` is 0; [`foredraft_base::error::Code::Cancelled`]: `progress` stopped it.
pub fn lookup_stats(
    tokens: &[i32],
    n_draft: usize,
    n_ctx: usize,
    dynamic: &mut Cache,
    static_cache: &Cache,
    progress: &mut WorkProgress,
) -> Result<LookupStats> {
    if n_ctx == 0 {
        return Err(Error::invalid("n_ctx: expected at least 1, got 0"));
    }
    let empty = vec![Acceptance::default(); n_draft.min(n_ctx)];
    let mut stats = LookupStats {
        n_predict: tokens.len() - tokens.len() % n_ctx,
        by_size: std::array::from_fn(|_| empty.clone()),
        static_cache: empty,
        ..LookupStats::default()
    };
    let mut context = Cache::new();
    let mut draft = Vec::new();
    let chunks = tokens.len().saturating_sub(1) / n_ctx;
    let mut due = 0;
    for (chunk, before) in tokens.chunks(n_ctx).take(chunks).zip((0..).step_by(n_ctx)) {
        let start = Instant::now();
        let mut length = 1;
        while length < chunk.len() {
            if before + length >= due {
                report(progress, before + length, chunks * n_ctx)?;
                due = before + length + STATS_STEP;
            }
            let (known, coming) = chunk.split_at(length);
            let levels = CacheLevels { context: &context, dynamic, static_cache, sizes: Sizes::ALL };
            levels.draft(known, n_draft, &mut draft);
            let accepted = draft.iter().zip(coming).take_while(|(drafted, token)| drafted.token == **token).count();
            for (position, drafted) in draft.iter().enumerate() {
                stats.count(position, *drafted, position < accepted);
            }
            // Plus one sampled token, unless the chunk ends.
            let new = (accepted + 1).min(coming.len());
            length += new;
            context.update(chunk.get(..length).unwrap_or(chunk), new, Sizes::ALL);
        }
        stats.t_draft += start.elapsed();
        dynamic.merge(&context);
        context.clear();
    }
    report(progress, 1, 1)?;
    Ok(stats)
}

#[cfg(test)]
mod tests;
