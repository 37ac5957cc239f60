//! How well a text is drafted from caches, as llama.cpp's `llama-lookup-stats` finds out (`examples/lookup/lookup-stats.cpp`).

use std::time::{Duration, Instant};

use super::cache::Cache;
use super::draft::{Drafted, Level, Levels};
use super::key::{LONGEST, Sizes};
use super::tools::{Progress, report};
use crate::error::{Error, Result};

/// How many tokens were drafted, and how many of them were right.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Drafted.
    pub drafted: usize,
    /// Accepted: right, and all before them as well.
    pub accepted: usize,
}

impl Tally {
    /// The accepted share, 0..=1; `None` when nothing was drafted.
    pub fn rate(self) -> Option<f64> {
        (self.drafted > 0).then(|| self.accepted as f64 / self.drafted as f64)
    }

    fn add(&mut self, accepted: bool) {
        self.drafted += 1;
        self.accepted += usize::from(accepted);
    }
}

impl std::iter::Sum for Tally {
    fn sum<I: Iterator<Item = Tally>>(tallies: I) -> Tally {
        tallies.fold(Tally::default(), |sum, tally| Tally {
            drafted: sum.drafted + tally.drafted,
            accepted: sum.accepted + tally.accepted,
        })
    }
}

/// So many tokens are drafted and checked between two looks at the [`Progress`].
const STEP: usize = 1 << 12;

/// What [`lookup_stats`] found.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LookupStats {
    /// The most tokens of a draft.
    pub n_draft: usize,
    /// The tokens of the text, without those of the last chunk if it is not a whole one.
    pub n_predict: usize,
    /// By n-gram size (1 to 4) and then by position in the draft. Drafts of the static cache are in [`LookupStats::static_cache`].
    pub by_size: [Vec<Tally>; LONGEST],
    /// The static cache's, by position.
    pub static_cache: Vec<Tally>,
    /// Of all, by level: context, dynamic, static.
    pub by_level: [Tally; 3],
    /// The time for drafting and for updating the context's cache.
    pub t_draft: Duration,
}

impl LookupStats {
    /// All drafted and accepted tokens.
    pub fn all(&self) -> Tally {
        self.by_level.iter().copied().sum()
    }

    fn count(&mut self, position: usize, drafted: Drafted, accepted: bool) {
        let tallies = match drafted.level {
            Level::Static => Some(&mut self.static_cache),
            Level::Context | Level::Dynamic => self.by_size.get_mut(drafted.size - 1),
        };
        tallies.and_then(|tallies| tallies.get_mut(position)).into_iter().for_each(|tally| tally.add(accepted));
        let [context, dynamic, static_cache] = &mut self.by_level;
        match drafted.level {
            Level::Context => context.add(accepted),
            Level::Dynamic => dynamic.add(accepted),
            Level::Static => static_cache.add(accepted),
        }
    }
}

/// Goes through a text in chunks of `n_ctx` tokens, each as if it were being generated: drafts up to `n_draft` tokens,
/// accepts those that are right, takes the next one from the text. The chunk's n-grams are its context's; after it they
/// are added to `dynamic`.
///
/// As llama.cpp does, it leaves out the last chunk, even if that is whole, and counts that in `n_predict`.
///
/// # Errors
/// `n_ctx` is 0; [`crate::error::Code::Cancelled`]: `progress` stopped it.
pub fn lookup_stats(
    tokens: &[i32],
    n_draft: usize,
    n_ctx: usize,
    dynamic: &mut Cache,
    static_cache: &Cache,
    progress: &mut Progress,
) -> Result<LookupStats> {
    if n_ctx == 0 {
        return Err(Error::invalid("n_ctx: expected at least 1, got 0"));
    }
    let empty = vec![Tally::default(); n_draft.min(n_ctx)];
    let mut stats = LookupStats {
        n_draft,
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
                due = before + length + STEP;
            }
            let (known, coming) = chunk.split_at(length);
            let levels = Levels { context: &context, dynamic, static_cache, sizes: Sizes::ALL };
            levels.draft(known, n_draft, &mut draft);
            let accepted = draft.iter().zip(coming).take_while(|(drafted, token)| drafted.token == **token).count();
            for (position, drafted) in draft.iter().enumerate() {
                stats.count(position, *drafted, position < accepted);
            }
            // And one token that is sampled, if the chunk does not end before.
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
#[path = "stats_tests.rs"]
mod tests;
