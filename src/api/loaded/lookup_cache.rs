//! `lookup_cache`: load, save, merge, clear, update and inspect the n-gram caches of a running engine, and draft from them.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::api::loaded::local_engine::LocalEngine;
use crate::api::wire::answer::success;
use crate::api::wire::fields::{Fields, int_in, parse_object, word_in};
use crate::error::{Error, Result};
use crate::llama::Token;
use crate::ngram::{Cache, CacheLevel, CacheStatistics, DraftedToken, LONGEST, Sizes};
use crate::speculative::{CacheKind, read_cache};

/// The default of `n_draft`: llama.cpp's `--draft-max` of its lookup program.
const N_DRAFT: usize = 16;
/// The maximum `n_draft`.
const MAX_HOST_DRAFT: i64 = 1024;

foredraft_base::words! {
    #[derive(Clone, Copy)]
    enum CacheAction {
        Load => "load",
        Save => "save",
        Merge => "merge",
        Clear => "clear",
        Stats => "stats",
        Update => "update",
        Draft => "draft",
    }
}

const CACHES: [(&str, CacheKind); 2] = [("static", CacheKind::Static), ("dynamic", CacheKind::Dynamic)];

impl LocalEngine {
    /// `lookup_cache`: loads, saves, merges, clears or updates one of the engine's caches, or returns its size; or drafts from them.
    /// Requests continue to run meanwhile. Clearing the dynamic cache also clears the previous completions that `suffix` drafts from.
    ///
    /// # Errors
    /// The request is invalid, or the file cannot be read, is damaged, or cannot be written. The cache is then unchanged.
    pub fn lookup_cache(&self, request: &[u8]) -> Result<Value> {
        let object = parse_object(request)?;
        let mut fields = Fields::new(&object);
        let mut word = |key: &'static str| {
            fields.get(key).cloned().ok_or_else(|| Error::invalid(format!("{key}: expected a word, got nothing")))
        };
        let action = word_in("action", &word("action")?, &CacheAction::WORDS)?;
        if matches!(action, CacheAction::Draft) {
            return self.draft_from_caches(fields);
        }
        let kind = word_in("cache", &word("cache")?, &CACHES)?;
        let path = fields.c_text("filename")?.map(PathBuf::from);
        let path = || path.clone().ok_or_else(|| Error::invalid("filename: expected a path, got nothing"));
        let caches = self.worker()?.caches();
        let read = |path: &Path| read_cache("filename", path, self.models().target.vocab().n_tokens(), false);
        match action {
            CacheAction::Load => caches.set(kind, read(&path()?)?),
            CacheAction::Merge => caches.merge(kind, &read(&path()?)?),
            CacheAction::Save => caches.save(kind, &path()?).map_err(|error| error.within("filename"))?,
            CacheAction::Clear => {
                caches.set(kind, Cache::new());
                if kind == CacheKind::Dynamic {
                    self.worker()?.forget_answers()?;
                }
            }
            CacheAction::Update => {
                let tokens = self.lookup_tokens(&mut fields)?;
                let n_new: Option<usize> = fields.int("n_new", 0..=i64::try_from(tokens.len()).unwrap_or(i64::MAX))?;
                let sizes = if kind == CacheKind::Static { Sizes::STATIC } else { Sizes::ALL };
                let sizes = ngram_sizes(&mut fields, sizes)?;
                caches.update(kind, &tokens, n_new.unwrap_or(tokens.len()), sizes);
            }
            CacheAction::Stats | CacheAction::Draft => {}
        }
        Ok(success(statistics(&caches.statistics(kind)), fields.finish()))
    }

    /// Drafts tokens that continue those of the host, from their own n-grams (the context cache) and the engine's caches, or only
    /// the one that `cache` names.
    fn draft_from_caches(&self, mut fields: Fields) -> Result<Value> {
        let caches = self.worker()?.caches();
        let only = fields.get("cache").map(|value| word_in("cache", value, &CACHES)).transpose()?;
        let tokens = self.lookup_tokens(&mut fields)?;
        let n_draft = fields.int("n_draft", 0..=MAX_HOST_DRAFT)?.unwrap_or(N_DRAFT);
        let sizes = ngram_sizes(&mut fields, Sizes::ALL)?;
        let draft = caches.draft(&tokens, n_draft, sizes, only);
        let level = |drafted: &DraftedToken| match drafted.level {
            CacheLevel::Context => "context",
            CacheLevel::Dynamic => "dynamic",
            CacheLevel::Static => "static",
        };
        let answer = json!({
            "draft": draft.iter().map(|drafted| drafted.token).collect::<Vec<_>>(),
            "levels": draft.iter().map(level).collect::<Vec<_>>(),
        });
        Ok(success(answer, fields.finish()))
    }

    /// Reads `tokens`, which must be in the vocabulary.
    fn lookup_tokens(&self, fields: &mut Fields) -> Result<Vec<Token>> {
        let n_vocab = i64::try_from(self.models().target.vocab().n_tokens()).unwrap_or(i64::MAX);
        let token = |name: &str, value: &Value| int_in::<Token>(name, value, 0..=n_vocab.saturating_sub(1));
        let tokens = fields.list("tokens", "an array of token ids", token)?;
        tokens.ok_or_else(|| Error::invalid("tokens: expected an array of token ids, got nothing"))
    }
}

/// Reads `ngram_min` and `ngram_max`. A default is moved to the other one's range if necessary.
///
/// # Errors
/// They are out of range, or the least is above the most.
pub fn ngram_sizes(fields: &mut Fields, default: Sizes) -> Result<Sizes> {
    let longest = LONGEST as i64;
    let (min, max) = default.iter().into_inner();
    let (given_min, given_max) = (fields.int("ngram_min", 1..=longest)?, fields.int("ngram_max", 1..=longest)?);
    Sizes::new(
        given_min.unwrap_or_else(|| min.min(given_max.unwrap_or(min))),
        given_max.unwrap_or_else(|| max.max(given_min.unwrap_or(max))),
    )
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
