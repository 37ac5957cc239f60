//! `ngram-cache`: llama.cpp's lookup decoding with three n-gram caches.
//!
//! The request's own text makes the context cache, which ends with it; what requests generated is in the dynamic one, a
//! corpus in the static one ([`Caches`]). llama.cpp's own drafter never counts the n-grams across the border of what was
//! there and what is new, and forgets nothing between requests; here every n-gram is counted once.

use std::sync::Arc;

use super::caches::{CacheFile, Caches};
use super::drafter::Draft;
use super::history_drafter::{HistoryDrafter, Limits, TextDrafter};
use super::{DrafterKind, Settings};
use crate::llama::Token;
use crate::ngram::{Cache, Drafted, Levels, Sizes};

/// The drafter.
pub type NgramCache = TextDrafter<Lookup>;

/// The rule.
pub struct Lookup {
    /// Of the request's text up to `known`.
    context: Cache,
    known: usize,
    /// The request's own files, in place of the caches that all share.
    fixed: Option<CacheFile>,
    dynamic: Option<CacheFile>,
    drafted: Vec<Drafted>,
}

impl HistoryDrafter for Lookup {
    const SOURCE: DrafterKind = DrafterKind::NgramCache;
    type Shared = Arc<Caches>;

    fn new(settings: &Settings) -> Self {
        let (fixed, dynamic) = (settings.lookup_static.clone(), settings.lookup_dynamic.clone());
        Lookup { context: Cache::new(), known: 0, fixed, dynamic, drafted: Vec::new() }
    }

    fn forget(&mut self) {
        self.context.clear();
        self.known = 0;
    }

    fn learn(&mut self, _shared: &Arc<Caches>, text: &[Token], _prompt: usize) {
        self.context.update(text, text.len().saturating_sub(self.known), Sizes::ALL);
        self.known = text.len();
    }

    fn draft(&mut self, shared: &Arc<Caches>, text: &[Token], limits: Limits<'_>, draft: &mut Draft) {
        let empty = Cache::new();
        let common = if self.dynamic.is_some() { None } else { shared.dynamic() };
        let own = self.dynamic.as_ref().map(|file| &*file.0);
        let dynamic = own.or(common.as_deref()).unwrap_or(&empty);
        let fixed = self.fixed.as_ref().map_or_else(|| shared.fixed(), |file| Arc::clone(&file.0));
        let levels = Levels { context: &self.context, dynamic, fixed: &fixed, sizes: Sizes::ALL };
        levels.draft(text, limits.n_max, &mut self.drafted);
        for drafted in &self.drafted {
            draft.push(drafted.token, confidence(drafted));
        }
    }

    fn remember(shared: &mut Arc<Caches>, context: &[Token], output: usize) {
        shared.learn(context, output);
    }
}

/// A token's share of what followed, as if the n-gram had been seen a little more often with other tokens; the more, the shorter
/// it is. A share of 1 of a single case is no certainty.
#[allow(clippy::cast_precision_loss)] // counts beyond 2^24 are sure enough
fn confidence(drafted: &Drafted) -> f32 {
    let doubt = 0.1 + 2.0 / drafted.size.max(1) as f32;
    drafted.count as f32 / (drafted.total as f32 + doubt)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ngram::Level;

    #[test]
    fn the_more_is_known_the_surer() {
        let of = |count, total, size| confidence(&Drafted { token: 1, count, total, size, level: Level::Context });
        let rising = [of(1, 2, 4), of(1, 1, 3), of(1, 1, 4), of(2, 2, 4), of(9, 9, 2), of(9, 9, 4), of(500, 500, 4)];
        assert!(rising.is_sorted() && rising.iter().all(|share| (0.0..1.0).contains(share)), "{rising:?}");
        assert!(of(500, 500, 4) > 0.99 && of(1, 1, 4) < 0.7, "{rising:?}");
    }
}
