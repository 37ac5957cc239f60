//! The settings of the model-free drafters: parameters with llama.cpp's names and defaults (`common/common.h`), and the cache
//! file of a request.

use std::sync::Arc;

use foredraft_ngram::Cache;

/// Parameters of `ngram-simple`, `ngram-map-k` and `ngram-map-k4v`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LookupParams {
    /// Tokens that must match, at least 1 (`size_n`).
    pub size_n: usize,
    /// Tokens drafted after a match, at least 1 (`size_m`).
    pub size_m: usize,
    /// Successful lookups of an n-gram before it drafts. Only `ngram-map-k4v` uses it, as in llama.cpp.
    pub min_hits: u32,
}

impl Default for LookupParams {
    fn default() -> Self {
        LookupParams { size_n: 12, size_m: 48, min_hits: 1 }
    }
}

/// Parameters of `ngram-mod`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModParams {
    /// Tokens that must match, at least 1.
    pub n_match: usize,
    /// Shorter drafts are dropped.
    pub n_min: usize,
    /// The longest draft.
    pub n_max: usize,
}

impl Default for ModParams {
    fn default() -> Self {
        ModParams { n_match: 24, n_min: 48, n_max: 64 }
    }
}

/// Parameters of `suffix`, which llama.cpp does not have. The names are SuffixDecoding's (arXiv 2411.04975).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SuffixParams {
    /// Longest context whose continuations are counted; values above 5 act as 5. Matches may be longer.
    pub max_depth: usize,
    /// A draft is at most this many times as long as the match.
    pub factor: f32,
    /// A draft ends where the probability of the whole draft falls below this.
    pub min_prob: f32,
    /// Whether the first token may be less probable than that. Set where verifying one token is free.
    pub offers_free_token: bool,
}

impl Default for SuffixParams {
    fn default() -> Self {
        SuffixParams { max_depth: 5, factor: 4.0, min_prob: 0.1, offers_free_token: false }
    }
}

/// The parameters of all model-free drafters.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct NgramParams {
    /// `ngram-simple`.
    pub simple: LookupParams,
    /// `ngram-map-k`.
    pub map_k: LookupParams,
    /// `ngram-map-k4v`.
    pub map_k4v: LookupParams,
    /// `ngram-mod`.
    pub modulo: ModParams,
    /// `suffix`.
    pub suffix: SuffixParams,
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
