//! A request as the engine sees it: tokens and validated settings, no JSON.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::grammar::Grammar;
use crate::llama::Token;
use crate::sampling;
use crate::speculative::{self, Predicted};

/// One completion to generate.
#[derive(Debug, Clone)]
pub struct Request {
    /// The whole prompt; the engine shortens it when it does not fit (see [`crate::session`]).
    pub prompt: Arc<[Token]>,
    /// An earlier completion of the same submission (by index) that has the same prompt: it is decoded once for both where the KV cache
    /// allows it.
    pub prompt_of: Option<usize>,
    /// The scale of each LoRA adapter of the model.
    pub lora: Vec<f32>,
    /// How tokens are chosen.
    pub sampling: sampling::SamplingSettings,
    /// A grammar that the completion must follow, compiled for this request.
    pub grammar: Option<Grammar>,
    /// How to speculate; `None`: not at all.
    pub speculative: Option<speculative::Settings>,
    /// Whether the draft model answers alone. All other fields then apply to that model.
    pub draft_only: bool,
    /// Whether a completion with speculation is generated once more without it, to compare both.
    pub compare: bool,
    /// Options that need no vocabulary.
    pub options: RequestOptions,
}

/// The parts of a request that are prepared after it was queued.
#[derive(Debug, Clone)]
pub struct Prepared {
    /// The prompt of each completion.
    pub prompts: Vec<Arc<[Token]>>,
    /// The predicted output, where the request drafts from one.
    pub prediction: Option<Arc<Predicted>>,
}

/// Where a completion runs, what it keeps and reuses, when it ends, and what is reported of it.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestOptions {
    /// Most tokens to generate; `None`: until the model ends the completion.
    pub n_predict: Option<usize>,
    /// Tokens at the start of the prompt that a shortened prompt and a context shift keep; `None`: the whole prompt.
    pub n_keep: Option<usize>,
    /// Stop strings, none of which is empty.
    pub stop: Vec<String>,
    /// A hard limit on the time from submission to the end.
    pub timeout: Option<Duration>,
    /// Ends the completion with the first newline that comes later than this after the first token.
    pub t_max_predict: Option<Duration>,
    /// The width of a beam search, up to [`MAX_BEAMS`](super::MAX_BEAMS); 0 and 1: no beam search.
    pub n_beams: usize,
    /// The slot to run in; `None`: the one whose cache fits best.
    pub slot: Option<usize>,
    /// Whether the cached beginning of an earlier request may be reused.
    pub cache_prompt: bool,
    /// Least tokens of a part of the prompt that is moved to its position from a later one in the cache; 0: nothing is moved.
    pub n_cache_reuse: usize,
    /// A session file to put into the slot before the request begins.
    pub session_load: Option<PathBuf>,
    /// Where to save the slot as a session when the request has ended, unless it failed.
    pub session_save: Option<PathBuf>,
    /// The RNG counter of the first generated token; `None`: 0, or that of the loaded session.
    pub seed_position: Option<usize>,
    /// Whether reported probabilities are those after all samplers, instead of the model's own.
    pub post_sampling_probs: bool,
    /// Whether to report how much of the prompt has been decoded.
    pub progress: bool,
}
