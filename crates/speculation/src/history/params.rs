//! The settings of the model-free drafters: the parameters of `suffix`, and the cache file of a request.

use std::sync::Arc;

use foredraft_ngram::Cache;

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
