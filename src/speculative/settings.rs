//! What a request asks of speculation, already validated.

use std::sync::Arc;

use super::{CacheFile, NgramParams, Predicted, SuffixParams};

/// Who proposed a token: the target itself or one of the drafters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DrafterKind {
    /// Sampled from the target where nothing was drafted, or where the draft was wrong.
    Target,
    /// The draft model.
    Draft,
    /// The target's own layers for multi-token prediction.
    Mtp,
    /// n-gram caches: of the request, of earlier outputs, and of a file.
    NgramCache,
    /// llama.cpp's `ngram-simple`: what followed the last time that the text was here.
    NgramSimple,
    /// llama.cpp's `ngram-map-k`.
    NgramMapK,
    /// llama.cpp's `ngram-map-k4v`.
    NgramMapK4v,
    /// llama.cpp's `ngram-mod`.
    NgramMod,
    /// The longest repetition in the request and in earlier outputs.
    Suffix,
    /// The output that the request predicted.
    Prediction,
}

impl DrafterKind {
    /// The name used in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            DrafterKind::Target => "target",
            DrafterKind::Draft => "draft",
            DrafterKind::Mtp => "mtp",
            DrafterKind::NgramCache => "ngram-cache",
            DrafterKind::NgramSimple => "ngram-simple",
            DrafterKind::NgramMapK => "ngram-map-k",
            DrafterKind::NgramMapK4v => "ngram-map-k4v",
            DrafterKind::NgramMod => "ngram-mod",
            DrafterKind::Suffix => "suffix",
            DrafterKind::Prediction => "prediction",
        }
    }
}

/// How drafted tokens are checked against the target. All leave the text distributed as the target alone writes it; the
/// first two also keep it, token for token, for a seed. See [`super::verify`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verify {
    /// Target and draft take the argmax of log-probability + the same Gumbel noise
    /// (arXiv 2408.07978), so they agree as often as their distributions do.
    Coupled,
    /// The draft proposes its most probable token; the target samples and compares (`speculative.cpp`).
    Match,
    /// A token drawn from the draft's q is accepted with the probability min(1, p/q) (arXiv 2302.01318).
    Rejection,
    /// The drawn tokens are accepted together (arXiv 2403.10444).
    Block,
}

impl Verify {
    /// The name used in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Verify::Coupled => "coupled",
            Verify::Match => "match",
            Verify::Rejection => "rejection",
            Verify::Block => "block",
        }
    }

    /// Whether it compares probabilities: then drafts are drawn from q, and what was drawn is checked.
    pub fn draws(self) -> bool {
        matches!(self, Verify::Rejection | Verify::Block)
    }
}

/// How the draft length changes while running.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Adaptive {
    /// Chooses the length that pays at the acceptance and costs measured so far, down to none.
    Auto,
    /// `speculative.cpp`'s rule: longer after a full acceptance, shorter after a rejection; and a draft model's draft ends
    /// where its most probable token is not twice as probable as the next.
    Heuristic,
    /// Always `n_max`.
    Fixed,
}

/// The validated `speculative` object of a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Which drafters may propose; of drafts that promise the same, one from the text is taken.
    pub sources: Vec<DrafterKind>,
    /// Most tokens to draft in a step, 1..=[`MAX_DRAFT`].
    pub n_max: usize,
    /// The same for drafters that look at the text alone, while lengths adapt: their drafts cost nothing until they are
    /// checked, and may be as long as what is repeated.
    pub n_max_text: usize,
    /// Drafts shorter than this are not worth verifying and are dropped.
    pub n_min: usize,
    /// Drafting stops at a token to which the draft gives less than this probability; llama.cpp's n-gram rules know none.
    pub p_min: f32,
    /// Most continuations that a draft model's draft has side by side, 1..=[`MAX_BRANCHES`].
    pub n_branches: usize,
    /// It branches to a token to which the draft gives at least this probability.
    pub p_split: f32,
    /// The verification rule.
    pub verify: Verify,
    /// How the draft length adapts.
    pub adaptive: Adaptive,
    /// The length of the first draft under [`Adaptive::Heuristic`], where `n_max` allows it: `speculative.cpp`'s `n_draft`.
    pub n_draft: usize,
    /// Parameters of the drafters that need no model.
    pub ngram: NgramParams,
    /// The request's own n-gram caches, in place of those that all share.
    pub lookup_static: Option<CacheFile>,
    /// As `lookup_static`: the dynamic one, which then learns nothing.
    pub lookup_dynamic: Option<CacheFile>,
    /// The output that the request predicts.
    pub prediction: Option<Arc<Predicted>>,
}

/// The longest draft under [`Adaptive::Heuristic`] unless `n_max` says otherwise, as in `speculative.cpp`.
pub const HEURISTIC_MAX: usize = 30;
/// The longest draft that a request may ask for.
pub const MAX_DRAFT: usize = 64;
/// The most branches that a request may ask for.
pub const MAX_BRANCHES: usize = 8;

impl Settings {
    /// Nobody drafts.
    pub fn none() -> Settings {
        Settings { sources: Vec::new(), ..Settings::default() }
    }

    /// Most tokens of the first draft.
    pub(super) fn first_length(&self) -> usize {
        if self.adaptive == Adaptive::Heuristic { self.n_draft.min(self.n_max) } else { self.n_max }
    }

    /// The same for who guesses: a token that costs nothing may be as unlikely as it is.
    pub(super) fn guessing(&self) -> Settings {
        let suffix = SuffixParams { guesses: true, ..self.ngram.suffix };
        Settings { ngram: NgramParams { suffix, ..self.ngram }, ..self.clone() }
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
            ngram: NgramParams::default(),
            lookup_static: None,
            lookup_dynamic: None,
            prediction: None,
        }
    }
}
