//! The validated speculation settings of a request.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::history::{CacheFile, Predicted, SuffixParams};

foredraft_base::words! {
    /// The kind of a drafter, or the target itself.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
    pub enum DrafterKind {
        /// Sampled from the target, without a draft or after a rejected token.
        Target => "target",
        /// The draft model.
        Draft => "draft",
        /// The target's own layers for multi-token prediction.
        Mtp => "mtp",
        /// n-gram caches: of the request, of earlier outputs, and of a file.
        NgramCache => "ngram-cache",
        /// The longest repetition in the request and in earlier outputs (suffix decoding).
        Suffix => "suffix",
        /// The output that the request predicts.
        Prediction => "prediction",
        /// The only continuation that the request's grammar allows.
        Grammar => "grammar",
    }
}

foredraft_base::words! {
    /// The verification rule. All rules preserve the output distribution. The first two also preserve the exact tokens for a seed. See
    /// [`super::verify`].
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum Verify {
        /// Target and draft take the argmax of log-probability plus the same Gumbel noise (arXiv 2408.07978), so they agree as often as their
        /// distributions do.
        Coupled => "coupled",
        /// The draft proposes its most probable token; the target samples and compares (`speculative.cpp`).
        Match => "match",
        /// A token drawn from the draft's q is accepted with the probability min(1, p/q) (arXiv 2302.01318).
        Rejection => "rejection",
        /// The drawn tokens are accepted together (arXiv 2403.10444).
        Block => "block",
    }
}

impl Verify {
    /// Returns whether verification compares probabilities (stochastic verification). Then drafts are drawn from q.
    pub fn draws(self) -> bool {
        matches!(self, Verify::Rejection | Verify::Block)
    }
}

/// The adaptation of the draft length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Adaptive {
    /// Chooses the length that pays, by the measured acceptance and costs. It can be 0.
    Auto,
    /// `speculative.cpp`'s rule: longer after a full acceptance, shorter after a rejection. A draft model's draft ends where its most
    /// probable token is less than twice as probable as the second one.
    Heuristic,
    /// Always `n_max`.
    Fixed,
}

/// The validated `speculative` object of a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The enabled drafters. If several drafts have the same expected gain, a history-based one is preferred.
    pub sources: Vec<DrafterKind>,
    /// The maximum number of drafted tokens per step, 1..=[`MAX_DRAFT`].
    pub n_max: usize,
    /// The same for history-based drafters with adaptive lengths. Their drafts cost nothing before verification, so they can be as long as
    /// the repetition.
    pub n_max_text: usize,
    /// Shorter drafts are dropped.
    pub n_min: usize,
    /// Drafting stops at a token with a smaller probability by the draft.
    pub p_min: f32,
    /// The maximum number of branches of a draft model's draft, 1..=[`MAX_BRANCHES`].
    pub n_branches: usize,
    /// The minimum probability of a token that starts a branch.
    pub p_split: f32,
    /// The verification rule.
    pub verify: Verify,
    /// The adaptation of the draft length.
    pub adaptive: Adaptive,
    /// The length of the first draft under [`Adaptive::Heuristic`], limited by `n_max`: `speculative.cpp`'s `n_draft`.
    pub n_draft: usize,
    /// The parameters of `suffix`.
    pub suffix: SuffixParams,
    /// The request's own n-gram caches. `None`: the shared ones.
    pub lookup_static: Option<CacheFile>,
    /// As `lookup_static`, for the dynamic cache, which is then not updated.
    pub lookup_dynamic: Option<CacheFile>,
    /// The output that the request predicts.
    pub prediction: Option<Arc<Predicted>>,
}

/// The default of `n_max` under [`Adaptive::Heuristic`], as in `speculative.cpp`.
pub const HEURISTIC_MAX: usize = 30;
/// The maximum of `n_max`.
pub const MAX_DRAFT: usize = 64;
/// The maximum number of branches.
pub const MAX_BRANCHES: usize = 8;

impl Settings {
    /// No drafters.
    pub fn none() -> Settings {
        Settings { sources: Vec::new(), ..Settings::default() }
    }

    /// The maximum number of tokens of the first draft.
    pub(super) fn first_length(&self) -> usize {
        if self.adaptive == Adaptive::Heuristic { self.n_draft.min(self.n_max) } else { self.n_max }
    }

    /// The same for free draft tokens, which cost nothing and so need no minimum probability.
    pub(super) fn for_free_token(&self) -> Settings {
        Settings { suffix: SuffixParams { offers_free_token: true, ..self.suffix }, ..self.clone() }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            sources: vec![DrafterKind::Suffix, DrafterKind::NgramCache, DrafterKind::Draft],
            n_max: 16,
            n_max_text: MAX_DRAFT,
            n_min: 0,
            p_min: 0.0,
            n_branches: 1,
            p_split: 0.1,
            verify: Verify::Coupled,
            adaptive: Adaptive::Auto,
            n_draft: 16,
            suffix: SuffixParams::default(),
            lookup_static: None,
            lookup_dynamic: None,
            prediction: None,
        }
    }
}
